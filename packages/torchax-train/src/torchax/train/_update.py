"""One step of a `Trainer`, as a pure function over arrays that compiles whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch
from torch import nn

import torchax
from torchax import interop

Loss = Callable[[nn.Module, Any], torch.Tensor]


class _Objective(nn.Module):
    """A model with its loss, so that ``functional_call`` reaches the model's tensors whatever the loss does with it."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any) -> torch.Tensor:
        return self.loss(self.model, batch)


@dataclass(frozen=True)
class Update:
    """How a step is computed; see `Trainer` for the meaning of each."""

    model: nn.Module
    loss: Loss
    optimizer: optax.GradientTransformation
    accumulate: int = 1
    clip: float | None = None
    dtype: Any = None
    remat: Callable[..., bool] | None = None
    ema: float | None = None

    def value(self, weights: Any, buffers: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        """The loss, float32, and the buffers after it."""
        if self.dtype is not None:
            weights, batch = jax.tree.map(self._cast, (weights, batch))
        own: dict[str, Any] = {f"model.{name}": torchax.Tensor(x) for name, x in {**weights, **buffers}.items()}
        with torchax.default_env().override_property(prng=key):
            value = torch.func.functional_call(
                _Objective(self.model, self.loss), own, (jax.tree.map(torchax.Tensor, batch),)
            )
        if value.ndim or not value.is_floating_point():
            raise TypeError(
                f"loss must return a scalar floating tensor, got {value.dtype} of shape {tuple(value.shape)}"
            )
        after = {name: own[f"model.{name}"].jax() for name in buffers}
        return interop.jax_view(value).astype(jnp.float32), after

    def _cast(self, x: jax.Array) -> jax.Array:
        return x.astype(self.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    def gradient(self, state: Any, batch: Any) -> tuple[jax.Array, Any, Any]:
        """``(loss, gradients, buffers)``, means over the microbatches."""
        value = self.value if self.remat is None else jax.checkpoint(self.value, policy=self.remat)
        grad = jax.value_and_grad(value, has_aux=True)
        key = jax.random.fold_in(jax.random.key(state["seed"]), state["step"])
        if self.accumulate == 1:
            (loss, buffers), grads = grad(state["weights"], state["buffers"], batch, key)
            return loss, grads, buffers

        def micro(carry: Any, part: Any) -> Any:
            total, grads, buffers = carry
            i, batch = part
            (loss, buffers), found = grad(state["weights"], buffers, batch, jax.random.fold_in(key, i))
            return (total + loss, jax.tree.map(jnp.add, grads, found), buffers), None

        zeros = jax.tree.map(jnp.zeros_like, state["weights"])
        start = jnp.float32(0), zeros, state["buffers"]
        (loss, grads, buffers), _ = jax.lax.scan(micro, start, (jnp.arange(self.accumulate), batch))
        return loss / self.accumulate, jax.tree.map(lambda g: g / self.accumulate, grads), buffers

    def __call__(self, state: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        """``(state, metrics)``. Where the loss or a gradient is not finite, all but ``step`` stays as it was.

        Args:
            state: ``weights``, ``buffers``, ``opt``, ``step``, ``seed`` and, with ``ema``, ``ema``.
            batch: a tree of arrays; with ``accumulate > 1``, each with a first dim of that size.
        """
        with jax.named_scope("loss_and_gradient"):
            loss, grads, buffers = self.gradient(state, batch)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        if self.clip is not None:
            scale = jnp.minimum(1.0, self.clip / (norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_
            grads = jax.tree.map(lambda g: (g * scale).astype(g.dtype), grads)
        with jax.named_scope("optimizer"):
            updates, opt = self.optimizer.update(grads, state["opt"], state["weights"])
            weights = optax.apply_updates(state["weights"], updates)
        new = {**state, "weights": weights, "opt": opt, "buffers": buffers}
        if (decay := self.ema) is not None:
            new["ema"] = jax.tree.map(lambda e, w: decay * e + (1 - decay) * w, state["ema"], weights)
        new = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, state)
        return {**new, "step": state["step"] + 1}, {"loss": loss, "grad_norm": norm, "finite": finite}

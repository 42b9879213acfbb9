"""One training step as a JAX function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax
import torch

from torchax import interop

Step = Callable[[Any, Any, Any, Any, Any], tuple[torch.Tensor, Any, Any]]


def make_train_step(
    model_fn: Callable[[Any, Any, Any], Any],
    loss_fn: Callable[[Any, Any], torch.Tensor],
    optax_optimizer: optax.GradientTransformation,
    remat_policy: Callable[..., bool] | None = None,
) -> Step:
    """A pure training step over torch tensors, to be used eagerly or under ``jax.jit``.

    Args:
        model_fn: ``(weights, buffers, args) -> output``, e.g.
            ``lambda w, b, x: torch.func.functional_call(model, {**w, **b}, (x,))``.
        loss_fn: ``(output, label) -> loss``, a scalar floating tensor.
        optax_optimizer: its state is ``interop.call_jax(optax_optimizer.init, weights)``.
        remat_policy: which intermediate results the backward pass keeps (``jax.checkpoint_policies``); all by default.

    Returns:
        ``step(weights, buffers, opt_state, args, label) -> (loss, weights, opt_state)``: ``weights`` a pytree of
        floating tensors, with the same structure, shapes and dtypes on return; ``args`` and ``label`` whatever
        ``model_fn`` and ``loss_fn`` take.
    """

    def step(weights: Any, buffers: Any, opt_state: Any, args: Any, label: Any) -> tuple[torch.Tensor, Any, Any]:
        def loss(arrays: Any) -> jax.Array:
            output = model_fn(interop.torch_view(arrays), buffers, args)
            return interop.jax_view(loss_fn(output, label))

        if remat_policy is not None:
            loss = jax.checkpoint(loss, policy=remat_policy)
        arrays, state = interop.jax_view((weights, opt_state))
        with jax.named_scope("loss_and_gradient"):
            value, grads = jax.value_and_grad(loss)(arrays)
        with jax.named_scope("optimizer"):
            updates, state = optax_optimizer.update(grads, state, arrays)
            arrays = optax.apply_updates(arrays, updates)
        return interop.torch_view((value, arrays, state))

    return step

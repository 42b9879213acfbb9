"""A PyTorch module as ``(params, apply)``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torchax import random, transfer
from torchax.interop import call_torch
from torchax.tensor import Tensor


def _array(t: torch.Tensor) -> jax.Array:
    """A tensor's array as JAX holds it under the caller's x64 setting."""
    t = t.detach()
    array = t.jax() if isinstance(t, Tensor) else transfer.to_array(t)
    return array if jax.config.jax_enable_x64 else jnp.asarray(transfer.narrowed(array, "a PyTorch module"))  # type: ignore[attr-defined]


class Apply:
    """A PyTorch module as a function of its parameters: ``apply(params, *args, **kwargs)``.

    Attributes:
        buffers: the module's buffers as arrays, by name, as they were when it was made.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.buffers = {name: _array(b) for name, b in module.named_buffers()}

    def __call__(self, params: Mapping[str, Any], *args: Any, rng: Any = None, **kwargs: Any) -> Any:
        """The module's output for arrays ``args`` and ``kwargs``, as arrays.

        Args:
            params: an array for each parameter, by name.
            rng: a JAX PRNG key for what draws (dropout); by default the device's generator.
        """
        return self.with_buffers(params, self.buffers, *args, rng=rng, **kwargs)[0]

    def with_buffers(
        self, params: Mapping[str, Any], buffers: Mapping[str, Any], *args: Any, rng: Any = None, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """The output, and the buffers as the module leaves them (batch statistics)."""

        def run(params: Any, buffers: Any, args: Any, kwargs: Any) -> Any:
            out = torch.func.functional_call(self.module, {**params, **buffers}, args, kwargs)
            return out, buffers

        with nullcontext() if rng is None else random.overridden(rng):
            return call_torch(run, dict(params), dict(buffers), args, kwargs)


def functional(module: torch.nn.Module) -> tuple[dict[str, jax.Array], Apply]:
    """A PyTorch module as ``(params, apply)``, for ``jax.grad``, ``jax.jit`` and optax.

    Args:
        module: on CPU or ``jax``; it is not changed. Its train mode counts when ``apply`` is called.

    Returns:
        The parameters as arrays by name (tied ones once), and ``apply(params, *args, **kwargs)``.
    """
    return {name: _array(p) for name, p in module.named_parameters()}, Apply(module)

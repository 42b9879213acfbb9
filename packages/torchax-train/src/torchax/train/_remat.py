"""Rematerialization and sharding constraints inside torch code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch import nn

from torchax import interop
from torchax.tensor import wide_for
from torchax.train._functional import call_transformed


def remat(fn: Callable[..., Any], *, policy: Callable[..., bool] | None = None, prevent_cse: bool = True) -> Any:
    """``fn``, computed again in the backward pass instead of keeping its intermediate results (``jax.checkpoint``).

    Args:
        fn: a function over tensors, or a module. Gradients reach its tensor arguments and a module's parameters. What a
            function closes over gets gradients from JAX (``jax.grad``, `make_train_step`), not from ``backward()``.
        policy: which intermediate results are kept (``jax.checkpoint_policies``, also those that offload to the host);
            none, by default.
        prevent_cse: as in ``jax.checkpoint``; False is safe inside ``lax.scan``.
    """
    transform = functools.partial(jax.checkpoint, policy=policy, prevent_cse=prevent_cse)
    if isinstance(fn, nn.Module):
        module = fn

        def of_module(*args: Any, **kwargs: Any) -> Any:
            state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            call = functools.partial(torch.func.functional_call, module)
            return call_transformed(transform, lambda s, a, k: call(s, a, k), (state, args, kwargs), {})

        return of_module

    @functools.wraps(fn)
    def of_function(*args: Any, **kwargs: Any) -> Any:
        return call_transformed(transform, fn, args, kwargs)

    return of_function


def mark_sharding(x: torch.Tensor, sharding: Any) -> torch.Tensor:
    """``x`` laid out over devices as ``sharding`` says; under ``jax.jit`` a constraint for the compiler. Differentiable.

    Args:
        x: a tensor on the device.
        sharding: a ``jax.sharding.Sharding``; a ``PartitionSpec``, where a mesh is set (``jax.set_mesh``).
    """
    with wide_for(interop.jax_view(x)):
        return interop.call_jax(jax.lax.with_sharding_constraint, x, sharding)

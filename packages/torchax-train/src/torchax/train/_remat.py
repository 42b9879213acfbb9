"""Rematerialization and sharding constraints inside torch code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch

from torchax import interop
from torchax.tensor import wide_for


def remat(fn: Callable[..., Any], *, policy: Callable[..., bool] | None = None, prevent_cse: bool = True) -> Any:
    """``fn``, computed again in the backward pass instead of keeping its intermediate results (``jax.checkpoint``).

    Args:
        fn: a function over tensors, or a module. Gradients reach its tensor arguments, and the parameters and other tensors
            that it reaches besides.
        policy: which intermediate results are kept (``jax.checkpoint_policies``, also those that offload to the host);
            none, by default.
        prevent_cse: as in ``jax.checkpoint``; False is safe inside ``lax.scan``.
    """
    return interop.gradient_checkpoint(fn, {"policy": policy, "prevent_cse": prevent_cse})


def mark_sharding(x: torch.Tensor, sharding: Any) -> torch.Tensor:
    """``x`` laid out over devices as ``sharding`` says; under ``jax.jit`` a constraint for the compiler. Differentiable.

    Args:
        x: a tensor on the device.
        sharding: a ``jax.sharding.Sharding``; a ``PartitionSpec``, where a mesh is set (``jax.set_mesh``).
    """
    with wide_for(interop.jax_view(x)):
        return interop.call_jax(jax.lax.with_sharding_constraint, x, sharding)

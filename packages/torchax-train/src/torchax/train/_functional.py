"""Torch code as a function from arrays to arrays, for JAX's transforms to take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch
import torch.utils._pytree as pytree

from torchax import interop
from torchax.tensor import Tensor, wide_for


def call_transformed(
    transform: Callable[[Callable[..., Any]], Callable[..., Any]], fn: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """``fn(*args, **kwargs)`` with ``transform`` around the function from its tensors to its result's tensors.

    Everything else among arguments and results stays as it is. Differentiable on both sides.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    at = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    result: Any = None

    def arrays_to_arrays(*arrays: jax.Array) -> list[jax.Array]:
        nonlocal result
        full = list(leaves)
        for i, array in zip(at, arrays):
            full[i] = Tensor(array)
        args, kwargs = pytree.tree_unflatten(full, spec)
        out, out_spec = pytree.tree_flatten(fn(*args, **kwargs))
        result = out, out_spec
        return [interop.jax_view(x) for x in out if isinstance(x, torch.Tensor)]

    if not at:
        return fn(*args, **kwargs)
    with wide_for(interop.jax_view(leaves[at[0]])):
        found = iter(interop.call_jax(transform(arrays_to_arrays), *(leaves[i] for i in at)))
    out, out_spec = result
    return pytree.tree_unflatten([next(found) if isinstance(x, torch.Tensor) else x for x in out], out_spec)

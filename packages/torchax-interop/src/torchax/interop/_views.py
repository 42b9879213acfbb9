"""The same data, or the same function, seen from the other side."""

from __future__ import annotations

import functools
from typing import Any

from torchax.interop._calls import call_jax, call_torch
from torchax.interop._tree import is_array, is_tensor, to_array, tree_map
from torchax.tensor import Tensor


def jax_view_elem(x: Any) -> Any:
    """A tensor as its ``jax.Array``, a torch function as a JAX function; anything else as it is.

    Raises:
        TypeError: the tensor is not on the device.
    """
    if is_tensor(x):
        return to_array(x)
    return functools.partial(call_torch, x) if callable(x) else x


def torch_view_elem(x: Any) -> Any:
    """A ``jax.Array`` as a tensor on the device, a JAX function as a torch function; anything else as it is."""
    if is_array(x):
        return Tensor(x)
    return functools.partial(call_jax, x) if callable(x) and not is_tensor(x) else x


def jax_view(tree: Any) -> Any:
    """``tree`` with each tensor as its ``jax.Array`` and each torch function as a JAX function.

    Args:
        tree: any pytree. A function becomes one that takes and returns arrays, and that ``jax.jit``, ``jax.grad`` and
            ``jax.vmap`` accept. Other leaves stay as they are.

    Raises:
        TypeError: a tensor is not on the device.
    """
    return tree_map(jax_view_elem, tree)


def torch_view(tree: Any) -> Any:
    """``tree`` with each ``jax.Array`` as a tensor on the device and each JAX function as a torch function.

    Args:
        tree: any pytree. A function becomes one that takes and returns tensors, differentiable by PyTorch's autograd.
            Other leaves stay as they are.
    """
    return tree_map(torch_view_elem, tree)

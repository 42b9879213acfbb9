"""The same data, or the same function, seen from the other side."""

from __future__ import annotations

import functools
from typing import Any

from torchax.interop._calls import call_jax, call_torch
from torchax.interop._tree import is_array, is_tensor, to_array, tree_map
from torchax.tensor import Tensor


def jax_view(tree: Any) -> Any:
    """``tree`` with each tensor as its ``jax.Array`` and each torch function as a JAX function.

    Args:
        tree: any pytree. A function becomes one that takes and returns arrays, and that ``jax.jit``, ``jax.grad`` and
            ``jax.vmap`` accept. Other leaves stay as they are.

    Raises:
        TypeError: a tensor is not on the device.
    """

    def leaf(x: Any) -> Any:
        if is_tensor(x):
            return to_array(x)
        return functools.partial(call_torch, x) if callable(x) else x

    return tree_map(leaf, tree)


def torch_view(tree: Any) -> Any:
    """``tree`` with each ``jax.Array`` as a tensor on the device and each JAX function as a torch function.

    Args:
        tree: any pytree. A function becomes one that takes and returns tensors, differentiable by PyTorch's autograd.
            Other leaves stay as they are.
    """

    def leaf(x: Any) -> Any:
        if is_array(x):
            return Tensor(x)
        return functools.partial(call_jax, x) if callable(x) and not is_tensor(x) else x

    return tree_map(leaf, tree)

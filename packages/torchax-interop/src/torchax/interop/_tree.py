"""Trees of tensors and arrays, taken apart by JAX's pytrees and, where those do not know a container, by PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch
import torch.utils._pytree as torch_pytree

from torchax.tensor import Tensor


def is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def tree_map(fn: Callable[[Any], Any], tree: Any) -> Any:
    """``fn`` over the leaves of ``tree``: tensors, arrays and everything that neither JAX nor PyTorch takes apart.

    JAX's pytrees come first; what is a leaf to JAX and a container to PyTorch (a ``transformers`` ``ModelOutput``) is
    taken apart by PyTorch's. A `Tensor` is one leaf, though it is a pytree to JAX.
    """

    def leaf(x: Any) -> Any:
        if is_tensor(x) or type(x) not in torch_pytree.SUPPORTED_NODES:
            return fn(x)
        children, context = torch_pytree.SUPPORTED_NODES[type(x)].flatten_fn(x)
        return torch_pytree.SUPPORTED_NODES[type(x)].unflatten_fn([tree_map(fn, c) for c in children], context)

    return jax.tree.map(leaf, tree, is_leaf=is_tensor)


def is_array(x: Any) -> bool:
    return isinstance(x, jax.Array)


def to_array(x: torch.Tensor) -> jax.Array:
    """The ``jax.Array`` of a tensor on the device.

    Raises:
        TypeError: the tensor is on another device.
    """
    if not isinstance(x, Tensor):
        raise TypeError(
            f"a tensor of shape {tuple(x.shape)} on device {x.device} has no jax.Array; move it first with .to('jax')"
        )
    return x.jax()

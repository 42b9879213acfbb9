"""Trees of tensors and arrays: Python's containers, and every class that PyTorch's or JAX's pytrees take apart.

Dictionaries keep their order, and classes that others own (a ``transformers`` ``ModelOutput``, ``torch.return_types``) come
back as themselves, without being registered with JAX. A `Tensor` is one leaf, though it is a pytree to JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import torch
import torch.utils._pytree as torch_pytree
from jax.tree_util import default_registry

from torchax.tensor import Tensor

_SEQUENCES = (tuple, list)


class Spec:
    """A tree without its leaves: comparable and hashable, to be filled with leaves again.

    Attributes:
        kind: the container's class; ``None`` for a leaf.
        context: what else the container holds: the keys of a dictionary, or what its own pytree says.
        children: the specs of what is inside.
    """

    __slots__ = ("_hash", "children", "context", "kind", "rebuild")

    def __init__(
        self, kind: Any, context: Any, children: tuple[Spec, ...], rebuild: Callable[[list[Any]], Any]
    ) -> None:
        self.kind, self.context, self.children, self.rebuild = kind, context, children, rebuild
        self._hash = hash((kind, children))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Spec)
            and self._hash == other._hash
            and self.kind is other.kind
            and self.context == other.context
            and self.children == other.children
        )

    def fill(self, leaves: Iterator[Any]) -> Any:
        """The tree, with the next of ``leaves`` in the places of its own."""
        if self.kind is None:
            return next(leaves)
        return self.rebuild([child.fill(leaves) for child in self.children])


LEAF = Spec(None, None, (), lambda xs: xs)


def flatten(tree: Any) -> tuple[list[Any], Spec]:
    """The leaves of ``tree``, and its shape."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> Spec:
    kind = type(tree)
    if kind is Tensor or isinstance(tree, torch.Tensor):
        leaves.append(tree)
        return LEAF
    if kind in _SEQUENCES:
        return Spec(kind, None, tuple([_flatten(x, leaves) for x in tree]), kind)
    if kind is dict:
        keys = tuple(tree)
        children = tuple([_flatten(x, leaves) for x in tree.values()])
        return Spec(dict, keys, children, lambda xs: dict(zip(keys, xs, strict=True)))
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        children = tuple([_flatten(x, leaves) for x in tree])
        return Spec(kind, None, children, lambda xs: kind(*xs))
    node = torch_pytree.SUPPORTED_NODES.get(kind)
    if node is not None:
        inside, context = node.flatten_fn(tree)
        children = tuple([_flatten(x, leaves) for x in inside])
        return Spec(kind, context, children, lambda xs: node.unflatten_fn(xs, context))
    found = None if tree is None else default_registry.flatten_one_level(tree)
    if found is None:
        leaves.append(tree)
        return LEAF
    inside, context = found
    definition = jax.tree.structure(tree, is_leaf=lambda x: x is not tree)
    children = tuple([_flatten(x, leaves) for x in inside])
    return Spec(kind, context, children, lambda xs: jax.tree.unflatten(definition, xs))


def tree_map(fn: Callable[[Any], Any], tree: Any) -> Any:
    """``fn`` over the leaves of ``tree``: tensors, arrays, and everything that nobody takes apart."""
    leaves, spec = flatten(tree)
    return spec.fill(iter([fn(x) for x in leaves]))


def is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


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

"""A pytree of arrays as a PyTorch module: a submodule for each container, a parameter or buffer for each array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torchax.tensor import Tensor


def _part(key: Any) -> str:
    """One key of a path as a name that PyTorch takes."""
    found: Any = next(getattr(key, a) for a in ("key", "idx", "name") if hasattr(key, a))
    return str(found).replace(".", "_")


def is_key(x: Any) -> bool:
    """Whether an array holds typed PRNG keys, which no tensor can."""
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


class ArrayTree(torch.nn.Module):
    """The arrays of a pytree as parameters and buffers, under the names of their paths.

    Args:
        tree: any pytree of arrays.
        trainable: says of a path (its keys as strings) and an array whether it is a parameter; others are buffers. Arrays
            that are not of floats are always buffers.
    """

    def __init__(self, tree: Any, trainable: Callable[[tuple[str, ...], jax.Array], bool]) -> None:
        super().__init__()
        found, structure = jax.tree_util.tree_flatten_with_path(tree)
        self._structure: Any = structure
        self._paths: list[tuple[str, ...]] = [tuple(map(_part, path)) or ("value",) for path, _ in found]
        self._keys = [is_key(x) for _, x in found]
        if len(set(self._paths)) != len(self._paths):
            raise ValueError("two arrays of the tree have one name once their keys are written as text")
        for path, (_, array) in zip(self._paths, found):
            # Into the dictionaries themselves: a name such as "buffers" is an attribute of every module.
            owner: torch.nn.Module = self
            for part in path[:-1]:
                owner = owner._modules.setdefault(part, torch.nn.Module())  # type: ignore[assignment]
            value = Tensor(jax.random.key_data(array) if is_key(array) else jnp.asarray(array))
            if (value.is_floating_point() or value.is_complex()) and trainable(path, array):
                owner._parameters[path[-1]] = torch.nn.Parameter(value)
            else:
                owner._buffers[path[-1]] = value

    def _held(self, path: tuple[str, ...]) -> tuple[torch.Tensor, bool]:
        """The tensor of a path, and whether it is a buffer."""
        owner: Any = self
        for part in path[:-1]:
            owner = owner._modules[part]
        buffer = path[-1] in owner._buffers
        return (owner._buffers if buffer else owner._parameters)[path[-1]], buffer

    def tree(self) -> Any:
        """The pytree, with tensors for its arrays."""
        return self._structure.unflatten([self._held(path)[0] for path in self._paths])

    def arrays(self, tree: Any) -> Any:
        """What a JAX function that was given `tree` sees of it, with PRNG keys as they were."""
        leaves = self._structure.flatten_up_to(tree)
        return self._structure.unflatten([jax.random.wrap_key_data(x) if k else x for x, k in zip(leaves, self._keys)])

    def written(self, before: Any, after: Any) -> list[Any]:
        """For each buffer, in order, the array that took its place from one tree of arrays to the next, or ``None``."""
        old, new = (self._structure.flatten_up_to(tree) for tree in (before, after))
        return [
            None if x is y else jax.random.key_data(y) if key else y
            for x, y, key, path in zip(old, new, self._keys, self._paths)
            if self._held(path)[1]
        ]

    def write(self, values: list[torch.Tensor | None]) -> None:
        """Put what `written` gave, as tensors, into the buffers."""
        buffers = [held for held, buffer in map(self._held, self._paths) if buffer]
        with torch.no_grad():
            for held, value in zip(buffers, values, strict=True):
                if value is not None:
                    held.copy_(value.detach())

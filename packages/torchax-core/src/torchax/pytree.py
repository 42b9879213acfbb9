"""Makes ``Tensor`` a JAX pytree node with one leaf, its array.

Nothing but the array counts: ``requires_grad`` and names are not part of the structure, so that
``jax.tree.map(f, params, grads)`` works. Any leaf may come back in a tensor's place (``None``, a ``ShapeDtypeStruct``, a
``PartitionSpec``): the node then holds it for JAX to flatten again.
"""

from __future__ import annotations

from typing import Any

import jax
import torch

from torchax import devices
from torchax.devices import index_of, torch_device
from torchax.storage import Storage
from torchax.tensor import Tensor, wrap


def _flatten(t: Tensor) -> tuple[tuple[Any], None]:
    return (t._value(),), None


def _unflatten(aux: None, leaves: Any) -> Tensor:
    [leaf] = leaves
    if isinstance(leaf, jax.Array):
        return wrap(leaf, torch_device(index_of(leaf))) if devices.several() else wrap(leaf)
    try:
        return wrap(leaf)  # a shape and a dtype are enough: ShapeDtypeStruct, numpy arrays
    except (AttributeError, TypeError):
        holder = torch.Tensor._make_wrapper_subclass(Tensor, (0,), device="jax:0")  # type: ignore[arg-type]
        holder._box = Storage(leaf)
        return holder


def register() -> None:
    jax.tree_util.register_pytree_node(Tensor, _flatten, _unflatten)


register()

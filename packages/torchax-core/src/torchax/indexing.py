"""Indexing by a 0-d integer tensor under a trace.

PyTorch turns such an index into a Python number, which a trace does not have. Here it stays an operand: everything else in
the index is done first, and what remains is one ``aten::index`` with it. Eager indexing is PyTorch's own.
"""

from __future__ import annotations

from typing import Any

import jax
import torch

from torchax.tensor import Tensor

aten = torch.ops.aten


def _is_traced_number(x: Any) -> bool:
    return (
        isinstance(x, Tensor)
        and x.ndim == 0
        and x.dtype is not torch.bool
        and not x.is_floating_point()
        and isinstance(x._box.array, jax.core.Tracer)
    )


def _traced(index: Any) -> bool:
    return any(map(_is_traced_number, index)) if isinstance(index, tuple) else _is_traced_number(index)


def _take_apart(self: torch.Tensor, index: Any) -> tuple[Any, list[Any]] | None:
    """``(index without the traced numbers, for each dimension it leaves the traced number that goes there)``.

    ``None`` where another tensor or list indexes too: then a number is a vector of one that broadcasts with it.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(x, (torch.Tensor, list)) and not _is_traced_number(x) for x in items):
        return None
    consumed = sum(x is not None and x is not Ellipsis for x in items)
    if Ellipsis not in [x if not isinstance(x, torch.Tensor) else None for x in items]:
        items.append(Ellipsis)
    numbers: list[Any] = []
    for x in items:
        if x is Ellipsis:
            numbers.extend([None] * (self.ndim - consumed))
        elif _is_traced_number(x):
            numbers.append(x)
        elif not isinstance(x, int) or isinstance(x, bool):
            numbers.append(None)
    return tuple(slice(None) if _is_traced_number(x) else x for x in items), numbers


def _as_vectors(index: Any) -> Any:
    return tuple(x.reshape(1) if _is_traced_number(x) else x for x in index)


def _getitem(self: Tensor, index: Any) -> Any:
    kind = type(index)
    if kind is int or kind is slice or not _traced(index):
        return torch.Tensor.__getitem__(self, index)
    apart = _take_apart(self, index)
    if apart is None:
        return torch.Tensor.__getitem__(self, _as_vectors(index))
    rest, numbers = apart
    return aten.index.Tensor(torch.Tensor.__getitem__(self, rest), numbers)


def _setitem(self: Tensor, index: Any, value: Any) -> None:
    kind = type(index)
    if kind is int or kind is slice or not _traced(index):
        torch.Tensor.__setitem__(self, index, value)
        return
    apart = _take_apart(self, index)
    if apart is None:
        torch.Tensor.__setitem__(self, _as_vectors(index), value)
        return
    rest, numbers = apart
    if not isinstance(value, torch.Tensor):
        value = torch.tensor(value, device=self.device)
    aten.index_put_.default(torch.Tensor.__getitem__(self, rest), numbers, value.to(self.device, self.dtype))


Tensor.__getitem__ = _getitem  # type: ignore[assignment, method-assign]
Tensor.__setitem__ = _setitem  # type: ignore[method-assign,assignment]

"""Dimensions and shapes, with PyTorch's errors."""

from __future__ import annotations

import math
from collections.abc import Sequence

Shape = tuple[int, ...]


def canonical_dim(dim: int, ndim: int) -> int:
    """``dim`` counted from the front. A 0-d array takes ``0`` and ``-1``, as in PyTorch.

    Raises:
        IndexError: ``dim`` is out of range.
    """
    n = max(ndim, 1)
    if not -n <= dim < n:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
    return dim % n


def canonical_dims(dims: int | Sequence[int] | None, ndim: int, *, empty_is_all: bool = True) -> Shape:
    """Sorted, distinct dims; ``None`` (and an empty list, unless told otherwise) mean all of them.

    For a 0-d array the result is ``()``.

    Raises:
        IndexError: a dim is out of range.
        RuntimeError: a dim appears twice.
    """
    if dims is None or (empty_is_all and not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(ndim))
    seq = (dims,) if isinstance(dims, int) else tuple(dims)
    found = [canonical_dim(d, ndim) for d in seq]
    for d in found:
        if found.count(d) > 1:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")
    return tuple(sorted(found)) if ndim else ()


def broadcast_shapes(*shapes: Sequence[int]) -> Shape:
    """The shape that all broadcast to.

    Raises:
        RuntimeError: they do not.
    """
    out: list[int] = []
    for shape in shapes:
        out = [1] * (len(shape) - len(out)) + out
        for i in range(1, len(shape) + 1):
            a, b = out[-i], shape[-i]
            if a != b and a != 1 and b != 1:
                raise RuntimeError(
                    f"The size of tensor a ({a}) must match the size of tensor b ({b}) "
                    f"at non-singleton dimension {len(out) - i}"
                )
            out[-i] = b if a == 1 else a
    return tuple(out)


def infer_size(shape: Sequence[int], numel: int) -> Shape:
    """``shape`` with its ``-1`` filled in.

    Raises:
        RuntimeError: ``shape`` does not hold ``numel`` elements, or the ``-1`` is ambiguous.
    """
    known = math.prod(d for d in shape if d != -1)
    if list(shape).count(-1) > 1:
        raise RuntimeError("only one dimension can be inferred")
    if any(d < -1 for d in shape):
        raise RuntimeError(f"invalid shape dimension {min(shape)} in {list(shape)}")
    if -1 in shape:
        if known == 0:
            if numel == 0:
                raise RuntimeError(
                    f"cannot reshape tensor of 0 elements into shape {list(shape)} because the unspecified "
                    "dimension size -1 can be any value and is ambiguous"
                )
        elif numel % known == 0:
            return tuple(numel // known if d == -1 else d for d in shape)
    elif known == numel:
        return tuple(shape)
    raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {numel}")

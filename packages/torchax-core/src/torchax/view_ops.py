"""aten's view operators: which step each adds to a chain, and the sizes, strides and offset PyTorch gives the view.

Sizes, strides and offsets are not computed here: PyTorch's own meta kernels answer (cached per signature), so that
``view`` refuses exactly what PyTorch refuses. Only ``select`` and ``slice``, whose position changes from call to call,
take their metadata from a formula.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchax import views
from torchax.dtypes import t2j_dtype
from torchax.views import ROOT, Chain, Step

aten = torch.ops.aten
Steps = list[tuple[Step, int | None]]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Metadata:
    """What PyTorch knows of a tensor without its data and offset. Interned: equal ones are one object."""

    shape: Shape
    strides: Shape
    dtype: torch.dtype
    contiguous: bool


View = tuple[Metadata, int, Chain, views.Operands]  # metadata, storage offset, chain, operands
_metadata: dict[tuple[Shape, Shape, torch.dtype], Metadata] = {}


def metadata(shape: Shape, strides: Shape, dtype: torch.dtype) -> Metadata:
    """The one `Metadata` of these."""
    key = (shape, strides, dtype)
    found = _metadata.get(key)
    if found is None:
        found = _metadata.setdefault(key, Metadata(shape, strides, dtype, is_contiguous(shape, strides)))
    return found


def metadata_of(t: torch.Tensor) -> Metadata:
    """The metadata of any strided tensor."""
    return metadata(tuple(t.shape), t.stride(), t.dtype)


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    expected = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n == 0:
            return True
        if n != 1:
            if s != expected:
                return False
            expected *= n
    return True


def contiguous_strides(shape: Shape) -> Shape:
    strides, n = [], 1
    for size in reversed(shape):
        strides.append(n)
        n *= max(size, 1)
    return tuple(reversed(strides))


# --- the steps of each operator: (input's metadata, output's metadata, *args) -> steps ------------------------------
#
# A table from aten name to the function that says which steps lead from the input to one output. ``out`` is the
# output's metadata, so that what only changes the shape (view, squeeze, unsqueeze ...) needs no code of its own.

StepsOf = Callable[..., Steps]
_STEPS: dict[Any, StepsOf] = {}


def _steps(*ops: Any) -> Callable[[StepsOf], StepsOf]:
    def decorate(fn: StepsOf) -> StepsOf:
        for op in ops:
            _STEPS[op] = fn
        return fn

    return decorate


def _dim(dim: int, ndim: int) -> int:
    return dim % ndim if ndim else 0


@_steps(aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.lift.default)
def _same(a: Metadata, out: Metadata, *args: Any) -> Steps:
    return []


@_steps(
    aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
)  # fmt: skip
def _reshape(a: Metadata, out: Metadata, *args: Any) -> Steps:
    return [] if a.shape == out.shape else [(views.Reshape(out.shape), None)]


@_steps(aten.permute.default)
def _permute(a: Metadata, out: Metadata, dims: Shape) -> Steps:
    return [(views.Permute(tuple(_dim(d, len(a.shape)) for d in dims)), None)]


@_steps(aten.t.default, aten.numpy_T.default)
def _t(a: Metadata, out: Metadata) -> Steps:
    return [(views.Permute(tuple(reversed(range(len(a.shape))))), None)]


@_steps(aten.transpose.int, aten.swapaxes.default, aten.swapdims.default)
def _transpose(a: Metadata, out: Metadata, dim0: int, dim1: int) -> Steps:
    dims = list(range(len(a.shape)))
    if dims:
        i, j = _dim(dim0, len(dims)), _dim(dim1, len(dims))
        dims[i], dims[j] = dims[j], dims[i]
    return [(views.Permute(tuple(dims)), None)]


@_steps(aten.expand.default)
def _expand(a: Metadata, out: Metadata, *args: Any, **kwargs: Any) -> Steps:
    return [] if a.shape == out.shape else [(views.Expand(out.shape), None)]


@_steps(aten.diagonal.default)
def _diagonal(a: Metadata, out: Metadata, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Steps:
    n = len(a.shape)
    return [(views.Diagonal(offset, _dim(dim1, n), _dim(dim2, n)), None)]


@_steps(aten.unfold.default)
def _unfold(a: Metadata, out: Metadata, dimension: int, size: int, step: int) -> Steps:
    return [(views.Unfold(_dim(dimension, len(a.shape)), size, step), None)]


@_steps(aten.view.dtype)
def _view_dtype(a: Metadata, out: Metadata, dtype: torch.dtype) -> Steps:
    return [] if a.dtype == dtype else [(views.Bitcast(t2j_dtype(dtype)), None)]


@_steps(aten.view_as_real.default)
def _as_real(a: Metadata, out: Metadata) -> Steps:
    return [(views.AsReal(), None)]


@_steps(aten.view_as_complex.default)
def _as_complex(a: Metadata, out: Metadata) -> Steps:
    return [(views.AsComplex(), None)]


@_steps(aten._conj.default)
def _conj(a: Metadata, out: Metadata) -> Steps:
    return [(views.Conj(), None)]


@_steps(aten._neg_view.default)
def _neg_view(a: Metadata, out: Metadata) -> Steps:
    return [(views.Negate(), None)]


# --- operators with several results ---------------------------------------------------------------------------------

_Many = Callable[..., list[Steps]]
_MANY: dict[Any, _Many] = {}


def _pieces(a: Metadata, outs: list[Metadata], dim: int) -> list[Steps]:
    dim, start, pieces = _dim(dim, len(a.shape)), 0, []
    for out in outs:
        length = out.shape[dim]
        pieces.append([(views.Slice(dim, length, 1), start)])
        start += length
    return pieces  # type: ignore[return-value]


_MANY[aten.split.Tensor] = lambda a, outs, size, dim=0: _pieces(a, outs, dim)
_MANY[aten.split_with_sizes.default] = lambda a, outs, sizes, dim=0: _pieces(a, outs, dim)
_MANY[aten.split.sizes] = _MANY[aten.split_with_sizes.default]
_MANY[aten.chunk.default] = lambda a, outs, chunks, dim=0: _pieces(a, outs, dim)
_MANY[aten.unbind.int] = lambda a, outs, dim=0: [[(views.Select(_dim(dim, len(a.shape))), i)] for i in range(len(outs))]


# --- from one view to the next --------------------------------------------------------------------------------------


def _frozen(args: Any) -> Any:
    return tuple(_frozen(a) for a in args) if isinstance(args, (list, tuple)) else args


def _on_meta(op: Any, a: Metadata, offset: int, args: tuple[Any, ...], kwargs: tuple[Any, ...]) -> Any:
    source = torch.as_strided(torch.empty(0, dtype=a.dtype, device="meta"), a.shape, a.strides, offset)
    out = op(source, *args, **dict(kwargs))
    results = list(out) if isinstance(out, (list, tuple)) else [out]
    return [(metadata_of(t), int(t.storage_offset()) - offset) for t in results]


_derived = functools.lru_cache(maxsize=16384)(_on_meta)

# These count the offset in items of another size; for others the result's moves with it.
_USES_OFFSET = {aten.view.dtype, aten.view_as_complex.default, aten.view_as_real.default}


def derive(op: Any, view: View, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[View]:
    """The view(s) that ``op(view, *args, **kwargs)`` makes.

    Raises:
        what PyTorch raises for these sizes and arguments.
    """
    if op is aten.select.int:
        return [_select(*view, *args, **kwargs)]
    if op is aten.slice.Tensor:
        return [_slice(*view, *args, **kwargs)]
    a, offset, chain, operands = view
    frozen = _frozen(args)
    known = _derived(
        op, a, offset if op in _USES_OFFSET else 0, frozen, tuple(sorted(kwargs.items())) if kwargs else ()
    )
    if op in _STEPS:
        [(out, moved)] = known
        for step, at in _STEPS[op](a, out, *frozen, **kwargs):
            chain, operands = views.extend(chain, operands, step, at)
        return [(out, offset + moved, chain, operands)]
    steps = _MANY[op](a, [out for out, _ in known], *frozen, **kwargs)
    return [
        (out, offset + moved, *views.extend(chain, operands, step, at))
        for (out, moved), [(step, at)] in zip(known, steps, strict=True)
    ]


def is_view_op(op: Any) -> bool:
    return op in _STEPS or op in _MANY or op in (aten.select.int, aten.slice.Tensor)


@functools.lru_cache(maxsize=16384)
def _without(a: Metadata, dim: int) -> Metadata:
    return metadata(a.shape[:dim] + a.shape[dim + 1 :], a.strides[:dim] + a.strides[dim + 1 :], a.dtype)


def _select(a: Metadata, offset: int, chain: Chain, operands: views.Operands, dim: int, index: int) -> View:
    n = len(a.shape)
    if n == 0:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    if not -n <= dim < n:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
    dim %= n
    size = a.shape[dim]
    if not -size <= index < size:
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(a.shape)} at dimension {dim}")
    index %= size
    return _without(a, dim), offset + index * a.strides[dim], *views.extend(chain, operands, views.Select(dim), index)


@functools.lru_cache(maxsize=16384)
def _cut(a: Metadata, dim: int, length: int, step: int) -> Metadata:
    shape = (*a.shape[:dim], length, *a.shape[dim + 1 :])
    strides = (*a.strides[:dim], a.strides[dim] * step, *a.strides[dim + 1 :])
    return metadata(shape, strides, a.dtype)


def _slice(
    a: Metadata,
    offset: int,
    chain: Chain,
    operands: views.Operands,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> View:
    n = len(a.shape)
    if n == 0:
        raise RuntimeError("slice() cannot be applied to a 0-dim tensor.")
    if not -n <= dim < n:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    dim %= n
    size = a.shape[dim]
    first = 0 if start is None else max(start + size, 0) if start < 0 else min(start, size)
    last = size if end is None else max(end + size, 0) if end < 0 else min(end, size)
    length = -(-max(last - first, 0) // step)
    if length == size and step == 1:
        return a, offset, chain, operands
    return (
        _cut(a, dim, length, step),
        offset + first * a.strides[dim],
        *views.extend(chain, operands, views.Slice(dim, length, step), first),
    )


def as_strided(
    base_shape: Shape, base_strides: Shape | None, base_dtype: np.dtype, dtype: torch.dtype, shape: Shape,
    strides: Shape, offset: int,
) -> View:  # fmt: skip
    """The view of a whole storage that ``as_strided`` asks for, whatever view it is asked of.

    Raises:
        RuntimeError: it reaches outside the storage.
    """
    chain, operands = ROOT, ()
    if base_strides is not None:
        order = tuple(int(d) for d in np.argsort([-s for s in base_strides], kind="stable"))
        chain, operands = views.extend(chain, operands, views.Permute(order))  # type: ignore[assignment]
    numel = int(np.prod(base_shape, dtype=np.int64))
    if len(base_shape) != 1:
        chain, operands = views.extend(chain, operands, views.Reshape((numel,)))  # type: ignore[assignment]
    target = t2j_dtype(dtype)
    if base_dtype != target:
        chain, operands = views.extend(chain, operands, views.Bitcast(target))  # type: ignore[assignment]
        numel = numel * base_dtype.itemsize // target.itemsize
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if 0 not in shape and last >= numel:
        raise RuntimeError(
            f"setStorage: sizes {list(shape)}, strides {list(strides)}, storage offset {offset}, and itemsize "
            f"{target.itemsize} requiring a storage size of {(last + 1) * target.itemsize} are out of bounds for "
            f"storage of size {numel * target.itemsize}"
        )
    out = metadata(shape, strides, dtype)
    if out.contiguous and 0 not in shape:  # a run of elements, as autograd asks for most often: no gather
        chain, operands = views.extend(chain, operands, views.Slice(0, last - offset + 1, 1), offset)  # type: ignore[assignment]
        return out, offset, *views.extend(chain, operands, views.Reshape(shape))
    return out, offset, *views.extend(chain, operands, views.Strided(shape, strides), offset)

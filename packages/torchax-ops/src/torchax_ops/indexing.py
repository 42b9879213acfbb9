"""Reading and writing at indices and masks: ``index``, ``index_put``, the ``index_*`` family, masks, ``nonzero``.

Indices that PyTorch refuses raise in an eager call (``check=``); in a compiled one they are clamped when read and
dropped when written, as JAX does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from torchax_ops._promotion import canonical, cast, category, is_complex, is_number, opmath
from torchax_ops._registry import exported, register
from torchax_ops._shapes import Shape, broadcast_shapes, canonical_dim

Scalar = bool | int | float | complex | jax.Array
Indices = Sequence[jax.Array | None]
_MASK_DTYPES = ("bool", "uint8")
_INDEX_DTYPES = ("int64", "int32", *_MASK_DTYPES)


# What PyTorch refuses


def _outside(index: jax.Array, low: int, high: int) -> int | None:
    """The first element of a concrete ``index`` that is not in ``[low, high)``."""
    at = np.asarray(index)
    if at.size and (at.min() < low or at.max() >= high):
        return int(at[(at < low) | (at >= high)].flat[0])
    return None


def _require_integers(op: str, index: jax.Array, *names: str) -> None:
    if index.dtype.name not in (names or ("int64", "int32")) and index.dtype != canonical("int64"):
        raise RuntimeError(
            f"{op}(): Expected dtype {'/'.join(names or ('int32', 'int64'))} for index, got {index.dtype}"
        )


def _require_same_dtype(op: str, self: jax.Array, source: jax.Array) -> None:
    if self.dtype != source.dtype:
        raise RuntimeError(
            f"{op}(): self and source expected to have the same dtype, but got {self.dtype} and {source.dtype}"
        )


def _require_mask(op: str, mask: jax.Array) -> None:
    if mask.dtype != np.bool_:
        raise RuntimeError(f"{op} only supports boolean masks, but got mask with dtype {mask.dtype}")


def _concrete(op: str, x: jax.Array, remedy: str) -> np.ndarray:
    if isinstance(x, jax.core.Tracer):
        raise RuntimeError(f"{op}: the shape of the result depends on values, which a trace does not have; {remedy}")
    return np.asarray(x)


def _scalar(op: str, value: Any, dtype: np.dtype) -> jax.Array:
    """``value`` as ``dtype``; RuntimeError where it is complex and ``dtype`` is not."""
    if is_complex(value) and category(dtype) != 3:
        raise RuntimeError(f"{op}: value cannot be converted to type {dtype} without overflow")
    return cast(value, dtype)


def _check_fits(op: str, value: Any, dtype: np.dtype) -> None:
    """RuntimeError for a finite number outside the range of ``dtype``; unsigned types wrap negative ones."""
    if not is_number(value) or isinstance(value, (complex, jax.Array)) or not math.isfinite(value) or dtype == np.bool_:
        return
    if category(dtype) == 1:
        info = jnp.iinfo(dtype)
        low, high = float(-int(info.max) if info.min == 0 else info.min), float(info.max)
    elif category(dtype) == 2:
        high = float(jnp.finfo(dtype).max)
        low = -high
    else:
        return
    if not low <= value <= high:
        raise RuntimeError(f"{op}: value cannot be converted to type {dtype} without overflow")


# Indices as PyTorch's lists: None is a whole dimension, a mask stands for the coordinates of its true elements


def _is_mask(index: jax.Array | None) -> TypeGuard[jax.Array]:
    # By name, so that a plan may ask about PyTorch's tensors too.
    return index is not None and str(index.dtype).removeprefix("torch.") in _MASK_DTYPES


def _shape_of_masks(op: str, shape: Shape, indices: Indices) -> None:
    """What is wrong with dtypes, number and mask shapes of ``indices``."""
    if not len(indices):
        raise IndexError("at least one index must be provided")
    dim = 0
    for i, index in enumerate(indices):
        if index is None:
            dim += 1
            continue
        if index.dtype.name not in _INDEX_DTYPES:
            raise IndexError(
                f"{op}: tensors used as indices must be long, int, byte or bool tensors, but got {index.dtype}"
            )
        if _is_mask(index):
            if tuple(index.shape) != tuple(shape[dim : dim + index.ndim]):
                raise IndexError(
                    f"{op}: The shape of the mask {list(index.shape)} at index {i} does not match the shape of the "
                    f"indexed tensor {list(shape)} at index {dim}"
                )
            dim += index.ndim
        else:
            dim += 1
    if dim > len(shape):
        raise IndexError(f"{op}: too many indices for tensor of dimension {len(shape)} (got {dim})")


def _without_masks(op: str, indices: Indices) -> list[jax.Array | None]:
    """``indices`` with every mask replaced by the coordinates of its true elements."""
    out: list[jax.Array | None] = []
    for index in indices:
        if _is_mask(index):
            mask = _concrete(op, index, "use torch.where, or nonzero_static for the indices")
            out += [jnp.asarray(at, canonical("int64")) for at in np.atleast_1d(mask).nonzero()[: max(mask.ndim, 1)]]
        else:
            out.append(index)
    return out


def _subscript(op: str, shape: Shape, indices: Indices) -> tuple[tuple[Any, ...], Shape]:
    """A JAX subscript for indices without masks, and the shape it gives."""
    given = [index for index in indices if index is not None]
    try:
        common = broadcast_shapes(*(index.shape for index in given))
    except RuntimeError:
        shapes = ", ".join(str(list(index.shape)) for index in given)
        raise IndexError(
            f"{op}: shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None
    where = [i for i, index in enumerate(indices) if index is not None]
    rest = [n for i, n in enumerate(shape) if i not in where]
    adjacent = bool(where) and where[-1] - where[0] + 1 == len(where)
    front = where[0] if adjacent else 0
    subscript = tuple(slice(None) if index is None else index for index in indices)
    return subscript, (*rest[:front], *common, *rest[front:])


def _check_range(op: str, shape: Shape, indices: Indices) -> None:
    dim = 0
    for index in indices:
        if _is_mask(index):
            dim += index.ndim
            continue
        if index is not None and index.size:
            size = shape[dim]
            if size == 0:
                raise IndexError("index is out of bounds for dimension with size 0")
            bad = _outside(index, -size, size)
            if bad is not None:
                raise IndexError(f"{op}: index {bad} is out of bounds for dimension {dim} with size {size}")
        dim += 1


def _check_index(self: jax.Array, indices: Indices) -> None:
    _shape_of_masks("index", self.shape, indices)
    _check_range("index", self.shape, indices)


def _has_mask(self: jax.Array, indices: Indices) -> bool:
    return any(_is_mask(index) for index in indices)


@register("index.Tensor", eager=_has_mask, check=_check_index)
def index(self: jax.Array, indices: Indices) -> jax.Array:
    """``self[indices]``, where ``None`` is a whole dimension and a bool (or uint8) array a mask.

    Raises:
        IndexError: indices have a wrong dtype, are too many, do not broadcast together, or a mask has another shape.
        RuntimeError: a mask is traced, so that the shape of the result is unknown.
    """
    _shape_of_masks("index", self.shape, indices)
    subscript, _ = _subscript("index", self.shape, _without_masks("index", indices))
    return self[subscript]


@register("_unsafe_index.Tensor", eager=_has_mask)
def _unsafe_index(self: jax.Array, indices: Indices) -> jax.Array:
    return index(self, indices)


@register("_unsafe_masked_index")
def _unsafe_masked_index(self: jax.Array, mask: jax.Array, indices: Indices, fill: Scalar) -> jax.Array:
    return jnp.where(mask, index(self, _clamped(self.shape, indices)), cast(fill, self.dtype))


def _clamped(shape: Shape, indices: Indices) -> list[jax.Array | None]:
    return [None if at is None else jnp.clip(at, 0, n - 1) for at, n in zip(indices, shape)]


def _put_masked(self: jax.Array, dim: int, mask: jax.Array, values: jax.Array, accumulate: bool) -> jax.Array:
    """``self`` with ``values`` written where the mask at ``dim`` is true: needs no indices, so works under a trace."""
    rest = self.ndim - dim - mask.ndim
    values = values.reshape((1,) * (dim + 1 + rest - values.ndim) + values.shape)
    count = values.shape[dim]
    if count == 0:
        return self
    mask = mask != 0
    if count == 1:
        new = values.reshape(*values.shape[:dim], *(1,) * mask.ndim, *values.shape[dim + 1 :])
    else:
        at = jnp.cumsum(mask.reshape(-1), dtype=np.int32) - 1
        new = jnp.take(values, at.reshape(mask.shape), axis=dim, mode="clip")
    mask = mask.reshape(mask.shape + (1,) * rest)
    return jnp.where(mask, _added(self, new) if accumulate else new, self)


def _added(x: jax.Array, y: jax.Array) -> jax.Array:
    return x | y if x.dtype == np.bool_ else x + y


def _only_mask(indices: Indices) -> tuple[int, jax.Array] | None:
    """The only index and its position, where it is a mask."""
    given = [(i, index) for i, index in enumerate(indices) if index is not None]
    return given[0] if len(given) == 1 and _is_mask(given[0][1]) else None


def _put_shape_error(values: jax.Array, shape: Sequence[int]) -> RuntimeError:
    return RuntimeError(
        f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of shape "
        f"{list(shape)}"
    )


def _require_expands(values: jax.Array, shape: Sequence[int]) -> None:
    trailing = shape[len(shape) - values.ndim :]
    if values.ndim > len(shape) or any(have not in (1, want) for have, want in zip(values.shape, trailing)):
        raise _put_shape_error(values, shape)


def _check_index_put(
    self: jax.Array, indices: Indices, values: jax.Array, accumulate: bool = False, unsafe: bool = False
) -> None:
    _shape_of_masks("index_put", self.shape, indices)
    _check_range("index_put", self.shape, indices)
    only = _only_mask(indices)
    if only is not None:
        at, mask = only
        _require_expands(values, (*self.shape[:at], int(np.count_nonzero(mask)), *self.shape[at + mask.ndim :]))


def _mixes_masks(self: jax.Array, indices: Indices, *args: Any, **kwargs: Any) -> bool:
    return _has_mask(self, indices) and _only_mask(indices) is None


@register("index_put", "_index_put_impl", eager=_mixes_masks, check=_check_index_put)
def index_put(
    self: jax.Array, indices: Indices, values: jax.Array, accumulate: bool = False, unsafe: bool = False
) -> jax.Array:
    """``self`` with ``values`` written (or added) at ``indices``; of equal indices the last one wins.

    A mask that is the only index works under a trace: ``values`` fill its true elements in order.

    Raises:
        IndexError: as `index`.
        RuntimeError: dtypes differ, or ``values`` does not broadcast to the indexed shape.
    """
    if self.dtype != values.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, "
            f"got {self.dtype} for the destination and {values.dtype} for the source."
        )
    _shape_of_masks("index_put", self.shape, indices)
    compute = opmath(self.dtype) if accumulate else self.dtype
    x, values = cast(self, compute), cast(values, compute)
    only = _only_mask(indices)
    if only is not None:
        at, mask = only
        if values.ndim > self.ndim - mask.ndim + 1:
            raise _put_shape_error(values, self.shape)
        return cast(_put_masked(x, at, mask, values, accumulate), self.dtype)
    subscript, shape = _subscript("index_put", self.shape, _without_masks("index_put", indices))
    _require_expands(values, shape)
    if not accumulate:
        return x.at[subscript].set(values)
    if self.dtype == np.bool_:
        return x.at[subscript].max(values)
    return cast(x.at[subscript].add(values), self.dtype)


@register("_unsafe_index_put", eager=_mixes_masks)
def _unsafe_index_put(self: jax.Array, indices: Indices, values: jax.Array, accumulate: bool = False) -> jax.Array:
    return index_put(self, indices, values, accumulate)


@register("_unsafe_masked_index_put_accumulate")
def _unsafe_masked_index_put_accumulate(
    self: jax.Array, mask: jax.Array, indices: Indices, values: jax.Array
) -> jax.Array:
    return index_put(self, _clamped(self.shape, indices), jnp.where(mask, values, 0).astype(values.dtype), True)


# index_*: a vector of indices along one dimension


def _vector(index: jax.Array) -> jax.Array:
    return index.reshape(-1)


def _along(dim: int, at: jax.Array) -> tuple[Any, ...]:
    return (slice(None),) * dim + (at,)


def _rows(self: jax.Array) -> jax.Array:
    """``self`` with at least one dimension."""
    return self if self.ndim else self[None]


def _check_index_select(self: jax.Array, dim: int, index: jax.Array) -> None:
    dim = canonical_dim(dim, self.ndim)
    size = self.shape[dim] if self.ndim else 1
    bad = _outside(index, 0, size)
    if bad is not None:
        if self.ndim > 1 and dim > 0:
            raise RuntimeError(f"INDICES element is out of DATA bounds, id={bad} axis_dim={size}")
        raise IndexError("index out of range in self")


@register("index_select", check=_check_index_select)
def index_select(self: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    """The parts of ``self`` at ``index`` (int32 or int64, at most 1-d) along ``dim``.

    Raises:
        IndexError: ``dim`` is out of range, or ``index`` has more than one dimension.
        RuntimeError: ``index`` has another dtype.
    """
    dim = canonical_dim(dim, self.ndim)
    if index.ndim > 1:
        raise IndexError(f"index_select(): Index is supposed to be a vector, but has shape {list(index.shape)}")
    _require_integers("index_select", index)
    if self.ndim == 0:
        if index.size != 1:
            raise RuntimeError(f"index_select(): Index to scalar can have only 1 value, got {index.size} value(s)")
        return self
    return jnp.take(self, _vector(index), axis=dim, mode="clip")


def _check_index_add(self: jax.Array, dim: int, index: jax.Array, source: jax.Array, *, alpha: Scalar = 1) -> None:
    dim = canonical_dim(dim, self.ndim)
    size = self.shape[dim] if self.ndim else 1
    bad = _outside(index, 0, size)
    if bad is not None:
        if self.ndim > 1:
            raise RuntimeError(f"index_add(): index {bad} is out of bounds for dimension {dim} with size {size}")
        raise IndexError("index out of range in self")


def _require_rows(op: str, self: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> None:
    """RuntimeError unless ``source`` has ``self``'s shape but for ``dim``, and there as many rows as ``index``."""
    if index.ndim > 1:
        raise IndexError(f"{op}(): Index is supposed to be a vector, but has shape {list(index.shape)}")
    _require_integers(op, index)
    _require_same_dtype(op, self, source)
    have, want = _rows(source), _rows(self)
    if dim < have.ndim and index.size != have.shape[dim]:
        raise RuntimeError(
            f"{op}(): Number of indices ({index.size}) should be equal to source.size(dim): ({have.shape[dim]}), for "
            f"dim: {dim}"
        )
    if (*want.shape[:dim], index.size, *want.shape[dim + 1 :]) != have.shape:
        raise RuntimeError(
            f"{op}(): source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(self.shape)} source.shape = {list(source.shape)}"
        )


@register("index_add", check=_check_index_add)
def index_add(self: jax.Array, dim: int, index: jax.Array, source: jax.Array, *, alpha: Scalar = 1) -> jax.Array:
    """``self`` with ``alpha * source`` added at ``index`` along ``dim``; equal indices add up.

    Raises:
        IndexError: ``dim`` is out of range, or ``index`` has more than one dimension.
        RuntimeError: shapes or dtypes do not match.
    """
    dim = canonical_dim(dim, self.ndim)
    _require_rows("index_add", self, dim, index, source)
    if self.dtype == np.bool_:
        new = _rows(source) & cast(alpha, np.bool_)
        return _rows(self).at[_along(dim, _vector(index))].max(new, wrap_negative_indices=False).reshape(self.shape)
    compute = opmath(self.dtype)
    new = cast(_rows(source), compute) * cast(alpha, compute)
    x = cast(_rows(self), compute).at[_along(dim, _vector(index))].add(new, wrap_negative_indices=False)
    return cast(x.reshape(self.shape), self.dtype)


def _check_index_copy(self: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> None:
    dim = canonical_dim(dim, self.ndim)
    size = self.shape[dim] if self.ndim else 1
    bad = _outside(index, 0, size)
    if bad is not None:
        raise IndexError(f"index_copy(): index {bad} is out of bounds for dimension {dim} with size {size}")


@register("index_copy", check=_check_index_copy)
def index_copy(self: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    """``self`` with ``source`` written at ``index`` (int64) along ``dim``; of equal indices the last one wins.

    Raises:
        IndexError: ``dim`` is out of range, or numbers of dimensions or of indices do not match.
        RuntimeError: shapes or dtypes do not match.
    """
    dim = canonical_dim(dim, self.ndim)
    if index.ndim > 1:
        raise IndexError(f"index_copy(): Index should have dimension 1 or 0 (got {index.ndim})")
    if self.ndim and source.ndim and self.ndim != source.ndim:
        raise IndexError(
            "index_copy(): When source and destination are not scalars, their dimensionality must match. "
            f"Source dimensionality ({source.ndim}), destination dimensionality ({self.ndim})"
        )
    _require_integers("index_copy", index, "int64")
    _require_same_dtype("index_copy", self, source)
    x, new = _rows(self), _rows(source)
    if source.ndim == 0 and index.size != 1:
        raise IndexError(f"index_copy(): When source is scalar, index should have one element (got {index.size})")
    if source.ndim and self.ndim and index.size != source.shape[dim]:
        raise IndexError(
            f"index_copy(): Number of indices ({index.size}) should be equal to source.size(dim) ({source.shape[dim]})"
        )
    if (*x.shape[:dim], *x.shape[dim + 1 :]) != (*new.shape[:dim], *new.shape[dim + 1 :]):
        raise RuntimeError(
            "index_copy(): Source/destination tensor must have same slice shapes. "
            f"Got self.shape = {list(self.shape)} source.shape = {list(source.shape)}, dim = {dim}"
        )
    return x.at[_along(dim, _vector(index))].set(new, wrap_negative_indices=False).reshape(self.shape)


def _check_index_fill(self: jax.Array, dim: int, index: jax.Array, value: Scalar) -> None:
    dim = canonical_dim(dim, self.ndim)
    size = self.shape[dim] if self.ndim else 1
    bad = _outside(index, -size, size)
    if bad is not None:
        raise IndexError(f"index {bad} is out of bounds for dimension {dim} with size {size}")


@register("index_fill.int_Scalar", "index_fill.int_Tensor", check=_check_index_fill)
def index_fill(self: jax.Array, dim: int, index: jax.Array, value: Scalar) -> jax.Array:
    """``self`` with ``value`` (a number or 0-d array) written at ``index`` (int64) along ``dim``.

    Raises:
        IndexError: ``dim`` is out of range, or ``index`` has another dtype.
        RuntimeError: ``index`` has more than one dimension, ``value`` has dimensions, or is complex for a real array.
    """
    dim = canonical_dim(dim, self.ndim)
    if index.dtype != canonical("int64"):
        raise IndexError(f"index_fill(): Expected dtype int64 for index, got {index.dtype}")
    if index.ndim > 1:
        raise RuntimeError("index_fill(): Index has to be a vector/scalar")
    if np.ndim(value):
        raise RuntimeError(
            f"index_fill only supports a 0-dimensional value tensor, but got tensor with {np.ndim(value)} dimension(s)."
        )
    new = _scalar("index_fill", value, self.dtype)
    return _rows(self).at[_along(dim, _vector(index))].set(new).reshape(self.shape)


_REDUCTIONS = ("prod", "mean", "amax", "amin")


def _check_index_reduce(
    self: jax.Array, dim: int, index: jax.Array, source: jax.Array, reduce: str, *, include_self: bool = True
) -> None:
    dim = canonical_dim(dim, self.ndim)
    if _outside(index, 0, self.shape[dim] if self.ndim else 1) is not None:
        raise IndexError("index out of range in self")


@register("index_reduce", check=_check_index_reduce)
def index_reduce(
    self: jax.Array, dim: int, index: jax.Array, source: jax.Array, reduce: str, *, include_self: bool = True
) -> jax.Array:
    """``self`` with the parts of ``source`` that share an index along ``dim`` reduced into it.

    ``reduce`` is ``"prod"``, ``"mean"``, ``"amax"`` or ``"amin"``; errors as `index_add`, RuntimeError for another.
    """
    if reduce not in _REDUCTIONS:
        raise RuntimeError(f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}.")
    dim = canonical_dim(dim, self.ndim)
    _require_rows("index_reduce", self, dim, index, source)
    x = reduce_at(_rows(self), _along(dim, _vector(index)), _rows(source), reduce, include_self)
    return x.reshape(self.shape)


def reduce_at(x: jax.Array, at: tuple[Any, ...], new: jax.Array, reduce: str, include_self: bool) -> jax.Array:
    """``x`` with ``new`` reduced into it at a subscript: sum, prod, mean, amax or amin.

    Without ``include_self`` the values of ``x`` at the subscript do not take part.
    """
    dtype = x.dtype
    compute = opmath(dtype)
    if dtype == np.bool_:
        reduce = {"sum": "amax", "prod": "amin", "mean": "mean"}.get(reduce, reduce)
    x, new = cast(x, compute), cast(new, compute)
    if not include_self:
        x = x.at[at].set(_identity(reduce, compute), wrap_negative_indices=False)
    if reduce in ("amax", "amin"):
        target = x.at[at]
        out = (target.max if reduce == "amax" else target.min)(new, wrap_negative_indices=False)
    elif reduce == "prod":
        lead = len([part for part in at if isinstance(part, slice)])
        out = _multiply_at(lead, x, at[lead:], new)
    else:
        out = x.at[at].add(new, wrap_negative_indices=False)
    if reduce == "mean":
        start = jnp.ones(x.shape, np.int32)
        if not include_self:
            start = start.at[at].set(0, wrap_negative_indices=False)
        count = start.at[at].add(1, wrap_negative_indices=False)
        count = cast(jnp.maximum(count, 1), compute)
        out = jnp.floor_divide(out, count) if category(compute) < 2 else out / count
    return cast(out, dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _multiply_at(lead: int, x: jax.Array, index: tuple[jax.Array, ...], new: jax.Array) -> jax.Array:
    """``x`` multiplied by ``new`` at ``index``, behind ``lead`` whole dimensions: JAX has no derivative of its own."""
    return x.at[(slice(None),) * lead + index].multiply(new, wrap_negative_indices=False)


@_multiply_at.defjvp
def _multiply_at_jvp(lead: int, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    """Each factor's tangent times the product of all others of its group, of which zeros are counted apart."""
    x, index, new = primals
    at = (slice(None),) * lead + index
    without_zero = lambda v: jnp.where(v == 0, jnp.ones_like(v), v)  # noqa: E731
    product = _multiply_at(lead, without_zero(x), index, without_zero(new))
    zeros = (x == 0).astype(np.int32).at[at].add((new == 0).astype(np.int32), wrap_negative_indices=False)

    def others(v: jax.Array, product: jax.Array, zeros: jax.Array) -> jax.Array:
        return jnp.where(zeros == (v == 0), product / without_zero(v), jnp.zeros_like(v))

    tangent = tangents[0] * others(x, product, zeros)
    part = tangents[2] * others(new, product[at], zeros[at])
    return _multiply_at(lead, x, index, new), tangent.at[at].add(part, wrap_negative_indices=False)


def _identity(reduce: str, dtype: np.dtype) -> jax.Array:
    if reduce in ("sum", "mean"):
        return jnp.zeros((), dtype)
    if reduce == "prod":
        return jnp.ones((), dtype)
    if dtype == np.bool_:
        return jnp.asarray(reduce == "amin")
    if category(dtype) == 1:
        info = jnp.iinfo(dtype)
        return jnp.asarray(info.min if reduce == "amax" else info.max, dtype)
    return jnp.asarray(-jnp.inf if reduce == "amax" else jnp.inf, dtype)


# Flat positions


def _check_take(self: jax.Array, index: jax.Array) -> None:
    if self.size == 0 and index.size:
        raise IndexError("take(): tried to take from an empty tensor")
    bad = _outside(index, -self.size, self.size)
    if bad is not None:
        raise IndexError(f"out of range: tried to access index {bad} on a tensor of {self.size} elements.")


@register("take", check=_check_take)
def take(self: jax.Array, index: jax.Array) -> jax.Array:
    """The elements of flattened ``self`` at ``index`` (int64), in its shape; RuntimeError for another dtype."""
    _require_integers("take", index, "int64")
    return self.reshape(-1)[index] if self.size else jnp.zeros(index.shape, self.dtype)


def _check_put(self: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False) -> None:
    _check_take(self, index)


@register("put", check=_check_put)
def put(self: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False) -> jax.Array:
    """``self`` with ``source`` written (or added) at positions ``index`` (int64) of it flattened.

    Raises:
        IndexError: ``source`` and ``index`` have different numbers of elements.
        RuntimeError: dtypes do not match.
    """
    _require_same_dtype("put", self, source)
    _require_integers("put", index, "int64")
    if source.size != index.size:
        raise IndexError(
            "put(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.size}, index.numel() = {index.size}"
        )
    if not index.size:
        return self
    flat = self.reshape(-1)
    return index_put(flat, [_vector(index)], source.reshape(-1), accumulate).reshape(self.shape)


# Masks


def _check_masked_fill(self: jax.Array, mask: jax.Array, value: Scalar) -> None:
    _check_fits("masked_fill", value, self.dtype)


@register("masked_fill.Scalar", "masked_fill.Tensor", check=_check_masked_fill)
def masked_fill(self: jax.Array, mask: jax.Array, value: Scalar) -> jax.Array:
    """``self`` with ``value`` (a number or 0-d array) where ``mask`` is true; both broadcast.

    Raises:
        RuntimeError: ``mask`` is not bool, ``value`` has dimensions or is complex for a real array, or shapes do not
            broadcast.
    """
    _require_mask("masked_fill", mask)
    if np.ndim(value):
        raise RuntimeError(
            "masked_fill only supports a 0-dimensional value tensor, but got tensor with "
            f"{np.ndim(value)} dimension(s)."
        )
    shape = broadcast_shapes(self.shape, mask.shape)
    return jnp.broadcast_to(jnp.where(mask, _scalar("masked_fill", value, self.dtype), self), shape)


@register("masked_select", eager=True)
def masked_select(self: jax.Array, mask: jax.Array) -> jax.Array:
    """The elements of ``self`` where ``mask`` is true, as a vector; both broadcast. ``mask`` must not be traced.

    Raises:
        RuntimeError: ``mask`` is not bool or is traced, or shapes do not broadcast.
    """
    if mask.dtype != np.bool_:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, got {mask.dtype}")
    shape = broadcast_shapes(self.shape, mask.shape)
    found = _concrete("masked_select", mask, "use torch.where, or multiply by the mask")
    at = np.broadcast_to(found, shape).reshape(-1).nonzero()[0]
    return jnp.broadcast_to(self, shape).reshape(-1)[at]


def _check_masked_scatter(self: jax.Array, mask: jax.Array, source: jax.Array) -> None:
    shape = broadcast_shapes(self.shape, mask.shape)
    if source.size < np.count_nonzero(np.broadcast_to(np.asarray(mask), shape)):
        raise RuntimeError("masked_scatter: Number of elements of source < number of ones in mask")


@register("masked_scatter", check=_check_masked_scatter)
def masked_scatter(self: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    """``self`` with the elements of ``source``, in order, where ``mask`` is true; ``self`` and ``mask`` broadcast.

    Raises:
        RuntimeError: ``mask`` is not bool, dtypes differ, or shapes do not broadcast.
    """
    _require_mask("masked_scatter", mask)
    _require_same_dtype("masked_scatter", self, source)
    shape = broadcast_shapes(self.shape, mask.shape)
    self, mask = jnp.broadcast_to(self, shape), jnp.broadcast_to(mask, shape)
    if not source.size or not self.size:
        return self
    at = jnp.cumsum(mask.reshape(-1), dtype=np.int32) - 1
    new = jnp.take(source.reshape(-1), at, mode="clip").reshape(shape)
    return jnp.where(mask, new, self)


@register("masked_scatter_backward")
def masked_scatter_backward(grad_output: jax.Array, mask: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """The elements of ``grad_output`` where ``mask`` is true, in order, at the front of zeros of shape ``sizes``."""
    count = math.prod(sizes)
    mask = jnp.broadcast_to(mask, grad_output.shape).reshape(-1)
    at = jnp.where(mask, jnp.cumsum(mask, dtype=np.int32) - 1, count)
    flat = jnp.zeros((count,), grad_output.dtype)
    return flat.at[at].set(grad_output.reshape(-1), mode="drop").reshape(sizes)


# Where elements are not zero


@register("nonzero", eager=True)
def nonzero(self: jax.Array, *, size: int | None = None) -> jax.Array:
    """The indices of the elements that are not zero: int64 of shape (count, ``self.ndim``).

    With a static ``size`` (as `nonzero_static`) it works under a trace; without one ``self`` must not be traced.

    Raises:
        RuntimeError: ``self`` is traced and there is no ``size``.
    """
    if size is not None:
        return nonzero_static(self, size=size)
    x = _concrete("nonzero", self, "give a static size=, or use nonzero_static")
    if x.ndim == 0:
        return jnp.zeros((int(x != 0), 0), canonical("int64"))
    return jnp.asarray(np.stack((x != 0).nonzero(), axis=1), canonical("int64"))


@register("nonzero_static")
def nonzero_static(self: jax.Array, *, size: int, fill_value: int = -1) -> jax.Array:
    """The first ``size`` indices of the elements that are not zero, then rows of ``fill_value``.

    int64 of shape (``size``, ``self.ndim``); RuntimeError where ``size`` is negative.
    """
    if size < 0:
        raise RuntimeError("nonzero_static: 'size' must be an non-negative integer")
    dtype = canonical("int64")
    if self.ndim == 0 or size == 0:
        return jnp.full((size, self.ndim), fill_value, dtype)
    at = jnp.nonzero(self != 0, size=size, fill_value=fill_value)
    return jnp.stack([cast(i, dtype) for i in at], axis=1)


__all__ = exported(__name__)

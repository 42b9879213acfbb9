"""Order: sort, topk, kthvalue, medians, mode, searches and unique values.

Everywhere NaN counts as greater than any number, equal elements keep their order, and indices are int64.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchax_ops._promotion import canonical, cast, is_complex, is_floating, opmath, result_type
from torchax_ops._registry import exported, register
from torchax_ops._shapes import canonical_dim
from torchax_ops.reduction import pick

Pair = tuple[jax.Array, jax.Array]
Triple = tuple[jax.Array, jax.Array, jax.Array]


def _packable(x: jax.Array, n: int) -> bool:
    # jax.enable_x64(False) has no 64-bit integers to pack into
    return x.dtype.itemsize <= 4 and n < 2**31 and canonical("int64").itemsize == 8


def _whole_order(x: jax.Array) -> jax.Array:
    """Integers of at most 32 bits, as int64, in the order of ``x``: zeros are equal, and all NaNs, greatest."""
    if not is_floating(x):
        return cast(x, jnp.int64)
    x = cast(x, jnp.float32)
    bits = lax.bitcast_convert_type(jnp.where(x == 0, jnp.zeros((), x.dtype), x), jnp.int32)
    most = jnp.int32(0x7FFFFFFF)
    return cast(jnp.where(jnp.isnan(x), most, jnp.where(bits < 0, bits ^ most, bits)), jnp.int64)


def _order(x: jax.Array, axis: int, descending: bool) -> jax.Array:
    """The indices that sort ``x`` stably along ``axis``."""
    n = x.shape[axis]
    if _packable(x, n):
        # XLA sorts one integer much faster than a value and an index: several times on CPU, by radix on GPU
        key = _whole_order(jnp.moveaxis(x, axis, -1))
        packed = ((~key if descending else key) << 32) | lax.broadcasted_iota(jnp.int64, key.shape, key.ndim - 1)
        order = lax.sort(packed, is_stable=False) & jnp.int64(0xFFFFFFFF)
        return jnp.moveaxis(order, -1, axis)
    index = lax.broadcasted_iota(jnp.int32 if n < 2**31 else canonical("int64"), x.shape, axis)
    # reversed before and after, a descending order is stable and puts NaN first
    operands = [lax.rev(a, (axis,)) for a in (x, index)] if descending else [x, index]
    index = lax.sort(operands, dimension=axis, is_stable=True, num_keys=1)[1]
    return lax.rev(index, (axis,)) if descending else index


def _sorted(x: jax.Array, axis: int, descending: bool = False) -> Pair:
    """``x`` sorted stably along ``axis``, and the indices that do it."""
    order = _order(lax.stop_gradient(x), axis, descending)
    return pick(x, order, axis), order


@register("sort", "sort.stable")
def sort(self: jax.Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Pair:
    """``(values, indices)`` in order along ``dim``; always stable. Raises for complex arrays."""
    axis = canonical_dim(dim, self.ndim)
    if is_complex(self):
        raise RuntimeError("sort does not support complex dtypes on CPU, in PyTorch or here")
    if self.ndim == 0:
        return self, jnp.zeros((), canonical("int64"))
    values, index = _sorted(self, axis, descending)
    return values, cast(index, "int64")


def _rank_key(x: jax.Array, largest: bool) -> jax.Array:
    """What ``lax.top_k`` ranks as PyTorch ranks ``x``: it orders NaNs by their sign, and is fast for float32 only."""
    if not is_floating(x):
        return x if largest else ~x
    x = cast(x, opmath(x.dtype))
    x = jnp.where(x == 0, jnp.zeros((), x.dtype), x)
    nan = np.array(np.nan, x.dtype)
    return jnp.where(jnp.isnan(x), np.copysign(nan, 1.0 if largest else -1.0), x if largest else -x)


@register("topk")
def topk(self: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    """The ``k`` greatest (or smallest) elements along ``dim`` in order, and their indices.

    Raises:
        RuntimeError: ``k`` is out of range, or the array is bool or complex.
    """
    axis = canonical_dim(dim, self.ndim)
    if not 0 <= k <= (self.shape[axis] if self.ndim else 1):
        raise RuntimeError(f"topk: selected index k out of range, got k={k} for shape {self.shape} and dim {dim}")
    if self.dtype == jnp.bool_ or is_complex(self):
        raise RuntimeError(f"topk does not support {self.dtype.name}, in PyTorch or here")
    if self.ndim == 0:
        return self, jnp.zeros((), canonical("int64"))
    key = _rank_key(lax.stop_gradient(self), largest)
    index = lax.top_k(jnp.moveaxis(key, axis, -1), k)[1]
    index = cast(jnp.moveaxis(index, -1, axis), "int64")
    return pick(self, index, axis), index


# ---- one element of the order


def _reducible(op: str, x: jax.Array, dim: int, *, bool_ok: bool = False) -> int:
    axis = canonical_dim(dim, x.ndim)
    if is_complex(x) or (x.dtype == jnp.bool_ and not bool_ok):
        raise NotImplementedError(f'"{op}" not implemented for {x.dtype.name}')
    if x.ndim and x.shape[axis] == 0:
        raise IndexError(f"{op}(): Expected reduction dim {axis} to have non-zero size.")
    return axis


def _at_rank(x: jax.Array, order: jax.Array, rank: Any, axis: int, keepdim: bool) -> Pair:
    """The element of ``x`` whose place in ``order`` (indices, sorted) is ``rank``: a number or a keepdim array."""
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    place = jnp.broadcast_to(jnp.asarray(rank, order.dtype), shape)
    index = cast(jnp.take_along_axis(order, place, axis=axis), "int64")
    values = pick(x, index, axis)
    return (values, index) if keepdim else (values.squeeze(axis), index.squeeze(axis))


@register("kthvalue")
def kthvalue(self: jax.Array, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    """The ``k``-th smallest element along ``dim``, counted from 1, and its index.

    Raises:
        RuntimeError: ``k`` is out of range.
        IndexError: the dim is empty.
    """
    axis = _reducible("kthvalue", self, dim)
    if not 1 <= k <= (self.shape[axis] if self.ndim else 1):
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {axis}, got k={k}")
    if self.ndim == 0:
        return self, jnp.zeros((), canonical("int64"))
    return _at_rank(self, _order(lax.stop_gradient(self), axis, False), k - 1, axis, keepdim)


def _middle(op: str, x: jax.Array, dim: int, keepdim: bool, skip_nan: bool) -> Pair:
    axis = _reducible(op, x, dim)
    if x.ndim == 0:
        return x, jnp.zeros((), canonical("int64"))
    n, order = x.shape[axis], _order(lax.stop_gradient(x), axis, False)
    if not is_floating(x):
        return _at_rank(x, order, (n - 1) // 2, axis, keepdim)
    numbers = n - jnp.sum(jnp.isnan(x), axis=axis, keepdims=True, dtype=order.dtype)
    if skip_nan:
        rank = jnp.maximum(numbers - 1, 0) // 2
    else:
        rank = jnp.where(numbers < n, numbers, (n - 1) // 2)
    return _at_rank(x, order, rank, axis, keepdim)


def _median(name: str, skip_nan: bool) -> tuple[Any, Any]:
    @register(name)
    def whole(self: jax.Array) -> jax.Array:
        if self.size == 0:
            _reducible(name, self.reshape(-1, 1), -1)
            return jnp.full((), jnp.nan if is_floating(self) else jnp.iinfo(self.dtype).min, self.dtype)
        return _middle(name, self.reshape(-1), 0, False, skip_nan)[0]

    @register(f"{name}.dim")
    def along(self: jax.Array, dim: int, keepdim: bool = False) -> Pair:
        return _middle(name, self, dim, keepdim, skip_nan)

    rule = "NaNs are left out" if skip_nan else "NaN wins"
    whole.__name__ = whole.__qualname__ = name
    whole.__doc__ = f"The lower median of all elements; {rule}."
    along.__name__ = along.__qualname__ = f"{name}_dim"
    along.__doc__ = f"The lower median along ``dim`` and its index; {rule}."
    return whole, along


median, median_dim = _median("median", skip_nan=False)
nanmedian, nanmedian_dim = _median("nanmedian", skip_nan=True)


@register("mode")
def mode(self: jax.Array, dim: int = -1, keepdim: bool = False) -> Pair:
    """The most frequent element along ``dim``, the smallest of equals, and the index of its last occurrence."""
    axis = _reducible("mode", self, dim, bool_ok=True)
    if self.ndim == 0:
        return self, jnp.zeros((), canonical("int64"))
    values, order = _sorted(lax.stop_gradient(self), axis)
    places = lax.broadcasted_iota(order.dtype, self.shape, axis)
    before = lax.slice_in_dim(values, 0, -1, axis=axis) if self.shape[axis] > 1 else values
    first = jnp.concatenate(
        [
            jnp.ones_like(lax.slice_in_dim(values, 0, 1, axis=axis), dtype=jnp.bool_),
            lax.slice_in_dim(values, 1, None, axis=axis) != before,
        ],
        axis=axis,
    )
    # the run that ends at a place is as long as the distance from where it began
    began = lax.cummax(jnp.where(first, places, 0), axis=axis)
    last = jnp.argmax(places - began, axis=axis, keepdims=True)
    return _at_rank(self, order, last, axis, keepdim)


# ---- searches


def _search(edges: jax.Array, values: jax.Array, right: bool, out_int32: bool) -> jax.Array:
    """Where to insert ``values`` ``(..., m)`` into ``edges`` ``(n,)`` or ``(..., n)``: PyTorch's own bisection."""
    n = edges.shape[-1]
    dtype = jnp.int32 if n < 2**31 else canonical("int64")

    def look(at: jax.Array) -> jax.Array:
        at = jnp.minimum(at, n - 1)
        return edges[at] if edges.ndim == 1 else jnp.take_along_axis(edges, at, axis=-1)

    def halve(_: int, bounds: Pair) -> Pair:
        low, high = bounds
        middle = low + (high - low) // 2
        found = look(middle)
        # negated, so that a NaN compares as PyTorch's bounds do
        go_right = (low < high) & ~((found > values) if right else (found >= values))
        return jnp.where(go_right, middle + 1, low), jnp.where(go_right, high, middle)

    low = jnp.zeros(values.shape, dtype)
    if n:
        low, _ = lax.fori_loop(0, n.bit_length(), halve, (low, jnp.full(values.shape, n, dtype)))
    return cast(low, jnp.int32 if out_int32 else "int64")


@register("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    sorted_sequence: jax.Array,
    self: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    """Indices that keep the last dim of ``sorted_sequence`` in order when ``self`` is inserted there.

    The sequence is 1D, or has the leading shape of ``self``; ``sorter`` are indices that sort it.

    Raises:
        RuntimeError: shapes do not fit, or ``side`` and ``right`` disagree.
    """
    op = "torch.searchsorted()"
    values = jnp.asarray(self)
    if side not in (None, "left", "right"):
        raise RuntimeError(f"{op}: side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise RuntimeError(f"{op}: side and right can't be set to opposites, got side of left while right was True")
    if sorted_sequence.ndim == 0 or (sorted_sequence.ndim > 1 and sorted_sequence.shape[:-1] != values.shape[:-1]):
        raise RuntimeError(
            f"{op}: boundaries must be 1D or have the leading dimensions of the values, but got shapes "
            f"{sorted_sequence.shape} and {values.shape}"
        )
    if sorted_sequence.ndim > 1 and values.ndim == 0:
        raise RuntimeError(f"{op}: a scalar value needs 1D boundaries, but got shape {sorted_sequence.shape}")
    if sorter is not None:
        if sorter.shape != sorted_sequence.shape:
            raise RuntimeError(f"{op}: sorter {sorter.shape} must have the shape of boundaries {sorted_sequence.shape}")
        sorted_sequence = jnp.take_along_axis(sorted_sequence, sorter, axis=-1)
    dtype = result_type(sorted_sequence, self)
    return _search(cast(sorted_sequence, dtype), cast(values, dtype), right or side == "right", out_int32)


@register("bucketize.Tensor", "bucketize.Scalar")
def bucketize(self: Any, boundaries: jax.Array, *, out_int32: bool = False, right: bool = False) -> jax.Array:
    """The bucket of each element among 1D ``boundaries``: `searchsorted` with its arguments exchanged."""
    if boundaries.ndim != 1:
        raise RuntimeError(f"bucketize: boundaries must be 1D, but got shape {boundaries.shape}")
    dtype = result_type(boundaries, self)
    return _search(cast(boundaries, dtype), cast(self, dtype), right, out_int32)


# ---- unique values


def _number_of(op: str, x: jax.Array, count: Any, size: int | None) -> int:
    if size is not None:
        return size
    if isinstance(count, jax.core.Tracer):
        raise RuntimeError(
            f"{op}: the shape of its result depends on values, which a trace does not know; run it outside "
            f"jax.jit, or give the number of results with size= (got an array of shape {x.shape})"
        )
    return int(count)


def _runs(op: str, x: jax.Array, first: jax.Array, size: int | None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For flags that begin runs along dim 0: where each run begins, its length, and the run of each place.

    With more room (``size``) than runs, the rest repeats the first run and has length 0.
    """
    long = canonical("int64")
    run = jnp.cumsum(first, dtype=long) - 1
    number = _number_of(op, x, run[-1] + 1 if run.size else 0, size)
    begins = jnp.nonzero(first, size=number, fill_value=0)[0]
    lengths = jnp.zeros(number, long).at[run].add(jnp.ones((), long), mode="drop")
    return begins, lengths, run


def _flat_unique(
    op: str, x: jax.Array, order: jax.Array | None, inverse: bool, counts: bool, size: int | None
) -> Triple:
    """Values, inverse and counts of the runs of a flat array, ``order`` being what sorted it."""
    if is_complex(x):
        raise NotImplementedError(f'"{op}" not implemented for {x.dtype.name}')
    first = jnp.concatenate([jnp.ones(1, jnp.bool_), x[1:] != x[:-1]])[: x.size]
    begins, lengths, run = _runs(op, x, first, size)
    none = jnp.zeros(0, canonical("int64"))
    if inverse and order is not None:
        run = jnp.zeros_like(run).at[order].set(run)
    return x[begins], run if inverse else none, lengths if counts else none


@register("_unique2", eager=True)
def _unique2(
    self: jax.Array,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    *,
    size: int | None = None,
) -> Triple:
    flat = self.reshape(-1)
    if is_complex(flat):
        raise NotImplementedError(f'"unique" not implemented for {self.dtype.name}')
    if return_inverse and flat.size:
        ordered, order = _sorted(flat, 0)
    else:
        ordered, order = lax.sort(flat), None
    values, inverse, counts = _flat_unique("unique", ordered, order, return_inverse, return_counts, size)
    return values, inverse.reshape(self.shape) if return_inverse else inverse, counts


@register("_unique", eager=True)
def _unique(self: jax.Array, sorted: bool = True, return_inverse: bool = False, *, size: int | None = None) -> Pair:
    return _unique2(self, sorted, return_inverse, size=size)[:2]


@register("unique_consecutive", eager=True)
def unique_consecutive(
    self: jax.Array,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
    *,
    size: int | None = None,
) -> Triple:
    """The first of each run of equal elements (or slices along ``dim``), the run of each, and the runs' lengths.

    What is not asked for is an empty int64 array. Under a trace the number of runs must be given as ``size``.
    """
    if dim is not None:
        return unique_dim_consecutive(self, dim, return_inverse, return_counts, size=size)
    values, inverse, counts = _flat_unique(
        "unique_consecutive", self.reshape(-1), None, return_inverse, return_counts, size
    )
    return values, inverse.reshape(self.shape) if return_inverse else inverse, counts


def _lexicographic(rows: jax.Array) -> jax.Array:
    """Indices that sort rows: a stable sort by each column, the last first."""
    start = lax.iota(canonical("int64") if _packable(rows, rows.shape[0]) else jnp.int32, rows.shape[0])

    def by_column(i: int, order: jax.Array) -> jax.Array:
        column = lax.dynamic_index_in_dim(rows, rows.shape[1] - 1 - i, axis=1, keepdims=False)
        return order[_order(column[order], 0, False)]

    return lax.fori_loop(0, rows.shape[1], by_column, start)


def _slices_unique(op: str, x: jax.Array, dim: int, sort_first: bool, size: int | None) -> Triple:
    axis = canonical_dim(dim, x.ndim)
    if is_complex(x):
        raise NotImplementedError(f'"{op}" not implemented for {x.dtype.name}')
    front = jnp.moveaxis(x if x.ndim else x.reshape(1), axis, 0)
    none = jnp.zeros(0, canonical("int64"))
    if front.size == 0:
        if front.shape[0]:
            raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
        return x, none, none
    rows = front.reshape(front.shape[0], -1)
    order = _lexicographic(rows) if sort_first else None
    ordered = rows if order is None else rows[order]
    first = jnp.concatenate([jnp.ones(1, jnp.bool_), jnp.any(ordered[1:] != ordered[:-1], axis=1)])
    begins, lengths, run = _runs(op, x, first, size)
    if order is not None:
        run = jnp.zeros_like(run).at[order].set(run)
    values = ordered[begins].reshape(-1, *front.shape[1:])
    return jnp.moveaxis(values, 0, axis), run, lengths


@register("unique_dim", eager=True)
def unique_dim(
    self: jax.Array,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    *,
    size: int | None = None,
) -> Triple:
    """The distinct slices along ``dim`` in lexicographic order, the place of each slice, and how often each occurs.

    Inverse and counts are always there, as in PyTorch. Under a trace the number of slices must be given as ``size``.
    """
    return _slices_unique("unique_dim", self, dim, True, size)


@register("unique_dim_consecutive", eager=True)
def unique_dim_consecutive(
    self: jax.Array,
    dim: int,
    return_inverse: bool = False,
    return_counts: bool = False,
    *,
    size: int | None = None,
) -> Triple:
    """The first of each run of equal slices along ``dim``, the run of each slice, and the runs' lengths."""
    return _slices_unique("unique_dim_consecutive", self, dim, False, size)


__all__ = exported(__name__)

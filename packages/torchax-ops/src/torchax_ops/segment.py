"""Reductions of segments of an axis (``torch.segment_reduce``), and the hash of an array."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchax_ops._promotion import canonical, cast, is_complex, is_floating, opmath
from torchax_ops._registry import exported, register
from torchax_ops._shapes import canonical_dim, canonical_dims

_REDUCTIONS = {
    "sum": (jax.ops.segment_sum, 0.0, jnp.add),
    "mean": (jax.ops.segment_sum, 0.0, jnp.add),
    "prod": (jax.ops.segment_prod, 1.0, jnp.multiply),
    "max": (jax.ops.segment_max, -np.inf, jnp.maximum),
    "min": (jax.ops.segment_min, np.inf, jnp.minimum),
}


def _segments(data: jax.Array, lengths: Any, offsets: Any, axis: int) -> tuple[jax.Array, jax.Array]:
    """The segment of each place along ``axis`` (past the last for none), and the segments' lengths."""
    if (lengths is None) == (offsets is None):
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined, and not both.")
    if lengths is not None:
        starts = jnp.cumsum(lengths, axis=-1) - lengths
    else:
        starts, lengths = offsets[..., :-1], jnp.diff(offsets, axis=-1)
    if lengths.ndim != axis + 1 or lengths.shape[:-1] != data.shape[:axis]:
        raise RuntimeError(
            f"segment_reduce(): lengths (or offsets) must have the leading shape {data.shape[:axis]} of data, but got "
            f"{lengths.shape}"
        )
    place = jnp.arange(data.shape[axis], dtype=starts.dtype)
    ends = starts + lengths
    inside = (place >= starts[..., None]) & (place < ends[..., None])
    number = lengths.shape[-1]
    return jnp.where(jnp.any(inside, axis=-2), jnp.argmax(inside, axis=-2), number), lengths


def _per_batch(fn: Any, axis: int, *args: jax.Array) -> jax.Array:
    for _ in range(axis):
        fn = jax.vmap(fn)
    return fn(*args)


def _like(x: jax.Array, data: jax.Array) -> jax.Array:
    """One number a segment, shaped to broadcast over the dims of ``data`` behind the axis."""
    return x.reshape(x.shape + (1,) * (data.ndim - x.ndim))


def _spread(x: jax.Array, segment: jax.Array, axis: int) -> jax.Array:
    """The segment's value at each place along ``axis``; zero where there is none."""
    return _per_batch(lambda x, s: x.at[s].get(mode="fill", fill_value=0), axis, x, segment)


def _reduce(data: jax.Array, reduce: str, axis: int, initial: Any, lengths: Any, offsets: Any) -> jax.Array:
    segment, lengths = _segments(data, lengths, offsets, axis)
    number = lengths.shape[-1]
    scatter, neutral, combine = _REDUCTIONS[reduce]
    x = cast(data, opmath(data.dtype))
    out = _per_batch(lambda x, s: scatter(x, s, num_segments=number), axis, x, segment)
    empty = _like(lengths, out) == 0
    out = jnp.where(empty, cast(neutral, x.dtype), out)
    if initial is not None:
        out = combine(out, cast(initial, x.dtype))
    if reduce == "mean":
        mean = out / cast(_like(lengths, out), x.dtype)
        out = mean if initial is None else jnp.where(empty, out, mean)
    return cast(out, data.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _segment_reduce(data: jax.Array, reduce: str, axis: int, initial: Any, lengths: Any, offsets: Any) -> jax.Array:
    return _reduce(data, reduce, axis, initial, lengths, offsets)


def _forward(data: jax.Array, reduce: str, axis: int, initial: Any, lengths: Any, offsets: Any) -> Any:
    out = _reduce(data, reduce, axis, initial, lengths, offsets)
    return out, (out, data, initial, lengths, offsets)


def _backward(reduce: str, axis: int, kept: Any, grad: jax.Array) -> Any:
    out, data, initial, lengths, offsets = kept
    by_data = _slope(grad, out, data, reduce, axis, initial, lengths, offsets)
    return by_data, *(None if x is None else _zero_tangent(x) for x in (initial, lengths, offsets))


def _zero_tangent(x: Any) -> Any:
    dtype = jnp.result_type(x)
    return np.zeros(np.shape(x), dtype if jnp.issubdtype(dtype, jnp.inexact) else jax.dtypes.float0)


_segment_reduce.defvjp(_forward, _backward)


def _slope(
    grad: jax.Array, out: jax.Array, data: jax.Array, reduce: str, axis: int, initial: Any, lengths: Any, offsets: Any
) -> jax.Array:
    """The gradient by ``data``; extrema share theirs evenly."""
    segment, lengths = _segments(data, lengths, offsets, axis)
    number = lengths.shape[-1]
    kind = opmath(data.dtype)
    x, grad = cast(data, kind), cast(grad, kind)

    def total(x: jax.Array) -> jax.Array:
        return _per_batch(lambda x, s: jax.ops.segment_sum(x, s, num_segments=number), axis, x, segment)

    if reduce == "mean":
        grad = grad / cast(jnp.maximum(_like(lengths, grad), 1), kind)
    elif reduce in ("max", "min"):
        best = cast(x == _spread(cast(out, kind), segment, axis), kind)
        return cast(best * _spread(grad / jnp.maximum(total(best), 1), segment, axis), data.dtype)
    elif reduce == "prod":
        zero = x == 0
        zeros = _spread(total(cast(zero, kind)), segment, axis)
        others = _reduce(jnp.where(zero, 1, x), "prod", axis, initial, None, _offsets(segment, lengths))
        others = _spread(others, segment, axis)
        alone = jnp.where(zeros == 0, others / jnp.where(zero, 1, x), jnp.where((zeros == 1) & zero, others, 0))
        return cast(alone * _spread(grad, segment, axis), data.dtype)
    return cast(_spread(grad, segment, axis), data.dtype)


def _offsets(segment: jax.Array, lengths: jax.Array) -> jax.Array:
    """Offsets with the segments' own beginnings, from what `_segments` gave."""
    before = jnp.sum(segment[..., None, :] < jnp.arange(lengths.shape[-1])[:, None], axis=-1)
    first = jnp.argmax(segment < lengths.shape[-1], axis=-1)[..., None]
    return jnp.concatenate([before + first, before[..., -1:] + first + lengths[..., -1:]], axis=-1)


def _check_lengths(
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> None:
    if lengths is not None and not unsafe:
        given = np.asarray(lengths)
        if (given < 0).any() or (given.sum(-1) != np.shape(data)[axis]).any():
            raise RuntimeError(
                "segment_reduce(): Expected all rows of lengths along axis to be non-negative and to sum to "
                f"data.size(axis) = {np.shape(data)[axis]} when !unsafe."
            )


@register("segment_reduce", check=_check_lengths)
def segment_reduce(
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    indices: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> jax.Array:
    """Reduce segments of ``axis`` by "sum", "mean", "prod", "max" or "min", starting from ``initial``.

    Segments follow each other, given by ``lengths`` ``(..., s)`` or ``offsets`` ``(..., s + 1)``, with the leading
    shape of ``data`` before ``axis``. An empty one gives ``initial``, or what the reduction gives for no elements.

    Raises:
        RuntimeError: not one of lengths and offsets, shapes do not fit; and eagerly: lengths do not fill the axis.
    """
    if reduce not in _REDUCTIONS:
        raise RuntimeError(f"segment_reduce(): reduce must be one of {sorted(_REDUCTIONS)}, but got {reduce!r}")
    if indices is not None:
        raise RuntimeError("segment_reduce(): indices based reduction is not supported, in PyTorch or here")
    if not is_floating(data):
        raise NotImplementedError(f'"segment_reduce" not implemented for {data.dtype.name}')
    return _segment_reduce(data, reduce, canonical_dim(axis, data.ndim), initial, lengths, offsets)


@register("_segment_reduce_backward")
def _segment_reduce_backward(
    grad: jax.Array,
    output: jax.Array,
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    initial: Any = None,
) -> jax.Array:
    return _slope(grad, output, data, reduce, canonical_dim(axis, data.ndim), initial, lengths, offsets)


@register("hash_tensor")
def hash_tensor(self: jax.Array, dim: int | Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> jax.Array:
    """The exclusive or, over ``dim``, of the elements' bits as float64 or int64: uint64 (32 bits where x64 is off)."""
    if mode != 0:
        raise RuntimeError(f"hash_tensor: mode must be 0 (the exclusive or of all), but got {mode}")
    if is_complex(self):
        raise NotImplementedError("hash_tensor is not implemented for complex arrays")
    dims = canonical_dims(dim, self.ndim)
    kind = canonical("uint64")
    bits = lax.bitcast_convert_type(cast(self, "float64" if is_floating(self) else "int64"), kind)
    out = lax.reduce(bits, np.zeros((), kind), lax.bitwise_xor, dims)
    return jnp.expand_dims(out, dims) if keepdim else out


__all__ = exported(__name__)

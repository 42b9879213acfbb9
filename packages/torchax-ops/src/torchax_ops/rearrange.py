"""Joining, repeating and reordering: ``cat``, ``stack``, ``flip``, ``roll``, ``repeat`` and their kin."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchax_ops._promotion import cast, result_type
from torchax_ops._registry import exported, register
from torchax_ops._shapes import canonical_dim, canonical_dims


def _is_legacy_empty(x: jax.Array) -> bool:
    """``cat`` skips arrays of shape (0,), whatever the others' shapes."""
    return x.shape == (0,)


@register("cat")
def cat(tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    """Arrays of equal shape but for ``dim``, joined along it, in their promoted dtype; those of shape (0,) are skipped.

    Raises:
        ValueError: there are no arrays.
        RuntimeError: an array has no dimensions, or shapes do not match.
        IndexError: ``dim`` is out of range.
    """
    if not len(tensors):
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    for i, x in enumerate(tensors):
        if x.ndim == 0:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")
    dtype = result_type(*tensors)
    kept = [(i, x) for i, x in enumerate(tensors) if not _is_legacy_empty(x)]
    if not kept:
        canonical_dim(dim, 1)
        return jnp.zeros((0,), dtype)
    _, first = kept[0]
    dim = canonical_dim(dim, first.ndim)
    for i, x in kept[1:]:
        if x.ndim != first.ndim:
            raise RuntimeError(f"Tensors must have same number of dimensions: got {first.ndim} and {x.ndim}")
        for d, (want, have) in enumerate(zip(first.shape, x.shape)):
            if d != dim and want != have:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {dim}. Expected size {want} but got size {have} "
                    f"for tensor number {i} in the list."
                )
    return lax.concatenate([cast(x, dtype) for _, x in kept], dim)


@register("stack", "_stack")
def stack(tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    """Arrays of one shape, joined along a new dimension ``dim``, in their promoted dtype.

    Raises:
        RuntimeError: there are no arrays, or shapes differ.
        IndexError: ``dim`` is out of range.
    """
    if not len(tensors):
        raise RuntimeError("stack expects a non-empty TensorList")
    dim = canonical_dim(dim, tensors[0].ndim + 1)
    for i, x in enumerate(tensors):
        if x.shape != tensors[0].shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(tensors[0].shape)} at entry 0 and "
                f"{list(x.shape)} at entry {i}"
            )
    dtype = result_type(*tensors)
    return lax.concatenate([lax.expand_dims(cast(x, dtype), [dim]) for x in tensors], dim)


@register("_chunk_cat")
def _chunk_cat(tensors: Sequence[jax.Array], dim: int, num_chunks: int) -> jax.Array:
    """Each array padded to ``num_chunks`` equal chunks along ``dim``, chunks flattened, and joined side by side.

    Raises:
        RuntimeError: an array has no such dim.
    """
    if any(dim >= x.ndim for x in tensors):
        raise RuntimeError(f"_chunk_cat expects dim < ndim for all input tensors, but got dim {dim}")
    dtype = result_type(*tensors)
    rows = []
    for x in tensors:
        d = canonical_dim(dim, x.ndim)
        chunk = -(-x.shape[d] // num_chunks)
        pad = [(0, 0, 0)] * x.ndim
        pad[d] = (0, chunk * num_chunks - x.shape[d], 0)
        rows.append(lax.pad(cast(x, dtype), jnp.zeros((), dtype), pad).reshape(*x.shape[:d], num_chunks, -1))
    return lax.concatenate(rows, rows[0].ndim - 1)


@register("block_diag")
def block_diag(tensors: Sequence[jax.Array]) -> jax.Array:
    """The arrays (2-d, or taken as rows) as blocks on the diagonal of a matrix of zeros, in their promoted dtype.

    Raises:
        RuntimeError: an array has more than two dimensions.
    """
    for i, x in enumerate(tensors):
        if x.ndim > 2:
            raise RuntimeError(
                f"torch.block_diag: Input tensors must have 2 or fewer dimensions. Input {i} has {x.ndim}"
            )
    if not len(tensors):
        return jnp.zeros((1, 0), np.float32)
    dtype = result_type(*tensors)
    blocks = [jnp.atleast_2d(cast(x, dtype)) for x in tensors]
    width = builtins.sum(x.shape[1] for x in blocks)
    rows, left = [], 0
    for x in blocks:
        right = width - left - x.shape[1]
        rows.append(lax.pad(x, jnp.zeros((), dtype), [(0, 0, 0), (left, right, 0)]))
        left += x.shape[1]
    return lax.concatenate(rows, 0)


@register("flip")
def flip(self: jax.Array, dims: Sequence[int]) -> jax.Array:
    """``self`` reversed along ``dims``; IndexError where one is out of range, RuntimeError where one appears twice."""
    return lax.rev(self, canonical_dims(dims, self.ndim, empty_is_all=False))


@register("roll", traced=("shifts",))
def roll(self: jax.Array, shifts: Sequence[int | jax.Array], dims: Sequence[int] = ()) -> jax.Array:
    """``self`` shifted around along ``dims``, or flattened where there are none; shifts may be traced.

    Raises:
        RuntimeError: there are no shifts, or not as many as dims.
        IndexError: a dim is out of range.
    """
    if not len(shifts):
        raise RuntimeError("`shifts` required")
    if not len(dims) and len(shifts) == 1:
        return jnp.roll(self.reshape(-1), shifts[0]).reshape(self.shape)
    if len(shifts) != len(dims):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
    for shift, dim in zip(shifts, dims):
        if not self.ndim:
            raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
        self = jnp.roll(self, shift, canonical_dim(dim, self.ndim))
    return self


@register("rot90")
def rot90(self: jax.Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> jax.Array:
    """``self`` turned ``k`` times by 90 degrees from the first to the second of ``dims``.

    Raises:
        RuntimeError: ``dims`` are not two different ones, or ``self`` has fewer than two dimensions.
        IndexError: a dim is out of range.
    """
    if len(dims) != 2:
        raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    if self.ndim < 2:
        raise RuntimeError(f"expected total dims >= 2, but got total dims = {self.ndim}")
    if dims[0] == dims[1] or abs(dims[0] - dims[1]) == self.ndim:
        raise RuntimeError(f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}")
    return jnp.rot90(self, k, (canonical_dim(dims[0], self.ndim), canonical_dim(dims[1], self.ndim)))


@register("repeat")
def repeat(self: jax.Array, repeats: Sequence[int]) -> jax.Array:
    """``self`` tiled ``repeats`` times along each dimension, with new leading ones where there are more repeats.

    Raises:
        RuntimeError: there are fewer repeats than dimensions, or one is negative.
    """
    if len(repeats) < self.ndim:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    if min(repeats, default=0) < 0:
        raise RuntimeError(f"repeat: Trying to create tensor with negative dimension: repeats {list(repeats)}")
    return jnp.tile(self, repeats)


def _check_repeats(repeats: jax.Array, *, output_size: int | None = None) -> None:
    counts = np.asarray(repeats)
    if (counts < 0).any():
        raise RuntimeError("repeats can not be negative")
    if output_size is not None and counts.sum() != output_size:
        raise RuntimeError(f"allocated size does not match required size: {output_size}, {counts.sum()}")


def _has_no_size(repeats: jax.Array, *, output_size: int | None = None) -> bool:
    return output_size is None


@register("repeat_interleave.Tensor", eager=_has_no_size, check=_check_repeats)
def repeat_interleave(repeats: jax.Array, *, output_size: int | None = None) -> jax.Array:
    """Each position of the vector ``repeats``, as often as it says; under a trace a static ``output_size`` is needed.

    Raises:
        RuntimeError: ``repeats`` is not 1-d, or is traced and there is no ``output_size``.
        NotImplementedError: ``repeats`` is neither int32 nor int64.
    """
    if repeats.ndim != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype.name not in ("int32", "int64"):
        raise NotImplementedError(f"repeat_interleave is not implemented for {repeats.dtype} repeats")
    if output_size is None:
        if isinstance(repeats, jax.core.Tracer):
            raise RuntimeError(
                "repeat_interleave: the shape of the result depends on repeats, whose values a trace does not have; "
                "give output_size="
            )
        _check_repeats(repeats)
        counts = np.asarray(repeats)
        return jnp.asarray(np.repeat(np.arange(counts.size, dtype=counts.dtype), counts))
    if not output_size or not repeats.size:
        return jnp.zeros((output_size,), repeats.dtype)
    ends = jnp.cumsum(repeats)
    at = jnp.searchsorted(ends, jnp.arange(output_size, dtype=repeats.dtype), side="right")
    return cast(at, repeats.dtype)


__all__ = exported(__name__)

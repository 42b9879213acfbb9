"""Views as values: what PyTorch's view operators, their copies, inverses and backwards compute.

PyTorch's views share memory; these return new arrays. Aliasing is the caller's business.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchax_ops._adjoint import adjoint
from torchax_ops._promotion import cast, category
from torchax_ops._registry import exported, register
from torchax_ops._shapes import canonical_dim, canonical_dims, infer_size

Index = int | jax.Array
_COMPLEX_PARTS = {"complex64": "float32", "complex128": "float64"}
_COMPLEX_OF = {real: whole for whole, real in _COMPLEX_PARTS.items()}


# Same elements, other shape


@register("view", "view_copy", "_unsafe_view", "_reshape_copy")
def view(self: jax.Array, size: Sequence[int]) -> jax.Array:
    """``self`` with shape ``size``, where one ``-1`` is inferred.

    Raises:
        RuntimeError: ``size`` does not hold as many elements.
    """
    return lax.reshape(self, infer_size(size, self.size))


@register("_reshape_alias", "_reshape_alias_copy")
def _reshape_alias(self: jax.Array, size: Sequence[int], stride: Sequence[int]) -> jax.Array:
    return view(self, size)


@register("alias", "alias_copy", "detach", "detach_copy", "lift", "lift_fresh", "lift_fresh_copy")
def alias(self: jax.Array) -> jax.Array:
    """``self``."""
    return self


@register("permute", "permute_copy")
def permute(self: jax.Array, dims: Sequence[int]) -> jax.Array:
    """``self`` with its dimensions in the order ``dims``.

    Raises:
        RuntimeError: ``dims`` is no permutation of all dimensions.
        IndexError: a dim is out of range.
    """
    if len(dims) != self.ndim:
        raise RuntimeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
            f"ordering of dimensions i.e. input.dim() = {self.ndim} is not equal to len(dims) = {len(dims)}"
        )
    order = [canonical_dim(d, self.ndim) for d in dims]
    if len(set(order)) != len(order):
        raise RuntimeError("permute(): duplicate dims are not allowed.")
    return lax.transpose(self, order)


@register("transpose.int", "transpose_copy.int")
def transpose(self: jax.Array, dim0: int, dim1: int) -> jax.Array:
    """``self`` with two dimensions swapped; IndexError where one is out of range."""
    dim0, dim1 = canonical_dim(dim0, self.ndim), canonical_dim(dim1, self.ndim)
    return jnp.swapaxes(self, dim0, dim1) if self.ndim else self


@register("t", "t_copy")
def t(self: jax.Array) -> jax.Array:
    """A matrix transposed; arrays of fewer dimensions as they are. RuntimeError for more than two."""
    if self.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {self.ndim}D")
    return self.T


@register("expand", "expand_copy")
def expand(self: jax.Array, size: Sequence[int], *, implicit: bool = False) -> jax.Array:
    """``self`` broadcast to ``size``, where ``-1`` keeps a dimension.

    Raises:
        RuntimeError: a dimension that is not 1 differs, or ``size`` is shorter than ``self.shape``.
    """
    new = len(size) - self.ndim
    if new < 0:
        raise RuntimeError(
            f"expand({list(self.shape)}, size={list(size)}): the number of sizes provided ({len(size)}) must be "
            f"greater or equal to the number of dimensions in the tensor ({self.ndim})"
        )
    shape = list(size)
    for i, (want, have) in enumerate(zip(size[new:], self.shape), start=new):
        if want == -1:
            shape[i] = have
        elif have not in (1, want):
            raise RuntimeError(
                f"The expanded size of the tensor ({want}) must match the existing size ({have}) at non-singleton "
                f"dimension {i}.  Target sizes: {list(size)}.  Tensor sizes: {list(self.shape)}"
            )
    if any(n < 0 for n in shape):
        raise RuntimeError(
            f"expand(): the expanded size of the tensor ({min(shape)}) isn't allowed in a leading, non-existing "
            f"dimension {shape.index(min(shape))}"
        )
    return jnp.broadcast_to(self, shape)


@register("squeeze", "squeeze_copy")
def squeeze(self: jax.Array) -> jax.Array:
    """``self`` without its dimensions of size 1."""
    return jnp.squeeze(self)


@register("squeeze.dim", "squeeze.dims", "squeeze_copy.dim", "squeeze_copy.dims")
def squeeze_dim(self: jax.Array, dim: int | Sequence[int]) -> jax.Array:
    """``self`` without those of its dimensions ``dim`` that have size 1; IndexError for one out of range."""
    dims = canonical_dims(dim, self.ndim, empty_is_all=False)
    return lax.squeeze(self, [d for d in dims if self.shape[d] == 1])


@register("unsqueeze", "unsqueeze_copy")
def unsqueeze(self: jax.Array, dim: int) -> jax.Array:
    """``self`` with a dimension of size 1 put in at ``dim``; IndexError where that is out of range."""
    return lax.expand_dims(self, [canonical_dim(dim, self.ndim + 1)])


# Parts


def _check_select(self: jax.Array, dim: int, index: int, *, sizes: Sequence[int] | None = None) -> None:
    shape = tuple(self.shape if sizes is None else sizes)
    if not shape:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    size = shape[canonical_dim(dim, len(shape))]
    if not -size <= index < size:
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(shape)} at dimension {dim}")


def _check_select_scatter(self: jax.Array, src: jax.Array, dim: int, index: int) -> None:
    _check_select(self, dim, index)


def _check_select_backward(grad_output: jax.Array, input_sizes: Sequence[int], dim: int, index: int) -> None:
    _check_select(grad_output, dim, index, sizes=input_sizes)


@register("select.int", "select_copy.int", traced=("index",), check=_check_select)
def select(self: jax.Array, dim: int, index: Index) -> jax.Array:
    """The part of ``self`` at ``index`` along ``dim``, without that dimension.

    Raises:
        IndexError: ``dim`` or (unless traced) ``index`` is out of range, or ``self`` has no dimensions.
    """
    _check_select(self, dim, index if isinstance(index, int) else 0)
    return lax.dynamic_index_in_dim(self, index, canonical_dim(dim, self.ndim), keepdims=False)


@register("select_scatter", traced=("index",), check=_check_select_scatter)
def select_scatter(self: jax.Array, src: jax.Array, dim: int, index: Index) -> jax.Array:
    """``self`` with ``src`` written at ``index`` along ``dim``; errors as `select`, RuntimeError for another shape."""
    _check_select(self, dim, index if isinstance(index, int) else 0)
    dim = canonical_dim(dim, self.ndim)
    part = self.shape[:dim] + self.shape[dim + 1 :]
    if src.shape != part:
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. "
            f"src size = {list(src.shape)}, slice size = {list(part)}"
        )
    return lax.dynamic_update_index_in_dim(self, cast(src, self.dtype), index, dim)


@register("select_backward", traced=("index",), check=_check_select_backward)
def select_backward(grad_output: jax.Array, input_sizes: Sequence[int], dim: int, index: Index) -> jax.Array:
    """Zeros of shape ``input_sizes`` with ``grad_output`` at ``index`` along ``dim``."""
    return select_scatter(jnp.zeros(input_sizes, grad_output.dtype), grad_output, dim, index)


def _slice_bounds(size: int, start: int | None, end: int | None, step: int) -> tuple[int, int]:
    """``(first, length)`` of a slice, clamped as PyTorch does; RuntimeError where ``step`` is not positive."""
    if step <= 0:
        raise RuntimeError("slice step must be positive")

    def clamped(at: int) -> int:  # for symbolic sizes too (jax.export), which slice.indices does not take
        return jax.core.max_dim(at + size, 0) if at < 0 else jax.core.min_dim(at, size)

    first = 0 if start is None else clamped(start)
    last = size if end is None else clamped(end)
    return first, jax.core.max_dim(0, -(-(last - first) // step))


def _slice_of(shape: Sequence[int], dim: int, start: int | None, end: int | None, step: int) -> tuple[int, int, int]:
    """``(dim, first, length)``; RuntimeError for a 0-d array."""
    if len(shape) == 0:
        raise RuntimeError("slice() cannot be applied to a 0-dim tensor.")
    dim = canonical_dim(dim, len(shape))
    return (dim, *_slice_bounds(shape[dim], start, end, step))


@register("slice.Tensor", "slice_copy.Tensor")
def slice(self: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> jax.Array:
    """``self[start:end:step]`` along ``dim``; bounds count from the end where negative, and are clamped.

    Raises:
        RuntimeError: ``step`` is not positive, or ``self`` has no dimensions.
        IndexError: ``dim`` is out of range.
    """
    dim, first, length = _slice_of(self.shape, dim, start, end, step)
    return lax.slice_in_dim(self, first, first if length == 0 else first + (length - 1) * step + 1, step, dim)


def _traced_start(start: Index | None, size: int, length: int) -> Index:
    """A start that may be a tracer, counted from the front."""
    if start is None:
        return 0
    return jnp.clip(jnp.where(start < 0, start + size, start), 0, size)


def _write(self: jax.Array, src: jax.Array, dim: int, first: Index, step: int) -> jax.Array:
    """``self`` with ``src`` written at ``first, first + step, …`` along ``dim``."""
    src = cast(src, self.dtype)
    if step == 1 or src.shape[dim] <= 1:
        return lax.dynamic_update_slice_in_dim(self, src, first, dim) if src.size else self
    at = first + step * jnp.arange(src.shape[dim], dtype=np.int32)
    return self.at[(builtins.slice(None),) * dim + (at,)].set(src)


def _check_slice_scatter(
    self: jax.Array, src: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> None:
    dim, _, length = _slice_of(self.shape, dim, start, end, step)
    part = (*self.shape[:dim], length, *self.shape[dim + 1 :])
    if tuple(src.shape) != part:
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. "
            f"src size = {list(src.shape)}, slice size = {list(part)}"
        )


@register("slice_scatter", traced=("start", "end"), check=_check_slice_scatter)
def slice_scatter(
    self: jax.Array,
    src: jax.Array,
    dim: int = 0,
    start: Index | None = None,
    end: Index | None = None,
    step: int = 1,
) -> jax.Array:
    """``self`` with ``src`` written at the slice; errors as `slice`, RuntimeError where ``src`` has another shape.

    ``start`` and ``end`` may be traced: the shape of ``src`` says how long the slice is.
    """
    if isinstance(start, jax.Array) or isinstance(end, jax.Array):
        dim = canonical_dim(dim, self.ndim)
        return _write(self, src, dim, _traced_start(start, self.shape[dim], src.shape[dim]), step)
    _check_slice_scatter(self, src, dim, start, end, step)
    dim, first, _ = _slice_of(self.shape, dim, start, end, step)
    return _write(self, src, dim, first, step)


@register("slice_backward", traced=("start", "end"))
def slice_backward(
    grad_output: jax.Array, input_sizes: Sequence[int], dim: int, start: Index, end: Index, step: int
) -> jax.Array:
    """Zeros of shape ``input_sizes`` with ``grad_output`` at the slice."""
    return slice_scatter(jnp.zeros(input_sizes, grad_output.dtype), grad_output, dim, start, end, step)


@register("slice_inverse")
def slice_inverse(
    self: jax.Array, src: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> jax.Array:
    """An array of ``src.shape`` of which ``self`` is the slice, zero elsewhere."""
    return slice_scatter(jnp.zeros_like(src), self, dim, start, end, step)


def _check_narrow(self: jax.Array, dim: int, start: int, length: int) -> None:
    if self.ndim == 0:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    size = self.shape[canonical_dim(dim, self.ndim)]
    if length < 0:
        raise RuntimeError("narrow(): length must be non-negative.")
    if not -size <= start <= size:
        raise IndexError(f"start out of range (expected to be in range of [{-size}, {size}], but got {start})")
    if (start % size if start < 0 else start) + length > size:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")


@register("narrow_copy", traced=("start",), check=_check_narrow)
def narrow_copy(self: jax.Array, dim: int, start: Index, length: int) -> jax.Array:
    """``self[start:start + length]`` along ``dim``; IndexError or RuntimeError where that leaves ``self``."""
    if isinstance(start, int):
        _check_narrow(self, dim, start, length)
    dim = canonical_dim(dim, self.ndim)
    start = _traced_start(start, self.shape[dim], length)
    return lax.dynamic_slice_in_dim(self, start, length, dim)


@register("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes")
def split_with_sizes(self: jax.Array, split_sizes: Sequence[int], dim: int = 0) -> list[jax.Array]:
    """Parts of the given sizes along ``dim``; RuntimeError where they do not sum to its size."""
    if self.ndim == 0:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    dim = canonical_dim(dim, self.ndim)
    if min(split_sizes, default=0) < 0:
        raise RuntimeError(
            "split_with_sizes expects split_sizes have only non-negative entries, "
            f"but got split_sizes={list(split_sizes)}"
        )
    if builtins.sum(split_sizes) != self.shape[dim]:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {self.shape[dim]} (input tensor's size at "
            f"dimension {dim}), but got split_sizes={list(split_sizes)}"
        )
    return list(lax.split(self, split_sizes, dim)) if split_sizes else []


@register("split.Tensor", "split_copy.Tensor", "unsafe_split.Tensor")
def split(self: jax.Array, split_size: int, dim: int = 0) -> list[jax.Array]:
    """Parts of ``split_size`` along ``dim``, the last one smaller; RuntimeError for a size that is not positive."""
    if self.ndim == 0:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    size = self.shape[canonical_dim(dim, self.ndim)]
    if split_size < 0:
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={split_size}")
    if split_size == 0 and size:
        raise RuntimeError(f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}")
    whole, rest = divmod(size, split_size) if split_size else (1, 0)
    return split_with_sizes(self, [split_size] * whole + [rest] * bool(rest) or [0], dim)


@register("unbind.int", "unbind_copy.int")
def unbind(self: jax.Array, dim: int = 0) -> list[jax.Array]:
    """The parts of ``self`` along ``dim``, without that dimension; IndexError where it is out of range."""
    if self.ndim == 0:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    dim = canonical_dim(dim, self.ndim)
    return [lax.index_in_dim(self, i, dim, keepdims=False) for i in range(self.shape[dim])]


# Diagonals


def _diagonal_dims(ndim: int, dim1: int, dim2: int) -> tuple[int, int]:
    first, second = canonical_dim(dim1, ndim), canonical_dim(dim2, ndim)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    return first, second


def _diagonal_at(rows: int, columns: int, offset: int) -> tuple[int, int, int]:
    """``(length, first row, first column)`` of a diagonal."""
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    return length, max(0, -offset), max(0, offset)


@register("diagonal", "diagonal_copy")
def diagonal(self: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    """The diagonal of the matrices in ``dim1`` and ``dim2``, as the last dimension.

    Raises:
        RuntimeError: ``dim1`` is ``dim2``.
        IndexError: a dim is out of range.
    """
    dim1, dim2 = _diagonal_dims(self.ndim, dim1, dim2)
    x = jnp.moveaxis(self, (dim1, dim2), (-2, -1))
    length, row, column = _diagonal_at(x.shape[-2], x.shape[-1], offset)
    at = jnp.arange(length, dtype=np.int32)
    return x[..., at + row, at + column]


@register("diagonal_scatter")
def diagonal_scatter(self: jax.Array, src: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    """``self`` with ``src`` written on the diagonal; errors as `diagonal`, RuntimeError where shapes differ."""
    dim1, dim2 = _diagonal_dims(self.ndim, dim1, dim2)
    x = jnp.moveaxis(self, (dim1, dim2), (-2, -1))
    length, row, column = _diagonal_at(x.shape[-2], x.shape[-1], offset)
    if src.shape != (*x.shape[:-2], length):
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. "
            f"src size = {list(src.shape)}, slice size = {[*x.shape[:-2], length]}"
        )
    at = jnp.arange(length, dtype=np.int32)
    x = x.at[..., at + row, at + column].set(cast(src, self.dtype))
    return jnp.moveaxis(x, (-2, -1), (dim1, dim2))


@register("diagonal_backward")
def diagonal_backward(
    grad_output: jax.Array, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> jax.Array:
    """Zeros of shape ``input_sizes`` with ``grad_output`` on the diagonal."""
    return diagonal_scatter(jnp.zeros(input_sizes, grad_output.dtype), grad_output, offset, dim1, dim2)


@register("diag_embed")
def diag_embed(self: jax.Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> jax.Array:
    """Matrices in dimensions ``dim1`` and ``dim2`` with the last dimension of ``self`` on their diagonal."""
    dim1, dim2 = _diagonal_dims(self.ndim + 1, dim1, dim2)
    shape = list(self.shape[:-1])
    for dim in sorted((dim1, dim2)):
        shape.insert(dim, self.shape[-1] + abs(offset))
    return diagonal_backward(self, shape, offset, dim1, dim2)


# Windows and strides


@register("unfold", "unfold_copy")
def unfold(self: jax.Array, dimension: int, size: int, step: int) -> jax.Array:
    """All windows of ``size`` along ``dimension``, ``step`` apart; the window is the last dimension.

    Raises:
        RuntimeError: ``size`` is negative or larger than the dimension, or ``step`` is not positive.
        IndexError: ``dimension`` is out of range.
    """
    dim = canonical_dim(dimension, self.ndim)
    x = self if self.ndim else self[None]
    if size < 0 or size > x.shape[dim]:
        raise RuntimeError(
            f"maximum size for tensor at dimension {dim} is {x.shape[dim]} but size is {size}"
            if size > 0
            else f"size is {size} but must be >= 0"
        )
    if step <= 0:
        raise RuntimeError(f"step is {step} but must be > 0")
    count = (x.shape[dim] - size) // step + 1
    at = step * jnp.arange(count, dtype=np.int32)[:, None] + jnp.arange(size, dtype=np.int32)
    windows = jnp.moveaxis(x[(builtins.slice(None),) * dim + (at,)], dim + 1, -1)
    return windows if self.ndim else windows[0]


@register("unfold_backward")
def unfold_backward(grad_in: jax.Array, input_sizes: Sequence[int], dim: int, size: int, step: int) -> jax.Array:
    """The sum of ``grad_in``'s windows, each at its place in an array of shape ``input_sizes``."""
    return adjoint(lambda x: unfold(x, dim, size, step), input_sizes, grad_in)


def _strided_at(numel: int, size: Sequence[int], stride: Sequence[int], offset: Index) -> jax.Array:
    """Flat positions of a strided view; RuntimeError where it leaves ``numel`` elements."""
    if len(size) != len(stride):
        raise RuntimeError(f"mismatch in length of strides and shape: {list(size)}, {list(stride)}")
    if min(stride, default=0) < 0:
        raise RuntimeError(f"as_strided: Negative strides are not supported at the moment, got strides: {list(stride)}")
    last = builtins.sum((n - 1) * s for n, s in zip(size, stride))
    start = offset if isinstance(offset, int) else 0
    if math.prod(size) and not 0 <= start <= start + last < numel:
        raise RuntimeError(
            f"as_strided: sizes {list(size)}, strides {list(stride)}, storage offset {start} are out of bounds for "
            f"storage of {numel} elements"
        )
    at = jnp.zeros(size, np.int64 if numel > np.iinfo(np.int32).max else np.int32)
    for dim, step in enumerate(stride):
        at += step * lax.broadcasted_iota(at.dtype, size, dim)
    return at + jnp.asarray(offset, at.dtype)


@register("as_strided", "as_strided_copy", traced=("storage_offset",))
def as_strided(
    self: jax.Array, size: Sequence[int], stride: Sequence[int], storage_offset: Index | None = None
) -> jax.Array:
    """The strided view of ``self``, taken as a contiguous storage.

    Raises:
        RuntimeError: it reaches outside ``self``, or strides are negative or not as many as sizes.
    """
    at = _strided_at(self.size, size, stride, 0 if storage_offset is None else storage_offset)
    return lax.reshape(self, (self.size,))[at]


@register("as_strided_scatter", traced=("storage_offset",))
def as_strided_scatter(
    self: jax.Array, src: jax.Array, size: Sequence[int], stride: Sequence[int], storage_offset: Index | None = None
) -> jax.Array:
    """``self``, taken as a contiguous storage, with ``src`` written at a strided view; errors as `as_strided`."""
    if src.shape != tuple(size):
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. "
            f"src size = {list(src.shape)}, slice size = {list(size)}"
        )
    at = _strided_at(self.size, size, stride, 0 if storage_offset is None else storage_offset)
    return lax.reshape(self, (self.size,)).at[at].set(cast(src, self.dtype)).reshape(self.shape)


# Other dtypes of the same bits


@register("view_as_real", "view_as_real_copy")
def view_as_real(self: jax.Array) -> jax.Array:
    """Real and imaginary parts as a last dimension of size 2; RuntimeError for an array that is not complex."""
    if self.dtype.name not in _COMPLEX_PARTS:
        raise RuntimeError("view_as_real is only supported for complex tensors")
    return jnp.stack([lax.real(self), lax.imag(self)], axis=-1)


@register("view_as_complex", "view_as_complex_copy")
def view_as_complex(self: jax.Array) -> jax.Array:
    """Complex numbers from a last dimension of size 2.

    Raises:
        RuntimeError: the dtype is neither float32 nor float64, or the last dimension has another size.
    """
    if self.dtype.name not in _COMPLEX_OF:
        raise RuntimeError(
            "view_as_complex is only supported for half, float and double tensors, but got a tensor of scalar type: "
            f"{self.dtype.name}"
        )
    if self.ndim == 0:
        raise RuntimeError("Input tensor must have one or more dimensions")
    if self.shape[-1] != 2:
        raise RuntimeError("Tensor must have a last dimension of size 2")
    return lax.complex(self[..., 0], self[..., 1])


def _to_bits(x: jax.Array) -> jax.Array:
    """``x`` in a dtype that XLA bitcasts: complex as its parts, bool as uint8."""
    if category(x.dtype) == 3:
        return view_as_real(x).reshape(*x.shape[:-1], -1) if x.ndim else view_as_real(x)
    return x.astype(np.uint8) if x.dtype == np.bool_ else x


def _of_bits(x: jax.Array, dtype: np.dtype) -> jax.Array:
    if dtype.name in _COMPLEX_PARTS:
        return view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return x != 0 if dtype == np.bool_ else x


@register("view.dtype", "view_copy.dtype")
def view_dtype(self: jax.Array, dtype: Any) -> jax.Array:
    """The bits of ``self`` as ``dtype``; the last dimension grows or shrinks with the size of an element.

    Raises:
        RuntimeError: the sizes differ and ``self`` has no dimensions, or its last one does not divide.
    """
    dtype = np.dtype(dtype)
    old, new = self.dtype.itemsize, dtype.itemsize
    if self.dtype == dtype:
        return self
    if old != new and self.ndim == 0:
        raise RuntimeError(
            f"self.dim() cannot be 0 to view {self.dtype.name} as {dtype.name} (different element sizes)"
        )
    if new > old and (self.shape[-1] * old) % new:
        raise RuntimeError(
            f"self.size(-1) must be divisible by {new // old} to view {self.dtype.name} as {dtype.name} (different "
            f"element sizes), but got {self.shape[-1]}"
        )
    shape = (*self.shape[:-1], self.shape[-1] * old // new) if self.ndim else ()
    bits = np.dtype(_COMPLEX_PARTS.get(dtype.name, "uint8" if dtype == np.bool_ else dtype))
    x = _to_bits(self)
    ratio = bits.itemsize // x.dtype.itemsize
    if ratio > 1:
        x = x.reshape(*x.shape[:-1], -1, ratio)
    x = lax.bitcast_convert_type(x, bits)
    return _of_bits(x if dtype.name in _COMPLEX_PARTS else x.reshape(shape), dtype).reshape(shape)


__all__ = exported(__name__)

"""New arrays: filled, ranges, identities, indices of triangles, windows.

``dtype=None`` is PyTorch's default: the default float, int64 for integers where PyTorch says so, the dtype of ``self``
for ``*_like`` and ``new_*``.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchax_ops._promotion import canonical, cast, category, default_float, dtype_of, opmath
from torchax_ops._registry import exported, register

Scalar = bool | int | float | complex | jax.Array
Bound = int | float  # decides a shape, so is never traced
DType = Any


def _shape(op: str, size: Sequence[int]) -> tuple[int, ...]:
    if any(n < 0 for n in size):
        raise RuntimeError(f"{op}: Trying to create tensor with negative dimension {min(size)}: {list(size)}")
    return tuple(size)


def _filled(op: str, size: Sequence[int], value: Scalar, dtype: DType) -> jax.Array:
    return jnp.full(_shape(op, size), cast(value, dtype))


# Filled


@register("zeros", "_efficientzerotensor")
def zeros(size: Sequence[int], *, dtype: DType = None) -> jax.Array:
    """Zeros of shape ``size``; RuntimeError where a size is negative."""
    return _filled("zeros", size, 0, dtype or default_float())


@register("ones")
def ones(size: Sequence[int], *, dtype: DType = None) -> jax.Array:
    """Ones of shape ``size``; RuntimeError where a size is negative."""
    return _filled("ones", size, 1, dtype or default_float())


@register("full")
def full(size: Sequence[int], fill_value: Scalar, *, dtype: DType = None) -> jax.Array:
    """``fill_value`` in shape ``size``; without ``dtype`` it has the dtype of a 0-d tensor of the number."""
    return _filled("full", size, fill_value, dtype or dtype_of(fill_value))


@register("empty.memory_format")
def empty(size: Sequence[int], *, dtype: DType = None) -> jax.Array:
    """An array of shape ``size`` whose values mean nothing (they are zero)."""
    return _filled("empty", size, 0, dtype or default_float())


@register("empty_strided")
def empty_strided(size: Sequence[int], stride: Sequence[int], *, dtype: DType = None) -> jax.Array:
    """`empty`: an array has no strides."""
    return empty(size, dtype=dtype)


@register("empty_permuted")
def empty_permuted(size: Sequence[int], physical_layout: Sequence[int], *, dtype: DType = None) -> jax.Array:
    """`empty`: an array has no physical layout."""
    return empty(size, dtype=dtype)


@register("zeros_like", "empty_like")
def zeros_like(self: jax.Array, *, dtype: DType = None) -> jax.Array:
    """Zeros in the shape and, unless ``dtype`` is given, the dtype of ``self``."""
    return _filled("zeros_like", self.shape, 0, dtype or self.dtype)


@register("ones_like")
def ones_like(self: jax.Array, *, dtype: DType = None) -> jax.Array:
    """Ones in the shape and, unless ``dtype`` is given, the dtype of ``self``."""
    return _filled("ones_like", self.shape, 1, dtype or self.dtype)


@register("full_like")
def full_like(self: jax.Array, fill_value: Scalar, *, dtype: DType = None) -> jax.Array:
    """``fill_value`` in the shape and, unless ``dtype`` is given, the dtype of ``self``."""
    return _filled("full_like", self.shape, fill_value, dtype or self.dtype)


@register("new_zeros", "new_empty")
def new_zeros(self: jax.Array, size: Sequence[int], *, dtype: DType = None) -> jax.Array:
    """Zeros of shape ``size`` in the dtype of ``self``, unless ``dtype`` is given."""
    return _filled("new_zeros", size, 0, dtype or self.dtype)


@register("new_empty_strided")
def new_empty_strided(self: jax.Array, size: Sequence[int], stride: Sequence[int], *, dtype: DType = None) -> jax.Array:
    """`new_zeros`: an array has no strides."""
    return new_zeros(self, size, dtype=dtype)


@register("new_ones")
def new_ones(self: jax.Array, size: Sequence[int], *, dtype: DType = None) -> jax.Array:
    """Ones of shape ``size`` in the dtype of ``self``, unless ``dtype`` is given."""
    return _filled("new_ones", size, 1, dtype or self.dtype)


@register("new_full")
def new_full(self: jax.Array, size: Sequence[int], fill_value: Scalar, *, dtype: DType = None) -> jax.Array:
    """``fill_value`` in shape ``size`` and in the dtype of ``self``, unless ``dtype`` is given."""
    return _filled("new_full", size, fill_value, dtype or self.dtype)


@register("_new_zeros_with_same_feature_meta")
def _new_zeros_with_same_feature_meta(self: jax.Array, other: jax.Array, *, self_num_batch_dims: int = 0) -> jax.Array:
    return jnp.zeros(self.shape[:self_num_batch_dims] + other.shape, other.dtype)


@register("scalar_tensor")
def scalar_tensor(s: Scalar, *, dtype: DType = None) -> jax.Array:
    """A 0-d array of a number, in the default float unless ``dtype`` is given."""
    return cast(s, dtype or default_float())


# Ranges


def _check_range(op: str, start: Bound, end: Bound, step: Bound) -> None:
    if step == 0:
        raise RuntimeError(f"{op}: step must be nonzero")
    if not all(math.isfinite(x) for x in (start, end) if isinstance(x, float)):
        raise RuntimeError(f"{op}: unsupported range: {start} -> {end}")
    if (end - start) * step < 0:
        raise RuntimeError(f"{op}: upper bound and lower bound inconsistent with step sign")


def _whole(x: Bound) -> int:
    """A bound as an integer; a symbolic one (a size under ``jax.export``) stays what it is."""
    return int(x) if isinstance(x, float) else x


def _steps(start: Bound, step: Bound, count: int, dtype: np.dtype) -> jax.Array:
    """``start + i * step``, computed in int64 or, where a bound is a float, in ``dtype``'s opmath."""
    if category(dtype) < 2:
        # PyTorch converts the bounds to the result's integer type first.
        wide = canonical("uint64" if dtype.kind == "u" else "int64")
        return cast(jnp.arange(count, dtype=wide) * cast(_whole(step), wide) + cast(_whole(start), wide), dtype)
    compute = opmath(dtype)
    return cast(jnp.arange(count, dtype=compute) * cast(step, compute) + cast(start, compute), dtype)


_BOUNDS = ("start", "end", "step")


@register("arange.start_step", static=_BOUNDS)
def arange_start_step(start: Bound, end: Bound, step: Bound = 1, *, dtype: DType = None) -> jax.Array:
    """``start, start + step, …`` below ``end``: int64 where all bounds are integers, else the default float.

    Raises:
        RuntimeError: ``step`` is zero or has the wrong sign, or a bound is not finite.
    """
    bounds = (start, end, step)
    if dtype is None:
        dtype = default_float() if any(isinstance(x, float) for x in bounds) else canonical("int64")
    dtype = np.dtype(dtype)
    _check_range("arange", start, end, step)
    if category(dtype) < 2:
        start, end, step = map(_whole, bounds)
        if step == 0:
            raise RuntimeError("arange: step must be nonzero")
        count = -((start - end) // step)
    else:
        count = math.ceil((end - start) / step)
    return _steps(start, step, count, dtype)


@register("arange.start", static=_BOUNDS)
def arange_start(start: Bound, end: Bound, *, dtype: DType = None) -> jax.Array:
    """``start, start + 1, …`` below ``end``; dtypes and errors as `arange_start_step`."""
    return arange_start_step(start, end, 1, dtype=dtype)


@register("arange", static=_BOUNDS)
def arange(end: Bound, *, dtype: DType = None) -> jax.Array:
    """``0, 1, …`` below ``end``; dtypes and errors as `arange_start_step`."""
    return arange_start_step(0, end, 1, dtype=dtype)


@register("range.step", "range", static=_BOUNDS)
def range(start: Bound, end: Bound, step: Bound = 1, *, dtype: DType = None) -> jax.Array:
    """``start, start + step, …`` up to and with ``end``, in the default float unless ``dtype`` is given."""
    _check_range("range", start, end, step)
    return _steps(start, step, math.floor((end - start) / step) + 1, np.dtype(dtype or default_float()))


def _space_dtype(start: Scalar, end: Scalar, dtype: DType) -> np.dtype:
    found = [dtype_of(x) for x in (start, end)]
    if any(category(d) == 3 for d in found):
        wide = np.dtype("complex128" if default_float() == np.float64 else "complex64")
        if dtype is not None and category(np.dtype(dtype)) != 3:
            raise RuntimeError(f"linspace(): inferred dtype {wide} can't be safely cast to passed dtype {dtype}")
        return np.dtype(dtype or wide)
    return np.dtype(dtype or default_float())


def _linear(start: jax.Array, end: jax.Array, steps: int) -> jax.Array:
    """From ``start`` to ``end``, counted from the nearer end, so that both are exact."""
    if steps == 1:
        return start[None]
    i = jnp.arange(steps, dtype=np.int32)
    first, last = cast(i, start.dtype), cast(steps - 1 - i, start.dtype)
    step = (end - start) / cast(steps - 1, start.dtype)
    return jnp.where(i < steps // 2, start + step * first, end - step * last)


def _require_space(op: str, start: Scalar, end: Scalar, steps: int) -> None:
    for x in (start, end):
        if np.ndim(x):
            raise RuntimeError(
                f"{op} only supports 0-dimensional start and end tensors, but got start with {np.ndim(start)} "
                f"dimension(s) and end with {np.ndim(end)} dimension(s)."
            )
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")


@register("linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor")
def linspace(start: Scalar, end: Scalar, steps: int, *, dtype: DType = None) -> jax.Array:
    """``steps`` evenly spaced values from ``start`` to ``end``, which are numbers or 0-d arrays.

    The default dtype is the default float, or its complex. RuntimeError where ``steps`` is negative.
    """
    _require_space("linspace", start, end, steps)
    dtype = _space_dtype(start, end, dtype)
    if category(dtype) < 2:
        return _linear_integers(start, end, steps, dtype)
    compute = opmath(dtype)
    return cast(_linear(cast(start, compute), cast(end, compute), steps)[:steps], dtype)


def _linear_integers(start: Scalar, end: Scalar, steps: int, dtype: np.dtype) -> jax.Array:
    """Integers are stepped through in float32, as PyTorch does, and cut."""
    wide = cast(start, dtype), cast(end, dtype)
    if steps == 1:
        return wide[0][None]
    i = jnp.arange(steps, dtype=np.int32)
    step = (cast(wide[1], np.float32) - cast(wide[0], np.float32)) / np.float32(max(steps - 1, 1))
    up = cast(wide[0], np.float32) + step * cast(i, np.float32)
    down = cast(wide[1], np.float32) - step * cast(steps - 1 - i, np.float32)
    return cast(jnp.where(i < steps // 2, up, down), dtype)


@register("logspace", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar", "logspace.Scalar_Tensor")
def logspace(start: Scalar, end: Scalar, steps: int, base: Scalar = 10.0, *, dtype: DType = None) -> jax.Array:
    """``base`` to the powers of `linspace`; RuntimeError where ``steps`` is negative."""
    _require_space("logspace", start, end, steps)
    dtype = _space_dtype(start, end, dtype)
    compute = opmath(dtype) if category(dtype) > 1 else canonical("float64")
    if category(dtype) < 2:
        start, end = cast(start, dtype), cast(end, dtype)
    powers = _linear(cast(start, compute), cast(end, compute), steps)[:steps]
    return cast(cast(base, compute) ** powers, dtype)


# Matrices and indices


@register("eye.m")
def eye_m(n: int, m: int, *, dtype: DType = None) -> jax.Array:
    """An ``n`` by ``m`` matrix with ones on its diagonal; RuntimeError where a size is negative."""
    for name, size in (("n", n), ("m", m)):
        if size < 0:
            raise RuntimeError(f"{name} must be greater or equal to 0, got {size}")
    return jnp.eye(n, m, dtype=canonical(dtype or default_float()))


@register("eye")
def eye(n: int, *, dtype: DType = None) -> jax.Array:
    """The ``n`` by ``n`` identity; RuntimeError where ``n`` is negative."""
    return eye_m(n, n, dtype=dtype)


def _triangle(op: str, find: Callable[[int, int, int], tuple[np.ndarray, np.ndarray]]) -> Callable[..., jax.Array]:
    def indices(row: int, col: int, offset: int = 0, *, dtype: DType = np.int64) -> jax.Array:
        for name, size in (("row", row), ("col", col)):
            if size < 0:
                raise RuntimeError(f"{name} must be non-negative, got {size}")
        at = find(row, offset, col)
        return jnp.asarray(np.stack(at), canonical(dtype if dtype is not None else np.int64))

    indices.__name__ = indices.__qualname__ = op
    indices.__doc__ = f"Rows and columns of a triangle of a ``row`` by ``col`` matrix (``torch.{op}``), (2, count)."
    return register(op)(indices)


tril_indices = _triangle("tril_indices", lambda row, offset, col: np.tril_indices(row, offset, col))
triu_indices = _triangle("triu_indices", lambda row, offset, col: np.triu_indices(row, offset, col))


# Windows


def _window(
    op: str, window_length: int, periodic: bool, dtype: DType, shape: Callable[[jax.Array, int], jax.Array]
) -> jax.Array:
    """``shape(n, N - 1)`` at ``n = 0, 1, …``, where a periodic window is a symmetric one without its last value."""
    dtype = np.dtype(dtype or default_float())
    if category(dtype) < 2:
        raise RuntimeError(f"{op} expects floating point dtypes, got: {dtype}")
    if window_length < 0:
        raise RuntimeError(f"{op} requires non-negative window_length, got window_length={window_length}")
    if window_length <= 1:
        return jnp.ones((window_length,), canonical(dtype))
    last = window_length if periodic else window_length - 1
    return cast(shape(jnp.arange(window_length, dtype=opmath(canonical(dtype))), last), dtype)


def _cosine(n: jax.Array, last: int, *weights: Scalar) -> jax.Array:
    phase = n * np.asarray(2 * math.pi / last, n.dtype)
    return builtins.sum((w * jnp.cos(k * phase) for k, w in enumerate(weights) if k), jnp.zeros_like(n)) + weights[0]


@register("hann_window", "hann_window.periodic")
def hann_window(window_length: int, periodic: bool = True, *, dtype: DType = None) -> jax.Array:
    """The Hann window, (window_length,); RuntimeError for a dtype that is not floating or a negative length."""
    return _window("hann_window", window_length, periodic, dtype, lambda n, last: _cosine(n, last, 0.5, -0.5))


@register(
    "hamming_window",
    "hamming_window.periodic",
    "hamming_window.periodic_alpha",
    "hamming_window.periodic_alpha_beta",
)
def hamming_window(
    window_length: int, periodic: bool = True, alpha: Scalar = 0.54, beta: Scalar = 0.46, *, dtype: DType = None
) -> jax.Array:
    """``alpha - beta cos``: the Hamming window, (window_length,); errors as `hann_window`."""
    return _window("hamming_window", window_length, periodic, dtype, lambda n, last: _cosine(n, last, alpha, -beta))


@register("blackman_window", "blackman_window.periodic")
def blackman_window(window_length: int, periodic: bool = True, *, dtype: DType = None) -> jax.Array:
    """The Blackman window, (window_length,); errors as `hann_window`."""
    return _window(
        "blackman_window", window_length, periodic, dtype, lambda n, last: _cosine(n, last, 0.42, -0.5, 0.08)
    )


@register("bartlett_window", "bartlett_window.periodic")
def bartlett_window(window_length: int, periodic: bool = True, *, dtype: DType = None) -> jax.Array:
    """The triangle of Bartlett, (window_length,); errors as `hann_window`."""
    return _window("bartlett_window", window_length, periodic, dtype, lambda n, last: 1 - jnp.abs(n * (2 / last) - 1))


@register("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")
def kaiser_window(window_length: int, periodic: bool = True, beta: Scalar = 12.0, *, dtype: DType = None) -> jax.Array:
    """The Kaiser window with shape ``beta``, (window_length,); errors as `hann_window`."""

    def shape(n: jax.Array, last: int) -> jax.Array:
        b = cast(beta, n.dtype)
        x = jnp.sqrt(jnp.maximum(0, 1 - (n * (2 / last) - 1) ** 2))
        # The exponentials are taken apart, so that a large beta does not overflow.
        return lax.bessel_i0e(b * x) / lax.bessel_i0e(b) * jnp.exp(b * x - b)

    return _window("kaiser_window", window_length, periodic, dtype, shape)


__all__ = exported(__name__)

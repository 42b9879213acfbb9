"""Average and maximum pooling over windows, adaptive and fractional windows, unpooling, and their gradients.

Every pooling here is separable, so it runs one axis at a time. A maximum carries the flat position of its winner along;
PyTorch's winner is the first of equal values, and the last NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._promotion import cast, category, opmath
from .._registry import exported, register

_MAX_UNROLLED_TAPS = 16


# ---------------------------------------------------------------------------------------------------------------------
# Windows
# ---------------------------------------------------------------------------------------------------------------------


class _Window(NamedTuple):
    """One axis: windows of ``kernel`` elements, ``dilation`` apart, that start at ``o * stride - padding``."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    out: int

    @property
    def pads(self) -> tuple[int, int]:
        """Padding below and above that makes the windows exactly fit; above it may be negative."""
        needed = (self.out - 1) * self.stride + self.dilation * (self.kernel - 1) + 1
        return self.padding, needed - self.size - self.padding


def _expand(values: Sequence[int] | int, n: int, name: str, op: str) -> tuple[int, ...]:
    values = (values,) if isinstance(values, int) else tuple(values)
    if len(values) not in (1, n):
        raise RuntimeError(f"{op}: {name} must either be a single int, or a tuple of {n} ints, but got {list(values)}")
    return values * n if len(values) == 1 else values


def _windows(op, input, n, kernel_size, stride, padding, dilation, ceil_mode) -> list[_Window]:
    """The windows of the last ``n`` axes, checked as PyTorch checks them."""
    _check_ndim(op, input, n)
    kernel = _expand(kernel_size, n, "kernel_size", op)
    stride = _expand(stride, n, "stride", op) if not isinstance(stride, (tuple, list)) or stride else kernel
    padding, dilation = _expand(padding, n, "padding", op), _expand(dilation, n, "dilation", op)
    windows = []
    for size, k, s, p, d in zip(input.shape[-n:], kernel, stride, padding, dilation):
        if k <= 0 or s <= 0 or d <= 0:
            raise RuntimeError(
                f"{op}: kernel size, stride and dilation should be greater than zero, but got kernel_size={k}, "
                f"stride={s}, dilation={d}"
            )
        if p < 0:
            raise RuntimeError(f"{op}: pad must be non-negative, but got pad: {p}")
        if p > ((k - 1) * d + 1) // 2:
            raise RuntimeError(
                f"{op}: pad should be at most half of effective kernel size, but got pad={p}, kernel_size={k} and "
                f"dilation={d}"
            )
        out = (size + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (out - 1) * s >= size + p:
            out -= 1
        if out < 1:
            raise RuntimeError(
                f"Given input size: {list(input.shape)}. Calculated output size along one dim: {out}. "
                f"{op}: Output size is too small"
            )
        windows.append(_Window(size, k, s, p, d, out))
    return windows


def _check_ndim(op, input, n):
    if input.ndim not in (n + 1, n + 2) or 0 in input.shape[-n - 1 :]:
        raise RuntimeError(
            f"{op}: Expected {n + 1}D or {n + 2}D (batch mode) tensor with optional 0 dim batch size for input, "
            f"but got: {list(input.shape)}"
        )


def _pad_axis(x, axis, low, high, value):
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (low, high, 0)
    return lax.pad(x, jnp.asarray(value, x.dtype), config)


def _taps(x, axis, window):
    """The ``kernel`` strided slices of an already padded axis: tap ``t`` holds element ``t`` of each window."""
    reach = (window.out - 1) * window.stride + 1
    for t in range(window.kernel):
        start = t * window.dilation
        yield lax.slice_in_dim(x, start, start + reach, window.stride, axis)


def _stacked(x, axis, window):
    """An already padded axis as two, ``(out, kernel)``."""
    if window.stride == window.kernel and window.dilation == 1:
        return x.reshape(*x.shape[:axis], window.out, window.kernel, *x.shape[axis + 1 :])
    return _take(x, axis, _positions(window))


def _positions(window):
    return np.arange(window.out)[:, None] * window.stride + np.arange(window.kernel) * window.dilation


def _take(x, axis, index):
    return jnp.take(x, jnp.asarray(index, jnp.int32), axis, mode="clip")


# ---------------------------------------------------------------------------------------------------------------------
# Maximum
# ---------------------------------------------------------------------------------------------------------------------

_NOWHERE = -1  # The position of padding, which loses to every element.


def _lowest(dtype):
    if dtype == np.bool_:
        return False
    return -np.inf if category(dtype) >= 2 else np.iinfo(dtype).min


def _isnan(x):
    return jnp.isnan(x) if category(x.dtype) >= 2 else jnp.zeros((), bool)


def _flat_positions(shape, batch_ndim):
    return jnp.arange(math.prod(shape), dtype=jnp.int32).reshape((1,) * batch_ndim + tuple(shape))


def _winner(values, positions, axis):
    """The winners and their positions along ``axis``, where positions grow."""
    best = values.max(axis)
    nan = _isnan(values)
    last_nan = jnp.where(nan, positions, _NOWHERE).max(axis)
    equal = (values == jnp.expand_dims(best, axis)) & (positions != _NOWHERE)
    first = jnp.where(equal, positions, np.iinfo(np.int32).max).min(axis)
    return best, jnp.where(last_nan != _NOWHERE, last_nan, first)


def _max_along(values, positions, axis, window):
    values = _pad_axis(values, axis, *window.pads, _lowest(values.dtype))  # type: ignore[call-arg]
    positions = _pad_axis(positions, axis, *window.pads, _NOWHERE)  # type: ignore[call-arg]
    if window.kernel > _MAX_UNROLLED_TAPS:
        return _winner(_stacked(values, axis, window), _stacked(positions, axis, window), axis + 1)

    def better(best, other):
        wins = (other[0] > best[0]) | _isnan(other[0]) | (best[1] == _NOWHERE)
        return tuple(jnp.where(wins, o, b) for o, b in zip(other, best))

    return functools.reduce(better, zip(_taps(values, axis, window), _taps(positions, axis, window)))


def _max_pool(op, self, n, kernel_size, stride, padding, dilation, ceil_mode):
    windows = _windows(op, self, n, kernel_size, stride, padding, dilation, ceil_mode)
    values, positions = self, _flat_positions(self.shape[-n:], self.ndim - n)
    for axis in reversed(range(n)):
        values, positions = _max_along(values, positions, self.ndim - n + axis, windows[axis])
    return values, cast(jnp.broadcast_to(positions, values.shape), "int64")


@register("max_pool2d_with_indices")
def max_pool2d_with_indices(self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    """The maxima of windows of ``(*, C, H, W)``, and their int64 positions in the flattened ``(H, W)``.

    Raises:
        RuntimeError: the windows do not fit, or the padding exceeds half a window.
    """
    return _max_pool("max_pool2d", self, 2, kernel_size, stride, padding, dilation, ceil_mode)


@register("max_pool3d_with_indices")
def max_pool3d_with_indices(self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    """`max_pool2d_with_indices` over ``(*, C, D, H, W)``."""
    return _max_pool("max_pool3d", self, 3, kernel_size, stride, padding, dilation, ceil_mode)


@register("max_pool1d_with_indices")
def max_pool1d_with_indices(self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    """`max_pool2d_with_indices` over ``(*, C, L)``."""
    return _max_pool("max_pool1d", self, 1, kernel_size, stride, padding, dilation, ceil_mode)


@register("max_pool1d")
def max_pool1d(self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    """The first result of `max_pool1d_with_indices`."""
    return max_pool1d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode)[0]


@register("max_pool2d")
def max_pool2d(self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    """The first result of `max_pool2d_with_indices`."""
    return max_pool2d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode)[0]


@register("max_pool3d")
def max_pool3d(self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    """The first result of `max_pool3d_with_indices`."""
    return max_pool3d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode)[0]


def _scatter(values, positions, shape, n, update="add"):
    """``values`` put at flat ``positions`` of the last ``n`` axes of zeros of ``shape``."""
    lead = math.prod(shape[: len(shape) - n])
    plane = math.prod(shape[len(shape) - n :])
    dtype = opmath(values.dtype)
    rows = jnp.arange(lead, dtype=jnp.int32)[:, None]
    index = cast(positions, "int32").reshape(lead, math.prod(positions.shape[positions.ndim - n :]))
    target = jnp.zeros((lead, plane), dtype).at[rows, index]
    filled = getattr(target, update)(cast(values, dtype).reshape(index.shape), mode="drop")
    return cast(filled.reshape(shape), values.dtype)


def _check_gradient(op, grad_output, indices):
    if grad_output.shape != indices.shape:
        raise RuntimeError(
            f"{op}: expected grad_output of shape {list(indices.shape)}, that of the indices, "
            f"but got {list(grad_output.shape)}"
        )


@register("max_pool2d_with_indices_backward")
def max_pool2d_with_indices_backward(
    grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices
):  # fmt: skip
    """The gradient of `max_pool2d_with_indices`: ``grad_output`` added up at ``indices``."""
    _check_gradient("max_pool2d_with_indices_backward", grad_output, indices)
    return _scatter(grad_output, indices, self.shape, 2)


@register("max_pool3d_with_indices_backward")
def max_pool3d_with_indices_backward(
    grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices
):  # fmt: skip
    """The gradient of `max_pool3d_with_indices`: ``grad_output`` added up at ``indices``."""
    _check_gradient("max_pool3d_with_indices_backward", grad_output, indices)
    return _scatter(grad_output, indices, self.shape, 3)


# ---------------------------------------------------------------------------------------------------------------------
# Average
# ---------------------------------------------------------------------------------------------------------------------


def _sum_along(x, axis, window):
    x = _pad_axis(x, axis, *window.pads, 0)  # type: ignore[call-arg]
    if window.kernel > _MAX_UNROLLED_TAPS:
        return _stacked(x, axis, window).sum(axis + 1, dtype=x.dtype)
    return functools.reduce(lax.add, _taps(x, axis, window))


def _counts(window, count_include_pad):
    """How many elements each window divides by: those that overhang the padding never count."""
    start = np.arange(window.out) * window.stride - window.padding
    end = np.minimum(start + window.kernel, window.size + window.padding)
    if not count_include_pad:
        start, end = np.maximum(start, 0), np.minimum(end, window.size)
    return np.maximum(end - start, 1)


def _mean(total, divisor, dtype):
    divisor = jnp.asarray(divisor, total.dtype)
    return cast(
        total / divisor if category(total.dtype) >= 2 else lax.div(*jnp.broadcast_arrays(total, divisor)), dtype
    )


def _avg_pool(op, self, n, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override=None):
    windows = _windows(op, self, n, kernel_size, stride, padding, 1, ceil_mode)
    if divisor_override == 0:
        raise RuntimeError(f"{op}: divisor must be not zero")
    total = cast(self, opmath(self.dtype))
    for axis in reversed(range(n)):
        total = _sum_along(total, self.ndim - n + axis, windows[axis])
    divisor = functools.reduce(np.multiply.outer, (_counts(w, count_include_pad) for w in windows))
    return _mean(total, divisor if divisor_override is None else divisor_override, self.dtype)


def _transposed(forward: Callable[[jax.Array], jax.Array], grad_output, self, op):
    """The gradient of a linear pooling."""
    out = jax.eval_shape(forward, self)
    if grad_output.shape != out.shape:
        raise RuntimeError(f"{op}: expected grad_output of shape {list(out.shape)}, but got {list(grad_output.shape)}")
    return jax.linear_transpose(forward, self)(grad_output)[0]


@register("avg_pool1d")
def avg_pool1d(self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True):
    """The means of windows of ``(*, C, L)``."""
    return _avg_pool("avg_pool1d", self, 1, kernel_size, stride, padding, ceil_mode, count_include_pad)


@register("avg_pool2d")
def avg_pool2d(
    self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
):  # fmt: skip
    """The means of windows of ``(*, C, H, W)``; integer means are truncated.

    Raises:
        RuntimeError: the windows do not fit, or the padding exceeds half a window.
    """
    return _avg_pool(
        "avg_pool2d", self, 2, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


@register("avg_pool3d")
def avg_pool3d(
    self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
):  # fmt: skip
    """`avg_pool2d` over ``(*, C, D, H, W)``."""
    return _avg_pool(
        "avg_pool3d", self, 3, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


@register("avg_pool2d_backward")
def avg_pool2d_backward(
    grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
):  # fmt: skip
    """The gradient of `avg_pool2d`."""
    forward = functools.partial(
        avg_pool2d, kernel_size=kernel_size, stride=stride, padding=padding, ceil_mode=ceil_mode,
        count_include_pad=count_include_pad, divisor_override=divisor_override,
    )  # fmt: skip
    return _transposed(forward, grad_output, self, "avg_pool2d_backward")


@register("avg_pool3d_backward")
def avg_pool3d_backward(
    grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
):  # fmt: skip
    """The gradient of `avg_pool3d`."""
    forward = functools.partial(
        avg_pool3d, kernel_size=kernel_size, stride=stride, padding=padding, ceil_mode=ceil_mode,
        count_include_pad=count_include_pad, divisor_override=divisor_override,
    )  # fmt: skip
    return _transposed(forward, grad_output, self, "avg_pool3d_backward")


# ---------------------------------------------------------------------------------------------------------------------
# Adaptive windows
# ---------------------------------------------------------------------------------------------------------------------


def _adaptive_sizes(op, self, n, output_size):
    if self.ndim not in (n + 1, n + 2) or any(s == 0 for s in self.shape[1 - (self.ndim == n + 1) :][-n:]):
        raise RuntimeError(
            f"{op}: Expected {n + 1}D or {n + 2}D tensor with non-zero size for non-batch dimensions, "
            f"but input has sizes {list(self.shape)}"
        )
    sizes = (output_size,) if isinstance(output_size, int) else tuple(output_size)
    if len(sizes) != n:
        raise RuntimeError(f"{op}: output_size must be {n}, but got {list(sizes)}")
    if any(s < 0 for s in sizes):
        raise RuntimeError(f"{op}: elements of output_size must be greater than or equal to 0, but got {list(sizes)}")
    return sizes


def _adaptive(size, out):
    """The windows of ``size`` elements cut in ``out``: a `_Window` where all are alike, else ``(index, inside)``."""
    if out and size % out == 0:
        return _Window(size, size // out, size // out, 0, 1, out)
    start = np.arange(out) * size // max(out, 1)
    length = -(-(np.arange(1, out + 1) * size) // max(out, 1)) - start
    step = np.arange(length.max(initial=1))
    return start[:, None] + step, step < length[:, None]


def _along(mask, axis, ndim):
    """A ``(out, kernel)`` array, to be broadcast against ``ndim`` dims of which it is ``axis`` and ``axis + 1``."""
    return jnp.asarray(mask).reshape((1,) * axis + mask.shape + (1,) * (ndim - axis - 2))


def _adaptive_avg_pool(op, self, n, output_size):
    total, divisors = cast(self, opmath(self.dtype)), []
    for i, (size, out) in enumerate(zip(self.shape[-n:], _adaptive_sizes(op, self, n, output_size))):
        axis, windows = self.ndim - n + i, _adaptive(size, out)
        if isinstance(windows, _Window):
            total = _stacked(total, axis, windows).sum(axis + 1, dtype=total.dtype)
            divisors.append(np.full(out, windows.kernel))
        else:
            index, inside = windows
            parts = _take(total, axis, index)
            total = jnp.where(_along(inside, axis, parts.ndim), parts, 0).sum(axis + 1, dtype=total.dtype)
            divisors.append(inside.sum(1))
    return _mean(total, functools.reduce(np.multiply.outer, divisors), self.dtype)


def _adaptive_max_pool(op, self, n, output_size):
    values, positions = self, _flat_positions(self.shape[-n:], self.ndim - n)
    for i, (size, out) in enumerate(zip(self.shape[-n:], _adaptive_sizes(op, self, n, output_size))):
        axis, windows = self.ndim - n + i, _adaptive(size, out)
        if isinstance(windows, _Window):
            values, positions = _stacked(values, axis, windows), _stacked(positions, axis, windows)
        else:
            index, inside = windows
            inside = _along(inside, axis, self.ndim + 1)
            values = jnp.where(inside, _take(values, axis, index), jnp.asarray(_lowest(self.dtype), self.dtype))
            positions = jnp.where(inside, _take(positions, axis, index), _NOWHERE)
        values, positions = _winner(values, positions, axis + 1)
    return values, cast(jnp.broadcast_to(positions, values.shape), "int64")


@register("adaptive_avg_pool1d")
def adaptive_avg_pool1d(self, output_size):
    """`_adaptive_avg_pool2d` over ``(*, C, L)``."""
    return _adaptive_avg_pool("adaptive_avg_pool1d", self, 1, output_size)


@register("_adaptive_avg_pool2d", "adaptive_avg_pool2d")
def adaptive_avg_pool2d(self, output_size):
    """``(*, C, H, W)`` cut evenly in ``output_size`` windows (which may overlap by one element): their means."""
    return _adaptive_avg_pool("adaptive_avg_pool2d", self, 2, output_size)


@register("_adaptive_avg_pool3d", "adaptive_avg_pool3d")
def adaptive_avg_pool3d(self, output_size):
    """`adaptive_avg_pool2d` over ``(*, C, D, H, W)``."""
    return _adaptive_avg_pool("adaptive_avg_pool3d", self, 3, output_size)


@register("_adaptive_avg_pool2d_backward")
def _adaptive_avg_pool2d_backward(grad_output, self):
    forward = functools.partial(adaptive_avg_pool2d, output_size=grad_output.shape[-2:])
    return _transposed(forward, grad_output, self, "adaptive_avg_pool2d_backward")


@register("_adaptive_avg_pool3d_backward")
def _adaptive_avg_pool3d_backward(grad_output, self):
    forward = functools.partial(adaptive_avg_pool3d, output_size=grad_output.shape[-3:])
    return _transposed(forward, grad_output, self, "adaptive_avg_pool3d_backward")


@register("adaptive_max_pool1d")
def adaptive_max_pool1d(self, output_size):
    """`adaptive_max_pool2d` over ``(*, C, L)``."""
    return _adaptive_max_pool("adaptive_max_pool1d", self, 1, output_size)


@register("adaptive_max_pool2d")
def adaptive_max_pool2d(self, output_size):
    """The maxima of the windows of `adaptive_avg_pool2d`, and their int64 positions in the flattened ``(H, W)``."""
    return _adaptive_max_pool("adaptive_max_pool2d", self, 2, output_size)


@register("adaptive_max_pool3d")
def adaptive_max_pool3d(self, output_size):
    """`adaptive_max_pool2d` over ``(*, C, D, H, W)``."""
    return _adaptive_max_pool("adaptive_max_pool3d", self, 3, output_size)


@register("adaptive_max_pool2d_backward")
def adaptive_max_pool2d_backward(grad_output, self, indices):
    """The gradient of `adaptive_max_pool2d`: ``grad_output`` added up at ``indices``."""
    _check_gradient("adaptive_max_pool2d_backward", grad_output, indices)
    return _scatter(grad_output, indices, self.shape, 2)


@register("adaptive_max_pool3d_backward")
def adaptive_max_pool3d_backward(grad_output, self, indices):
    """The gradient of `adaptive_max_pool3d`: ``grad_output`` added up at ``indices``."""
    _check_gradient("adaptive_max_pool3d_backward", grad_output, indices)
    return _scatter(grad_output, indices, self.shape, 3)


# ---------------------------------------------------------------------------------------------------------------------
# Fractional windows and unpooling
# ---------------------------------------------------------------------------------------------------------------------


def _fractional_starts(sample, size, kernel, out):
    """Where the ``out`` windows start, for each ``sample`` in [0, 1). Source: arXiv:1412.6071."""
    last = jnp.full((*sample.shape, 1), size - kernel, jnp.int32)
    if out == 1:
        return last
    alpha = jnp.asarray((size - kernel) / (out - 1), sample.dtype)
    step = jnp.arange(out - 1, dtype=sample.dtype)
    sample = sample[..., None]
    starts = cast((step + sample) * alpha, "int32") - cast(sample * alpha, "int32")
    return jnp.concatenate([starts, last], -1)


def _fractional_max_pool(op, self, n, kernel_size, output_size, random_samples):
    _check_ndim(op, self, n)
    kernel, outs = _expand(kernel_size, n, "kernel_size", op), _expand(output_size, n, "output_size", op)
    x = self if self.ndim == n + 2 else self[None]
    if random_samples.ndim != 3 or random_samples.shape[0] < x.shape[0] or random_samples.shape[1] < x.shape[1]:
        raise RuntimeError(
            f"{op}: expected random_samples of shape {[*x.shape[:2], n]}, but got {list(random_samples.shape)}"
        )
    if random_samples.shape[2] != n:
        raise RuntimeError(f"{op}: expected random_samples of {n} numbers a plane, not {random_samples.shape[2]}")
    if random_samples.dtype != self.dtype:
        raise RuntimeError(f"{op}: expect random_samples to have the dtype {self.dtype}, not {random_samples.dtype}")
    values, positions = x, _flat_positions(x.shape[2:], 2)
    for axis, (size, k, out) in enumerate(zip(x.shape[2:], kernel, outs)):
        if out + k - 1 > size:
            raise RuntimeError(f"{op}: pool size {k} is too large relative to input size {size} and output size {out}")
        # PyTorch's samples are in the order (width, height) in two dimensions, (depth, height, width) in three.
        samples = random_samples[: x.shape[0], : x.shape[1], 1 - axis if n == 2 else axis]
        starts = _fractional_starts(samples, size, k, out)
        index = (starts[..., None] + jnp.arange(k, dtype=jnp.int32)).reshape(*x.shape[:2], out * k)
        index = index.reshape(*index.shape[:2], *(out * k if a == axis else 1 for a in range(n)))
        shape = (*values.shape[: 2 + axis], out, k, *values.shape[3 + axis :])
        positions = jnp.broadcast_to(positions, values.shape)
        values, positions = (
            jnp.take_along_axis(a, index, 2 + axis, mode="clip").reshape(shape) for a in (values, positions)
        )
        values, positions = _winner(values, positions, 3 + axis)
    shape = values.shape if self.ndim == n + 2 else values.shape[1:]
    return values.reshape(shape), cast(positions.reshape(shape), "int64")


@register("fractional_max_pool2d")
def fractional_max_pool2d(self, kernel_size, output_size, random_samples):
    """The maxima of windows of ``(*, C, H, W)`` at random places, and their positions in the flattened ``(H, W)``.

    ``random_samples (N, C, 2)`` in [0, 1), of the dtype of ``self``, place the windows along width and height.

    Raises:
        RuntimeError: the windows do not fit.
    """
    return _fractional_max_pool("fractional_max_pool2d", self, 2, kernel_size, output_size, random_samples)


@register("fractional_max_pool3d")
def fractional_max_pool3d(self, kernel_size, output_size, random_samples):
    """`fractional_max_pool2d` over ``(*, C, D, H, W)``; ``random_samples (N, C, 3)`` place depth, height, width."""
    return _fractional_max_pool("fractional_max_pool3d", self, 3, kernel_size, output_size, random_samples)


@register("fractional_max_pool2d_backward")
def fractional_max_pool2d_backward(grad_output, self, kernel_size, output_size, indices):
    """The gradient of `fractional_max_pool2d`: ``grad_output`` added up at ``indices``."""
    _check_gradient("fractional_max_pool2d_backward", grad_output, indices)
    return _scatter(grad_output, indices, self.shape, 2)


@register("fractional_max_pool3d_backward")
def fractional_max_pool3d_backward(grad_output, self, kernel_size, output_size, indices):
    """The gradient of `fractional_max_pool3d`: ``grad_output`` added up at ``indices``."""
    _check_gradient("fractional_max_pool3d_backward", grad_output, indices)
    return _scatter(grad_output, indices, self.shape, 3)


def _check_unpool_positions(self, indices, output_size, *_):
    positions = np.asarray(indices)
    plane = math.prod(output_size)
    bad = (positions < 0) | (positions >= plane)
    if bad.any():
        raise RuntimeError(
            f"Found an invalid max index: {positions[bad][0]} "
            f"(output volumes are of size {'x'.join(map(str, output_size))})"
        )


def _max_unpool(op, self, indices, output_size, n):
    if category(indices.dtype) != 1:
        raise RuntimeError(f"{op}: elements in indices should be type int64 but got: {indices.dtype}")
    if len(output_size) != n:
        raise RuntimeError(f"{op}: there should be exactly {n} elements in output_size, but got {len(output_size)}")
    _check_ndim(op, self, n)
    if self.shape != indices.shape:
        raise RuntimeError(
            f"{op}: Expected shape of indices to be same as that of the input tensor ({list(self.shape)}) but got "
            f"indices tensor with shape: {list(indices.shape)}"
        )
    return _scatter(self, indices, (*self.shape[:-n], *output_size), n, "set")


@register("max_unpool2d", check=_check_unpool_positions)
def max_unpool2d(self, indices, output_size):
    """Zeros of ``(*, C, *output_size)`` with ``self`` put at the flat positions ``indices``.

    Raises:
        RuntimeError: shapes differ, or an index lies outside.
    """
    return _max_unpool("max_unpool2d", self, indices, output_size, 2)


@register("max_unpool3d", check=_check_unpool_positions)
def max_unpool3d(self, indices, output_size, stride, padding):
    """`max_unpool2d` in three dimensions; ``stride`` and ``padding`` are only checked."""
    if any(s <= 0 for s in stride):
        raise RuntimeError("max_unpool3d: strides should be greater than zero, but got stride: " + str(list(stride)))
    return _max_unpool("max_unpool3d", self, indices, output_size, 3)


__all__ = exported(__name__)

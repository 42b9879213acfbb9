"""Resizing images and volumes: nearest, linear and cubic interpolation, with or without antialiasing, and backward.

Every resampler is separable: an output along one dimension is a weighted sum of a few inputs along it. The positions
and weights depend on sizes and scales alone, so they are constants of the compiled program.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchax_ops._adjoint import adjoint
from torchax_ops._promotion import cast, category, opmath
from torchax_ops._registry import exported, register

_CUBIC, _CUBIC_ANTIALIASED = -0.75, -0.5  # the free parameter of the cubic kernel
_SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}


class _Taps(NamedTuple):
    """Which inputs make each output along one dimension: positions and weights, both (outputs, taps)."""

    at: np.ndarray
    weight: np.ndarray


# (input size, output size, align corners, scale, dtype to compute in) -> positions and weights
Kernel = Callable[[int, int, bool, float | None, np.dtype], _Taps]


def _step(size: int, out: int, align_corners: bool, scale: float | None, dtype: np.dtype) -> Any:
    """The distance between outputs, in inputs."""
    if align_corners:
        return dtype.type(size - 1) / dtype.type(out - 1) if out > 1 else dtype.type(0)
    return dtype.type(1 / scale) if scale is not None and scale > 0 else dtype.type(size) / dtype.type(out)


def _sources(size: int, out: int, align_corners: bool, scale: float | None, dtype: np.dtype) -> np.ndarray:
    """Where each output lies among the inputs."""
    step, i = _step(size, out, align_corners, scale, dtype), np.arange(out, dtype=dtype)
    half = dtype.type(0.5)
    return step * i if align_corners else step * (i + half) - half


def _nearest(offset: float) -> Kernel:
    def taps(size: int, out: int, align_corners: bool, scale: float | None, dtype: np.dtype) -> _Taps:
        step = _step(size, out, False, scale, dtype)
        at = np.floor((np.arange(out, dtype=dtype) + dtype.type(offset)) * step).astype(np.int32)
        if out == size:
            at = np.arange(out, dtype=np.int32)
        return _Taps(np.minimum(at, size - 1)[:, None], np.ones((out, 1), dtype))

    return taps


def _linear(size: int, out: int, align_corners: bool, scale: float | None, dtype: np.dtype) -> _Taps:
    source = np.maximum(_sources(size, out, align_corners, scale, dtype), 0)
    low = np.minimum(source.astype(np.int32), size - 1)
    high = np.minimum(low + 1, size - 1)
    part = np.clip(source - low.astype(dtype), 0, 1).astype(dtype)
    return _Taps(np.stack([low, high], 1), np.stack([1 - part, part], 1))


def _cubic_kernel(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel: https://en.wikipedia.org/wiki/Bicubic_interpolation."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _cubic(size: int, out: int, align_corners: bool, scale: float | None, dtype: np.dtype) -> _Taps:
    source = _sources(size, out, align_corners, scale, dtype)
    first = np.floor(source)
    at = first[:, None] + np.arange(-1, 3)
    weight = _cubic_kernel((at - source[:, None]).astype(dtype), _CUBIC)
    return _Taps(np.clip(at, 0, size - 1).astype(np.int32), weight.astype(dtype))


def _antialiased(width: float, kernel: Callable[[np.ndarray], np.ndarray]) -> Kernel:
    """Pillow's filters: the kernel is stretched over the inputs that an output covers, and its weights sum to 1."""

    def taps(size: int, out: int, align_corners: bool, scale: float | None, dtype: np.dtype) -> _Taps:
        step = _step(size, out, align_corners, scale, dtype)
        stretch = max(step, dtype.type(1))
        support = dtype.type(width) * stretch
        center = step * (np.arange(out, dtype=dtype) + dtype.type(0.5))
        first = np.maximum((center - support + dtype.type(0.5)).astype(np.int64), 0)
        last = np.minimum((center + support + dtype.type(0.5)).astype(np.int64), size)
        count = max(1, int((last - first).max(initial=1)))
        at = first[:, None] + np.arange(count)
        weight = kernel((at - center[:, None] + 0.5) / stretch)
        weight = np.where(at < last[:, None], weight, 0)
        total = weight.sum(1, keepdims=True)
        weight = np.divide(weight, total, out=weight, where=total != 0)
        return _Taps(np.minimum(at, size - 1).astype(np.int32), weight.astype(dtype))

    return taps


def _lanczos_kernel(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _merged(taps: _Taps) -> _Taps:
    """The weights of an input that a border repeats, added up in its first place."""
    same = taps.at[:, :, None] == taps.at[:, None, :]
    weight = (same * taps.weight[:, None, :]).sum(2)
    return _Taps(taps.at, np.where(np.tril(same, -1).any(2), 0, weight))


def _fixed_point(taps: _Taps) -> tuple[_Taps, int]:
    """Weights as int32 multiples of ``2**-bits``, where the largest fills 16 bits: PyTorch's arithmetic for bytes."""
    taps = _merged(taps)
    largest = float(taps.weight.max())
    bits = next((b for b in range(22) if 0.5 + largest * 2 ** (b + 1) >= 2**15), 22)
    scaled = taps.weight * 2**bits
    return _Taps(taps.at, np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int32)), bits


def _resample_bytes(x: jax.Array, axis: int, taps: _Taps) -> jax.Array:
    """`_resample` of bytes held in int32, rounded and kept in their range."""
    taps, bits = _fixed_point(taps)
    return jnp.clip((_resample(x, axis, taps) + (1 << (bits - 1))) >> bits, 0, 255)


def _resample(x: jax.Array, axis: int, taps: _Taps) -> jax.Array:
    """Weighted sums along one axis."""
    (out, count), size = taps.at.shape, x.shape[axis]
    if count == 1:
        times, rest = divmod(out, size)
        if rest == 0 and (taps.at[:, 0] == np.arange(out) // times).all():
            return jnp.repeat(x, times, axis=axis) if times > 1 else x
        return jnp.take(x, taps.at[:, 0], axis=axis, mode="clip")
    if count > 4:
        matrix = np.zeros((out, size), taps.weight.dtype)
        np.add.at(matrix, (np.arange(out)[:, None], taps.at), taps.weight)
        y = lax.dot_general(x, matrix, (((axis,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)
        return jnp.moveaxis(y, -1, axis)
    column = (-1,) + (1,) * (x.ndim - 1 - axis)
    parts = [
        jnp.take(x, at, axis=axis, mode="clip") * weight.reshape(column) for at, weight in zip(taps.at.T, taps.weight.T)
    ]
    return sum(parts[1:], parts[0])


def _require_sizes(op: str, shape: Sequence[int], output_size: Sequence[int], dims: int) -> None:
    if len(output_size) != dims:
        raise RuntimeError(f"{op}: It is expected output_size equals to {dims}, but got size {len(output_size)}")
    if len(shape) != dims + 2:
        raise RuntimeError(f"{op}: It is expected input_size equals to {dims + 2}, but got size {len(shape)}")
    if min(shape[2:]) <= 0 or min(output_size) <= 0:
        raise RuntimeError(
            f"{op}: Input and output sizes should be greater than 0, but got input {list(shape[2:])} and output "
            f"{list(output_size)}"
        )
    if shape[1] == 0:
        raise RuntimeError(
            f"{op}: Non-empty {dims + 2}D data tensor expected but got a tensor with sizes {list(shape)}"
        )


def _upsample(
    op: str, dims: int, kernel: Kernel, *, aligns: bool = True, bytes_too: bool = False
) -> tuple[Callable[..., jax.Array], Callable[..., jax.Array]]:
    """An ``upsample`` operator over the last ``dims`` dimensions, and its backward.

    ``aligns``: it takes ``align_corners``. ``bytes_too``: it takes uint8, rounding after each dimension.
    """
    scale_names = _SCALES[dims]
    nearest = not aligns

    def resize(self: jax.Array, output_size: Sequence[int], align_corners: bool, scales: Sequence[float | None]) -> Any:
        _require_sizes(op, self.shape, output_size, dims)
        is_byte = self.dtype == np.uint8
        if not (category(self.dtype) == 2 or (is_byte and (nearest or bytes_too))):
            raise NotImplementedError(f"{op} is not implemented for {self.dtype}")
        fixed = is_byte and not nearest
        compute = np.dtype("float64" if fixed else "float32" if is_byte else opmath(self.dtype))
        x = self if nearest else cast(self, np.int32 if fixed else compute)
        for axis in reversed(range(dims)):
            taps = kernel(self.shape[2 + axis], output_size[axis], align_corners, scales[axis], compute)
            x = (_resample_bytes if fixed else _resample)(x, 2 + axis, taps)
        return cast(x, self.dtype)

    def parameters(*names: str) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        given = [inspect.Parameter(n, kind) for n in (*names, *(("align_corners",) if aligns else ()))]
        return inspect.Signature(given + [inspect.Parameter(n, kind, default=None) for n in scale_names])

    def split(bound: inspect.BoundArguments) -> tuple[bool, list[float | None]]:
        bound.apply_defaults()
        return bound.arguments.get("align_corners", False), [bound.arguments[n] for n in scale_names]

    def forward(*args: Any, **kwargs: Any) -> jax.Array:
        bound = forward_signature.bind(*args, **kwargs)
        align_corners, scales = split(bound)
        return resize(bound.arguments["self"], bound.arguments["output_size"], align_corners, scales)

    def backward(*args: Any, **kwargs: Any) -> jax.Array:
        bound = backward_signature.bind(*args, **kwargs)
        align_corners, scales = split(bound)
        grad, output_size = bound.arguments["grad_output"], bound.arguments["output_size"]
        input_size = tuple(bound.arguments["input_size"])
        _require_sizes(op, input_size, output_size, dims)
        shape = (*input_size[:2], *output_size)
        if grad.shape != shape:
            raise RuntimeError(
                f"{op}_backward: Expected grad_output to have the same shape as output, {list(shape)}, "
                f"but got {list(grad.shape)}"
            )
        return adjoint(lambda x: resize(x, output_size, align_corners, scales), input_size, grad)

    forward_signature = parameters("self", "output_size")
    backward_signature = parameters("grad_output", "output_size", "input_size")
    for fn, signature, name in ((forward, forward_signature, op), (backward, backward_signature, f"{op}_backward")):
        fn.__name__ = fn.__qualname__ = name
        fn.__signature__ = signature  # type: ignore[attr-defined]
        register(name, static=scale_names)(fn)
    forward.__doc__ = (
        f"``self`` with its last {dims} dimensions resized to ``output_size``; a scale that is given decides where the "
        "outputs lie. RuntimeError for sizes that do not fit, NotImplementedError for integers."
    )
    backward.__doc__ = f"The gradient of `{op}`, of shape ``input_size``."
    return forward, backward


_near, _exact = _nearest(0.0), _nearest(0.5)
_linear_aa = _antialiased(1, lambda x: np.maximum(0, 1 - np.abs(x)))
_cubic_aa = _antialiased(2, lambda x: _cubic_kernel(x, _CUBIC_ANTIALIASED))
_lanczos_aa = _antialiased(3, _lanczos_kernel)

upsample_nearest1d, upsample_nearest1d_backward = _upsample("upsample_nearest1d", 1, _near, aligns=False)
upsample_nearest2d, upsample_nearest2d_backward = _upsample("upsample_nearest2d", 2, _near, aligns=False)
upsample_nearest3d, upsample_nearest3d_backward = _upsample("upsample_nearest3d", 3, _near, aligns=False)
_exact1d, _exact1d_backward = _upsample("_upsample_nearest_exact1d", 1, _exact, aligns=False)
_exact2d, _exact2d_backward = _upsample("_upsample_nearest_exact2d", 2, _exact, aligns=False)
_exact3d, _exact3d_backward = _upsample("_upsample_nearest_exact3d", 3, _exact, aligns=False)
upsample_linear1d, upsample_linear1d_backward = _upsample("upsample_linear1d", 1, _linear)
upsample_bilinear2d, upsample_bilinear2d_backward = _upsample("upsample_bilinear2d", 2, _linear, bytes_too=True)
upsample_trilinear3d, upsample_trilinear3d_backward = _upsample("upsample_trilinear3d", 3, _linear)
upsample_bicubic2d, upsample_bicubic2d_backward = _upsample("upsample_bicubic2d", 2, _cubic, bytes_too=True)
_bilinear_aa, _bilinear_aa_backward = _upsample("_upsample_bilinear2d_aa", 2, _linear_aa, bytes_too=True)
_bicubic_aa, _bicubic_aa_backward = _upsample("_upsample_bicubic2d_aa", 2, _cubic_aa, bytes_too=True)
_lanczos, _lanczos_backward = _upsample("_upsample_lanczos2d_aa", 2, _lanczos_aa, bytes_too=True)


__all__ = exported(__name__)

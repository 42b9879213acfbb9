"""Fourier transforms: the three that every ``torch.fft`` function reaches, and frequencies.

``normalization`` is 0 for none, 1 for ``1 / sqrt(n)``, 2 for ``1 / n``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchax_ops._promotion import canonical, cast, default_float, is_complex, is_floating
from torchax_ops._registry import exported, register
from torchax_ops._shapes import canonical_dim


def _scaled(x: jax.Array, normalization: int, n: int, done: int = 1) -> jax.Array:
    """``x`` times the factor of a normalization over ``n`` elements; JAX divided by ``done`` already."""
    factor = done * (1.0, 1 / math.sqrt(n or 1), 1 / (n or 1))[normalization]
    return x if factor == 1 else x * jnp.asarray(factor, jnp.finfo(x.dtype).dtype)


def _check(op: str, x: jax.Array) -> None:
    if x.dtype.itemsize < 4:
        raise RuntimeError(f"{op}: Unsupported dtype {x.dtype.name}; convert to float32")


def _complex_transform(x: jax.Array, dims: Sequence[int], kind: lax.FftType) -> jax.Array:
    """A complex transform over ``dims``, three at a time, which is what XLA takes."""
    if x.size == 0:
        return x
    for start in range(0, len(dims), 3):
        group = dims[start : start + 3]
        last = tuple(range(-len(group), 0))
        moved = jnp.moveaxis(x, group, last)
        x = jnp.moveaxis(lax.fft(moved, kind, moved.shape[-len(group) :]), last, group)
    return x


def _lengths(x: jax.Array, dims: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dims)


@register("_fft_c2c")
def _fft_c2c(self: jax.Array, dim: Sequence[int], normalization: int, forward: bool) -> jax.Array:
    if not is_complex(self):
        raise RuntimeError(f"_fft_c2c: expected a complex array, but got {self.dtype.name}")
    dims = [canonical_dim(d, self.ndim) for d in dim]
    n = _lengths(self, dims)
    out = _complex_transform(self, dims, lax.FftType.FFT if forward else lax.FftType.IFFT)
    return _scaled(out, normalization, n, 1 if forward else n)


@register("_fft_r2c")
def _fft_r2c(self: jax.Array, dim: Sequence[int], normalization: int, onesided: bool) -> jax.Array:
    if not is_floating(self):
        raise RuntimeError(f"_fft_r2c: expected a floating point array, but got {self.dtype.name}")
    _check("_fft_r2c", self)
    dims = [canonical_dim(d, self.ndim) for d in dim]
    kind = canonical("complex128") if self.dtype == jnp.float64 else jnp.complex64
    if not onesided or not dims:
        out = _complex_transform(cast(self, kind), dims, lax.FftType.FFT)
    else:
        last, n = dims[-1], self.shape[dims[-1]]
        if self.size == 0:
            shape = list(self.shape)
            shape[last] = n // 2 + 1
            return jnp.zeros(shape, kind)
        half = lax.fft(jnp.moveaxis(self, last, -1), lax.FftType.RFFT, (n,))
        out = _complex_transform(jnp.moveaxis(half, -1, last), dims[:-1], lax.FftType.FFT)
    return _scaled(out, normalization, _lengths(self, dims))


@register("_fft_c2r")
def _fft_c2r(self: jax.Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> jax.Array:
    if not is_complex(self):
        raise RuntimeError(f"_fft_c2r: expected a complex array, but got {self.dtype.name}")
    dims = [canonical_dim(d, self.ndim) for d in dim]
    last = dims[-1]
    n = _lengths(self, dims[:-1]) * last_dim_size
    if self.size == 0:
        shape = list(self.shape)
        shape[last] = last_dim_size
        return jnp.zeros(shape, jnp.finfo(self.dtype).dtype)
    half = jnp.moveaxis(_complex_transform(self, dims[:-1], lax.FftType.IFFT), last, -1)
    need = last_dim_size // 2 + 1
    if half.shape[-1] > need:
        half = half[..., :need]
    elif half.shape[-1] < need:
        half = jnp.pad(half, [(0, 0)] * (half.ndim - 1) + [(0, need - half.shape[-1])])
    out = jnp.moveaxis(lax.fft(half, lax.FftType.IRFFT, (last_dim_size,)), -1, last)
    return _scaled(out, normalization, n, n)


# ---- frequencies


def _frequencies(op: str, n: int, d: Any, dtype: Any, first: int, count: int) -> jax.Array:
    dtype = canonical(dtype or default_float())
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise RuntimeError(f"{op}: dtype must be floating point or complex, but got {dtype.name}")
    at = jnp.arange(count, dtype=jnp.int32)
    at = jnp.where(at < first, at, at - count)
    return cast(at, dtype) * cast(1.0 / (n * d), dtype)


@register("fft_fftfreq")
def fft_fftfreq(n: int, d: Any = 1.0, *, dtype: Any = None) -> jax.Array:
    """The ``n`` frequencies of a transform of samples ``d`` apart: 0, 1, ..., -2, -1 over ``n d``."""
    return _frequencies("fft_fftfreq", n, d, dtype, (n + 1) // 2, n)


@register("fft_rfftfreq")
def fft_rfftfreq(n: int, d: Any = 1.0, *, dtype: Any = None) -> jax.Array:
    """The ``n // 2 + 1`` frequencies of a real transform of samples ``d`` apart: 0, 1, ... over ``n d``."""
    return _frequencies("fft_rfftfreq", n, d, dtype, n // 2 + 1, n // 2 + 1)


__all__ = exported(__name__)

"""Copies, dtype conversions, and the parts of complex numbers.

Source: https://docs.pytorch.org/docs/stable/torch.html#creation-ops
"""

from __future__ import annotations

import builtins
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._elementwise import ArrayLike, unary
from ._promotion import cast, category, dtype_of, is_complex, is_floating
from ._registry import exported, register
from ._shapes import broadcast_shapes


def _convert(x: ArrayLike, dtype: Any) -> jax.Array:
    """`cast`; floats that a small integer cannot hold wrap around as in C, where XLA would clamp them."""
    small = category(dtype) == 1 and np.dtype(dtype).itemsize < 4
    return cast(cast(x, "int32") if small and (is_floating(x) or is_complex(x)) else x, dtype)


@register("_to_copy")
def _to_copy(self: ArrayLike, *, dtype: Any = None, non_blocking: bool = False) -> jax.Array:
    """``self`` converted to ``dtype``; complex to real takes the real part."""
    return jnp.asarray(self) if dtype is None else _convert(self, dtype)


@register("clone")
def clone(self: ArrayLike) -> jax.Array:
    """``self``: arrays are immutable, so nothing is copied."""
    return jnp.asarray(self)


@register("copy")
def copy(self: ArrayLike, src: ArrayLike, non_blocking: bool = False) -> jax.Array:
    """``src`` converted to the dtype of ``self`` and broadcast to its shape.

    Raises:
        RuntimeError: the shapes do not broadcast to that of ``self``.
    """
    shape = jnp.shape(self)
    if broadcast_shapes(shape, jnp.shape(src)) != shape:
        raise RuntimeError(f"copy: output with shape {list(shape)} doesn't match the source {list(jnp.shape(src))}")
    return jnp.broadcast_to(_convert(src, dtype_of(self)), shape)


@register("zero")
def zero(self: ArrayLike) -> jax.Array:
    """Zeros of the shape and dtype of ``self``."""
    return jnp.zeros(jnp.shape(self), dtype_of(self))


def _check_fill(self: ArrayLike, value: ArrayLike) -> None:
    if isinstance(value, builtins.complex) and value.imag and not is_complex(self):
        raise RuntimeError(f"fill: value {value} cannot be converted to {dtype_of(self).name} without overflow")


@register("fill.Scalar", "fill.Tensor", check=_check_fill)
def fill(self: ArrayLike, value: ArrayLike) -> jax.Array:
    """An array as ``self`` with every element ``value``, a number or a 0-d array.

    Raises:
        RuntimeError: ``value`` has dimensions, or is a complex number while ``self`` is real (eager calls).
    """
    if jnp.ndim(value):
        raise RuntimeError(
            f"fill only supports 0-dimension value tensor but got tensor with {jnp.ndim(value)} dimensions."
        )
    return jnp.broadcast_to(_convert(value, dtype_of(self)), jnp.shape(self))


def _refuse_unless_floats(name: str, a: ArrayLike, b: ArrayLike) -> None:
    found = dtype_of(a).name, dtype_of(b).name
    if found not in (("float32", "float32"), ("float64", "float64")):
        raise RuntimeError(
            f"{name}: expected two arrays of float32 or two of float64, but got {found[0]} and {found[1]}"
        )


@register("complex")
def complex(real: ArrayLike, imag: ArrayLike) -> jax.Array:
    """The complex number of both parts: complex64 of float32, complex128 of float64.

    Raises:
        RuntimeError: the parts are neither both float32 nor both float64 (JAX has no complex32).
    """
    _refuse_unless_floats("complex", real, imag)
    shape = broadcast_shapes(jnp.shape(real), jnp.shape(imag))
    return lax.complex(jnp.broadcast_to(real, shape), jnp.broadcast_to(imag, shape))


@register("polar")
def polar(abs: ArrayLike, angle: ArrayLike) -> jax.Array:
    """The complex number of an absolute value and an angle in radians, as `complex`.

    Raises:
        RuntimeError: the arguments are neither both float32 nor both float64.
    """
    _refuse_unless_floats("polar", abs, angle)
    return complex(abs * jnp.cos(angle), abs * jnp.sin(angle))


@register("real")
def real(self: ArrayLike) -> jax.Array:
    """The real part; a real array as it is."""
    return jnp.real(self)


@register("imag")
def imag(self: ArrayLike) -> jax.Array:
    """The imaginary part.

    Raises:
        RuntimeError: ``self`` is not complex.
    """
    if not is_complex(self):
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return jnp.imag(self)


conj = unary(jnp.conj, "conj", "_conj", "_conj_physical", "conj_physical", "_conj_copy")
resolve_conj = unary(lambda x: x, "resolve_conj", "resolve_neg")
_neg_view = unary(jnp.negative, "_neg_view", "_neg_view_copy", accepts="ifc")

__all__ = exported(__name__)

"""Bitwise logic and shifts of integers.

Source: https://docs.pytorch.org/docs/stable/torch.html#pointwise-ops
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._elementwise import binary, unary
from ._registry import exported


def _all_overloads(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}.{overload}" for name in names for overload in ("Tensor", "Scalar"))


def _bits(x: jax.Array) -> int:
    return np.dtype(x.dtype).itemsize * 8


def _in_range(shift: jax.Array, bits: int) -> jax.Array:
    return (shift >= 0) & (shift < bits)


def _left_shift(x: jax.Array, shift: jax.Array) -> jax.Array:
    """A shift by a negative number or by all bits gives 0."""
    inside = _in_range(shift, _bits(x))
    return jnp.where(inside, jnp.left_shift(x, jnp.where(inside, shift, 0)), 0)


def _right_shift(x: jax.Array, shift: jax.Array) -> jax.Array:
    """An arithmetic shift; by a negative number or by all bits it leaves only the sign: 0 or -1."""
    inside = _in_range(shift, _bits(x))
    beyond = jnp.zeros_like(x) if x.dtype.kind == "u" else lax.shift_right_arithmetic(x, jnp.full_like(x, _bits(x) - 1))
    return jnp.where(inside, jnp.right_shift(x, jnp.where(inside, shift, 0)), beyond)


bitwise_not = unary(jnp.bitwise_not, "bitwise_not", accepts="bi")
bitwise_and = binary(
    jnp.bitwise_and, *_all_overloads("bitwise_and", "__and__"), "bitwise_and.Scalar_Tensor", accepts="bi"
)
bitwise_or = binary(jnp.bitwise_or, *_all_overloads("bitwise_or", "__or__"), "bitwise_or.Scalar_Tensor", accepts="bi")
bitwise_xor = binary(
    jnp.bitwise_xor, *_all_overloads("bitwise_xor", "__xor__"), "bitwise_xor.Scalar_Tensor", accepts="bi"
)

_SHIFTS = ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
bitwise_left_shift = binary(
    _left_shift, *(f"bitwise_left_shift.{o}" for o in _SHIFTS), *_all_overloads("__lshift__"), accepts="i"
)
bitwise_right_shift = binary(
    _right_shift, *(f"bitwise_right_shift.{o}" for o in _SHIFTS), *_all_overloads("__rshift__"), accepts="i"
)

__all__ = exported(__name__)

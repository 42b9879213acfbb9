"""Elementwise arithmetic, rounding, powers, exponentials and trigonometry.

Source: https://docs.pytorch.org/docs/stable/torch.html#pointwise-ops
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from ._elementwise import ArrayLike, binary, elementwise, unary, with_slope
from ._promotion import (
    Kind,
    cast,
    category,
    dtype_of,
    is_bool,
    is_complex,
    is_floating,
    is_integer,
    is_number,
    opmath,
    result_type,
)
from ._registry import exported, register
from ._shapes import broadcast_shapes

_FLOATS = Kind.INT_TO_FLOAT


def _sided(
    fn: Callable[[jax.Array], jax.Array],
    side: Callable[[jax.Array, jax.Array], jax.Array],
    slope: Callable[[jax.Array, jax.Array], jax.Array],
) -> Callable[[jax.Array], jax.Array]:
    """``fn`` with the side of its branch cut that the sign of a zero chooses, as in C99; XLA ignores the sign.

    ``side(y, z)`` puts ``y = fn(z)`` on that side, ``slope(z, y)`` is the derivative.
    """
    of_complex = with_slope(slope)(lambda z: side(fn(z), z))
    return lambda x: of_complex(x) if is_complex(x) else fn(x)


def _imag_as(sign: float) -> Callable[[jax.Array, jax.Array], jax.Array]:
    return lambda y, z: lax.complex(y.real, jnp.copysign(y.imag, sign * z.imag))


def _real_as(y: jax.Array, z: jax.Array) -> jax.Array:
    return lax.complex(jnp.copysign(y.real, z.real), y.imag)


_sqrt = _sided(jnp.sqrt, _imag_as(1.0), lambda z, y: 0.5 / y)

# --- exponentials, trigonometry ---------------------------------------------------------------------

acos = unary(_sided(jnp.arccos, _imag_as(-1.0), lambda z, y: -1 / _sqrt(1 - z * z)), "acos", "arccos", kind=_FLOATS)
acosh = unary(
    _sided(jnp.arccosh, _imag_as(1.0), lambda z, y: 1 / (_sqrt(z - 1) * _sqrt(z + 1))), "acosh", "arccosh", kind=_FLOATS
)
asin = unary(_sided(jnp.arcsin, _imag_as(1.0), lambda z, y: 1 / _sqrt(1 - z * z)), "asin", "arcsin", kind=_FLOATS)
asinh = unary(_sided(jnp.arcsinh, _real_as, lambda z, y: 1 / _sqrt(1 + z * z)), "asinh", "arcsinh", kind=_FLOATS)
atan = unary(jnp.arctan, "atan", "arctan", kind=_FLOATS)
atanh = unary(jnp.arctanh, "atanh", "arctanh", kind=_FLOATS)
cos = unary(jnp.cos, "cos", kind=_FLOATS)
cosh = unary(jnp.cosh, "cosh", kind=_FLOATS)
exp = unary(jnp.exp, "exp", kind=_FLOATS)
exp2 = unary(jnp.exp2, "exp2", "special_exp2", kind=_FLOATS)
expm1 = unary(jnp.expm1, "expm1", "special_expm1", kind=_FLOATS)
log = unary(jnp.log, "log", kind=_FLOATS)
log10 = unary(jnp.log10, "log10", kind=_FLOATS)
log1p = unary(jnp.log1p, "log1p", "special_log1p", kind=_FLOATS)
log2 = unary(jnp.log2, "log2", kind=_FLOATS)
sin = unary(jnp.sin, "sin", kind=_FLOATS)
sinh = unary(jnp.sinh, "sinh", kind=_FLOATS)
sqrt = unary(_sqrt, "sqrt", kind=_FLOATS)
tan = unary(jnp.tan, "tan", kind=_FLOATS)
tanh = unary(jnp.tanh, "tanh", kind=_FLOATS)
reciprocal = unary(lambda x: 1 / x, "reciprocal", kind=_FLOATS)
rsqrt = unary(lax.rsqrt, "rsqrt", kind=_FLOATS)
deg2rad = unary(lambda x: x * (math.pi / 180), "deg2rad", kind=_FLOATS, accepts="bif")
rad2deg = unary(lambda x: x * (180 / math.pi), "rad2deg", kind=_FLOATS, accepts="bif")


@jax.custom_jvp
def _atan2(y: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.arctan2(y, x)


def _inverse_square(y: jax.Array, x: jax.Array) -> jax.Array:
    square = x * x + y * y
    return jnp.where(square == 0, 0, 1 / jnp.where(square == 0, 1, square))


_atan2.defjvps(
    lambda dy, _, y, x: dy * x * _inverse_square(y, x),
    lambda dx, _, y, x: -dx * y * _inverse_square(y, x),
)
atan2 = binary(_atan2, "atan2", "arctan2", kind=_FLOATS, accepts="bif")
hypot = binary(jnp.hypot, "hypot", accepts="f")
copysign = binary(jnp.copysign, "copysign.Tensor", "copysign.Scalar", kind=_FLOATS, accepts="bif")


def _log_of_sum(fn: Callable[..., jax.Array], power: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`jnp.logaddexp` or `jnp.logaddexp2` with a derivative that is right for infinities."""
    fn = jax.custom_jvp(fn)
    fn.defjvps(lambda dx, _, x, y: dx / (1 + power(y - x)), lambda dy, _, x, y: dy / (1 + power(x - y)))
    return fn


_logaddexp_of_real = _log_of_sum(lambda x, y: jnp.logaddexp(x, y), jnp.exp)
logaddexp2 = binary(_log_of_sum(lambda x, y: jnp.logaddexp2(x, y), jnp.exp2), "logaddexp2", accepts="f")


def _logaddexp(x: jax.Array, y: jax.Array) -> jax.Array:
    """Of complex numbers: from the one with the larger real part, so that the imaginary part is not wrapped."""
    if not is_complex(x):
        return _logaddexp_of_real(x, y)
    x_first = (x.real >= y.real) | jnp.isnan(x.real)
    high, low = jnp.where(x_first, x, y), jnp.where(x_first, y, x)
    both_infinite = (high.real == low.real) & jnp.isinf(high.real)
    step = jnp.where(both_infinite, 0, low - high)
    phase = jnp.log(jnp.exp(1j * high.imag.astype(high.dtype)) + jnp.exp(1j * low.imag.astype(high.dtype)))
    infinite = jnp.where(high.real > 0, high.real + phase, low)
    return jnp.where(jnp.isnan(high.real), jnp.nan, jnp.where(both_infinite, infinite, high + jnp.log1p(jnp.exp(step))))


logaddexp = binary(_logaddexp, "logaddexp", accepts="fc")

# --- signs, magnitudes, rounding ---------------------------------------------------------------------------------


def _sgn(x: jax.Array) -> jax.Array:
    """The sign, with 0 for NaN; of a complex number its direction, with 0 for 0."""
    if is_bool(x):
        return x
    if not is_complex(x):
        return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)
    size = jnp.abs(x)
    return jnp.where(size == 0, 0, x / jnp.where(size == 0, 1, size))


def _negative(x: jax.Array) -> jax.Array:
    if is_bool(x):
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, use the `~` or "
            "`logical_not()` operator instead."
        )
    return jnp.negative(x)


def _integers_as_they_are(fn: Any) -> Any:
    return lambda x: fn(x) if is_floating(x) else x


@with_slope(lambda x, y: _sgn(x))
def _abs_of_real(x: jax.Array) -> jax.Array:
    """With slope 0 at 0, where JAX has 1."""
    return jnp.abs(x)


abs = unary(
    lambda x: jnp.abs(x) if is_complex(x) else _abs_of_real(x),
    "abs",
    "absolute",
    kind=Kind.COMPLEX_TO_FLOAT,
    accepts="ifc",
)
neg = unary(_negative, "neg", "negative")
positive = unary(jnp.positive, "positive", accepts="ifc")
square = unary(lambda x: x * x, "square", kind=Kind.BOOL_TO_LONG)
sgn = unary(_sgn, "sgn")
sign = unary(_sgn, "sign", accepts="bif")
ceil = unary(_integers_as_they_are(jnp.ceil), "ceil", accepts="if")
floor = unary(_integers_as_they_are(jnp.floor), "floor", accepts="if")
trunc = unary(_integers_as_they_are(jnp.trunc), "trunc", "fix", accepts="if")
round = unary(_integers_as_they_are(jnp.round), "round", accepts="if")
frac = unary(lambda x: x - jnp.trunc(x), "frac", accepts="f")


signbit = unary(lambda x: jnp.signbit(x) if is_floating(x) else x < 0, "signbit", kind=Kind.ALWAYS_BOOL, accepts="bif")


@register("round.decimals", "special_round")
@elementwise("self", accepts="if")
def round_decimals(self: ArrayLike, *, decimals: int = 0) -> jax.Array:
    """``self`` rounded half to even at a decimal place, left of the point where ``decimals`` is negative.

    Raises:
        NotImplementedError: ``self`` holds no floats.
    """
    if not is_floating(self):
        raise NotImplementedError(f'"round" with decimals is not implemented for {dtype_of(self).name}')
    if decimals == 0:
        return jnp.round(self)
    scale = 10.0 ** builtins.abs(decimals)
    return jnp.round(self * scale) / scale if decimals > 0 else jnp.round(self / scale) * scale


_angle_complex = elementwise("z", kind=Kind.COMPLEX_TO_FLOAT)(lambda z: _atan2(z.imag, z.real))
_angle_real = elementwise("x", kind=_FLOATS)(
    lambda x: jnp.where(jnp.isnan(x), x, jnp.where(x < 0, jnp.full_like(x, math.pi), 0))
)


@register("angle")
def angle(self: ArrayLike) -> jax.Array:
    """The argument of a complex number in radians; of a real number 0, pi where it is negative, NaN of NaN."""
    return _angle_complex(self) if is_complex(self) else _angle_real(self)


@register("nan_to_num")
def nan_to_num(
    self: ArrayLike, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> jax.Array:
    """NaN replaced by ``nan`` (0), infinities by ``posinf`` and ``neginf`` (the dtype's largest and smallest).

    Parts of complex numbers are replaced one by one; bool and integers stay as they are.
    """
    self = jnp.asarray(self)
    if category(self.dtype) < 2:
        return self
    if is_complex(self):
        return lax.complex(nan_to_num(self.real, nan, posinf, neginf), nan_to_num(self.imag, nan, posinf, neginf))
    limits = jnp.finfo(self.dtype)
    of = [
        cast(default if x is None else x, self.dtype)
        for x, default in ((nan, 0.0), (posinf, limits.max), (neginf, limits.min))
    ]
    return jnp.where(
        jnp.isnan(self), of[0], jnp.where(self == jnp.inf, of[1], jnp.where(self == -jnp.inf, of[2], self))
    )


# --- sums and products -------------------------------------------------------------------------------------------


def _check_alpha(alpha: Any, dtype: np.dtype) -> None:
    kind = category(dtype_of(alpha))
    if kind == 0 and dtype != np.bool_:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if kind >= 2 and category(dtype) < 2:
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
    if kind == 3 and category(dtype) != 3:
        raise RuntimeError("For non-complex input tensors, argument alpha must not be a complex number.")


def _times(scale: Any, x: jax.Array) -> jax.Array:
    """``scale * x`` in the dtype of ``x``; nothing to compute where ``scale`` is the number 1."""
    return x if isinstance(scale, int) and scale == 1 else x * cast(scale, x.dtype)


@elementwise("self", "other")
def _add(self: ArrayLike, other: ArrayLike, alpha: Any) -> jax.Array:
    _check_alpha(alpha, self.dtype)
    return self + _times(alpha, other)


@elementwise("self", "other")
def _sub(self: ArrayLike, other: ArrayLike, alpha: Any) -> jax.Array:
    _check_alpha(alpha, self.dtype)
    return self - _times(alpha, other)


def _refuse_bool(self: ArrayLike, other: ArrayLike) -> None:
    if is_bool(self) and is_bool(other):
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. "
            "Use the `^` or `logical_xor()` operator instead."
        )
    if is_bool(self) or is_bool(other):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. "
            "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
        )


@register("add.Tensor")
def add(self: ArrayLike, other: ArrayLike, *, alpha: Any = 1) -> jax.Array:
    """``self + alpha * other`` in the promoted dtype; of bools their logical or.

    Raises:
        RuntimeError: the shapes do not broadcast, or ``alpha`` is of a higher category than the result.
    """
    return _add(self, other, alpha)


@register("add.Scalar")
def add_scalar(self: ArrayLike, other: ArrayLike, alpha: Any = 1) -> jax.Array:
    """`add`, with ``alpha`` also by position."""
    return _add(self, other, alpha)


@register("sub.Tensor", "subtract.Tensor")
def sub(self: ArrayLike, other: ArrayLike, *, alpha: Any = 1) -> jax.Array:
    """``self - alpha * other`` in the promoted dtype.

    Raises:
        RuntimeError: the shapes do not broadcast, one of them is bool, or ``alpha`` is of a higher category.
    """
    _refuse_bool(self, other)
    return _sub(self, other, alpha)


@register("sub.Scalar", "subtract.Scalar")
def sub_scalar(self: ArrayLike, other: ArrayLike, alpha: Any = 1) -> jax.Array:
    """`sub`, with ``alpha`` also by position."""
    return sub(self, other, alpha=alpha)


@register("rsub.Tensor")
def rsub(self: ArrayLike, other: ArrayLike, *, alpha: Any = 1) -> jax.Array:
    """``other - alpha * self``, as `sub`."""
    return sub(other, self, alpha=alpha)


@register("rsub.Scalar")
def rsub_scalar(self: ArrayLike, other: ArrayLike, alpha: Any = 1) -> jax.Array:
    """`rsub`, with ``alpha`` also by position."""
    return sub(other, self, alpha=alpha)


mul = binary(jnp.multiply, "mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar")


@register("addcmul")
@elementwise("self", "tensor1", "tensor2", accepts="ifc")
def addcmul(self: ArrayLike, tensor1: ArrayLike, tensor2: ArrayLike, *, value: Any = 1) -> jax.Array:
    """``self + value * tensor1 * tensor2`` in the promoted dtype."""
    return self + _times(value, tensor1) * tensor2


@register("addcdiv")
def addcdiv(self: ArrayLike, tensor1: ArrayLike, tensor2: ArrayLike, *, value: Any = 1) -> jax.Array:
    """``self + value * tensor1 / tensor2`` in the promoted dtype.

    Raises:
        RuntimeError: both ``tensor1`` and ``tensor2`` are integral.
    """
    if category(dtype_of(tensor1)) < 2 and category(dtype_of(tensor2)) < 2:
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported. "
            "Divide floats, or write self + value * torch.trunc(tensor1 / tensor2)."
        )
    return _addcdiv(self, tensor1, tensor2, value)


@elementwise("self", "tensor1", "tensor2")
def _addcdiv(self: ArrayLike, tensor1: ArrayLike, tensor2: ArrayLike, value: Any) -> jax.Array:
    return self + _times(value, tensor1) / tensor2


@register("lerp.Scalar", "lerp.Tensor")
def lerp(self: ArrayLike, end: ArrayLike, weight: ArrayLike) -> jax.Array:
    """``self + weight * (end - self)``, computed from the nearer end.

    Raises:
        RuntimeError: ``self``, ``end`` and a ``weight`` with dimensions do not have one dtype.
    """
    for name, x in (("end", end), ("weight", weight)):
        if dtype_of(x) != dtype_of(self) and (name == "end" or jnp.ndim(x)):
            raise RuntimeError(f"lerp: expected dtype {dtype_of(self).name} for `{name}` but got {dtype_of(x).name}")
    return _lerp(self, end, weight)


@elementwise("self", "end", "weight", accepts="fc")
def _lerp(self: ArrayLike, end: ArrayLike, weight: ArrayLike) -> jax.Array:
    step = end - self
    return jnp.where(jnp.abs(weight) < 0.5, self + weight * step, end - step * (1 - weight))


# --- quotients and remainders ------------------------------------------------------------------------------------


def _check_divisor(self: ArrayLike, other: ArrayLike) -> None:
    integers = not isinstance(other, float) and category(dtype_of(other)) < 2 and category(dtype_of(self)) < 2
    if integers and not np.all(np.asarray(other)):
        raise RuntimeError("ZeroDivisionError: division of integers by zero")


def _check_div(self: ArrayLike, other: ArrayLike, *, rounding_mode: str | None = None) -> None:
    if rounding_mode is not None:
        _check_divisor(self, other)


def _floor_quotient(x: jax.Array, y: jax.Array) -> jax.Array:
    """The floor of ``x / y`` by way of the remainder, so that it is exact (as Python's ``//``)."""
    if is_integer(x):
        return jnp.floor_divide(x, y)
    mod = lax.rem(x, y)
    whole = (x - mod) / y - jnp.where((mod != 0) & ((y < 0) != (mod < 0)), 1, 0).astype(x.dtype)
    floor = jnp.floor(whole)
    floor = jnp.where(whole - floor > 0.5, floor + 1, floor)
    return jnp.where(y == 0, x / y, jnp.where(whole == 0, jnp.copysign(jnp.zeros_like(x), x / y), floor))


def _trunc_quotient(x: jax.Array, y: jax.Array) -> jax.Array:
    """The quotient is rounded to the dtype of the result before it is cut, which a compiler must not skip."""
    if is_integer(x):
        return lax.div(x, y)
    info = jnp.finfo(x.dtype)
    quotient = cast(x, opmath(x.dtype)) / cast(y, opmath(x.dtype))
    return jnp.trunc(lax.reduce_precision(quotient, info.nexp, info.nmant))


def _broadcasting(fn: Any) -> Any:
    return lambda x, y: fn(*jnp.broadcast_arrays(x, y))


_true_divide = elementwise("x", "y", kind=Kind.INT_TO_FLOAT)(lambda x, y: x / y)


@register("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode", check=_check_div)
@register("divide.Tensor", "divide.Scalar", "divide.Tensor_mode", "divide.Scalar_mode", check=_check_div)
def div(self: ArrayLike, other: ArrayLike, *, rounding_mode: str | None = None) -> jax.Array:
    """``self / other``; with ``rounding_mode`` ``"floor"`` or ``"trunc"`` rounded, and integers stay integers.

    Raises:
        RuntimeError: integers are divided by zero with a ``rounding_mode`` (eager calls), or there is no such mode.
        NotImplementedError: complex or bool with a ``rounding_mode``.
    """
    if rounding_mode is None:
        return _true_divide(self, other)
    if rounding_mode == "floor":
        return floor_divide(self, other)
    if rounding_mode == "trunc":
        return _div_trunc(self, other)
    raise RuntimeError(f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'")


@register("true_divide.Tensor", "true_divide.Scalar")
def true_divide(self: ArrayLike, other: ArrayLike) -> jax.Array:
    """``self / other``; bool and integers give the default float."""
    return _true_divide(self, other)


@register("floor_divide", "floor_divide.Scalar", check=_check_divisor)
@elementwise("self", "other", accepts="if")
def floor_divide(self: ArrayLike, other: ArrayLike) -> jax.Array:
    """``self // other`` as Python has it, in the promoted dtype.

    Raises:
        RuntimeError: integers are divided by zero (eager calls).
    """
    return _broadcasting(_floor_quotient)(self, other)


@elementwise("self", "other", kind=Kind.NO_OPMATH, accepts="if")
def _div_trunc(self: ArrayLike, other: ArrayLike) -> jax.Array:
    return _broadcasting(_trunc_quotient)(self, other)


def _rounded(x: ArrayLike, like: ArrayLike) -> ArrayLike:
    """A number in the 16-bit dtype of ``like``, by which PyTorch takes the remainder; a sum keeps it whole."""
    dtype = dtype_of(like)
    return cast(x, dtype) if is_number(x) and is_floating(like) and opmath(dtype) != dtype and not is_complex(x) else x


def _remainder(fn: Callable[..., jax.Array], name: str) -> Callable[..., jax.Array]:
    rounded_once = elementwise("self", "other", accepts="if")(fn)
    rounded_once.__name__ = name
    return lambda self, other: rounded_once(_rounded(self, other), _rounded(other, self))


_remainder_of = _remainder(lambda self, other: jnp.remainder(self, other), "remainder")
_fmod_of = _remainder(lambda self, other: jnp.fmod(self, other), "fmod")


@register("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", check=_check_divisor)
def remainder(self: ArrayLike, other: ArrayLike) -> jax.Array:
    """``self % other`` as Python has it, with the sign of ``other``.

    Raises:
        RuntimeError: the remainder of integers by zero (eager calls).
    """
    return _remainder_of(self, other)


@register("fmod.Tensor", "fmod.Scalar", check=_check_divisor)
def fmod(self: ArrayLike, other: ArrayLike) -> jax.Array:
    """The remainder of C, with the sign of ``self``.

    Raises:
        RuntimeError: the remainder of integers by zero (eager calls).
    """
    return _fmod_of(self, other)


def _gcd(x: jax.Array, y: jax.Array) -> jax.Array:
    """Euclid's algorithm on unsigned magnitudes: `jnp.gcd` never ends on the lowest signed integer."""
    x, y = jnp.broadcast_arrays(x, y)
    unsigned = np.dtype(f"uint{8 * x.dtype.itemsize}")
    state = tuple(lax.bitcast_convert_type(jnp.abs(v), unsigned) for v in (x, y))

    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, b = state
        return jnp.where(b == 0, a, b), jnp.where(b == 0, 0, lax.rem(a, jnp.where(b == 0, 1, b)))

    return lax.bitcast_convert_type(lax.while_loop(lambda s: jnp.any(s[1] != 0), step, state)[0], x.dtype)  # type: ignore[arg-type]


def _lcm(x: jax.Array, y: jax.Array) -> jax.Array:
    divisor = _gcd(x, y)
    return jnp.abs(lax.div(jnp.broadcast_to(x, divisor.shape), jnp.where(divisor == 0, 1, divisor)) * y)


gcd = binary(_gcd, "gcd", accepts="i")
lcm = binary(_lcm, "lcm", accepts="i")

# --- powers and floating-point parts -----------------------------------------------------------------------------


def _integer_power(x: jax.Array, n: jax.Array) -> jax.Array:
    """``x ** n`` for ``n >= 0`` by squaring, wrapping around; `jnp.power` takes six bits of ``n`` only."""
    x, n = jnp.broadcast_arrays(x, n)

    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        power, square, n = state
        return jnp.where(n & 1, power * square, power), square * square, n >> 1

    return lax.while_loop(lambda s: jnp.any(s[2] != 0), step, (jnp.ones_like(x), x, n))[0]  # type: ignore[arg-type]


def _check_pow(self: ArrayLike, exponent: ArrayLike) -> None:
    if isinstance(exponent, int) and exponent < 0 and category(dtype_of(self)) < 2:
        raise RuntimeError("Integers to negative integer powers are not allowed.")


@jax.custom_jvp
def _power(x: jax.Array, y: jax.Array) -> jax.Array:
    power = jnp.power(x, y)
    return jnp.where((x == 0) & (y.real > 0), 0, power) if is_complex(x) else power


@functools.partial(_power.defjvp, symbolic_zeros=True)
def _power_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    # An exponent without a tangent adds nothing: a zero times the logarithm of a negative number would be NaN.
    (x, y), (dx, dy) = primals, tangents
    power = _power(x, y)
    tangent = jnp.zeros_like(power)
    if not isinstance(dx, SymbolicZero):
        tangent += dx * jnp.where(y == 0, 0, y * _power(x, y - 1))
    if not isinstance(dy, SymbolicZero):
        flat = (x == 0) & (y.real >= 0)
        tangent += dy * jnp.where(flat, 0, power * jnp.log(jnp.where(flat, 1, x)))
    return power, tangent


@register("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar", check=_check_pow)
@elementwise("self", "exponent", accepts="ifc")
def pow(self: ArrayLike, exponent: ArrayLike) -> jax.Array:
    """``self ** exponent`` in the promoted dtype.

    An integer to a negative power held in an array is 0, but for 1 and -1.

    Raises:
        RuntimeError: an array of integers to a negative number (eager calls).
    """
    if not is_integer(self):
        return _power(self, exponent)
    negative = exponent < 0
    power = _integer_power(self, jnp.where(negative, exponent & 1, exponent))
    return jnp.where(negative & (jnp.abs(self) != 1), 0, power)


@register("float_power.Tensor_Tensor", "float_power.Tensor_Scalar", "float_power.Scalar")
def float_power(self: ArrayLike, exponent: ArrayLike) -> jax.Array:
    """`pow` in float64, or complex128 where an argument is complex."""
    dtype = "complex128" if is_complex(self) or is_complex(exponent) else "float64"
    return _power(cast(self, dtype), cast(exponent, dtype))


@jax.custom_jvp
def _nextafter(x: jax.Array, towards: jax.Array) -> jax.Array:
    return jnp.nextafter(x, towards)


_nextafter.defjvps(lambda dx, _, x, towards: jnp.where(x == towards, 0, dx), None)
nextafter = binary(_nextafter, "nextafter", kind=Kind.NO_OPMATH, accepts="f")


@register("ldexp.Tensor")
def ldexp(self: ArrayLike, other: ArrayLike) -> jax.Array:
    """``self * 2 ** other``, in the dtype of ``self`` where it is floating and ``other`` integral, else of `mul`."""
    if not (is_floating(self) and is_integer(other)):
        return mul(self, exp2(other))
    return _ldexp(self, other)


@elementwise("self")
def _ldexp(self: ArrayLike, other: ArrayLike) -> jax.Array:
    broadcast_shapes(jnp.shape(self), jnp.shape(other))
    half = jnp.asarray(other) // 2  # in two steps, so that 2 ** other does not overflow before the product does
    two = jnp.full_like(self, 2)  # lax.exp2 is not exact at integers
    return self * two ** half.astype(self.dtype) * two ** (other - half).astype(self.dtype)


@register("frexp.Tensor")
def frexp(self: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """``(mantissa, exponent)`` with ``self == mantissa * 2 ** exponent`` and ``0.5 <= abs(mantissa) < 1``.

    The exponent is int32.

    Raises:
        RuntimeError: ``self`` holds no floats.
    """
    if not is_floating(self):
        raise RuntimeError(f"torch.frexp() only supports floating-point dtypes, but got {dtype_of(self).name}")
    mantissa, exponent = jnp.frexp(cast(self, result_type(self)))
    return mantissa, cast(exponent, "int32")


__all__ = exported(__name__)

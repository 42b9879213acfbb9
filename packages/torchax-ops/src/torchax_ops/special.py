"""Special functions: error functions, gamma functions, Bessel and Airy functions, entropy.

Source: https://docs.pytorch.org/docs/stable/special.html
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special as jsp

from . import _special_tables as _tables
from ._elementwise import ArrayLike, binary, elementwise, unary, with_slope
from ._promotion import Kind, cast, is_complex
from ._registry import exported, register

_FLOATS = Kind.INT_TO_FLOAT


def _chebyshev(coefficients: Sequence[float], t: jax.Array) -> jax.Array:
    """The Chebyshev series at ``t`` in [-1, 1], by Clenshaw's recurrence."""
    b1 = b2 = jnp.zeros_like(t)
    for c in coefficients[:0:-1]:
        b1, b2 = 2 * t * b1 - b2 + c, b1
    return t * b1 - b2 + coefficients[0]


# --- logistic and error functions --------------------------------------------------------------------------------


def _sigmoid(x: jax.Array) -> jax.Array:
    return 1 / (1 + jnp.exp(-x)) if is_complex(x) else lax.logistic(x)


sigmoid = unary(_sigmoid, "sigmoid", "special_expit", kind=_FLOATS)
erf = unary(lax.erf, "erf", "special_erf", kind=_FLOATS, accepts="bif")
erfc = unary(lax.erfc, "erfc", "special_erfc", kind=_FLOATS, accepts="bif")
erfinv = unary(lax.erf_inv, "erfinv", "special_erfinv", kind=_FLOATS, accepts="bif")
special_ndtr = unary(jsp.ndtr, "special_ndtr", kind=_FLOATS, accepts="bif")


@with_slope(lambda x, y: 2 * x * y - 2 / math.sqrt(math.pi))
def _erfcx(x: jax.Array) -> jax.Array:
    """``exp(x * x) * erfc(x)``. Source: https://doi.org/10.1090/S0025-5718-1981-0595058-X (the mapping)."""
    size = jnp.abs(x)
    t = jnp.where(jnp.isinf(size), 1, (size - 3.75) / (size + 3.75))
    right = _chebyshev(_tables.ERFCX, t) / (1 + 2 * size)
    return jnp.where(x < 0, 2 * jnp.exp(x * x) - right, right)


@with_slope(lambda x, y: math.sqrt(2 * math.pi) * jnp.exp(y * y / 2))
def _ndtri(x: jax.Array) -> jax.Array:
    return jsp.ndtri(x)


@with_slope(lambda x, y: math.sqrt(2 / math.pi) / _erfcx(-math.sqrt(0.5) * x))
def _log_ndtr(x: jax.Array) -> jax.Array:
    return jsp.log_ndtr(x)


special_ndtri = unary(_ndtri, "special_ndtri", kind=_FLOATS, accepts="bif")
special_log_ndtr = unary(_log_ndtr, "special_log_ndtr", kind=_FLOATS, accepts="bif")
special_erfcx = unary(_erfcx, "special_erfcx", kind=_FLOATS, accepts="bif")


@with_slope(lambda x, y: jnp.where((x < 0) | (x > 1), jnp.nan, 1 / (x * (1 - x))))
def _logit(x: jax.Array) -> jax.Array:
    return jnp.log(x / (1 - x))


@register("logit", "special_logit")
@elementwise("self", kind=_FLOATS, accepts="bif")
def logit(self: ArrayLike, eps: float | None = None) -> jax.Array:
    """``log(self / (1 - self))``, with ``self`` first clamped to ``[eps, 1 - eps]`` where ``eps`` is given."""
    if eps is not None:
        eps = cast(eps, self.dtype)  # type: ignore[assignment]
        self = jnp.where(self < eps, eps, jnp.where(self > 1 - eps, 1 - eps, self))
    return _logit(self)


@register("logit_backward")
@elementwise("grad_output", "self", accepts="f")
def logit_backward(grad_output: ArrayLike, self: ArrayLike, eps: float | None = None) -> jax.Array:
    """The gradient of `logit`: 0 outside ``[eps, 1 - eps]``, or NaN outside ``[0, 1]`` without ``eps``."""
    low = jnp.zeros((), self.dtype) if eps is None else cast(eps, self.dtype)
    outside = (self < low) | (self > 1 - low)
    return jnp.where(outside, jnp.nan if eps is None else 0.0, grad_output / (self * (1 - self)))


# --- gamma functions -----------------------------------------------------------------------------------------------


def _trigamma(x: jax.Array) -> jax.Array:
    """The second derivative of ``lgamma``: reflection, then recurrence up to 6, then the asymptotic series."""
    reflected = x < 0.5
    y = jnp.where(reflected, 1 - x, x)
    total = jnp.zeros_like(y)
    for _ in range(6):
        total = total + 1 / (y * y)
        y = y + 1
    z = 1 / (y * y)
    series = z * (1 / 6 - z * (1 / 30 - z * (1 / 42 - z * (1 / 30 - z * (5 / 66 - z * (691 / 2730))))))
    total = total + (1 + 0.5 / y + series) / y
    s = jnp.sin(math.pi * x)
    return jnp.where(reflected, (math.pi / s) ** 2 - total, total)


@with_slope(lambda x, y: _trigamma(x))
def _digamma(x: jax.Array) -> jax.Array:
    """At the poles: ``-copysign(inf, x)`` at 0, NaN at the negative integers."""
    at_pole = (x < 0) & (x == jnp.floor(x))
    safe = jnp.where((x == 0) | at_pole, 1, x)
    y = jnp.where(x == 0, jnp.copysign(jnp.full_like(x, jnp.inf), -x), lax.digamma(safe))
    return jnp.where(at_pole, jnp.nan, y)


@with_slope(lambda x, y: _digamma(x))
def _lgamma(x: jax.Array) -> jax.Array:
    return lax.lgamma(x)


lgamma = unary(_lgamma, "lgamma", "special_gammaln", kind=_FLOATS, accepts="bif")
digamma = unary(_digamma, "digamma", "special_psi", "special_digamma", kind=_FLOATS, accepts="bif")

_ZETA_SERIES = (
    1 / 12,
    -1 / 720,
    1 / 30240,
    -1 / 1209600,
    1 / 47900160,
    -691 / 1307674368000,
    1 / 74724249600,
    -3617 / 10670622842880000,
    43867 / 5109094217170944000,
    -174611 / 802857662698291200000,
    77683 / 14101100039391805440000,
    -236364091 / 1693824136731743669452800000,
)


def _zeta_sum(x: jax.Array, q: jax.Array) -> jax.Array:
    """Hurwitz's zeta function, by Euler and Maclaurin's summation.

    Terms are summed until ``q`` has grown beyond 9 (at least 9 of them), or are too small to matter.
    """
    x, q = jnp.broadcast_arrays(x, q)
    eps = jnp.finfo(q.dtype).eps / 2

    def more(state: Any) -> jax.Array:
        i, _, a, _, done = state
        return jnp.any(~done & ((i < 9) | (a <= 9)))

    def step(state: Any) -> Any:
        i, total, a, b, done = state
        active = ~done & ((i < 9) | (a <= 9))
        a = jnp.where(active, a + 1, a)
        b = jnp.where(active, a**-x, b)
        total = jnp.where(active, total + b, total)
        return i + 1, total, a, b, done | (active & (jnp.abs(b) < jnp.abs(eps * total)))

    first = q**-x
    start = (jnp.zeros((), "int32"), first, q, jnp.zeros_like(q), ~(jnp.abs(first) < jnp.inf))
    _, total, a, b, done = lax.while_loop(more, step, start)
    rest = b * a / (x - 1) - 0.5 * b
    factor, power = x, b / a
    for k, c in enumerate(_ZETA_SERIES):
        rest = rest + factor * power * c
        factor = factor * (x + 2 * k + 1) * (x + 2 * k + 2)
        power = power / (a * a)
    return jnp.where(done, total, total + rest)


@jax.custom_jvp
def _zeta(x: jax.Array, q: jax.Array) -> jax.Array:
    pole = (q <= 0) & (q == jnp.floor(q))
    undefined = (x < 1) | ((q <= 0) & (x != jnp.floor(x))) | jnp.isnan(x) | jnp.isnan(q)
    ordinary = ~pole & ~undefined & (x != 1)
    y = _zeta_sum(jnp.where(ordinary, x, 2), jnp.where(ordinary, q, 1))
    y = jnp.where(undefined, jnp.nan, y)
    return jnp.where((x == 1) | (pole & ~(x < 1)), jnp.inf, y)


def _zeta_jvp(primals: Any, tangents: Any) -> Any:
    (x, q), (dx, dq) = primals, tangents
    if type(dx) is not jax.custom_derivatives.SymbolicZero:
        raise NotImplementedError("special_zeta has no derivative with respect to its first argument")
    y = _zeta(x, q)
    if type(dq) is jax.custom_derivatives.SymbolicZero:
        return y, jnp.zeros_like(y)
    return y, jnp.broadcast_to(-x * _zeta(x + 1, q) * dq, y.shape)


_zeta.defjvp(_zeta_jvp, symbolic_zeros=True)
special_zeta = binary(
    _zeta, "special_zeta", "special_zeta.other_scalar", "special_zeta.self_scalar", kind=_FLOATS, accepts="bif"
)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _polygamma(n: int, x: jax.Array) -> jax.Array:
    if n == 0:
        return _digamma(x)
    if n == 1:
        return _trigamma(x)
    try:
        factor = math.gamma(n + 1)
    except OverflowError:
        factor = math.inf
    return (1 if n % 2 else -1) * factor * _zeta(jnp.full_like(x, n + 1), x)


@_polygamma.defjvp
def _polygamma_jvp(n: int, primals: Any, tangents: Any) -> Any:
    return _polygamma(n, *primals), tangents[0] * _polygamma(n + 1, *primals)


@register("polygamma", "special_polygamma")
def polygamma(n: int, self: ArrayLike) -> jax.Array:
    """The ``n``-th derivative of `digamma`. Bool and integers give the default float.

    Raises:
        RuntimeError: ``n`` is negative.
        NotImplementedError: ``self`` is complex.
    """
    if n < 0:
        raise RuntimeError("polygamma(n, x) does not support negative n.")
    return _polygamma_of(self, n)


@elementwise("x", kind=_FLOATS, accepts="bif")
def _polygamma_of(x: ArrayLike, n: int) -> jax.Array:
    return _polygamma(n, x)


@register("mvlgamma", "special_multigammaln")
def mvlgamma(self: ArrayLike, p: int) -> jax.Array:
    """The logarithm of the multivariate gamma function of dimension ``p``.

    Raises:
        RuntimeError: ``p`` is less than 1.
        NotImplementedError: ``self`` is complex.
    """
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    return _mvlgamma(self, p)


@elementwise("self", kind=_FLOATS, accepts="bif")
def _mvlgamma(self: ArrayLike, p: int) -> jax.Array:
    terms = _lgamma(self[..., None] - jnp.arange(p, dtype=self.dtype) / 2)
    return jnp.sum(terms, axis=-1) + p * (p - 1) / 4 * math.log(math.pi)


def _incomplete_gamma(fn: Callable[..., jax.Array], at_zero: float) -> Callable[..., jax.Array]:
    """``fn(a, x)`` with PyTorch's values at the edge: ``at_zero`` for ``x = 0`` or infinite ``a``, else 1 minus it."""

    def op(a: jax.Array, x: jax.Array) -> jax.Array:
        a, x = jnp.broadcast_arrays(a, x)
        inside = (a > 0) & (x > 0) & (a < jnp.inf) & (x < jnp.inf)
        y = fn(jnp.where(inside, a, 1), jnp.where(inside, x, 1))
        low, high = jnp.full_like(y, at_zero), jnp.full_like(y, 1 - at_zero)
        undefined = (a < 0) | (x < 0) | ((a == 0) & ~(x > 0)) | (jnp.isinf(a) & jnp.isinf(x))
        edges = [inside, undefined, a == 0, (x == 0) | jnp.isinf(a), jnp.isinf(x)]
        return jnp.select(edges, [y, jnp.full_like(y, jnp.nan), high, low, high], jnp.nan)

    return op


igamma = binary(_incomplete_gamma(lax.igamma, 0.0), "igamma", "special_gammainc", accepts="f")
igammac = binary(_incomplete_gamma(lax.igammac, 1.0), "igammac", "special_gammaincc", accepts="f")

# --- products with a logarithm -------------------------------------------------------------------------------------


def _x_log(log: Callable[..., jax.Array], inverse: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """``x * log(y)``, with 0 for ``x = 0`` whatever ``y`` is, but for NaN."""

    @jax.custom_jvp
    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(jnp.isnan(y), jnp.nan, jnp.where(x == 0, 0, x * log(y)))

    def by_x(dx: jax.Array, _: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        value = log(y)
        return dx * jnp.where((x == 0) & ~(value > -jnp.inf), 0, value)

    fn.defjvps(by_x, lambda dy, _, x, y: dy * x * inverse(y))
    return fn


xlogy = binary(
    _x_log(jnp.log, lambda y: 1 / y),
    *("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other"),
    *("special_xlogy", "special_xlogy.self_scalar", "special_xlogy.other_scalar"),
    kind=_FLOATS,
    accepts="bif",
)
special_xlog1py = binary(
    _x_log(jnp.log1p, lambda y: 1 / (1 + y)),
    *("special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar"),
    kind=_FLOATS,
    accepts="bif",
)
special_entr = unary(jsp.entr, "special_entr", kind=_FLOATS, accepts="bif")
sinc = unary(jnp.sinc, "sinc", "special_sinc", kind=_FLOATS)

# --- modified Bessel functions -------------------------------------------------------------------------------------


@with_slope(lambda x, y: _i1(x))  # type: ignore[has-type]
def _i0(x: jax.Array) -> jax.Array:
    return lax.bessel_i0e(x) * jnp.exp(jnp.abs(x))


@with_slope(lambda x, y: _i0(x) - jnp.where(x == 0, 0.5, y / jnp.where(x == 0, 1, x)))
def _i1(x: jax.Array) -> jax.Array:
    return lax.bessel_i1e(x) * jnp.exp(jnp.abs(x))


def _scaled_k(order: int, small: Sequence[float], large: Sequence[float]) -> Callable[[jax.Array], jax.Array]:
    """``exp(x) * K_order(x)``: the logarithm and a series of ``x * x`` up to 2, a series of ``1 / x`` beyond."""

    def fn(x: jax.Array) -> jax.Array:
        near, far = jnp.clip(x, 0, 2), jnp.maximum(x, 2)
        series = _chebyshev(small, near * near / 2 - 1)
        log = jnp.log(near / 2)
        value = series - log * _i0(near) if order == 0 else series / near + log * _i1(near)
        tail = _chebyshev(large, 4 / far - 1) / jnp.sqrt(far)
        y = jnp.where(x <= 2, value * jnp.exp(near), tail)
        return jnp.where(x == 0, jnp.inf, jnp.where(x < 0, jnp.nan, y))

    return fn


_k0e = _scaled_k(0, _tables.K0_SMALL, _tables.K0_LARGE)
_k1e = _scaled_k(1, _tables.K1_SMALL, _tables.K1_LARGE)


def _bessel(fn: Callable[[jax.Array], jax.Array], *names: str) -> Callable[[ArrayLike], jax.Array]:
    return unary(fn, *names, kind=_FLOATS, accepts="bif")


i0 = _bessel(_i0, "i0", "special_i0", "special_modified_bessel_i0")
special_i0e = _bessel(lax.bessel_i0e, "special_i0e")
special_i1 = _bessel(_i1, "special_i1", "special_modified_bessel_i1")
special_i1e = _bessel(lax.bessel_i1e, "special_i1e")
special_modified_bessel_k0 = _bessel(lambda x: _k0e(x) * jnp.exp(-x), "special_modified_bessel_k0")
special_modified_bessel_k1 = _bessel(lambda x: _k1e(x) * jnp.exp(-x), "special_modified_bessel_k1")

# --- Bessel and Airy functions -------------------------------------------------------------------------------------

_ROOT_HALF = math.sqrt(0.5)


def _bessel_near(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    x = jnp.clip(x, 0, 8)
    return _chebyshev(coefficients, x * x / 32 - 1)


def _bessel_far(order: int, second: bool, x: jax.Array) -> jax.Array:
    """Beyond 8, by modulus and phase: ``sqrt(2 / pi x) * (P cos - Q sin)``, or ``P sin + Q cos``, of ``x - phase``."""
    x = jnp.maximum(x, 8)
    t = 2 * (8 / x) ** 2 - 1
    p = _chebyshev((_tables.P0, _tables.P1)[order], t)
    q = _chebyshev((_tables.Q0, _tables.Q1)[order], t) * (8 / x)
    s, c = jnp.sin(x), jnp.cos(x)
    cos, sin = ((c + s), (s - c)) if order == 0 else ((s - c), -(s + c))
    wave = p * sin + q * cos if second else p * cos - q * sin
    return wave * _ROOT_HALF * jnp.sqrt(2 / (math.pi * x))


def _j0(x: jax.Array) -> jax.Array:
    x = jnp.abs(x)
    return jnp.where(x <= 8, _bessel_near(_tables.J0, x), _bessel_far(0, False, x))


def _j1(x: jax.Array) -> jax.Array:
    size = jnp.abs(x)
    near = jnp.clip(x, -8, 8) * _bessel_near(_tables.J1, size)
    return jnp.where(size <= 8, near, jnp.sign(x) * _bessel_far(1, False, size))


def _y0(x: jax.Array) -> jax.Array:
    near = jnp.clip(x, 0, 8)
    value = _bessel_near(_tables.Y0, x) + 2 / math.pi * jnp.log(near) * _j0(near)
    y = jnp.where(x <= 8, value, _bessel_far(0, True, x))
    return jnp.where(x == 0, -jnp.inf, jnp.where(x < 0, jnp.nan, y))


def _y1(x: jax.Array) -> jax.Array:
    near = jnp.clip(x, 0, 8)
    value = near * _bessel_near(_tables.Y1, x) + 2 / math.pi * (jnp.log(near) * _j1(near) - 1 / near)
    y = jnp.where(x <= 8, value, _bessel_far(1, True, x))
    return jnp.where(x == 0, -jnp.inf, jnp.where(x < 0, jnp.nan, y))


def _airy_ai(x: jax.Array) -> jax.Array:
    """A series from -5 to 3; beyond, asymptotic forms in ``zeta = 2 / 3 * abs(x) ** 1.5``."""
    near = _chebyshev(_tables.AIRY_MIDDLE, (jnp.clip(x, -5, 3) + 1) / 4)
    right = jnp.maximum(x, 3)
    zeta = 2 / 3 * right * jnp.sqrt(right)
    decay = _chebyshev(_tables.AIRY_LARGE, 2 * (2 / 3 * 3**1.5) / zeta - 1)
    decay = decay * jnp.exp(-zeta) / (2 * math.sqrt(math.pi) * jnp.sqrt(jnp.sqrt(right)))
    left = jnp.maximum(-x, 5)
    zeta = 2 / 3 * left * jnp.sqrt(left)
    t = 2 * (2 / 3 * 5**1.5 / zeta) ** 2 - 1
    p, q = _chebyshev(_tables.AIRY_P, t), _chebyshev(_tables.AIRY_Q, t) / zeta
    s, c = jnp.sin(zeta), jnp.cos(zeta)
    wave = _ROOT_HALF * (p * (s + c) - q * (c - s)) / (math.sqrt(math.pi) * jnp.sqrt(jnp.sqrt(left)))
    y = jnp.where(x > 3, decay, jnp.where(x < -5, wave, near))
    return jnp.where(jnp.isinf(x), jnp.nan, y)


def _spherical_j0(x: jax.Array) -> jax.Array:
    safe = jnp.where((x == 0) | jnp.isinf(x), 1, x)
    return jnp.where(x == 0, 1, jnp.where(jnp.isinf(x), 0, jnp.sin(safe) / safe))


special_bessel_j0 = _bessel(_j0, "special_bessel_j0")
special_bessel_j1 = _bessel(_j1, "special_bessel_j1")
special_bessel_y0 = _bessel(_y0, "special_bessel_y0")
special_bessel_y1 = _bessel(_y1, "special_bessel_y1")


def _of_x(fn: Callable[[jax.Array], jax.Array], name: str) -> Callable[[ArrayLike], jax.Array]:
    """As `unary`, for the schemas that name their argument ``x``."""

    def op(x: ArrayLike) -> jax.Array:
        return fn(x)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"``aten::{name}``, elementwise. Bool and integers give the default float."
    return register(name)(elementwise("x", kind=_FLOATS, accepts="bif")(op))


special_airy_ai = _of_x(_airy_ai, "special_airy_ai")
special_spherical_bessel_j0 = _of_x(_spherical_j0, "special_spherical_bessel_j0")
special_scaled_modified_bessel_k0 = _of_x(_k0e, "special_scaled_modified_bessel_k0")
special_scaled_modified_bessel_k1 = _of_x(_k1e, "special_scaled_modified_bessel_k1")

__all__ = exported(__name__)

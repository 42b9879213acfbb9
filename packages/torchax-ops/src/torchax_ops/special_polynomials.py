"""Orthogonal polynomials of an order that is itself an array.

Values come from three-term recurrences, in a loop up to the highest order: they have a forward derivative only.

Source: https://dlmf.nist.gov/18.9
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ._elementwise import ArrayLike, elementwise
from ._promotion import Kind
from ._registry import exported, register

Step = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def _recur(x: jax.Array, n: jax.Array, first: jax.Array, step: Step) -> jax.Array:
    """The polynomial of order ``n`` at ``x``; ``step(k, x, p_k, p_k-1)`` gives the one of order ``k + 1``.

    0 for negative orders. An element that has become NaN stops, as its loop may be long.
    """

    def active(k: jax.Array, q: jax.Array) -> jax.Array:
        return (k < n) & ~jnp.isnan(q)

    def body(state: Any) -> Any:
        k, p, q = state
        go = active(k, q)
        return k + 1, jnp.where(go, q, p), jnp.where(go, step(k, x, q, p), q)

    start = (jnp.ones((), x.dtype), jnp.ones_like(x), first)
    _, _, value = lax.while_loop(lambda state: jnp.any(active(state[0], state[2])), body, start)
    return jnp.where(n < 0, 0, jnp.where(n == 0, 1, value))


def _polynomial(name: str, fn: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    def op(x: ArrayLike, n: ArrayLike) -> jax.Array:
        x, n = jnp.broadcast_arrays(x, n)
        return fn(x, jnp.trunc(n))

    op.__name__ = op.__qualname__ = name
    op.__doc__ = (
        f"``aten::{name}`` of order ``n`` (cut to an integer; 0 where negative) at ``x``. Bool and integers give the "
        "default float."
    )
    names = (name, f"{name}.n_scalar", f"{name}.x_scalar")
    return register(*names)(elementwise("x", "n", kind=Kind.INT_TO_FLOAT, accepts="bif")(op))


def _chebyshev(
    first: Callable[..., jax.Array], angle: Callable[..., jax.Array], above: int
) -> Callable[..., jax.Array]:
    """A Chebyshev polynomial; inside (-1, 1) and for orders over ``above`` by the cosine it stands for."""

    def fn(x: jax.Array, n: jax.Array) -> jax.Array:
        closed = (jnp.abs(x) < 1) & (n > above)
        inside = jnp.where(closed, x, 0)
        by_angle = angle(jnp.arccos(inside), n)
        return jnp.where(
            closed, by_angle, _recur(x, jnp.where(closed, 1, n), first(x), lambda k, x, q, p: 2 * x * q - p)
        )

    return fn


_KINDS = {
    "t": (lambda x: x, lambda a, n: jnp.cos(n * a), 6),
    "u": (lambda x: 2 * x, lambda a, n: jnp.sin((n + 1) * a) / jnp.sin(a), 8),
    "v": (lambda x: 2 * x - 1, lambda a, n: jnp.cos((n + 0.5) * a) / jnp.cos(a / 2), 8),
    "w": (lambda x: 2 * x + 1, lambda a, n: jnp.sin((n + 0.5) * a) / jnp.sin(a / 2), 8),
}


def _plain(kind: str) -> Callable[..., jax.Array]:
    return _polynomial(f"special_chebyshev_polynomial_{kind}", _chebyshev(*_KINDS[kind]))


def _shifted(kind: str) -> Callable[..., jax.Array]:
    """The polynomial on [0, 1]."""
    first, angle, _ = _KINDS[kind]
    fn = _chebyshev(first, angle, 6)
    return _polynomial(f"special_shifted_chebyshev_polynomial_{kind}", lambda x, n: fn(2 * x - 1, n))


special_chebyshev_polynomial_t = _plain("t")
special_chebyshev_polynomial_u = _plain("u")
special_chebyshev_polynomial_v = _plain("v")
special_chebyshev_polynomial_w = _plain("w")
special_shifted_chebyshev_polynomial_t = _shifted("t")
special_shifted_chebyshev_polynomial_u = _shifted("u")
special_shifted_chebyshev_polynomial_v = _shifted("v")
special_shifted_chebyshev_polynomial_w = _shifted("w")


def _hermite(first: Callable[..., jax.Array], step: Step) -> Callable[..., jax.Array]:
    """NaN beyond order 128 (float64: 512), where PyTorch stops."""

    def fn(x: jax.Array, n: jax.Array) -> jax.Array:
        n = jnp.where(jnp.isfinite(n), n, -1)
        limit = 512 if x.dtype == "float64" else 128
        return jnp.where(n > limit, jnp.nan, _recur(x, jnp.minimum(n, limit), first(x), step))

    return fn


special_hermite_polynomial_h = _polynomial(
    "special_hermite_polynomial_h", _hermite(lambda x: 2 * x, lambda k, x, q, p: 2 * x * q - 2 * k * p)
)
special_hermite_polynomial_he = _polynomial(
    "special_hermite_polynomial_he", _hermite(lambda x: x, lambda k, x, q, p: x * q - k * p)
)
special_laguerre_polynomial_l = _polynomial(
    "special_laguerre_polynomial_l",
    lambda x, n: _recur(x, n, 1 - x, lambda k, x, q, p: ((2 * k + 1 - x) * q - k * p) / (k + 1)),
)
special_legendre_polynomial_p = _polynomial(
    "special_legendre_polynomial_p",
    lambda x, n: _recur(x, n, x, lambda k, x, q, p: ((2 * k + 1) * x * q - k * p) / (k + 1)),
)

__all__ = exported(__name__)

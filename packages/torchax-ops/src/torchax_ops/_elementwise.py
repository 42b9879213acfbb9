"""What every elementwise operator declares: which arguments promote, by which rule, and which dtypes it has."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ._promotion import Kind, category, promoted, result_type
from ._registry import register
from ._shapes import broadcast_shapes

F = TypeVar("F", bound=Callable[..., Any])
ArrayLike = Any


def elementwise(
    *names: str,
    kind: Kind = Kind.DEFAULT,
    accepts: str = "bifc",
) -> Callable[[F], F]:
    """`promoted`, with PyTorch's errors for shapes that do not broadcast and dtypes that an operator does not have.

    Args:
        names: the arguments that promote and broadcast together; ``None`` is skipped.
        kind: the promotion rule.
        accepts: the categories that the promoted dtype may have: b(ool), i(nteger), f(loat), c(omplex).

    The function that results raises RuntimeError where shapes do not broadcast, and NotImplementedError (which is one)
    for other categories.
    """

    def decorate(fn: F) -> F:
        compute = promoted(*names, kind=kind)(fn)
        signature = inspect.signature(fn)

        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            values = [v for n in names if (v := given.get(n)) is not None]
            if accepts != "bifc":
                dtype = result_type(*values)
                if "bifc"[category(dtype)] not in accepts:
                    raise NotImplementedError(f'"{fn.__name__}" not implemented for {dtype.name}')
            if len(values) > 1:
                broadcast_shapes(*(jnp.shape(v) for v in values))
            return compute(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate


def unary(
    fn: Callable[[jax.Array], jax.Array],
    *names: str,
    kind: Kind = Kind.DEFAULT,
    accepts: str = "bifc",
) -> Callable[[ArrayLike], jax.Array]:
    """Register ``fn`` under schema names as an elementwise operator of one array, ``self``."""

    def op(self: ArrayLike) -> jax.Array:
        return fn(self)

    op.__name__ = op.__qualname__ = names[0]
    op.__doc__ = f"``aten::{names[0]}``, elementwise. {_RESULT[kind]}"
    return register(*names)(elementwise("self", kind=kind, accepts=accepts)(op))


def binary(
    fn: Callable[[jax.Array, jax.Array], jax.Array],
    *names: str,
    kind: Kind = Kind.DEFAULT,
    accepts: str = "bifc",
) -> Callable[[ArrayLike, ArrayLike], jax.Array]:
    """Register ``fn`` under schema names as an elementwise operator of ``self`` and ``other``, arrays or numbers."""

    def op(self: ArrayLike, other: ArrayLike) -> jax.Array:
        return fn(self, other)

    op.__name__ = op.__qualname__ = names[0].partition(".")[0]
    op.__doc__ = f"``aten::{op.__name__}`` of arrays or numbers that broadcast. {_RESULT[kind]}"
    return register(*names)(elementwise("self", "other", kind=kind, accepts=accepts)(op))


def with_slope(slope: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., Any]:
    """Give a function of one real array its derivative: ``slope(x, fn(x))``."""

    def decorate(fn: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        out = jax.custom_jvp(fn)
        out.defjvps(lambda dx, y, x: dx * slope(x, y))
        return out

    return decorate


_RESULT = {
    Kind.DEFAULT: "The result has the promoted dtype.",
    Kind.NO_OPMATH: "The result has the promoted dtype.",
    Kind.INT_TO_FLOAT: "The result has the promoted dtype; bool and integers give the default float.",
    Kind.ALWAYS_BOOL: "The result is bool.",
    Kind.COMPLEX_TO_FLOAT: "The result has the promoted dtype; complex gives its real dtype.",
    Kind.BOOL_TO_LONG: "The result has the promoted dtype; bool gives int64.",
}

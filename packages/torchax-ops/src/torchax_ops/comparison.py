"""Elementwise comparison, logic, extrema and choice.

Source: https://docs.pytorch.org/docs/stable/torch.html#comparison-ops
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ._elementwise import ArrayLike, binary, elementwise, unary
from ._promotion import Kind, cast, category, dtype_of, is_complex, result_type
from ._registry import exported, register
from ._shapes import broadcast_shapes

_BOOL = Kind.ALWAYS_BOOL

eq = binary(jnp.equal, "eq.Tensor", "eq.Scalar", kind=_BOOL)
ne = binary(jnp.not_equal, "ne.Tensor", "ne.Scalar", "not_equal.Tensor", "not_equal.Scalar", kind=_BOOL)
lt = binary(jnp.less, "lt.Tensor", "lt.Scalar", "less.Tensor", "less.Scalar", kind=_BOOL, accepts="bif")
le = binary(
    jnp.less_equal, "le.Tensor", "le.Scalar", "less_equal.Tensor", "less_equal.Scalar", kind=_BOOL, accepts="bif"
)
gt = binary(jnp.greater, "gt.Tensor", "gt.Scalar", "greater.Tensor", "greater.Scalar", kind=_BOOL, accepts="bif")
ge = binary(
    jnp.greater_equal,
    "ge.Tensor",
    "ge.Scalar",
    "greater_equal.Tensor",
    "greater_equal.Scalar",
    kind=_BOOL,
    accepts="bif",
)

logical_not = unary(jnp.logical_not, "logical_not", kind=_BOOL)


def _logical(fn: Any, name: str) -> Any:
    """An operator whose arguments do not promote: each is true where it is not zero."""

    def op(self: ArrayLike, other: ArrayLike) -> jax.Array:
        broadcast_shapes(jnp.shape(self), jnp.shape(other))
        return fn(self, other)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"``aten::{name}`` of arrays of any dtypes that broadcast: true where not zero. The result is bool."
    return register(name)(op)


logical_and = _logical(jnp.logical_and, "logical_and")
logical_or = _logical(jnp.logical_or, "logical_or")
logical_xor = _logical(jnp.logical_xor, "logical_xor")

isnan = unary(jnp.isnan, "isnan", kind=_BOOL)
isinf = unary(jnp.isinf, "isinf", kind=_BOOL)
isfinite = unary(jnp.isfinite, "isfinite", kind=_BOOL)
isposinf = unary(lambda x: x == jnp.inf, "isposinf", kind=_BOOL, accepts="bif")
isneginf = unary(lambda x: x == -jnp.inf, "isneginf", kind=_BOOL, accepts="bif")
isreal = unary(lambda x: x.imag == 0 if is_complex(x) else jnp.ones_like(x, "bool"), "isreal", kind=_BOOL)

maximum = binary(jnp.maximum, "maximum", "max.other", accepts="bif")
minimum = binary(jnp.minimum, "minimum", "min.other", accepts="bif")
fmax = binary(lambda x, y: jnp.where((x >= y) | jnp.isnan(y), x, y), "fmax", accepts="bif")
fmin = binary(lambda x, y: jnp.where((x <= y) | jnp.isnan(y), x, y), "fmin", accepts="bif")


@register("equal")
def equal(self: ArrayLike, other: ArrayLike) -> jax.Array:
    """Whether both have the same shape and the same elements: a 0-d bool."""
    if jnp.shape(self) != jnp.shape(other):
        return jnp.zeros((), "bool")
    return jnp.all(eq(self, other))


@register("_is_all_true")
def _is_all_true(self: ArrayLike) -> jax.Array:
    return jnp.all(jnp.asarray(self))


@register("_is_any_true")
def _is_any_true(self: ArrayLike) -> jax.Array:
    return jnp.any(jnp.asarray(self))


def _isin(elements: ArrayLike, test_elements: ArrayLike, invert: bool) -> jax.Array:
    """By binary search in the sorted test elements; NaN equals nothing."""
    dtype = result_type(elements, test_elements)
    if category(dtype) == 3:
        raise RuntimeError(f"isin: unsupported dtype {dtype.name}")
    found, tests = cast(elements, dtype), jnp.sort(cast(test_elements, dtype).ravel())
    if tests.size == 0:
        return jnp.full(found.shape, invert)
    at = jnp.minimum(jnp.searchsorted(tests, found), tests.size - 1)
    return (tests[at] == found) != invert


@register("isin.Tensor_Tensor")
def isin(
    elements: ArrayLike, test_elements: ArrayLike, *, assume_unique: bool = False, invert: bool = False
) -> jax.Array:
    """Where an element is among ``test_elements``, or (``invert``) is not. The result is bool.

    Raises:
        RuntimeError: the promoted dtype is complex.
    """
    return _isin(elements, test_elements, invert)


@register("isin.Tensor_Scalar")
def isin_tensor_scalar(
    elements: ArrayLike, test_element: ArrayLike, *, assume_unique: bool = False, invert: bool = False
) -> jax.Array:
    """`isin` with one test element."""
    return _isin(elements, test_element, invert)


@register("isin.Scalar_Tensor")
def isin_scalar_tensor(
    element: ArrayLike, test_elements: ArrayLike, *, assume_unique: bool = False, invert: bool = False
) -> jax.Array:
    """`isin` of one element."""
    return _isin(element, test_elements, invert)


@register("heaviside")
def heaviside(self: ArrayLike, values: ArrayLike) -> jax.Array:
    """``values`` where ``self`` is 0, 1 where it is positive, else 0 (also for NaN).

    Raises:
        RuntimeError: the dtypes differ, or are complex.
    """
    if is_complex(self) or is_complex(values):
        raise RuntimeError("heaviside is not yet implemented for complex tensors.")
    if dtype_of(self) != dtype_of(values):
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    return _heaviside(self, values)


@elementwise("self", "values")
def _heaviside(self: ArrayLike, values: ArrayLike) -> jax.Array:
    return jnp.where(self == 0, values, (self > 0).astype(values.dtype))


@elementwise("self", "min", "max", accepts="bif")
def _clamp(self: ArrayLike, min: ArrayLike | None, max: ArrayLike | None) -> jax.Array:
    """The gradient goes to ``self`` where it equals a bound; `jnp.maximum` would halve it."""
    if min is not None:
        self = jnp.where((self < min) | jnp.isnan(min), min, self)
    return self if max is None else jnp.where((self > max) | jnp.isnan(max), max, self)


@register("clamp", "clamp.Tensor", "clip", "clip.Tensor")
def clamp(self: ArrayLike, min: ArrayLike | None = None, max: ArrayLike | None = None) -> jax.Array:
    """``minimum(maximum(self, min), max)`` in the promoted dtype of all; NaN in any of them gives NaN.

    Raises:
        RuntimeError: both bounds are ``None``.
    """
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    return _clamp(self, min, max)


@register("clamp_min", "clamp_min.Tensor")
def clamp_min(self: ArrayLike, min: ArrayLike) -> jax.Array:
    """`clamp` from below."""
    return _clamp(self, min, None)


@register("clamp_max", "clamp_max.Tensor")
def clamp_max(self: ArrayLike, max: ArrayLike) -> jax.Array:
    """`clamp` from above."""
    return _clamp(self, None, max)


@register("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(condition: ArrayLike, self: ArrayLike, other: ArrayLike) -> jax.Array:
    """``self`` where ``condition`` holds, else ``other``, in their promoted dtype; all three broadcast.

    Raises:
        RuntimeError: ``condition`` is neither bool nor uint8.
    """
    if dtype_of(condition).name not in ("bool", "uint8"):
        raise RuntimeError(
            f"where expected condition to be a boolean tensor, but got a tensor with dtype {dtype_of(condition).name}"
        )
    return _where(self, other, condition)


@elementwise("self", "other", kind=Kind.NO_OPMATH)
def _where(self: ArrayLike, other: ArrayLike, condition: ArrayLike) -> jax.Array:
    return jnp.where(condition != 0, self, other)


__all__ = exported(__name__)

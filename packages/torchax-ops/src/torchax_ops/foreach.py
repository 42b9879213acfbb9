"""``_foreach_*``: one operator over lists of arrays.

One rule makes them all: **a foreach operator maps its single operator over its lists**. Array ``i`` of the result is
the single operator on array ``i`` of each list, with number ``i`` of a list of numbers (``ScalarList``) or with the one
number (``Scalar``) or 0-d array (``Tensor``) that all share. Dtypes, shapes and errors are the single operator's.
Arguments are lists of ``jax.Array``; the result is a list of as many arrays.

Every operator raises RuntimeError for an empty list and for lists of different lengths.

Source: https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/ForeachOpsKernels.cpp
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torchax_ops._promotion import canonical, cast, category, dtype_of, opmath
from torchax_ops._registry import exported, lookup, register
from torchax_ops._shapes import broadcast_shapes

Arrays = Sequence[jax.Array]
Scalar = Any


def _map(single: str, self: Arrays, *lists: Sequence[Any], shared: tuple[Any, ...] = (), **kwargs: Any) -> list[Any]:
    """The rule of this file; ``single`` is looked up by name, so that no operator module has to come first."""
    op = lookup(f"aten::{single}")
    if op is None:
        raise RuntimeError(f"a foreach operator needs aten::{single}, which is not registered")
    return [op.fn(*each, *shared, **kwargs) for each in zip(self, *lists, strict=True)]


def _check(self: Arrays, *lists: Arrays, scalars: Sequence[Scalar] | None = None) -> None:
    if len(self) == 0:
        raise RuntimeError("Tensor list must have at least one tensor.")
    for other in lists:
        if len(other) != len(self):
            raise RuntimeError(f"Tensor lists must have the same number of tensors, got {len(self)} and {len(other)}")
    if scalars is not None and len(scalars) != len(self):
        raise RuntimeError("Tensor list must have same number of elements as scalar list.")


def _check_shared(other: jax.Array) -> None:
    if other.ndim != 0:
        raise RuntimeError(
            f"scalar tensor expected to be 0 dim but it has {other.ndim} dimensions and {other.size} elements."
        )


def _unpack(scalars: jax.Array, length: int) -> list[jax.Array]:
    """The numbers packed in a 1-d array, one for each array of a list."""
    if scalars.ndim != 1:
        raise RuntimeError(f"Expected packed scalar Tensor to be of dimension 1. Got {scalars.ndim} instead.")
    if scalars.shape[0] != length:
        raise RuntimeError(
            f"Expected length of scalars to match input of length {length} but got {scalars.shape[0]} instead."
        )
    return list(scalars)


def _named(fn: Callable[..., Any], schema: str, *more: str) -> Callable[..., Any]:
    fn.__name__ = fn.__qualname__ = schema.lower().replace(".", "_")
    fn.__doc__ = f"``aten::{schema}``."
    return register(schema, *more)(fn)


# --- one list ---------------------------------------------------------------------------------------------------------


def _unary(name: str) -> Callable[..., Any]:
    def foreach(self: Arrays) -> list[jax.Array]:
        _check(self)
        return _map(name, self)

    return _named(foreach, f"_foreach_{name}")


_foreach_abs = _unary("abs")
_foreach_acos = _unary("acos")
_foreach_asin = _unary("asin")
_foreach_atan = _unary("atan")
_foreach_ceil = _unary("ceil")
_foreach_cos = _unary("cos")
_foreach_cosh = _unary("cosh")
_foreach_erf = _unary("erf")
_foreach_erfc = _unary("erfc")
_foreach_exp = _unary("exp")
_foreach_expm1 = _unary("expm1")
_foreach_floor = _unary("floor")
_foreach_frac = _unary("frac")
_foreach_lgamma = _unary("lgamma")
_foreach_log = _unary("log")
_foreach_log10 = _unary("log10")
_foreach_log1p = _unary("log1p")
_foreach_log2 = _unary("log2")
_foreach_neg = _unary("neg")
_foreach_reciprocal = _unary("reciprocal")
_foreach_round = _unary("round")
_foreach_rsqrt = _unary("rsqrt")
_foreach_sigmoid = _unary("sigmoid")
_foreach_sign = _unary("sign")
_foreach_sin = _unary("sin")
_foreach_sinh = _unary("sinh")
_foreach_sqrt = _unary("sqrt")
_foreach_tan = _unary("tan")
_foreach_tanh = _unary("tanh")
_foreach_trunc = _unary("trunc")


# --- a list and a number, numbers, or a list --------------------------------------------------------------------------


def _by_scalar(name: str, single: str) -> Callable[..., Any]:
    def foreach(self: Arrays, scalar: Scalar) -> list[jax.Array]:
        _check(self)
        return _map(single, self, shared=(scalar,))

    return _named(foreach, f"_foreach_{name}.Scalar")


def _by_scalars(name: str, single: str) -> Callable[..., Any]:
    def foreach(self: Arrays, scalars: Sequence[Scalar]) -> list[jax.Array]:
        _check(self, scalars=scalars)
        return _map(single, self, scalars)

    return _named(foreach, f"_foreach_{name}.ScalarList")


def _by_list(name: str, single: str) -> Callable[..., Any]:
    def foreach(self: Arrays, other: Arrays) -> list[jax.Array]:
        _check(self, other)
        return _map(single, self, other)

    return _named(foreach, f"_foreach_{name}.List")


def _by_list_alpha(name: str, single: str) -> Callable[..., Any]:
    def foreach(self: Arrays, other: Arrays, *, alpha: Scalar = 1) -> list[jax.Array]:
        _check(self, other)
        return _map(single, self, other, alpha=alpha)

    return _named(foreach, f"_foreach_{name}.List")


def _by_tensor(name: str, single: str) -> Callable[..., Any]:
    def foreach(self: Arrays, other: jax.Array) -> list[jax.Array]:
        _check(self)
        _check_shared(other)
        return _map(single, self, shared=(other,))

    return _named(foreach, f"_foreach_{name}.Tensor")


@register("_foreach_add.Tensor")
def _foreach_add_tensor(self: Arrays, other: jax.Array, *, alpha: Scalar = 1) -> list[jax.Array]:
    """``self[i] + alpha * other`` with one 0-d ``other``."""
    _check(self)
    _check_shared(other)
    return _map("add.Tensor", self, shared=(other,), alpha=alpha)


_foreach_add_scalar = _by_scalar("add", "add.Tensor")
_foreach_add_scalarlist = _by_scalars("add", "add.Tensor")
_foreach_add_list = _by_list_alpha("add", "add.Tensor")

_foreach_sub_scalar = _by_scalar("sub", "sub.Tensor")
_foreach_sub_scalarlist = _by_scalars("sub", "sub.Tensor")
_foreach_sub_list = _by_list_alpha("sub", "sub.Tensor")

_foreach_mul_scalar = _by_scalar("mul", "mul.Tensor")
_foreach_mul_scalarlist = _by_scalars("mul", "mul.Tensor")
_foreach_mul_list = _by_list("mul", "mul.Tensor")
_foreach_mul_tensor = _by_tensor("mul", "mul.Tensor")

_foreach_div_scalar = _by_scalar("div", "div.Tensor")
_foreach_div_scalarlist = _by_scalars("div", "div.Tensor")
_foreach_div_list = _by_list("div", "div.Tensor")
_foreach_div_tensor = _by_tensor("div", "div.Tensor")

_foreach_clamp_max_scalar = _by_scalar("clamp_max", "clamp_max")
_foreach_clamp_max_scalarlist = _by_scalars("clamp_max", "clamp_max")
_foreach_clamp_max_list = _by_list("clamp_max", "clamp_max.Tensor")

_foreach_clamp_min_scalar = _by_scalar("clamp_min", "clamp_min")
_foreach_clamp_min_scalarlist = _by_scalars("clamp_min", "clamp_min")
_foreach_clamp_min_list = _by_list("clamp_min", "clamp_min.Tensor")

_foreach_maximum_scalar = _by_scalar("maximum", "clamp_min")
_foreach_maximum_scalarlist = _by_scalars("maximum", "clamp_min")
_foreach_maximum_list = _by_list("maximum", "clamp_min.Tensor")

_foreach_minimum_scalar = _by_scalar("minimum", "clamp_max")
_foreach_minimum_scalarlist = _by_scalars("minimum", "clamp_max")
_foreach_minimum_list = _by_list("minimum", "clamp_max.Tensor")


@register("_foreach_pow.Scalar")
def _foreach_pow_scalar(self: Arrays, exponent: Scalar) -> list[jax.Array]:
    """``self[i] ** exponent``."""
    _check(self)
    return _map("pow.Tensor_Scalar", self, shared=(exponent,))


@register("_foreach_pow.ScalarList")
def _foreach_pow_scalarlist(self: Arrays, exponent: Sequence[Scalar]) -> list[jax.Array]:
    """``self[i] ** exponent[i]`` with numbers for exponents."""
    _check(self, scalars=exponent)
    return _map("pow.Tensor_Scalar", self, exponent)


@register("_foreach_pow.List")
def _foreach_pow_list(self: Arrays, exponent: Arrays) -> list[jax.Array]:
    """``self[i] ** exponent[i]``."""
    _check(self, exponent)
    return _map("pow.Tensor_Tensor", self, exponent)


@register("_foreach_pow.ScalarAndTensor")
def _foreach_pow_scalarandtensor(self: Scalar, exponent: Arrays) -> list[jax.Array]:
    """``self ** exponent[i]`` with one number ``self``."""
    _check(exponent)
    return _map("pow.Scalar", [self] * len(exponent), exponent)


# --- three lists ------------------------------------------------------------------------------------------------------


def _pointwise_scalar(name: str) -> Callable[..., Any]:
    def foreach(self: Arrays, tensor1: Arrays, tensor2: Arrays, value: Scalar = 1) -> list[jax.Array]:
        _check(self, tensor1, tensor2)
        return _map(name, self, tensor1, tensor2, value=value)

    return _named(foreach, f"_foreach_{name}.Scalar")


def _pointwise_scalars(name: str) -> Callable[..., Any]:
    def foreach(self: Arrays, tensor1: Arrays, tensor2: Arrays, scalars: Sequence[Scalar]) -> list[jax.Array]:
        _check(self, tensor1, tensor2, scalars=scalars)
        return [
            _map(name, [a], [b], [c], value=value)[0]
            for a, b, c, value in zip(self, tensor1, tensor2, scalars, strict=True)
        ]

    return _named(foreach, f"_foreach_{name}.ScalarList")


def _pointwise_packed(name: str, by_scalars: Callable[..., Any]) -> Callable[..., Any]:
    def foreach(self: Arrays, tensor1: Arrays, tensor2: Arrays, scalars: jax.Array) -> list[jax.Array]:
        return by_scalars(self, tensor1, tensor2, _unpack(scalars, len(self)))

    return _named(foreach, f"_foreach_{name}.Tensor")


_foreach_addcdiv_scalar = _pointwise_scalar("addcdiv")
_foreach_addcdiv_scalarlist = _pointwise_scalars("addcdiv")
_foreach_addcdiv_tensor = _pointwise_packed("addcdiv", _foreach_addcdiv_scalarlist)

_foreach_addcmul_scalar = _pointwise_scalar("addcmul")
_foreach_addcmul_scalarlist = _pointwise_scalars("addcmul")
_foreach_addcmul_tensor = _pointwise_packed("addcmul", _foreach_addcmul_scalarlist)


@register("_foreach_lerp.Scalar")
def _foreach_lerp_scalar(self: Arrays, tensors1: Arrays, weight: Scalar) -> list[jax.Array]:
    """``self[i] + weight * (tensors1[i] - self[i])``."""
    _check(self, tensors1)
    return _map("lerp.Scalar", self, tensors1, shared=(weight,))


@register("_foreach_lerp.ScalarList")
def _foreach_lerp_scalarlist(self: Arrays, tensors1: Arrays, weight: Sequence[Scalar]) -> list[jax.Array]:
    """``self[i] + weight[i] * (tensors1[i] - self[i])`` with numbers for weights."""
    _check(self, tensors1, scalars=weight)
    return _map("lerp.Scalar", self, tensors1, weight)


@register("_foreach_lerp.List")
def _foreach_lerp_list(self: Arrays, tensors1: Arrays, weights: Arrays) -> list[jax.Array]:
    """``self[i] + weights[i] * (tensors1[i] - self[i])``."""
    _check(self, tensors1, weights)
    return _map("lerp.Tensor", self, tensors1, weights)


# --- reductions, copies and products ----------------------------------------------------------------------------------


@register("_foreach_max")
def _foreach_max(self: Arrays) -> list[jax.Array]:
    """The largest element of each array, 0-d.

    Raises:
        RuntimeError: an array is empty.
    """
    _check(self)
    for x in self:
        if x.size == 0:
            raise RuntimeError(
                "_foreach_max cannot compute the maximum of an empty tensor; max over zero elements is undefined."
            )
    return _map("max", self)


@register("_foreach_norm.Scalar", static=("ord",))
def _foreach_norm_scalar(self: Arrays, ord: Scalar = 2, dtype: Any = None) -> list[jax.Array]:
    """The vector norm of each array, flattened, 0-d.

    Raises:
        RuntimeError: an array is empty and ``ord`` has no identity, or is not of floating or complex dtype.
    """
    _check(self)
    if ord == float("inf") and any(x.size == 0 for x in self):
        raise RuntimeError(
            "_foreach_norm cannot compute the infinity norm on an empty tensor because the operation does not have "
            "an identity"
        )
    return _map("linalg_vector_norm", self, shared=(ord,), dtype=dtype)


@register("_foreach_powsum.Scalar", static=("ord",))
def _foreach_powsum_scalar(self: Arrays, ord: Scalar = 2, dtype: Any = None) -> list[jax.Array]:
    """``sum(|self[i]| ** ord)`` of each array, 0-d, in ``dtype`` (its own where that is None).

    Raises:
        NotImplementedError: the dtype is not floating or complex.
    """
    _check(self)
    return [_powsum(x, ord, dtype_of(x) if dtype is None else dtype) for x in self]


def _powsum(x: jax.Array, ord: Scalar, dtype: Any) -> jax.Array:
    if category(dtype) < 2:
        raise NotImplementedError(f'"powsum" not implemented for {canonical(dtype).name}')
    x = jnp.abs(cast(x, opmath(dtype)))
    total = jnp.sum(x * x) if ord == 2 else jnp.sum(x ** cast(ord, x.dtype))
    return cast(total, total.dtype if category(dtype) == 3 else dtype)


@register("_foreach_copy")
def _foreach_copy(self: Arrays, src: Arrays, non_blocking: bool = False) -> list[jax.Array]:
    """``src[i]``, broadcast to the shape and converted to the dtype of ``self[i]``."""
    _check(self, src)
    for x, y in zip(self, src, strict=True):
        if broadcast_shapes(x.shape, y.shape) != x.shape:
            raise RuntimeError(f"_foreach_copy: shape {y.shape} does not broadcast to {x.shape}")
    return [jnp.broadcast_to(cast(y, x.dtype), x.shape) for x, y in zip(self, src, strict=True)]


@register("_foreach_zero")
def _foreach_zero(self: Arrays) -> list[jax.Array]:
    """Zeros of the shapes and dtypes of ``self``."""
    _check(self)
    return [jnp.zeros_like(x) for x in self]


@register("_foreach_clone")
def _foreach_clone(self: Arrays) -> list[jax.Array]:
    """The arrays themselves: a ``jax.Array`` is immutable, so that its copy is itself."""
    _check(self)
    return list(self)


@register("_foreach_mm")
def _foreach_mm(self: Arrays, mat2: Arrays) -> list[jax.Array]:
    """``self[i] @ mat2[i]`` of matrices."""
    if len(self) == 0:
        raise RuntimeError("_foreach_mm requires non-empty tensor lists")
    if len(self) != len(mat2):
        raise RuntimeError("_foreach_mm: self and mat2 must have the same number of tensors")
    return _map("mm", self, mat2)


__all__ = exported(__name__)

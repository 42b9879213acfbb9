"""Matrix products: mm, bmm, addmm and family, linear, matmul. Grouped and quantized ones are in `grouped_matmul`.

Each is one ``lax.dot_general`` with a transposition as contracting dims, so XLA sees one matrix product. 16-bit floats
accumulate in float32 and are rounded once, after a bias is added. Integers are exact modulo their width. JAX's own
``jax.default_matmul_precision`` applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchax_ops._promotion import DType, Kind, canonical, cast, category, elementwise_dtypes, opmath
from torchax_ops._registry import exported, register

Contract = tuple[Sequence[int], Sequence[int]]


def dot_general(
    a: jax.Array, b: jax.Array, contract: Contract, batch: Contract = ((), ()), dtype: Any = None
) -> jax.Array:
    """``lax.dot_general`` in the computing dtype of ``a``."""
    return lax.dot_general(a, b, (contract, batch), preferred_element_type=dtype or opmath(a.dtype))


def need_operands(op: str, arrays: dict[str, jax.Array], ndims: Sequence[int]) -> None:
    for (name, x), n in zip(arrays.items(), ndims):
        if x.ndim != n:
            raise RuntimeError(f"{op}: {name} must be a {n}D array, but got shape {x.shape}")
    dtypes = {name: x.dtype.name for name, x in arrays.items()}
    if len(set(dtypes.values())) > 1:
        raise RuntimeError(f"{op}: expected arrays of the same dtype, but got {dtypes}; convert one")
    if "bool" in dtypes.values():
        raise NotImplementedError(f"{op} is not implemented for bool; convert to an integer dtype")


def _mismatch(op: str, a: jax.Array, b: jax.Array) -> RuntimeError:
    return RuntimeError(f"{op}: shapes cannot be multiplied ({a.shape} and {b.shape})")


@register("mm")
def mm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    """Matrix product of ``(n, k)`` and ``(k, m)``."""
    return cast(_mm("mm", self, mat2), self.dtype)


def _mm(op: str, a: jax.Array, b: jax.Array) -> jax.Array:
    need_operands(op, {"mat1": a, "mat2": b}, (2, 2))
    if a.shape[1] != b.shape[0]:
        raise _mismatch(op, a, b)
    return dot_general(a, b, ((1,), (0,)))


@register("bmm")
def bmm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    """Matrix products of ``(b, n, k)`` and ``(b, k, m)``."""
    return cast(_bmm("bmm", self, mat2), self.dtype)


def _bmm(op: str, a: jax.Array, b: jax.Array) -> jax.Array:
    need_operands(op, {"batch1": a, "batch2": b}, (3, 3))
    if a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise _mismatch(op, a, b)
    return dot_general(a, b, ((2,), (1,)), ((0,), (0,)))


@register("mv")
def mv(self: jax.Array, vec: jax.Array) -> jax.Array:
    """Product of a matrix ``(n, k)`` and a vector ``(k,)``."""
    return cast(_mv("mv", self, vec), self.dtype)


def _mv(op: str, a: jax.Array, v: jax.Array) -> jax.Array:
    need_operands(op, {"mat": a, "vec": v}, (2, 1))
    if a.shape[1] != v.shape[0]:
        raise _mismatch(op, a, v)
    return dot_general(a, v, ((1,), (0,)))


@register("dot")
def dot(self: jax.Array, tensor: jax.Array) -> jax.Array:
    """Inner product of two vectors of one length, 0-d."""
    need_operands("dot", {"self": self, "tensor": tensor}, (1, 1))
    if self.shape != tensor.shape:
        raise RuntimeError(
            f"dot: inconsistent sizes, expected arrays of one length, but got {self.shape}, {tensor.shape}"
        )
    return cast(dot_general(self, tensor, ((0,), (0,))), self.dtype)


@register("vdot")
def vdot(self: jax.Array, other: jax.Array) -> jax.Array:
    """Inner product of two vectors with the first conjugated, 0-d."""
    return dot(jnp.conj(self), other)


# ---- with a bias


def _is(x: Any, value: int) -> bool:
    return isinstance(x, (bool, int, float, complex)) and x == value


def _combine(op: str, bias: jax.Array, product: jax.Array, beta: Any, alpha: Any, dtype: Any) -> jax.Array:
    """``beta * bias + alpha * product`` rounded to ``dtype``; where ``beta`` is zero, ``bias`` is not read."""
    if bias.dtype != dtype:
        raise RuntimeError(f"{op}: expected self to have dtype {dtype}, but got {bias.dtype.name}; convert it")
    shape = product.shape
    if bias.ndim > len(shape) or any(n not in (1, m) for n, m in zip(bias.shape[::-1], shape[::-1])):
        raise RuntimeError(f"{op}: self of shape {bias.shape} cannot be expanded to {shape}")
    if not _is(alpha, 1):
        product = product * cast(alpha, product.dtype)
    if _is(beta, 0):
        return cast(product, dtype)
    bias = cast(bias, product.dtype)
    if not _is(beta, 1):
        scaled = bias * cast(beta, product.dtype)
        bias = jnp.where(beta == 0, jnp.zeros_like(scaled), scaled) if isinstance(beta, jax.Array) else scaled
    return cast(product + bias, dtype)


@register("addmm")
def addmm(self: jax.Array, mat1: jax.Array, mat2: jax.Array, *, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    """``beta * self + alpha * (mat1 @ mat2)``; ``self`` expands to ``(n, m)``. Integers truncate the scales."""
    return _combine("addmm", self, _mm("addmm", mat1, mat2), beta, alpha, mat1.dtype)


@register("baddbmm")
def baddbmm(self: jax.Array, batch1: jax.Array, batch2: jax.Array, *, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    """``beta * self + alpha * (batch1 @ batch2)``; ``self`` expands to ``(b, n, m)``."""
    return _combine("baddbmm", self, _bmm("baddbmm", batch1, batch2), beta, alpha, batch1.dtype)


@register("addbmm")
def addbmm(self: jax.Array, batch1: jax.Array, batch2: jax.Array, *, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    """``beta * self + alpha * sum_b(batch1[b] @ batch2[b])``, the sum as one contraction."""
    need_operands("addbmm", {"batch1": batch1, "batch2": batch2}, (3, 3))
    if batch1.shape[0] != batch2.shape[0] or batch1.shape[2] != batch2.shape[1]:
        raise _mismatch("addbmm", batch1, batch2)
    return _combine("addbmm", self, dot_general(batch1, batch2, ((0, 2), (0, 1))), beta, alpha, batch1.dtype)


@register("addmv")
def addmv(self: jax.Array, mat: jax.Array, vec: jax.Array, *, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    """``beta * self + alpha * (mat @ vec)``; ``self`` expands to ``(n,)``."""
    return _combine("addmv", self, _mv("addmv", mat, vec), beta, alpha, mat.dtype)


@register("addr")
def addr(self: jax.Array, vec1: jax.Array, vec2: jax.Array, *, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    """``beta * self + alpha * outer(vec1, vec2)``, with promotion; for bool the sum is "or", the product "and"."""
    if vec1.ndim != 1 or vec2.ndim != 1:
        raise RuntimeError(f"addr: vec1 and vec2 must be 1D arrays, but got shapes {vec1.shape} and {vec2.shape}")
    compute, dtype = elementwise_dtypes(self, vec1, vec2, kind=Kind.DEFAULT)
    for name, scale in (("beta", beta), ("alpha", alpha)):
        if category(dtype) < 2 and category(getattr(scale, "dtype", type(scale))) > 1:
            raise RuntimeError(f"For integral input tensors, argument {name} must not be a floating point number.")
    outer = cast(vec1, compute)[:, None] * cast(vec2, compute)[None, :]
    if dtype == jnp.bool_:
        outer = outer & cast(alpha, dtype)
        return outer | (jnp.broadcast_to(self, outer.shape) & cast(beta, dtype))
    return _combine("addr", cast(self, dtype), outer, beta, alpha, dtype)


@register("_addmm_activation")
def _addmm_activation(
    self: jax.Array, mat1: jax.Array, mat2: jax.Array, *, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False
) -> jax.Array:
    out = addmm(self, mat1, mat2, beta=beta, alpha=alpha)
    if not use_gelu:
        return jax.nn.relu(out)
    return cast(jax.nn.gelu(cast(out, opmath(out.dtype)), approximate=False), out.dtype)


# ---- with a wider result: PyTorch has these on CUDA


def _wide(op: str, out_dtype: Any, a: jax.Array) -> DType:
    dtype = canonical(out_dtype)
    if dtype not in (a.dtype, opmath(a.dtype)):
        raise RuntimeError(f"{op}: out_dtype must be {a.dtype.name} or {opmath(a.dtype).name}, but got {dtype.name}")
    return dtype


@register("mm.dtype")
def mm_dtype(self: jax.Array, mat2: jax.Array, out_dtype: Any) -> jax.Array:
    """`mm` of 16-bit floats that is not rounded from float32."""
    return cast(_mm("mm", self, mat2), _wide("mm", out_dtype, self))


@register("bmm.dtype")
def bmm_dtype(self: jax.Array, mat2: jax.Array, out_dtype: Any) -> jax.Array:
    """`bmm` of 16-bit floats that is not rounded from float32."""
    return cast(_bmm("bmm", self, mat2), _wide("bmm", out_dtype, self))


@register("addmm.dtype")
def addmm_dtype(
    self: jax.Array, mat1: jax.Array, mat2: jax.Array, out_dtype: Any, *, beta: Any = 1, alpha: Any = 1
) -> jax.Array:
    """`addmm` of 16-bit floats that is not rounded from float32; ``self`` has either dtype."""
    dtype = _wide("addmm", out_dtype, mat1)
    return _combine("addmm", cast(self, dtype), _mm("addmm", mat1, mat2), beta, alpha, dtype)


@register("baddbmm.dtype")
def baddbmm_dtype(
    self: jax.Array, batch1: jax.Array, batch2: jax.Array, out_dtype: Any, *, beta: Any = 1, alpha: Any = 1
) -> jax.Array:
    """`baddbmm` of 16-bit floats that is not rounded from float32; ``self`` has either dtype."""
    dtype = _wide("baddbmm", out_dtype, batch1)
    return _combine("baddbmm", cast(self, dtype), _bmm("baddbmm", batch1, batch2), beta, alpha, dtype)


# ---- linear and matmul


@register("linear")
def linear(input: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """``input @ weight.T + bias``: ``(..., k)`` and ``(m, k)`` (or ``(k,)``) give ``(..., m)`` (or ``(...)``)."""
    given = {"input": input, "weight": weight}
    need_operands(
        "linear",
        given if bias is None else {**given, "bias": bias},
        [x.ndim for x in given.values()] + [getattr(bias, "ndim", 0)],
    )
    if weight.ndim not in (1, 2) or input.ndim == 0 or input.shape[-1] != weight.shape[-1]:
        raise _mismatch("linear", input, weight)
    product = dot_general(input, weight, ((input.ndim - 1,), (weight.ndim - 1,)))
    if bias is None:
        return cast(product, input.dtype)
    return _combine("linear", bias, product, 1, 1, input.dtype)


@register("linear_backward")
def linear_backward(
    self: jax.Array, grad_output: jax.Array, weight: jax.Array, output_mask: Sequence[bool]
) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
    """Gradients of `linear` by input, weight and bias; ``None`` where ``output_mask`` is False."""
    rows = tuple(range(self.ndim - 1))
    by_input = by_weight = by_bias = None
    if output_mask[0]:
        by_input = cast(dot_general(grad_output, jnp.conj(weight), ((grad_output.ndim - 1,), (0,))), self.dtype)
    if output_mask[1]:
        by_weight = cast(dot_general(grad_output, jnp.conj(self), (rows, rows)), weight.dtype)
    if output_mask[2]:
        by_bias = cast(jnp.sum(cast(grad_output, opmath(grad_output.dtype)), axis=rows), weight.dtype)
    return by_input, by_weight, by_bias


@register("matmul")
def matmul(self: jax.Array, other: jax.Array) -> jax.Array:
    """``torch.matmul``: vectors, matrices and batches that broadcast.

    Raises:
        RuntimeError: an operand is 0-d, dtypes differ, or shapes do not fit.
    """
    if self.ndim == 0 or other.ndim == 0:
        raise RuntimeError(
            f"matmul: both arguments need to be at least 1D, but they are {self.ndim}D and {other.ndim}D"
        )
    need_operands("matmul", {"self": self, "other": other}, (self.ndim, other.ndim))
    try:
        return cast(jnp.matmul(self, other, preferred_element_type=opmath(self.dtype)), self.dtype)
    except (TypeError, ValueError):
        raise _mismatch("matmul", self, other) from None


@register("_trilinear")
def _trilinear(
    i1: jax.Array,
    i2: jax.Array,
    i3: jax.Array,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> jax.Array:
    # with dims named, XLA never forms the product of all three before it sums
    n = i1.ndim + len(expand1)
    operands: list[Any] = []
    for x, expand in ((i1, expand1), (i2, expand2), (i3, expand3)):
        operands += [cast(x, opmath(x.dtype)), [d for d in range(n) if d not in expand]]
    return cast(jnp.einsum(*operands, [d for d in range(n) if d not in sumdim]), i1.dtype)


__all__ = exported(__name__)

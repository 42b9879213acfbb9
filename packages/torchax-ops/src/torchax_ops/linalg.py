"""Linear algebra on finished matrices: solves, inverses, determinants, triangles, distances, the exponential.

The last two dims are the matrix, the others a batch. Factorizations are in `linalg_decompositions`. ``info`` is int32,
zero where all went well, and nothing raises under a trace; with ``check_errors`` an eager call raises.
"""

from __future__ import annotations

import builtins
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchax_ops._promotion import canonical, cast, category, is_complex, opmath
from torchax_ops._registry import exported, register
from torchax_ops._shapes import broadcast_shapes, canonical_dim
from torchax_ops.linalg_decompositions import (
    check_info,
    factor_lu,
    lu_info,
    need_float,
    need_matrix,
    need_square,
    pivots_to_permutation,
)
from torchax_ops.linalg_decompositions import hermitian as as_hermitian
from torchax_ops.reduction import _norm, _root, _sum_dtype

# ---- triangles and traces


def _band(name: str, keep_lower: bool) -> Any:
    @register(name, traced=("diagonal",))
    def fn(self: jax.Array, diagonal: Any = 0) -> jax.Array:
        need_matrix(name, self)
        rows = lax.broadcasted_iota(jnp.int32, self.shape[-2:], 0)
        columns = lax.broadcasted_iota(jnp.int32, self.shape[-2:], 1)
        offset = cast(jnp.clip(diagonal, -(2**30), 2**30), jnp.int32)
        inside = columns - rows <= offset if keep_lower else columns - rows >= offset
        return jnp.where(inside, self, jnp.zeros((), self.dtype))

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"Each matrix with zeros {'above' if keep_lower else 'below'} its ``diagonal``-th diagonal."
    return fn


tril = _band("tril", keep_lower=True)
triu = _band("triu", keep_lower=False)


@register("trace")
def trace(self: jax.Array) -> jax.Array:
    """The sum of a matrix's diagonal, 0-d; integers sum to int64. Raises for bool and where not 2D."""
    if self.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got an array of shape {self.shape}")
    if self.dtype == jnp.bool_:
        raise NotImplementedError('"trace" not implemented for bool')
    dtype = _sum_dtype(self, None)
    diagonal = cast(jnp.diagonal(self), opmath(dtype))
    return cast(jnp.sum(diagonal, dtype=diagonal.dtype), dtype)


@register("linalg_cross")
def linalg_cross(self: jax.Array, other: jax.Array, *, dim: int = -1) -> jax.Array:
    """Cross product along ``dim``, of length 3; the other dims broadcast.

    Raises:
        RuntimeError: dtypes or numbers of dims differ, or ``dim`` is not of length 3.
    """
    if self.ndim != other.ndim:
        raise RuntimeError(
            f"linalg.cross: inputs must have the same number of dimensions, got {self.shape} and {other.shape}"
        )
    axis = canonical_dim(dim, self.ndim)
    if self.ndim == 0 or self.shape[axis] != 3 or other.shape[axis] != 3:
        raise RuntimeError(
            f"linalg.cross: inputs dimension {dim} must have length 3. Got shapes {self.shape}, {other.shape}"
        )
    if self.dtype != other.dtype:
        raise RuntimeError(f"linalg.cross: expected one dtype, but got {self.dtype.name} and {other.dtype.name}")
    shape = broadcast_shapes(self.shape, other.shape)
    a, b = (jnp.moveaxis(jnp.broadcast_to(cast(x, opmath(x.dtype)), shape), axis, 0) for x in (self, other))
    out = jnp.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]], axis=axis)
    return cast(out, self.dtype)


# ---- solving


def _vector_case(A: jax.Array, B: jax.Array) -> bool:
    """PyTorch's rule for ``B`` being a batch of vectors and not of matrices."""
    return B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])


def _batched(*matrices: jax.Array) -> list[jax.Array]:
    batch = broadcast_shapes(*(m.shape[:-2] for m in matrices))
    return [jnp.broadcast_to(m, batch + m.shape[-2:]) for m in matrices]


def _triangular(
    A: jax.Array,
    B: jax.Array,
    *,
    lower: bool,
    left: bool = True,
    transpose: bool = False,
    conjugate: bool = False,
    unit: bool = False,
) -> jax.Array:
    A, B = _batched(A, B)
    if B.size == 0:
        return B
    return lax.linalg.triangular_solve(
        A, B, left_side=left, lower=lower, transpose_a=transpose, conjugate_a=conjugate, unit_diagonal=unit
    )


def _solve_with_lu(LU: jax.Array, permutation: jax.Array, B: jax.Array, left: bool, adjoint: bool) -> jax.Array:
    """``X`` of ``A X = B`` (or ``X A = B``, or with the adjoint of ``A``) for ``A[permutation] = L U``."""
    if not left:
        return jnp.conj(_solve_with_lu(LU, permutation, jnp.conj(B.mT), True, not adjoint)).mT
    batch = broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    B = jnp.broadcast_to(B, batch + B.shape[-2:])
    if adjoint:
        X = _triangular(LU, B, lower=False, transpose=True, conjugate=True)
        X = _triangular(LU, X, lower=True, transpose=True, conjugate=True, unit=True)
        order = jnp.argsort(permutation, axis=-1)
    else:
        X, order = B, permutation
    order = jnp.broadcast_to(order, batch + order.shape[-1:])[..., None]
    X = jnp.take_along_axis(X, jnp.broadcast_to(order, X.shape), axis=-2)
    if adjoint:
        return X
    return _triangular(LU, _triangular(LU, X, lower=True, unit=True), lower=False)


@register("_linalg_solve_ex", check=check_info("torch.linalg.solve_ex", lambda A, B, **kw: factor_lu(A)[0]))
def _linalg_solve_ex(
    A: jax.Array, B: jax.Array, *, left: bool = True, check_errors: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    need_square("linalg.solve", A)
    if A.dtype != B.dtype:
        raise RuntimeError(f"linalg.solve: Expected A and B to have the same dtype, but found {A.dtype} and {B.dtype}")
    vector = _vector_case(A, B)
    if vector and not left:
        raise RuntimeError("linalg.solve: Vector broadcasting of the left hand side is not supported for left=False")
    matrix = B[..., None] if vector else B
    if matrix.ndim < 2 or A.shape[-1] != matrix.shape[-2 if left else -1]:
        raise RuntimeError(f"linalg.solve: Incompatible shapes of A and B for the equation {A.shape} and {B.shape}")
    LU, pivots, permutation = factor_lu(A)
    X = _solve_with_lu(LU, permutation, matrix, left, adjoint=False)
    return X[..., 0] if vector else X, LU, pivots, lu_info(LU)


@register("linalg_inv_ex", check=check_info("linalg.inv_ex", lambda A, **kw: factor_lu(A)[0]))
def linalg_inv_ex(A: jax.Array, *, check_errors: bool = False) -> tuple[jax.Array, jax.Array]:
    """``(inverse, info)``: ``info`` is the place of the first zero on U's diagonal, counted from 1.

    Raises:
        RuntimeError: the matrices are not square, or not float32, float64 or complex.
    """
    need_square("linalg.inv", A)
    LU, _, permutation = factor_lu(A)
    identity = jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)
    return _solve_with_lu(LU, permutation, identity, True, adjoint=False), lu_info(LU)


@register("linalg_lu_solve")
def linalg_lu_solve(
    LU: jax.Array, pivots: jax.Array, B: jax.Array, *, left: bool = True, adjoint: bool = False
) -> jax.Array:
    """``X`` of ``A X = B`` (``X A = B`` unless ``left``; A's adjoint if ``adjoint``) from ``LU`` and ``pivots``."""
    need_square("torch.linalg.lu_solve", LU)
    if LU.dtype != B.dtype:
        raise RuntimeError(f"linalg.lu_solve: expected one dtype, but found LU {LU.dtype.name} and B {B.dtype.name}")
    return _solve_with_lu(LU, pivots_to_permutation(pivots, LU.shape[-1]), B, left, adjoint)


@register("linalg_solve_triangular")
def linalg_solve_triangular(
    self: jax.Array, B: jax.Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> jax.Array:
    """``X`` of ``self X = B`` (``X self = B`` unless ``left``) for a triangular matrix; batches broadcast."""
    need_square("linalg.solve_triangular", self)
    need_matrix("linalg.solve_triangular", B)
    if self.dtype != B.dtype:
        raise RuntimeError(f"linalg.solve_triangular: expected one dtype, but found {self.dtype} and {B.dtype}")
    if self.shape[-1] != B.shape[-2 if left else -1]:
        raise RuntimeError(f"linalg.solve_triangular: Incompatible shapes of A and B: {self.shape} and {B.shape}")
    return _triangular(self, B, lower=not upper, left=left, unit=unitriangular)


@register("triangular_solve")
def triangular_solve(
    self: jax.Array, A: jax.Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[jax.Array, jax.Array]:
    """``X`` of ``A X = self`` (``A.T X`` if ``transpose``), and A as it was broadcast."""
    need_square("triangular_solve", A)
    if self.ndim < 2 or self.shape[-2] != A.shape[-1]:
        raise RuntimeError(f"triangular_solve: Incompatible matrix sizes: A {A.shape} and b {self.shape}")
    B, A = _batched(self, A)
    return _triangular(A, B, lower=not upper, transpose=transpose, unit=unitriangular), A


@register("cholesky_solve", "_cholesky_solve_helper")
def cholesky_solve(self: jax.Array, input2: jax.Array, upper: bool = False) -> jax.Array:
    """``X`` of ``A X = self`` for a Cholesky factor ``input2`` of A, lower unless ``upper``; batches broadcast."""
    need_square("cholesky_solve", input2)
    if self.ndim < 2 or self.shape[-2] != input2.shape[-1]:
        raise RuntimeError(f"cholesky_solve: Incompatible matrix sizes: {input2.shape} and b {self.shape}")
    first = _triangular(input2, self, lower=not upper, transpose=upper, conjugate=upper)
    return _triangular(input2, first, lower=not upper, transpose=not upper, conjugate=not upper)


@register("cholesky_inverse")
def cholesky_inverse(self: jax.Array, upper: bool = False) -> jax.Array:
    """The inverse of the matrix whose Cholesky factor is ``self``, lower unless ``upper``."""
    need_square("cholesky_inverse", self)
    return cholesky_solve(jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape), self, upper)


# ---- determinants


def _sign_and_diagonal(A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    # PyTorch factors the transpose of a real contiguous matrix here, and its backward formula counts on that
    LU, pivots, _ = factor_lu(A if is_complex(A) else A.mT)
    swaps = jnp.sum(pivots != jnp.arange(1, A.shape[-1] + 1, dtype=pivots.dtype), axis=-1)
    sign = cast(1 - 2 * (swaps % 2), A.dtype)
    return sign, jnp.diagonal(LU, axis1=-2, axis2=-1), LU, pivots


@register("_linalg_det")
def _linalg_det(A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    need_square("linalg.det", A)
    sign, diagonal, LU, pivots = _sign_and_diagonal(A)
    return sign * jnp.prod(diagonal, axis=-1), LU, pivots


@register("_linalg_slogdet")
def _linalg_slogdet(A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    need_square("linalg.slogdet", A)
    sign, diagonal, LU, pivots = _sign_and_diagonal(A)
    sizes = jnp.abs(diagonal)
    signs = diagonal / jnp.where(sizes == 0, 1, sizes) if is_complex(A) else jnp.sign(diagonal)
    return sign * jnp.prod(signs, axis=-1), jnp.sum(jnp.log(sizes), axis=-1), LU, pivots


# ---- pseudo-inverse and least squares


@jax.custom_jvp
def _pinv(A: jax.Array, atol: jax.Array, rtol: jax.Array) -> jax.Array:
    U, S, Vh = lax.linalg.svd(A, full_matrices=False)
    top = jnp.max(S, axis=-1, keepdims=True, initial=0)
    keep = jnp.maximum(atol[..., None], rtol[..., None] * top) < S
    inverse = jnp.where(keep, 1 / jnp.where(keep, S, 1), 0)
    return (jnp.conj(Vh.mT) * inverse[..., None, :]) @ jnp.conj(U.mT)


@_pinv.defjvp
def _pinv_jvp(primals: Any, tangents: Any) -> Any:
    # Golub and Pereyra (1973): the derivative of a pseudo-inverse of constant rank
    A, dA = primals[0], tangents[0]
    P = _pinv(*primals)
    Ph, dAh = jnp.conj(P.mT), jnp.conj(dA.mT)
    tall = P @ Ph @ dAh
    wide = dAh @ Ph @ P
    return P, -P @ dA @ P + (tall - (tall @ A) @ P) + (wide - P @ (A @ wide))


def _default_rtol(A: jax.Array) -> float:
    return float(jnp.finfo(A.dtype).eps) * max(A.shape[-2:])


@register("linalg_pinv.atol_rtol_tensor")
def linalg_pinv(
    self: jax.Array, *, atol: jax.Array | None = None, rtol: jax.Array | None = None, hermitian: bool = False
) -> jax.Array:
    """Pseudo-inverse: singular values at or below ``max(atol, rtol * largest)`` count as zero.

    ``rtol`` is ``eps * max(m, n)`` unless given, or 0 where a positive ``atol`` is.
    """
    need_float("linalg.pinv", self)
    need_matrix("linalg.pinv", self)
    if self.size == 0:
        return jnp.zeros(self.mT.shape, self.dtype)
    real, batch = jnp.finfo(self.dtype).dtype, self.shape[:-2]
    absolute = jnp.zeros(batch, real) if atol is None else jnp.broadcast_to(cast(atol, real), batch)
    if rtol is None:
        relative = jnp.where(absolute > 0, jnp.zeros((), real), jnp.asarray(_default_rtol(self), real))
    else:
        relative = jnp.broadcast_to(cast(rtol, real), batch)
    if hermitian:
        self = as_hermitian(self)  # PyTorch reads the lower triangle only
    return _pinv(self, lax.stop_gradient(absolute), lax.stop_gradient(relative))


@register("linalg_lstsq", static=("rcond",))
def linalg_lstsq(
    self: jax.Array, b: jax.Array, rcond: float | None = None, *, driver: str | None = None
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """``(solution, residuals, rank, singular_values)`` of the least squares problem of minimal norm.

    All drivers go through the singular values. What PyTorch leaves empty for a driver is empty; the residuals of gels,
    gelsd and gelss are given for ``m > n`` whatever the rank is, since a shape may not depend on values.
    """
    op = "torch.linalg.lstsq"
    need_float(op, self)
    need_matrix(op, self)
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(f"{op}: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got {driver}")
    if self.dtype != b.dtype:
        raise RuntimeError(f"{op}: expected one dtype, but got {self.dtype.name} and {b.dtype.name}")
    driver = driver or "gelsy"
    m, n = self.shape[-2:]
    vector = _vector_case(self, b)
    B = b[..., None] if vector else b
    if B.ndim < 2 or B.shape[-2] != m:
        raise RuntimeError(f"{op}: input.size(-2) should match other.size(-2), but got {self.shape} and {b.shape}")
    batch = broadcast_shapes(self.shape[:-2], B.shape[:-2])
    real = jnp.finfo(self.dtype).dtype
    rtol = _default_rtol(self) if rcond is None or rcond < 0 else rcond
    zeros = jnp.zeros(self.shape[:-2], real)
    pinv = _pinv(self, zeros, zeros + rtol) if self.size else jnp.zeros(self.mT.shape, self.dtype)
    X = pinv @ B
    long = canonical("int64")
    residuals, rank, values = jnp.zeros(0, real), jnp.zeros(0, long), jnp.zeros(0, real)
    if driver != "gels":
        S = lax.linalg.svd(lax.stop_gradient(self), compute_uv=False)
        top = jnp.max(S, axis=-1, keepdims=True, initial=0)
        rank = jnp.broadcast_to(jnp.sum(rtol * top < S, axis=-1, dtype=long), batch)
        if driver != "gelsy":
            values = jnp.broadcast_to(S, batch + S.shape[-1:])
    if m > n and driver != "gelsy":
        missed = jnp.abs(self @ X - B)
        residuals = jnp.sum(missed * missed, axis=-2)
    return X[..., 0] if vector else X, residuals, rank, values


# ---- functions of a matrix


_LARGEST_NORM = {4: 3.0, 8: 1.09}  # by itemsize of the real dtype: up to it Taylor's polynomial of degree 18 is exact


def _taylor_exp(a: jax.Array) -> jax.Array:
    """``exp(a)`` for a small ``a``, to degree 18: four terms at a time, which takes seven products."""
    eye = jnp.eye(a.shape[-1], dtype=a.dtype)
    a2 = a @ a
    powers = (eye, a, a2, a2 @ a)
    fourth = a2 @ a2

    def terms(start: int, count: int) -> jax.Array:
        return builtins.sum(powers[i] / math.factorial(start + i) for i in range(count))  # type: ignore[return-value]

    total = terms(16, 3)
    for start in (12, 8, 4, 0):
        total = terms(start, 4) + fourth @ total
    return total


@register("linalg_matrix_exp")
def linalg_matrix_exp(self: jax.Array) -> jax.Array:
    """The matrix exponential, by a Taylor polynomial, scaling and squaring: no solve, which would lose digits.

    Raises:
        RuntimeError: ``self`` is of integers, or not square.
    """
    need_square("linalg.matrix_exp", self, low=True)
    if self.size == 0:
        return self
    a = cast(self, opmath(self.dtype))
    norm = jnp.max(jnp.sum(jnp.abs(lax.stop_gradient(a)), axis=-2), axis=-1)[..., None, None]
    _, squarings = jnp.frexp(norm / _LARGEST_NORM[norm.dtype.itemsize])
    squarings = jnp.clip(squarings, 0, 64)

    def square(x: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        return lax.cond(i < jnp.max(squarings), lambda x: jnp.where(i < squarings, x @ x, x), lambda x: x, x), None

    result = _taylor_exp(a * jnp.ldexp(jnp.ones_like(norm), -squarings))
    return cast(lax.scan(square, result, jnp.arange(64))[0], self.dtype)


# ---- distances


def _difference(x1: jax.Array, x2: jax.Array) -> jax.Array:
    return x1[..., :, None, :] - x2[..., None, :, :]


def _euclidean(x1: jax.Array, x2: jax.Array) -> jax.Array:
    """Distances by one matrix product; less exact where points are close."""
    s1 = jnp.sum(x1 * x1, axis=-1, keepdims=True)
    s2 = jnp.sum(x2 * x2, axis=-1, keepdims=True)
    x1 = jnp.concatenate([-2 * x1, s1, jnp.ones_like(s1)], axis=-1)
    x2 = jnp.concatenate([x2, jnp.ones_like(s2), s2], axis=-1)
    return _root(jnp.maximum(x1 @ x2.mT, 0))


@register("_euclidean_dist")
def _euclidean_dist(x1: jax.Array, x2: jax.Array) -> jax.Array:
    return _euclidean(x1, x2)


@register("_cdist_forward", static=("p",))
def _cdist_forward(x1: jax.Array, x2: jax.Array, p: float, compute_mode: int | None) -> jax.Array:
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(f"cdist: X1 and X2 must have the same number of columns. X1: {x1.shape} X2: {x2.shape}")
    if not (category(x1.dtype) == category(x2.dtype) == 2):
        raise RuntimeError(f"cdist only supports floating-point dtypes, got {x1.dtype.name} and {x2.dtype.name}")
    if p < 0:
        raise RuntimeError(f"cdist only supports non-negative p values, but got {p}")
    if not (x1.dtype == x2.dtype and x1.dtype.itemsize >= 4):
        raise NotImplementedError(f'"cdist" not implemented for {x1.dtype.name} and {x2.dtype.name}')
    many = x1.shape[-2] > 25 or x2.shape[-2] > 25
    if p == 2 and (compute_mode == 1 or (not compute_mode and many)):
        return _euclidean(*_batched(x1, x2))
    return _norm(_difference(x1, x2), p, (-1,), False)


def _distance_slope(difference: jax.Array, distance: jax.Array, p: float) -> jax.Array:
    """The derivative of a ``p`` norm by its vector, with PyTorch's choices where there is none."""
    sign, size = jnp.sign(difference), jnp.abs(difference)
    if p == 0:
        return jnp.zeros_like(difference)
    if p == 1:
        return sign
    if math.isinf(p):
        return sign * cast(size == distance, size.dtype)
    none = distance == 0
    if p < 1:
        none = none | (size == 0)
    if p == 2:
        return jnp.where(none, 0, difference / jnp.where(none, 1, distance))
    power = jnp.where(none, 0, size) ** (p - 1) if p > 1 else jnp.where(none, 1, size) ** (p - 1)
    return jnp.where(none, 0, sign * power / jnp.where(none, 1, distance) ** (p - 1))


@register("_cdist_backward", static=("p",))
def _cdist_backward(grad: jax.Array, x1: jax.Array, x2: jax.Array, p: float, cdist: jax.Array) -> jax.Array:
    # not the vjp of the forward: PyTorch's slopes at zero and among equal maxima are its own
    slope = _distance_slope(_difference(x1, x2), cdist[..., None], p)
    out = jnp.sum(grad[..., None] * slope, axis=-2)
    # x1 may have been broadcast over x2's batch
    extra = out.ndim - x1.ndim
    stretched = [d for d in range(out.ndim) if d < extra or (x1.shape[d - extra] == 1 and out.shape[d] != 1)]
    return jnp.sum(out, axis=stretched, keepdims=True).reshape(x1.shape) if stretched else out


def _pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(n, 1)


@register("_pdist_forward", static=("p",))
def _pdist_forward(self: jax.Array, p: float = 2.0) -> jax.Array:
    i, j = _pairs(self.shape[0])
    return _norm(self[i] - self[j], p, (-1,), False)


@register("_pdist_backward", static=("p",))
def _pdist_backward(grad: jax.Array, self: jax.Array, p: float, pdist: jax.Array) -> jax.Array:
    i, j = _pairs(self.shape[0])
    share = grad[:, None] * _distance_slope(self[i] - self[j], pdist[:, None], p)
    return jnp.zeros_like(self).at[i].add(share).at[j].add(-share)


__all__ = exported(__name__)

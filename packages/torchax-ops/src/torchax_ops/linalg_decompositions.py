"""Factorizations of matrices: LU, Cholesky, QR, eigenvalues, singular values, LDL.

The last two dims are the matrix, the others a batch. ``info`` is int32 and zero where all went well. What PyTorch
leaves out of a result (``compute_v=False``) is an empty 1D array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchax_ops._promotion import cast, category, is_complex
from torchax_ops._registry import exported, register

# ---- what every operator here checks


def need_matrix(op: str, A: jax.Array) -> None:
    if A.ndim < 2:
        raise RuntimeError(f"{op}: The input tensor must have at least 2 dimensions, but got shape {A.shape}")


def need_float(op: str, A: jax.Array, *, low: bool = False) -> None:
    if category(A.dtype) < 2:
        raise RuntimeError(f"{op}: Expected a floating point or complex tensor as input. Got {A.dtype.name}")
    if A.dtype.itemsize < 4 and not low:
        raise RuntimeError(f"{op}: Low precision dtypes not supported. Got {A.dtype.name}; convert to float32")


def need_square(op: str, A: jax.Array, *, low: bool = False) -> None:
    need_matrix(op, A)
    if A.shape[-1] != A.shape[-2]:
        raise RuntimeError(f"{op}: A must be batches of square matrices, but they are of shape {A.shape}")
    need_float(op, A, low=low)


def check_info(op: str, factor: Callable[..., Any], what: str = "singular") -> Callable[..., None]:
    """A check that, with ``check_errors``, looks at the factor of an eager call and raises as PyTorch does."""

    def check(*args: Any, check_errors: bool = False, **kwargs: Any) -> None:
        if check_errors:
            raise_info(op, factor(*args, **kwargs), what)

    return check


def raise_info(op: str, factor: jax.Array, what: str) -> None:
    info = np.asarray(_cholesky_info(factor[1], factor[0]) if isinstance(factor, tuple) else lu_info(factor))  # type: ignore[unreachable]
    bad = np.flatnonzero(info)
    if bad.size:
        where = f"(Batch element {bad[0]}): " if info.ndim else ""
        place = info.reshape(-1)[bad[0]]
        why = (
            f"the leading minor of order {place} is not positive-definite"
            if what == "not positive-definite"
            else f"the diagonal element {place} is zero"
        )
        raise np.linalg.LinAlgError(
            f"{op}: {where}It could not be completed because the input matrix is {what} ({why})."
        )


_EMPTY = (0,)


# ---- LU


def factor_lu(A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``LU``, LAPACK's pivots (int32, from 1) and the row permutation."""
    LU, pivots, permutation = lax.linalg.lu(A)
    return LU, cast(pivots + 1, jnp.int32), permutation


def lu_info(LU: jax.Array) -> jax.Array:
    """The place of the first zero on U's diagonal, from 1; 0 where there is none."""
    zero = jnp.diagonal(LU, axis1=-2, axis2=-1) == 0
    if zero.shape[-1] == 0:
        return jnp.zeros(zero.shape[:-1], jnp.int32)
    return jnp.where(jnp.any(zero, axis=-1), lax.argmax(zero, zero.ndim - 1, jnp.int32) + 1, 0).astype(jnp.int32)


def pivots_to_permutation(pivots: jax.Array, n: int) -> jax.Array:
    """The rows' order after LAPACK's interchanges."""
    if pivots.shape[-1] == 0 or pivots.size == 0:
        return jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (*pivots.shape[:-1], n))
    return lax.linalg.lu_pivots_to_permutation(cast(pivots, jnp.int32) - 1, n)


def _need_pivot(pivot: bool) -> None:
    if not pivot:
        raise RuntimeError("linalg.lu_factor: LU without pivoting is not implemented on the CPU, nor here")


@register("linalg_lu_factor_ex", check=check_info("torch.linalg.lu_factor_ex", lambda A, **kw: factor_lu(A)[0]))
def linalg_lu_factor_ex(
    A: jax.Array, *, pivot: bool = True, check_errors: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``(LU, pivots, info)`` of ``(..., m, n)`` with row interchanges, as LAPACK's getrf."""
    need_matrix("torch.linalg.lu_factor", A)
    need_float("torch.linalg.lu_factor", A)
    _need_pivot(pivot)
    LU, pivots, _ = factor_lu(A)
    return LU, pivots, lu_info(LU)


def _unpack(LU: jax.Array) -> tuple[jax.Array, jax.Array]:
    m, n = LU.shape[-2:]
    k = min(m, n)
    lower = jnp.tril(LU[..., :, :k], -1) + jnp.eye(m, k, dtype=LU.dtype)
    return lower, jnp.triu(LU[..., :k, :])


def _permutation_matrix(permutation: jax.Array, dtype: Any) -> jax.Array:
    n = permutation.shape[-1]
    return cast(jnp.arange(n, dtype=permutation.dtype)[:, None] == permutation[..., None, :], dtype)


@register("linalg_lu")
def linalg_lu(A: jax.Array, *, pivot: bool = True) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``(P, L, U)`` with ``A = P L U``, P a permutation matrix in A's dtype."""
    need_matrix("linalg.lu", A)
    need_float("linalg.lu", A)
    _need_pivot(pivot)
    LU, _, permutation = factor_lu(A)
    return _permutation_matrix(permutation, A.dtype), *_unpack(LU)


@register("lu_unpack")
def lu_unpack(
    LU_data: jax.Array, LU_pivots: jax.Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``(P, L, U)`` from what `linalg_lu_factor_ex` gave; what is not asked for is an empty 1D array."""
    if unpack_pivots and LU_pivots.dtype != jnp.int32:
        raise RuntimeError(f"lu_unpack: LU_pivots is expected to be int32, but got {LU_pivots.dtype.name}")
    P = L = U = jnp.zeros(_EMPTY, LU_data.dtype)
    if unpack_pivots:
        P = _permutation_matrix(pivots_to_permutation(LU_pivots, LU_data.shape[-2]), LU_data.dtype)
    if unpack_data:
        L, U = _unpack(LU_data)
    return P, L, U


# ---- Cholesky


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def hermitian(A: jax.Array, upper: bool = False) -> jax.Array:
    """The Hermitian matrix of one triangle of ``A``; its gradient is, as in PyTorch, that of all of ``A``."""
    half = jnp.conj(A.mT) if upper else A
    lower = jnp.tril(half, -1)
    diagonal = cast(jnp.diagonal(A, axis1=-2, axis2=-1).real, A.dtype)
    return lower + jnp.conj(lower.mT) + diagonal[..., None] * jnp.eye(A.shape[-1], dtype=A.dtype)


@hermitian.defjvp
def _hermitian_jvp(upper: bool, primals: Any, tangents: Any) -> Any:
    return hermitian(primals[0], upper), tangents[0]


def _cholesky(A: jax.Array, upper: bool) -> jax.Array:
    if A.size == 0:
        return A
    lower = lax.linalg.cholesky(hermitian(A, upper))  # symmetrizing changes no value here, and shares the gradient
    return jnp.conj(lower.mT) if upper else lower


def _first_bad_minor(A: jax.Array) -> jax.Array:
    """The order of the first leading minor of ``A`` (lower triangle) that is not positive, by elimination."""
    n = A.shape[-1]
    A = jnp.tril(A)

    def step(k: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        A, info = state
        pivot = A[..., k, k].real
        good = (info == 0) & (pivot > 0)
        info = jnp.where((info == 0) & ~good, k + 1, info).astype(jnp.int32)
        column = jnp.where(jnp.arange(n) > k, A[..., :, k], 0) / jnp.sqrt(jnp.where(good, pivot, 1))[..., None]
        return A - column[..., :, None] * jnp.conj(column)[..., None, :], info

    return lax.fori_loop(0, n, step, (A, jnp.zeros(A.shape[:-2], jnp.int32)))[1]


def _cholesky_info(factor: jax.Array, A: jax.Array) -> jax.Array:
    """Zero where a lower factor was found; else which minor failed, sought only if one did."""
    if A.size == 0:
        return jnp.zeros(A.shape[:-2], jnp.int32)
    failed = jnp.any(jnp.isnan(factor), axis=(-2, -1))
    info = lax.cond(
        jnp.any(failed), _first_bad_minor, lambda A: jnp.zeros(A.shape[:-2], jnp.int32), lax.stop_gradient(A)
    )
    return jnp.where(failed, info, 0)


def _cholesky_pair(self: jax.Array, *, upper: bool = False) -> tuple[jax.Array, jax.Array]:
    """A matrix whose lower triangle matters, and the factor."""
    return jnp.conj(self.mT) if upper else self, _cholesky(self, upper)


@register("linalg_cholesky_ex", check=check_info("linalg.cholesky_ex", _cholesky_pair, "not positive-definite"))
def linalg_cholesky_ex(
    self: jax.Array, *, upper: bool = False, check_errors: bool = False
) -> tuple[jax.Array, jax.Array]:
    """``(L, info)``; where a matrix is not positive-definite ``info`` is the order of its first bad minor, L is NaN."""
    need_square("linalg.cholesky", self)
    A, factor = _cholesky_pair(self, upper=upper)
    return factor, _cholesky_info(factor, A)


def _check_cholesky(self: jax.Array, upper: bool = False) -> None:
    raise_info("cholesky", _cholesky_pair(self, upper=upper), "not positive-definite")  # type: ignore[arg-type]


@register("cholesky", check=_check_cholesky)
def cholesky(self: jax.Array, upper: bool = False) -> jax.Array:
    """The Cholesky factor, lower unless ``upper``; without one an eager call raises, a traced one gives NaN."""
    need_square("cholesky", self)
    return _cholesky(self, upper)


# ---- QR and reflectors


@register("linalg_qr")
def linalg_qr(A: jax.Array, mode: str = "reduced") -> tuple[jax.Array, jax.Array]:
    """``(Q, R)``; ``mode`` is "reduced", "complete" or "r" (Q empty, R reduced)."""
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(f"qr received unrecognized mode '{mode}' but expected 'reduced', 'r', or 'complete'")
    need_matrix("linalg.qr", A)
    need_float("linalg.qr", A)
    m, n = A.shape[-2:]
    if m < n:
        # JAX differentiates tall factors only; Q comes from the first m columns, and the others follow from it
        Q, R = lax.linalg.qr(A[..., :m], full_matrices=False)
        R = jnp.concatenate([R, jnp.conj(Q.mT) @ A[..., m:]], axis=-1)
    else:
        Q, R = lax.linalg.qr(A, full_matrices=mode == "complete")
    return jnp.zeros(_EMPTY, A.dtype) if mode == "r" else Q, R


@register("geqrf")
def geqrf(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``(a, tau)``: R above the diagonal, the Householder vectors below, and their factors, as LAPACK's geqrf."""
    need_matrix("geqrf", self)
    need_float("geqrf", self)
    if self.size == 0:
        return self, jnp.zeros((*self.shape[:-2], min(self.shape[-2:])), self.dtype)
    a, tau = jnp.linalg.qr(self, mode="raw")
    return a.mT, tau


def _reflect(a: jax.Array, tau: jax.Array, C: jax.Array, adjoint: bool) -> jax.Array:
    """``Q @ C``, or the adjoint of Q, for ``Q = H_1 ... H_k`` given by Householder vectors below ``a``'s diagonal."""
    k = tau.shape[-1]
    if k == 0 or C.size == 0:
        return C
    vectors = jnp.tril(a[..., :k], -1) + jnp.eye(a.shape[-2], k, dtype=a.dtype)
    scales = jnp.conj(tau) if adjoint else tau

    def apply(C: jax.Array, reflector: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        v, t = reflector
        return C - (t[..., None, None] * v[..., :, None]) * (jnp.conj(v)[..., None, :] @ C), None

    by_step = (jnp.moveaxis(vectors, -1, 0), jnp.moveaxis(scales, -1, 0))
    return lax.scan(apply, C, by_step, reverse=not adjoint)[0]


def _columns_of_q(input: jax.Array, tau: jax.Array) -> jax.Array:
    identity = jnp.broadcast_to(jnp.eye(*input.shape[-2:], dtype=input.dtype), input.shape)  # type: ignore[arg-type, misc]
    return _reflect(input, tau, identity, adjoint=False)


@jax.custom_jvp
def _householder(input: jax.Array, tau: jax.Array) -> jax.Array:
    return lax.linalg.householder_product(input, tau)


@_householder.defjvp
def _householder_jvp(primals: Any, tangents: Any) -> Any:
    return jax.jvp(_columns_of_q, primals, tangents)


@register("linalg_householder_product")
def linalg_householder_product(input: jax.Array, tau: jax.Array) -> jax.Array:
    """The first n columns of the product of the reflectors that ``input`` ``(..., m, n)`` and ``tau`` hold."""
    op = "torch.linalg.householder_product"
    need_matrix(op, input)
    need_float(op, input)
    if input.shape[-2] < input.shape[-1] or tau.shape[-1] > input.shape[-1]:
        raise RuntimeError(f"{op}: expected m >= n >= k, but got input {input.shape} and tau {tau.shape}")
    if tau.dtype != input.dtype or tau.shape[:-1] != input.shape[:-2]:
        raise RuntimeError(
            f"{op}: tau {tau.shape} {tau.dtype.name} does not fit input {input.shape} {input.dtype.name}"
        )
    return _householder(input, tau) if input.size else input


@register("ormqr")
def ormqr(
    self: jax.Array, input2: jax.Array, input3: jax.Array, left: bool = True, transpose: bool = False
) -> jax.Array:
    """``Q @ input3`` (``input3 @ Q`` unless ``left``, Q's adjoint if ``transpose``), Q from ``self`` and ``input2``."""
    need_matrix("ormqr", self)
    need_matrix("ormqr", input3)
    if input3.shape[-2 if left else -1] != self.shape[-2]:
        raise RuntimeError(
            f"ormqr: other.shape[{-2 if left else -1}] must fit input, but got {input3.shape}, {self.shape}"
        )
    if left:
        return _reflect(self, input2, input3, adjoint=transpose)
    return jnp.conj(_reflect(self, input2, jnp.conj(input3.mT), adjoint=not transpose).mT)


# ---- eigenvalues and singular values


@register("_linalg_eigh")
def _linalg_eigh(A: jax.Array, UPLO: str = "L", compute_v: bool = True) -> tuple[jax.Array, jax.Array]:
    need_square("linalg.eigh", A)
    if UPLO.upper() not in ("L", "U"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    vectors, values = lax.linalg.eigh(hermitian(A, UPLO.upper() == "U"), symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros(_EMPTY, A.dtype)


@jax.custom_jvp
def _eig(A: jax.Array) -> tuple[jax.Array, jax.Array]:
    values, vectors = lax.linalg.eig(A, compute_left_eigenvectors=False)
    return values, vectors


@_eig.defjvp
def _eig_jvp(primals: Any, tangents: Any) -> Any:
    # Boeddeker et al. (2017), with LAPACK's vectors of unit norm: a change along a vector itself is taken out
    values, vectors = _eig(*primals)
    inner = jnp.linalg.solve(vectors, tangents[0].astype(vectors.dtype) @ vectors)
    gaps = values[..., None, :] - values[..., :, None]
    diagonal = jnp.eye(values.shape[-1], dtype=bool)
    moved = jnp.where(diagonal, 0, inner / jnp.where(diagonal, 1, gaps))
    change = vectors @ moved
    along = jnp.sum(jnp.conj(vectors) * change, axis=-2, keepdims=True).real
    return (values, vectors), (jnp.diagonal(inner, axis1=-2, axis2=-1), change - vectors * along)


def _check_eig(A: jax.Array) -> None:
    if not np.isfinite(A).all():
        raise RuntimeError("torch.linalg.eig: input tensor should not contain infs or NaNs.")


@register("linalg_eig", check=_check_eig)
def linalg_eig(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``(eigenvalues, eigenvectors)`` of square matrices, complex; vectors have unit norm."""
    need_square("linalg.eig", self)
    return _eig(self)


@register("_linalg_eigvals", check=_check_eig)
def _linalg_eigvals(self: jax.Array) -> jax.Array:
    need_square("linalg.eigvals", self)
    return _eig(self)[0]


def _check_svd(A: jax.Array, *args: Any, **kwargs: Any) -> None:
    if not np.isfinite(A).all():
        raise np.linalg.LinAlgError(
            "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values."
        )


@jax.custom_jvp
def _svd_full(A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    U, S, Vh = lax.linalg.svd(A, full_matrices=True)
    return U, S, Vh


@_svd_full.defjvp
def _svd_full_jvp(primals: Any, tangents: Any) -> Any:
    # JAX has no rule for full matrices. As in PyTorch the columns beyond the thin factors are taken as constant.
    # Source: https://j-towns.github.io/papers/svd-derivative.pdf
    A, dA = primals[0], tangents[0]
    m, n = A.shape[-2:]
    k = min(m, n)
    U_full, S, Vh_full = _svd_full(A)
    U, Vh = U_full[..., :k], Vh_full[..., :k, :]
    adjoint = lambda x: jnp.conj(x.mT)  # noqa: E731
    inner = adjoint(U) @ dA @ adjoint(Vh)
    gaps = (S[..., None, :] - S[..., :, None]) * (S[..., None, :] + S[..., :, None])
    F = jnp.where(gaps == 0, 0, 1 / jnp.where(gaps == 0, 1, gaps))
    right, left = inner * S[..., None, :], S[..., :, None] * inner
    turn_u, turn_v = F * (right + adjoint(right)), F * (left + adjoint(left))
    if is_complex(A):
        phase = (jnp.diagonal(inner, axis1=-2, axis2=-1).imag / S * 0.5)[..., None] * jnp.eye(k, dtype=S.dtype)
        turn_u, turn_v = turn_u + 1j * phase, turn_v - 1j * phase
    dU, dVh = U @ turn_u, adjoint(turn_v) @ Vh
    if m > n:
        moved = (dA @ adjoint(Vh)) / S[..., None, :]
        dU = dU + moved - U @ (adjoint(U) @ moved)
    else:
        moved = (adjoint(U) @ dA) / S[..., :, None]
        dVh = dVh + moved - (moved @ adjoint(Vh)) @ Vh
    dU = jnp.concatenate([dU, jnp.zeros_like(U_full[..., k:])], axis=-1)
    dVh = jnp.concatenate([dVh, jnp.zeros_like(Vh_full[..., k:, :])], axis=-2)
    return (U_full, S, Vh_full), (dU, jnp.diagonal(inner, axis1=-2, axis2=-1).real, dVh)


@register("_linalg_svd", check=_check_svd)
def _linalg_svd(
    A: jax.Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    need_matrix("linalg.svd", A)
    need_float("linalg.svd", A)
    if driver is not None:
        raise RuntimeError(
            "torch.linalg.svd: keyword argument `driver=` is only supported on CUDA inputs with cuSOLVER"
        )
    if not compute_uv:
        empty = jnp.zeros(_EMPTY, A.dtype)
        return empty, lax.linalg.svd(A, compute_uv=False), empty
    if full_matrices and A.shape[-1] != A.shape[-2]:
        return _svd_full(A)
    U, S, Vh = lax.linalg.svd(A, full_matrices=False)
    return U, S, Vh


# ---- LDL

_ALPHA = (1 + 17**0.5) / 8


def _swap(x: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
    """``x`` with rows i and j exchanged."""
    a, b = x[i], x[j]
    return x.at[i].set(b).at[j].set(a)


def _ldl(A: jax.Array, hermitian: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """LAPACK's sytf2 (or hetf2) on one lower triangle: Bunch and Kaufman's pivots, 1 by 1 or 2 by 2."""
    n = A.shape[-1]
    at = jnp.arange(n, dtype=jnp.int32)
    flip = jnp.conj if hermitian else lambda x: x
    lower = jnp.tril(A, -1)
    diagonal = jnp.diagonal(A)
    S = lower + flip(lower.T) + jnp.diag(diagonal.real.astype(A.dtype) if hermitian else diagonal)
    size = (lambda x: jnp.abs(x.real) + jnp.abs(x.imag)) if is_complex(A) else jnp.abs

    def step(state: Any) -> Any:
        S, out, pivots, info, k = state
        column = size(S[:, k])
        here, below = column[k], jnp.where(at > k, column, -1)
        imax = lax.argmax(below, 0, jnp.int32)
        top = jnp.maximum(below[imax], 0)
        row = jnp.max(jnp.where((at >= k) & (at != imax), size(S[imax]), 0))
        empty = jnp.maximum(here, top) == 0
        stay = empty | (here >= _ALPHA * top) | (here * row >= _ALPHA * top * top)
        other = ~stay & (size(S[imax, imax]) >= _ALPHA * row)
        two = ~stay & ~other
        kk = jnp.where(two, k + 1, k)
        kp = jnp.where(stay, k, imax)
        S = _swap(_swap(S, kk, kp).T, kk, kp).T
        info = jnp.where((info == 0) & empty, k + 1, info)

        k1 = jnp.minimum(k + 1, n - 1)
        d11, d21, d22 = S[k, k], S[k1, k], S[k1, k1]
        # one pivot: column / d11; two: columns times the inverse of [[d11, d12], [d21, d22]]
        rest1, rest2 = at > k, at > k + 1
        single = jnp.where(rest1, S[:, k] / jnp.where(d11 == 0, 1, d11), 0)
        det = d11 * d22 - d21 * flip(d21)
        det = jnp.where(det == 0, 1, det)
        a, b = S[:, k], S[:, k1]
        first = jnp.where(rest2, (a * d22 - b * d21) / det, 0)
        second = jnp.where(rest2, (b * d11 - a * flip(d21)) / det, 0)
        one = S - d11 * single[:, None] * flip(single)[None, :]
        both = S - (a[:, None] * flip(first)[None, :] + b[:, None] * flip(second)[None, :])
        S = jnp.where(two, both, one)

        left = jnp.where(two, first.at[k].set(d11).at[k1].set(d21), single.at[k].set(d11))
        out = out.at[:, k].set(jnp.where(at >= k, left, 0))
        out = jnp.where(two, out.at[:, k1].set(second.at[k1].set(d22)), out)
        mark = jnp.where(two, -(kp + 1), kp + 1)
        pivots = pivots.at[k].set(mark)
        pivots = jnp.where(two, pivots.at[k1].set(mark), pivots)
        return S, out, pivots, info, jnp.where(two, k + 2, k + 1)

    start = (S, jnp.zeros_like(S), jnp.zeros(n, jnp.int32), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
    _, out, pivots, info, _ = lax.while_loop(lambda state: state[4] < n, step, start)
    return out, pivots, info


def _over_batch(fn: Callable[..., Any], count: int) -> Callable[..., Any]:
    for _ in range(count):
        fn = jax.vmap(fn)
    return fn


@register("linalg_ldl_factor_ex")
def linalg_ldl_factor_ex(
    self: jax.Array, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``(LD, pivots, info)`` of symmetric (or ``hermitian``) matrices, of which the lower triangle is read.

    Compact, as LAPACK's sytrf and hetrf have it. Source: Bunch and Kaufman (1977), algorithm A.
    """
    need_square("torch.linalg.ldl_factor_ex", self)
    if self.size == 0:
        batch = self.shape[:-2]
        return self, jnp.zeros((*batch, self.shape[-1]), jnp.int32), jnp.zeros(batch, jnp.int32)
    return _over_batch(lambda A: _ldl(A, hermitian and is_complex(A)), self.ndim - 2)(self)


def _ldl_solve(LD: jax.Array, pivots: jax.Array, B: jax.Array, hermitian: bool) -> jax.Array:
    n = LD.shape[-1]
    at = jnp.arange(n, dtype=jnp.int32)
    flip = jnp.conj if hermitian else lambda x: x
    # a negative pivot and the one after it make a pair; which of the two a place is follows by counting
    negative = pivots < 0
    pairs = lax.scan(lambda odd, neg: (neg & ~odd, neg & ~odd), jnp.zeros((), bool), negative)[1]
    following = jnp.concatenate([jnp.zeros(1, bool), pairs[:-1]])
    target = jnp.abs(pivots) - 1

    def column(k: jax.Array) -> jax.Array:
        return jnp.where(at > jnp.where(pairs[k], k + 1, k), LD[:, k], 0)

    def down(B: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
        kk = jnp.where(pairs[k], jnp.minimum(k + 1, n - 1), k)
        B = jnp.where(following[k], B, _swap(B, kk, target[k]))
        return B - column(k)[:, None] * B[k][None, :], None

    def up(B: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
        B = B.at[k].add(-(flip(column(k)) @ B))
        kk = jnp.where(pairs[k], jnp.minimum(k + 1, n - 1), k)
        return jnp.where(following[k], B, _swap(B, kk, target[k])), None

    B = lax.scan(down, B, at)[0]
    d = jnp.diagonal(LD)
    d = d.real.astype(LD.dtype) if hermitian else d
    off = jnp.where(pairs[:-1], jnp.diagonal(LD, -1), 0)
    zero = jnp.zeros(1, LD.dtype)
    next_d, last_d = jnp.concatenate([d[1:], d[:1]]), jnp.concatenate([d[-1:], d[:-1]])
    to_next, to_last = jnp.concatenate([off, zero]), jnp.concatenate([zero, off])
    next_B, last_B = jnp.roll(B, -1, 0), jnp.roll(B, 1, 0)
    one = B / d[:, None]
    head_det, tail_det = d * next_d - to_next * flip(to_next), d * last_d - to_last * flip(to_last)
    head = (next_d[:, None] * B - flip(to_next)[:, None] * next_B) / jnp.where(pairs, head_det, 1)[:, None]
    tail = (last_d[:, None] * B - to_last[:, None] * last_B) / jnp.where(following, tail_det, 1)[:, None]
    B = jnp.where(pairs[:, None], head, jnp.where(following[:, None], tail, one))
    return lax.scan(up, B, at, reverse=True)[0]


@register("linalg_ldl_solve")
def linalg_ldl_solve(LD: jax.Array, pivots: jax.Array, B: jax.Array, *, hermitian: bool = False) -> jax.Array:
    """``X`` of ``A X = B`` for a factor of A from `linalg_ldl_factor_ex`; batches broadcast."""
    op = "torch.linalg.ldl_solve"
    need_square(op, LD)
    need_matrix(op, B)
    if LD.dtype != B.dtype or LD.shape[-1] != B.shape[-2]:
        raise RuntimeError(f"{op}: LD {LD.shape} {LD.dtype.name} does not fit B {B.shape} {B.dtype.name}")
    batch = jnp.broadcast_shapes(LD.shape[:-2], B.shape[:-2])
    LD, B = (jnp.broadcast_to(x, batch + x.shape[-2:]) for x in (LD, B))
    pivots = jnp.broadcast_to(pivots, batch + pivots.shape[-1:])
    if B.size == 0:
        return B
    solve = _over_batch(lambda L, p, b: _ldl_solve(L, p, b, hermitian and is_complex(L)), len(batch))
    return solve(LD, pivots, B)


__all__ = exported(__name__)

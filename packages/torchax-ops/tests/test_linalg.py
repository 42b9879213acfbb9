"""Solves, factorizations and distances: by what they must satisfy, and against numpy."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from torchax_ops import _registry, linalg, linalg_decompositions

RNG = np.random.default_rng(0)


def compiled(fn):
    """``fn`` with each call in one ``jax.jit``, as torchax calls it, and with numpy results, to compare without JAX."""

    def call(*args, **kwargs):
        arrays = {i: x for i, x in enumerate(args) if isinstance(x, (np.ndarray, jax.Array))}
        out = jax.jit(lambda arrays: fn(*(arrays.get(i, x) for i, x in enumerate(args)), **kwargs))(arrays)
        traced = any(isinstance(x, jax.core.Tracer) for x in args)
        return out if traced else jax.tree.map(np.asarray, out)

    return call


def operators(module):
    own = [op.fn for op in _registry.registered() if op.fn.__module__ == module.__name__]
    return SimpleNamespace(**{fn.__name__: compiled(fn) for fn in own})


L, D = operators(linalg), operators(linalg_decompositions)


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def rand(*shape, dtype=np.float64):
    x = RNG.normal(size=shape)
    return (x + 1j * RNG.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def positive(n, dtype=np.float64):
    x = rand(n, n, dtype=dtype)
    return x @ x.conj().T + np.eye(n)


def adjoint(x):
    return np.conj(np.swapaxes(x, -1, -2))


def close(actual, expected, tol=1e-9):
    assert np.shape(actual) == np.shape(expected)
    np.testing.assert_allclose(actual, expected, rtol=tol, atol=tol)


Z = np.complex128
TYPES = pytest.mark.parametrize("dtype", [np.float64, Z])


def test_solves():
    A, B = rand(2, 4, 4, dtype=Z), rand(2, 4, 3, dtype=Z)
    X, LU, pivots, info = L._linalg_solve_ex(A, B)
    assert (X.dtype, pivots.dtype, info.dtype, info.shape) == (Z, np.int32, np.int32, (2,))
    close(A @ X, B)
    close(L._linalg_solve_ex(A, adjoint(B), left=False)[0] @ A, adjoint(B))
    close((A[0] @ L._linalg_solve_ex(A[0], B[0, :, 0])[0]), B[0, :, 0])
    close(A @ L.linalg_inv_ex(A)[0], np.broadcast_to(np.eye(4), A.shape))
    close(A @ L.linalg_lu_solve(LU, pivots, B), B)
    close(adjoint(A) @ L.linalg_lu_solve(LU, pivots, B, adjoint=True), B)
    close(L.linalg_lu_solve(LU, pivots, adjoint(B), left=False, adjoint=True) @ adjoint(A), adjoint(B))


def test_singular_matrices_give_info_and_raise_only_if_asked():
    S = np.array([[1.0, 2.0], [2.0, 4.0]])
    assert L.linalg_inv_ex(S)[1].tolist() == 2
    assert D.linalg_lu_factor_ex(np.zeros((2, 2)))[2].tolist() == 1
    check = _registry.lookup("aten::linalg_inv_ex").check
    check(S, check_errors=False)
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        check(S, check_errors=True)
    bad = np.array([[4.0, 2.0], [2.0, -9.0]])
    factor, info = D.linalg_cholesky_ex(np.stack([bad, np.eye(2)]))
    assert info.tolist() == [2, 0]
    close(factor[1], np.eye(2))
    with pytest.raises(np.linalg.LinAlgError, match="order 2 is not positive"):
        _registry.lookup("aten::cholesky").check(bad)
    with pytest.raises(np.linalg.LinAlgError, match="non-finite"):
        _registry.lookup("aten::_linalg_svd").check(bad * np.nan)


@pytest.mark.parametrize("upper", [False, True])
def test_triangles(upper):
    A = positive(4, Z)
    B = rand(4, 2, dtype=Z)
    factor, info = D.linalg_cholesky_ex(A, upper=upper)
    assert info == 0
    close(adjoint(factor) @ factor if upper else factor @ adjoint(factor), A)
    close(A @ L.cholesky_solve(B, factor, upper), B, 1e-8)
    close(A @ L.cholesky_inverse(factor, upper), np.eye(4), 1e-8)
    close(factor @ L.linalg_solve_triangular(factor, B, upper=upper), B)
    X, copy = L.triangular_solve(B, factor, upper, True)
    close(np.swapaxes(factor, -1, -2) @ X, B)
    close(copy, factor)
    close((L.triu if upper else L.tril)(A, 1), (np.triu if upper else np.tril)(A, 1))


def test_band_offsets_may_be_traced():
    x = jnp.arange(12).reshape(3, 4)
    close(jax.jit(linalg.tril)(x, -1), np.tril(x, -1))
    with pytest.raises(RuntimeError, match="2 dimensions"):
        L.tril(jnp.ones(3))


@pytest.mark.parametrize("shape", [(2, 5, 3), (3, 5)])
def test_factors(shape):
    A = rand(*shape, dtype=Z)
    P, lower, upper = D.linalg_lu(A)
    close(P @ lower @ upper, A)
    LU, pivots, _ = D.linalg_lu_factor_ex(A)
    for got, expected in zip(D.lu_unpack(LU, pivots), (P, lower, upper)):
        close(got, expected)
    assert D.lu_unpack(LU, pivots, unpack_pivots=False)[0].shape == (0,)
    for mode in ("reduced", "complete"):
        Q, R = D.linalg_qr(A, mode)
        close(Q @ R, A)
        close(adjoint(Q) @ Q, np.broadcast_to(np.eye(Q.shape[-1]), (*shape[:-2], *Q.shape[-1:] * 2)))
    assert D.linalg_qr(A, "r")[0].shape == (0,)
    for full in (False, True):
        U, S, Vh = D._linalg_svd(A, full)
        k = min(shape[-2:])
        close((U[..., :k] * S[..., None, :]) @ Vh[..., :k, :], A)
    assert [x.shape for x in D._linalg_svd(A, compute_uv=False)][::2] == [(0,), (0,)]
    P = L.linalg_pinv(A)
    close(P, np.linalg.pinv(A), 1e-8)


def test_reflectors():
    A, C = rand(5, 3, dtype=Z), rand(5, 2, dtype=Z)
    a, tau = D.geqrf(A)
    Q = D.linalg_householder_product(a, tau)
    close(Q @ np.triu(a[:3]), A)
    full = D.ormqr(a, tau, np.eye(5, dtype=Z))
    close(full[:, :3], Q)
    close(D.ormqr(a, tau, C, True, True), adjoint(full) @ C)
    close(D.ormqr(a, tau, adjoint(C), False), adjoint(C) @ full)


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigenvalues(uplo):
    A = rand(4, 4, dtype=Z)
    H = np.tril(A, -1) if uplo == "L" else np.triu(A, 1)
    H = H + adjoint(H) + np.diag(np.diag(A).real)
    values, vectors = D._linalg_eigh(A, uplo)
    close(H @ vectors, vectors * values)
    assert D._linalg_eigh(A, uplo, False)[1].shape == (0,)
    values, vectors = D.linalg_eig(A)
    close(A @ vectors, vectors * values)
    close(np.linalg.norm(vectors, axis=0), np.ones(4))
    close(np.sort(D._linalg_eigvals(A)), np.sort(values))


def test_ldl_pivots_are_lapacks():
    A = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    LD, pivots, info = D.linalg_ldl_factor_ex(A)
    close(LD, [[0, 0, 0], [2, 0, 0], [1.5, 0.5, -3]])
    assert (pivots.tolist(), info.tolist()) == ([-3, -3, 3], 0)
    assert D.linalg_ldl_factor_ex(np.zeros((2, 2)))[2].tolist() == 1


@pytest.mark.parametrize(("dtype", "hermitian"), [(np.float64, False), (np.complex128, True)])
def test_ldl(dtype, hermitian):
    x = rand(6, 7, 7, dtype=dtype)
    A = x + (adjoint(x) if hermitian else np.swapaxes(x, -1, -2))
    B = rand(6, 7, 2, dtype=dtype)
    LD, pivots, _ = D.linalg_ldl_factor_ex(A, hermitian=hermitian)
    assert set(np.sign(pivots).flat) == {-1, 1}
    close(A @ D.linalg_ldl_solve(LD, pivots, B, hermitian=hermitian), B, 1e-8)


@TYPES
def test_determinants(dtype):
    A = rand(3, 4, 4, dtype=dtype)
    det, LU, _ = L._linalg_det(A)
    close(det, np.linalg.det(A))
    sign, log, *_ = L._linalg_slogdet(A)
    close(sign * np.exp(log), np.linalg.det(A))
    # PyTorch's backward counts on the factors of the transpose where the matrix is real
    close(LU, D.linalg_lu_factor_ex(A if dtype == np.complex128 else np.swapaxes(A, -1, -2))[0])
    assert L._linalg_det(np.zeros((0, 0)))[0].tolist() == 1


@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
def test_lstsq(driver):
    A, B = rand(2, 5, 3), rand(2, 5, 2)
    X, residuals, rank, values = L.linalg_lstsq(A, B, driver=driver)
    expected = [np.linalg.lstsq(a, b) for a, b in zip(A, B)]
    close(X, np.stack([e[0] for e in expected]))
    if driver not in (None, "gelsy"):
        close(residuals, np.stack([e[1] for e in expected]))
    assert rank.shape == ((0,) if driver == "gels" else (2,))
    assert values.shape == ((2, 3) if driver in ("gelsd", "gelss") else (0,))


def test_matrix_functions():
    A = rand(2, 3, 3)
    values, vectors = np.linalg.eig(A)
    close(L.linalg_matrix_exp(A), ((vectors * np.exp(values)[:, None]) @ np.linalg.inv(vectors)).real)
    assert L.trace(np.arange(6, dtype=np.int32).reshape(2, 3)).dtype == np.int64
    a, b = rand(3, 1, 4), rand(3, 2, 4)
    close(L.linalg_cross(a, b, dim=0), np.cross(a, b, axis=0))


@pytest.mark.parametrize("p", [0.5, 2, float("inf")])
def test_distances(p):
    x, y = rand(2, 4, 3), rand(5, 3)
    d = x[:, :, None] - y
    expected = np.abs(d).max(-1) if p == np.inf else (np.abs(d) ** p).sum(-1) ** (1 / p)
    out = L._cdist_forward(x, y, p, None)
    close(out, expected)
    close(L._cdist_forward(x, y, p, 1), expected, 1e-6)
    close(L._pdist_forward(y, p), [L._cdist_forward(y, y, p, None)[i, j] for i, j in zip(*np.triu_indices(5, 1))])
    g = rand(2, 4, 5)
    close(L._cdist_backward(g, x, y, p, out), jax.vjp(lambda x: L._cdist_forward(x, y, p, None), x)[1](g)[0])
    close(
        L._pdist_backward(g[0, 0, :1], y[:2], p, L._pdist_forward(y[:2], p))[0],
        -np.asarray(L._pdist_backward(g[0, 0, :1], y[:2], p, L._pdist_forward(y[:2], p))[1]),
    )
    zero = L._cdist_forward(y[:1], y[:1], p, None)
    assert np.isfinite(L._cdist_backward(np.ones((1, 1)), y[:1], y[:1], p, zero)).all()


GRADS = [
    (lambda x: L._linalg_solve_ex(x, jnp.ones(3))[0], (3, 3)),
    (lambda x: L._linalg_slogdet(x)[1], (3, 3)),
    (lambda x: D.linalg_cholesky_ex(x @ x.T + jnp.eye(3))[0], (3, 3)),
    (lambda x: D.linalg_qr(x)[1], (3, 5)),
    (lambda x: jnp.abs(D._linalg_svd(x, True)[0][:, :3]), (5, 3)),
    (lambda x: D._linalg_eigh(x + x.T)[0], (3, 3)),
    (lambda x: jnp.abs(D.linalg_eig(x)[1]), (3, 3)),
    (lambda x: D.linalg_householder_product(x, x[0]), (4, 3)),
    (lambda x: D.ormqr(x, x[0], x), (4, 3)),
    (lambda x: L.linalg_pinv(x), (4, 3)),
    (lambda x: L.linalg_lstsq(x, jnp.ones((4, 1)))[0], (4, 3)),
    (lambda x: L._cdist_forward(x, 2 * x[:2] + 1, 3.0, None), (4, 3)),
]


@pytest.mark.parametrize(("fn", "shape"), GRADS)
def test_gradients(fn, shape):
    check_grads(fn, (rand(*shape),), order=1, modes=["rev"], rtol=1e-4, atol=1e-4, eps=1e-6)


@pytest.mark.parametrize(
    "fn",
    [
        L.linalg_inv_ex,
        D.linalg_cholesky_ex,
        lambda x: D.linalg_ldl_factor_ex(x)[0],
        L._linalg_det,
        D.linalg_lu,
        D.geqrf,
    ],
)
def test_vmap(fn):
    x = np.stack([positive(3), positive(3)])
    for got, expected in zip(jax.tree.leaves(jax.vmap(fn)(x)), jax.tree.leaves(fn(x))):
        close(got, expected)


@pytest.mark.parametrize(
    ("fn", "match"),
    [
        (lambda: L.linalg_inv_ex(np.ones((2, 3))), "square"),
        (lambda: L.linalg_inv_ex(np.ones(3)), "2 dimensions"),
        (lambda: L.linalg_inv_ex(np.ones((2, 2), np.int32)), "int32"),
        (lambda: L.linalg_inv_ex(np.ones((2, 2), np.float16)), "Low precision"),
        (lambda: L._linalg_solve_ex(np.ones((2, 2)), np.ones((3, 1))), "Incompatible"),
        (lambda: L._linalg_solve_ex(np.ones((2, 2)), np.ones((2, 1), np.float32)), "same dtype"),
        (lambda: D.linalg_lu_factor_ex(np.ones((2, 2)), pivot=False), "pivot"),
        (lambda: D.linalg_qr(np.ones((2, 2)), "x"), "mode"),
        (lambda: D._linalg_eigh(np.ones((2, 2)), "X"), "UPLO"),
        (lambda: D._linalg_svd(np.ones((2, 2)), driver="gesvd"), "driver"),
        (lambda: L.linalg_lstsq(np.ones((2, 2)), np.ones(2), driver="x"), "driver"),
        (lambda: L.linalg_cross(np.ones((2, 2)), np.ones((2, 2))), "length 3"),
        (lambda: L.trace(np.ones(3)), "matrix"),
        (lambda: L._cdist_forward(np.ones((2, 3)), np.ones((2, 4)), 2.0, None), "columns"),
    ],
)
def test_mistakes(fn, match):
    with pytest.raises(RuntimeError, match=match):
        fn()


def test_empty():
    for fn in (L.linalg_inv_ex, D.linalg_cholesky_ex, D.linalg_qr, D._linalg_svd, D._linalg_eigh, L.linalg_matrix_exp):
        assert jax.tree.leaves(fn(np.zeros((2, 0, 0))))[0].shape[:1] == (2,)
    assert L.linalg_pinv(np.zeros((0, 3))).shape == (3, 0)
    assert L._cdist_forward(np.zeros((0, 3)), np.zeros((2, 3)), 2.0, None).shape == (0, 2)


def test_x64_off():
    with jax.enable_x64(False):
        assert L.linalg_inv_ex(jnp.eye(2))[0].dtype == jnp.float32
        assert D.linalg_eig(jnp.eye(2))[0].dtype == jnp.complex64
        assert L.linalg_lstsq(jnp.eye(2), jnp.ones(2))[2].dtype == jnp.int32

"""Products of matrices, with a bias, in groups, and quantized."""

import importlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.test_util import check_grads

from torchax_ops import grouped_matmul as G

# the package's name for the function hides the module
M = importlib.import_module("torchax_ops.matmul")

RNG = np.random.default_rng(0)


def rand(*shape, dtype=np.float32):
    return jnp.asarray(RNG.normal(size=shape).astype(dtype))


A, B, V, W = rand(3, 4), rand(4, 5), rand(4), rand(3)
BA, BB = rand(2, 3, 4), rand(2, 4, 5)


def close(actual, expected, rtol=1e-5):
    assert actual.shape == np.shape(expected)
    np.testing.assert_allclose(np.asarray(actual, np.complex128), expected, rtol=rtol, atol=1e-5)


PRODUCTS = [
    (M.mm, (A, B), lambda: A @ B),
    (M.bmm, (BA, BB), lambda: BA @ BB),
    (M.mv, (A, V), lambda: A @ V),
    (M.dot, (V, V), lambda: V @ V),
    (M.matmul, (A, B), lambda: A @ B),
    (M.matmul, (V, B), lambda: V @ B),
    (M.matmul, (BA, B), lambda: BA @ B),
    (M.matmul, (A, BB), lambda: A @ BB),
    (M.matmul, (V, BB), lambda: V @ BB),
    (M.linear, (BA, B.T), lambda: BA @ B),
    (M.linear, (BA, V), lambda: BA @ V),
    (M.linear, (A, B.T, jnp.ones(5)), lambda: A @ B + 1),
    (M.addmm, (jnp.ones(5), A, B), lambda: 1 + A @ B),
    (M.addmv, (W, A, V), lambda: W + A @ V),
    (M.addr, (A, W, V), lambda: A + np.outer(W, V)),
    (M.baddbmm, (jnp.ones((3, 1)), BA, BB), lambda: 1 + BA @ BB),
    (M.addbmm, (jnp.ones(5), BA, BB), lambda: 1 + (BA @ BB).sum(0)),
    (M._addmm_activation, (jnp.ones(5), A, B), lambda: np.maximum(1 + A @ B, 0)),
]


@pytest.mark.parametrize(("fn", "args", "expected"), PRODUCTS)
def test_products(fn, args, expected):
    close(jax.jit(fn)(*args), expected())
    with jax.enable_x64(True):
        assert fn(*args).dtype == jnp.float32
    loss = lambda *args: (fn(*args) ** 2).sum()  # noqa: E731
    check_grads(loss, args, order=1, modes=["rev"], rtol=0.05, atol=0.05)
    stacked = [jnp.stack([a, 2 * a]) for a in args]
    close(jax.vmap(fn)(*stacked), np.stack([fn(*args), fn(*(2 * a for a in args))]))


def test_scales():
    bias = jnp.full((3, 5), jnp.nan)
    close(M.addmm(bias, A, B, beta=0, alpha=2), 2 * (A @ B))
    traced = jax.jit(lambda beta, alpha: M.addmm(bias, A, B, beta=beta, alpha=alpha))
    close(traced(0.0, 2.0), 2 * (A @ B))
    assert np.isnan(traced(1.0, 2.0)).all()
    ints = jnp.ones((2, 2), jnp.int32)
    assert M.addmm(ints, ints, ints, beta=2.7, alpha=1.5).tolist() == [[4, 4], [4, 4]]
    with pytest.raises(RuntimeError, match="integral"):
        M.addr(ints, ints[0], ints[0], alpha=1.5)
    flags = jnp.array([True, False])
    assert M.addr(jnp.zeros((2, 2), bool), flags, flags).tolist() == [[True, False], [False, False]]


def test_integers_and_sixteen_bit_floats():
    big = jnp.full((2, 2), 100, jnp.int8)
    assert M.mm(big, big).tolist() == np.full((2, 2), (20000 + 128) % 256 - 128).tolist()
    ones = jnp.ones((1, 4096), jnp.bfloat16)
    assert M.mm(ones, ones.T).tolist() == [[4096]]
    # one rounding, after the bias
    assert M.linear(ones, ones, jnp.full(1, -4095.0, jnp.bfloat16)).tolist() == [[0]]
    assert M.mm_dtype(ones, ones.T, jnp.float32).dtype == jnp.float32
    z = A + 1j * A
    close(M.vdot(z[0], z[1]), np.vdot(z[0], z[1]))


def test_one_dot_and_no_transposed_copy():
    text = str(jax.make_jaxpr(M.linear)(A, B.T, jnp.ones(5)))
    assert text.count("dot_general") == 1
    assert "transpose" not in text


def test_matmul_precision_is_the_users():
    with jax.default_matmul_precision("highest"):
        assert "HIGHEST" in str(jax.make_jaxpr(M.mm)(A, B))
    assert "HIGHEST" not in str(jax.make_jaxpr(M.mm)(A, B))


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (M.mm, (A, A)),
        (M.mm, (V, B)),
        (M.mm, (A, B.astype(jnp.float16))),
        (M.bmm, (BA, BA)),
        (M.mv, (A, W)),
        (M.dot, (V, W)),
        (M.addmm, (jnp.ones(4), A, B)),
        (M.addmm, (jnp.ones(5, jnp.float16), A, B)),
        (M.linear, (A, B)),
        (M.matmul, (A, jnp.float32(1))),
        (M.matmul, (BA, rand(3, 4, 5))),
        (G._grouped_mm, (A, B)),
        (G._grouped_mm, (A, rand(2, 4, 5), jnp.ones(2))),
        (G._int_mm, (A, B)),
        (G._scaled_mm, (A, B, jnp.ones(()), jnp.ones(()))),
    ],
)
def test_mistakes(fn, args):
    with pytest.raises(RuntimeError, match=fn.__name__):
        fn(*args)


def test_bool_is_refused():
    with pytest.raises(NotImplementedError, match="bool"):
        M.mm(A > 0, B > 0)


def test_linear_backward():
    g = rand(2, 3, 5)
    _, vjp = jax.vjp(M.linear, BA, B.T, jnp.ones(5))
    for got, expected in zip(M.linear_backward(BA, g, B.T, [True] * 3), vjp(g)):
        close(got, expected)
    assert M.linear_backward(BA, g, B.T, [False, True, False])[::2] == (None, None)


def test_linear_backward_of_complex_is_the_adjoint():
    g, x, w = (rand(*s) + 1j * rand(*s) for s in ((2, 5), (2, 4), (5, 4)))
    _, vjp = jax.vjp(M.linear, x, w, jnp.ones(5, g.dtype))  # JAX's is the transpose
    for got, expected in zip(M.linear_backward(x, g, w, [True] * 3), vjp(jnp.conj(g))):
        close(got, jnp.conj(expected))


def test_empty():
    assert M.mm(jnp.ones((2, 0)), jnp.ones((0, 3))).tolist() == [[0] * 3] * 2
    assert M.addmm(jnp.ones(3), jnp.ones((0, 2)), jnp.ones((2, 3))).shape == (0, 3)


def groups(a, b, ends):
    spans = list(zip([0, *ends], ends))
    if b.ndim == 3:
        rest = jnp.zeros((a.shape[0] - ends[-1], b.shape[2]))
        return jnp.concatenate([a[s:e] @ b[i] for i, (s, e) in enumerate(spans)] + [rest])
    if a.ndim == 3:
        rest = jnp.zeros((a.shape[1], b.shape[1] - ends[-1]))
        return jnp.concatenate([a[i] @ b[:, s:e] for i, (s, e) in enumerate(spans)] + [rest], 1)
    return jnp.stack([a[:, s:e] @ b[s:e] for s, e in spans])


GROUPED = [((40, 8), (3, 8, 6)), ((3, 6, 8), (8, 40)), ((8, 40), (40, 6))]


@pytest.mark.parametrize("ends", [[8, 8, 40], [3, 21, 33], [0, 0, 0]])
@pytest.mark.parametrize(("left", "right"), GROUPED)
def test_grouped(left, right, ends):
    a, b, offs = rand(*left), rand(*right), jnp.asarray(ends, jnp.int32)
    close(jax.jit(G._grouped_mm)(a, b, offs), groups(a, b, ends))
    for got, expected in zip(
        jax.grad(lambda a, b: (G._grouped_mm(a, b, offs) ** 2).sum(), (0, 1))(a, b),
        jax.grad(lambda a, b: (groups(a, b, ends) ** 2).sum(), (0, 1))(a, b),
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_grouped_under_vmap():
    a, b, offs = rand(2, 40, 8), rand(3, 8, 6), jnp.array([3, 21, 33], jnp.int32)
    got = jax.vmap(G._grouped_mm, (0, None, None))(a, b, offs)
    close(got, np.stack([groups(x, b, [3, 21, 33]) for x in a]))
    assert G._grouped_mm(BA.astype(jnp.bfloat16), BB.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_quantized():
    a = RNG.integers(-128, 128, (5, 7)).astype(np.int8)
    b = RNG.integers(-128, 128, (7, 3)).astype(np.int8)
    out = G._int_mm(jnp.asarray(a), jnp.asarray(b))
    assert out.dtype == jnp.int32
    np.testing.assert_array_equal(out, a.astype(np.int32) @ b.astype(np.int32))
    x, scales = rand(4, 7), rand(3)
    close(G._weight_int8pack_mm(x, jnp.asarray(b.T), scales), (np.asarray(x) @ b) * np.asarray(scales), rtol=1e-4)
    f8 = ml_dtypes.float8_e4m3fn
    p, q = rand(16, 32).astype(f8), rand(32, 16).astype(f8)
    exact = p.astype(jnp.float32) @ q.astype(jnp.float32)
    one = jnp.float32(0.5)
    close(G._scaled_mm(p, q, one, one, out_dtype=jnp.float32), exact / 4)
    rows = jnp.abs(rand(16, 1))
    close(G._scaled_mm(p, q, rows, rows.T, jnp.ones(16), out_dtype=jnp.float32), exact * rows * rows.T + 1)
    assert G._scaled_mm(p, q, one, one).dtype == f8

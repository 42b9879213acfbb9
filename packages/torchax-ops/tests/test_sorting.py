"""Order statistics, searches, unique values, histograms and counts."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops import _registry
from torchax_ops import sorting as S

# the package's name for the function hides the module
H = importlib.import_module("torchax_ops.histogram")

NAN = float("nan")
X = np.array([3.0, NAN, 1.0, 3.0, 1.0, 2.0], np.float32)


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def check(pair, values, index):
    np.testing.assert_array_equal(np.asarray(pair[0], np.float64), values)
    np.testing.assert_array_equal(pair[1], index)
    assert pair[1].dtype == jnp.int64


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float64])
def test_sort_and_topk_put_nan_last_and_keep_equals_in_order(dtype):
    x = jnp.asarray(X, dtype)
    check(S.sort(x), [1, 1, 2, 3, 3, NAN], [2, 4, 5, 0, 3, 1])
    check(S.sort(x, 0, True, stable=True), [NAN, 3, 3, 2, 1, 1], [1, 0, 3, 5, 2, 4])
    check(S.topk(x, 3), [NAN, 3, 3], [1, 0, 3])
    check(S.topk(x, 6, -1, False), [1, 1, 2, 3, 3, NAN], [2, 4, 5, 0, 3, 1])


def test_topk_orders_negative_nan_infinities_and_zeros():
    x = jnp.array([1.0, -NAN, np.inf, 0.0, -0.0, -np.inf], jnp.float32)
    assert S.topk(x, 6)[1].tolist() == [1, 2, 0, 3, 4, 5]
    assert S.topk(x, 6, 0, False)[1].tolist() == [5, 3, 4, 0, 2, 1]


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.int64])
def test_topk_of_integers(dtype):
    x = jnp.array([[3, 1], [1, 7], [2, 127]], dtype)
    check(S.topk(x, 2, 0), [[3, 127], [2, 7]], [[0, 2], [2, 1]])
    check(S.topk(x, 1, 0, False), [[1, 1]], [[1, 0]])


def test_one_of_the_order():
    check(S.kthvalue(jnp.asarray(X), 2), 1, 4)
    check(S.kthvalue(jnp.asarray(X), 6, 0, True), [NAN], [1])
    check(S.median_dim(jnp.asarray(X), 0), NAN, 1)
    check(S.nanmedian_dim(jnp.asarray(X), 0), 2, 5)
    check(S.median_dim(jnp.array([[4, 1, 3, 2]]), 1, True), [[2]], [[3]])
    assert np.isnan(S.median(jnp.asarray(X)))
    assert S.nanmedian(jnp.asarray(X)) == 2
    assert np.isnan(S.median(jnp.zeros(0)))
    check(S.mode(jnp.array([1, 2, 2, 1, 3])), 1, 3)
    check(S.mode(jnp.array([[5.0], [4.0]]), 1), [5, 4], [0, 0])


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: S.topk(X, 7), RuntimeError, "out of range"),
        (lambda: S.topk(X, -1), RuntimeError, "out of range"),
        (lambda: S.topk(X > 1, 1), RuntimeError, "bool"),
        (lambda: S.kthvalue(X, 0), RuntimeError, "out of range"),
        (lambda: S.sort(X, 1), IndexError, "Dimension out of range"),
        (lambda: S.sort(X + 0j), RuntimeError, "complex"),
        (lambda: S.median_dim(jnp.zeros((0, 2)), 0), IndexError, "non-zero size"),
        (lambda: S.searchsorted(jnp.ones((2, 3)), jnp.ones(3)), RuntimeError, "leading"),
        (lambda: S.searchsorted(X, X, side="up"), RuntimeError, "side"),
        (lambda: S.searchsorted(X, X, side="left", right=True), RuntimeError, "opposites"),
        (lambda: S.bucketize(X, jnp.ones((2, 2))), RuntimeError, "1D"),
        (lambda: S.unique_dim(jnp.zeros((0, 3)), 1), RuntimeError, "0 sized"),
        (lambda: H.histc(jnp.ones(3, jnp.bool_)), NotImplementedError, "bool"),
        (lambda: H.histc(jnp.ones(3), 0), RuntimeError, "bins"),
        (lambda: H.bincount(jnp.array([1, -1])), RuntimeError, "non-negative"),
        (lambda: H.bincount(jnp.array([1]), minlength=-1), RuntimeError, "minlength"),
        (lambda: H.bincount(jnp.array([1.0])), NotImplementedError, "float"),
    ],
)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        jax.tree.map(np.asarray, call())


def test_zero_dimensions():
    x = jnp.float32(3)
    for pair in (S.sort(x), S.topk(x, 1), S.kthvalue(x, 1), S.mode(x), S.median_dim(x, 0)):
        check(pair, 3, 0)


@pytest.mark.parametrize("right", [False, True])
def test_searches(right):
    edges, values = np.array([1.0, 2.0, 2.0, 5.0]), np.array([[0.0, 2.0], [5.0, 9.0]])
    expected = np.searchsorted(edges, values, "right" if right else "left")
    for out in (
        S.searchsorted(edges, jnp.asarray(values), right=right),
        S.bucketize(jnp.asarray(values), jnp.asarray(edges), right=right),
        S.searchsorted(jnp.asarray(edges[::-1]), values, right=right, sorter=jnp.array([3, 2, 1, 0])),
        S.searchsorted(jnp.stack([edges, edges]), values, right=right),
    ):
        assert out.dtype == jnp.int64
        np.testing.assert_array_equal(out, expected)
    assert S.bucketize(2.5, jnp.array([1, 2, 3]), out_int32=True).dtype == jnp.int32
    assert S.searchsorted(jnp.array([1.0, 2.0]), jnp.array([NAN]), right=right).tolist() == [2]
    assert S.searchsorted(jnp.zeros(0), jnp.ones(2)).tolist() == [0, 0]


def test_unique():
    values, inverse, counts = S._unique2(jnp.asarray(X).reshape(2, 3), True, True, True)
    np.testing.assert_array_equal(values, [1, 2, 3, NAN])
    assert inverse.tolist() == [[2, 3, 0], [2, 0, 1]]
    assert counts.tolist() == [2, 1, 2, 1]
    assert [a.shape for a in S._unique2(jnp.asarray(X))[1:]] == [(0,), (0,)]
    assert S._unique2(jnp.array([NAN, NAN]))[0].shape == (2,)
    values, inverse, counts = S.unique_consecutive(jnp.array([1, 1, 2, 1]), True, True)
    assert [a.tolist() for a in (values, inverse, counts)] == [[1, 2, 1], [0, 0, 1, 2], [2, 1, 1]]
    rows = jnp.array([[1, 2], [0, 5], [1, 2]])
    assert [a.tolist() for a in S.unique_dim(rows, 0)] == [[[0, 5], [1, 2]], [1, 0, 1], [1, 2]]
    assert S.unique_dim(rows.T, 1)[0].tolist() == [[0, 1], [5, 2]]
    assert [a.tolist() for a in S.unique_dim_consecutive(rows, 0)][1:] == [[0, 1, 2], [1, 1, 1]]
    assert S.unique_consecutive(jnp.zeros(0), True, True)[2].shape == (0,)


def test_value_dependent_shapes_under_a_trace():
    x = jnp.array([2, 1, 2, 1])
    for fn in (S._unique2, S.unique_consecutive, H.bincount, lambda x, **kw: S.unique_dim(x, 0, **kw)):
        with pytest.raises(RuntimeError, match="size="):
            jax.jit(fn)(x)
    values, _, counts = jax.jit(lambda x: S._unique2(x, return_counts=True, size=3))(x)
    assert (values.tolist(), counts.tolist()) == ([1, 2, 1], [2, 2, 0])
    assert jax.jit(lambda x: H.bincount(x, size=4))(x).tolist() == [0, 2, 2, 0]


def test_histc():
    x = np.array([0.0, 1.0, 2.0, 2.0, 3.0, NAN, 9.0], np.float32)
    assert H.histc(jnp.asarray(x), 3, 0, 3).tolist() == [1, 1, 3]
    assert H.histc(jnp.ones(2), 3).tolist() == [0, 2, 0]
    whole = H.histc(jnp.asarray([0, 1, 1, 3], jnp.int32), 4, 0, 3)  # as cuda counts them
    assert whole.dtype == np.int32
    assert whole.tolist() == [1, 2, 0, 1]
    assert H.histc(jnp.zeros(0), 3).tolist() == [0, 0, 0]
    check = _registry.lookup("aten::histc").check
    with pytest.raises(RuntimeError, match="not finite"):
        check(x, 3)
    with pytest.raises(RuntimeError, match="larger"):
        check(x, 3, 2, 1)


@pytest.mark.parametrize("density", [False, True])
def test_histogram(density):
    x = np.random.default_rng(0).uniform(size=50).astype(np.float32)
    w = x[::-1].copy()
    counts, edges = H.histogram(jnp.asarray(x), 7, weight=jnp.asarray(w), density=density)
    expected, at = np.histogram(x, 7, weights=w, density=density)
    np.testing.assert_allclose(counts, expected, rtol=1e-5)
    np.testing.assert_allclose(edges, at, rtol=1e-6)
    counts, _ = H.histogram_bins_tensor(jnp.asarray(x), jnp.asarray(at, jnp.float32), density=density)
    np.testing.assert_allclose(counts, np.histogram(x, at.astype(np.float32), density=density)[0], rtol=1e-5)
    points = x.reshape(25, 2)
    hist = H._histogramdd_from_bin_cts(jnp.asarray(points), [3, 4], range=[0, 1, 0, 1], density=density)
    np.testing.assert_allclose(hist, np.histogramdd(points, [3, 4], [(0, 1)] * 2, density=density)[0], rtol=1e-5)


def test_bincount():
    x = jnp.array([1, 2, 2], jnp.int32)
    assert H.bincount(x, minlength=5).tolist() == [0, 1, 2, 0, 0]
    assert H.bincount(x).dtype == jnp.int64
    assert H.bincount(x, jnp.ones(3, jnp.float32)).dtype == jnp.float32
    assert H.bincount(x, jnp.ones(3, jnp.int32)).dtype == jnp.float64
    assert H.bincount(jnp.zeros(0, jnp.int64)).shape == (0,)


@pytest.mark.parametrize(
    "fn", [lambda x: S.sort(x)[0], lambda x: S.topk(x, 2)[0], lambda x: S.median_dim(x, 0)[0], lambda x: S.mode(x)[0]]
)
def test_transforms(fn):
    x = jnp.array([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
    np.testing.assert_array_equal(jax.vmap(jax.jit(fn))(x), jnp.stack([fn(r) for r in x]))
    grad = jax.grad(lambda x: (fn(x) ** 2).sum())(x[0])
    assert set(grad.tolist()) <= {0, *(2 * x[0]).tolist()}
    with jax.enable_x64(False):
        assert S.sort(jnp.array([2, 1], jnp.int32))[1].dtype == jnp.int32

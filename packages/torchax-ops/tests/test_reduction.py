"""Sums, means, extrema, moments, norms, scans and segments, against numpy and literal answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops import reduction as R
from torchax_ops import segment as G

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 5)).astype(np.float32)
NAN = float("nan")


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def close(actual, expected, dtype=None):
    expected = np.asarray(expected)
    assert actual.dtype == (dtype or expected.dtype)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(np.asarray(actual, np.result_type(expected)), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("dim", "axis", "keepdim"), [(None, None, True), ((), None, False), (-2, 1, True), ((0, -1), (0, 2), False)]
)
@pytest.mark.parametrize(
    ("fn", "reference"),
    [
        (R.sum, np.sum),
        (R.mean, np.mean),
        (R.nansum, np.nansum),
        (R.amax, np.max),
        (R.amin, np.min),
        (R.linalg_vector_norm, None),
        (R.var, None),
        (R.logsumexp, None),
    ],
)
def test_dims(fn, reference, dim, axis, keepdim):
    kw = {"axis": axis, "keepdims": keepdim}
    if fn is R.linalg_vector_norm:
        expected = np.sqrt(np.sum(np.square(X), **kw))
    elif fn is R.var:
        expected = np.var(X, ddof=1, **kw)
    elif fn is R.logsumexp:
        expected = np.log(np.sum(np.exp(X), **kw))
    else:
        expected = reference(X, **kw)
    given = () if fn is R.amax and dim is None else dim
    args = (2, given, keepdim) if fn is R.linalg_vector_norm else (given,)
    kwargs = {} if fn is R.linalg_vector_norm else {"keepdim": keepdim}
    close(jax.jit(lambda x: fn(x, *args, **kwargs))(X), expected, np.float32)


def test_dtypes_of_sums():
    ints = jnp.array([[1, 2], [3, 4]], jnp.int8)
    assert R.sum(ints).dtype == R.prod(ints, 0).dtype == R.cumsum(ints, 0).dtype == jnp.int64
    assert R.sum(ints > 1).dtype == jnp.int64
    assert R.sum(ints, dtype=jnp.int32).dtype == jnp.int32
    assert R.sum(jnp.ones(3, jnp.int32), dtype=jnp.float64).dtype == jnp.float64
    assert R.count_nonzero(ints).dtype == R.argmax(ints).dtype == jnp.int64
    with jax.enable_x64(False):
        assert R.sum(jnp.ones(3, jnp.int8)).dtype == jnp.int32
        assert R.max_dim(jnp.ones((2, 2)), 0)[1].dtype == jnp.int32


def test_sixteen_bit_floats_accumulate_in_float32():
    ones = jnp.ones(5000, jnp.bfloat16)
    assert R.sum(ones) == jnp.asarray(5000, jnp.bfloat16)
    assert R.mean(ones).dtype == jnp.bfloat16
    assert R.linalg_vector_norm(jnp.full(4, 300, jnp.float16)) == 600


@pytest.mark.parametrize("fn", [R.mean, R.var, R.std, R.linalg_vector_norm, R.norm])
def test_integers_are_refused(fn):
    with pytest.raises(RuntimeError, match="int32"):
        fn(jnp.ones(3, jnp.int32))


def test_truth():
    x = jnp.array([[0.0, NAN], [0.0, 0.0]])
    assert R.any(x, 1).tolist() == [True, False]
    assert R.all(x).tolist() is False
    assert R.any(x, [0, 1], True).shape == (1, 1)
    assert R.any(x, []).shape == x.shape
    assert R.any(jnp.ones(2, jnp.uint8)).dtype == jnp.uint8


def test_extrema_and_their_places():
    x = jnp.array([[1.0, 3.0, 3.0], [NAN, 5.0, NAN]])
    values, index = R.max_dim(x, 1)
    np.testing.assert_array_equal(values, [3, NAN])
    assert index.tolist() == [1, 0]
    assert R.min_dim(x, -1, True)[1].tolist() == [[0], [0]]
    assert R.argmax(x).tolist() == 3
    assert R.argmin(x, 1, True).shape == (2, 1)
    assert R.argmax(x, None, True).shape == (1, 1)
    assert all(np.isnan(fn(x)) for fn in (R.amax, R.max, R.min))
    low, high = R.aminmax(x[:1], dim=1, keepdim=True)
    assert (low.tolist(), high.tolist()) == ([[1.0]], [[3.0]])
    assert [a.tolist() for a in R.max_dim(jnp.float32(3), 0)] == [3.0, 0]
    assert R.max_dim(jnp.array([[False, True]]), 1)[0].tolist() == [True]


def test_empty():
    empty = jnp.zeros((0, 3))
    assert R.sum(empty).tolist() == 0
    assert R.prod(empty).tolist() == 1
    assert np.isnan(R.mean(empty))
    assert R.amax(empty, 1).shape == (0,)
    assert R.logsumexp(empty, 0).tolist() == [-np.inf] * 3
    assert R.cumsum(empty, 0).shape == (0, 3)
    with pytest.raises(IndexError, match="non-zero size"):
        R.amax(empty, 0)
    with pytest.raises(RuntimeError, match="dim"):
        R.max(empty)
    with pytest.raises(IndexError, match="dim"):
        R.argmax(empty)
    with pytest.raises(RuntimeError, match="identity"):
        R.linalg_vector_norm(empty, float("inf"))


@pytest.mark.parametrize("fn", [R.sum, R.mean, R.amax, R.any, R.argmax, R.cumsum, R.cummax, R.max_dim])
def test_dim_out_of_range(fn):
    with pytest.raises(IndexError, match="Dimension out of range"):
        fn(jnp.ones((2, 2)), 2)


def test_repeated_dims():
    with pytest.raises(RuntimeError, match="multiple times"):
        R.sum(jnp.ones((2, 2)), [0, -2])


@pytest.mark.parametrize("correction", [None, 0, 1, 2.5, 60])
def test_moments(correction):
    n = X.size - (1 if correction is None else correction)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.float32(np.sum(np.square(X - X.mean())) / np.float32(max(n, 0)))
    variance, mean = R.var_mean(X, correction=correction)
    close(variance, expected, np.float32)
    close(mean, X.mean(), np.float32)
    close(R.std_mean(X, correction=correction)[0], np.sqrt(expected), np.float32)
    assert R.var(jnp.asarray(X, jnp.complex64)).dtype == jnp.float32


def test_gradients_where_roots_have_none():
    zeros = jnp.zeros(3)
    for fn in (R.std, R.linalg_vector_norm, lambda x: R.linalg_vector_norm(x, 3), lambda x: R.dist(x, zeros)):
        assert jax.grad(fn)(zeros).tolist() == [0, 0, 0]
    assert jax.grad(R.amax)(jnp.array([2.0, 2.0, 1.0])).tolist() == [0.5, 0.5, 0]
    assert jax.grad(lambda x: R.max_dim(x, 0)[0])(jnp.array([2.0, 2.0, 1.0])).tolist() == [1, 0, 0]
    assert jax.grad(R.prod)(jnp.array([2.0, 0.0, 3.0])).tolist() == [0, 6, 0]


@pytest.mark.parametrize("ord", [0, 1, 2, 3.5, -1, float("inf"), -float("inf")])
def test_norms(ord):
    flat = X.reshape(-1)
    close(R.linalg_vector_norm(X, ord), np.linalg.norm(flat, ord).astype(np.float32))
    z = flat + 1j * flat[::-1]
    close(R.linalg_vector_norm(z, ord), np.linalg.norm(z, ord).astype(np.float32), np.float32)
    close(R.norm(X, ord, [0, 1, 2], dtype=jnp.float64), np.linalg.norm(flat.astype(np.float64), ord))


def test_renorm():
    x = np.array([[3.0, 4.0], [0.3, 0.4]], np.float32)
    close(R.renorm(x, 2, 0, 1.0), [[0.6, 0.8], [0.3, 0.4]], np.float32)
    with pytest.raises(RuntimeError, match="non-positive"):
        R.renorm(x, 0, 0, 1.0)


def test_logsumexp_is_stable():
    x = jnp.array([[1000.0, 1000.0], [-np.inf, -np.inf]])
    np.testing.assert_allclose(R.logsumexp(x, 1), [1000 + np.log(2), -np.inf], rtol=1e-6)
    assert R.logsumexp(jnp.ones(2, jnp.int32), 0).dtype == jnp.float32


def test_scans():
    close(R.cumsum(X, 1), np.cumsum(X, 1))
    close(R.cumprod(X, -1), np.cumprod(X, -1))
    close(R.logcumsumexp(X, 0), np.log(np.cumsum(np.exp(X), 0)))
    z = X[0] + 1j * X[1]
    close(jnp.exp(R.logcumsumexp(z, 0)), np.cumsum(np.exp(z), 0), np.complex64)
    values, index = R.cummax(jnp.array([1.0, 3.0, 3.0, 2.0, NAN, 4.0]), 0)
    np.testing.assert_array_equal(values, [1, 3, 3, 3, NAN, NAN])
    assert index.tolist() == [0, 1, 2, 2, 4, 4]
    assert R.cummin(jnp.array([3, 1, 1, 2]), 0)[1].tolist() == [0, 1, 2, 2]
    assert jax.grad(lambda x: R.cummax(x, 0)[0].sum())(jnp.array([1.0, 3.0, 2.0])).tolist() == [1, 2, 0]
    with pytest.raises(NotImplementedError, match="int64"):
        R.logcumsumexp(jnp.ones(3, jnp.int64), 0)


@pytest.mark.parametrize("fn", [lambda x: R.var(x, 0), lambda x: R.max_dim(x, 0)[0], lambda x: R.cumsum(x, 0)])
def test_vmap(fn):
    close(jax.vmap(fn)(X), np.stack([fn(x) for x in X]))


SEGMENTS = [
    ("sum", [[2, 4], [0, 0], [10, 12]]),
    ("mean", [[1, 2], [NAN, NAN], [5, 6]]),
    ("prod", [[0, 3], [1, 1], [24, 35]]),
    ("max", [[2, 3], [-np.inf, -np.inf], [6, 7]]),
    ("min", [[0, 1], [np.inf, np.inf], [4, 5]]),
]


@pytest.mark.parametrize(("reduce", "expected"), SEGMENTS)
def test_segments(reduce, expected):
    x = jnp.arange(8.0, dtype=jnp.float32).reshape(4, 2)
    lengths, offsets = jnp.array([2, 0, 2]), jnp.array([0, 2, 2, 4])
    np.testing.assert_array_equal(G.segment_reduce(x, reduce, lengths=lengths), expected)
    np.testing.assert_array_equal(jax.jit(lambda x: G.segment_reduce(x, reduce, offsets=offsets))(x), expected)
    loss = lambda x: G.segment_reduce(x, reduce, lengths=jnp.array([2, 2])).sum()  # noqa: E731
    expected = [[1.0, 3.0], [0.0, 1.0]] if reduce == "prod" else None
    grad = jax.grad(loss)(x)
    if expected is not None:
        assert grad[0].tolist() == [2, 3]
    assert grad.shape == x.shape
    with pytest.raises(RuntimeError, match="lengths"):
        G.segment_reduce(x, reduce)


def test_hash():
    assert int(G.hash_tensor(jnp.array([1, 2]))) == 3
    assert G.hash_tensor(jnp.array([1.0, 2.0]), 0, keepdim=True).shape == (1,)

"""Pooling against loops over windows, and gradients against what they add up to."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops._registry import lookup
from torchax_ops.nn import pooling as P

R = np.random.default_rng(0)


def array(*shape):
    return R.standard_normal(shape).astype(np.float32)


def jit(f, *args):
    """One compilation for all of ``f``."""
    return jax.jit(f)(*args)


def size_out(n, k, s, p, d, ceil):
    out = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil else 0)) // s + 1
    return out - (ceil and (out - 1) * s >= n + p)


def windows(shape, k, s, p, d, ceil):
    """For each output place, the places that its window covers, in or out of the plane."""
    outs = [size_out(*a, ceil) for a in zip(shape, k, s, p, d)]
    for at in np.ndindex(*outs):
        yield at, [[o * t - q + i * e for i in range(m)] for o, t, q, e, m in zip(at, s, p, d, k)]


def max_by_loop(x, *window):
    shape = x.shape[1:]
    found = {}
    for at, covered in windows(shape, *window):
        places = [i for i in itertools.product(*covered) if all(0 <= a < n for a, n in zip(i, shape))]
        for c in range(x.shape[0]):
            best = places[0]
            for place in places:
                if x[(c, *place)] > x[(c, *best)] or np.isnan(x[(c, *place)]):
                    best = place
            found[(c, *at)] = (x[(c, *best)], np.ravel_multi_index(best, shape))
    outs = np.array(list(found)).max(0) + 1
    values, index = np.zeros(outs, x.dtype), np.zeros(outs, np.int64)
    for at, (value, place) in found.items():
        values[at], index[at] = value, place
    return values, index


CASES = [((3, 3), (2, 2), (1, 1), (1, 1)), ((2, 3), (2, 1), (0, 1), (2, 1)), ((3, 2), (4, 3), (1, 0), (1, 1))]


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("k", "s", "p", "d"), CASES)
def test_max_pool2d(k, s, p, d, ceil):
    x = np.round(array(2, 8, 9) * 2)  # with ties
    x[0, 2, 3:5] = np.nan
    x[1, 4:, 5:] = -np.inf
    values, index = jax.jit(lambda x: P.max_pool2d_with_indices(x, k, s, p, d, ceil))(x)
    want = max_by_loop(x, k, s, p, d, ceil)
    np.testing.assert_array_equal(values, want[0])
    np.testing.assert_array_equal(index, want[1])
    grad = array(*values.shape)
    got = jit(lambda g, i: P.max_pool2d_with_indices_backward(g, x, k, s, p, d, ceil, i), grad, index)
    expected = np.zeros((2, 72), np.float32)
    for c in range(2):
        np.add.at(expected[c], want[1][c].ravel(), grad[c].ravel())
    np.testing.assert_allclose(got, expected.reshape(x.shape), rtol=1e-5, atol=1e-6)


def test_long_windows_and_other_ranks():
    x = array(2, 40, 21)
    for k in ((20, 20), (17, 1)):
        values, index = jit(lambda x, k=k: P.max_pool2d_with_indices(x, k), x)
        want = max_by_loop(x, k, k, (0, 0), (1, 1), False)
        np.testing.assert_array_equal(values, want[0])
        np.testing.assert_array_equal(index, want[1])
        np.testing.assert_allclose(
            jit(lambda x, k=k: P.avg_pool2d(x, k), x)[0, 0, 0], np.mean(x[0, : k[0], : k[1]]), rtol=1e-4, atol=1e-6
        )
    x = array(2, 4, 5, 6)
    values, index = jit(lambda x: P.max_pool3d_with_indices(x, 2, [1, 2, 2]), x)
    want = max_by_loop(x, (2, 2, 2), (1, 2, 2), (0, 0, 0), (1, 1, 1), False)
    np.testing.assert_array_equal(index, want[1])
    np.testing.assert_array_equal(
        jit(lambda x: P.max_pool1d(x, 3, 1), x[:, 0, 0]), max_by_loop(x[:, 0, 0], (3,), (1,), (0,), (1,), False)[0]
    )


def test_integers_and_index_dtype():
    x = jnp.arange(16, dtype=jnp.int8).reshape(1, 4, 4)
    with jax.enable_x64(True):
        values, index = jit(lambda x: P.max_pool2d_with_indices(x, 2), x)
        assert (values.dtype, index.dtype) == (np.int8, np.int64)
    assert jit(lambda x: P.max_pool2d_with_indices(x, 2), x)[1].dtype == np.int32
    np.testing.assert_array_equal(jit(lambda x: P.avg_pool2d(x, 2), -x.astype(np.int32))[0], [[-2, -4], [-10, -12]])


def mean_by_loop(x, k, s, p, ceil, include, override):
    shape = x.shape[1:]
    outs = [size_out(n, a, b, c, 1, ceil) for n, a, b, c in zip(shape, k, s, p)]
    out = np.zeros((x.shape[0], *outs), np.float32)
    for at, covered in windows(shape, k, s, p, (1, 1), ceil):
        places = [i for i in itertools.product(*covered) if all(0 <= a < n for a, n in zip(i, shape))]
        padded = [i for i in itertools.product(*covered) if all(a < n + q for a, n, q in zip(i, shape, p))]
        count = override or len(padded if include else places)
        for c in range(x.shape[0]):
            out[(c, *at)] = np.sum([x[(c, *i)] for i in places]) / count
    return out


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("include", "override"), [(True, None), (False, None), (True, 5)])
@pytest.mark.parametrize(("k", "s", "p"), [((3, 3), (2, 2), (1, 1)), ((2, 3), (3, 1), (1, 0))])
def test_avg_pool2d(k, s, p, ceil, include, override):
    x = array(2, 7, 8)
    out = jax.jit(lambda x: P.avg_pool2d(x, k, s, p, ceil, include, override))(x)
    np.testing.assert_allclose(out, mean_by_loop(x, k, s, p, ceil, include, override), rtol=1e-5, atol=1e-6)
    grad = array(*out.shape)
    got = jit(lambda g, x: P.avg_pool2d_backward(g, x, k, s, p, ceil, include, override), grad, x)
    np.testing.assert_allclose((got * x).sum(), (grad * out).sum(), rtol=1e-4)


@pytest.mark.parametrize("out", [(1, 1), (3, 4), (6, 8), (7, 2), (0, 3)])
def test_adaptive(out):
    x = np.round(array(2, 3, 6, 8) * 2)
    cut = [[(i * n // m, -(-(i + 1) * n // m)) for i in range(m)] for n, m in zip((6, 8), out)]
    pools = lambda x: (P.adaptive_avg_pool2d(x, list(out)), P.adaptive_max_pool2d(x, list(out)))  # noqa: E731
    means, (values, index) = jit(pools, x)
    assert means.shape == values.shape == index.shape == (2, 3, *out)
    for i, j in np.ndindex(*out):
        (a, b), (c, d) = cut[0][i], cut[1][j]
        part = x[:, :, a:b, c:d]
        np.testing.assert_allclose(means[:, :, i, j], part.mean((2, 3)), rtol=1e-5, atol=1e-6)
        best = part.reshape(2, 3, -1).argmax(-1)
        np.testing.assert_array_equal(values[:, :, i, j], part.max((2, 3)))
        np.testing.assert_array_equal(index[:, :, i, j], (a + best // (d - c)) * 8 + c + best % (d - c))
    grad = jnp.ones_like(means)
    got = jit(P._adaptive_avg_pool2d_backward, grad, x)
    np.testing.assert_allclose(got.sum(), grad.sum(), rtol=1e-5)
    assert jit(P.adaptive_max_pool2d_backward, grad, x, index).sum() == grad.sum()


def test_adaptive_other_ranks():
    x = array(2, 6, 7, 8)
    np.testing.assert_allclose(jit(lambda x: P.adaptive_avg_pool3d(x, [2, 7, 1]), x).sum() * 3 * 8, x.sum(), rtol=1e-4)
    np.testing.assert_allclose(
        jit(lambda x: P.adaptive_avg_pool1d(x, [4]), x[0]), x[0].reshape(6, 7, 4, 2).mean(-1), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(
        jit(lambda x: P.adaptive_max_pool1d(x, [4]), x[0])[0], x[0].reshape(6, 7, 4, 2).max(-1)
    )


def test_fractional_max_pool():
    x = array(1, 2, 6, 7)
    samples = np.float32([[[0.3, 0.7], [0.0, 0.99]]])
    values, index = jit(lambda x, s: P.fractional_max_pool2d(x, (2, 3), (3, 3), s), x, samples)
    values, index = np.asarray(values), np.asarray(index)
    for c in range(2):
        starts = []
        for sample, n, k in ((samples[0, c, 1], 6, 2), (samples[0, c, 0], 7, 3)):
            sample, alpha = float(sample), (n - k) / 2
            starts.append([int((i + sample) * alpha) - int(sample * alpha) for i in range(2)] + [n - k])
        for i, j in np.ndindex(3, 3):
            part = x[0, c, starts[0][i] : starts[0][i] + 2, starts[1][j] : starts[1][j] + 3]
            assert values[0, c, i, j] == part.max() == x[0, c].ravel()[index[0, c, i, j]]
    grad = P.fractional_max_pool2d_backward(jnp.ones_like(values), jnp.asarray(x), (2, 3), (3, 3), index)
    assert grad.sum() == values.size
    assert jax.eval_shape(lambda x, s: P.fractional_max_pool3d(x, 2, 2, s), array(1, 4, 4, 4), array(1, 1, 3))[
        0
    ].shape == (1, 2, 2, 2)


def test_max_unpool():
    x = array(2, 4, 6)
    values, index = jit(lambda x: P.max_pool2d_with_indices(x, 2), x)
    out = np.asarray(jit(lambda v, i: P.max_unpool2d(v, i, [4, 6]), values, index))
    np.testing.assert_array_equal(out[out != 0], np.where(out == x, x, 0)[out != 0])
    assert (out != 0).sum() == values.size
    assert jax.eval_shape(
        lambda x, i: P.max_unpool3d(x, i, [2, 3, 3], [1] * 3, [0] * 3), array(1, 1, 2, 2), np.zeros((1, 1, 2, 2), int)
    ).shape == (
        1,
        2,
        3,
        3,
    )
    with pytest.raises(RuntimeError, match="invalid max index: 24"):
        lookup("aten::max_unpool2d").check(values, index.at[0, 0, 0].set(24), [4, 6])


def test_transformations():
    x = array(3, 2, 6, 6)
    pool = lambda x: P.max_pool2d_with_indices(x, 3, 2, 1)  # noqa: E731
    values, index = jit(pool, x)
    np.testing.assert_array_equal(jit(jax.vmap(pool), x)[0], values)
    grad = jit(jax.grad(lambda x: pool(x)[0].sum()), x)
    back = lambda g, i: P.max_pool2d_with_indices_backward(g, x, 3, 2, 1, 1, False, i)  # noqa: E731
    want = jit(back, jnp.ones_like(values), index)
    np.testing.assert_array_equal(grad, want)
    assert jit(lambda x: P.avg_pool2d(x, 2), jnp.asarray(x, jnp.bfloat16)).dtype == jnp.bfloat16
    assert jit(lambda x: P.max_pool2d(x, 2), jnp.zeros((0, 2, 4, 4))).shape == (0, 2, 2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: P.max_pool2d(x, 3, 2, 2), "at most half"),
        (lambda x: P.max_pool2d(x, 9), "too small"),
        (lambda x: P.max_pool2d(x, 2, 0), "greater than zero"),
        (lambda x: P.max_pool2d(x, [2, 2, 2]), "tuple of 2 ints"),
        (lambda x: P.max_pool2d(x[0, 0], 2), "Expected 3D or 4D"),
        (lambda x: P.avg_pool2d(x, 2, 2, 0, False, True, 0), "divisor must be not zero"),
        (lambda x: P.adaptive_avg_pool2d(x, [3]), "output_size must be 2"),
        (lambda x: P.adaptive_max_pool2d(x[:, :, :0], [3, 2]), "non-zero size"),
        (lambda x: P.max_unpool2d(x, jnp.zeros((1, 1), int), [4, 4]), "Expected shape of indices"),
        (lambda x: P.fractional_max_pool2d(x, 3, 7, jnp.zeros((2, 3, 2))), "too large"),
        (lambda x: P.avg_pool2d_backward(x, x, [2, 2], [2, 2], [0, 0], False, True, None), "grad_output of shape"),
    ],
)
def test_errors(call, message):
    with pytest.raises(RuntimeError, match=message):
        call(jnp.zeros((2, 3, 8, 8)))

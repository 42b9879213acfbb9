"""Random numbers: distributions, ranges, dtypes, and what PyTorch refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import torchax_ops as ops
from torchax_ops._registry import lookup
from torchax_ops.random import _dirichlet_grad, _sample_dirichlet, _standard_gamma, _standard_gamma_grad

KEY = jax.random.key(7)
N = 20_000
ZEROS = np.zeros(N, np.float32)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def moments(x, mean, std, tolerance=0.03):
    x = np.asarray(x, np.float64)
    assert abs(x.mean() - mean) < tolerance * max(1, std)
    assert abs(x.std() - std) < tolerance * max(1, std)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_uniform_never_reaches_its_bound(dtype):
    draw = jax.jit(lambda low, high: ops.uniform(jnp.zeros(N, dtype), low, high, key=KEY))
    for low, high in ((0.0, 1.0), (1.0, 2.0), (-3.0, 5.0), (2.0, 2.0)):
        x = draw(low, high)
        assert x.dtype == dtype
        x = np.asarray(x, np.float64)
        assert x.min() >= low
        assert x.max() < high or low == high
        moments(x, (low + high) / 2, (high - low) / 12**0.5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rand_never_reaches_one(dtype):
    x = jax.jit(lambda key: ops.rand((N,), dtype=np.dtype(dtype), key=key))(KEY)
    assert x.dtype == dtype
    assert 0.9 < np.asarray(x, np.float32).max() < 1


def test_factories():
    draw = lambda fn, *args, **kwargs: jax.jit(lambda key: fn(*args, **kwargs, key=key))(KEY)  # noqa: E731
    of = lambda fn, *args, **kwargs: jax.eval_shape(lambda key: fn(*args, **kwargs, key=key), KEY).dtype  # noqa: E731
    moments(draw(ops.randn, [N]), 0, 1)
    moments(np.real(draw(ops.randn, [N], dtype=np.complex64)), 0, 0.5**0.5)
    moments(draw(ops.normal_float_float, 3.0, 2.0, [N]), 3, 2)
    np.testing.assert_array_equal(np.sort(draw(ops.randperm, 50)), np.arange(50))
    assert of(ops.rand, [2, 3]) == of(ops.randn, [2]) == of(ops.randperm, 4, dtype=np.float32) == np.float32
    assert of(ops.rand_like, jnp.zeros(2, jnp.bfloat16)) == jnp.bfloat16
    assert of(ops.rand, [3], dtype=np.complex128) == np.complex128
    assert of(ops.randn_like, jnp.zeros(2), dtype=np.float64) == np.float64
    assert of(ops.randint, 3, [2]) == of(ops.randperm, 3) == np.int64


def test_integers_span_64_bits():
    x = np.asarray(ops.randint_low(-(2**63), 2**63 - 1, [1000], key=KEY))
    assert x.min() < -(2**62)
    assert x.max() > 2**62
    x = np.asarray(ops.randint_low(2**40, 2**40 + 3, [1000], key=KEY))
    np.testing.assert_array_equal(np.unique(x), 2**40 + np.arange(3))
    np.testing.assert_array_equal(np.unique(ops.randint_low(-1, 2, [100], dtype=np.float32, key=KEY)), [-1, 0, 1])
    with jax.enable_x64(False), pytest.raises(RuntimeError, match="x64"):
        ops.randint(2**40, [1], key=KEY)


@pytest.mark.parametrize(
    ("dtype", "last"),
    [("bool", 1), ("uint8", 255), ("int8", 127), ("int64", 2**63 - 1), ("float32", 2**24), ("float16", 2**11)],
)
def test_random_fills_the_dtype(dtype, last):
    x = np.asarray(jax.jit(lambda x: ops.random(x, key=KEY))(np.zeros(5000, dtype))).astype(np.float64)
    assert x.min() >= 0
    assert 0.98 * last <= x.max() <= float(last)


def test_random_between():
    np.testing.assert_array_equal(np.unique(ops.random_from(jnp.zeros(99), 2, 5, key=KEY)), [2, 3, 4])
    assert np.asarray(ops.random_from(jnp.zeros(2000, np.uint8), 5, None, key=KEY)).min() >= 5
    np.testing.assert_array_equal(np.unique(ops.random_to(jnp.zeros(99, np.int32), 2, key=KEY)), [0, 1])
    assert (np.asarray(ops.random_from(jnp.zeros(99, np.int64), -(2**63), None, key=KEY)) < 0).any()


def test_randint_like_with_a_bound_in_an_array():
    x = jax.jit(lambda high: ops.randint_like_tensor(jnp.zeros(99), high, key=KEY))(jnp.int64(3))
    np.testing.assert_array_equal(np.unique(x), [0, 1, 2])
    assert x.dtype == np.float64


def test_bernoulli():
    for dtype in ("bool", "float16"):
        x = jax.jit(lambda p, x: ops.bernoulli_p(x, p, key=KEY))(0.3, np.zeros(N, dtype))
        assert x.dtype == dtype
        moments(x.astype(np.float32), 0.3, 0.21**0.5)
    np.testing.assert_array_equal(ops.bernoulli(jnp.float32([0, 1, 0, 1]), key=KEY), [0, 1, 0, 1])
    got = ops.bernoulli_tensor(jnp.zeros((2, 2), np.int64), jnp.float32([0, 1]), key=KEY)
    np.testing.assert_array_equal(got, [[0, 1], [0, 1]])


@pytest.mark.parametrize(
    ("draw", "mean", "std"),
    [
        (lambda: ops.normal_functional(ZEROS, 1.0, 3.0, key=KEY), 1, 3),
        (lambda: ops.normal(jnp.full(N, 2.0), jnp.float32(0.5), key=KEY), 2, 0.5),
        (lambda: ops.normal_float_tensor(1.0, jnp.full(N, 0.5), key=KEY), 1, 0.5),
        (lambda: ops.exponential(ZEROS, 2.0, key=KEY), 0.5, 0.5),
        (lambda: jnp.log(ops.log_normal(ZEROS, 0.5, 0.7, key=KEY)), 0.5, 0.7),
        (lambda: jnp.arctan(ops.cauchy(ZEROS, key=KEY)), 0, np.pi / 12**0.5),
        (lambda: ops.geometric(ZEROS.astype(np.int64), 0.4, key=KEY), 2.5, 0.6**0.5 / 0.4),
        (lambda: ops.poisson(jnp.full(N, 4.5), key=KEY), 4.5, 4.5**0.5),
        (lambda: ops.binomial(jnp.full(N, 10.0), jnp.asarray(0.3), key=KEY), 3, 2.1**0.5),
        (lambda: _standard_gamma(jnp.full(N, 2.5), key=KEY), 2.5, 2.5**0.5),
        (lambda: _sample_dirichlet(jnp.broadcast_to(jnp.float32([1, 2]), (N, 2)), key=KEY)[:, 0], 1 / 3, 18**-0.5),
    ],
)
def test_distributions(draw, mean, std):
    moments(jax.jit(draw)(), mean, std)


def test_positive_draws_stay_positive():
    draw = jax.jit(lambda x: ops.exponential(x, key=KEY))
    for dtype in (np.float16, jnp.bfloat16):
        assert (np.asarray(draw(np.zeros(N, dtype)), np.float32) > 0).all()
    assert np.min(jax.jit(lambda x: ops.geometric(x, 0.9, key=KEY))(np.zeros(N, np.int8))) == 1


@pytest.mark.parametrize("replacement", [False, True])
def test_multinomial(replacement):
    weights = jnp.float32([0, 1, 3, 0, 4, 0])
    draw = jax.jit(lambda p: ops.multinomial(p, 2, replacement, key=KEY))
    x = np.asarray(draw(jnp.broadcast_to(weights, (N, 6))))
    assert x.dtype == np.int64
    np.testing.assert_allclose(np.bincount(x[:, 0], minlength=6) / N, weights / 8, atol=0.01)
    assert (x[:, 0] == x[:, 1]).any() == replacement
    assert ops.multinomial(weights, 3, key=KEY).shape == (3,)


def test_keys_of_any_kind_and_maps():
    draw = jax.jit(lambda key: ops.poisson(jnp.full(N, 3.0), key=key))
    moments(draw(jax.random.key(0, impl="rbg")), 3, 3**0.5)
    keys = jax.random.split(KEY, 3)
    x = jax.vmap(lambda key: ops.rand([4], key=key))(keys)
    assert len(np.unique(x)) == 12
    np.testing.assert_array_equal(x[1], ops.rand([4], key=keys[1]))


def test_implicit_gradients():
    # The cdf of Gamma(a) is an integral over t, differentiated at a = 1 by numpy; that of Beta(a, 1) is x ** a.
    x, t = np.float64([0.3, 2.0]), (np.arange(100_000) + 0.5) / 100_000
    integral = np.mean(np.log(x[:, None] * t**2) * np.exp(-x[:, None] * t**2) * 2 * t, axis=1) * x
    want = -(integral + np.euler_gamma * (1 - np.exp(-x))) / np.exp(-x)
    np.testing.assert_allclose(_standard_gamma_grad(jnp.ones(2), jnp.asarray(x)), want, rtol=1e-5)
    x, a = np.float64([0.3, 0.95, 0.7, 0.01]), np.float64([0.1, 0.5, 30, 2])
    got = jax.jit(_dirichlet_grad)(x, a, a + 1)
    np.testing.assert_allclose(got, -x * np.log(x) / a / (1 - x), rtol=1e-8)


@pytest.mark.parametrize(
    ("error", "draw"),
    [
        (NotImplementedError, lambda: ops.rand([1], dtype=np.int64, key=KEY)),
        (NotImplementedError, lambda: ops.randn_like(jnp.int32([1]), key=KEY)),
        (NotImplementedError, lambda: ops.uniform(jnp.int32([1]), key=KEY)),
        (RuntimeError, lambda: ops.rand([-1], key=KEY)),
        (RuntimeError, lambda: ops.randint_low(3, 3, [1], key=KEY)),
        (RuntimeError, lambda: ops.randint(257, [1], dtype=np.uint8, key=KEY)),
        (RuntimeError, lambda: ops.randint(3, [1], dtype=np.bool_, key=KEY)),
        (RuntimeError, lambda: ops.randperm(-1, key=KEY)),
        (RuntimeError, lambda: ops.randperm(300, dtype=np.uint8, key=KEY)),
        (NotImplementedError, lambda: ops.bernoulli(jnp.int32([1]), key=KEY)),
        (RuntimeError, lambda: ops.normal_float_float(0.0, -1.0, [1], key=KEY)),
        (RuntimeError, lambda: ops.exponential(jnp.int32([1]), key=KEY)),
        (RuntimeError, lambda: ops.multinomial(jnp.ones(2), 3, key=KEY)),
        (RuntimeError, lambda: ops.multinomial(jnp.ones(2), 0, key=KEY)),
        (RuntimeError, lambda: ops.multinomial(jnp.ones((1, 1, 1)), 1, key=KEY)),
        (ValueError, lambda: ops.binomial(jnp.int32([1]), jnp.float32(0.5), key=KEY)),
    ],
)
def test_errors(error, draw):
    with pytest.raises(error):
        draw()


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("uniform", (ZEROS, 2.0, 1.0)),
        ("uniform", (ZEROS, 0.0, float("inf"))),
        ("bernoulli", (np.float32([1.5]),)),
        ("bernoulli.p", (ZEROS, -0.1)),
        ("normal.Tensor_Tensor", (ZEROS, ZEROS - 1)),
        ("exponential", (ZEROS, 0.0)),
        ("cauchy", (ZEROS, 0.0, 0.0)),
        ("log_normal", (ZEROS, 0.0, 0.0)),
        ("geometric", (ZEROS, 1.0)),
        ("multinomial", (np.float32([0, 0]), 1)),
        ("multinomial", (np.float32([1, np.nan]), 1)),
        ("poisson", (np.float32([-1]),)),
    ],
)
def test_values_refused_before_an_eager_call(name, args):
    with pytest.raises(RuntimeError):
        lookup(f"aten::{name}").check(*args)

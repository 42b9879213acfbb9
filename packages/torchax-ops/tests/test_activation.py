"""Activations, softmax and dropout: values, gradients, kinks, dtypes, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as sp

from torchax_ops import lookup
from torchax_ops.nn import activation

INF, NAN = float("inf"), float("nan")
X = np.asarray([-30, -4, -1.5, -0.3, 0, 0.3, 1.5, 4, 30], "float32")


def close(result, expected, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=rtol, atol=atol)


def softplus(x):
    return np.logaddexp(x, 0)


@pytest.mark.parametrize(("name", "args", "reference"), [
    ("relu", (), lambda x: np.maximum(x, 0)),
    ("relu6", (), lambda x: np.clip(x, 0, 6)),
    ("hardsigmoid", (), lambda x: np.clip(x + 3, 0, 6) / 6),
    ("hardswish", (), lambda x: x * np.clip(x + 3, 0, 6) / 6),
    ("hardtanh", (-1, 2), lambda x: np.clip(x, -1, 2)),
    ("threshold", (0.1, 20.0), lambda x: np.where(x > 0.1, x, 20)),
    ("leaky_relu", (0.2,), lambda x: np.where(x > 0, x, 0.2 * x)),
    ("elu", (2.0, 3.0, 0.5), lambda x: np.where(x > 0, 3 * x, 6 * np.expm1(0.5 * np.minimum(x, 0)))),
    ("celu", (2.0,), lambda x: np.where(x > 0, x, 2 * np.expm1(np.minimum(x, 0) / 2))),
    ("silu", (), lambda x: x * sp.expit(x)),
    ("mish", (), lambda x: x * np.tanh(softplus(x))),
    ("softplus", (2.0, 5.0), lambda x: np.where(2 * x > 5, x, softplus(2 * x) / 2)),
    ("log_sigmoid", (), lambda x: -softplus(-x)),
    ("softshrink", (0.5,), lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0)),
    ("hardshrink", (0.5,), lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    ("gelu", (), lambda x: x * sp.ndtr(x)),
])  # fmt: skip
def test_values_dtypes_and_nan(name, args, reference):
    fn = jax.jit(getattr(activation, name))
    close(fn(jnp.asarray(X), *args), reference(X))
    half = fn(jnp.asarray(X, "bfloat16"), *args)
    assert half.dtype == jnp.bfloat16
    close(half, reference(X), rtol=1e-2, atol=1e-2)
    if name != "threshold":
        assert np.isnan(fn(jnp.asarray(NAN), *args))
    assert fn(jnp.zeros((0, 2), "float32"), *args).shape == (0, 2)


@pytest.mark.parametrize(("forward", "backward", "args"), [
    ("hardsigmoid", "hardsigmoid_backward", ()),
    ("hardswish", "hardswish_backward", ()),
    ("hardtanh", "hardtanh_backward", (-1.0, 2.0)),
    ("softplus", "softplus_backward", (1.0, 20.0)),
    ("softshrink", "softshrink_backward", (0.5,)),
    ("hardshrink", "hardshrink_backward", (0.5,)),
    ("silu", "silu_backward", ()),
    ("mish", "mish_backward", ()),
    ("gelu", "gelu_backward", ()),
])  # fmt: skip
def test_backward_is_the_gradient(forward, backward, args):
    fn = functools.partial(getattr(activation, forward))
    x, grad = jnp.asarray(X), jnp.asarray(np.arange(1.0, 10), "float32")
    expected = jax.vjp(lambda x: fn(x, *args), x)[1](grad)[0]
    close(jax.jit(getattr(activation, backward))(grad, x, *args), expected)


def test_backward_from_results():
    x, ones = jnp.asarray(X), jnp.ones(9, "float32")
    close(activation.tanh_backward(ones, jnp.tanh(x)), 1 - np.tanh(X) ** 2)
    close(activation.sigmoid_backward(ones, sp.expit(X)), sp.expit(X) * sp.expit(-X))
    for is_result in (False, True):
        seen = activation.elu(x, 2.0, 3.0, 0.5) if is_result else x
        slope = np.where(X > 0, 3, 3 * np.exp(0.5 * np.minimum(X, 0)))
        close(activation.elu_backward(ones, 2.0, 3.0, 0.5, is_result, seen), slope)
    close(activation.leaky_relu_backward(ones, x, 0.2, False), np.where(X > 0, 1, 0.2))
    close(activation.threshold_backward(ones, x, 0), X > 0)
    _, buffer = activation.log_sigmoid_forward(x)
    close(activation.log_sigmoid_backward(ones, x, buffer), sp.expit(-X))


@pytest.mark.parametrize(("name", "x", "slope"), [
    ("relu", 0.0, 0.0),
    ("relu6", 6.0, 0.0),
    ("hardtanh", 1.0, 0.0),
    ("elu", 0.0, 1.0),
    ("log_sigmoid", 0.0, 0.5),
    ("silu", -1000.0, 0.0),
    ("softplus", 1000.0, 1.0),
])  # fmt: skip
def test_gradient_at_the_kinks(name, x, slope):
    assert jax.grad(getattr(activation, name))(jnp.float32(x)) == slope


def test_integers():
    x = jnp.asarray([-3, 0, 9], "int32")
    np.testing.assert_array_equal(activation.relu(x), [0, 0, 9])
    np.testing.assert_array_equal(activation.hardtanh(x, -1, 1), [-1, 0, 1])
    assert activation.relu(x).dtype == activation.hardtanh(x).dtype == np.int32


def test_gelu_tanh():
    close(activation.gelu(jnp.asarray(X), approximate="tanh"), jax.nn.gelu(jnp.asarray(X), approximate=True))
    with pytest.raises(RuntimeError, match="approximate"):
        activation.gelu(jnp.asarray(X), approximate="sinh")


def test_prelu():
    x = jnp.asarray([[-1.0, 2.0], [-3.0, -4.0]])
    close(activation.prelu(x, jnp.asarray([0.5, 0.25])), [[-0.5, 2], [-1.5, -1]])
    close(activation.prelu(jnp.asarray(-2.0, "float32"), jnp.asarray([0.5])), -1)
    grad_x, grad_w = activation._prelu_kernel_backward(jnp.ones((2, 2)), x, jnp.asarray([[0.5, 0.25]]))
    close(grad_x, [[0.5, 1], [0.5, 0.25]])
    close(grad_w, [[-1, 0], [-3, -4]])
    with pytest.raises(RuntimeError, match="Mismatch"):
        activation.prelu(x, jnp.ones(3))


def test_glu():
    x = jnp.asarray(np.arange(-4.0, 4).reshape(2, 4), "float32")
    a, b = np.split(np.asarray(x), 2, axis=1)
    close(activation.glu(x), a * sp.expit(b))
    close(activation.glu(x, 0), np.asarray(x)[0] * sp.expit(np.asarray(x)[1])[None].reshape(1, 4))
    grad = jnp.ones((2, 2))
    close(activation.glu_backward(grad, x, 1), jax.grad(lambda x: activation.glu(x).sum())(x))
    close(activation.glu_jvp(activation.glu(x), x, x, -1), jax.jvp(activation.glu, (x,), (x,))[1])
    with pytest.raises(RuntimeError, match="even"):
        activation.glu(jnp.ones((2, 3)))
    with pytest.raises(RuntimeError, match="0-dimensional"):
        activation.glu(jnp.float32(1))


def test_rrelu():
    x, noise, key = jnp.asarray(X), jnp.zeros(9), jax.random.key(0)
    out, kept = activation.rrelu_with_noise_functional(x, noise, 0.1, 0.3)
    close(out, np.where(X > 0, X, 0.2 * X))
    close(kept, noise)
    out, slope = activation.rrelu_with_noise_functional(x, noise, 0.1, 0.3, True, key=key)
    assert np.all((slope[X <= 0] >= 0.1) & (slope[X <= 0] < 0.3))
    assert np.all(slope[X > 0] == 1)
    close(out, x * slope)
    close(activation.rrelu_with_noise_backward(jnp.ones(9), x, slope, 0.1, 0.3, True, False), slope)
    with pytest.raises(ValueError, match="key"):
        activation.rrelu_with_noise_functional(x, noise, training=True)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(dim):
    x = jax.random.normal(jax.random.key(0), (3, 4)) * 50
    close(activation.softmax(x, dim), sp.softmax(np.asarray(x), dim))
    close(activation.log_softmax(x, dim), sp.log_softmax(np.asarray(x), dim), atol=1e-5)
    grad = jnp.cos(x)
    y, log_y = activation._softmax(x, dim, False), activation._log_softmax(x, dim, False)
    expected = jax.vjp(lambda x: jax.nn.softmax(x, dim), x)[1](grad)[0]
    close(activation._softmax_backward_data(grad, y, dim, "float32"), expected)
    expected = jax.vjp(lambda x: jax.nn.log_softmax(x, dim), x)[1](grad)[0]
    close(activation._log_softmax_backward_data(grad, log_y, dim, "float32"), expected)


def test_softmax_dtypes_and_edges():
    x = jnp.asarray([[0.0, 1.0], [-INF, -INF]])
    close(activation._softmax(x, 1, False)[1], [NAN, NAN])
    close(activation._safe_softmax(x, 1)[1], [0, 0])
    half = x[:1].astype("float16")
    assert activation._softmax(half, 1, False).dtype == np.float16
    assert activation._log_softmax(half, 1, True).dtype == np.float32
    assert activation.softmax(jnp.asarray([1, 2], "int32"), 0, "float32").dtype == np.float32
    assert activation.softmax(jnp.float32(3), -1) == 1
    assert activation.softmax(jnp.zeros((0, 3), "float32"), 0).shape == (0, 3)
    close(jax.vmap(lambda r: activation.softmax(r, 0))(x), activation.softmax(x, 1))
    with pytest.raises(IndexError):
        activation.softmax(x, 2)
    with pytest.raises(NotImplementedError):
        activation.softmax(jnp.asarray([1, 2], "int32"), 0)
    with pytest.raises(RuntimeError, match="16-bit"):
        activation._softmax(x, 1, True)


def test_masked_softmax():
    x = jnp.asarray(np.arange(24.0).reshape(2, 1, 3, 4), "float32")
    padding = jnp.asarray([[False, True, True, True], [False, False, False, True]])
    y = activation._masked_softmax(x, padding, -1, 1)
    close(y[0], np.broadcast_to([1, 0, 0, 0], (1, 3, 4)))
    close(y[1, 0, 0, :3], sp.softmax([0, 1, 2]))
    mask = jnp.broadcast_to(padding[:, None, None], x.shape)
    grad = activation._masked_softmax_backward(jnp.ones(x.shape), y, mask)
    close(grad, np.zeros(x.shape))
    with pytest.raises(RuntimeError, match="boolean"):
        activation._masked_softmax(x, jnp.ones(x.shape))


def test_dropout():
    x, key = jnp.ones((1000,), "float32"), jax.random.key(1)
    run = jax.jit(lambda p: activation.native_dropout(x, p, True, key=key))
    y, mask = run(0.25)
    assert mask.dtype == np.bool_
    assert 0.7 < mask.mean() < 0.8
    close(y, np.where(mask, 1 / 0.75, 0))
    close(activation.native_dropout_backward(x, mask, 1 / 0.75), y)
    assert not run(1.0)[0].any()
    assert run(0.0)[1].all()
    same, all_kept = activation.native_dropout(x, 0.5, False)
    assert (same == x).all()
    assert all_kept.all()
    fused, bits = activation._fused_dropout(x, 0.75, key=key)
    assert bits.dtype == np.uint8
    close(fused, y)
    assert activation.native_dropout(x.astype("bfloat16"), 0.5, None, key=key)[0].dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="key"):
        activation.native_dropout(x, 0.5, True)
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        lookup("aten::native_dropout").check(x, 1.5, True)


@pytest.mark.parametrize(("fn", "error"), [
    (lambda: activation.relu(jnp.asarray([True])), RuntimeError),
    (lambda: activation.gelu(jnp.asarray([1])), NotImplementedError),
    (lambda: activation.silu(jnp.asarray([1])), NotImplementedError),
    (lambda: activation.hardtanh(jnp.asarray([1], "uint8")), RuntimeError),
    (lambda: lookup("aten::celu").check(jnp.ones(1), 0), RuntimeError),
    (lambda: lookup("aten::softshrink").check(jnp.ones(1), -1), RuntimeError),
    (lambda: activation.silu_backward(jnp.ones(2), jnp.ones(3)), RuntimeError),
    (lambda: activation._prelu_kernel(jnp.ones(2), jnp.ones(2, "bfloat16")), RuntimeError),
])  # fmt: skip
def test_errors(fn, error):
    with pytest.raises(error):
        fn()


def test_x64_keeps_32_bits():
    with jax.enable_x64(True):
        x = jnp.asarray(X)
        for name in ("gelu", "elu", "softplus", "mish", "hardswish", "selu", "log_sigmoid"):
            assert getattr(activation, name)(x).dtype == np.float32
        assert activation.native_dropout(x, 0.5, True, key=jax.random.key(0))[0].dtype == np.float32
        assert activation.softmax(x, 0, "float64").dtype == np.float64

"""Convolutions against sums written out, and their gradients against JAX's."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops.nn import convolution as C
from torchax_ops.nn.convolution import convolution, convolution_backward, convolution_backward_overrideable

R = np.random.default_rng(0)


def array(*shape, dtype=np.float32):
    return jnp.asarray(R.standard_normal(shape).astype(dtype))


def by_sums(x, w, stride, padding, dilation, groups):
    """Each output is a sum over taps and the channels of its group."""
    x, w = np.asarray(x), np.asarray(w)
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    outs = [(s - d * (k - 1) - 1) // t + 1 for s, d, k, t in zip(padded.shape[2:], dilation, w.shape[2:], stride)]
    out = np.zeros((x.shape[0], w.shape[0], *outs), np.result_type(x, w))
    for o, tap in itertools.product(range(w.shape[0]), np.ndindex(*w.shape[2:])):
        group = o // (w.shape[0] // groups)
        at = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilation, outs, stride))
        channels = slice(group * w.shape[1], (group + 1) * w.shape[1])
        out[:, o] += np.einsum("nc...,c->n...", padded[(slice(None), channels, *at)], w[(o, slice(None), *tap)])
    return out


CASES = [
    # spatial, kernel, stride, padding, dilation, groups, channels in and out
    ((9,), (3,), (2,), (1,), (2,), 1, (4, 6)),
    ((9,), (3,), (1,), (1,), (1,), 4, (4, 8)),
    ((7, 6), (3, 2), (2, 1), (1, 0), (1, 2), 1, (2, 3)),
    ((7, 6), (3, 2), (2, 1), (1, 0), (1, 2), 2, (4, 6)),
    ((7, 6), (3, 3), (1, 1), (1, 1), (1, 1), 4, (4, 4)),
    ((5, 4, 6), (2, 3, 2), (1, 2, 1), (0, 1, 1), (2, 1, 1), 1, (2, 3)),
]


@pytest.mark.parametrize(("spatial", "kernel", "stride", "padding", "dilation", "groups", "channels"), CASES)
def test_forward_and_gradients(spatial, kernel, stride, padding, dilation, groups, channels):
    x, w, b = array(2, channels[0], *spatial), array(channels[1], channels[0] // groups, *kernel), array(channels[1])
    rest = (stride, padding, dilation, False, (0,), groups)
    forward = jax.jit(lambda x, w, b: convolution(x, w, b, *rest))
    out = forward(x, w, b)
    want = by_sums(x, w, stride, padding, dilation, groups) + np.asarray(b).reshape(-1, *[1] * len(spatial))
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    grad = array(*out.shape)
    got = jax.jit(lambda g, x, w: convolution_backward(g, x, w, [channels[1]], *rest, (True, True, True)))(grad, x, w)
    for a, e in zip(got, jax.jit(lambda g, *args: jax.vjp(forward, *args)[1](g))(grad, x, w, b)):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "extra"), [(2, 1, 1, 1), (1, 0, 2, 0), (3, 4, 2, 2), (2, 1, 3, 2)]
)
def test_transposed_is_the_transpose(stride, padding, dilation, extra, groups):
    x, w = array(2, 4, 5, 5), array(4, 6 // groups, 3, 3)
    rest = ([stride], [padding], [dilation], True, [extra], groups)
    out = convolution(x, w, None, *rest)
    size = 4 * stride - 2 * padding + 2 * dilation + 1 + extra
    assert out.shape == (2, 6, size, size)
    plain = lambda y: convolution(y, w, None, [stride], [padding], [dilation], False, [0], groups)[..., :5, :5]  # noqa: E731
    np.testing.assert_allclose(out, jax.jit(lambda x: jax.vjp(plain, out)[1](x)[0])(x), rtol=1e-4, atol=1e-5)
    grad = array(*out.shape)
    got = jax.jit(lambda g, x, w: convolution_backward(g, x, w, None, *rest, (True, True, True)))(grad, x, w)
    want = jax.jit(lambda g, *a: jax.vjp(lambda *a: convolution(*a, *rest), *a)[1](g))(grad, x, w, jnp.zeros(6))
    for a, e in zip(got, want):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_complex_are_the_adjoint(transposed):
    x, w, rest = array(2, 4, 6) + 1j * array(2, 4, 6), array(4, 2, 3) - 2j * array(4, 2, 3), ([2], [1], [1])
    rest = (*rest, transposed, [int(transposed)], 2)
    out, vjp = jax.vjp(lambda x, w: convolution(x, w, None, *rest), x, w)  # JAX's is the transpose
    grad = out + 1j * jnp.conj(out)
    for got, want in zip(convolution_backward(grad, x, w, None, *rest, (True, True, False)), vjp(jnp.conj(grad))):
        np.testing.assert_allclose(got, jnp.conj(want), rtol=1e-4, atol=1e-4)


def test_output_mask_and_overrideable():
    x, w, rest = array(1, 2, 5), array(3, 2, 3), ((1,), (0,), (1,), False, (0,), 1)
    got = convolution_backward_overrideable(array(1, 3, 3), x, w, *rest, (False, True, False))
    assert [g is None for g in got] == [True, False, True]
    assert got[1].shape == w.shape


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "complex64"])
def test_dtypes(dtype):
    x, w = (4 * array(1, 2, 6)).astype(dtype), (4 * array(3, 2, 3)).astype(dtype)
    out = convolution(x, w, None, [1], [1], [1], False, [0], 1)
    assert (out.dtype, out.shape) == (np.dtype(dtype), (1, 3, 6))
    if dtype == "int32":
        np.testing.assert_array_equal(out, by_sums(x, w, (1,), (1,), (1,), 1))


def test_float64_and_vmap():
    with jax.enable_x64(True):
        x, w = array(3, 1, 2, 6, dtype=np.float64), array(3, 2, 3, dtype=np.float64)
        f = functools.partial(convolution, bias=None, stride=[1], padding=[1], dilation=[1], transposed=False)
        f = functools.partial(f, output_padding=[0], groups=1)
        out = jax.vmap(lambda x: f(x, w))(x)
        assert out.dtype == np.float64
        np.testing.assert_allclose(out[:, 0], by_sums(x[:, 0], w, (1,), (1,), (1,), 1), rtol=1e-12)


@pytest.mark.parametrize(("kernel", "dilation"), [((3, 2), (1, 1)), ((4, 3), (2, 1))])
def test_same_and_valid_padding(kernel, dilation):
    x, w = array(2, 2, 7, 6), array(3, 2, *kernel)
    spans = [d * (k - 1) for d, k in zip(dilation, kernel)]
    padded = np.pad(x, [(0, 0), (0, 0), *((s // 2, s - s // 2) for s in spans)])
    want = by_sums(padded, w, (1, 1), (0, 0), dilation, 1)
    np.testing.assert_allclose(C.conv2d(x, w, padding="same", dilation=dilation), want, rtol=1e-4, atol=1e-5)
    assert want.shape == (2, 3, 7, 6)
    valid = C.conv2d(x[0], w, padding="valid")
    np.testing.assert_allclose(valid, by_sums(x[:1], w, (1, 1), (0, 0), (1, 1), 1)[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="strided"):
        C.conv2d(x, w, None, 2, "same")
    with pytest.raises(RuntimeError, match="to conv2d"):
        C.conv2d(x[0, 0], w)


def test_conv_tbc_and_transposed():
    x, w, b = array(7, 2, 3), array(3, 3, 4), array(4)
    want = C.conv1d(x.transpose(1, 2, 0), w.transpose(2, 1, 0), b, padding=1).transpose(2, 0, 1)
    np.testing.assert_allclose(C.conv_tbc(x, w, b, 1), want, rtol=1e-5)
    x, w = array(2, 3, 5), array(3, 4, 2)
    want = convolution(x, w, None, [2], [0], [1], True, [1], 1)
    np.testing.assert_allclose(C.conv_transpose1d(x[0], w, None, 2, 0, 1), want[0], rtol=1e-5, atol=1e-6)


def test_empty_batch():
    out = convolution(jnp.zeros((0, 2, 5)), jnp.zeros((3, 2, 3)), jnp.zeros(3), [1], [0], [1], False, [0], 1)
    assert out.shape == (0, 3, 3)


@pytest.mark.parametrize(
    ("x", "w", "b", "rest", "message"),
    [
        ((1, 2, 5), (3, 2, 7), None, ([1], [0], [1], False, [0], 1), "can't be greater than actual input size"),
        ((1, 4, 5), (3, 2, 3), None, ([1], [0], [1], False, [0], 1), "to have 2 channels, but got 4"),
        ((2, 5), (3, 2, 3), None, ([1], [0], [1], False, [0], 1), "Expected 3-dimensional input"),
        ((1, 2, 5), (3, 2, 3), (2,), ([1], [0], [1], False, [0], 1), "expected bias to be"),
        ((1, 2, 5), (3, 2, 3), None, ([0], [0], [1], False, [0], 1), "non-positive stride"),
        ((1, 2, 5), (3, 2, 3), None, ([1], [-1], [1], False, [0], 1), "negative padding"),
        ((1, 2, 5), (3, 2, 3), None, ([1, 1], [0], [1], False, [0], 1), "to be a single integer value or a list of 1"),
        ((1, 2, 5), (3, 1, 3), None, ([1], [0], [1], False, [0], 2), "divisible by 2"),
        ((1, 2, 5), (2, 3, 3), None, ([1], [0], [1], True, [1], 1), "output padding must be smaller"),
    ],
)
def test_errors(x, w, b, rest, message):
    with pytest.raises(RuntimeError, match=message):
        convolution(jnp.zeros(x), jnp.zeros(w), None if b is None else jnp.zeros(b), *rest)


def test_mixed_dtypes():
    with pytest.raises(RuntimeError, match="should be the same"):
        convolution(jnp.zeros((1, 2, 5)), jnp.zeros((3, 2, 3), jnp.bfloat16), None, [1], [0], [1], False, [0], 1)

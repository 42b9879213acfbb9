"""Normalizations against numpy, and their gradients against JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops.nn import normalization as N

R = np.random.default_rng(0)
ALL = (True, True, True)


def array(*shape, dtype=np.float32):
    return jnp.asarray((R.standard_normal(shape) * 2 + 1).astype(dtype))


def jit(f, *args):
    """One compilation for all of ``f``."""
    return jax.jit(f)(*args)


def pull(f, grad, *args):
    """The gradients of ``f``."""
    return jit(lambda grad, *args: jax.vjp(f, *args)[1](grad), grad, *args)


def close(got, want, rtol=2e-4, atol=2e-5):
    for a, e in zip(got, want):
        np.testing.assert_allclose(a, e, rtol=rtol, atol=atol)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 6), (2, 3, 4, 5)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(shape, training):
    x, w, b, mean, var = array(*shape), array(3), array(3), array(3), abs(array(3))
    f = jax.jit(lambda *a: N._native_batch_norm_legit_functional(*a, training, 0.25, 1e-5))
    out, saved_mean, saved_invstd, new_mean, new_var = f(x, w, b, mean, var)
    axes = (0, *range(2, x.ndim))
    m, v = (np.mean(x, axes), np.var(x, axes)) if training else (np.asarray(mean), np.asarray(var))
    column = lambda a: np.asarray(a).reshape(1, 3, *[1] * (x.ndim - 2))  # noqa: E731
    want = (np.asarray(x) - column(m)) / np.sqrt(column(v) + 1e-5) * column(w) + column(b)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    if training:
        close((saved_mean, saved_invstd), (m, 1 / np.sqrt(v + 1e-5)))
        count = x.size // 3
        close((new_mean, new_var), (0.75 * mean + 0.25 * m, 0.75 * var + 0.25 * v * count / (count - 1)))
    else:
        assert saved_mean.shape == saved_invstd.shape == (0,)
        close((new_mean, new_var), (mean, var))
    grad = array(*shape)
    forward = lambda x, w, b: N.native_batch_norm(x, w, b, mean, var, training, 0.1, 1e-5)[0]  # noqa: E731
    back = lambda *a: N.native_batch_norm_backward(*a, training, 1e-5, ALL)  # noqa: E731
    got = jit(back, grad, x, w, mean, var, saved_mean, saved_invstd)
    close(got, pull(forward, grad, x, w, b))


def test_batch_norm_of_one_element_has_no_variance_to_learn():
    out = N._batch_norm_with_update_functional(jnp.ones((1, 2)), None, None, jnp.zeros(2), jnp.ones(2), 0.1, 1e-5)
    assert out[3].dtype == jnp.uint8
    assert jnp.isnan(out[5]).all()


def test_batch_norm_without_statistics():
    x = array(4, 3, 5)
    out = N._native_batch_norm_legit_no_stats(x, None, None, True, 0.1, 1e-5)
    np.testing.assert_allclose(out[0].mean((0, 2)), 0, atol=1e-5)
    with pytest.raises(RuntimeError, match="running_mean and running_var to be defined"):
        N.native_batch_norm(x, None, None, None, None, False, 0.1, 1e-5)
    with pytest.raises(RuntimeError, match="at least one element"):
        N.native_batch_norm(x[:0], None, None, None, None, True, 0.1, 1e-5)
    with pytest.raises(RuntimeError, match="weight should contain 3 elements"):
        N.native_batch_norm(x, jnp.ones(4), None, None, None, True, 0.1, 1e-5)


def test_synchronized_batch_norm_in_steps():
    x, w, b, grad = array(4, 3, 5), array(3), array(3), array(4, 3, 5)
    mean, invstd = N.batch_norm_stats(x, 1e-5)
    whole = lambda x, w, b: N.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)[0]  # noqa: E731
    np.testing.assert_allclose(N.batch_norm_elemt(x, w, b, mean, invstd, 1e-5), whole(x, w, b), rtol=1e-4, atol=1e-5)
    total, along, grad_w, grad_b = N.batch_norm_backward_reduce(grad, x, mean, invstd, w, True, True, True)
    grad_x = N.batch_norm_backward_elemt(grad, x, mean, invstd, w, total, along, jnp.int32([12, 8]))
    close((grad_x, grad_w, grad_b), pull(whole, grad, x, w, b))


@pytest.mark.parametrize(("shape", "inner"), [((4, 3, 8), (8,)), ((4, 3, 8), (3, 8)), ((6,), (6,))])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(shape, inner, affine):
    x, w, b = array(*shape), *((array(*inner), array(*inner)) if affine else (None, None))
    out, mean, rstd = jax.jit(lambda x, w, b: N.native_layer_norm(x, inner, w, b, 1e-5))(x, w, b)
    axes = tuple(range(-len(inner), 0))
    m, v = np.mean(x, axes, keepdims=True), np.var(x, axes, keepdims=True)
    want = (np.asarray(x) - m) / np.sqrt(v + 1e-5)
    np.testing.assert_allclose(out, want * w + b if affine else want, rtol=1e-4, atol=1e-5)
    close((mean, rstd), (m, 1 / np.sqrt(v + 1e-5)))
    grad = array(*shape)
    back = lambda g, x, *a: N.native_layer_norm_backward(g, x, inner, *a, ALL)  # noqa: E731
    got = jit(back, grad, x, mean, rstd, w, b)
    if not affine:
        assert got[1:] == (None, None)
        w, b = jnp.ones(inner), jnp.zeros(inner)
    close(got[: 3 if affine else 1], pull(lambda *a: N.layer_norm(a[0], inner, *a[1:]), grad, x, w, b))


@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm(eps):
    x, w, grad = array(4, 3, 8), array(8), array(4, 3, 8)
    out, rstd = jit(lambda x, w: N._fused_rms_norm(x, (8,), w, eps), x, w)
    used = np.finfo(np.float32).eps if eps is None else eps
    want = 1 / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + used)
    close((rstd, out), (want, x * want * w))
    got = jit(lambda g, x, r, w: N._fused_rms_norm_backward(g, x, (8,), r, w, (True, True)), grad, x, rstd, w)
    close(got, pull(lambda x, w: N.rms_norm(x, (8,), w, eps), grad, x, w))


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5), (2, 6, 3, 4)])
@pytest.mark.parametrize("groups", [1, 3])
def test_group_norm(shape, groups):
    x, w, b, grad = array(*shape), array(6), array(6), array(*shape)
    size = int(np.prod(shape[2:]))
    sizes = (shape[0], 6, size, groups)
    out, mean, rstd = jit(lambda *a: N.native_group_norm(*a, *sizes, 1e-5), x, w, b)
    flat = np.asarray(x).reshape(shape[0], groups, -1)
    m, v = flat.mean(-1), flat.var(-1)
    close((mean, rstd), (m, 1 / np.sqrt(v + 1e-5)))
    want = ((flat - m[..., None]) / np.sqrt(v[..., None] + 1e-5)).reshape(shape[0], 6, -1)
    want = want * np.asarray(w)[:, None] + np.asarray(b)[:, None]
    np.testing.assert_allclose(out, want.reshape(shape), rtol=1e-4, atol=1e-4)
    got = jit(lambda *a: N.native_group_norm_backward(*a, *sizes, ALL), grad, x, mean, rstd, w)
    close(got, pull(lambda *a: N.group_norm(a[0], groups, *a[1:]), grad, x, w, b), atol=1e-4)


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim):
    v = array(4, 3, 2)
    shape = [v.shape[i] if i == dim else 1 for i in range(3)]
    g, grad = array(*shape), array(4, 3, 2)
    out, norm = jit(lambda v, g: N._weight_norm_interface(v, g, dim), v, g)
    axes = tuple(i for i in range(3) if i != dim)
    close((norm, out), (np.sqrt(np.square(v).sum(axes, keepdims=True)), v * g / norm))
    got = jit(lambda *a: N._weight_norm_interface_backward(*a, dim), grad, v, g, norm)
    close(got, pull(lambda v, g: N._weight_norm_interface(v, g, dim)[0], grad, v, g))
    with pytest.raises(RuntimeError, match="first or the last"):
        N._weight_norm_interface(v, g, 1)


def test_sixteen_bits_compute_in_float32():
    x = jnp.full((1, 4096), 1.0, jnp.bfloat16).at[0, ::2].set(1.0625)
    norm = lambda x, w: N.native_layer_norm(x, (4096,), w, None, 0.0)  # noqa: E731
    out, mean, rstd = jit(norm, x, None)
    assert out.dtype == mean.dtype == rstd.dtype == jnp.bfloat16
    np.testing.assert_allclose(jnp.abs(out).astype(np.float32), 1, rtol=0.01)
    assert [o.dtype for o in jit(norm, x, jnp.ones(4096))] == [jnp.bfloat16, np.float32, np.float32]
    assert jit(lambda x: N._fused_rms_norm(x, (4096,), None, None)[1], x).dtype == np.float32


def several(x, w):
    return (
        *N._native_batch_norm_legit_functional(x, w, w, w, abs(w), True, 0.1, 1e-5),
        *N.native_group_norm(x, w, w, 2, 6, 4, 3, 1e-5),
        *N.native_layer_norm(x, (4,), None, None, 1e-5),
        *N._fused_rms_norm(x, (4,), None, None),
        *N.native_layer_norm_backward(x, x, (4,), x[..., :1], x[..., :1], w[:4], w[:4], ALL),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes_under_x64(dtype):
    with jax.enable_x64(True):
        outs = jax.eval_shape(several, array(2, 6, 4, dtype=dtype), array(6, dtype=dtype))
        assert {o.dtype for o in outs} == {np.dtype(dtype)}


def test_empty_and_vmap():
    out, mean, _ = N.native_layer_norm(jnp.zeros((0, 3)), (3,), jnp.ones(3), jnp.ones(3), 1e-5)
    assert (out.shape, mean.shape) == ((0, 3), (0, 1))
    grads = N.native_layer_norm_backward(out, out, (3,), mean, mean, jnp.ones(3), jnp.ones(3), ALL)
    assert [g.shape for g in grads] == [(0, 3), (3,), (3,)]
    assert not grads[1].any()
    assert N.native_group_norm(jnp.zeros((0, 4, 2)), None, None, 0, 4, 2, 2, 1e-5)[1].shape == (0, 2)
    x = array(5, 2, 8)
    np.testing.assert_allclose(
        jax.vmap(lambda x: N.layer_norm(x, (8,)))(x), N.layer_norm(x, (8,)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: N.native_layer_norm(jnp.ones((2, 3)), (4,), None, None, 1e-5), "expected input with shape"),
        (lambda: N.native_layer_norm(jnp.ones((2, 3)), (), None, None, 1e-5), "at least 1-dimensional"),
        (lambda: N.native_layer_norm(jnp.ones((2, 3)), (3,), jnp.ones(2), None, 1e-5), "weight to be of same shape"),
        (lambda: N.native_layer_norm(jnp.ones(3), (3,), jnp.ones(3, jnp.bfloat16), None, 1e-5), "mixed dtype"),
        (lambda: N.native_group_norm(jnp.ones((2, 3)), None, None, 2, 3, 1, 2, 1e-5), "divisible by num_groups"),
        (lambda: N.native_group_norm(jnp.ones((2, 3)), jnp.ones(2), None, 2, 3, 1, 3, 1e-5), "vector of size equal"),
    ],
)
def test_errors(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()

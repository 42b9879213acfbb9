"""Attention against a softmax written out, in every form, and its gradients against JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops._registry import lookup
from torchax_ops.nn import attention as A

R = np.random.default_rng(0)


def array(*shape):
    return jnp.asarray(R.standard_normal(shape).astype(np.float32))


def jit(f, *args):
    """One compilation for all of ``f``."""
    return jax.jit(f)(*args)


def by_softmax(q, k, v, bias=None, causal=False, scale=None):
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    scores = scores if bias is None else scores + np.asarray(bias)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ v


HIDDEN = np.zeros((5, 6), np.float32)
HIDDEN[2] = -np.inf  # a row that sees nothing
HIDDEN[0, 3:] = -np.inf
BIASES = {"none": None, "matrix": R.standard_normal((5, 6)).astype(np.float32), "hidden": HIDDEN}


@pytest.fixture(params=[False, True], ids=["at once", "by head"])
def by_head(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(A, "_LARGE", 0)
        monkeypatch.setattr(A, "_BLOCK", 2)


@pytest.mark.usefixtures("by_head")
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize(
    ("bias", "causal", "scale"), [("none", False, None), ("none", True, 0.3), ("hidden", False, None)]
)
def test_fused(heads, bias, causal, scale):
    q, k, v = array(2, heads[0], 5, 8), array(2, heads[1], 6, 8), array(2, heads[1], 6, 3)
    bias = BIASES[bias]

    def fused(q, k, v):
        return A._scaled_dot_product_fused_attention_overrideable(q, k, v, bias, 0.0, causal, scale=scale)[:2]

    out, logsumexp = jit(fused, q, k, v)
    np.testing.assert_allclose(out, by_softmax(q, k, v, bias, causal, scale), rtol=1e-4, atol=1e-5)
    assert logsumexp.shape == q.shape[:-1]
    grad, zero = array(*out.shape), jnp.zeros((2,), jnp.uint32)
    got = jit(
        lambda g, q, k, v, o, l: A._scaled_dot_product_fused_attention_overrideable_backward(
            g, q, k, v, bias, (True, True, True, False), o, l, None, None, 5, 6, 0.0, causal, zero, zero, scale=scale
        ),
        grad, q, k, v, out, logsumexp,
    )  # fmt: skip
    whole = lambda q, k, v: A._scaled_dot_product_attention_math(  # noqa: E731
        q, k, v, bias, 0.0, causal, scale=scale, enable_gqa=True
    )[0]
    want = jit(lambda g, q, k, v: jax.vjp(whole, q, k, v)[1](g), grad, q, k, v)
    assert got[3] is None
    for a, e in zip(got, want):
        np.testing.assert_allclose(a, e, rtol=1e-3, atol=1e-5)


def test_gradient_of_the_bias():
    q, k, v, bias = array(2, 3, 5, 8), array(2, 3, 6, 8), array(2, 3, 6, 8), array(2, 1, 5, 1)

    def gradients(grad, q, k, v, bias):
        fused = lambda *a: A._scaled_dot_product_fused_attention_overrideable(*a)[:2]  # noqa: E731
        out, logsumexp = fused(q, k, v, bias)
        zero = jnp.zeros((2,), jnp.uint32)
        return A._scaled_dot_product_fused_attention_overrideable_backward(
            grad, q, k, v, bias, (True,) * 4, out, logsumexp, None, None, 5, 6, 0.0, False, zero, zero
        ), jax.vjp(lambda *a: fused(*a)[0], q, k, v, bias)[1](grad)

    for a, e in zip(*jit(gradients, array(2, 3, 5, 8), q, k, v, bias)):
        assert a.shape == e.shape
        np.testing.assert_allclose(a, e, rtol=1e-3, atol=1e-5)


def test_dropout_is_the_same_in_the_backward():
    q, k, v, grad = array(1, 2, 5, 8), array(1, 2, 6, 8), array(1, 2, 6, 8), array(1, 2, 5, 8)
    fused = lambda q, k, v, key: A._scaled_dot_product_fused_attention_overrideable(  # noqa: E731
        q, k, v, None, 0.5, prng_key=key
    )

    def both(key):
        out, logsumexp, _, _, _, _, seed, offset, _ = fused(q, k, v, key)
        back = A._scaled_dot_product_fused_attention_overrideable_backward(
            grad, q, k, v, None, (True,) * 4, out, logsumexp, None, None, 5, 6, 0.5, False, seed, offset
        )
        return out, back[:3], jax.vjp(lambda *a: fused(*a, key)[0], q, k, v)[1](grad)

    out, got, want = jit(both, jax.random.key(3))
    for a, e in zip(got, want):
        np.testing.assert_allclose(a, e, rtol=1e-3, atol=1e-5)
    assert not np.allclose(out, jit(both, jax.random.key(4))[0])
    ones = jit(lambda key: fused(q, k, jnp.ones_like(v), key)[0], jax.random.key(0))
    assert 0.5 < ones.mean() < 1.5
    op = lookup("aten::_scaled_dot_product_fused_attention_overrideable")
    assert op.key
    with pytest.raises(TypeError, match="prng_key"):
        A._scaled_dot_product_fused_attention_overrideable(q, k, v, None, 0.5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sixteen_bits_compute_in_float32(dtype):
    q, k, v = (array(1, 2, 64, 16).astype(dtype) for _ in range(3))
    out, logsumexp = jit(A._scaled_dot_product_flash_attention_for_cpu, q, k, v)
    assert (out.dtype, logsumexp.dtype) == (dtype, np.float32)
    want = by_softmax(*(x.astype(np.float32) for x in (q, k, v)))
    np.testing.assert_allclose(out.astype(np.float32), want, rtol=float(jnp.finfo(dtype).eps), atol=1e-3)


def test_composed():
    q, k, v = array(3, 5, 8), array(3, 6, 8), array(3, 6, 4)
    hidden = np.isinf(HIDDEN)
    out = jit(A.scaled_dot_product_attention, q, k, v, ~hidden)
    np.testing.assert_allclose(out, by_softmax(q, k, v, HIDDEN), rtol=1e-4, atol=1e-5)
    assert not out[:, 2].any()
    grads = jit(jax.grad(lambda q: A.scaled_dot_product_attention(q, k, v, ~hidden).sum()), q)
    assert np.isfinite(grads).all()
    mapped = jit(jax.vmap(lambda *a: A.scaled_dot_product_attention(*a, ~hidden)), q, k, v)
    np.testing.assert_allclose(mapped, out, rtol=1e-5, atol=1e-6)
    kept = R.random((3, 5, 6)) > 0.5
    out, weights = jit(lambda *a: A._scaled_dot_product_attention_math(*a[:3], None, 0.5, False, a[3]), q, k, v, kept)
    assert not np.asarray(weights)[~kept].any()
    np.testing.assert_allclose(out, weights @ v * 2, rtol=1e-4, atol=1e-5)


def test_float64_and_no_keys():
    with jax.enable_x64(True):
        q = jnp.asarray(R.standard_normal((1, 2, 5, 8)))
        out, logsumexp = jit(A._scaled_dot_product_flash_attention_for_cpu, q, q, q)
        assert out.dtype == logsumexp.dtype == np.float64
        np.testing.assert_allclose(out, by_softmax(q, q, q), rtol=1e-12)
    out = jit(A.scaled_dot_product_attention, array(2, 3, 4), array(2, 0, 4), array(2, 0, 4))
    assert out.shape == (2, 3, 4)
    assert not out.any()


def projections(n):
    return array(3 * n, n), array(3 * n), array(n, n), array(n)


@pytest.mark.parametrize(("mask_type", "shape"), [(None, None), (0, (5, 5)), (1, (2, 5)), (2, (2, 2, 5, 5))])
def test_native_multi_head_attention(mask_type, shape):
    x, (w, b, wo, bo) = array(2, 5, 8), projections(8)
    mask = None if shape is None else R.random(shape) > 0.7
    if mask is not None:
        mask[..., 0] = False
    out, weights = jit(
        lambda x: A._native_multi_head_attention(
            x, x, x, 8, 2, w, b, wo, bo, None if mask is None else jnp.asarray(mask), True, False, mask_type
        ),
        x,
    )
    q, k, v = (
        np.asarray(x @ m.T + c).reshape(2, 5, 2, 4).swapaxes(1, 2) for m, c in zip(jnp.split(w, 3), jnp.split(b, 3))
    )
    hidden = None
    if mask is not None:
        hidden = np.where(mask[:, None, None] if mask_type == 1 else mask, -np.inf, 0)
    want = by_softmax(q, k, v, hidden).swapaxes(1, 2).reshape(2, 5, 8) @ wo.T + bo
    np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder_layer(norm_first):
    x, proj = array(2, 5, 8), projections(8)
    norms = [array(8) for _ in range(4)]
    ffn = array(16, 8), array(16), array(8, 16), array(8)
    out = jit(lambda x: A._transformer_encoder_layer_fwd(x, 8, 2, *proj, True, norm_first, 1e-5, *norms, *ffn), x)
    assert out.shape == x.shape
    if not norm_first:
        np.testing.assert_allclose(((out - norms[3]) / norms[2]).mean(-1), 0, atol=1e-4)


@pytest.mark.parametrize(
    ("q", "k", "v", "options", "message"),
    [
        ((2, 5, 8), (2, 6, 7), (2, 6, 8), {}, "do not fit"),
        ((2, 5, 8), (2, 6, 8), (2, 5, 8), {}, "do not fit"),
        ((4, 5, 8), (3, 5, 8), (3, 5, 8), {}, "must match"),
        ((4, 5, 8), (3, 5, 8), (3, 5, 8), {"enable_gqa": True}, "must divide"),
        ((2, 5, 8), (2, 5, 8), (2, 5, 8), {"is_causal": True, "attn_mask": jnp.zeros((5, 5))}, "should not be set"),
        ((8,), (8,), (8,), {}, "at least 2 dimensional"),
    ],
)
def test_errors(q, k, v, options, message):
    with pytest.raises(RuntimeError, match=message):
        A.scaled_dot_product_attention(jnp.zeros(q), jnp.zeros(k), jnp.zeros(v), **options)


def test_more_errors():
    q = jnp.zeros((1, 2, 3, 4))
    with pytest.raises(RuntimeError, match="same dtype"):
        A.scaled_dot_product_attention(q, q.astype(jnp.bfloat16), q)
    with pytest.raises(RuntimeError, match="do not support dropout"):
        A._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.1)
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        A._scaled_dot_product_efficient_attention(q, q, q, None, True, 1.5, prng_key=jax.random.key(0))

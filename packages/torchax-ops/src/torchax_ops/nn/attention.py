"""Scaled dot-product attention in PyTorch's several forms, and the transformer layers it fuses.

Computed in float32 for 16-bit inputs. A row in which everything is masked gives zeros. The PRNG key for dropout is
``prng_key`` here, because ``key`` is an argument of the schemas; the forward hands two words drawn from it to its
backward as ``philox_seed``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._promotion import cast, opmath
from .._registry import exported, register
from .._shapes import broadcast_shapes
from .normalization import native_layer_norm

# ---------------------------------------------------------------------------------------------------------------------
# Forward and backward
# ---------------------------------------------------------------------------------------------------------------------


def _check(query, key, value):
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got "
            f"query.dtype: {query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead"
        )
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be at least 2 dimensional, but got "
            f"query.dim: {query.ndim} key.dim: {key.ndim} and value.dim: {value.ndim} instead"
        )
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise RuntimeError(
            f"scaled_dot_product_attention: query {list(query.shape)}, key {list(key.shape)} and value "
            f"{list(value.shape)} do not fit: query and key share their last size, key and value the one before it"
        )


def _grouped(query, *others):
    """``query (..., H * g, L, E)`` as ``(..., H, g, L, E)`` the others with a group axis, where heads are shared."""
    heads = others[0].shape[-3] if query.ndim > 2 else 1
    if query.ndim < 3 or query.shape[-3] == heads or heads == 1:
        return (query, *others)
    if query.shape[-3] % heads:
        raise RuntimeError(
            f"scaled_dot_product_attention: the number of heads in key and value ({heads}) must divide that of query "
            f"({query.shape[-3]})"
        )
    split = query.reshape(*query.shape[:-3], heads, query.shape[-3] // heads, *query.shape[-2:])
    return (split, *(jnp.expand_dims(x, -3) for x in others))


def _scale(query, scale):
    return 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale


def _logits(query, key, bias, is_causal, scale):
    """Scaled and masked scores ``(..., L, S)``, with -inf where ``bias`` or causality hides a key."""
    logits = jnp.matmul(query * jnp.asarray(scale, query.dtype), key.mT)
    if is_causal:
        rows, columns = (lax.broadcasted_iota(np.int32, logits.shape[-2:], i) for i in (0, 1))
        logits = jnp.where(rows >= columns, logits, -jnp.inf)
    return logits if bias is None else logits + cast(bias, logits.dtype)


def _fit_bias(bias, query, split):
    """``bias`` with the head axis of ``query`` split as ``split`` has it."""
    if bias is None or split.ndim == query.ndim or bias.ndim < 3:
        return bias
    heads, group = split.shape[-4:-2]
    return bias.reshape(*bias.shape[:-3], *((heads, group) if bias.shape[-3] != 1 else (1, 1)), *bias.shape[-2:])


def _keep(seed, p, shape):
    """Which weights a dropout of rate ``p`` keeps."""
    return jax.random.bernoulli(jax.random.wrap_key_data(seed, impl="threefry2x32"), 1 - p, shape)


def _seed(prng_key, p, op):
    if p == 0:
        return jnp.zeros((2,), jnp.uint32)
    if not 0 <= p <= 1:
        raise RuntimeError(f"{op}: dropout probability has to be between 0 and 1, but got {p}")
    if prng_key is None:
        raise TypeError(f"{op}: dropout_p={p} needs a PRNG key: pass prng_key=")
    return jax.random.bits(prng_key, (2,), jnp.uint32)


def _kept_scale(p):
    return 1 / (1 - p) if p < 1 else 0.0


def _forward(query, key, value, bias, dropout_p, is_causal, scale, seed):
    """The attention and the logarithm of each row's sum of exponentials (0 where all is masked)."""
    _check(query, key, value)
    dtype = opmath(query.dtype)
    q, k, v = (cast(x, dtype) for x in _grouped(query, key, value))
    logits = _logits(q, k, _fit_bias(bias, query, q), is_causal, _scale(query, scale))
    top = logits.max(-1, keepdims=True, initial=-jnp.inf)
    top = jnp.where(top == -jnp.inf, 0, top)
    weights = jnp.exp(logits - top)
    total = weights.sum(-1, keepdims=True)
    if dropout_p > 0:
        weights = jnp.where(_keep(seed, dropout_p, weights.shape), weights * _kept_scale(dropout_p), 0)
    empty = total == 0
    out = jnp.matmul(weights, v) / jnp.where(empty, 1, total)
    logsumexp = jnp.where(empty, 0, top + jnp.log(jnp.where(empty, 1, total)))[..., 0]
    shape = query.shape[:-2] if q.ndim != query.ndim else logsumexp.shape[:-1]
    return cast(out.reshape(*shape, *out.shape[-2:]), query.dtype), logsumexp.reshape(*shape, query.shape[-2])


def _reduce_to(x, shape):
    """``x`` summed over what ``shape`` was broadcast along."""
    lead = x.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(lead + i for i, n in enumerate(shape) if n == 1 and x.shape[lead + i] != 1)
    return x.sum(axes).reshape(shape)


def _backward(grad_out, query, key, value, bias, out, logsumexp, dropout_p, is_causal, scale, seed):
    """The gradients to query, key, value and (not yet reduced to its shape) the bias.

    Written out, since it needs only what the forward saved: the weights are ``exp(logits - logsumexp)``.
    """
    dtype = opmath(query.dtype)
    q, k, v = (cast(x, dtype) for x in _grouped(query, key, value))
    split = lambda x: cast(x, dtype).reshape(*q.shape[:-2], *x.shape[-2:])  # noqa: E731
    grad, scale = split(grad_out), _scale(query, scale)
    logits = _logits(q, k, _fit_bias(bias, query, q), is_causal, scale)
    weights = jnp.exp(logits - cast(logsumexp, dtype).reshape(*logits.shape[:-1], 1))
    grad_weights = jnp.matmul(grad, v.mT)
    dropped = weights
    if dropout_p > 0:
        keep = _keep(seed, dropout_p, weights.shape)
        dropped, grad_weights = (jnp.where(keep, x * _kept_scale(dropout_p), 0) for x in (weights, grad_weights))
    grad_logits = weights * (grad_weights - (grad * split(out)).sum(-1, keepdims=True))
    grad_value = jnp.matmul(dropped.mT, grad)
    grad_query = jnp.matmul(grad_logits, k) * scale
    grad_key = jnp.matmul(grad_logits.mT, q) * scale
    return (
        cast(_reduce_to(grad_query, q.shape).reshape(query.shape), query.dtype),
        cast(_reduce_to(grad_key, k.shape).reshape(key.shape), key.dtype),
        cast(_reduce_to(grad_value, v.shape).reshape(value.shape), value.dtype),
        grad_logits.reshape(*query.shape[:-2], *grad_logits.shape[-2:]),
    )


def _bias_gradient(grad_logits, bias, wanted):
    return cast(_reduce_to(grad_logits, bias.shape), bias.dtype) if wanted and bias is not None else None


# ---------------------------------------------------------------------------------------------------------------------
# The fused operators
# ---------------------------------------------------------------------------------------------------------------------


@register("_scaled_dot_product_fused_attention_overrideable", static=("dropout_p",))
def _scaled_dot_product_fused_attention_overrideable(
    query, key, value, attn_bias=None, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None,
    prng_key=None,
):  # fmt: skip
    """``softmax(query @ key.T * scale + attn_bias) @ value``, and what its backward needs.

    ``query (B, H, L, E)``, ``key (B, G, S, E)``, ``value (B, G, S, V)`` with ``G`` a divisor of ``H``; ``attn_bias``
    broadcasts to ``(B, H, L, S)`` and is added to the scores. Results: the output
    ``(B, H, L, V)``, the float32 log-sum-exp ``(B, H, L)``, two ``None``, ``L``, ``S``, the seed of the dropout
    (uint32 words), its offset (0) and ``None``.

    Raises:
        RuntimeError: shapes or dtypes do not fit.
        TypeError: dropout without ``prng_key``.
    """
    seed = _seed(prng_key, dropout_p, "_scaled_dot_product_fused_attention_overrideable")
    out, logsumexp = _forward(query, key, value, attn_bias, dropout_p, is_causal, scale, seed)
    offset = jnp.zeros((), jnp.uint32)
    return out, logsumexp, None, None, query.shape[-2], key.shape[-2], seed, offset, None


@register("_scaled_dot_product_fused_attention_overrideable_backward", static=("dropout_p",))
def _scaled_dot_product_fused_attention_overrideable_backward(
    grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
    dropout_p, is_causal, philox_seed, philox_offset, *, scale=None,
):  # fmt: skip
    """The gradients to query, key, value and bias; ``None`` where ``grad_input_mask`` is false."""
    *grads, grad_logits = _backward(
        grad_out, query, key, value, attn_bias, out, logsumexp, dropout_p, is_causal, scale, philox_seed
    )
    grads = [g if wanted else None for g, wanted in zip(grads, grad_input_mask)]
    return *grads, _bias_gradient(grad_logits, attn_bias, grad_input_mask[3])


@register("_scaled_dot_product_flash_attention_for_cpu", static=("dropout_p",))
def _scaled_dot_product_flash_attention_for_cpu(
    query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None
):
    """The attention and its log-sum-exp, as PyTorch's CPU build fuses it (it refuses dropout)."""
    if dropout_p != 0:
        raise RuntimeError("_scaled_dot_product_attention_flash_attention: Currently do not support dropout > 0")
    if not query.ndim == key.ndim == value.ndim == 4:
        raise RuntimeError(
            "scaled_dot_product_attention_flash_attention: Accept only 4 dims inputs shape of {(B), H, T, K}"
        )
    return _forward(query, key, value, attn_mask, 0.0, is_causal, scale, None)


@register("_scaled_dot_product_flash_attention_for_cpu_backward", static=("dropout_p",))
def _scaled_dot_product_flash_attention_for_cpu_backward(
    grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None
):
    """The gradients to query, key and value."""
    return _backward(grad_out, query, key, value, attn_mask, out, logsumexp, 0.0, is_causal, scale, None)[:3]


@register("_scaled_dot_product_efficient_attention", static=("dropout_p",))
def _scaled_dot_product_efficient_attention(
    query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None, prng_key=None
):
    """The attention, its log-sum-exp (empty unless asked for), the dropout's seed and offset."""
    seed = _seed(prng_key, dropout_p, "_scaled_dot_product_efficient_attention")
    out, logsumexp = _forward(query, key, value, attn_bias, dropout_p, is_causal, scale, seed)
    return out, logsumexp if compute_log_sumexp else logsumexp[..., :0], seed, jnp.zeros((), jnp.uint32)


@register("_scaled_dot_product_efficient_attention_backward", static=("dropout_p",))
def _scaled_dot_product_efficient_attention_backward(
    grad_out_, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask,
    is_causal=False, *, scale=None,
):  # fmt: skip
    """The gradients to query, key, value and bias; ``None`` where ``grad_input_mask`` is false."""
    *grads, grad_logits = _backward(
        grad_out_, query, key, value, attn_bias, out, logsumexp, dropout_p, is_causal, scale, philox_seed
    )
    grads = [g if wanted else None for g, wanted in zip(grads, grad_input_mask)]
    return *grads, _bias_gradient(grad_logits, attn_bias, grad_input_mask[3])


# ---------------------------------------------------------------------------------------------------------------------
# The composed operators
# ---------------------------------------------------------------------------------------------------------------------


def _check_mask(attn_mask, is_causal):
    if attn_mask is not None and is_causal:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")


@register("_scaled_dot_product_attention_math", static=("dropout_p",))
def _scaled_dot_product_attention_math(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, dropout_mask=None, *, scale=None,
    enable_gqa=False, prng_key=None,
):  # fmt: skip
    """The attention and its weights ``(..., L, S)``, after dropout; leading dims broadcast.

    Raises:
        RuntimeError: shapes or dtypes do not fit, or ``attn_mask`` comes with ``is_causal``.
        TypeError: dropout without ``dropout_mask`` or ``prng_key``.
    """
    _check(query, key, value)
    _check_mask(attn_mask, is_causal)
    dtype = opmath(query.dtype)
    q, k, v = (cast(x, dtype) for x in (_grouped(query, key, value) if enable_gqa else (query, key, value)))
    broadcast_shapes(*(x.shape[:-2] for x in (q, k, v)))
    logits = _logits(q, k, _fit_bias(attn_mask, query, q), is_causal, _scale(query, scale))
    top = logits.max(-1, keepdims=True, initial=-jnp.inf)
    weights = jnp.exp(logits - lax.stop_gradient(jnp.where(top == -jnp.inf, 0, top)))
    total = weights.sum(-1, keepdims=True)
    weights = weights / jnp.where(total == 0, 1, total)
    if q.ndim != query.ndim:
        weights = weights.reshape(*query.shape[:-1], key.shape[-2])
        v = jnp.repeat(v[..., 0, :, :], query.shape[-3] // key.shape[-3], -3)
    if dropout_p > 0 and dropout_mask is not None:
        weights = jnp.where(dropout_mask, weights, 0)
        v = v * _kept_scale(dropout_p)
    elif dropout_p > 0:
        keep = _keep(_seed(prng_key, dropout_p, "_scaled_dot_product_attention_math"), dropout_p, weights.shape)
        weights = jnp.where(keep, weights * _kept_scale(dropout_p), 0)
    return cast(jnp.matmul(weights, v), query.dtype), cast(weights, query.dtype)


@register("scaled_dot_product_attention", static=("dropout_p",))
def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False, prng_key=None
):
    """``softmax(query @ key.T * scale + attn_mask) @ value``; a bool ``attn_mask`` hides what is false.

    ``query (..., L, E)``, ``key (..., S, E)``, ``value (..., S, V)``; result ``(..., L, V)``.

    Raises:
        RuntimeError: shapes or dtypes do not fit, or ``attn_mask`` comes with ``is_causal``.
        TypeError: dropout without ``prng_key``.
    """
    if attn_mask is not None and attn_mask.dtype == np.bool_:
        attn_mask = jnp.where(attn_mask, 0, jnp.asarray(-jnp.inf, query.dtype))
    return _scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa, prng_key=prng_key
    )[0]


def _linear(x, weight, bias):
    return jnp.matmul(x, cast(weight, x.dtype).T) + cast(bias, x.dtype)


def _mask_of(mask, mask_type, shape: Sequence[int]):
    """A bool mask, true where hidden, that broadcasts to scores of ``shape (B, H, L, S)``."""
    batch, _, rows, columns = shape
    if mask.dtype != np.bool_:
        mask = mask != 0  # as PyTorch's CPU kernel: nn.MultiheadAttention gives 0 and -inf
    if mask_type is None:
        mask_type = 2
    wanted = {0: (rows, columns), 1: (batch, columns), 2: tuple(shape)}
    if mask_type not in wanted:
        raise RuntimeError(
            f"Mask Type should be 0 (src_mask), 1 (src_key_padding_mask), or 2 (default), not {mask_type}"
        )
    if mask.shape != wanted[mask_type] and mask.ndim != 4:
        raise RuntimeError(
            f"mask of type {mask_type} should have shape {list(wanted[mask_type])}, not {list(mask.shape)}"
        )
    return mask[:, None, None, :] if mask_type == 1 and mask.ndim == 2 else mask


@register("_native_multi_head_attention")
def _native_multi_head_attention(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None,
    need_weights=True, average_attn_weights=True, mask_type=None,
):  # fmt: skip
    """Multi-head self-attention of ``(B, T, embed_dim)`` with its projections: the output and the weights, or ``None``.

    ``mask`` is true where hidden: ``(T, T)`` (``mask_type`` 0), ``(B, T)`` (1) or ``(B, num_head, T, T)`` (2). The
    weights are ``(B, T, T)``, averaged over heads, or ``(B, num_head, T, T)``.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    if query.ndim != 3 or query.shape[-1] != embed_dim:
        raise RuntimeError(f"expected 3-D `query` of {embed_dim} features, got {list(query.shape)}")
    if not query.shape == key.shape == value.shape:
        raise RuntimeError("expected `query`/`key`/`value` shapes to match")
    if qkv_weight.shape != (3 * embed_dim, embed_dim) or qkv_bias.shape != (3 * embed_dim,):
        raise RuntimeError(
            f"expected `qkv_weight` [{3 * embed_dim}, {embed_dim}] and `qkv_bias` [{3 * embed_dim}], got "
            f"{list(qkv_weight.shape)} and {list(qkv_bias.shape)}"
        )
    if embed_dim % num_head:
        raise RuntimeError(f"`embed_dim` ({embed_dim}) must divide evenly by `num_heads` ({num_head})")
    dtype = opmath(query.dtype)
    batch, time, _ = query.shape
    q, k, v = (
        _linear(cast(x, dtype), w, b).reshape(batch, time, num_head, -1).swapaxes(1, 2)
        for x, w, b in zip((query, key, value), jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3))
    )
    scores = _logits(q, k, None, False, _scale(q, None))
    if mask is not None:
        scores = jnp.where(_mask_of(mask, mask_type, scores.shape), -jnp.inf, scores)
    weights = jax.nn.softmax(scores, -1)
    out = _linear(jnp.matmul(weights, v).swapaxes(1, 2).reshape(batch, time, embed_dim), proj_weight, proj_bias)
    if not need_weights:
        return cast(out, query.dtype), None
    return cast(out, query.dtype), cast(weights.mean(1) if average_attn_weights else weights, query.dtype)


@register("_transformer_encoder_layer_fwd", static=("eps",))
def _transformer_encoder_layer_fwd(
    src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps, norm_weight_1,
    norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask=None,
    mask_type=None,
):  # fmt: skip
    """A whole ``nn.TransformerEncoderLayer`` without dropout, on ``src (B, T, embed_dim)``."""

    def attend(x):
        return _native_multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False,
            mask_type=mask_type,
        )[0]  # fmt: skip

    def feed_forward(x):
        hidden = _linear(cast(x, opmath(x.dtype)), ffn_weight_1, ffn_bias_1)
        hidden = jax.nn.gelu(hidden, approximate=False) if use_gelu else jax.nn.relu(hidden)
        return cast(_linear(hidden, ffn_weight_2, ffn_bias_2), x.dtype)

    def normalize(x, weight, bias):
        return native_layer_norm(x, (embed_dim,), weight, bias, eps)[0]

    x = src
    for inner, weight, bias in ((attend, norm_weight_1, norm_bias_1), (feed_forward, norm_weight_2, norm_bias_2)):
        x = x + inner(normalize(x, weight, bias)) if norm_first else normalize(x + inner(x), weight, bias)
    return x


__all__ = exported(__name__)

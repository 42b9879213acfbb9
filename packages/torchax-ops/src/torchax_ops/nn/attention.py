"""Scaled dot-product attention in PyTorch's several forms, and the transformer layers it fuses.

Computed in float32 for 16-bit inputs. A row in which everything is masked gives zeros. The PRNG key for dropout is
``prng_key`` here, because ``key`` is an argument of the schemas; the forward hands two words drawn from it to its
backward as ``philox_seed``.
"""

from __future__ import annotations

import functools
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


def _check_heads(query, *others):
    if any(query.shape[-3] % x.shape[-3] for x in others):
        raise RuntimeError(
            f"scaled_dot_product_attention: the number of heads in key and value ({others[0].shape[-3]}) must divide "
            f"that of query ({query.shape[-3]})"
        )


def _grouped(query, *others):
    """``query (..., H * g, L, E)`` as ``(..., H, g, L, E)`` the others with a group axis, where heads are shared."""
    heads = others[0].shape[-3] if query.ndim > 2 else 1
    if query.ndim < 3 or query.shape[-3] == heads or heads == 1:
        return (query, *others)
    _check_heads(query, *others)
    split = query.reshape(*query.shape[:-3], heads, query.shape[-3] // heads, *query.shape[-2:])
    return (split, *(jnp.expand_dims(x, -3) for x in others))


def _scale(query, scale):
    return 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale


def _logits(query, key, bias, is_causal, first=0):
    """Masked scores ``(..., L, S)`` of scaled queries, the first of which has number ``first``; -inf hides a key."""
    logits = jnp.matmul(query, key.mT)
    if is_causal:
        rows, columns = (lax.broadcasted_iota(np.int32, logits.shape[-2:], i) for i in (0, 1))
        logits = jnp.where(rows + first >= columns, logits, -jnp.inf)
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


def _attend(query, key, value, bias, is_causal, first=0, keep=None, dropout_p=0.0):
    """The attention of scaled queries, and the logarithm of each row's sum of exponentials (0 where all is masked)."""
    logits = _logits(query, key, bias, is_causal, first)
    top = lax.stop_gradient(logits.max(-1, keepdims=True, initial=-jnp.inf))
    top = jnp.where(top == -jnp.inf, 0, top)
    weights = jnp.exp(logits - top)
    total = weights.sum(-1, keepdims=True)
    if keep is not None:
        weights = jnp.where(keep, weights * _kept_scale(dropout_p), 0)
    empty = total == 0
    out = jnp.matmul(weights, value) / jnp.where(empty, 1, total)
    return out, jnp.where(empty, 0, top + jnp.log(jnp.where(empty, 1, total)))[..., 0]


def _attend_back(grad, query, key, value, bias, delta, logsumexp, is_causal, first=0, keep=None, dropout_p=0.0):
    """The gradients to scaled queries, keys, values and transposed scores ``(..., S, L)``.

    In this orientation two of the three last products take their operands as they lie in memory.
    """
    logits = jnp.matmul(key, query.mT)
    if is_causal:
        columns, rows = (lax.broadcasted_iota(np.int32, logits.shape[-2:], i) for i in (0, 1))
        logits = jnp.where(rows + first >= columns, logits, -jnp.inf)
    if bias is not None:
        logits = logits + cast(bias, logits.dtype).mT
    weights = jnp.exp(logits - logsumexp[..., None, :])
    grad_weights = jnp.matmul(value, grad.mT)
    dropped = weights
    if keep is not None:
        dropped, grad_weights = (jnp.where(keep.mT, x * _kept_scale(dropout_p), 0) for x in (weights, grad_weights))
    grad_logits = weights * (grad_weights - delta[..., None, :])
    return jnp.matmul(grad_logits.mT, key), jnp.matmul(grad_logits, query), jnp.matmul(dropped, grad), grad_logits


# On CPU the scores of one head and some queries stay in the cache: that is up to four times as fast as all at once.
_BLOCK = 256
_MOST_BLOCKS = 16
_LARGE = 1 << 20


def _is_large(query, key, value, dropout_p):
    plain = query.ndim == 4 and query.shape[0] == key.shape[0] and key.shape[:2] == value.shape[:2]
    if not plain or dropout_p:
        return False
    count = math.prod(query.shape[:-1]) * key.shape[-2]
    return isinstance(count, int) and count > _LARGE  # a symbolic size is no int


def _blocks(length: int, keys: int, is_causal: bool):
    """Slices of queries, and of the keys that they see."""
    size = max(_BLOCK, -(-length // _MOST_BLOCKS))
    for start in range(0, length, size):
        end = min(start + size, length)
        yield slice(start, end), slice(0, min(end, keys) if is_causal else keys)


def _part(bias, rows, columns):
    """A part of a bias whose dims may be 1, for broadcasting."""
    if bias is None:
        return None
    return bias[rows if bias.shape[0] != 1 else slice(None), columns if bias.shape[1] != 1 else slice(None)]


def _by_head(head, query, key, bias, *others):
    """``head`` of each head's matrices, one head at a time; ``others`` have the heads of ``query``, or those of ``key``."""
    batch, heads = query.shape[:2]

    def pick(x, n):
        row = n // heads if x.shape[0] != 1 else 0
        column = (n % heads) // (heads // x.shape[1])
        return lax.dynamic_index_in_dim(lax.dynamic_index_in_dim(x, row, 0, False), column, 0, False)

    def run(n):
        return head(*(None if x is None else pick(x, n) for x in (query, key, bias, *others)))

    results = lax.map(run, jnp.arange(batch * heads, dtype=jnp.int32))
    return jax.tree.map(lambda x: x.reshape(batch, heads, *x.shape[1:]), results)


def _attend_by_head(query, key, value, bias, is_causal):
    def head(q, k, bias, v):
        parts = [
            _attend(q[rows], k[seen], v[seen], _part(bias, rows, seen), is_causal, rows.start)
            for rows, seen in _blocks(q.shape[0], k.shape[0], is_causal)
        ]
        return tuple(jnp.concatenate(x) for x in zip(*parts))

    return _by_head(head, query, key, bias, value)


def _attend_back_by_head(grad, query, key, value, bias, delta, logsumexp, is_causal):
    def head(q, k, bias, v, grad, delta, logsumexp):
        grad_query, grad_key, grad_value = [], jnp.zeros_like(k), jnp.zeros_like(v)
        for rows, seen in _blocks(q.shape[0], k.shape[0], is_causal):
            to_query, to_key, to_value, _ = _attend_back(
                grad[rows], q[rows], k[seen], v[seen], _part(bias, rows, seen), delta[rows], logsumexp[rows],
                is_causal, rows.start,
            )  # fmt: skip
            grad_query.append(to_query)
            grad_key, grad_value = grad_key.at[seen].add(to_key), grad_value.at[seen].add(to_value)
        return jnp.concatenate(grad_query), grad_key, grad_value

    return _by_head(head, query, key, bias, value, grad, delta, logsumexp)


def _attend_all(query, key, value, bias, is_causal, keep=None, dropout_p=0.0):
    """`_attend` where heads of keys and values may be shared."""
    q, k, v = _grouped(query, key, value)
    out, logsumexp = _attend(q, k, v, _fit_bias(bias, query, q), is_causal, 0, keep, dropout_p)
    shape = query.shape[:-2] if q.ndim != query.ndim else logsumexp.shape[:-1]
    return out.reshape(*shape, *out.shape[-2:]), logsumexp.reshape(*shape, query.shape[-2])


def _forward(query, key, value, bias, dropout_p, is_causal, scale, seed):
    """The attention, in the dtype of ``query``, and the log-sum-exp of each row in the computing dtype."""
    _check(query, key, value)
    dtype = opmath(query.dtype)
    q, k, v = (cast(x, dtype) for x in (query, key, value))
    q = q * cast(_scale(query, scale), dtype)
    if _is_large(query, key, value, dropout_p):
        _check_heads(query, key)
        attend = functools.partial(_attend_by_head, is_causal=is_causal)
        out, logsumexp = lax.platform_dependent(
            q, k, v, _as_4d(bias), cpu=attend, default=functools.partial(_attend_all, is_causal=is_causal)
        )
    else:
        keep = _keep(seed, dropout_p, (*query.shape[:-1], key.shape[-2])) if dropout_p > 0 else None
        out, logsumexp = _attend_all(q, k, v, bias, is_causal, _fit_bias(keep, query, _grouped(q, k)[0]), dropout_p)
    return cast(out, query.dtype), logsumexp


def _reduce_to(x, shape):
    """``x`` summed over what ``shape`` was broadcast along."""
    lead = x.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(lead + i for i, n in enumerate(shape) if n == 1 and x.shape[lead + i] != 1)
    return x.sum(axes).reshape(shape)


def _attend_back_all(grad, query, key, value, bias, delta, logsumexp, is_causal, keep=None, dropout_p=0.0):
    """`_attend_back` where heads of keys and values may be shared, or broadcast."""
    q, k, v = _grouped(query, key, value)
    split = lambda x: x.reshape(*q.shape[:-2], *x.shape[query.ndim - 2 :])  # noqa: E731
    *grads, grad_logits = _attend_back(
        split(grad), q, k, v, _fit_bias(bias, query, q), split(delta), split(logsumexp), is_causal, 0, keep, dropout_p
    )
    reduced = [_reduce_to(g, x.shape).reshape(y.shape) for g, x, y in zip(grads, (q, k, v), (query, key, value))]
    return *reduced, grad_logits.mT.reshape(*query.shape[:-1], key.shape[-2])


def _backward(grad_out, query, key, value, bias, out, logsumexp, dropout_p, is_causal, scale, seed, with_bias=False):
    """The gradients to query, key, value and, ``with_bias``, to the scores.

    Written out, since it needs only what the forward saved: the weights are ``exp(logits - logsumexp)``.
    """
    dtype = opmath(query.dtype)
    q, k, v, grad, out, logsumexp = (cast(x, dtype) for x in (query, key, value, grad_out, out, logsumexp))
    scale = cast(_scale(query, scale), dtype)
    q, delta = q * scale, (grad * out).sum(-1)
    if _is_large(query, key, value, dropout_p) and not with_bias:

        def by_head(grad, q, k, v, bias, delta, logsumexp):
            grads = _attend_back_by_head(grad, q, k, v, bias, delta, logsumexp, is_causal)
            return tuple(_sum_groups(g, x.shape) for g, x in zip(grads, (q, k, v)))

        def whole(grad, q, k, v, bias, delta, logsumexp):
            return _attend_back_all(grad, q, k, v, bias, delta, logsumexp, is_causal)[:3]

        grads = lax.platform_dependent(
            grad, q, k, v, _as_4d(bias), delta, logsumexp, cpu=by_head, default=whole
        )  # fmt: skip
        grad_logits = None
    else:
        keep = _keep(seed, dropout_p, (*query.shape[:-1], key.shape[-2])) if dropout_p > 0 else None
        keep = _fit_bias(keep, query, _grouped(q, k)[0])
        *grads, grad_logits = _attend_back_all(grad, q, k, v, bias, delta, logsumexp, is_causal, keep, dropout_p)
    grads = (grads[0] * scale, *grads[1:])
    return *(cast(g, x.dtype) for g, x in zip(grads, (query, key, value))), grad_logits


def _sum_groups(grad, shape):
    """``(B, H, ...)`` summed over the heads that share one of ``shape (B, G, ...)``."""
    return grad.reshape(shape[0], shape[1], -1, *shape[2:]).sum(2)


def _as_4d(bias):
    return None if bias is None else bias.reshape((1,) * (4 - bias.ndim) + bias.shape)


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
    broadcasts to ``(B, H, L, S)`` and is added to the scores. Results: the output ``(B, H, L, V)``, the log-sum-exp
    ``(B, H, L)`` (float32 for 16 bits), two ``None``, ``L``, ``S``, the seed of the dropout (uint32 words), its offset
    (0) and ``None``.

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
    with_bias = grad_input_mask[3] and attn_bias is not None
    *grads, grad_logits = _backward(
        grad_out, query, key, value, attn_bias, out, logsumexp, dropout_p, is_causal, scale, philox_seed, with_bias
    )
    grads = [g if wanted else None for g, wanted in zip(grads, grad_input_mask)]
    return *grads, cast(_reduce_to(grad_logits, attn_bias.shape), attn_bias.dtype) if with_bias else None


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
    with_bias = grad_input_mask[3] and attn_bias is not None
    *grads, grad_logits = _backward(
        grad_out_, query, key, value, attn_bias, out, logsumexp, dropout_p, is_causal, scale, philox_seed, with_bias
    )
    grads = [g if wanted else None for g, wanted in zip(grads, grad_input_mask)]
    return *grads, cast(_reduce_to(grad_logits, attn_bias.shape), attn_bias.dtype) if with_bias else None


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
    logits = _logits(q * cast(_scale(query, scale), dtype), k, _fit_bias(attn_mask, query, q), is_causal)
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
    _check_mask(attn_mask, is_causal)
    if _is_large(query, key, value, dropout_p) and (enable_gqa or query.shape[1] == key.shape[1]):
        return _forward(query, key, value, attn_mask, dropout_p, is_causal, scale, None)[0]
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
    scores = _logits(q * _scale(q, None), k, None, False)
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

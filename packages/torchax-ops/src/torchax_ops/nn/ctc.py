"""The connectionist temporal classification loss, by a scan over time on all sequences at once.

Source: https://www.cs.toronto.edu/~graves/icml_2006.pdf
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._promotion import cast, category, opmath
from .._registry import exported, register


def _check(log_probs, targets, input_lengths, target_lengths, blank=0, *_, **__):
    """The shapes, and the lengths where they are known."""
    if log_probs.ndim != 3:
        raise RuntimeError(f"ctc_loss: Expected 3-dimensional log_probs, but got {list(log_probs.shape)}")
    if category(targets.dtype) != 1:
        raise RuntimeError(f"ctc_loss: Expected targets to be integers, but got {targets.dtype}")
    if category(log_probs.dtype) < 2:
        raise NotImplementedError(f'"ctc_loss" not implemented for {log_probs.dtype}')
    time, batch, classes = log_probs.shape
    if log_probs.size == 0:
        raise RuntimeError("ctc_loss: log_probs tensor must not be empty")
    if not 0 <= blank < classes:
        raise RuntimeError("ctc_loss: blank must be in label range")
    for name, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if np.shape(lengths) != (batch,):
            raise RuntimeError(f"ctc_loss: {name} must be of size batch_size ({batch}), but got {np.shape(lengths)}")
    if targets.ndim not in (1, 2) or (targets.ndim == 2 and targets.shape[0] != batch):
        raise RuntimeError(f"ctc_loss: Expected targets of shape ({batch}, S) or (sum,), but got {list(targets.shape)}")
    if isinstance(input_lengths, jax.core.Tracer) or isinstance(target_lengths, jax.core.Tracer):
        return
    inputs, lengths = np.asarray(input_lengths), np.asarray(target_lengths)
    if (inputs < 0).any() or (lengths < 0).any():
        raise RuntimeError("ctc_loss: Expected lengths to be non-negative")
    if (inputs > time).any():
        raise RuntimeError(f"ctc_loss: Expected input_lengths to have value at most {time}, but got {inputs.max()}")
    if targets.ndim == 1 and targets.shape[0] != lengths.sum():
        raise RuntimeError(f"ctc_loss: Expected {lengths.sum()} targets, but got {targets.shape[0]}")
    if targets.ndim == 2 and targets.shape[1] < lengths.max(initial=0):
        raise RuntimeError(
            f"ctc_loss: Expected targets to have size at least {lengths.max()} at dimension 1, "
            f"but got {targets.shape[1]}"
        )


def _padded(targets, target_lengths, width):
    """``targets`` as ``(N, width)``; those beyond a row's length are of no use."""
    if targets.ndim == 2:
        return cast(targets[:, :width], "int32")
    start = jnp.cumsum(target_lengths, dtype=jnp.int32) - target_lengths
    index = start[:, None] + jnp.arange(width, dtype=jnp.int32)
    if targets.shape[0] == 0:
        return jnp.zeros(index.shape, jnp.int32)
    return jnp.take(cast(targets, "int32"), index, mode="clip")


def _log_add(*terms):
    """The logarithm of a sum of exponentials, with a zero gradient where all terms are -inf."""
    top = lax.stop_gradient(jnp.stack(terms).max(0))
    none = top == -jnp.inf
    total = sum(jnp.exp(t - jnp.where(none, 0, top)) for t in terms)
    return jnp.where(none, -jnp.inf, top + jnp.log(jnp.where(none, 1, total)))


def _run(log_probs, targets, input_lengths, target_lengths, blank):
    """The negative log-likelihood ``(N,)`` and the forward variables ``(N, T, 2 S + 1)``, for targets ``(N, S)``."""
    time, batch, _ = log_probs.shape
    width = 2 * targets.shape[1] + 1
    places = jnp.arange(width, dtype=jnp.int32)
    labels = jnp.full((batch, width), blank, jnp.int32).at[:, 1::2].set(targets)
    last = 2 * target_lengths[:, None]
    emitted = jnp.take_along_axis(log_probs, labels[None], 2, mode="clip")
    emitted = jnp.where(places <= last, emitted, -jnp.inf)
    # A label may follow the one before its blank unless they are equal.
    skips = jnp.pad((labels[:, 2:] != labels[:, :-2]) & (labels[:, 2:] != blank), ((0, 0), (2, 0)))[:, :width]

    def shift(alpha, n):
        return jnp.pad(alpha, ((0, 0), (n, 0)), constant_values=-jnp.inf)[:, :width]

    def step(alpha, at):
        t, emission = at
        moved = _log_add(alpha, shift(alpha, 1), jnp.where(skips, shift(alpha, 2), -jnp.inf))
        running = (t < input_lengths)[:, None]
        moved = jnp.where(t == 0, jnp.where(places < 2, 0, -jnp.inf), moved) + emission
        return jnp.where(running, moved, alpha), jnp.where(running, moved, -jnp.inf)

    start = jnp.full((batch, width), -jnp.inf, log_probs.dtype)
    alpha, alphas = lax.scan(step, start, (jnp.arange(time, dtype=jnp.int32), emitted))
    ends = jnp.where((places == last) | (places == last - 1), alpha, -jnp.inf)
    loss = -_log_add(
        *jnp.moveaxis(jnp.take_along_axis(ends, jnp.maximum(last - jnp.array([1, 0], jnp.int32), 0), 1), 1, 0)
    )
    # With no labels both ends are the same place, which must count once.
    loss = jnp.where(target_lengths == 0, -alpha[:, 0], loss)
    empty = input_lengths == 0
    return jnp.where(empty, jnp.where(target_lengths == 0, 0, jnp.inf), loss), jnp.moveaxis(alphas, 0, 1)


def _lengths(lengths):
    return cast(jnp.asarray(lengths), "int32")


def _width(targets, target_lengths):
    """How many labels a row has at most: from the lengths if they are Python numbers, else from the shape."""
    if isinstance(target_lengths, (list, tuple)):
        return max(target_lengths, default=0)
    return targets.shape[-1]


def _forward(log_probs, targets, input_lengths, target_lengths, blank):
    _check(log_probs, targets, input_lengths, target_lengths, blank)
    inputs, lengths = _lengths(input_lengths), _lengths(target_lengths)
    padded = _padded(targets, lengths, _width(targets, target_lengths))
    loss, alphas = _run(cast(log_probs, opmath(log_probs.dtype)), padded, inputs, lengths, blank)
    return cast(loss, log_probs.dtype), cast(alphas, log_probs.dtype)


def _backward(grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, blank, zero_infinity):
    """The gradient as PyTorch defines it: to the numbers whose log-softmax ``log_probs`` are."""
    inputs, lengths = _lengths(input_lengths), _lengths(target_lengths)
    padded = _padded(targets, lengths, _width(targets, target_lengths))
    x = cast(log_probs, opmath(log_probs.dtype))
    _, pull = jax.vjp(lambda x: _run(x, padded, inputs, lengths, blank)[0], x)
    infinite = neg_log_likelihood == jnp.inf
    grad = jnp.where(infinite, 0.0 if zero_infinity else jnp.nan, cast(grad, x.dtype))
    running = jnp.arange(x.shape[0], dtype=jnp.int32)[:, None, None] < inputs[:, None]
    out = pull(jnp.where(infinite, 0, grad))[0] + jnp.exp(x) * grad[:, None]
    return cast(jnp.where(running, out, 0), log_probs.dtype)


@register("_ctc_loss")
def _ctc_loss(
    log_probs, targets, input_lengths: Sequence[int], target_lengths: Sequence[int], blank=0, zero_infinity=False
):
    """The negative log-likelihood ``(N,)`` and the forward variables ``(N, T, 2 S + 1)``.

    ``log_probs (T, N, C)``; ``targets (N, S)``, or all one after the other. ``S`` is the longest target.

    Raises:
        RuntimeError: shapes and lengths do not fit, or ``blank`` is no class.
    """
    return _forward(log_probs, targets, tuple(input_lengths), tuple(target_lengths), blank)


@register("_ctc_loss.Tensor", check=_check)
def _ctc_loss_tensor(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    """`_ctc_loss` with lengths in arrays, whose values do not decide a shape: ``S`` is the last size of ``targets``."""
    return _forward(log_probs, targets, input_lengths, target_lengths, blank)


@register("_ctc_loss_backward")
def _ctc_loss_backward(
    grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity=False
):
    """The gradient of `_ctc_loss`; with ``zero_infinity`` impossible targets give zeros, else NaN."""
    return _backward(
        grad, log_probs, targets, tuple(input_lengths), tuple(target_lengths), neg_log_likelihood, blank, zero_infinity
    )


@register("_ctc_loss_backward.Tensor")
def _ctc_loss_backward_tensor(
    grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity=False
):
    """The gradient of `_ctc_loss_tensor`; with ``zero_infinity`` impossible targets give zeros, else NaN."""
    return _backward(grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, blank, zero_infinity)


def _reduced(loss, target_lengths, reduction, zero_infinity):
    loss = jnp.where(loss == jnp.inf, 0, loss) if zero_infinity else loss
    if reduction == 1:
        return (loss / cast(jnp.maximum(_lengths(target_lengths), 1), loss.dtype)).mean()
    return loss.sum() if reduction == 2 else loss


@register("ctc_loss.IntList")
def ctc_loss_intlist(
    log_probs, targets, input_lengths, target_lengths, blank=0, reduction=1, zero_infinity=False
):  # fmt: skip
    """The loss of `_ctc_loss`, reduced; the mean is over batch and target length."""
    loss, _ = _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank)
    return _reduced(loss, tuple(target_lengths), reduction, zero_infinity)


@register("ctc_loss.Tensor", check=_check)
def ctc_loss_tensor(
    log_probs, targets, input_lengths, target_lengths, blank=0, reduction=1, zero_infinity=False
):  # fmt: skip
    """The loss of `_ctc_loss_tensor`, reduced; the mean is over batch and target length."""
    loss, _ = _forward(log_probs, targets, input_lengths, target_lengths, blank)
    return _reduced(loss, target_lengths, reduction, zero_infinity)


__all__ = exported(__name__)

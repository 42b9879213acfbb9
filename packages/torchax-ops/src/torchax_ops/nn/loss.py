"""Loss functions and their gradients. ``reduction`` is 0 for none, 1 for the mean, 2 for the sum.

Losses of one element against one element are a value and its slope, reduced by shared code. The connectionist temporal
classification is in `ctc`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._promotion import canonical, cast, category, opmath, result_type
from .._registry import exported, register
from .._shapes import broadcast_shapes

_NONE, _MEAN, _SUM = range(3)


def _reduce(loss: jax.Array, reduction: int) -> jax.Array:
    if reduction == _MEAN:
        return loss.sum() / loss.size if loss.size else jnp.full((), jnp.nan, loss.dtype)
    return loss.sum() if reduction == _SUM else loss


def _share(grad_output: jax.Array, reduction: int, count: int) -> jax.Array:
    """The gradient that reaches each element."""
    return grad_output / max(count, 1) if reduction == _MEAN else grad_output


def _floating(op: str, *arrays: jax.Array) -> tuple[np.dtype, tuple[jax.Array, ...]]:
    """The result dtype, and the arrays broadcast together in their computing dtype."""
    dtype = result_type(*arrays)
    if category(dtype) < 2:
        raise NotImplementedError(f'"{op}" not implemented for {dtype}')
    shape = broadcast_shapes(*(a.shape for a in arrays))
    return dtype, tuple(jnp.broadcast_to(cast(a, opmath(dtype)), shape) for a in arrays)


def _pointwise(op: str, value: Callable[..., jax.Array], self, target, reduction: int, *parameters: Any):
    dtype, (x, y) = _floating(op, self, target)
    return cast(_reduce(value(x, y, *(cast(p, x.dtype) for p in parameters)), reduction), dtype)


def _pointwise_backward(
    op: str, slope: Callable[..., jax.Array], grad_output, self, target, reduction: int, *parameters: Any
):  # fmt: skip
    """``slope`` (in ``self``) times the gradient of each element, in the dtype of ``self``."""
    _, (x, y) = _floating(op, self, target)
    grad = _share(cast(grad_output, x.dtype), reduction, x.size)
    return cast(slope(x, y, *(cast(p, x.dtype) for p in parameters)) * grad, self.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Distances
# ---------------------------------------------------------------------------------------------------------------------


@register("mse_loss")
def mse_loss(self, target, reduction=_MEAN):
    """``(self - target) ** 2``, broadcast and reduced. Floating point only."""
    return _pointwise("mse_loss", lambda x, y: lax.square(x - y), self, target, reduction)


@register("mse_loss_backward")
def mse_loss_backward(grad_output, self, target, reduction):
    """The gradient of `mse_loss` to ``self``."""
    return _pointwise_backward("mse_loss", lambda x, y: 2 * (x - y), grad_output, self, target, reduction)


@register("l1_loss")
def l1_loss(self, target, reduction=_MEAN):
    """``|self - target|``, broadcast and reduced."""
    return _pointwise("l1_loss", lambda x, y: jnp.abs(x - y), self, target, reduction)


def _smooth_l1(x, y, beta):
    z = jnp.abs(x - y)
    return jnp.where(z < beta, 0.5 * z * z / jnp.where(beta == 0, 1, beta), z - 0.5 * beta)


def _smooth_l1_slope(x, y, beta):
    d = x - y
    return jnp.where(d <= -beta, -1, jnp.where(d >= beta, 1, d / jnp.where(beta == 0, 1, beta)))


@register("smooth_l1_loss", static=("beta",))
def smooth_l1_loss(self, target, reduction=_MEAN, beta=1.0):
    """Half the squared error over ``beta`` where the distance is below ``beta``, else the distance less ``beta / 2``.

    Raises:
        RuntimeError: ``beta`` is negative.
    """
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    return _pointwise("smooth_l1_loss", _smooth_l1, self, target, reduction, beta)


@register("smooth_l1_loss_backward", static=("beta",))
def smooth_l1_loss_backward(grad_output, self, target, reduction, beta):
    """The gradient of `smooth_l1_loss` to ``self``; with ``beta`` 0 it is -1 where they are equal."""
    return _pointwise_backward("smooth_l1_loss", _smooth_l1_slope, grad_output, self, target, reduction, beta)


@register("huber_loss", static=("delta",))
def huber_loss(self, target, reduction=_MEAN, delta=1.0):
    """Half the squared error where the distance ``d`` is below ``delta``, else ``delta * (d - delta / 2)``.

    Raises:
        RuntimeError: ``delta`` is not positive.
    """
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    value = lambda x, y, delta: delta * _smooth_l1(x, y, delta)  # noqa: E731
    return _pointwise("huber_loss", value, self, target, reduction, delta)


@register("huber_loss_backward", static=("delta",))
def huber_loss_backward(grad_output, self, target, reduction, delta):
    """The gradient of `huber_loss` to ``self``."""
    slope = lambda x, y, delta: jnp.clip(x - y, -delta, delta)  # noqa: E731
    return _pointwise_backward("huber_loss", slope, grad_output, self, target, reduction, delta)


@register("soft_margin_loss")
def soft_margin_loss(self, target, reduction=_MEAN):
    """``log(1 + exp(-target * self))``, finite also where PyTorch's exponential overflows."""
    return _pointwise("soft_margin_loss", lambda x, y: jnp.logaddexp(-y * x, 0), self, target, reduction)


@register("soft_margin_loss_backward")
def soft_margin_loss_backward(grad_output, self, target, reduction):
    """The gradient of `soft_margin_loss` to ``self``."""
    slope = lambda x, y: -y * jax.nn.sigmoid(-y * x)  # noqa: E731
    return _pointwise_backward("soft_margin_loss", slope, grad_output, self, target, reduction)


# ---------------------------------------------------------------------------------------------------------------------
# Probabilities
# ---------------------------------------------------------------------------------------------------------------------


def _check_probabilities(self, target, *_, **__):
    for name, x in (("input", self), ("target", target)):
        x = np.asarray(x)
        if not ((x >= 0) & (x <= 1)).all():
            raise RuntimeError(f"all elements of {name} should be between 0 and 1")


def _check_same_dtype(op, self, *others):
    for x in others:
        if x is not None and x.dtype != self.dtype:
            raise RuntimeError(f"{op}: Found dtype {x.dtype} but expected {self.dtype}")


@register("binary_cross_entropy", check=_check_probabilities)
def binary_cross_entropy(self, target, weight=None, reduction=_MEAN):
    """``-(target log(self) + (1 - target) log(1 - self)) * weight``, each logarithm not below -100.

    Raises:
        RuntimeError: a probability outside [0, 1], dtypes that differ, or shapes that do not broadcast.
    """
    _check_same_dtype("binary_cross_entropy", self, target, weight)
    dtype, (x, y) = _floating("binary_cross_entropy", self, target)
    loss = (y - 1) * jnp.maximum(jnp.log1p(-x), -100) - y * jnp.maximum(jnp.log(x), -100)
    return cast(_reduce(loss if weight is None else loss * cast(weight, x.dtype), reduction), dtype)


@register("binary_cross_entropy_backward")
def binary_cross_entropy_backward(grad_output, self, target, weight=None, reduction=_MEAN):
    """The gradient of `binary_cross_entropy` to ``self``, its denominator not below 1e-12."""
    dtype, (x, y) = _floating("binary_cross_entropy", self, target)
    grad = _share(cast(grad_output, x.dtype), reduction, x.size) * (x - y) / jnp.maximum((1 - x) * x, 1e-12)
    return cast(grad if weight is None else grad * cast(weight, x.dtype), dtype)


@register("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(self, target, weight=None, pos_weight=None, reduction=_MEAN):
    """`binary_cross_entropy` of ``sigmoid(self)``, with ``pos_weight`` on the positive term. Differentiable to both."""
    if category(target.dtype) < 2:
        raise RuntimeError(
            "binary_cross_entropy_with_logits: result type Float can't be cast to the desired output type "
            f"{target.dtype}: pass a floating point target"
        )
    dtype, (x, y) = _floating("binary_cross_entropy_with_logits", self, target)
    positive = 1 if pos_weight is None else 1 + (cast(pos_weight, x.dtype) - 1) * y
    loss = (1 - y) * x + positive * jnp.logaddexp(-x, 0)
    loss = loss if weight is None else loss * cast(weight, x.dtype)
    return cast(_reduce(loss, reduction), dtype)


@register("kl_div")
def kl_div(self, target, reduction=_MEAN, *, log_target=False):
    """``target * (log(target) - self)``, where ``self`` (and ``target``, if ``log_target``) are logarithms."""
    if log_target:
        value = lambda x, y: jnp.exp(y) * (y - x)  # noqa: E731
    else:
        value = lambda x, y: jax.scipy.special.xlogy(y, y) - y * x  # noqa: E731
    return _pointwise("kl_div", value, self, target, reduction)


@register("poisson_nll_loss", static=("eps",))
def poisson_nll_loss(input, target, log_input, full, eps, reduction):
    """``input - target * log(input + eps)``, or ``exp(input) - target * input``; ``full`` adds Stirling's terms."""

    def value(x, y):
        loss = jnp.exp(x) - y * x if log_input else x - y * jnp.log(x + eps)
        if not full:
            return loss
        above = jnp.where(y > 1, y, 2)
        return loss + jnp.where(y > 1, above * jnp.log(above) - above + 0.5 * jnp.log(2 * np.pi * above), 0)

    return _pointwise("poisson_nll_loss", value, input, target, reduction)


# ---------------------------------------------------------------------------------------------------------------------
# Margins between pairs
# ---------------------------------------------------------------------------------------------------------------------


def _hinge(x):
    return jnp.where(x > 0, x, 0)


@register("hinge_embedding_loss")
def hinge_embedding_loss(self, target, margin=1.0, reduction=_MEAN):
    """``self`` where ``target`` is 1, ``max(0, margin - self)`` where it is -1."""

    def value(x, y, margin):
        return jnp.where(y != 1, _hinge(margin - x), 0) + jnp.where(y != -1, x, 0)

    return _pointwise("hinge_embedding_loss", value, self, target, reduction, margin)


@register("margin_ranking_loss")
def margin_ranking_loss(input1, input2, target, margin=0.0, reduction=_MEAN):
    """``max(0, -target * (input1 - input2) + margin)``."""
    dtype, (a, b, y) = _floating("margin_ranking_loss", input1, input2, target)
    return cast(_reduce(_hinge(-y * (a - b) + cast(margin, a.dtype)), reduction), dtype)


@register("cosine_embedding_loss")
def cosine_embedding_loss(input1, input2, target, margin=0.0, reduction=_MEAN):
    """``1 - cos(input1, input2)`` where ``target`` is 1, ``max(0, cos - margin)`` where it is -1, for each row."""
    if target.ndim not in (0, 1) or input1.ndim != target.ndim + 1 or input2.ndim != target.ndim + 1:
        raise RuntimeError(
            f"cosine_embedding_loss: target of shape {list(target.shape)} takes inputs with one more dim, but got "
            f"{list(input1.shape)} and {list(input2.shape)}"
        )
    dtype, (a, b) = _floating("cosine_embedding_loss", input1, input2)
    eps = 1e-12
    lengths = (lax.square(a).sum(-1) + eps) * (lax.square(b).sum(-1) + eps)
    cosine = (a * b).sum(-1) / jnp.sqrt(lengths)
    loss = jnp.where(target == 1, 1 - cosine, 0) + jnp.where(target == -1, _hinge(cosine - cast(margin, a.dtype)), 0)
    return cast(_reduce(loss, reduction), dtype)


@register("triplet_margin_loss", static=("p", "eps"))
def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction=_MEAN):
    """``max(0, |anchor - positive| - |anchor - negative| + margin)``, distances being ``p``-norms over the last dim."""
    dtype, (a, q, n) = _floating("triplet_margin_loss", anchor, positive, negative)
    near, far = _distance(a, q, p, eps), _distance(a, n, p, eps)
    if swap:
        far = jnp.minimum(far, _distance(q, n, p, eps))
    return cast(_reduce(_hinge(near - far + cast(margin, a.dtype)), reduction), dtype)


def _distance(x, y, p, eps):
    z = jnp.abs(x - y + eps)
    if p == np.inf:
        return z.max(-1)
    return jnp.sqrt(lax.square(z).sum(-1)) if p == 2 else jnp.power((z**p).sum(-1), 1 / p)


# ---------------------------------------------------------------------------------------------------------------------
# Margins between classes
# ---------------------------------------------------------------------------------------------------------------------


def _after_gradient(check: Callable[..., None]) -> Callable[..., None]:
    """The check of a forward's arguments, for its backward, which has the gradient before them."""
    return lambda grad_output, *args, **kwargs: check(*args, **kwargs)


def _classes(self) -> int:
    return self.shape[-1] if self.ndim else 1


def _check_margin_target(self, target, *_, **__):
    target = np.asarray(target)
    if ((target < 0) | (target >= _classes(self))).any():
        raise RuntimeError("multi_margin_loss: target out of range")


def _check_classes(self):
    if self.ndim > 2 or 0 in self.shape[-1:]:
        raise RuntimeError(
            f"Expected non-empty vector or matrix with optional 0-dim batch size, but got: {list(self.shape)}"
        )


def _multi_margin(self, target, p, margin, weight, reduction):
    _check_classes(self)
    if p not in (1, 2):
        raise RuntimeError("multi_margin_loss: only p == 1 and p == 2 supported")
    rows, classes = (1, self.size) if self.ndim < 2 else self.shape
    if target.ndim > 1 or target.size != rows:
        raise RuntimeError(
            "multi_margin_loss: target tensor should be 1-D with size equal to the number of input samples (batch "
            f"size). Expected target size [{rows}], but got {list(target.shape)}"
        )
    if weight is not None and weight.size != classes:
        raise RuntimeError(f"multi_margin_loss: inconsistent weight size, expected {classes} but got {weight.size}")
    x, labels = cast(self, opmath(self.dtype)).reshape(rows, classes), cast(target, "int32").reshape(rows, 1)
    chosen = jnp.arange(x.shape[1], dtype=jnp.int32) == labels
    z = cast(margin, x.dtype) - jnp.where(chosen, x, 0).sum(-1, keepdims=True) + x
    loss = jnp.where(chosen, 0, _hinge(z) ** p)
    if weight is not None:
        loss = loss * jnp.take(cast(weight, x.dtype), labels, mode="clip")
    loss = loss.sum(-1) / x.shape[1]
    if reduction == _NONE:
        return cast(loss.reshape(target.shape if self.ndim < 2 else (rows,)), self.dtype)
    return cast(_reduce(loss, reduction) if rows else jnp.zeros((), loss.dtype), self.dtype)


@register("multi_margin_loss", static=("p",), check=_check_margin_target)
def multi_margin_loss(self, target, p=1, margin=1, weight=None, reduction=_MEAN):
    """``sum_j max(0, margin - self[target] + self[j]) ** p * weight[target] / C`` over ``j != target``, for each row.

    ``self (N, C)`` or ``(C,)``; ``target (N,)`` or ``()``, integers.

    Raises:
        RuntimeError: shapes do not fit, ``p`` is neither 1 nor 2, or a target is no class.
    """
    return _multi_margin(self, target, p, margin, weight, reduction)


@register("multi_margin_loss_backward", static=("p",), check=_after_gradient(_check_margin_target))
def multi_margin_loss_backward(grad_output, self, target, p, margin, weight=None, reduction=_MEAN):
    """The gradient of `multi_margin_loss` to ``self``."""
    loss, pull = jax.vjp(lambda x: _multi_margin(x, target, p, margin, weight, reduction), self)
    return pull(jnp.broadcast_to(cast(grad_output, loss.dtype), loss.shape))[0]


def _check_multilabel_target(self, target, *_, **__):
    target = np.asarray(target)
    if ((target < -1) | (target >= _classes(self))).any():
        raise RuntimeError("multilabel_margin_loss: argument #2 'target' is out of range")


def _multilabel_margin(self, target, reduction):
    _check_classes(self)
    if target.shape != self.shape:
        raise RuntimeError(f"inconsistent target size: {list(target.shape)} for input of size: {list(self.shape)}")
    x, labels = jnp.atleast_2d(cast(self, opmath(self.dtype))), jnp.atleast_2d(cast(target, "int32"))
    given = jnp.cumsum(labels < 0, 1, dtype=jnp.int32) == 0
    hot = given[..., None] & (labels[..., None] == jnp.arange(x.shape[1], dtype=jnp.int32))
    is_target = hot.any(1)
    chosen = jnp.where(hot, x[:, None, :], 0).sum(-1)
    margins = _hinge(1 - chosen[..., None] + x[:, None, :])
    loss = jnp.where(given[..., None] & ~is_target[:, None, :], margins, 0).sum((1, 2)) / x.shape[1]
    if reduction == _NONE:
        return cast(loss.reshape(self.shape[:-1]), self.dtype), is_target
    return cast(_reduce(loss, reduction), self.dtype), is_target


@register("multilabel_margin_loss_forward", check=_check_multilabel_target)
def multilabel_margin_loss_forward(self, target, reduction):
    """``sum_tj max(0, 1 - (self[t] - self[j])) / C`` over labels ``t`` and other classes ``j``; and which are labels.

    ``self`` and ``target`` are ``(N, C)`` or ``(C,)``; a row's labels end before its first -1.

    Raises:
        RuntimeError: shapes differ, or a target is no class.
    """
    loss, is_target = _multilabel_margin(self, target, reduction)
    return loss, cast(is_target.reshape(target.shape), self.dtype)


@register("multilabel_margin_loss_backward", check=_after_gradient(_check_multilabel_target))
def multilabel_margin_loss_backward(grad_output, self, target, reduction, is_target):
    """The gradient of `multilabel_margin_loss_forward` to ``self``."""
    loss, pull = jax.vjp(lambda x: _multilabel_margin(x, target, reduction)[0], self)
    return pull(jnp.broadcast_to(cast(grad_output, loss.dtype), loss.shape))[0]


@register("multilabel_margin_loss", check=_check_multilabel_target)
def multilabel_margin_loss(self, target, reduction=_MEAN):
    """The first result of `multilabel_margin_loss_forward`."""
    return _multilabel_margin(self, target, reduction)[0]


# ---------------------------------------------------------------------------------------------------------------------
# Negative log-likelihood
# ---------------------------------------------------------------------------------------------------------------------


def _class_axis(self) -> int:
    return 0 if self.ndim == 1 else 1


def _check_nll(self, target, weight, ndims, op):
    if self.ndim not in ndims:
        raise RuntimeError(
            "input tensor should be 1D or 2D" if op == "nll_loss" else
            f"only batches of spatial inputs supported (4D tensors), but got input of size: {list(self.shape)}"
        )  # fmt: skip
    if target.dtype.name not in ("int64", "uint8", canonical("int64").name):
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {target.dtype}")
    if op == "nll_loss" and self.ndim <= 2 and target.ndim > 1:
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    batch = self.shape[:1] + self.shape[2:] if self.ndim > 1 else ()
    if target.shape != batch and not (self.ndim == 1 and target.shape == (1,)):
        raise RuntimeError(f"size mismatch (got input: {list(self.shape)}, target: {list(target.shape)})")
    classes = self.shape[_class_axis(self)]
    if weight is not None and weight.shape != (classes,):
        raise RuntimeError(
            f"weight tensor should be defined either for all {classes} classes or no classes but got weight tensor of "
            f"shape: {list(weight.shape)}"
        )
    if weight is not None and weight.dtype != self.dtype:
        raise RuntimeError(f"{op}: expected scalar type {self.dtype} but found {weight.dtype}")
    if category(self.dtype) < 2:
        raise NotImplementedError(f'"{op}" not implemented for {self.dtype}')


def _check_targets(self, target, weight=None, reduction=_MEAN, ignore_index=-100, *_, **__):
    target = np.asarray(target)
    classes = self.shape[_class_axis(self)]
    bad = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if bad.any():
        raise IndexError(f"Target {target[bad][0]} is out of bounds.")


def _label_weights(target, weight, ignore_index, dtype):
    """Labels, 0 where ignored, and their weights, 0 where ignored."""
    counted = target != ignore_index
    labels = cast(jnp.where(counted, target, 0), "int32")
    weights = jnp.ones((), dtype) if weight is None else jnp.take(cast(weight, dtype), labels, mode="clip")
    return labels, jnp.where(counted, weights, 0)


def _nll(self, target, weight, reduction, ignore_index):
    x, axis = cast(self, opmath(self.dtype)), _class_axis(self)
    labels, weights = _label_weights(target, weight, ignore_index, x.dtype)
    if self.ndim == 1:
        picked = jnp.take(x, labels, mode="fill", fill_value=jnp.nan)
    else:
        index = jnp.expand_dims(labels, axis)
        picked = jnp.take_along_axis(x, index, axis, mode="fill", fill_value=jnp.nan).squeeze(axis)
    loss = -weights * picked
    total = weights.sum()
    if reduction == _NONE and self.ndim > 1:
        return cast(loss, self.dtype), jnp.zeros((), self.dtype)
    loss = loss.sum()
    return cast(loss / total if reduction == _MEAN else loss, self.dtype), cast(total, self.dtype)


def _nll_backward(grad_output, self, target, weight, reduction, ignore_index):
    axis, dtype = _class_axis(self), opmath(self.dtype)
    labels, weights = _label_weights(target, weight, ignore_index, dtype)
    grad = cast(grad_output, dtype)
    if self.ndim == 1:
        labels, weights, grad = labels.reshape(()), weights.reshape(()), grad.reshape(())
    # The total is summed again, as the forward's may be rounded to 16 bits.
    if reduction == _MEAN:
        total = weights.sum()
        weights = weights / jnp.where(total == 0, 1, total)
    grad = -grad * weights
    classes = lax.broadcasted_iota(np.int32, self.shape, axis)
    hot = classes == jnp.expand_dims(labels, axis)
    return cast(jnp.where(hot, jnp.expand_dims(grad, axis), 0), self.dtype)


@register("nll_loss_forward", check=_check_targets)
def nll_loss_forward(self, target, weight, reduction, ignore_index):
    """``-self[target] * weight[target]``, 0 where ``target`` is ``ignore_index``; and the sum of the weights.

    ``self (N, C)`` or ``(C,)``; ``target (N,)`` or ``()``, integers. The mean divides by that sum, which is 0 where
    there is no reduction.

    Raises:
        IndexError: a target is no class. (Under a trace the loss becomes NaN.)
        RuntimeError: shapes or dtypes do not fit.
    """
    _check_nll(self, target, weight, (1, 2), "nll_loss")
    return _nll(self, target, weight, reduction, ignore_index)


@register("nll_loss_backward", check=_after_gradient(_check_targets))
def nll_loss_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight):
    """The gradient of `nll_loss_forward` to ``self``."""
    _check_nll(self, target, weight, (1, 2), "nll_loss")
    return _nll_backward(grad_output, self, target, weight, reduction, ignore_index)


@register("nll_loss2d_forward", check=_check_targets)
def nll_loss2d_forward(self, target, weight, reduction, ignore_index):
    """`nll_loss_forward` for ``self (N, C, H, W)`` and ``target (N, H, W)``."""
    _check_nll(self, target, weight, (4,), "nll_loss2d")
    return _nll(self, target, weight, reduction, ignore_index)


@register("nll_loss2d_backward", check=_after_gradient(_check_targets))
def nll_loss2d_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight):
    """The gradient of `nll_loss2d_forward` to ``self``."""
    _check_nll(self, target, weight, (4,), "nll_loss2d")
    return _nll_backward(grad_output, self, target, weight, reduction, ignore_index)


@register("nll_loss", "nll_loss2d", "nll_loss_nd", check=_check_targets)
def nll_loss(self, target, weight=None, reduction=_MEAN, ignore_index=-100):
    """The first result of `nll_loss_forward`, for ``self (N, C, *)`` and ``target (N, *)``."""
    _check_nll(self, target, weight, range(1, self.ndim + 1), "nll_loss")
    return _nll(self, target, weight, reduction, ignore_index)[0]


@register("cross_entropy_loss", static=("label_smoothing",))
def cross_entropy_loss(self, target, weight=None, reduction=_MEAN, ignore_index=-100, label_smoothing=0.0):
    """`nll_loss` of ``log_softmax(self)`` over the classes, or the cross entropy with probabilities ``target``.

    ``self (N, C, *)`` or ``(C,)``; ``target`` holds class indices, or probabilities where it has the shape of ``self``.
    """
    axis, dtype = _class_axis(self), opmath(self.dtype)
    logs = jax.nn.log_softmax(cast(self, dtype), axis)
    classes = self.shape[axis]
    shape = [1] * self.ndim
    shape[axis] = classes
    spread = jnp.ones((), dtype) if weight is None else cast(weight, dtype).reshape(shape)
    if target.shape == self.shape and category(target.dtype) >= 2:
        likely = cast(target, dtype) * (1 - label_smoothing) + label_smoothing / classes
        loss = -(logs * likely * spread).sum(axis)
        rows = self.size // classes if classes else 0
        return cast(loss.sum() / rows if reduction == _MEAN else _reduce(loss, reduction), self.dtype)
    _check_nll(logs, target, None if weight is None else cast(weight, dtype), range(1, self.ndim + 1), "nll_loss")
    loss, total = _nll(logs, target, weight, reduction, ignore_index)
    if label_smoothing:
        counted = target != ignore_index
        smooth = jnp.where(counted, -(logs * spread).sum(axis), 0)
        smooth = smooth if reduction == _NONE else smooth.sum() / (total if reduction == _MEAN else 1)
        loss = (1 - label_smoothing) * loss + smooth * (label_smoothing / classes)
    return cast(loss, self.dtype)


__all__ = exported(__name__)

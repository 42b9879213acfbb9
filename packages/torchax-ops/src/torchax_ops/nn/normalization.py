"""Batch, layer, group, RMS and weight normalization, and their gradients.

Statistics are computed in float32 for 16-bit inputs, and saved in the dtype of the parameters, as PyTorch's CPU
operators save them.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._promotion import cast, opmath
from .._registry import exported, register


def _check_parameters(input, *parameters):
    """Parameters have the dtype of ``input``, or all are float32 beside a 16-bit input."""
    dtypes = {p.dtype for p in parameters if p is not None}
    if dtypes <= {input.dtype}:
        return
    if opmath(input.dtype) == input.dtype:
        raise RuntimeError(f"mixed dtype: expect parameter to have scalar type of {input.dtype}, but got {dtypes}")
    if dtypes != {np.dtype("float32")}:
        raise RuntimeError(f"expected scalar type {input.dtype} (or float32 for all parameters) but found {dtypes}")


def _statistics_dtype(input, *parameters):
    return next((np.dtype(p.dtype) for p in parameters if p is not None), np.dtype(input.dtype))


def _column(x, ndim):
    """A per-channel vector, to be broadcast against ``(N, C, *spatial)``, in its computing dtype."""
    return cast(x, opmath(x.dtype)).reshape(1, -1, *(1,) * (ndim - 2))


def _mean_and_variance(x, axes):
    mean = x.mean(axes, keepdims=True)
    return mean, lax.square(x - mean).mean(axes, keepdims=True)


# ---------------------------------------------------------------------------------------------------------------------
# Batch normalization
# ---------------------------------------------------------------------------------------------------------------------


class _BatchNorm(NamedTuple):
    output: jax.Array
    mean: jax.Array
    invstd: jax.Array
    running_mean: jax.Array | None
    running_var: jax.Array | None


def _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps) -> _BatchNorm:
    _check_parameters(input, weight, bias, running_mean, running_var)
    if input.ndim < 2:
        raise RuntimeError(
            f"batch_norm: expected input of at least two dimensions (N, C, ...), got {list(input.shape)}"
        )
    channels = input.shape[1]
    for name, x in (("weight", weight), ("bias", bias), ("running_mean", running_mean), ("running_var", running_var)):
        if x is not None and x.shape != (channels,):
            raise RuntimeError(f"batch_norm: {name} should contain {channels} elements, not {list(x.shape)}")
    dtype = _statistics_dtype(input, weight, bias, running_mean, running_var)
    axes = (0, *range(2, input.ndim))
    x = cast(input, opmath(input.dtype))
    if training:
        if input.size == 0:
            raise RuntimeError(
                f"input tensor must have at least one element, but got input_sizes = {list(input.shape)}"
            )
        mean, var = _mean_and_variance(x, axes)
        invstd = lax.rsqrt(var + eps)
        saved = cast(mean.reshape(-1), dtype), cast(invstd.reshape(-1), dtype)
        running_mean = _moved(running_mean, mean, momentum)
        count = x.size // channels
        running_var = _moved(running_var, var * (count / (count - 1) if count > 1 else math.nan), momentum)
    else:
        if running_mean is None or running_var is None:
            raise RuntimeError("batch_norm: expected running_mean and running_var to be defined in evaluation mode")
        mean, invstd = _column(running_mean, x.ndim), lax.rsqrt(_column(running_var, x.ndim) + eps)
        saved = jnp.zeros((0,), dtype), jnp.zeros((0,), dtype)
    scale = invstd if weight is None else invstd * _column(weight, x.ndim)
    out = (x - mean) * scale
    if bias is not None:
        out = out + _column(bias, x.ndim)
    return _BatchNorm(cast(out, input.dtype), *saved, running_mean, running_var)


def _moved(running, value, momentum):
    """``running`` moved towards ``value`` by ``momentum``."""
    if running is None:
        return None
    dtype = opmath(running.dtype)
    step = cast(momentum, dtype)
    return cast((1 - step) * cast(running, dtype) + step * cast(value.reshape(-1), dtype), running.dtype)


@register("native_batch_norm", static=("eps",))
def native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    """Normalize each channel of ``input (N, C, *)``: ``(output, mean, 1 / std)``, the latter empty in evaluation.

    PyTorch's operator also moves ``running_mean`` and ``running_var`` in place: for their new values call
    `_native_batch_norm_legit_functional`, which takes the same arguments.
    """
    return tuple(_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps))[:3]


@register("_native_batch_norm_legit.no_stats", static=("eps",))
def _native_batch_norm_legit_no_stats(input, weight, bias, training, momentum, eps):
    return tuple(_batch_norm(input, weight, bias, None, None, True, momentum, eps))[:3]


@register("_native_batch_norm_legit_functional", static=("eps",))
def _native_batch_norm_legit_functional(input, weight, bias, running_mean, running_var, training, momentum, eps):
    """`native_batch_norm`, followed by the new running mean and (unbiased) variance."""
    return tuple(_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps))


@register("_native_batch_norm_legit_no_training", static=("eps",))
def _native_batch_norm_legit_no_training(input, weight, bias, running_mean, running_var, momentum, eps):
    return native_batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)


def _reserve():
    return jnp.zeros((0,), jnp.uint8)


@register("_batch_norm_with_update_functional", static=("eps",))
def _batch_norm_with_update_functional(input, weight, bias, running_mean, running_var, momentum, eps):
    """`native_batch_norm` in training, an empty reserve, the new running mean and (unbiased) variance."""
    result = _batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *result[:3], _reserve(), *result[3:]


@register("_batch_norm_no_update", static=("eps",))
def _batch_norm_no_update(input, weight, bias, running_mean, running_var, momentum, eps):
    return *native_batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps), _reserve()


@register("native_batch_norm_backward", static=("eps",))
def native_batch_norm_backward(
    grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
):
    """The gradients of `native_batch_norm` to input, weight and bias; ``None`` where ``output_mask`` is false."""
    dtype, ndim, channels = opmath(input.dtype), input.ndim, input.shape[1]
    axes = (0, *range(2, ndim))
    x, grad = cast(input, dtype), cast(grad_out, dtype)
    if not train:
        mean, invstd = _column(running_mean, ndim), lax.rsqrt(_column(running_var, ndim) + eps)
    else:
        mean, invstd = _column(save_mean, ndim), _column(save_invstd, ndim)
    scale = invstd if weight is None else invstd * _column(weight, ndim)
    total, along = grad.sum(axes, keepdims=True), (grad * (x - mean)).sum(axes, keepdims=True)
    parameter = _statistics_dtype(input, weight)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0] and train:
        count = max(x.size // channels, 1) if channels else 1
        grad_input = cast(
            (grad - total / count - (x - mean) * (along * lax.square(invstd) / count)) * scale, input.dtype
        )
    elif output_mask[0]:
        grad_input = cast(grad * scale, input.dtype)
    if output_mask[1]:
        grad_weight = cast((along * invstd).reshape(-1), parameter)
    if output_mask[2]:
        grad_bias = cast(total.reshape(-1), parameter)
    return grad_input, grad_weight, grad_bias


@register("batch_norm_backward", static=("eps",))
def batch_norm_backward(
    grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask, reserve
):
    """`native_batch_norm_backward` as PyTorch calls it after ``_batch_norm_with_update``."""
    return native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


@register("batch_norm_update_stats")
def batch_norm_update_stats(input, running_mean, running_var, momentum):
    """The mean and the biased variance of each channel. (PyTorch's operator also moves the running statistics.)"""
    mean, var = _mean_and_variance(cast(input, opmath(input.dtype)), (0, *range(2, input.ndim)))
    dtype = _statistics_dtype(input, running_mean, running_var)
    return cast(mean.reshape(-1), dtype), cast(var.reshape(-1), dtype)


@register("batch_norm_stats", static=("eps",))
def batch_norm_stats(input, eps):
    """The mean and ``1 / std`` of each channel, float32 for 16 bits: the first step of a synchronized batch norm."""
    mean, var = _mean_and_variance(cast(input, opmath(input.dtype)), (0, *range(2, input.ndim)))
    return mean.reshape(-1), lax.rsqrt(var + eps).reshape(-1)


@register("batch_norm_elemt", static=("eps",))
def batch_norm_elemt(input, weight, bias, mean, invstd, eps):
    """``(input - mean) * invstd * weight + bias`` for each channel."""
    out = (cast(input, opmath(input.dtype)) - _column(mean, input.ndim)) * _column(invstd, input.ndim)
    out = out if weight is None else out * _column(weight, input.ndim)
    return cast(out if bias is None else out + _column(bias, input.ndim), input.dtype)


@register("batch_norm_backward_reduce")
def batch_norm_backward_reduce(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g):
    """For each channel ``sum(grad)``, ``sum(grad * (x - mean))`` and the gradients of weight and bias, as masked."""
    dtype, axes = opmath(input.dtype), (0, *range(2, input.ndim))
    grad = cast(grad_out, dtype)
    total = grad.sum(axes)
    along = (grad * (cast(input, dtype) - _column(mean, input.ndim))).sum(axes)
    parameter = _statistics_dtype(mean, weight)
    return (
        total if input_g else None,
        along if input_g else None,
        cast(along * cast(invstd, dtype), parameter) if weight_g else None,
        cast(total, parameter) if bias_g else None,
    )


@register("batch_norm_backward_elemt")
def batch_norm_backward_elemt(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    """The gradient to ``input`` of a synchronized batch norm, from sums over all ``count.sum()`` elements."""
    dtype, ndim = opmath(input.dtype), input.ndim
    total = cast(count, dtype).sum()
    invstd = _column(invstd, ndim)
    scale = invstd if weight is None else invstd * _column(weight, ndim)
    slope = _column(sum_dy_xmu, ndim) / total * lax.square(invstd)
    centred = cast(input, dtype) - _column(mean, ndim)
    return cast((cast(grad_out, dtype) - _column(sum_dy, ndim) / total - centred * slope) * scale, input.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Layer and RMS normalization
# ---------------------------------------------------------------------------------------------------------------------


def _check_normalized_shape(input, normalized_shape, *parameters):
    shape = tuple(normalized_shape)
    if not shape:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, "
            "but got normalized_shape = []"
        )
    for name, x in zip(("weight", "bias"), parameters):
        if x is not None and x.shape != shape:
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape {list(x.shape)} "
                f"and normalized_shape = {list(shape)}"
            )
    if input.ndim < len(shape) or input.shape[input.ndim - len(shape) :] != shape:
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [*, {', '.join(map(str, shape))}], "
            f"but got input of size{list(input.shape)}"
        )


def _inner(input, normalized_shape):
    return tuple(range(input.ndim - len(normalized_shape), input.ndim))


@register("native_layer_norm", static=("eps",))
def native_layer_norm(input, normalized_shape, weight, bias, eps):
    """Normalize the trailing dims: ``(output, mean, 1 / std)``, the statistics with trailing dims of size one.

    Raises:
        RuntimeError: ``input`` does not end in ``normalized_shape``, or weight or bias have another shape or dtype.
    """
    _check_normalized_shape(input, normalized_shape, weight, bias)
    _check_parameters(input, weight, bias)
    x = cast(input, opmath(input.dtype))
    dtype = _statistics_dtype(input, weight, bias)
    mean, var = _mean_and_variance(x, _inner(input, normalized_shape))
    rstd = lax.rsqrt(var + eps)
    out = (x - mean) * rstd
    if weight is not None:
        out = out * cast(weight, x.dtype)
    if bias is not None:
        out = out + cast(bias, x.dtype)
    if x.size == 0:
        mean, rstd = jnp.zeros_like(mean), jnp.zeros_like(rstd)
    return cast(out, input.dtype), cast(mean, dtype), cast(rstd, dtype)


def _row_gradients(grad, x, mean, rstd, weight, *, dots: bool):
    """For rows normalized and scaled by ``weight``: the gradients to ``x``, to the weight and to the bias.

    ``dots`` writes the sums as products with vectors, which XLA's CPU backend runs several times faster.
    """
    size = x.shape[1]
    scale = jnp.ones((size,), x.dtype) if weight is None else weight
    if dots:
        along_rows = lambda a: jnp.matmul(a, scale[:, None])  # noqa: E731
        along_columns = lambda a: jnp.matmul(jnp.ones((a.shape[0],), a.dtype), a)  # noqa: E731
    else:
        along_rows = lambda a: (a * scale).sum(1, keepdims=True)  # noqa: E731
        along_columns = lambda a: a.sum(0)  # noqa: E731
    normalized = (x if mean is None else x - mean) * rstd
    along = grad * normalized
    centred = grad * scale - normalized * (along_rows(along) / size)
    if mean is not None:
        centred = centred - along_rows(grad) / size
    return centred * rstd, along_columns(along), along_columns(grad)


def _trailing_gradients(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask):
    """The gradients of a normalization of the trailing dims, of which ``None`` for ``mean`` is one by the RMS."""
    dtype, size = opmath(input.dtype), math.prod(normalized_shape)
    rows = lambda a, n: None if a is None else cast(a, dtype).reshape(-1, n)  # noqa: E731
    vector = None if weight is None else cast(weight, dtype).reshape(-1)
    grads = [jnp.zeros(s, dtype) for s in (input.shape, normalized_shape, normalized_shape)]
    if input.size:
        grads = lax.platform_dependent(
            rows(grad_out, size), rows(input, size), rows(mean, 1), rows(rstd, 1), vector,
            cpu=functools.partial(_row_gradients, dots=True), default=functools.partial(_row_gradients, dots=False),
        )  # fmt: skip
    return tuple(
        cast(g.reshape(of.shape), of.dtype) if wanted and of is not None else None
        for g, of, wanted in zip(grads, (input, weight, bias), output_mask)
    )


@register("native_layer_norm_backward")
def native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask):
    """The gradients of `native_layer_norm` to input, weight and bias; ``None`` where ``output_mask`` is false."""
    return _trailing_gradients(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask)


@register("_fused_rms_norm", static=("eps",))
def _fused_rms_norm(input, normalized_shape, weight, eps):
    """``input / sqrt(mean(input ** 2) + eps) * weight`` over the trailing dims, and ``1 / rms`` (float32 for 16 bits).

    ``eps=None`` is the machine epsilon of the computing dtype.

    Raises:
        RuntimeError: ``input`` does not end in ``normalized_shape``, or ``weight`` has another shape.
    """
    _check_normalized_shape(input, normalized_shape, weight)
    x = cast(input, opmath(input.dtype))
    eps = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    rstd = lax.rsqrt(lax.square(x).mean(_inner(input, normalized_shape), keepdims=True) + eps)
    out = x * rstd if weight is None else x * rstd * cast(weight, opmath(weight.dtype))
    return cast(out, input.dtype), rstd


@register("rms_norm", static=("eps",))
def rms_norm(input, normalized_shape, weight=None, eps=None):
    """The first result of `_fused_rms_norm`."""
    return _fused_rms_norm(input, normalized_shape, weight, eps)[0]


@register("_fused_rms_norm_backward")
def _fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask):
    """The gradients of `_fused_rms_norm` to input and weight; ``None`` where ``output_mask`` is false."""
    mask = (*output_mask, False)
    return _trailing_gradients(grad_out, input, normalized_shape, None, rstd, weight, None, mask)[:2]


@register("layer_norm", static=("eps",))
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    """The first result of `native_layer_norm`."""
    return native_layer_norm(input, normalized_shape, weight, bias, eps)[0]


# ---------------------------------------------------------------------------------------------------------------------
# Group normalization
# ---------------------------------------------------------------------------------------------------------------------


def _check_group_norm(input, C, group, weight, bias):
    if group <= 0:
        raise RuntimeError(f"Expected num groups to be greater than 0, got {group}")
    if C % group:
        raise RuntimeError(
            f"Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(input.shape)} and num_groups={group}"
        )
    for name, x in (("weight", weight), ("bias", bias)):
        if x is not None and x.shape != (C,):
            raise RuntimeError(
                f"Expected {name} to be a vector of size equal to the number of channels in input, but got {name} of "
                f"shape {list(x.shape)} and input of shape {list(input.shape)}"
            )
    _check_parameters(input, weight, bias)


@register("native_group_norm", static=("eps",))
def native_group_norm(input, weight, bias, N, C, HxW, group, eps):
    """Normalize each of ``group`` groups of channels: ``(output, mean (N, group), 1 / std (N, group))``.

    Raises:
        RuntimeError: ``group`` does not divide ``C``, or weight or bias are not of shape ``(C,)``.
    """
    _check_group_norm(input, C, group, weight, bias)
    dtype = _statistics_dtype(input, weight, bias)
    x = cast(input, opmath(input.dtype)).reshape(N, group, C // group, HxW)
    if x.size == 0:
        empty = jnp.zeros((N, group), dtype)
        return input, empty, empty
    mean, var = _mean_and_variance(x, (2, 3))
    rstd = lax.rsqrt(var + eps)
    scale = rstd if weight is None else rstd * cast(weight, x.dtype).reshape(1, group, -1, 1)
    out = (x - mean) * scale
    if bias is not None:
        out = out + cast(bias, x.dtype).reshape(1, group, -1, 1)
    return cast(out.reshape(input.shape), input.dtype), cast(mean[..., 0, 0], dtype), cast(rstd[..., 0, 0], dtype)


@register("native_group_norm_backward")
def native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask):
    """The gradients of `native_group_norm` to input, weight and bias; ``None`` where ``output_mask`` is false."""
    dtype = opmath(input.dtype)
    shape = (N, group, C // group, HxW)
    x, grad = cast(input, dtype).reshape(shape), cast(grad_out, dtype).reshape(shape)
    mean, rstd = (cast(s, dtype).reshape(N, group, 1, 1) for s in (mean, rstd))
    total, along = grad.sum(3, keepdims=True), (grad * (x - mean)).sum(3, keepdims=True) * rstd
    parameter = _statistics_dtype(input, weight)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0] and x.size == 0:
        grad_input = jnp.zeros_like(input)
    elif output_mask[0]:
        scale = 1 if weight is None else cast(weight, dtype).reshape(1, group, -1, 1)
        count = C // group * HxW
        level, slope = ((scale * s).sum(2, keepdims=True) / count for s in (total, along))
        grad_input = (scale * grad - level - (x - mean) * (rstd * slope)) * rstd
        grad_input = cast(grad_input.reshape(input.shape), input.dtype)
    if output_mask[1]:
        grad_weight = cast(along.sum(0).reshape(C), parameter)
    if output_mask[2]:
        grad_bias = cast(total.sum(0).reshape(C), parameter)
    return grad_input, grad_weight, grad_bias


@register("group_norm", static=("eps",))
def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    """The first result of `native_group_norm`, for ``input (N, C, *)``."""
    n, c = input.shape[:2]
    return native_group_norm(input, weight, bias, n, c, math.prod(input.shape[2:]), num_groups, eps)[0]


# ---------------------------------------------------------------------------------------------------------------------
# Weight normalization
# ---------------------------------------------------------------------------------------------------------------------


def _all_but(dim, ndim):
    return tuple(i for i in range(ndim) if i != dim % ndim)


@register("_weight_norm_interface")
def _weight_norm_interface(v, g, dim=0):
    """``v * g / norm`` and ``norm``, the 2-norm of ``v`` over all dims but ``dim`` (float32 for 16-bit ``v``)."""
    if dim not in (0, v.ndim - 1):
        raise RuntimeError(f"_weight_norm_interface: dim must be the first or the last of {v.ndim}, not {dim}")
    x = cast(v, opmath(v.dtype))
    norm = jnp.sqrt(lax.square(x).sum(_all_but(dim, v.ndim), keepdims=True))
    return cast(x * (cast(g, x.dtype) / norm), v.dtype), norm


@register("_weight_norm_interface_backward", "_weight_norm_differentiable_backward")
def _weight_norm_interface_backward(grad_w, saved_v, saved_g, saved_norms, dim):
    """The gradients of `_weight_norm_interface` to ``v`` and ``g``."""
    dtype = opmath(saved_v.dtype)
    grad, v, g, norm = (cast(x, dtype) for x in (grad_w, saved_v, saved_g, saved_norms))
    along = (grad * v).sum(_all_but(dim, v.ndim), keepdims=True)
    grad_v = (g / norm) * (grad - v * (along / lax.square(norm)))
    return cast(grad_v, saved_v.dtype), cast(along / norm, saved_g.dtype)


__all__ = exported(__name__)

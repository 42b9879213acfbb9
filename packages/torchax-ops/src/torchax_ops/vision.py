"""The operators of ``torchvision``: suppression of boxes, pooling of regions, deformable convolution.

Region pooling is separable, so each region is two small matrix products: one gathers its rows, one its columns.
Source: https://docs.pytorch.org/vision/stable/ops.html
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._promotion import cast, opmath
from ._registry import exported, register

# ---------------------------------------------------------------------------------------------------------------------
# Boxes
# ---------------------------------------------------------------------------------------------------------------------


@jax.jit
def _kept(boxes: jax.Array, threshold: jax.Array) -> jax.Array:
    """Which of the boxes, best first, no better box that is kept overlaps by more than ``threshold``."""
    left, top, right, bottom = boxes.T
    area = (right - left) * (bottom - top)
    places = jnp.arange(boxes.shape[0], dtype=jnp.int32)

    def visit(i, kept):
        width = jnp.maximum(jnp.minimum(right, right[i]) - jnp.maximum(left, left[i]), 0)
        height = jnp.maximum(jnp.minimum(bottom, bottom[i]) - jnp.maximum(top, top[i]), 0)
        shared = width * height
        hidden = (shared / (area + area[i] - shared) > threshold) & (places > i)
        return jnp.where(kept[i], kept & ~hidden, kept)

    return lax.fori_loop(0, boxes.shape[0], visit, jnp.ones(boxes.shape[0], bool))


@register("torchvision::nms", eager=True)
def nms(dets, scores, iou_threshold, *, size=None):
    """The int64 indices, best first, of boxes ``dets (N, 4)`` that no better one overlaps by over ``iou_threshold``.

    Under a trace ``size=`` must say how many there are; what is missing is filled with -1.

    Raises:
        RuntimeError: the shapes do not fit, or there is a trace and no ``size``.
    """
    if dets.ndim != 2 or dets.shape[1] != 4:
        raise RuntimeError(f"nms: boxes should be a 2d tensor with 4 elements in dimension 1, got {list(dets.shape)}")
    if scores.shape != dets.shape[:1]:
        raise RuntimeError(
            f"nms: scores should be a 1d tensor with as many elements as there are boxes, got {list(scores.shape)} for "
            f"{list(dets.shape)}"
        )
    if size is None and (isinstance(dets, jax.core.Tracer) or isinstance(scores, jax.core.Tracer)):
        raise RuntimeError("nms: how many boxes are kept depends on values: give size= under a trace")
    if dets.shape[0] == 0:
        return cast(jnp.full((size or 0,), -1), "int64")
    order = jnp.argsort(scores, descending=True, stable=True)
    dtype = opmath(dets.dtype)
    kept = _kept(cast(dets, dtype)[order], cast(iou_threshold, dtype))
    if size is None:
        return cast(order[np.flatnonzero(np.asarray(kept))], "int64")
    found = jnp.flatnonzero(kept, size=size, fill_value=-1)
    return cast(jnp.where(found < 0, -1, jnp.take(order, found, mode="clip")), "int64")


# ---------------------------------------------------------------------------------------------------------------------
# Regions
# ---------------------------------------------------------------------------------------------------------------------


def _check_rois(op: str, input, rois) -> None:
    if rois.ndim != 2 or rois.shape[1] != 5:
        raise RuntimeError(f"{op}: rois must have shape as Tensor[K, 5], got {list(rois.shape)}")
    if input.ndim != 4:
        raise RuntimeError(f"{op}: expected input of shape (N, C, H, W), got {list(input.shape)}")
    if input.dtype != rois.dtype:
        raise RuntimeError(f"{op}: expected input and rois to have the same dtype, got {input.dtype} and {rois.dtype}")


def _split_channels(op: str, channels: int, pooled_height: int, pooled_width: int) -> int:
    if channels % (pooled_height * pooled_width):
        raise RuntimeError(f"{op}: input channels ({channels}) must be a multiple of pooling height * pooling width")
    return channels // (pooled_height * pooled_width)


def _for_each(rois, input, pool: Callable, *operands):
    """``pool`` of each region's image and operands, a region at a time, so that no image is copied."""
    images = jnp.clip(cast(rois[:, 0], "int32"), 0, max(input.shape[0] - 1, 0))
    if input.shape[0] == 0 or rois.shape[0] == 0:
        image, *rest = (jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in (input, *operands))
        shapes = jax.eval_shape(pool, image, *rest)
        return jax.tree.map(lambda s: jnp.zeros((rois.shape[0], *s.shape), s.dtype), shapes)
    return lax.map(lambda at: pool(lax.dynamic_index_in_dim(input, at[0], 0, False), *at[1:]), (images, *operands))


def _sampling(start, length, bins: int, size: int, ratio: int):
    """For each region the matrix ``(bins, size)`` that averages linear samples of an axis over each bin.

    A bin has ``ratio`` samples, or as many as it has elements, rounded up.
    """
    step = length / bins
    count = jnp.full_like(start, ratio) if ratio > 0 else jnp.ceil(step)
    first = start[:, None] + jnp.arange(bins, dtype=start.dtype) * step[:, None]
    cells = jnp.arange(size, dtype=jnp.int32)

    def sample(i, total):
        at = first + (cast(i, start.dtype) + 0.5) * (step / jnp.maximum(count, 1))[:, None]
        inside = (at >= -1) & (at <= size) & (i < count)[:, None]
        at = jnp.clip(at, 0, size - 1)
        low = jnp.floor(at)
        high = at - low
        low = cast(low, "int32")[..., None]
        weights = jnp.where(cells == low, (1 - high)[..., None], 0) + jnp.where(cells == low + 1, high[..., None], 0)
        return total + jnp.where(inside[..., None], weights, 0)

    start_sum = jnp.zeros((*first.shape, size), start.dtype)
    if ratio > 0:
        total = functools.reduce(lambda t, i: sample(i, t), range(ratio), start_sum)
    else:
        total = lax.fori_loop(0, cast(count.max(initial=0), "int32"), sample, start_sum)
    return total / jnp.maximum(count, 1)[:, None, None]


def _aligned_samples(rois, spatial_scale, pooled, sizes, ratio, offset, least):
    """The sampling matrices along height and width; a region is at least ``least`` long."""
    scaled = lax.stop_gradient(cast(rois, opmath(rois.dtype)))[:, 1:] * cast(spatial_scale, opmath(rois.dtype)) - offset
    matrices = []
    for axis, bins, size in zip((1, 0), pooled, sizes):
        length = scaled[:, axis + 2] - scaled[:, axis]
        length = length if least is None else jnp.maximum(length, least)
        matrices.append(_sampling(scaled[:, axis], length, bins, size, ratio))
    return matrices


@register("torchvision::roi_align")
def roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    """Each region of ``rois (K, 5)`` (image, x1, y1, x2, y2) as ``(K, C, pooled_height, pooled_width)``, by averages.

    ``sampling_ratio`` samples a bin along each axis, or, where it is not positive, one for each element.

    Raises:
        RuntimeError: the shapes or dtypes do not fit.
    """
    _check_rois("roi_align", input, rois)
    rows, columns = _aligned_samples(
        rois, spatial_scale, (pooled_height, pooled_width), input.shape[2:], sampling_ratio,
        0.5 if aligned else 0.0, None if aligned else 1.0,
    )  # fmt: skip

    def pool(image, rows, columns):
        return jnp.einsum("chw,ph,qw->cpq", image, rows, columns, precision=lax.Precision.HIGHEST)

    return cast(_for_each(rois, cast(input, rows.dtype), pool, rows, columns), input.dtype)


def _transposed(forward: Callable, grad, shape):
    """The gradient of a linear pooling to its input of ``shape``."""
    return jax.linear_transpose(forward, jax.ShapeDtypeStruct(shape, grad.dtype))(grad)[0]


@register("torchvision::_roi_align_backward")
def _roi_align_backward(
    grad, rois, spatial_scale, pooled_height, pooled_width, batch_size, channels, height, width, sampling_ratio, aligned
):
    def forward(x):
        return roi_align(x, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned)

    return _transposed(forward, grad, (batch_size, channels, height, width))


def _own_channel(channels: int, pooled_height: int, pooled_width: int, rois: int):
    """The channel that each bin of each output channel reads, int32."""
    mapping = jnp.arange(channels, dtype=jnp.int32).reshape(-1, pooled_height, pooled_width)
    return jnp.broadcast_to(mapping, (rois, *mapping.shape))


def _ps_roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio):
    outputs = _split_channels("ps_roi_align", input.shape[1], pooled_height, pooled_width)
    bins = (pooled_height, pooled_width)
    rows, columns = _aligned_samples(rois, spatial_scale, bins, input.shape[2:], sampling_ratio, 0.5, None)
    return cast(_for_each(rois, cast(input, rows.dtype), _own_bins(outputs, *bins), rows, columns), input.dtype)


def _own_bins(outputs: int, pooled_height: int, pooled_width: int) -> Callable:
    """Pool each bin from the channels that are its own."""

    def pool(image, rows, columns):
        split = image.reshape(outputs, pooled_height, pooled_width, *image.shape[1:])
        return jnp.einsum("cpqhw,ph,qw->cpq", split, rows, columns, precision=lax.Precision.HIGHEST)

    return pool


@register("torchvision::ps_roi_align")
def ps_roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio):
    """`roi_align` in which each bin has channels of its own: ``(K, C / bins, pooled_height, pooled_width)``.

    The second result says which channel each bin reads, int32. A bin without samples is NaN.

    Raises:
        RuntimeError: the shapes or dtypes do not fit, or the bins do not divide the channels.
    """
    _check_rois("ps_roi_align", input, rois)
    out = _ps_roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio)
    if sampling_ratio <= 0:
        x1, y1, x2, y2 = cast(rois, opmath(rois.dtype)).T[1:] * cast(spatial_scale, opmath(rois.dtype))
        empty = (jnp.ceil((y2 - y1) / pooled_height) == 0) | (jnp.ceil((x2 - x1) / pooled_width) == 0)
        out = jnp.where(empty[:, None, None, None], jnp.nan, out)
    return out, _own_channel(input.shape[1], pooled_height, pooled_width, rois.shape[0])


@register("torchvision::_ps_roi_align_backward")
def _ps_roi_align_backward(
    grad, rois, channel_mapping, spatial_scale, pooled_height, pooled_width, sampling_ratio, batch_size, channels,
    height, width,
):  # fmt: skip
    def forward(x):
        return _ps_roi_align(x, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio)

    return _transposed(forward, grad, (batch_size, channels, height, width))


def _round(x):
    """Halves away from zero, as C rounds."""
    return jnp.sign(x) * jnp.floor(jnp.abs(x) + 0.5)


def _whole_bins(rois, spatial_scale, pooled, sizes, inclusive, last):
    """For each region, along height and width, which elements lie in each bin: bool ``(K, bins, size)``."""
    dtype = opmath(rois.dtype)
    scaled = _round(cast(rois, dtype)[:, 1:] * cast(spatial_scale, dtype))
    found = []
    for axis, bins, size in zip((1, 0), pooled, sizes):
        start = scaled[:, axis, None]
        length = jnp.maximum(scaled[:, axis + 2, None] - start + inclusive, 1)
        step = length / bins
        number = jnp.arange(bins, dtype=dtype)
        low = jnp.clip(jnp.floor(number * step) + start, 0, size - last)
        high = jnp.clip(jnp.ceil((number + 1) * step) + start, 0, size - last)
        cells = jnp.arange(size, dtype=dtype)
        found.append((cells >= low[..., None]) & (cells < high[..., None]))
    return found


@register("torchvision::roi_pool")
def roi_pool(input, rois, spatial_scale, pooled_height, pooled_width):
    """The maximum of each bin of each region, 0 where it is empty, and its int32 position in ``(H, W)``, or -1.

    ``rois (K, 5)`` as in `roi_align`; both results are ``(K, C, pooled_height, pooled_width)``.

    Raises:
        RuntimeError: the shapes or dtypes do not fit.
    """
    _check_rois("roi_pool", input, rois)
    height, width = input.shape[2:]
    rows, columns = _whole_bins(rois, spatial_scale, (pooled_height, pooled_width), (height, width), 1, 0)
    x = jnp.where(jnp.isnan(input), -jnp.inf, input)

    def pool(image, rows, columns):
        wide = jnp.where(columns[:, None], image[:, None], -jnp.inf)
        at = jnp.argmax(wide, -1)
        best = jnp.where(rows[:, None], wide.max(-1)[:, None], -jnp.inf)
        line = jnp.argmax(best, -1)
        column = jnp.take_along_axis(jnp.broadcast_to(at[:, None], best.shape), line[..., None], -1)[..., 0]
        filled = rows.any(-1)[:, None] & columns.any(-1)
        position = cast(line * width + column, "int32")
        return jnp.where(filled, best.max(-1), 0), jnp.where(filled, position, -1)

    out, argmax = _for_each(rois, x, pool, rows, columns)
    return cast(out, input.dtype), argmax


@register("torchvision::_roi_pool_backward")
def _roi_pool_backward(
    grad, rois, argmax, spatial_scale, pooled_height, pooled_width, batch_size, channels, height, width
):
    images = cast(rois[:, 0], "int32")[:, None, None]
    place = argmax.reshape(*argmax.shape[:2], -1)
    place = jnp.where(place < 0, height * width, place)
    dtype = opmath(grad.dtype)
    target = jnp.zeros((batch_size, channels, height * width), dtype)
    target = target.at[images, jnp.arange(channels, dtype=jnp.int32)[:, None], place]  # type: ignore[assignment]
    filled = target.add(cast(grad, dtype).reshape(place.shape), mode="drop")  # type: ignore[attr-defined]
    return cast(filled.reshape(batch_size, channels, height, width), grad.dtype)


def _ps_roi_pool(input, rois, spatial_scale, pooled_height, pooled_width, last):
    outputs = _split_channels("ps_roi_pool", input.shape[1], pooled_height, pooled_width)
    bins = (pooled_height, pooled_width)
    dtype = opmath(input.dtype)
    parts = _whole_bins(rois, spatial_scale, bins, input.shape[2:], 0, last)
    means = [cast(m, dtype) / jnp.maximum(cast(m, dtype).sum(-1, keepdims=True), 1) for m in parts]
    return cast(_for_each(rois, cast(input, dtype), _own_bins(outputs, *bins), *means), input.dtype)


@register("torchvision::ps_roi_pool")
def ps_roi_pool(input, rois, spatial_scale, pooled_height, pooled_width):
    """The mean of each bin of each region, from channels of its own: ``(K, C / bins, pooled_height, pooled_width)``.

    The second result says which channel each bin reads, int32. As in PyTorch, the last row and column are never read
    (though the gradient counts them).

    Raises:
        RuntimeError: the shapes or dtypes do not fit, or the bins do not divide the channels.
    """
    _check_rois("ps_roi_pool", input, rois)
    out = _ps_roi_pool(input, rois, spatial_scale, pooled_height, pooled_width, 1)
    return out, _own_channel(input.shape[1], pooled_height, pooled_width, rois.shape[0])


@register("torchvision::_ps_roi_pool_backward")
def _ps_roi_pool_backward(
    grad, rois, channel_mapping, spatial_scale, pooled_height, pooled_width, batch_size, channels, height, width
):
    def forward(x):
        return _ps_roi_pool(x, rois, spatial_scale, pooled_height, pooled_width, 0)

    return _transposed(forward, grad, (batch_size, channels, height, width))


# ---------------------------------------------------------------------------------------------------------------------
# Deformable convolution
# ---------------------------------------------------------------------------------------------------------------------


def _bilinear(images, y, x):
    """Samples of ``images (B, C, H, W)`` at ``y, x (B, P)``: ``(B, C, P)``, zero outside."""
    height, width = images.shape[2:]
    flat = images.reshape(*images.shape[:2], -1)
    inside = (y > -1) & (y < height) & (x > -1) & (x < width)
    top, left = jnp.floor(y), jnp.floor(x)
    below, right = y - lax.stop_gradient(top), x - lax.stop_gradient(left)
    total = 0
    for dy, wy in ((0, 1 - below), (1, below)):
        for dx, wx in ((0, 1 - right), (1, right)):
            row, column = cast(top, "int32") + dy, cast(left, "int32") + dx
            known = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
            index = jnp.where(known, row * width + column, 0)
            corner = jnp.take_along_axis(flat, index[:, None], 2, mode="clip")
            total = total + corner * jnp.where(known, wy * wx, 0)[:, None]  # type: ignore[assignment]
    return total


@register("torchvision::deform_conv2d")
def deform_conv2d(
    input, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups,
    offset_groups, use_mask,
):  # fmt: skip
    """A convolution whose taps read ``input (N, C, H, W)`` at places moved by ``offset`` and scaled by ``mask``.

    ``weight (O, C / groups, kh, kw)``, ``offset (N, 2 * offset_groups * kh * kw, OH, OW)`` in pixels, ``y`` before
    ``x``; ``mask (N, offset_groups * kh * kw, OH, OW)`` is read if ``use_mask``. Result ``(N, O, OH, OW)``.

    Raises:
        RuntimeError: the shapes do not fit.

    Source: arXiv:1811.11168
    """
    batch, channels, *sizes = input.shape
    kernel = weight.shape[2:]
    stride, pad, dilation = (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w)
    outs = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(sizes, kernel, stride, pad, dilation)]
    taps = kernel[0] * kernel[1]
    if weight.shape[1] * groups != channels or weight.shape[0] % groups:
        raise RuntimeError(
            f"deform_conv2d: weight {list(weight.shape)} does not fit input {list(input.shape)} in {groups} groups"
        )
    if channels % offset_groups:
        raise RuntimeError(f"deform_conv2d: offset groups ({offset_groups}) must divide the channels ({channels})")
    wanted = (batch, 2 * offset_groups * taps, *outs)
    if offset.shape != wanted:
        raise RuntimeError(f"deform_conv2d: offset should have shape {list(wanted)}, got {list(offset.shape)}")
    wanted = (batch, offset_groups * taps, *outs)
    if use_mask and mask.shape != wanted:
        raise RuntimeError(f"deform_conv2d: mask should have shape {list(wanted)}, got {list(mask.shape)}")
    dtype = opmath(input.dtype)
    moved = cast(offset, dtype).reshape(batch * offset_groups, taps, 2, *outs)
    grids = [
        (np.arange(out) * s - p)[None, :] + (np.arange(k) * d)[:, None]
        for out, k, s, p, d in zip(outs, kernel, stride, pad, dilation)
    ]
    y = jnp.asarray(np.repeat(grids[0], kernel[1], 0), dtype)[:, :, None] + moved[:, :, 0]
    x = jnp.asarray(np.tile(grids[1], (kernel[0], 1)), dtype)[:, None, :] + moved[:, :, 1]
    images = cast(input, dtype).reshape(batch * offset_groups, channels // offset_groups, *sizes)
    columns = _bilinear(images, y.reshape(y.shape[0], -1), x.reshape(x.shape[0], -1))
    if use_mask:
        columns = columns * cast(mask, dtype).reshape(batch * offset_groups, 1, -1)
    columns = columns.reshape(batch, groups, channels // groups, taps, outs[0] * outs[1])
    kernels = cast(weight, dtype).reshape(groups, weight.shape[0] // groups, weight.shape[1], taps)
    out = jnp.einsum("ngckp,gock->ngop", columns, kernels, precision=lax.Precision.HIGHEST)
    out = out.reshape(batch, weight.shape[0], *outs) + cast(bias, dtype)[:, None, None]
    return cast(out, input.dtype)


@register("torchvision::_deform_conv2d_backward")
def _deform_conv2d_backward(
    grad, input, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups,
    offset_groups, use_mask,
):  # fmt: skip
    """The gradients of `deform_conv2d` to input, weight, offset, mask and bias."""

    def forward(input, weight, offset, mask, bias):
        return deform_conv2d(
            input, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups,
            offset_groups, use_mask,
        )  # fmt: skip

    return jax.vjp(forward, input, weight, offset, mask, bias)[1](grad)


__all__ = exported(__name__)

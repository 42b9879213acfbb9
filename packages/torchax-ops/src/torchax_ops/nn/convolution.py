"""Convolutions of one, two and three dimensions, plain and transposed, and their gradients."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from .._promotion import cast, opmath
from .._registry import exported, register

_MAX_UNROLLED_TAPS = 64


def _expand(values: Sequence[int] | int, n: int, name: str) -> tuple[int, ...]:
    values = (values,) if isinstance(values, int) else tuple(values)
    if len(values) == 1:
        return values * n
    if len(values) != n:
        raise RuntimeError(
            f"convolution: expected {name} to be a single integer value or a list of {n} values to match the "
            f"convolution dimensions, but got {name}={list(values)}"
        )
    return values


def _check(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """Raise what PyTorch raises for shapes and numbers that make no convolution."""
    shape, kernel, n = input.shape, weight.shape, weight.ndim - 2
    if any(p < 0 for p in padding):
        raise RuntimeError("negative padding is not supported")
    if any(s <= 0 for s in stride):
        raise RuntimeError("non-positive stride is not supported")
    if any(d <= 0 for d in dilation):
        raise RuntimeError("dilation should be greater than zero")
    if groups <= 0:
        raise RuntimeError("non-positive groups is not supported")
    if input.ndim != weight.ndim:
        raise RuntimeError(
            f"Expected {weight.ndim}-dimensional input for {weight.ndim}-dimensional weight {list(kernel)}, "
            f"but got {input.ndim}-dimensional input of size {list(shape)} instead"
        )
    if n < 1:
        raise RuntimeError(f"convolution: weight should have at least three dimensions, but got {list(kernel)}")
    if kernel[0] < groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be at least {groups} at dimension 0, "
            f"but got weight of size {list(kernel)} instead"
        )
    if kernel[0] % groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, "
            f"but got weight of size {list(kernel)} instead"
        )
    channels = kernel[0] if transposed else kernel[1] * groups
    if shape[1] != channels:
        raise RuntimeError(
            f"Given groups={groups}, {'transposed=1, ' if transposed else ''}weight of size {list(kernel)}, expected "
            f"input{list(shape)} to have {channels} channels, but got {shape[1]} channels instead"
        )
    out_channels = kernel[1] * groups if transposed else kernel[0]
    if bias is not None and bias.shape != (out_channels,):
        raise RuntimeError(
            f"Given {'transposed=1, ' if transposed else ''}weight of size {list(kernel)}, expected bias to be "
            f"1-dimensional with {out_channels} elements, but got bias of size {list(bias.shape)} instead"
        )
    for name, other in (("weight", weight), ("bias", bias)):
        if other is not None and other.dtype != input.dtype:
            raise RuntimeError(f"Input type ({input.dtype}) and {name} type ({other.dtype}) should be the same")
    if transposed:
        if any(o >= max(s, d) for o, s, d in zip(output_padding, stride, dilation)):
            raise RuntimeError(
                f"output padding must be smaller than either stride or dilation, but got output_padding: "
                f"{list(output_padding)}, stride: {list(stride)}, dilation: {list(dilation)}"
            )
        sizes = _transposed_sizes(shape, kernel, stride, padding, dilation, output_padding)
        if any(size <= 0 for size in sizes):
            raise RuntimeError(
                f"Given input size per channel: {list(shape[2:])}. Calculated output size per channel: {list(sizes)}. "
                "Output size is too small"
            )
        return
    padded = [s + 2 * p for s, p in zip(shape[2:], padding)]
    needed = [d * (k - 1) + 1 for d, k in zip(dilation, kernel[2:])]
    if any(k > s for k, s in zip(needed, padded)):
        raise RuntimeError(
            f"Calculated padded input size per channel: {padded}. Kernel size: {needed}. "
            "Kernel size can't be greater than actual input size"
        )


def _transposed_sizes(shape, kernel, stride, padding, dilation, output_padding):
    return tuple(
        (i - 1) * s - 2 * p + d * (k - 1) + o + 1
        for i, k, s, p, d, o in zip(shape[2:], kernel[2:], stride, padding, dilation, output_padding)
    )


def _swap_channels(weight: jax.Array, groups: int) -> jax.Array:
    """A weight ``(g * a, b, *k)`` as ``(g * b, a, *k)``, flipped in space: the kernel of the transposed map."""
    a, b, *k = weight.shape
    split = weight.reshape(groups, a // groups, b, *k).swapaxes(1, 2).reshape(groups * b, a // groups, *k)
    return jnp.flip(split, range(2, weight.ndim)) if math.prod(k) != 1 else split


def _correlate(x, weight, stride, pads, dilation, groups):
    return lax.conv_general_dilated(x, weight, stride, pads, rhs_dilation=dilation, feature_group_count=groups)


def _spread(x, weight, sizes, stride, padding, dilation, groups):
    """The transpose of `_correlate` in its input: ``x`` spread through ``weight`` onto a grid of ``sizes``."""
    pads = []
    for i, size, k, s, p, d in zip(x.shape[2:], sizes, weight.shape[2:], stride, padding, dilation):
        low = d * (k - 1) - p
        pads.append((low, size + d * (k - 1) - (i - 1) * s - 1 - low))
    return lax.conv_general_dilated(
        x,
        _swap_channels(weight, groups),
        (1,) * len(sizes),
        pads,
        lhs_dilation=stride,
        rhs_dilation=dilation,
        feature_group_count=groups,
    )


def _weight_gradient(grad, x, kernel, stride, pads, dilation, groups):
    """The transpose of `_correlate` in its weight, of shape ``kernel``."""
    struct = jax.ShapeDtypeStruct(kernel, x.dtype)

    def whole(grad, x):
        return jax.linear_transpose(lambda w: _correlate(x, w, stride, pads, dilation, groups), struct)(grad)[0]

    # XLA's CPU backend runs the general grouped form in a scalar loop, a hundred times slower than a dot at each tap.
    depthwise = groups == x.shape[1] == kernel[0]
    if groups == 1 or depthwise or math.prod(kernel[2:]) > _MAX_UNROLLED_TAPS:
        return whole(grad, x)
    taps = functools.partial(_weight_gradient_by_tap, kernel=kernel, stride=stride, pads=pads, dilation=dilation)
    return lax.platform_dependent(grad, x, cpu=functools.partial(taps, groups=groups), default=whole)


def _weight_gradient_by_tap(grad, x, kernel, stride, pads, dilation, groups):
    batch, channels = x.shape[:2]
    sizes = grad.shape[2:]
    dtype = opmath(x.dtype)
    padded = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *((low, high, 0) for low, high in pads)])
    grad = cast(grad, dtype).reshape(batch, groups, kernel[0] // groups, -1)
    taps = []
    for position in itertools.product(*map(range, kernel[2:])):
        start = [i * d for i, d in zip(position, dilation)]
        limit = [b + (size - 1) * s + 1 for b, size, s in zip(start, sizes, stride)]
        part = lax.slice(padded, [0, 0, *start], [batch, channels, *limit], [1, 1, *stride])
        part = cast(part, dtype).reshape(batch, groups, channels // groups, -1)
        taps.append(jnp.einsum("bgok,bgik->goi", grad, part).reshape(kernel[:2]))
    return cast(jnp.stack(taps, -1).reshape(kernel), x.dtype)


@register("convolution", "convolution_overrideable")
def convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """Cross-correlate ``input (N, C, *spatial)`` with ``weight (O, C / groups, *kernel)``, or transpose that map.

    ``transposed=True`` takes ``weight (C, O / groups, *kernel)`` and enlarges the result by ``output_padding``. Result:
    ``(N, O, *out)`` in the dtype of ``input``; integers and complex numbers too.

    Raises:
        RuntimeError: the shapes do not fit, dtypes differ, or the kernel exceeds the padded input.
    """
    n = weight.ndim - 2
    stride, padding, dilation = (
        _expand(stride, n, "stride"),
        _expand(padding, n, "padding"),
        _expand(dilation, n, "dilation"),
    )
    output_padding = _expand(output_padding, n, "output_padding")
    _check(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    if transposed:
        sizes = _transposed_sizes(input.shape, weight.shape, stride, padding, dilation, output_padding)
        out = _spread(input, weight, sizes, stride, padding, dilation, groups)
    else:
        out = _correlate(input, weight, stride, [(p, p) for p in padding], dilation, groups)
    if bias is None:
        return out
    dtype = opmath(out.dtype)
    return cast(cast(out, dtype) + cast(bias, dtype).reshape(-1, *(1,) * n), out.dtype)


@register("_convolution", "_convolution.deprecated")
def _convolution(
    input, weight, bias, stride, padding, dilation, transposed, output_padding, groups,
    benchmark, deterministic, cudnn_enabled, allow_tf32=False,
):  # fmt: skip
    return convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@register("convolution_backward")
def convolution_backward(
    grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    """The gradients of `convolution` to input, weight and bias; ``None`` where ``output_mask`` is false."""
    n = weight.ndim - 2
    stride, padding, dilation = (
        _expand(stride, n, "stride"),
        _expand(padding, n, "padding"),
        _expand(dilation, n, "dilation"),
    )
    grad_input = grad_weight = grad_bias = None
    input, weight = jnp.conj(input), jnp.conj(weight)  # the adjoint of a complex map
    # The transposed map swaps the roles of input and gradient.
    small, large = (input, grad_output) if transposed else (grad_output, input)
    pads = [
        (p, (o - 1) * s + d * (k - 1) + 1 - i - p)
        for o, i, k, s, p, d in zip(small.shape[2:], large.shape[2:], weight.shape[2:], stride, padding, dilation)
    ]
    if output_mask[0] and transposed:
        grad_input = _correlate(grad_output, weight, stride, pads, dilation, groups)
    elif output_mask[0]:
        grad_input = _spread(grad_output, weight, input.shape[2:], stride, padding, dilation, groups)
    if output_mask[1]:
        grad_weight = _weight_gradient(small, large, weight.shape, stride, pads, dilation, groups)
    if output_mask[2]:
        axes = (0, *range(2, grad_output.ndim))
        grad_bias = cast(cast(grad_output, opmath(grad_output.dtype)).sum(axes), grad_output.dtype)
    return grad_input, grad_weight, grad_bias


@register("convolution_backward_overrideable")
def convolution_backward_overrideable(
    grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    """`convolution_backward` as PyTorch calls it on devices that bring their own convolution."""
    return convolution_backward(
        grad_output, input, weight, None, stride, padding, dilation, transposed, output_padding, groups, output_mask
    )


@register("conv_tbc")
def conv_tbc(self, weight, bias, pad=0):
    """A convolution over time: ``self (T, B, C)``, ``weight (K, C, O)`` and ``bias (O,)`` give ``(T', B, O)``."""
    if self.ndim != 3 or weight.ndim != 3 or bias.ndim != 1:
        raise RuntimeError(
            "conv_tbc: expected input and weight of three dimensions and bias of one, but got "
            f"{list(self.shape)}, {list(weight.shape)} and {list(bias.shape)}"
        )
    out = convolution(self.transpose(1, 2, 0), weight.transpose(2, 1, 0), bias, [1], [pad], [1], False, [0], 1)
    return out.transpose(2, 0, 1)


# ---------------------------------------------------------------------------------------------------------------------
# The convolutions of torch.nn.functional, which PyTorch takes apart into `convolution`
# ---------------------------------------------------------------------------------------------------------------------


def _batched(op: str, n: int, input, run):
    """``run`` on ``input (N, C, *spatial)``, or on one element without its batch dim."""
    if input.ndim not in (n + 1, n + 2):
        raise RuntimeError(
            f"Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to {op}, but got input of size: "
            f"{list(input.shape)}"
        )
    return run(input) if input.ndim == n + 2 else run(input[None])[0]


def _plain(op: str, overload: str, n: int, default: int | str):
    def conv(input, weight, bias=None, stride=1, padding=default, dilation=1, groups=1):
        strides, dilations = _expand(stride, n, "stride"), _expand(dilation, n, "dilation")
        pads = padding
        if padding == "valid":
            pads = 0
        elif padding == "same":
            if any(s != 1 for s in strides):
                raise RuntimeError("padding='same' is not supported for strided convolutions")
            spans = [d * (k - 1) for d, k in zip(dilations, weight.shape[2:])]
            pads = [span // 2 for span in spans]
        elif isinstance(padding, str):
            raise RuntimeError(f"Invalid padding string: '{padding}'")

        def run(x):
            if padding == "same":  # an odd span has one element more at the end
                x = jnp.pad(x, [(0, 0), (0, 0), *((0, span % 2) for span in spans)])
            return convolution(x, weight, bias, strides, pads, dilations, False, (0,) * n, groups)

        return _batched(op, n, input, run)

    conv.__name__ = conv.__qualname__ = op
    conv.__doc__ = (
        f"`convolution` in {n} dimensions; ``padding`` may be ``'same'`` or ``'valid'``, ``input`` may lack a batch."
    )
    return register(op + overload)(conv)


def _transposed(op: str, overload: str, n: int):
    def conv(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
        def run(x):
            return convolution(x, weight, bias, stride, padding, dilation, True, output_padding, groups)

        return _batched(op, n, input, run)

    conv.__name__ = conv.__qualname__ = op
    conv.__doc__ = f"The transposed `convolution` in {n} dimensions; ``input`` may lack a batch."
    return register(op + overload)(conv)


conv1d = _plain("conv1d", "", 1, 0)
conv2d = _plain("conv2d", "", 2, 0)
conv3d = _plain("conv3d", "", 3, 0)
conv1d_padding = _plain("conv1d", ".padding", 1, "valid")
conv2d_padding = _plain("conv2d", ".padding", 2, "valid")
conv3d_padding = _plain("conv3d", ".padding", 3, "valid")
conv_transpose1d = _transposed("conv_transpose1d", "", 1)
conv_transpose2d = _transposed("conv_transpose2d", ".input", 2)
conv_transpose3d = _transposed("conv_transpose3d", ".input", 3)

__all__ = exported(__name__)

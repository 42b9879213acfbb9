"""Padding, and moving between channels, windows and space: pad, pixel and channel shuffle, ``im2col``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchax_ops._adjoint import adjoint
from torchax_ops._promotion import cast, category, is_complex
from torchax_ops._registry import exported, register

Scalar = bool | int | float | complex | jax.Array


@register("constant_pad_nd")
def constant_pad_nd(self: jax.Array, pad: Sequence[int], value: Scalar = 0) -> jax.Array:
    """``self`` with ``value`` around it: ``pad`` is (before, after) from the last dimension on; negative ones crop.

    Raises:
        RuntimeError: ``pad`` is odd, longer than twice the dimensions, or crops more than there is.
    """
    if len(pad) % 2:
        raise RuntimeError(f"Length of pad must be even but instead it equals {len(pad)}")
    if len(pad) > 2 * self.ndim:
        raise RuntimeError(
            "Length of pad should be no more than twice the number of dimensions of the input. "
            f"Pad length is {len(pad)} while the input has {self.ndim} dimensions."
        )
    if is_complex(value) and category(self.dtype) != 3:
        raise RuntimeError(f"constant_pad_nd: value cannot be converted to type {self.dtype} without overflow")
    amounts = [(0, 0)] * (self.ndim - len(pad) // 2) + list(zip(pad[::2], pad[1::2]))[::-1]
    for size, (low, high) in zip(self.shape, amounts):
        if size + low + high < 0 or min(size + low, size + high) < 0:
            raise RuntimeError(
                f"The input size {size}, plus negative padding {low} and {high}, resulted in a negative output size"
            )
    return lax.pad(self, cast(value, self.dtype), [(low, high, 0) for low, high in amounts])


# Padding with what is there


def _require_padded(op: str, self: jax.Array, padding: Sequence[int], dims: int, reflect: bool) -> list[tuple]:
    """(before, after) for each dimension; RuntimeError where PyTorch raises one."""
    if len(padding) != 2 * dims:
        raise RuntimeError(f"{op}: padding size is expected to be {2 * dims}, but got: {len(padding)}")
    spatial = self.shape[-dims:]
    batched = self.ndim == dims + 2
    if self.ndim not in (dims + 1, dims + 2) or 0 in self.shape[batched:]:
        raise RuntimeError(
            f"{op}: Expected {dims + 1}D or {dims + 2}D (batch mode) tensor with possibly 0 batch size and other "
            f"non-zero dimensions for input, but got: {list(self.shape)}"
        )
    amounts = list(zip(padding[::2], padding[1::2]))[::-1]
    for i, (size, (low, high)) in enumerate(zip(spatial, amounts)):
        if reflect and max(low, high) >= size:
            raise RuntimeError(
                f"{op}: Padding size should be less than the corresponding input dimension, but got: padding "
                f"({low}, {high}) at dimension {self.ndim - dims + i} of input {list(self.shape)}"
            )
        if size + low + high < 1:
            raise RuntimeError(f"{op}: input of size {size} is too small. Calculated output size: {size + low + high}")
    return [(0, 0)] * (self.ndim - dims) + amounts


def _pad_with(self: jax.Array, amounts: list[tuple[int, int]], mode: str) -> jax.Array:
    """Pad by the positive amounts, then crop by the negative ones."""
    if self.size == 0:
        shape = [n + low + high for n, (low, high) in zip(self.shape, amounts)]
        return jnp.zeros(shape, self.dtype)
    x = jnp.pad(self, [(max(low, 0), max(high, 0)) for low, high in amounts], mode=mode)
    crop = [slice(max(-low, 0), n - max(-high, 0)) for n, (low, high) in zip(x.shape, amounts)]
    return x[tuple(crop)]


def _padding(kind: str, dims: int) -> tuple[Callable[..., jax.Array], Callable[..., jax.Array]]:
    op, mode = f"{kind}_pad{dims}d", {"reflection": "reflect", "replication": "edge"}[kind]

    def forward(self: jax.Array, padding: Sequence[int]) -> jax.Array:
        return _pad_with(self, _require_padded(op, self, padding, dims, mode == "reflect"), mode)

    def backward(grad_output: jax.Array, self: jax.Array, padding: Sequence[int]) -> jax.Array:
        return adjoint(lambda x: forward(x, padding), self.shape, grad_output)

    forward.__name__ = forward.__qualname__ = op
    forward.__doc__ = f"The last {dims} dimensions padded ({kind}); RuntimeError for a padding that does not fit."
    backward.__name__ = backward.__qualname__ = f"{op}_backward"
    backward.__doc__ = f"The gradient of `{op}`, in the shape of ``self``."
    return register(op)(forward), register(f"{op}_backward")(backward)


reflection_pad1d, reflection_pad1d_backward = _padding("reflection", 1)
reflection_pad2d, reflection_pad2d_backward = _padding("reflection", 2)
reflection_pad3d, reflection_pad3d_backward = _padding("reflection", 3)
replication_pad1d, replication_pad1d_backward = _padding("replication", 1)
replication_pad2d, replication_pad2d_backward = _padding("replication", 2)
replication_pad3d, replication_pad3d_backward = _padding("replication", 3)


# Channels and space


def _require_image(op: str, self: jax.Array, factor: int, name: str) -> None:
    if self.ndim < 3:
        raise RuntimeError(
            f"{op} expects input to have at least 3 dimensions, but got input with {self.ndim} dimension(s)"
        )
    if factor <= 0:
        raise RuntimeError(f"{op} expects a positive {name}, but got {factor}")


@register("pixel_shuffle")
def pixel_shuffle(self: jax.Array, upscale_factor: int) -> jax.Array:
    """(…, c r², h, w) to (…, c, h r, w r); RuntimeError where the channels do not divide by r²."""
    _require_image("pixel_shuffle", self, upscale_factor, "upscale_factor")
    r, (*batch, c, h, w) = upscale_factor, self.shape
    if c % (r * r):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, "
            f"but input.size(-3)={c} is not divisible by {r * r}"
        )
    n = len(batch)
    x = self.reshape(*batch, c // (r * r), r, r, h, w)
    x = x.transpose(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return x.reshape(*batch, c // (r * r), h * r, w * r)


@register("pixel_unshuffle")
def pixel_unshuffle(self: jax.Array, downscale_factor: int) -> jax.Array:
    """(…, c, h r, w r) to (…, c r², h, w); RuntimeError where height or width do not divide by r."""
    _require_image("pixel_unshuffle", self, downscale_factor, "downscale_factor")
    r, (*batch, c, h, w) = downscale_factor, self.shape
    for name, dim, size in (("height", -2, h), ("width", -1, w)):
        if size % r:
            raise RuntimeError(
                f"pixel_unshuffle expects {name} to be divisible by downscale_factor, but input.size({dim})={size} is "
                f"not divisible by {r}"
            )
    n = len(batch)
    x = self.reshape(*batch, c, h // r, r, w // r, r)
    return x.transpose(*range(n), n, n + 2, n + 4, n + 1, n + 3).reshape(*batch, c * r * r, h // r, w // r)


@register("channel_shuffle")
def channel_shuffle(self: jax.Array, groups: int) -> jax.Array:
    """The channels (dimension 1) of ``groups`` groups interleaved; RuntimeError where they do not divide."""
    if self.ndim <= 2:
        raise RuntimeError(f"channel_shuffle expects input with > 2 dims, but got input with sizes {list(self.shape)}")
    if groups <= 0:
        raise RuntimeError(f"Number of groups to divide channels in must be positive. Value of groups:{groups}")
    n, c, *rest = self.shape
    if c % groups:
        raise RuntimeError(f"Number of channels must be divisible by groups. Got {c} channels and {groups} groups.")
    return self.reshape(n, groups, c // groups, *rest).swapaxes(1, 2).reshape(self.shape)


# Windows as columns


def _require_pairs(**pairs: Sequence[int]) -> None:
    for name, pair in pairs.items():
        if len(pair) != 2:
            raise RuntimeError(f"It is expected {name} equals to 2, but got size {len(pair)}")
        if name != "padding" and min(pair) <= 0:
            raise RuntimeError(f"{name} should be greater than zero, but got {name}: {list(pair)}")
        if min(pair) < 0:
            raise RuntimeError(f"{name} should be non-negative, but got {name}: {list(pair)}")


def _blocks(
    size: Sequence[int], kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> list[int]:
    """How many windows fit along each dimension."""
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in zip(size, kernel, dilation, padding, stride)]


@register("im2col")
def im2col(
    self: jax.Array,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> jax.Array:
    """The windows of an image as columns: (N, C, H, W) to (N, C kh kw, windows), with or without N.

    Raises:
        RuntimeError: a size is not a pair or not positive, or no window fits.
        NotImplementedError: the dtype is an integer.
    """
    _require_pairs(kernel_size=kernel_size, dilation=dilation, padding=padding, stride=stride)
    if self.ndim not in (3, 4) or 0 in self.shape[-3:]:
        raise RuntimeError(
            "im2col: Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions "
            f"for input, but got: {list(self.shape)}"
        )
    blocks = _blocks(self.shape[-2:], kernel_size, dilation, padding, stride)
    if min(blocks) < 1:
        raise RuntimeError(
            f"im2col: Given input with spatial size {self.shape[-2:]}, kernel_size={tuple(kernel_size)}, "
            f"dilation={tuple(dilation)}, padding={tuple(padding)}, calculated shape of the array of sliding blocks as "
            f"{tuple(blocks)}, but its components must be at least one."
        )
    if category(self.dtype) == 1:
        raise NotImplementedError(f"im2col is not implemented for {self.dtype}")
    x = lax.pad(self, jnp.zeros((), self.dtype), [(0, 0, 0)] * (self.ndim - 2) + [(p, p, 0) for p in padding])
    for axis, k, d, s, n in zip((-2, -1), kernel_size, dilation, stride, blocks):
        at = d * jnp.arange(k, dtype=np.int32)[:, None] + s * jnp.arange(n, dtype=np.int32)
        # Width comes second, so that height's two new dimensions are in front of it.
        x = jnp.take(x, at, axis=x.ndim + axis)
    lead = self.ndim - 2
    x = x.transpose(*range(lead), lead, lead + 2, lead + 1, lead + 3)
    return x.reshape(*self.shape[:-3], self.shape[-3] * math.prod(kernel_size), math.prod(blocks))


@register("col2im")
def col2im(
    self: jax.Array,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> jax.Array:
    """Columns summed into an image, the adjoint of `im2col`: (N, C kh kw, windows) to (N, C, H, W).

    Raises:
        RuntimeError: a size is not a pair or not positive, or the columns do not fit ``output_size``.
    """
    _require_pairs(output_size=output_size, kernel_size=kernel_size, dilation=dilation, padding=padding, stride=stride)
    if self.ndim not in (2, 3) or 0 in self.shape[-2:]:
        raise RuntimeError(
            "col2im: Expected 2D or 3D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions "
            f"for input, but got: {list(self.shape)}"
        )
    *batch, rows, count = self.shape
    if rows % math.prod(kernel_size):
        raise RuntimeError(
            f"col2im: Expected size of input's dimension {len(batch)} to be divisible by the product of kernel_size, "
            f"but got {rows} and kernel_size={tuple(kernel_size)}."
        )
    blocks = _blocks(output_size, kernel_size, dilation, padding, stride)
    if min(blocks) < 1 or math.prod(blocks) != count:
        raise RuntimeError(
            f"col2im: Given output_size={tuple(output_size)}, kernel_size={tuple(kernel_size)}, "
            f"dilation={tuple(dilation)}, padding={tuple(padding)}, stride={tuple(stride)}, expected size of input's "
            f"last dimension to match the calculated number of sliding blocks {blocks[0]} * {blocks[1]}, "
            f"but got {count}."
        )
    shape = (*batch, rows // math.prod(kernel_size), *output_size)
    if not self.size:
        return jnp.zeros(shape, self.dtype)
    return adjoint(lambda x: im2col(x, kernel_size, dilation, padding, stride), shape, self)


__all__ = exported(__name__)

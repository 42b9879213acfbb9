"""Sampling at the points of a grid: ``grid_sampler_2d``, ``grid_sampler_3d`` and ``affine_grid_generator``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchax_ops._promotion import cast, category, opmath
from torchax_ops._registry import exported, register

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2
_CUBIC = -0.75


def _pixels(x: jax.Array, size: int, align_corners: bool) -> jax.Array:
    """Coordinates in [-1, 1] as positions among pixels."""
    return (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2


def _inside(x: jax.Array, size: int, padding_mode: int, align_corners: bool) -> jax.Array:
    """Positions brought into the image, as far as the padding mode does that."""
    if padding_mode == _ZEROS:
        return x
    if padding_mode == _REFLECTION:
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        span = high - low
        if span <= 0:
            return jnp.zeros_like(x)
        away = jnp.where(x < low, low - x, x - low)
        flips = jnp.floor(away / span)
        rest = away - flips * span
        x = jnp.where(jnp.mod(flips, 2) == 0, rest + low, high - rest)
    x = jnp.where(jnp.isfinite(x) | ~jnp.isnan(x), x, jnp.zeros_like(x))
    return lax.clamp(jnp.zeros((), x.dtype), x, jnp.asarray(size - 1, x.dtype))


def _at(image: jax.Array, places: Sequence[jax.Array]) -> jax.Array:
    """Values of ``image`` (C, *sizes) at integral float positions (*points) along each size; 0 outside it."""
    flat = jnp.zeros(places[0].shape, np.int32)
    valid = jnp.ones(places[0].shape, np.bool_)
    for place, size in zip(places, image.shape[1:]):
        valid &= (place >= 0) & (place < size)
        flat = flat * size + jnp.clip(jnp.nan_to_num(place), 0, size - 1).astype(np.int32)
    values = image.reshape(image.shape[0], -1)[:, flat]
    return jnp.where(valid, values, jnp.zeros_like(values))


def _sample_linear(image: jax.Array, points: Sequence[jax.Array]) -> jax.Array:
    low = [jnp.floor(p) for p in points]
    out = jnp.zeros((), image.dtype)
    for corner in itertools.product((0, 1), repeat=len(points)):
        weight = math.prod(
            ((p - f) if side else (f + 1 - p) for p, f, side in zip(points, low, corner)), start=jnp.ones_like(low[0])
        )
        out = out + _at(image, [f + side for f, side in zip(low, corner)]) * weight
    return out


def _cubic_weights(t: jax.Array) -> list[jax.Array]:
    """The weights of the four pixels around a position ``t`` past the second (Keys' kernel)."""
    near = lambda x: ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1  # noqa: E731
    far = lambda x: ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC  # noqa: E731
    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _sample_cubic(image: jax.Array, points: Sequence[jax.Array], padding_mode: int, align_corners: bool) -> jax.Array:
    low = [jnp.floor(p) for p in points]
    weights = [_cubic_weights(p - f) for p, f in zip(points, low)]
    out = jnp.zeros((), image.dtype)
    for taps in itertools.product(range(4), repeat=len(points)):
        # A tap is brought inside by itself: it is a pixel, through which no gradient flows.
        places = [
            jnp.round(_inside(f + (i - 1), n, padding_mode, align_corners))
            for f, i, n in zip(low, taps, image.shape[1:])
        ]
        weight = math.prod((w[i] for w, i in zip(weights, taps)), start=jnp.ones_like(low[0]))
        out = out + _at(image, places) * weight
    return out


def _sample(input: jax.Array, grid: jax.Array, mode: int, padding_mode: int, align_corners: bool) -> jax.Array:
    compute = opmath(input.dtype)
    sizes = input.shape[2:]

    def one(image: jax.Array, at: jax.Array) -> jax.Array:
        # The grid's last dimension runs from width to depth, the image's sizes from depth to width.
        points = [_pixels(at[..., -1 - i], n, align_corners) for i, n in enumerate(sizes)]
        if mode == _BICUBIC:
            return _sample_cubic(image, points, padding_mode, align_corners)
        points = [_inside(p, n, padding_mode, align_corners) for p, n in zip(points, sizes)]
        return _at(image, [jnp.round(p) for p in points]) if mode == _NEAREST else _sample_linear(image, points)

    return cast(jax.vmap(one)(cast(input, compute), cast(grid, compute)), input.dtype)


def _require(input: jax.Array, grid: jax.Array, dims: int, mode: int) -> None:
    if grid.shape[-1] != input.ndim - 2:
        raise RuntimeError(
            f"grid_sampler(): expected grid to have size {input.ndim - 2} in last dimension, but got grid with sizes "
            f"{list(grid.shape)}"
        )
    if input.ndim != dims + 2 or grid.ndim != dims + 2:
        raise RuntimeError(
            f"grid_sampler(): expected {dims + 2}D input and grid with same number of dimensions, but got input with "
            f"sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if input.shape[0] != grid.shape[0]:
        raise RuntimeError(
            f"grid_sampler(): expected grid and input to have same batch size, but got input with sizes "
            f"{list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if 0 in input.shape[2:]:
        raise RuntimeError(
            f"grid_sampler(): expected input to have non-empty spatial dimensions, but input has sizes "
            f"{list(input.shape)}"
        )
    if mode == _BICUBIC and dims != 2:
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")
    if category(input.dtype) != 2:
        raise NotImplementedError(f"grid_sampler_{dims}d is not implemented for {input.dtype}")
    if input.dtype != grid.dtype:
        raise RuntimeError(f"grid_sampler(): expected scalar type {input.dtype} but found {grid.dtype}")


@register("grid_sampler_2d")
def grid_sampler_2d(
    input: jax.Array, grid: jax.Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> jax.Array:
    """``input`` (N, C, H, W) at the points (x, y) of ``grid`` (N, h, w, 2), which lie in [-1, 1]: (N, C, h, w).

    Args:
        interpolation_mode: 0 bilinear, 1 nearest, 2 bicubic.
        padding_mode: outside of the image 0 is zero, 1 its border, 2 its reflection.
        align_corners: whether -1 and 1 are the centers, and not the outer edges, of the corner pixels.

    Raises:
        RuntimeError: shapes or dtypes do not match.
    """
    _require(input, grid, 2, interpolation_mode)
    return _sample(input, grid, interpolation_mode, padding_mode, align_corners)


@register("grid_sampler_3d")
def grid_sampler_3d(
    input: jax.Array, grid: jax.Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> jax.Array:
    """`grid_sampler_2d` for volumes (N, C, D, H, W) at points (x, y, z); it has no bicubic mode."""
    _require(input, grid, 3, interpolation_mode)
    return _sample(input, grid, interpolation_mode, padding_mode, align_corners)


@register("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_2d_backward(
    grad_output: jax.Array,
    input: jax.Array,
    grid: jax.Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[jax.Array | None, jax.Array | None]:
    """The gradients of input and grid, ``None`` for those not in ``output_mask``."""
    compute = opmath(input.dtype)
    sample = lambda x, g: _sample(x, g, interpolation_mode, padding_mode, align_corners)  # noqa: E731
    _, vjp = jax.vjp(sample, cast(input, compute), cast(grid, compute))
    grads = vjp(cast(grad_output, compute))
    wanted_input, wanted_grid = output_mask
    return (
        cast(grads[0], input.dtype) if wanted_input else None,
        cast(grads[1], grid.dtype) if wanted_grid else None,
    )


def _centers(size: int, align_corners: bool, dtype: np.dtype) -> np.ndarray:
    """Where pixels lie in [-1, 1]."""
    if size <= 1:
        return np.zeros((size,), dtype)
    return (np.linspace(-1, 1, size) * (1 if align_corners else (size - 1) / size)).astype(dtype)


@register("affine_grid_generator")
def affine_grid_generator(theta: jax.Array, size: Sequence[int], align_corners: bool) -> jax.Array:
    """The grid that samples an image of ``size`` under affine maps: (N, 2, 3) to (N, H, W, 2), or (N, 3, 4) in 3-d.

    Raises:
        RuntimeError: ``size`` has neither 4 nor 5 entries, or ``theta`` has another shape.
    """
    if len(size) not in (4, 5):
        raise RuntimeError("AffineGridGenerator needs 4d (spatial) or 5d (volumetric) inputs.")
    dims = len(size) - 2
    if theta.shape != (size[0], dims, dims + 1):
        raise RuntimeError(
            f"affine_grid_generator: expected theta of shape {[size[0], dims, dims + 1]}, but got {list(theta.shape)}"
        )
    compute = opmath(theta.dtype)
    maps = cast(theta, compute).reshape(size[0], *(1,) * dims, dims, dims + 1)
    out = maps[..., dims]
    for i, n in enumerate(size[2:]):
        along = _centers(n, align_corners, compute).reshape((-1,) + (1,) * (dims - i))
        out = out + along * maps[..., dims - 1 - i]
    return cast(out, theta.dtype)


__all__ = exported(__name__)

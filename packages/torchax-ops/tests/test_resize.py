"""Resizing, sampling grids, padding, and moving between channels, windows and space."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops._registry import lookup
from torchax_ops.nn import grid as G
from torchax_ops.nn import padding as P
from torchax_ops.nn import resize as R

X = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)


def fn(name):
    """The operator as one compiled program, whatever comes after its first argument."""
    op = lookup(f"aten::{name}").fn
    return lambda x, *args: jax.jit(lambda x: op(x, *args))(x)


def nearest(size, out, offset):
    return np.minimum(np.floor((np.arange(out) + offset) * size / out), size - 1).astype(int)


@pytest.mark.parametrize(("name", "offset"), [("upsample_nearest", 0), ("_upsample_nearest_exact", 0.5)])
@pytest.mark.parametrize(("h", "w"), [(8, 4), (3, 7), (2, 1)])
def test_nearest(name, offset, h, w):
    got = jax.jit(lambda x: fn(f"{name}2d")(x, [h, w]))(X)
    np.testing.assert_array_equal(got[0, 0], X[0, 0][nearest(4, h, offset)][:, nearest(4, w, offset)])
    byte = fn(f"{name}1d")(jnp.asarray(X[0].astype(np.uint8)), [w])
    np.testing.assert_array_equal(byte[0], X[0, 0][:, nearest(4, w, offset)])


def test_a_scale_decides_where_outputs_lie():
    x = jnp.arange(4.0)[None, None]
    np.testing.assert_array_equal(R.upsample_nearest1d(x, [6])[0, 0], [0, 0, 1, 2, 2, 3])
    np.testing.assert_array_equal(R.upsample_nearest1d(x, [6], 1.6)[0, 0], [0, 0, 1, 1, 2, 3])


@pytest.mark.parametrize("align", [False, True])
def test_linear(align):
    x = np.float32([3, 1, 4])
    at = np.linspace(0, 2, 7) if align else (np.arange(7) + 0.5) * 3 / 7 - 0.5
    got = R.upsample_linear1d(jnp.asarray(x)[None, None], [7], align)
    np.testing.assert_allclose(got[0, 0], np.interp(at, range(3), x), rtol=1e-5)
    plane = np.add.outer(x, 2 * x)
    want = np.add.outer(np.interp(at, range(3), x), 2 * np.interp(at, range(3), x))
    got = R.upsample_bilinear2d(jnp.asarray(plane)[None, None], [7, 7], align)
    np.testing.assert_allclose(got[0, 0], want, rtol=1e-5)
    assert R.upsample_trilinear3d(jnp.ones((1, 2, 2, 2, 2), jnp.bfloat16), [3, 4, 5], align).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "name", ["upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"]
)
@pytest.mark.parametrize("size", [[9, 3], [2, 2], [4, 4]])
def test_kernels_keep_constants_and_symmetry(name, size):
    np.testing.assert_allclose(fn(name)(jnp.ones((1, 1, 4, 4)), size, False), np.ones((1, 1, *size)), rtol=1e-6)
    got = np.asarray(fn(name)(jnp.asarray(X), size, False))
    np.testing.assert_allclose(got[..., ::-1, ::-1], 15 - got, atol=1e-5)
    byte = np.asarray(fn(name)(jnp.asarray(X.astype(np.uint8) * 15), size, False), np.float32)
    np.testing.assert_allclose(byte, np.clip(got * 15, 0, 255), atol=1.1)


# Of PyTorch 2.13 on CPU.
@pytest.mark.parametrize(
    ("name", "x", "out", "expected"),
    [
        (
            "upsample_bicubic2d",
            [0, 0, 1, 0, 0],
            10,
            [0, -0.03515625, -0.10546875, 0.26171875, 0.87890625, 0.87890625, 0.26171875, -0.10546875, -0.03515625, 0],
        ),
        ("_upsample_bilinear2d_aa", np.arange(8) ** 2, 3, [2.0526316, 13.4523811, 35.5789490]),
        ("_upsample_bicubic2d_aa", np.arange(8) ** 2, 3, [1.0357937, 12.7185593, 37.4852753]),
        ("_upsample_lanczos2d_aa", np.arange(8) ** 2, 3, [0.6574599, 12.25, 38.3014641]),
    ],
)
def test_kernel_values(name, x, out, expected):
    got = fn(name)(jnp.float32(x)[None, None, None], [1, out], False)
    np.testing.assert_allclose(got[0, 0, 0], expected, rtol=1e-5, atol=1e-6)


def test_bicubic_of_bytes_rounds_as_fixed_point():
    got = R.upsample_bicubic2d(jnp.uint8(np.arange(8) * 30)[None, None, None], [1, 5], False)
    np.testing.assert_array_equal(got[0, 0, 0], [7, 56, 105, 154, 203])


@pytest.mark.parametrize(
    ("name", "size", "args"),
    [
        ("upsample_nearest2d", [8, 4], ()),
        ("_upsample_nearest_exact2d", [3, 7], ()),
        ("upsample_bilinear2d", [3, 7], (True,)),
        ("upsample_bicubic2d", [3, 7], (False, 1.5, None)),
        ("_upsample_bilinear2d_aa", [2, 3], (False,)),
    ],
)
def test_resize_backward_is_the_gradient(name, size, args):
    grad = jnp.cos(jnp.arange(size[0] * size[1], dtype=np.float32)).reshape(1, 1, *size)
    (want,) = jax.vjp(lambda x: fn(name)(x, size, *args), jnp.asarray(X))[1](grad)
    got = fn(f"{name}_backward")(grad, size, X.shape, *args)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "padding", "align", "expected"),
    [
        (0, 0, False, [0, 1.6, 2]),
        (0, 1, True, [3.9, 2.4, 8]),
        (0, 2, False, [4.45, 1.6, 8]),
        (1, 0, False, [0, 1, 8]),
        (1, 2, True, [3, 1, 8]),
        (2, 0, False, [-0.3121873, 1.8103034, 2.1875]),
        (2, 1, False, [4.6377206, 1.6149976, 8.375]),
        (2, 2, True, [4.5174975, 1.9199984, 8]),
    ],
)
def test_grid_sampler_2d(mode, padding, align, expected):
    image = jnp.arange(9.0).reshape(1, 1, 3, 3)
    grid = jnp.float32([[[[-1.4, 0.3], [0.2, -0.6], [1, 1]]]])
    got = jax.jit(G.grid_sampler_2d, static_argnums=(2, 3, 4))(image, grid, mode, padding, align)
    np.testing.assert_allclose(got[0, 0, 0], expected, rtol=1e-5, atol=1e-5)


def test_grid_sampler_of_an_identity_grid():
    for sample, size, align in ((G.grid_sampler_2d, [1, 1, 4, 5], True), (G.grid_sampler_3d, [1, 2, 3, 4, 5], False)):
        dims = len(size) - 2
        image, theta = (
            np.arange(np.prod(size), dtype=np.float32).reshape(size),
            np.eye(dims, dims + 1, dtype=np.float32),
        )
        grid = G.affine_grid_generator(jnp.asarray(theta)[None], size, align)
        assert grid.shape == (1, *size[2:], dims)
        got = jax.jit(sample, static_argnums=(2, 3, 4))(image, grid, 0, 0, align)
        np.testing.assert_allclose(got, image, atol=1e-4)


def test_grid_sampler_outside_and_not_a_number():
    sample = jax.jit(lambda at, padding: G.grid_sampler_2d(X, at, 0, padding, False), static_argnums=1)
    bad = np.full((1, 1, 1, 2), np.nan, np.float32)
    assert np.isnan(sample(bad, 0)).all()
    assert sample(bad, 1) == 0
    assert sample(np.full_like(bad, np.inf), 2) == 0


def test_grid_sampler_backward():
    grid, grad = jnp.float32([[[[0.1, 0.3], [2, -3]]]]), jnp.ones((1, 1, 1, 2))
    backward = jax.jit(lambda g: G.grid_sampler_2d_backward(g, jnp.asarray(X), grid, 0, 1, False, [True, True]))
    at_image, at_grid = backward(grad)
    np.testing.assert_allclose(at_image.sum(), 2, rtol=1e-6)
    np.testing.assert_allclose(at_grid[0, 0], [[2, 8], [0, 0]], rtol=1e-5)  # clipped points do not move
    assert G.grid_sampler_2d_backward(grad, jnp.asarray(X), grid, 1, 1, False, [False, True])[0] is None


# Padding


def test_constant_pad_nd():
    x = jnp.int32([[1, 2, 3]])
    np.testing.assert_array_equal(jax.jit(lambda v: P.constant_pad_nd(x, [-1, 1, 0, 1], v))(7.9), [[2, 3, 7], [7] * 3])
    assert P.constant_pad_nd(x, []).shape == (1, 3)


@pytest.mark.parametrize(("kind", "mode"), [("reflection", "reflect"), ("replication", "edge")])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_padding(kind, mode, dims):
    x = np.arange(27, dtype=np.float32).reshape(3, 3, 3)
    x = x[(None,) * (dims - 1)][0] if dims < 3 else x[None]
    amounts = [1, 2, 0, 1, 2, 1][: 2 * dims]
    pairs = [(0, 0)] * (x.ndim - dims) + list(zip(amounts[::2], amounts[1::2]))[::-1]
    pad = fn(f"{kind}_pad{dims}d")
    got = pad(jnp.asarray(x), amounts)
    np.testing.assert_array_equal(got, np.pad(x, pairs, mode=mode))
    (want,) = jax.vjp(lambda x: pad(x, amounts), jnp.asarray(x))[1](got)
    np.testing.assert_allclose(fn(f"{kind}_pad{dims}d_backward")(got, jnp.asarray(x), amounts), want)


def test_negative_padding_crops():
    x = jnp.arange(4.0)[None]
    np.testing.assert_array_equal(P.reflection_pad1d(x, [-1, 1])[0], [1, 2, 3, 2])
    np.testing.assert_array_equal(P.replication_pad1d(x, [2, -3])[0], [0, 0, 0])


# Channels, windows and space


def test_pixel_and_channel_shuffle():
    x = jnp.arange(8.0).reshape(1, 4, 1, 2)
    up = P.pixel_shuffle(x, 2)
    np.testing.assert_array_equal(up[0, 0], [[0, 2, 1, 3], [4, 6, 5, 7]])
    np.testing.assert_array_equal(P.pixel_unshuffle(up, 2), x)
    np.testing.assert_array_equal(P.channel_shuffle(x, 2)[0, :, 0, 0], [0, 4, 2, 6])


@pytest.mark.parametrize(
    ("kernel", "dilation", "padding", "stride"), [([2, 3], [1, 1], [0, 1], [1, 2]), ([2, 2], [2, 1], [1, 0], [2, 1])]
)
def test_im2col_and_its_adjoint(kernel, dilation, padding, stride):
    x = np.arange(40, dtype=np.float32).reshape(1, 2, 4, 5)
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    windows = [
        padded[
            :,
            :,
            i : i + dilation[0] * (kernel[0] - 1) + 1 : dilation[0],
            j : j + dilation[1] * (kernel[1] - 1) + 1 : dilation[1],
        ].reshape(1, -1)
        for i in range(0, padded.shape[2] - dilation[0] * (kernel[0] - 1), stride[0])
        for j in range(0, padded.shape[3] - dilation[1] * (kernel[1] - 1), stride[1])
    ]
    columns = fn("im2col")(x, kernel, dilation, padding, stride)
    np.testing.assert_array_equal(columns, np.stack(windows, -1))
    image = fn("col2im")(columns, [4, 5], kernel, dilation, padding, stride)
    np.testing.assert_allclose((columns * columns).sum(), (jnp.asarray(x) * image).sum(), rtol=1e-6)
    assert P.im2col(jnp.asarray(x[0]), kernel, dilation, padding, stride).shape == columns.shape[1:]


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (RuntimeError, lambda: R.upsample_nearest1d(X, [2])),
        (RuntimeError, lambda: R.upsample_nearest2d(X, [0, 2])),
        (RuntimeError, lambda: R.upsample_nearest2d(X, [2])),
        (NotImplementedError, lambda: R.upsample_bilinear2d(X.astype(np.int32), [2, 2], False)),
        (RuntimeError, lambda: R.upsample_nearest2d_backward(X, [2, 2], X.shape)),
        (RuntimeError, lambda: G.grid_sampler_2d(X, np.zeros((1, 2, 2, 3), np.float32), 0, 0, False)),
        (RuntimeError, lambda: G.grid_sampler_2d(X, np.zeros((2, 2, 2, 2), np.float32), 0, 0, False)),
        (RuntimeError, lambda: G.affine_grid_generator(np.eye(3)[None], [1, 1, 2, 2], False)),
        (RuntimeError, lambda: P.constant_pad_nd(X, [1])),
        (RuntimeError, lambda: P.constant_pad_nd(X, [-3, -3])),
        (RuntimeError, lambda: P.reflection_pad1d(X[0], [4, 0])),
        (RuntimeError, lambda: P.reflection_pad2d(X[0, 0], [1, 1, 1, 1])),
        (RuntimeError, lambda: P.replication_pad1d(X[0], [-2, -2])),
        (RuntimeError, lambda: P.pixel_shuffle(X, 3)),
        (RuntimeError, lambda: P.pixel_unshuffle(X, 3)),
        (RuntimeError, lambda: P.channel_shuffle(X, 2)),
        (RuntimeError, lambda: P.im2col(X, [5, 5], [1, 1], [0, 0], [1, 1])),
        (RuntimeError, lambda: P.im2col(X, [0, 1], [1, 1], [0, 0], [1, 1])),
        (RuntimeError, lambda: P.col2im(X[0], [3, 4], [2, 2], [1, 1], [0, 0], [1, 1])),
    ],
)
def test_errors(error, call):
    with pytest.raises(error):
        call()

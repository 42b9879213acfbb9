"""Views as values, their inverses and backwards; joining, repeating and reordering."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops import _registry, rearrange
from torchax_ops import shape as S

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def same(actual, expected):
    expected = np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("fn", "args", "expected"),
    [
        (S.view, ([4, -1],), X.reshape(4, 6)),
        (S._reshape_alias, ([24], [1]), X.reshape(24)),
        (S.alias, (), X),
        (S.permute, ([2, 0, -2],), X.transpose(2, 0, 1)),
        (S.transpose, (0, -1), X.swapaxes(0, 2)),
        (S.expand, ([5, -1, 3, -1],), np.broadcast_to(X, (5, 2, 3, 4))),
        (S.unsqueeze, (-1,), X[..., None]),
        (S.select, (1, -1), X[:, -1]),
        (S.slice, (2, 1, 100, 2), X[:, :, 1::2]),
        (S.slice, (-1, -3, -1), X[:, :, -3:-1]),
        (S.slice, (0, 5, 2), X[5:2]),
        (S.slice, (), X),
        (S.narrow_copy, (2, -3, 2), X[:, :, 1:3]),
        (S.diagonal, (1, 1, 2), X.diagonal(1, 1, 2)),
        (S.diagonal, (-2, 2, 0), X.diagonal(-2, 2, 0)),
        (S.diagonal, (9, 0, 1), X.diagonal(9, 0, 1)),
        (S.unfold, (2, 3, 1), np.stack([X[..., 0:3], X[..., 1:4]], 2)),
        (S.as_strided, ([2, 2], [1, 3], 5), [[5, 8], [6, 9]]),
    ],
)
def test_views(fn, args, expected):
    expected = np.asarray(expected, np.float32)
    same(fn(jnp.asarray(X), *args), expected)
    with jax.enable_x64(True):
        same(jax.jit(lambda x: fn(x, *args))(X), expected)


def test_squeeze_takes_only_dimensions_of_size_one():
    x = jnp.zeros((1, 2, 1))
    assert S.squeeze(x).shape == (2,)
    assert S.squeeze_dim(x, 0).shape == (2, 1)
    assert S.squeeze_dim(x, [0, 1, -1]).shape == (2,)
    assert S.squeeze_dim(jnp.float32(1), 0).shape == ()


def test_t():
    same(S.t(jnp.asarray(X[0])), X[0].T)
    assert S.t(jnp.zeros(3)).shape == (3,)
    with pytest.raises(RuntimeError, match="t\\(\\) expects"):
        S.t(jnp.asarray(X))


def test_parts():
    x = jnp.asarray(X)
    for got, want in zip(S.split(x, 3, 2), (X[..., :3], X[..., 3:]), strict=True):
        same(got, want)
    for got, want in zip(S.split_with_sizes(x, [0, 1, 2], -2), np.split(X, [0, 1], 1), strict=True):
        same(got, want)
    for got, want in zip(S.unbind(x, 1), X.swapaxes(0, 1), strict=True):
        same(got, want)
    assert [p.shape for p in S.split(jnp.zeros((0, 2)), 3)] == [(0, 2)]


def test_positions_may_be_traced():
    x, compiled = jnp.asarray(X), jax.jit(S.select, static_argnums=1)
    for i in (0, 2, -1):
        same(compiled(x, 1, i), X[:, i])
    assert compiled._cache_size() == 1
    write = jax.jit(lambda start: S.slice_scatter(x, jnp.zeros((2, 3, 2)), 2, start, start + 4, 2))
    want = X.copy()
    want[:, :, -4::2] = 0
    same(write(-4), want)


@pytest.mark.parametrize(
    ("fn", "src", "args", "at"),
    [
        (S.select_scatter, np.ones((2, 4)), (1, -1), np.s_[:, -1]),
        (S.slice_scatter, np.ones((2, 3, 2)), (2, 1, 9, 2), np.s_[:, :, 1::2]),
        (S.slice_scatter, np.ones((2, 3, 0)), (2, 3, 1), np.s_[:, :, 3:1]),
        (S.diagonal_scatter, np.ones((2, 3)), (0, 1, 2), np.s_[:, range(3), range(3)]),
    ],
)
def test_inverses_and_backwards(fn, src, args, at):
    want = X.copy()
    want[at] = src
    same(fn(jnp.asarray(X), jnp.asarray(src, np.float32), *args), want)
    zeros = np.zeros_like(X)
    zeros[at] = src
    name = f"aten::{fn.__name__.removesuffix('_scatter')}_backward"
    backward = _registry.lookup(name).fn
    args = (*args, 1) if len(args) == 3 and fn is S.slice_scatter else args
    same(backward(jnp.asarray(src, np.float32), X.shape, *args), zeros)


def test_as_strided_scatter_and_slice_inverse():
    want = np.arange(6, dtype=np.float32)
    want[[1, 3]] = 9
    same(S.as_strided_scatter(jnp.arange(6.0), jnp.full(2, 9.0), [2], [2], 1), want)
    same(S.slice_inverse(jnp.ones(2), jnp.zeros(5), 0, 1, 5, 2), np.float32([0, 1, 0, 1, 0]))


def test_unfold_backward_is_the_gradient():
    same(S.unfold_backward(jnp.ones((3, 2)), (4,), 0, 2, 1), np.float32([1, 2, 2, 1]))
    half = S.unfold_backward(jnp.ones((3, 2), jnp.bfloat16), (4,), 0, 2, 1)
    assert half.dtype == jnp.bfloat16


@pytest.mark.parametrize(("offset", "dims"), [(0, (-2, -1)), (1, (0, 2)), (-2, (-1, 0))])
def test_diag_embed_undoes_diagonal(offset, dims):
    x = jnp.asarray(X[0])
    out = S.diag_embed(x, offset, *dims)
    assert out.ndim == 3
    same(S.diagonal(out, offset, *dims), X[0])
    assert np.count_nonzero(out) == np.count_nonzero(X[0])


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (np.float32([1, -2.5]), "int32"),
        (np.float32([1, -2.5]), "uint8"),
        (np.uint8([0, 1, 2, 3, 4, 5, 6, 7]), "float32"),
        (np.complex64([1 + 2j]), "float32"),
        (np.float32([1, 2, 3, 4]), "complex64"),
        (np.uint8([0, 1]), "bool"),
        (np.bool_([True, False]), "uint8"),
        (np.int16([[1, 2]]), "int8"),
    ],
)
def test_view_dtype(x, dtype):
    same(S.view_dtype(jnp.asarray(x), np.dtype(dtype)), x.view(dtype))


def test_view_dtype_of_64_bits():
    with jax.enable_x64(True):
        x = np.float32([1, 2, 3, 4])
        same(S.view_dtype(jnp.asarray(x), np.float64), x.view(np.float64))
        same(S.view_dtype(jnp.asarray(x.view(np.float64)), np.int32), x.view(np.int32))


def test_complex_views():
    z = np.complex64([1 + 2j, 3 - 4j])
    same(S.view_as_real(jnp.asarray(z)), np.float32([[1, 2], [3, -4]]))
    same(S.view_as_complex(jnp.float32([[1, 2], [3, -4]])), z)


@pytest.mark.parametrize(
    ("error", "fn", "args"),
    [
        (RuntimeError, S.view, ([5],)),
        (RuntimeError, S.permute, ([0, 1],)),
        (RuntimeError, S.permute, ([0, 1, 1],)),
        (IndexError, S.transpose, (0, 3)),
        (RuntimeError, S.expand, ([2, 5, 4],)),
        (RuntimeError, S.expand, ([3, 4],)),
        (RuntimeError, S.expand, ([-1, 2, 3, 4],)),
        (IndexError, S.unsqueeze, (5,)),
        (IndexError, S.squeeze_dim, (3,)),
        (IndexError, S.select, (1, 3)),
        (IndexError, S.select, (3, 0)),
        (RuntimeError, S.slice, (0, 0, 1, 0)),
        (IndexError, S.slice, (3,)),
        (RuntimeError, S.narrow_copy, (0, 1, 2)),
        (IndexError, S.narrow_copy, (0, 3, 0)),
        (RuntimeError, S.split, (0,)),
        (RuntimeError, S.split, (-1,)),
        (RuntimeError, S.split_with_sizes, ([1, 2],)),
        (IndexError, S.unbind, (3,)),
        (RuntimeError, S.diagonal, (0, 1, 1)),
        (RuntimeError, S.unfold, (0, 3, 1)),
        (RuntimeError, S.unfold, (0, 1, 0)),
        (RuntimeError, S.as_strided, ([25], [1])),
        (RuntimeError, S.as_strided, ([2], [1, 1])),
        (RuntimeError, S.view_as_real, ()),
        (RuntimeError, S.view_as_complex, ()),
        (RuntimeError, S.view_dtype, (np.dtype("float64"),)),
        (RuntimeError, rearrange.rot90, (1, [0, 0])),
        (RuntimeError, rearrange.rot90, (1, [0])),
        (RuntimeError, rearrange.repeat, ([2],)),
        (RuntimeError, rearrange.roll, ([],)),
        (RuntimeError, rearrange.roll, ([1, 2], [0])),
        (RuntimeError, rearrange.flip, ([0, 0],)),
        (IndexError, rearrange.flip, ([3],)),
    ],
)
def test_errors(error, fn, args):
    with pytest.raises(error):
        fn(jnp.asarray(X)[..., :3] if fn is S.view_dtype else jnp.asarray(X), *args)


def test_errors_without_dimensions():
    x = jnp.float32(1)
    for error, fn, args in (
        (IndexError, S.select, (0, 0)),
        (IndexError, S.unbind, ()),
        (RuntimeError, S.slice, ()),
        (RuntimeError, S.split, (1,)),
    ):
        with pytest.raises(error):
            fn(x, *args)


def test_select_refuses_an_index_before_an_eager_call():
    check = _registry.lookup("aten::select.int").check
    with pytest.raises(IndexError, match=r"select\(\): index 2 out of range for tensor of size \[2, 3, 4\]"):
        check(jnp.asarray(X), 0, 2)


# Joining, repeating, reordering


def test_cat_promotes_and_skips_empty_vectors():
    got = rearrange.cat([jnp.zeros((0,)), jnp.ones((1, 2), jnp.int32), jnp.zeros((2, 2), jnp.bfloat16)], -2)
    same(got.astype(np.float32), np.float32([[1, 1], [0, 0], [0, 0]]))
    assert got.dtype == jnp.float32
    assert rearrange.cat([jnp.zeros((0,))]).shape == (0,)


@pytest.mark.parametrize(
    ("error", "xs", "dim"),
    [
        (ValueError, [], 0),
        (RuntimeError, [np.float32(1)], 0),
        (RuntimeError, [X, X[0]], 0),
        (RuntimeError, [X, X[:, :2]], 0),
        (IndexError, [X], 3),
    ],
)
def test_cat_errors(error, xs, dim):
    with pytest.raises(error):
        rearrange.cat([jnp.asarray(x) for x in xs], dim)


def test_stack():
    same(rearrange.stack([jnp.ones(2), jnp.zeros(2, jnp.int32)], -1), np.float32([[1, 0], [1, 0]]))
    for bad in ([], [jnp.ones(2), jnp.ones(3)]):
        with pytest.raises(RuntimeError):
            rearrange.stack(bad)
    with pytest.raises(IndexError):
        rearrange.stack([jnp.ones(2)], 2)


@pytest.mark.parametrize(
    ("fn", "args", "expected"),
    [
        (rearrange.flip, ([0, -1],), X[::-1, :, ::-1]),
        (rearrange.flip, ([],), X),
        (rearrange.roll, ([1, -1], [0, 2]), np.roll(X, (1, -1), (0, 2))),
        (rearrange.roll, ([5],), np.roll(X, 5)),
        (rearrange.rot90, (3, [0, 2]), np.rot90(X, 3, (0, 2))),
        (rearrange.rot90, (-1, [-1, 0]), np.rot90(X, -1, (-1, 0))),
        (rearrange.repeat, ([2, 1, 3, 0],), np.tile(X, (2, 1, 3, 0))),
    ],
)
def test_reorder(fn, args, expected):
    same(fn(jnp.asarray(X), *args), expected)


def test_roll_takes_traced_shifts():
    same(jax.jit(lambda n: rearrange.roll(jnp.asarray(X), [n], [1]))(2), np.roll(X, 2, 1))


def test_block_diag_and_chunk_cat():
    same(rearrange.block_diag([jnp.ones((1, 2)), jnp.float32(3)]), np.float32([[1, 1, 0], [0, 0, 3]]))
    got = rearrange._chunk_cat([jnp.arange(3.0), jnp.ones(2)], 0, 2)
    same(got, np.float32([[0, 1, 1], [2, 0, 1]]))


def test_repeat_interleave():
    repeats = jnp.int32([2, 0, 3])
    same(rearrange.repeat_interleave(repeats), np.int32([0, 0, 2, 2, 2]))
    same(jax.jit(lambda r: rearrange.repeat_interleave(r, output_size=5))(repeats), np.int32([0, 0, 2, 2, 2]))
    with pytest.raises(RuntimeError, match="output_size"):
        jax.jit(rearrange.repeat_interleave)(repeats)
    with pytest.raises(RuntimeError, match="negative"):
        _registry.lookup("aten::repeat_interleave.Tensor").check(jnp.int32([-1]))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: S.unfold(x, 0, 2, 1),
        lambda x: S.diagonal(x),
        lambda x: S.as_strided(x, [2, 2], [1, 1], 1),
        lambda x: rearrange.roll(x, [1], [0]),
        lambda x: rearrange.cat([x, x], 1),
        lambda x: S.select_scatter(x, x[0], 0, 1),
    ],
)
def test_differentiates_and_maps(fn):
    x = jnp.asarray(X[0])
    tangent = jnp.ones_like(x)
    _, pushed = jax.jvp(fn, (x,), (tangent,))
    np.testing.assert_allclose(pushed, fn(tangent))  # each is linear
    np.testing.assert_array_equal(jax.vmap(fn)(jnp.asarray(X)), np.stack([fn(x) for x in jnp.asarray(X)]))

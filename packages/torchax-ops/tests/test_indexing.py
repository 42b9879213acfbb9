"""Indices and masks, the ``index_*`` family, gather and scatter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops import indexing as I
from torchax_ops._registry import lookup
from torchax_ops.scatter import (
    gather,
    scatter,
    scatter_add,
    scatter_reduce,
    scatter_reduction,
    scatter_value,
    scatter_value_reduce,
)

X = np.arange(12, dtype=np.float32).reshape(3, 4)
ROWS = np.int32([2, 0, 2])


def same(actual, expected):
    expected = np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)


def arrays(indices):
    return [None if i is None else jnp.asarray(i) for i in indices]


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    "indices",
    [
        [np.int32([[0, -1]])],
        [None, np.int32([3, 0])],
        [np.int32([0, 1]), np.int32([[1], [2]])],
        [np.int32(1), None],
        [np.zeros(0, np.int32)],
    ],
)
def test_index(indices):
    want = X[tuple(slice(None) if i is None else i for i in indices)]
    same(I.index(jnp.asarray(X), arrays(indices)), want)
    same(jax.jit(I.index)(X, arrays(indices)), want)


def test_indices_apart_come_first():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    at = [np.int32([0, 1]), None, np.int32([1, 2])]
    same(I.index(jnp.asarray(x), arrays(at)), x[at[0], :, at[2]])


@pytest.mark.parametrize("mask", [X > 5, np.uint8([1, 0, 1]), np.zeros(3, np.bool_)])
def test_index_with_a_mask(mask):
    same(I.index(jnp.asarray(X), [jnp.asarray(mask)]), X[mask != 0])
    op = lookup("aten::index.Tensor")
    assert op.eager(X, [mask])
    assert not op.eager(X, [ROWS])
    with pytest.raises(RuntimeError, match="where"):
        jax.jit(I.index)(X, [mask])


def test_index_mixes_masks_and_integers():
    mask = np.bool_([True, False, True])
    same(I.index(jnp.asarray(X), arrays([mask, np.int32([1, 3])])), X[[0, 2], [1, 3]])


@pytest.mark.parametrize(
    ("error", "indices", "text"),
    [
        (IndexError, [np.int32([5])], "index 5 is out of bounds for dimension 0 with size 3"),
        (IndexError, [None, np.int32([-5])], "index -5 is out of bounds for dimension 1 with size 4"),
        (IndexError, [np.float32([1])], "must be long, int, byte or bool"),
        (IndexError, [np.int16([1])], "must be long, int, byte or bool"),
        (IndexError, [np.int32([1])] * 3, "too many indices for tensor of dimension 2"),
        (IndexError, [np.bool_([True])], "shape of the mask"),
        (IndexError, [], "at least one index"),
    ],
)
def test_index_check(error, indices, text):
    with pytest.raises(error, match=text):
        lookup("aten::index.Tensor").check(jnp.asarray(X), arrays(indices))


def test_index_shapes_that_do_not_broadcast():
    with pytest.raises(IndexError, match="could not be broadcast together"):
        I.index(jnp.asarray(X), arrays([np.int32([1, 2]), np.int32([1, 2, 0])]))


def test_index_put():
    want = X.copy()
    want[[2, 0]] = [1, 2, 3, 4]
    same(jax.jit(I.index_put)(X, [np.int32([2, 0])], np.float32([1, 2, 3, 4])), want)
    want = X.copy()
    np.add.at(want, ROWS, 1)
    same(I.index_put(jnp.asarray(X), [jnp.asarray(ROWS)], jnp.ones(4), True), want)


def test_index_put_accumulates_bools_and_halves():
    same(I.index_put(jnp.zeros(2, np.bool_), [jnp.int32([0, 0])], jnp.bool_([True, False]), True), [True, False])
    ones = jnp.ones(300, jnp.bfloat16)
    assert I.index_put(ones[:1], [jnp.zeros(300, np.int32)], ones, True)[0] == 300  # bfloat16 itself stops at 256


@pytest.mark.parametrize("values", [np.float32(9), np.arange(100, 106, dtype=np.float32), np.float32([7])])
@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_with_a_mask_works_under_a_trace(values, accumulate):
    mask, want = X > 5, X.copy()
    want[mask] = want[mask] + values if accumulate else values
    put = jax.jit(lambda x, m, v: I.index_put(x, [m], v, accumulate))
    same(put(X, mask, values), want)


def test_index_put_with_a_mask_of_rows():
    mask, want = np.bool_([True, False, True]), X.copy()
    want[mask] = [[1], [2]]
    same(jax.jit(lambda m: I.index_put(jnp.asarray(X), [m], jnp.float32([[1], [2]])))(mask), want)
    want = X.copy()
    want[:, [True, False, False, True]] = 0
    same(I.index_put(jnp.asarray(X), [None, jnp.bool_([True, False, False, True])], jnp.float32(0)), want)


def test_index_put_errors():
    x, check = jnp.asarray(X), lookup("aten::index_put").check
    with pytest.raises(RuntimeError, match="dtypes match"):
        I.index_put(x, [jnp.int32([0])], jnp.int32(1))
    with pytest.raises(RuntimeError, match="cannot be broadcast to indexing result of shape"):
        I.index_put(x, [jnp.int32([0])], jnp.ones(3))
    with pytest.raises(RuntimeError, match=r"shape \[3\] cannot be broadcast to indexing result of shape \[6\]"):
        check(x, [x > 5], jnp.ones(3))


def test_unsafe_masked_index():
    at, mask = jnp.int32([-2, 1, 9]), jnp.bool_([False, True, False])
    same(I._unsafe_masked_index(jnp.arange(3.0), mask, [at], 7), np.float32([7, 1, 7]))
    got = I._unsafe_masked_index_put_accumulate(jnp.zeros(3), mask, [at], jnp.ones(3))
    same(got, np.float32([0, 1, 0]))


# index_*


def test_index_select():
    same(jax.jit(I.index_select, static_argnums=1)(X, -1, np.int32([3, 3])), X[:, [3, 3]])
    same(I.index_select(jnp.float32(2), 0, jnp.int32([0])), np.float32(2))


def test_index_add():
    want = X.copy()
    np.add.at(want, ROWS, 2 * np.ones((3, 4), np.float32))
    same(jax.jit(I.index_add, static_argnums=1)(X, 0, ROWS, np.ones((3, 4), np.float32), alpha=2), want)


def test_index_copy_and_fill(x64):
    at = jnp.int64([2, 0])
    want = X.copy()
    want[[2, 0]] = [[1], [2]]
    same(I.index_copy(jnp.asarray(X), 0, at, jnp.float32([[1] * 4, [2] * 4])), want)
    want[:, [2, 0]] = 5
    same(I.index_fill(jnp.asarray(want), 1, jnp.int64([2, -4]), 5), want)
    same(I.index_fill(jnp.asarray(want), 1, at, jnp.float32(5)), want)


@pytest.mark.parametrize(
    ("reduce", "include", "expected"),
    [
        ("prod", True, [12, 2, 15]),
        ("prod", False, [6, 2, 5]),
        ("mean", True, [7 / 3, 2, 4]),
        ("mean", False, [2.5, 2, 5]),
        ("amax", True, [3, 2, 5]),
        ("amin", False, [2, 2, 5]),
    ],
)
def test_index_reduce(reduce, include, expected):
    x, at, source = jnp.float32([2, 2, 3]), jnp.int32([0, 0, 2]), jnp.float32([2, 3, 5])
    got = I.index_reduce(x, 0, at, source, reduce, include_self=include)
    np.testing.assert_allclose(got, np.float32(expected), rtol=1e-6)


def test_mean_of_integers_rounds_down():
    got = I.index_reduce(jnp.int32([0]), 0, jnp.int32([0, 0]), jnp.int32([-1, -3]), "mean")
    same(got, np.int32([-2]))


def test_product_differentiates_through_zeros():
    x, at, source = jnp.float32([2, 3, 4]), jnp.int32([0, 0, 1, 2, 2]), jnp.float32([0, 5, 7, 0, 0])
    product = lambda x, s: I.index_reduce(x, 0, at, s, "prod")  # noqa: E731
    gx, gs = jax.grad(lambda x, s: product(x, s).sum(), (0, 1))(x, source)
    same(gx, np.float32([0, 7, 0]))
    same(gs, np.float32([10, 0, 3, 0, 0]))


@pytest.mark.parametrize(
    ("error", "name", "args"),
    [
        (IndexError, "index_select", (0, [3])),
        (IndexError, "index_select", (0, [-1])),
        (RuntimeError, "index_select", (1, [4])),
        (RuntimeError, "index_add", (0, [3], X[:1])),
        (IndexError, "index_copy", (0, [3], X[:1])),
        (IndexError, "index_fill.int_Scalar", (0, [3], 1)),
        (IndexError, "index_reduce", (0, [-1], X[:1], "prod")),
        (IndexError, "take", ([12],)),
        (IndexError, "put", ([-13], X[0, :1])),
        (RuntimeError, "gather", (0, [[3]])),
        (RuntimeError, "gather", (0, [[-1]])),
        (RuntimeError, "scatter.src", (0, [[3]], X)),
        (RuntimeError, "scatter_add", (1, [[4]], X)),
        (RuntimeError, "scatter.value", (0, [[-1]], 1)),
        (RuntimeError, "scatter_reduce.two", (0, [[3]], X, "sum")),
        (RuntimeError, "masked_scatter", (X > 5, X[0])),
    ],
)
def test_values_refused_before_an_eager_call(error, name, args):
    arguments = [np.asarray(a, np.int32) if isinstance(a, list) else a for a in args]
    with pytest.raises(error):
        lookup(f"aten::{name}").check(X, *arguments)


@pytest.mark.parametrize(
    ("error", "fn", "args"),
    [
        (IndexError, I.index_select, (2, np.int32([0]))),
        (IndexError, I.index_select, (0, np.int32([[0]]))),
        (RuntimeError, I.index_select, (0, np.float32([0]))),
        (RuntimeError, I.index_add, (0, np.int32([0]), X)),
        (RuntimeError, I.index_add, (0, np.int32([0]), X[:1].astype(np.int32))),
        (RuntimeError, I.index_add, (0, np.int32([0]), X[:1, :2])),
        (IndexError, I.index_copy, (0, np.int32([0]), X)),
        (RuntimeError, I.index_fill, (0, np.int32([[0]]), 1)),
        (RuntimeError, I.index_fill, (0, np.int32([0]), X)),
        (RuntimeError, I.index_fill, (0, np.int32([0]), 1j)),
        (RuntimeError, I.index_reduce, (0, np.int32([0]), X[:1], "sum")),
        (RuntimeError, I.masked_fill, (X, 1)),
        (RuntimeError, I.masked_fill, (X > 1, X[0])),
        (RuntimeError, I.masked_fill, (X[:2] > 1, 1)),
        (RuntimeError, I.masked_select, (X,)),
        (RuntimeError, I.masked_scatter, (X > 1, X.astype(np.int32))),
        (RuntimeError, I.take, (np.float32([1]),)),
        (IndexError, I.put, (np.int32([1]), X[0])),
        (RuntimeError, gather, (0, np.int32([1]))),
        (RuntimeError, gather, (0, np.zeros((1, 5), np.int32))),
        (IndexError, gather, (2, np.int32([[1]]))),
        (RuntimeError, scatter, (0, np.int32([[1]]), X.astype(np.int32))),
        (RuntimeError, scatter, (0, np.zeros((4, 4), np.int32), X)),
        (RuntimeError, scatter_reduce, (0, np.int32([[1]]), X, "max")),
    ],
)
def test_errors(error, fn, args):
    with pytest.raises(error):
        fn(jnp.asarray(X), *args)


# Flat positions, masks


def test_take_and_put():
    same(I.take(jnp.asarray(X), jnp.int32([[11, -1]])), np.float32([[11, 11]]))
    same(I.put(jnp.zeros((2, 2)), jnp.int32([1, -1, 1]), jnp.ones(3), True), np.float32([[0, 2], [0, 1]]))
    assert I.take(jnp.zeros(0), jnp.zeros((0, 2), np.int32)).shape == (0, 2)


def test_masked_fill_keeps_the_dtype_and_broadcasts():
    same(I.masked_fill(jnp.int32([1, 2]), jnp.bool_([[True], [False]]), 1.9), np.int32([[1, 1], [1, 2]]))
    same(jax.jit(I.masked_fill)(X, X > 1, -np.inf), np.where(X > 1, np.float32(-np.inf), X))
    with pytest.raises(RuntimeError, match="without overflow"):
        lookup("aten::masked_fill.Scalar").check(jnp.float16([1]), jnp.bool_([True]), -1e9)


def test_masked_select():
    same(I.masked_select(jnp.asarray(X[0]), jnp.asarray(X > 5)), np.broadcast_to(X[0], (3, 4))[X > 5])
    with pytest.raises(RuntimeError, match="trace"):
        jax.jit(I.masked_select)(X, X > 5)


def test_masked_scatter_and_backward():
    want = X.copy()
    want[X > 5] = np.arange(100, 106)
    same(jax.jit(I.masked_scatter)(X, X > 5, np.arange(100, 120, dtype=np.float32)), want)
    grad = I.masked_scatter_backward(jnp.asarray(X), jnp.asarray(X > 8), [2, 2])
    same(grad, np.float32([[9, 10], [11, 0]]))


def test_nonzero(x64):
    x = jnp.asarray(X % 5 == 0)
    same(I.nonzero(x), np.argwhere(np.asarray(x)))
    same(I.nonzero(jnp.float32(3)), np.zeros((1, 0), np.int64))
    same(jax.jit(lambda x: I.nonzero(x, size=2))(x), np.argwhere(np.asarray(x))[:2])
    same(I.nonzero_static(x, size=4, fill_value=9), np.int64([[0, 0], [1, 1], [2, 2], [9, 9]]))
    with pytest.raises(RuntimeError, match="size="):
        jax.jit(I.nonzero)(x)


# gather, scatter


def test_gather_from_a_larger_array():
    at = np.int32([[0, 2], [1, 0]])
    same(jax.jit(gather, static_argnums=1)(X, 0, at), np.take_along_axis(X[:, :2], at, 0))
    same(gather(jnp.float32(3), 0, jnp.int32([0])), np.float32([3]))
    assert gather(jnp.asarray(X), 0, jnp.zeros(0, np.int32)).shape == (0,)


def test_scatter():
    at, want = np.int32([[3, 0]]), X.copy()
    want[0, [3, 0]] = [8, 9]
    same(jax.jit(scatter, static_argnums=1)(X, 1, at, np.float32([[8, 9, 1]])), want)
    want[0, [3, 0]] = 2
    same(scatter_value(jnp.asarray(X), -1, jnp.asarray(at), 2), want)
    same(scatter(jnp.asarray(X), 1, jnp.zeros((0, 2), np.int32), jnp.asarray(X)), X)


def test_scatter_reductions():
    x, at, src = jnp.float32([1, 2, 3]), jnp.int32([0, 0, 2]), jnp.float32([4, 6, 5])
    same(scatter_add(x, 0, at, src), np.float32([11, 2, 8]))
    same(scatter_reduction(x, 0, at, src, reduce="multiply"), np.float32([24, 2, 15]))
    same(scatter_value_reduce(x, 0, at, 2, reduce="add"), np.float32([5, 2, 5]))
    same(scatter_reduce(x, 0, at, src, "mean", include_self=False), np.float32([5, 2, 5]))
    same(scatter_reduce(x.astype(np.int32), 0, at, src.astype(np.int32), "amax"), np.int32([6, 2, 5]))
    with pytest.raises(RuntimeError, match="add or multiply"):
        scatter_reduction(x, 0, at, src, reduce="max")


def test_differentiates_and_maps():
    at = jnp.int32([[0, 1, 1, 0]])
    grad = jax.grad(lambda x: (gather(x, 0, at) * jnp.arange(4.0)).sum())(jnp.asarray(X))
    same(grad, np.float32([[0, 0, 0, 3], [0, 1, 2, 0], [0] * 4]))
    got = jax.vmap(lambda row, i: I.index(row, [i]))(jnp.asarray(X), jnp.int32([[1], [2], [0]]))
    same(got, np.float32([[1], [6], [8]]))
    rows = jax.vmap(lambda row, i, s: scatter_add(row, 0, i, s))(
        jnp.asarray(X), jnp.int32([[1], [2], [0]]), jnp.ones((3, 1))
    )
    assert rows.sum() == X.sum() + 3

"""Embeddings, bags of them, and one-hot vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops._registry import lookup
from torchax_ops.nn import embedding as E

W = np.arange(20, dtype=np.float32).reshape(5, 4)
AT, STARTS = np.int32([0, 1, 2, 1]), np.int32([0, 2, 2])


def test_embedding():
    at = np.int32([[4, 0, 4]])
    np.testing.assert_array_equal(jax.jit(E.embedding)(W, at), W[at])
    grad = jax.grad(lambda w: E.embedding(w, at).sum())(jnp.asarray(W))
    np.testing.assert_array_equal(grad[:, 0], [1, 0, 0, 0, 2])
    np.testing.assert_array_equal(E.embedding_dense_backward(jnp.ones((1, 3, 4)), at, 5, -1, False), grad)


@pytest.mark.parametrize(
    ("padding", "by_frequency", "expected"), [(-1, False, [1, 2, 1]), (1, False, [1, 0, 1]), (-1, True, [1, 1, 1])]
)
def test_embedding_dense_backward(padding, by_frequency, expected):
    got = E.embedding_dense_backward(jnp.ones((4, 2), jnp.bfloat16), AT, 3, padding, by_frequency)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got.astype(np.float32), np.repeat(np.float32(expected)[:, None], 2, 1))


def test_gradients_of_many_rows_add_up_in_float32():
    got = E.embedding_dense_backward(jnp.ones((300, 1), jnp.bfloat16), np.zeros(300, np.int32), 1, -1, False)
    assert got[0, 0] == 300


@pytest.mark.parametrize("p", [1.0, 2.0, np.inf])
def test_embedding_renorm(p):
    got = np.asarray(E.embedding_renorm(jnp.asarray(W), jnp.int32([[1, 3], [1, 0]]), 10.0, p))
    norms = np.linalg.norm(W, p, axis=1)
    want = np.where(norms > 10, 10, norms)
    want[[2, 4]] = norms[[2, 4]]
    np.testing.assert_allclose(np.linalg.norm(got, p, axis=1), want, rtol=1e-5)


def bags(mode, padding=None, weights=None):
    out = np.zeros((3, 4), np.float32)
    for b, (start, end) in enumerate(((0, 2), (2, 2), (2, 4))):
        rows = [
            W[i] * (1 if weights is None else w)
            for i, w in zip(AT[start:end], (weights or AT)[start:end])
            if i != padding
        ]
        if rows:
            out[b] = (np.sum, np.mean, np.max)[mode](rows, axis=0)
    return out


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [-1, 1])
def test_bags(mode, padding):
    bag = jax.jit(lambda w: E._embedding_bag(w, AT, STARTS, mode=mode, padding_idx=padding))
    out, *_ = bag(W)
    np.testing.assert_allclose(out, bags(mode, padding))
    last = E._embedding_bag(jnp.asarray(W), AT, np.int32([0, 2, 2, 4]), False, mode, False, None, True, padding)
    np.testing.assert_array_equal(last[0], out)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [-1, 1])
def test_bag_backward_is_the_gradient(mode, padding):
    table, grad = jnp.asarray(W), jnp.asarray(W[:3] - 7)
    forward = lambda w: E._embedding_bag(w, AT, STARTS, mode=mode, padding_idx=padding)  # noqa: E731
    _, bag, size, largest = forward(table)
    (want,) = jax.vjp(lambda w: forward(w)[0], table)[1](grad)
    got = E._embedding_bag_backward(grad, AT, STARTS, bag, size, largest, 5, False, mode, False, None, padding)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_bag_weights():
    weights = [1.0, 2.0, 3.0, 4.0]
    forward = lambda p: E._embedding_bag(jnp.asarray(W), AT, STARTS, per_sample_weights=p)[0]  # noqa: E731
    np.testing.assert_allclose(forward(jnp.float32(weights)), bags(0, None, weights))
    grad = jnp.asarray(W[:3])
    (want,) = jax.vjp(forward, jnp.float32(weights))[1](grad)
    empty = jnp.zeros(0, np.int32)
    got = E._embedding_bag_per_sample_weights_backward(grad, jnp.asarray(W), AT, STARTS, empty, 0)
    np.testing.assert_allclose(got, want)


def test_one_hot():
    with jax.enable_x64(True):
        got = E.one_hot(jnp.int64([[1, 0]]), 3)
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, [[[0, 1, 0], [1, 0, 0]]])
        assert E.one_hot(jnp.int64([1, 4])).shape == (2, 5)
        with pytest.raises(RuntimeError, match="give num_classes"):
            jax.jit(E.one_hot)(jnp.int64([1]))
        with pytest.raises(RuntimeError, match="LongTensor"):
            E.one_hot(jnp.int32([1]), 2)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (RuntimeError, lambda: E.embedding(jnp.ones(3), AT)),
        (RuntimeError, lambda: E.embedding(W, np.float32([1]))),
        (IndexError, lambda: lookup("aten::embedding").check(W, np.int32([5]))),
        (IndexError, lambda: lookup("aten::embedding").check(W, np.int32([-1]))),
        (IndexError, lambda: lookup("aten::embedding_renorm").check(W, np.int32([5]), 1.0, 2.0)),
        (RuntimeError, lambda: lookup("aten::_embedding_bag").check(W, np.int32([5]), np.int32([0]))),
        (RuntimeError, lambda: lookup("aten::_embedding_bag").check(W, AT, np.int32([1]))),
        (RuntimeError, lambda: lookup("aten::_embedding_bag").check(W, AT, np.int32([0, 9]))),
        (RuntimeError, lambda: lookup("aten::one_hot").check(np.int64([3]), 3)),
        (RuntimeError, lambda: E._embedding_bag(W, AT, STARTS, False, 1, False, np.ones(4, np.float32))),
    ],
)
def test_errors(error, call):
    with pytest.raises(error):
        call()

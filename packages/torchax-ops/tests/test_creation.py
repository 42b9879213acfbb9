"""New arrays: dtypes, shapes and values of PyTorch's factories."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops import creation as C
from torchax_ops._promotion import default_float_dtype


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def same(actual, expected):
    expected = np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert not actual.aval.weak_type
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (lambda: C.zeros([2, 0]), np.zeros((2, 0), np.float32)),
        (lambda: C.ones([2], dtype=np.int64), np.ones(2, np.int64)),
        (lambda: C.empty([]), np.float32(0)),
        (lambda: C.full([2], 3), np.full(2, 3, np.int64)),
        (lambda: C.full([2], True), np.full(2, True)),
        (lambda: C.full([1], 1.5), np.float32([1.5])),
        (lambda: C.full([1], 2j), np.complex64([2j])),
        (lambda: C.full([1], 1.9, dtype=np.int32), np.int32([1])),
        (lambda: C.zeros_like(jnp.ones(2, np.int8)), np.zeros(2, np.int8)),
        (lambda: C.ones_like(jnp.ones(2, np.int8), dtype=np.float64), np.ones(2)),
        (lambda: C.full_like(jnp.ones(2, np.int8), 2.5), np.full(2, 2, np.int8)),
        (lambda: C.new_zeros(jnp.ones((), np.int8), [3]), np.zeros(3, np.int8)),
        (lambda: C.new_ones(jnp.ones((), np.int8), [3], dtype=np.bool_), np.ones(3, np.bool_)),
        (lambda: C.new_full(jnp.ones((), np.float32), [1], 7), np.float32([7])),
        (lambda: C.empty_strided([2, 3], [3, 1]), np.zeros((2, 3), np.float32)),
        (lambda: C.scalar_tensor(3), np.float32(3)),
        (lambda: C.scalar_tensor(3, dtype=np.int64), np.int64(3)),
        (lambda: C.eye(2), np.eye(2, dtype=np.float32)),
        (lambda: C.eye_m(2, 3, dtype=np.bool_), np.eye(2, 3, dtype=np.bool_)),
        (lambda: C.tril_indices(3, 2, -1), np.stack(np.tril_indices(3, -1, 2))),
        (lambda: C.triu_indices(2, 3, 1, dtype=np.int32), np.stack(np.triu_indices(2, 1, 3)).astype(np.int32)),
    ],
)
def test_filled(got, expected):
    same(got(), expected)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (lambda: C.arange(3), np.arange(3)),
        (lambda: C.arange(2.5), np.float32([0, 1, 2])),
        (lambda: C.arange_start(2, -1, dtype=np.int32), None),
        (lambda: C.arange_start_step(5, -1, -2), np.int64([5, 3, 1])),
        (lambda: C.arange_start_step(0, 1, 0.25), np.float32([0, 0.25, 0.5, 0.75])),
        (lambda: C.arange_start_step(1.9, 4.1, dtype=np.int64), np.int64([1, 2, 3])),
        (lambda: C.arange(0), np.arange(0)),
        (lambda: C.arange_start_step(2**40, 2**40 + 2), np.int64([2**40, 2**40 + 1])),
        (lambda: C.range(1, 3), np.float32([1, 2, 3])),
        (lambda: C.range(3, 1, -1, dtype=np.int64), np.int64([3, 2, 1])),
        (lambda: C.linspace(0, 1, 5), np.linspace(0, 1, 5, dtype=np.float32)),
        (lambda: C.linspace(3, 1, 1), np.float32([3])),
        (lambda: C.linspace(3, 1, 0), np.float32([])),
        (lambda: C.linspace(0, 10, 4, dtype=np.int64), np.int64([0, 3, 6, 10])),
        (lambda: C.linspace(jnp.float64(0), 2, 3), np.float32([0, 1, 2])),
        (lambda: C.linspace(0, 1j, 2), np.complex64([0, 1j])),
        (lambda: C.logspace(0, 3, 4, 2), np.float32([1, 2, 4, 8])),
    ],
)
def test_ranges(got, expected):
    if expected is None:
        with pytest.raises(RuntimeError, match="inconsistent"):
            got()
    else:
        same(got(), expected)


def test_ends_of_linspace_are_exact():
    got = C.linspace(0.1, 0.7, 100)
    assert (got[0], got[-1]) == (np.float32(0.1), np.float32(0.7))


def test_default_float_and_x64_off():
    with default_float_dtype(np.float64):
        assert C.zeros([1]).dtype == C.arange(1.5).dtype == C.linspace(0, 1, 2).dtype == np.float64
        assert C.full([1], 1j).dtype == np.complex128
    with jax.enable_x64(False):
        assert C.arange(3).dtype == C.full([1], 3).dtype == C.tril_indices(2, 2).dtype == np.int32
        assert C.zeros([1], dtype=np.float64).dtype == np.float32


def test_values_may_be_traced():
    same(jax.jit(lambda v: C.full([2], v))(3), np.full(2, 3, np.int64))
    same(jax.jit(lambda v: C.full_like(jnp.ones(2), v))(3), np.full(2, 3.0))
    same(jax.jit(lambda a, b: C.linspace(a, b, 3))(0.0, 4.0), np.float32([0, 2, 4]))


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda: C.hann_window(5, False), np.hanning(5)),
        (lambda: C.hann_window(4), np.hanning(5)[:-1]),
        (lambda: C.hamming_window(6, False), np.hamming(6)),
        (lambda: C.hamming_window(6, False, 0.5, 0.5), np.hanning(6)),
        (lambda: C.blackman_window(7, False), np.blackman(7)),
        (lambda: C.bartlett_window(6, False), np.bartlett(6)),
        (lambda: C.kaiser_window(8, False, 12.0), np.kaiser(8, 12)),
        (lambda: C.kaiser_window(3, True, 5.0), np.kaiser(4, 5)[:-1]),
        (lambda: C.hann_window(1), np.ones(1)),
        (lambda: C.hann_window(0), np.ones(0)),
    ],
)
def test_windows(fn, expected):
    got = fn()
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "fn",
    [
        lambda: C.zeros([-1]),
        lambda: C.eye(-1),
        lambda: C.arange_start_step(0, 1, 0),
        lambda: C.arange_start_step(0, 1, -1),
        lambda: C.arange(float("inf")),
        lambda: C.linspace(0, 1, -1),
        lambda: C.linspace(jnp.ones(2), 1, 3),
        lambda: C.tril_indices(-1, 2),
        lambda: C.hann_window(-1),
        lambda: C.hann_window(3, dtype=np.int64),
    ],
)
def test_errors(fn):
    with pytest.raises(RuntimeError):
        fn()

"""Fourier transforms against numpy, for each normalization."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops import fft as F

RNG = np.random.default_rng(0)
REAL = RNG.normal(size=(2, 3, 4, 5, 6))
COMPLEX = REAL + 1j * RNG.normal(size=REAL.shape)
NORMS = pytest.mark.parametrize(("normalization", "power"), [(0, 0.0), (1, 0.5), (2, 1.0)])
DIMS = pytest.mark.parametrize("dims", [[-1], [0], [3, 1], [0, 1, 2, 3, 4]])


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def close(actual, expected):
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


def count(dims):
    return np.prod([REAL.shape[d] for d in dims])


@NORMS
@DIMS
def test_complex(dims, normalization, power):
    n = count(dims)
    close(F._fft_c2c(COMPLEX, dims, normalization, True), np.fft.fftn(COMPLEX, axes=dims) / n**power)
    close(F._fft_c2c(COMPLEX, dims, normalization, False), np.fft.ifftn(COMPLEX, axes=dims) * n / n**power)


@NORMS
@DIMS
def test_real(dims, normalization, power):
    n = count(dims)
    close(F._fft_r2c(REAL, dims, normalization, True), np.fft.rfftn(REAL, axes=dims) / n**power)
    close(F._fft_r2c(REAL, dims, normalization, False), np.fft.fftn(REAL, axes=dims) / n**power)
    size = REAL.shape[dims[-1]]
    half = np.fft.rfftn(REAL, axes=dims)
    close(F._fft_c2r(half, dims, normalization, size), REAL * n / n**power)


@pytest.mark.parametrize("size", [1, 4, 7, 12])
def test_length_of_a_real_inverse(size):
    x = COMPLEX[0, 0, 0]
    close(F._fft_c2r(x, [0], 2, size), np.fft.irfft(x, size, axis=0))


def test_frequencies():
    for n in (1, 4, 7):
        close(F.fft_fftfreq(n, 0.5, dtype=jnp.float64), np.fft.fftfreq(n, 0.5))
        close(F.fft_rfftfreq(n, 0.5, dtype=jnp.float64), np.fft.rfftfreq(n, 0.5))
    assert F.fft_fftfreq(3).dtype == jnp.float32


def test_dtypes_and_mistakes():
    assert F._fft_r2c(jnp.ones(4, jnp.float32), [0], 0, True).dtype == jnp.complex64
    assert F._fft_c2r(jnp.ones(4, jnp.complex64), [0], 0, 6).dtype == jnp.float32
    for call in (
        lambda: F._fft_c2c(jnp.ones(4), [0], 0, True),
        lambda: F._fft_r2c(jnp.ones(4, jnp.complex64), [0], 0, True),
        lambda: F._fft_r2c(jnp.ones(4, jnp.float16), [0], 0, True),
        lambda: F._fft_c2r(jnp.ones(4), [0], 0, 4),
    ):
        with pytest.raises(RuntimeError, match="_fft"):
            call()
    with pytest.raises(IndexError, match="Dimension out of range"):
        F._fft_c2c(jnp.ones(4, jnp.complex64), [1], 0, True)


def test_empty_and_transforms():
    assert F._fft_r2c(jnp.zeros((0, 4)), [1], 0, True).shape == (0, 3)
    assert F._fft_c2r(jnp.zeros((0, 3), jnp.complex128), [1], 0, 4).shape == (0, 4)
    close(jax.vmap(lambda x: F._fft_r2c(x, [0], 0, True))(REAL), np.fft.rfft(REAL, axis=1))
    x = REAL[0, 0, 0]
    energy = lambda x: (jnp.abs(F._fft_r2c(x, [0, 1], 1, False)) ** 2).sum()  # noqa: E731
    close(jax.grad(energy)(x), 2 * x)
    with jax.enable_x64(False):
        assert F._fft_r2c(jnp.ones(4), [0], 0, True).dtype == jnp.complex64

"""Special functions against SciPy, and PyTorch's values at the edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp

from torchax_ops import special, special_polynomials

INF, NAN = float("inf"), float("nan")
REAL = np.concatenate([np.linspace(-12, 12, 97), [-40.0, 40.0, 1e-3, -1e-3]])
POSITIVE = np.concatenate([np.linspace(0.05, 12, 60), [40.0, 100.0]])
UNIT = np.linspace(-0.99, 0.99, 34)


def close(result, expected, rtol=1e-9, atol=1e-12):
    np.testing.assert_allclose(np.asarray(result), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize(("name", "reference", "x"), [
    ("sigmoid", sp.expit, REAL),
    ("erf", sp.erf, REAL),
    ("erfc", sp.erfc, REAL),
    ("erfinv", sp.erfinv, UNIT),
    ("special_erfcx", sp.erfcx, np.linspace(-8, 60, 69)),
    ("special_ndtr", sp.ndtr, REAL),
    ("special_ndtri", sp.ndtri, (UNIT + 1) / 2),
    ("special_log_ndtr", sp.log_ndtr, REAL),
    ("special_entr", sp.entr, POSITIVE),
    ("lgamma", sp.gammaln, POSITIVE),
    ("digamma", sp.digamma, REAL + 0.3),
    ("sinc", np.sinc, REAL),
    ("i0", sp.i0, REAL),
    ("special_i0e", sp.i0e, REAL),
    ("special_i1", sp.i1, REAL),
    ("special_i1e", sp.i1e, REAL),
    ("special_modified_bessel_k0", sp.k0, POSITIVE),
    ("special_modified_bessel_k1", sp.k1, POSITIVE),
    ("special_scaled_modified_bessel_k0", sp.k0e, POSITIVE),
    ("special_scaled_modified_bessel_k1", sp.k1e, POSITIVE),
    ("special_bessel_j0", sp.j0, REAL),
    ("special_bessel_j1", sp.j1, REAL),
    ("special_bessel_y0", sp.y0, POSITIVE),
    ("special_bessel_y1", sp.y1, POSITIVE),
    ("special_airy_ai", lambda x: sp.airy(x)[0], REAL),
    ("special_spherical_bessel_j0", lambda x: sp.spherical_jn(0, np.abs(x)), REAL),
])  # fmt: skip
def test_against_scipy(name, reference, x):
    fn = jax.jit(getattr(special, name))
    with jax.enable_x64(True):
        result = fn(jnp.asarray(x))
        assert result.dtype == np.float64
        close(result, reference(x))
    single = fn(jnp.asarray(x, "float32"))
    assert single.dtype == np.float32
    close(single, reference(x.astype("float32").astype("float64")), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "x", "value"), [
    ("digamma", [0.0, -0.0, -1.0, INF], [-INF, INF, NAN, INF]),
    ("lgamma", [0.0, -1.0, INF], [INF, INF, INF]),
    ("erfinv", [1.0, -1.0, 1.5], [INF, -INF, NAN]),
    ("special_ndtri", [0.0, 1.0, -0.1], [-INF, INF, NAN]),
    ("special_erfcx", [INF, -INF, -30.0, NAN], [0, INF, INF, NAN]),
    ("special_entr", [0.0, -1.0, NAN], [0, -INF, NAN]),
    ("logit", [0.0, 1.0, 2.0], [-INF, INF, NAN]),
    ("special_modified_bessel_k0", [0.0, -1.0, INF], [INF, NAN, 0]),
    ("special_bessel_y1", [0.0, -1.0], [-INF, NAN]),
    ("special_airy_ai", [200.0, INF, -INF], [0, NAN, NAN]),
    ("special_spherical_bessel_j0", [0.0, INF], [1, 0]),
])  # fmt: skip
def test_edges(name, x, value):
    np.testing.assert_array_equal(
        jax.jit(getattr(special, name))(jnp.asarray(x, "float32")), np.asarray(value, "float32")
    )


@pytest.mark.parametrize(("name", "x"), [
    ("special_erfcx", 0.7), ("special_erfcx", -1.2), ("digamma", -2.3), ("lgamma", -2.3), ("i0", -1.5),
    ("special_i1", 0.01), ("special_ndtri", 0.3), ("special_log_ndtr", -8.0), ("logit", 0.3),
    ("special_i1e", 2.0), ("sinc", 0.0),
])  # fmt: skip
def test_gradients_against_differences(name, x):
    fn, h = jax.jit(getattr(special, name)), 1e-5
    with jax.enable_x64(True):
        slope = jax.grad(fn)(jnp.float64(x))
        near = fn(jnp.asarray([x - h, x + h]))
        close(slope, (near[1] - near[0]) / (2 * h), rtol=1e-6, atol=1e-8)


def test_polygamma_and_zeta():
    x = jnp.asarray([0.3, 1.0, 4.5, 20.0])
    polygamma, zeta = jax.jit(special.polygamma, static_argnums=0), jax.jit(special.special_zeta)
    for n in range(4):
        close(polygamma(n, x), sp.polygamma(n, np.asarray(x, "float64")), rtol=2e-5)
    with jax.enable_x64(True):
        close(polygamma(2, jnp.asarray([-1.5])), -2 * (sp.zeta(3, 0.5) - 8 - 8 / 27))
        s, q = jnp.asarray([2.0, 3.5, 1.0, 2.0, 2.5, 2.0, 0.5]), jnp.asarray([1.0, 0.25, 1.0, -1.5, -1.5, -2.0, 1.0])
        values = [np.pi**2 / 6, sp.zeta(3.5, 0.25), INF, sp.zeta(2, 0.5) + 4 + 4 / 9, NAN, INF, NAN]
        close(zeta(s, q), values)
        close(jax.grad(lambda q: zeta(3.0, q))(jnp.float64(2.0)), -3 * sp.zeta(4, 2))
        close(jax.grad(lambda x: polygamma(1, x))(jnp.float64(0.7)), sp.polygamma(2, 0.7))
    with pytest.raises(RuntimeError, match="negative"):
        special.polygamma(-1, x)
    with pytest.raises(NotImplementedError, match="first argument"):
        jax.grad(lambda s: special.special_zeta(s, jnp.asarray(2.0)))(jnp.asarray(3.0))


def test_incomplete_gamma():
    igamma, igammac = jax.jit(special.igamma), jax.jit(special.igammac)
    a, x = np.meshgrid([0.5, 1.0, 5.0, 30.0], [0.1, 1.0, 4.0, 40.0])
    with jax.enable_x64(True):
        close(igamma(jnp.asarray(a), jnp.asarray(x)), sp.gammainc(a, x))
        close(igammac(jnp.asarray(a), jnp.asarray(x)), sp.gammaincc(a, x))
    a, x = jnp.asarray([0.0, 0.0, 1.0, INF, 1.0, -1.0, INF]), jnp.asarray([1.0, 0.0, 0.0, 1.0, INF, 1.0, INF])
    np.testing.assert_array_equal(igamma(a, x), np.asarray([1, NAN, 0, 0, 1, NAN, NAN], "float32"))
    np.testing.assert_array_equal(igammac(a, x), np.asarray([0, NAN, 1, 1, 0, NAN, NAN], "float32"))


def test_products_with_a_logarithm():
    x, y = jnp.asarray([0.0, 0.0, 2.0, 0.0]), jnp.asarray([0.0, -1.0, 3.0, NAN])
    close(special.xlogy(x, y), [0, 0, 2 * np.log(3), NAN], rtol=1e-6)
    close(special.special_xlog1py(x, y), [0, 0, 2 * np.log(4), NAN], rtol=1e-6)
    assert special.xlogy(jnp.asarray([1], "int32"), 2).dtype == np.float32
    assert jax.grad(lambda x: special.xlogy(x, jnp.asarray(0.0)))(jnp.asarray(0.0)) == 0


def test_logit_and_its_backward():
    x = jnp.asarray([-0.5, 0.1, 0.5, 1.5])
    close(special.logit(x, eps=0.2), sp.logit([0.2, 0.2, 0.5, 0.8]), rtol=1e-5, atol=1e-6)
    close(special.logit_backward(jnp.ones(4), x, 0.2), [0, 0, 4, 0], rtol=1e-6)
    close(special.logit_backward(jnp.ones(4), x), [NAN, 1 / 0.09, 4, NAN], rtol=1e-6)


def test_mvlgamma():
    x = np.asarray([2.5, 4.0])
    close(special.mvlgamma(jnp.asarray(x, "float32"), 3), [sp.multigammaln(v, 3) for v in x], rtol=1e-5)
    with pytest.raises(RuntimeError, match="p has to be"):
        special.mvlgamma(jnp.ones(1), 0)


@pytest.mark.parametrize(("name", "reference"), [
    ("chebyshev_polynomial_t", sp.eval_chebyt),
    ("chebyshev_polynomial_u", sp.eval_chebyu),
    ("shifted_chebyshev_polynomial_t", sp.eval_sh_chebyt),
    ("shifted_chebyshev_polynomial_u", sp.eval_sh_chebyu),
    ("hermite_polynomial_h", sp.eval_hermite),
    ("hermite_polynomial_he", sp.eval_hermitenorm),
    ("laguerre_polynomial_l", sp.eval_laguerre),
    ("legendre_polynomial_p", sp.eval_legendre),
])  # fmt: skip
def test_polynomials(name, reference):
    fn = jax.jit(getattr(special_polynomials, f"special_{name}"))
    x, n = np.meshgrid([-1.5, -1.0, -0.3, 0.0, 0.5, 1.0, 2.0], [0, 1, 2, 5, 12])
    with jax.enable_x64(True):
        result = fn(jnp.asarray(x), jnp.asarray(n))
        assert result.dtype == np.float64
        close(result, reference(n, x), rtol=1e-8, atol=1e-8)
        close(fn(jnp.asarray(x), np.where(n == 12, -1, 3)), np.where(n == 12, 0, reference(3, x)))
    assert fn(2, jnp.asarray([2], "int32")).dtype == np.float32
    assert jax.vmap(lambda x: fn(x, 2))(jnp.ones((2, 3))).shape == (2, 3)


@pytest.mark.parametrize("kind", ["v", "w"])
def test_chebyshev_of_the_third_and_fourth_kind(kind):
    x, n = np.meshgrid([-0.7, 0.2, 0.9], [0, 1, 4, 15])
    a = np.arccos(x)
    values = np.cos((n + 0.5) * a) / np.cos(a / 2) if kind == "v" else np.sin((n + 0.5) * a) / np.sin(a / 2)
    fn = jax.jit(getattr(special_polynomials, f"special_chebyshev_polynomial_{kind}"))
    shifted = jax.jit(getattr(special_polynomials, f"special_shifted_chebyshev_polynomial_{kind}"))
    close(fn(jnp.asarray(x, "float32"), jnp.asarray(n)), values, rtol=1e-4, atol=1e-5)
    close(shifted(jnp.asarray((x + 1) / 2, "float32"), jnp.asarray(n)), values, rtol=1e-4, atol=1e-4)


def test_errors():
    with pytest.raises(NotImplementedError):
        special.erf(jnp.asarray([1j]))
    with pytest.raises(RuntimeError):
        special.igamma(jnp.ones(2), jnp.ones(3))
    with pytest.raises(NotImplementedError):
        special.igamma(jnp.ones(2, "int32"), jnp.ones(2, "int32"))

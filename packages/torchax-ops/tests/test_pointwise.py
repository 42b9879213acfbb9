"""Arithmetic, comparison, bitwise logic and conversion against literal answers of PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops import bitwise, comparison, conversion, lookup, pointwise

INF, NAN = float("inf"), float("nan")


def call(name, *args, **kwargs):
    """The registered operator as an eager call of torchax makes it: check, then run."""
    op = lookup(f"aten::{name}")
    if op.check is not None:
        op.check(*args, **kwargs)
    return op.fn(*args, **kwargs)


def expect(result, values, dtype):
    assert result.dtype == np.dtype(dtype)
    assert not result.aval.weak_type
    np.testing.assert_allclose(np.asarray(result).astype("complex64"), np.asarray(values, "complex64"), rtol=1e-6)


def array(values, dtype="float32"):
    return jnp.asarray(values, dtype)


def ints(*values):
    return array(values, "int32")


@pytest.mark.parametrize(
    ("name", "args", "values", "dtype"),
    [
        ("add.Tensor", (array([1, 2]), 2.5), [3.5, 4.5], "float32"),
        ("add.Tensor", (ints(1, 2), 2.5), [3.5, 4.5], "float32"),
        ("add.Tensor", (ints(1, 2), array(2.5)), [3.5, 4.5], "float32"),
        ("add.Tensor", (array([True, False], bool), array([True, False], bool)), [True, False], "bool"),
        ("add.Tensor", (array([255], "uint8"), 1), [0], "uint8"),
        ("add.Tensor", (array([1], "bfloat16"), array([1], "float16")), [2], "float32"),
        ("mul.Tensor", (array([True], bool), 3), [3], "int32"),
        ("mul.Tensor", (array([2]), 1j), [2j], "complex64"),
        ("div.Tensor", (ints(7, -7), 2), [3.5, -3.5], "float32"),
        ("div.Tensor", (array([True], bool), array([True], bool)), [1], "float32"),
        ("floor_divide", (ints(7, -7, 7, -7), ints(2, 2, -2, -2)), [3, -4, -4, 3], "int32"),
        ("floor_divide", (array([7.5, -7.5, 1]), array([2, 2, 0])), [3, -4, INF], "float32"),
        ("remainder.Tensor", (ints(7, -7, 7, -7), ints(3, 3, -3, -3)), [1, 2, -2, -1], "int32"),
        ("remainder.Scalar_Tensor", (-7, array([3.0, -4.0])), [2, -3], "float32"),
        ("fmod.Tensor", (ints(7, -7, 7, -7), ints(3, 3, -3, -3)), [1, -1, 1, -1], "int32"),
        ("pow.Tensor_Scalar", (ints(3, -2), 3), [27, -8], "int32"),
        ("pow.Tensor_Tensor", (ints(3, 1, -1, -1), ints(-1, -1, -1, -2)), [0, 1, -1, 1], "int32"),
        ("pow.Tensor_Scalar", (array([3], "int16"), 32767), [-21845], "int16"),
        ("pow.Scalar", (2, array([-1.0, 3.0])), [0.5, 8], "float32"),
        ("pow.Tensor_Scalar", (array([True], bool), 2), [1], "int32"),
        ("rsub.Scalar", (array([1, 2]), 5, 2), [3, 1], "float32"),
        ("gcd", (array([12, -18, 0, -128], "int8"), array([18, 12, 5, 96], "int8")), [6, 6, 5, 32], "int8"),
        ("lcm", (ints(4, -6, 0), ints(6, 4, 3)), [12, 12, 0], "int32"),
        ("lerp.Scalar", (array([0, 10]), array([10, 20]), 0.25), [2.5, 12.5], "float32"),
        ("addcmul", (ints(1, 1), ints(2, 3), ints(4, 5)), [9, 16], "int32"),
        ("addcdiv", (array([1, 1]), array([1, 3]), array([2, 4])), [1.5, 1.75], "float32"),
        ("round", (array([0.5, 1.5, 2.5, -0.5]),), [0, 2, 2, 0], "float32"),
        ("round", (ints(3),), [3], "int32"),
        ("sign", (array([-3, 0, NAN]),), [-1, 0, 0], "float32"),
        ("sign", (array([True], bool),), [True], "bool"),
        ("sgn", (array([3 + 4j, 0], "complex64"),), [0.6 + 0.8j, 0], "complex64"),
        ("abs", (array([3 + 4j], "complex64"),), [5], "float32"),
        ("angle", (array([-1.0, 2.0, NAN]),), [np.pi, 0, NAN], "float32"),
        ("angle", (array([1j], "complex64"),), [np.pi / 2], "float32"),
        ("signbit", (array([-0.0, 0.0, -1.0]),), [True, False, True], "bool"),
        ("square", (array([True], bool),), [1], "int32"),
        ("sqrt", (ints(4),), [2], "float32"),
        ("nan_to_num", (array([NAN, INF, -INF]), 1.0, 2.0), [1, 2, np.finfo("float32").min], "float32"),
        ("ldexp.Tensor", (array([1.5, 1e-30]), ints(2, 140)), [6, 1.3937966e12], "float32"),
        ("ldexp.Tensor", (array([3], "float16"), ints(2)), [12], "float16"),
        ("copysign.Tensor", (ints(1, 2), array([-0.0, 1.0])), [-1, 2], "float32"),
        ("hypot", (array([3.0]), array([4.0])), [5], "float32"),
        ("logaddexp", (array([-INF, 0.0]), array([-INF, 0.0])), [-INF, np.log(2)], "float32"),
        ("eq.Scalar", (ints(1, 2), 2), [False, True], "bool"),
        ("lt.Tensor", (array([1.0, NAN]), array([2.0, 2.0])), [True, False], "bool"),
        ("logical_and", (ints(256), array([0.5])), [True], "bool"),
        ("logical_not", (array([0.0, NAN]),), [True, False], "bool"),
        ("isposinf", (array([INF, -INF, 1]),), [True, False, False], "bool"),
        ("isfinite", (ints(1, 2),), [True, True], "bool"),
        ("maximum", (array([1, NAN]), array([NAN, 1])), [NAN, NAN], "float32"),
        ("fmax", (array([1, NAN, NAN]), array([NAN, 1, NAN])), [1, 1, NAN], "float32"),
        ("heaviside", (array([-1, 0, 2, NAN]), array([0.5])), [0, 0.5, 1, 0], "float32"),
        ("clamp", (ints(1, 5), 2.5), [2.5, 5], "float32"),
        ("clamp", (array([-1, NAN, 9]), 0, 3), [0, NAN, 3], "float32"),
        ("clamp", (array([1.0, 2.0]), NAN), [NAN, NAN], "float32"),
        ("clamp", (array([1.0]), 3, 2), [2], "float32"),
        ("clamp.Tensor", (array([1, 5]), None, array([3, 3])), [1, 3], "float32"),
        ("where.self", (array([True, False], bool), ints(1, 2), array([1.5, 2.5])), [1, 2.5], "float32"),
        ("where.ScalarSelf", (array([1, 0], "uint8"), 7, array([1, 2], "uint8")), [7, 2], "uint8"),
        ("bitwise_not", (array([True, False], bool),), [False, True], "bool"),
        ("bitwise_and.Scalar_Tensor", (6, array([3], "uint8")), [2], "uint8"),
        ("bitwise_left_shift.Tensor", (ints(1, 1, 1, 1), ints(3, 31, 32, -1)), [8, -(2**31), 0, 0], "int32"),
        ("bitwise_right_shift.Tensor", (ints(-8, -8, -8, 8), ints(1, 32, -1, 99)), [-4, -1, -1, 0], "int32"),
        ("__rshift__.Scalar", (array([200], "uint8"), 8), [0], "uint8"),
        ("fill.Scalar", (ints(1, 2), 2.7), [2, 2], "int32"),
        ("fill.Tensor", (array([1, 2]), array(3, "int32")), [3, 3], "float32"),
        ("copy", (array([[0, 0], [0, 0]]), ints(1, 2)), [[1, 2], [1, 2]], "float32"),
        ("complex", (array([1.0]), array([2.0])), [1 + 2j], "complex64"),
        ("polar", (array([2.0]), array([np.pi])), [-2], "complex64"),
        ("conj", (array([1 + 2j], "complex64"),), [1 - 2j], "complex64"),
        ("imag", (array([1 + 2j], "complex64"),), [2], "float32"),
    ],
)  # fmt: skip
def test_value_and_dtype(name, args, values, dtype):
    op = lookup(f"aten::{name}")
    if op.check is not None:
        op.check(*args)
    expect(jax.jit(op.fn)(*args), values, dtype)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "error"),
    [
        ("add.Tensor", (array([1, 2]), array([1, 2, 3])), {}, RuntimeError),
        ("add.Tensor", (ints(1), 1), {"alpha": 2.0}, RuntimeError),
        ("add.Tensor", (ints(1), 1), {"alpha": True}, RuntimeError),
        ("add.Tensor", (array([1]), 1), {"alpha": 1j}, RuntimeError),
        ("sub.Tensor", (array([True], bool), array([True], bool)), {}, RuntimeError),
        ("sub.Tensor", (array([1.0]), True), {}, RuntimeError),
        ("neg", (array([True], bool),), {}, RuntimeError),
        ("floor_divide", (ints(1), ints(0)), {}, RuntimeError),
        ("remainder.Scalar", (ints(1), 0), {}, RuntimeError),
        ("div.Tensor_mode", (ints(1), 0), {"rounding_mode": "floor"}, RuntimeError),
        ("div.Tensor_mode", (array([1.0]), 2), {"rounding_mode": "up"}, RuntimeError),
        ("pow.Tensor_Scalar", (ints(1), -1), {}, RuntimeError),
        ("floor", (array([1j], "complex64"),), {}, NotImplementedError),
        ("bitwise_and.Tensor", (array([1.0]), array([1.0])), {}, NotImplementedError),
        ("lt.Tensor", (array([1j], "complex64"), 1), {}, NotImplementedError),
        ("maximum", (array([1j], "complex64"), array([1.0])), {}, RuntimeError),
        ("addcdiv", (array([1.0]), ints(1), ints(1)), {}, RuntimeError),
        ("lerp.Tensor", (array([1.0]), ints(1), array([1.0])), {}, RuntimeError),
        ("heaviside", (array([1.0]), ints(1)), {}, RuntimeError),
        ("frexp.Tensor", (ints(1),), {}, RuntimeError),
        ("clamp", (array([1.0]),), {}, RuntimeError),
        ("where.self", (array([1.0]), array([1.0]), array([1.0])), {}, RuntimeError),
        ("copy", (array([1.0]), array([1.0, 2.0])), {}, RuntimeError),
        ("fill.Tensor", (array([1.0]), array([1.0])), {}, RuntimeError),
        ("fill.Scalar", (array([1.0]), 2j), {}, RuntimeError),
        ("complex", (array([1.0]), ints(1)), {}, RuntimeError),
        ("imag", (array([1.0]),), {}, RuntimeError),
        ("round.decimals", (ints(12),), {"decimals": -1}, NotImplementedError),
    ],
)  # fmt: skip
def test_errors(name, args, kwargs, error):
    with pytest.raises(error):
        call(name, *args, **kwargs)


def test_keyword_arguments():
    expect(pointwise.add(array([1, 2]), array([3, 4]), alpha=2), [7, 10], "float32")
    expect(pointwise.addcdiv(array([1.0]), array([1.0]), array([4.0]), value=2), [1.5], "float32")
    expect(pointwise.div(ints(-7), 2, rounding_mode="trunc"), [-3], "int32")
    expect(pointwise.div(ints(-7), 2, rounding_mode="floor"), [-4], "int32")
    expect(pointwise.round_decimals(array([123.456]), decimals=-1), [120], "float32")
    expect(pointwise.round_decimals(array([1.25]), decimals=1), [1.2], "float32")


def test_float_operators_round_16_bits_once():
    x = array([1.0, 256.0], "bfloat16")
    assert pointwise.add(x, 0.00390625).dtype == jnp.bfloat16
    assert pointwise.remainder(x[:1], 0.1)[0] == jnp.asarray(0.0991, "bfloat16")
    assert pointwise.exp(x[:1])[0] == jnp.asarray(np.exp(1.0), "bfloat16")


@pytest.mark.parametrize(("name", "z", "w"), [
    ("sqrt", complex(-4, -0.0), -2j),
    ("sqrt", complex(-4, 0.0), 2j),
    ("asin", complex(2, -0.0), complex(np.pi / 2, -1.3169579)),
    ("acos", complex(2, -0.0), 1.3169579j),
    ("acosh", complex(-2, -0.0), complex(1.3169579, -np.pi)),
    ("asinh", complex(-0.0, 2), complex(-1.3169579, np.pi / 2)),
])  # fmt: skip
def test_sign_of_zero_chooses_the_side_of_a_branch_cut(name, z, w):
    np.testing.assert_allclose(getattr(pointwise, name)(array([z], "complex64")), [w], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("fn", "x", "slope"), [
    (pointwise.abs, 0.0, 0.0),
    (lambda x: pointwise.pow(x, array(0.0)), 0.0, 0.0),
    (lambda x: pointwise.pow(array(0.0), x), 2.0, 0.0),
    (lambda x: pointwise.logaddexp(x, array(INF)), 1.0, 0.0),
    (lambda x: pointwise.atan2(x, array(0.0)), 0.0, 0.0),
    (lambda x: comparison.clamp(x, 1.0, 2.0), 1.0, 1.0),
    (lambda x: comparison.maximum(x, array(1.0)), 1.0, 0.5),
    (lambda x: comparison.fmax(x, array(1.0)), 1.0, 1.0),
    (lambda x: pointwise.remainder(x, 3.0), 5.0, 1.0),
    (lambda x: comparison.where(x > 0, x, 0.0), 2.0, 1.0),
])  # fmt: skip
def test_gradient_at_the_kinks(fn, x, slope):
    assert jax.grad(fn)(array(x)) == slope


def test_forward_derivative_of_a_power_of_a_negative_number():
    x = array([-2.0, 3.0])
    _, slope = jax.jvp(lambda x: pointwise.pow(x, 2), (x,), (x,))
    np.testing.assert_array_equal(slope, [8, 18])


def test_vmap_empty_and_0d():
    x = jnp.arange(6.0, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(jax.vmap(pointwise.add, (0, None))(x, x[0]), x + x[0])
    assert jax.vmap(pointwise.gcd)(jnp.arange(4, dtype="int32"), jnp.arange(4, dtype="int32")).shape == (4,)
    assert pointwise.add(jnp.zeros((0, 3), "float32"), jnp.ones((3,), "float32")).shape == (0, 3)
    assert pointwise.exp(array(0.0)).shape == ()
    assert comparison.equal(jnp.zeros((0,)), jnp.zeros((0,)))
    assert not comparison.equal(jnp.zeros((2,)), jnp.zeros((3,)))


def test_isin():
    x = array([1, 2, NAN])
    np.testing.assert_array_equal(comparison.isin(x, array([[2, NAN], [5, 0]])), [False, True, False])
    np.testing.assert_array_equal(comparison.isin(x, ints(), invert=True), [True, True, True])
    np.testing.assert_array_equal(comparison.isin_tensor_scalar(x, 1), [True, False, False])
    assert comparison.isin_scalar_tensor(2, ints(1, 2))


def test_frexp():
    mantissa, exponent = pointwise.frexp(array([3.0, 0.0]))
    np.testing.assert_array_equal(mantissa, [0.75, 0])
    np.testing.assert_array_equal(exponent, [2, 0])
    assert exponent.dtype == np.int32


def test_small_integers_wrap_when_floats_are_converted():
    x = array([-1.0, 300.0, 2.7])
    np.testing.assert_array_equal(conversion._to_copy(x, dtype="uint8"), [255, 44, 2])
    np.testing.assert_array_equal(conversion._to_copy(x, dtype="int8"), [-1, 44, 2])
    assert conversion._to_copy(array([1 + 2j], "complex64"), dtype="float32") == 1
    assert conversion._to_copy(array([2j], "complex64"), dtype="bool")


@pytest.mark.parametrize("x64", [False, True])
def test_64_bits(x64):
    with jax.enable_x64(x64):
        wide = "float64" if x64 else "float32"
        long = "int64" if x64 else "int32"
        x = jnp.asarray([1.0, 2.0], "float32")
        assert pointwise.add(x, 1.5).dtype == np.float32
        assert pointwise.deg2rad(x).dtype == np.float32
        assert pointwise.add(jnp.asarray([True]), 1).dtype == np.dtype(long)
        assert pointwise.float_power(x, 2).dtype == np.dtype(wide)
        assert bitwise.bitwise_left_shift(jnp.asarray([1], long), 2).dtype == np.dtype(long)
        assert conversion._to_copy(x, dtype="int64").dtype == np.dtype(long)
        assert conversion.fill(jnp.asarray([1], long), 2.0).dtype == np.dtype(long)
        if x64:
            assert pointwise.add(jnp.asarray([2**40], "int64"), 1)[0] == 2**40 + 1

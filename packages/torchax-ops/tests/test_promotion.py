"""PyTorch's promotion and conversion, from literal tables that torch 2.13.0 answered."""

import functools
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops import default_float_dtype, promote_types, result_type
from torchax_ops._promotion import (
    Kind,
    canonical,
    cast,
    category,
    dtype_of,
    elementwise_dtypes,
    is_number,
    opmath,
    promoted,
)

CODES = {
    "b": "bool",
    "u1": "uint8",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "f2": "float16",
    "bf": "bfloat16",
    "f4": "float32",
    "f8": "float64",
    "c8": "complex64",
    "c16": "complex128",
    "q": "float8_e4m3fn",
}
DTYPES = [jnp.dtype(name) for name in CODES.values()]
# torch.promote_types(row, column), the columns in the order of the rows; "-" raises.
PROMOTE_TYPES = """
b   u1  i1  i2  i4  i8  -   -   -   f2  bf  f4  f8  c8  c16 -
u1  u1  i2  i2  i4  i8  -   -   -   f2  bf  f4  f8  c8  c16 -
i1  i2  i1  i2  i4  i8  -   -   -   f2  bf  f4  f8  c8  c16 -
i2  i2  i2  i2  i4  i8  -   -   -   f2  bf  f4  f8  c8  c16 -
i4  i4  i4  i4  i4  i8  -   -   -   f2  bf  f4  f8  c8  c16 -
i8  i8  i8  i8  i8  i8  -   -   -   f2  bf  f4  f8  c8  c16 -
-   -   -   -   -   -   u2  -   -   f2  bf  f4  f8  -   -   -
-   -   -   -   -   -   -   u4  -   f2  bf  f4  f8  -   -   -
-   -   -   -   -   -   -   -   u8  f2  bf  f4  f8  -   -   -
f2  f2  f2  f2  f2  f2  f2  f2  f2  f2  f4  f4  f8  c8  c16 -
bf  bf  bf  bf  bf  bf  bf  bf  bf  f4  bf  f4  f8  c8  c16 -
f4  f4  f4  f4  f4  f4  f4  f4  f4  f4  f4  f4  f8  c8  c16 -
f8  f8  f8  f8  f8  f8  f8  f8  f8  f8  f8  f8  f8  c16 c16 -
c8  c8  c8  c8  c8  c8  -   -   -   c8  c8  c8  c16 c8  c16 -
c16 c16 c16 c16 c16 c16 -   -   -   c16 c16 c16 c16 c16 c16 -
-   -   -   -   -   -   -   -   -   -   -   -   -   -   -   q
"""
# torch.result_type(row with a dimension, 0-d column). float16 with complex is complex32 there, which JAX has not.
DIM_WITH_ZERO_DIM = """
b   u1  i1  i2  i4  i8  -   -   -   f2  bf  f4  f8  c8  c16 -
u1  u1  u1  u1  u1  u1  u1  u1  u1  f2  bf  f4  f8  c8  c16 -
i1  i1  i1  i1  i1  i1  i1  i1  i1  f2  bf  f4  f8  c8  c16 -
i2  i2  i2  i2  i2  i2  i2  i2  i2  f2  bf  f4  f8  c8  c16 -
i4  i4  i4  i4  i4  i4  i4  i4  i4  f2  bf  f4  f8  c8  c16 -
i8  i8  i8  i8  i8  i8  i8  i8  i8  f2  bf  f4  f8  c8  c16 -
u2  u2  u2  u2  u2  u2  u2  u2  u2  f2  bf  f4  f8  c8  c16 -
u4  u4  u4  u4  u4  u4  u4  u4  u4  f2  bf  f4  f8  c8  c16 -
u8  u8  u8  u8  u8  u8  u8  u8  u8  f2  bf  f4  f8  c8  c16 -
f2  f2  f2  f2  f2  f2  f2  f2  f2  f2  f2  f2  f2  -   -   f2
bf  bf  bf  bf  bf  bf  bf  bf  bf  bf  bf  bf  bf  c8  c8  bf
f4  f4  f4  f4  f4  f4  f4  f4  f4  f4  f4  f4  f4  c8  c8  f4
f8  f8  f8  f8  f8  f8  f8  f8  f8  f8  f8  f8  f8  c16 c16 f8
c8  c8  c8  c8  c8  c8  c8  c8  c8  c8  c8  c8  c8  c8  c8  c8
c16 c16 c16 c16 c16 c16 c16 c16 c16 c16 c16 c16 c16 c16 c16 c16
q   q   q   q   q   q   q   q   q   q   q   q   q   -   -   q
"""
# torch.result_type(row, number) for True, 1, 1.5 and 1j: with a dimension and 0-d alike.
WITH_NUMBER = """
b   i8  f4  c8
u1  u1  f4  c8
i1  i1  f4  c8
i2  i2  f4  c8
i4  i4  f4  c8
i8  i8  f4  c8
u2  u2  f4  c8
u4  u4  f4  c8
u8  u8  f4  c8
f2  f2  f2  -
bf  bf  bf  c8
f4  f4  f4  c8
f8  f8  f8  c16
c8  c8  c8  c8
c16 c16 c16 c16
q   q   q   -
"""


def cells(table, columns):
    for row, line in zip(DTYPES, table.strip().splitlines(), strict=True):
        for column, code in zip(columns, line.split(), strict=True):
            yield row, column, None if code == "-" else jnp.dtype(CODES[code])


def agrees(fn, a, b, expected):
    for pair in ((a, b), (b, a)):
        if expected is None:
            with pytest.raises(RuntimeError, match=r"not supported|no complex dtype"):
                fn(*pair)
        else:
            assert fn(*pair) == expected, (pair, expected)


@pytest.mark.parametrize("x64", [True, False])
def test_promote_types(x64):
    with jax.enable_x64(x64):
        for a, b, expected in cells(PROMOTE_TYPES, DTYPES):
            agrees(promote_types, a, b, expected)


@functools.cache
def array(shape, dtype):
    return jnp.asarray(np.zeros(shape, dtype))


@pytest.mark.parametrize("make", [array, np.zeros])
def test_result_type_of_arrays(make):
    with jax.enable_x64(True):
        for a, b, expected in cells(PROMOTE_TYPES, DTYPES):
            agrees(result_type, make((2,), a), make((3, 1), b), expected)
            agrees(result_type, make((), a), make((), b), expected)
        for a, b, expected in cells(DIM_WITH_ZERO_DIM, DTYPES):
            agrees(result_type, make((0, 2), a), make((), b), expected)


def test_numpy_scalars_are_zero_dimensional():
    with jax.enable_x64(True):
        assert result_type(np.float64(1), jnp.ones(2, np.float32)) == np.float32
        assert result_type(np.float64(1), np.float32(1)) == np.float64
        assert not is_number(np.float64(1))
        assert not is_number(np.complex128(1))


@pytest.mark.parametrize("shape", [(2,), ()])
def test_result_type_with_numbers(shape):
    with jax.enable_x64(True):
        for a, number, expected in cells(WITH_NUMBER, [True, 1, 1.5, 1j]):
            agrees(result_type, array(shape, a), number, expected)


def test_a_traced_number_is_a_number():
    numbers = [True, 1, 1.5, 1j]
    arrays = {code: jnp.zeros(2, CODES[code]) for code in ("b", "u1", "i2", "i4", "bf", "f4", "c8")}
    seen = {}

    def trace(arrays, numbers):
        seen.update({code: [result_type(x, n).name for n in numbers] for code, x in arrays.items()})

    with jax.enable_x64(True):
        jax.jit(trace)(arrays, numbers)
    expected = dict(zip(CODES, (line.split() for line in WITH_NUMBER.strip().splitlines())))
    assert seen == {code: [CODES[c] for c in expected[code]] for code in arrays}


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [((True, False), "bool"), ((True, 1), "int64"), ((1, 1.5), "float32"), ((1.5, 1j), "complex64")],
)
def test_result_type_of_numbers(numbers, expected):
    with jax.enable_x64(True):
        assert result_type(*numbers) == expected
        assert jax.jit(lambda a, b: jnp.zeros((), result_type(a, b)))(*numbers).dtype == expected


def test_three_priorities_combine():
    with jax.enable_x64(True):
        dim, zero = jnp.zeros(2, np.int16), jnp.zeros((), np.float64)
        assert result_type(dim, zero, 1j) == np.complex128
        assert result_type(dim, jnp.zeros((), np.int64), 1.5) == np.float32
        assert result_type(dim, None, 1) == np.int16
        assert result_type(jnp.zeros(2, np.bool_), jnp.zeros((), np.uint8), 7) == np.uint8
        assert result_type(dim, jnp.zeros(1, np.int32), jnp.zeros((), np.int64)) == np.int32
    with pytest.raises(TypeError, match="at least one"):
        result_type(None)


@pytest.mark.parametrize(("default", "complex_"), [("float64", "complex128"), ("bfloat16", "complex64")])
def test_default_float(default, complex_):
    with jax.enable_x64(True), default_float_dtype(default):
        assert dtype_of(1.5) == default
        assert dtype_of(1j) == complex_
        assert result_type(jnp.zeros(2, np.int8), 1.5) == default
        assert elementwise_dtypes(jnp.zeros(2, np.int8), kind=Kind.INT_TO_FLOAT)[1] == default
    assert dtype_of(1.5) == np.float32


def test_without_x64_nothing_is_wide():
    with jax.enable_x64(False), default_float_dtype("float64"):
        assert canonical("int64") == np.int32
        assert canonical("complex128") == np.complex64
        assert dtype_of(1) == np.int32
        assert dtype_of(1.5) == np.float32
        assert dtype_of(1j) == np.complex64
        for dtype in DTYPES:
            assert dtype_of(np.zeros(2, dtype)) == canonical(dtype)
            if category(dtype) < 2 or dtype.name != "float8_e4m3fn":
                assert cast(np.zeros(2, np.float32), dtype).dtype == canonical(dtype)
        assert elementwise_dtypes(jnp.zeros(2, np.bool_), kind=Kind.BOOL_TO_LONG) == (np.int32, np.int32)


@pytest.mark.parametrize("x64", [True, False])
def test_no_conversion_warns_or_stays_weak(x64):
    sources = [np.ones((2, 1), dtype) for dtype in DTYPES] + [True, 1, 1.5, 1j]
    with jax.enable_x64(x64), warnings.catch_warnings():
        warnings.simplefilter("error")
        for target in DTYPES:
            for out in jax.eval_shape(lambda xs, t=target: [cast(x, t) for x in xs], sources):
                assert out.dtype == canonical(target)
                assert not out.weak_type
        for number, target in itertools.product([True, 1, 1.5, 1j], ["int64", "uint64", "float64", "complex128"]):
            out = cast(number, target)
            assert (out.dtype, out.aval.weak_type) == (canonical(target), False)


@pytest.mark.parametrize("x64", [True, False])
def test_floating_to_integer_wraps(x64):
    values = np.array([-1.5, 300.7, -129.0, 40000.0], np.float32)
    with jax.enable_x64(x64):
        assert cast(values, np.uint8).tolist() == [255, 44, 127, 64]
        assert cast(values, np.int8).tolist() == [-1, 44, 127, 64]
        assert cast(values, np.int16).tolist() == [-1, 300, -129, -25536]
        assert cast(values, np.uint16).tolist() == [65535, 300, 65407, 40000]
        assert cast(values, np.uint32).tolist() == [2**32 - 1, 300, 2**32 - 129, 40000]
        assert cast(values, np.int32).tolist() == [-1, 300, -129, 40000]
    with jax.enable_x64(True):
        assert cast(values, np.uint64).tolist() == [2**64 - 1, 300, 2**64 - 129, 40000]
        assert cast(2**64 - 1, np.uint64).tolist() == 2**64 - 1
        assert cast(np.float32(1e19), np.uint64).tolist() == 9999999980506447872


def test_other_conversions():
    assert cast(np.array([1 + 2j, 2j, 0], np.complex64), np.float32).tolist() == [1, 0, 0]
    assert cast(np.array([1 + 2j, 2j, 0], np.complex64), np.bool_).tolist() == [True, True, False]
    assert cast(np.array([0.5, np.nan, 0], np.float32), np.bool_).tolist() == [True, True, False]
    eight = cast(np.array([500, np.inf, -np.inf, 0.1], np.float32), jnp.float8_e4m3fn)
    assert cast(eight, np.float32).tolist() == [448, 448, -448, 0.1015625]
    powers = cast(np.array([1.4, 1.5, -6, 0, np.inf], np.float32), jnp.float8_e8m0fnu)
    np.testing.assert_array_equal(cast(powers, np.float32), np.float32([1, 2, 8, 2.0**-127, np.nan]))


def test_opmath():
    assert [opmath(t).name for t in ("float16", "bfloat16", "float32", "float64", "int8", "bool")] == [
        "float32",
        "float32",
        "float32",
        "float64",
        "int8",
        "bool",
    ]


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        (Kind.DEFAULT, "bfloat16", ("float32", "bfloat16")),
        (Kind.DEFAULT, "int8", ("int8", "int8")),
        (Kind.NO_OPMATH, "float16", ("float16", "float16")),
        (Kind.INT_TO_FLOAT, "bool", ("float32", "float32")),
        (Kind.INT_TO_FLOAT, "float16", ("float32", "float16")),
        (Kind.ALWAYS_BOOL, "int64", ("int64", "bool")),
        (Kind.COMPLEX_TO_FLOAT, "complex64", ("complex64", "float32")),
        (Kind.COMPLEX_TO_FLOAT, "complex128", ("complex128", "float64")),
        (Kind.COMPLEX_TO_FLOAT, "int32", ("int32", "int32")),
        (Kind.BOOL_TO_LONG, "bool", ("int64", "int64")),
        (Kind.BOOL_TO_LONG, "uint8", ("uint8", "uint8")),
    ],
)
def test_elementwise_dtypes(kind, dtype, expected):
    with jax.enable_x64(True):
        assert elementwise_dtypes(jnp.zeros(2, dtype), kind=kind) == expected


def test_promoted_function():
    @promoted("a", "b")
    def add(a, b=None, *, alpha=2):
        assert a.dtype == np.float32
        return (a if b is None else a + b * jnp.asarray(alpha, a.dtype)), a

    with jax.enable_x64(True):
        total, first = add(jnp.ones(2, jnp.bfloat16), 1.5)
        assert (total.dtype, first.dtype) == (jnp.bfloat16, jnp.bfloat16)
        assert total.tolist() == [4, 4]
        assert add(a=jnp.ones(2, jnp.float16))[0].dtype == np.float16
        assert jax.grad(lambda x: add(x, x)[0].sum())(jnp.ones(2, np.float32)).tolist() == [3, 3]

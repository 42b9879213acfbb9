"""PyTorch's type promotion on JAX dtypes.

PyTorch promotes by *category* (bool < integer < floating < complex) and by *priority* (arrays with dimensions, then
0-d arrays, then Python numbers): a lower priority changes the result only when its category is higher. A number is
a Python ``bool``, ``int``, ``float`` or ``complex``, or a weakly typed 0-d JAX value (a number under a trace).

Source: https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

F = TypeVar("F", bound=Callable[..., Any])
DType = np.dtype
Number = bool | int | float | complex

_default_float: contextvars.ContextVar[str] = contextvars.ContextVar("default_float", default="float32")
_BOOL, _INT, _FLOAT, _COMPLEX = range(4)
_WIDE = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def default_float() -> DType:
    """The dtype of a Python float, ``torch.get_default_dtype()``: float32 unless `default_float_dtype` changes it."""
    return canonical(_default_float.get())


@contextlib.contextmanager
def default_float_dtype(dtype: Any) -> Iterator[None]:
    """A context in which Python floats have ``dtype`` (``torch.set_default_dtype``)."""
    token = _default_float.set(np.dtype(dtype).name)
    try:
        yield
    finally:
        _default_float.reset(token)


def canonical(dtype: Any) -> DType:
    """``dtype`` as JAX can hold it now: a 64-bit dtype becomes its 32-bit one where JAX's x64 flag is off."""
    dtype = np.dtype(dtype)
    if not jax.config.jax_enable_x64 and dtype.name in _WIDE:  # type: ignore[attr-defined]
        return np.dtype(_WIDE[dtype.name])
    return dtype


def category(dtype: Any) -> int:
    """0 bool, 1 integer, 2 floating, 3 complex."""
    if dtype == np.bool_:
        return _BOOL
    if jnp.issubdtype(dtype, jnp.integer):
        return _INT
    return _COMPLEX if jnp.issubdtype(dtype, jnp.complexfloating) else _FLOAT


def is_bool(x: Any) -> bool:
    return category(dtype_of(x)) == _BOOL


def is_integer(x: Any) -> bool:
    """True for integers, and not for bool."""
    return category(dtype_of(x)) == _INT


def is_floating(x: Any) -> bool:
    return category(dtype_of(x)) == _FLOAT


def is_complex(x: Any) -> bool:
    return category(dtype_of(x)) == _COMPLEX


def is_number(x: Any) -> bool:
    """Whether ``x`` promotes as a Python number does."""
    if isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic):
        return True
    return isinstance(x, jax.Array) and x.ndim == 0 and x.aval.weak_type  # type: ignore[attr-defined]


def _complex_of(dtype: DType) -> DType:
    """The complex dtype of a floating one, in which bfloat16 has float32 parts, as in PyTorch."""
    if dtype.itemsize < 4 and dtype.name != "bfloat16":
        raise RuntimeError(f"{dtype.name} has no complex dtype in JAX (PyTorch's complex32): convert to float32 first")
    return np.dtype("complex128" if dtype == np.float64 else "complex64")


def _real_of(dtype: DType) -> DType:
    return np.dtype("float64" if dtype == np.complex128 else "float32")


def dtype_of(x: Any) -> DType:
    """The dtype PyTorch gives ``x``: for a number bool, int64, the default float or its complex.

    A numpy array has the dtype JAX will give it: 64 bits follow the x64 flag.
    """
    if not is_number(x):
        return np.dtype(x.dtype) if isinstance(x, jax.Array) else canonical(x.dtype)
    kind = category(x.dtype) if isinstance(x, jax.Array) else category(np.dtype(type(x)))
    if kind == _COMPLEX:
        return _complex_of(default_float())
    return (np.dtype("bool"), canonical("int64"), default_float())[kind]


def promote_types(a: Any, b: Any) -> DType:
    """The smallest dtype that PyTorch converts both to (``torch.promote_types``).

    Raises:
        RuntimeError: PyTorch promotes no such pair (a float8 with another type, a wide unsigned with a signed integer).
    """
    a, b = np.dtype(a), np.dtype(b)
    if a == b:
        return a
    ca, cb = category(a), category(b)
    if ca > cb:
        a, b, ca, cb = b, a, cb, ca
    if a.name.startswith("float8") or b.name.startswith("float8"):
        raise RuntimeError(f"Promotion for Float8 Types is not supported, attempted to promote {a.name} and {b.name}")
    if cb != _FLOAT and any(d.kind == "u" and d.itemsize > 1 for d in (a, b)):
        raise RuntimeError(
            f"Promotion for uint16, uint32, uint64 types is not supported, attempted to promote {a.name} and {b.name}"
        )
    if ca == _BOOL or (ca == _INT and cb > _INT):
        return b
    if ca == _INT:
        if a.kind == b.kind:
            return a if a.itemsize >= b.itemsize else b
        signed = b if a.kind == "u" else a
        return signed if signed.itemsize > 1 else np.dtype("int16")
    if cb == _COMPLEX:
        if ca == _COMPLEX:
            return np.dtype("complex128")
        return np.dtype("complex128") if a == np.float64 else b
    return np.dtype("float32") if a.itemsize == b.itemsize else (a if a.itemsize > b.itemsize else b)


def _combine(high: DType | None, low: DType | None) -> DType | None:
    if high is None or low is None:
        return low if high is None else high
    if category(high) == _FLOAT:
        return _complex_of(high) if category(low) == _COMPLEX else high
    if category(low) == _COMPLEX and high.kind == "u":  # PyTorch refuses this pair only between equal priorities
        return low
    return promote_types(high, low) if category(low) > category(high) else high


def result_type(*args: Any) -> DType:
    """The dtype of an operation on arrays, 0-d arrays and numbers (``torch.result_type``). ``None`` is skipped."""
    by_priority: list[DType | None] = [None, None, None]
    for x in args:
        if x is None:
            continue
        priority = 2 if is_number(x) else (1 if np.ndim(x) == 0 else 0)
        seen, dtype = by_priority[priority], dtype_of(x)
        by_priority[priority] = dtype if seen is None else promote_types(seen, dtype)
    result = functools.reduce(lambda low, high: _combine(high, low), reversed(by_priority))
    if result is None:
        raise TypeError("result_type: at least one array or number is needed")
    return result


def opmath(dtype: Any) -> DType:
    """The dtype PyTorch computes in: float32 for 16-bit floats, else ``dtype`` itself."""
    dtype = np.dtype(dtype)
    return np.dtype("float32") if dtype.itemsize < 4 and category(dtype) == _FLOAT else dtype


def cast(x: Any, dtype: Any) -> jax.Array:
    """``x`` as a strongly typed array of ``dtype``, converted as PyTorch converts.

    Complex to real takes the real part; floating to a narrow or unsigned integer wraps (-1.0 becomes 255 as uint8),
    where JAX alone would clip; float8_e4m3fn clips at 448; float8_e8m0fnu keeps the magnitude's power of two; 64-bit
    follows JAX's x64 flag. Use this, never ``astype`` with a 64-bit dtype.
    """
    dtype = canonical(dtype)
    x = jnp.asarray(np.asarray(x) if isinstance(x, int) else x)  # a number above int64's range is uint64
    if x.dtype == dtype and not x.aval.weak_type:  # type: ignore[attr-defined]
        return x
    if category(x.dtype) == _COMPLEX and category(dtype) != _COMPLEX:
        x = x != 0 if dtype == np.bool_ else x.real
    if category(dtype) == _INT and category(x.dtype) == _FLOAT and (dtype.itemsize < 4 or dtype.kind == "u"):
        signed = lax.convert_element_type(x, np.int32 if dtype.itemsize < 4 else canonical("int64"))
        wrapped = lax.convert_element_type(signed, dtype)
        return wrapped if dtype.itemsize < 4 else jnp.where(x < 0, wrapped, lax.convert_element_type(x, dtype))
    if dtype.name == "float8_e4m3fn":
        x = jnp.clip(lax.convert_element_type(x, np.float32), -448, 448)
    if dtype.name == "float8_e8m0fnu":
        return _to_exponent(lax.convert_element_type(x, np.float32))
    return lax.convert_element_type(x, dtype)


def _to_exponent(x: jax.Array) -> jax.Array:
    """float32 to float8_e8m0fnu: the nearest power of two to ``abs(x)``, ties upwards; 0 becomes the smallest, inf NaN.

    Source: the conversion in c10/util/Float8_e8m0fnu.h.
    """
    bits = lax.bitcast_convert_type(x, np.uint32)
    exponent = (bits >> 23) & 0xFF
    up = ((bits & 0x400000) != 0) & (((bits & 0x3FFFFF) != 0) | (exponent > 0)) & (exponent < 0xFF)
    return lax.bitcast_convert_type((exponent + up).astype(np.uint8), np.dtype("float8_e8m0fnu"))


class Kind(Enum):
    """How the arguments of an elementwise operator decide its computing and result dtypes.

    Source: https://github.com/pytorch/pytorch/blob/main/torch/_prims_common/__init__.py (the same names there).
    """

    DEFAULT = "compute in opmath, result in the promoted dtype"
    NO_OPMATH = "compute and result in the promoted dtype"
    INT_TO_FLOAT = "bool and integers become the default float"
    ALWAYS_BOOL = "compute in the promoted dtype, result bool"
    COMPLEX_TO_FLOAT = "complex results become real (abs, angle)"
    BOOL_TO_LONG = "bool becomes int64"


def elementwise_dtypes(*args: Any, kind: Kind) -> tuple[DType, DType]:
    """``(computing dtype, result dtype)`` for arguments under a promotion kind."""
    dtype = result_type(*args)
    if kind is Kind.INT_TO_FLOAT and category(dtype) < _FLOAT:
        dtype = default_float()
    elif kind is Kind.BOOL_TO_LONG and dtype == np.bool_:
        dtype = canonical("int64")
    compute = dtype if kind in (Kind.NO_OPMATH, Kind.ALWAYS_BOOL) else opmath(dtype)
    if kind is Kind.ALWAYS_BOOL:
        return compute, np.dtype("bool")
    if kind is Kind.COMPLEX_TO_FLOAT and category(dtype) == _COMPLEX:
        return compute, _real_of(dtype)
    return compute, dtype


def promoted(*names: str, kind: Kind = Kind.DEFAULT) -> Callable[[F], F]:
    """Promote the named arguments together before the function runs, and convert its result(s).

    The function sees arrays of one computing dtype (``None`` stays ``None``) and leaves the rest to JAX's
    broadcasting; its result is converted to the result dtype.
    """

    def decorate(fn: F) -> F:
        signature = inspect.signature(fn)

        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            given = {n: bound.arguments[n] for n in names if bound.arguments.get(n) is not None}
            compute, result = elementwise_dtypes(*given.values(), kind=kind)
            for name, value in given.items():
                bound.arguments[name] = cast(value, compute)
            out = fn(*bound.args, **bound.kwargs)
            return tuple(cast(o, result) for o in out) if isinstance(out, tuple) else cast(out, result)

        return wrapper  # type: ignore[return-value]

    return decorate

"""Reductions and scans: sum, mean, extrema, moments, norms, cumulative operators.

``dim`` is one dim or a list of dims; ``None`` reduces all. 16-bit floats accumulate in float32 and are rounded once.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchax_ops._promotion import canonical, cast, category, default_float, is_complex, is_floating, opmath
from torchax_ops._registry import exported, register
from torchax_ops._shapes import canonical_dim, canonical_dims

Dims = int | Sequence[int] | None


def _float_like(dtype: Any) -> bool:
    return category(dtype) >= 2


def _real_dtype(dtype: Any) -> Any:
    return jnp.finfo(dtype).dtype


def _no_complex(op: str, x: jax.Array) -> None:
    if is_complex(x):
        raise NotImplementedError(f"{op} is not implemented for complex arrays, but got {x.dtype.name}")


def _sum_dtype(x: jax.Array, dtype: Any) -> Any:
    if dtype is not None:
        return canonical(dtype)
    return x.dtype if _float_like(x.dtype) else canonical("int64")


def _count(x: jax.Array, dims: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dims)


# ---- sums and products


@register("sum", "sum.dim_IntList")
def sum(self: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    """Sum over ``dim``; bool and integers sum to int64 unless ``dtype`` is given."""
    dims, dtype = canonical_dims(dim, self.ndim), _sum_dtype(self, dtype)
    x = cast(cast(self, dtype), opmath(dtype))
    if dtype == jnp.bool_:
        return jnp.any(x, axis=dims, keepdims=keepdim)
    return cast(jnp.sum(x, axis=dims, keepdims=keepdim, dtype=x.dtype), dtype)


@register("nansum")
def nansum(self: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    """Sum over ``dim`` with NaN counted as zero; raises for complex arrays."""
    if is_complex(self):
        raise RuntimeError("nansum does not support complex inputs")
    x = jnp.where(jnp.isnan(self), jnp.zeros((), self.dtype), self) if is_floating(self) else self
    return sum(x, dim, keepdim, dtype=dtype)


@register("mean", "mean.dim")
def mean(self: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    """Mean over ``dim``, NaN over no elements.

    Raises:
        RuntimeError: the array (or ``dtype``) is neither floating nor complex.
    """
    dtype = canonical(dtype or self.dtype)
    if not _float_like(dtype):
        raise RuntimeError(
            f"mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. "
            f"Got: {dtype.name}; pass dtype="
        )
    dims = canonical_dims(dim, self.ndim)
    x = cast(cast(self, dtype), opmath(dtype))
    total = jnp.sum(x, axis=dims, keepdims=keepdim, dtype=x.dtype)
    return cast(total / cast(_count(self, dims), x.dtype), dtype)


@register("prod", "prod.dim_int")
def prod(self: jax.Array, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    """Product over one ``dim`` or all; bool and integers multiply to int64 unless ``dtype`` is given."""
    dims, dtype = canonical_dims(dim, self.ndim), _sum_dtype(self, dtype)
    x = cast(cast(self, dtype), opmath(dtype))
    if dtype == jnp.bool_:
        return jnp.all(x, axis=dims, keepdims=keepdim)
    return cast(jnp.prod(x, axis=dims, keepdims=keepdim, dtype=x.dtype), dtype)


# ---- truth


def _truth(name: str, reduce: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    @register(name, f"{name}.dim", f"{name}.dims")
    def fn(self: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
        # an empty list of dims reduces nothing here, where it reduces everything in a sum
        dims = canonical_dims(dim, self.ndim, empty_is_all=False)
        out = reduce(cast(self, jnp.bool_), axis=dims, keepdims=keepdim)
        return cast(out, jnp.uint8) if self.dtype == jnp.uint8 else out

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"Whether {name} element over ``dim`` is nonzero (NaN is); bool, or uint8 for a uint8 array."
    return fn


any = _truth("any", jnp.any)
all = _truth("all", jnp.all)


@register("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(self: jax.Array, dim: Dims = None) -> jax.Array:
    """Number of nonzero elements over ``dim`` as int64."""
    return jnp.sum(cast(self, jnp.bool_), axis=canonical_dims(dim, self.ndim), dtype=canonical("int64"))


# ---- extrema


def _nonempty(op: str, x: jax.Array, dim: Dims, whole: type[Exception] = RuntimeError) -> tuple[int, ...]:
    dims = canonical_dims(dim, x.ndim)
    if x.size == 0:
        if dim is None or (not isinstance(dim, int) and len(dim) == 0):
            raise whole(f"{op}(): Expected reduction dim to be specified for input.numel() == 0; pass dim=")
        for d in dims:
            if x.shape[d] == 0:
                raise IndexError(f"{op}(): Expected reduction dim {d} to have non-zero size, but got {x.shape}.")
    return dims


def _extremum(name: str, reduce: Callable[..., jax.Array], word: str) -> Callable[..., jax.Array]:
    @register(name)
    def fn(self: jax.Array, dim: Dims = (), keepdim: bool = False) -> jax.Array:
        _no_complex(name, self)
        dims = _nonempty(name, self, dim)
        return reduce(self, axis=dims, keepdims=keepdim)

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"{word} over ``dim``; NaN wins, and a gradient is shared evenly among equal extrema."
    return fn


amax = _extremum("amax", jnp.max, "Maximum")
amin = _extremum("amin", jnp.min, "Minimum")


def _arg_extremum(name: str, reduce: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    @register(name)
    def fn(self: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
        if is_complex(self) or self.dtype == jnp.bool_:
            raise RuntimeError(f"{name}(): does not support {'complex' if is_complex(self) else 'bool'} input")
        _nonempty(name, self, dim, whole=IndexError)
        return _arg(reduce, self, dim, keepdim)

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"Index (int64) of the first {name[3:]}imum over ``dim`` (``None``: of the flat array); NaN wins."
    return fn


def _arg(reduce: Callable[..., jax.Array], x: jax.Array, dim: int | None, keepdim: bool) -> jax.Array:
    if x.ndim == 0:
        canonical_dim(dim or 0, 0)
        return jnp.zeros((), canonical("int64"))
    axis = None if dim is None else canonical_dim(dim, x.ndim)
    flat = x.reshape(-1) if axis is None else x
    along, n = axis or 0, flat.shape[axis or 0]
    # two plain reductions, the extremum and its first place, are faster than XLA's own argmax on CPU
    best = reduce(flat, axis=along, keepdims=True)
    found = flat == best
    if is_floating(flat):
        found = found | jnp.isnan(flat)
    place = lax.broadcasted_iota(jnp.int32 if n < 2**31 else canonical("int64"), flat.shape, along)
    first = cast(jnp.min(jnp.where(found, place, n), axis=along, initial=n), "int64")
    if not keepdim:
        return first
    return first.reshape((1,) * x.ndim) if axis is None else jnp.expand_dims(first, axis)


argmax = _arg_extremum("argmax", jnp.max)
argmin = _arg_extremum("argmin", jnp.min)


def pick(x: jax.Array, index: jax.Array, dim: int) -> jax.Array:
    """``x`` at ``index`` (keepdim) along ``dim``: so the values of an extremum carry their gradient to where it is."""
    return x if x.ndim == 0 else jnp.take_along_axis(x, index, axis=dim, mode="promise_in_bounds")


def _dim_extremum(name: str, reduce: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    @register(f"{name}.dim")
    def fn(self: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
        if is_complex(self):
            raise RuntimeError(f"{name}(): does not support complex input")
        _nonempty(name, self, dim)
        index = _arg(reduce, self, dim, keepdim=True)
        values = pick(self, index, dim)
        return (values, index) if keepdim or self.ndim == 0 else (values.squeeze(dim), index.squeeze(dim))

    fn.__name__ = fn.__qualname__ = f"{name}_dim"
    fn.__doc__ = f"``(values, indices)`` of the first {name}imum along ``dim``; NaN wins; indices are int64."
    return fn


max_dim = _dim_extremum("max", jnp.max)
min_dim = _dim_extremum("min", jnp.min)


@register("max")
def max(self: jax.Array) -> jax.Array:
    """Maximum of all elements; NaN wins."""
    if is_complex(self):
        raise NotImplementedError("max is not implemented for complex arrays")
    _nonempty("max", self, None)
    return jnp.max(self)


@register("min")
def min(self: jax.Array) -> jax.Array:
    """Minimum of all elements; NaN wins."""
    if is_complex(self):
        raise NotImplementedError("min is not implemented for complex arrays")
    _nonempty("min", self, None)
    return jnp.min(self)


@register("aminmax")
def aminmax(self: jax.Array, *, dim: int | None = None, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    """``(minimum, maximum)`` over one ``dim`` or all."""
    _no_complex("aminmax", self)
    dims = _nonempty("aminmax", self, dim)
    return jnp.min(self, axis=dims, keepdims=keepdim), jnp.max(self, axis=dims, keepdims=keepdim)


@register("_aminmax", "_aminmax.dim")
def _aminmax(self: jax.Array, dim: int | None = None, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    return aminmax(self, dim=dim, keepdim=keepdim)


# ---- moments


def _moments(
    op: str, x: jax.Array, dim: Dims, correction: float | None, keepdim: bool
) -> tuple[jax.Array, jax.Array, Any]:
    """Variance and mean in the computing dtype, and the dtype of the result. The correction is 1 unless given."""
    if not _float_like(x.dtype):
        raise RuntimeError(f"{op} only supports floating point and complex dtypes, but got {x.dtype.name}")
    dims, dtype = canonical_dims(dim, x.ndim), x.dtype
    x = cast(x, opmath(dtype))
    n, real = _count(x, dims), _real_dtype(x.dtype)
    average = jnp.sum(x, axis=dims, keepdims=True) / cast(n, real)
    deviation = x - average
    square = jnp.square(deviation.real) + jnp.square(deviation.imag) if is_complex(x) else jnp.square(deviation)
    freedom = cast(builtins.max(n - (1 if correction is None else correction), 0), real)
    variance = jnp.sum(square, axis=dims, keepdims=keepdim) / freedom
    return variance, average if keepdim else jnp.squeeze(average, dims), dtype


def _root(x: jax.Array) -> jax.Array:
    """Square root whose gradient at zero is zero, as PyTorch's std and norm have it."""
    zero = x == 0
    return jnp.where(zero, jnp.zeros((), x.dtype), jnp.sqrt(jnp.where(zero, jnp.ones((), x.dtype), x)))


def _narrow(x: jax.Array, dtype: Any) -> jax.Array:
    return cast(x, _real_dtype(dtype)) if category(dtype) == 3 else cast(x, dtype)


@register("var.correction", static=("correction",))
def var(self: jax.Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> jax.Array:
    """Variance over ``dim`` with ``n - correction`` degrees of freedom (1 unless given); real for complex arrays."""
    variance, _, dtype = _moments("var", self, dim, correction, keepdim)
    return _narrow(variance, dtype)


@register("std.correction", static=("correction",))
def std(self: jax.Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> jax.Array:
    """Standard deviation over ``dim``, the root of `var`; its gradient at zero is zero."""
    variance, _, dtype = _moments("std", self, dim, correction, keepdim)
    return _narrow(_root(variance), dtype)


@register("var_mean.correction", static=("correction",))
def var_mean(
    self: jax.Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    """``(variance, mean)`` over ``dim``."""
    variance, average, dtype = _moments("var_mean", self, dim, correction, keepdim)
    return _narrow(variance, dtype), cast(average, dtype)


@register("std_mean.correction", static=("correction",))
def std_mean(
    self: jax.Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    """``(standard deviation, mean)`` over ``dim``."""
    variance, average, dtype = _moments("std_mean", self, dim, correction, keepdim)
    return _narrow(_root(variance), dtype), cast(average, dtype)


# ---- norms


@register("linalg_vector_norm", static=("ord",))
def linalg_vector_norm(
    self: jax.Array, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> jax.Array:
    """The ``ord`` norm over ``dim``, real; computed in ``dtype`` where given. Its gradient at zero is zero.

    Raises:
        RuntimeError: the array is not floating or complex, ``dtype`` narrows it, or a norm without identity
            (``ord`` negative or infinite) runs over no elements.
    """
    if not _float_like(self.dtype):
        raise RuntimeError(
            f"linalg.vector_norm: Expected a floating point or complex tensor, but got {self.dtype.name}"
        )
    if dtype is not None:
        dtype = canonical(dtype)
        if not _float_like(dtype) or (is_complex(self) and category(dtype) != 3):
            raise RuntimeError(
                f"linalg.vector_norm: dtype should be floating point or complex as the array is, but got {dtype.name} "
                f"for {self.dtype.name}"
            )
        if jnp.finfo(dtype).bits < jnp.finfo(self.dtype).bits:
            raise RuntimeError(f"linalg.vector_norm: dtype {dtype.name} narrows {self.dtype.name}; drop dtype=")
        self = cast(self, dtype)
    dims = canonical_dims(dim, self.ndim)
    if (ord < 0 or math.isinf(ord)) and _count(self, dims) == 0 and self.ndim:
        if dim is None or not dims:
            raise RuntimeError(
                f"linalg.vector_norm cannot compute the {ord} norm on an empty tensor: it has no identity"
            )
        for d in dims:
            if self.shape[d] == 0:
                raise RuntimeError(
                    f"linalg.vector_norm cannot compute the {ord} norm on the dimension {d}: it is empty"
                )
    return _narrow(_norm(cast(self, opmath(self.dtype)), ord, dims, keepdim), self.dtype)


def _norm(x: jax.Array, p: float, dims: tuple[int, ...], keepdim: bool) -> jax.Array:
    def total(a: jax.Array) -> jax.Array:
        return jnp.sum(a, axis=dims, keepdims=keepdim, dtype=a.dtype)

    if p == 0:
        return total(cast(x != 0, _real_dtype(x.dtype)))
    if p == 2:
        square = jnp.square(x.real) + jnp.square(x.imag) if is_complex(x) else jnp.square(x)
        return _root(total(square))
    if math.isinf(p):  # of what `abs` gives, to the bit: PyTorch's backward seeks the elements that equal the norm
        return (jnp.max if p > 0 else jnp.min)(jnp.abs(x), axis=dims, keepdims=keepdim)
    size = _magnitude(x)
    if p == 1:
        return total(size)
    zero = jnp.zeros((), size.dtype)
    if p < 0:
        return total(size**p) ** (1 / p)
    # neither x**p nor the root has a finite derivative at zero for every p, while PyTorch answers zero there
    powers = total(jnp.where(size == 0, zero, jnp.where(size == 0, 1, size) ** p))
    return jnp.where(powers == 0, zero, jnp.where(powers == 0, 1, powers) ** (1 / p))


def _magnitude(x: jax.Array) -> jax.Array:
    return _root(jnp.square(x.real) + jnp.square(x.imag)) if is_complex(x) else jnp.abs(x)


@register("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype", static=("p",))
def norm(
    self: jax.Array, p: float | None = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> jax.Array:
    """The older ``torch.norm``: `linalg_vector_norm` with ``p`` 2 where it is ``None``, and any ``dtype``."""
    dtype = None if dtype is None else canonical(dtype)
    x = self if dtype is None else cast(self, dtype)
    if not _float_like(x.dtype):
        raise RuntimeError(
            f"norm(): input dtype should be either floating point or complex. Got {x.dtype.name} instead."
        )
    return linalg_vector_norm(x, 2 if p is None else p, dim, keepdim)


@register("linalg__powsum", static=("ord",))
def linalg__powsum(
    self: jax.Array, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> jax.Array:
    """``sum(abs(x) ** ord)`` over ``dim``: a vector norm without its root."""
    x = self if dtype is None else cast(self, dtype)
    size = jnp.abs(cast(x, opmath(x.dtype)))
    total = jnp.sum(size**ord, axis=canonical_dims(dim, x.ndim), keepdims=keepdim, dtype=size.dtype)
    return _narrow(total, x.dtype)


@register("dist", static=("p",))
def dist(self: jax.Array, other: jax.Array, p: float = 2) -> jax.Array:
    """The ``p`` norm of ``self - other``, which broadcast; 0-d."""
    return norm(jnp.subtract(self, other), p)


@register("renorm", static=("p",))
def renorm(self: jax.Array, p: float, dim: int, maxnorm: float) -> jax.Array:
    """``self`` with each slice along ``dim`` scaled down to a ``p`` norm of at most ``maxnorm``.

    Raises:
        RuntimeError: ``p`` is not positive, or ``self`` has fewer than two dimensions.
    """
    if p <= 0:
        raise RuntimeError(f"renorm: non-positive norm {p} is not supported")
    if self.ndim < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {self.ndim} dimensions")
    keep = canonical_dim(dim, self.ndim)
    x = cast(self, opmath(self.dtype))
    size = _norm(x, p, tuple(d for d in range(x.ndim) if d != keep), True)
    limit = cast(maxnorm, size.dtype)
    # PyTorch's own guard: a norm within 1e-7 of the limit is left a little below it
    factor = jnp.where(size > limit, limit / (size + 1e-7), 1)
    return cast(x * factor, self.dtype)


@register("logsumexp")
def logsumexp(self: jax.Array, dim: Dims, keepdim: bool = False) -> jax.Array:
    """``log(sum(exp(x)))`` over ``dim``, shifted by the maximum; -inf over no elements; integers become floats."""
    dtype = self.dtype if _float_like(self.dtype) else default_float()
    x = cast(self, opmath(dtype))
    dims = canonical_dims(dim, self.ndim)
    top = lax.stop_gradient(jnp.max(x.real, axis=dims, keepdims=True, initial=-jnp.inf))
    top = jnp.where(jnp.isfinite(top), top, 0)
    out = jnp.log(jnp.sum(jnp.exp(x - top), axis=dims, keepdims=True)) + top
    return cast(out if keepdim else jnp.squeeze(out, dims), dtype)


# ---- scans


def _scan(op: str, fn: Callable[..., jax.Array], x: jax.Array, dim: int, dtype: Any) -> jax.Array:
    axis, dtype = canonical_dim(dim, x.ndim), _sum_dtype(x, dtype)
    if dtype == jnp.bool_:
        raise NotImplementedError(f"\"{op}_out_cpu\" not implemented for 'Bool'; pass an integer dtype=")
    x = cast(cast(x, dtype), opmath(dtype))
    return cast(x if x.ndim == 0 else fn(x, axis), dtype)


@register("cumsum")
def cumsum(self: jax.Array, dim: int, *, dtype: Any = None) -> jax.Array:
    """Running sum along ``dim``; bool and integers sum to int64 unless ``dtype`` is given."""
    return _scan("cumsum", lax.cumsum, self, dim, dtype)


@register("cumprod")
def cumprod(self: jax.Array, dim: int, *, dtype: Any = None) -> jax.Array:
    """Running product along ``dim``; bool and integers multiply to int64 unless ``dtype`` is given."""
    return _scan("cumprod", lax.cumprod, self, dim, dtype)


def _complex_logcumsumexp(x: jax.Array, axis: int) -> jax.Array:
    """One step after the other: the imaginary part is not wrapped, so the order of additions decides it."""

    def add(total: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        swap = total.real > y.real
        low, high = jnp.where(swap, y, total), jnp.where(swap, total, y)
        none = jnp.isneginf(low.real)
        total = jnp.where(none, high, high + jnp.log1p(jnp.exp(jnp.where(none, 0, low - high))))
        return total, total

    rows = jnp.moveaxis(x, axis, 0)
    start = jnp.full(rows.shape[1:], -jnp.inf, x.dtype)
    return jnp.moveaxis(lax.scan(add, start, rows)[1], 0, axis)


@register("logcumsumexp", "_logcumsumexp")
def logcumsumexp(self: jax.Array, dim: int) -> jax.Array:
    """Running ``log(sum(exp(x)))`` along ``dim``; raises for integers."""
    axis = canonical_dim(dim, self.ndim)
    if not _float_like(self.dtype):
        raise NotImplementedError(f"logcumsumexp is not implemented for {self.dtype.name}")
    x = cast(self, opmath(self.dtype))
    if x.ndim == 0:
        return self
    if is_complex(x):
        return _complex_logcumsumexp(x, axis)
    return cast(lax.cumlogsumexp(x, axis), self.dtype)


def _running(name: str, scan: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    @register(name)
    def fn(self: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
        _no_complex(name, self)
        axis = canonical_dim(dim, self.ndim)
        if self.ndim == 0:
            return self, jnp.zeros((), canonical("int64"))
        x = lax.stop_gradient(self)
        x = cast(x, jnp.int8) if x.dtype == jnp.bool_ else x
        # a place is the extremum's if it equals the running one; of such places the last counts
        hit = x == scan(x, axis)
        if is_floating(x):
            hit = hit | jnp.isnan(x)
        kind = jnp.int32 if self.shape[axis] < 2**31 else canonical("int64")
        place = lax.broadcasted_iota(kind, self.shape, axis)
        index = cast(lax.cummax(jnp.where(hit, place, 0), axis), "int64")
        return pick(self, index, axis), index

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"Running {name[3:]}imum along ``dim`` and its index (int64; the last of equals; NaN wins)."
    return fn


cummax = _running("cummax", lax.cummax)
cummin = _running("cummin", lax.cummin)

__all__ = exported(__name__)

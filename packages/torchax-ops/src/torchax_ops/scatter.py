"""``gather`` and ``scatter``: an index for every element, along one dimension.

Indices that PyTorch refuses raise in an eager call (``check=``); in a compiled one they are clamped when read and
dropped when written.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchax_ops._registry import exported, register
from torchax_ops._shapes import canonical_dim
from torchax_ops.indexing import _check_fits, _outside, _scalar, reduce_at

Scalar = bool | int | float | complex | jax.Array


def _check_range(self: jax.Array, dim: int, index: jax.Array, *args: Any, **kwargs: Any) -> None:
    dim = canonical_dim(dim, self.ndim)
    size = self.shape[dim] if self.ndim else 1
    bad = _outside(index, 0, size)
    if bad is not None:
        raise RuntimeError(f"index {bad} is out of bounds for dimension {dim} with size {size}")


def _check_value(self: jax.Array, dim: int, index: jax.Array, value: Scalar, *, reduce: str | None = None) -> None:
    _check_range(self, dim, index)
    _check_fits("scatter", value, self.dtype)


def _require_index(op: str, self: jax.Array, index: jax.Array) -> None:
    if index.size and index.dtype.name not in ("int64", "int32"):
        raise RuntimeError(f"{op}(): Expected dtype int32/int64 for index, got {index.dtype}")
    if index.size and max(index.ndim, 1) != max(self.ndim, 1):
        raise RuntimeError(
            f"{op}(): Index tensor must have the same number of dimensions as self tensor, "
            f"got {index.ndim} and {self.ndim}"
        )


def _positions(index: jax.Array, dim: int) -> tuple[jax.Array, ...]:
    """A JAX subscript with ``index`` at ``dim`` and every element's own place elsewhere."""
    return tuple(
        index if d == dim else lax.broadcasted_iota(index.dtype, [n if i == d else 1 for i in range(index.ndim)], d)
        for d, n in enumerate(index.shape)
    )


@register("gather", check=_check_range)
def gather(self: jax.Array, dim: int, index: jax.Array, *, sparse_grad: bool = False) -> jax.Array:
    """``self[i][index[i][j]]…`` along ``dim``, in the shape of ``index`` (int32 or int64).

    Raises:
        IndexError: ``dim`` is out of range.
        RuntimeError: ``index`` has another dtype or number of dimensions, or is larger than ``self`` beside ``dim``.
    """
    dim = canonical_dim(dim, self.ndim)
    _require_index("gather", self, index)
    if not index.size:
        return jnp.zeros(index.shape, self.dtype)
    x, at = jnp.atleast_1d(self), jnp.atleast_1d(index)
    for d, n in enumerate(at.shape):
        if d != dim:
            if n > x.shape[d]:
                raise RuntimeError(
                    f"Size does not match at dimension {d} expected index {list(index.shape)} to be no larger than "
                    f"self {list(self.shape)} apart from dimension {dim}"
                )
            x = lax.slice_in_dim(x, 0, n, axis=d)
    return jnp.take_along_axis(x, at, axis=dim, mode="clip").reshape(index.shape)


def _require_src(op: str, self: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> None:
    if self.dtype != src.dtype:
        raise RuntimeError(f"{op}(): Expected self.dtype to be equal to src.dtype, got {self.dtype} and {src.dtype}")
    if not index.size:
        return
    if max(src.ndim, 1) != max(index.ndim, 1):
        raise RuntimeError(
            f"{op}(): Index tensor must have the same number of dimensions as src tensor, "
            f"got {index.ndim} and {src.ndim}"
        )
    _require_smaller(op, self, dim, index, src)


def _require_smaller(op: str, self: jax.Array, dim: int, index: jax.Array, src: jax.Array | None = None) -> None:
    for d, n in enumerate(index.shape):
        if (d != dim and n > self.shape[d]) or (src is not None and src.ndim and n > src.shape[d]):
            raise RuntimeError(
                f"{op}(): Expected index {list(index.shape)} to be no larger than self {list(self.shape)} apart from "
                f"dimension {dim}" + ("" if src is None else f" and to be no larger size than src {list(src.shape)}")
            )


def _scatter_reduce(
    op: str, self: jax.Array, dim: int, index: jax.Array, src: jax.Array, reduce: str, include_self: bool = True
) -> jax.Array:
    dim = canonical_dim(dim, self.ndim)
    _require_index(op, self, index)
    _require_src(op, self, dim, index, src)
    if not index.size:
        return self
    x, at = jnp.atleast_1d(self), jnp.atleast_1d(index)
    new = jnp.atleast_1d(src)[tuple(slice(n) for n in at.shape)]
    where = _positions(at, dim)
    if reduce == "set":
        return x.at[where].set(new, wrap_negative_indices=False).reshape(self.shape)
    return reduce_at(x, where, new, reduce, include_self).reshape(self.shape)


@register("scatter.src", check=_check_range)
def scatter(self: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    """``self`` with ``src`` written at ``index`` (int32 or int64) along ``dim``; of equal indices the last one wins.

    Raises:
        IndexError: ``dim`` is out of range.
        RuntimeError: dtypes or numbers of dimensions differ, or ``index`` is larger than ``self`` beside ``dim`` or
            than ``src``.
    """
    return _scatter_reduce("scatter", self, dim, index, src, "set")


_REDUCE = {"add": "sum", "multiply": "prod"}


def _reduction(reduce: str) -> str:
    if reduce not in _REDUCE:
        raise RuntimeError(f"scatter(): reduce argument must be either add or multiply, got {reduce}.")
    return _REDUCE[reduce]


@register("scatter.reduce", check=_check_range)
def scatter_reduction(self: jax.Array, dim: int, index: jax.Array, src: jax.Array, *, reduce: str) -> jax.Array:
    """`scatter`, where ``src`` is added (``reduce="add"``) or multiplied (``"multiply"``) into ``self``."""
    return _scatter_reduce("scatter", self, dim, index, src, _reduction(reduce))


@register("scatter.value", check=_check_value)
def scatter_value(self: jax.Array, dim: int, index: jax.Array, value: Scalar) -> jax.Array:
    """``self`` with the number ``value`` written at ``index`` along ``dim``; errors as `scatter`."""
    src = jnp.broadcast_to(_scalar("scatter", value, self.dtype), index.shape)
    return _scatter_reduce("scatter", self, dim, index, src, "set")


@register("scatter.value_reduce", check=_check_value)
def scatter_value_reduce(self: jax.Array, dim: int, index: jax.Array, value: Scalar, *, reduce: str) -> jax.Array:
    """`scatter_reduction` with a number; errors as `scatter`."""
    src = jnp.broadcast_to(_scalar("scatter", value, self.dtype), index.shape)
    return _scatter_reduce("scatter", self, dim, index, src, _reduction(reduce))


@register("scatter_add", check=_check_range)
def scatter_add(self: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    """``self`` with ``src`` added at ``index`` along ``dim``; equal indices add up. Errors as `scatter`."""
    return _scatter_reduce("scatter_add", self, dim, index, src, "sum")


@register("scatter_reduce.two", check=_check_range)
def scatter_reduce(
    self: jax.Array, dim: int, index: jax.Array, src: jax.Array, reduce: str, *, include_self: bool = True
) -> jax.Array:
    """``self`` with the elements of ``src`` that share an index along ``dim`` reduced into it.

    ``reduce`` is ``"sum"``, ``"prod"``, ``"mean"``, ``"amax"`` or ``"amin"``; without ``include_self`` the values
    already there do not take part. Errors as `scatter`, RuntimeError for another reduction.
    """
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    return _scatter_reduce("scatter_reduce", self, dim, index, src, reduce, include_self)


__all__ = exported(__name__)

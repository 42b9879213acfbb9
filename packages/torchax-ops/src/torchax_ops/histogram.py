"""Histograms and counts: histc, histogram, histogramdd and bincount."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchax_ops._promotion import canonical, cast, is_floating, is_integer, opmath
from torchax_ops._registry import exported, register


def _finite(op: str, low: Any, high: Any) -> None:
    if not (np.isfinite(low) and np.isfinite(high)):
        raise RuntimeError(f"{op}: range of [{low}, {high}] is not finite")
    if high < low:
        raise RuntimeError(f"{op}: max must be larger than min, but got [{low}, {high}]")


def _spread(x: jax.Array, low: jax.Array, high: jax.Array, widen: float) -> tuple[jax.Array, jax.Array]:
    """A range of positive width: that of the data where ``low == high``, widened where it is a single point."""
    if x.size:
        same = low == high
        low, high = jnp.where(same, jnp.min(x), low), jnp.where(same, jnp.max(x), high)
    same = low == high
    return jnp.where(same, low - widen, low), jnp.where(same, high + widen, high)


def _check_histc(self: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> None:
    x = np.asarray(self, dtype=np.float64)
    low, high = (x.min(), x.max()) if min == max and x.size else (float(min), float(max))
    _finite("torch.histc", low, high)


def _linear_bins(x: jax.Array, low: jax.Array, high: jax.Array, bins: int) -> jax.Array:
    """The bin of each element by its distance from ``low``; outside (and for NaN) any number, to be masked."""
    place = jnp.floor((x - low) * bins / (high - low))
    place = jnp.where(jnp.isfinite(place), place, 0)
    return jnp.minimum(cast(place, jnp.int32), bins - 1)


@register("histc", check=_check_histc)
def histc(self: jax.Array, bins: int = 100, min: Any = 0, max: Any = 0) -> jax.Array:
    """Counts in ``bins`` equal bins from ``min`` to ``max`` (where equal: of the data), in the array's dtype.

    Raises:
        NotImplementedError: the array is bool or complex. (Integers, which CPU refuses, are counted as on cuda.)
        RuntimeError: no bins; and eagerly: the range is not finite or reversed.
    """
    if not is_floating(self) and not is_integer(self):
        raise NotImplementedError(f'"histogram_cpu" not implemented for {self.dtype.name}; convert to a float')
    if bins <= 0:
        raise RuntimeError(f"torch.histc(): bins must be > 0, but got {bins}")
    x = cast(self, opmath(self.dtype) if is_floating(self) else np.float64).reshape(-1)
    low, high = _spread(x, cast(min, x.dtype), cast(max, x.dtype), 1)
    inside = (x >= low) & (x <= high)
    counts = jnp.zeros(bins, x.dtype).at[_linear_bins(x, low, high, bins)].add(cast(inside, x.dtype))
    return cast(counts, self.dtype)


# ---- histogramdd


def _check_points(op: str, x: jax.Array, bins: Sequence[Any], weight: jax.Array | None) -> tuple[jax.Array, Any]:
    if not is_floating(x):
        raise NotImplementedError(f'"{op}" not implemented for {x.dtype.name}; convert to a float')
    if x.ndim < 2 or x.shape[-1] != len(bins):
        raise RuntimeError(f"{op}: expected shape (..., {len(bins)}) for {len(bins)} bins, but got {x.shape}")
    if weight is not None:
        if weight.dtype != x.dtype:
            raise RuntimeError(
                f"{op}: if weight is provided, input and weight should have the same dtype, but got "
                f"{x.dtype.name} and {weight.dtype.name}"
            )
        if weight.shape != x.shape[:-1]:
            raise RuntimeError(f"{op}: weight must have shape {x.shape[:-1]}, but got {weight.shape}")
        weight = weight.reshape(-1)
    return x.reshape(-1, x.shape[-1]), weight


def _linspace(low: jax.Array, high: jax.Array, n: int) -> jax.Array:
    """``n`` points, counted from both ends as ``torch.linspace`` does."""
    step = (high - low) / max(n - 1, 1)
    at = cast(jnp.arange(n, dtype=jnp.int32), low.dtype)
    return jnp.where(at < n // 2, low + step * at, high - step * (n - 1 - at)) if n > 1 else low[None]


def _check_edges(
    self: Any, bins: Sequence[int], *, range: Any = None, weight: Any = None, density: bool = False
) -> None:
    if range is None and np.size(self) and np.ndim(self) >= 2:
        x = np.asarray(self, np.float64)
        x = x.reshape(-1, x.shape[-1])
        for low, high in zip(x.min(0), x.max(0)):
            _finite("torch.histogramdd", low, high)


def _edges(x: jax.Array, bins: Sequence[int], range: Sequence[float] | None) -> list[jax.Array]:
    if range is not None and len(range) != 2 * len(bins):
        raise RuntimeError(f"torch.histogramdd: for {len(bins)} dimensions range needs {2 * len(bins)} values")
    edges = []
    for d, n in enumerate(bins):
        if n <= 0:
            raise RuntimeError(f"torch.histogramdd(): bins must be > 0, but got {n} for dimension {d}")
        if range is not None:
            _finite("torch.histogramdd", range[2 * d], range[2 * d + 1])
            low, high = cast(range[2 * d], x.dtype), cast(range[2 * d + 1], x.dtype)
        elif x.shape[0] == 0:
            low, high = cast(0, x.dtype), cast(1, x.dtype)
        else:
            low, high = jnp.min(x[:, d]), jnp.max(x[:, d])
        same = low == high
        edges.append(_linspace(jnp.where(same, low - 0.5, low), jnp.where(same, high + 0.5, high), n + 1))
    return edges


def _count(x: jax.Array, edges: Sequence[jax.Array], weight: jax.Array | None, density: bool) -> jax.Array:
    """Weighted counts of points ``(n, d)`` between edges; the last bin includes its right edge."""
    weight = jnp.ones(x.shape[0], x.dtype) if weight is None else weight
    places = []
    for d, edge in enumerate(edges):
        value = x[:, d]
        weight = jnp.where((value >= edge[0]) & (value <= edge[-1]), weight, 0)
        right = jnp.searchsorted(edge, value, side="right") - 1
        places.append(jnp.clip(right, 0, edge.shape[0] - 2))
    hist = jnp.zeros(tuple(e.shape[0] - 1 for e in edges), x.dtype).at[tuple(places)].add(weight)
    if density:
        hist = hist / jnp.sum(hist)
        for d, edge in enumerate(edges):
            hist = hist / jnp.diff(edge).reshape([-1 if i == d else 1 for i in range(len(edges))])
    return hist


@register("_histogramdd_bin_edges", check=_check_edges)
def _histogramdd_bin_edges(
    self: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> list[jax.Array]:
    return _edges(_check_points("histogramdd", self, bins, weight)[0], bins, range)


@register("_histogramdd_from_bin_cts", check=_check_edges)
def _histogramdd_from_bin_cts(
    self: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    x, weight = _check_points("histogramdd", self, bins, weight)
    return _count(x, _edges(x, bins, range), weight, density)


@register("_histogramdd_from_bin_tensors")
def _histogramdd_from_bin_tensors(
    self: jax.Array, bins: Sequence[jax.Array], *, weight: jax.Array | None = None, density: bool = False
) -> jax.Array:
    x, weight = _check_points("histogramdd", self, bins, weight)
    return _count(x, list(bins), weight, density)


@register("histogram.bin_ct", check=lambda self, bins=100, **kw: _check_edges(np.reshape(self, (-1, 1)), [bins], **kw))
def histogram(
    self: jax.Array,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """``(counts, edges)`` of all elements in ``bins`` equal bins over ``range`` (the data's unless given)."""
    x, weight = _check_points("histogramdd", self.reshape(-1, 1), [bins], _flat_weight(self, weight))
    edges = _edges(x, [bins], range)
    return _count(x, edges, weight, density), edges[0]


@register("histogram.bins_tensor")
def histogram_bins_tensor(
    self: jax.Array, bins: jax.Array, *, weight: jax.Array | None = None, density: bool = False
) -> tuple[jax.Array, jax.Array]:
    """``(counts, edges)`` of all elements between increasing 1D edges ``bins``."""
    x, weight = _check_points("histogramdd", self.reshape(-1, 1), [bins], _flat_weight(self, weight))
    return _count(x, [bins], weight, density), bins


def _flat_weight(x: jax.Array, weight: jax.Array | None) -> jax.Array | None:
    if weight is not None and weight.shape != x.shape:
        raise RuntimeError(f"histogram: weight must have the shape of the input {x.shape}, but got {weight.shape}")
    return None if weight is None else weight.reshape(-1)


# ---- bincount


@register("bincount", eager=True)
def bincount(
    self: jax.Array, weights: jax.Array | None = None, minlength: int = 0, *, size: int | None = None
) -> jax.Array:
    """How often (or with what total weight) each number from 0 to the greatest occurs in a 1D array.

    int64; with weights float32 for float32 ones, else float64. Under a trace the length must be given as ``size``.

    Raises:
        RuntimeError: a negative number, a shape that is not 1D, or ``minlength`` negative.
    """
    if not is_integer(self) and self.dtype != jnp.bool_:
        raise NotImplementedError(f'"bincount_cpu" not implemented for {self.dtype.name}')
    if minlength < 0:
        raise RuntimeError(f"bincount: minlength should be >= 0, but got {minlength}")
    traced = isinstance(self, jax.core.Tracer)
    if self.ndim != 1 or (not traced and self.size and int(jnp.min(self)) < 0):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError(f"bincount: weights should be 1-d and have the same length as input, got {weights.shape}")
    if size is None:
        if traced:
            raise RuntimeError(
                "bincount: the shape of its result depends on values, which a trace does not know; run it outside "
                "jax.jit, or give the number of bins with size="
            )
        size = max(int(jnp.max(self)) + 1 if self.size else 0, minlength)
    if weights is None:
        dtype, weights = canonical("int64"), jnp.ones((), canonical("int64"))
    else:
        dtype = weights.dtype if weights.dtype == jnp.float32 else canonical("float64")
    return jnp.zeros(size, dtype).at[self].add(lax.convert_element_type(weights, dtype), mode="drop")


__all__ = exported(__name__)

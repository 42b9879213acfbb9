"""Embeddings: rows of a table, and bags of rows reduced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torchax_ops._promotion import canonical, cast, category, opmath
from torchax_ops._registry import exported, register
from torchax_ops.indexing import _outside

Scalar = int | float | jax.Array
_SUM, _MEAN, _MAX = 0, 1, 2


def _require_table(weight: jax.Array, indices: jax.Array) -> None:
    if weight.ndim != 2:
        raise RuntimeError(f"embedding: 'weight' must be 2-D, got shape {list(weight.shape)}")
    _require_indices("embedding", indices)


def _require_indices(op: str, indices: jax.Array) -> None:
    if indices.dtype.name not in ("int64", "int32"):
        raise RuntimeError(
            f"{op}: Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; "
            f"but got {indices.dtype} instead"
        )


def _check_embedding(weight: jax.Array, indices: jax.Array, *args: Any) -> None:
    if _outside(indices, 0, weight.shape[0]) is not None:
        raise IndexError("index out of range in self")


@register("embedding", check=_check_embedding)
def embedding(
    weight: jax.Array,
    indices: jax.Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> jax.Array:
    """The rows of ``weight`` (rows, features) at ``indices``: ``(*indices.shape, features)``.

    The other arguments decide the gradient only.

    Raises:
        RuntimeError: ``weight`` is not 2-d, or ``indices`` are neither int32 nor int64.
        IndexError: an index is negative or beyond the rows.
    """
    _require_table(weight, indices)
    return jnp.take(weight, indices, axis=0, mode="clip")


def _row_counts(indices: jax.Array, rows: int, dtype: np.dtype) -> jax.Array:
    """How often each row is used."""
    ones = jnp.ones(indices.shape, dtype)
    return jnp.zeros((rows,), dtype).at[indices].add(ones, wrap_negative_indices=False)


def _sum_rows(grad: jax.Array, indices: jax.Array, rows: int) -> jax.Array:
    zeros = jnp.zeros((rows, grad.shape[-1]), grad.dtype)
    return zeros.at[indices].add(grad, wrap_negative_indices=False)


@register("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: jax.Array, indices: jax.Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> jax.Array:
    """The gradient of the table, (num_weights, features): sums of ``grad_output`` over equal indices.

    Those of row ``padding_idx`` are left out; with ``scale_grad_by_freq`` each row is divided by its count.
    """
    _require_indices("embedding_backward", indices)
    compute = opmath(grad_output.dtype)
    at = indices.reshape(-1)
    grad = cast(grad_output, compute).reshape(at.size, -1 if grad_output.size else grad_output.shape[-1])
    if scale_grad_by_freq:
        grad = grad / jnp.take(_row_counts(at, num_weights, compute), at, mode="clip")[:, None]
    if padding_idx >= 0:
        at = jnp.where(at == padding_idx, num_weights, at)
    return cast(_sum_rows(grad, at, num_weights), grad_output.dtype)


def _check_renorm(self: jax.Array, indices: jax.Array, max_norm: float, norm_type: float) -> None:
    bad = _outside(indices, 0, self.shape[0])
    if bad is not None:
        raise IndexError(f"embedding_renorm: index {bad} out of range for tensor of size {list(self.shape)} at dim 0")


@register("embedding_renorm", static=("norm_type",), check=_check_renorm)
def embedding_renorm(self: jax.Array, indices: jax.Array, max_norm: Scalar, norm_type: Scalar) -> jax.Array:
    """``self`` with the rows at ``indices`` scaled down to a ``norm_type`` norm of ``max_norm``."""
    _require_table(self, indices)
    compute = opmath(self.dtype)
    x, largest = cast(self, compute), cast(max_norm, compute)
    norm = jnp.linalg.norm(x, ord=float(norm_type), axis=1)
    used = jnp.zeros((self.shape[0],), np.bool_).at[indices.reshape(-1)].set(True, wrap_negative_indices=False)
    scale = jnp.where(used & (norm > largest), largest / (norm + np.asarray(1e-7, compute)), jnp.ones_like(norm))
    return cast(x * scale[:, None], self.dtype)


# Bags


def _check_bag(
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> None:
    bad = _outside(indices, 0, weight.shape[0])
    if bad is not None:
        raise RuntimeError(
            f"embedding_bag: input takes value {bad} which is not in the valid range [0, {weight.shape[0]})"
        )
    at = np.asarray(offsets)
    if at.size and at[0] != 0:
        raise RuntimeError(
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
            f"However, got {at[0]}"
        )
    if at.size and at[-1] > indices.size:
        raise RuntimeError(
            f"offsets[-1] can not be greater than input's length {indices.size} but got offsets[-1] of {at[-1]}"
        )


def _require_bag(
    weight: jax.Array, indices: jax.Array, offsets: jax.Array, mode: int, per_sample_weights: jax.Array | None
) -> None:
    if weight.ndim != 2:
        raise RuntimeError(f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.ndim}")
    if category(weight.dtype) != 2:
        raise RuntimeError(f"embedding_bag: Expected 'weight' to be of real floats, but got {weight.dtype}")
    for x in (indices, offsets):
        _require_indices("embedding_bag", x)
    if per_sample_weights is None:
        return
    if mode != _SUM:
        raise RuntimeError("embedding_bag: per_sample_weights only supported with mode='sum'")
    if per_sample_weights.dtype != weight.dtype:
        raise RuntimeError(
            f"embedding_bag: Expected 'weight' to have the same type as 'per_sample_weights'; but {weight.dtype} does "
            f"not equal {per_sample_weights.dtype}"
        )


def _bag_of(indices: jax.Array, offsets: jax.Array, bags: int) -> jax.Array:
    """The bag of each index."""
    at = jnp.arange(indices.size, dtype=offsets.dtype)
    return jnp.searchsorted(offsets[:bags], at, side="right").astype(offsets.dtype) - 1


def _kept(indices: jax.Array, padding_idx: int) -> jax.Array:
    """Which indices take part: all but those of the padding row."""
    return indices != padding_idx if padding_idx >= 0 else jnp.ones(indices.shape, np.bool_)


def _bag_max(
    rows: jax.Array, indices: jax.Array, bag: jax.Array, kept: jax.Array, bags: int
) -> tuple[jax.Array, jax.Array]:
    """The largest value of each bag and feature, and the index it comes from; 0 where a bag is empty."""
    least = jnp.full((bags, rows.shape[1]), -jnp.inf, rows.dtype)
    rows = jnp.where(kept[:, None], rows, jnp.asarray(-jnp.inf, rows.dtype))
    top = least.at[bag].max(rows)
    size = jnp.zeros((bags,), np.int32).at[bag].add(cast(kept, np.int32))
    place = jnp.arange(indices.size, dtype=np.int32)[:, None]
    place = jnp.where(kept[:, None] & (rows == top[bag]), place, indices.size)
    first = jnp.full(least.shape, indices.size, np.int32).at[bag].min(place)
    found = jnp.take(indices, first, mode="clip") if indices.size else jnp.zeros(first.shape, indices.dtype)
    some = (size > 0)[:, None]
    return jnp.where(some, top, jnp.zeros_like(top)), jnp.where(some, found, jnp.zeros_like(found))


@register("_embedding_bag", "_embedding_bag_forward_only", check=_check_bag)
def _embedding_bag(
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Rows of ``weight`` at ``indices``, summed, averaged or maximized in bags that begin at ``offsets``.

    The results beside the first are what the backward needs, shaped as PyTorch's CPU kernels shape them: a sum has no
    bag of each index, and only a maximum has indices of its own.
    """
    _require_bag(weight, indices, offsets, mode, per_sample_weights)
    if include_last_offset and not offsets.size:
        raise RuntimeError("include_last_offset: number of offset should be at least 1")
    bags = offsets.size - include_last_offset
    at = indices.reshape(-1)
    bag, kept = _bag_of(at, offsets, bags), _kept(at, padding_idx)
    compute = opmath(weight.dtype)
    rows = cast(jnp.take(weight, at, axis=0, mode="clip"), compute)
    dtype = indices.dtype
    size = jnp.zeros((bags,), dtype).at[bag].add(cast(kept, dtype))
    if mode == _MAX:
        out, found = _bag_max(rows, at, bag, kept, bags)
        return cast(out, weight.dtype), cast(bag, dtype), size, found
    if per_sample_weights is not None:
        rows = rows * cast(per_sample_weights, compute).reshape(-1, 1)
    rows = jnp.where(kept[:, None], rows, jnp.zeros_like(rows))
    out = jnp.zeros((bags, weight.shape[1]), compute).at[bag].add(rows)
    if mode == _MEAN:
        return cast(out / cast(jnp.maximum(size, 1), compute)[:, None], weight.dtype), cast(bag, dtype), size, size
    if padding_idx < 0 and compute == np.float32:
        bag = jnp.zeros((0,), dtype)
    zeros = jnp.zeros_like(size)
    return cast(out, weight.dtype), cast(bag, dtype), zeros, zeros


@register("_embedding_bag_backward")
def _embedding_bag_backward(
    grad: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    bag = offset2bag if offset2bag.size else _bag_of(indices.reshape(-1), offsets, grad.shape[0])
    return _embedding_bag_dense_backward(
        grad,
        indices,
        bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@register("_embedding_bag_dense_backward")
def _embedding_bag_dense_backward(
    grad: jax.Array,
    indices: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    compute = opmath(grad.dtype)
    g = cast(grad, compute)
    if mode == _MAX:
        row = jnp.where((bag_size > 0)[:, None], maximum_indices, num_weights)
        column = jnp.arange(g.shape[1], dtype=row.dtype)[None]
        zeros = jnp.zeros((num_weights, g.shape[1]), compute)
        return cast(zeros.at[row, column].add(g, wrap_negative_indices=False), grad.dtype)
    at = indices.reshape(-1)
    rows = g[offset2bag]
    if per_sample_weights is not None:
        rows = rows * cast(per_sample_weights, compute).reshape(-1, 1)
    if mode == _MEAN:
        rows = rows / cast(jnp.maximum(bag_size, 1), compute)[offset2bag][:, None]
    if scale_grad_by_freq:
        rows = rows / jnp.take(_row_counts(at, num_weights, compute), at, mode="clip")[:, None]
    at = jnp.where(_kept(at, padding_idx), at, num_weights)
    return cast(_sum_rows(rows, at, num_weights), grad.dtype)


@register("_embedding_bag_per_sample_weights_backward")
def _embedding_bag_per_sample_weights_backward(
    grad: jax.Array,
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    mode: int,
    padding_idx: int = -1,
) -> jax.Array:
    at = indices.reshape(-1)
    bag = offset2bag if offset2bag.size else _bag_of(at, offsets, grad.shape[0])
    compute = opmath(grad.dtype)
    rows = cast(jnp.take(weight, at, axis=0, mode="clip"), compute)
    out = jnp.sum(cast(grad, compute)[bag] * rows, axis=1)
    return cast(jnp.where(_kept(at, padding_idx), out, jnp.zeros_like(out)), grad.dtype)


# Classes as vectors


def _check_one_hot(self: jax.Array, num_classes: int = -1) -> None:
    at = np.asarray(self)
    if at.size and at.min() < 0:
        raise RuntimeError("one_hot: Class values must be non-negative.")
    if num_classes >= 0 and at.size and at.max() >= num_classes:
        raise RuntimeError("one_hot: Class values must be smaller than num_classes.")


def _has_no_classes(self: jax.Array, num_classes: int = -1) -> bool:
    return num_classes == -1


@register("one_hot", eager=_has_no_classes, check=_check_one_hot)
def one_hot(self: jax.Array, num_classes: int = -1) -> jax.Array:
    """int64 of shape ``(*self.shape, num_classes)``: 1 at the class, else 0. ``-1`` takes the largest class plus one.

    Raises:
        RuntimeError: ``self`` is not int64, a class is negative or too large, or the number of classes is unknown
            (``self`` is empty, or traced).
    """
    if self.dtype != canonical("int64"):
        raise RuntimeError(f"one_hot is only applicable to index tensor of type LongTensor, got {self.dtype}.")
    if num_classes < -1:
        raise RuntimeError(f"one_hot: num_classes should be positive, got {num_classes}")
    if num_classes == -1:
        if not self.size:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        if isinstance(self, jax.core.Tracer):
            raise RuntimeError("one_hot: a trace does not have the values of self; give num_classes")
        num_classes = int(self.max()) + 1
    return cast(self[..., None] == jnp.arange(num_classes, dtype=self.dtype), "int64")


__all__ = exported(__name__)

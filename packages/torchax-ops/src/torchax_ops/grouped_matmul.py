"""Products of groups (mixture of experts) and of quantized matrices.

A group is a run of rows; ``sizes``, int32 ``(g,)``, says how many each has. XLA's ragged product is used where it is
one kernel. On CPU it would multiply every row with every group's matrix: there the groups are cut into tiles instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchax_ops._promotion import canonical, cast, opmath
from torchax_ops._registry import exported, register
from torchax_ops.matmul import bmm, dot_general, need_operands

# ---- the two ragged products


def _tile(rows: int, groups: int) -> int:
    """Rows a tile: about one group's, between 16 and 64, which was fastest on CPU."""
    return min(max(16, 1 << (max(rows // max(groups, 1), 1) - 1).bit_length()), 64)


def _each_tile(sizes: jax.Array, tile: int, body: Callable[..., jax.Array], out: jax.Array) -> jax.Array:
    """``out = body(group, first row, end of the group, out)`` for the tiles of each group, in order."""
    ends, tiles = jnp.cumsum(sizes), (sizes + tile - 1) // tile
    last = jnp.cumsum(tiles)

    def step(i: jax.Array, out: jax.Array) -> jax.Array:
        group = jnp.sum(last <= i, dtype=jnp.int32)
        start = ends[group] - sizes[group] + (i - (last[group] - tiles[group])) * tile
        return body(group, start, ends[group], out)

    return lax.fori_loop(0, last[-1], step, out)


def _padded(x: jax.Array, rows: int) -> jax.Array:
    return jnp.concatenate([x, jnp.zeros((rows, x.shape[1]), x.dtype)])


def _rows_in_tiles(a: jax.Array, b: jax.Array, sizes: jax.Array) -> jax.Array:
    (t, k), n = a.shape, b.shape[2]
    tile, kind = _tile(t, b.shape[0]), opmath(a.dtype)
    a = _padded(a, tile)

    def body(group: jax.Array, start: jax.Array, end: jax.Array, out: jax.Array) -> jax.Array:
        rows = lax.dynamic_slice(a, (start, jnp.zeros_like(start)), (tile, k))
        product = dot_general(rows, lax.dynamic_index_in_dim(b, group, keepdims=False), ((1,), (0,)))
        # rows past the group's end are overwritten by the next group's tiles
        return lax.dynamic_update_slice(out, product, (start, jnp.zeros_like(start)))

    out = _each_tile(sizes, tile, body, jnp.zeros((t + tile, n), kind))[:t]
    return jnp.where(jnp.arange(t, dtype=jnp.int32)[:, None] < jnp.sum(sizes), out, 0)


def _contract_in_tiles(a: jax.Array, b: jax.Array, sizes: jax.Array) -> jax.Array:
    (t, m), n, g = a.shape, b.shape[1], sizes.shape[0]
    tile, kind = _tile(t, g), opmath(a.dtype)
    a, b = _padded(a, tile), _padded(b, tile)

    def body(group: jax.Array, start: jax.Array, end: jax.Array, out: jax.Array) -> jax.Array:
        zero = jnp.zeros_like(start)
        inside = (start + jnp.arange(tile, dtype=start.dtype) < end)[:, None]
        left = jnp.where(inside, lax.dynamic_slice(a, (start, zero), (tile, m)), 0)
        right = jnp.where(inside, lax.dynamic_slice(b, (start, zero), (tile, n)), 0)
        return out.at[group].add(dot_general(left, right, ((0,), (0,))))

    return _each_tile(sizes, tile, body, jnp.zeros((g, m, n), kind))


def _rows_ragged(a: jax.Array, b: jax.Array, sizes: jax.Array) -> jax.Array:
    return lax.ragged_dot(a, b, sizes, preferred_element_type=opmath(a.dtype))


def _contract_ragged(a: jax.Array, b: jax.Array, sizes: jax.Array) -> jax.Array:
    numbers = lax.RaggedDotDimensionNumbers(
        (((0,), (0,)), ((), ())), lhs_ragged_dimensions=(0,), rhs_group_dimensions=()
    )
    return lax.ragged_dot_general(a, b, sizes, numbers, preferred_element_type=opmath(a.dtype))


def _everywhere(tiled: Callable[..., jax.Array], ragged: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The product on any platform, mapped one by one under ``vmap``, for which XLA's has no rule."""

    @jax.custom_batching.custom_vmap
    def fn(a: jax.Array, b: jax.Array, sizes: jax.Array) -> jax.Array:
        return cast(lax.platform_dependent(a, b, sizes, cpu=tiled, default=ragged), a.dtype)

    @fn.def_vmap
    def _(axis_size: int, batched: Any, *args: jax.Array) -> tuple[jax.Array, bool]:
        full = [x if is_batched else jnp.broadcast_to(x, (axis_size, *x.shape)) for x, is_batched in zip(args, batched)]
        return lax.map(lambda one: fn(*one), full), True

    return fn


_rows_product = _everywhere(_rows_in_tiles, _rows_ragged)
_contract_product = _everywhere(_contract_in_tiles, _contract_ragged)


@jax.custom_vjp
def _rows(a: jax.Array, b: jax.Array, sizes: jax.Array) -> jax.Array:
    """``(t, k), (g, k, n) -> (t, n)``: each group's rows times its own matrix; zero past the last group."""
    return _rows_product(a, b, sizes)


@jax.custom_vjp
def _contract(a: jax.Array, b: jax.Array, sizes: jax.Array) -> jax.Array:
    """``(t, m), (t, n) -> (g, m, n)``: ``a.T @ b`` over each group's rows."""
    return _contract_product(a, b, sizes)


def _keep(fn: Callable[..., jax.Array], *args: jax.Array) -> tuple[jax.Array, Any]:
    return fn(*args), args


# each is bilinear, and its derivatives are the other and itself
_rows.defvjp(
    functools.partial(_keep, _rows),
    lambda kept, ct: (_rows(ct, kept[1].mT, kept[2]), _contract(kept[0], ct, kept[2]), None),
)
_contract.defvjp(
    functools.partial(_keep, _contract),
    lambda kept, ct: (_rows(kept[1], ct.mT, kept[2]), _rows(kept[0], ct, kept[2]), None),
)


@register("_grouped_mm")
def _grouped_mm(
    self: jax.Array,
    mat2: jax.Array,
    offs: jax.Array | None = None,
    bias: jax.Array | None = None,
    out_dtype: Any = None,
) -> jax.Array:
    """One matrix product a group (mixture of experts). ``offs``, of shape ``(g,)``, holds where each group *ends*.

    ``(t, k), (g, k, n)`` groups rows to ``(t, n)``; ``(g, m, k), (k, t)`` groups columns to ``(m, t)``;
    ``(m, t), (t, n)`` groups the contraction to ``(g, m, n)``; two 3D arrays need no ``offs`` and are `bmm`.
    Rows and columns past the last offset are zero.
    """
    op = "_grouped_mm"
    if self.ndim not in (2, 3) or mat2.ndim not in (2, 3):
        raise RuntimeError(f"{op}: operands must be 2D or 3D, but got shapes {self.shape} and {mat2.shape}")
    if (offs is None) != (self.ndim == 3 and mat2.ndim == 3):
        raise RuntimeError(f"{op}: offs must be given if, and only if, an operand is 2D")
    need_operands(op, {"self": self, "mat2": mat2}, (self.ndim, mat2.ndim))
    if self.dtype.name not in ("float32", "bfloat16", "float16"):
        raise RuntimeError(f"{op}: expected float32, bfloat16 or float16 arrays, but got {self.dtype.name}")
    if out_dtype is not None and canonical(out_dtype) != self.dtype:
        raise RuntimeError(f"{op}: out_dtype must be that of the operands, {self.dtype.name}")
    if bias is not None:
        raise RuntimeError(f"{op}: bias is not supported, as in PyTorch; add it to the result")
    if self.shape[-1] != mat2.shape[-2]:
        raise RuntimeError(f"{op}: contraction dimension of {self.shape} and {mat2.shape} must match")
    if offs is None:
        return bmm(self, mat2)
    if offs.ndim != 1 or offs.dtype != jnp.int32:
        raise RuntimeError(f"{op}: offs must be 1D and int32, but got shape {offs.shape} and {offs.dtype.name}")
    sizes = jnp.diff(offs, prepend=jnp.zeros(1, jnp.int32))
    if mat2.ndim == 3:
        return _rows(self, mat2, sizes)
    if self.ndim == 3:
        return _rows(mat2.T, self.mT, sizes).T
    return _contract(self.T, mat2, sizes)


# ---- quantized


@register("_int_mm")
def _int_mm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    """Product of 8-bit integer matrices, exact in int32."""
    if self.ndim != 2 or mat2.ndim != 2 or self.shape[1] != mat2.shape[0]:
        raise RuntimeError(f"_int_mm: shapes cannot be multiplied ({self.shape} and {mat2.shape})")
    for x in (self, mat2):
        if x.dtype.name not in ("int8", "uint8"):
            raise RuntimeError(f"_int_mm: expected int8 (or uint8) matrices, but got {x.dtype.name}")
    if self.dtype != mat2.dtype:
        self, mat2 = cast(self, jnp.int32), cast(mat2, jnp.int32)
    return dot_general(self, mat2, ((1,), (0,)), dtype=jnp.int32)


@register("_weight_int8pack_mm")
def _weight_int8pack_mm(self: jax.Array, mat2: jax.Array, scales: jax.Array) -> jax.Array:
    """``(self @ mat2.T) * scales``: floats ``(m, k)``, int8 weights ``(n, k)`` and a scale for each of their rows."""
    if self.ndim != 2 or mat2.ndim != 2 or mat2.dtype != jnp.int8 or self.shape[1] != mat2.shape[1]:
        raise RuntimeError(
            f"_weight_int8pack_mm: expected floats (m, k) and int8 (n, k), but got {self.shape} {self.dtype.name} "
            f"and {mat2.shape} {mat2.dtype.name}"
        )
    if scales.shape != mat2.shape[:1]:
        raise RuntimeError(f"_weight_int8pack_mm: scales must have shape {mat2.shape[:1]}, but got {scales.shape}")
    kind = opmath(self.dtype)
    return cast(dot_general(self, cast(mat2, self.dtype), ((1,), (1,))) * cast(scales, kind), self.dtype)


@register("_scaled_mm")
def _scaled_mm(
    self: jax.Array,
    mat2: jax.Array,
    scale_a: jax.Array,
    scale_b: jax.Array,
    bias: jax.Array | None = None,
    scale_result: jax.Array | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> jax.Array:
    """``(self * scale_a) @ (mat2 * scale_b) + bias`` of float8 matrices, in ``out_dtype`` (theirs unless given).

    A scale is one number, or one a row of ``self``, ``(m, 1)``, and a column of ``mat2``, ``(1, n)``. ``scale_result``
    multiplies a float8 result.
    """
    op = "_scaled_mm"
    if self.ndim != 2 or mat2.ndim != 2 or self.shape[1] != mat2.shape[0]:
        raise RuntimeError(f"{op}: shapes cannot be multiplied ({self.shape} and {mat2.shape})")
    for name, x in (("self", self), ("mat2", mat2)):
        if not x.dtype.name.startswith("float8"):
            raise RuntimeError(f"{op}: expected {name} to be a float8 matrix, but got {x.dtype.name}")
    for scale, shape in ((scale_a, (self.shape[0], 1)), (scale_b, (1, mat2.shape[1]))):
        if scale.dtype != jnp.float32 or (scale.size != 1 and scale.shape != shape):
            raise RuntimeError(
                f"{op}: scales must be float32, one number or {(self.shape[0], 1)} and {(1, mat2.shape[1])}, but got "
                f"{scale.dtype.name} {scale_a.shape} and {scale_b.shape}"
            )
    dtype = self.dtype if out_dtype is None else canonical(out_dtype)
    # a product of two float8 numbers is exact in float32
    product = dot_general(cast(self, jnp.float32), cast(mat2, jnp.float32), ((1,), (0,)))
    one = lambda scale: scale.reshape(()) if scale.size == 1 else scale  # noqa: E731
    product = product * one(scale_a) * one(scale_b)
    if bias is not None:
        product = product + cast(bias, jnp.float32)
    if scale_result is not None and dtype.name.startswith("float8"):
        product = product * scale_result
    return cast(product, dtype)


__all__ = exported(__name__)

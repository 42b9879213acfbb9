"""Arrays on their way to and from a checkpoint: what each is, its checksum, and what it becomes again."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torchax.checkpoint._errors import CheckpointError
from torchax.dtypes import TORCH_DTYPE_TO_JAX
from torchax.tensor import Tensor, wrap
from torchax.transfer import numpy_view, to_torch


@functools.partial(jax.jit, inline=False)
def _checksum(x: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], -1)
    if x.dtype == bool or x.dtype in (jnp.int4, jnp.uint4, jnp.int2, jnp.uint2):
        x = x.astype(jnp.uint8)
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * min(4, x.dtype.itemsize)}")).astype(jnp.uint32)
    index, stride = jnp.zeros(bits.shape, jnp.uint32), 1
    for axis in reversed(range(bits.ndim)):
        index += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * np.uint32(stride & 0xFFFF_FFFF)
        stride *= bits.shape[axis]
    return (bits * ((index * np.uint32(2654435761)) | np.uint32(1))).sum(dtype=jnp.uint32)


def checksum(x: jax.Array | np.ndarray) -> int:
    """32 bits that change with any single wrong bit, computed where the shards are and equal for any sharding.

    Each 32-bit word is multiplied by an odd number that depends on its position; the products are added modulo 2**32.
    """
    with jax.enable_x64(True):
        return int(_checksum(x))


@dataclass(frozen=True)
class Spec:
    """What a leaf is: ``kind`` is ``tensor``, ``array``, ``numpy`` or ``key:<implementation>``."""

    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype
    sharding: Any = None  # None: wherever JAX puts it, uncommitted

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def to_save(name: str, x: Any) -> tuple[str, Any] | None:
    """``(kind, array)`` of a leaf that is an array; None of one that is a Python value.

    Raises:
        CheckpointError: it is neither.
    """
    if isinstance(x, Tensor):
        array = x.jax()
        wanted = TORCH_DTYPE_TO_JAX[x.dtype]
        with jax.enable_x64(True):
            return "tensor", array if array.dtype == wanted else array.astype(wanted)
    if isinstance(x, torch.Tensor):
        if x.device.type == "meta":
            raise CheckpointError(f"{name} is on the meta device: there is nothing to save")
        return "tensor", numpy_view(x.cpu()).copy()
    if isinstance(x, jax.Array):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return f"key:{jax.random.key_impl(x)}", jax.random.key_data(x)
        return "array", x
    if isinstance(x, np.ndarray | np.generic):
        if x.dtype.kind in "OSUMmV" and not jnp.issubdtype(x.dtype, jnp.number):
            raise CheckpointError(f"{name} is a numpy array of dtype {x.dtype}, which a checkpoint cannot hold")
        return "numpy", np.array(x)
    if x is None or isinstance(x, bool | int | float | str):
        return None
    raise CheckpointError(
        f"{name} is a {type(x).__qualname__}: a checkpoint holds tensors, arrays, numbers, strings and None in dicts, "
        "lists, tuples and registered pytrees"
    )


def wanted(x: Any, saved: Spec) -> Spec | None:
    """What to make of a saved array to be like ``x``; None where ``x`` is a Python value."""
    if isinstance(x, torch.Tensor):
        kind = "tensor" if x.device.type in ("jax", "meta") else "cpu"
        sharding = x.jax().sharding if isinstance(x, Tensor) and x.jax().committed else None
        return Spec(kind, tuple(x.shape), np.dtype(TORCH_DTYPE_TO_JAX[x.dtype]), sharding)
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        return None
    sharding = getattr(x, "sharding", None)
    if isinstance(x, jax.Array) and not x.committed:
        sharding = None
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, x)
        return Spec(saved.kind, data.shape, np.dtype(data.dtype), sharding)
    kind = "numpy" if isinstance(x, np.ndarray | np.generic) else "array"
    return Spec(kind, tuple(x.shape), np.dtype(x.dtype), sharding)


def fits(saved: Spec, target: Spec) -> bool:
    """Whether the saved array may become the target: the same shape, and the same dtype or another floating one."""
    floating = jnp.issubdtype(saved.dtype, jnp.floating) and jnp.issubdtype(target.dtype, jnp.floating)
    return saved.shape == target.shape and (saved.dtype == target.dtype or floating)


def become(x: Any, target: Spec) -> Any:
    """The restored array as what its target is."""
    if target.kind == "numpy":
        return np.asarray(x).astype(target.dtype)
    with jax.enable_x64(True):
        if target.sharding is None:
            x = jnp.asarray(x)
        if x.dtype != target.dtype:
            x = x.astype(target.dtype)
        if target.kind.startswith("key:"):
            return jax.random.wrap_key_data(x, impl=target.kind.removeprefix("key:"))
    if target.kind == "cpu":
        return to_torch(x)
    return wrap(x) if target.kind == "tensor" else x

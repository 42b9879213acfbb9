"""Several processes on JAX's own engine, and PyTorch's functional collectives inside ``shard_map``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

import torchax

__all__ = ["initialize", "named_groups"]


def initialize(
    address: str | None = None, count: int | None = None, index: int | None = None, *, timeout: int = 30
) -> None:
    """Join the processes of a run, before anything else uses JAX: ``jax.distributed.initialize``.

    Where JAX can find out by itself (TPU pods, Slurm, Open MPI, Kubernetes), no argument is needed.

    Args:
        address: ``host:port`` of the first process, the same for all.
        count: how many processes.
        index: which one this is.
        timeout: seconds after which a process that no longer answers is taken for dead; all others then end with an
            error that names it, and the run goes on from its last checkpoint when it is started again.
    """
    jax.distributed.initialize(address, count, index, heartbeat_timeout_seconds=timeout)


@contextmanager
def named_groups(mesh: jax.sharding.Mesh) -> Iterator[None]:
    """Let ``torch.distributed._functional_collectives`` take a mesh axis's name as ``group``.

    Inside ``jax.shard_map`` over ``mesh``, ``all_reduce``, ``all_gather_single``, ``reduce_scatter_single``,
    ``all_to_all_single`` (equal splits) and ``broadcast`` on ``jax`` tensors are then ``lax``'s collectives over that axis.
    """
    from torch.distributed import distributed_c10d as c10d

    # PyTorch asks a group for its size only; the collectives themselves never reach it.
    group_of: Any = torch.distributed.ProcessGroup
    groups = {name: group_of(0, size) for name, size in mesh.shape.items()}
    for name, group in groups.items():
        c10d._register_process_group(name, group)
    try:
        yield
    finally:
        for name in groups:
            c10d._unregister_process_group(name)


_REDUCTIONS: dict[str, Callable[[jax.Array, str], jax.Array]] = {
    "sum": lax.psum,
    "avg": lax.pmean,
    "max": lax.pmax,
    "min": lax.pmin,
}


def _axis(group: Any) -> str:
    name = group if isinstance(group, str) else getattr(group, "group_name", group)
    if not isinstance(name, str):
        raise TypeError(f"a collective on 'jax' tensors takes a mesh axis's name as its group, got {group!r}")
    return name


def _all_reduce(x: jax.Array, op: str, group: Any) -> jax.Array:
    if op not in _REDUCTIONS:
        raise ValueError(f"all_reduce on 'jax' tensors: one of {', '.join(_REDUCTIONS)}, not {op!r}")
    return _REDUCTIONS[op](x, _axis(group))


def _all_gather(x: jax.Array, size: int, group: Any) -> jax.Array:
    return lax.all_gather(x, _axis(group), axis=0, tiled=True)


def _reduce_scatter(x: jax.Array, op: str, size: int, group: Any) -> jax.Array:
    if op not in ("sum", "avg"):
        raise ValueError(f"reduce_scatter on 'jax' tensors: sum or avg, not {op!r}")
    total = lax.psum_scatter(x, _axis(group), scatter_dimension=0, tiled=True)
    return total / size if op == "avg" else total


def _all_to_all(x: jax.Array, outputs: Sequence[int], inputs: Sequence[int], group: Any) -> jax.Array:
    if len({*outputs, *inputs}) > 1:
        raise ValueError(
            f"all_to_all_single on 'jax' tensors needs equal splits, got {list(outputs)} and {list(inputs)}"
        )
    return lax.all_to_all(x, _axis(group), 0, 0, tiled=True)


def _broadcast(x: jax.Array, source: int, group: Any) -> jax.Array:
    axis = _axis(group)
    return lax.psum(jnp.where(lax.axis_index(axis) == source, x, jnp.zeros_like(x)), axis)


if torch.distributed.is_available():
    import torch.distributed._functional_collectives  # defines the operators

    _ops = torch.ops._c10d_functional
    torchax.ops.jaten.op(_ops.all_reduce.default)(_all_reduce)
    torchax.ops.jaten.op(_ops.all_gather_into_tensor.default)(_all_gather)
    torchax.ops.jaten.op(_ops.reduce_scatter_tensor.default)(_reduce_scatter)
    torchax.ops.jaten.op(_ops.all_to_all_single.default)(_all_to_all)
    torchax.ops.jaten.op(_ops.broadcast.default)(_broadcast)
    torchax.ops.jaten.op(_ops.wait_tensor.default)(lambda x: x)

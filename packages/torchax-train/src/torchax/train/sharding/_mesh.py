"""Meshes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from torchax.train.sharding._errors import ShardingError


def automatic(mesh: jax.sharding.Mesh) -> jax.sharding.Mesh:
    """The mesh with all axes left to the compiler (``jax.make_mesh`` makes *explicit* ones, where every operator that is
    not sure of its output's sharding is an error)."""
    return jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=_auto(mesh.axis_names))


def make_mesh(
    axes: Mapping[str, int], *, slices: Mapping[str, int] | None = None, devices: Sequence[jax.Device] | None = None
) -> jax.sharding.Mesh:
    """A mesh over all devices, with neighbours near each other.

    Args:
        axes: axis names and sizes within a slice (a group of devices with fast links), the slowest first; one size may
            be -1, for what is left.
        slices: axis names and sizes across slices, over the slow network: ``{"data": 2}`` for two. An axis that is also
            in ``axes`` is the product of both. Slices are the hardware's own where there are such, else processes, else
            equal runs of devices.
        devices: which devices; all, by default.

    Returns:
        A mesh with axes of ``slices`` first, then those of ``axes``.

    Raises:
        ShardingError: the sizes do not make up the number of devices.
    """
    found = list(jax.devices() if devices is None else devices)
    slices = dict(slices or {})
    count = math.prod(slices.values())
    sizes = _complete(axes, len(found) / count, f"{len(found)} devices in {count} slices" if slices else "")
    names = [*(n for n in slices if n not in sizes), *sizes]
    inner, outer = [sizes.get(n, 1) for n in names], [slices.get(n, 1) for n in names]
    if count == 1:
        return jax.sharding.Mesh(mesh_utils.create_device_mesh(inner, found), names, axis_types=_auto(names))
    if len({getattr(d, "slice_index", None) for d in found}) == count:
        array = mesh_utils.create_hybrid_device_mesh(inner, outer, found)
    elif len({d.process_index for d in found}) == count:
        array = mesh_utils.create_hybrid_device_mesh(inner, outer, found, process_is_granule=True)
    else:
        array = _simulated(found, inner, outer)
    return jax.sharding.Mesh(array, names, axis_types=_auto(names))


def _auto(names: Sequence[str]) -> tuple[AxisType, ...]:
    return (AxisType.Auto,) * len(names)


def _complete(axes: Mapping[str, int], count: float, what: str) -> dict[str, int]:
    sizes, unknown = dict(axes), [n for n, size in axes.items() if size == -1]
    known = math.prod(size for size in sizes.values() if size != -1)
    if len(unknown) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise ShardingError(f"mesh {dict(axes)}: sizes are positive, and at most one is -1")
    if unknown:
        sizes[unknown[0]] = int(count // known)
    if math.prod(sizes.values()) != count:
        said = what or f"{int(count)} devices"
        raise ShardingError(f"mesh {dict(axes)} does not divide {said}: its sizes must make up {count:g}")
    return sizes


def _simulated(devices: Sequence[jax.Device], inner: Sequence[int], outer: Sequence[int]) -> np.ndarray:
    """Equal runs of devices as slices."""
    array = np.array(devices).reshape(*outer, *inner)
    order = [i for pair in zip(range(len(outer)), range(len(outer), 2 * len(outer))) for i in pair]
    return array.transpose(order).reshape([o * i for o, i in zip(outer, inner)])


def batch_sharding(mesh: jax.sharding.Mesh, axes: Sequence[str], sequence: str | None = None) -> Any:
    """How a batch lies on the mesh: its first dim over ``axes``, its second over ``sequence``."""
    first = tuple(a for a in axes if a in mesh.axis_names) or None
    return NamedSharding(mesh, PartitionSpec(first, sequence) if sequence else PartitionSpec(first))

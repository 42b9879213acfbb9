"""From rules to one checked sharding for each parameter, and the table that shows them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import torch
from jax.sharding import NamedSharding, PartitionSpec
from rich.table import Column, Table

from torchax.dtypes import TORCH_DTYPE_TO_JAX
from torchax.tensor import Tensor
from torchax.train.sharding._errors import ShardingError
from torchax.train.sharding._rules import Rules, Sharder


def axes_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes of one entry of a ``PartitionSpec``."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def problem(spec: PartitionSpec, shape: tuple[int, ...], mesh: jax.sharding.Mesh) -> str | None:
    """Why an array of that shape cannot be split so; None if it can."""
    used = [axis for entry in spec for axis in axes_of(entry)]
    if unknown := [axis for axis in used if axis not in mesh.axis_names]:
        return f"{spec} names axes {unknown}; the mesh has {list(mesh.axis_names)}"
    if len(set(used)) < len(used):
        return f"{spec} uses an axis twice"
    if len(spec) > len(shape):
        return f"{spec} has {len(spec)} entries for shape {shape}"
    for i, entry in enumerate(spec):
        parts = math.prod(mesh.shape[axis] for axis in axes_of(entry))
        if shape[i] % parts:
            return f"{spec} splits dim {i} of {shape} into {parts} parts"
    return None


def shardings(
    parameters: Mapping[str, Any], mesh: jax.sharding.Mesh, sharder: Sharder | Mapping[str, Any]
) -> dict[str, NamedSharding]:
    """A sharding for each parameter.

    Args:
        parameters: names to anything with a ``shape``.
        mesh: the devices.
        sharder: `Rules`, or a dict for them, or a function ``(name, shaped) -> PartitionSpec``.

    Raises:
        ShardingError: a rule matches nothing, names an unknown axis, or does not divide; all are listed.
    """
    if isinstance(sharder, Mapping):
        sharder = Rules(sharder)
    said = []
    if isinstance(sharder, Rules) and (unmatched := sharder.unmatched(parameters)):
        some = ", ".join(list(parameters)[:4])
        said.append(f"rules that match no parameter: {', '.join(map(repr, unmatched))} (there are {some} ...)")
    found = {}
    for name, x in parameters.items():
        spec = sharder(name, x)
        if why := problem(spec, tuple(x.shape), mesh):
            said.append(f"{name}: {why}")
        else:
            found[name] = NamedSharding(mesh, spec)
    if said:
        raise ShardingError("; ".join(said))
    return found


def named_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def abstract_state(
    model: torch.nn.Module, mesh: jax.sharding.Mesh, sharder: Sharder | Mapping[str, Any]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, dtypes and shardings of a model's parameters and persistent buffers: a ``like`` for ``load_checkpoint``.

    The model may be on the ``meta`` device: nothing is allocated.
    """
    state = {n: x for n, x in named_tensors(model).items() if n in model.state_dict(keep_vars=True)}
    placed = shardings({n: x for n, x in state.items() if isinstance(x, torch.nn.Parameter)}, mesh, sharder)
    with jax.enable_x64(True):
        return {
            name: jax.ShapeDtypeStruct(
                tuple(x.shape),
                TORCH_DTYPE_TO_JAX[x.dtype],
                sharding=placed.get(name, NamedSharding(mesh, PartitionSpec())),
            )
            for name, x in state.items()
        }


def _written(spec: PartitionSpec) -> str:
    return ", ".join("+".join(axes_of(entry)) or "-" for entry in spec) or "replicated"


def sharding_table(state: torch.nn.Module | Mapping[str, Any]) -> Table:
    """What each parameter got, as a ``rich`` table; equal layers share a row.

    Args:
        state: a module or names to tensors, arrays or ``ShapeDtypeStruct``s, with their shardings.
    """
    named: Any = dict(state.named_parameters()) if isinstance(state, torch.nn.Module) else state
    rows: dict[tuple[Any, ...], list[str]] = {}
    for name, x in named.items():
        array = x.jax() if isinstance(x, Tensor) else x
        sharding = array.sharding
        spec = _written(sharding.spec) if isinstance(sharding, NamedSharding) else "one device"
        pattern = re.sub(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", "*", name)
        part = sharding.shard_shape(array.shape)
        rows.setdefault((pattern, array.shape, spec, part, array.dtype), []).append(name)
    table = Table(
        Column("parameter", overflow="fold"),
        *("count", "shape", "split over", "on each device", "MB each"),
        title="Shardings",
    )
    total = 0.0
    for (pattern, shape, spec, part, dtype), names in rows.items():
        size = math.prod(part) * dtype.itemsize * len(names) / 1e6
        total += size
        label = names[0] if len(names) == 1 else pattern
        table.add_row(label, str(len(names)), _dims(shape), spec, _dims(part), f"{size:.3f}")
    table.add_section()
    table.add_row("all", str(len(named)), "", "", "", f"{total:.3f}")
    return table


def _dims(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"

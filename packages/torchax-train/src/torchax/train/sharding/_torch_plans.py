"""PyTorch's tensor-parallel plans (``torch.distributed.tensor.parallel``) in terms of ``PartitionSpec``."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from jax.sharding import PartitionSpec
from torch import nn

from torchax.train.sharding._errors import ShardingError

_U = PartitionSpec.UNCONSTRAINED


def is_torch_plan(plan: Any) -> bool:
    if not isinstance(plan, Mapping) or not plan or not torch.distributed.is_available():
        return False
    from torch.distributed.tensor.parallel import ParallelStyle

    return any(isinstance(style, ParallelStyle) for style in plan.values())


def of_torch_plan(
    model: nn.Module, plan: Mapping[str, Any], axis: str
) -> tuple[dict[str, PartitionSpec], dict[str, PartitionSpec]]:
    """Specs of the parameters that the plan splits, and of the outputs of its modules (from the last dim backwards).

    Raises:
        ShardingError: a pattern matches no module, or a style has no counterpart.
    """
    specs: dict[str, PartitionSpec] = {}
    outputs: dict[str, PartitionSpec] = {}
    modules = dict(model.named_modules())
    for pattern, style in plan.items():
        matched = [n for n in modules if fnmatchcase(n, pattern)]
        if not matched:
            raise ShardingError(f"plan entry {pattern!r} matches no module of {type(model).__name__}")
        for name in matched:
            of_parameters, of_output = _of_style(name, modules[name], style, axis)
            specs |= {f"{name}.{key}": spec for key, spec in of_parameters.items()}
            outputs[name] = of_output
    return specs, outputs


def _of_style(name: str, module: nn.Module, style: Any, axis: str) -> tuple[dict[str, PartitionSpec], PartitionSpec]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    if isinstance(style, SequenceParallel):
        if style.sequence_sharding[0].dim != 1:
            raise ShardingError(f"{name}: SequenceParallel over dim 1 of (batch, sequence, features) only")
        return {}, PartitionSpec(axis, None)
    if not isinstance(style, ColwiseParallel | RowwiseParallel):
        raise ShardingError(
            f"{name}: {type(style).__name__} has no counterpart here: ColwiseParallel, RowwiseParallel and "
            "SequenceParallel do; inputs are laid out by the compiler, so that PrepareModuleInput is not needed"
        )
    if not isinstance(module, nn.Linear | nn.Embedding):
        raise ShardingError(f"{name}: {type(style).__name__} is for Linear and Embedding, not {type(module).__name__}")
    # A linear layer's weight is (out, in), an embedding's (number, features)
    column = isinstance(style, ColwiseParallel) == isinstance(module, nn.Linear)
    specs = {"weight": PartitionSpec(axis) if column else PartitionSpec(None, axis)}
    if getattr(module, "bias", None) is not None and column:
        specs["bias"] = PartitionSpec(axis)
    return specs, _of_placement(name, style.output_layouts[0], axis)


def _of_placement(name: str, placement: Any, axis: str) -> PartitionSpec:
    if placement.is_replicate():
        return PartitionSpec(None)
    if not placement.is_shard():
        raise ShardingError(f"{name}: an output laid out as {placement} has no counterpart here")
    if placement.dim == -1:
        return PartitionSpec(axis)
    if placement.dim == 1:
        return PartitionSpec(axis, None)
    raise ShardingError(f"{name}: outputs are split in dim 1 (the sequence) or -1, not {placement.dim}")

"""Ready plans: a model's modules, known by name and kind, split over named mesh axes.

Column-parallel layers split their outputs and row-parallel ones their inputs, so that a block of both needs one
all-reduce, after the row-parallel layer (Megatron-LM, arXiv:1909.08053). FSDP splits what is left of every parameter
and gathers it where a module uses it (ZeRO-3, arXiv:1910.02054).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import torch
from jax.sharding import PartitionSpec
from torch import nn

from torchax.train.sharding._errors import ShardingError

COLUMN = {
    "q_proj",
    "k_proj",
    "v_proj",
    "query",
    "key",
    "value",
    "wq",
    "wk",
    "wv",
    "gate_proj",
    "up_proj",
    "c_fc",
    "fc1",
}
COLUMN |= {"w1", "w3", "linear1", "lm_head"}
ROW = {"o_proj", "out_proj", "wo", "down_proj", "c_proj", "fc2", "w2", "linear2"}
HEADS = {"q_proj", "k_proj", "v_proj", "query", "key", "value", "wq", "wk", "wv"}
_U = PartitionSpec.UNCONSTRAINED


@dataclass(frozen=True)
class Plan:
    """Which mesh axis does what; any of them may be left out, and all go together.

    Modules are known by their names in Llama-, GPT-, ViT- and Mixtral-shaped models of ``transformers`` and their
    like. Fused query-key-value layers are split by ``fsdp`` alone. For other models write `Rules`.

    Args:
        data: splits the batch, parameters are whole on each.
        fsdp: splits the batch and every parameter, which is gathered where it is used.
        tensor: splits attention heads, feed-forward layers, embeddings and the output's vocabulary.
        expert: splits the experts of a mixture.
        context: splits the sequence (the batch's second dim); keys and values are gathered for attention.
        sequence_parallel: split the sequence over ``tensor`` between tensor-parallel layers.
    """

    data: str | None = None
    fsdp: str | None = None
    tensor: str | None = None
    expert: str | None = None
    context: str | None = None
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        axes = [a for a in (self.data, self.fsdp, self.tensor, self.expert, self.context) if a is not None]
        if len(set(axes)) < len(axes):
            raise ShardingError(f"{self}: an axis has two tasks")
        if self.sequence_parallel and (self.tensor is None or self.context is not None):
            raise ShardingError(
                "sequence_parallel splits the sequence over the tensor axis, which context does already"
            )

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The axes over which a batch's first dim is split. Experts share theirs: each has part of the batch."""
        return tuple(a for a in (self.data, self.fsdp, self.expert) if a)

    def specs(self, model: nn.Module, mesh: jax.sharding.Mesh) -> dict[str, PartitionSpec]:
        """A ``PartitionSpec`` for each parameter.

        Raises:
            ShardingError: the mesh lacks an axis, the model has nothing to split over one, or heads do not divide.
        """
        for axis in (self.data, self.fsdp, self.tensor, self.expert, self.context):
            if axis is not None and axis not in mesh.axis_names:
                raise ShardingError(f"{self} names axis {axis!r}; the mesh has {list(mesh.axis_names)}")
        found: dict[str, PartitionSpec] = {}
        self._check_heads(model, mesh)
        for name, module, key, p in _parameters(model):
            dims = self._dims(name, module, p, mesh)
            found[f"{name}.{key}" if name else key] = self._with_fsdp(dims, p.shape, mesh)
        for axis, what in ((self.tensor, "tensor-parallel layer"), (self.expert, "mixture of experts")):
            if axis is not None and not any(axis in spec for spec in found.values()):
                raise ShardingError(f"{type(model).__name__} has no {what} that Plan knows by name; write Rules for it")
        return found

    def outputs(self, model: nn.Module) -> dict[str, PartitionSpec]:
        """How the outputs of modules, ``(batch, ..., features)``, lie, from the last dim backwards (so for any number of
        dims between). `parallelize` splits their batch over ``batch_axes`` besides, where that divides."""
        found: dict[str, PartitionSpec] = {}
        for name, module in model.named_modules():
            role = role_of(name, module)
            if self.context is not None and name.rpartition(".")[2] in HEADS - {"q_proj", "query", "wq"}:
                found[name] = PartitionSpec(None, _U)
            elif self.tensor is not None and role == "column":
                found[name] = PartitionSpec(self.tensor)
            elif self.sequence_parallel and (role == "row" or "norm" in type(module).__name__.lower()):
                found[name] = PartitionSpec(self.tensor, None)
            elif self.sequence_parallel and role == "embedding":
                found[name] = PartitionSpec(None, None)  # else the sequence's split would gather the table
            elif self.tensor is not None and role in ("row", "embedding"):
                found[name] = PartitionSpec(None)
            elif role in ("row", "embedding"):
                found[name] = PartitionSpec()
        return found

    def _dims(self, name: str, module: nn.Module, p: torch.Tensor, mesh: jax.sharding.Mesh) -> list[Any]:
        """The entries of a parameter's spec, without FSDP."""
        dims: list[Any] = [None] * p.ndim
        role = role_of(name, module)
        if role == "experts" and p.ndim == 3:
            dims[0] = self.expert
        elif self.tensor is None or role is None or role == "experts":
            pass
        elif role == "embedding":
            dims[0] = self.tensor if p.shape[0] % mesh.shape[self.tensor] == 0 else None
        else:
            outputs = p.ndim - 1 if _is_transposed(module) else 0
            if role == "column":
                dims[outputs] = self.tensor
            elif p.ndim == 2:
                dims[1 - outputs] = self.tensor
        return dims

    def _check_heads(self, model: nn.Module, mesh: jax.sharding.Mesh) -> None:
        for name, module in model.named_modules():
            size, head = 1 if self.tensor is None else mesh.shape[self.tensor], getattr(module, "head_dim", None)
            for key, child in module.named_children():
                if isinstance(head, int) and key in HEADS and isinstance(child, nn.Linear):
                    heads = child.out_features // head
                    if heads % size:
                        raise ShardingError(
                            f"{name}.{key} has {heads} heads, which do not divide over {size} devices of axis "
                            f"{self.tensor!r}"
                        )

    def _with_fsdp(self, dims: list[Any], shape: tuple[int, ...], mesh: jax.sharding.Mesh) -> PartitionSpec:
        """FSDP takes the first dim that it divides and that is free; small parameters that have none stay whole."""
        if self.fsdp is not None:
            free = [i for i, d in enumerate(dims) if d is None and shape[i] and shape[i] % mesh.shape[self.fsdp] == 0]
            if free:
                dims[free[0]] = self.fsdp
        while dims and dims[-1] is None:
            dims.pop()
        return PartitionSpec(*dims)


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    """Each parameter once, with the module that owns it."""
    seen: set[int] = set()
    for name, module in model.named_modules():
        for key, p in module.named_parameters(recurse=False):
            if id(p) not in seen:
                seen.add(id(p))
                yield name, module, key, p


def _is_transposed(module: nn.Module) -> bool:
    """GPT-2's ``Conv1D``, a linear layer whose weight is ``(in, out)``."""
    return type(module).__name__ == "Conv1D"


def role_of(name: str, module: nn.Module) -> str | None:
    """``column``, ``row``, ``embedding`` or ``experts``; None for what is not split by kind."""
    last = name.rpartition(".")[2]
    if isinstance(module, nn.Embedding):
        return "embedding"
    if last == "experts":
        return "experts"
    if not (isinstance(module, nn.Linear) or _is_transposed(module)):
        return None
    if last == "dense":  # BERT's and older ViTs' names
        return {"intermediate": "column", "output": "row"}.get(name.split(".")[-2] if "." in name else "")
    return "column" if last in COLUMN else "row" if last in ROW else None

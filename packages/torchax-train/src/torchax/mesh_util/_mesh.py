"""``Mesh`` and ``SingleAxisSharder``: models split over one mesh axis by the first dim that divides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import torch
from jax.sharding import PartitionSpec
from torch import nn

from torchax.train.sharding import ShardingError, make_mesh, parallelize, shardings
from torchax.train.sharding._initialize import build
from torchax.train.sharding._layout import named_tensors
from torchax.train.sharding._mesh import automatic
from torchax.train.sharding._rules import Sharder


class SingleAxisSharder:
    """A sharder ``(name, shaped) -> PartitionSpec`` that splits the first dim which the axis divides.

    Args:
        axis_name: the mesh axis.
        axis_size: its size.
        replicate_unshardable: what has no such dim is whole on each device; else it is an error.
    """

    def __init__(self, axis_name: str, axis_size: int, replicate_unshardable: bool = False) -> None:
        self.axis_name = axis_name
        self.axis_size = axis_size
        self.replicate_unshardable = replicate_unshardable

    def __call__(self, name: str, shaped: Any) -> PartitionSpec:
        """The spec of a parameter.

        Raises:
            ShardingError: no dim divides.
        """
        for i, size in enumerate(shaped.shape):
            if size and size % self.axis_size == 0:
                return PartitionSpec(*[None] * i, self.axis_name)
        if not self.replicate_unshardable:
            raise ShardingError(
                f"{name}: no dim of {tuple(shaped.shape)} divides over {self.axis_size} devices of axis "
                f"{self.axis_name!r}; replicate_unshardable=True leaves it whole on each"
            )
        return PartitionSpec()


class Mesh:
    """A mesh of devices with a rule for splitting models over it.

    Args:
        jax_mesh: the mesh.
        sharder: ``(name, shaped) -> PartitionSpec``, for parameters and buffers; by default a `SingleAxisSharder` over
            the mesh's only axis.

    Raises:
        ShardingError: no sharder for a mesh of several axes.
    """

    def __init__(self, jax_mesh: jax.sharding.Mesh, sharder: Sharder | None = None) -> None:
        self.jax_mesh = automatic(jax_mesh)
        if sharder is None:
            if len(jax_mesh.axis_names) != 1:
                raise ShardingError(f"a mesh with axes {jax_mesh.axis_names} needs a sharder; one axis does without")
            sharder = SingleAxisSharder(jax_mesh.axis_names[0], jax_mesh.size, replicate_unshardable=True)
        self.sharder = sharder

    @classmethod
    def fsdp_mesh(cls, axis_name: str = "fsdp") -> Mesh:
        """All devices on one axis."""
        return cls(make_mesh({axis_name: -1}))

    def initialize_model_sharded(
        self,
        model_class: type[nn.Module],
        init_args: Sequence[Any],
        init_kwargs: Mapping[str, Any] | None = None,
        override_sharder: Sharder | None = None,
    ) -> nn.Module:
        """``model_class(*init_args, **init_kwargs)`` on the mesh: its own ``__init__`` compiled, so that every device
        makes its part only. Random numbers come from the device's generator (``torch.manual_seed``)."""
        kwargs = init_kwargs or {}
        with torch.device("meta"):
            model = model_class(*init_args, **kwargs)

        def make() -> nn.Module:
            with torch.device("jax"):
                return model_class(*init_args, **kwargs)

        placed = shardings(named_tensors(model), self.jax_mesh, override_sharder or self.sharder)
        build(model, make, placed, int(torch.randint(2**31, (), device="jax")))
        return model

    def shard_model(self, model: nn.Module, override_sharder: Sharder | None = None) -> nn.Module:
        """Split a model's parameters and buffers, in place, by the sharder; returns the model."""
        return parallelize(model, self.jax_mesh, override_sharder or self.sharder)

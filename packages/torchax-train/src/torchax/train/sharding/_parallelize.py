"""``parallelize``: put a model on a mesh."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import torch
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec
from torch import nn

from torchax import interop
from torchax.tensor import Tensor, wide_for
from torchax.train.sharding._errors import ShardingError
from torchax.train.sharding._initialize import initialize
from torchax.train.sharding._layout import axes_of, named_tensors, shardings
from torchax.train.sharding._mesh import automatic
from torchax.train.sharding._plans import Plan
from torchax.train.sharding._rules import Rules, Sharder
from torchax.train.sharding._torch_plans import is_torch_plan, of_torch_plan
from torchax.transfer import numpy_view

_U = PartitionSpec.UNCONSTRAINED


def parallelize(
    model: nn.Module,
    mesh: jax.sharding.Mesh,
    plan: Plan | Rules | Mapping[str, Any] | Sharder,
    *,
    axis: str | None = None,
    seed: int = 0,
) -> nn.Module:
    """Lay a model's parameters out over a mesh, in place, and its activations as the plan wants them.

    Forward runs the model as it is, on batches laid out with `batch_sharding`; under ``jax.jit`` the compiler puts in
    the collectives. What `Plan` splits by ``fsdp`` is gathered where a module uses it, and its gradient is reduced into
    the shards.

    Args:
        model: on the CPU (each device gets its part only), on ``jax``, or on ``meta``: then it is initialized, straight
            into its shards, as `initialize` does.
        mesh: of ``make_mesh`` or ``jax.make_mesh``; all its axes are left to the compiler.
        plan: a `Plan`; `Rules`, a dict for them, or a function ``(name, shaped) -> PartitionSpec``; or PyTorch's plan,
            a dict of module patterns to ``ColwiseParallel``, ``RowwiseParallel`` and ``SequenceParallel``.
        axis: the mesh axis of PyTorch's plan; may be left out if the mesh has one axis.
        seed: of the initialization of a ``meta`` model.

    Returns:
        The same model. Its parameters stay the same objects, and tied ones tied. Optimizer state made from them (optax's
        ``init`` or ``torch.optim``) is split the same way.

    Raises:
        ShardingError: the plan does not fit the model or the mesh.
    """
    mesh = automatic(mesh)
    outputs: dict[str, PartitionSpec] = {}
    gathered: str | None = None
    batch: tuple[str, ...] = ()
    if isinstance(plan, Plan):
        specs = plan.specs(model, mesh)
        sharder: Any = lambda name, x: specs[name]  # noqa: E731
        outputs, gathered, batch = plan.outputs(model), plan.fsdp, plan.batch_axes
    elif is_torch_plan(plan):
        assert isinstance(plan, Mapping)
        names: tuple[str, ...] = mesh.axis_names
        axis = names[0] if axis is None and len(names) == 1 else axis
        if axis is None or axis not in names:
            raise ShardingError(f"axis= says which of {list(names)} PyTorch's plan is for; got {axis!r}")
        split, outputs = of_torch_plan(model, plan, axis)
        sharder = lambda name, x: split.get(name, PartitionSpec())  # noqa: E731
    else:
        sharder = plan
    placed = shardings(dict(model.named_parameters()), mesh, sharder)
    placed |= {name: NamedSharding(mesh, PartitionSpec()) for name, _ in model.named_buffers()}
    if any(x.device.type == "meta" for x in named_tensors(model).values()):
        initialize(model, placed, seed=seed)
    else:
        for name, x in named_tensors(model).items():
            place(x, placed[name])
    for handle in model.__dict__.pop("_torchax_hooks", []):
        handle.remove()
    model.__dict__["_torchax_hooks"] = [
        *_gather(model, placed, gathered),
        *_constrain_outputs(model, mesh, outputs, batch),
    ]
    return model


def place(x: torch.Tensor, sharding: NamedSharding) -> None:
    """Lay one tensor out, in place; from the CPU each device is sent its part only."""
    if isinstance(x, Tensor):
        x.data = Tensor(jax.device_put(x.jax(), sharding))
        return
    values = numpy_view(x.detach())
    with jax.enable_x64(True):
        array = jax.make_array_from_callback(x.shape, sharding, lambda index: np.array(values[index]))
    replace(x, Tensor(array))


def replace(x: torch.Tensor, new: torch.Tensor) -> None:
    """Make the object ``x`` the tensor ``new``: modules and optimizers that hold it see the new one, ties stay."""
    if isinstance(x, nn.Parameter):
        new = nn.Parameter(new, requires_grad=x.requires_grad)
    torch.utils.swap_tensors(x, new)


def constrain(x: torch.Tensor, sharding: NamedSharding) -> torch.Tensor:
    """``x`` laid out as ``sharding`` says; differentiable on both sides."""
    with wide_for(interop.jax_view(x)):
        return interop.call_jax(jax.lax.with_sharding_constraint, x, sharding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gathered(x: jax.Array, whole: NamedSharding, shards: NamedSharding) -> jax.Array:
    return checkpoint_name(jax.lax.with_sharding_constraint(x, whole), "gathered_parameter")


_gathered.defvjp(
    lambda x, whole, shards: (_gathered(x, whole, shards), None),
    lambda whole, shards, _, grad: (jax.lax.with_sharding_constraint(grad, shards),),
)


def _gather(model: nn.Module, placed: Mapping[str, NamedSharding], axis: str | None) -> Iterator[Any]:
    """Hooks by which each module's own parameters, split over ``axis``, are whole while it runs."""
    for name, module in model.named_modules():
        own = {key: placed.get(f"{name}.{key}" if name else key) for key in module._parameters}
        split = {key: s for key, s in own.items() if s is not None and any(axis in axes_of(e) for e in s.spec)}
        if axis is None or not split:
            continue
        before: list[dict[str, Any]] = []

        def gather(module: nn.Module, args: Any, split: Any = split, before: Any = before) -> None:
            before.append(dict(module._parameters))
            for key, shards in split.items():
                rest = [tuple(a for a in axes_of(e) if a != axis) or None for e in shards.spec]
                whole = NamedSharding(shards.mesh, PartitionSpec(*rest))
                x: Any = module._parameters[key]
                with wide_for(x.jax()):
                    module._parameters[key] = interop.call_jax(_gathered, x, whole, shards)

        def release(module: nn.Module, args: Any, output: Any, before: Any = before) -> None:
            module._parameters.update(before.pop())

        yield module.register_forward_pre_hook(gather)
        yield module.register_forward_hook(release, always_call=True)


def _constrain_outputs(
    model: nn.Module, mesh: jax.sharding.Mesh, specs: Mapping[str, PartitionSpec], batch: tuple[str, ...]
) -> Iterator[Any]:
    """Hooks that lay the modules' outputs out: the last dims as the specs say, the first over the axes of the batch."""
    parts = math.prod(mesh.shape[a] for a in batch)

    for name, spec in specs.items():

        def hook(module: nn.Module, args: Any, output: Any, last: PartitionSpec = spec) -> Any:
            if not isinstance(output, Tensor) or output.ndim < max(2, len(last)):
                return output
            entries = [_U] * (output.ndim - len(last)) + list(last)
            if batch and output.ndim > 2 and output.shape[0] % parts == 0 and entries[0] is _U:
                entries[0] = batch
            if all(entry is _U for entry in entries):
                return output
            return constrain(output, NamedSharding(mesh, PartitionSpec(*entries)))

        yield model.get_submodule(name).register_forward_hook(hook)

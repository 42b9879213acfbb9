"""Initialization of a ``meta`` model by its own code, compiled so that every device makes its own part only."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import jax
import torch
from jax.sharding import NamedSharding
from torch import nn

import torchax
from torchax import interop
from torchax.tensor import Tensor
from torchax.train.sharding._errors import ShardingError
from torchax.train.sharding._layout import named_tensors


def initialize(model: nn.Module, shardings: Mapping[str, NamedSharding], *, seed: int = 0) -> nn.Module:
    """Give a ``meta`` model its initial values, in place, each device making its part.

    Runs ``_init_weights`` (``transformers``) or each module's ``reset_parameters`` in one compiled program, whose random
    numbers do not depend on the mesh.

    Args:
        model: on ``meta``; it may be larger than any one device or the host.
        shardings: of each parameter and buffer, by name.
        seed: of the random numbers.

    Raises:
        ShardingError: a module has parameters or buffers and neither method.
    """
    reset = _reset_of(model)

    def fresh() -> nn.Module:
        made = copy.deepcopy(model).to_empty(device="jax")
        reset(made)
        return made

    build(model, fresh, shardings, seed)
    return model


def build(model: nn.Module, make: Callable[[], nn.Module], shardings: Mapping[str, NamedSharding], seed: int) -> None:
    """Put what ``make`` makes, traced and compiled with those shardings, into ``model``'s parameters and buffers."""
    from torchax.train.sharding._parallelize import replace

    def arrays(key: jax.Array) -> dict[str, jax.Array]:
        with torchax.default_env().override_property(prng=key), torch.no_grad():
            return interop.jax_view(named_tensors(make()))

    wanted = {name: shardings[name] for name in named_tensors(model)}
    with jax.enable_x64(True):
        found: dict[str, Any] = jax.jit(arrays, out_shardings=wanted)(jax.random.key(seed))
    for name, x in named_tensors(model).items():
        replace(x, Tensor(found[name]))


def _reset_of(model: nn.Module) -> Callable[[nn.Module], Any]:
    if hasattr(model, "_init_weights"):
        return lambda made: made.apply(made._init_weights)  # type: ignore[union-attr, arg-type]
    for name, module in model.named_modules():
        own = [*module._parameters, *module._buffers]
        if own and not hasattr(module, "reset_parameters"):
            raise ShardingError(
                f"{name or 'the model'} ({type(module).__name__}) has {', '.join(own)} and no reset_parameters() to "
                "initialize them: give it one, or initialize the model before"
            )

    def reset(made: nn.Module) -> None:
        for module in made.modules():
            getattr(module, "reset_parameters", lambda: None)()

    return reset

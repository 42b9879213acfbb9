"""``torch.utils.checkpoint`` under a trace: ``jax.checkpoint``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint

from torchax.interop._higher_order import is_traced
from torchax.interop._transforms import gradient_checkpoint

# What says how PyTorch checkpoints, and means nothing to JAX.
_SETTINGS = ("use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop")


def register() -> None:
    """Make ``torch.utils.checkpoint.checkpoint`` a ``jax.checkpoint`` where it is given something traced.

    PyTorch's own would compute again in the backward too, but in one XLA program the compiler takes equal computations
    together, and nothing is saved.
    """
    # The function behind the decorator that keeps Dynamo out: others (transformers) hold the decorated one already.
    function = torch.utils.checkpoint.checkpoint.__wrapped__  # type: ignore[attr-defined]
    function.__dynamo_disable = _in_its_place(function)


def _parameters(function: Any) -> list[torch.Tensor]:
    """The parameters of the module that a function belongs to: they may be traced where its arguments are not."""
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", function)
    return list(owner.parameters()) if isinstance(owner, torch.nn.Module) else []


def _in_its_place(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.cache
    def eager() -> Callable[..., Any]:
        import torch._dynamo

        return torch._dynamo.disable(original, wrapping=False)

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if "context_fn" in kwargs or not is_traced((args, kwargs, _parameters(function))):
            return eager()(function, *args, **kwargs)
        rest = {name: value for name, value in kwargs.items() if name not in _SETTINGS}
        return gradient_checkpoint(function)(*args, **rest)

    return checkpoint

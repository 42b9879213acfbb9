"""Optimizers of ``torch.optim`` under a trace: their state, step count and learning rate as tensors of the device."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch

from torchax.tensor import Tensor

REFUSED = {
    "Adafactor": "it compares its rate with its step count in Python",
    "LBFGS": "it evaluates the loss as often as the values ask for",
    "SparseAdam": "it wants sparse gradients, which device 'jax' does not have",
}


def _ours(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")


def refuse(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Check that each optimizer can be compiled.

    Raises:
        NotImplementedError: one cannot; the message names it.
    """
    for optimizer in optimizers:
        name = type(optimizer).__name__
        if _ours(optimizer) and name in REFUSED:
            raise NotImplementedError(
                f"torch.optim.{name} cannot be compiled: {REFUSED[name]}. Call its step() outside the compiled function."
            )


def prepare(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Make the state that ``step()`` would make at its first call, on the device, so that a trace finds it there.

    Returns the parameters that got a state.
    """
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                state[name] = value.to("jax")
    init = getattr(optimizer, "_init_group", None)
    if init is None or not _ours(optimizer):
        return []
    lists = len(inspect.signature(init).parameters) - 1
    fresh: list[torch.Tensor] = []
    for group in optimizer.param_groups:
        grads = [p.grad for p in group["params"]]
        flag = group.get("capturable")
        try:
            if flag is not None:
                group["capturable"] = True
            for p in group["params"]:
                new = isinstance(p, Tensor) and p.requires_grad and p not in optimizer.state
                p.grad = torch.empty_like(p) if new else None
                if new:
                    fresh.append(p)
            with torch.no_grad():
                init(group, *([] for _ in range(lists)))
        finally:
            if flag is not None:
                group["capturable"] = flag
            for p, grad in zip(group["params"], grads, strict=True):
                p.grad = grad
    return [p for p in fresh if p in optimizer.state]


def rates(optimizers: Iterable[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """The groups whose learning rate is a Python number, to be lifted."""
    return [
        group
        for optimizer in optimizers
        if _ours(optimizer)
        for group in optimizer.param_groups
        if isinstance(group.get("lr"), (int, float))
    ]


def groups(optimizers: Iterable[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers if _ours(optimizer) for group in optimizer.param_groups]


def forget_unused(fresh: list[tuple[torch.optim.Optimizer, torch.Tensor]], inputs: Any, result: Any) -> bool:
    """Take back the state that `prepare` made for parameters which the step then left out; whether there was any."""
    touched = {inputs.boxes[i] for i in (*result.used, *result.written)}
    found = False
    for optimizer, p in fresh:
        boxes = [v._box for v in optimizer.state.get(p, {}).values() if isinstance(v, Tensor)]
        if boxes and not touched.intersection(boxes):
            del optimizer.state[p]
            found = True
    return found

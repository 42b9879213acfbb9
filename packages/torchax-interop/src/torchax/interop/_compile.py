"""``torchax.compile``: a PyTorch program, a whole training step among them, as one XLA program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from torchax.interop._jit import Jitted
from torchax.interop._module import JittableModule


@dataclass
class CompileOptions:
    """How `compile` compiles.

    Attributes:
        methods_to_compile: of a module, which methods.
        jax_jit_kwargs: for ``jax.jit``.
        mode: ``"jax"``: traced by JAX, with all state; ``"dynamo"``: ``torch.compile(backend="jax")``.
    """

    methods_to_compile: list[str] = field(default_factory=lambda: ["forward"])
    jax_jit_kwargs: dict[str, Any] = field(default_factory=dict)
    mode: str = "jax"


def compile(fn: Callable[..., Any], options: CompileOptions | None = None, *, log_recompiles: bool = False) -> Any:
    """``fn`` compiled whole, whatever state it reads and writes.

    A plain training step (``zero_grad``, forward, ``backward``, clipping, ``optimizer.step()``) becomes one XLA program, in
    which the memory of what is overwritten is used again. A changed learning rate needs no new program.

    Args:
        fn: a function over tensors on the device, or a module (the result is a `JittableModule`).
        options: see `CompileOptions`.
        log_recompiles: log, as a warning of logger ``torchax.compile``, why a call needed a new program.

    Raises:
        NotImplementedError: (at a call) an optimizer that ``fn`` reaches cannot be compiled; the message names it.
        ValueError: there is no such mode.
    """
    options = options or CompileOptions()
    if options.mode == "dynamo":
        return torch.compile(fn, backend="jax")
    if options.mode == "export":
        raise ValueError("mode 'export' compiles no callable: use torch.export.export and torchax.export")
    if options.mode != "jax":
        raise ValueError(f"mode must be 'jax' or 'dynamo', not {options.mode!r}")
    if isinstance(fn, torch.nn.Module):
        module = JittableModule(fn, extra_jit_args=options.jax_jit_kwargs)
        vars(module)["_log_recompiles"] = log_recompiles
        for name in options.methods_to_compile:
            module.make_jitted(name)
        return module
    return Jitted.of(fn, options.jax_jit_kwargs, donate_state=True, copy_shared=True, log_recompiles=log_recompiles)

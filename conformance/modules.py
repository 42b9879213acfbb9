"""Level 2: every module of `module_db` on the device "jax" against the same module on CPU.

train, eval            results and written buffers, in that mode; where CPU raises, the device raises too
train_grad, eval_grad  gradients of parameters and inputs
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from _compare import wide_dtype
from _sample import DEVICE, Sample, Skip, attempt, raises, reference, same, tensors
from _samples import seed_all, spread
from transforms import compare, directions, on

CHECKS = ("train", "eval", "train_grad", "eval_grad")


@functools.cache
def entries() -> dict[str, Any]:
    """`module_db` by name, lazy modules (whose parameters do not exist yet) left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_modules import module_db

    return {info.name.replace(".", "_"): info for info in module_db if not info.is_lazy}


def dtypes(info: Any) -> tuple[torch.dtype, ...]:
    """The dtypes that the entry names, and bfloat16."""
    return (*info.dtypes, torch.bfloat16)


def inputs(info: Any, dtype: torch.dtype, training: bool, count: int) -> list[tuple[torch.nn.Module, Sample]]:
    """Modules on CPU, each with the inputs of one call."""
    seed_all(0)
    given = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    found = []
    for one in spread(given, count):
        torch.manual_seed(0)
        module = info.module_cls(*one.constructor_input.args, **one.constructor_input.kwargs)
        sample = Sample(info, None, tuple(one.forward_input.args), one.forward_input.kwargs)
        found.append((module.to(dtype).train(training), sample))
    return found


def _call(module: torch.nn.Module) -> Callable[..., Any]:
    return lambda _, *args, **kwargs: module(*args, **kwargs)


def check(module: torch.nn.Module, sample: Sample, grad: bool) -> None:
    """Raise an AssertionError where the module on the device does not do what it does on CPU."""
    theirs, mine = copy.deepcopy(module), copy.deepcopy(module).to(DEVICE)
    cpu, ours = sample.on("cpu", grad), sample.on(DEVICE, grad)
    want, error = reference(cpu, _call(theirs))
    if error is not None:
        return raises(lambda: ours.run(_call(mine)), error)
    ours.random = cpu.random
    got = ours.run(_call(mine))
    exact = sample.exact()
    third = copy.deepcopy(module).to(wide_dtype(next((p.dtype for p in module.parameters()), torch.float32)))
    truth = exact and exact.run(_call(third))
    if not grad:
        same(got, want, ours, truth=truth)
        return same(dict(mine.named_buffers()), dict(theirs.named_buffers()), ours, "buffers after it: ")
    if cpu.random:
        raise Skip("random")
    outs = [o for o in tensors(want) if o.requires_grad]
    if not outs:
        raise Skip("not differentiable")
    narrow = outs

    def derive(result: Any, one: Sample, of: torch.nn.Module) -> list[torch.Tensor | None]:
        made = [o for o in tensors(result) if o.requires_grad]
        sources = [x for x in (*one.leaves, *of.parameters()) if x.requires_grad]
        return list(torch.autograd.grad(made, sources, on(directions(narrow, 0), made), allow_unused=True))

    wanted, error = attempt(lambda: derive(want, cpu, theirs))
    if error is not None:
        raise Skip("CPU has no derivative")
    truths = derive(truth, exact, third) if exact else [None] * len(wanted)
    compare(ours, derive(got, ours, mine), wanted, truths, "gradient")

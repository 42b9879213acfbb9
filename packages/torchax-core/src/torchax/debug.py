"""Debugging switches: log operators, check them against CPU PyTorch, run missing ones on CPU.

While a switch is on, each plan is wrapped in a function here that watches its calls; off, nothing of this runs.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import torch
from torch.utils._pytree import tree_flatten, tree_map

from torchax import dispatch, transfer
from torchax.dispatch import describe, describe_call
from torchax.tensor import Tensor, logger

if TYPE_CHECKING:
    from torchax.config import Configuration

_config: Configuration | None = None


def configure(config: Configuration) -> None:
    """Put a configuration's debugging switches in force."""
    global _config
    _config = config
    watched = config.debug_print_each_op or config.debug_accuracy_for_each_op or config.debug_mixed_tensor
    if watched != bool(dispatch.watcher) or config.cpu_fallback != bool(dispatch.fallback):
        dispatch.watcher[:] = [_watch] if watched else []
        dispatch.fallback[:] = [_cpu_fallback] if config.cpu_fallback else []
        dispatch.forget_plans()


def _watch(func: Any, plan: dispatch.Plan) -> dispatch.Plan:
    return lambda args, kwargs: _watched(func, plan, args, kwargs)


def _watched(func: Any, plan: dispatch.Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    config = _config
    assert config is not None
    if config.debug_mixed_tensor:
        _log_mixed(func, args, kwargs)
    expected = _on_cpu(func, args, kwargs) if config.debug_accuracy_for_each_op else None
    before = time.perf_counter()
    out = plan(args, kwargs)
    if config.debug_print_each_op:
        for t in tree_flatten(out)[0]:
            if isinstance(t, Tensor) and not isinstance(t._box.array, jax.core.Tracer):
                jax.block_until_ready(t._box.array)  # else the time would be of the launch only
        elapsed = (time.perf_counter() - before) * 1e6
        values = config.debug_print_each_op_operands
        operands = describe_call(args, kwargs, values)
        logger.info("%s(%s) -> %s  %.0f us", func, operands, describe(out, values), elapsed)
    if expected is not None:
        _compare(func, args, kwargs, out, expected)
    return out


def _log_mixed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    others = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor) and not isinstance(t, Tensor)]
    if others:
        logger.info("%s mixes 'jax' tensors with %s", func, ", ".join(f"{describe(t)} on {t.device}" for t in others))


def _cpu(x: Any) -> Any:
    if isinstance(x, Tensor):
        return transfer.to_torch(x._value(), x.dtype)
    if isinstance(x, torch.device) and x.type == "jax":
        return torch.device("cpu")
    return x


def _traced(args: Any, kwargs: Any) -> bool:
    return any(
        isinstance(t, Tensor) and isinstance(t._box.array, jax.core.Tracer) for t in tree_flatten((args, kwargs))[0]
    )


def _on_cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """The same call on CPU copies, taken before the operator may write to them; ``None`` where that says nothing."""
    if _traced(args, kwargs) or torch.Tag.nondeterministic_seeded in func.tags or func.namespace != "aten":
        return None
    if any(str(a.type) in ("Storage", "Stream") for a in func._schema.arguments):
        return None
    cpu_args, cpu_kwargs = tree_map(_cpu, (args, kwargs))
    return lambda: func(*cpu_args, **cpu_kwargs)


def _compare(func: Any, args: Any, kwargs: Any, out: Any, expected: Callable[[], Any]) -> None:
    if func._schema.name.startswith(("aten::empty", "aten::new_empty", "aten::resize", "aten::set_")):
        return
    wanted = expected()
    got = tree_map(_cpu, out)
    for i, (g, w) in enumerate(zip(tree_flatten(got)[0], tree_flatten(wanted)[0], strict=False)):
        if not isinstance(w, torch.Tensor) or not isinstance(g, torch.Tensor):
            continue
        try:
            torch.testing.assert_close(g, w.detach().resolve_conj().resolve_neg(), equal_nan=True)
        except AssertionError as e:
            raise AssertionError(
                f"result {i} of {func} differs from CPU PyTorch's, given "
                f"({', '.join(describe(a) for a in [*args, *kwargs.values()])}): {e}"
            ) from None


_warned: set[Any] = set()


def _cpu_fallback(func: Any) -> Any:
    """The plan of an operator that has no JAX function, where the user opted in: CPU PyTorch, with a copy each way."""

    def plan(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func not in _warned:
            _warned.add(func)
            warnings.warn(
                f"{func} has no JAX function and runs on CPU PyTorch, with a copy each way (config.cpu_fallback)",
                stacklevel=4,
            )
        if _traced(args, kwargs):
            raise RuntimeError(
                f"{func} has no JAX function, and the CPU fallback cannot run under a trace (jit, grad, vmap)"
            )
        cpu_args, cpu_kwargs = tree_map(_cpu, (args, kwargs))
        originals, copies = tree_flatten((args, kwargs))[0], tree_flatten((cpu_args, cpu_kwargs))[0]
        pairs = [(o, c) for o, c in zip(originals, copies, strict=True) if isinstance(o, Tensor)]
        out = func(*cpu_args, **cpu_kwargs)
        if func._schema.is_mutable:
            for original, copy in pairs:
                original.copy_(copy)
        back = {id(copy): original for original, copy in pairs}
        device = pairs[0][0].device if pairs else torch.device("jax:0")
        return tree_map(lambda t: back.get(id(t), t.to(device)) if isinstance(t, torch.Tensor) else t, out)

    return plan

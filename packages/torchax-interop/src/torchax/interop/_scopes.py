"""Names of modules in traced programs: what XLA's metadata and ``jax.profiler`` show of an operation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

_lock = threading.Lock()
_users = 0  # traces that are running, on any thread
_handles: list[Any] = []


class _Stack(threading.local):
    """The modules that are running under a trace on this thread, and the scope of the innermost one."""

    def __init__(self) -> None:
        self.tracing = 0
        self.entered: list[tuple[torch.nn.Module, str]] = []
        self.scope: Any = None
        self.paths: dict[int, str] = {}

    def show(self) -> None:
        """Open the scope of the innermost module in place of the one that is open: its path holds those around it."""
        if self.scope is not None:
            self.scope.__exit__(None, None, None)
        self.scope = jax.named_scope(self.entered[-1][1]) if self.entered else None
        if self.scope is not None:
            self.scope.__enter__()


_stack = _Stack()


@contextmanager
def named_modules() -> Iterator[None]:
    """Under this, operations carry the path of the ``nn.Module`` that they belong to (``layers.3.mlp.up_proj``).

    Paths begin at the outermost module that is called, which goes by its class.
    """
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _handles[:] = [
                register_module_forward_pre_hook(_enter),
                register_module_forward_hook(_leave, always_call=True),
            ]
    _stack.tracing += 1
    try:
        yield
    finally:
        _stack.tracing -= 1
        if not _stack.tracing and _stack.entered:  # after an exception
            _stack.entered.clear()
            _stack.show()
        with _lock:
            _users -= 1
            if _users == 0:
                for handle in _handles:
                    handle.remove()


def _enter(module: torch.nn.Module, args: Any) -> None:
    if not _stack.tracing:
        return
    if not _stack.entered:
        _stack.paths = {id(m): path for path, m in module.named_modules()}
    path = _stack.paths.get(id(module)) or type(module).__name__
    # PyTorch calls no hook of a module that raised under a trace, where its caller caught that: it is not around this one.
    while len(_stack.entered) > 1 and id(module) in _stack.paths and not path.startswith(_stack.entered[-1][1] + "."):
        _stack.entered.pop()
    _stack.entered.append((module, path))
    _stack.show()


def _leave(module: torch.nn.Module, args: Any, output: Any) -> None:
    if not any(m is module for m, _ in _stack.entered):
        return
    while _stack.entered.pop()[0] is not module:  # modules inside it that raised, and whose exception it caught
        pass
    _stack.show()

"""Overrides of *torch functions* (``F.scaled_dot_product_attention`` ...), above autograd.

``__torch_function__`` costs every call, so it is installed on `Tensor` only while an override is registered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from torchax.tensor import Tensor

_functions: dict[Any, Callable[..., Any]] = {}
_active = threading.local()  # the overrides this thread is inside of
_disabled = torch._C._disabled_torch_function_impl


def _torch_function(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    inside = _active.__dict__.setdefault("functions", set())
    override = None if func in inside else _functions.get(func)
    if override is None:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
    # What an override calls may be overridden too; a call of its own function is the original.
    inside.add(func)
    try:
        return override(*args, **(kwargs or {}))
    finally:
        inside.discard(func)


def register_function(func: Any, override: Callable[..., Any]) -> None:
    """Call ``override`` in place of a torch function whenever a ``jax`` tensor is among its arguments.

    Args:
        func: the torch function (``torch.nn.functional.gelu``) or ``torch.Tensor`` method.
        override: called with the same arguments, tensors as they are. A call of ``func`` inside it is the original.

    Raises:
        TypeError: ``func`` or ``override`` is not callable.
    """
    if not callable(func) or not callable(override):
        raise TypeError(f"register_function takes a torch function and its replacement, got {func!r} and {override!r}")
    _functions[func] = override
    Tensor.__torch_function__ = classmethod(_torch_function)  # type: ignore[assignment]


def unregister_function(func: Any) -> None:
    """Take an override back.

    Raises:
        KeyError: there is none.
    """
    del _functions[func]
    if not _functions:
        Tensor.__torch_function__ = _disabled  # type: ignore[assignment]

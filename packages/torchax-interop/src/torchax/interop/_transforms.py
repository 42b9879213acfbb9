"""JAX's transforms on torch functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from torchax.interop._views import jax_view, torch_view
from torchax.interop._x64 import wide


def _transformed(
    transform: Callable[..., Any], fn: Callable[..., Any], kwargs: dict[str, Any] | None
) -> Callable[..., Any]:
    """``transform(fn)`` for a torch function: JAX sees arrays, both sides of it see tensors."""
    changed = transform(jax_view(fn), **(kwargs or {}))

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = jax_view((args, kwargs))
        with wide():
            return torch_view(changed(*args, **kwargs))

    return call


def jax_value_and_grad(
    fn: Callable[..., Any], kwargs_for_value_and_grad: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """``jax.value_and_grad`` of a torch function: ``(value, gradient)`` by its first argument, as tensors.

    Args:
        fn: a torch function with a scalar floating result.
        kwargs_for_value_and_grad: ``argnums``, ``has_aux`` ... for ``jax.value_and_grad``.
    """
    return _transformed(jax.value_and_grad, fn, kwargs_for_value_and_grad)

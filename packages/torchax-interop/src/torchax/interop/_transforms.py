"""JAX's transforms on torch functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import shard_map

from torchax.interop import _calls
from torchax.interop._jit import Jitted
from torchax.interop._views import jax_view, torch_view
from torchax.interop._x64 import wide

__all__ = ["gradient_checkpoint", "j2t_autograd", "jax_shard_map", "jax_value_and_grad", "shard_map", "wrap_jax_jit"]


def jax_value_and_grad(
    fn: Callable[..., Any], kwargs_for_value_and_grad: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """``jax.value_and_grad`` of a torch function: ``(value, gradient)`` by its first argument, as tensors.

    Args:
        fn: a torch function with a scalar floating result.
        kwargs_for_value_and_grad: ``argnums``, ``has_aux`` ... for ``jax.value_and_grad``.
    """
    transformed = jax.value_and_grad(jax_view(fn), **(kwargs_for_value_and_grad or {}))

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = jax_view((args, kwargs))
        with wide(for_user=True):
            return torch_view(transformed(*args, **kwargs))

    return call


def wrap_jax_jit(
    fn: Callable[..., Any], jax_jit_func: Callable[..., Any] = jax.jit, kwargs_for_jax: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """A torch function under a JAX transform that keeps its signature (``jax.jit``, ``jax.checkpoint``, ``shard_map`` ...).

    What ``fn`` writes besides its result is lost, or leaks: `jax_jit` keeps it.

    Args:
        fn: a torch function.
        jax_jit_func: the transform.
        kwargs_for_jax: its further arguments.
    """
    transformed = jax_jit_func(jax_view(fn), **(kwargs_for_jax or {}))

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        with wide(for_user=True):
            return _calls.call_jax(transformed, *args, **kwargs)

    return call


def jax_shard_map(fn: Callable[..., Any], kwargs_for_jax_shard_map: dict[str, Any] | None = None) -> Callable[..., Any]:
    """``jax.shard_map`` of a torch function: it runs on each device's shard.

    Args:
        fn: a torch function.
        kwargs_for_jax_shard_map: ``mesh``, ``in_specs``, ``out_specs`` ... for ``jax.shard_map``.
    """
    return wrap_jax_jit(fn, shard_map, kwargs_for_jax_shard_map)


def gradient_checkpoint(fn: Callable[..., Any], kwargs: dict[str, Any] | None = None) -> Jitted:
    """``jax.checkpoint`` of a torch function: its intermediate results are computed again in the backward pass.

    Gradients reach what ``fn`` captures, by PyTorch's autograd as by ``jax.grad``, and draws come out the same again.

    Args:
        fn: a torch function.
        kwargs: ``policy``, ``prevent_cse`` ... for ``jax.checkpoint``.
    """
    return Jitted(fn, transform=functools.partial(jax.checkpoint, **(kwargs or {})))


def j2t_autograd(jax_fn: Callable[..., Any], call_jax: Callable[..., Any] = _calls.call_jax) -> Callable[..., Any]:
    """A JAX function as a torch function, differentiable by PyTorch's autograd (`call_jax` is, without asking)."""
    return functools.wraps(jax_fn)(functools.partial(call_jax, jax_fn))

"""Global switches: the environment for all of a program, accuracy and performance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from torchax import dispatch
from torchax.environment import default_env


def enable_globally() -> None:
    """Enter the environment on this thread until `disable_globally`. The device works without; see `Environment`."""
    if not default_env().enabled:
        default_env().enable_torch_modes()


def disable_globally() -> None:
    """Leave the environment on this thread; does nothing where it is not entered."""
    while default_env().enabled:
        default_env().disable_torch_modes()


@contextmanager
def disable_temporarily() -> Iterator[None]:
    """Leave the environment for a while."""
    depth = 0
    while default_env().enabled:
        default_env().disable_torch_modes()
        depth += 1
    try:
        yield
    finally:
        for _ in range(depth):
            default_env().enable_torch_modes()


def enable_accuracy_mode() -> None:
    """PyTorch's dtypes exactly, 64 bits included, and matmuls in full precision ("highest"). Dtypes are so by default."""
    jax.config.update("jax_default_matmul_precision", "highest")
    dispatch.narrow_storage = False
    dispatch.forget_plans()


def enable_performance_mode() -> None:
    """Store new 64-bit tensors in 32 bits (``tensor.dtype`` still answers 64), and matmuls in the platform's default precision."""
    jax.config.update("jax_default_matmul_precision", None)
    dispatch.narrow_storage = True
    dispatch.forget_plans()

"""``torch.device("jax", k)`` and the JAX device it names."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import torch

_forked = False


def _claim_name() -> None:
    """Name PyTorch's one place for an out-of-tree device ``jax``: before that, ``torch.device("jax")`` is an error.

    Raises:
        RuntimeError: another backend holds the place.
    """
    name = torch._C._get_privateuse1_backend_name()
    if name not in ("privateuseone", "jax"):
        raise RuntimeError(
            f"PyTorch has room for one out-of-tree device, and {name!r} has taken it; torchax cannot register 'jax' in "
            "this process. Import torchax in a process that does not import that backend."
        )
    torch.utils.rename_privateuse1_backend("jax")


_claim_name()


after_fork: list[Callable[[], None]] = []  # what other modules do then


def _after_fork_in_child() -> None:
    global _forked
    _forked = True
    for forget in after_fork:
        forget()


os.register_at_fork(after_in_child=_after_fork_in_child)


def is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had imported torchax; JAX would hang in it."""
    return _forked


def refuse_in_fork() -> None:
    """Raise in a forked child instead of hanging.

    Raises:
        RuntimeError: this process is a fork.
    """
    if _forked:
        raise RuntimeError(
            "JAX cannot run in a forked process (it would hang). Keep the dataset on CPU, so that workers never touch "
            "a 'jax' tensor, or start workers with multiprocessing_context='spawn'."
        )


@functools.cache
def torch_device(index: int = 0) -> torch.device:
    """``torch.device("jax", index)``."""
    return torch.device("jax", index)


@functools.cache
def _local_devices() -> list[jax.Device]:
    return jax.local_devices()


@functools.cache
def device_count() -> int:
    """How many JAX devices this process has."""
    return len(_local_devices())


@functools.cache
def several() -> bool:
    """Whether this process has more than one JAX device."""
    return device_count() > 1


def jax_device(device: torch.device | int | str | None) -> jax.Device | None:
    """The JAX device that ``device`` names; ``None`` (JAX's own default) for ``"jax"`` and ``"jax:0"``.

    ``None`` rather than the first device, so that factories honour ``jax.default_device`` and make uncommitted arrays,
    which mix with sharded ones.

    Raises:
        RuntimeError: there is no such device.
    """
    refuse_in_fork()
    index = device if isinstance(device, int) else None if device is None else torch.device(device).index
    if not index:
        return None
    devices = _local_devices()
    if index >= len(devices):
        raise RuntimeError(
            f"device jax:{index} does not exist: JAX has {len(devices)} local device(s), jax:0 to jax:{len(devices) - 1}"
        )
    return devices[index]


def index_of(array: Any) -> int:
    """The ``k`` of ``jax:k`` for an array; 0 for a sharded array and under a trace (a tracer has no device)."""
    if isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array):
        return 0
    found = array.devices()
    if len(found) != 1:
        return 0
    try:
        return _local_devices().index(next(iter(found)))
    except ValueError:
        return 0  # another process's device, or another backend's

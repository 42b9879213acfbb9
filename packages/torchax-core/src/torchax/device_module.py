"""``torch.jax``: the device module, as ``torch.cuda`` is for CUDA."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import torch

from torchax import devices, random

_current = threading.local()
_initialized = True  # torch.utils.checkpoint keeps the random state of devices that say so


def is_available() -> bool:
    """Whether the device can be used here: always, outside a forked process."""
    return not devices.is_in_bad_fork()


def is_initialized() -> bool:
    return True


def init() -> None:
    """Nothing to do: JAX starts its backend when first used."""


def _is_in_bad_fork() -> bool:
    return devices.is_in_bad_fork()


def device_count() -> int:
    """The number of local JAX devices; 0 in a forked process, where JAX would hang."""
    return 0 if devices.is_in_bad_fork() else devices.device_count()


def current_device() -> int:
    """The index that ``torch.jax.device`` or ``set_device`` chose on this thread; 0 by default."""
    return getattr(_current, "index", 0)


def _index(device: Any = None) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        index = device
    else:
        parsed = torch.device(device)
        if parsed.type != "jax":
            raise ValueError(f"expected a 'jax' device, got {parsed}")
        index = current_device() if parsed.index is None else parsed.index
    if index < 0 or index >= max(devices.device_count(), 1):
        raise RuntimeError(f"device jax:{index} does not exist: JAX has {devices.device_count()} local device(s)")
    return index


def set_device(device: Any) -> None:
    """Choose this thread's current device."""
    _current.index = _index(device)


class device:
    """A context manager that makes a device (an index, ``"jax:1"``, a ``torch.device``) the current one."""

    def __init__(self, device: Any) -> None:
        self.index = _index(device)

    def __enter__(self) -> device:
        self.before = current_device()
        _current.index = self.index
        return self

    def __exit__(self, *exc: Any) -> None:
        _current.index = self.before


def _jax_device(device: Any = None) -> jax.Device:
    return jax.local_devices()[_index(device)]


def get_device_name(device: Any = None) -> str:
    """What JAX calls the kind of device ("cpu", "NVIDIA H200", "TPU v5p")."""
    return _jax_device(device).device_kind


def get_device_capability(device: Any = None) -> dict[str, Any]:
    return {"platform": _jax_device(device).platform}


def synchronize(device: Any = None) -> None:
    """Wait until all work given to the device so far is done.

    Raises:
        RuntimeError: some of that work failed.
    """
    devices.refuse_in_fork()
    chosen = _jax_device(device)
    # A device that works in order is done with all when it is done with one thing more. JAX's CPU device need not be one:
    # there each array has its own time, and what nobody holds has no effect.
    pending = [a for a in jax.live_arrays(chosen.platform) if not a.is_deleted() and chosen in a.devices()]
    jax.block_until_ready([*pending, _one_more(jax.device_put(np.int32(0), chosen))])
    jax.effects_barrier()


@jax.jit
def _one_more(x: jax.Array) -> jax.Array:
    return x + 1


# --- random state -------------------------------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    random.manual_seed(int(seed), current_device())


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator; ``torch.manual_seed`` calls this."""
    random.manual_seed_all(int(seed))


def seed() -> int:
    """Seed the current device's generator from the operating system's entropy; returns the seed."""
    value = random.fresh_seed()
    manual_seed(value)
    return value


def seed_all() -> None:
    manual_seed_all(random.fresh_seed())


def initial_seed() -> int:
    """The seed that the current device's generator started from."""
    return random.initial_seed(current_device())


def get_rng_state(device: Any = None) -> torch.Tensor:
    """The device's random state, as a CPU uint8 tensor."""
    return random.get_state(_index(device))


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Restore what `get_rng_state` gave.

    Raises:
        TypeError: ``new_state`` is no CPU uint8 tensor.
    """
    random.set_state(new_state, _index(device))


def get_rng_state_all() -> list[torch.Tensor]:
    return [random.get_state(i) for i in range(devices.device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for i, state in enumerate(new_states):
        random.set_state(state, i)


# --- memory -------------------------------------------------------------------------------------------------------------


def memory_stats(device: Any = None) -> dict[str, Any]:
    """JAX's own figures (bytes), under PyTorch's names where it has one; empty where the platform keeps none (CPU)."""
    stats = dict(_jax_device(device).memory_stats() or {})
    for theirs, ours in (
        ("bytes_in_use", "allocated_bytes.all.current"),
        ("peak_bytes_in_use", "allocated_bytes.all.peak"),
    ):
        if theirs in stats:
            stats[ours] = stats[theirs]
    return stats


def memory_allocated(device: Any = None) -> int:
    """Bytes in use on the device. Where the platform keeps no figure (CPU): those of the living arrays."""
    chosen = _jax_device(device)
    stats = chosen.memory_stats()
    if stats and "bytes_in_use" in stats:
        return int(stats["bytes_in_use"])
    return sum(a.nbytes for a in jax.live_arrays() if a.devices() == {chosen})


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that were in use; the bytes in use now where the platform keeps no peak."""
    stats = _jax_device(device).memory_stats() or {}
    return int(stats.get("peak_bytes_in_use", memory_allocated(device)))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """``(free, total)`` bytes.

    Raises:
        NotImplementedError: the platform does not tell (CPU).
    """
    stats = _jax_device(device).memory_stats() or {}
    if "bytes_limit" not in stats:
        raise NotImplementedError(f"JAX's {_jax_device(device).platform} platform does not tell how much memory it has")
    total = int(stats["bytes_limit"])
    return total - int(stats["bytes_in_use"]), total


def empty_cache() -> None:
    """Nothing to do: XLA's allocator keeps no cache that could be given back."""


# --- autocast -----------------------------------------------------------------------------------------------------------


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True

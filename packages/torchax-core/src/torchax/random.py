"""Random state: one generator a device, locked, as on cuda.

A generator's state is a small uint32 array in a `Storage`: ``[draws, *key]``. A draw folds the count of draws into the key
inside the drawing operator's own XLA program, and puts the advanced count back; so a state that is saved and set again
(checkpointing a dropout) repeats its draws on any thread, and a trace can thread it like any other storage.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend.core import get_opaque_trace_state

from torchax import devices
from torchax.storage import Storage

_lock = threading.RLock()
_seed: int | None = None  # what manual_seed_all said; None: drawn when first needed
_seeded_in: Any = None  # the trace it said so in
_states: dict[int, tuple[int, Storage]] = {}  # device index -> (seed, state)
_lifting = threading.local()  # ``draws``: how a trace that takes all random state in gets an explicit generator's
_override = threading.local()  # a key given for a while by the environment, per thread


def state_from_seed(seed: int, device: jax.Device | None = None) -> Any:
    """The state array of a fresh generator: values, also within a trace. ``seed`` is any integer; its low 64 bits count."""
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        seed &= 0xFFFF_FFFF_FFFF_FFFF
        state = state_from_key(jax.random.key(np.uint64(seed)))
        return state if device is None else jax.device_put(state, device)


def state_from_key(key: Any) -> Any:
    """The state array of a generator that starts with a JAX PRNG key (typed, or its raw uint32 data)."""
    data = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    return jnp.concatenate([jnp.zeros(1, np.uint32), data.astype(np.uint32)])


def draw(state: Any) -> tuple[Any, Any]:
    """``(key, advanced state)``: what an operator that draws does first, inside its program."""
    key = jax.random.fold_in(jax.random.wrap_key_data(state[1:]), state[0])
    return key, state.at[0].add(np.uint32(1))


def advance(state: Storage, advanced: Any) -> None:
    """Put a generator's advanced state back.

    Raises:
        RuntimeError: a trace computed it from a state that it was not given.
    """
    check_given(state.array, advanced, "the device's generator")
    state.array = advanced


def check_given(state: Any, advanced: Any, what: str) -> None:
    """Check that a draw within a trace came from a state that the trace was given.

    Raises:
        RuntimeError: it did not.
    """
    frozen = isinstance(advanced, jax.core.Tracer) and not isinstance(state, jax.core.Tracer)
    if frozen and getattr(_lifting, "draws", None) is None:
        refuse_frozen(what)


def refuse_frozen(what: str) -> None:
    """Refuse a draw whose key would be a constant of the compiled program, the same at each call.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(
        f"a draw from {what} inside a plain jax.jit (or scan, checkpoint ...) would give the same numbers at each call. Use "
        "torchax.interop.jax_jit, which passes the device's state in and out, or draw inside "
        "torchax.default_env().override_property(prng=key), with a key that is an argument."
    )


@contextmanager
def generator(index: int) -> Iterator[Storage]:
    """The state of device ``index``, locked while an operator reads and advances it."""
    override = getattr(_override, "state", None)
    if override is not None:
        yield override
        return
    with _lock:
        yield _state(index)


def _state(index: int) -> Storage:
    found = _states.get(index)
    if found is None:
        seed = fresh_seed() if _seed is None else _seed
        # The trace that first draws after a seed need not be the one it was given in: what outlives it is no tracer.
        here = contextlib.nullcontext() if _seeded_in == _trace() else jax.ensure_compile_time_eval()
        with here:
            found = _states[index] = (seed, Storage(state_from_seed(seed, devices.jax_device(index))))
    return found[1]


def _trace() -> Any:
    """What tells one trace of JAX's from another."""
    return get_opaque_trace_state(convention="nnx")


def fresh_seed() -> int:
    """A seed from the operating system's entropy."""
    return int.from_bytes(np.random.default_rng().bytes(8), "little")


def manual_seed(seed: int, index: int) -> None:
    """Seed one device's generator."""
    with _lock:
        _states[index] = (seed, Storage(state_from_seed(seed, devices.jax_device(index))))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator. Only notes the seed: PyTorch calls this in forked workers, where JAX hangs."""
    global _seed, _seeded_in
    with _lock:
        _seed, _seeded_in = int(seed), _trace()
        _states.clear()


def initial_seed(index: int) -> int:
    with _lock:
        _state(index)
        return _states[index][0]


def get_state(index: int) -> torch.Tensor:
    """A generator's state as a CPU uint8 tensor, as ``torch.cuda.get_rng_state`` gives it."""
    with _lock:
        seed = initial_seed(index)
        raw = np.concatenate(
            [np.array([seed & 0xFFFF_FFFF_FFFF_FFFF], "<u8").view("<u4"), np.asarray(_state(index).array)]
        )
        return torch.from_numpy(raw.astype("<u4").view(np.uint8).copy())


def set_state(state: torch.Tensor, index: int) -> None:
    """Set what `get_state` gave.

    Raises:
        TypeError: ``state`` is no CPU uint8 tensor.
    """
    if state.dtype is not torch.uint8 or state.device.type != "cpu":
        raise TypeError("expected a torch.ByteTensor on CPU, as get_rng_state() returns it")
    words = state.numpy().view("<u4")
    seed = int(words[:2].copy().view("<u8")[0])
    with _lock, jax.enable_x64(True):
        array = jnp.asarray(words[2:].astype(np.uint32))
        device = devices.jax_device(index)
        _states[index] = (seed, Storage(array if device is None else jax.device_put(array, device)))


def state_of(generator: torch.Generator, device: jax.Device | None) -> Any:
    """A state for one draw from a CPU generator, whose own state advances by it."""
    draws = getattr(_lifting, "draws", None)
    return state_from_seed(seed_from(generator), device) if draws is None else draws(generator, device)


@contextmanager
def lifted(draws: Callable[[torch.Generator, Any], Any]) -> Iterator[None]:
    """A trace that takes random state in: ``draws(generator, device)`` gives it an explicit generator's, for one draw."""
    before, _lifting.draws = getattr(_lifting, "draws", None), draws
    try:
        yield
    finally:
        _lifting.draws = before


def seed_from(generator: torch.Generator) -> int:
    """A 64-bit seed drawn from a CPU generator, whose own state advances by it."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))


@contextmanager
def overridden(key: Any) -> Iterator[None]:
    """Draw from ``key`` on this thread, for a while."""
    before = getattr(_override, "state", None)
    _override.state = Storage(state_from_key(key))
    try:
        yield
    finally:
        _override.state = before

"""The user's x64 setting, while torchax's own work runs with x64 on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax

_setting = threading.local()


def user_x64() -> bool:
    """Whether the user has JAX's x64 flag on: what a JAX function of theirs must run under."""
    known = getattr(_setting, "user", None)
    return bool(jax.config.jax_enable_x64) if known is None else known  # type: ignore[attr-defined]


@contextmanager
def wide(for_user: bool = False) -> Iterator[None]:
    """x64 on, for a trace of torchax's own; `user_x64` goes on answering what the caller had, unless it is ``for_user`` too."""
    before, _setting.user = getattr(_setting, "user", None), for_user or user_x64()
    try:
        with jax.enable_x64(True):
            yield
    finally:
        _setting.user = before

"""JAX's loops with torch bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from torchax.interop._calls import call_jax
from torchax.interop._views import jax_view
from torchax.interop._x64 import wide


def fori_loop(
    lower: int, upper: int, body_fun: Callable[[Any, Any], Any], init_val: Any, *, unroll: int | bool | None = None
) -> Any:
    """``jax.lax.fori_loop`` with a torch body: one compiled loop, whatever the number of turns.

    Args:
        lower: the first index.
        upper: the index after the last one.
        body_fun: ``(index, value) -> value``; the index is a 0-d integer tensor, the value keeps structure, shapes and dtypes.
        init_val: a pytree of tensors.
        unroll: how many turns are written out.
    """

    def loop(value: Any) -> Any:
        return jax.lax.fori_loop(lower, upper, jax_view(body_fun), value, unroll=unroll)

    with wide(for_user=True):
        return call_jax(loop, init_val)

"""Derivatives of functions of ``jax.Array``s as PyTorch wants them: integers have none, and none may be given.

Functions here take arrays and return a tuple of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Function = Callable[..., tuple[jax.Array, ...]]


def is_inexact(x: Any) -> bool:
    """Whether an array has a derivative: its dtype is floating or complex."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _of_floats(fn: Function, arrays: Sequence[jax.Array]) -> tuple[Callable[..., Any], list[jax.Array]]:
    """``(floats in -> (floats out, the other outputs))``, and the floats in; ``None`` stands for a float among the others."""
    where = [i for i, x in enumerate(arrays) if is_inexact(x)]

    def inner(*floats: jax.Array) -> tuple[list[jax.Array], list[jax.Array | None]]:
        full = list(arrays)
        for i, x in zip(where, floats, strict=True):
            full[i] = x
        out = fn(*full)
        return [x for x in out if is_inexact(x)], [None if is_inexact(x) else x for x in out]

    return inner, [arrays[i] for i in where]


def vjp(fn: Function, arrays: Sequence[jax.Array]) -> tuple[tuple[jax.Array, ...], Callable[..., Any]]:
    """The outputs, and the function from their gradients (``None`` is zero) to one for each input or ``None``.

    Gradients are PyTorch's, which are the conjugates of JAX's cotangents.
    """
    inner, primals = _of_floats(fn, arrays)
    floats, pull, others = jax.vjp(inner, *primals, has_aux=True)

    def pullback(grads: Sequence[jax.Array | None]) -> list[jax.Array | None]:
        given = [g for g, other in zip(grads, others, strict=True) if other is None]
        found = pull([jnp.zeros_like(x) if g is None else jnp.conj(g) for g, x in zip(given, floats, strict=True)])
        left = iter(found)
        return [jnp.conj(next(left)) if is_inexact(x) else None for x in arrays]

    left = iter(floats)
    return tuple(next(left) if x is None else x for x in others), pullback


def jvp(fn: Function, arrays: Sequence[jax.Array], tangents: Sequence[jax.Array | None]) -> list[jax.Array | None]:
    """A tangent for each output, ``None`` where it has none; a tangent given as ``None`` is zero."""
    inner, primals = _of_floats(fn, arrays)
    given = [t for t, x in zip(tangents, arrays, strict=True) if is_inexact(x)]
    given = [jnp.zeros_like(x) if t is None else t for t, x in zip(given, primals, strict=True)]
    _, out, others = jax.jvp(inner, primals, given, has_aux=True)
    left = iter(out)
    return [next(left) if x is None else None for x in others]

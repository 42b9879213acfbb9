"""Operators kept as one named StableHLO composite."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from torchax.environment import override
from torchax.tensor import Tensor, wrap


def register_jax_composite(name: str, impl: Callable[..., Any], *ops: Any, **jit_args: Any) -> None:
    """Define operators by ``impl`` on arrays, kept in the program as one composite called ``name``.

    Args:
        name: for example ``"mylib.rms_norm"``.
        impl: the function; also what the composite means where a compiler does not know its name.
        ops: operators or packets.
        jit_args: ``static_argnums`` and ``static_argnames`` name arguments that become the composite's attributes.
    """
    composite = jax.lax.composite(impl, name)
    compiled = jax.jit(composite, **jit_args) if jit_args else composite
    for op in ops:
        override(op, functools.wraps(impl)(lambda *args, **kwargs: compiled(*args, **kwargs)))


def register_torch_composite(name: str, impl: Callable[..., Any], *ops: Any, **jit_args: Any) -> None:
    """Like `register_jax_composite`, with ``impl`` a function on torch tensors."""

    @functools.wraps(impl)
    def on_arrays(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = jax.tree.map(lambda x: wrap(x) if isinstance(x, jax.Array) else x, (args, kwargs))
        out = impl(*args, **kwargs)
        return jax.tree.map(
            lambda t: t.jax() if isinstance(t, Tensor) else t, out, is_leaf=lambda t: isinstance(t, Tensor)
        )

    register_jax_composite(name, on_arrays, *ops, **jit_args)

"""Registering operators, under google/torchax's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torchax_ops
from torchax.environment import override
from torchax.functions import register_function


def register_torch_dispatch_op(
    op: Any,
    fn: Callable[..., Any],
    is_jax_function: bool = True,
    is_user_defined: bool = False,
    needs_env: bool = False,
    is_view_op: bool = False,
) -> Callable[..., Any]:
    """Define an operator (aten or ``torch.library``) by a function on ``jax.Array``s; returns ``fn``.

    Args:
        op: the operator or its packet.
        fn: the function, with the schema's arguments; random ones take a JAX key as ``key=``.
        is_jax_function: must be true; an operator made of torch functions is registered with ``torch.library``.
        is_user_defined, is_view_op: accepted; they make no difference.
        needs_env: whether ``fn`` also takes ``env=``, the default environment.

    Raises:
        ValueError: ``is_jax_function`` is false.
    """
    if not is_jax_function:
        raise ValueError(f"{op}: register a function on torch tensors with torch.library, not here")
    if needs_env:
        from torchax.environment import default_env

        inner = fn

        def fn(*args: Any, **kwargs: Any) -> Any:
            return inner(*args, env=default_env(), **kwargs)

    override(op, fn)
    return fn


def register_torch_function_op(func: Any, fn: Callable[..., Any], is_jax_function: bool = False, **flags: Any) -> Any:
    """Replace a torch function, above autograd, by ``fn`` on tensors (on arrays, if ``is_jax_function``); returns ``fn``."""
    if is_jax_function:
        from torchax.ops.jtorch import on_arrays

        register_function(func, on_arrays(fn))
    else:
        register_function(func, fn)
    return fn


class _AllOps(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        op = torchax_ops.lookup(name)
        if op is None:
            raise KeyError(name)
        return op

    def __iter__(self) -> Iterator[str]:
        return (op.name for op in torchax_ops.registered())

    def __len__(self) -> int:
        return sum(1 for _ in torchax_ops.registered())


all_aten_ops: Mapping[str, Any] = _AllOps()
"""The registered operators by schema name (``"aten::add.Tensor"``)."""

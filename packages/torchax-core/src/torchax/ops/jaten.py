"""``op``: the decorator that defines aten operators by functions on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torchax.environment import override

F = TypeVar("F", bound=Callable[..., Any])


def op(*aten: Any, static: tuple[str, ...] = (), eager: bool = False, **flags: Any) -> Callable[[F], F]:
    """Define operators by the decorated function of ``jax.Array``s.

    In-place and ``out=`` variants, ``jit`` and ``vmap`` follow from it, and autograd to any order; aten operators, and those
    for which ``torch.library.register_autograd`` was called, keep their own derivatives.

    Args:
        aten: operators or packets (``torch.ops.aten.frexp``, ``torch.ops.mylib.scale.default``), or what
            ``torch.library.custom_op`` made.
        static: ``Scalar`` and ``float`` arguments whose Python value the function needs.
        eager: the result's shape depends on values; the function then runs outside ``jit``.
        flags: accepted for google/torchax's spelling (``is_view_op``, ``needs_env`` ...), without effect.
    """

    def decorate(fn: F) -> F:
        for one in aten:
            override(one, fn, static=static, eager=eager)
        return fn

    return decorate

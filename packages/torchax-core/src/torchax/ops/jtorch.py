"""``register_function``: the decorator that replaces torch functions, above autograd."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from torchax import functions
from torchax.tensor import Tensor, wrap

F = TypeVar("F", bound=Callable[..., Any])


def register_function(func: Any, is_jax_function: bool = False, **flags: Any) -> Callable[[F], F]:
    """Replace a torch function by the decorated one whenever a ``jax`` tensor is among the arguments.

    Args:
        func: for example ``torch.nn.functional.scaled_dot_product_attention``.
        is_jax_function: the replacement works on ``jax.Array``s, without PyTorch gradients.
    """

    def decorate(fn: F) -> F:
        functions.register_function(func, on_arrays(fn) if is_jax_function else fn)
        return fn

    return decorate


def on_arrays(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function on arrays as a function on tensors (not differentiable by PyTorch: use ``interop.call_jax`` for that)."""

    @functools.wraps(fn)
    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = jax.tree.map(
            lambda x: x.jax() if isinstance(x, Tensor) else x, (args, kwargs), is_leaf=lambda x: isinstance(x, Tensor)
        )
        return jax.tree.map(lambda x: wrap(x) if isinstance(x, jax.Array) else x, fn(*args, **kwargs))

    return on_tensors

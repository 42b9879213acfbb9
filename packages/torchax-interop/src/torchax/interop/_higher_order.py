"""PyTorch's higher-order operators: on arrays, and so under a trace; on tensors with values, as PyTorch runs them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.utils._pytree as torch_pytree

from torchax import transfer
from torchax.interop._tree import is_array, tree_map
from torchax.interop._views import jax_view, torch_view
from torchax.tensor import Tensor

Body = Callable[..., Any]


def cond(pred: Any, true_fn: Body, false_fn: Body, operands: Any = ()) -> Any:
    pred = jnp.asarray(pred).reshape(())
    return jax.lax.cond(pred, lambda xs: tuple(true_fn(*xs)), lambda xs: tuple(false_fn(*xs)), tuple(operands))


def while_loop(cond_fn: Body, body_fn: Body, carried: Any, additional: Any = ()) -> Any:
    return jax.lax.while_loop(
        lambda xs: _first(cond_fn(*xs, *additional)).reshape(()),
        lambda xs: tuple(body_fn(*xs, *additional)),
        tuple(map(jnp.asarray, carried)),
    )


def scan(combine_fn: Body, init: Any, xs: Any, additional: Any = ()) -> Any:
    n = len(init)

    def step(carry: Any, x: Any) -> Any:
        out = tuple(combine_fn(*carry, *x, *additional))
        return out[:n], out[n:]

    carry, ys = jax.lax.scan(step, tuple(init), tuple(xs))
    return (*carry, *ys)


def associative_scan(combine_fn: Body, xs: Any, additional: Any = ()) -> Any:
    over = jax.vmap(lambda a, b: tuple(combine_fn(*a, *b, *additional)))
    return jax.lax.associative_scan(over, tuple(xs))


def map_(f: Body, xs: Any, additional: Any = ()) -> Any:
    return jax.lax.map(lambda x: tuple(f(*x, *additional)), tuple(xs))


def _first(x: Any) -> Any:
    return x[0] if isinstance(x, (list, tuple)) else x


def _inline(*args: Any, **kwargs: Any) -> Any:
    """A region that only says under which mode of autograd its operators were traced."""
    body = next(a for a in args if callable(a))
    return body(*args[args.index(body) + 1 :])


_TABLE: dict[str, Callable[..., Any]] = {
    "cond": cond,
    "while_loop": while_loop,
    "scan": scan,
    "associative_scan": associative_scan,
    "map_impl": map_,
    "wrap_with_set_grad_enabled": _inline,
    "wrap_with_autocast": _inline,
}


def call(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A higher-order operator whose function arguments are functions of arrays.

    Raises:
        NotImplementedError: it is not one of those here.
    """
    name = op.name()
    if name not in _TABLE:
        raise NotImplementedError(
            f"the higher-order operator {name!r} has no JAX function; there are: {', '.join(sorted(_TABLE))}"
        )
    return _TABLE[name](*args, **kwargs)


# --- on tensors ---------------------------------------------------------------------------------------------------------

# Their bodies are taken apart into operators of the device, under a trace too.
_ALWAYS_DENSE = {"flex_attention", "flex_attention_backward", "while_loop_stack_output"}


def is_traced(tree: Any) -> bool:
    """Whether a tensor of a tree stands for a value that a JAX trace will give it."""
    return any(
        isinstance(x, Tensor) and isinstance(x._box.array, jax.core.Tracer) for x in torch_pytree.tree_leaves(tree)
    )


def _rule(op: Any) -> Callable[..., Any]:
    """How an operator runs on ``jax`` tensors."""
    dense = op.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
    name = op.name()

    def run(*args: Any, **kwargs: Any) -> Any:
        traced = is_traced((args, kwargs))
        if traced and name == "while_loop_stack_output":
            raise NotImplementedError(
                "the gradient of torch.while_loop under a trace: XLA would have to keep every turn's values, and the number of "
                "turns is not known. Use torch's scan (a known number of turns), or differentiate outside the trace"
            )
        if name in _ALWAYS_DENSE or not traced:
            return dense(*args, **kwargs)
        return torch_view(call(op, *tree_map(as_traced, jax_view((args, kwargs)))))

    def as_traced(x: Any) -> Any:
        """An array from outside a trace that has no 64-bit values, as the trace holds it."""
        wide = not is_array(x) or jax.config.jax_enable_x64  # type: ignore[attr-defined]
        return x if wide else jnp.asarray(transfer.narrowed(x, op))

    return run


def register() -> None:
    """Give PyTorch's higher-order operators their rules for ``jax`` tensors."""
    for name in [*_TABLE, *_ALWAYS_DENSE]:
        op = getattr(torch.ops.higher_order, name, None)
        if op is not None and torch._C.DispatchKey.CompositeExplicitAutograd in op.py_kernels:
            op.py_impl(Tensor)(_rule(op))
    _let_flex_attention_know_the_device()


def _let_flex_attention_know_the_device() -> None:
    """``flex_attention`` has a list of the devices it may run on; its operator runs on any."""
    from torch.nn.attention import flex_attention

    check = flex_attention._validate_device

    @functools.wraps(check)
    def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "jax":
            check(query, key, value)

    flex_attention._validate_device = validate

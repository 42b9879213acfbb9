"""PyTorch's control-flow operators, on arrays: their branches and bodies are functions of arrays here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

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

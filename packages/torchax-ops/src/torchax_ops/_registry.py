"""The table that maps aten schema names to functions, without importing torch."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Op:
    """One registered operator.

    Attributes:
        name: the schema name, ``"aten::add.Tensor"`` (no overload: ``"aten::relu"``).
        fn: the function on ``jax.Array``s; its arguments are the schema's, by name, order and default.
        static: ``Scalar``/``float`` arguments that decide a shape or an algorithm, and so must be Python values.
            All others may be traced: ``x * lr`` must not compile anew at each ``lr``.
        traced: ``int`` arguments that decide neither shape nor rank (a roll's shift), and so may be traced.
        key: the keyword under which ``fn`` takes a JAX PRNG key (where the schema has ``generator`` or draws without one):
            ``key``, or ``prng_key`` where ``key`` is a tensor (attention); ``None`` where it draws nothing.
        eager: whether the result's shape depends on values, so that ``fn`` runs on concrete arrays, outside ``jit``; a
            function of the call's arguments where it depends on them (an index that is a mask).
        check: called with concrete arguments before an eager call; raises what PyTorch raises for bad *values*
            (an index out of range), which a compiled function cannot.
    """

    name: str
    fn: Callable[..., Any]
    static: frozenset[str]
    traced: frozenset[str]
    key: str | None
    eager: bool | Callable[..., bool]
    check: Callable[..., None] | None


_REGISTRY: dict[str, Op] = {}


def key_parameter(fn: Callable[..., Any]) -> str | None:
    """The keyword under which a function takes a JAX PRNG key, ``None`` where it takes none."""
    parameters = inspect.signature(fn).parameters
    for name in ("prng_key", "key"):
        if name in parameters and parameters[name].kind is inspect.Parameter.KEYWORD_ONLY:
            return name
    return None


def register(
    *names: str,
    static: Iterable[str] = (),
    traced: Iterable[str] = (),
    eager: bool | Callable[..., bool] = False,
    check: Callable[..., None] | None = None,
) -> Callable[[F], F]:
    """Register the decorated function under schema names; ``aten::`` is implied where a name has no namespace.

    Raises:
        ValueError: a name is registered already.
    """

    def decorate(fn: F) -> F:
        key = key_parameter(fn)
        for name in names:
            full = name if "::" in name else f"aten::{name}"
            if full in _REGISTRY:
                raise ValueError(f"{full} is registered twice: {_REGISTRY[full].fn!r} and {fn!r}")
            _REGISTRY[full] = Op(full, fn, frozenset(static), frozenset(traced), key, eager, check)
        return fn

    return decorate


def lookup(name: str) -> Op | None:
    """The operator registered under a schema name, ``None`` where there is none."""
    return _REGISTRY.get(name)


def registered() -> Iterator[Op]:
    """All registered operators, in the order of their registration."""
    return iter(list(_REGISTRY.values()))


def exported(module: str) -> list[str]:
    """The public names of an operator module: what it defines and registers. For ``__all__`` at the module's end."""
    namespace = vars(sys.modules[module])
    functions = {id(op.fn) for op in _REGISTRY.values()}
    return [name for name, value in namespace.items() if id(value) in functions and not name.startswith("_")]

"""Autograd and ``torch.func.vmap`` for a user's own operators, derived from the JAX function that defines them.

PyTorch has a formula for each of its own operators; one made with ``torch.library`` has what its author wrote, and
otherwise none. On ``jax`` tensors `derive` supplies it: gradients are ``jax.vjp``'s, to any order, and a batch is
``jax.vmap``'s. Functions here take the numbers of a call apart from its arrays, so that a new number compiles nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function

from torchax import stateful
from torchax.derivatives import jvp, vjp
from torchax.dtypes import t2j_dtype
from torchax.tensor import wide_for, wrap

Arrays = Sequence[jax.Array]
Function = Callable[[Sequence[float], Arrays], tuple[jax.Array, ...]]

_functions: dict[str, tuple[Callable[..., Any], frozenset[str]]] = {}  # by operator: its function, its static arguments
_libraries: dict[str, torch.library.Library] = {}  # by namespace; they keep what is registered here alive


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of the ``index``-th tensor (or number) among a call's arguments."""

    index: int
    tensor: bool


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an operator, as a function of its numbers and arrays by the JAX function that defines it."""

    op: Any
    fn: Callable[..., Any]
    tree: Any
    leaves: tuple[Any, ...]

    def filled(self, numbers: Sequence[float], tensors: Sequence[Any]) -> Any:
        """The arguments with these in their places."""
        values = [(tensors if x.tensor else numbers)[x.index] if isinstance(x, _Place) else x for x in self.leaves]
        return jax.tree.unflatten(self.tree, values)

    def __call__(self, numbers: Sequence[float], arrays: Arrays) -> tuple[jax.Array, ...]:
        args, kwargs = jax.tree.map(
            lambda x: t2j_dtype(x) if isinstance(x, torch.dtype) else x, self.filled(numbers, arrays)
        )
        return tuple(jax.tree.leaves(self.fn(*args, **kwargs)))


@dataclass(frozen=True, slots=True)
class _Vjp:
    """The gradients of ``of``'s floating arrays, by its ``n`` arrays and those gradients of its results that are given."""

    of: Function
    n: int
    given: tuple[bool, ...]

    def __call__(self, numbers: Sequence[float], arrays: Arrays) -> tuple[jax.Array, ...]:
        _, pull = vjp(lambda *xs: self.of(numbers, xs), arrays[: self.n])
        given = iter(arrays[self.n :])
        found = pull([next(given) if has else None for has in self.given])
        return tuple(g for g in found if g is not None)


@dataclass(frozen=True, slots=True)
class _Jvp:
    """The tangents of ``of``'s floating results, by its ``n`` arrays and those tangents that are given."""

    of: Function
    n: int
    given: tuple[bool, ...]

    def __call__(self, numbers: Sequence[float], arrays: Arrays) -> tuple[jax.Array, ...]:
        given = iter(arrays[self.n :])
        tangents = [next(given) if has else None for has in self.given]
        found = jvp(lambda *xs: self.of(numbers, xs), arrays[: self.n], tangents)
        return tuple(t for t in found if t is not None)


@dataclass(frozen=True, slots=True)
class _Vmap:
    of: Function
    in_dims: tuple[int | None, ...]
    size: int

    def __call__(self, numbers: Sequence[float], arrays: Arrays) -> tuple[jax.Array, ...]:
        each = functools.partial(self.of, numbers)
        return jax.vmap(lambda *xs: each(xs), in_axes=self.in_dims, axis_size=self.size)(*arrays)


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _run(fn: Function, numbers: Sequence[float], arrays: Arrays) -> tuple[jax.Array, ...]:
    return fn(numbers, arrays)


# --- one operator that applies any such function ----------------------------------------------------------------------
#
# Derivatives and batches of a user's operator call this one, which PyTorch transforms as it does its own operators.

_library = torch.library.Library("torchax", "DEF")
_library.define("apply(Tensor[] tensors, int function, float[] numbers) -> Tensor[]")
_applied: list[Function] = []  # by the number that stands for them in a call
_numbered: dict[Function, int] = {}


def _apply(fn: Function, numbers: Sequence[float], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """``fn`` of tensors, differentiable to any order and batchable."""
    index = _numbered.get(fn)
    if index is None:
        index = _numbered[fn] = len(_applied)
        _applied.append(fn)
    return torch.ops.torchax.apply(list(tensors), index, list(numbers))


@stateful.handles(torch.ops.torchax.apply.default)
def _eager(tensors: Any, function: int, numbers: list[float]) -> list[torch.Tensor]:
    arrays = [t._value() for t in tensors]
    with wide_for(arrays[0]):
        out = _run(_applied[function], tuple(numbers), arrays)
    return [wrap(x, tensors[0].device) for x in out]


def _apply_autograd(keyset: Any, tensors: Any, function: int, numbers: Any) -> Any:
    below_keys = keyset & torch._C._after_autograd_keyset

    def below(tensors: Any) -> Any:
        return torch.ops.torchax.apply.default.redispatch(below_keys, list(tensors), function, numbers)

    return list(_level(below, _applied[function], numbers, tensors))


def _apply_vmap(info: Any, in_dims: tuple[Any, ...], tensors: Any, function: int, numbers: Any) -> Any:
    out = _apply(_Vmap(_applied[function], tuple(in_dims[0]), info.batch_size), numbers, tensors)
    return out, [0] * len(out)


_library.impl("apply", _apply_autograd, "AutogradPrivateUse1", with_keyset=True)
torch.library.register_vmap("torchax::apply", _apply_vmap, lib=_library)


def _level(below: Callable[..., Any], fn: Function, numbers: Sequence[float], tensors: Sequence[Any]) -> Sequence[Any]:
    """``below(tensors)``, taking the derivatives of ``fn`` along where something at this level wants them."""
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if wanted or (torch._C._is_fwd_grad_enabled() and torch.autograd.forward_ad._current_level >= 0):
        with enable_single_level_autograd_function():
            return _Level.apply(below, fn, numbers, *tensors)  # type: ignore[attr-defined]
    with torch._C._AutoDispatchBelowAutograd():
        return _flat([below(tensors)])


class _Level(torch.autograd.function._SingleLevelFunction):
    """A function in autograd, at one level of ``torch.func``'s transforms."""

    @staticmethod
    def forward(ctx: Any, below: Callable[..., Any], fn: Function, numbers: Any, *tensors: Any) -> Any:  # type: ignore[override]
        with torch._C._AutoDispatchBelowAutograd():
            out = tuple(_flat([below(tensors)]))
        ctx.fn, ctx.numbers = fn, numbers
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.mark_non_differentiable(*(x for x in out if not (x.is_floating_point() or x.is_complex())))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        given = [g for g in grads if g is not None]
        if not given:
            return (None,) * (3 + len(ctx.saved_tensors))
        pull = _Vjp(ctx.fn, len(ctx.saved_tensors), tuple(g is not None for g in grads))
        found = iter(_apply(pull, ctx.numbers, [*ctx.saved_tensors, *given]))
        floats = (x.is_floating_point() or x.is_complex() for x in ctx.saved_tensors)
        return None, None, None, *(next(found) if is_float else None for is_float in floats)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        tangents, tensors = tangents[3:], ctx.saved_tensors
        fn = _Jvp(ctx.fn, len(tensors), tuple(t is not None for t in tangents))
        return tuple(_apply(fn, ctx.numbers, [*tensors, *(t for t in tangents if t is not None)]))


# --- operators of torch.library ---------------------------------------------------------------------------------------


def _is_leaf(x: Any) -> bool:
    return x is None or isinstance(x, torch.Tensor)


def _flat(values: Sequence[Any]) -> list[Any]:
    return [x for value in values for x in (value if isinstance(value, (list, tuple)) else [value])]


def _taken(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[_Call, list[float], list[Any]]:
    """A call as a function, its numbers and its tensors."""
    fn, static = _functions[op.name()]
    names = [a.name for a in op._schema.arguments if not a.kwarg_only]
    numbers: list[float] = []
    tensors: list[Any] = []

    def place(x: Any, traced: bool) -> Any:
        if isinstance(x, torch.Tensor):
            tensors.append(x)
            return _Place(len(tensors) - 1, True)
        if traced and isinstance(x, float):
            numbers.append(x)
            return _Place(len(numbers) - 1, False)
        return x

    def placed(name: str, value: Any) -> Any:
        return jax.tree.map(lambda x: place(x, name not in static), value, is_leaf=_is_leaf)

    filled = [placed(name, value) for name, value in zip(names, args, strict=False)]
    named = {name: placed(name, value) for name, value in kwargs.items()}
    leaves, tree = jax.tree.flatten((filled, named), is_leaf=_is_leaf)
    return _Call(op, fn, tree, tuple(leaves)), numbers, tensors


def _result(op: Any, found: Sequence[torch.Tensor]) -> Any:
    """A flat result as the operator's schema has it."""
    returns = op._schema.returns
    if len(returns) == 1:
        return list(found) if "List" in str(returns[0].type) else found[0]
    return tuple(found)


def _autograd_kernel(op: Any, made: Any) -> Callable[..., Any]:
    """What the operator does above its plan: it takes the derivative along, unless its author has given another one."""
    theirs = None if made is None else torch._library.autograd.make_autograd_impl(op, made)

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if theirs is not None and made._backward_fn is not None:
            return theirs(keyset, *args, **kwargs)
        call, numbers, tensors = _taken(op, args, kwargs)

        def below(tensors: Any) -> Any:
            args, kwargs = call.filled(numbers, tensors)
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)

        return _result(op, _level(below, call, numbers, tensors))

    return kernel


def _looped(op: Any, size: int, in_dims: tuple[Any, ...], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The operator for each element of a batch, on devices where it is no JAX function."""

    def pick(x: Any, dim: Any, i: int) -> Any:
        if isinstance(x, (list, tuple)) and isinstance(dim, (list, tuple)):
            return [pick(y, d, i) for y, d in zip(x, dim, strict=True)]
        return x if dim is None else x.select(dim, i)

    each = [_flat([op(*(pick(x, d, i) for x, d in zip(args, in_dims, strict=False)), **kwargs)]) for i in range(size)]
    return tuple(torch.stack(outs) for outs in zip(*each, strict=True))


def _vmap(op: Any, info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    call, numbers, tensors = _taken(op, args, kwargs)
    if any(x.device.type != "jax" for x in tensors):
        found = _looped(op, info.batch_size, in_dims, args, kwargs)
    else:
        dims = [d for x, d in zip(args, in_dims, strict=False) for d in (d if isinstance(x, (list, tuple)) else [d])]
        where = tuple(d for x, d in zip(_flat(args), dims, strict=True) if isinstance(x, torch.Tensor))
        found = _apply(_Vmap(call, where, info.batch_size), numbers, tensors)
    out = _result(op, found)
    return out, 0 if isinstance(out, torch.Tensor) else type(out)([0] * len(out))


def derive(op: Any, fn: Callable[..., Any], static: frozenset[str] = frozenset()) -> None:
    """Give a ``torch.library`` operator that has no derivative, and no rule for ``vmap``, those of its JAX function.

    On other devices it stays as it was. What its author registers later for `torch.library.custom_op` takes their place.
    PyTorch's own operators have theirs.
    """
    schema, name = op._schema, op.name()
    if op.namespace in ("aten", "prims") or not torch._library.utils.is_functional_schema(schema):
        return
    known = name in _functions
    _functions[name] = fn, static
    made = torch._library.custom_ops._maybe_get_opdef(op)
    has = functools.partial(torch._C._dispatch_has_kernel_for_dispatch_key, name)
    if known or has("CompositeImplicitAutograd") or torch._library.utils.has_kwarg_only_tensors(schema):
        return
    if op.namespace not in _libraries:
        _libraries[op.namespace] = torch.library.Library(op.namespace, "FRAGMENT")
    library = _libraries[op.namespace]
    if made is not None or not has("Autograd"):
        library.impl(name, _autograd_kernel(op, made), "AutogradPrivateUse1", with_keyset=True)
    if made is not None and made._vmap_fn is None:
        made.register_vmap(functools.partial(_vmap, op))
    elif made is None and not has("FuncTorchBatched"):
        torch.library.register_vmap(name, functools.partial(_vmap, op), lib=library)

"""A traced function as one XLA program, to be run again for other tensors of the same kind."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from torchax import random
from torchax.errors import describe_array, reused
from torchax.interop._calls import call_jax
from torchax.interop._state import Guard
from torchax.interop._trace import Inputs, Result, Run, generators
from torchax.interop._tree import to_array
from torchax.interop._x64 import wide
from torchax.storage import Storage
from torchax.tensor import Tensor, view_of, view_on

_HOLD = 3  # references to an array that only its storage and this call have: the storage, the list, the question


class Program:
    """One compiled program with what it takes from where, and where its results go.

    Args:
        name: what XLA and profiles call it.
        inputs: what was traced over.
        count: how many of the holders are arguments.
        result: what the trace found.
        donate: which arguments' storages are given away.
        donate_state: whether every storage that is written is, too.
        copy_shared: whether to give away a copy where something else holds the array.
        options: for ``jax.jit``.
        transform: applied to the program before it is compiled.
    """

    def __init__(
        self, name: str, inputs: Inputs, count: int, result: Result, donate: Sequence[int], donate_state: bool,
        copy_shared: bool, options: dict[str, Any], transform: Callable[..., Any] | None,
    ) -> None:  # fmt: skip
        self.result = result
        self.count = count
        self.containers: list[Any] = [place.record.container for place in inputs.places]
        self.keys = [place.key for place in inputs.places]
        self.labels = [place.label for place in inputs.places]
        self.twins = [(place.record.container, place.key, i, place.label) for place, i in inputs.twins]
        self.twin_containers: list[Any] = [c for c, _, _, _ in self.twins]
        self.twin_keys = [k for _, k, _, _ in self.twins]
        self.rates = inputs.rates
        self.extra = inputs.extra
        self.draws = inputs.draws
        self.views = [view_of(t) for t in inputs.holders]
        self.wants_grad = [t.requires_grad for t in inputs.holders]
        rates = {id(group) for group in self.rates}
        self.guard = Guard(inputs.state, lambda r, key: not (key == "lr" and id(r.container) in rates))
        self.grads = list(result.grads.items())
        self.had_grad = [i for i, view in self.grads if view is not None]

        # A call lists its storages as: holders, gradients that matter, generators, extra ones.
        listed = [
            *(t._box for t in inputs.holders), *(inputs.grads[i]._box for i in self.had_grad), *inputs.generators,
            *inputs.extra,
        ]  # fmt: skip
        first = {id(box): k for k, box in reversed(list(enumerate(listed)))}
        self.aliases = [first[id(box)] for box in listed]
        self.distinct = len(first)
        source: list[Any] = [first.get(id(box)) for box in inputs.boxes]
        self.used = [source[i] for i in result.used]
        self.written = [source[i] for i in result.written]
        self.boxes = source  # of each position that a recipe may name
        # Arguments usually share no storage with each other or with what is reached besides.
        self.apart = self.aliases[:count] == list(range(count)) and not any(k < count for k in self.aliases[count:])
        self.remember(inputs.holders[count:])

        donated = {*donate, *(self.written if donate_state else ())}
        self.donated = [k for k, s in enumerate(self.used) if s in donated]
        self.copy_shared = copy_shared
        self.function = _function(name, result, len(inputs.boxes))
        if transform is not None:
            self.function = transform(self.function)
        self.compiled = jax.jit(self.function, donate_argnums=self.donated, **options)
        # The storages by whose arrays the result is differentiated: argument of the program, storage, holder.
        slots = {s: k for k, s in enumerate(self.used)}
        wanted = (
            [i for i in inputs.grads if first[id(inputs.holders[i]._box)] in slots] if result.differentiable else []
        )
        self.leaves = {slots[first[id(inputs.holders[i]._box)]]: i for i in reversed(wanted)}
        self.with_pullback: Any = None

    # --- whether it fits ----------------------------------------------------------------------------------------------

    def remember(self, found: list[Tensor]) -> None:
        """Keep what was found, with which the next call is likely to come again."""
        self.last = found
        self.last_twins = [found[i] for _, _, i, _ in self.twins]
        self.last_boxes = [t._box for t in found]
        self.last_chains = [t._chain for t in found]
        self.reached = set(self.last_boxes)

    def bind(self, given: list[Tensor], boxes: list[Storage]) -> Run | None:
        """The tensors and storages of one call; ``None`` where this program was traced for other ones."""
        try:
            found: list[Any] = list(map(operator.getitem, self.containers, self.keys))
            twins: list[Any] = list(map(operator.getitem, self.twin_containers, self.twin_keys))
        except LookupError:
            return None
        if not self.guard.holds():
            return None
        again = all(map(operator.is_, found, self.last)) and all(map(operator.is_, twins, self.last_twins))
        if not again and not (
            all(isinstance(t, Tensor) for t in found)
            and all(t is found[i] for t, (_, _, i, _) in zip(twins, self.twins, strict=True))
        ):
            return None
        found_boxes = [t._box for t in found]
        again = (
            again
            and found_boxes == self.last_boxes
            and [t._chain for t in found] == self.last_chains
            and [t.requires_grad for t in found] == self.wants_grad[self.count :]
        )
        if not again and not self.same_kind(found):
            return None
        holders = given + found
        grads = []
        for i, view in self.grads:
            grad = holders[i].grad
            if (grad is None) is not (view is None) or (grad is not None and view_of(grad) != view):
                return None
            if grad is not None:
                grads.append(grad._box)
        listed = [*boxes, *found_boxes, *grads, *generators(holders), *self.extra]
        if again and self.apart and not grads:
            if len(set(boxes)) != self.count or not self.reached.isdisjoint(boxes):
                return None
        elif not self.same_aliases(listed):
            return None
        if not again:
            self.remember(found)
        return Run(holders, listed)

    def same_kind(self, found: list[Tensor]) -> bool:
        return all(
            t.requires_grad == wanted and view_of(t) == view
            for t, wanted, view in zip(found, self.wants_grad[self.count :], self.views[self.count :], strict=True)
        )

    def same_aliases(self, listed: list[Storage]) -> bool:
        first: dict[int, int] = {}
        return [first.setdefault(id(box), k) for k, box in enumerate(listed)] == self.aliases

    def misfit(self, given: list[Tensor]) -> str:
        """Why `bind` says no, in words."""
        found = self.guard.difference()
        if found is not None:
            return found
        now = list(map(_get, self.containers, self.keys))
        for label, t, view, wanted in zip(
            self.labels, now, self.views[self.count :], self.wants_grad[self.count :], strict=True
        ):
            if t is None or view_of(t) != view:
                return f"{label} is another kind of tensor"
            if t.requires_grad != wanted:
                return f"{label}.requires_grad is now {t.requires_grad}"
        for c, k, i, label in self.twins:
            if c[k] is not now[i]:
                return f"{label} is no longer the same tensor as {self.labels[i]}"
        for i, view in self.grads:
            if (([*given, *now][i]).grad is None) is not (view is None):
                label = self.labels[i - self.count] if i >= self.count else f"argument {i}"
                return f"{label}.grad was {'None' if view is None else 'a tensor'} and is not now"
        return "tensors share their storages differently"

    # --- running ------------------------------------------------------------------------------------------------------

    def arguments(self, run: Run) -> list[Any]:
        boxes = run.boxes
        arrays = [boxes[s].array for s in self.used]
        if self.copy_shared:
            for k in self.donated:
                if sys.getrefcount(arrays[k]) > _HOLD:
                    arrays[k] = arrays[k].copy()
        arrays += [np.float64(group["lr"]) for group in self.rates]
        arrays += [random.state_of(generator, device) for generator, device in self.draws]
        return arrays

    def __call__(self, run: Run, inline: bool = False) -> Any:
        """Run, and put back; ``inline``: as a part of the trace around it."""
        if self.leaves and torch.is_grad_enabled():
            leaves = (run.holders[i] for i in self.leaves.values())
            run.differentiable = _Differentiable.apply(self, run, inline, *leaves)
        else:
            arrays = self.arguments(run)
            if inline:
                with wide():
                    outs: Sequence[Any] = self.function(*arrays)
            else:
                outs = self.execute(arrays, run)
            self.put_back(run, outs)
            run.differentiable = tuple(make(run) for make in self.result.differentiable)
        run.boxes = [run.boxes[s] if s is not None else None for s in self.boxes]  # type: ignore[misc]
        for effect in self.result.effects:
            effect(run)
        return self.result.make(run)

    def execute(self, arrays: list[Any], run: Run) -> Sequence[Any]:
        """Run the compiled program.

        Raises:
            RuntimeError: an input was donated before.
        """
        try:
            with jax.enable_x64(True):
                return self.compiled(*arrays)
        except (RuntimeError, ValueError) as e:
            gone = [describe_array(box.array) for box in run.boxes if box.array.is_deleted()]
            if not gone:
                raise
            raise reused(self.function.__name__, ", ".join(dict.fromkeys(gone))) from e

    def put_back(self, run: Run, outs: Sequence[Any]) -> None:
        """Put the written arrays into their storages, and the new ones into new storages."""
        n = len(self.written)
        for s, array in zip(self.written, outs, strict=False):
            run.boxes[s].array = array
        for array, strides in zip(outs[n : n + len(self.result.strides)], self.result.strides, strict=True):
            box = Storage(array)
            box.strides = strides
            run.born.append(box)

    def pulled(self, leaves: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, Any, Any]:
        """``(differentiable values, pullback, other outputs)`` at ``arrays`` with ``leaves`` in their places."""

        def fn(leaves: Sequence[Any]) -> tuple[Any, Any]:
            full = list(arrays)
            for k, x in zip(self.leaves, leaves, strict=True):
                full[k] = x
            outs = self.function(*full)
            n = len(outs) - len(self.result.differentiable)
            return outs[n:], outs[:n]

        return jax.vjp(fn, leaves, has_aux=True)


def _get(container: Any, key: Any) -> Any:
    return container[key] if isinstance(container, list) or key in container.keys() else None  # noqa: SIM118


class _Differentiable(torch.autograd.Function):
    """A program in PyTorch's autograd: its backward is one XLA program too."""

    @staticmethod
    def forward(ctx: Any, program: Program, run: Run, inline: bool, *leaves: Tensor) -> tuple[Tensor, ...]:
        if program.with_pullback is None:
            program.with_pullback = jax.jit(program.pulled)
        arrays = program.arguments(run)
        inputs = [arrays[k] for k in program.leaves]
        with wide():
            _, ctx.pullback, outs = (program.pulled if inline else program.with_pullback)(inputs, arrays)
        ctx.inline = inline
        ctx.program, ctx.arrays = program, arrays
        ctx.set_materialize_grads(False)
        program.put_back(run, outs)
        made = tuple(make(run) for make in program.result.differentiable)
        ctx.kinds = [(t.shape, t._value().dtype) for t in made]
        ctx.save_for_backward(*leaves)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        program = ctx.program
        if torch.is_grad_enabled():
            return None, None, None, *_twice(program, ctx)(list(ctx.saved_tensors), list(grads))
        with wide():
            given = [
                np.zeros(tuple(shape), dtype) if g is None else to_array(g)
                for g, (shape, dtype) in zip(grads, ctx.kinds, strict=True)
            ]
            (found,) = (_pull if ctx.inline else _pull_compiled)(ctx.pullback, given)
            by_leaf = [_gradient(program, i, g) for i, g in zip(program.leaves.values(), found, strict=True)]
        return None, None, None, *by_leaf


def _gradient(program: Program, holder: int, array: Any) -> Tensor:
    """The gradient by a holder, from that by its storage's array."""
    t = Tensor(jax.numpy.conj(array) if jax.numpy.iscomplexobj(array) else array)
    meta, offset, chain, operands = program.views[holder]
    return t if tuple(t.shape) == meta.shape else view_on(t._box, (meta, offset, chain, operands), t.device)


def _pull(pullback: Any, grads: Sequence[Any]) -> Any:
    return pullback([g.conj() if g.dtype.kind == "c" else g for g in grads])


_pull_compiled = jax.jit(_pull)


def _twice(program: Program, ctx: Any) -> Callable[[list[Any], list[Any]], Any]:
    """The gradient as something to be differentiated again."""

    def fn(leaves: Sequence[Any], grads: Sequence[Any]) -> Any:
        with wide():
            values, pullback, _ = program.pulled(leaves, ctx.arrays)
            return pullback([jax.numpy.zeros_like(v) if g is None else g for g, v in zip(grads, values, strict=True)])[
                0
            ]

    return lambda leaves, grads: call_jax(fn, leaves, grads)


def _function(name: str, result: Result, boxes: int) -> Callable[..., list[Any]]:
    """The traced program as a function of what it uses."""
    jaxpr, consts, used = result.closed.jaxpr, result.closed.consts, result.used
    unused = [None] * boxes

    def fn(*arrays: Any) -> list[Any]:
        full: list[Any] = list(unused)
        for position, array in zip(used, arrays, strict=False):
            full[position] = array
        return jax.core.eval_jaxpr(jaxpr, consts, *full, *arrays[len(used) :])

    fn.__name__ = fn.__qualname__ = name
    return fn

"""What a function reaches besides its arguments: modules, optimizers, tensors, and the Python values beside them.

A `State` is found by a walk from a function and objects: closures, defaults, the globals it names, the attributes of modules
and of plain objects, containers. It can put all back as it was, and say what is different now. What no walk sees
(attributes behind ``__slots__``, other modules' globals) is not guarded.
"""

from __future__ import annotations

import builtins
import collections
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from torchax.tensor import Tensor

# The insides of other libraries' objects are theirs; modules and optimizers are walked whoever wrote them.
_LIBRARIES = {"torch", "torchax", "torchax_ops", "jax", "jaxlib", "numpy", "optax", *sys.stdlib_module_names} - {
    "__main__"
}
_MODULE_SLOTS = frozenset(vars(torch.nn.Module())) - {"training"}
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device)
_LARGE = 1000  # a longer list or dictionary is data: only its length is guarded
MISSING = type("Missing", (), {"__repr__": lambda self: "nothing"})()


class Cells:
    """A function's closure, as a container."""

    def __init__(self, fn: types.FunctionType) -> None:
        self.cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))

    def __getitem__(self, name: str) -> Any:
        try:
            return self.cells[name].cell_contents
        except ValueError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        self.cells[name].cell_contents = value

    def __delitem__(self, name: str) -> None:
        del self.cells[name].cell_contents

    def keys(self) -> Any:
        return self.cells.keys()


@dataclass(slots=True, eq=False)
class Record:
    """One container and what it held.

    Attributes:
        container: a dictionary (an object's own, too), a list, a closure, or a function's globals.
        names: the keys that count; ``None``: all, and their number.
        held: key -> value.
        label: how messages call it.
        guarded: whether a change of a Python value in it asks for another trace.
    """

    container: Any
    names: tuple[Any, ...] | None
    held: dict[Any, Any]
    label: str
    guarded: bool

    def now(self) -> dict[Any, Any]:
        """What it holds now."""
        c = self.container
        if isinstance(c, (list, tuple)):
            return dict(enumerate(c))
        names = self.names if self.names is not None else tuple(c.keys())
        return {name: c[name] for name in names if _has(c, name)}

    def restore(self) -> None:
        c, held = self.container, self.held
        if isinstance(c, tuple):
            return
        if isinstance(c, list):
            if len(c) != len(held) or any(map(operator.is_not, c, held.values())):
                c[:] = held.values()
            return
        now = self.now()
        if (
            len(now) == len(held)
            and all(map(operator.is_, now, held))
            and all(map(operator.is_, now.values(), held.values()))
        ):
            return
        for name in now:
            del c[name]
        for name, value in held.items():
            c[name] = value

    def path(self, key: Any) -> str:
        return f"{self.label}[{key!r}]" if isinstance(self.container, list) or not isinstance(key, str) else (
            f"{self.label}.{key}" if self.label else key
        )  # fmt: skip


def _has(container: Any, name: Any) -> bool:
    if isinstance(container, dict):  # to ask a defaultdict would fill it
        return name in container
    try:
        container[name]
    except LookupError:
        return False
    return True


@dataclass(slots=True, eq=False)
class Place:
    """Where a tensor of the device was found."""

    record: Record
    key: Any
    tensor: Tensor

    @property
    def label(self) -> str:
        return self.record.path(self.key)


@dataclass(slots=True, eq=False)
class State:
    """All that a walk found."""

    records: list[Record] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    cpu: list[tuple[torch.Tensor, int, str]] = field(default_factory=list)
    large: list[tuple[Any, int, str]] = field(default_factory=list)
    seen: dict[int, Any] = field(default_factory=dict)  # everything visited; kept, so that no id is given anew

    def restore(self) -> None:
        """Put everything back into the containers as it was found."""
        for record in self.records:
            record.restore()

    def constants(self) -> Iterator[tuple[Record, Any, Any]]:
        """The guarded Python values: record, key, value."""
        for record in self.records:
            if record.guarded and not isinstance(record.container, tuple):
                for key, value in record.held.items():
                    if not isinstance(value, Tensor) and key not in _MODULE_SLOTS:
                        yield record, key, value


def walk(roots: dict[str, Any]) -> State:
    """Everything reachable from ``roots`` (label -> object), in a fixed order."""
    walker = _Walker()
    for label, root in roots.items():
        walker.visit(root, label)
    walker.run()
    return walker.state


class _Walker:
    def __init__(self) -> None:
        self.state = State()
        self.todo: list[tuple[Any, str]] = []

    def visit(self, x: Any, label: str) -> None:
        if isinstance(x, (_PLAIN, type, types.ModuleType, types.BuiltinFunctionType)):
            return
        if id(x) not in self.state.seen:
            self.state.seen[id(x)] = x
            self.todo.append((x, label))

    def run(self) -> None:
        while self.todo:
            todo, self.todo = self.todo, []
            for x, label in todo:
                self.enter(x, label)

    def record(self, container: Any, held: dict[Any, Any], label: str, names: Any = None, guarded: bool = True) -> None:
        record = Record(container, names, held, label, guarded)
        self.state.records.append(record)
        for key, value in held.items():
            if isinstance(value, Tensor):
                self.state.places.append(Place(record, key, value))
            elif not isinstance(value, _PLAIN):
                self.visit(value, record.path(key))

    def enter(self, x: Any, label: str) -> None:
        if isinstance(x, torch.Tensor):
            if not isinstance(x, Tensor) and x.device.type == "cpu" and not x.is_inference():
                self.state.cpu.append((x, x._version, label))
        elif isinstance(x, torch.nn.Module):
            self.record(vars(x), dict(vars(x)), label)
        elif isinstance(x, torch.optim.Optimizer):
            self.optimizer(x, label)
        elif isinstance(x, types.FunctionType):
            self.function(x, label)
        elif isinstance(x, types.MethodType):
            self.visit(x.__self__, label)
            self.visit(x.__func__, label)
        elif isinstance(x, functools.partial):
            for part, value in (("func", x.func), ("args", x.args), ("keywords", x.keywords)):
                self.visit(value, f"{label}.{part}")
        elif isinstance(x, (dict, list, tuple)) and len(x) > _LARGE:
            self.state.large.append((x, len(x), label))
        elif isinstance(x, dict):
            self.record(x, dict(x), label)
        elif isinstance(x, (list, tuple)):
            self.record(x, dict(enumerate(x)), label)
        elif isinstance(x, (set, frozenset, collections.deque)):
            self.visit(tuple(x), label)
        elif type(x).__module__.partition(".")[0] not in _LIBRARIES and hasattr(x, "__dict__"):
            self.record(vars(x), dict(vars(x)), label)

    def optimizer(self, x: torch.optim.Optimizer, label: str) -> None:
        self.state.optimizers.append(x)
        self.record(vars(x), dict(vars(x)), label, guarded=False)
        self.visit(x.param_groups, f"{label}.param_groups")
        self.visit(x.state, f"{label}.state")

    def function(self, fn: types.FunctionType, label: str) -> None:
        if fn.__module__ and fn.__module__.partition(".")[0] in _LIBRARIES:
            if fn.__closure__ is None and not hasattr(fn, "__wrapped__"):
                return
        elif names := tuple(n for n in _names(fn.__code__) if n in fn.__globals__ and not hasattr(builtins, n)):
            self.record(fn.__globals__, {n: fn.__globals__[n] for n in names}, "", names)
        if fn.__closure__:
            cells = Cells(fn)
            self.record(cells, {n: cells[n] for n in cells.cells if _has(cells, n)}, "", tuple(cells.cells))
        for part in ("__defaults__", "__kwdefaults__", "__wrapped__"):
            self.visit(getattr(fn, part, None), f"{label}.{part}")


@functools.cache
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The global names that a function's code, and what is defined in it, mentions."""
    inner = [n for c in code.co_consts if isinstance(c, types.CodeType) for n in _names(c)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


class Guard:
    """Whether what a trace found constant still is."""

    def __init__(self, state: State, keep: Callable[[Record, Any], bool]) -> None:
        # Only what is compared is kept: a record would keep tensors alive that were replaced since.
        kept = [(r.container, k, v, r.path(k)) for r, k, v in state.constants() if keep(r, k)]
        self.constants = kept
        self.containers = [c for c, _, _, _ in kept]
        self.keys = [k for _, k, _, _ in kept]
        self.values = [v for _, _, v, _ in kept]
        whole = [r for r in state.records if r.guarded and r.names is None and not isinstance(r.container, tuple)]
        self.empty = [r.container for r in whole if not r.held]
        full = [r for r in whole if r.held]
        counted = [*((r.container, len(r.held), r.label) for r in full), *state.large]
        self.counted = [c for c, _, _ in counted]
        self.counts = [n for _, n, _ in counted]
        self.labels = [label for _, _, label in counted]
        self.cpu = state.cpu

    def holds(self) -> bool:
        try:
            same = all(map(operator.is_, map(operator.getitem, self.containers, self.keys), self.values))
        except LookupError:
            return False
        return (
            (same or self.changed() is None)
            and not any(self.empty)
            and list(map(len, self.counted)) == self.counts
            and all(t._version == version for t, version, _ in self.cpu)
        )

    def changed(self) -> str | None:
        """The first difference, in words."""
        for container, key, value, path in self.constants:
            now = container[key] if _has(container, key) else MISSING
            if now is not value and not _equal(now, value):
                return f"{path} was {_short(value)}, now {_short(now)}"
        return None

    def difference(self) -> str | None:
        """The first difference of any kind, in words."""
        found = self.changed()
        if found is not None:
            return found
        for c in self.empty:
            if c:
                return f"an empty container now holds {_short(c)}"
        for c, n, label in zip(self.counted, self.counts, self.labels, strict=True):
            if len(c) != n:
                return f"{label} had {n} entries, now {len(c)}"
        for t, version, label in self.cpu:
            if t._version != version:
                return f"the CPU tensor {label} was written to"
        return None


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return isinstance(a, _PLAIN) and bool(a == b)


def _short(x: Any) -> str:
    text = repr(x) if isinstance(x, (*_PLAIN, tuple, list, dict)) else f"a {type(x).__name__}"
    return text if len(text) < 80 else text[:77] + "..."

"""One trace of a torch function that reads and writes state: what goes in, what comes out, what is to be put back.

Every tensor that the function reaches (its arguments, and what `_state.walk` finds) gets a tracer in the place of its
array while the function runs once; then all is put back as it was. So a trace changes nothing, whether it succeeds or
not, and the first call runs the compiled program like all later ones.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch

from torchax import devices, random
from torchax.interop import _optimizers
from torchax.interop._scopes import named_modules
from torchax.interop._state import MISSING, Place, State, walk
from torchax.interop._tree import LEAF, flatten
from torchax.storage import Storage, watched
from torchax.tensor import Tensor, adopt, view_of, view_on, wrap

Make = Callable[["Run"], Any]
Draw = tuple[torch.Generator, Any]  # a generator, and the device its numbers go to
_grad = inspect.getattr_static(torch.Tensor, "grad")


@dataclass(slots=True, eq=False)
class Run:
    """One call: the tensors given, the storages behind them, and those that the program makes."""

    holders: list[Tensor]
    boxes: list[Storage]
    born: list[Storage] = field(default_factory=list)
    differentiable: tuple[Tensor, ...] = ()


@dataclass(slots=True, eq=False)
class Result:
    """What a trace found.

    Attributes:
        closed: the program, from the arrays of the inputs' storages and the learning rates to three groups of arrays: the
            written storages', the new ones', and the values of the results that have a gradient.
        used: positions of the inputs' storages that the program reads, or a result looks into.
        written: positions of those that get a new array.
        strides: for each new storage its strides.
        make: makes the function's result.
        effects: what else to do after a call, in order.
        grads: holders whose ``.grad`` at the beginning mattered, each with what it looked at (``None``: it had none).
        differentiable: makes the tensors among the result that have a gradient by the inputs.
        missed: storages that were used and that no walk found.
        draws: the explicit generators drawn from.
    """

    closed: Any
    used: list[int]
    written: list[int]
    strides: list[Any]
    make: Make
    effects: list[Callable[[Run], None]]
    grads: dict[int, Any]
    differentiable: list[Make]
    missed: list[Storage]
    draws: list[Draw]


class Inputs:
    """What a trace turns into tracers.

    Args:
        given: the tensors among the arguments.
        state: what the function reaches besides.
        extra: storages that an earlier trace missed.
        rates: parameter groups whose learning rate is a number.
        draws: the explicit generators that are drawn from, one after the other.
    """

    def __init__(
        self, given: list[Tensor], state: State, extra: list[Storage], rates: list[dict[str, Any]], draws: list[Draw]
    ) -> None:
        self.state, self.extra, self.rates, self.draws = state, extra, rates, draws
        # A tensor found in several places is lifted once; its other places are its twins.
        known: dict[int, int] = {}
        self.places: list[Place] = []
        self.twins: list[tuple[Place, int]] = []
        for place in state.places:
            i = known.setdefault(id(place.tensor), len(self.places))
            if i == len(self.places):
                self.places.append(place)
            else:
                self.twins.append((place, i))
        self.holders = [*given, *(place.tensor for place in self.places)]
        once = {id(t): i for i, t in reversed(list(enumerate(self.holders)))}
        leaves = [i for i in sorted(once.values()) if self.holders[i].is_leaf and self.holders[i].requires_grad]
        self.grads = {i: _grad.__get__(self.holders[i]) for i in leaves}
        self.with_grad = [i for i, g in self.grads.items() if isinstance(g, Tensor)]
        tensors = [*self.holders, *(self.grads[i] for i in self.with_grad)]
        self.generators = generators(tensors)
        self.all_boxes = [*(t._box for t in tensors), *self.generators, *extra]
        self.boxes = list(dict.fromkeys(self.all_boxes))
        self.position = {id(box): i for i, box in enumerate(self.boxes)}


def generators(tensors: Sequence[Tensor]) -> list[Storage]:
    """The storages of the random states that operators on these tensors would draw from."""
    override = getattr(random._override, "state", None)
    if override is not None:
        return [override]
    indices = sorted({t.device.index or 0 for t in tensors} | {0}) if devices.several() else [0]
    return [random._state(i) for i in indices]


class _Grads:
    """``.grad`` of the holders during a trace: which of them mattered as they were at the beginning."""

    def __init__(self, inputs: Inputs) -> None:
        self.index = {id(inputs.holders[i]): i for i in inputs.grads}
        self.entry = inputs.grads
        self.arrays: dict[int, Any] = {}  # filled in when the tracers are in place
        self.known: set[int] = set()  # those decided
        self.matter: set[int] = set()
        self.asked: set[int] = set()  # read, and not written since

    def touched(self, i: int, t: Tensor) -> bool:
        """Whether autograd accumulated into the gradient that was there."""
        entry, now = self.entry[i], _grad.__get__(t)
        return now is not entry or (isinstance(entry, Tensor) and entry._box.array is not self.arrays[i])

    def get(self, t: Tensor) -> Any:
        i = self.index.get(id(t))
        if i is not None and i not in self.known:
            self.asked.add(i)
        return _grad.__get__(t)

    def set(self, t: Tensor, value: Any) -> None:
        i = self.index.get(id(t))
        if i is not None and i not in self.known:
            self.known.add(i)
            # ``if p.grad is not None: p.grad = None`` comes to the same whether there was one.
            if self.touched(i, t) or (i in self.asked and value is not None):
                self.matter.add(i)
        _grad.__set__(t, value)

    def finish(self, holders: list[Tensor]) -> None:
        for i in self.entry:
            if i not in self.known and (i in self.asked or self.touched(i, holders[i])):
                self.matter.add(i)

    @contextmanager
    def followed(self) -> Iterator[None]:
        outer = Tensor.__dict__.get("grad")
        Tensor.grad = property(self.get, self.set, lambda t: self.set(t, None))  # type: ignore[assignment]
        try:
            yield
        finally:
            if outer is None:
                del Tensor.grad
            else:
                Tensor.grad = outer


@contextmanager
def _compiling() -> Iterator[None]:
    """PyTorch's own flag: optimizers and checks then do not ask for values."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


class _Session:
    """The state of one trace."""

    def __init__(self, fn: Callable[[], Any], inputs: Inputs) -> None:
        self.fn, self.inputs = fn, inputs
        self.born: dict[int, Storage] = {}  # alive meanwhile, so that no id comes twice
        self.missed: dict[int, tuple[Storage, Any]] = {}
        self.grads = _Grads(inputs)
        self.outputs: list[Storage] = []  # the born storages that outlive the trace
        self.output_index: dict[int, int] = {}
        self.looked_into: set[int] = set()
        self.making: set[int] = set()
        self.holder_index = {id(t): i for i, t in reversed(list(enumerate(inputs.holders)))}
        self.entries = [(t, t._box, view_of(t), t.requires_grad) for t in inputs.holders]
        self.grad_mode = torch.is_grad_enabled()
        self.known_cpu = {id(t) for t, _, _ in inputs.state.cpu}
        self.tracers: list[Any] = []
        self.states: Sequence[Any] = ()
        self.drawn: list[Draw] = []
        self.result: Any = None

    # --- following storages -------------------------------------------------------------------------------------------

    def on_birth(self, box: Storage) -> None:
        self.born[id(box)] = box

    def on_read(self, box: Storage, array: Any) -> Any:
        self.unless_known(box, array)
        return array

    def unless_known(self, box: Storage, array: Any) -> None:
        key = id(box)
        if key not in self.born and key not in self.inputs.position and key not in self.missed:
            self.missed[key] = (box, array)

    def draw(self, generator: torch.Generator, device: Any) -> Any:
        """The state for the next draw from an explicit generator: an input, once a trace has counted the draws."""
        n = len(self.drawn)
        self.drawn.append((generator, device))
        return self.states[n] if n < len(self.states) else random.state_from_seed(0, device)

    # --- the trace ----------------------------------------------------------------------------------------------------

    def body(self, *arrays: Any) -> list[Any]:
        inputs = self.inputs
        tracers = self.tracers = list(arrays[: len(inputs.boxes)])
        for box, tracer in zip(inputs.boxes, tracers, strict=True):
            box.array = tracer
        self.grads.arrays = {i: inputs.grads[i]._box.array for i in inputs.with_grad}
        lifted = {}
        after = len(inputs.boxes) + len(inputs.rates)
        self.states = arrays[after:]
        for group, number in zip(inputs.rates, arrays[len(inputs.boxes) : after], strict=True):
            lifted[id(group)] = group["lr"] = wrap(number)
            self.on_birth(group["lr"]._box)
        for group in _optimizers.groups(inputs.state.optimizers):
            if "capturable" in group:
                group["capturable"] = True
        with ExitStack() as stack:
            stack.enter_context(watched(self.on_birth, self.on_read, self.unless_known))
            stack.enter_context(_compiling())
            stack.enter_context(random.lifted(self.draw))
            stack.enter_context(self.grads.followed())
            out = self.fn()
            self.grads.finish(inputs.holders)
            values = self.conclude(out, tracers, lifted)
            return [*(inputs.boxes[i].array for i in self.result["written"]), *(b.array for b in self.outputs), *values]

    def conclude(self, out: Any, tracers: list[Any], lifted: dict[int, Any]) -> list[Any]:
        inputs = self.inputs
        leaves, spec = flatten(out)
        has_gradient = self.has_gradient(leaves)
        makes: list[Make] = []
        differentiable: list[Make] = []
        values: list[Any] = []
        for x in leaves:
            if has_gradient and isinstance(x, Tensor) and x.grad_fn is not None:
                makes.append(_differentiable(len(differentiable)))
                differentiable.append(self.tensor(x))
                values.append(x._value())
            else:
                makes.append(self.leaf(x, "the result"))
        effects = [*self.attributes(lifted), *self.metadata(), *self.gradients(), *self.generator()]
        if torch.is_grad_enabled() != self.grad_mode:
            mode = torch.is_grad_enabled()
            effects.append(lambda run: torch._C._set_grad_enabled(mode))
        written = [i for i, box in enumerate(inputs.boxes) if box.array is not tracers[i]]
        make = makes[0] if spec is LEAF else lambda run: spec.fill(iter([m(run) for m in makes]))
        self.result = {"written": written, "make": make, "effects": effects, "differentiable": differentiable}
        return values

    def run(self) -> Result:
        inputs = self.inputs
        arrays = [box.array for box in inputs.boxes]
        rates = [np.float64(group["lr"]) for group in inputs.rates]
        undo = self.undo(arrays)
        try:
            states = [random.state_from_seed(0, device) for _, device in inputs.draws]
            closed = jax.make_jaxpr(self.body)(*arrays, *rates, *states)
        finally:
            undo()
        for t, version, label in inputs.state.cpu:
            if t._version != version:
                raise RuntimeError(
                    f"the CPU tensor {label}, {_named(t)}, was written to under a trace, which later calls would not repeat: "
                    "move it to device 'jax'"
                )
        variables = closed.jaxpr.invars[: len(inputs.boxes)]
        read = {v for eqn in closed.jaxpr.eqns for v in eqn.invars if not hasattr(v, "val")}
        read.update(v for v in closed.jaxpr.outvars if not hasattr(v, "val"))
        used = {i for i, v in enumerate(variables) if v in read} | self.looked_into
        held = {inputs.position[id(t._box)] for t in inputs.holders}  # a gradient may share a box with them
        matter = self.grads.matter | {
            i for i in inputs.with_grad if inputs.position[id(inputs.grads[i]._box)] in used - held
        }
        return Result(
            closed=closed,
            used=sorted(used),
            strides=[b.strides for b in self.outputs],
            grads={i: None if inputs.grads[i] is None else view_of(inputs.grads[i]) for i in sorted(matter)},
            missed=[box for box, _ in self.missed.values()],
            draws=self.drawn,
            **self.result,
        )

    def undo(self, arrays: list[Any]) -> Callable[[], None]:
        """What puts everything back as it is now."""
        inputs = self.inputs
        grad_views = [(g, g._box, view_of(g)) for g in inputs.grads.values() if isinstance(g, Tensor)]
        seed, states = random._seed, dict(random._states)

        def undo() -> None:
            for box, array in [*zip(inputs.boxes, arrays, strict=True), *self.missed.values()]:
                if array is None:
                    del box.array  # it was not filled in yet
                else:
                    box.array = array
            for t, box, view, requires_grad in self.entries:
                _put_back(t, box, view)
                if t.requires_grad != requires_grad:
                    t.requires_grad_(requires_grad)
            for g, box, view in grad_views:
                _put_back(g, box, view)
            for i, grad in inputs.grads.items():
                if _grad.__get__(inputs.holders[i]) is not grad:
                    _grad.__set__(inputs.holders[i], grad)
            inputs.state.restore()
            random._seed = seed
            random._states.clear()
            random._states.update(states)
            torch._C._set_grad_enabled(self.grad_mode)

        return undo

    # --- what comes out -----------------------------------------------------------------------------------------------

    def output(self, box: Storage) -> int:
        """The number of a born storage among the outputs."""
        k = self.output_index.get(id(box))
        if k is None:
            k = self.output_index[id(box)] = len(self.outputs)
            self.outputs.append(box)
        return k

    def recipe(self, tree: Any, label: str) -> Make:
        """How to make a value of the trace again from a call's arrays."""
        leaves, spec = flatten(tree)
        makes = [self.leaf(x, label) for x in leaves]
        return makes[0] if spec is LEAF else lambda run: spec.fill(iter([make(run) for make in makes]))

    def leaf(self, x: Any, label: str) -> Make:
        if isinstance(x, Tensor):
            return self.tensor(x)
        if isinstance(x, torch.Tensor) and id(x) not in self.known_cpu and x.device.type == "cpu":
            return lambda run: x.clone()
        if isinstance(x, jax.core.Tracer):
            return self.tensor(wrap(x))
        inside = [] if id(x) in self.inputs.state.seen else walk({label: x}).places
        for place in inside:
            if isinstance(place.tensor._box.array, jax.core.Tracer) and id(place.tensor) not in self.holder_index:
                return self.instance(x, label, place)
        return lambda run: x

    def instance(self, x: Any, label: str, place: Place) -> Make:
        """How to make an object with tensors among its attributes again: another of its class, with its attributes."""
        kind: Any = type(x)
        if id(x) in self.making or not hasattr(x, "__dict__") or isinstance(x, (type, types.FunctionType)):
            raise RuntimeError(
                f"{place.label} was set to a tensor made in the trace, {_named(place.tensor)}, inside a new {kind.__name__}, "
                "which a compiled call cannot make again. Return the tensor instead, or write into one that was there before "
                "(buffer.copy_(value))."
            )
        self.making.add(id(x))
        parts = {key: self.recipe(value, f"{label}.{key}") for key, value in vars(x).items()}
        self.making.discard(id(x))

        def make(run: Run) -> Any:
            made = kind.__new__(kind)
            vars(made).update({key: part(run) for key, part in parts.items()})
            return made

        return make

    def tensor(self, t: Tensor) -> Make:
        if id(t) in self.holder_index:
            i = self.holder_index[id(t)]
            return lambda run: run.holders[i]
        view, device, box = view_of(t), t.device, t._box
        requires_grad = t.requires_grad and t.is_leaf
        parameter = isinstance(t, torch.nn.Parameter)
        position = self.inputs.position.get(id(box))
        if position is None:
            k = self.output(box)
        else:
            self.looked_into.add(position)

        def make(run: Run) -> Tensor:
            made = view_on(run.born[k] if position is None else run.boxes[position], view, device)
            if requires_grad:
                made.requires_grad_()
            if parameter:
                made._is_param = True  # type: ignore[attr-defined]
            return made

        return make

    def attributes(self, lifted: dict[int, Any]) -> Iterator[Callable[[Run], None]]:
        """Entries of containers that are not what they were."""
        for record in self.inputs.state.records:
            now = record.now()
            if isinstance(record.container, list):
                if len(now) != len(record.held) or any(record.held[i] is not x for i, x in now.items()):
                    made = self.recipe(list(record.container), record.label)
                    yield lambda run, c=record.container, made=made: c.__setitem__(slice(None), made(run))  # type: ignore[misc]
                continue
            for key, value in now.items():
                if record.held.get(key, MISSING) is value:
                    continue
                if id(record.container) in lifted and key in ("lr", "capturable"):
                    continue
                if key == "capturable" and record.held.get(key) is False:
                    continue
                yield _set_item(record.container, key, self.recipe(value, record.path(key)))
            for key in record.held.keys() - now.keys():
                yield _delete_item(record.container, key)

    def metadata(self) -> Iterator[Callable[[Run], None]]:
        """Tensors that look elsewhere now (``p.data = ...``, ``t_()``), or want gradients now."""
        for i, (t, box, view, requires_grad) in enumerate(self.entries):
            if t.requires_grad != requires_grad:
                yield lambda run, i=i, wanted=t.requires_grad: run.holders[i].requires_grad_(wanted)  # type: ignore[misc]
            if t._box is not box or view_of(t) != view:
                alias = view_on(t._box, view_of(t), t.device)
                made = self.tensor(alias)
                yield lambda run, i=i, made=made: adopt(run.holders[i], made(run))  # type: ignore[misc]

    def gradients(self) -> Iterator[Callable[[Run], None]]:
        for i, entry in self.inputs.grads.items():
            t = self.inputs.holders[i]
            now = _grad.__get__(t)
            if now is entry:
                continue
            made = self.leaf(now, f"the gradient of {_named(t)}")
            yield lambda run, i=i, made=made: _grad.__set__(run.holders[i], made(run))  # type: ignore[misc]

    def generator(self) -> Iterator[Callable[[Run], None]]:
        """Generators that were seeded in the trace."""
        for index, (seed, box) in random._states.items():
            if id(box) in self.born:
                k = self.output(box)
                yield lambda run, i=index, k=k, seed=seed: random._states.__setitem__(i, (seed, run.born[k]))  # type: ignore[misc]

    def has_gradient(self, leaves: list[Any]) -> bool:
        """Whether PyTorch would go backward from the result to what went in.

        Not where a backward ran inside, as in a training step: its graph is used up.
        """
        if not any(isinstance(x, torch.Tensor) and x.grad_fn is not None for x in leaves):
            return False
        inputs = self.inputs
        positions = [inputs.position[id(self.entries[i][1])] for i in inputs.grads]
        return all(inputs.boxes[k].array is self.tracers[k] for k in positions) and all(
            _grad.__get__(inputs.holders[i]) is g for i, g in inputs.grads.items()
        )


def trace(fn: Callable[[], Any], inputs: Inputs) -> Result:
    """Run ``fn`` once with tracers in place of the arrays of ``inputs``; leave all as it was."""
    with named_modules():
        return _Session(fn, inputs).run()


def _put_back(t: Tensor, box: Storage, view: Any) -> None:
    if t._box is not box or view_of(t) != view:
        adopt(t, view_on(box, view, t.device))


def _differentiable(k: int) -> Make:
    return lambda run: run.differentiable[k]


def _set_item(container: Any, key: Any, made: Make) -> Callable[[Run], None]:
    return lambda run: container.__setitem__(key, made(run))


def _delete_item(container: Any, key: Any) -> Callable[[Run], None]:
    return lambda run: container.__delitem__(key)


def _named(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"

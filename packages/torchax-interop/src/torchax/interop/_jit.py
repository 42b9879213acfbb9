"""``jax_jit``: a torch function compiled by JAX, with all the state that it reaches."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from torchax import dispatch
from torchax.interop import _optimizers
from torchax.interop._program import Program
from torchax.interop._state import walk
from torchax.interop._trace import Draw, Inputs, Run, trace
from torchax.interop._tree import Spec, flatten
from torchax.interop._views import jax_view, torch_view
from torchax.interop._x64 import wide
from torchax.storage import Storage
from torchax.tensor import Tensor, view_of, view_on, wrap
from torchax.views import ROOT

logger = logging.getLogger("torchax.compile")
_tracing = threading.RLock()
_local = threading.local()
_MANY = 8  # programs of one function, from which on a warning says why


class Key(NamedTuple):
    """What decides which programs a call may use, besides what the function reaches."""

    tree: Spec
    constants: tuple[Any, ...]
    tensors: tuple[Any, ...]
    modes: tuple[Any, ...]


class _Static:
    """A Python value among the arguments, by its type too: 1 is not True."""

    __slots__ = ("hash", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            self.hash = hash((type(value), value))
        except TypeError:
            self.hash = id(value)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Static) or type(self.value) is not type(other.value):
            return False
        return self.value is other.value or (self.hash == other.hash and bool(self.value == other.value))

    def __repr__(self) -> str:
        return (
            repr(self.value)
            if isinstance(self.value, (int, float, str, bool, type(None)))
            else f"a {type(self.value).__name__}"
        )


def _modes() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("jax") and torch.get_autocast_dtype("jax"), torch.get_default_dtype(),
        dispatch.narrow_storage, jax.config.jax_enable_x64,  # type: ignore[attr-defined]
    )  # fmt: skip


_MODE_NAMES = ("grad mode", "inference mode", "autocast", "the default dtype", "performance mode", "JAX's x64 flag")


class Call(NamedTuple):
    """One call's arguments, taken apart."""

    key: Key
    leaves: list[Any]
    given: list[Tensor]
    boxes: list[Storage]  # of ``given``; a view's is a new one with its value
    read: list[tuple[Tensor, Storage, Any]]  # those views, their new storages and what these held


class Jitted:
    """A compiled torch function; `jax_jit` makes it."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        donate: Sequence[int] = (),
        donate_state: bool = False,
        copy_shared: bool = False,
        static_argnums: Sequence[int] = (),
        static_argnames: Sequence[str] = (),
        log_recompiles: bool = False,
        options: dict[str, Any] | None = None,
        shardings: tuple[Any, Any] = (None, None),
        transform: Callable[..., Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.fn = fn
        self.donate = donate
        self.donate_state = donate_state
        self.copy_shared = copy_shared
        self.static_argnums = frozenset(static_argnums)
        self.static_argnames = frozenset(static_argnames)
        self.log_recompiles = log_recompiles
        self.options = options or {}
        self.in_shardings, self.out_shardings = shardings
        self.transform = transform
        self.programs: dict[Key, list[Program]] = {}
        self.latest: tuple[Key, Program] | None = None
        self.count = 0

    @classmethod
    def of(cls, fn: Callable[..., Any], kwargs_for_jax_jit: dict[str, Any] | None, **how: Any) -> Jitted:
        """Compile ``fn`` as ``jax.jit`` is told to."""
        options = dict(kwargs_for_jax_jit or {})
        names = _sequence(options.pop("static_argnames", ()))
        numbers = _sequence(options.pop("static_argnums", ()))
        return cls(
            fn,
            donate=_sequence(options.pop("donate_argnums", ())),
            static_argnums=[*numbers, *_positions(fn, names)],
            static_argnames=names,
            shardings=(options.pop("in_shardings", None), options.pop("out_shardings", None)),
            options=options,
            **how,
        )

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return self.fn(*args, **kwargs)  # the transform around it takes it in
        if getattr(_local, "tracing", False):
            return self.fn(*args, **kwargs) if self.transform is None else self.inline(args, kwargs)
        call = self.take_apart(args, kwargs)
        if any(isinstance(box.array, jax.core.Tracer) for box in call.boxes):
            return self.fn(*args, **kwargs) if self.transform is None else self.inline(args, kwargs)
        program, run = self.find(call)
        return self.finish(call, program(run))

    def inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Take a call into the trace around it, as a piece that `transform` sees."""
        call = self.take_apart(args, kwargs)
        with _tracing:
            program = self.program(call)
        return self.finish(call, program(self.bound(program, call), inline=True))

    @staticmethod
    def finish(call: Call, out: Any) -> Any:
        """Write views that were given by value, where the program wrote them."""
        for view, box, array in call.read:
            if box.array is not array:
                view._write(box.array)
        return out

    # --- finding the program ------------------------------------------------------------------------------------------

    def take_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        leaves, tree = flatten(self.without_static(args, kwargs))
        given, boxes, kinds, constants = [], [], [], []
        for i, x in enumerate(leaves):
            if type(x) is not Tensor and not isinstance(x, Tensor):
                if isinstance(x, (jax.Array, np.ndarray)):
                    x = leaves[i] = _as_tensor(x)
                elif isinstance(x, torch.Tensor):
                    raise TypeError(
                        f"argument of shape {tuple(x.shape)}, dtype {x.dtype} is on {x.device}; a compiled function takes "
                        "tensors on device 'jax': move it with .to('jax')"
                    )
                else:
                    constants.append(x if isinstance(x, _Static) else _Static(x))
                    continue
            given.append(x)
            boxes.append(x._box)
            kinds.append(
                (x.dtype, x.shape, x.requires_grad, x._is_param if hasattr(x, "_is_param") else False)
                if x._chain is ROOT and not x._noncontiguous
                else (view_of(x), x.requires_grad)
            )
        read = self.by_value(given, boxes, kinds) if any(x._chain is not ROOT for x in given) else []
        return Call(Key(tree, tuple(constants), tuple(kinds), _modes()), leaves, given, boxes, read)

    def by_value(self, given: list[Tensor], boxes: list[Storage], kinds: list[Any]) -> list[Any]:
        """Give views by their values, so that another offset is not another program, unless they share a storage."""
        read = []
        count: dict[Storage, int] = {}
        for box in boxes:
            count[box] = count.get(box, 0) + 1
        reached = self.latest[1].reached if self.latest else ()
        for i, t in enumerate(given):
            if t._chain is not ROOT and count[t._box] == 1 and t._box not in reached:
                array = t._value()
                boxes[i] = Storage(array)
                kinds[i] = (t.dtype, t.shape, t.requires_grad, "by value")
                read.append((t, boxes[i], array))
        return read

    def without_static(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments, with the static ones hidden from being taken apart."""
        if not self.static_argnums and not self.static_argnames:
            return args, kwargs
        for i in self.static_argnums:
            if i < len(args):
                _check_hashable(f"argument {i}", args[i])
        hidden = tuple(
            _Static(a) if i in self.static_argnums or i - len(args) in self.static_argnums else a
            for i, a in enumerate(args)
        )
        for name in self.static_argnames & kwargs.keys():
            _check_hashable(f"argument {name!r}", kwargs[name])
        return hidden, {k: _Static(v) if k in self.static_argnames else v for k, v in kwargs.items()}

    def find(self, call: Call) -> tuple[Program, Run]:
        programs = self.programs.get(call.key, [])
        for program in programs:
            run = program.bind(call.given, call.boxes)
            if run is not None:
                self.latest = call.key, program
                return program, run
        with _tracing:
            program = self.make(call)
        return program, self.bound(program, call)

    def bound(self, program: Program, call: Call) -> Run:
        """A fresh program with what it was made for."""
        run = program.bind(call.given, call.boxes)
        if run is None:
            raise AssertionError(
                f"a fresh trace of {self.__name__} does not fit its own call: {program.misfit(call.given)}"
            )
        return run

    # --- tracing ------------------------------------------------------------------------------------------------------

    def make(self, call: Call) -> Program:
        """Trace and keep a program for this call."""
        if self.count:
            self.tell(call)
        program = self.program(call)
        self.programs.setdefault(call.key, []).insert(0, program)
        self.latest = call.key, program
        self.count += 1
        return program

    def program(self, call: Call) -> Program:
        """Trace for this call."""
        roots = {"": self.fn}
        stand_ins = [_stand_in(t, box) for t, box in zip(call.given, call.boxes, strict=True)]
        tensors = iter(stand_ins)
        leaves = [next(tensors) if isinstance(x, Tensor) else x for x in call.leaves]
        for i, x in enumerate(leaves):
            if not isinstance(x, Tensor):
                roots[f"argument {i}"] = x.value if isinstance(x, _Static) else x
        args, kwargs = call.key.tree.fill(iter([x.value if isinstance(x, _Static) else x for x in leaves]))

        def run() -> Any:
            with_shardings = _sharded(self.in_shardings, args)
            return _sharded(self.out_shardings, self.fn(*with_shardings, **kwargs))

        # A plain jax.jit around it has 32 bits, unless its user switched x64 on.
        foreign = not getattr(_local, "tracing", False) and any(
            isinstance(box.array, jax.core.Tracer) for box in call.boxes
        )
        with nullcontext() if foreign else wide():
            inputs, result = self.trace(run, stand_ins, roots)
        return Program(
            self.__name__, inputs, len(stand_ins), result, self.donated(call), self.donate_state, self.copy_shared,
            self.options, self.transform,
        )  # fmt: skip

    def trace(self, fn: Callable[[], Any], given: list[Tensor], roots: dict[str, Any]) -> tuple[Inputs, Any]:
        before = walk(roots)
        _optimizers.refuse(before.optimizers)
        placeholders: list[Tensor] = []
        extra: list[Storage] = []
        draws: list[Draw] = []
        rates = _optimizers.rates(before.optimizers)
        outer = getattr(_local, "tracing", False)
        _local.tracing = True
        try:
            fresh = [(o, p) for o in before.optimizers for p in _optimizers.prepare(o)]
            for optimizer in before.optimizers:
                for p in (p for group in optimizer.param_groups for p in group["params"]):
                    if isinstance(p, Tensor) and p.requires_grad and p.grad is None and p.is_leaf:
                        p.grad = torch.empty_like(p)
                        placeholders.append(p)
            while True:
                inputs = Inputs(given, walk(roots), extra, rates, draws)
                try:
                    result = trace(fn, inputs)
                except jax.errors.ConcretizationTypeError:
                    if not rates:
                        raise
                    rates = []  # the optimizer wants its rate as a number: then another one is another program
                    continue
                invented = {id(p) for p in placeholders}
                if any(id(inputs.holders[i]) in invented for i in result.grads):
                    _clear(placeholders)
                elif result.missed:
                    extra = [*extra, *result.missed]
                elif result.draws != draws:
                    draws = result.draws
                elif not _optimizers.forget_unused(fresh, inputs, result):
                    break
        except BaseException:
            before.restore()
            raise
        finally:
            _clear(placeholders)
            _local.tracing = outer
        return inputs, result

    def donated(self, call: Call) -> list[int]:
        """The positions among the tensors given of those in the arguments to be donated."""
        found: list[int] = []
        position = 0
        for i, child in enumerate(call.key.tree.children[0].children):
            count = sum(isinstance(x, Tensor) for x in _leaves_of(child, call, i))
            if i in self.donate:
                found.extend(range(position, position + count))
            position += count
        return found

    def tell(self, call: Call) -> None:
        """Say why another program is made, where that was asked for or comes too often."""
        if not self.log_recompiles and self.count < _MANY:
            return
        message = f"{self.__name__} is compiled again (program {self.count + 1}): {self.reason(call)}"
        if self.log_recompiles:
            logger.warning(message)
        elif self.count == _MANY:
            logger.warning("%s. Pass what changes as a tensor, or keep it as it is.", message)

    def reason(self, call: Call) -> str:
        assert self.latest is not None
        key, program = self.latest
        new = call.key
        if new.tree != key.tree:
            return "the arguments have another structure"
        for i, (a, b) in enumerate(zip(key.constants, new.constants, strict=True)):
            if a != b:
                return f"Python value {i} among the arguments was {a!r}, now {b!r}"
        for i, (a, b) in enumerate(zip(key.tensors, new.tensors, strict=True)):
            if a != b:
                return f"tensor {i} among the arguments was {_kind(a)}, now {_kind(b)}"
        for name, a, b in zip(_MODE_NAMES, key.modes, new.modes, strict=True):
            if a != b:
                return f"{name} was {a}, now {b}"
        return program.misfit(call.given)

    # --- ahead of time ------------------------------------------------------------------------------------------------

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """The program for these arguments, lowered and not run: ``.as_text()``, ``.compile()``, ``.cost_analysis()``."""
        program, run = self.find(self.take_apart(args, kwargs))
        with jax.enable_x64(True):
            return program.compiled.lower(*program.arguments(run))

    def compile(self, *args: Any, **kwargs: Any) -> jax.stages.Compiled:
        """The program for these arguments, compiled and not run."""
        lowered = self.lower(*args, **kwargs)
        with jax.enable_x64(True):
            return lowered.compile()

    def cost_analysis(self, *args: Any, **kwargs: Any) -> Any:
        """XLA's estimate of the program for these arguments: ``flops``, ``bytes accessed`` ..."""
        return self.compile(*args, **kwargs).cost_analysis()


def _check_hashable(what: str, value: Any) -> None:
    try:
        hash(value)
    except TypeError as e:
        raise ValueError(f"{what} is static and so must be hashable, but a {type(value).__name__} is not") from e


def _leaves_of(child: Spec, call: Call, i: int) -> list[Any]:
    before = sum(map(_size, call.key.tree.children[0].children[:i]))
    return call.leaves[before : before + _size(child)]


def _size(spec: Spec) -> int:
    return 1 if spec.kind is None else sum(map(_size, spec.children))


def _as_tensor(x: Any) -> Tensor:
    with jax.enable_x64(True):
        return Tensor(jax.numpy.asarray(x))


def _sharded(shardings: Any, tree: Any) -> Any:
    """A tree of tensors laid out as a tree of shardings, or the beginning of one, says; ``None``: as XLA likes."""
    if shardings is None:
        return tree
    arrays = jax_view(tree)
    specs = jax.tree.broadcast(shardings, arrays, is_leaf=lambda x: x is None or isinstance(x, jax.sharding.Sharding))
    placed = jax.tree.map(
        lambda s, a: a if s is None else jax.device_put(a, s), specs, arrays, is_leaf=lambda x: x is None
    )
    return torch_view(placed)


def _stand_in(t: Tensor, box: Storage) -> Tensor:
    """What the trace sees in place of an argument: the argument, where it is a leaf; a graph of its own stays outside."""
    if box is not t._box:
        made = wrap(box.array, t.device, t.dtype)
        made._box = box
    elif t.is_leaf:
        return t
    else:
        with torch.no_grad():
            made = view_on(box, view_of(t), t.device)
    made.requires_grad_(t.requires_grad)
    return made


def _clear(placeholders: list[Tensor]) -> None:
    for p in placeholders:
        p.grad = None
    placeholders.clear()


def _kind(kind: Any) -> str:
    dtype, shape, *_ = kind if len(kind) == 4 else (kind[0][0].dtype, kind[0][0].shape)
    wants = kind[2] if len(kind) == 4 else kind[1]
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}{' with requires_grad' if wants else ''}"


def jax_jit(
    fn: Callable[..., Any], kwargs_for_jax_jit: dict[str, Any] | None = None, fix_for_buffer_donation: bool = False
) -> Jitted:
    """``fn`` compiled by ``jax.jit``, with all the state it reaches.

    What ``fn`` reads or writes and was not passed in (parameters, batch statistics, caches, optimizer state, ``.grad``,
    the generator) becomes input and output of one XLA program, and is put back after each call; so the function does what it
    does uncompiled. It is traced again for other structures, shapes, dtypes, Python values, modes, or attributes of the
    modules it reaches.

    Args:
        fn: a function of pytrees whose tensors are on the device. Arrays among them reach it as tensors.
        kwargs_for_jax_jit: ``static_argnums``, ``static_argnames``, ``donate_argnums`` and whatever else ``jax.jit`` takes.
        fix_for_buffer_donation: copy a donated argument's array where something else holds it too.

    Raises:
        TypeError: (at a call) an argument is a tensor elsewhere than on the device.
        ValueError: (at a call) a static argument cannot be hashed.
    """
    return Jitted.of(fn, kwargs_for_jax_jit, copy_shared=fix_for_buffer_donation)


def _sequence(x: Any) -> tuple[Any, ...]:
    return (x,) if isinstance(x, (int, str)) else tuple(x or ())


def _positions(fn: Callable[..., Any], names: Sequence[str]) -> list[int]:
    if not names:
        return []
    return [i for i, name in enumerate(inspect.signature(fn).parameters) if name in names]

"""Level 1: replay the aten calls that `op_db` samples make on CPU through the `torchax_ops` registry.

forward  each call through `jax.jit`, as torchax's plans run it: values, dtypes and shapes
eager    the same outside `jit`
grad     `jax.vjp` of the function against PyTorch's autograd of the same call
vmap     `jax.vmap` of the function against a loop

Backward operators are recorded too. ``run.py --level 1`` runs it; this file as a script lists what was called and is neither
registered nor the device's own, the most used first.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib
import pkgutil
import sys
import traceback
import warnings
from typing import Any

import _jax_settings  # noqa: F401  must come before jax
import jax
import numpy as np
import torch
from _compare import call as arguments
from _compare import close, short, wide, wide_dtype
from _convert import NotReplayable, to_jax, to_numpy_dtype, to_torch
from _exceptions import Known, find, load
from _samples import entries, samples
from _schema import DROPPED, find_overload, functional_name, is_out, is_traced, is_view, mutated, schema_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_iter, tree_map, tree_unflatten

# Copies, metadata and reads that belong to the device itself, not to a function on arrays.
CORE_NAMES = """
    detach alias _to_copy copy copy_ lift lift_fresh resize_ _local_scalar_dense empty.memory_format empty_strided
    empty_like new_empty new_empty_strided _efficientzerotensor _reshape_alias resize_as_ _resize_output_ set_
    set_.source_Tensor set_.source_Storage_storage_offset record_stream _assert_async _assert_async.msg is_same_size
    is_pinned _pin_memory allclose _linalg_check_errors
"""
CORE = frozenset("aten::" + name for name in CORE_NAMES.split())
_SHAPE_ONLY = ("aten::empty", "aten::new_empty", "aten::resize", "aten::_efficientzerotensor")


# ------------------------------------------------------------------------------------------------ recording


@dataclasses.dataclass
class Call:
    """One aten call: arguments as they were before it, results and written arguments as they were after it."""

    func: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Any]
    entry: str
    backward: bool


def _key(func: Any, args: Any, kwargs: Any) -> Any:
    def one(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return (tuple(x.shape), x.dtype)
        return (type(x), repr(x))

    leaves, spec = tree_flatten((args, kwargs))
    return (func, tuple(map(one, leaves)), str(spec))


def _copy(tree: Any) -> Any:
    return tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, tree)


class Recorder(TorchDispatchMode):
    """Records each distinct aten call, at most ``cap`` for one overload; counts all of them.

    ``skip`` are names of operators that are not kept: those that other entries are there for.
    """

    def __init__(self, cap: int = 25, keep: bool = True, skip: frozenset[str] = frozenset()):
        super().__init__()
        self.cap, self.keep, self.skip = cap, keep, skip
        self.calls: list[Call] = []
        self.uses: collections.Counter[str] = collections.Counter()
        self.overloads: dict[str, torch._ops.OpOverload] = {}
        self.entry, self.backward = "", False
        self._seen: set[Any] = set()
        self._kept: collections.Counter[Any] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "aten":
            return func(*args, **kwargs)
        name = schema_name(func)
        self.uses[name] += 1
        self.overloads[name] = func
        key = _key(func, args, kwargs) if self.keep else None
        base = functional_name(func).removeprefix("aten::").partition(".")[0]
        if key is None or key in self._seen or self._kept[func] >= self.cap or base in self.skip:
            return func(*args, **kwargs)
        self._seen.add(key)
        self._kept[func] += 1
        if (
            name == "aten::as_strided"
            and args[0].untyped_storage().nbytes() != args[0].numel() * args[0].element_size()
        ):
            return func(*args, **kwargs)  # it reads what the array of its argument does not hold
        try:
            before = _copy((args, kwargs))
        except RuntimeError:
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        self.calls.append(Call(func, *before, _copy(_written(func, args, kwargs, out)), self.entry, self.backward))
        return out


def _written(func: Any, args: Any, kwargs: Any, out: Any) -> list[Any]:
    """What the functional twin of a call returns: its results, or its results and what it wrote."""
    found = list(out) if isinstance(out, (tuple, list)) and len(func._schema.returns) != 1 else [out]
    found = [] if not func._schema.returns else found
    twin = functional_name(func)
    if twin != schema_name(func) and len(_returns(twin)) != len(found):
        by_name = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
        found += [by_name[a.name] for a in mutated(func) if a.name in by_name]
    return found


def results(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """A call's results on CPU, as `_written` lists them, flat."""
    return _flat(_written(func, args, kwargs, func(*args, **kwargs)))


def _returns(name: str) -> list[Any]:
    overload = find_overload(name)
    return overload._schema.returns if overload is not None else []


def record(op: Any, dtype: torch.dtype, recorder: Recorder, count: int) -> None:
    """Run an entry's samples, and their backward, on CPU under the recorder."""
    grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    recorder.entry = op.formatted_name
    for sample in samples(op, dtype, count, grad):
        try:
            recorder.backward = False
            with recorder:
                out = op(sample.input, *sample.args, **sample.kwargs)
            outs = [o for o in tree_iter(out) if isinstance(o, torch.Tensor) and o.requires_grad]
            if outs and not any(o.layout != torch.strided for o in outs):
                inputs = (sample.input, sample.args, sample.kwargs)
                leaves = [t for t in tree_iter(inputs) if isinstance(t, torch.Tensor) and t.requires_grad]
                recorder.backward = True
                with recorder:
                    torch.autograd.grad(outs, leaves, [torch.ones_like(o) for o in outs], allow_unused=True)
        except Exception as error:  # a sample that CPU itself cannot run says nothing about us
            print(f"# {op.formatted_name} {dtype}: CPU: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)


# ------------------------------------------------------------------------------------------------ replaying


def load_registry() -> Any:
    """Import every module of `torchax_ops`; one that fails to import is named and left out."""
    import torchax_ops

    for module in pkgutil.walk_packages(torchax_ops.__path__, "torchax_ops."):
        try:
            importlib.import_module(module.name)
        except Exception:  # the operators of the other modules are still worth checking
            print(f"# cannot import {module.name}: {traceback.format_exc(limit=-1)}", file=sys.stderr)
    return torchax_ops


@dataclasses.dataclass(eq=False)
class Bound:
    """A call ready for `torchax_ops`: traced leaves apart from the static rest."""

    op: Any
    traced: list[Any]
    rebuild: Any

    def __call__(self, traced: list[Any]) -> Any:
        args, kwargs = self.rebuild(traced)
        return self.op.fn(*args, **kwargs)


_FITS = range(-(2**63), 2**63)


def bind(op: Any, call: Call) -> Bound:
    """Split a recorded call as the plans of torchax do: arrays and numbers traced, everything else static."""
    arguments = call.func._schema.arguments
    given = list(zip(arguments, call.args)) + [(a, call.kwargs[a.name]) for a in arguments if a.name in call.kwargs]
    given = [(a, v) for a, v in given if a.name not in DROPPED and not is_out(a)]
    twin = find_overload(op.name)
    needed = {a.name for a in twin._schema.arguments if not a.has_default_value()} - {a.name for a, _ in given}
    given += [(a, a.default_value) for a in arguments if a.name in needed and a.has_default_value()]  # bernoulli_'s p
    traced: list[Any] = []

    def convert(kind: str, name: str, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            traced.append(to_jax(x))
            return _Slot(len(traced) - 1)
        if isinstance(x, torch.dtype):
            return to_numpy_dtype(x)
        if isinstance(x, (list, tuple)):
            return [convert(kind, name, v) for v in x]
        number = isinstance(x, (bool, int, float, complex))
        if number and name not in op.static and (is_traced(kind) or name in op.traced):
            if isinstance(x, int) and x not in _FITS:
                return x
            traced.append(x)
            return _Slot(len(traced) - 1)
        return x

    converted = [(a, convert(str(a.type), a.name, v)) for a, v in given]

    def rebuild(values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        fill = lambda x: [fill(v) for v in x] if isinstance(x, list) else values[x.i] if isinstance(x, _Slot) else x  # noqa: E731
        args = [fill(v) for a, v in converted if not a.kwarg_only]
        kwargs = {a.name: fill(v) for a, v in converted if a.kwarg_only}
        if op.key:
            kwargs[op.key] = jax.random.key(0)
        return args, kwargs

    return Bound(op, traced, rebuild)


@dataclasses.dataclass(frozen=True)
class _Slot:
    i: int


def _flat(results: Any) -> list[Any]:
    return [r for r in tree_iter(results) if r is not None]


def compare(actual: Any, expected: list[Any], call: Call, bound: Any = None) -> None:
    """Raise an AssertionError where a result's dtype, shape or values are not PyTorch's."""
    name = functional_name(call.func)
    derived = name != schema_name(call.func)  # core converts to the dtype of what is written
    random = torch.Tag.nondeterministic_seeded in call.func.tags
    got, want = _flat(actual), _flat(expected)
    assert len(got) == len(want), f"{len(got)} results, not {len(want)}"
    truths: list[Any] = [None] * len(got)
    if bound == "float64":
        truths = results(call.func, *wide((call.args, call.kwargs)))
    source = next((x for x in call.args if isinstance(x, torch.Tensor)), None)
    for i, (g, w, truth) in enumerate(zip(got, want, truths)):
        where = f"result {i}: " if len(want) > 1 else ""
        if not isinstance(w, torch.Tensor):
            assert np.asarray(g).item() == w or (w != w and g != g), f"{where}{g}, not {w}"
            continue
        if w.layout != torch.strided or w.is_quantized:
            raise NotReplayable(str(w.layout))
        assert isinstance(g, (jax.Array, np.ndarray, np.generic)), f"{where}a {type(g).__name__}, not an array"
        dtype = to_numpy_dtype(w.dtype)
        if derived:
            g = g.astype(dtype)
        assert g.dtype == dtype, f"{where}dtype {g.dtype}, not {dtype}"
        assert tuple(g.shape) == tuple(w.shape), f"{where}shape {tuple(g.shape)}, not {tuple(w.shape)}"
        weak = isinstance(g, jax.Array) and getattr(g.aval, "weak_type", False)
        assert not weak, f"{where}weakly typed: a Python number's dtype leaks"
        if random or name.startswith(_SHAPE_ONLY):
            continue
        close(to_torch(g), w, bound, where, truth, source)


def check_forward(op: Any, call: Call, jit: bool, limit: Any = None) -> None:
    """Values, dtype and shape of one call; ``eager`` operators never run under `jit`."""
    bound = bind(op, call)
    if op.check is not None:
        args, kwargs = bound.rebuild(bound.traced)
        kwargs.pop(op.key, None)
        op.check(*args, **kwargs)
    run = jax.jit(bound) if jit and not op.eager else bound
    compare(run(bound.traced), call.results, call, limit)


def _differentiable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _autograd(func: Any, args: Any, kwargs: Any, seeds: Any = None) -> tuple[list[Any], list[int], list[Any]]:
    """Gradients of a call's differentiable inputs, which results they are of, and the cotangents."""
    leaves, spec = tree_flatten((args, kwargs))
    leaves = [x.detach().clone().requires_grad_() if _differentiable(x) else x for x in leaves]
    args, kwargs = tree_unflatten(leaves, spec)
    outs = [o for o in _flat(func(*args, **kwargs)) if isinstance(o, torch.Tensor)]
    picked = [i for i, o in enumerate(outs) if o.requires_grad]
    inputs = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    if not picked or not inputs:
        return [], [], []
    if seeds is None:
        torch.manual_seed(0)
        seeds = [torch.randn(outs[i].shape, dtype=wide_dtype(outs[i].dtype)).to(outs[i].dtype) for i in picked]
    cotangents = [s.to(outs[i].dtype) for s, i in zip(seeds, picked)]
    found = torch.autograd.grad([outs[i] for i in picked], inputs, cotangents, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs)], picked, seeds


def check_grad(op: Any, call: Call, limit: Any = None) -> bool:
    """`jax.vjp` against autograd of the same call; False where there is nothing to differentiate."""
    if op.eager or call.backward or mutated(call.func) or torch.Tag.nondeterministic_seeded in call.func.tags:
        return False
    try:
        want, picked, seeds = _autograd(call.func, call.args, call.kwargs)
        truths = _autograd(call.func, *wide((call.args, call.kwargs)), seeds)[0] if limit == "float64" else want
    except (RuntimeError, NotImplementedError):
        return False  # PyTorch has no derivative for this call
    if not want:
        return False
    bound = bind(op, call)
    where = [
        i
        for i, x in enumerate(bound.traced)
        if isinstance(x, jax.Array) and jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)
    ]

    def forward(*values: Any) -> list[Any]:
        traced = list(bound.traced)
        for i, v in zip(where, values):
            traced[i] = v
        out = _flat(bound(traced))
        return [out[i] for i in picked]

    def backward(values: list[Any], cotangents: list[Any]) -> Any:
        return jax.vjp(forward, *values)[1](cotangents)

    values, cotangents = [bound.traced[i] for i in where], [jax.numpy.conj(to_jax(s)) for s in seeds]
    got = jax.jit(backward)(values, cotangents)
    for i, (g, w, truth) in enumerate(zip(got, want, truths)):
        close(to_torch(jax.numpy.conj(g)), w, limit, f"gradient {i}: ", truth)
    return True


def _stacked(tree: Any, other: Any) -> list[Any]:
    return [jax.numpy.stack(pair) for pair in zip(_flat(tree), _flat(other))]


def check_vmap(op: Any, call: Call, limit: Any = None) -> bool:
    """`jax.vmap` over a call and the same call on flipped arrays, against both in turn; False where that is not possible."""
    if op.eager or torch.Tag.nondeterministic_seeded in call.func.tags:
        return False
    bound = bind(op, call)
    where = [i for i, x in enumerate(bound.traced) if isinstance(x, jax.Array)]
    if not where:
        return False

    @jax.jit
    def run(arrays: list[Any]) -> list[Any]:
        traced = list(bound.traced)
        for i, x in zip(where, arrays):
            traced[i] = x
        return _flat(bound(traced))

    one = [bound.traced[i] for i in where]
    other = [jax.numpy.flip(x) for x in one]
    want = _stacked(run(one), run(other))
    got = jax.jit(jax.vmap(run))(_stacked(one, other))
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        close(to_torch(g), to_torch(w), limit, f"result {i}: ", to_torch(w).to(wide_dtype(to_torch(w).dtype)))
    return True


CHECKS = ("forward", "eager", "grad", "vmap")


def check_call(op: Any, call: Call, check: str, limit: Any) -> bool:
    """One check of one call; False where there is nothing to compare.

    Raises:
        NotReplayable: no array holds an argument or a result.
        Exception: it fails.
    """
    with jax.enable_x64(True):
        if check == "grad":
            return check_grad(op, call, limit)
        if check == "vmap":
            return check_vmap(op, call, limit)
        check_forward(op, call, check == "forward", limit)
        return True


# ------------------------------------------------------------------------------------------------- the report


def describe(call: Call) -> str:
    return f"{schema_name(call.func)}{arguments(call.args, call.kwargs)} from {call.entry}"


def exception_of(known: list[Known], call: Call, dtype: str, check: str) -> Known | None:
    """The exception for this aten operator, else the one for the `op_db` entry that called it."""
    place = find(known, functional_name(call.func), dtype, check), find(known, call.entry, dtype, check)
    found = [k for k in place if k is not None]
    return min(found, key=lambda k: k.operator == "*", default=None)


@dataclasses.dataclass
class Tally:
    """How the calls of one operator fared in one check."""

    passed: int = 0
    excepted: int = 0
    faults: list[str] = dataclasses.field(default_factory=list)
    reason: str = ""


def replay(recorder: Recorder, check: str, dtype: str) -> dict[str, Tally]:
    """Run one check of all that was recorded, by the names of the functional operators."""
    from torchax_ops import lookup

    known = load()
    table: dict[str, Tally] = {}
    for call in recorder.calls:
        name = functional_name(call.func)
        op = lookup(name)
        if op is None or (name == "aten::as_strided" and not call.args[0].is_contiguous()):
            continue
        tally = table.setdefault(name, Tally())
        exception = exception_of(known, call, dtype, check)
        try:
            try:
                tally.passed += check_call(op, call, check, None)
                continue
            except AssertionError:
                if exception is None:
                    raise
            tally.passed += exception.bound == "differs" or check_call(op, call, check, exception.bound)
            tally.excepted += 1
            tally.reason = exception.reason
        except NotReplayable:
            continue
        except Exception as error:  # any error is this call's failure
            tally.faults.append(f"{describe(call)}: {short(error)}")
    return table


def missing(recorder: Recorder) -> list[str]:
    """Recorded operators that neither the registry nor the device has, the most used first."""
    from torchax_ops import lookup

    count: collections.Counter[str] = collections.Counter()
    views = set()
    for name, uses in recorder.uses.items():
        twin = functional_name(recorder.overloads[name])
        if lookup(twin) is None and twin not in CORE and name not in CORE:
            count[twin] += uses
            if is_view(recorder.overloads[name]):
                views.add(twin)
    return [f"{uses:7d}  {name}{'  [view]' if name in views else ''}" for name, uses in count.most_common()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="", help="op_db names, globs allowed (default: all)")
    parser.add_argument("--dtypes", default="float32,int64")
    parser.add_argument("--max-samples", type=int, default=10)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    load_registry()
    recorder = Recorder(keep=False)
    for op in entries([t for t in options.ops.split(",") if t]):
        for dtype in (getattr(torch, name) for name in options.dtypes.split(",")):
            if dtype in op.supported_dtypes("cpu"):
                record(op, dtype, recorder, options.max_samples)
    print("\n".join(missing(recorder)) or "none is missing")
    return 0


if __name__ == "__main__":
    sys.exit(main())

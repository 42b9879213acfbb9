"""Level 2: `op_db` entries on the device "jax" against the same calls on CPU.

    python conformance/device.py --ops add,softmax --dtypes float32,int64 --checks forward,grad --max-samples 5 -v

forward  values, dtype, shape and device of the results; where CPU raises, the device raises too
grad     gradients of all floating inputs
inplace  the in-place variant: the value, and that it is the same tensor; also through a view of a larger tensor
out      ``out=`` that is fresh, noncontiguous, and of the wrong size
views    a result that shares its input's memory on CPU shares it on the device: written through, both ways
errors   `op_db`'s error inputs raise the same type
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import _jax_settings  # noqa: F401  must come before jax
import torch
from _compare import call, close, short, wide
from _exceptions import Known, find, load
from _samples import entries, samples
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

DEVICE = "jax"
HOST_INDICES = ("tensor_split",)  # PyTorch wants the indices of these on CPU, whatever the device
UNDEFINED = ("empty", "new_empty", "resize_", "resize_as_", "empty_like", "empty_strided", "empty_permuted")


class Skip(Exception):
    """The check does not apply to this sample."""


class _Random(TorchDispatchMode):
    """Notes whether a call draws random numbers."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


@dataclass
class Sample:
    """One set of inputs, and how to compare what comes of it."""

    op: Any
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    process: Callable[[Any], Any] = lambda out: out  # `op_db`'s choice of what of a result has a unique gradient
    broadcasts: bool = False  # whether the result is larger than the input
    known: Known | None = None
    random: bool = False

    @property
    def leaves(self) -> list[torch.Tensor]:
        """All tensors among the inputs, in order."""
        return [t for t in tree_iter((self.input, self.args, self.kwargs)) if isinstance(t, torch.Tensor)]

    def on(self, device: str, requires_grad: bool = False) -> Sample:
        """A copy with fresh tensors on a device. Strides stay where a copy can have them."""

        def move(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                if x.layout != torch.strided or x.is_quantized or x.dtype == torch.complex32:
                    raise Skip(f"{x.layout} {x.dtype}")
                if x.is_meta or x.dim() > 64:  # no data; more dimensions than numpy and JAX have
                    raise Skip("no array can hold it")
                host = device == "cpu" or (x is not self.input and self.op.name in HOST_INDICES)
                copy = x.detach().clone() if host else x.detach().to(device)
                return copy.requires_grad_(requires_grad and x.requires_grad)
            return device if isinstance(x, torch.device) or x == "cpu" else x

        moved = tree_map(move, (self.input, self.args, self.kwargs))
        return Sample(self.op, *moved, self.process, self.broadcasts, self.known, self.random)

    def exact(self) -> Sample | None:
        """A CPU copy in float64, where an exception asks for that truth."""
        if self.known is None or self.known.bound != "float64":
            return None
        return Sample(self.op, *wide((self.input, self.args, self.kwargs)), self.process)

    def run(self, fn: Callable[..., Any] | None = None, **more: Any) -> Any:
        return (fn or self.op)(self.input, *self.args, **self.kwargs, **more)


# ------------------------------------------------------------------------------------------------- comparing


def tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in tree_iter(tree) if isinstance(t, torch.Tensor)]


def same(got: Any, want: Any, sample: Sample, what: str = "", truth: Any = None) -> None:
    """Raise an AssertionError where device results are not CPU's."""
    ours, theirs, truths = list(tree_iter(got)), list(tree_iter(want)), list(tree_iter(truth))
    assert len(ours) == len(theirs), f"{what}{len(ours)} results, not {len(theirs)}"
    if truth is None:
        truths = [None] * len(ours)
    for i, (g, w, t) in enumerate(zip(ours, theirs, truths, strict=True)):
        where = f"{what}result {i}: " if len(ours) > 1 else what
        if not isinstance(w, torch.Tensor):
            assert type(g) is type(w), f"{where}a {type(g).__name__}, not a {type(w).__name__}"
            equal = sample.random or g == w or (g != g and w != w)
            assert equal or isinstance(w, (torch.device, torch.Generator)), f"{where}{g}, not {w}"
            continue
        if w.layout != torch.strided or w.is_quantized:
            raise Skip(f"{w.layout} result")
        assert isinstance(g, torch.Tensor), f"{where}a {type(g).__name__}, not a Tensor"
        assert g.device.type == DEVICE, f"{where}on {g.device}"
        assert g.dtype == w.dtype, f"{where}dtype {g.dtype}, not {w.dtype}"
        assert g.shape == w.shape, f"{where}shape {tuple(g.shape)}, not {tuple(w.shape)}"
        values(g, w, sample, where, t)


def values(got: torch.Tensor, want: torch.Tensor, sample: Sample, where: str, truth: Any = None) -> None:
    if not sample.random and not sample.op.name.startswith(UNDEFINED):
        source = sample.input if isinstance(sample.input, torch.Tensor) else None
        close(got, want, sample.known and sample.known.bound, where, truth, source)


def attempt(fn: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return fn(), None
    except Skip:
        raise
    except Exception as error:  # the reference decides what an exception means
        return None, error


def reference(sample: Sample, fn: Callable[..., Any] | None = None) -> Any:
    """What CPU answers; notes in ``sample`` whether that was random."""
    with _Random() as mode:
        out, error = attempt(lambda: sample.run(fn))
    sample.random = mode.seen
    if isinstance(error, NotImplementedError) or "not implemented for" in str(error):
        raise Skip("not on CPU")
    return out, error


def truth_of(sample: Sample, fn: Callable[..., Any] | None = None) -> Any:
    exact = sample.exact()
    return exact and exact.run(fn)


# --------------------------------------------------------------------------------------------------- checks


def check_forward(sample: Sample) -> None:
    cpu = sample.on("cpu")
    want, error = reference(cpu)
    ours = sample.on(DEVICE)
    if error is not None:
        _raises(lambda: ours.run(), error)
        return
    ours.random = cpu.random
    exact = sample.exact()
    same(ours.run(), want, ours, truth=exact and exact.run())
    for i, (moved, given) in enumerate(zip(ours.leaves, cpu.leaves)):  # what the call may have written
        values(moved, given, ours, f"input {i} after it: ", exact and exact.leaves[i])


def check_grad(sample: Sample) -> None:
    cpu, ours = sample.on("cpu", True), sample.on(DEVICE, True)
    want, error = reference(cpu)
    if error is not None or cpu.random:
        raise Skip("nothing to compare")
    outs = [o for o in tensors(sample.process(want)) if o.requires_grad]
    inputs = [x for x in cpu.leaves if x.requires_grad]
    if not outs or not inputs or any(o.layout != torch.strided for o in outs):
        raise Skip("not differentiable")
    torch.manual_seed(0)
    wide = {True: torch.complex128, False: torch.float64}
    seeds = [torch.randn(o.shape, dtype=wide[o.is_complex()]).to(o.dtype) for o in outs]
    grads, error = attempt(lambda: torch.autograd.grad(outs, inputs, seeds, allow_unused=True))
    if error is not None:
        raise Skip("CPU has no derivative")
    got = [o for o in tensors(sample.process(ours.run())) if o.requires_grad]
    assert len(got) == len(outs), f"{len(got)} results require a gradient, not {len(outs)}"
    leaves = [x for x in ours.leaves if x.requires_grad]
    found = torch.autograd.grad(got, leaves, [s.to(DEVICE) for s in seeds], allow_unused=True)
    truths = [None] * len(grads)
    exact = sample.exact()
    if exact is not None:
        truth = [o for o in tensors(sample.process(exact.run())) if o.requires_grad]
        inputs = [x for x in exact.leaves if x.requires_grad]
        truths = torch.autograd.grad(truth, inputs, [s.to(o.dtype) for s, o in zip(seeds, truth)], allow_unused=True)
    for i, (g, w, t) in enumerate(zip(found, grads, truths)):
        where = f"gradient {i}: "
        assert (g is None) == (w is None), f"{where}{'none' if g is None else 'one'}, unlike CPU"
        if w is not None and w.layout == torch.strided:
            same(g, w, ours, where, t)


def check_inplace(sample: Sample) -> None:
    variant = sample.op.get_inplace()
    if variant is None or not isinstance(sample.input, torch.Tensor):
        raise Skip("no in-place variant")
    cpu, ours = sample.on("cpu"), sample.on(DEVICE)
    want, error = reference(cpu, variant)
    if error is not None:
        _raises(lambda: ours.run(variant), error)
        return
    if sample.broadcasts:
        raise Skip("CPU accepts by accident what PyTorch's own tests leave out")
    ours.random = cpu.random
    got = ours.run(variant)
    assert got is ours.input, "returns another tensor than its input"
    same(got, want, ours, truth=truth_of(sample, variant))
    base, other = (torch.stack([x, x]) for x in (sample.on("cpu").input, sample.on(DEVICE).input))
    cpu, ours = sample.on("cpu"), sample.on(DEVICE)
    ours.random = sample.random
    cpu.input, ours.input = base[1], other[1]
    want, error = reference(cpu, variant)
    if error is None:
        ours.random = cpu.random
        ours.run(variant)
        exact = sample.exact()
        truth = exact and torch.stack([exact.input.clone(), exact.run(variant)])
        same(other, base, ours, "the base of a view: ", truth)


def check_out(sample: Sample) -> None:
    if not sample.op.supports_out:
        raise Skip("no out=")
    cpu = sample.on("cpu")
    want, error = reference(cpu)
    if error is not None or not tensors(want) or len(tensors(want)) != len(list(tree_iter(want))):
        raise Skip("nothing to write")
    random = cpu.random
    made: dict[str, Callable[[torch.Tensor, str], torch.Tensor]] = {
        "fresh": lambda t, device: torch.zeros(t.shape, dtype=t.dtype, device=device),
        "noncontiguous": lambda t, device: torch.zeros((*t.shape, 2), dtype=t.dtype, device=device)[..., 1],
        "resized": lambda t, device: torch.zeros(0, dtype=t.dtype, device=device),
    }
    for name, make in made.items():
        outs = []
        for device in ("cpu", DEVICE):
            tree = tree_map(lambda t, make=make, device=device: make(t, device), want)
            outs.append(tuple(tree) if isinstance(tree, tuple) else tree)
        cpu, ours = sample.on("cpu"), sample.on(DEVICE)
        answer, error = attempt(lambda cpu=cpu, outs=outs: cpu.run(out=outs[0]))
        if error is not None:  # a kernel that takes no such `out=`, like normal's
            continue
        got = ours.run(out=outs[1])
        if answer is not None:
            pairs = zip(tensors(got), tensors(outs[1]), strict=True)
            assert all(g is o for g, o in pairs), f"{name} out: returns another tensor"
        ours.random = random
        # CPU's gelu, narrow_copy and avg_pool3d write a noncontiguous `out=` wrongly: the plain call is right.
        expected = [_as_written(o, w) for o, w in zip(tree_iter(outs[0]), tree_iter(want), strict=True)]
        same(outs[1], expected, ours, f"{name} out: ", truth_of(sample))


def _as_written(out: Any, want: Any) -> Any:
    return want.to(out.dtype) if isinstance(out, torch.Tensor) and out.shape == want.shape else out


def _overlaps(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether two elements of a view are one element of memory, so that an in-place result depends on the order."""
    places = torch.arange(base.untyped_storage().nbytes() // view.element_size())
    return places.as_strided(view.shape, view.stride(), view.storage_offset()).unique().numel() < view.numel()


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout != torch.strided or b.layout != torch.strided or not a.numel() or not b.numel():
        return False
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def check_views(sample: Sample) -> None:
    if not isinstance(sample.input, torch.Tensor):
        raise Skip("no single input")
    cpu, ours = sample.on("cpu"), sample.on(DEVICE)
    want, error = reference(cpu)
    if error is not None or not tensors(want) or not any(_shares(o, cpu.input) for o in tensors(want)):
        raise Skip("no view")
    got = ours.run()
    for g, w in zip(tensors(got), tensors(want), strict=True):
        if not _shares(w, cpu.input) or w is cpu.input or _overlaps(w, cpu.input):
            continue
        for direction, (x, y) in {"view": (g, w), "base": (ours.input, cpu.input)}.items():
            y.mul_(3) if y.dtype != torch.bool else y.logical_not_()
            x.mul_(3) if x.dtype != torch.bool else x.logical_not_()
            same(ours.input, cpu.input, ours, f"base after its {direction} is written: ")
            same(got, want, ours, f"view after its {direction} is written: ")


def _raises(fn: Callable[[], Any], expected: Exception) -> None:
    """The device raises what CPU raised: the same type, or one that is both."""
    _, error = attempt(fn)
    kind = type(expected).__name__
    assert error is not None, f"no error where CPU raises {kind}: {str(expected)[:100]}"
    got = f"{type(error).__name__} ({str(error)[:120]})"
    assert isinstance(error, type(expected)), f"{got}, not {kind}: {str(expected)[:100]}"


SAMPLED: dict[str, Callable[[Sample], None]] = {
    "forward": check_forward,
    "grad": check_grad,
    "inplace": check_inplace,
    "out": check_out,
    "views": check_views,
}


def error_samples(op: Any) -> list[Sample]:
    """`op_db`'s error inputs for CPU. They have no dtype of their own."""
    if op.error_inputs_func is None:
        return []
    found, _ = attempt(lambda: list(op.error_inputs(torch.device("cpu"))))
    return [Sample(op, e.sample_input.input, e.sample_input.args, e.sample_input.kwargs) for e in found or []]


def check_errors(sample: Sample) -> None:
    _, error = reference(sample.on("cpu"))
    if error is None:
        raise Skip("CPU accepts it")
    ours = sample.on(DEVICE)
    _raises(lambda: ours.run(), error)


# --------------------------------------------------------------------------------------------------- running


@dataclass
class Result:
    """One entry, dtype and check."""

    op: str
    dtype: str
    check: str
    passed: int = 0
    failed: int = 0
    error: str = ""
    known: Known | None = None
    faults: list[str] = field(default_factory=list)


def run(op: Any, dtype: torch.dtype, check: str, count: int, known: list[Known], stop: bool = False) -> Result:
    """One check of one entry in one dtype, on at most ``count`` samples, to the first failure if ``stop``."""
    name = str(dtype).removeprefix("torch.")
    result = Result(op.formatted_name, name, check, known=find(known, op.formatted_name, name, check))
    grad = check == "grad"
    if grad and not (op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)):
        return result
    if check == "errors":
        found, body = error_samples(op), check_errors
    else:
        found = samples(op, dtype, "cpu", count, grad)
        found = [Sample(op, s.input, s.args, s.kwargs, s.output_process_fn_grad, s.broadcasts_input) for s in found]
        body = SAMPLED[check]
    for sample in found:
        sample.known = result.known
        if sample.known is not None and sample.known.bound == "differs":
            continue
        try:
            body(sample)
            result.passed += 1
        except Skip:
            continue
        except Exception as error:  # any error is this sample's fault
            result.failed += 1
            result.faults.append(f"{call((sample.input, *sample.args), sample.kwargs)}: {short(error)}")
            result.error = result.error or result.faults[0]
            if stop:
                break
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="", help="op_db names, globs allowed (default: all)")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--checks", default="forward,grad", help=", ".join([*SAMPLED, "errors"]))
    parser.add_argument("--max-samples", type=int, default=5)
    parser.add_argument("--part", default="", help="i/n: the i-th of n parts of the entries")
    parser.add_argument("--log", default="", help="append failures to this file, a JSON object a line")
    parser.add_argument("-v", action="store_true", help="every failure, and a line for what passes")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import torchax  # noqa: F401  registers the device

    known = load()
    split = lambda text: [t for t in text.split(",") if t]  # noqa: E731
    ops = list(entries(split(options.ops), options.part))
    passed, failed, kinds = 0, 0, collections.Counter()
    for op in ops:
        dtypes = [getattr(torch, t) for t in split(options.dtypes)]
        for dtype in (d for d in dtypes if d in op.supported_dtypes("cpu")):
            for check in split(options.checks):
                if check == "errors" and dtype is not dtypes[0]:  # error inputs have dtypes of their own
                    continue
                result = run(op, dtype, check, options.max_samples, known)
                passed, failed = passed + result.passed, failed + result.failed
                if result.failed:
                    print(f"FAIL {result.op} {result.dtype} {check} {result.failed}/{result.failed + result.passed}")
                    print("\n".join(f"     {f}" for f in (result.faults if options.v else [result.error])), flush=True)
                    kinds[re.sub(r"\d[\d.e+-]*", "#", result.error.partition("): ")[2])[:120]] += 1
                    if options.log:
                        row = {k: v for k, v in vars(result).items() if k != "known"}
                        with open(options.log, "a") as log:
                            log.write(json.dumps(row) + "\n")
                elif options.v and result.passed:
                    print(f"ok   {result.op} {result.dtype} {check} {result.passed}", flush=True)
    print(f"{passed} passed, {failed} failed")
    for kind, n in kinds.most_common(20):
        print(f"{n:5d}  {kind}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

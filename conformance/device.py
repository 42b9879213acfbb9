"""Level 2: `op_db` entries on the device "jax" against the same calls on CPU. ``run.py --level 2`` runs it.

forward  values, dtype, shape and device of the results; where CPU raises, the device raises too
edges    the same for inputs that are noncontiguous, have no dimension, or no element
grad     gradients of all floating inputs
inplace  the in-place variant: the value, and that it is the same tensor; also through a view of a larger tensor
out      ``out=`` that is fresh, noncontiguous, and of the wrong size
views    a result that shares its input's memory on CPU shares it on the device: written through, both ways
random   what draws random numbers repeats after `torch.manual_seed`, and differs from call to call
errors   `op_db`'s error inputs raise the same type

`transforms.py` has the checks under `jit`, `vmap`, forward-mode and second-order differentiation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import _jax_settings  # noqa: F401  must come before jax
import torch
import transforms
from _compare import call, short
from _exceptions import TIGHT, Known
from _sample import DEVICE, Sample, Skip, attempt, raises, reference, same, tensors, truth_of, values
from _samples import edges, samples
from torch.utils._pytree import tree_iter, tree_map


def check_forward(sample: Sample) -> None:
    cpu = sample.on("cpu")
    want, error = reference(cpu)
    if sample.spread and "contiguous" in str(error):
        raise Skip("a kernel of CPU that takes contiguous tensors only")
    ours = sample.on(DEVICE)
    if error is not None:
        raises(lambda: ours.run(), error)
        return
    ours.random = cpu.random
    exact = sample.exact()
    same(ours.run(), want, ours, truth=exact and exact.run())
    for i, (moved, given) in enumerate(zip(ours.leaves, cpu.leaves)):  # what the call may have written
        values(moved, given, ours, f"input {i} after it: ", exact and exact.leaves[i])


def check_inplace(sample: Sample) -> None:
    variant = sample.op.get_inplace()
    if variant is None or not isinstance(sample.input, torch.Tensor):
        raise Skip("no in-place variant")
    cpu, ours = sample.on("cpu"), sample.on(DEVICE)
    want, error = reference(cpu, variant)
    if error is not None:
        raises(lambda: ours.run(variant), error)
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


def check_random(sample: Sample) -> None:
    cpu, ours = sample.on("cpu"), sample.on(DEVICE)
    _, error = reference(cpu)
    if error is not None or not cpu.random:
        raise Skip("not random")

    def draw(one: Sample) -> tuple[Any, Any, Any]:
        torch.manual_seed(3)
        first, second = one.on(one.place).run(), one.on(one.place).run()
        torch.manual_seed(3)
        return first, second, one.on(one.place).run()

    first, second, again = map(tensors, draw(ours))
    assert _equal(first, again), "differs after the same torch.manual_seed"
    if not _equal(*map(tensors, draw(cpu)[:2])):
        assert not _equal(first, second), "two calls draw the same numbers"


def _equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    pairs = ((x.cpu(), y.cpu()) for x, y in zip(a, b, strict=True))
    return all(((x == y) | ((x != x) & (y != y))).all() for x, y in pairs)


SAMPLED: dict[str, Callable[[Sample], None]] = {
    "forward": check_forward,
    "edges": check_forward,
    "grad": transforms.check_grad,
    "jvp": transforms.check_jvp,
    "gradgrad": transforms.check_gradgrad,
    "inplace": check_inplace,
    "out": check_out,
    "views": check_views,
    "jit": transforms.check_jit,
    "vmap": transforms.check_vmap,
    "random": check_random,
}
DERIVATIVES = {"grad": "supports_autograd", "jvp": "supports_forward_ad", "gradgrad": "supports_gradgrad"}


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
    raises(lambda: ours.run(), error)


BODIES = SAMPLED | {"errors": check_errors}


# --------------------------------------------------------------------------------------------------- running


@dataclass
class Result:
    """How many samples passed, how many of these only by a known exception, and what failed."""

    passed: int = 0
    excepted: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def failed(self) -> int:
        return len(self.faults)

    @property
    def error(self) -> str:
        return self.faults[0] if self.faults else ""


def applies(op: Any, dtype: torch.dtype, check: str) -> bool:
    """Whether an entry has a check in a dtype at all; its samples may still leave nothing to compare."""
    if check in DERIVATIVES:
        return getattr(op, DERIVATIVES[check]) and (dtype.is_floating_point or dtype.is_complex)
    if check == "inplace":
        return op.get_inplace() is not None
    return op.supports_out if check == "out" else check != "errors" or op.error_inputs_func is not None


def inputs(op: Any, dtype: torch.dtype, check: str, count: int) -> list[Sample]:
    """The samples of a check."""
    if check == "errors":
        return error_samples(op)

    def made(found: list[Any], **more: Any) -> list[Sample]:
        return [
            Sample(op, s.input, s.args, s.kwargs, s.output_process_fn_grad, s.broadcasts_input, **more) for s in found
        ]

    found = made(samples(op, dtype, count, check in DERIVATIVES))
    if check == "edges":
        return made(edges(op, dtype, (count + 1) // 2)) + [replace(s, spread=True) for s in found[: (count + 1) // 2]]
    if check == "vmap":
        for one, other in zip(found, made(samples(op, dtype, count, seed=1)), strict=False):
            one.twin = other if _shapes(one) == _shapes(other) else None
    return found


def _shapes(sample: Sample) -> str:
    return call((sample.input, *sample.args), sample.kwargs)


def check_one(body: Callable[[Sample], None], sample: Sample, known: Known | None) -> bool:
    """Whether a sample passes only by the exception.

    Raises:
        Skip: there is nothing to compare.
        Exception: it fails.
    """
    try:
        body(sample)
        return False
    except Skip:
        raise
    except Exception:
        if known is None:
            raise
    if known.bound != "differs":
        body(replace(sample, known=known))
    return True


def tally(cases: Iterable[tuple[Sample, Callable[[Sample], None]]], known: Known | None) -> Result:
    """How samples fare, each with what checks it."""
    result = Result()
    for sample, body in cases:
        try:
            result.excepted += check_one(body, sample, known)
            result.passed += 1
        except Skip:
            continue
        except Exception as error:  # any error is this sample's fault
            result.faults.append(f"{call((sample.input, *sample.args), sample.kwargs)}: {short(error)}")
    return result


def fails(sample: Sample, body: Callable[[Sample], None]) -> bool:
    """Whether a sample fails, at a quarter of the default tolerance."""
    try:
        body(replace(sample, known=TIGHT))
    except Skip:
        return False
    except Exception:  # any error is a failure
        return True
    return False

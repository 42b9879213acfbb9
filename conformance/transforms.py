"""The checks of `device.py` in which something is done to the call: it is differentiated, compiled or vectorized.

grad      gradients of all floating inputs
jvp       forward-mode derivatives along one direction
gradgrad  gradients of the gradients, for the inputs and the cotangents
jit       under `jax.jit`
vmap      under `torch.func.vmap`, over two samples of the same shapes: the same as a loop
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import torch
import torch.autograd.forward_ad as forward_ad
from _compare import wide_dtype
from _sample import DEVICE, Sample, Skip, attempt, reference, same, tensors, truth_of
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

Grads = list[torch.Tensor | None]


def directions(like: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """A random tensor on CPU for each, drawn in float64 and rounded to its dtype."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(x.shape, generator=generator, dtype=wide_dtype(x.dtype)).to(x.dtype) for x in like]


def on(seeds: list[torch.Tensor], like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Seeds with the dtypes and on the devices of what they are for."""
    return [s.detach().to(x.device, x.dtype) for s, x in zip(seeds, like, strict=True)]


def _outputs(sample: Sample, result: Any) -> list[torch.Tensor]:
    return [o for o in tensors(sample.process(result)) if o.requires_grad]


def _inputs(sample: Sample) -> list[torch.Tensor]:
    return [x for x in sample.leaves if x.requires_grad]


def _reference(sample: Sample) -> tuple[Sample, list[torch.Tensor]]:
    """The sample on CPU, with its results that have a gradient."""
    cpu = sample.on("cpu", True)
    want, error = reference(cpu)
    if error is not None or cpu.random:
        raise Skip("nothing to compare")
    outs = _outputs(cpu, want)
    if not outs or not _inputs(cpu) or any(o.layout != torch.strided for o in outs):
        raise Skip("not differentiable")
    return cpu, outs


def compare(sample: Sample, found: Grads, wanted: Grads, truths: Grads, what: str) -> None:
    """Raise an AssertionError where derivatives are not CPU's."""
    assert len(found) == len(wanted), f"{len(found)} {what}s, not {len(wanted)}"
    for i, (g, w, t) in enumerate(zip(found, wanted, truths, strict=True)):
        where = f"{what} {i}: "
        assert (g is None) == (w is None), f"{where}{'none' if g is None else 'one'}, unlike CPU"
        if w is not None and w.layout == torch.strided:
            same(g, w, sample, where, t)


def _check(sample: Sample, derive: Callable[[Sample, list[torch.Tensor]], Grads], what: str) -> None:
    """Compare what ``derive`` makes of the results of a sample, here, on CPU and in float64."""
    cpu, outs = _reference(sample)
    wanted, error = attempt(lambda: derive(cpu, outs))
    if error is not None or not wanted:
        raise Skip("CPU has no derivative")
    ours = sample.on(DEVICE, True)
    got = _outputs(ours, ours.run())
    assert len(got) == len(outs), f"{len(got)} results require a gradient, not {len(outs)}"
    exact = sample.exact()
    truths = derive(exact, _outputs(exact, exact.run())) if exact else [None] * len(wanted)
    compare(ours, derive(ours, got), wanted, truths, what)


def check_grad(sample: Sample) -> None:
    narrow = _reference(sample)[1]

    def derive(one: Sample, outs: list[torch.Tensor]) -> Grads:
        seeds = on(directions(narrow, 0), outs)
        return list(torch.autograd.grad(outs, _inputs(one), seeds, allow_unused=True))

    _check(sample, derive, "gradient")


def check_gradgrad(sample: Sample) -> None:
    cpu, narrow = _reference(sample)
    narrow_inputs = _inputs(cpu)

    def derive(one: Sample, outs: list[torch.Tensor]) -> Grads:
        inputs = _inputs(one)
        seeds = [s.requires_grad_() for s in on(directions(narrow, 0), outs)]
        first = torch.autograd.grad(outs, inputs, seeds, allow_unused=True, create_graph=True)
        kept = [(g, n) for g, n in zip(first, narrow_inputs) if g is not None and g.requires_grad]
        if not kept:
            return []
        first, like = map(list, zip(*kept))
        again = on(directions(like, 1), first)
        return list(torch.autograd.grad(first, [*inputs, *seeds], again, allow_unused=True))

    _check(sample, derive, "second gradient")


def check_jvp(sample: Sample) -> None:
    cpu = sample.on("cpu", True)
    _, error = reference(cpu)
    if error is not None or cpu.random or not _inputs(cpu):
        raise Skip("nothing to compare")
    tangents = directions(_inputs(cpu), 0)

    def derive(one: Sample) -> Grads:
        seeds = iter(on(tangents, _inputs(one)))

        def dual(x: Any) -> Any:
            given = isinstance(x, torch.Tensor) and x.requires_grad
            return forward_ad.make_dual(x.detach(), next(seeds)) if given else x

        with forward_ad.dual_level():
            args = tree_map(dual, (one.input, one.args, one.kwargs))
            out = one.process(one.op(args[0], *args[1], **args[2]))
            return [forward_ad.unpack_dual(o).tangent for o in tensors(out)]

    wanted, error = attempt(lambda: derive(cpu))
    if error is not None or not any(w is not None for w in wanted):
        raise Skip("CPU has no forward derivative")
    exact = sample.exact()
    truths = derive(exact.on("cpu", True)) if exact else [None] * len(wanted)
    ours = sample.on(DEVICE, True)
    compare(ours, derive(ours), wanted, truths, "tangent")


def _on_tensors(sample: Sample) -> tuple[Callable[[list[torch.Tensor]], Any], list[torch.Tensor]]:
    """A sample's call as a function of its tensors on the device."""
    flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor) and x.device.type == sample.place]

    def fn(values: list[torch.Tensor]) -> Any:
        filled = list(flat)
        for i, v in zip(where, values, strict=True):
            filled[i] = v
        input, args, kwargs = tree_unflatten(filled, spec)
        return sample.op(input, *args, **kwargs)

    return fn, [flat[i] for i in where]


def check_jit(sample: Sample) -> None:
    cpu = sample.on("cpu")
    want, error = reference(cpu)
    if error is not None or cpu.random:
        raise Skip("nothing to compare; random state is lifted by interop's jit, which has its own tests")
    ours = sample.on(DEVICE)
    fn, leaves = _on_tensors(ours)
    seen: list[Any] = []

    def traced(values: list[torch.Tensor]) -> list[torch.Tensor]:
        flat, spec = tree_flatten(fn(values))
        seen[:] = [spec, [None if isinstance(x, torch.Tensor) else x for x in flat]]
        return [x for x in flat if isinstance(x, torch.Tensor)]

    try:
        with jax.enable_x64(True):
            outs = iter(jax.jit(traced)(leaves))
    except Exception as error:
        said = any(words in str(error) for words in ("depends on values", "a trace does not have"))
        if cpu.dynamic and (said or isinstance(error, jax.errors.ConcretizationTypeError)):
            raise Skip("a value or a shape that a trace does not have, and the error says so") from None
        raise
    got = tree_unflatten([next(outs) if x is None else x for x in seen[1]], seen[0])
    same(got, want, ours, truth=truth_of(sample))


def check_vmap(sample: Sample) -> None:
    twin = sample.twin
    if twin is None:
        raise Skip("no second sample of the same shapes")
    pair = sample.on("cpu"), twin.on("cpu")
    wants = [reference(one) for one in pair]
    if any(error is not None or one.random or one.dynamic for one, (_, error) in zip(pair, wants)):
        raise Skip("nothing to compare")
    (fn, a), (_, b) = map(_on_tensors, (sample.on("cpu"), twin.on("cpu")))
    if not a or not all(isinstance(x, torch.Tensor) for x in tree_flatten(wants[0][0])[0]):
        raise Skip("not on tensors")
    theirs, error = attempt(lambda: torch.func.vmap(fn)([torch.stack(x) for x in zip(a, b, strict=True)]))
    if error is not None:
        raise Skip("PyTorch's vmap refuses it")
    want = tree_map(lambda x, y: torch.stack([x, y]), wants[0][0], wants[1][0])
    if any(x.dtype != y.dtype or x.shape != y.shape for x, y in zip(tensors(theirs), tensors(want), strict=True)):
        raise Skip("PyTorch's vmap is no loop here")
    exact = sample.exact(), replace(twin, known=sample.known).exact()
    truth = exact[0] and tree_map(lambda x, y: torch.stack([x, y]), *(one.run() for one in exact if one))
    here, there = sample.on(DEVICE), twin.on(DEVICE)
    (fn, a), (_, b) = map(_on_tensors, (here, there))
    got = torch.func.vmap(fn)([torch.stack(x) for x in zip(a, b, strict=True)])
    stacked = isinstance(here.input, torch.Tensor) and torch.stack([here.input, there.input])
    same(got, want, replace(here, input=stacked), truth=truth)

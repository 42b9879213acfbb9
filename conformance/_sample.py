"""One `op_db` sample on CPU and on the device: copies of it, and how their results are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from _compare import close, wide
from _exceptions import Known
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

DEVICE = "jax"
HOST_INDICES = ("tensor_split",)  # PyTorch wants the indices of these on CPU, whatever the device
UNDEFINED = ("empty", "new_empty", "resize_", "resize_as_", "empty_like", "empty_strided", "empty_permuted")


class Skip(Exception):
    """The check does not apply to this sample."""


class _Notes(TorchDispatchMode):
    """Notes whether a call draws random numbers, and whether a shape or a Python value depends on tensors' values."""

    random = dynamic = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        self.dynamic |= torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
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
    dynamic: bool = False
    spread: bool = False  # whether tensors are every second element of a larger one
    place: str = "cpu"
    twin: Sample | None = None  # of the same shapes, with other values

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
                if self.spread:
                    copy = torch.stack([torch.zeros_like(copy), copy], -1)[..., 1]
                return copy.requires_grad_(requires_grad and x.requires_grad)
            return device if isinstance(x, torch.device) or x == "cpu" else x

        moved = tree_map(move, (self.input, self.args, self.kwargs))
        return replace(self, input=moved[0], args=moved[1], kwargs=moved[2], place=device)

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
    """What CPU answers; notes in ``sample`` what kind of call that was."""
    with _Notes() as notes:
        out, error = attempt(lambda: sample.run(fn))
    sample.random, sample.dynamic = notes.random, notes.dynamic
    if isinstance(error, NotImplementedError) or "not implemented for" in str(error):
        raise Skip("not on CPU")
    return out, error


def truth_of(sample: Sample, fn: Callable[..., Any] | None = None) -> Any:
    exact = sample.exact()
    return exact and exact.run(fn)


def raises(fn: Callable[[], Any], expected: Exception) -> None:
    """The device raises what CPU raised: the same type, or one that is both."""
    _, error = attempt(fn)
    kind = type(expected).__name__
    assert error is not None, f"no error where CPU raises {kind}: {str(expected)[:100]}"
    got = f"{type(error).__name__} ({str(error)[:120]})"
    assert isinstance(error, type(expected)), f"{got}, not {kind}: {str(expected)[:100]}"

"""Small programs, each a function of the device's name, run on CPU and on ``jax`` and compared in all a user sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map

import torchax  # noqa: F401

DEVICE = "jax"
Program = Callable[[str], Any]


def ramp(device: str, *shape: int, dtype: torch.dtype = torch.float32, start: int = 1) -> torch.Tensor:
    """``start``, ``start + 1`` ... in a shape: distinct values, none zero."""
    n = torch.Size(shape).numel()
    values = torch.arange(start, start + n).to(dtype).reshape(shape)
    return values.clone() if device == "cpu" else values.to(device)  # no view, on either


def leaf(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Distinct values of either sign that want a gradient."""
    n = torch.Size(shape).numel()
    values = ((torch.arange(n) * 7 % 11 - 5) / 4 + 0.125).reshape(shape).to(dtype)
    return values.to(device).requires_grad_()


def weighted(y: torch.Tensor) -> torch.Tensor:
    """A real scalar whose derivative differs from element to element of ``y``."""
    if y.is_complex():
        y = torch.view_as_real(y.resolve_conj())
    return (y * ramp(y.device.type, *y.shape, dtype=y.dtype)).sum()


def outcome(program: Program, device: str) -> Any:
    """What a program returns, or the exception it raises."""
    try:
        return program(device)
    except Exception as e:
        return e


def check(program: Program, *, rtol: float | None = None, atol: float | None = None, strides: bool = True) -> Any:
    """Run a program on both devices: the same results, or the same type of exception. Returns the device's.

    Tensors are equal in values, dtype, shape, ``requires_grad``, and (``strides``) in strides and storage offset.
    """
    want = outcome(program, "cpu")
    if isinstance(want, Exception):
        with pytest.raises(type(want)) as caught:
            program(DEVICE)
        assert type(caught.value) is type(want), f"{caught.value!r}, not {want!r}"
        return caught.value
    got = program(DEVICE)
    same(got, want, rtol=rtol, atol=atol, strides=strides)
    return got


def same(got: Any, want: Any, *, rtol: float | None = None, atol: float | None = None, strides: bool = True) -> None:
    """Whether a tree of the device's results is CPU's."""
    ours, our_tree = tree_flatten(got)
    theirs, their_tree = tree_flatten(want)
    assert our_tree == their_tree, f"{our_tree}, not {their_tree}"
    for i, (g, w) in enumerate(zip(ours, theirs, strict=True)):
        where = f"result {i}: "
        if not isinstance(w, torch.Tensor):
            assert type(g) is type(w), f"{where}{g!r}, not {w!r}"
            assert g == w or (g != g and w != w), f"{where}{g!r}, not {w!r}"
            continue
        assert isinstance(g, torch.Tensor), f"{where}a {type(g).__name__}"
        assert g.device.type == DEVICE, f"{where}on {g.device}"
        assert (g.dtype, tuple(g.shape)) == (w.dtype, tuple(w.shape)), (
            f"{where}{g.dtype}{g.shape}, not {w.dtype}{w.shape}"
        )
        assert g.requires_grad == w.requires_grad, f"{where}requires_grad={g.requires_grad}"
        if strides:
            assert layout(g) == layout(w), f"{where}strides {g.stride()} at {g.storage_offset()}, not {layout(w)}"
        torch.testing.assert_close(
            g.detach().cpu().resolve_conj().resolve_neg(),
            w.detach().resolve_conj().resolve_neg(),
            rtol=rtol,
            atol=atol,
            equal_nan=True,
            msg=lambda m, where=where: where + m,
        )


def layout(t: torch.Tensor) -> Any:
    """Strides that matter (of more than one element), and the storage offset."""
    return [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1 and t.numel()], t.storage_offset()


def refuses(program: Program, *words: str) -> None:
    """Whether the device raises CPU's type of exception, and says each of ``words`` in its message."""
    want = outcome(program, "cpu")
    assert isinstance(want, Exception), f"CPU accepts it: {want!r}"
    got = outcome(program, DEVICE)
    assert isinstance(got, Exception), f"accepted, where CPU raises {want!r}: {got!r}"
    assert type(got) is type(want), f"{got!r}, where CPU raises {want!r}"
    for word in words:
        assert word in str(got), f"{word!r} is not in {str(got)!r}"


def cases(*programs: Program) -> Any:
    """A ``parametrize`` over lambdas, each named by the line it stands on."""
    return pytest.mark.parametrize("program", programs, ids=[f"line{p.__code__.co_firstlineno}" for p in programs])


def on_cpu(tree: Any) -> Any:
    """A tree's tensors, detached, on CPU."""
    return tree_map(lambda x: x.detach().cpu() if isinstance(x, torch.Tensor) else x, tree)


def aten_packets() -> Iterator[tuple[str, torch._ops.OpOverloadPacket]]:
    """Every aten operator by name; ``dir(torch.ops.aten)`` has only those that somebody asked for."""
    for name in sorted({s.name.removeprefix("aten::") for s in torch._C._jit_get_all_schemas() if "aten::" in s.name}):
        packet = getattr(torch.ops.aten, name, None)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            yield name, packet

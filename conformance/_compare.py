"""What both levels compare with, and how they say what differs."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.utils._pytree import tree_map

_WIDE = {True: torch.complex128, False: torch.float64}


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for floats, complex128 for complex dtypes, others as they are."""
    return _WIDE[dtype.is_complex] if dtype.is_floating_point or dtype.is_complex else dtype


def wide(tree: Any) -> Any:
    """A CPU copy of all arguments in float64 or complex128, for a truth to measure two answers by."""

    def widen(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.detach().to(wide_dtype(x.dtype)).clone().requires_grad_(x.requires_grad)
        return wide_dtype(x) if isinstance(x, torch.dtype) else x

    return tree_map(widen, tree)


def close(
    got: torch.Tensor,
    want: torch.Tensor,
    bound: Any = None,
    where: str = "",
    truth: Any = None,
    source: torch.Tensor | None = None,
) -> None:
    """`assert_close` at its defaults, or at the ``bound`` of a known exception (`_exceptions.Known`).

    ``truth`` is the float64 answer; ``source`` is the array that ``got`` and ``want`` index, for ties.

    Raises:
        AssertionError: they differ.
    """
    if bound in ("shape", "differs"):
        return
    got, want = (t.detach().cpu().resolve_conj().resolve_neg() for t in (got, want))
    if bound == "phase":
        got, want = got.abs(), want.abs()
    tolerance = bound if isinstance(bound, dict) else {}
    if bound == "tight":
        rtol, atol = default_tolerances(got, want)
        tolerance = {"rtol": rtol / 4, "atol": atol / 4}
    try:
        torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
    except AssertionError as error:
        if bound == "float64" and isinstance(truth, torch.Tensor):
            return _as_near(got, want, truth, where)
        if bound == "ties" and source is not None and want.dtype == torch.int64:
            return _same_picks(got, want, source.detach().cpu(), where)
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise AssertionError(where + " | ".join(lines[:4])) from None


def _error(answer: torch.Tensor, truth: torch.Tensor) -> float:
    """The largest distance from the truth; infinite where only one of the two is finite."""
    narrow = truth.to(answer.dtype).to(truth.dtype)  # what overflows in 16 bits is infinite in both
    truth = torch.where(narrow.isinf(), narrow, truth)
    wide = answer.to(truth.dtype)
    equal = (wide == truth) | (wide.isnan() & truth.isnan())
    return torch.where(equal, 0.0, (wide - truth).abs()).nan_to_num(torch.inf).max().item()


def _as_near(got: torch.Tensor, want: torch.Tensor, truth: torch.Tensor, where: str) -> None:
    """Our largest error against float64 is at most twice CPU's, and one of rounding."""
    ours, theirs = _error(got, truth), _error(want, truth)
    size = truth.abs().nan_to_num(0, 0, 0).max().item()
    floats = got.dtype.is_floating_point or got.dtype.is_complex
    floor = max(1e-3, 2 * torch.finfo(got.dtype).eps) if floats else 0  # where the truth itself cancels
    near = ours <= 2 * theirs and ours <= max(0.1 * size, floor)
    assert near, f"{where}error against float64's {size:.3g}: ours {ours:.3g}, CPU's {theirs:.3g}"


def _same_picks(got: torch.Tensor, want: torch.Tensor, source: torch.Tensor, where: str) -> None:
    """Indices may differ where several elements are equal: both pick the same values, along some dim."""

    def pick(index: torch.Tensor, dim: int) -> Any:
        full = index if index.dim() == source.dim() else index.unsqueeze(dim)
        try:
            return source.gather(dim, full).reshape(index.shape)
        except (RuntimeError, IndexError):
            return None

    for dim in range(max(source.dim(), 1)):
        ours, theirs = pick(got, dim), pick(want, dim)
        if ours is not None and theirs is not None and torch.equal(ours, theirs):
            return
    raise AssertionError(f"{where}indices that pick other elements")


def describe(x: Any) -> str:
    """An argument in a few words: dtype and shape of a tensor, ``n`` if noncontiguous."""
    if isinstance(x, torch.Tensor):
        if x.layout != torch.strided:
            kind = str(x.layout).removeprefix("torch.")
        else:
            kind = "" if x.is_contiguous() else "n"
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}{kind}"
    if isinstance(x, (list, tuple)):
        return "[" + ", ".join(map(describe, x)) + "]"
    return repr(x)


def call(args: Any, kwargs: dict[str, Any]) -> str:
    """Arguments as a call shows them."""
    return "(" + ", ".join([*map(describe, args), *(f"{k}={describe(v)}" for k, v in kwargs.items())]) + ")"


def short(error: BaseException, ours: Callable[[str], bool] = lambda name: "torchax" in name) -> str:
    """An error in one line, with the last place in our code."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if ours(f.filename)]
    at = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())[:400]}{at}"

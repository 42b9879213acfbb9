"""PyTorch's own test inputs (`op_db`), always the same ones."""

from __future__ import annotations

import fnmatch
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def entries(patterns: list[str], part: str = "") -> Iterator[Any]:
    """The `op_db` entries whose name (or name with variant, or aten name) matches one of the patterns; all if none.

    ``part`` is ``"i/n"``: of these the i-th, the (i + n)-th and so on.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

    found = []
    for op in op_db:
        if op.name.startswith("jiterator"):  # compiles CUDA source: no other device has it
            continue
        names = {op.name, op.formatted_name, op.aten_name or "", op.name.rpartition(".")[2]}
        if not patterns or any(fnmatch.fnmatch(n, p) for n in names for p in patterns):
            found.append(op)
    first, step = map(int, part.split("/")) if part else (0, 1)
    return iter(found[first::step])


def seed_all(seed: int) -> None:
    """Seed every generator that PyTorch's tests draw their inputs from."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _all(op: Any, dtype: torch.dtype, requires_grad: bool, seed: int = 0) -> list[Any]:
    seed_all(seed)
    return list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))


def spread(found: list[Any], count: int) -> list[Any]:
    """At most ``count`` elements, evenly over all."""
    step = max(1, len(found) / count)
    return [found[int(i * step)] for i in range(min(count, len(found)))]


def samples(op: Any, dtype: torch.dtype, count: int, requires_grad: bool = False, seed: int = 0) -> list[Any]:
    """At most ``count`` of an entry's CPU samples, spread evenly over all of them; always the same ones for a seed."""
    return spread(_all(op, dtype, requires_grad, seed), count)


def edges(op: Any, dtype: torch.dtype, count: int) -> list[Any]:
    """At most ``count`` samples whose input has no dimension, and as many whose input has no element."""
    found = [s for s in _all(op, dtype, False) if isinstance(s.input, torch.Tensor)]
    scalars = [s for s in found if s.input.dim() == 0]
    empty = [s for s in found if s.input.numel() == 0]
    return spread(scalars, count) + spread(empty, count)

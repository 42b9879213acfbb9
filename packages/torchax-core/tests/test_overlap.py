"""Writes to memory that an operand shares, or that several elements share: refused as on CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from _programs import DEVICE, cases, outcome, ramp, same

LONG = torch.int64


def index(device: str, *values: int) -> torch.Tensor:
    return torch.tensor(values, device=device)


def wide(device: str, *shape: int) -> torch.Tensor:
    return ramp(device, 1).expand(*shape)


PARTLY_READ = [
    lambda d: [x := ramp(d, 6), x[1:].add_(x[:-1])],
    lambda d: [x := ramp(d, 3, 3), x.t().add_(x)],
    lambda d: [x := ramp(d, 3, 3), x[1:].mul_(x[:-1])],
    lambda d: [x := ramp(d, 6), x.add_(x[0])],
    lambda d: [x := ramp(d, 3, 3), x.div_(x[0])],
    lambda d: [x := ramp(d, 6), x[1:].copy_(x[:-1])],
    lambda d: [x := ramp(d, 3, 3), x.copy_(x.t())],
    lambda d: [x := ramp(d, 6), x.__setitem__(slice(1, None), x[:-1])],
    lambda d: [x := ramp(d, 6), x[1:].addcmul_(ramp(d, 5), x[:-1])],
    lambda d: [x := ramp(d, 6), x[1:].lerp_(x[:-1], 0.5)],
    lambda d: [x := ramp(d, 6), x[1:].clamp_(x[:-1])],
    lambda d: [x := ramp(d, 6), x.scatter_(0, index(d, 0, 1), x[:2])],
    lambda d: [x := ramp(d, 6), x.scatter_add_(0, index(d, 0, 1), x[1:3])],
    lambda d: [x := ramp(d, 6), x.index_add_(0, index(d, 0, 1), x[:2])],
    lambda d: [x := ramp(d, 6), x.index_copy_(0, index(d, 0, 1), x[2:4])],
    lambda d: [x := ramp(d, 6), x.index_put_((index(d, 0, 1),), x[1:3])],
    lambda d: [x := ramp(d, 6), x.put_(index(d, 0, 1), x[2:4])],
    lambda d: [x := ramp(d, 6), torch._foreach_mul_([x[1:], ramp(d, 5)], [x[:-1], ramp(d, 5)])],
    lambda d: [x := ramp(d, 6), torch._foreach_copy_([x[1:]], [x[:-1]])],
    lambda d: [x := ramp(d, 6), torch.add(x[1:], 1, out=x[:-1])],
    lambda d: [x := ramp(d, 3, 3), torch.exp(x.t(), out=x)],
    lambda d: [x := ramp(d, 6), torch.cumsum(x[1:], 0, out=x[:-1])],
    lambda d: [x := ramp(d, 6), torch.gather(x, 0, index(d, 0, 1), out=x[2:4])],
    lambda d: [x := ramp(d, 6), torch.index_select(x, 0, index(d, 0, 1), out=x[2:4])],
    lambda d: [x := ramp(d, 6), torch.take(x, index(d, 0, 1), out=x[2:4])],
    lambda d: [x := ramp(d, 6), torch.cat([x[:2], x[2:4]], out=x[:4])],
    lambda d: [x := ramp(d, 6), torch.sort(x[1:], out=(x[:-1], ramp(d, 5, dtype=LONG)))],
    lambda d: [x := ramp(d, 3, 3), torch.max(x, 0, out=(x[0], ramp(d, 3, dtype=LONG)))],
]
EXPANDED = [
    lambda d: [x := wide(d, 3), x.add_(1)],
    lambda d: [x := wide(d, 3), x.copy_(ramp(d, 3))],
    lambda d: [x := wide(d, 3), x.__setitem__(slice(0, 2), ramp(d, 2))],
    lambda d: [x := wide(d, 3), x.relu_()],
    lambda d: [x := wide(d, 3), x.normal_()],
    lambda d: [x := wide(d, 3), x.random_(5)],
    lambda d: [x := wide(d, 3), x.scatter_(0, index(d, 0), 1.0)],
    lambda d: [x := wide(d, 3), x.index_add_(0, index(d, 0), ramp(d, 1))],
    lambda d: [x := wide(d, 3, 3), x.addmm_(ramp(d, 3, 3), ramp(d, 3, 3))],
    lambda d: [x := wide(d, 3), x.cumsum_(0)],
    lambda d: [x := wide(d, 3), torch._foreach_add_([x], 1.0)],
    lambda d: [x := wide(d, 3), torch.add(ramp(d, 3), 1, out=x)],
    lambda d: [x := wide(d, 3, 3), torch.mm(ramp(d, 3, 3), ramp(d, 3, 3), out=x)],
]
# What CPU accepts, and so has CPU's values: no shared element, the very same elements, or one value for all.
ACCEPTED = [
    lambda d: [x := ramp(d, 6), x.mul_(x), x.add_(x.view(6)), x.view(2, 3).sub_(x.view(2, 3) / 2)],
    lambda d: [x := ramp(d, 6), x[::2].add_(x[1::2]), x[:3].mul_(x[3:])],
    lambda d: [x := ramp(d, 6), torch.exp(x, out=x), torch.cumsum(x, 0, out=x)],
    lambda d: [x := ramp(d, 6), x[0].add_(x[5]), x[1:3].copy_(x[4:])],
    lambda d: [x := ramp(d, 6), torch._foreach_mul_([x[:3], x[3:]], [x[3:], x[:3]])],
    lambda d: [x := wide(d, 3), x.fill_(2), x[1].add_(1), x.zero_()],
    lambda d: [x := ramp(d, 1, 3).expand(1, 3), x.add_(1)],
    lambda d: [x := ramp(d, 5), x.unfold(0, 3, 1)[0].add_(1)],
]


@cases(*PARTLY_READ, *EXPANDED)
def test_refused(program: Callable[[str], Any]):
    want = outcome(program, "cpu")
    assert isinstance(want, RuntimeError), want
    with pytest.raises(RuntimeError, match="single memory location") as caught:
        program(DEVICE)
    assert str(want)[:60] == str(caught.value)[:60]


@cases(*ACCEPTED)
def test_accepted(program: Callable[[str], Any]):
    same(program(DEVICE), program("cpu"), strides=False)

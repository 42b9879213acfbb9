"""Indexing, reading and writing, as PyTorch does it: every kind of index in every mix, and an IndexError outside."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from _programs import DEVICE, cases, check, leaf, ramp, refuses, same, weighted

SHAPE = (4, 3, 5)


def ints(device: str, *values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=dtype).to(device)


def mask(device: str, *shape: int) -> torch.Tensor:
    """True at some two thirds of the places."""
    n = torch.Size(shape).numel()
    return (torch.arange(n) * 5 % 7 % 3 != 0).reshape(shape).to(device)


# Each is a function of the device, so that index tensors can be on it; "cpu" below puts them on CPU instead.
INDICES: list[Callable[[str], Any]] = [
    # ints and slices
    lambda d: 0,
    lambda d: -1,
    lambda d: (1, 2, 3),
    lambda d: slice(None),
    lambda d: slice(None, None, 2),
    lambda d: slice(3, 1),
    lambda d: slice(-100, 100, 3),
    lambda d: (slice(1, None), 0, slice(None, -1, 2)),
    lambda d: True,
    lambda d: False,
    # None and Ellipsis
    lambda d: None,
    lambda d: ...,
    lambda d: (),
    lambda d: (None, 1, None),
    lambda d: (..., 2),
    lambda d: (None, ..., slice(1, 4), None),
    lambda d: (..., None, 1, slice(None)),
    # integer tensors
    lambda d: ints(d, -1, -4, 3),
    lambda d: ints(d, 2, 0, dtype=torch.int32),
    lambda d: ints(d, [[0, 1], [3, 3]]),
    lambda d: ints(d, []),
    lambda d: (slice(None), ints(d, 2, 0)),
    lambda d: (..., ints(d, 4, 0, -1)),
    lambda d: (ints(d, 0, 3), ints(d, 1, 2)),
    lambda d: (ints(d, 0, 3), slice(None), ints(d, 1, 2)),
    lambda d: (slice(None), ints(d, 0, 2), ints(d, 1, 2)),
    lambda d: (ints(d, [[0], [3]]), ints(d, 1, 2)),
    lambda d: (ints(d, [[0], [3]]), ..., ints(d, 1, 2)),
    lambda d: (ints(d, 0, 3), ints(d, 1, 2), ints(d, 4, -5)),
    lambda d: (ints(d, 0, 2), 1),
    lambda d: (ints(d, 0, 2), slice(None), 1),
    lambda d: (1, slice(None), ints(d, 0, 2)),
    lambda d: (None, ints(d, 0, 2), None),
    lambda d: (ints(d, 0, 2), None, ints(d, 1, 1)),
    lambda d: (slice(1, None), ints(d, 0, 2), slice(None, None, 2)),
    lambda d: (slice(None, None, 2), ints(d, 0, 2), None, ints(d, [1])),
    # 0-d index tensors
    lambda d: ints(d, -1),
    lambda d: (slice(None), ints(d, 1)),
    lambda d: (ints(d, 1), ints(d, 2)),
    lambda d: (ints(d, 1), slice(None), ints(d, 0, 2)),
    lambda d: (ints(d, 3, dtype=torch.int32), ..., ints(d, 4)),
    lambda d: torch.tensor(True).to(d),
    lambda d: torch.tensor(False).to(d),
    # masks
    lambda d: mask(d, 4),
    lambda d: mask(d, 4, 3),
    lambda d: mask(d, 4, 3, 5),
    lambda d: mask(d, 4).to(torch.bool) & False,
    lambda d: (slice(None), mask(d, 3)),
    lambda d: (slice(None), mask(d, 3, 5)),
    lambda d: (mask(d, 4), slice(None), slice(1, 3)),
    lambda d: (ints(d, [0], [1]), mask(d, 3)),
    lambda d: (mask(d, 4, 3), ints(d, 1)),
    lambda d: (None, mask(d, 4)),
    lambda d: (mask(d, 4), None, slice(None)),
    # lists and tuples of Python numbers
    lambda d: [0, 2],
    lambda d: [[0, 2], [1, 1]],
    lambda d: ([0, 2], [1, 1]),
    lambda d: ([0, 2], ints(d, 1, 1)),
    lambda d: [True, False, True, True],
    lambda d: (slice(None), [True, False, True]),
    lambda d: [],
    lambda d: range(1, 3),
    lambda d: ([1], ..., [0, 1]),
]  # fmt: skip
IDS = [f"line{i.__code__.co_firstlineno}" for i in INDICES]


@pytest.mark.parametrize("index", INDICES, ids=IDS)
def test_reading_and_writing(index: Callable[[str], Any]):
    """The value read, and what a write leaves: of a tensor that broadcasts, or of a 0-d CPU one to one element."""

    def program(device: str) -> Any:
        x = ramp(device, *SHAPE)
        at = index(device)
        read = x[at]
        y = x.clone()
        y[at] = -ramp(device, read.shape[-1]) if read.dim() else torch.tensor(-2.5)
        return read, y

    check(program)


TENSORS = [i for i, f in enumerate(INDICES) if "ints" in f.__code__.co_names or "mask" in f.__code__.co_names]


@pytest.mark.parametrize("index", [INDICES[i] for i in TENSORS][::3], ids=[IDS[i] for i in TENSORS][::3])
def test_index_tensors_from_cpu(index: Callable[[str], Any]):
    def program(device: str) -> Any:
        x = ramp(device, *SHAPE)
        y = x.clone()
        y[index("cpu")] = 7
        y[index("cpu")] += 1
        return x[index("cpu")], y

    check(program)


def an_index(draw: random.Random, device: str) -> Any:
    """A random tuple of indices for SHAPE, with all its tensors broadcasting to two elements."""
    parts: list[Any] = []
    for n in SHAPE[: draw.randrange(1, 4)]:
        i, j = draw.randrange(-n, n), draw.randrange(n)
        parts.append(draw.choice([
            i, slice(i, None), slice(None, j, 2), slice(None), ints(device, i, j), ints(device, [[j], [i]]),
            ints(device, j), [j, i], torch.arange(n).to(device) % 2 == 0 if n != 5 else slice(1, 3),
        ]))  # fmt: skip
    if draw.random() < 0.4:
        parts.insert(draw.randrange(len(parts) + 1), None)
    if draw.random() < 0.4:
        parts.insert(draw.randrange(len(parts) + 1), ...)
    return tuple(parts)


@pytest.mark.parametrize("seed", range(12))
def test_random_mixes(seed: int):
    def program(device: str) -> Any:
        at, x = an_index(random.Random(seed), device), ramp(device, *SHAPE)
        y = x.clone()
        y[at] = 0
        return x[at], y

    check(program)


# --- what is a view, and what a copy --------------------------------------------------------------


def test_ints_and_slices_give_views_and_tensors_copies():
    def program(device: str) -> Any:
        x = ramp(device, *SHAPE)
        views = [x[0], x[1:3, ..., 2], x[None, :, 1], x[...], x[:, ints(device, 1)]]
        copies = [x[ints(device, 0, 1)], x[[0]], x[mask(device, 4)], x[:, [1, 2]], x[True]]
        for v in views:
            v.add_(100)
        for c in copies:
            c.zero_()
        return x, views, copies, [v._is_view() for v in views]

    check(program)


def test_an_augmented_assignment_reads_and_writes():
    def program(device: str) -> Any:
        x = ramp(device, *SHAPE)
        x[0] += 1
        x[:, 1] *= 2
        x[ints(device, 1, 3, 1)] -= 5  # the repeated row is written once
        x[mask(device, 4, 3)] /= 2
        x[..., [0, 2]] **= 2
        x.transpose_(0, 1)
        x[0, 1:3] += ramp(device, 2, 5)
        return x

    check(program)


def test_assigning_to_a_view_reaches_its_base():
    def program(device: str) -> Any:
        x = ramp(device, *SHAPE)
        x.permute(2, 0, 1)[1:3][ints(device, 0, 1), 2] = ramp(device, 3)
        x[1][mask(device, 3, 5)] = -1
        x.view(-1)[ints(device, 0, -1)] = 1000
        x[2].t()[[0, 1], [1, 2]] = torch.tensor(3.5)
        x[3, :, ::2][1][0] = 9
        return x

    check(program)


@cases(
    lambda x: x.__setitem__(0, ramp(x.device.type, 3, 5)),
    lambda x: x.__setitem__(0, ramp(x.device.type, 3, 1)),
    lambda x: x.__setitem__(slice(1, 3), ramp(x.device.type, 5)),
    lambda x: x.__setitem__((..., 0), torch.tensor(2)),
    lambda x: x.__setitem__((..., 0), torch.tensor([2.5])),
    lambda x: x.__setitem__(mask(x.device.type, 4), ramp(x.device.type, 1, 3, 1)),
    lambda x: x.__setitem__(mask(x.device.type, 4, 3, 5), ramp(x.device.type, int(mask("cpu", 4, 3, 5).sum()))),
    lambda x: x.__setitem__(mask(x.device.type, 4, 3, 5), ramp(x.device.type, 1)),
    lambda x: x.__setitem__(ints(x.device.type, 0, 2), ramp(x.device.type, 2, 1, 1)),
    lambda x: x.__setitem__((ints(x.device.type, 0, 2), ints(x.device.type, 1, 1)), ramp(x.device.type, 2, 5)),
    lambda x: x.__setitem__((ints(x.device.type, 0, 2), slice(None), 1), ramp(x.device.type, 3)),
    lambda x: x.__setitem__(ints(x.device.type, 0, 2), True),
    lambda x: x.__setitem__(1, 3),
    lambda x: x.__setitem__((1, 1, 1), float("nan")),
    lambda x: x.__setitem__(slice(0, 0), 5),
    lambda x: x.__setitem__(ints(x.device.type, []), 5),
    lambda x: x.__setitem__((), 5),
    lambda x: x.__setitem__(None, ramp(x.device.type, 3, 5)),
    lambda x: x.__setitem__((None, ..., None), ramp(x.device.type, 5, 1)),
    lambda x: x.__setitem__(0, ramp(x.device.type, 5, dtype=torch.float64)),
    lambda x: x.__setitem__(0, ramp(x.device.type, 5, dtype=torch.int64)),
    lambda x: x.__setitem__(0, x[1]),
    lambda x: x.__setitem__(ints(x.device.type, 3, 2, 1, 0), x.clone()),
)
def test_values_that_broadcast_or_convert(program):
    def write(device: str) -> Any:
        x = ramp(device, *SHAPE)
        program(x)
        return x

    check(write)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.complex64], ids=str)
def test_dtypes(dtype: torch.dtype):
    def program(device: str) -> Any:
        x = ramp(device, 4, 6, dtype=dtype)
        x[0] = 0
        x[ints(device, 1, 2), ints(device, 0, 3)] = x[3, 1:3].clone()
        x[:, 5][mask(device, 4)] = 1
        x[3, 0] = True
        return x, x[mask(device, 4)], x[1:, 2], x[ints(device, -1)]

    check(program)


def test_scalars_can_be_indexed():
    def program(device: str) -> Any:
        x = ramp(device)
        y = x.clone()
        y[...] = 5
        z = x.clone()
        z[x > 0] = 6
        return x[...], x[()], x[None], x[True], x[False], x[x > 0], x[None, ..., None], y, z

    check(program)


# --- with autograd --------------------------------------------------------------------------------


@cases(
    lambda w: w[1],
    lambda w: w[:, ::2, -1],
    lambda w: w[ints(w.device.type, 0, 0, 3)],
    lambda w: w[ints(w.device.type, 0, 0), :, ints(w.device.type, 1, 1)],
    lambda w: w[mask(w.device.type, 4, 3)],
    lambda w: w[..., [0, 4, 0]],
    lambda w: w.take(ints(w.device.type, 0, 59, 0, -1)),
    lambda w: w.gather(2, ints(w.device.type, [[[0, 0], [1, 4], [4, 4]]])),
    lambda w: w.take_along_dim(w.argsort(2), 2),
)
def test_gradients_of_reading(program):
    def grad(device: str) -> Any:
        w = leaf(device, *SHAPE)
        y = program(w)
        weighted(y * y).backward()
        return y, w.grad

    check(grad)


@cases(
    lambda y, v: y.__setitem__(1, v),
    lambda y, v: y.__setitem__((ints(y.device.type, 0, 2), ints(y.device.type, 1, 1)), v[:2]),
    lambda y, v: y.__setitem__(mask(y.device.type, 4, 3), v[1]),
    lambda y, v: y.__setitem__((..., [0, 2]), v[:, :2] * v[:, 1:3]),
    lambda y, v: y.__setitem__(y > 0, v.sum()),
    lambda y, v: y.__setitem__(0, y[1] * v),
    lambda y, v: y.index_put_((ints(y.device.type, 0, 0, 1),), v, accumulate=True),
    lambda y, v: y.index_add_(0, ints(y.device.type, 3, 3), torch.stack([v, v * 2]), alpha=3),
    lambda y, v: y.index_copy_(1, ints(y.device.type, 2, 0), v[:2].expand(4, 2, 5)),
    lambda y, v: y.masked_scatter_(mask(y.device.type, 4, 1, 1).expand(SHAPE), torch.cat([v.view(-1)] * 4)),
    lambda y, v: y.scatter_add_(1, ints(y.device.type, [[[0, 1, 2], [0, 0, 2]]]), v[None, :2, :3]),
)
def test_gradients_of_writing(program):
    def grad(device: str) -> Any:
        w, v = leaf(device, *SHAPE), leaf(device, 3, 5)
        y = w * 2
        program(y, v)
        weighted(y * y).backward()
        return y, w.grad, v.grad

    check(grad)


def test_second_derivative_of_reading():
    def program(device: str) -> Any:
        w = leaf(device, 6)
        y = w[ints(device, 0, 2, 0)]
        [g] = torch.autograd.grad((y**3).sum(), w, create_graph=True)
        return torch.autograd.grad(weighted(g), w)

    check(program)


# --- accumulating, and the named operators --------------------------------------------------------


@cases(
    lambda d, x: x.index_put_((ints(d, 0, 0, 2),), ramp(d, 3, 1, 5), accumulate=True),
    lambda d, x: x.index_put_((ints(d, 0, 0), ints(d, 1, 1)), torch.tensor(2.0), accumulate=True),
    lambda d, x: x.index_put_((ints(d, 0, -4), ints(d, 1, 1), ints(d, 2, 2)), torch.ones(2).to(d), accumulate=True),
    lambda d, x: x.index_put_((mask(d, 4),), torch.tensor(1.0).to(d), accumulate=True),
    lambda d, x: x.index_put((ints(d, 1, 2),), ramp(d, 5)),
    lambda d, x: torch.ops.aten.index(x, [None, ints(d, 0, 2), None]),
    lambda d, x: torch.ops.aten.index_put(x, [None, ints(d, 0, 2)], ramp(d, 5), True),
    lambda d, x: x.index_select(0, ints(d, 3, 0, 3)),
    lambda d, x: x.index_select(-1, ints(d, 1)),
    lambda d, x: x.index_select(1, ints(d, [], dtype=torch.int32)),
    lambda d, x: x.index_add_(1, ints(d, 0, 0), ramp(d, 4, 2, 5), alpha=2),
    lambda d, x: x.index_copy_(0, ints(d, 3, 1), ramp(d, 2, 3, 5, start=100)),
    lambda d, x: x.index_fill_(2, ints(d, 0, -1), -7),
    lambda d, x: x.index_fill(0, ints(d, 1), torch.tensor(3.0)),
    lambda d, x: x.index_reduce_(0, ints(d, 0, 0, 1), ramp(d, 3, 3, 5), "amax"),
    lambda d, x: x.index_reduce_(0, ints(d, 0, 0, 1), ramp(d, 3, 3, 5), "prod", include_self=False),
    lambda d, x: x.take(ints(d, [[0, -1], [59, -60]])),
    lambda d, x: x.put_(ints(d, 0, -1), ramp(d, 2)),
    lambda d, x: x.put_(ints(d, 0, 0), ramp(d, 2), accumulate=True),
    lambda d, x: x.gather(0, ints(d, [[[0, 1], [3, 3]]])),
    lambda d, x: x.gather(2, torch.zeros(4, 0, 5, dtype=torch.int64).to(d)),
    lambda d, x: x.scatter(0, ints(d, [[[1, 2], [3, 3]]]), ramp(d, 1, 2, 2)),
    lambda d, x: x.scatter(2, ints(d, [[[1, 2], [3, 3]]]), 9.0),
    lambda d, x: x.scatter_add_(1, ints(d, [[[0, 0], [0, 0]]]), ramp(d, 1, 2, 2)),
    lambda d, x: x.scatter_reduce(1, ints(d, [[[0, 1], [0, 1]]]), ramp(d, 1, 2, 2), "amin"),
    lambda d, x: x.scatter_reduce(1, ints(d, [[[0, 1], [0, 1]]]), ramp(d, 1, 2, 2), "mean", include_self=False),
    lambda d, x: x.scatter(0, ints(d, [[[1]]]), ramp(d, 1, 1, 1), reduce="multiply"),
    lambda d, x: x.take_along_dim(ints(d, [[[2], [0], [9]]]), 2),  # PyTorch counts round and round here
    lambda d, x: x.masked_fill(mask(d, 3, 5), -1),
    lambda d, x: x.masked_fill_(mask(d, 4, 1, 1), torch.tensor(2)),
    lambda d, x: x.masked_select(mask(d, 3, 1)),
    lambda d, x: x.masked_scatter(mask(d, 4, 3, 5), ramp(d, 60)),
    lambda d, x: x.nonzero(),
    lambda d, x: (x > 31).nonzero(as_tuple=True),
    lambda d, x: torch.where(x > 31),
    lambda d, x: torch.argwhere(x % 2 == 0),
    lambda d, x: torch.select_scatter(x, ramp(d, 3, 5), 0, -1),
    lambda d, x: torch.slice_scatter(x, ramp(d, 2, 3, 5), 0, 1, None, 2),
    lambda d, x: torch.diagonal_scatter(x[0], ramp(d, 3)),
    lambda d, x: torch.index_select(x[0, 0, 0], 0, ints(d, [0])),
    lambda d, x: torch.take(x[0, 0, 0], ints(d, 0)),
    lambda d, x: x[0, 0, 0].gather(0, ints(d, 0)),
    lambda d, x: torch.unravel_index(ints(d, 7, 59), SHAPE),
)
@pytest.mark.filterwarnings("ignore:.*(beta|deprecated)")
def test_named_operators(program):
    def both(device: str) -> Any:
        x = ramp(device, *SHAPE)
        return program(device, x), x

    check(both, strides=False)


# --- outside: an IndexError, never a clamp --------------------------------------------------------


@cases(
    lambda d, x: x[4],
    lambda d, x: x[-5],
    lambda d, x: x[0, 3],
    lambda d, x: x[..., 5],
    lambda d, x: x[:, :, -6],
    lambda d, x: x[2:][2],
    lambda d, x: x[0, 0, 0, 0],
    lambda d, x: x[0, 0, 0, :],
    lambda d, x: x[0, 0, 0][0],
    lambda d, x: x[:0][0],
    lambda d, x: x[ints(d, 4)],
    lambda d, x: x[ints(d, -5)],
    lambda d, x: x[ints(d, 0, 4)],
    lambda d, x: x[ints(d, -5, 0)],
    lambda d, x: x[:, ints(d, 0, 3)],
    lambda d, x: x[ints(d, 0, 1), ints(d, 0, 3)],
    lambda d, x: x[[0, 4]],
    lambda d, x: x[torch.tensor([0, 4])],
    lambda d, x: x[..., [5]],
    lambda d, x: x[:0][ints(d, [0])],
    lambda d, x: x[mask(d, 3)],
    lambda d, x: x[mask(d, 4, 2)],
    lambda d, x: x[:, mask(d, 4)],
    lambda d, x: x[mask(d, 4, 3, 5, 1)],
    lambda d, x: x[[True, False]],
    lambda d, x: x[ints(d, 0, 1), ints(d, 0, 1, 2)],
    lambda d, x: x[ints(d, 0), 0, 0, ints(d, 0, 1)],
    lambda d, x: x[1.0],
    lambda d, x: x["a"],
    lambda d, x: x[torch.tensor([0.5]).to(d)],
    lambda d, x: x[torch.tensor(0.5).to(d)],
    lambda d, x: x[torch.tensor([0], dtype=torch.int16).to(d)],
    lambda d, x: x[::-1],
    lambda d, x: x[slice(0.5, 2)],
    lambda d, x: x.__setitem__(4, 0),
    lambda d, x: x.__setitem__((0, -4), 0),
    lambda d, x: x.__setitem__(ints(d, 0, 4), 0),
    lambda d, x: x.__setitem__(ints(d, 4), 0),
    lambda d, x: x.__setitem__([-5], 0),
    lambda d, x: x.__setitem__((slice(None), ints(d, 0, -4)), 0),
    lambda d, x: x.__setitem__(mask(d, 3), 0),
    lambda d, x: x.__setitem__(mask(d, 3), ramp(d, 1)),
    lambda d, x: x.index_put_((ints(d, 9),), ramp(d, 5), accumulate=True),
    lambda d, x: x.select(0, 4),
    lambda d, x: x.index_select(0, ints(d, 4)),
    lambda d, x: x.index_select(0, ints(d, 0, -1)),
    lambda d, x: x.index_select(3, ints(d, 0)),
    lambda d, x: x.index_select(0, ints(d, [[0]])),
    lambda d, x: x.index_select(0, torch.tensor([0.5]).to(d)),
    lambda d, x: x.index_add_(0, ints(d, 4), ramp(d, 1, 3, 5)),
    lambda d, x: x.index_add_(0, ints(d, -1), ramp(d, 1, 3, 5)),
    lambda d, x: x.index_copy_(0, ints(d, 4), ramp(d, 1, 3, 5)),
    lambda d, x: x.index_fill_(0, ints(d, 4), 1.0),
    lambda d, x: x.index_reduce_(0, ints(d, 4), ramp(d, 1, 3, 5), "amax"),
    lambda d, x: x.take(ints(d, 60)),
    lambda d, x: x.take(ints(d, -61)),
    lambda d, x: x.put_(ints(d, 60), ramp(d, 1)),
    lambda d, x: x.gather(0, ints(d, [[[4]]])),
    lambda d, x: x.gather(0, ints(d, [[[-1]]])),
    lambda d, x: x.gather(0, ints(d, [0])),
    lambda d, x: x.gather(0, torch.zeros(1, 4, 1, dtype=torch.int64).to(d)),
    lambda d, x: x.gather(0, ints(d, [[[0]]], dtype=torch.int16)),
    lambda d, x: x.scatter(0, ints(d, [[[4]]]), 1.0),
    lambda d, x: x.scatter(0, ints(d, [[[-1]]]), ramp(d, 1, 1, 1)),
    lambda d, x: x.scatter_(2, ints(d, [[[5]]]), ramp(d, 1, 1, 1)),
    lambda d, x: x.scatter_add_(0, ints(d, [[[4]]]), ramp(d, 1, 1, 1)),
    lambda d, x: x.scatter_reduce(0, ints(d, [[[4]]]), ramp(d, 1, 1, 1), "sum"),
    lambda d, x: x.scatter(0, ints(d, [[[0, 0]]]), ramp(d, 1, 1, 1)),
    lambda d, x: x.masked_fill(ints(d, [1]), 0),
    lambda d, x: x.masked_fill(mask(d, 4), 0),
    lambda d, x: x.masked_scatter(mask(d, 4, 3, 5), ramp(d, 2)),
    lambda d, x: torch.nn.functional.embedding(ints(d, 4), x[:, 0]),
    lambda d, x: torch.nn.functional.embedding(ints(d, -1), x[:, 0]),
)
def test_outside(program):
    refuses(lambda device: program(device, ramp(device, *SHAPE)))


@cases(
    lambda d, x: x.__setitem__(0, ramp(d, 4, 5)),
    lambda d, x: x.__setitem__(slice(0, 2), ramp(d, 3, 3, 5)),
    lambda d, x: x.__setitem__(ints(d, 0, 2), ramp(d, 3, 3, 5)),
    lambda d, x: x.__setitem__(mask(d, 4), ramp(d, 4, 3, 5)),
    lambda d, x: x.__setitem__((0, 0, 0), ramp(d, 2)),
    lambda d, x: x.__setitem__(ints(d, 0, 1), torch.ones(3, 5, dtype=torch.float64).to(d)),
    lambda d, x: x.index_put_((ints(d, 0),), torch.ones(5, dtype=torch.int64).to(d)),
    lambda d, x: x.index_copy_(0, ints(d, 0), ramp(d, 1, 3, 4)),
    lambda d, x: x.index_add_(0, ints(d, 0, 1), ramp(d, 1, 3, 5)),
    lambda d, x: x.index_add_(0, ints(d, [0]), ramp(d, 1, 3, 5, dtype=torch.float64)),
    lambda d, x: x.index_fill_(0, ints(d, 0), ramp(d, 2)),
    lambda d, x: x.__setitem__(0, "a"),
    lambda d, x: x.__setitem__(0, [1, 2]),
    lambda d, x: x.__setitem__(0, None),
)
def test_values_that_do_not_fit(program):
    refuses(lambda device: program(device, ramp(device, *SHAPE)))


def test_a_message_says_what_was_out_of_range():
    x = ramp(DEVICE, *SHAPE)
    for read, words in [
        (lambda: x[4], ["index 4", "dimension 0", "size"]),
        (lambda: x[:, ints(DEVICE, 0, 3)], ["index 3", "dimension 1", "size 3"]),
        (lambda: x[mask(DEVICE, 3)], ["mask", "[3]", "[4, 3, 5]"]),
        (lambda: x[ints(DEVICE, 0, 1), ints(DEVICE, 0, 1, 2)], ["broadcast", "[2]", "[3]"]),
        (lambda: x[0, 0, 0, 0], ["too many indices", "3"]),
    ]:
        with pytest.raises(IndexError) as caught:
            read()
        for word in words:
            assert word in str(caught.value), (word, str(caught.value))


def test_a_refused_write_changes_nothing():
    x = ramp(DEVICE, *SHAPE)
    writes = [
        lambda: x.__setitem__(ints(DEVICE, 0, 4), 0.0),
        lambda: x.__setitem__(0, ramp(DEVICE, 4, 5)),
        lambda: x[1].__setitem__(ints(DEVICE, 3), 0.0),
        lambda: x.index_add_(0, ints(DEVICE, 0, 4), ramp(DEVICE, 2, 3, 5)),
        lambda: x.scatter_(0, ints(DEVICE, [[[0, 4]]]), 1.0),
        lambda: x.put_(ints(DEVICE, 0, 60), ramp(DEVICE, 2)),
        lambda: x.masked_scatter_(mask(DEVICE, 4, 3, 5), ramp(DEVICE, 2)),
    ]
    version = x._version
    for write in writes:
        with pytest.raises((IndexError, RuntimeError)):
            write()
        same(x, ramp("cpu", *SHAPE))
    assert x._version == version


def test_an_index_tensor_on_another_device_than_cpu_or_the_tensors():
    with pytest.raises((RuntimeError, NotImplementedError)):
        ramp(DEVICE, *SHAPE)[torch.zeros(2, dtype=torch.int64, device="meta")]
    with pytest.raises(RuntimeError):  # a CPU tensor takes no indices from the device, as from cuda
        ramp("cpu", *SHAPE)[ints(DEVICE, 0, 1)]


# --- under jax.jit --------------------------------------------------------------------------------


TRACED = [
    lambda x, i, m: x[1, :, -2:],
    lambda x, i, m: x[i],
    lambda x, i, m: x[:, i % 3],
    lambda x, i, m: x[i, 0, i],
    lambda x, i, m: x[[0, 2], None, ..., 1],
    lambda x, i, m: x[torch.arange(3), [0, 1, 2]],
    lambda x, i, m: x[torch.tensor([True, False, True, False])],
    lambda x, i, m: torch.where(m[:, None, None], x, 0),
    lambda x, i, m: write(x, 0, 5),
    lambda x, i, m: write(x, i, -1),
    lambda x, i, m: write(x, (slice(None), i % 3), x[0, 0]),
    lambda x, i, m: write(x, m, 7),
    lambda x, i, m: write(x, m, x[0, 0, 0]),
    lambda x, i, m: write(x, x > 30, 0),
    lambda x, i, m: x.index_select(0, i),
    lambda x, i, m: x.index_add(0, i, x[:2]),
    lambda x, i, m: x.gather(0, i[:, None, None].expand(2, 3, 5)),
    lambda x, i, m: x.scatter_add(0, i[:, None, None].expand(2, 3, 5), x[:2]),
    lambda x, i, m: x.take(i),
    lambda x, i, m: x.masked_fill(m[:, None, None], 2),
    lambda x, i, m: torch.nn.functional.embedding(i, x[:, 0]),
    lambda x, i, m: x[torch.arange(2), i % 3],
    lambda x, i, m: write(x, (torch.arange(2), slice(None), i), 3),
]


def write(x: torch.Tensor, at: Any, value: Any) -> torch.Tensor:
    y = x.clone()
    y[at] = value
    return y


@pytest.mark.parametrize("program", TRACED, ids=[f"line{p.__code__.co_firstlineno}" for p in TRACED])
def test_under_jit(program):
    x, i, m = ramp("cpu", *SHAPE), ints("cpu", 3, -1 if "take" in program.__code__.co_names else 0), mask("cpu", 4)
    got = jax.jit(program)(x.to(DEVICE), i.to(DEVICE), m.to(DEVICE))
    torch.testing.assert_close(got.cpu(), program(x, i, m))


@cases(
    lambda x, i: x[i],
    lambda x, i: x[:, i],
    lambda x, i: x[..., i],
    lambda x, i: x[i, 1:, i],
    lambda x, i: write(x, i, 0),
    lambda x, i: write(x, (slice(None), i), x[0, :1]),
)
def test_a_number_that_is_traced_is_an_index(program):
    x = ramp("cpu", *SHAPE)
    fn = jax.jit(program)
    for i in (0, 2):
        torch.testing.assert_close(fn(x.to(DEVICE), ints(DEVICE, i)).cpu(), program(x, i))


def test_a_mask_has_no_length_under_jit():
    x = ramp(DEVICE, *SHAPE)
    for read in (lambda x: x[x > 3], lambda x: x.nonzero(), lambda x: x.masked_select(x > 3)):
        with pytest.raises(RuntimeError, match="trace"):
            jax.jit(read)(x)


def test_positions_are_not_compiled_in():
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if name.endswith("backend_compile_duration") else None
    )
    x = ramp(DEVICE, 40)
    index = [ints(DEVICE, i, i + 1) for i in range(12)]
    try:
        for i in range(12):
            x[i] = i
            x[i : i + 4] = 3.0
            x[index[i]] += 1.0
            x[i].cpu()
            if i == 1:
                compiled.clear()
        assert not compiled
    finally:
        jax.monitoring.clear_event_listeners()

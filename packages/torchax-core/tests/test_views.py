"""Views: they share memory as PyTorch's do, with its strides, and every write goes through, in both directions."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from _programs import DEVICE, cases, check, leaf, ramp, refuses, same, weighted

aten = torch.ops.aten
View = Callable[[torch.Tensor], Any]

MATRIX, CUBE = (4, 6), (2, 3, 4)


def views_of(shape: tuple[int, ...], dtype: torch.dtype, *views: View) -> list[Any]:
    return [pytest.param(shape, dtype, v, id=f"line{v.__code__.co_firstlineno}") for v in views]


REAL_VIEWS = [
    *views_of(
        MATRIX,
        torch.float32,
        lambda x: x.view(2, 2, 6),
        lambda x: x.view(-1),
        lambda x: x.view(3, -1),
        lambda x: x.reshape(8, 3),
        lambda x: x.view_as(torch.empty(2, 12)),
        lambda x: x.flatten(),
        lambda x: x.ravel(),
        lambda x: x.unflatten(1, (2, 3)),
        lambda x: x.t(),
        lambda x: x.T,
        lambda x: x.mT,
        lambda x: x.H,
        lambda x: x.adjoint(),
        lambda x: x.transpose(0, -1),
        lambda x: x.swapaxes(0, 1),
        lambda x: x.permute(1, 0),
        lambda x: x.movedim(0, 1),
        lambda x: x.select(0, 1),
        lambda x: x.select(1, -2),
        lambda x: x[2],
        lambda x: x[-1, 1:],
        lambda x: x[1, 2],
        lambda x: x[:, ::2],
        lambda x: x[1:4:2, 1:6:3],
        lambda x: x[-2:, :-3],
        lambda x: x[2:2],
        lambda x: x[5:],
        lambda x: x[...],
        lambda x: x[None, 1, None, ..., 2:4],
        lambda x: x[..., 3],
        lambda x: x.narrow(1, 2, 3),
        lambda x: x.narrow(0, torch.tensor(1), 2),
        lambda x: x.split(3),
        lambda x: x.split([1, 2, 3], dim=1),
        lambda x: x.split_with_sizes([1, 3]),
        lambda x: x.chunk(4, -1),
        lambda x: x.unbind(),
        lambda x: x.unbind(-1)[2:4],
        lambda x: x.tensor_split(3),
        lambda x: x.tensor_split((1, 4), dim=1),
        lambda x: x.hsplit(2),
        lambda x: x.vsplit([3]),
        lambda x: x.diagonal(),
        lambda x: x.diagonal(2),
        lambda x: x.diagonal(-1, 1, 0),
        lambda x: x.unfold(1, 2, 2),
        lambda x: x.unfold(0, 1, 3),
        lambda x: x.as_strided((2, 3), (7, 2), 1),
        lambda x: x.as_strided((3,), (1,), 4),
        lambda x: x.unsqueeze(1),
        lambda x: x.unsqueeze(-1),
        lambda x: x.squeeze(),
        lambda x: x.detach(),
        lambda x: x.data,
        lambda x: x.real,
        lambda x: x.contiguous(),
        lambda x: x.view(torch.int32),
        lambda x: x.view(torch.float64),
        lambda x: x.view(torch.int16),
        lambda x: x.expand(4, 6),
        lambda x: x.expand_as(x),
        lambda x: torch.atleast_3d(x),
        lambda x: aten.alias(x),
    ),
    *views_of(
        CUBE,
        torch.float32,
        lambda x: x.permute(2, 0, 1),
        lambda x: x.mT,
        lambda x: x.movedim((0, 1), (1, 2)),
        lambda x: x.flatten(1),
        lambda x: x.flatten(0, 1),
        lambda x: x.diagonal(dim1=1, dim2=2),
        lambda x: x.diagonal(1, 0, -1),
        lambda x: x[1, :, ::3],
        lambda x: x.dsplit(2),
        lambda x: x.unfold(2, 2, 2),
        lambda x: x.reshape(6, 4),
    ),
    *views_of(
        (1, 3, 1, 2),
        torch.float32,
        lambda x: x.squeeze(),
        lambda x: x.squeeze(0),
        lambda x: x.squeeze(1),
        lambda x: x.squeeze((0, -2)),
        lambda x: x.flatten(0, 2),
    ),
    *views_of(
        (), torch.float32, lambda x: x.view(1), lambda x: x[None], lambda x: x.unsqueeze(-1), lambda x: x[...]
    ),
    *views_of((0, 3), torch.float32, lambda x: x.t(), lambda x: x.view(3, 0), lambda x: x[:, 1]),
]  # fmt: skip

OTHER_VIEWS = [
    *views_of(
        MATRIX,
        torch.complex64,
        lambda x: torch.view_as_real(x),
        lambda x: x.real,
        lambda x: x.imag,
        lambda x: x.real[1:, ::2],
        lambda x: x.conj(),
        lambda x: x.conj().imag,
        lambda x: x.conj().conj(),
        lambda x: x.H,
        lambda x: x.mH[1],
        lambda x: x.t().real,
        lambda x: x.view(torch.float32),
        lambda x: x.view(torch.float64),
        lambda x: torch.view_as_complex(torch.view_as_real(x))[0],
    ),
    *views_of((3, 4, 2), torch.float64, lambda x: torch.view_as_complex(x), lambda x: torch.view_as_complex(x[1:])),
    *views_of(
        MATRIX,
        torch.int32,
        lambda x: x.view(torch.float32),
        lambda x: x.view(torch.int64),
        lambda x: x.view(torch.uint8)[:, 4:8],
        lambda x: x.t().view(torch.float32),
    ),
    *views_of(MATRIX, torch.bool, lambda x: x.view(torch.uint8), lambda x: x.t()),
    *views_of(MATRIX, torch.bfloat16, lambda x: x.view(torch.int16), lambda x: x.view(torch.int32)),
    *views_of(MATRIX, torch.int8, lambda x: x[:, :4].view(torch.int16), lambda x: x.view(torch.bool)),
]  # fmt: skip


def pieces(v: Any) -> list[torch.Tensor]:
    return list(v) if isinstance(v, (list, tuple)) else [v]


def aliasing(device: str, shape: tuple[int, ...], dtype: torch.dtype, view: View) -> Any:
    """All that can be seen of a view, then a write to it seen in the base, then a write to the base seen in it."""
    base = ramp(device, *shape, dtype=dtype)
    found = pieces(view(base))
    seen: list[Any] = [
        (v.stride(), v.is_contiguous(), v.data_ptr() - base.data_ptr() if v.numel() else 0) for v in found
    ]
    seen += [v.clone() for v in found]
    for k, v in enumerate(found):
        v.copy_(ramp(device, *v.shape, dtype=v.dtype, start=100 + 50 * k))
    seen.append(base.clone())
    base.mul_(base)
    seen += [base, *found]
    return seen


@pytest.mark.parametrize(("shape", "dtype", "view"), [*REAL_VIEWS, *OTHER_VIEWS])
def test_a_view_shares_memory_both_ways(shape: tuple[int, ...], dtype: torch.dtype, view: View):
    got, want = (aliasing(d, shape, dtype, view) for d in (DEVICE, "cpu"))
    same(got, want)


def test_copies_are_no_views():
    def program(device: str) -> Any:
        x = ramp(device, *MATRIX)
        copies = [
            x.clone(), x[torch.tensor([0, 1])], x.t().contiguous(), x.t().reshape(-1), torch.diag(x), x.repeat(1, 1),
            x.flip(0), x[x > 0], torch.cat([x]), x.t().flatten(), x.to(torch.float32, copy=True), x * 1,
        ]  # fmt: skip
        for c in copies:
            c.zero_()
        return [x, *(c._is_view() for c in copies)]

    check(program)


def test_a_view_knows_its_base():
    def program(device: str) -> Any:
        x = ramp(device, *MATRIX)
        made = [x[0], x.t()[1:], x.view(-1)[2:].unsqueeze(0), x.detach(), *x.unbind(1)]
        y = x.clone()
        same_memory = [v.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for v in (*made, y)]
        return (
            [v._is_view() for v in made],
            [v._base is x for v in made],
            same_memory,
            x.is_set_to(x),
            x.is_set_to(x[0]),
        )

    check(program)


# --- views of views -------------------------------------------------------------------------------

DEEP = [
    lambda x: x.t()[1:5].t()[::2],
    lambda x: x[1:].t()[2],
    lambda x: x.view(2, 2, 6).permute(2, 0, 1)[::2, 1],
    lambda x: x.t().unflatten(0, (3, 2)).select(1, 1).diagonal(),
    lambda x: x.diagonal()[1:3].unsqueeze(0).expand(1, 2),
    lambda x: x.unfold(1, 3, 3)[:, 1].t(),
    lambda x: x[:, ::2][:, 1:][1::2],
    lambda x: x[::2][1][2::2],
    lambda x: x.as_strided((3, 4), (4, 1), 2)[:, 1:3].as_strided((2, 2), (6, 3), 3),
    lambda x: x.t().view(torch.int32)[1:].view(torch.float32).t(),
    lambda x: x.split(2, 1)[1].chunk(2)[1].squeeze().unbind(1)[0],
    lambda x: torch.view_as_complex(x.view(4, 3, 2)).t()[1:].imag,
    lambda x: torch.view_as_complex(x.view(4, 3, 2)).conj()[1].real,
    lambda x: x.T.T.T[None, 2:4, None].movedim(1, -1).squeeze(0),
    lambda x: x.view(-1)[1:-1].view(2, 11)[:, 1::5],
]


def write_deep(device: str, view: View) -> Any:
    base = ramp(device, *MATRIX)
    v = view(base)
    place = (v.storage_offset(), v.data_ptr() - base.data_ptr()) if v.numel() else 0
    before, steps = v.clone(), (v.stride(), place)
    v.mul_(-2)
    base[1].add_(0.5)
    return before, steps, base, v


@pytest.mark.parametrize("view", DEEP, ids=[f"line{v.__code__.co_firstlineno}" for v in DEEP])
def test_views_of_views(view: View):
    check(lambda device: write_deep(device, view))


def a_step(draw: random.Random, shape: tuple[int, ...]) -> View:
    """Some view that fits any tensor of this shape."""
    if not shape:
        return lambda v: v.view(1, 1)
    d, e = (draw.randrange(len(shape)) for _ in range(2))
    a, b = sorted(draw.randrange(shape[d] + 1) for _ in range(2))
    step, k = draw.choice([1, 2, 3]), draw.randrange(max(shape[d], 1))
    choices: list[View] = [
        lambda v: v.transpose(d, e),
        lambda v: v.narrow(d, a, b - a),
        lambda v: v[(slice(None),) * d + (slice(a, None, step),)],
        lambda v: v.unsqueeze(d),
        lambda v: v.squeeze(),
        lambda v: v.flatten() if v.is_contiguous() else v.permute(*reversed(range(v.ndim))),
    ]
    if shape[d]:
        choices += [lambda v: v.select(d, k), lambda v: v.unfold(d, 1 + k // 2, 1 + k // 2)]
    if d != e:
        choices.append(lambda v: v.diagonal(k % 2, d, e))
    return draw.choice(choices)


@pytest.mark.parametrize("seed", range(12))
def test_random_views_of_views(seed: int):
    draw, shape, steps = random.Random(seed), torch.empty(MATRIX), []
    for _ in range(5):
        steps.append(a_step(draw, tuple(shape.shape)))
        shape = steps[-1](shape)

    def view(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = step(x)
        return x

    check(lambda device: write_deep(device, view))


# --- what cannot be viewed, or written through ----------------------------------------------------


@cases(
    lambda d: ramp(d, 4, 6).t().view(-1),
    lambda d: ramp(d, 4, 6).view(5, 5),
    lambda d: ramp(d, 4, 6).view(-1, -1),
    lambda d: ramp(d, 4, 6).view(-1, 7),
    lambda d: ramp(d, 4, 6).reshape(7),
    lambda d: ramp(d, 0, 6).view(-1, 0),
    lambda d: ramp(d, 4, 6)[:, :3].view(12),
    lambda d: ramp(d, 4, 6).unflatten(1, (2, 4)),
    lambda d: ramp(d, 4, 6).flatten(1, 0),
    lambda d: ramp(d, 4, 6).transpose(0, 2),
    lambda d: ramp(d, 4, 6).permute(0, 0),
    lambda d: ramp(d, 4, 6).permute(0),
    lambda d: ramp(d, 2, 3, 4).t(),
    lambda d: ramp(d, 4, 6).movedim(0, 2),
    lambda d: ramp(d, 4, 6).select(0, 4),
    lambda d: ramp(d, 4, 6).select(2, 0),
    lambda d: ramp(d).select(0, 0),
    lambda d: ramp(d, 4, 6).narrow(1, 4, 3),
    lambda d: ramp(d, 4, 6).narrow(1, -7, 1),
    lambda d: ramp(d, 4, 6).narrow(0, 0, -1),
    lambda d: ramp(d, 4, 6).split([1, 2]),
    lambda d: ramp(d, 4, 6).split(-1),
    lambda d: ramp(d, 4, 6).chunk(0),
    lambda d: ramp(d).unbind(),
    lambda d: ramp(d, 4, 6).hsplit(4),
    lambda d: ramp(d, 4).diagonal(),
    lambda d: ramp(d, 4, 6).diagonal(0, 1, 1),
    lambda d: ramp(d, 4, 6).unfold(1, 7, 1),
    lambda d: ramp(d, 4, 6).unfold(1, 2, 0),
    lambda d: ramp(d, 4, 6).as_strided((4, 7), (7, 1)),
    lambda d: ramp(d, 4, 6).as_strided((2, 2), (1,)),
    lambda d: ramp(d, 4, 6).as_strided((2, 2), (-1, 1), 5),
    lambda d: ramp(d, 4, 6).expand(4, 7),
    lambda d: ramp(d, 4, 6).expand(6),
    lambda d: ramp(d, 4, 6).expand(-1, 4, 6),
    lambda d: ramp(d, 4, 6).squeeze(2),
    lambda d: ramp(d, 4, 6).unsqueeze(3),
    lambda d: ramp(d, 4, 5).view(torch.float64),
    lambda d: ramp(d, 4, 6).t().view(torch.float64),
    lambda d: ramp(d).view(torch.float64),
    lambda d: torch.view_as_complex(ramp(d, 4, 3)),
    lambda d: torch.view_as_complex(ramp(d, 4, 2, dtype=torch.int32)),
    lambda d: torch.view_as_real(ramp(d, 4, 2)),
    lambda d: ramp(d, 4, 6).imag,
    lambda d: ramp(d, 4, 6)[::-1],
    lambda d: ramp(d, 4, 6)[::0],
)
def test_views_that_pytorch_refuses(program):
    refuses(program)


@cases(
    lambda d: ramp(d, 1, 6).expand(4, 6).add_(1),
    lambda d: ramp(d, 1, 6).expand(4, 6).copy_(ramp(d, 4, 6)),
    lambda d: ramp(d).expand(3).mul_(2),
    lambda d: ramp(d, 6)[None].expand(4, 6)[1:].sub_(1),
    lambda d: ramp(d, 6).as_strided((2, 3), (0, 1)).add_(1),
    lambda d: torch.add(ramp(d, 4, 6), 1, out=ramp(d, 1, 6).expand(4, 6)),
    lambda d: ramp(d, 1, 6).expand(4, 6).relu_(),
)
def test_writes_to_one_place_many_times_are_refused(program):
    refuses(program, "single memory location")


@cases(
    lambda x: x[0].expand(4, 6).zero_(),
    lambda x: x[0][None].expand(4, 6)[1:].fill_(0),
    lambda x: x[0].expand(4, 6)[1].mul_(2),
    lambda x: x[:1].expand(4, 6).t()[2:4, 3].add_(1),
    lambda x: x.unfold(1, 3, 1).fill_(2),
    lambda x: x.unfold(1, 3, 1)[:, 1].mul_(2),
    lambda x: x.unfold(1, 3, 1)[1, :, 2].mul_(2),
    lambda x: x.as_strided((3, 3), (1, 1))[1].mul_(2),
    lambda x: x.as_strided((3, 3), (1, 1)).t()[2].copy_(x[3, :3]),
)
def test_writes_to_a_part_that_has_each_place_once(program):
    def change(device: str) -> Any:
        x = ramp(device, *MATRIX)
        return x, program(x)

    check(change)


def test_an_expanded_tensor_reads_its_one_value_everywhere():
    def program(device: str) -> Any:
        x = ramp(device, 1, 6)
        v = x.expand(4, 6)
        x.add_(1)
        v[0].mul_(2)  # one row of it is an ordinary view
        w = torch.broadcast_to(x[0, :2], (3, 2))
        return v, v.t(), v.sum(0), w.is_contiguous(), w, v.contiguous()

    check(program)


# --- in-place operators through views, with autograd ----------------------------------------------


def gradients(
    device: str, change: Callable[[torch.Tensor], Any], *, shape: Any = MATRIX, dtype: Any = torch.float32
) -> Any:
    """What a function of a fresh non-leaf tensor does to it, and the gradient through that."""
    w = leaf(device, *shape, dtype=dtype)
    y = w * 2
    out = change(y)
    loss = weighted(y) + (weighted(out * out) if isinstance(out, torch.Tensor) else 0)
    loss.backward()
    return y, w.grad


CHANGES = [
    lambda y: y[0].mul_(10),
    lambda y: y.t()[1:3].exp_(),
    lambda y: y.view(2, 2, 6)[1, :, ::2].add_(y[0, :3]),
    lambda y: y.diagonal().pow_(2),
    lambda y: y.unfold(1, 2, 2).mul_(3)[0],
    lambda y: y.as_strided((2, 3), (7, 2), 1).mul_(y[0, :3]),
    lambda y: y.split(2)[1].sigmoid().mul_(3),
    lambda y: y.select(1, 2).copy_(y[:, 0]),
    lambda y: y[1:3].zero_(),
    lambda y: y[:, 1].fill_(2).neg_(),
    lambda y: y.narrow(0, 1, 2).t().squeeze().sin_(),
    lambda y: y.__setitem__((1, slice(None, None, 2)), y[2, 3:] * 2),
    lambda y: y.__setitem__(y > 0, 1.5),
    lambda y: y[2].detach().mul_(3),
    lambda y: y.view(-1)[3:9].view(2, 3).mul_(y[0, :3]).clone(),
    lambda y: y.unsqueeze(0).expand(2, 4, 6)[1].mul_(2),
    lambda y: torch.view_as_complex(y.view(4, 3, 2))[1].mul_(2j).real,
    lambda y: y.squeeze_().t_().unsqueeze_(0).mul_(y.detach()),
]


@pytest.mark.parametrize("change", CHANGES, ids=[f"line{c.__code__.co_firstlineno}" for c in CHANGES])
def test_gradients_through_writes_to_views(change: Callable[[torch.Tensor], Any]):
    check(lambda device: gradients(device, change))


COMPLEX_CHANGES = [
    lambda z: z.real.mul_(3),
    lambda z: z.imag[1].copy_(z.real[0]),
    lambda z: z.conj().t()[1:].mul_(2j),
    lambda z: torch.view_as_real(z)[..., 1].exp_(),
]


@pytest.mark.parametrize("change", COMPLEX_CHANGES, ids=[f"line{c.__code__.co_firstlineno}" for c in COMPLEX_CHANGES])
def test_gradients_through_writes_to_complex_views(change: Callable[[torch.Tensor], Any]):
    check(lambda device: gradients(device, change, shape=(2, 3), dtype=torch.complex64))


def test_gradients_of_the_views_themselves():
    def program(device: str) -> Any:
        w = leaf(device, *MATRIX)
        parts = [
            w.t(), w.diagonal(1), w.unfold(1, 3, 1), w.as_strided((4, 4), (5, 1), 2), w[:, 1::2],
            w[None].expand(2, 4, 6), w.view(2, 12).chunk(3, 1)[1], w.unbind(1)[2], w.movedim(0, 1)[3], w[-1],
        ]  # fmt: skip
        return torch.autograd.grad(sum(weighted(p * p) for p in parts), w)

    check(program)


def test_a_view_made_before_the_write_sees_it_and_its_gradient():
    def program(device: str) -> Any:
        w = leaf(device, *MATRIX)
        y = w * 2
        row, column = y[1], y[:, 1]
        y.mul_(3)
        row.add_(column.sum())
        weighted(column * column).backward()
        return row, column, y, w.grad

    check(program)


def test_a_leaf_written_without_grad_keeps_its_gradient_right():
    def program(device: str) -> Any:
        w = leaf(device, *MATRIX)
        with torch.no_grad():
            w[0].mul_(2)
            w.t()[1] = 7
            w.data.view(-1)[5] = -1
        weighted(w * w).backward()
        return w, w.grad

    check(program)


@cases(
    lambda d: [y := leaf(d, 4).exp(), y.view(2, 2)[0].zero_(), y.sum().backward()],
    lambda d: [w := leaf(d, 4), y := w * 1, z := y * y, y[1:].add_(1), z.sum().backward()],
    lambda d: [y := leaf(d, 4) * 1, v := y[:2], z := v.sin(), y.mul_(2), z.sum().backward()],
)
def test_a_write_through_a_view_to_what_backward_needs_is_noticed(program):
    refuses(program, "modified by an inplace operation")


def test_versions_count_writes_to_any_view():
    def program(device: str) -> Any:
        x = ramp(device, *MATRIX)
        v = x.t()[1:]
        seen = [x._version, v._version]
        v.add_(1)
        seen += [x._version, v._version]
        x[0, 0] = 3
        x.zero_()
        return [*seen, x._version, v._version]

    check(program)


def test_views_in_inference_mode():
    def program(device: str) -> Any:
        made_outside = ramp(device, *MATRIX)
        w = leaf(device, *MATRIX)
        with torch.inference_mode():
            made_inside = ramp(device, *MATRIX)
            v = made_inside.t()[1]
            v.mul_(2)
            out = [made_outside[1:].t() * 2, v, made_inside.view(-1)[::5], w[1:].t() + 1, *made_outside.split(2)]
        made_outside[0].mul_(3)
        return [o.clone() for o in out], [o.is_inference() for o in out], made_outside, made_inside.clone()

    check(program)


# --- foreach over targets that overlap or repeat --------------------------------------------------


@cases(
    lambda d: [x := ramp(d, 4, 6), torch._foreach_add_([x, x], 1)],
    lambda d: [x := ramp(d, 4, 6), torch._foreach_mul_([x, x[0]], 2)],
    lambda d: [x := ramp(d, 4, 6), torch._foreach_mul_([x[0], x, x.t()[0]], [2, 3, 5])],
    lambda d: [x := ramp(d, 4, 6), torch._foreach_add_(list(x.unbind()), list(x.flip(0).unbind()))],
    lambda d: [x := ramp(d, 4, 6), y := x * 1, torch._foreach_add_([x[:2], x[1:3]], [y[2:], y[2:]])],
    lambda d: [x := ramp(d, 4, 6), torch._foreach_zero_([x[0], x[:, 1]])],
    lambda d: [x := ramp(d, 4, 6), torch._foreach_copy_([x[0], x[1]], [x[1], x[0]])],
    lambda d: [x := ramp(d, 6), y := ramp(d, 6), torch._foreach_addcmul_([x, x], [y, x], [y, y], 2.0)],
    lambda d: [x := ramp(d, 6), y := x * 2, torch._foreach_lerp_([x[:3], x[3:]], [y[:3], y[:3]], 0.5)],
    lambda d: [x := ramp(d, 6), torch._foreach_sqrt_([x[:2], x[4:]])],
)
def test_foreach_writes_one_after_the_other(program):
    def tensors(device: str) -> Any:
        return [t for t in program(device) if isinstance(t, torch.Tensor)]

    check(tensors)


def test_an_operator_reads_all_before_it_writes():
    def program(device: str) -> Any:
        x = ramp(device, 4, 4)
        x.copy_(x.t().clone())
        y = ramp(device, 6)
        y[1:].copy_(y[:-1].clone())
        torch.add(y, y, out=y)
        z = ramp(device, 4, 4)
        z.addmm_(z.clone(), z.t().clone())
        u = ramp(device, 4, 4)
        torch.mul(u[0], u[0], out=u[0])
        return x, y, z, u

    check(program)


# --- in-place changes of shape, storage and data --------------------------------------------------


def shaped(x: torch.Tensor) -> Any:
    return x, x.stride(), x.storage_offset(), x.is_contiguous(), x.numel(), x.dim(), len(x) if x.dim() else None


@cases(
    lambda d: [x := ramp(d, 1, 4, 6), x.squeeze_(0)],
    lambda d: [x := ramp(d, 1, 4, 1, 6), x.squeeze_()],
    lambda d: [x := ramp(d, 1, 4, 1, 6), x.squeeze_((0, 2)).t_()],
    lambda d: [x := ramp(d, 4, 6), x.squeeze_(0).unsqueeze_(-1).unsqueeze_(0)],
    lambda d: [x := ramp(d, 4, 6), x.t_(), x.mul_(2), x[0].add_(1)],
    lambda d: [x := ramp(d, 2, 3, 4), x.transpose_(0, 2).transpose_(1, -1)],
    lambda d: [x := ramp(d, 2, 3, 4), x.swapaxes_(0, 1).swapdims_(1, 2)],
    lambda d: [x := ramp(d, 4, 6), x.as_strided_((2, 3), (7, 2), 1), x.neg_()],
    lambda d: [x := ramp(d, 4, 6), v := x[1:], x.t_(), v.zero_(), x[0].add_(1)],
    lambda d: [x := ramp(d, 4, 6), v := x[1], v.unsqueeze_(0).t_(), v.mul_(2), x],
    lambda d: [x := ramp(d, 4, 6), x.resize_(2, 3), x.add_(1)],
    lambda d: [x := ramp(d, 4, 6), y := x.view(-1), x.resize_(2, 3), x.zero_(), y],
    lambda d: [x := ramp(d, 4, 6), x.resize_(5, 6), x[4].fill_(0)],
    lambda d: [x := ramp(d, 4, 6), v := x[1], v.resize_(12), v.mul_(2), x],
    lambda d: [x := ramp(d, 4, 6).t(), x.resize_(3, 4)],
    lambda d: [x := ramp(d, 4, 6), x.resize_as_(ramp(d, 3, 2))],
    lambda d: [x := ramp(d, 4, 6), x.resize_(0), x.resize_(3).fill_(1)],
    lambda d: [x := torch.empty(0).to(d), x.resize_(2, 2).fill_(3)],
    lambda d: [x := ramp(d, 2, 3, 2, 2), x.resize_((2, 3, 2, 2), memory_format=torch.channels_last)],
    lambda d: [x := ramp(d, 4, 6), y := ramp(d, 3), x.set_(y), x.mul_(2), y],
    lambda d: [x := ramp(d, 4, 6), y := ramp(d, 12), x.set_(y[2:8].view(2, 3).t()), x.mul_(2), y],
    lambda d: [x := ramp(d, 4, 6), x.set_()],
    lambda d: [x := ramp(d, 4, 6), y := ramp(d, 3), y.set_(x, 2, (3, 2), (6, 2)), y.zero_()],
    lambda d: [x := ramp(d, 4, 6), y := ramp(d, 3), y.set_(x.untyped_storage(), 2, (3, 2), (6, 2)), y.zero_()],
    lambda d: [x := ramp(d, 4, 6), y := ramp(d, 3), v := x[0], x.set_(y), v.zero_(), y],
    lambda d: [x := ramp(d, 4, 6), y := ramp(d, 3), x.__setattr__("data", y), x.mul_(2), y],
    lambda d: [x := leaf(d, 4, 6), y := ramp(d, 6, 4).t(), x.__setattr__("data", y), x],
    lambda d: [x := leaf(d, 3), x.__setattr__("data", ramp(d, 2, 2)), weighted(x * x).backward(), x.grad],
    lambda d: [x := ramp(d, 3), x.__setattr__("data", ramp(d, 2, dtype=torch.int64)), x.add_(1)],
)
def test_changes_of_shape_in_place(program):
    def tensors(device: str) -> Any:
        return [shaped(t) for t in program(device) if isinstance(t, torch.Tensor)]

    check(tensors)


def test_changes_of_shape_keep_the_graph():
    def program(device: str) -> Any:
        w = leaf(device, 1, *MATRIX)
        y = w * 2
        same_object = y
        y.squeeze_(0).t_().mul_(3)
        y[0].exp_()
        y.unsqueeze_(1)
        weighted(y).backward()
        return same_object is y, y, w.grad

    check(program)


@cases(
    lambda d: ramp(d, 4, 6).squeeze_(3),
    lambda d: ramp(d, 4, 6).unsqueeze_(4),
    lambda d: ramp(d, 2, 3, 4).t_(),
    lambda d: ramp(d, 4, 6).transpose_(0, 2),
    lambda d: ramp(d, 4, 6).as_strided_((9, 9), (9, 1)),
    lambda d: ramp(d, 4, 6).resize_(-1, 2),
    lambda d: leaf(d, 4, 6).resize_(2, 2),
    lambda d: (leaf(d, 4, 6) * 1).resize_(2, 2),
    lambda d: leaf(d, 4, 6).t_(),
)
def test_changes_of_shape_that_pytorch_refuses(program):
    refuses(program)


def test_a_refused_change_of_shape_changes_nothing():
    x = ramp(DEVICE, *MATRIX)
    for change in (lambda: x.unsqueeze_(4), lambda: x.transpose_(0, 2), lambda: x.as_strided_((9, 9), (9, 1))):
        with pytest.raises((IndexError, RuntimeError)):
            change()
        same(shaped(x), shaped(ramp("cpu", *MATRIX)))


def test_out_is_resized_and_written_through():
    def program(device: str) -> Any:
        x, empty, base = ramp(device, 2, 3), torch.empty(0).to(device), ramp(device, 4, 6)
        torch.add(x, 1, out=empty)
        torch.mul(x, 2, out=base[1:3, 1:4])
        torch.sub(x, 1, out=base.t()[4:6, :3])
        values, indices = torch.empty(0).to(device), torch.empty(0, dtype=torch.int64).to(device)
        torch.max(x, 1, out=(values, indices))
        transposed = torch.empty(3, 2).to(device).t()
        torch.neg(x, out=transposed)
        wide, narrow, whole = (
            torch.zeros(2, 3, dtype=t).to(device) for t in (torch.float64, torch.float16, torch.int64)
        )
        torch.add(x, 1 / 3, out=wide)
        torch.add(x, 1 / 3, out=narrow)
        torch.add(x.int(), 2, out=whole)
        return empty, base, values, indices, transposed, wide + 2**-40, narrow, whole + 2**40

    check(program)


def test_out_of_another_size_warns_and_is_resized():
    def program(device: str) -> Any:
        out = ramp(device, 5)
        with pytest.warns(UserWarning, match="resized"):
            torch.add(ramp(device, 2, 3), 1, out=out)
        return out

    check(program)


# --- memory formats -------------------------------------------------------------------------------

IMAGE = (2, 3, 4, 2)


def formats(x: torch.Tensor) -> Any:
    return x, x.stride(), x.is_contiguous(), x.is_contiguous(memory_format=torch.channels_last)


@cases(
    lambda d: ramp(d, *IMAGE).to(memory_format=torch.channels_last),
    lambda d: ramp("cpu", *IMAGE).to(memory_format=torch.channels_last).to(d),
    lambda d: ramp("cpu", *IMAGE).to(d, memory_format=torch.channels_last),
    lambda d: ramp(d, *IMAGE).contiguous(memory_format=torch.channels_last),
    lambda d: torch.empty(IMAGE, device=d, memory_format=torch.channels_last).fill_(1),
    lambda d: torch.zeros_like(last(d)),
    lambda d: torch.empty_like(last(d)).fill_(2),
    lambda d: torch.empty_like(last(d), memory_format=torch.contiguous_format).fill_(2),
    lambda d: last(d).clone(),
    lambda d: last(d).clone(memory_format=torch.contiguous_format),
    lambda d: last(d).contiguous(),
    lambda d: last(d) * 2 + 1,
    lambda d: last(d) + last(d),
    lambda d: last(d).relu().exp(),
    lambda d: last(d).to(torch.float64),
    lambda d: last(d).permute(0, 2, 3, 1).reshape(16, 3),
    lambda d: last(d).permute(0, 2, 3, 1).view(2, 8, 3),
    lambda d: last(d)[:, 1],
    lambda d: last(d)[:, :, 1:3, 0],
    lambda d: last(d).flatten(1),
    lambda d: last(d).mean((2, 3), keepdim=True),
    lambda d: last(d).t() if last(d).dim() < 3 else last(d).transpose(1, 3),
    lambda d: last(d).as_strided((4, 3), (3, 1), 3),
    lambda d: torch.cat([last(d), last(d)]),
    lambda d: torch.where(last(d) > 20, last(d), 0.0),
    lambda d: ramp(d, 1, 2, 2, 2, 2).contiguous(memory_format=torch.channels_last_3d),
    lambda d: ramp(d, 6, 4).t().contiguous(),
    lambda d: ramp(d, 6, 4).t().clone(),
    lambda d: ramp(d, 6, 4).t() * 2,
    lambda d: torch.empty_like(ramp(d, 6, 4).t()).fill_(1),
    lambda d: torch.empty_strided((3, 2), (1, 3), device=d).copy_(ramp(d, 3, 2)),
    lambda d: torch.empty_strided((3, 2), (4, 2), device=d).copy_(ramp(d, 3, 2)),
    lambda d: ramp("cpu", 6, 4).t().to(d),
)
def test_memory_formats(program):
    check(lambda device: formats(program(device)))


def last(device: str) -> torch.Tensor:
    return ramp(device, *IMAGE).to(memory_format=torch.channels_last)


def test_writes_to_views_of_a_channels_last_tensor():
    def program(device: str) -> Any:
        x = last(device)
        x[:, 1].add_(100)
        x.permute(0, 2, 3, 1)[1].mul_(2)
        x.view(2, 3, 8).select(2, 3).zero_() if x.is_contiguous() else x.permute(0, 2, 3, 1).view(16, 3)[5].zero_()
        x.as_strided((4,), (3,), 1).neg_()
        return formats(x)

    check(program)


def test_views_go_to_cpu_and_back_with_their_strides():
    x = ramp(DEVICE, *MATRIX)
    for view in (x.t(), x[:, ::2], x.t()[1:3], x[1:, 1:], x.view(2, 2, 6).permute(2, 0, 1)):
        on_cpu = view.cpu()
        torch.testing.assert_close(on_cpu, torch.as_strided(x.cpu(), view.shape, view.stride(), view.storage_offset()))
        dense = torch.as_strided(x.cpu(), view.shape, view.stride(), view.storage_offset()).clone()
        assert on_cpu.stride() == dense.stride()


# --- views under JAX's transformations ------------------------------------------------------------


def test_views_and_writes_through_them_trace():
    def change(x: torch.Tensor, i: torch.Tensor) -> Any:
        y = x * 1
        v = y.t()[1:4]
        v[:, 1].add_(10)
        y.view(-1)[::5].mul_(-1)
        y[1].copy_(y[i][0])
        y.diagonal().fill_(7)
        out = torch.empty(0, device=y.device)
        torch.add(y, 1, out=out)
        y.unsqueeze_(0).squeeze_().t_()
        return y, v, out

    x, i = ramp("cpu", *MATRIX), torch.tensor([2])
    got = jax.jit(change)(x.to(DEVICE), i.to(DEVICE))
    for g, w in zip(got, change(x, i), strict=True):
        torch.testing.assert_close(g.cpu(), w)


def test_a_storage_of_jax_is_never_written():
    array = jnp.arange(6.0)
    from torchax import Tensor

    x = Tensor(array)
    x.view(2, 3)[1].zero_()
    x.t_()
    np.testing.assert_array_equal(np.asarray(array), np.arange(6.0))
    assert x.tolist() == [0, 1, 2, 0, 0, 0]


def test_indices_and_starts_do_not_compile_again():
    x = ramp(DEVICE, 40)
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if name.endswith("backend_compile_duration") else None
    )
    try:
        for i in range(12):
            x[i].add_(1)
            x[i : i + 5].cpu()
            x.narrow(0, i, 7).mul_(2)
            x.as_strided((3,), (2,), i).add_(1)
            if i == 1:
                compiled.clear()
        assert not compiled
    finally:
        jax.monitoring.clear_event_listeners()


# No views to autograd, but of the same memory.
UNSAFE = [lambda x: torch.unsafe_split(x, 3), lambda x: torch.unsafe_chunk(x, 2, 1)]


@pytest.mark.parametrize("split", UNSAFE, ids=["split", "chunk"])
def test_unsafe_splits_share_memory(split: View):
    def body(device: str) -> Any:
        x = ramp(device, *MATRIX)
        parts = split(x)
        parts[1].mul_(-2)
        x.add_(1)
        return x, parts

    check(body)


def test_as_strided_variants_read_the_storage_not_the_view():
    def body(device: str) -> Any:
        x = ramp(device, *MATRIX)
        row = x[:, 1:5:2]
        scattered = torch.as_strided_scatter(row, torch.zeros(2, 2).to(device), (2, 2), (3, 1), 1)
        return torch.as_strided_copy(row, (2, 3), (4, 1), 1), scattered, scattered.stride(), x

    check(body)


def test_out_lists_of_copies_of_views():
    def body(device: str) -> Any:
        outs = [torch.empty(0, device=device) for _ in range(4)]
        assert torch.unbind_copy(ramp(device, *MATRIX), out=outs) is None
        return outs

    check(body)

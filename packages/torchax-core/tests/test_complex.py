"""Gradients of complex tensors: PyTorch's convention (the conjugate Wirtinger derivative) in every backward formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from _programs import check

LONG, COMPLEX = torch.int64, torch.complex128


def value(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, dtype=COMPLEX, generator=torch.Generator().manual_seed(seed))


def indices(like: torch.Tensor, *values: int) -> torch.Tensor:
    return torch.tensor(values, device=like.device)


def flags(like: torch.Tensor, *values: bool) -> torch.Tensor:
    return torch.tensor(values, device=like.device)


def positive(a: torch.Tensor) -> torch.Tensor:
    return a @ a.mH + torch.eye(a.shape[-1], device=a.device)


# (function, the shapes of its arguments)
PROGRAMS: list[tuple[Any, ...]] = [
    # products
    (F.linear, (2, 3), (4, 3), (4,)),
    (F.linear, (2, 2, 3), (4, 3)),
    (F.linear, (3,), (4, 3), (4,)),
    (torch.mm, (2, 3), (3, 4)),
    (torch.mv, (2, 3), (3,)),
    (torch.dot, (3,), (3,)),
    (torch.vdot, (3,), (3,)),
    (torch.bmm, (2, 2, 3), (2, 3, 4)),
    (torch.matmul, (2, 1, 2, 3), (4, 3, 2)),
    (torch.outer, (2,), (3,)),
    (torch.kron, (2, 2), (2, 3)),
    (torch.linalg.cross, (2, 3), (2, 3)),
    (lambda a, b, c: torch.addmm(a, b, c, beta=1j, alpha=2 - 1j), (3, 3), (3, 2), (2, 3)),
    (lambda a, b, c: torch.baddbmm(a, b, c, beta=1j, alpha=2 - 1j), (2, 3, 3), (2, 3, 2), (2, 2, 3)),
    (lambda a, b, c: torch.addbmm(a, b, c, beta=1j), (3, 3), (2, 3, 2), (2, 2, 3)),
    (lambda a, b, c: torch.addmv(a, b, c, alpha=1j), (2,), (2, 3), (3,)),
    (lambda a, b, c: torch.addr(a, b, c, alpha=1j), (2, 3), (2,), (3,)),
    (lambda a, b: torch.einsum("ij,kj->ik", a, b), (2, 3), (4, 3)),
    (lambda a, b: torch.tensordot(a, b, 1), (2, 3), (3, 2)),
    # convolutions
    (lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1, groups=2), (2, 4, 6), (4, 2, 3), (4,)),
    (F.conv2d, (1, 2, 4, 4), (3, 2, 2, 2), (3,)),
    (lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2), (2, 2, 4), (2, 3, 3), (3,)),
    # pointwise
    *((f, (3,)) for f in (
        torch.sigmoid, torch.tanh, torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.sin,
        torch.asin, torch.acos, torch.atan, torch.asinh, torch.acosh, torch.atanh, torch.sinh, torch.cosh, torch.tan,
        torch.abs, torch.angle, torch.sgn, torch.square, torch.expm1, torch.log1p, torch.sinc, torch.conj,
    )),
    *((f, (2, 3), (3,)) for f in (torch.mul, torch.div, torch.pow, torch.add, torch.rsub)),
    (lambda x: x**3 + x**-0.5 + 2j**x, (3,)),
    (lambda x, y: torch.lerp(x, y, 0.3 + 1j), (3,), (3,)),
    (lambda x, y, z: torch.addcmul(x, y, z, value=1j), (3,), (3,), (3,)),
    (lambda x, y, z: torch.addcdiv(x, y, z, value=1j), (3,), (3,), (3,)),
    (lambda x, y: torch.where(flags(x, True, False), x, y), (2,), (2,)),
    (lambda x, y: torch.polar(x.abs(), y.angle()), (3,), (3,)),
    (lambda x: torch.complex(x.imag, x.real), (3,)),
    # reductions and scans
    *((f, (2, 3)) for f in (
        torch.sum, torch.mean, torch.prod, torch.var, torch.std, torch.norm, torch.trace, torch.linalg.matrix_norm,
        F.normalize, lambda x: x.cumsum(1), lambda x: x.cumprod(1), lambda x: x.prod(0), lambda x: x.logcumsumexp(1),
        lambda x: torch.linalg.vector_norm(x, 1, 0), lambda x: torch.linalg.vector_norm(x, 3),
        lambda x: x.renorm(2, 0, 0.5), lambda x: x.renorm(float("inf"), 1, 0.5),
    )),
    *((lambda x, p=p: torch.linalg.vector_norm(x, p), (101,)) for p in (float("inf"), float("-inf"))),
    (F.l1_loss, (3,), (3,)),
    (torch.dist, (3,), (3,)),
    # shapes and indices
    (lambda x: F.pad(x, (1, 1), mode="reflect"), (1, 2, 4)),
    (lambda x: F.pad(x, (1, 1), mode="replicate"), (1, 2, 4)),
    (lambda x: F.pixel_shuffle(x, 2), (1, 4, 2, 2)),
    (lambda x, y: x.masked_scatter(flags(x, True, False, True), y), (3,), (3,)),
    (lambda x: x.gather(0, indices(x, 0, 0)), (3,)),
    (lambda x: x.take(indices(x, 0, 0, 2)), (3,)),
    (lambda x: x[indices(x, 0, 0, 2)] * 1j, (3,)),
    (lambda x, y: x.index_add(0, indices(x, 0, 1), y, alpha=1j), (3,), (2,)),
    (lambda x, y: x.index_put((indices(x, 0, 1),), y, accumulate=True), (3,), (2,)),
    (lambda x, y: x.scatter_add(0, indices(x, 0, 0), y), (3,), (2,)),
    (lambda x: x.unfold(0, 2, 1), (4,)),
    (lambda x: torch.diag_embed(x.diagonal()), (3, 3)),
    (lambda x: torch.view_as_real(x), (3,)),
    (lambda x: torch.resolve_conj(x.conj()) * x.mH, (3, 3)),
    (lambda x: x.tril() + x.triu(1).roll(1).flip(0), (3, 3)),
    # lists
    *((lambda x, y, f=f: f([x, y], [y, x]), (3,), (3,)) for f in (
        torch._foreach_add, torch._foreach_mul, torch._foreach_div, torch._foreach_pow,
    )),
    *((lambda x, f=f: f([x, x * 2j]), (3,)) for f in (
        torch._foreach_exp, torch._foreach_sqrt, torch._foreach_abs, torch._foreach_sigmoid, torch._foreach_norm,
        torch._foreach_neg, torch._foreach_tanh, torch._foreach_reciprocal,
    )),
    (lambda x, y, z: torch._foreach_addcmul([x], [y], [z], 0.5), (3,), (3,), (3,)),
    (lambda x, y, z: torch._foreach_addcdiv([x], [y], [z], 0.5), (3,), (3,), (3,)),
    (lambda x, y: torch._foreach_lerp([x], [y], 0.3), (3,), (3,)),
    # linear algebra
    *((f, (2, 3, 3)) for f in (
        torch.linalg.inv, torch.linalg.det, torch.linalg.slogdet, torch.linalg.svdvals, torch.matrix_exp,
        torch.linalg.pinv, torch.linalg.eigvals, lambda a: torch.linalg.det(a.mT), lambda a: torch.linalg.slogdet(a[:, :2, :2]),
        lambda a: torch.linalg.lu(a)[2], lambda a: torch.linalg.eigvalsh(positive(a)), lambda a: torch.linalg.qr(a)[1],
        lambda a: torch.linalg.cholesky(positive(a)), lambda a: torch.linalg.cholesky(positive(a), upper=True),
        lambda a: torch.linalg.matrix_power(a, -2), lambda a: torch.cholesky_inverse(torch.linalg.cholesky(positive(a))),
    )),
    (torch.linalg.pinv, (4, 3)),
    (torch.linalg.solve, (3, 3), (3, 2)),
    (lambda a, b: torch.linalg.solve(a, b, left=False), (2, 3, 3), (2, 2, 3)),
    (lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, adjoint=True), (3, 3), (3, 2)),
    (lambda a, b: torch.linalg.lstsq(a, b)[0], (3, 3), (3, 2)),
    (lambda a, b: torch.linalg.solve_triangular(a, b, upper=True, left=False), (3, 3), (2, 3)),
    (lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(positive(a))), (3, 3), (3, 2)),
    (torch.linalg.householder_product, (3, 3), (3,)),
    (torch.ormqr, (3, 3), (3,), (3, 3)),
    # Fourier
    *((f, (4,)) for f in (torch.fft.fft, torch.fft.ifft, torch.fft.irfft, torch.fft.hfft)),
    (torch.fft.fft2, (3, 4)),
    (lambda x: torch.stft(x, 4, window=torch.ones(4, device=x.device), onesided=False, return_complex=True), (8,)),
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_complex_gradients(program: tuple[Any, ...]):
    f: Callable[..., Any]
    f, *shapes = program

    def gradients(device: str) -> Any:
        inputs = [value(*shape, seed=i).to(device).requires_grad_() for i, shape in enumerate(shapes)]
        out = f(*inputs)
        outs = [o for o in (out if isinstance(out, (list, tuple)) else [out]) if o.requires_grad]
        # A weight of its own for each element, and for its real and imaginary part.
        seeds = [value(*o.shape, seed=9 + i) for i, o in enumerate(outs)]
        seeds = [(s if o.is_complex() else s.real).to(device) for s, o in zip(seeds, outs, strict=True)]
        return torch.autograd.grad(outs, inputs, seeds)

    assert isinstance(check(gradients, strides=False), tuple)


@pytest.mark.parametrize("inference", [False, True])
def test_resolving_a_conjugate_gives_memory_of_its_own(inference: bool):
    def program(device: str) -> Any:
        with torch.inference_mode(inference):
            x = value(3, 3, seed=0).to(device)
            shared, own, negative = x.conj(), x.mH.resolve_conj(), torch._neg_view(x).resolve_neg()
            assert x.resolve_conj() is x
            assert shared.mT.conj().resolve_conj().data_ptr() == x.data_ptr()
            shared[0] *= 2
            own.zero_()
            negative.add_(1)
            return [x, shared.resolve_conj(), own, negative]

    check(program)


def test_the_gradient_of_a_resolved_conjugate():
    check(lambda d: torch.autograd.grad(*_resolved(value(3, seed=0).to(d).requires_grad_())))


def _resolved(x: torch.Tensor) -> tuple[Any, ...]:
    return torch.view_as_real(x.conj().resolve_conj() * x).pow(2).sum(), x

"""Bad input: CPU's type of exception, a message that names operator and shapes, and nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from _programs import DEVICE, leaf, on_cpu, outcome, ramp, refuses, same

import torchax

LONG, DOUBLE, BOOL, COMPLEX = torch.int64, torch.float64, torch.bool, torch.complex64


def mistakes(*found: tuple[Any, ...]) -> Any:
    """A ``parametrize`` over (program, words that the message has)."""
    return pytest.mark.parametrize(
        ("program", "words"),
        [(program, words) for program, *words in found],
        ids=[f"line{program.__code__.co_firstlineno}" for program, *_ in found],
    )


# --- shapes, dims, dtypes, values ------------------------------------------------------------------------------------


@mistakes(
    (lambda d: ramp(d, 2, 3) + ramp(d, 2, 4), "add", "[2, 3]", "[2, 4]"),
    (lambda d: ramp(d, 2, 3).mul_(ramp(d, 4)), "mul_", "[2, 3]", "[4]"),
    (lambda d: ramp(d, 3).add_(ramp(d, 2, 3)), "add_", "[3]", "[2, 3]"),
    (lambda d: torch.where(ramp(d, 2) > 0, ramp(d, 3), ramp(d, 4)), "where", "[3]", "[4]"),
    (lambda d: torch.addcmul(ramp(d, 2), ramp(d, 3), ramp(d, 3)), "addcmul", "[2]", "[3]"),
    (lambda d: ramp(d, 2, 3) @ ramp(d, 2, 3), "mm", "[2, 3]"),
    (lambda d: torch.mm(ramp(d, 2, 3), ramp(d, 3)), "mm", "[2, 3]", "[3]"),
    (lambda d: torch.bmm(ramp(d, 2, 3, 4), ramp(d, 3, 4, 3)), "bmm", "[2, 3, 4]", "[3, 4, 3]"),
    (lambda d: torch.dot(ramp(d, 2), ramp(d, 3)), "dot", "[2]", "[3]"),
    (lambda d: torch.mv(ramp(d, 2, 3), ramp(d, 2)), "mv", "[2, 3]", "[2]"),
    (lambda d: torch.addmm(ramp(d, 5), ramp(d, 2, 3), ramp(d, 3, 4)), "addmm", "[5]", "[2, 3]"),
    (lambda d: torch.baddbmm(ramp(d, 2, 2, 2), ramp(d, 2, 2, 3), ramp(d, 2, 2, 2)), "baddbmm", "[2, 2, 3]"),
    (lambda d: F.linear(ramp(d, 2, 3), ramp(d, 4, 5)), "[2, 3]", "[4, 5]"),
    (lambda d: torch.cat([ramp(d, 2, 3), ramp(d, 3, 4)]), "cat", "[2, 3]", "[3, 4]"),
    (lambda d: torch.cat([ramp(d, 2), ramp(d, 2, 2)]), "cat", "[2]", "[2, 2]"),
    (lambda d: torch.stack([ramp(d, 2), ramp(d, 3)]), "[2]", "[3]"),
    (lambda d: torch.cat([]) if d else None,),
    (lambda d: F.conv2d(ramp(d, 1, 3, 4, 4), ramp(d, 2, 2, 3, 3)), "conv", "[1, 3, 4, 4]", "[2, 2, 3, 3]"),
    (lambda d: F.conv2d(ramp(d, 1, 1, 2, 2), ramp(d, 1, 1, 3, 3)), "conv", "[1, 1, 2, 2]"),
    (lambda d: F.conv1d(ramp(d, 3, 4, 5, 6), ramp(d, 2, 4, 3)), "conv1d", "[3, 4, 5, 6]"),
    (lambda d: F.layer_norm(ramp(d, 2, 3), (4,)), "layer_norm", "[2, 3]"),
    (lambda d: F.batch_norm(ramp(d, 1, 3), None, None, training=True), "[1, 3]"),
    (lambda d: F.group_norm(ramp(d, 2, 3), 2), "3", "2"),
    (lambda d: F.max_pool2d(ramp(d, 1, 1, 2, 2), 3), "max_pool2d", "[1, 1, 2, 2]"),
    (lambda d: F.avg_pool2d(ramp(d, 1, 1, 2, 2), 2, stride=0), "avg_pool2d"),
    (lambda d: F.pad(ramp(d, 2, 3), (1, 1, 1)),),
    (lambda d: F.pad(ramp(d, 1, 2, 3), (4, 4), mode="reflect"), "reflection_pad1d", "[1, 2, 3]"),
    (lambda d: F.embedding(ramp(d, 2), ramp(d, 3, 4)), "embedding"),
    (lambda d: F.nll_loss(ramp(d, 2, 3), ramp(d, 3, dtype=LONG)), "2", "3"),
    (lambda d: F.cross_entropy(ramp(d, 2, 3), ramp(d, 2, 2, dtype=LONG)), "multi-target"),
    (lambda d: F.nll_loss(ramp(d, 2, 3), ramp(d, 2, start=2, dtype=LONG)),),
    (lambda d: F.binary_cross_entropy(ramp(d, 2, start=0), ramp(d, 3)), "[2]", "[3]"),
    (lambda d: F.scaled_dot_product_attention(ramp(d, 1, 2, 3), ramp(d, 1, 2, 4), ramp(d, 1, 2, 4)), "[1, 2, 3]"),
    (lambda d: torch.einsum("ij,jk->ik", ramp(d, 2, 3), ramp(d, 2, 3)), "einsum"),
    (lambda d: F.pixel_shuffle(ramp(d, 1, 3, 2, 2), 2), "pixel_shuffle"),
    (lambda d: torch.linalg.cross(ramp(d, 2), ramp(d, 2)), "cross", "2"),
    (lambda d: torch.linalg.det(ramp(d, 2, 3)), "det"),
    (lambda d: torch.linalg.solve(ramp(d, 2, 2), ramp(d, 3, 1)), "solve"),
    (lambda d: torch.tril(ramp(d, 3)), "tril", "[3]"),
    (lambda d: ramp(d, 2, 3).masked_fill_(ramp(d, 4) > 0, 0), "masked_fill_", "[2, 3]", "[4]"),
    (lambda d: ramp(d, 2, 3).copy_(ramp(d, 2, 4)), "copy_", "[2, 3]", "[2, 4]"),
    (lambda d: ramp(d, 2, 3).repeat(2),),
    (lambda d: torch.tensordot(ramp(d, 2, 3), ramp(d, 2, 3), 1),),
    (lambda d: torch.cdist(ramp(d, 2, 3), ramp(d, 2, 4)),),
    (lambda d: torch._foreach_add([ramp(d, 2)], [ramp(d, 3)]), "_foreach_add", "[2]", "[3]"),
    (lambda d: torch._foreach_add([ramp(d, 2)], [ramp(d, 2), ramp(d, 2)]), "same number"),
)
def test_shapes(program: Callable[[str], Any], words: list[str]):
    refuses(program, *words)


@mistakes(
    (lambda d: ramp(d, 2, 3).sum(2), "2"),
    (lambda d: ramp(d, 2, 3).sum((0, -2)),),
    (lambda d: ramp(d, 2, 3).mean(-3), "-3"),
    (lambda d: ramp(d, 2, 3).softmax(2), "2"),
    (lambda d: ramp(d, 2, 3).argmax(5), "5"),
    (lambda d: ramp(d, 2, 3).max(2), "2"),
    (lambda d: ramp(d, 2, 3).sort(3), "3"),
    (lambda d: ramp(d, 2, 3).topk(4), "topk"),
    (lambda d: ramp(d, 2, 3).kthvalue(0), "kthvalue"),
    (lambda d: ramp(d, 2, 3).cumsum(2), "2"),
    (lambda d: ramp(d, 2, 3).flip(0, 0),),
    (lambda d: ramp(d, 2, 3).flip(2), "2"),
    (lambda d: ramp(d, 2, 3).roll(1, 2), "2"),
    (lambda d: ramp(d, 2, 3).roll((1, 2), 0),),
    (lambda d: torch.cat([ramp(d, 2), ramp(d, 2)], 1), "1"),
    (lambda d: torch.stack([ramp(d, 2), ramp(d, 2)], 3), "3"),
    (lambda d: ramp(d, 2, 3).norm(dim=2), "2"),
    (lambda d: ramp(d, 0).max(), "max"),
    (lambda d: ramp(d, 0, 3).argmin(0), "argmin"),
    (lambda d: ramp(d, 2, 3).repeat_interleave(-1), "non-negative"),
    (lambda d: ramp(d, 2).index_select(1, ramp(d, 1, dtype=LONG)), "1"),
    (lambda d: torch.diff(ramp(d)),),
    (lambda d: ramp(d, 2, 3).unflatten(2, (1, 1)), "2"),
)
def test_dims(program: Callable[[str], Any], words: list[str]):
    refuses(program, *words)


@mistakes(
    (lambda d: ramp(d, 2, dtype=LONG).mean(), "mean"),
    (lambda d: ramp(d, 2, dtype=LONG).std(), "std"),
    (lambda d: ramp(d, 2, dtype=LONG).softmax(0), "softmax"),
    (lambda d: ramp(d, 2, dtype=LONG).add_(0.5), "Float", "Long", "add_"),
    (lambda d: ramp(d, 2, dtype=LONG).div_(2), "Float", "Long", "div_"),
    (lambda d: ramp(d, 2, dtype=LONG).exp_(), "exp_"),
    (lambda d: ramp(d, 2).mul_(1j), "Complex", "Float", "mul_"),
    (lambda d: ramp(d, 2, dtype=BOOL).add_(1), "Bool", "add_"),
    (lambda d: ramp(d, 2, dtype=BOOL) - ramp(d, 2, dtype=BOOL), "sub"),
    (lambda d: -ramp(d, 2, dtype=BOOL), "neg"),
    (lambda d: ~ramp(d, 2), "invert"),
    (lambda d: ramp(d, 2) & 1, "and"),
    (lambda d: ramp(d, 2) << ramp(d, 2).long().float() if d else None, "shift"),
    (lambda d: ramp(d, 2, dtype=COMPLEX) < 1, "lt"),
    (lambda d: ramp(d, 2, dtype=COMPLEX).floor(), "floor"),
    (lambda d: ramp(d, 2, dtype=COMPLEX).sort(), "sort"),
    (lambda d: ramp(d, 2, dtype=COMPLEX).clamp(0, 1), "clamp"),
    (lambda d: ramp(d, 2).clamp(), "clamp"),
    (lambda d: ramp(d, 2, dtype=LONG) ** -1, "pow"),
    (lambda d: ramp(d, 2, 2) @ ramp(d, 2, 2, dtype=DOUBLE), "mm"),
    (lambda d: F.linear(ramp(d, 2, 3), ramp(d, 4, 3, dtype=torch.bfloat16)),),
    (lambda d: F.conv2d(ramp(d, 1, 1, 3, 3, dtype=DOUBLE), ramp(d, 1, 1, 2, 2)), "conv"),
    (lambda d: torch.lerp(ramp(d, 2), ramp(d, 2, dtype=DOUBLE), 0.5), "lerp"),
    (lambda d: torch.dot(ramp(d, 2), ramp(d, 2, dtype=DOUBLE)), "dot"),
    (lambda d: torch.linalg.inv(ramp(d, 2, 2, dtype=LONG)), "inv"),
    (lambda d: F.cross_entropy(ramp(d, 2, 3), ramp(d, 2, dtype=torch.int32)),),
    (lambda d: torch.bincount(ramp(d, 2)), "bincount"),
    (lambda d: torch.bincount(-ramp(d, 2, dtype=LONG)), "bincount"),
    (lambda d: F.one_hot(ramp(d, 2)),),
    (lambda d: torch.complex(ramp(d, 2), ramp(d, 2, dtype=DOUBLE)), "complex"),
    (lambda d: torch.ops.aten.bitwise_left_shift(ramp(d, 2), ramp(d, 2)), "shift"),
    (lambda d: ramp(d, 2).masked_fill(ramp(d, 2), 0), "masked_fill"),
    (lambda d: torch.fft.fft(ramp(d, 0)),),
    (lambda d: torch.quantile(ramp(d, 2, dtype=LONG), 0.5), "quantile"),
)
def test_dtypes(program: Callable[[str], Any], words: list[str]):
    refuses(program, *words)


@mistakes(
    (lambda d: torch.zeros(2, -1, device=d), "-1"),
    (lambda d: torch.empty(-2, device=d), "-2"),
    (lambda d: torch.arange(0, 1, -1, device=d),),
    (lambda d: torch.arange(0, 1, 0, device=d),),
    (lambda d: torch.linspace(0, 1, -1, device=d), "linspace"),
    (lambda d: torch.eye(-1, device=d), "-1"),
    (lambda d: torch.randperm(-1, device=d), "-1"),
    (lambda d: torch.randint(3, 3, (2,), device=d), "3"),
    (lambda d: torch.full((2,), "a", device=d),),
    (lambda d: torch.tensor([[1], [2, 3]], device=d),),
    (lambda d: torch.tensor("a", device=d),),
    (lambda d: torch.ones(2, device=d).normal_(0, -1), "normal"),
    (lambda d: torch.ones(2, device=d).uniform_(1, 0), "uniform"),
    (lambda d: torch.ones(2, device=d).random_(2, 1), "random_"),
    (lambda d: torch.ones(2, device=d).geometric_(2.0), "geometric_"),
    (lambda d: torch.ones(2, device=d).exponential_(-1.0), "exponential_"),
    (lambda d: torch.multinomial(torch.tensor([0.5, -0.5]).to(d), 1),),
    (lambda d: torch.multinomial(torch.tensor([0.5, 0.5]).to(d), 3),),
    (lambda d: torch.bernoulli(ramp(d, 2, start=2)),),
    (lambda d: F.dropout(ramp(d, 2), 1.5), "1.5"),
    (lambda d: F.one_hot(torch.tensor([-1]).to(d)),),
    (lambda d: F.one_hot(torch.tensor([3]).to(d), 2),),
    (lambda d: torch.searchsorted(ramp(d, 2, 3), ramp(d, 3, 1)),),
    (lambda d: torch.tril_indices(-1, 2, device=d),),
    (lambda d: torch.add(ramp(d, 2)),),
    (lambda d: torch.add(ramp(d, 2), "a"),),
    (lambda d: ramp(d, 2).sum(nothing=1),),
    (lambda d: ramp(d, 2) + None,),
    (lambda d: F.interpolate(ramp(d, 1, 1, 2, 2), scale_factor=0.1),),
)
def test_values(program: Callable[[str], Any], words: list[str]):
    refuses(program, *words)


# --- linear algebra on concrete values -------------------------------------------------------------------------------


def zeros(d: str) -> torch.Tensor:
    return torch.zeros(2, 2, device=d)


@mistakes(
    (lambda d: torch.linalg.inv(zeros(d)), "linalg.inv", "singular"),
    (lambda d: zeros(d).inverse(), "inv", "singular"),
    (lambda d: torch.linalg.inv(torch.stack([torch.eye(2).to(d), zeros(d)])), "linalg.inv", "Batch element 1"),
    (lambda d: torch.linalg.inv_ex(zeros(d), check_errors=True), "inv", "singular"),
    (lambda d: torch.linalg.cholesky(zeros(d) - 1), "cholesky", "positive-definite"),
    (lambda d: torch.linalg.cholesky(torch.stack([torch.eye(2).to(d), zeros(d)])), "cholesky", "Batch element 1"),
    (lambda d: torch.linalg.cholesky_ex(zeros(d), check_errors=True), "cholesky", "positive-definite"),
    (lambda d: torch.linalg.solve(zeros(d), ramp(d, 2)), "solve", "singular"),
    (lambda d: torch.linalg.matrix_power(zeros(d), -1), "inv", "singular"),
    (lambda d: torch.linalg.svd(zeros(d) / 0), "svd"),
    (lambda d: torch.linalg.lu_factor(zeros(d)), "lu_factor"),
    (lambda d: torch.linalg.inv(zeros(d).requires_grad_()), "linalg.inv", "singular"),
)
def test_linear_algebra(program: Callable[[str], Any], words: list[str]):
    refuses(program, *words)


def test_linear_algebra_errors_have_their_own_type():
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.inv(zeros(DEVICE))
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.cholesky(-torch.eye(2).to(DEVICE))


def test_linear_algebra_that_reports_instead():
    _, info = torch.linalg.inv_ex(zeros(DEVICE))
    assert info.item() == 1
    _, info = torch.linalg.cholesky_ex(torch.tensor([[1.0, 0.0], [0.0, -1.0]]).to(DEVICE))
    assert info.item() == 2


# --- what autograd refuses -------------------------------------------------------------------------------------------


@mistakes(
    (lambda d: torch.ones(2, dtype=LONG, device=d, requires_grad=True), "floating point"),
    (lambda d: torch.ones(2, dtype=LONG, device=d).requires_grad_(), "floating point"),
    (lambda d: torch.ones(2, dtype=BOOL, device=d).__setattr__("requires_grad", True), "floating point"),
    (lambda d: torch.nn.Parameter(torch.ones(2, dtype=LONG).to(d)), "floating point"),
    (lambda d: leaf(d, 2).add_(1), "leaf"),
    (lambda d: leaf(d, 2)[0].add_(1), "leaf"),
    (lambda d: leaf(d, 2, 2).t().zero_(), "leaf"),
    (lambda d: leaf(d, 2).__setitem__(0, 1.0), "leaf"),
    (lambda d: leaf(d, 2, 2).unbind()[0].mul_(2),),
    (lambda d: (leaf(d, 2, 2) * 1).unbind()[0].mul_(2), "multiple views"),
    (lambda d: (leaf(d, 2, 2) * 1).split(1)[0].mul_(2), "multiple views"),
    (lambda d: torch.add(leaf(d, 2), 1, out=torch.empty(2, device=d)), "out="),
    (lambda d: torch.add(ramp(d, 2), 1, out=leaf(d, 2)), "out="),
    (lambda d: [y := leaf(d, 2).exp().sum(), y.backward(), y.backward()], "second time"),
    (lambda d: leaf(d, 2).exp().backward(), "scalar"),
    (lambda d: ramp(d, 2).sum().backward(), "does not require grad"),
    (lambda d: leaf(d, 2).exp().backward(ramp(d, 3)), "[3]", "[2]"),
    (lambda d: leaf(d, 2).__setattr__("grad", ramp(d, 3)), "[3]", "[2]"),
    (lambda d: leaf(d, 2).__setattr__("grad", ramp(d, 2, dtype=DOUBLE)), "double"),
    (lambda d: leaf(d, 2).__setattr__("grad", torch.ones(2, device="meta")), "device"),
    (lambda d: torch.autograd.grad(leaf(d, 2).sum(), leaf(d, 2)),),
    (lambda d: [y := leaf(d, 2).exp(), z := y.sum(), y.mul_(2), z.backward()], "modified by an inplace operation"),
    (lambda d: leaf(d, 2).numpy(), "detach"),
    (lambda d: (leaf(d, 2) * 2).__setattr__("requires_grad", False), "leaf"),
    (lambda d: leaf(d, 2).exp().retain_grad() or ramp(d, 2).retain_grad(), "requires_grad"),
    (lambda d: ramp(d, 2).register_hook(print), "require"),
    (lambda d: leaf(d, 2).exp().detach_().sum().backward(), "does not require grad"),
    (lambda d: leaf(d, 2).prod().backward(torch.ones((), dtype=LONG, device=d)) or leaf(d, 2).set_(ramp(d, 2)),),
    (lambda d: torch.autograd.grad(leaf(d, 3, dtype=COMPLEX).sum(), [leaf(d, 3)]),),
)
def test_autograd(program: Callable[[str], Any], words: list[str]):
    refuses(program, *words)


def test_a_write_under_inference_mode_is_refused_later():
    def program(device: str) -> Any:
        with torch.inference_mode():
            x = ramp(device, 2)
        return leaf(device, 2) * x

    refuses(program, "nference")
    refuses(lambda d: inference(d).add_(leaf(d, 2)), "nference")


def inference(device: str) -> torch.Tensor:
    with torch.inference_mode():
        return ramp(device, 2)


# --- values for Python -----------------------------------------------------------------------------------------------


@mistakes(
    (lambda d: bool(ramp(d, 2)), "ambiguous"),
    (lambda d: bool(ramp(d, 0)), "ambiguous"),
    (lambda d: ramp(d, 2).item(), "Scalar"),
    (lambda d: float(ramp(d, 2)),),
    (lambda d: int(ramp(d, 2)),),
    (lambda d: [1, 2][ramp(d, 1)],),
    (lambda d: [1, 2][ramp(d, 2, dtype=LONG)],),
    (lambda d: float(ramp(d, dtype=COMPLEX) * 1j),),
    (lambda d: len(ramp(d)), "0-d"),
    (lambda d: list(ramp(d)), "0-d"),
    (lambda d: "a" in ramp(d, 2),),
    (lambda d: range(ramp(d)),),
    (lambda d: ramp(d, 2).nothing, "nothing"),
    (lambda d: hash(ramp(d, 2)) and {}[ramp(d, 2)],),
)
def test_python_values(program: Callable[[str], Any], words: list[str]):
    if program.__code__.co_names[:1] == ("hash",):
        with pytest.raises(KeyError):
            program(DEVICE)
    else:
        refuses(program, *words)


# --- out= ------------------------------------------------------------------------------------------------------------


@mistakes(
    (lambda d: torch.add(ramp(d, 2), 0.5, out=ramp(d, 2, dtype=LONG)), "Float", "Long"),
    (lambda d: torch.mul(ramp(d, 2), 1j, out=ramp(d, 2)), "Complex", "Float"),
    (lambda d: torch.mean(ramp(d, 2), 0, out=ramp(d, dtype=LONG)),),
    (lambda d: torch.mm(ramp(d, 2, 2), ramp(d, 2, 2), out=ramp(d, 2, 2, dtype=DOUBLE)),),
    (lambda d: torch.argmax(ramp(d, 2), 0, out=ramp(d)),),
    (lambda d: torch.max(ramp(d, 2, 2), 0, out=(ramp(d, 2), ramp(d, 2))),),
    (lambda d: torch.max(ramp(d, 2, 2), 0, out=ramp(d, 2)),),
    (lambda d: torch.sort(ramp(d, 2), out=(ramp(d, 2), ramp(d, 2))),),
    (lambda d: torch.cat([ramp(d, 2), ramp(d, 2)], out=ramp(d, 4, dtype=LONG)),),
    (lambda d: torch.zeros(2, out=ramp(d, 2), dtype=LONG),),
    (lambda d: torch.arange(3, out=ramp(d, 3), dtype=LONG),),
    (lambda d: torch.add(ramp(d, 2), ramp(d, 3), out=ramp(d, 2)), "add", "[2]", "[3]"),
    (lambda d: torch.add(ramp(d, 2), 1, out=[1]),),
    (lambda d: torch.add(ramp(d, 2), 1, nothing=ramp(d, 2)),),
)
def test_out(program: Callable[[str], Any], words: list[str]):
    refuses(program, *words)


def test_out_of_composites():
    """Operators that PyTorch takes apart, whose parts would write to another tensor than the one given."""

    def program(device: str) -> Any:
        a, b = ramp(device, 2, 3, 3), ramp(device, 3, 3)
        outs = [
            torch.empty(0, device=device),
            torch.empty(2, 3, 3, device=device),
            torch.empty(0, dtype=LONG, device=device),
        ]
        results = [
            torch.matmul(a, b, out=outs[0]),
            torch.matmul(a, b, out=outs[1]),
            torch.linalg.matrix_rank(a, out=outs[2]),
        ]
        assert all(r is o for r, o in zip(results, outs, strict=True))
        return [*outs, torch.linalg.matrix_rank(b, 0.1, out=outs[2].new_empty(0)), ramp(device, 3).polygamma_(1)]

    same(program(DEVICE), program("cpu"))
    refuses(lambda d: torch.matmul(leaf(d, 2, 2), leaf(d, 2, 2), out=ramp(d, 2, 2)), "out=")
    for f, x in ((torch.fft.ihfftn, ramp(DEVICE, 5)), (torch.fft.ihfft2, ramp(DEVICE, 3, 3))):
        want = f(x)  # CPU leaves the out= of ihfftn over one dimension as it was
        out = torch.zeros_like(want)
        assert f(x, out=out) is out
        assert torch.equal(out, want)


WITH_OUT: list[Callable[..., Any]] = [
    torch.add, torch.eq, torch.exp, torch.neg, torch.abs, torch.floor, torch.sign, torch.round, torch.isposinf,
    torch.nan_to_num, torch.frexp, torch.sum, torch.mean, torch.prod, torch.logsumexp, torch.amax, torch.argmax, torch.all,
    torch.cumsum, torch.cumprod, torch.logcumsumexp, torch.cummax, torch.max, torch.sort, torch.topk, torch.kthvalue,
    torch.mm, torch.matmul, torch.inverse, torch.linalg.qr, torch.linalg.cholesky, torch.geqrf, torch.tril, torch.diag,
    torch.cat, torch.stack, torch.nonzero, torch.softmax, torch.fft.fft, torch.linalg.vector_norm,
]  # fmt: skip
ARGUMENTS: dict[Callable[..., Any], Callable[[torch.Tensor], tuple[Any, ...]]] = {
    **dict.fromkeys([torch.add, torch.eq, torch.mm, torch.matmul], lambda x: (x, x)),
    **dict.fromkeys(
        [torch.sum, torch.mean, torch.prod, torch.logsumexp, torch.amax, torch.argmax, torch.all, torch.cumsum,
         torch.cumprod, torch.logcumsumexp, torch.cummax, torch.max, torch.softmax], lambda x: (x, 0)
    ),
    **dict.fromkeys([torch.topk, torch.kthvalue], lambda x: (x, 1)),
    **dict.fromkeys([torch.cat, torch.stack], lambda x: ([x, x],)),
}  # fmt: skip


@pytest.mark.parametrize("f", WITH_OUT, ids=lambda f: f.__name__)
def test_out_of_other_dtypes(f: Callable[..., Any]):
    """Accepted or refused as on CPU, each result in turn; where accepted, with CPU's values."""

    def arguments(device: str) -> tuple[Any, ...]:
        return ARGUMENTS.get(f, lambda x: (x,))(torch.tensor([[2.0, 1.0], [1.0, 3.0]]).to(device))

    result = f(*arguments("cpu"))
    results = [result] if isinstance(result, torch.Tensor) else list(result)
    for i, r in enumerate(results):
        for dtype in {DOUBLE, torch.float16, LONG, torch.int32, COMPLEX, BOOL} - {r.dtype}:

            def program(device: str, i: int = i, dtype: torch.dtype = dtype) -> Any:
                outs = [
                    torch.empty_like(x, dtype=dtype if i == j else x.dtype, device=device)
                    for j, x in enumerate(results)
                ]
                f(*arguments(device), out=outs[0] if isinstance(result, torch.Tensor) else tuple(outs))
                return outs

            want = outcome(program, "cpu")
            if isinstance(want, Exception):
                got = outcome(program, DEVICE)
                assert type(got) is type(want), f"{dtype}: {got!r}, where CPU gives {want!r}"
            else:
                same(program(DEVICE), want)


# --- devices ---------------------------------------------------------------------------------------------------------

MIXES = [
    lambda x, y: x + y,
    lambda x, y: y * x,
    lambda x, y: x.clone().add_(y),
    lambda x, y: y.clone().mul_(x),
    lambda x, y: x @ y,
    lambda x, y: y @ x,
    lambda x, y: torch.addmm(x, x, y),
    lambda x, y: torch.cat([x, y]),
    lambda x, y: torch.stack([y, x]),
    lambda x, y: torch.where(x > 0, x, y),
    lambda x, y: torch.where(y > 0, x, x),
    lambda x, y: torch.lerp(x, x, y),
    lambda x, y: torch.addcmul(x, x, y),
    lambda x, y: F.linear(x, y),
    lambda x, y: F.linear(y, x, x[0]),
    lambda x, y: F.layer_norm(x, (2,), y[0]),
    lambda x, y: F.conv1d(x[None], y[..., None]),
    lambda x, y: F.embedding(x.long() % 2, y),
    lambda x, y: F.embedding(y.long() % 2, x),
    lambda x, y: F.mse_loss(x, y),
    lambda x, y: F.cross_entropy(x, y[0].long() % 2),
    lambda x, y: F.scaled_dot_product_attention(x[None, None], y[None, None], y[None, None]),
    lambda x, y: torch._foreach_add([x, x], [x, y]),
    lambda x, y: torch._foreach_mul_([y.clone(), x.clone()], [y, y]),
    lambda x, y: torch.equal(x, y),
    lambda x, y: torch.add(x, x, out=y.clone()),
    lambda x, y: torch.add(y, y, out=x.clone()),
    lambda x, y: x.gather(0, y.long() % 2),
    lambda x, y: x.index_add(0, y[0].long() % 2, x),
    lambda x, y: x.masked_fill(y > 0, 1.0),
    lambda x, y: x.clone().__setitem__([0, 1], y),
    lambda x, y: y[x[0].long() % 2],
    lambda x, y: torch.linalg.solve(x, y),
    lambda x, y: x.clone().set_(y),
    lambda x, y: x.clone().__setattr__("data", y),
    lambda x, y: torch.nn.Linear(2, 2).to(x.device)(y),
    lambda x, y: torch.nn.Linear(2, 2)(x),
    lambda x, y: torch.einsum("ij,jk", x, y),
    lambda x, y: torch.cdist(x, y),
    lambda x, y: F.batch_norm(x, y[0].clone(), y[0].clone(), training=True),
]


@pytest.mark.parametrize("mix", MIXES, ids=[f"line{m.__code__.co_firstlineno}" for m in MIXES])
@pytest.mark.parametrize("other", ["cpu", "meta"])
def test_devices_do_not_mix(mix: Callable[[torch.Tensor, torch.Tensor], Any], other: str):
    x, y = ramp(DEVICE, 2, 2), ramp("cpu", 2, 2).to(other)
    before = x.clone()
    with pytest.raises((RuntimeError, TypeError, NotImplementedError)) as caught:
        mix(x, y)
    if other == "cpu" and not isinstance(caught.value, TypeError):
        assert type(caught.value) is RuntimeError
        assert "device" in str(caught.value) or "cpu, the tensor on jax:0" in str(caught.value), str(caught.value)
    assert torch.equal(x, before)
    if other == "cpu":
        assert torch.equal(y, ramp("cpu", 2, 2))


def test_a_device_that_is_not_there():
    for use in (
        lambda: torch.ones(2, device="jax:99"),
        lambda: ramp("cpu", 2).to("jax:99"),
        lambda: ramp(DEVICE, 2).to("jax:99"),
    ):
        with pytest.raises(RuntimeError, match=r"jax:99.*does not exist"):
            use()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:ComplexHalf support")
def test_tensors_that_device_jax_does_not_hold():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    quantized = torch.ops.aten.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    for t in (torch.eye(2).to_sparse(), nested, quantized, torch.zeros(2, dtype=torch.complex32)):
        with pytest.raises((TypeError, RuntimeError, NotImplementedError)) as caught:
            t.to(DEVICE)
        assert DEVICE in str(caught.value) or "JAX" in str(caught.value), str(caught.value)
    with pytest.raises((RuntimeError, NotImplementedError)):
        ramp(DEVICE, 2, 2).to_sparse()
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=LONG), torch.ones(1), (2,), device=DEVICE)
    with pytest.raises(RuntimeError, match="pin"):
        ramp(DEVICE, 2).pin_memory()
    with pytest.raises(RuntimeError, match="processes"):
        ramp(DEVICE, 2).share_memory_()


# --- a failed operator changes nothing -------------------------------------------------------------------------------

FAILING = [
    lambda x, y: x.add_(torch.ones(7, device=x.device)),
    lambda x, y: x.add_(1j),
    lambda x, y: x.view(-1)[1:4].copy_(torch.ones(7, device=x.device)),
    lambda x, y: x.t()[0].mul_(torch.ones(3, 2, device=x.device)),
    lambda x, y: y.add_(0.5),
    lambda x, y: x.index_add_(0, torch.tensor([0, 9]).to(x.device), x[:2]),
    lambda x, y: x.scatter_(0, torch.tensor([[9]]).to(x.device), 1.0),
    lambda x, y: x.__setitem__([0, 9], 1.0),
    lambda x, y: x.__setitem__((0, slice(0, 2)), torch.ones(3, device=x.device)),
    lambda x, y: torch.add(x, torch.ones(7, device=x.device), out=x),
    lambda x, y: torch.add(x, 1, out=y),
    lambda x, y: torch.max(x, 0, out=(torch.empty(0, device=x.device), x)),
    lambda x, y: torch.max(x, 1, out=(x, x)),
    lambda x, y: torch._foreach_add_([x, y], [x, x]),
    lambda x, y: torch._foreach_mul_([x[0], x], [x[1], torch.ones(7, device=x.device)]),
    lambda x, y: torch._foreach_add_([x, y], 0.5),
    lambda x, y: x.normal_(0, -1),
    lambda x, y: x.uniform_(1, 0),
    lambda x, y: x.unsqueeze_(7),
    lambda x, y: x.squeeze_(7),
    lambda x, y: x.transpose_(0, 7),
    lambda x, y: x.resize_(-1),
    lambda x, y: x.as_strided_((9, 9), (9, 9)),
    lambda x, y: x.masked_fill_(torch.ones(7, dtype=BOOL, device=x.device), 0),
    lambda x, y: F.batch_norm(x[:1], x[1], x[2], training=True),
    lambda x, y: F.batch_norm(torch.ones(2, 7, device=x.device), x[1], x[2], training=True),
    lambda x, y: x.addmm_(torch.ones(7, 7, device=x.device), x),
    lambda x, y: x.map_(x, lambda a, b: 1 / 0),
    lambda x, y: x.relu_().add_("a"),
]


@pytest.mark.parametrize("fail", FAILING, ids=[f"line{f.__code__.co_firstlineno}" for f in FAILING])
def test_a_failed_operator_changes_nothing(fail: Callable[[torch.Tensor, torch.Tensor], Any]):
    """Neither values nor shapes nor version: also of the operands that came before the bad one."""
    x, y = ramp(DEVICE, 4, 3), ramp(DEVICE, 4, 3, dtype=LONG)
    row = x[1]
    with pytest.raises((RuntimeError, IndexError, TypeError, ValueError)):
        fail(x, y)
    same([x, y, row], [want := ramp("cpu", 4, 3), ramp("cpu", 4, 3, dtype=LONG), want[1]])
    assert x.untyped_storage() == row.untyped_storage()
    x.add_(1)
    same(row, (want + 1)[1].clone(), strides=False)


# --- tracers ---------------------------------------------------------------------------------------------------------


def leaked() -> torch.Tensor:
    kept = []
    jax.jit(lambda x: [kept.append(x[1:] * 2), x][1])(ramp(DEVICE, 3))
    return kept[0]


SAYS_SO = (jax.errors.UnexpectedTracerError, jax.errors.TracerArrayConversionError, RuntimeError)
USES = [
    lambda t: t + 1,
    lambda t: 2 * t,
    lambda t: t.exp(),
    lambda t: ramp(DEVICE, 2).add_(t),
    lambda t: t.cpu(),
    lambda t: t.tolist(),
    lambda t: t[0].item(),
    lambda t: t[:1] * 2,
    lambda t: torch.cat([t, t]),
    lambda t: t.clone().zero_() + t,
    lambda t: bool(t.sum() > 0),
]


@pytest.mark.parametrize("use", USES, ids=[f"line{u.__code__.co_firstlineno}" for u in USES])
def test_a_tensor_from_a_finished_trace(use: Callable[[torch.Tensor], Any]):
    with pytest.raises(SAYS_SO, match=r"[Tt]race"):
        use(leaked())


def test_a_tensor_from_a_finished_trace_can_be_printed_and_asked_for_its_shape():
    t = leaked()
    assert t.shape == (2,)
    assert t.dtype == torch.float32
    assert "size=(2,)" in repr(t)


def test_a_failed_write_of_a_leaked_tensor_changes_nothing():
    x = ramp(DEVICE, 2)
    with pytest.raises(SAYS_SO):
        x.add_(leaked())
    assert x.tolist() == [1, 2]


def test_values_are_not_there_under_a_trace():
    x = ramp(DEVICE, 3)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(lambda x: x if x.sum() > 0 else -x)(x)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(lambda x: x * x.sum().item())(x)
    with pytest.raises(jax.errors.TracerArrayConversionError):
        jax.jit(lambda x: x.cpu())(x)
    with pytest.raises(jax.errors.TracerArrayConversionError):
        jax.jit(lambda x: x.numpy())(x)


def test_float64_that_a_trace_would_cut_is_refused():
    x = ramp(DEVICE, 3)
    with pytest.raises(RuntimeError, match="x64"):
        jax.jit(lambda x: x.double() * 2)(x)
    with jax.enable_x64(True):
        assert jax.jit(lambda x: x.double() * 2)(x).dtype == DOUBLE


def test_a_failure_under_a_trace_has_the_same_type_and_leaves_torch_usable():
    x = ramp(DEVICE, 2, 3)
    for bad, kind in [
        (lambda x: x @ x, RuntimeError),
        (lambda x: x.sum(5), IndexError),
        (lambda x: x[5], IndexError),
        (lambda x: x.view(4), RuntimeError),
        (lambda x: x.long().mean(), RuntimeError),
    ]:
        with pytest.raises(kind):
            jax.jit(bad)(x)
    same(x + 1, ramp("cpu", 2, 3) + 1)


# --- operators that are not there ------------------------------------------------------------------------------------

LIBRARY = torch.library.Library("torchax_test_errors", "DEF")
LIBRARY.define("missing(Tensor x, int n=2, *, float scale=1.0) -> Tensor")
LIBRARY.define("only_cpu(Tensor x) -> Tensor")
LIBRARY.impl("only_cpu", lambda x: x + 1, "CPU")
LIBRARY.define("registered(Tensor x) -> Tensor")


@pytest.mark.parametrize("x", [lambda: ramp(DEVICE, 2), lambda: leaf(DEVICE, 2)], ids=["plain", "with grad"])
def test_a_missing_operator_says_what_is_missing_and_what_to_do(x: Callable[[], torch.Tensor]):
    with pytest.raises(torchax.OperatorNotFound) as caught:
        torch.ops.torchax_test_errors.missing(x(), 3)
    message = str(caught.value)
    assert isinstance(caught.value, NotImplementedError)
    assert "torchax_test_errors::missing" in message
    assert "missing(Tensor x, int n=2, *, float scale=1." in message
    assert "torchax.ops.jaten.op" in message
    assert "cpu_fallback" in message


def test_an_operator_that_only_cpu_has_does_not_run_there_silently():
    assert torch.ops.torchax_test_errors.only_cpu(ramp("cpu", 2)).tolist() == [2, 3]
    with pytest.raises(torchax.OperatorNotFound, match="torchax_test_errors::only_cpu"):
        torch.ops.torchax_test_errors.only_cpu(ramp(DEVICE, 2))


def test_the_remedy_the_message_names_works():
    registered = torch.ops.torchax_test_errors.registered
    with pytest.raises(torchax.OperatorNotFound):
        registered(ramp(DEVICE, 2))

    @torchax.ops.jaten.op(registered.default)
    def double(x: jax.Array) -> jax.Array:
        return jnp.multiply(x, 2)

    assert registered(ramp(DEVICE, 2)).tolist() == [2, 4]


def test_an_error_can_be_caught_and_work_goes_on():
    x = leaf(DEVICE, 2, 3)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            x @ x
        with pytest.raises(IndexError):
            x.sum(4)
    (x * x).sum().backward()
    torch.testing.assert_close(on_cpu(x.grad), 2 * on_cpu(x))

"""PyTorch's higher-order operators and its checkpoint on the device: eager, with gradients, and under traces."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from torchax import interop

# Dynamo's own, which captures the bodies
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects:UserWarning"),
]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def cond(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos(), (x,))


def loop(x: torch.Tensor) -> torch.Tensor:
    start = torch.zeros((), dtype=torch.int64, device=x.device)
    return while_loop(lambda i, y: (i < 10) & (y.abs().max() < 20), lambda i, y: (i + 1, y * 2 + i), (start, x))[1]


def scanned(x: torch.Tensor) -> Any:
    return scan(lambda carry, y: (carry * 0.5 + y, carry * y), torch.ones_like(x[0]), x)


def associative(x: torch.Tensor) -> torch.Tensor:
    return associative_scan(lambda a, b: a * b + b, x, 0, combine_mode="generic")


def mapped(x: torch.Tensor) -> torch.Tensor:
    return torch_map(lambda row, scale: row.softmax(0) * scale, x, x.sum())


LOOPS = [cond, loop, scanned, associative, mapped]


def close(got: Any, want: Any) -> None:
    on_cpu = lambda tree: torch.utils._pytree.tree_map(lambda t: t.detach().cpu(), tree)  # noqa: E731
    torch.testing.assert_close(on_cpu(got), on_cpu(want))


def first(out: Any) -> torch.Tensor:
    return torch.utils._pytree.tree_leaves(out)[-1]


@pytest.mark.parametrize("f", LOOPS)
@pytest.mark.parametrize("sign", [1, -1])
def test_values_eager_and_traced(f, sign):
    x = sign * torch.rand(4, 3)
    want = f(x)
    close(f(x.to("jax")), want)
    close(interop.jax_jit(f)(x.to("jax")), want)
    close(jax.jit(f)(x.to("jax")), want)


@pytest.mark.parametrize("f", LOOPS)
def test_gradients(f):
    x = torch.rand(4, 3)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(first(f(x)).square().sum(), x)[0]

    want = gradient(x.clone().requires_grad_())
    close(gradient(x.to("jax").requires_grad_()), want)
    if f is loop:
        with pytest.raises(NotImplementedError, match=r"gradient of torch.while_loop under a trace"):
            interop.jax_jit(gradient)(x.to("jax").requires_grad_())
    else:
        close(interop.jax_jit(gradient)(x.to("jax").requires_grad_()), want)


def test_one_program_whatever_the_number_of_turns():
    text = jax.jit(loop).lower(torch.rand(3, device="jax")).as_text()
    assert text.count("stablehlo.while") == 1
    assert "stablehlo.case" in jax.jit(cond).lower(torch.rand(3, device="jax")).as_text()


def attention_by_hand(q: torch.Tensor, bias: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    scores = q @ q.mT / q.shape[-1] ** 0.5 + bias
    return scores.masked_fill(~keep, float("-inf")).softmax(-1) @ q


@pytest.mark.parametrize("traced", [False, True])
def test_flex_attention(traced):
    q = torch.randn(1, 2, 8, 4)
    at = torch.arange(8)
    keep = at[:, None] >= at

    def f(q: torch.Tensor) -> torch.Tensor:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8, device=q.device, BLOCK_SIZE=8)
        return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.5, block_mask=mask)

    def both(f: Any, q: torch.Tensor) -> Any:
        out = f(q)
        return out, torch.autograd.grad(out.square().sum(), q)[0]

    want = both(lambda q: attention_by_hand(q, (at[:, None] - at) * 0.5, keep), q.clone().requires_grad_())
    program = lambda q: both(f, q)  # noqa: E731
    got = (interop.jax_jit(program) if traced else program)(q.to("jax").requires_grad_())
    close(got, want)


# --- checkpoint ---------------------------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh().sin())

    def forward(self, x: torch.Tensor, use_reentrant: bool = False) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=use_reentrant)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_has_the_same_gradients(use_reentrant):
    model, x = Checkpointed(), torch.randn(3, 4, requires_grad=True)
    params = dict(model.named_parameters())

    def gradients(params: Any, x: torch.Tensor) -> Any:
        out = torch.func.functional_call(model, params, (x, use_reentrant))
        return torch.autograd.grad(out.square().sum(), [x, *params.values()])

    want = torch.autograd.grad(model.inner(x).square().sum(), [x, *params.values()])
    device = {n: p.detach().to("jax").requires_grad_() for n, p in params.items()}
    y = x.detach().to("jax").requires_grad_()
    close(interop.jax_jit(gradients)(device, y), list(want))
    if not use_reentrant:  # whose own backward refuses autograd.grad
        model.to("jax")
        close(torch.autograd.grad(model(y).square().sum(), [y, *model.parameters()]), want)


def test_checkpoint_is_jax_checkpoint_under_a_trace():
    model, x = Checkpointed().to("jax"), torch.randn(3, 4, device="jax")
    params = {n: p.detach() for n, p in model.named_parameters()}
    loss = lambda p: torch.func.functional_call(model, p, (x,)).square().sum().jax()  # noqa: E731
    text = str(jax.make_jaxpr(jax.grad(loss))(params))
    assert "checkpoint" in text or "remat" in text


def test_checkpointed_dropout_draws_the_same_again():
    x = torch.ones(64, device="jax")

    def gradient(x: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        out = checkpoint(lambda x: F.dropout(x, 0.5) * x, x, use_reentrant=False)
        return out, torch.autograd.grad(out.sum(), x)[0]

    out, grad = interop.jax_jit(gradient)(x)
    assert 0 < int((out == 0).sum()) < 64
    close(grad, 2 * out)
    assert torch.randn(2, device="jax").cpu().isfinite().all()

"""PyTorch's autograd over ``jax`` tensors: the engine's thread, hooks, checkpointing, custom functions, inference mode."""

import threading

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchax
from torchax.tensor import Tensor


def on_jax(*tensors):
    return [t.detach().to("jax").requires_grad_(t.requires_grad) for t in tensors]


def check_grads(f, *inputs):
    """``f`` and its gradients on both devices."""
    outs = f(*inputs)
    grads = torch.autograd.grad(outs.sum(), inputs)
    moved = on_jax(*inputs)
    on_device = f(*moved)
    torch.testing.assert_close(on_device.detach().cpu(), outs.detach())
    for got, want in zip(torch.autograd.grad(on_device.sum(), moved), grads, strict=True):
        torch.testing.assert_close(got.cpu(), want)


def test_backward_runs_on_the_callers_thread():
    # PITFALLS 1: JAX's settings are per thread; on PyTorch's own engine thread they would be lost.
    seen = []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            seen.append((threading.get_ident(), jax.config.jax_default_matmul_precision))
            return g * 2

    x = torch.ones(3, device="jax", requires_grad=True)
    with jax.default_matmul_precision("float32"):
        Spy.apply(x).sum().backward()
    assert seen == [(threading.get_ident(), "float32")]


def test_backward_inside_a_plain_jit():
    model = nn.Linear(4, 2).to("jax")
    x = torch.randn(3, 4, device="jax")

    @jax.jit
    def grads(params, x):
        params = {k: v.detach().requires_grad_() for k, v in params.items()}
        loss = torch.func.functional_call(model, params, (x,)).square().sum()
        return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))

    compiled = grads(dict(model.named_parameters()), x)
    model(x).square().sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(compiled[name].cpu(), p.grad.cpu())


def test_in_place_on_views_keeps_gradients():
    def f(w):
        x = w * 2
        x[0].mul_(10)
        x[:, 1:].add_(w[:, :-1])
        return x

    check_grads(f, torch.randn(2, 3, requires_grad=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_dropout_recomputes_the_same_draw(reentrant):
    # PITFALLS 2: the state is per device, so that recomputation draws the same wherever it runs.
    torch.manual_seed(0)
    x = torch.ones(64, device="jax", requires_grad=True)
    y = checkpoint(lambda v: F.dropout(v, 0.5) * 3, x, use_reentrant=reentrant)
    y.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), y.detach().cpu())


def test_random_state_is_the_devices_on_every_thread():
    torch.manual_seed(3)
    want = [torch.rand(2, device="jax").cpu() for _ in range(2)]
    torch.manual_seed(3)
    got = [torch.rand(2, device="jax").cpu()]
    thread = threading.Thread(target=lambda: got.append(torch.rand(2, device="jax").cpu()))
    thread.start()
    thread.join()
    torch.testing.assert_close(got, want)


def test_hooks_and_retained_gradients():
    def f(device):
        log = []
        x = torch.arange(3.0).to(device).requires_grad_()
        y = x * 2
        y.retain_grad()
        y.register_hook(lambda g: log.append("tensor") or g * 3)
        x.register_post_accumulate_grad_hook(lambda p: log.append("accumulated"))
        (y**2).sum().backward()
        return [y.grad.cpu(), x.grad.cpu(), log]

    assert str(f("jax")) == str(f("cpu"))


def test_hooks_of_modules():
    def f(device):
        torch.manual_seed(0)
        log = []
        m = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).to(device)
        m[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        m[0].register_forward_hook(lambda m, args, out: out + 1)
        m[1].register_full_backward_pre_hook(lambda m, g: (g[0] * 3,))
        m.register_full_backward_hook(lambda m, gi, go: log.append([g.cpu() for g in (*gi, *go)]))
        x = torch.ones(2, 3).to(device).requires_grad_()
        m(x).sum().backward()
        return [*log[0], x.grad.cpu(), m[0].weight.grad.cpu()]

    torch.testing.assert_close(f("jax"), f("cpu"))


def test_double_backward():
    def f(x):
        (g,) = torch.autograd.grad((x.sin() * x.exp()).sum(), x, create_graph=True)
        return g**2

    check_grads(f, torch.randn(4, requires_grad=True))


def test_custom_function_with_saved_tensors():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

    check_grads(Cube.apply, torch.randn(3, requires_grad=True))


def test_saved_tensor_hooks():
    x = torch.ones(3, device="jax", requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).sum()
    y.backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_no_grad_detach_and_requires_grad():
    x = torch.ones(2, device="jax", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    assert not x.detach().requires_grad
    d = x.detach()
    d[0] = 5
    assert x.tolist() == [5.0, 1.0]  # detach aliases
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="floating point"):
        torch.ones(2, dtype=torch.int64, device="jax").requires_grad_()


def test_modified_saved_tensor_is_noticed():
    x = torch.ones(2, device="jax", requires_grad=True)
    y = x * 2
    z = y.exp().sum() + (y * y).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_views_in_inference_mode():
    # PITFALLS 5
    w = nn.Parameter(torch.arange(6.0).reshape(2, 3)).to("jax")
    with torch.inference_mode():
        assert w[1:].t().cpu().flatten().tolist() == [3.0, 4.0, 5.0]
        made = torch.ones(3, device="jax")
        assert made.is_inference()
        assert (made[1:] * 2).tolist() == [2.0, 2.0]
        assert F.linear(made, w).shape == (2,)
        assert F.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 2, device="jax")] * 3).shape == (1, 1, 2, 2)


def test_functions_of_torch_autograd():
    x = torch.randn(3, dtype=torch.float64)

    def f(v):
        return v.sin() * v.sum()

    want = torch.autograd.functional.jacobian(f, x)
    torch.testing.assert_close(torch.autograd.functional.jacobian(f, x.to("jax")).cpu(), want)
    y = x.to("jax").requires_grad_()
    assert torch.autograd.gradcheck(lambda v: (v.tanh() * v).cumsum(0), (y,))
    assert torch.autograd.gradgradcheck(lambda v: v.exp() * v, (y,))


def test_mixed_devices_in_one_graph():
    a = torch.ones(3, requires_grad=True)
    b = torch.ones(3, device="jax", requires_grad=True)
    ((a.to("jax") * b).cpu() * a).sum().backward()
    assert a.grad.tolist() == [2.0] * 3
    assert b.grad.tolist() == [1.0] * 3


def test_a_process_without_jax_tensors_keeps_its_engine():
    import subprocess
    import sys

    code = """
import threading, torch, torchax
seen = []
x = torch.ones(2, requires_grad=True)
real = torch.autograd.set_multithreading_enabled
torch.autograd.set_multithreading_enabled = lambda *a: seen.append(a) or real(*a)
(x * 2).sum().backward()
assert not seen
torch.ones(2, device="jax", requires_grad=True).sum().backward()
assert seen
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_tensor_class():
    x = torch.ones(2, device="jax", requires_grad=True)
    assert type(x * 2) is Tensor is torchax.Tensor
    assert x.device == torch.device("jax", 0)
    assert x.is_jax
    assert isinstance(nn.Parameter(x.detach()), nn.Parameter)


@pytest.mark.parametrize("jitted", [False, True])
def test_an_operator_that_fails_in_a_backward_raises(jitted, monkeypatch):
    # PyTorch's engine loses such an error for a Python backend, or ends the process.
    from torchax import tensor

    class Broken(Exception):
        pass

    def f(x):
        x = x.detach().requires_grad_()
        y = x.exp().sum()

        def broken(args, kwargs):
            raise Broken("in backward")

        with monkeypatch.context() as patch:
            patch.setitem(tensor.plans, torch.ops.aten.mul.Tensor, broken)
            return torch.autograd.grad(y, x)[0]

    x = torch.ones(3, device="jax")
    for _ in range(2):
        with pytest.raises(Broken, match="in backward"):
            jax.jit(f)(x) if jitted else f(x)
    y = (x.requires_grad_() * 2).sum()
    y.backward()
    assert x.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("shapes", [((3, 5, 8), (3, 5, 8)), ((2, 4, 5, 8), (2, 2, 5, 8)), ((2, 3, 5, 8), (2, 3, 5, 8))])
def test_attention_with_masks(shapes, mask):
    # A bool mask hides; added as 0 and 1 it would be silently wrong.
    torch.manual_seed(0)
    q, k, v = (torch.randn(s, requires_grad=True) for s in (shapes[0], shapes[1], shapes[1]))
    masks = {None: None, "bool": torch.rand(5, 5) > 0.3, "float": torch.randn(5, 5)}
    gqa = shapes[0] != shapes[1]

    def attend(q, k, v):
        m = masks[mask]
        m = m if m is None else m.to(q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=gqa)

    check_grads(attend, q, k, v)


VIEWS = {
    "whole": lambda a: a,
    "transposed": lambda a: a.mT,
    "sliced": lambda a: a[..., 1:, :2],
    "every second row": lambda a: a.repeat_interleave(2, -2)[..., ::2, :],
    "batch last": lambda a: a.movedim(0, -1).contiguous().movedim(-1, 0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (2,), (2, 1)], ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_determinants_of_views(view, batch, dtype):
    """PyTorch reads the LU that the forward gives as that of A or of its transpose, by whether A is contiguous."""
    noise = torch.rand(*batch, 3, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    base = torch.tensor([[1, 2, 4], [3, 1, 0], [0, 2, 1]])  # whose views have positive determinants
    a = (base + noise / 10).requires_grad_()
    look = VIEWS[view]
    check_grads(lambda a: torch.linalg.det(look(a)), a)
    check_grads(lambda a: torch.linalg.slogdet(look(a))[1], a)
    check_grads(lambda a: torch.logdet(look(a)), a)
    primals, tangents = (a.detach(), a.detach() + 1), on_jax(a.detach(), a.detach() + 1)
    for f in (lambda a: torch.linalg.det(look(a)), lambda a: torch.linalg.slogdet(look(a))[1]):
        want, got = (torch.func.jvp(f, (x,), (v,))[1] for x, v in (primals, tangents))
        torch.testing.assert_close(got.cpu(), want)

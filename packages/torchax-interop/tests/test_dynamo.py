"""``torch.compile(backend="jax")`` against eager CPU: values, gradients, what is written, breaks, shapes, modes."""

from __future__ import annotations

import copy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F
from torch._dynamo.utils import counters

import torchax
from torchax import interop

DEVICES = ["cpu", "jax"]
# Dynamo's own, where a tensor goes from one graph to the next
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def on(device: str, tree: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda x: x.detach().to(device) if isinstance(x, torch.Tensor) else x, tree)


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(on("cpu", got), on("cpu", want))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 4, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, -1))


def mlp() -> Any:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 2)), torch.randn(5, 3)


def cnn() -> Any:
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(64, 2)), torch.randn(2, 3, 8, 8)


def attention() -> Any:
    return Attention(), torch.randn(2, 6, 16)


def embedding() -> Any:
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2)), torch.randint(0, 10, (2, 3))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [mlp, cnn, attention, embedding])
def test_forward_backward_and_buffers(make, device):
    cpu, x = make()
    model = copy.deepcopy(cpu).to(device)
    compiled = torch.compile(model, backend="jax", fullgraph=True)
    for _ in range(2):
        got, want = compiled(x.to(device)), cpu(x)
        assert got.device.type == device
        assert type(got) is (torchax.Tensor if device == "jax" else torch.Tensor)
        assert got.stride() == want.stride()
        close(got, want)
        got.square().sum().backward()
        want.square().sum().backward()
    for (name, p), q in zip(cpu.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad, msg=lambda m, name=name: f"{name}: {m}")
    for p, q in zip(cpu.buffers(), model.buffers(), strict=True):
        close(q, p)


@pytest.mark.parametrize("device", DEVICES)
def test_training_with_an_optimizer(device):
    cpu, x = mlp()
    model = copy.deepcopy(cpu).to(device)

    def losses(model: nn.Module, forward: Any, x: torch.Tensor) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        seen = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = (forward(x) - 1).square().mean()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen

    got = losses(model, torch.compile(model, backend="jax"), x.to(device))
    assert got == pytest.approx(losses(cpu, cpu, x), rel=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_one_program_forward_and_one_backward(device):
    layer = nn.Linear(3, 2).to(device)
    compiled = torch.compile(layer, backend="jax")
    for _ in range(2):  # the second adds to the gradients of the first
        compiled(torch.randn(4, 3, device=device)).sum().backward()
    compilations = []
    listen = lambda name, *_, **__: compilations.append(name) if "backend_compile" in name else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for _ in range(3):
            compiled(torch.randn(4, 3, device=device)).sum().backward()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compilations == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_shapes_that_change(device, dynamic):
    cpu, _ = attention()
    compiled = torch.compile(copy.deepcopy(cpu).to(device), backend="jax", dynamic=dynamic)
    for length in (4, 5, 7):
        x = torch.randn(2, length, 16)
        a, b = x.clone().to(device).requires_grad_(), x.clone().requires_grad_()
        got, want = compiled(a), cpu(b)
        close(got, want)
        got.sum().backward()
        want.sum().backward()
        close(a.grad, b.grad)


@pytest.mark.parametrize("device", DEVICES)
def test_graph_breaks(device):
    seen = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).sin()
        torch._dynamo.graph_break()
        seen.append(len(seen))
        if y.sum() > 0:
            return y.cos() + 1
        return y.exp() - 1

    for x in (torch.ones(3), -torch.ones(3)):
        a, b = x.clone().to(device).requires_grad_(), x.clone().requires_grad_()
        got, want = torch.compile(f, backend="jax")(a), f(b)
        close(got, want)
        got.sum().backward()
        want.sum().backward()
        close(a.grad, b.grad)
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("device", DEVICES)
def test_torch_operators_and_jax_functions_between_graphs(device):
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        z = torch.sort(y, descending=True)[0]
        if device == "jax":
            z = interop.call_jax(jax.numpy.square, z)
        else:
            z = z * z
        return z.sum()

    x = torch.randn(5)
    close(torch.compile(f, backend="jax")(x.to(device)), (x + 1).square().sum())


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_that_are_written_and_outputs_that_alias(device):
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.mul_(2)
        y[0].add_(1)
        return x.view(-1), y.t(), x

    def program(f: Any, device: str) -> Any:
        x, y = torch.arange(4.0).reshape(2, 2).to(device), torch.zeros(2, 3, device=device)
        flat, turned, same = f(x, y)
        assert same is x
        x.add_(1)
        return x, y, flat, turned

    close(program(torch.compile(f, backend="jax"), device), program(f, "cpu"))


@pytest.mark.parametrize("device", DEVICES)
def test_no_grad_inference_mode_and_autocast(device):
    cpu, x = mlp()
    cpu.eval()
    compiled = torch.compile(copy.deepcopy(cpu).to(device), backend="jax")
    with torch.no_grad():
        got = compiled(x.to(device))
        assert not got.requires_grad
        close(got, cpu(x))
    with torch.inference_mode():
        close(compiled(x.to(device)), cpu(x))
    with torch.autocast(device, dtype=torch.bfloat16):
        got = compiled(x.to(device))
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.detach().float().cpu(), cpu(x).detach(), rtol=2e-2, atol=2e-2)  # bfloat16's 8 bits


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_draws_anew_and_repeats_with_the_seed(device):
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="jax", fullgraph=True)
    x = torch.ones(1000, device=device, requires_grad=True)
    torch.manual_seed(1)
    a, b = compiled(x), compiled(x)
    torch.manual_seed(1)
    assert torch.equal(compiled(x), a)
    assert not torch.equal(a, b)
    assert 400 < int((a == 0).sum()) < 600
    a.sum().backward()
    assert torch.equal(x.grad, a)
    assert torch.randn(2, device="jax").cpu().isfinite().all()


def test_factories_integers_and_numbers():
    def f(x: torch.Tensor, n: int, scale: float) -> Any:
        i = torch.arange(x.shape[0], device=x.device)
        return i * n, (x * scale).long(), torch.full((2,), scale, device=x.device), x.argmax()

    x = torch.randn(4)
    for device in DEVICES:
        for n, scale in ((2**40, 0.5), (3, 1.5)):
            close(torch.compile(f, backend="jax")(x.to(device), n, scale), f(x, n, scale))


def test_a_custom_operator_and_cond_are_one_program():
    @interop.jax_op("dynamo_test::cube")
    def cube(x: jax.Array) -> jax.Array:
        return x**3

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return torch.ops.dynamo_test.cube(y)

    for sign in (1, -1):
        x = sign * torch.rand(3)
        want = (x.sin() if sign > 0 else x.cos()) ** 3
        for device in DEVICES:
            close(torch.compile(f, backend="jax", fullgraph=True)(x.to(device)), want)


def test_an_operator_without_a_jax_function_is_named():
    @torch.library.custom_op("dynamo_test::nothing", mutates_args=(), device_types="cpu")
    def nothing(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    nothing.register_fake(torch.empty_like)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"dynamo_test::nothing.*has no JAX function"):
        torch.compile(nothing, backend="jax", fullgraph=True)(torch.ones(2))


def test_the_models_python_is_captured_once():
    counters.clear()
    cpu, x = attention()
    compiled = torch.compile(cpu.to("jax"), backend="jax", fullgraph=True)
    for _ in range(3):
        compiled(x.to("jax"))
    assert counters["stats"]["unique_graphs"] == 1


def test_registered_by_import_and_by_entry_point():
    program = """
import sys, torch
import torchax.interop
assert "torch._dynamo" not in sys.modules
assert torch.compile(lambda x: x + 1, backend="jax")(torch.ones(2)).tolist() == [2, 2]
assert "jax" in torch._dynamo.list_backends()
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2, 2]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["jax"].partition(":")
    assert getattr(__import__(module, fromlist=[name]), name) is torch._dynamo.backends.registry.lookup_backend("jax")

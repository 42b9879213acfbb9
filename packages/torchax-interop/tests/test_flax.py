"""flax modules in PyTorch and PyTorch modules in flax: values, gradients, training and state on the other side."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.nn as nn
from flax import nnx

import torchax
from torchax.flax import FlaxNNModule, as_nnx, functional


class Linen(linen.Module):
    """Dense, batch statistics, dropout."""

    rate: float = 0.0

    @linen.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        x = linen.BatchNorm(use_running_average=not train)(linen.Dense(4)(x))
        return linen.Dense(2)(linen.Dropout(self.rate, deterministic=not train)(x))


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, rate: float = 0.0) -> None:
        self.first, self.norm = nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.drop, self.rest = nnx.Dropout(rate, rngs=rngs), nnx.List([nnx.Linear(4, 2, rngs=rngs)])

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.rest[0](self.drop(self.norm(self.first(x))))


def batch(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to("jax")


def close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(
        np.asarray(got.detach().cpu() if isinstance(got, torch.Tensor) else got), want, rtol=1e-5, atol=1e-5
    )


# --- flax in PyTorch ----------------------------------------------------------------------------------------------------


def linen_pair(rate: float = 0.0) -> tuple[FlaxNNModule, Linen]:
    torch.manual_seed(0)
    module = Linen(rate)
    return FlaxNNModule(torchax.default_env(), module, (batch(5, 3),), {"train": False}), module


def test_linen_module_is_flax_own():
    ours, module = linen_pair()
    assert {n for n, _ in ours.named_parameters()} == {
        f"_params.params.{n}" for n in ("Dense_0.kernel", "Dense_0.bias", "Dense_1.kernel", "Dense_1.bias",
                                        "BatchNorm_0.scale", "BatchNorm_0.bias")
    }  # fmt: skip
    assert {n for n, _ in ours.named_buffers()} == {f"_params.batch_stats.BatchNorm_0.{n}" for n in ("mean", "var")}
    variables = jax.tree.map(
        lambda t: t.detach().jax(), ours._params.tree(), is_leaf=lambda t: isinstance(t, torch.Tensor)
    )
    x = batch(5, 3, seed=1)

    def loss(params: Any) -> Any:
        out, after = module.apply({**variables, "params": params}, x.jax(), mutable=["batch_stats"])
        return (out**2).sum(), (out, after)

    (_, (out, after)), grads = jax.value_and_grad(loss, has_aux=True)(variables["params"])
    got = ours(x)
    got.square().sum().backward()
    close(got, out)
    close(ours._params.params.Dense_0.kernel.grad, grads["Dense_0"]["kernel"])
    close(ours._params.batch_stats.BatchNorm_0.mean, after["batch_stats"]["BatchNorm_0"]["mean"])
    before = ours._params.batch_stats.BatchNorm_0.mean.clone()
    ours.eval()(x, train=False)
    assert torch.equal(ours._params.batch_stats.BatchNorm_0.mean, before)


def test_linen_dropout_follows_the_devices_generator():
    ours, _ = linen_pair(0.5)
    x = batch(5, 3)
    torch.manual_seed(3)
    a, b = ours(x), ours(x)
    torch.manual_seed(3)
    assert not torch.equal(a, b)
    close(ours(x), a.detach().cpu())


def nnx_pair(rate: float = 0.0) -> tuple[FlaxNNModule, Nnx]:
    module = Nnx(nnx.Rngs(0), rate)
    return FlaxNNModule(None, copy.deepcopy(module)), module


def test_nnx_module_is_flax_own():
    ours, module = nnx_pair()
    names = {n for n, _ in ours.named_parameters()}
    assert {"_params.first.kernel", "_params.norm.scale", "_params.rest.0.bias"} < names
    assert {"_params.norm.mean", "_params.norm.var"} < {n for n, _ in ours.named_buffers()}
    x = batch(5, 3)
    got = ours(x)
    got.square().sum().backward()
    grads = nnx.grad(lambda m: (m(x.jax()) ** 2).sum())(copy.deepcopy(module))
    close(got, module(x.jax()))
    close(ours._params.rest.get_parameter("0.kernel").grad, grads["rest"][0]["kernel"][...])
    close(ours._params.norm.mean, module.norm.mean[...])
    module.eval()
    close(ours.eval()(x), module(x.jax()))


def test_nnx_random_state_is_a_buffer():
    ours, _ = nnx_pair(0.5)
    x = batch(5, 3)
    saved = copy.deepcopy(ours.state_dict())
    a, b = ours(x), ours(x)
    assert not torch.equal(a, b)
    ours.load_state_dict(saved)
    close(ours(x), a.detach().cpu())
    ours.eval()
    assert torch.equal(ours(x), ours(x))


def mlp_init(key: jax.Array, x: jax.Array) -> Any:
    return [(jax.random.normal(key, (x.shape[-1], 2)), jnp.zeros(2)), {"steps": jnp.zeros((), jnp.int32)}]


def mlp_apply(params: Any, x: jax.Array, scale: float = 1.0) -> jax.Array:
    (w, b), _ = params
    return (x @ w + b) * scale


class Transformed:
    init, apply = staticmethod(mlp_init), staticmethod(mlp_apply)


@pytest.mark.parametrize("pair", [(mlp_init, mlp_apply), Transformed()])
def test_an_init_apply_pair_trains_with_a_torch_optimizer(pair):
    torch.manual_seed(0)
    model = FlaxNNModule(torchax.default_env(), pair, (batch(5, 3),))
    assert {n: tuple(p.shape) for n, p in model.named_parameters()} == {"_params.0.0": (3, 2), "_params.0.1": (2,)}
    assert dict(model.named_buffers())["_params.1.steps"].dtype == torch.int32
    x = batch(5, 3, seed=1)
    close(model(x, scale=2.0), 2 * model(x).detach().cpu())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("make", [linen_pair, nnx_pair])
def test_state_dict_travels(make):
    (a, _), (b, _) = make(), make()
    x = batch(5, 3)
    a(x)
    with torch.no_grad():
        for p in a.parameters():
            p.mul_(2)
    file = io.BytesIO()
    torch.save(a.state_dict(), file)
    file.seek(0)
    b.load_state_dict(torch.load(file, map_location="jax"))
    for name, value in a.state_dict().items():
        assert torch.equal(b.state_dict()[name], value), name


def test_inside_a_torch_model_and_a_jax_jit():
    ours, _ = nnx_pair()
    model = nn.Sequential(nn.Linear(3, 3).to("jax"), ours).eval()
    params = {n: p.detach() for n, p in model.named_parameters()}
    f = jax.jit(lambda p, x: torch.func.functional_call(model, p, (x,)))
    x = batch(5, 3)
    close(f(params, x), model(x).detach().cpu())


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match=r"takes a linen or nnx module or an .init, apply. pair, not int"):
        FlaxNNModule(None, 3)
    with pytest.raises(ValueError, match="two arrays of the tree have one name"):
        FlaxNNModule(None, (lambda key: {"a.b": jnp.ones(1), "a_b": jnp.ones(1)}, lambda p: p), ())


# --- PyTorch in JAX -----------------------------------------------------------------------------------------------------


def torch_model(rate: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(rate), nn.Linear(4, 2))


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_params_and_apply(device):
    cpu = torch_model()
    params, apply = functional(copy.deepcopy(cpu).to(device))
    x = torch.randn(5, 3)
    got, grads = jax.jit(jax.value_and_grad(lambda p, x: (apply(p, x) ** 2).sum()))(params, x.numpy())
    want = copy.deepcopy(cpu)(x).square().sum()
    close(got, want.item())
    model = copy.deepcopy(cpu)
    model(x).square().sum().backward()
    for name, p in model.named_parameters():
        close(grads[name], p.grad.numpy())
    _, buffers = apply.with_buffers(params, apply.buffers, jnp.asarray(x.numpy()))
    close(buffers["1.running_var"], model[1].running_var.numpy())
    assert int(buffers["1.num_batches_tracked"]) == 1
    assert int(apply.buffers["1.num_batches_tracked"]) == 0


def test_apply_with_optax_and_a_key():
    params, apply = functional(torch_model(0.5))
    optimizer = optax.adam(1e-2)
    state, x = optimizer.init(params), jnp.ones((8, 3))

    @jax.jit
    def step(params, state, key):
        loss, grads = jax.value_and_grad(lambda p: ((apply(p, x, rng=key) - 1) ** 2).mean())(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    keys = jax.random.split(jax.random.key(0), 20)
    losses = []
    for key in keys:
        params, state, loss = step(params, state, key)
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    one, same, other = (apply(params, x, rng=k) for k in (keys[0], keys[0], keys[1]))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    torch.manual_seed(0)
    torch.randn(3, device="jax").cpu()  # no tracer was left in the device's generator


def test_as_nnx_trains_in_nnx():
    cpu = torch_model()
    model = as_nnx(cpu)
    assert isinstance(model, nnx.Module)
    x = torch.randn(5, 3)
    close(model(jnp.asarray(x.numpy())), copy.deepcopy(cpu)(x).detach().numpy())

    model = as_nnx(cpu)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).sum())(model)
        optimizer.update(model, grads)
        return loss

    torch_optimizer = torch.optim.SGD(cpu.parameters(), lr=0.1)
    for _ in range(3):
        torch_optimizer.zero_grad()
        want = cpu(x).square().sum()
        want.backward()
        torch_optimizer.step()
        close(step(model, optimizer, jnp.asarray(x.numpy())), want.item())
    close(model.buffers["1"]["running_mean"][...], cpu[1].running_mean.numpy())
    assert int(model.buffers["1"]["num_batches_tracked"][...]) == 3
    model.eval()
    close(model(jnp.asarray(x.numpy())), cpu.eval()(x).detach().numpy())
    model.train()
    assert not np.allclose(model(jnp.asarray(x.numpy())), cpu(x).detach().numpy())


def test_as_nnx_draws_from_its_own_rngs():
    model, x = as_nnx(torch_model(0.5), nnx.Rngs(dropout=0)), jnp.asarray(torch.randn(4, 3).numpy())
    forward = nnx.jit(lambda m, x: m(x))
    assert not np.array_equal(forward(model, x), forward(model, x))
    again = as_nnx(torch_model(0.5), nnx.Rngs(dropout=0))
    np.testing.assert_allclose(
        forward(again, x), as_nnx(torch_model(0.5), nnx.Rngs(dropout=0))(x), rtol=1e-5, atol=1e-6
    )


def test_a_round_trip():
    """torch -> nnx -> torch."""
    cpu = torch_model().eval()
    back = FlaxNNModule(None, as_nnx(cpu)).eval()
    x = torch.randn(5, 3)
    close(back(x.to("jax")), cpu(x).detach().numpy())
    assert "_params.params.0.weight" in dict(back.named_parameters())


def test_pairs_need_no_flax():
    program = """
import sys
sys.modules["flax"] = None
import jax.numpy as jnp, torch, torchax
from torchax.flax import FlaxNNModule, as_nnx, functional
x = torch.ones(3, device="jax")
m = FlaxNNModule(torchax.default_env(), (lambda key, x: {"w": jnp.ones(3)}, lambda p, x: p["w"] * x), (x,))
assert m(x).tolist() == [1, 1, 1]
params, apply = functional(torch.nn.Linear(2, 2))
assert apply(params, jnp.ones((1, 2))).shape == (1, 2)
try:
    as_nnx(torch.nn.Linear(2, 2))
except ModuleNotFoundError as e:
    assert "flax" in str(e)
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

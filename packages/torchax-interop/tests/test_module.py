"""Modules as functions of their tensors: `extract_jax`, `JittableModule`."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import torchax
from torchax import interop
from torchax.interop import JittableModule


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.emb.weight
        self.register_buffer("seen", torch.zeros(()))
        self.offset = torch.ones(())

    def forward(self, i):
        self.seen += 1
        return self.head(self.emb(i)) + self.offset.to(self.head.weight.device)

    def embed(self, i, *, scale=1):
        return self.emb(i) * scale


def tied():
    torch.manual_seed(0)
    host = Tied()
    device = copy.deepcopy(host).to("jax")
    device.offset = device.offset.to("jax")
    return host, device


IDS = torch.tensor([[1, 2, 3]])


def test_every_tensor_is_a_parameter_or_a_buffer():
    _, m = tied()
    m.head.bias = nn.Parameter(torch.zeros(11, device="jax"), requires_grad=False)
    params, buffers = interop.extract_all_buffers(m)
    assert set(params) == {"emb.weight", "head.weight"}
    assert set(buffers) == {"seen", "offset", "head.bias"}
    j = JittableModule(m)
    assert set(j.params) == {"emb.weight"}
    assert set(j.buffers) == set(buffers)
    assert set(JittableModule(m, dedup_parameters=False).params) == set(params)
    interop.set_all_buffers(m, {"head.weight": torch.ones(11, 6, device="jax")}, {"seen": torch.ones((), device="jax")})
    assert isinstance(m.head.weight, nn.Parameter)
    assert m.head.weight.sum().item() == 66
    assert m.seen.item() == 1


def test_extract_jax_is_a_pure_function_of_arrays():
    host, m = tied()
    state, fn = torchax.extract_jax(m)
    assert set(state) == {"emb.weight", "seen", "offset"}
    assert all(isinstance(x, jax.Array) for x in state.values())
    ids = jnp.asarray(IDS.numpy())
    got = jax.jit(fn)(state, (ids,))
    np.testing.assert_allclose(np.asarray(got), host(IDS).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert m.seen.item() == 0
    host(IDS).sum().backward()
    grads = jax.grad(lambda w: fn({**state, "emb.weight": w}, (ids,)).sum())(state["emb.weight"])
    np.testing.assert_allclose(np.asarray(grads), host.emb.weight.grad.numpy(), rtol=1e-5)
    with pytest.raises(KeyError, match="no tensor named nonsense"):
        fn({"nonsense": ids}, (ids,))
    assert torch.equal(m.emb.weight.detach().cpu(), host.emb.weight.detach())


def test_a_jittable_module_is_the_module():
    host, m = tied()
    j = JittableModule(m)
    assert isinstance(j, Tied)
    assert j.head is m.head
    assert set(j.state_dict()) == {"_model.emb.weight", "_model.head.weight", "_model.seen"}
    with pytest.raises(AttributeError, match="nothing"):
        j.nothing  # noqa: B018
    for i in range(3):
        torch.testing.assert_close(j(IDS.to("jax")).detach().cpu(), host(IDS).detach())
        assert m.seen.item() == i + 1
    j(IDS.to("jax")).sum().backward()
    host(IDS).sum().backward()
    torch.testing.assert_close(m.emb.weight.grad.cpu(), host.emb.weight.grad)


def test_any_method():
    host, m = tied()
    j = JittableModule(m)
    want = host.embed(IDS, scale=2).detach()
    torch.testing.assert_close(j.jittable_call("embed", IDS.to("jax"), scale=2).detach().cpu(), want)
    fresh = JittableModule(m)
    assert not isinstance(fresh.embed, interop._jit.Jitted)
    fresh.make_jitted("embed")
    assert isinstance(fresh.embed, interop._jit.Jitted)
    torch.testing.assert_close(fresh.embed(IDS.to("jax"), scale=2).detach().cpu(), want)


def test_entries_can_be_replaced():
    _, m = tied()
    j = JittableModule(m)
    before = j(IDS.to("jax")).detach()
    j.params["emb.weight"] = torch.zeros(11, 6, device="jax")
    j.buffers["offset"] = torch.full((), 5.0, device="jax")
    assert j(IDS.to("jax")).unique().tolist() == [5]
    assert j.buffers["seen"].item() == 2
    torch.testing.assert_close(m(IDS.to("jax")).detach(), before)


def test_functional_call():
    host, m = tied()
    j = JittableModule(m)
    params = {k: v.detach() * 2 for k, v in j.params.items()}
    buffers = dict(j.buffers)
    want = torch.func.functional_call(host, {"emb.weight": host.emb.weight.detach() * 2}, (IDS,))
    torch.testing.assert_close(j.functional_call("forward", params, buffers, IDS.to("jax")).cpu(), want)
    out = j.functional_call(Tied.embed, params, buffers, IDS.to("jax"))
    torch.testing.assert_close(out.cpu(), host.embed(IDS).detach() * 2)
    loss = interop.jax_value_and_grad(lambda p: j.functional_call("forward", p, buffers, IDS.to("jax")).sum())
    value, grads = loss(params)
    assert grads.keys() == params.keys()
    assert value.shape == ()


def test_arguments_of_jit_count_params_and_buffers():
    m = nn.Flatten(0).to("jax")

    class Repeats(nn.Module):
        def forward(self, x, n):
            return m(x).repeat(*n)

    j = JittableModule(Repeats(), extra_jit_args={"static_argnums": 3})
    assert j(torch.ones(2, device="jax"), (2,)).tolist() == [1] * 4
    with pytest.raises(ValueError, match="argument 1 is static"):
        j(torch.ones(2, device="jax"), [2])
    donates = JittableModule(nn.BatchNorm1d(2).to("jax"), extra_jit_args={"donate_argnums": (1, 2)})
    x = torch.randn(3, 2).to("jax")
    mean = donates.running_mean.jax()
    with torch.no_grad():
        donates(x)
    assert mean.is_deleted()
    assert donates.running_mean.shape == (2,)


def test_a_second_and_third_call_compile_nothing():
    found = []

    def listen(event, duration, **_):
        found.append(event) if event == "/jax/core/compile/backend_compile_duration" else None

    _, m = tied()
    j = JittableModule(m)
    x = IDS.to("jax")
    with torch.no_grad():
        j(x)
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            j(x)
            j(x + 1)
            found.clear()
            j(x)
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
    assert found == []


def test_lora_adapters_train_with_the_rest_frozen():
    class LoRA(nn.Module):
        def __init__(self, base, rank=2):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(rank, base.in_features))
            self.b = nn.Parameter(torch.zeros(base.out_features, rank))

        def forward(self, x):
            return self.base(x) + x @ self.a.t() @ self.b.t()

    torch.manual_seed(0)
    host = LoRA(nn.Linear(4, 3))
    m = copy.deepcopy(host).to("jax")
    j = JittableModule(m)
    assert set(j.params) == {"a", "b"}
    x = torch.randn(5, 4)
    host(x).pow(2).sum().backward()
    j(x.to("jax")).pow(2).sum().backward()
    torch.testing.assert_close(m.b.grad.cpu(), host.b.grad)
    assert m.base.weight.grad is None


def test_a_boolean_mask_read_raises_and_a_masked_assignment_works():
    def assign(x):
        x[x > 1] = 0
        return x

    x = torch.tensor([1.0, 2.0, 3.0])
    assert interop.jax_jit(assign)(x.to("jax")).tolist() == assign(x.clone()).tolist()
    with pytest.raises(Exception, match=r"(?i)shape|size"):
        interop.jax_jit(lambda x: x[x > 1])(x.to("jax"))

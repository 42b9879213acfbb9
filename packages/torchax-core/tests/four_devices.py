"""``jax:0`` to ``jax:3``: run by test_threads.py in a process in which JAX has four CPU devices."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchax import Tensor

A, B = torch.device("jax", 1), torch.device("jax:2")
MESH = jax.make_mesh((4,), ("d",))


def where(t: Any) -> tuple[Any, Any]:
    """The device PyTorch sees, and those JAX has the data on."""
    return t.device.index, sorted(d.id for d in t.jax().devices())


def on(k: int, *tensors: Any) -> bool:
    """Whether all are on device ``k``, data and name."""
    found = [where(t) for t in tensors]
    assert found == [(k, [k])] * len(found), found
    return True


def x() -> torch.Tensor:
    return torch.arange(6.0, device=A).reshape(2, 3)


def y() -> torch.Tensor:
    return torch.ones(2, 3, device=B)


# --- factories -------------------------------------------------------------------------------------------------------

FACTORIES = [
    lambda d: torch.ones(2, device=d),
    lambda d: torch.zeros(2, device=d),
    lambda d: torch.empty(2, device=d),
    lambda d: torch.full((2,), 5, device=d),
    lambda d: torch.full((2,), 0.5, device=d),
    lambda d: torch.arange(3, device=d),
    lambda d: torch.linspace(0, 1, 3, device=d),
    lambda d: torch.eye(2, device=d),
    lambda d: torch.randn(2, device=d),
    lambda d: torch.rand(2, 2, device=d, dtype=torch.float64),
    lambda d: torch.randint(5, (2,), device=d),
    lambda d: torch.randperm(3, device=d),
    lambda d: torch.normal(0.0, 1.0, (2,), device=d),
    lambda d: torch.tensor([1, 2], device=d),
    lambda d: torch.tensor(1.5, device=d),
    lambda d: torch.as_tensor([1.0], device=d),
    lambda d: torch.asarray([2.0], device=d),
    lambda d: torch.scalar_tensor(1, device=d),
    lambda d: torch.hann_window(4, device=d),
    lambda d: torch.tril_indices(2, 2, device=d),
    lambda d: torch.empty_strided((2, 3), (1, 2), device=d),
    lambda d: torch.empty((1, 2, 2, 2), device=d, memory_format=torch.channels_last),
]


@pytest.mark.parametrize("make", FACTORIES, ids=[f"line{f.__code__.co_firstlineno}" for f in FACTORIES])
def test_factories(make: Any):
    assert on(3, make("jax:3"), make(torch.device("jax", 3)))
    assert on(0, make("jax"), make("jax:0"))


def test_factories_like_another():
    t = x()
    assert on(
        1, torch.ones_like(t), torch.empty_like(t), torch.rand_like(t), torch.full_like(t, 2), torch.zeros_like(t)
    )
    assert on(1, t.new_zeros(2), t.new_tensor([1]), t.new_empty(2), t.new_full((1,), 3), t.new_ones(1))
    assert on(2, torch.zeros_like(t, device=B), t.new_ones(2, device=B), torch.full_like(t, 3, device=B))
    assert on(2, torch.randn_like(t, device=B), t.new_full((2,), 1.5, device=B), t.new_tensor([1], device=B))


def test_a_device_as_context():
    with torch.device("jax:2"):
        assert on(2, torch.ones(2), torch.randn(2), torch.full((2,), 1.0), nn.Linear(2, 2).weight)
    assert torch.ones(2).device.type == "cpu"
    assert torch.jax.current_device() == 0
    with torch.jax.device(1):
        assert torch.jax.current_device() == 1
    assert torch.jax.current_device() == 0
    with torch.accelerator.device_index(2):
        assert torch.jax.current_device() == torch.accelerator.current_device_index() == 2
    assert torch.accelerator.device_count() == 4


def test_synchronize_waits_for_its_device():
    t = torch.rand(1500, 1500, device=B)
    results = [t @ t, t @ t.t()]
    torch.accelerator.synchronize(2)
    assert all(r.jax().is_ready() for r in results)


# --- moves -----------------------------------------------------------------------------------------------------------


def test_moves():
    t = x()
    assert on(2, t.to(B), t.to(B, torch.int64), t.to(y()), t.t()[1:].to(B), t.to("jax:2", copy=True))
    assert on(3, torch.ones(2).to("jax:3"), t.to("jax:3").t())
    assert on(1, t.clone(), t.detach(), t.cpu().to(t.device), t.contiguous(), t.double())
    assert t.to(A) is t
    assert t.to("jax:1") is t
    assert t.to(B).tolist() == t.tolist()
    assert t.t()[1:].to(B).tolist() == [[1, 4], [2, 5]]
    assert t.get_device() == 1
    assert t.device == torch.device("jax:1") != B
    assert "device='jax:1'" in repr(t)


def test_to_jax_without_a_number():
    """As ``.to("cuda")``: the current device, which for a tensor that is on the device already means it stays."""
    assert on(0, torch.ones(2).to("jax"), torch.ones(2).jax())


def test_copies_across_devices():
    z = torch.zeros(2, 3, device=B)
    assert z.copy_(x()) is z
    assert on(2, z)
    assert z.tolist() == x().tolist()
    z.t()[0].copy_(torch.ones(2, device=A))
    z[1] = torch.full((3,), 9.0, device=A)
    assert z.tolist() == [[1, 1, 2], [9, 9, 9]]
    assert on(2, z, z[1])
    assert torch.zeros(2, 3).copy_(x()).tolist() == x().tolist()


def test_modules_move():
    m = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(A)
    assert on(1, *m.state_dict().values())
    w = m[0].weight
    assert m.to(B)[0].weight is w
    assert on(2, w, *m.state_dict().values(), m(y()), *copy.deepcopy(m).parameters())


def test_saving_and_loading():
    buffer = io.BytesIO()
    torch.save(x(), buffer)
    for location, k in ((None, 1), ("jax:3", 3), ("jax", 0)):
        buffer.seek(0)
        assert on(k, torch.load(buffer, map_location=location))
    assert on(1, pickle.loads(pickle.dumps(x())))


def test_arrays_that_are_somewhere():
    assert on(3, Tensor(jax.device_put(1.0, jax.devices()[3])), Tensor(jax.device_put(1.0, jax.devices()[3])) + 1)
    assert on(2, jax.device_put(x(), jax.devices()[2]))
    assert x().jax_device == jax.devices()[1]
    with jax.default_device(jax.devices()[3]):
        assert on(1, torch.ones(2, device=A) + 1, x() * 2, x().exp_())


# --- operators -------------------------------------------------------------------------------------------------------

OPERATORS = [
    lambda t: (t + 1, t * t, t @ t.t(), t.sum(), t.softmax(-1), t > 1, t.long()),
    lambda t: (t.t(), t[0], t[:, 1:], t.view(-1)[1:4].mul_(3), t.exp_(), t.fill_(2), t.zero_()),
    lambda t: (torch.cat([t, t]), torch.stack([t, t]), F.linear(t, t), torch.where(t > 0, t, 0.0)),
    lambda t: (t + torch.tensor(1.0), torch.tensor(2.0) * t, t.mul_(torch.tensor(2.0)), t.clamp(torch.tensor(1.0))),
    lambda t: (t[torch.tensor([0, 1])], t[torch.tensor([1], device=A)], t[t > 2], t.nonzero(), t.unique()),
    lambda t: (t.sort()[0], t.max(1)[1], torch.linalg.inv(t @ t.t() + torch.eye(2, device=A)), t.std()),
    lambda t: (F.dropout(t), torch.bernoulli(t * 0), t.normal_(), t.random_(5), torch.empty_like(t).uniform_()),
    lambda t: (torch.einsum("ij,kj->ik", t, t), F.conv1d(t[None], t[None, :, :1]), *torch._foreach_add([t, t], 1)),
    lambda t: (t.resize_(3, 3), t.t_(), t.new_empty(0).resize_(2), torch.add(t, 1, out=torch.empty(0, device=A))),
    lambda t: (jax.jit(lambda t: torch.sin(t) + 1)(t), jax.jit(lambda t: [t[1]])(t)[0], jax.tree.map(jnp.sin, t)),
]


@pytest.mark.parametrize("program", OPERATORS, ids=[f"line{f.__code__.co_firstlineno}" for f in OPERATORS])
def test_results_stay_on_the_device(program: Any):
    assert on(1, *program(x()))


def test_writes_stay_on_the_device():
    t = x()
    t[0] = 7
    t[:, 1] = torch.tensor(3.0)
    t[t > 6] = 0
    t[torch.tensor([1]), 0] = torch.tensor(-1.0)
    torch.add(t, 1, out=t)
    t.addmm_(torch.eye(2, device=A), t.clone())
    assert on(1, t)
    assert t.tolist() == [[2, 8, 2], [0, 8, 12]]
    t.data = torch.ones(2, device=A)
    assert on(1, t)
    z = torch.empty(2, 2, device=A)
    z.t()[0].copy_(torch.ones(2))
    assert on(1, z)


# Writes that read nothing of what was there: their programs would answer on JAX's default device.
BLIND = [
    lambda t: t.zero_(),
    lambda t: t.fill_(2),
    lambda t: t.fill_(torch.tensor(2.0)),
    lambda t: t.copy_(torch.ones(4, 2)),
    lambda t: t.normal_(),
    lambda t: torch._foreach_zero_([t]),
    lambda t: torch._foreach_copy_([t], [torch.ones(4, 2)]),
    lambda t: t.masked_fill_(torch.tensor(True), 3),
    lambda t: t[:, :1].mul_(0),
    lambda t: t.t().fill_(1),
    lambda t: t.mul_(0).add_(1),
    lambda t: torch.ones(4, 2, out=t),
    lambda t: torch.full((4, 2), 3.0, out=t),
    lambda t: torch.nn.init.uniform_(t),
    lambda t: t.set_(t.clone()),
]


@pytest.mark.parametrize("write", BLIND, ids=[f"line{w.__code__.co_firstlineno}" for w in BLIND])
def test_what_is_overwritten_stays_where_it_was(write: Any):
    t = torch.ones(4, 2, device=A)
    sharded = Tensor(jax.device_put(jnp.ones((4, 2)), jax.NamedSharding(MESH, jax.P("d"))))
    empty = torch.empty(4, 2, device=A)
    with jax.default_device(jax.devices()[3]):
        for one in (t, sharded, empty):
            write(one)
    assert on(1, t, empty)
    assert len(sharded.jax().sharding.device_set) == 4


# --- autograd --------------------------------------------------------------------------------------------------------


def leaf(k: int) -> torch.Tensor:
    return torch.ones(3, device=f"jax:{k}", requires_grad=True)


def test_backward_on_one_device():
    w = leaf(1)
    (w * w * 3).sum().backward()
    assert on(1, w.grad)
    assert w.grad.tolist() == [6, 6, 6]


def test_backward_across_devices():
    w, v, c = leaf(1), leaf(2), torch.ones(3, requires_grad=True)
    loss = ((w * 2).to(B) * v).sum() + (c.to(A) * w.detach()).to("jax:3").sum().to(B)
    loss.backward()
    assert on(2, loss, v.grad)
    assert on(1, w.grad)
    assert v.grad.tolist() == w.grad.tolist() == [2, 2, 2]
    assert c.grad.tolist() == [1, 1, 1]
    [g] = torch.autograd.grad((w * 2).cpu().pow(2).to(B).sum(), w)
    assert on(1, g)
    assert g.tolist() == [8, 8, 8]


def test_writes_through_views_with_gradients_across_devices():
    w, v = leaf(1), leaf(2)
    q = w * 2
    q[0].mul_(5)
    q[1:].copy_(v[1:] * 3)
    q.to(B).mul_(v).sum().backward()
    assert w.grad.tolist() == [10, 0, 0]
    assert v.grad.tolist() == [10, 6, 6]
    assert on(1, w.grad)
    assert on(2, v.grad)


def test_a_model_split_over_devices_trains_as_on_cpu():
    torch.manual_seed(0)
    ref = nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 2)])
    model = copy.deepcopy(ref)
    model[0].to(A)
    model[1].to(B)
    data = torch.randn(5, 3)
    mine, theirs = (torch.optim.AdamW(m.parameters(), lr=0.1) for m in (model, ref))
    for _ in range(3):
        mine.zero_grad()
        theirs.zero_grad()
        model[1](model[0](data.to(A)).relu().to(B)).pow(2).mean().backward()
        ref[1](ref[0](data).relu()).pow(2).mean().backward()
        for m, opt in ((model, mine), (ref, theirs)):
            torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            opt.step()
    for p, r, k in zip(model.parameters(), ref.parameters(), (1, 1, 2, 2), strict=True):
        torch.testing.assert_close(p.detach().cpu(), r.detach(), rtol=1e-4, atol=1e-5)
        assert on(k, p, p.grad)


def test_backward_in_a_thread_for_each_device():
    grads: dict[int, torch.Tensor] = {}

    def train(k: int) -> None:
        p = leaf(k)
        (p.sin() * (k + 1)).sum().backward()
        grads[k] = p.grad

    threads = [threading.Thread(target=train, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(on(k, grads[k]) for k in range(4))


# --- random state ----------------------------------------------------------------------------------------------------


def draw(k: int) -> list[float]:
    return torch.rand(3, device=f"jax:{k}").tolist()


def test_each_device_has_its_own_state():
    torch.manual_seed(0)
    first = [draw(k) for k in range(4)]
    torch.manual_seed(0)
    for _ in range(3):
        draw(0)
    assert [draw(k) for k in (1, 2, 3)] == first[1:]
    torch.jax.manual_seed_all(0)
    assert [draw(k) for k in range(4)] == first


def test_seeding_and_saving_one_device():
    torch.manual_seed(0)
    with torch.jax.device(2):
        torch.jax.manual_seed(5)
    two = draw(2)
    torch.jax.manual_seed_all(5)
    assert draw(2) == two
    state = torch.jax.get_rng_state(3)
    want = draw(3)
    draw(1)
    torch.jax.set_rng_state(state, 3)
    assert draw(3) == want
    assert len(torch.jax.get_rng_state_all()) == 4
    with torch.random.fork_rng(devices=[1], device_type="jax"):
        inside = draw(1)
    assert draw(1) == inside


def test_draws_land_on_their_device():
    assert on(1, F.dropout(torch.ones(9, device=A)), torch.normal(torch.ones(2, device=A), 1.0))
    assert on(3, torch.empty(4, device="jax:3").exponential_(), torch.randperm(4, device="jax:3"))
    assert on(3, torch.multinomial(torch.ones(4, device="jax:3"), 2), torch.poisson(torch.ones(4, device="jax:3")))


def test_a_generator_serves_any_device():
    g = torch.Generator().manual_seed(0)
    p = torch.rand(3, device=A, generator=g)
    q = torch.rand(3, device=B, generator=g.manual_seed(0))
    assert on(1, p)
    assert on(2, q)
    assert p.tolist() == q.tolist()


# --- what does not mix -----------------------------------------------------------------------------------------------

MIXES = [
    lambda x, y: x + y,
    lambda x, y: y * x,
    lambda x, y: x.add_(y),
    lambda x, y: x @ y.t(),
    lambda x, y: x.t() @ y,
    lambda x, y: torch.cat([x, y]),
    lambda x, y: torch.stack([x, y]),
    lambda x, y: torch.where(x > 0, x, y),
    lambda x, y: torch.lerp(x, x, y),
    lambda x, y: torch.addcmul(y, y, x),
    lambda x, y: F.linear(x, y),
    lambda x, y: F.mse_loss(x, y),
    lambda x, y: nn.Linear(3, 2).to(x.device)(y),
    lambda x, y: F.embedding(y.long(), x),
    lambda x, y: x.masked_fill_(y > 0, 0),
    lambda x, y: x.index_select(0, y[0, :1].long()),
    lambda x, y: x[y[0, :1].long() * 0],
    lambda x, y: x.__setitem__([0], y[:1]),
    lambda x, y: x.index_put_((y[0, :1].long(),), x[0].clone()),
    lambda x, y: torch.add(x, x, out=y),
    lambda x, y: torch.equal(x, y),
    lambda x, y: torch._foreach_add([x, x], [x, y]),
    lambda x, y: torch._foreach_mul_([x, y], [y, x]),
    lambda x, y: x + y[0, 0],  # a 0-d tensor of another device is no CPU scalar
    lambda x, y: x.masked_fill(x > 0, y[0, 0]),
    lambda x, y: torch.einsum("ij,kj", x, y),
]


@pytest.mark.parametrize("mix", MIXES, ids=[f"line{m.__code__.co_firstlineno}" for m in MIXES])
@pytest.mark.parametrize("first", [1, 0])
def test_devices_do_not_mix(mix: Any, first: int):
    t, u = x().cpu().to(f"jax:{first}"), y()
    with pytest.raises(RuntimeError, match=r"same device|to have device"):
        mix(t, u)
    assert on(first, t)
    assert on(2, u)
    assert t.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert u.tolist() == [[1, 1, 1]] * 2


def test_the_message_names_both_devices():
    for mix in (lambda: x() + y(), lambda: x() @ y().t(), lambda: torch.cat([x(), y()])):
        with pytest.raises(RuntimeError, match=r"jax:1.*jax:2|jax:2.*jax:1"):
            mix()
    with pytest.raises(RuntimeError, match=r"jax:1.*cpu|cpu.*jax:1"):
        x() + torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.ones(1, device="jax:4")
    with pytest.raises(RuntimeError, match="device"):
        leaf(1).grad = torch.ones(3, device=B)


# --- sharded arrays --------------------------------------------------------------------------------------------------


def test_a_new_tensor_written_from_sharded_ones_is_sharded():
    sharding = jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec("d"))
    t = Tensor(jax.device_put(jnp.arange(8.0), sharding)).requires_grad_()
    fresh = torch.empty_like(t).fill_(1).sub_(t.detach())
    assert len(fresh.jax().devices()) == 4
    (F.silu(t) * t).sum().backward()  # its formula fills a new tensor
    assert len(t.grad.jax().devices()) == 4


def test_a_sharded_tensor_is_jax_0_and_mixes_with_what_was_put_nowhere():
    array = jax.device_put(jnp.arange(8.0).reshape(4, 2), jax.NamedSharding(MESH, jax.P("d")))
    t = Tensor(array).requires_grad_()
    assert t.device == torch.device("jax:0")
    assert len((t * 2).jax().sharding.device_set) == 4
    out = t * torch.ones(2, device="jax") + torch.tensor(1.0)
    assert out.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    (out * t).sum().backward()
    assert len(t.grad.jax().sharding.device_set) == 4
    assert t.grad.tolist() == [[1, 3], [5, 7], [9, 11], [13, 15]]

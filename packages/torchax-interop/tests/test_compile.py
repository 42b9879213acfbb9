"""``torchax.compile`` of plain training steps, against the same steps on CPU."""

from __future__ import annotations

import copy
import logging

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchax

COMPILES = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations():
    """A function that counts XLA's compilations since it was last called."""
    found = [0]

    def listen(event, duration, **_):
        found[0] += event == COMPILES

    def count():
        n, found[0] = found[0], 0
        return n

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield count
    jax.monitoring.unregister_event_duration_listener(listen)


def network():
    torch.manual_seed(0)
    # No bias before the normalization: its gradient is rounding noise, which Adam would blow up to steps of its own.
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def batch(step):
    g = torch.Generator().manual_seed(step)
    return torch.randn(16, 4, generator=g), torch.randint(0, 3, (16,), generator=g)


def make_step(model, opt, clip=True):
    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return loss.detach()

    return step


def assert_same(device, host, **tolerance):
    for (name, p), q in zip(host.items(), device.values(), strict=True):
        torch.testing.assert_close(q.cpu(), p, **tolerance, msg=lambda m, name=name: f"{name}: {m}")


def test_a_hundred_compiled_steps_equal_a_hundred_eager_ones(compilations):
    """Batch statistics, gradient clipping, default AdamW, a learning rate that changes at every step: one program."""
    host, device = network(), network().to("jax")
    optimizers = torch.optim.AdamW(host.parameters(), lr=1e-2), torch.optim.AdamW(device.parameters(), lr=1e-2)
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 100) for o in optimizers]
    eager = make_step(host, optimizers[0])
    compiled = torchax.compile(make_step(device, optimizers[1]))
    late = 0
    for i in range(100):
        x, y = batch(i)
        moved = x.to("jax"), y.to("jax")
        compilations()
        torch.testing.assert_close(compiled(*moved).cpu(), eager(x, y), rtol=1e-4, atol=1e-5)
        late += compilations() if i else 0
        for s in schedulers:
            s.step()
    assert late == 0
    assert compiled.count == 1
    assert_same(device.state_dict(), host.state_dict(), rtol=1e-4, atol=1e-5)
    state = optimizers[1].state[device[0].weight]
    assert state["step"].item() == 100
    assert optimizers[1].param_groups[0]["lr"] == pytest.approx(optimizers[0].param_groups[0]["lr"])


ALL = {
    "SGD": [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"lr": 0.1, "foreach": False},
    ],
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.1}, {"foreach": False}],
    "AdamW": [{}, {"foreach": False}, {"maximize": True}],
    "NAdam": [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RAdam": [{}],
    "Adamax": [{}],
    "Adadelta": [{}],
    "Adagrad": [{}, {"lr_decay": 0.1}],
    "RMSprop": [{}, {"momentum": 0.9, "centered": True}],
    "ASGD": [{}],
    "Rprop": [{}],
    "Muon": [{}],
}


@pytest.mark.parametrize(
    ("name", "options"), [pytest.param(n, o, id="-".join([n, *o])) for n, many in ALL.items() for o in many]
)
def test_every_optimizer(name, options):
    make = getattr(torch.optim, name)
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(4, 8, bias=name != "Muon"), nn.Tanh(), nn.Linear(8, 3, bias=name != "Muon"))
    device = copy.deepcopy(host).to("jax")
    optimizers = make(host.parameters(), **options), make(device.parameters(), **options)
    eager = make_step(host, optimizers[0])
    compiled = torchax.compile(make_step(device, optimizers[1]))
    for i in range(6):
        x, y = batch(i)
        torch.testing.assert_close(compiled(x.to("jax"), y.to("jax")).cpu(), eager(x, y), rtol=1e-4, atol=1e-5)
        for o in optimizers:
            o.param_groups[0]["lr"] *= 0.9
    assert_same(device.state_dict(), host.state_dict(), rtol=1e-4, atol=1e-5)
    # SGD's momentum has a first step of its own; where a rate is wanted as a number, each is a program.
    assert compiled.count <= (6 if name == "Muon" or options.get("foreach") is False else 2)
    for o in optimizers:  # and eager steps go on from there
        o.zero_grad()
    x, y = batch(7)
    eager(x, y)
    make_step(device, optimizers[1])(x.to("jax"), y.to("jax"))
    assert_same(device.state_dict(), host.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam", "Adafactor"])
def test_an_optimizer_that_cannot_be_compiled_is_refused_by_name(name):
    m = nn.Linear(2, 1).to("jax")
    opt = getattr(torch.optim, name)(list(m.parameters()))

    def step(x):
        opt.step(lambda: m(x).sum())

    with pytest.raises(NotImplementedError, match=f"torch.optim.{name} cannot be compiled"):
        torchax.compile(step)(torch.ones(1, 2, device="jax"))


def test_gradient_accumulation():
    host, device = network(), network().to("jax")

    def make(model, opt):
        def step(x, y, last):
            (F.cross_entropy(model(x), y) / 2).backward()
            if last:
                opt.step()
                opt.zero_grad()

        return step

    eager = make(host, torch.optim.SGD(host.parameters(), lr=0.1))
    compiled = torchax.compile(make(device, torch.optim.SGD(device.parameters(), lr=0.1)))
    for i in range(6):
        x, y = batch(i)
        eager(x, y, i % 2 == 1)
        compiled(x.to("jax"), y.to("jax"), i % 2 == 1)
        for p, q in zip(host.parameters(), device.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
    assert_same(device.state_dict(), host.state_dict(), rtol=1e-4, atol=1e-5)
    assert compiled.count == 2


def test_overwritten_state_is_donated_and_copies_of_it_are_not_hurt():
    m = nn.Linear(2, 2).to("jax")
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    compiled = torchax.compile(lambda x: (opt.zero_grad(), m(x).sum().backward(), opt.step())[0])
    x = torch.ones(1, 2, device="jax")
    compiled(x)
    kept, old = m.weight.detach().clone(), m.weight.detach().jax()
    wanted = kept.cpu()
    compiled(x)
    torch.testing.assert_close(kept.cpu(), wanted)
    del old
    alone = m.weight.jax
    before = alone()
    pointer = before.unsafe_buffer_pointer()
    del before
    compiled(x)
    assert m.weight.jax().unsafe_buffer_pointer() == pointer


def test_parameters_without_gradient_get_no_state():
    m = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1), "frozen": nn.Linear(2, 1)}).to("jax")
    m["frozen"].requires_grad_(False)
    opt = torch.optim.AdamW(m.parameters())
    compiled = torchax.compile(lambda x: (opt.zero_grad(), m["used"](x).sum().backward(), opt.step())[0])
    for _ in range(2):
        compiled(torch.ones(1, 2, device="jax"))
    assert set(opt.state) == set(m["used"].parameters())
    assert compiled.count == 1


def test_what_changed_is_logged(caplog):
    m = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).to("jax")
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.0)
    compiled = torchax.compile(
        lambda x, n=1: (opt.zero_grad(), m(x).sum().backward(), opt.step())[0], log_recompiles=True
    )
    x = torch.ones(1, 2, device="jax")
    caplog.set_level(logging.WARNING, "torchax.compile")

    def logged():
        text = caplog.text
        caplog.clear()
        return text

    compiled(x)
    compiled(x)
    assert logged() == ""
    compiled(torch.ones(3, 2, device="jax"))
    assert "tensor 0 among the arguments was float32[1, 2], now float32[3, 2]" in logged()
    compiled(x, 2)
    assert "arguments" in logged()
    compiled(x)
    assert logged() == ""
    m.eval()
    compiled(x)
    assert "training was True, now False" in logged()
    opt.param_groups[0]["weight_decay"] = 0.5
    compiled(x)
    assert "weight_decay was 0, now 0.5" in logged()
    opt.param_groups[0]["lr"] = 0.5
    compiled(x)
    assert logged() == ""
    with torch.no_grad(), torch.autocast("jax"), torch.enable_grad():
        compiled(x)
    assert "autocast" in logged()


def test_a_compiled_module_is_a_jittable_one():
    m = nn.Linear(2, 2).to("jax")
    compiled = torchax.compile(m)
    assert isinstance(compiled, nn.Linear)
    torch.testing.assert_close(compiled(torch.ones(1, 2, device="jax")), m(torch.ones(1, 2, device="jax")))


def test_modes():
    with pytest.raises(ValueError, match=r"torchax\.export"):
        torchax.compile(lambda x: x, torchax.CompileOptions(mode="export"))
    with pytest.raises(ValueError, match="'eager'"):
        torchax.compile(lambda x: x, torchax.CompileOptions(mode="eager"))
    doubled = torchax.compile(lambda x, n: x * n, torchax.CompileOptions(jax_jit_kwargs={"static_argnums": 1}))
    assert doubled(torch.ones(1, device="jax"), 2).item() == 2

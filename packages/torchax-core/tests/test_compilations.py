"""How often XLA compiles, and what stays alive: counts, never times."""

import gc
import subprocess
import sys

import jax
import pytest
import torch
from torch import nn

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations():
    events = []

    def listen(event, duration, **kwargs):
        if event == COMPILED:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


def test_an_index_compiles_once(compilations):
    # PITFALLS 16
    x = torch.arange(300.0).reshape(100, 3).to("jax")
    x[0] + 1
    x[:5].sum()
    for _ in range(3):
        x[0] = 1.0
    x.roll(1, 0)
    compilations.clear()
    for i in range(100):
        x[i] + 1
        x[i] = 2.0
    for i in range(90):
        x[i : i + 5].sum()
        x.roll(i, 0)
    assert not compilations


def test_scalars_are_operands(compilations):
    x = torch.ones(3, device="jax")
    for s in (0.1, 7):
        (x * s, x + s, x.clamp(max=s), x.pow(s), x.add_(x, alpha=s))
    compilations.clear()
    for i in range(2, 20):  # alpha=1 is the default, which PyTorch leaves out: another program
        for s in (0.2 + i, i):
            (x * s, x + s, x.clamp(max=s), x.pow(s), x.add_(x, alpha=s))
    assert not compilations


@pytest.mark.parametrize("foreach", [True, False])
def test_adamw_with_a_changing_rate_compiles_nothing_after_three_steps_and_leaks_nothing(compilations, foreach):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("jax")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=foreach)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    x = torch.randn(16, 4, device="jax")
    alive = {}
    for step in range(30):
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
        schedule.step()
        if step == 3:
            compilations.clear()
        if step in (10, 29):
            gc.collect()
            alive[step] = len(jax.live_arrays())
    assert not compilations
    assert alive[10] == alive[29]


def test_optimizers_take_the_foreach_path(monkeypatch):
    # PITFALLS 14
    import torch.optim.adam as adam

    used = []
    real = adam._multi_tensor_adam
    monkeypatch.setattr(adam, "_multi_tensor_adam", lambda *a, **k: used.append(1) or real(*a, **k))
    p = nn.Parameter(torch.ones(3, device="jax"))
    p.sum().backward()
    torch.optim.AdamW([p]).step()
    nn.utils.clip_grad_norm_([p], 0.1)
    assert used


def test_memory_of_a_move():
    """model.to("jax") needs the weights once more, not twice (a subprocess: a peak cannot be taken back)."""
    code = """
import resource, torch, torchax
from torch import nn
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
nn.Linear(8, 8).to("jax")
m = nn.ModuleList(nn.Linear(2000, 2000, bias=False) for _ in range(8))
size = sum(p.nbytes for p in m.parameters())
before = peak()
m.to("jax")
assert peak() - before <= 1.1 * size, (peak() - before) / size
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

"""Several threads at once, and several devices: ``jax:0`` to ``jax:3``, in a process with four of JAX's CPU devices."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F
from _programs import DEVICE, leaf, on_cpu, ramp, same, weighted
from torch import nn
from torch.utils.checkpoint import checkpoint

THREADS = 6


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """What ``work(k)`` gives on each of some threads that start together; raises what one of them raises."""
    start, results = threading.Barrier(threads), [None] * threads
    errors: list[BaseException] = []

    def run(k: int) -> None:
        try:
            start.wait()
            results[k] = work(k)
        except BaseException as e:
            errors.append(e)

    running = [threading.Thread(target=run, args=(k,)) for k in range(threads)]
    for t in running:
        t.start()
    for t in running:
        t.join(120)
        assert not t.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


def test_operators_that_nobody_compiled_yet():
    """All threads meet plans, compiled functions and views for the first time at the same moment."""

    def work(device: str, k: int) -> Any:
        x = ramp(device, 3, 7) + k
        y = x.t()[1:].unfold(0, 2, 2).sum(-1)
        return y, torch.logaddexp(x / 9, x / 4).cumprod(1).tanh(), x.diagonal(1).flip(0), F.hardswish(x).std(0)

    got = at_once(lambda k: work(DEVICE, k))
    for k, found in enumerate(got):
        same(found, work("cpu", k), strides=False, rtol=1e-4, atol=1e-5)


def test_training_in_each_thread():
    def train(device: str, k: int) -> Any:
        w, b = leaf(device, 3, 2), leaf(device, 2)
        opt = torch.optim.AdamW([w, b], lr=0.1)
        x = ramp(device, 4, 3) / (k + 1)
        for _ in range(4):
            opt.zero_grad()
            loss = F.mse_loss(torch.tanh(x @ w + b), x[:, :2])
            loss.backward()
            opt.step()
        return loss.detach(), w, b

    got = at_once(lambda k: train(DEVICE, k), 4)
    for k, found in enumerate(got):
        same(found, train("cpu", k), strides=False, rtol=1e-4, atol=1e-5)


def test_gradients_of_one_parameter_from_many_threads():
    """PyTorch adds up under its own lock on cuda; here each thread asks for gradients and adds them itself."""
    w = leaf(DEVICE, 3)
    got = at_once(lambda k: torch.autograd.grad(weighted(w * w * (k + 1)), w)[0])
    for k, g in enumerate(got):
        torch.testing.assert_close(g.cpu(), 2 * on_cpu(w) * ramp("cpu", 3) * (k + 1))


def test_backward_of_graphs_that_share_a_part():
    w = leaf(DEVICE, 3)
    shared = w.exp()
    got = at_once(lambda k: torch.autograd.grad((shared * (k + 1)).sum(), w, retain_graph=True)[0])
    for k, g in enumerate(got):
        torch.testing.assert_close(g.cpu(), on_cpu(w).exp() * (k + 1))


def test_hooks_and_custom_functions_run_on_the_thread_that_asks():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            ran.append(threading.get_ident())
            return g * 2

    ran: list[int] = []

    def work(k: int) -> Any:
        x = leaf(DEVICE, 3)
        y = Double.apply(x * 1)
        y.register_hook(lambda g: ran.append(threading.get_ident()))
        y.sum().backward()
        return threading.get_ident(), x.grad.tolist()

    got = at_once(work, 3)
    assert sorted(ran) == sorted(ident for ident, _ in got for _ in range(2))
    assert all(g == [2, 2, 2] for _, g in got)


def test_settings_of_jax_hold_in_backward():
    """They are kept per thread: PyTorch's own engine threads would not have them."""
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            seen.append((jax.config.jax_default_matmul_precision, jax.config.jax_enable_x64))
            return g

    x = leaf(DEVICE, 3)
    with jax.default_matmul_precision("highest"), jax.enable_x64(True):
        Look.apply(x).sum().backward()
    Look.apply(x).sum().backward()
    assert seen == [("highest", True), (None, False)]


def test_checkpointed_dropout_recomputes_alike_in_each_thread():
    def work(k: int) -> Any:
        x = torch.ones(64, device=DEVICE, requires_grad=True)
        y = checkpoint(lambda x: F.dropout(x * 3, 0.5), x, use_reentrant=k % 2 == 0, preserve_rng_state=True)
        y.sum().backward()
        return y.detach(), x.grad

    # Alone first: the state that a checkpoint saves and sets is the device's, and other threads advance it, as on cuda.
    y, g = work(1)
    torch.testing.assert_close(y.cpu(), g.cpu())
    for y, g in at_once(work, 4):
        assert set(y.tolist()) <= {0.0, 6.0}
        assert set(g.tolist()) <= {0.0, 6.0}


def test_draws_are_never_the_same_in_two_threads():
    torch.manual_seed(0)
    drawn = at_once(lambda k: [tuple(torch.rand(4, device=DEVICE).tolist()) for _ in range(10)])
    flat = [d for of_one in drawn for d in of_one]
    assert len(set(flat)) == len(flat) == THREADS * 10
    torch.manual_seed(0)
    alone = [tuple(torch.rand(4, device=DEVICE).tolist()) for _ in range(THREADS * 10)]
    assert set(alone) == set(flat)  # the same sequence, dealt out in another order


def test_drawing_while_others_seed_and_save():
    def work(k: int) -> Any:
        for i in range(10):
            if k == 0:
                torch.manual_seed(i)
            elif k == 1:
                torch.jax.set_rng_state(torch.jax.get_rng_state())
            else:
                x = torch.randn(8, device=DEVICE).uniform_()
                assert 0 <= float(x.min()) <= float(x.max()) < 1
        return True

    assert all(at_once(work, 4))
    torch.manual_seed(3)
    a = torch.rand(3, device=DEVICE)
    torch.manual_seed(3)
    assert torch.equal(a, torch.rand(3, device=DEVICE))


def test_views_of_one_tensor_written_by_many_threads():
    """No crash and no torn tensor: every element holds what some thread wrote there, or what was there."""
    x = torch.zeros(THREADS, 5, device=DEVICE)

    def work(k: int) -> None:
        row = x[k]
        for i in range(20):
            row.fill_(i + 1)
            x.t()[2, k].add_(0)
            x[k, 1:3].cpu()

    at_once(work)
    assert set(x.flatten().tolist()) <= {float(i) for i in range(21)}
    assert x.shape == (THREADS, 5)
    x.fill_(1)
    assert x.sum().item() == THREADS * 5


def test_an_in_place_loop_while_others_read():
    x = torch.zeros(4, device=DEVICE)

    def work(k: int) -> None:
        for _ in range(25):
            if k == 0:
                x.add_(1)
            else:
                values = x.tolist()
                assert len(set(values)) == 1, values

    at_once(work, 3)
    assert x.tolist() == [25] * 4


def test_modules_move_while_others_compute():
    def work(k: int) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        x = ramp("cpu", 2, 3)
        want = model(x)
        for _ in range(3):
            model.to(DEVICE)
            torch.testing.assert_close(model(x.to(DEVICE)).cpu(), want.detach(), check_device=False)
            model.cpu()
        return type(model.weight)

    # One seed for all, so one after the other where they draw; then all at once.
    assert work(0) is nn.Parameter
    lin = [nn.Linear(3, 2) for _ in range(4)]

    def moved(k: int) -> Any:
        want = lin[k](ramp("cpu", 2, 3)).detach()
        for _ in range(3):
            lin[k].to(DEVICE)
            torch.testing.assert_close(lin[k](ramp(DEVICE, 2, 3)).detach().cpu(), want)
            lin[k].cpu()
        return lin[k].weight.device.type

    assert at_once(moved, 4) == ["cpu"] * 4


def test_grad_modes_are_each_threads_own():
    def work(k: int) -> Any:
        w = leaf(DEVICE, 3)
        with torch.set_grad_enabled(k % 2 == 0), torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=k < 2):
            y = torch.mm(w[None], w[:, None])
        return y.requires_grad, y.dtype

    got = at_once(work, 4)
    assert got == [(True, torch.bfloat16), (False, torch.bfloat16), (True, torch.float32), (False, torch.float32)]


def test_traces_in_several_threads():
    def work(k: int) -> Any:
        fn = jax.jit(lambda x: torch.softmax(x * (k + 1), -1).t()[1:] + x[0, 0])
        x = leaf(DEVICE, 2, 3).detach()
        eager = [x.exp().sum() for _ in range(3)]
        return fn(x), eager[0]

    x = leaf("cpu", 2, 3).detach()
    for k, (got, eager) in enumerate(at_once(work, 4)):
        same(got, torch.softmax(x * (k + 1), -1).t()[1:] + x[0, 0], strides=False)
        same(eager, x.exp().sum())


def test_an_error_in_one_thread_is_its_own():
    def work(k: int) -> Any:
        x = ramp(DEVICE, 2, 3)
        if k % 2:
            with pytest.raises(RuntimeError, match="mm"):
                x @ x
            return None
        return (x @ x.t()).tolist()

    assert at_once(work, 4)[::2] == [[[14, 32], [32, 77]]] * 2


def test_data_parallel_style_thread_pool():
    from concurrent.futures import ThreadPoolExecutor

    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).to(DEVICE)
    batches = [ramp("cpu", 2, 3) / (k + 1) for k in range(8)]
    with ThreadPoolExecutor(4) as pool:
        losses = list(pool.map(lambda b: model(b.to(DEVICE)).pow(2).mean(), batches))
    torch.stack(losses).sum().backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    sum(model(b.to(DEVICE)).pow(2).mean() for b in batches).backward()
    for g, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(g.cpu(), p.grad.cpu())


# --- several devices -------------------------------------------------------------------------------------------------


def test_four_devices():
    """The tests of four_devices.py, in a process of their own: JAX counts its devices once."""
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    there = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(Path(__file__).with_name("four_devices.py")),
    ]
    ran = subprocess.run(there, capture_output=True, text=True, timeout=300, env=env)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]

"""What PyTorch and JAX do at the edges of a Python device (docs/edges.md), where no other file has the test."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from _programs import DEVICE, check, leaf, ramp
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchax import Tensor


def run_python(code: str) -> None:
    """Run a program in a fresh interpreter, where what is asserted of a whole process can be."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


# --- threads ------------------------------------------------------------------------------------------------------------


class Where(torch.autograd.Function):
    """The identity; its backward notes the thread and a setting that JAX keeps per thread."""

    seen: list[Any]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        Where.seen.append((threading.get_ident(), jax.config.jax_default_matmul_precision))
        return g


def recomputed(x: torch.Tensor) -> torch.Tensor:
    Where.seen.append((threading.get_ident(), jax.config.jax_default_matmul_precision))
    return x.exp()


LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "on jax": lambda x: Where.apply(x).sum(),
    "on cpu": lambda x: Where.apply(x).cpu().sum(),
    "through cpu and back": lambda x: Where.apply(x.cpu()).to(DEVICE).sum().cpu(),
    "checkpointed": lambda x: checkpoint(recomputed, Where.apply(x), use_reentrant=False).sum(),
    "checkpointed, reentrant": lambda x: checkpoint(recomputed, Where.apply(x), use_reentrant=True).sum(),
    "twice": lambda x: torch.autograd.grad(Where.apply(x).exp().sum(), x, create_graph=True)[0].sum(),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("how", ["backward", "grad", "autograd.backward"])
def test_every_backward_runs_on_the_callers_thread_with_its_settings(loss, how):
    if how == "grad" and loss is LOSSES["checkpointed, reentrant"]:
        how = "backward"  # PyTorch has no other with it
    x = leaf(DEVICE, 3)
    with jax.default_matmul_precision("float32"):
        y = loss(x)
        Where.seen = []
        if how == "backward":
            y.backward()
        elif how == "grad":
            torch.autograd.grad(y, x)
        else:
            torch.autograd.backward([y])
    assert Where.seen
    assert set(Where.seen) == {(threading.get_ident(), "float32")}


def test_the_engine_keeps_its_threads_for_others_after_a_backward():
    leaf(DEVICE, 2).sum().backward()
    assert torch.autograd.is_multithreading_enabled()


# --- calls below the Python key -----------------------------------------------------------------------------------------


def test_copies_and_new_tensors_below_the_python_key():
    """PyTorch calls these kernels where no ``jax`` tensor is an argument yet; one that dispatched again would never end."""
    made = [
        torch.tensor([[1, 2], [3, 4]], device=DEVICE),
        torch.tensor(3.5, device=DEVICE),
        torch.empty(2, device=DEVICE).fill_(1),
        torch.empty_strided((2, 2), (1, 2), device=DEVICE).fill_(1),
        torch._efficientzerotensor((2,), device=DEVICE) + 1,
    ]
    assert [type(t) for t in made] == [Tensor] * 5
    assert [t.tolist() for t in made] == [[[1, 2], [3, 4]], 3.5, [1, 1], [[1, 1], [1, 1]], [1, 1]]


# --- identity of memory -------------------------------------------------------------------------------------------------


def test_every_way_to_ask_for_a_storage_answers_alike():
    x = ramp(DEVICE, 2, 3)
    views = [x, x[1], x.t(), x.view(-1)[2:], x.detach(), x.data]
    for ask in (lambda t: t.untyped_storage(), lambda t: t.storage(), lambda t: t._typed_storage()):
        assert len({ask(v) for v in views}) == 1
        assert len({ask(v).data_ptr() for v in views}) == 1
        assert ask(x).data_ptr() == x.data_ptr() != 0
        assert ask(x) != ask(x.clone())
        assert ask(x).nbytes() == 24
    before = x.data_ptr()
    x.mul_(2)
    assert x.data_ptr() == before


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3)
        self.b.weight = self.a.weight


def test_safetensors_saves_loads_and_finds_shared_weights(tmp_path):
    import safetensors.torch as st

    for x in (ramp(DEVICE, 6), ramp(DEVICE, 2, 3).t().contiguous(), ramp(DEVICE, 3, dtype=torch.bfloat16)):
        st.save_file({"x": x}, tmp_path / "x.safetensors")
        back = st.load_file(tmp_path / "x.safetensors")["x"]  # it knows no device of others to load onto
        assert (back.dtype, back.tolist()) == (x.dtype, x.tolist())
    x = ramp(DEVICE, 2, 3)
    with pytest.raises(RuntimeError, match="share memory"):
        st.save_file({"x": x, "view": x[0]}, tmp_path / "shared.safetensors")
    model, other = Tied().to(DEVICE), Tied().to(DEVICE)
    st.save_model(model, tmp_path / "model.safetensors")
    st.load_model(other, tmp_path / "model.safetensors")
    assert other.b.weight is other.a.weight
    for name, value in model.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name].cpu(), value.cpu())


def test_a_state_dict_opens_where_torchax_is_not():
    m = Tied().to(DEVICE)
    path = io.BytesIO()
    torch.save(m.state_dict(), path)
    code = f"""
import io, sys, torch
back = torch.load(io.BytesIO({path.getvalue()!r}), map_location="cpu", weights_only=True)
assert "torchax" not in sys.modules and "jax" not in sys.modules
assert type(back["a.weight"]) is torch.Tensor
assert back["a.weight"].data_ptr() == back["b.weight"].data_ptr()
assert back["a.weight"].tolist() == {m.a.weight.tolist()!r}
"""
    run_python(code)


def test_nothing_of_ours_holds_a_parameter_weakly():
    """A weak reference to a parameter stops PyTorch from swapping it, and so its module from moving."""
    m = Tied().to(DEVICE)
    torch.save(m, io.BytesIO())
    pickle.dumps(m)
    copy.deepcopy(m)
    repr(m.a.weight)
    m.a(ramp(DEVICE, 2, 3)).sum().backward()
    m.zero_grad()
    jax.tree.leaves(m.a.weight)
    jax.jit(lambda w: w * 2)(m.a.weight)
    m.a.weight.data_ptr(), m.a.weight.untyped_storage(), torch.from_dlpack(m.a.weight.detach())
    assert [weakref.getweakrefcount(p) for p in m.parameters()] == [0] * 4
    m.cpu()
    assert type(m.a.weight.data) is torch.Tensor


# --- loading, pinning, forks --------------------------------------------------------------------------------------------


def test_mistakes_with_storages_raise_where_they_would_end_the_process():
    run_python("""
import torch, torchax
for make in (
    lambda: torch.UntypedStorage(8, device="jax"),
    lambda: torch.ones(2).untyped_storage().to(device="jax"),
    lambda: torch.ones(2, device="jax").set_(torch.ones(2).untyped_storage()),
    lambda: torch.ones(2, device="jax").share_memory_(),
):
    try:
        make()
    except (RuntimeError, NotImplementedError):
        continue
    raise SystemExit("accepted")
""")


def test_pinning_is_for_cpu_tensors():
    x = torch.arange(6.0)
    assert torch.equal(x.pin_memory(), x)
    assert x.pin_memory().data_ptr() != x.data_ptr()
    with pytest.raises(RuntimeError, match="pin"):
        ramp(DEVICE, 2).pin_memory()
    with pytest.raises(RuntimeError, match="pin"):
        torch.zeros(2, pin_memory=True, device=DEVICE)
    assert not ramp(DEVICE, 2).is_pinned()
    assert torch.accelerator.current_accelerator() == torch.device(DEVICE)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_forked_child_may_seed_and_is_told_of_jax():
    """In a process of its own: JAX is multithreaded, and warns of any fork."""
    run_python("""
import os, warnings, torch, torchax
torch.ones(2, device="jax").sum().item()
warnings.simplefilter("ignore")
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    said = "nothing"
    try:
        assert torch.jax._is_in_bad_fork() and torch.jax.device_count() == 0 and not torch.jax.is_available()
        torch.manual_seed(1)
        torch.jax.manual_seed_all(2)
        assert torch.rand(2).shape == (2,)
        for use in (
            lambda: torch.ones(2, device="jax"), lambda: torch.rand(2, device="jax"), lambda: torch.ones(2).to("jax"),
            lambda: torch.jax.synchronize(), lambda: torch.accelerator.synchronize(),
        ):
            try:
                use()
            except RuntimeError as e:
                assert "spawn" in str(e), e
            else:
                raise AssertionError("ran")
        said = "right"
    except BaseException as e:
        said = repr(e)
    finally:
        os.write(writing, said.encode())
        os._exit(0)
os.close(writing)
assert (got := os.read(reading, 4096)) == b"right", got
assert not torch.jax._is_in_bad_fork()
os.waitpid(child, 0)
""")


def test_seeding_does_not_start_jax():
    """Keys are made when first drawn from: PyTorch seeds every device, also in processes that never use this one."""
    run_python("""
import torch, torchax
from jax._src import xla_bridge
torch.manual_seed(3)
torch.jax.manual_seed_all(4)
assert not xla_bridge.backends_are_initialized()
torch.rand(1, device="jax")
assert xla_bridge.backends_are_initialized()
""")


# --- foreach ------------------------------------------------------------------------------------------------------------


def test_clipping_takes_whole_lists(monkeypatch):
    from torch.nn.utils import clip_grad

    used = []
    real = torch._foreach_norm
    monkeypatch.setattr(torch, "_foreach_norm", lambda *a, **k: used.append(1) or real(*a, **k))
    weights = [nn.Parameter(ramp(DEVICE, n)) for n in (2, 3)]
    for w in weights:
        w.grad = torch.ones_like(w)
    clip_grad.clip_grad_norm_(weights, 1.0)
    assert used == [1]


# --- 64 bits in functions written for JAX -------------------------------------------------------------------------------


def test_a_function_written_for_jax_runs_under_the_callers_x64_setting():
    seen = []

    def fn(a: Any) -> Any:
        seen.append(jax.config.jax_enable_x64)
        return a * jnp.ones(2)

    assert ramp(DEVICE, 2).apply_jax(fn).dtype == torch.float32
    with jax.enable_x64(True):
        assert ramp(DEVICE, 2, dtype=torch.float64).apply_jax(fn).dtype == torch.float64
    jax.jit(lambda x: x.apply_jax(fn))(ramp(DEVICE, 2))
    assert seen == [False, True, False]


def test_a_64_bit_value_reaches_a_function_written_for_jax_whole_or_is_refused():
    small, large = ramp(DEVICE, 3, dtype=torch.int64), torch.tensor([2**40], device=DEVICE)
    assert small.apply_jax(lambda a: a + 1).dtype == torch.int32
    for x in (large, torch.tensor([1e300], dtype=torch.float64, device=DEVICE)):
        with pytest.raises(OverflowError, match="x64"):
            x.apply_jax(lambda a: a + 1)
        with pytest.raises(OverflowError, match="x64"):
            small[:1].apply_jax(lambda a, b: a + b, x)
        with pytest.raises(OverflowError, match="x64"):
            x.apply_jax_(lambda a: a + 1)
    with jax.enable_x64(True):
        assert large.apply_jax(lambda a: a + 1).item() == 2**40 + 1
    small[1:].apply_jax_(lambda a: a * 10)
    assert small.dtype == torch.int64
    assert small.jax().dtype == "int64"
    assert small.tolist() == [1, 20, 30]
    assert torch.tensor([float("inf")], dtype=torch.float64, device=DEVICE).apply_jax(jnp.negative).item() == -float(
        "inf"
    )


# --- draws under JAX's transformations ----------------------------------------------------------------------------------


def dropped(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5)


FREEZING: dict[str, Callable[[torch.Tensor, torch.Generator], Any]] = {
    "jit": lambda x, g: jax.jit(dropped)(x),
    "grad of jit": lambda x, g: jax.grad(jax.jit(lambda x: dropped(x).sum().jax()))(x),
    "checkpoint": lambda x, g: jax.checkpoint(dropped)(x),
    "scan": lambda x, g: jax.lax.scan(lambda c, _: (dropped(c), None), x, None, length=3),
    "in place": lambda x, g: jax.jit(lambda x: x.clone().uniform_())(x),
    "a generator": lambda x, g: jax.jit(lambda x: x + torch.rand(64, device=DEVICE, generator=g))(x),
}


@pytest.mark.parametrize("draw", FREEZING.values(), ids=FREEZING)
def test_a_draw_that_a_trace_would_freeze_is_refused_and_leaves_the_generator_as_it_was(draw):
    torch.manual_seed(3)
    x, want = torch.ones(64, device=DEVICE), []
    for _ in range(2):
        want.append(torch.rand(3, device=DEVICE).tolist())
    torch.manual_seed(3)
    got = [torch.rand(3, device=DEVICE).tolist()]
    with pytest.raises(RuntimeError, match="jax_jit"):
        draw(x, torch.Generator())
    got.append(torch.rand(3, device=DEVICE).tolist())
    assert got == want


def test_a_first_draw_after_a_seed_that_a_trace_would_freeze_is_refused_too():
    torch.manual_seed(3)
    with pytest.raises(RuntimeError, match="jax_jit"):
        jax.jit(dropped)(torch.ones(8, device=DEVICE))
    got = torch.rand(3, device=DEVICE)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3, device=DEVICE), got)


def test_draws_under_transformations_that_trace_nothing():
    x = torch.ones(64, device=DEVICE)
    g = jax.grad(lambda x: dropped(x).sum().jax())(x)
    assert set(g.tolist()) == {0.0, 2.0}
    assert jax.vmap(dropped)(torch.ones(3, 64, device=DEVICE)).shape == (3, 64)
    out, tangent = jax.jvp(dropped, (x,), (x,))
    assert torch.equal(out, tangent)
    assert torch.rand(2, device=DEVICE).cpu().isfinite().all()


def test_a_key_given_to_a_trace_is_what_it_draws_from():
    import torchax

    @jax.jit
    def fn(key: Any, x: torch.Tensor) -> torch.Tensor:
        with torchax.default_env().override_property(prng=key):
            return dropped(dropped(x))

    x = torch.ones(64, device=DEVICE)
    a, b, c = (fn(jax.random.key(k), x).tolist() for k in (0, 1, 0))
    assert a == c != b


# --- what an operator must not do to its arguments ----------------------------------------------------------------------

CONVERSIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.type_as(torch.ones(1, dtype=torch.int32, device=x.device)),
    lambda x: x.type(torch.int16),
    lambda x: x.to(torch.float16),
    lambda x: x.to(torch.ones(1, dtype=torch.float64, device=x.device)),
    lambda x: x.to("cpu", torch.int64),
    lambda x: x.double(),
    lambda x: x.half(),
    lambda x: x.bfloat16(),
    lambda x: x.long(),
    lambda x: x.int(),
    lambda x: x.short(),
    lambda x: x.char(),
    lambda x: x.byte(),
    lambda x: x.bool(),
    lambda x: x.cfloat(),
    lambda x: x.cdouble(),
    lambda x: x.float(),
    lambda x: torch.ones(2, 3, dtype=torch.int64, device=x.device).copy_(x),
    lambda x: x.clone(memory_format=torch.contiguous_format),
    lambda x: nn.Parameter(x).half().detach(),
    lambda x: F.one_hot(x.long()),
]


@pytest.mark.parametrize("convert", CONVERSIONS, ids=[f"line{c.__code__.co_firstlineno}" for c in CONVERSIONS])
def test_a_conversion_leaves_its_argument_as_it_was(convert):
    x = ramp(DEVICE, 2, 3)
    before = x.jax()
    got, want = convert(x), convert(ramp("cpu", 2, 3))
    assert got.dtype == want.dtype
    torch.testing.assert_close(got.cpu(), want)
    assert x.dtype == torch.float32
    assert x.jax() is before
    if got.dtype != x.dtype:
        got.zero_()
        assert x.tolist() == ramp("cpu", 2, 3).tolist()


def test_dlpack_both_ways_and_the_write_that_does_not_pass():
    def program(device: str) -> Any:
        x = ramp(device, 2, 3)
        out = torch.from_dlpack(x)
        return out.dtype, tuple(out.shape), out.tolist()

    check(program)
    source = torch.arange(64.0)
    moved = source.to(DEVICE)
    source.add_(1)
    assert moved.tolist() == list(range(64))
    assert np.from_dlpack(ramp(DEVICE, 3)).tolist() == [1, 2, 3]
    with pytest.raises(BufferError, match="detach"):
        torch.from_dlpack(leaf(DEVICE, 3))

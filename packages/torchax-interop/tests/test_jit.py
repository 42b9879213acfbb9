"""``jax_jit``: what a compiled function reads, writes, returns, and leaves alone."""

from __future__ import annotations

import copy
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchax
from torchax import interop
from torchax.interop import jax_jit


def ones(*shape, **kwargs):
    return torch.ones(*shape, device="jax", **kwargs)


class Pair(NamedTuple):
    left: object
    right: object


# --- results ------------------------------------------------------------------------------------------------------------


def test_a_function_of_tensors_is_traced_once():
    calls = []

    def f(x, y):
        calls.append(1) if False else None
        count[0] += 1
        return torch.softmax(x @ y, -1)

    count = np.zeros(1)
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    jitted = jax_jit(f)
    for _ in range(3):
        torch.testing.assert_close(jitted(a.to("jax"), b.to("jax")).cpu(), torch.softmax(a @ b, -1))
    assert count[0] == 1


def test_results_come_back_as_themselves():
    x = torch.randn(3, 4)

    def f(x):
        return {"z": x.max(1), "a": [x + 1, None, "text", 3], "pair": Pair(x * 2, (x.t(),))}

    got, want = jax_jit(f)(x.to("jax")), f(x)
    assert list(got) == ["z", "a", "pair"]
    assert type(got["z"]) is type(want["z"])
    torch.testing.assert_close(got["z"].indices.cpu(), want["z"].indices)
    assert got["a"][1:] == [None, "text", 3]
    assert type(got["pair"]) is Pair
    assert got["pair"].right[0].stride() == want["pair"].right[0].stride()


def test_an_argument_that_is_returned_is_the_same_object():
    x, y = ones(3), ones(2)
    a, b = jax_jit(lambda x, y: (y, x))(x, y)
    assert a is y
    assert b is x


def test_views_of_one_new_tensor_stay_views():
    def f(x):
        y = x * 2
        return y, y[1:]

    jitted = jax_jit(f)
    for _ in range(2):
        y, tail = jitted(ones(3))
        tail.zero_()
        assert y.tolist() == [2, 0, 0]


def test_sixty_four_bits_stay():
    out = jax_jit(lambda x: (x + 2**40, x.double() / 3))(torch.arange(3, device="jax"))
    assert out[0].tolist() == [2**40, 2**40 + 1, 2**40 + 2]
    assert out[1].dtype == torch.float64
    torch.testing.assert_close(out[1].cpu(), torch.arange(3).double() / 3)
    assert not jax.config.jax_enable_x64


def test_arrays_reach_the_function_as_tensors():
    out = jax_jit(lambda a, b: torch.add(a, b))(jnp.ones(3), np.arange(3, dtype=np.float32))
    assert out.tolist() == [1, 2, 3]


# --- arguments that are written -------------------------------------------------------------------------------------------


def test_written_arguments_are_written():
    jitted = jax_jit(lambda x, y: x.add_(y))
    for _ in range(2):
        x = ones(3)
        assert jitted(x, ones(3)) is x
        assert x.tolist() == [2, 2, 2]


def test_arguments_that_share_a_storage_keep_sharing_it():
    def f(x, y):
        y.mul_(5)
        return x.sum()

    jitted = jax_jit(f)
    x = ones(4)
    assert jitted(x, x[2:]).item() == 12
    assert x.tolist() == [1, 1, 5, 5]
    assert jitted(ones(4), ones(2)).item() == 4
    z = ones(4)
    assert jitted(z, z).item() == 20


def test_a_view_given_is_written_where_it_is_and_needs_no_program_of_its_own():
    jitted = jax_jit(lambda row: row.add_(1))
    x = torch.zeros(4, 2, device="jax")
    for i in range(3):
        jitted(x[i])
    assert x.tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]
    assert jitted.count == 1


def test_an_argument_that_is_also_captured():
    w = ones(3)

    def f(x):
        x.add_(1)
        return w.sum()

    jitted = jax_jit(f)
    assert jitted(ones(3)).item() == 3
    assert jitted(w).item() == 6
    assert jitted(ones(3)).item() == 6


# --- state that is not passed in ------------------------------------------------------------------------------------------


def test_a_captured_tensor_is_read_as_it_is_now_and_written():
    w = ones(2)
    jitted = jax_jit(lambda x: (w.add_(x), w.sum())[1])
    assert [jitted(ones(2)).item() for _ in range(3)] == [4, 6, 8]
    w.zero_()
    assert jitted(ones(2)).item() == 2
    assert jitted.count == 1


def test_a_tensor_that_no_walk_finds_is_found_when_used():
    class Hidden:
        __slots__ = ("kept",)

    hidden = Hidden()
    hidden.kept = ones(2)
    jitted = jax_jit(lambda x: hidden.kept.add_(x) * 1)
    assert [jitted(ones(2)).tolist() for _ in range(3)] == [[2, 2], [3, 3], [4, 4]]


def test_two_storages_around_one_array_are_two_inputs():
    a = ones(2)
    b = a.clone()
    jitted = jax_jit(lambda: a + 10 * b)
    assert jitted().tolist() == [11, 11]
    a.zero_()
    assert jitted().tolist() == [10, 10]


def test_batch_statistics():
    torch.manual_seed(0)
    cpu = nn.BatchNorm2d(3)
    dev = copy.deepcopy(cpu).to("jax")
    jitted = jax_jit(lambda x: dev(x))
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5)
        torch.testing.assert_close(jitted(x.to("jax")).detach().cpu(), cpu(x).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dev.running_var.cpu(), cpu.running_var)
    assert dev.num_batches_tracked.item() == 3
    assert jitted.count == 1
    dev.eval()
    cpu.eval()
    torch.testing.assert_close(jitted(x.to("jax")).detach().cpu(), cpu(x).detach(), rtol=1e-4, atol=1e-5)
    assert jitted.count == 2
    dev.train()
    jitted(x.to("jax"))
    assert jitted.count == 2


def test_a_cache_written_at_a_position():
    cache = torch.zeros(4, 2, device="jax")

    def decode(x, position):
        cache.index_copy_(0, position, x[None])
        return cache.sum()

    jitted = jax_jit(decode)
    got = [jitted(ones(2), torch.tensor([i], device="jax")).item() for i in range(4)]
    assert got == [2, 4, 6, 8]
    assert jitted.count == 1


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None
        self.calls = 0
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x):
        seen = 0 if self.last is None else self.last
        self.last = x * 2
        self.total = self.total + x
        return x + seen


def test_attributes_that_become_tensors():
    eager, compiled = Remembers().to("jax"), Remembers().to("jax")
    jitted = jax_jit(lambda x: compiled(x))
    kept = []
    for i in range(4):
        x = ones(2) * i
        torch.testing.assert_close(jitted(x).cpu(), eager(x).cpu())
        torch.testing.assert_close(compiled.last.cpu(), eager.last.cpu())
        torch.testing.assert_close(compiled.total.cpu(), eager.total.cpu())
        kept.append(compiled.last)
    assert kept[1].tolist() == [2, 2]
    assert jitted.count == 2  # without and with a memory


def test_a_counter_in_python_counts():
    class Counts(nn.Module):
        calls = 0

        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    m = Counts()
    jitted = jax_jit(lambda x: m(x))
    assert [jitted(ones(1)).item() for _ in range(3)] == [1, 2, 3]
    m.calls = 1
    assert jitted(ones(1)).item() == 2
    assert (m.calls, jitted.count) == (2, 3)


def test_lists_that_grow():
    kept = []
    jitted = jax_jit(lambda x: kept.append(x * 2))
    for _ in range(2):
        jitted(ones(1))
    assert [t.item() for t in kept] == [2, 2]


class Cache:
    """As those of ``transformers``: an object that no pytree takes apart."""

    def __init__(self, keys):
        self.layers = [keys]
        self.length = keys.shape[0]


def test_objects_with_tensors_are_made_again():
    class Keeps(nn.Module):
        def forward(self, x):
            self.cache = Cache(x * 2)
            return self.cache, x + 1

    m = Keeps()
    jitted = jax_jit(lambda x: m(x))
    first, _ = jitted(ones(3))
    assert type(first) is Cache
    assert first.length == 3
    second, _ = jitted(ones(3) * 2)
    assert first.layers[0].tolist() == [2] * 3
    assert second.layers[0].tolist() == [4] * 3
    assert m.cache.layers[0].tolist() == [4] * 3


def test_a_tensor_left_where_it_cannot_be_put_back_is_named():
    class Leaves(nn.Module):
        def forward(self, x):
            self.box = {x * 2}
            return x

    m = Leaves()
    with pytest.raises(
        RuntimeError, match=r"m\.box.* was set to a tensor made in the trace, float32\[3\], inside a new set"
    ):
        jax_jit(lambda x: m(x))(ones(3))
    assert "box" not in vars(m)


def test_assigned_and_replaced_parameters():
    m = nn.Linear(2, 2).to("jax")
    state = {"weight": ones(2, 2), "bias": ones(2)}

    def f(x):
        m.load_state_dict(state, assign=True)
        return m(x).detach()

    jitted = jax_jit(f)
    for _ in range(2):
        assert jitted(ones(1, 2)).tolist() == [[3, 3]]
        assert type(m.weight).__name__ in ("Parameter", "Tensor")
        assert isinstance(m.weight, nn.Parameter)
    forward = jax_jit(lambda x: m(x).detach())
    assert forward(ones(1, 2)).tolist() == [[3, 3]]
    m.weight = nn.Parameter(torch.zeros(2, 2, device="jax"))
    assert forward(ones(1, 2)).tolist() == [[1, 1]]
    assert forward.count == 1


def test_weights_untied_between_calls():
    m = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)]).to("jax")
    m[1].weight = m[0].weight
    jitted = jax_jit(lambda x: m[1](m[0](x)).sum().detach())
    with torch.no_grad():
        m[0].weight.fill_(1)
    assert jitted(ones(1, 2)).item() == 8
    m[1].weight = nn.Parameter(torch.zeros(2, 2, device="jax"))
    assert jitted(ones(1, 2)).item() == 0


def test_frozen_and_unfrozen():
    m = nn.Linear(2, 1).to("jax")
    jitted = jax_jit(lambda x: m(x).sum())
    m.weight.requires_grad_(False)
    jitted(ones(1, 2)).backward()
    assert m.weight.grad is None
    m.weight.requires_grad_(True)
    jitted(ones(1, 2)).backward()
    assert m.weight.grad.tolist() == [[1, 1]]


# --- random numbers ---------------------------------------------------------------------------------------------------------


def test_draws_vary_repeat_and_follow_the_eager_ones():
    def f(x):
        return F.dropout(x, 0.5, training=True)

    jitted, x = jax_jit(f), ones(100)
    torch.manual_seed(1)
    a, b = jitted(x), jitted(x)
    assert not torch.equal(a, b)
    torch.manual_seed(1)
    assert torch.equal(f(x), a)
    assert torch.equal(jitted(x), b)
    assert jitted.count == 1


def test_seeding_inside():
    def f(x):
        torch.manual_seed(3)
        return torch.rand_like(x)

    jitted = jax_jit(f)
    first = jitted(ones(4))
    after = torch.rand(4, device="jax")
    want = f(ones(4))
    assert torch.equal(jitted(ones(4)), want)
    assert torch.equal(first, want)
    assert torch.equal(torch.rand(4, device="jax"), after)


def test_an_explicit_generator_is_an_input():
    g = torch.Generator().manual_seed(0)

    def f(x):
        return torch.rand(3, device="jax", generator=g) + torch.zeros_like(x).uniform_(generator=g)

    jitted = jax_jit(f)
    got = [jitted(ones(3)) for _ in range(3)]
    g.manual_seed(0)
    for x in got:
        assert torch.equal(f(ones(3)), x)
    assert jitted.count == 1


# --- gradients --------------------------------------------------------------------------------------------------------------


def test_backward_through_a_compiled_forward():
    torch.manual_seed(0)
    cpu = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    dev = copy.deepcopy(cpu).to("jax")
    x = torch.randn(5, 3)
    a, b = x.clone().requires_grad_(), x.to("jax").requires_grad_()
    jitted = jax_jit(lambda x: (dev(x), x.detach() * 2, torch.arange(3, device="jax")))
    for _ in range(2):
        out, plain, numbers = jitted(b)
        (out**2).sum().backward()
        (cpu(a) ** 2).sum().backward()
    assert not plain.requires_grad
    assert numbers.tolist() == [0, 1, 2]
    torch.testing.assert_close(b.grad.cpu(), a.grad)
    for p, q in zip(cpu.parameters(), dev.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad)
    assert jitted.count == 1


def test_second_derivative_through_a_compiled_function():
    def f(v):
        return (torch.sin(v) * v).sum()

    def second(f, v):
        (g,) = torch.autograd.grad(f(v), v, create_graph=True)
        return torch.autograd.grad(g.sum(), v)[0]

    x = torch.randn(4, requires_grad=True)
    y = x.detach().to("jax").requires_grad_()
    torch.testing.assert_close(second(jax_jit(f), y).cpu(), second(f, x))


def test_complex_gradients_through_a_compiled_function():
    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    y = x.detach().to("jax").requires_grad_()
    f = lambda v: (v**2 * (1 + 2j)).real.sum()  # noqa: E731
    f(x).backward()
    jax_jit(f)(y).backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad)


def test_backward_inside_fills_grad_as_eager_does():
    torch.manual_seed(0)
    cpu = nn.Linear(3, 1)
    dev = copy.deepcopy(cpu).to("jax")

    def step(m, x):
        loss = m(x).pow(2).sum()
        loss.backward()
        return loss.detach()

    jitted = jax_jit(lambda x: step(dev, x))
    for i in range(4):
        x = torch.randn(2, 3)
        torch.testing.assert_close(jitted(x.to("jax")).cpu(), step(cpu, x))
        torch.testing.assert_close(dev.weight.grad.cpu(), cpu.weight.grad)
        if i == 2:
            dev.zero_grad()
            cpu.zero_grad()
    assert jitted.count == 2  # a first gradient is set, later ones are added to


def test_functional_parameters_get_their_gradients_too():
    m = nn.Linear(2, 1)
    params = {k: v.detach().to("jax").requires_grad_() for k, v in m.named_parameters()}

    def step(params, x):
        loss = torch.func.functional_call(m, params, x).sum()
        return torch.autograd.grad(loss, list(params.values()))

    got = jax_jit(step)(params, ones(3, 2))
    assert [g.tolist() for g in got] == [[[3, 3]], [3]]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes_are_part_of_what_is_compiled(mode):
    w = ones(2).requires_grad_()
    jitted = jax_jit(lambda x: w * x)
    assert jitted(ones(2)).requires_grad
    with mode():
        assert jitted(ones(2)).requires_grad is (mode is torch.enable_grad)


def test_autocast():
    m = nn.Linear(4, 4).to("jax")
    jitted = jax_jit(lambda x: m(x))
    x = ones(2, 4)
    assert jitted(x).dtype == torch.float32
    with torch.autocast("jax", dtype=torch.bfloat16):
        assert jitted(x).dtype == torch.bfloat16


# --- Python values ------------------------------------------------------------------------------------------------------------


def test_python_values_are_exactly_themselves():
    jitted = jax_jit(lambda x, n, flag=True: x.view(n, -1) * (2 if flag else 3))
    assert jitted(ones(6), 2).shape == (2, 3)
    assert jitted(ones(6), 3, flag=False).tolist() == [[3, 3]] * 3
    assert jax_jit(lambda x, v: type(v).__name__)(ones(1), True) == "bool"


def test_static_arguments():
    jitted = jax_jit(lambda x, shape: x.reshape(shape), {"static_argnums": 1})
    assert jitted(ones(6), (2, 3)).shape == (2, 3)
    with pytest.raises(ValueError, match="argument 1 is static and so must be hashable"):
        jitted(ones(6), [2, 3])
    by_name = jax_jit(lambda x, *, shape: x.reshape(shape), {"static_argnames": ["shape"]})
    assert by_name(ones(6), shape=(3, 2)).shape == (3, 2)


def test_a_module_among_the_arguments():
    a, b = nn.Linear(2, 1).to("jax"), nn.Linear(2, 1).to("jax")
    jitted = jax_jit(lambda m, x: m(x))
    for m in (a, b, a):
        torch.testing.assert_close(jitted(m, ones(1, 2)).detach().cpu(), m(ones(1, 2)).detach().cpu())
    assert jitted.count == 2


def test_globals_and_partials_and_methods():
    class Scales:
        def __init__(self):
            self.by = ones(1)

        def __call__(self, x):
            return self.by * x

        def twice(self, x, k):
            return self.by * x * k

    s = Scales()
    for f in (jax_jit(s), jax_jit(functools.partial(s.twice, k=1))):
        s.by.fill_(1)
        assert f(ones(1)).item() == 1
        s.by.fill_(4)
        assert f(ones(1)).item() == 4


# --- donation -------------------------------------------------------------------------------------------------------------------


def test_donated_arguments_are_gone():
    jitted = jax_jit(lambda x, y: x + y, {"donate_argnums": (0,)})
    x, y = ones(5), ones(5)
    assert jitted(x, y).tolist() == [2] * 5
    assert x.jax().is_deleted()
    assert not y.jax().is_deleted()
    with pytest.raises(RuntimeError, match=r"float32\[5\].*deleted"):
        x + 1


def test_what_shares_a_donated_array_can_be_spared():
    jitted = jax_jit(lambda x: x + 1, {"donate_argnums": 0}, fix_for_buffer_donation=True)
    x = ones(5)
    twin = x.clone()
    jitted(x)
    assert twin.tolist() == [1] * 5


# --- ahead of time ----------------------------------------------------------------------------------------------------------------


def test_lower_compile_and_cost_analysis():
    jitted = jax_jit(lambda a, b: a @ b)
    a, b = ones(4, 8), ones(8, 2)
    assert "dot_general" in jitted.lower(a, b).as_text()
    assert jitted.compile(a, b).as_text()
    assert jitted.cost_analysis(a, b)["flops"] >= 4 * 8 * 2
    torch.testing.assert_close(jitted(a, b).cpu(), torch.full((4, 2), 8.0))
    assert jitted.count == 1


# --- within other transforms ------------------------------------------------------------------------------------------------------


def test_within_another():
    inner = jax_jit(lambda x: x * 2)
    assert jax_jit(lambda x: inner(x) + 1)(ones(2)).tolist() == [3, 3]
    assert jax.jit(lambda x: inner(x) + 1)(ones(2)).tolist() == [3, 3]
    assert torch.func.vmap(inner)(ones(2, 2)).tolist() == [[2, 2], [2, 2]]
    assert torch.func.grad(lambda x: inner(x).sum())(ones(2)).tolist() == [2, 2]


# --- errors -----------------------------------------------------------------------------------------------------------------------


def test_a_cpu_argument_is_refused():
    with pytest.raises(TypeError, match=r"shape \(3,\).*cpu.*\.to\('jax'\)"):
        jax_jit(lambda x: x)(torch.ones(3))


def test_a_cpu_tensor_written_in_a_trace_is_named():
    seen = torch.zeros(1)

    def f(x):
        seen.add_(1)
        return x

    with pytest.raises(RuntimeError, match=r"CPU tensor seen, float32\[1\]"):
        jax_jit(f)(ones(1))


def test_a_cpu_constant_that_changed_is_seen():
    scale = torch.tensor(2.0)
    jitted = jax_jit(lambda x: x * scale)
    assert jitted(ones(1)).item() == 2
    scale.fill_(3)
    assert jitted(ones(1)).item() == 3


def test_an_error_leaves_everything_as_it_was():
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).to("jax")
    opt = torch.optim.AdamW(m.parameters())
    x = torch.randn(4, 3).to("jax")

    def step(x, fails):
        opt.zero_grad()
        loss = m(x).sum()
        loss.backward()
        opt.step()
        m.eval()
        m.extra = loss
        torch.set_grad_enabled(False)
        if fails:
            raise KeyError("stop")

    def everything():
        return {
            "state": {k: v.tolist() for k, v in m.state_dict().items()},
            "grads": [p.grad for p in m.parameters()],
            "optimizer": repr(opt.state_dict()),
            "modes": [k.training for k in m.modules()],
            "names": sorted(vars(m)),
            "generator": torch.jax.get_rng_state().tolist(),
            "grad mode": torch.is_grad_enabled(),
        }

    before = everything()
    with pytest.raises(KeyError, match="stop"):
        jax_jit(step)(x, True)
    assert everything() == before
    assert not any(isinstance(t._box.array, jax.core.Tracer) for t in m.state_dict().values())


def test_recompiling_without_end_warns_once_and_says_why(caplog):
    jitted = jax_jit(lambda x, n: x * n)
    for i in range(12):
        jitted(ones(1), float(i))
    assert len(caplog.records) == 1
    assert "Python value 0 among the arguments was 7.0, now 8.0" in caplog.text


def test_call_jax_keeps_the_users_x64_setting():
    seen = []

    def kernel(a):
        seen.append((a.dtype, jnp.ones(2).dtype))
        return a + 1

    x = torch.arange(3).to("jax")
    out = jax_jit(lambda x: interop.call_jax(kernel, x))(x)
    assert out.dtype == interop.call_jax(kernel, x).dtype == torch.int32
    assert seen[0] == seen[1]
    with jax.enable_x64(True):
        assert jax_jit(lambda x: interop.call_jax(kernel, x))(x).dtype == torch.int64


def test_the_top_package_has_them():
    assert torchax.compile is interop.compile
    assert torchax.extract_jax is interop.extract_jax
    assert torchax.CompileOptions is interop.CompileOptions

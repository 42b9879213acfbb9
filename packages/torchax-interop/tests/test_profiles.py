"""HLO metadata and profiles name the module and the operator of each operation."""

from __future__ import annotations

import re
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn as nn
from torch.nn.modules import module as torch_module

import torchax
from torchax import export, interop


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.tanh(self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(4), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sin()


def names(lowered: jax.stages.Lowered) -> set[str]:
    text = lowered.compile().as_text()
    assert text is not None
    # An operator is a function of its own, or a scope where it was inlined: jit(aten_linear), aten_linear.
    return {re.sub(r"jit\((aten_\w+)\)", r"\1", name) + "/" for name in re.findall(r'op_name="([^"]*)"', text)}


def lowered(how: str, model: nn.Module, x: torch.Tensor) -> jax.stages.Lowered:
    if how == "jax_jit":
        return interop.jax_jit(lambda x: model(x)).lower(x)
    if how == "compile":
        return interop.jax_jit(model.__call__).lower(x)
    state, fn = torchax.extract_jax(model)
    return jax.jit(lambda state, x: fn(state, (x,))).lower(state, x.jax())


@pytest.mark.parametrize("how", ["jax_jit", "compile", "extract_jax"])
def test_paths_and_operators_in_hlo(how):
    found = names(lowered(how, Model().to("jax"), torch.randn(2, 4, device="jax")))
    for path, operator in [
        ("layers.3.mlp.up_proj", "aten_linear"),
        ("layers.0.mlp", "aten_tanh"),
        ("layers.2.norm", "aten_native_layer_norm"),
        ("Model", "aten_sin"),
    ]:
        assert any(f"/{path}/{operator}/" in name for name in found), (path, found)
    assert not any("layers.0.mlp/layers.0.mlp.up_proj" in name for name in found)  # one path, not all that lead to it


def test_after_an_inner_module_its_caller_goes_on():
    found = names(lowered("jax_jit", Model().to("jax"), torch.randn(2, 4, device="jax")))
    assert any("/layers.1/aten_add_Tensor/" in name for name in found)


def test_captured_graphs_have_the_paths_too():
    ep = torch.export.export(Model(), (torch.randn(2, 4),))
    state, fn = export.exported_program_to_jax(ep)
    found = names(jax.jit(fn).lower(state, (jnp.ones((2, 4)),)))
    assert any("layers.3.mlp.up_proj/aten_linear/" in name for name in found)


def test_the_profiler_shows_them(tmp_path):
    model, x = Model().to("jax"), torch.randn(2, 4, device="jax")
    step = interop.jax_jit(lambda x: model(x))
    step(x)
    with jax.profiler.trace(str(tmp_path)):
        step(x).cpu()
    [file] = tmp_path.rglob("*.xplane.pb")
    assert re.search(rb"layers\.3\.mlp\.up_proj\)?/(jit\()?aten_linear", file.read_bytes())


def test_hooks_are_there_only_while_something_is_traced():
    before = len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)
    seen = []

    class Look(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)))
            return x

    look, x = Look(), torch.ones(2, device="jax")
    look(x)
    interop.jax_jit(look.__call__)(x)
    interop.call_torch(look, jnp.ones(2))
    assert seen == [before, (before[0] + 1, before[1] + 1), before]
    assert (len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)) == before


def test_an_exception_leaves_no_scope_behind():
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Layer()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner(x)
            raise RuntimeError("as asked")

    x = torch.randn(2, 4, device="jax")
    with pytest.raises(RuntimeError, match="as asked"):
        interop.jax_jit(Fails().to("jax").__call__)(x)
    layer = Layer().to("jax")
    found = names(interop.jax_jit(lambda x: torch.cos(layer(x))).lower(x))
    assert any("(<lambda>)/aten_cos" in name for name in found)
    assert any("/mlp.up_proj/" in name for name in found)
    assert not any("Fails" in name or "inner" in name for name in found)


def test_a_module_may_catch_what_its_children_raise():
    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError

    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.good = Raises(), Mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with pytest.raises(ValueError):
                self.bad(x)
            return self.good(x)

    found = names(interop.jax_jit(Catches().to("jax").__call__).lower(torch.randn(2, 4, device="jax")))
    assert any("/good.up_proj/" in name for name in found)
    assert any("/good/aten_tanh" in name for name in found)
    assert not any("bad" in name for name in found)


def test_a_module_called_eagerly_on_another_thread_is_left_alone():
    errors: list[Any] = []
    eager, given, x = Model().to("jax"), torch.randn(2, 4, device="jax"), torch.randn(2, 4, device="jax")

    def other() -> None:
        try:
            eager(given)
        except BaseException as e:
            errors.append(e)

    class Starts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            return x + 1

    found = names(interop.jax_jit(Starts().__call__).lower(x))
    assert errors == []
    assert any("/Starts/aten_add_Tensor/" in name for name in found)

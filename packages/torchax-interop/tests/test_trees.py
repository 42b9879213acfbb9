"""Containers of PyTorch and of others cross as themselves; optax and orbax take tensors."""

from __future__ import annotations

import collections
import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import torch
import torch.utils._pytree as torch_pytree
from torch import nn

from torchax import interop

VERBS = {
    "jit": lambda f: interop.jax_jit(f),
    "call_torch": lambda f: lambda *args: interop.torch_view(interop.call_torch(f, *interop.jax_view(args))),
    "jax_view": lambda f: lambda *args: interop.torch_view(interop.jax_view(f)(*interop.jax_view(args))),
}


class Pair(NamedTuple):
    left: object
    right: object


class Output(collections.OrderedDict):
    """A mapping with attributes, known to PyTorch's pytree alone, as ``transformers`` ``ModelOutput``s are."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__.update(self)


torch_pytree.register_pytree_node(
    Output, lambda o: (list(o.values()), list(o)), lambda values, keys: Output(zip(keys, values, strict=True))
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    x: object
    label: str = dataclasses.field(metadata={"static": True}, default="state")


TREES = {
    "dict in order": lambda x: {"z": x, "a": x * 2},
    "ordered": lambda x: collections.OrderedDict(z=x, a=x * 2),
    "named": lambda x: Pair(x, [x * 2, None]),
    "sort": lambda x: torch.sort(x),
    "max": lambda x: x.max(0),
    "qr": lambda x: torch.linalg.qr(torch.outer(x, x) + torch.eye(3, device=x.device)),
    "model output": lambda x: Output(logits=x, hidden=(x, x * 2)),
    "registered with jax": lambda x: State(x * 2, "kept"),
    "nested": lambda x: [{"a": (x, Pair(x, x))}, [], {}, ()],
    "constants": lambda x: {"n": 3, "s": "text", "f": 0.5, "none": None, "x": x},
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("tree", TREES)
def test_results_cross_as_themselves(verb, tree):
    x = torch.tensor([3.0, 1.0, 2.0])
    got, want = VERBS[verb](TREES[tree])(x.to("jax")), TREES[tree](x)
    assert type(got) is type(want)
    if isinstance(want, dict):
        assert list(got) == list(want)
    leaves = [jax.tree.leaves(list(t.values()) if isinstance(t, dict) else t) for t in (got, want)]
    for a, b in zip(*leaves, strict=True):
        if isinstance(b, torch.Tensor):
            np.testing.assert_allclose(np.asarray(a), b.numpy(), rtol=1e-4, atol=1e-5)
        else:
            assert np.asarray(a).shape == np.asarray(b).shape
    if isinstance(want, State):
        assert got.label == "kept"


@pytest.mark.parametrize("tree", TREES)
def test_arguments_cross_as_themselves(tree):
    seen = []

    def f(value):
        seen.append(type(value))
        return jax.tree.leaves(list(value.values()) if isinstance(value, dict) else value)[0]

    value = TREES[tree](torch.tensor([3.0, 1.0, 2.0], device="jax"))
    interop.jax_jit(f)(value)
    assert seen[0] is type(value)


def test_transformers_outputs_are_not_registered_with_jax():
    before = jax.tree.structure(Output(a=1))
    interop.jax_jit(TREES["model output"])(torch.ones(3, device="jax"))
    assert jax.tree.structure(Output(a=1)) == before == jax.tree.structure(0)


def test_optax_takes_tensors_as_they_are():
    torch.manual_seed(0)
    m = nn.Linear(3, 1).to("jax")
    x, y = torch.randn(16, 3).to("jax"), torch.randn(16, 1).to("jax")
    opt = optax.adamw(0.05)

    def loss(p):
        return (torch.func.functional_call(m, p, (x,)) - y).pow(2).mean().jax()

    @jax.jit
    def step(p, state):
        value, grads = jax.value_and_grad(loss)(p)
        updates, state = opt.update(grads, state, p)
        return optax.apply_updates(p, updates), state, value

    p = {k: v.detach() for k, v in m.named_parameters()}
    state = opt.init(p)
    values = []
    for _ in range(30):
        p, state, value = step(p, state)
        values.append(float(value))
    assert values[-1] < values[0] * 0.9
    assert isinstance(p["weight"], torch.Tensor)


def test_orbax_saves_and_restores_tensors(tmp_path):
    tree = {
        "w": torch.arange(6.0, device="jax").reshape(2, 3),
        "step": torch.tensor(3, dtype=torch.int32, device="jax"),
    }
    with ocp.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", tree)
        saver.wait_until_finished()
        back = saver.restore(tmp_path / "state")
    np.testing.assert_array_equal(np.asarray(jax.tree.leaves(back)[-1]), np.arange(6.0).reshape(2, 3))


def test_trees_of_parameters_and_gradients_match():
    p = {"w": nn.Parameter(torch.ones(2, device="jax")), "b": torch.zeros(1, device="jax")}
    g = jax.tree.map(jnp.ones_like, p)
    out = jax.tree.map(lambda p, g: p - g, p, g)
    assert out["w"].tolist() == [0, 0]
    assert jax.tree.structure(p) == jax.tree.structure(out)

"""PyTorch's functional collectives on ``jax`` tensors inside ``shard_map``, against what they mean."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
import torch.distributed._functional_collectives as funcol
from jax.sharding import PartitionSpec as P

from torchax import interop
from torchax.train.distributed import named_groups
from torchax.train.sharding import make_mesh

# The names that torch 2.10 has too
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated. Please use:FutureWarning")

X = np.arange(8 * 8 * 2, dtype=np.float32).reshape(64, 2)
PARTS = X.reshape(8, 8, 2)

CASES = {
    "sum": (lambda x: funcol.all_reduce(x, "sum", "x"), [PARTS.sum(0)] * 8),
    "avg": (lambda x: funcol.all_reduce(x, "avg", "x"), [PARTS.mean(0)] * 8),
    "max": (lambda x: funcol.all_reduce(x, "max", "x"), [PARTS.max(0)] * 8),
    "min": (lambda x: funcol.all_reduce(x, "min", "x"), [PARTS.min(0)] * 8),
    "all_gather": (lambda x: funcol.all_gather_tensor(x, 0, "x"), [X] * 8),
    "all_gather_1": (lambda x: funcol.all_gather_tensor(x, 1, "x"), [np.concatenate(PARTS, 1)] * 8),
    "reduce_scatter": (lambda x: funcol.reduce_scatter_tensor(x, "sum", 0, "x"), np.split(PARTS.sum(0), 8)),
    "reduce_scatter_avg": (lambda x: funcol.reduce_scatter_tensor(x, "avg", 0, "x"), np.split(PARTS.mean(0), 8)),
    "all_to_all": (lambda x: funcol.all_to_all_single(x, [1] * 8, [1] * 8, "x"), list(PARTS.transpose(1, 0, 2))),
    "broadcast": (lambda x: funcol.broadcast(x, 3, "x"), [PARTS[3]] * 8),
}


def _run(fn, x=X):
    mesh = make_mesh({"x": 8})
    with named_groups(mesh):
        body = interop.jax_view(lambda x: funcol.wait_tensor(fn(x)))
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))(x)


@pytest.mark.parametrize("name", CASES)
def test_collectives_are_those_of_jax(name):
    fn, expected = CASES[name]
    np.testing.assert_allclose(_run(fn), np.concatenate(expected))


def test_gradients_go_through():
    found = jax.grad(lambda x: (_run(lambda x: funcol.all_reduce(x, "sum", "x") * 2, x) ** 2).sum())(X)
    np.testing.assert_allclose(found, np.concatenate([8 * 8 * PARTS.sum(0)] * 8))


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: funcol.all_reduce(x, "product", "x"), "not 'product'"),
        (lambda x: funcol.all_to_all_single(x, [1] * 8, [2, 0] + [1] * 6, "x"), "needs equal splits"),
    ],
)
def test_what_has_no_counterpart(fn, message):
    with pytest.raises(ValueError, match=message):
        _run(fn)


def test_groups_are_gone_afterwards():
    mesh = make_mesh({"x": 8})
    with named_groups(mesh):
        pass
    with pytest.raises((RuntimeError, ValueError)), named_groups(make_mesh({"y": 8})):
        funcol.all_gather_tensor(torch.ones(2, device="jax"), 0, "x")

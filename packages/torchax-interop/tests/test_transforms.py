"""JAX's transforms through the verbs, and on torch functions directly."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax.sharding import PartitionSpec as P
from torch import nn

from torchax import interop


def auto_mesh():
    return jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))


def test_value_and_grad():
    x = torch.randn(3)
    f = lambda x, y: ((x * y).sum(), {"y": y})  # noqa: E731
    g = interop.jax_value_and_grad(f, {"has_aux": True, "argnums": (0, 1)})
    (value, aux), (dx, dy) = g(x.to("jax"), x.to("jax") * 2)
    torch.testing.assert_close(value.cpu(), (x * x * 2).sum())
    torch.testing.assert_close(dx.cpu(), x * 2)
    torch.testing.assert_close(dy.cpu(), x)
    torch.testing.assert_close(aux["y"].cpu(), x * 2)
    double = interop.jax_value_and_grad(lambda x: (x**2).sum())(x.double().to("jax"))[1]
    torch.testing.assert_close(double.cpu(), x.double() * 2)


class Net(nn.Module):
    def __init__(self, checkpoint=False):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
        self.drop = nn.Dropout(0.5)
        self.inner = interop.gradient_checkpoint(self.hidden) if checkpoint else self.hidden

    def hidden(self, x):
        return self.drop(torch.tanh(self.a(x)))

    def forward(self, x):
        return self.b(self.inner(x))


def nets():
    torch.manual_seed(0)
    plain, checked = Net().to("jax"), Net(True).to("jax")
    checked.load_state_dict(plain.state_dict())
    return plain, checked


@pytest.mark.parametrize("compiled", [False, True])
def test_checkpointed_gradients_reach_what_is_captured(compiled):
    plain, checked = nets()
    x = torch.randn(3, 4).to("jax")

    def loss(m):
        torch.manual_seed(1)
        out = m(x).pow(2).sum()
        out.backward()
        return out.detach()

    run = interop.jax_jit(loss) if compiled else loss
    torch.testing.assert_close(run(checked).cpu(), loss(plain).cpu())
    for p, q in zip(plain.parameters(), checked.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad.cpu())


def test_a_checkpoint_saves_only_its_inputs():
    w = torch.randn(4, 4).to("jax")
    inner = interop.gradient_checkpoint(lambda x: torch.sin(torch.sin(x @ w)))
    text = str(jax.make_jaxpr(jax.grad(lambda x: inner(x).sum().jax()))(w))
    assert "checkpoint" in text or "remat" in text
    kept = interop.gradient_checkpoint(
        lambda x: torch.sin(x @ w), {"policy": jax.checkpoint_policies.everything_saveable}
    )
    torch.testing.assert_close(jax.grad(lambda x: kept(x).sum().jax())(w).cpu(), (torch.cos(w @ w) @ w.t()).cpu())


def test_shard_map_runs_on_shards():
    mesh = auto_mesh()
    f = interop.jax_shard_map(lambda x: x * 2, {"mesh": mesh, "in_specs": P("i"), "out_specs": P("i")})
    assert f(torch.arange(4, device="jax")).tolist() == [0, 2, 4, 6]
    curried = interop.shard_map(mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    out = curried(lambda x: torch.sin(x))(torch.zeros(4, device="jax"))
    assert out.tolist() == [0.0] * 4


def test_wrapped_jit_is_differentiable():
    x = torch.randn(3)
    y = x.to("jax").requires_grad_()
    f = interop.wrap_jax_jit(lambda x: (torch.sin(x), x.double()))
    out, wide = f(y)
    assert wide.dtype == torch.float64
    out.sum().backward()
    torch.testing.assert_close(y.grad.cpu(), torch.cos(x))
    assert interop.wrap_jax_jit(lambda x: x + 1, jax.vmap)(torch.zeros(2, device="jax")).tolist() == [1, 1]


def test_j2t_autograd():
    y = torch.randn(3).to("jax").requires_grad_()
    interop.j2t_autograd(lambda a: jnp.sin(a) * 2)(y).sum().backward()
    torch.testing.assert_close(y.grad, 2 * torch.cos(y.detach()))


def test_fori_loop():
    x = torch.randn(3)
    y = x.to("jax").requires_grad_()

    def body(i, value):
        return {"x": value["x"] * 2 + i, "n": value["n"] + 1}

    out = interop.fori_loop(0, 3, body, {"x": y, "n": torch.tensor(2**40, device="jax")})
    torch.testing.assert_close(out["x"].detach().cpu(), x * 8 + 4)
    assert out["n"].item() == 2**40 + 3
    out["x"].sum().backward()
    assert y.grad.tolist() == [8, 8, 8]
    jitted = interop.jax_jit(lambda x: interop.fori_loop(0, 4, lambda i, v: v + i, x))
    assert jitted(torch.zeros(2, device="jax")).tolist() == [6, 6]


def test_elements():
    x = torch.ones(2, device="jax")
    assert isinstance(interop.jax_view_elem(x), jax.Array)
    assert torch.equal(interop.torch_view_elem(interop.jax_view_elem(x)), x)
    assert interop.torch_view_elem("text") == interop.jax_view_elem("text") == "text"
    assert interop.torch_view_elem(jnp.sin)(x).tolist() == interop.torch_view_elem(jnp.sin(x.jax())).tolist()


def test_shardings_of_arguments_and_results():
    mesh = auto_mesh()
    place = jax.sharding.NamedSharding(mesh, P("i"))
    jitted = interop.jax_jit(lambda x, y: {"a": x + y, "b": y}, {"in_shardings": (place, None), "out_shardings": place})
    out = jitted(torch.ones(4, device="jax"), torch.ones(4, device="jax"))
    assert out["a"].jax().sharding.is_equivalent_to(place, 1)


# --- JAX's own transforms on torch functions ----------------------------------------------------------------------------


def params(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to("jax")
    return net, dict(net.named_parameters())


def test_grad_and_friends_over_pytrees_of_parameters():
    net, p = params()
    host = copy.deepcopy(net).to("cpu")
    x = torch.randn(5, 3)
    loss = lambda p, x: torch.func.functional_call(net, p, (x,)).pow(2).sum().jax()  # noqa: E731
    host(x).pow(2).sum().backward()
    value, grads = jax.jit(jax.value_and_grad(loss))(p, x.to("jax"))
    assert value.shape == ()
    for name, q in host.named_parameters():
        torch.testing.assert_close(grads[name].cpu(), q.grad)
    new = jax.tree.map(lambda p, g: p - 0.1 * g, p, grads)
    assert new.keys() == p.keys()
    _out, pull = jax.vjp(lambda x: loss(p, x), x.to("jax"))
    (dx,) = pull(jnp.ones(()))
    assert dx.shape == x.shape
    _, tangent = jax.jvp(lambda x: loss(p, x), (x.to("jax"),), (x.to("jax"),))
    np.testing.assert_allclose(np.asarray(tangent), (dx.cpu() * x).sum().numpy(), rtol=1e-4)
    remat = jax.grad(jax.checkpoint(lambda x: loss(p, x)))(x.to("jax"))
    torch.testing.assert_close(remat.cpu(), dx.cpu())


def test_vmap_scan_and_control_flow():
    x = torch.randn(4, 3)
    y = x.to("jax")
    torch.testing.assert_close(jax.vmap(lambda r: torch.softmax(r, -1))(y).cpu(), torch.softmax(x, -1))
    carry, ys = jax.lax.scan(lambda c, r: (c + r, c * r), torch.zeros(3, device="jax"), y)
    torch.testing.assert_close(carry.cpu(), x.sum(0))
    assert ys.shape == (4, 3)
    out = jax.lax.cond(y.sum().jax() > 0, lambda v: v * 2, lambda v: v * 3, y)
    torch.testing.assert_close(out.cpu(), x * (2 if x.sum() > 0 else 3))
    total = jax.lax.while_loop(lambda v: (v.sum() < 100).jax(), lambda v: v * 2, torch.ones(3, device="jax"))
    assert total.tolist() == [64.0] * 3
    assert jax.lax.fori_loop(0, 3, lambda i, v: v + 1, torch.zeros(2, device="jax")).tolist() == [3, 3]


def test_placing_shapes_and_trees():
    x = torch.randn(4, 3).to("jax")
    mesh = auto_mesh()
    placed = jax.device_put({"x": x}, jax.sharding.NamedSharding(mesh, P("i")))
    assert torch.equal(placed["x"].cpu(), x.cpu())
    shape = jax.eval_shape(lambda x: x @ x.t(), x)
    assert tuple(shape.shape) == (4, 4)
    leaves, definition = jax.tree.flatten({"x": x})
    assert leaves[0] is x.jax()
    specs = jax.tree.unflatten(definition, [P("i")])
    assert jax.tree.leaves(specs, is_leaf=lambda s: isinstance(s, P)) == [P("i")]
    sharded = jax.shard_map(lambda x: torch.relu(x), mesh=mesh, in_specs=P("i"), out_specs=P("i"))(x)
    torch.testing.assert_close(sharded.cpu(), F.relu(x.cpu()))
    np.testing.assert_array_equal(np.asarray(jax.block_until_ready(x)), x.cpu().numpy())

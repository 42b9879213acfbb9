"""``torch.func`` over ``jax`` tensors, JAX's transformations over torch functions, and a tensor as a JAX pytree."""

from __future__ import annotations

from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from _programs import DEVICE, cases, check, leaf, on_cpu, ramp, same, weighted
from torch import nn
from torch.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)  # fmt: skip
from torch.fx.experimental.proxy_tensor import make_fx

from torchax import Tensor


def point(device: str, *shape: int) -> torch.Tensor:
    return leaf(device, *shape).detach()


def bowl(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


def curve(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x.exp().sum(), (x * x.flip(0)).sum(), x[0] * x[1]])


# --- torch.func -----------------------------------------------------------------------------------


@cases(
    lambda d: grad(bowl)(point(d, 3)),
    lambda d: grad_and_value(bowl)(point(d, 3)),
    lambda d: grad(lambda x, y: (x * y.sin()).sum(), argnums=(0, 1))(point(d, 3), point(d, 3) * 2),
    lambda d: grad(lambda p, x: (p["w"] * x).sum() + p["b"])({"w": point(d, 3), "b": point(d)}, point(d, 3)),
    lambda d: grad(lambda x: (bowl(x), x * 2), has_aux=True)(point(d, 3)),
    lambda d: grad(grad(lambda x: x.sin() * x**3))(point(d)),
    lambda d: grad(lambda x: grad(lambda y: (x * y).prod() + y.sum() ** 3)(x * 2).sum())(point(d, 3)),
    lambda d: vjp(curve, point(d, 3))[1](point(d, 3)),
    lambda d: vjp(curve, point(d, 3))[0],
    lambda d: vjp(lambda x, y: (x * y, x.sum()), point(d, 3), point(d, 3))[1]((point(d, 3), point(d))),
    lambda d: jvp(curve, (point(d, 3),), (point(d, 3) * 2,)),
    lambda d: jvp(lambda x, y: x @ y, (point(d, 2, 3), point(d, 3, 2)), (point(d, 2, 3), point(d, 3, 2))),
    lambda d: jvp(lambda x: jvp(bowl, (x,), (x * x,))[1], (point(d, 3),), (point(d, 3),)),
    lambda d: jvp(grad(bowl), (point(d, 3),), (point(d, 3),)),
    lambda d: grad(lambda x: jvp(bowl, (x,), (x.detach(),))[1])(point(d, 3)),
    lambda d: jacrev(curve)(point(d, 3)),
    lambda d: jacfwd(curve)(point(d, 3)),
    lambda d: jacrev(lambda x, y: x * y.sum(), argnums=1)(point(d, 3), point(d, 2)),
    lambda d: jacrev(curve, chunk_size=1)(point(d, 3)),
    lambda d: hessian(bowl)(point(d, 3)),
    lambda d: jacfwd(jacfwd(bowl))(point(d, 3)),
    lambda d: hessian(lambda x: F.softmax(x, -1).pow(2).sum())(point(d, 3)),
    lambda d: linearize(curve, point(d, 3))[1](point(d, 3)),
    lambda d: functionalize(lambda x: (x * 1).t().mul_(2).add_(x.t()))(point(d, 2, 3)),
)
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
def test_derivatives(program):
    check(program, strides=False, rtol=1e-5, atol=1e-5)


@cases(
    lambda d: vmap(bowl)(point(d, 4, 3)),
    lambda d: vmap(lambda x, y: x @ y)(point(d, 4, 3), point(d, 4, 3)),
    lambda d: vmap(lambda x, y: x + y, in_dims=(0, None))(point(d, 4, 3), point(d, 3)),
    lambda d: vmap(lambda x: x * 2, in_dims=1, out_dims=1)(point(d, 4, 3)),
    lambda d: vmap(lambda x, y: (x.sum(), {"d": y * 2}), in_dims=(1, 0))(point(d, 2, 4), point(d, 4)),
    lambda d: vmap(vmap(lambda x, y: x * y), in_dims=(0, None))(point(d, 4, 3), point(d, 3)),
    lambda d: vmap(lambda x: x.t()[1:] @ x)(point(d, 4, 3, 3)),
    lambda d: vmap(lambda x: torch.linalg.inv(x @ x.t() + torch.eye(3, device=x.device)))(point(d, 4, 3, 3)),
    lambda d: vmap(lambda x: F.conv1d(x, x[:1].flip(0)[None, :, :2].expand(1, 2, 2)))(point(d, 4, 2, 5)),
    lambda d: vmap(lambda x: F.layer_norm(x, (3,)).cumsum(-1).argmax(-1))(point(d, 4, 2, 3)),
    lambda d: vmap(lambda x, i: x.index_select(0, i))(point(d, 4, 3), torch.tensor([[0], [1], [2], [0]]).to(d)),
    lambda d: vmap(lambda x, i: x.gather(0, i))(point(d, 4, 3), torch.tensor([[0], [1], [2], [0]]).to(d)),
    lambda d: vmap(lambda x, m: torch.where(m, x, -x))(point(d, 4, 3), point(d, 4, 3) > 0),
    lambda d: vmap(lambda x: x.clone().mul_(2).add_(x[0]))(point(d, 4, 3)),
    lambda d: vmap(lambda x: torch.cat([x, x.sort().values]))(point(d, 4, 3)),
    lambda d: vmap(lambda x: torch.zeros(3, device=x.device).copy_(x) + torch.ones_like(x))(point(d, 4, 3)),
    lambda d: vmap(lambda x: x.sum(), chunk_size=2)(point(d, 4, 3)),
    lambda d: vmap(grad(bowl))(point(d, 4, 3)),
    lambda d: vmap(hessian(bowl))(point(d, 2, 3)),
    lambda d: vmap(lambda x, v: jvp(curve, (x,), (v,))[1])(point(d, 4, 3), point(d, 4, 3)),
    lambda d: jacrev(vmap(lambda x: x.sin().sum()))(point(d, 4, 3)),
    lambda d: grad(lambda x: vmap(bowl)(x).pow(2).sum())(point(d, 4, 3)),
    lambda d: vmap(lambda v: vjp(curve, point(d, 3))[1](v)[0])(torch.eye(3).to(d)),
)
def test_vmap(program):
    check(program, strides=False, rtol=1e-5, atol=1e-5)


def test_vmap_draws_as_it_is_told():
    x = point(DEVICE, 4, 3)
    different = vmap(lambda x: x * 0 + torch.rand(3, device=x.device), randomness="different")(x)
    assert len({tuple(row) for row in different.tolist()}) == 4
    alike = vmap(lambda x: x * 0 + torch.rand(3, device=x.device), randomness="same")(x)
    assert len({tuple(row) for row in alike.tolist()}) == 1
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda x: x + torch.rand(3, device=x.device))(x)
    dropped = vmap(lambda x: F.dropout(x, 0.5), randomness="different")(torch.ones(4, 50, device=DEVICE))
    assert len({tuple(row) for row in dropped.tolist()}) == 4


@cases(
    lambda d: vmap(lambda x: x.sum(), in_dims=2)(point(d, 4, 3)),
    lambda d: vmap(lambda x, y: x + y)(point(d, 4, 3), point(d, 3, 3)),
    lambda d: vmap(lambda x: x if x.sum() > 0 else -x)(point(d, 4, 3)),
    lambda d: vmap(lambda x: x.sum().item())(point(d, 4, 3)),
    lambda d: grad(lambda x: x * 2)(point(d, 3)),
    lambda d: grad(bowl)(torch.ones(3, dtype=torch.int64).to(d)),
    lambda d: jvp(bowl, (point(d, 3),), (point(d, 2),)),
    lambda d: vmap(lambda x: x @ x)(point(d, 4, 3, 2)),
)
def test_mistakes_under_transforms(program):
    assert isinstance(check(program), Exception)


def small(device: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).to(device)


def test_functional_call():
    def program(device: str) -> Any:
        model, x = small(device), point(device, 5, 3)
        other = {k: v.detach() * 2 for k, v in model.named_parameters()}
        buffers = {k: v.clone() for k, v in model.named_buffers()}
        out = functional_call(model, (other, buffers), (x,))
        return out.detach(), buffers, dict(model.named_buffers()), functional_call(model, other, x).detach()

    check(program, strides=False)


def test_functional_call_is_differentiable_in_every_way():
    def program(device: str) -> Any:
        model, x = small(device).eval(), point(device, 5, 3)
        params = {k: v.detach() for k, v in model.named_parameters()}

        def loss(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return functional_call(model, params, (x,)).pow(2).mean()

        return [
            grad(loss)(params, x),
            vmap(grad(loss), in_dims=(None, 0))(params, x),  # a gradient a sample
            jvp(lambda p: loss(p, x), (params,), (params,)),
            hessian(loss)({"0.bias": params["0.bias"]} | params, x)["0.bias"]["3.bias"],
            jacrev(loss, argnums=1)(params, x),
        ]

    check(program, strides=False, rtol=1e-4, atol=1e-6)


def test_an_ensemble_in_one_call():
    def program(device: str) -> Any:
        models = []
        for seed in range(3):
            torch.manual_seed(seed)
            models.append(nn.Linear(3, 2).to(device))
        params, buffers = stack_module_state(models)
        base = nn.Linear(3, 2, device="meta")
        out = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), (0, 0, None))(
            params, buffers, point(device, 5, 3)
        )
        return out.detach()

    check(program, strides=False)


def test_torch_func_within_backward_and_the_reverse():
    def program(device: str) -> Any:
        w = leaf(device, 3)
        g = grad(lambda x: (x * w).sin().sum())(point(device, 3))
        weighted(g).backward()
        return w.grad, vjp(lambda x: torch.autograd.functional.jacobian(curve, x.detach()) @ x, point(device, 3))[0]

    check(program, strides=False)


def test_forward_mode_without_torch_func():
    def program(device: str) -> Any:
        import torch.autograd.forward_ad as fwd

        with fwd.dual_level():
            x = fwd.make_dual(point(device, 2, 3), point(device, 2, 3) * 2)
            y = fwd.unpack_dual((x.t() @ x).tanh()[0])
            z = fwd.make_dual(point(device, 3), point(device, 3))
            z.mul_(z)
            return y.primal, y.tangent, fwd.unpack_dual(z).tangent

    check(program, strides=False)


def test_make_fx_records_what_depends_on_the_input():
    def program(device: str) -> Any:
        v, x = point(device, 3), ramp(device, 3)
        graph = make_fx(lambda v: grad(lambda v: (v.sin() * x.exp()).sum())(v) + x)(v)
        assert "cos" in graph.code
        return graph(v), graph(v * 2)

    check(program)


# --- JAX's transformations of torch functions -----------------------------------------------------


def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, -1).pow(2).sum()


def arguments(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return point(device, 2, 3), point(device, 3, 4)


def test_jit():
    got = jax.jit(f)(*arguments(DEVICE))
    assert type(got) is Tensor
    same(got, f(*arguments("cpu")))


def test_jit_of_a_tree_of_tensors_and_other_things():
    def fn(tree: dict[str, Any], scale: float) -> Any:
        return {"sum": tree["a"][0] + tree["b"], "none": None, "list": [tree["a"][0].t(), tree["n"] * scale]}

    def tree(device: str) -> dict[str, Any]:
        return {"a": [point(device, 2, 3)], "b": point(device, 3), "n": 2.0}

    got, want = jax.jit(fn)(tree(DEVICE), 3.0), fn(tree("cpu"), 3.0)
    same(got["sum"], want["sum"])
    same(got["list"][0], want["list"][0], strides=False)
    assert got["none"] is None
    assert float(got["list"][1]) == 6.0


def test_jit_sees_each_call_and_compiles_once():
    calls = []

    @jax.jit
    def fn(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * n

    for n in range(4):
        torch.testing.assert_close(fn(ramp(DEVICE, 3), torch.tensor(n).to(DEVICE)).cpu(), ramp("cpu", 3) * n)
    assert len(calls) == 1


def test_arrays_mix_with_tensors_under_jit():
    def fn(x: torch.Tensor, a: jax.Array) -> Any:
        return Tensor(jnp.sin(a)) + x, jnp.cos(x.jax()) + a

    x, a = point(DEVICE, 3), jnp.arange(3.0)
    tensor, array = jax.jit(fn)(x, a)
    np.testing.assert_allclose(tensor.numpy(), np.sin(a) + x.numpy(), rtol=1e-6)
    np.testing.assert_allclose(array, np.cos(x.numpy()) + a, rtol=1e-6)


def test_jax_grad():
    x, w = (t.requires_grad_() for t in arguments("cpu"))
    want = torch.autograd.grad(f(x, w), (x, w))
    got = jax.grad(lambda *a: f(*a).jax(), argnums=(0, 1))(*arguments(DEVICE))
    same(got, want, strides=False)
    value, both = jax.value_and_grad(lambda a: f(*a).jax())(arguments(DEVICE))
    torch.testing.assert_close(torch.tensor(float(value)), f(x, w).detach())
    same(both, want, strides=False)
    same(jax.jit(jax.grad(lambda w: f(arguments(DEVICE)[0], w).jax()))(arguments(DEVICE)[1]), want[1], strides=False)


def test_jax_grad_of_parameters_and_modules():
    model = small(DEVICE).eval()
    params = dict(model.named_parameters())
    assert all(isinstance(p, nn.Parameter) for p in params.values())

    def loss(params: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
        return functional_call(model, params, (x,)).pow(2).mean().jax()

    got = jax.jit(jax.grad(loss))(params, point(DEVICE, 5, 3))
    cpu = small("cpu").eval()
    cpu(point("cpu", 5, 3)).pow(2).mean().backward()
    for name, p in cpu.named_parameters():
        torch.testing.assert_close(got[name].cpu(), p.grad, msg=name)
    updated = jax.tree.map(lambda p, g: p - 0.1 * g, params, got)
    assert set(updated) == set(params)


def test_backward_inside_jit():
    def step(x: torch.Tensor, w: torch.Tensor) -> Any:
        w = w.detach().requires_grad_()
        loss = f(x, w)
        loss.backward()
        [second] = torch.autograd.grad(f(x, w), w, create_graph=True)
        return loss.detach(), w.grad, torch.autograd.grad(second.pow(2).sum(), w)[0]

    same(jax.jit(step)(*arguments(DEVICE)), step(*arguments("cpu")), strides=False, rtol=1e-4, atol=1e-6)


def test_torch_func_inside_jit_and_jax_grad_around_torch_func():
    got = jax.jit(vmap(grad(bowl)))(point(DEVICE, 4, 3))
    same(got, vmap(grad(bowl))(point("cpu", 4, 3)), strides=False)
    got = jax.jit(hessian(bowl))(point(DEVICE, 3))
    same(got, hessian(bowl)(point("cpu", 3)), strides=False, rtol=1e-5, atol=1e-5)
    got = jax.grad(lambda x: grad(bowl)(x).pow(2).sum().jax())(point(DEVICE, 3))
    x = leaf("cpu", 3)
    [g] = torch.autograd.grad(bowl(x), x, create_graph=True)
    same(got, torch.autograd.grad(g.pow(2).sum(), x)[0], strides=False, rtol=1e-5, atol=1e-5)


def test_jax_vmap():
    x, w = point(DEVICE, 5, 2, 3), point(DEVICE, 3, 4)
    got = jax.vmap(f, in_axes=(0, None))(x, w)
    same(got, vmap(f, in_dims=(0, None))(x.cpu(), w.cpu()), strides=False)
    got = jax.jit(jax.vmap(jax.grad(lambda x: f(x, w).jax())))(x)
    same(got, vmap(grad(lambda x: f(x, w.cpu())))(x.cpu()), strides=False)
    got = jax.vmap(lambda x: x.sum(0), in_axes=1, out_axes=1)(x)
    same(got, x.cpu().transpose(0, 1).sum(1).t().contiguous(), strides=False)


def test_jax_jvp_vjp_and_jacobians():
    x, v = point(DEVICE, 3), point(DEVICE, 3) * 2
    same(jax.jvp(curve, (x,), (v,)), jvp(curve, (x.cpu(),), (v.cpu(),)), strides=False)
    out, pull = jax.vjp(curve, x)
    same((out, pull(out)), (curve(x.cpu()), vjp(curve, x.cpu())[1](curve(x.cpu()))), strides=False)
    same(out, curve(x.cpu()))
    got = jax.jacfwd(lambda a: curve(Tensor(a)).jax())(x.jax())
    np.testing.assert_allclose(got, jacfwd(curve)(x.cpu()).numpy(), rtol=1e-5)


def test_control_flow_of_jax_around_torch():
    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        carry = torch.tanh(carry + x)
        return carry, carry.sum()

    last, sums = jax.lax.scan(body, torch.zeros(3, device=DEVICE), ramp(DEVICE, 4, 3))
    carry, want = torch.zeros(3), []
    for row in ramp("cpu", 4, 3):
        carry, total = body(carry, row)
        want.append(total)
    same((last, sums), (carry, torch.stack(want)), strides=False)
    got = jax.lax.cond(True, lambda x: x + 1, lambda x: x * 2, ramp(DEVICE, 3))
    same(got, ramp("cpu", 3) + 1)
    got = jax.lax.fori_loop(0, 3, lambda i, x: x * 2, ramp(DEVICE, 3))
    same(got, ramp("cpu", 3) * 8)
    same(jax.checkpoint(lambda x: x.sin().exp())(ramp(DEVICE, 3)), ramp("cpu", 3).sin().exp())


def test_eval_shape_and_make_jaxpr():
    shaped = jax.eval_shape(f, *arguments(DEVICE))
    assert tuple(shaped.shape) == ()
    assert shaped.dtype in (torch.float32, jnp.float32)
    jaxpr = jax.make_jaxpr(f)(*arguments(DEVICE))
    assert "dot_general" in str(jaxpr)
    assert not jaxpr.consts


def test_the_same_answer_eager_and_jitted_with_a_constant_from_outside():
    outside, table = point(DEVICE, 3), torch.arange(3.0)
    fn = lambda x: x * outside + table.to(DEVICE) + torch.tensor([1.0, 2.0, 3.0], device=DEVICE) + torch.tensor(2.0)  # noqa: E731
    same(jax.jit(fn)(ramp(DEVICE, 3)), on_cpu(fn(ramp(DEVICE, 3))))
    assert (outside + 1).cpu().isfinite().all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bfloat16, torch.complex64, torch.bool], ids=str)
def test_dtypes_cross_a_trace(dtype: torch.dtype):
    x = ramp(DEVICE, 3, dtype=dtype)
    got = jax.jit(lambda x: (x.clone(), x == x, x.view(3, 1)))(x)
    values = [g.cpu() for g in got]
    assert [v.tolist() for v in values] == [x.cpu().tolist(), [True] * 3, x.cpu().view(3, 1).tolist()]
    assert values[1].dtype == torch.bool
    if dtype != torch.int64:
        assert values[0].dtype == dtype
    with jax.enable_x64(True):
        assert jax.jit(lambda x: x.clone() + 1)(ramp(DEVICE, 3, dtype=torch.int64)).dtype == torch.int64


# --- a tensor is a pytree node with one leaf (PITFALLS 19) ----------------------------------------


def test_a_tensor_is_one_leaf_and_nothing_else_counts():
    plain, wants = ramp(DEVICE, 3), leaf(DEVICE, 3)
    parameter = nn.Parameter(ramp(DEVICE, 2, 2))
    structures = {
        jax.tree.structure(t) for t in (plain, wants, parameter, ramp(DEVICE, 3, dtype=torch.int64), plain[1:])
    }
    assert len(structures) == 1
    [only] = jax.tree.leaves(parameter)
    assert isinstance(only, jax.Array)
    assert jax.tree.structure(parameter).num_leaves == 1
    assert hash(jax.tree.structure(parameter)) == hash(jax.tree.structure(plain))


def test_tree_map_over_parameters_and_gradients():
    params = {"w": nn.Parameter(ramp(DEVICE, 3)), "b": nn.Parameter(ramp(DEVICE, 2))}
    grads = {"w": ramp(DEVICE, 3), "b": jnp.ones(2)} | {"b": Tensor(jnp.ones(2))}
    out = jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
    assert out["w"].tolist() == [0.5, 1.0, 1.5]
    assert out["b"].tolist() == [0.5, 1.5]
    assert all(type(t) is Tensor for t in out.values())


def test_a_view_is_a_leaf_with_its_own_value():
    x = ramp(DEVICE, 2, 3)
    [array] = jax.tree.leaves(x.t()[1:])
    assert array.tolist() == [[2, 5], [3, 6]]
    back = jax.tree.map(lambda a: a, x.t())
    back.zero_()
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    "other",
    [
        None,
        0,
        1.5,
        "name",
        object(),
        jax.ShapeDtypeStruct((3,), jnp.float32),
        jax.sharding.PartitionSpec("x"),
        jax.sharding.SingleDeviceSharding(jax.devices()[0]),
        np.arange(3.0, dtype=np.float32),
        np.float32(2),
        (1, 2),
        [jnp.ones(2), None],
        {"a": 1},
        True,
    ],
    ids=lambda x: type(x).__name__,
)
def test_anything_may_come_back_in_a_leafs_place(other: Any):
    tree = {"w": ramp(DEVICE, 3)}
    structure = jax.tree.structure(tree)
    back = jax.tree.unflatten(structure, [other])
    [leaf_again] = structure.flatten_up_to(back)
    assert leaf_again is other or np.all(np.asarray(leaf_again) == np.asarray(other))
    if other is not None and not isinstance(other, (tuple, list, dict)):
        [inner] = jax.tree.leaves(back, is_leaf=lambda x: x is other)
        assert inner is other or np.all(np.asarray(inner) == np.asarray(other))


def test_specs_and_shapes_take_tensors_places():
    params = {"w": nn.Parameter(ramp(DEVICE, 3)), "b": ramp(DEVICE, 2)}
    shapes = jax.eval_shape(lambda p: p, params)
    assert jax.tree.leaves(shapes)[0].shape in ((2,), (3,))
    specs = jax.tree.map(lambda _: jax.sharding.PartitionSpec(), params)
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    shardings = jax.tree.map(lambda s: jax.sharding.NamedSharding(mesh, s), specs)
    placed = jax.device_put(params, shardings)
    assert placed["w"].tolist() == [1, 2, 3]
    axes = jax.tree.map(lambda _: 0, params)
    out = jax.vmap(lambda p: p["w"][None] * 2, in_axes=({"w": 0, "b": None},))(params)
    assert out.shape == (3, 1)
    assert jax.tree.leaves(axes) == [0, 0]


def test_jax_utilities_take_tensors():
    x = ramp(DEVICE, 3)
    assert jax.block_until_ready({"x": x})["x"].tolist() == [1, 2, 3]
    flat, unravel = jax.flatten_util.ravel_pytree({"a": x, "b": ramp(DEVICE, 2, 2)})
    assert flat.shape == (7,)
    assert unravel(flat)["b"].tolist() == [[1, 2], [3, 4]]
    moved = jax.device_put(x, jax.devices()[0])
    assert isinstance(moved, Tensor)
    assert moved.tolist() == x.tolist()
    assert jax.tree.reduce(lambda a, b: a + b.sum(), [x, x], 0) == 12
    assert jnp.sin(x).shape == (3,)
    np.testing.assert_allclose(jnp.asarray(x), [1, 2, 3])


def test_donation_and_static_arguments():
    fn = jax.jit(lambda x, n: x * n, static_argnums=1, donate_argnums=0)
    x = ramp(DEVICE, 3)
    assert fn(x, 3).tolist() == [3, 6, 9]


def test_a_written_argument_of_a_plain_jit_is_not_written_outside():
    x = ramp(DEVICE, 3)
    out = jax.jit(lambda x: x.mul_(2) + 1)(x)
    assert out.tolist() == [3, 5, 7]
    assert x.tolist() == [1, 2, 3]


def test_requires_grad_does_not_reach_into_a_trace():
    """The trace's own arguments are leaves of their own: the outer graph neither breaks nor grows."""
    w = leaf(DEVICE, 3)
    inside = []

    def fn(w: torch.Tensor) -> torch.Tensor:
        inside.append(w.requires_grad)
        return (w * 2).sum()

    out = jax.jit(fn)(w)
    assert inside == [False]
    assert not out.requires_grad
    (w * out).sum().backward()
    assert w.grad.shape == (3,)

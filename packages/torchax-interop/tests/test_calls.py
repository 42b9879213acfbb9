"""Views and calls across the two worlds, with gradients."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torchax
from torchax import interop


def _on_device(*shape, grad=True, dtype=torch.float32, seed=0):
    x = torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return x.clone().requires_grad_(grad), x.to("jax").requires_grad_(grad)


class Pair(NamedTuple):
    left: object
    right: object


def test_views_share_data_and_keep_structure():
    x = torch.arange(3.0).to("jax")
    tree = {"a": [x, 1, None], "b": Pair(x, "text")}
    arrays = interop.jax_view(tree)
    assert arrays["a"][0] is x.jax()
    assert arrays["a"][1:] == [1, None]
    assert isinstance(arrays["b"], Pair)
    assert arrays["b"].right == "text"
    back = interop.torch_view(arrays)
    assert isinstance(back["b"].left, torchax.tensor.Tensor)
    assert back["b"].left.jax() is x.jax()


def test_a_container_only_pytorch_knows_is_taken_apart():
    class Output:
        def __init__(self, logits):
            self.logits = logits

    torch.utils._pytree.register_pytree_node(Output, lambda o: ([o.logits], None), lambda c, _: Output(*c))
    out = interop.jax_view(Output(torch.ones(2).to("jax")))
    assert isinstance(out, Output)
    assert isinstance(out.logits, jax.Array)


def test_a_tensor_elsewhere_is_refused_with_the_remedy():
    with pytest.raises(TypeError, match=r"shape \(2,\) on device cpu .*\.to\('jax'\)"):
        interop.jax_view(torch.ones(2))
    with pytest.raises(TypeError, match="cpu"):
        interop.call_jax(jnp.sin, torch.ones(2))


def test_call_jax_gives_the_gradient_of_vjp():
    x, y = _on_device(3)
    interop.call_jax(lambda a: jnp.sin(a) ** 2, y).sum().backward()
    (torch.sin(x) ** 2).sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad)


def test_call_jax_differentiates_twice():
    x, y = _on_device(3)

    def second(f, v):
        (g,) = torch.autograd.grad(f(v).sum(), v, create_graph=True)
        return torch.autograd.grad(g.sum(), v)[0]

    got = second(lambda v: interop.call_jax(lambda a: jnp.sin(a) * a, v), y)
    torch.testing.assert_close(got.cpu(), second(lambda v: torch.sin(v) * v, x))


def test_call_jax_takes_and_gives_trees_with_integers_and_unused_inputs():
    x, y = _on_device(4)
    unused = torch.ones(2, device="jax", requires_grad=True)
    index = torch.tensor([2, 0], dtype=torch.int32).to("jax")

    def fn(tree, scale, *, where):
        picked = tree["x"][where] * scale
        return {"values": picked, "order": jnp.argsort(tree["x"]), "name": "picked", "none": None}

    out = interop.call_jax(fn, {"x": y, "unused": unused}, 3.0, where=index)
    assert out["name"] == "picked"
    assert out["none"] is None
    assert not out["order"].requires_grad
    assert out["order"].cpu().tolist() == torch.argsort(x).tolist()
    out["values"].sum().backward()
    (x[[2, 0]] * 3).sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad)
    assert unused.grad is None or not unused.grad.cpu().any()


def test_an_unused_output_counts_as_zero():
    x, y = _on_device(3)
    a, _ = interop.call_jax(lambda v: (jnp.exp(v), jnp.cos(v)), y)
    a.sum().backward()
    torch.exp(x).sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad)


def test_complex_gradients_are_pytorchs():
    x, y = _on_device(3, dtype=torch.complex64)
    out = interop.call_jax(lambda a: a**2 * (1 + 2j), y)
    (out.real.sum() + 3 * out.imag.sum()).backward()
    want = x**2 * (1 + 2j)
    (want.real.sum() + 3 * want.imag.sum()).backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad)


def test_no_gradient_is_recorded_where_none_is_wanted():
    _, y = _on_device(3)
    with torch.no_grad():
        assert not interop.call_jax(jnp.sin, y).requires_grad
    assert not interop.call_jax(jnp.sin, y.detach()).requires_grad


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.func.grad(lambda v: f(v).sum()),
        lambda f: torch.func.vmap(f),
        lambda f: torch.func.vmap(torch.func.grad(lambda v: f(v).sum())),
        lambda f: lambda v: torch.func.jvp(f, (v,), (torch.ones_like(v),))[1],
        lambda f: torch.func.jacrev(f),
    ],
    ids=["grad", "vmap", "vmap-grad", "jvp", "jacrev"],
)
def test_call_jax_under_torch_func(transform):
    x, y = _on_device(3, 2, grad=False)
    got = transform(lambda v: interop.call_jax(lambda a: jnp.tanh(a) * a, v))(y)
    torch.testing.assert_close(got.cpu(), transform(lambda v: torch.tanh(v) * v)(x))


def test_call_jax_inside_jit():
    x, y = _on_device(3, grad=False)
    f = jax.jit(lambda v: interop.call_jax(jnp.sin, v) * 2)
    torch.testing.assert_close(f(y).cpu(), torch.sin(x) * 2)


def test_sixty_four_bits_follow_the_users_flag():
    small = torch.tensor([1, 2]).to("jax")
    assert interop.call_jax(lambda a: a + 1, small).dtype == torch.int32
    with jax.enable_x64(True):
        assert interop.call_jax(lambda a: a + 1, small).dtype == torch.int64
    with pytest.raises(OverflowError, match=r"int64.*enable_x64"):
        interop.call_jax(lambda a: a + 1, torch.tensor([2**40]).to("jax"))


def test_a_float64_gradient_keeps_its_dtype():
    y = torch.tensor([0.5, 1.5], dtype=torch.float64).to("jax").requires_grad_()
    interop.call_jax(jnp.sin, y).sum().backward()
    assert y.grad.dtype == torch.float64


def test_call_torch_takes_and_gives_arrays():
    values, order = interop.call_torch(torch.sort, jnp.array([3.0, 1.0, 2.0]))
    np.testing.assert_array_equal(np.asarray(values), [1, 2, 3])
    np.testing.assert_array_equal(np.asarray(order), [1, 2, 0])
    assert isinstance(order, jax.Array)


@pytest.mark.parametrize("transform", [jax.jit, lambda f: jax.grad(lambda a: f(a).sum()), jax.vmap])
def test_call_torch_under_jax_transforms(transform):
    x = jnp.linspace(-1, 1, 4)
    got = transform(lambda a: interop.call_torch(torch.tanh, a))(x)
    np.testing.assert_allclose(np.asarray(got), np.asarray(transform(jnp.tanh)(x)), rtol=1e-5)


def test_functions_cross_too():
    step = interop.jax_view(lambda a, b: torch.softmax(a @ b, -1))
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    compiled = jax.jit(step).lower(a.to("jax").jax(), b.to("jax").jax()).compile()
    out = interop.torch_view(compiled)(a.to("jax"), b.to("jax"))
    torch.testing.assert_close(out.cpu(), torch.softmax(a @ b, -1))


def test_a_wide_tensor_that_is_closed_over_within_a_trace():
    n = torch.tensor(3, device="jax")
    assert jax.jit(lambda x: interop.call_jax(lambda a, b: a * b, x, n))(torch.ones(2, device="jax")).tolist() == [3, 3]

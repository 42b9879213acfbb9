"""JAX functions as PyTorch operators: values, gradients, shape rules, vmap, and one node in every graph."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import torchax
from torchax import export, interop
from torchax.ops.jlibrary import register_jax_composite, register_torch_composite


@interop.jax_op("jax_op_test::rms_norm")
def rms_norm(x: jax.Array, weight: jax.Array | None = None, *, eps: float = 1e-6) -> jax.Array:
    """Divide by the root of the mean square."""
    y = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps)
    return y if weight is None else y * weight


def rms_norm_in_torch(x, weight=None, *, eps=1e-6):
    y = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    return y if weight is None else y * weight


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _clip_gradient(x, most):
    return x * 2


_clip_gradient.defvjp(lambda x, most: (x * 2, None), lambda most, _, g: (jnp.clip(2 * g, -most, most),))


@interop.jax_op("jax_op_test::clip_gradient")
def clip_gradient(x: jax.Array, most: float) -> jax.Array:
    return _clip_gradient(x, most)


def _scaled_kernel(x, out, *, scale):
    out[...] = x[...] * scale


def _scaled(x, scale):
    from jax.experimental import pallas as pl

    kernel = functools.partial(_scaled_kernel, scale=scale)
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


@interop.jax_op("jax_op_test::pallas_scale")
def pallas_scale(x: jax.Array, scale: float = 2.0) -> jax.Array:
    return _scaled(x, scale)


@interop.jax_op("jax_op_test::lapack_cholesky")
def lapack_cholesky(a):
    call = jax.ffi.ffi_call(
        "lapack_spotrf_ffi",
        (jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct((), np.int32)),
        input_layouts=[(1, 0)], output_layouts=[(1, 0), ()], input_output_aliases={0: 0},
    )  # fmt: skip
    return jnp.tril(call(a, uplo=np.uint8(ord("L")))[0])


@interop.jax_op("jax_op_test::summary")
def summary(xs: list[jax.Array], times: int = 1) -> tuple[jax.Array, jax.Array]:
    return sum(xs) * times, jnp.argsort(xs[0])


@interop.jax_op("jax_op_test::halves", schema="(Tensor x) -> Tensor[]")
def halves(x):
    return [x[: x.shape[0] // 2], x[x.shape[0] // 2 :]]


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to("jax").requires_grad_()


def on_cpu(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu().requires_grad_(x.requires_grad)


def test_schema_follows_the_annotations():
    schemas = {str(getattr(torch.ops.jax_op_test, n).default._schema) for n in ("summary", "halves", "lapack_cholesky")}
    assert schemas == {
        "jax_op_test::summary(Tensor[] xs, SymInt times=1) -> (Tensor, Tensor)",
        "jax_op_test::halves(Tensor x) -> Tensor[]",
        "jax_op_test::lapack_cholesky(Tensor a) -> Tensor",
    }
    assert rms_norm.__doc__ == "Divide by the root of the mean square."
    assert rms_norm.__name__ == "rms_norm"


@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients(weighted):
    x, w = leaf(3, 4), leaf(4, seed=1) if weighted else None
    a, b = on_cpu(x), on_cpu(w) if weighted else None
    got, want = rms_norm(x, w, eps=1e-3), rms_norm_in_torch(a, b, eps=1e-3)
    torch.testing.assert_close(got.detach().cpu(), want.detach())
    got.square().sum().backward()
    want.square().sum().backward()
    for t, c in ((x, a), (w, b))[: 1 + weighted]:
        torch.testing.assert_close(t.grad.cpu(), c.grad)


def test_second_derivative():
    x = leaf(3)
    a = on_cpu(x)

    def second(f, x):
        [g] = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
        [h] = torch.autograd.grad(g.square().sum(), x)
        return h

    torch.testing.assert_close(second(rms_norm, x).cpu(), second(rms_norm_in_torch, a))


def test_a_custom_vjp_keeps_its_own_gradient():
    x = leaf(3)
    clip_gradient(x, 0.5).sum().backward()
    assert x.grad.tolist() == [0.5] * 3


def test_a_pallas_kernel_and_an_ffi_call():
    x = leaf(4)
    torch.testing.assert_close(pallas_scale(x, 3.0).detach().cpu(), x.detach().cpu() * 3)
    jnp.linalg.cholesky(jnp.eye(2))  # JAX loads LAPACK when it first needs it
    a = torch.eye(3) * 4 + torch.ones(3, 3)
    torch.testing.assert_close(lapack_cholesky(a.to("jax")).cpu(), torch.linalg.cholesky(a))


def test_several_tensors_in_and_out():
    x, y = leaf(3), leaf(3, seed=1)
    summary([x, y])[0].sum().backward()
    total, order = summary([x, y], 2)
    total.sum().backward()
    assert x.grad.tolist() == y.grad.tolist() == [3.0] * 3
    torch.testing.assert_close(order.cpu(), x.detach().cpu().argsort(), check_dtype=False)
    first, second = halves(x)
    (first.sum() + 2 * second.sum()).backward()
    assert x.grad.tolist() == [4.0, 5.0, 5.0]


@pytest.mark.parametrize("transform", [
    lambda f: torch.func.vmap(f, in_dims=(0, None)),
    lambda f: torch.func.grad(lambda x, w: f(x, w).sum(), argnums=(0, 1)),
    lambda f: torch.func.vmap(torch.func.grad(lambda x, w: f(x, w).sum()), in_dims=(0, None)),
    lambda f: torch.func.jacfwd(f),
    lambda f: lambda x, w: torch.func.jvp(lambda x: f(x, w), (x,), (x,))[1],
])  # fmt: skip
def test_torch_func(transform):
    x, w = leaf(3, 4).detach(), leaf(4, seed=1).detach()
    got, want = transform(rms_norm)(x, w), transform(rms_norm_in_torch)(x.cpu(), w.cpu())
    torch.testing.assert_close(torch.utils._pytree.tree_map(on_cpu, got), want)


def test_vmap_of_the_operator_itself():
    x, w = leaf(3, 4), leaf(4, seed=1)
    op = torch.ops.jax_op_test.rms_norm
    got = torch.func.vmap(op, in_dims=(1, None), out_dims=1)(x.detach(), w.detach()[:3])
    want = torch.func.vmap(rms_norm_in_torch, in_dims=(1, None), out_dims=1)(on_cpu(x.detach()), on_cpu(w.detach())[:3])
    torch.testing.assert_close(got.cpu(), want)


# --- in graphs ----------------------------------------------------------------------------------------------------------


def test_shape_rule():
    with FakeTensorMode():
        out = rms_norm(torch.empty(3, 4, device="jax", dtype=torch.bfloat16))
        total, order = summary([torch.empty(5)])
    assert (tuple(out.shape), out.dtype, out.device.type) == ((3, 4), torch.bfloat16, "jax")
    assert (total.dtype, order.dtype, total.device.type) == (torch.float32, torch.int32, "cpu")


def test_opcheck():
    checks = ("test_schema", "test_faketensor")  # the others are for CPU and CUDA, they say
    torch.library.opcheck(torch.ops.jax_op_test.rms_norm.default, (leaf(3, 4), leaf(4)), test_utils=checks)
    torch.library.opcheck(torch.ops.jax_op_test.summary.default, ([leaf(3), leaf(3)], 2), test_utils=checks)


def test_one_node_in_make_fx_forward_and_backward():
    def step(x):
        return torch.autograd.grad(rms_norm(x).sum(), x)

    graph = make_fx(step, tracing_mode="fake")(leaf(3, 4))
    names = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    assert names[0] == "jax_op_test.rms_norm.default"
    assert "jax_op_test.rms_norm_backward.default" in names
    assert not any("rsqrt" in n for n in names)


def test_exported_with_a_symbolic_size():
    class Norm(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = halves(torch.cat([x, x]))
            return torch.ops.jax_op_test.rms_norm(first * 2) + second[0]

    batch = torch.export.Dim("batch", min=2, max=16)
    ep = torch.export.export(Norm(), (torch.randn(4, 3),), dynamic_shapes=({0: batch},))
    assert "jax_op_test.rms_norm" in str(ep.graph)
    weights, artifact = export.exported_program_to_stablehlo(ep)
    x = torch.randn(6, 3)
    [out] = artifact.call(weights, (x.numpy(),))
    torch.testing.assert_close(torch.from_numpy(np.array(out)), rms_norm_in_torch(x * 2) + x[0])


def test_under_a_jax_trace():
    f = jax.jit(jax.grad(lambda x: rms_norm(x).square().sum().jax()))
    x = leaf(5).detach()
    want = torch.func.grad(lambda x: rms_norm_in_torch(x).square().sum())(x.cpu())
    torch.testing.assert_close(f(x).cpu(), want)


def test_the_users_x64_setting():
    seen = []

    @interop.jax_op("jax_op_test::looks")
    def looks(x: jax.Array) -> jax.Array:
        seen.append((x.dtype.name, jnp.ones(1).dtype.name))
        return x + 1

    n = torch.arange(3, device="jax")
    assert looks(n).dtype == torch.int32
    with jax.enable_x64(True):
        assert looks(n).dtype == torch.int64
    assert seen == [("int32", "float32"), ("int64", "float64")]
    with pytest.raises(OverflowError, match="x64"):
        looks(n + 2**40)


def test_numbers_are_python_values():
    @interop.jax_op("jax_op_test::branch")
    def branch(x: jax.Array, sizes: tuple[int, ...], negate: bool = False) -> jax.Array:
        return (-x if negate else x).reshape(sizes)

    x = torch.arange(4.0, device="jax")
    assert branch(x, (2, 2), True).tolist() == [[0, -1], [-2, -3]]


def test_what_cannot_be_an_operator():
    with pytest.raises(ValueError, match="no namespace; write 'mylib::thing'"):
        interop.jax_op("thing")
    with pytest.raises(ValueError, match=r"cannot take \*xs"):
        interop.jax_op("jax_op_test::many")(lambda *xs: xs[0])
    with pytest.raises(NotImplementedError, match="jax_op_test::rms_norm"):
        rms_norm(torch.ones(3))


# --- composites ---------------------------------------------------------------------------------------------------------


def _library_op(name):
    @torch.library.custom_op(f"composite_test::{name}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    op.register_fake(torch.empty_like)
    op.register_autograd(
        lambda ctx, g: g * 2 * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return op


@pytest.mark.parametrize(("register", "impl"), [
    (register_jax_composite, lambda x: jnp.sin(x) * 2),
    (register_torch_composite, lambda x: torch.sin(x) * 2),
])  # fmt: skip
def test_an_operator_as_one_named_composite(register, impl):
    op = _library_op(register.__name__)
    packet = getattr(torch.ops.composite_test, register.__name__)
    register(f"mylib.{register.__name__}", impl, packet)
    x = leaf(3)
    op(x).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu().cos())
    lowered = jax.jit(op).lower(x.detach()).as_text()
    assert f'stablehlo.composite "mylib.{register.__name__}"' in lowered


def test_an_aten_operator_as_a_composite_with_an_attribute():
    register_jax_composite(
        "mylib.gelu", lambda x, *, approximate: jax.nn.gelu(x, approximate == "tanh"), torch.ops.aten.gelu
    )
    try:
        x = leaf(4).detach()
        lowered = jax.jit(lambda x: torch.nn.functional.gelu(x, approximate="tanh")).lower(x).as_text()
        assert 'stablehlo.composite "mylib.gelu"' in lowered
        assert 'approximate = "tanh"' in lowered
        got = torch.nn.functional.gelu(x, approximate="tanh").cpu()
        torch.testing.assert_close(got, torch.nn.functional.gelu(x.cpu(), approximate="tanh"))
    finally:
        torchax.dispatch.overrides.pop(torch.ops.aten.gelu.default)
        torchax.dispatch.forget_plans()

"""An operator of the user's own, from one JAX function: eager, autograd to any order, in place, out=, jit and vmap."""

import jax
import jax.numpy as jnp
import pytest
import torch

import torchax

close = torch.testing.assert_close


@torch.library.custom_op("derived_test::swish", mutates_args=())
def swish(x: torch.Tensor, weight: torch.Tensor, slope: float = 1.0) -> torch.Tensor:
    return x * torch.sigmoid(slope * x) * weight


@torchax.ops.jaten.op(swish)
def swish_in_jax(x, weight, slope=1.0):
    return x * jax.nn.sigmoid(slope * x) * weight


def plain(x, weight, slope=1.0):
    return x * torch.sigmoid(slope * x) * weight


library = torch.library.Library("derived_test", "FRAGMENT")
library.define("scale(Tensor x, Tensor y, *, int times=1) -> (Tensor, Tensor)")
library.define("cube(Tensor x) -> Tensor")
library.define("cube_(Tensor(a!) x) -> Tensor(a!)")
library.define("cube.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
library.define("join(Tensor[] xs, Tensor mask) -> Tensor")


@torchax.ops.jaten.op(torch.ops.derived_test.scale.default)
def scale(x, y, *, times=1):
    return jnp.concatenate([x * y] * times), jnp.argsort(x)


@torchax.ops.jaten.op(torch.ops.derived_test.cube)
def cube(x):
    return x**3


@torchax.ops.jaten.op(torch.ops.derived_test.join.default)
def join(xs, mask):
    return jnp.where(mask, sum(x**2 for x in xs), 0.0)


def inputs(requires_grad=True, dtype=torch.float32):
    torch.manual_seed(0)
    values = torch.randn(3, 4, dtype=dtype), torch.randn(4, dtype=dtype)
    return [[v.detach().clone().to(device).requires_grad_(requires_grad) for v in values] for device in ("cpu", "jax")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_and_gradients(dtype):
    host, device = inputs(dtype=dtype)
    want, got = plain(*host, 2.0), swish(*device, 2.0)
    close(got.cpu(), want)
    seed = torch.randn(3, 4, dtype=dtype)
    want.backward(seed)
    got.backward(seed.to("jax"))
    loose = {"rtol": 0.05, "atol": 0.02} if dtype == torch.bfloat16 else {}  # CPU rounds after each of its steps
    for h, d in zip(host, device, strict=True):
        assert d.grad.dtype == dtype
        close(d.grad.cpu(), h.grad, **loose)


def test_second_order():
    host, device = inputs()
    found = []
    for f, args in ((plain, host), (swish, device)):
        (g,) = torch.autograd.grad(f(*args).sum(), args[:1], create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), args))
    for h, d in zip(*found, strict=True):
        close(d.cpu(), h)


def test_a_new_number_compiles_nothing():
    _, device = inputs()
    compiled = []
    for slope in (1.5, 2.5, 3.5):
        with jax.log_compiles(False):
            swish(*device, slope).sum().backward()
        compiled.append(torchax.derived._run._cache_size())
    assert compiled[0] == compiled[-1]


def test_torch_func():
    host, device = inputs(requires_grad=False)
    for transform in (
        lambda f: torch.func.grad(lambda *a: f(*a).sum()),
        lambda f: torch.func.vmap(f, (0, None)),
        lambda f: torch.func.vmap(torch.func.grad(lambda *a: f(*a).sum()), (0, None)),
        lambda f: torch.func.grad(lambda *a: torch.func.vmap(f, (0, None))(*a).square().sum()),
        lambda f: torch.func.jacrev(f),
        lambda f: torch.func.jacfwd(f),
        lambda f: torch.func.hessian(lambda *a: f(*a).sum(), argnums=1),
    ):
        close(transform(swish)(*device).cpu(), transform(plain)(*host))


def test_jit_and_jax_transforms():
    host, device = inputs(requires_grad=False)
    close(jax.jit(swish)(*device).cpu(), plain(*host))
    grad = jax.jit(jax.grad(lambda x, w: swish(x, w).sum().jax()))(*device)
    host[0].requires_grad_()
    plain(*host).sum().backward()
    close(grad.cpu(), host[0].grad)


def test_several_results_one_of_integers():
    host, device = inputs()
    x = device[0][0].detach().requires_grad_()
    out, order = torch.ops.derived_test.scale(x, device[1], times=3)
    assert out.shape == (12,)
    assert not order.requires_grad
    out.sum().backward()
    close(x.grad.cpu(), 3 * host[1].detach())
    close(device[1].grad.cpu(), 3 * host[0][0].detach())


def test_in_place_and_out():
    x = torch.tensor([1.0, -2.0, 3.0], device="jax")
    out = torch.empty(0, device="jax")
    assert torch.ops.derived_test.cube(x, out=out) is out
    close(out.cpu(), x.cpu() ** 3)
    base = torch.stack([x, x])
    torch.ops.derived_test.cube_(base[1])
    close(base.cpu(), torch.stack([x.cpu(), x.cpu() ** 3]))
    leaf = x.clone().requires_grad_()
    torch.ops.derived_test.cube(leaf).sum().backward()
    close(leaf.grad.cpu(), 3 * x.cpu() ** 2)


def test_lists_of_tensors():
    xs = [torch.tensor([1.0, 2.0], device="jax", requires_grad=True) for _ in range(3)]
    torch.ops.derived_test.join(xs, torch.tensor([True, False], device="jax")).sum().backward()
    for x in xs:
        close(x.grad.cpu(), torch.tensor([2.0, 0.0]))


def test_other_devices_are_left_as_they_were():
    host, _ = inputs()
    out = swish(*host)
    close(out, plain(*host))
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        out.sum().backward()
    close(torch.func.vmap(swish, (0, None))(*inputs(False)[0]), plain(*inputs(False)[0]))


def test_a_formula_of_the_authors_own_wins():
    @torch.library.custom_op("derived_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    torchax.ops.jaten.op(twice)(lambda x: 2 * x)
    twice.register_autograd(lambda ctx, g: 100 * g)
    x = torch.ones(2, device="jax", requires_grad=True)
    twice(x).sum().backward()
    assert x.grad.tolist() == [100.0, 100.0]

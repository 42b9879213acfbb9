"""A foreach operator maps its single operator over its lists."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import torchax_ops.comparison
import torchax_ops.pointwise
import torchax_ops.reduction  # noqa: F401  the single operators
from torchax_ops import foreach, lookup

INF = float("inf")


def same(got, want):
    assert isinstance(got, list)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        w = np.asarray(w)
        assert g.shape == w.shape
        assert g.dtype == w.dtype
        np.testing.assert_allclose(np.asarray(g), w, rtol=1.3e-6, atol=1e-5)


@pytest.fixture
def xs():
    return [jnp.arange(6, dtype="float32").reshape(2, 3) + 1, jnp.asarray(0.25, "float32"), jnp.zeros((0,), "float32")]


@pytest.mark.parametrize("name", ["abs", "ceil", "exp", "floor", "log", "neg", "sign", "sin", "sqrt", "tanh", "trunc"])
def test_unary_maps_over_the_list(name, xs):
    fn = lookup(f"aten::_foreach_{name}").fn
    twin = {"abs": "abs", "neg": "negative"}.get(name, name)
    want = [getattr(np, twin)(np.asarray(x)) for x in xs]
    same(fn(xs), want)
    same(jax.jit(fn)(xs), want)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_scalar_scalarlist_list_and_tensor(name, xs):
    op = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name]
    arrays = [np.asarray(x) for x in xs]
    by = {o: lookup(f"aten::_foreach_{name}.{o}") for o in ("Scalar", "ScalarList", "List", "Tensor")}
    same(by["Scalar"].fn(xs, 2), [op(x, np.float32(2)) for x in arrays])
    same(by["ScalarList"].fn(xs, [2, 0.5, 3]), [op(x, np.float32(s)) for x, s in zip(arrays, (2, 0.5, 3))])
    same(by["List"].fn(xs, [xs[1]] * 3), [op(x, np.float32(0.25)) for x in arrays])
    if by["Tensor"] is not None:
        same(by["Tensor"].fn(xs, jnp.asarray(4, "int32")), [op(x, np.float32(4)) for x in arrays])


def test_alpha(xs):
    same(foreach._foreach_add_list(xs, xs, alpha=2), [3 * np.asarray(x) for x in xs])
    same(foreach._foreach_sub_list(xs, xs, alpha=2), [-np.asarray(x) for x in xs])
    same(foreach._foreach_add_tensor(xs[1:2], xs[1], alpha=2), [np.float32(0.75)])


def test_each_array_promotes_for_itself():
    got = foreach._foreach_mul_scalar([jnp.asarray([1, 2], "int32"), jnp.asarray([1], "bfloat16")], 1.5)
    assert [g.dtype.name for g in got] == ["float32", "bfloat16"]


@pytest.mark.parametrize("form", ["Scalar", "ScalarList", "List"])
def test_maximum_and_clamp_are_one_operator(form):
    x = [jnp.asarray([1.0, 5.0], "float32")]
    bound = {"Scalar": 3, "ScalarList": [3.0], "List": [jnp.asarray([3.0, 3.0], "float32")]}[form]
    for low in ("clamp_min", "maximum"):
        same(lookup(f"aten::_foreach_{low}.{form}").fn(x, bound), [np.float32([3, 5])])
    for high in ("clamp_max", "minimum"):
        same(lookup(f"aten::_foreach_{high}.{form}").fn(x, bound), [np.float32([1, 3])])


def test_pow():
    x = [jnp.asarray([1.0, 3.0], "float32")]
    same(foreach._foreach_pow_scalar(x, 2), [np.float32([1, 9])])
    same(foreach._foreach_pow_scalarlist(x, [2.0]), [np.float32([1, 9])])
    same(foreach._foreach_pow_list(x, x), [np.float32([1, 27])])
    same(foreach._foreach_pow_scalarandtensor(2, x), [np.float32([2, 8])])


def test_three_lists():
    a, b, c = ([jnp.asarray([v, v], "float32")] for v in (1.0, 6.0, 2.0))
    same(foreach._foreach_addcmul_scalar(a, b, c, 0.5), [np.float32([7, 7])])
    same(foreach._foreach_addcmul_scalarlist(a, b, c, [0.5]), [np.float32([7, 7])])
    same(foreach._foreach_addcmul_tensor(a, b, c, jnp.asarray([0.5], "float32")), [np.float32([7, 7])])
    same(foreach._foreach_addcdiv_scalar(a, b, c), [np.float32([4, 4])])
    same(foreach._foreach_addcdiv_scalarlist(a, b, c, [2]), [np.float32([7, 7])])
    same(foreach._foreach_addcdiv_tensor(a, b, c, jnp.asarray([2.0], "float32")), [np.float32([7, 7])])
    same(foreach._foreach_lerp_scalar(a, b, 0.2), [np.float32([2, 2])])
    same(foreach._foreach_lerp_scalarlist(a, b, [0.2]), [np.float32([2, 2])])
    same(foreach._foreach_lerp_list(a, b, [jnp.asarray(0.2, "float32")]), [np.float32([2, 2])])


def test_reductions():
    x = [jnp.asarray([[3.0, -4.0]], "float32"), jnp.asarray(2.0, "float32")]
    same(foreach._foreach_max(x), [np.float32(3), np.float32(2)])
    same(foreach._foreach_norm_scalar(x), [np.float32(5), np.float32(2)])
    same(foreach._foreach_norm_scalar(x, INF), [np.float32(4), np.float32(2)])
    same(foreach._foreach_powsum_scalar(x), [np.float32(25), np.float32(4)])
    same(foreach._foreach_powsum_scalar(x, 3), [np.float32(91), np.float32(8)])


def test_copies():
    x = [jnp.ones((2, 2), "float32"), jnp.ones((2,), "int32")]
    same(foreach._foreach_zero(x), [np.zeros((2, 2), "float32"), np.zeros((2,), "int32")])
    same(foreach._foreach_clone(x), x)
    src = [jnp.asarray([1, 2], "int32"), jnp.asarray(2.5, "float32")]
    same(foreach._foreach_copy(x, src), [np.float32([[1, 2], [1, 2]]), np.int32([2, 2])])


def test_numbers_may_be_traced(xs):
    step = jax.jit(lambda x, s: foreach._foreach_addcdiv_scalarlist(x, x, x, s))
    same(step(xs[:1], [2.0]), [np.asarray(xs[0]) + 2])
    step(xs[:1], [3.0])
    assert step._cache_size() == 1


def test_grad_and_vmap():
    def total(x):
        return sum(y.sum() for y in foreach._foreach_mul_scalar(x, 3.0))

    same(jax.grad(total)([jnp.ones(2), jnp.ones(())]), [np.float32([3, 3]), np.float32(3)])
    same(jax.vmap(foreach._foreach_neg)([jnp.ones((2, 3))]), [-np.ones((2, 3), "float32")])


def test_64_bits_stay_where_x64_is_on():
    with jax.enable_x64(True):
        wide = foreach._foreach_add_scalar([jnp.ones(2, "float64"), jnp.ones(2, "float32")], 1)
    assert [x.dtype.name for x in wide] == ["float64", "float32"]


ONE = [jnp.ones(2, "float32")]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: foreach._foreach_sqrt([]), "at least one tensor"),
        (lambda: foreach._foreach_zero([]), "at least one tensor"),
        (lambda: foreach._foreach_pow_scalarandtensor(2, []), "at least one tensor"),
        (lambda: foreach._foreach_add_list(ONE, ONE * 2), "same number of tensors, got 1 and 2"),
        (lambda: foreach._foreach_copy(ONE, ONE * 2), "same number of tensors, got 1 and 2"),
        (lambda: foreach._foreach_addcmul_scalar(ONE, ONE, ONE * 2), "same number of tensors, got 1 and 2"),
        (lambda: foreach._foreach_mul_scalarlist(ONE, [1, 2]), "elements as scalar list"),
        (lambda: foreach._foreach_mul_tensor(ONE, jnp.ones(1)), "expected to be 0 dim but it has 1 dimensions"),
        (lambda: foreach._foreach_addcmul_tensor(ONE, ONE, ONE, jnp.ones(2)), "length 1 but got 2"),
        (lambda: foreach._foreach_addcmul_tensor(ONE, ONE, ONE, jnp.ones((1, 1))), "dimension 1. Got 2"),
        (lambda: foreach._foreach_max([jnp.zeros(0)]), "maximum of an empty tensor"),
        (lambda: foreach._foreach_norm_scalar([jnp.zeros(0)], INF), "infinity norm on an empty tensor"),
        (lambda: foreach._foreach_copy(ONE, [jnp.ones(3)]), "must match the size"),
        (lambda: foreach._foreach_copy(ONE, [jnp.ones((3, 2))]), "does not broadcast"),
        (lambda: foreach._foreach_mm([], []), "non-empty"),
    ],
)
def test_errors(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()

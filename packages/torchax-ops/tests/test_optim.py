"""Fused optimizers against the papers' update rules, written with numpy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops import optim

SHAPES = [(2, 3), (), (0,)]
ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False, "maximize": False}
SGD = {
    "weight_decay": 0.1, "momentum": 0.9, "lr": 0.1, "dampening": 0.2, "nesterov": False, "maximize": False,
    "is_first_step": False,
}  # fmt: skip
ADAGRAD = {"lr": 0.1, "lr_decay": 0.5, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}


def arrays(seed, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(np.abs(rng.normal(size=s)), dtype) for s in SHAPES]


def steps(n=3):
    return [jnp.asarray(float(n), "float32") for _ in SHAPES]


def close(got, want):
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(g), w, rtol=1e-5, atol=1e-6)


def f64(xs):
    return [np.asarray(x, "float64") for x in xs]


def adam(p, g, m, v, n, *, lr, beta1, beta2, weight_decay, eps, maximize, decoupled, largest=None, **_):
    g = -g if maximize else g
    if decoupled:
        p = p * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    top = v if largest is None else np.maximum(v, largest)
    return p - lr * (m / (1 - beta1**n)) / (np.sqrt(top / (1 - beta2**n)) + eps), m, v, top


@pytest.mark.parametrize("fn", [optim._fused_adam, optim._fused_adamw])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_adam(fn, amsgrad, maximize):
    settings = ADAM | {"amsgrad": amsgrad, "maximize": maximize}
    p, g, m, v, top = (arrays(i) for i in range(5))
    got = fn(p, g, m, v, top if amsgrad else [], steps(), **settings)
    want = [
        adam(*each[:4], 3, **settings, decoupled=fn is optim._fused_adamw, largest=each[4] if amsgrad else None)
        for each in zip(*map(f64, (p, g, m, v, top)))
    ]
    for column, i in ((0, 0), (2, 1), (3, 2)):
        close(got[column], [w[i] for w in want])
    close(got[1], g)
    close(got[4], [w[3] for w in want] if amsgrad else [])


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("is_first_step", [False, True])
def test_sgd(nesterov, is_first_step):
    settings = SGD | {"nesterov": nesterov, "is_first_step": is_first_step}
    p, g, b = (arrays(i) for i in range(3))
    got = optim._fused_sgd(p, g, b, **settings)
    for i, (p0, g0, b0) in enumerate(zip(*map(f64, (p, g, b)))):
        d = g0 + 0.1 * p0
        buffer = d if is_first_step else 0.9 * b0 + 0.8 * d
        close([got[0][i], got[2][i]], [p0 - 0.1 * (d + 0.9 * buffer if nesterov else buffer), buffer])


def test_sgd_without_momentum():
    p, g = arrays(0), arrays(1)
    got = optim._fused_sgd(p, g, [], **SGD | {"momentum": 0.0, "weight_decay": 0.0, "maximize": True})
    close(got[0], [a + 0.1 * b for a, b in zip(f64(p), f64(g))])
    assert got[2] == []


def test_adagrad():
    p, g, s = (arrays(i) for i in range(3))
    got = optim._fused_adagrad(p, g, s, steps(), **ADAGRAD)
    for i, (p0, g0, s0) in enumerate(zip(*map(f64, (p, g, s)))):
        d = g0 + 0.1 * p0
        total = s0 + d * d
        close([got[0][i], got[2][i]], [p0 - 0.1 / 2 * d / (np.sqrt(total) + 1e-8), total])
    close(got[3], steps())
    assert len(optim._fused_adagrad_tensor_lr(p, g, s, steps(), **ADAGRAD | {"lr": jnp.asarray(0.1)})) == 3


def test_scaled_gradients_are_divided_and_stored():
    p, g, b = (arrays(i) for i in range(3))
    plain = optim._fused_sgd(p, [x / 4 for x in g], b, **SGD)
    scaled = optim._fused_sgd(p, g, b, **SGD, grad_scale=jnp.asarray([4.0], "float32"))
    for got, want in zip(scaled, plain, strict=True):
        close(got, f64(want))


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_found_inf_leaves_everything(found):
    p, g, m, v = (arrays(i) for i in range(4))
    found_inf, scale = jnp.asarray([found], "float32"), jnp.asarray(2.0, "float32")
    got = optim._fused_adamw(p, g, m, v, [], steps(), **ADAM, grad_scale=scale, found_inf=found_inf)
    for new, old in zip(got, (p, g, m, v, [])):
        for a, b in zip(new, old, strict=True):
            assert np.array_equal(a, b) == (found == 1 or a.size == 0)


def test_a_new_learning_rate_compiles_nothing():
    step = jax.jit(lambda p, g, lr: optim._fused_sgd(p, g, p, **SGD | {"lr": lr}))
    p, g = arrays(0), arrays(1)
    step(p, g, 0.1)
    close(step(p, g, 0.2)[0], f64(optim._fused_sgd(p, g, p, **SGD | {"lr": 0.2})[0]))
    assert step._cache_size() == 1


@pytest.mark.parametrize(
    ("x64", "dtype"),
    [(False, "bfloat16"), (False, "float32"), (True, "float16"), (True, "float32"), (True, "float64")],
)
def test_every_list_keeps_its_dtype(x64, dtype):
    with jax.enable_x64(x64):
        p, g, m, v = (arrays(i, dtype) for i in range(4))
        got = optim._fused_adam(p, g, m, v, m, steps(), **ADAM | {"amsgrad": True})
        assert {x.dtype.name for column in got for x in column} == {dtype}


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (RuntimeError, lambda p: (p, p[:1], p, p, [], steps())),
        (RuntimeError, lambda p: (p, p, p, p, [], steps()[:1])),
        (RuntimeError, lambda p: (p, arrays(0, "float16"), p, p, [], steps())),
        (RuntimeError, lambda p: (p, [x[None] for x in p], p, p, [], steps())),
        (NotImplementedError, lambda p: (*([arrays(0, "int32")] * 4), [], steps())),
    ],
)
def test_errors(error, change):
    with pytest.raises(error, match="_fused_adam"):
        optim._fused_adam(*change(arrays(0)), **ADAM)

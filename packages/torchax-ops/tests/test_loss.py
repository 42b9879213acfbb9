"""Losses against their formulas, gradients against JAX's, and what raises."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops._registry import lookup
from torchax_ops.nn import ctc as C
from torchax_ops.nn import loss as L

R = np.random.default_rng(0)


def array(*shape):
    return R.standard_normal(shape).astype(np.float32)


def jit(f, *args):
    """One compilation for all of ``f``."""
    return jax.jit(f)(*args)


def reduced(x, reduction):
    return [x, x.mean(), x.sum()][reduction]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


X, Y = array(3, 4), array(3, 4)
P, T, W = sigmoid(array(3, 4)), sigmoid(array(3, 4)), sigmoid(array(3, 4))
D = abs(X - Y)
POINTWISE = {
    "mse": (L.mse_loss, (X, Y), {}, (X - Y) ** 2),
    "l1": (L.l1_loss, (X, Y), {}, D),
    "smooth_l1": (L.smooth_l1_loss, (X, Y), {"beta": 0.5}, np.where(D < 0.5, D**2, D - 0.25)),
    "huber": (L.huber_loss, (X, Y), {"delta": 0.5}, np.where(D < 0.5, D**2 / 2, D / 2 - 0.125)),
    "soft_margin": (L.soft_margin_loss, (X, np.sign(Y)), {}, np.log1p(np.exp(-np.sign(Y) * X))),
    "bce": (L.binary_cross_entropy, (P, T), {"weight": W}, -W * (T * np.log(P) + (1 - T) * np.log(1 - P))),
    "logits": (
        L.binary_cross_entropy_with_logits, (X, T), {"pos_weight": W},
        -(W * T * np.log(sigmoid(X)) + (1 - T) * np.log(sigmoid(-X))),
    ),
    "kl": (L.kl_div, (X, T), {}, T * (np.log(T) - X)),
    "kl of logs": (L.kl_div, (X, Y), {"log_target": True}, np.exp(Y) * (Y - X)),
    "poisson": (L.poisson_nll_loss, (X, T), {"log_input": True, "full": False, "eps": 1e-8}, np.exp(X) - T * X),
    "hinge": (L.hinge_embedding_loss, (X, np.sign(Y)), {"margin": 0.5}, np.where(Y > 0, X, np.maximum(0, 0.5 - X))),
}  # fmt: skip


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name, reduction):
    f, args, options, want = POINTWISE[name]
    got = jit(lambda *a: f(*a, reduction=reduction, **options), *args)
    np.testing.assert_allclose(got, reduced(want, reduction), rtol=2e-5, atol=1e-6)


BACKWARD = {
    "mse": (L.mse_loss, L.mse_loss_backward, {}),
    "smooth_l1": (L.smooth_l1_loss, L.smooth_l1_loss_backward, {"beta": 0.5}),
    "huber": (L.huber_loss, L.huber_loss_backward, {"delta": 0.5}),
    "soft_margin": (L.soft_margin_loss, L.soft_margin_loss_backward, {}),
    "bce": (L.binary_cross_entropy, L.binary_cross_entropy_backward, {"weight": W}),
}


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("name", BACKWARD)
def test_pointwise_backward(name, reduction):
    f, back, options = BACKWARD[name]
    x, y = (P, T) if name == "bce" else (X, Y)
    grad = array(*([3, 4] if reduction == 0 else []))
    got = jit(lambda g, x: back(g, x, y, reduction=reduction, **options), grad, x)
    want = jit(
        lambda g, x: jax.vjp(lambda x: f(x, y, reduction=reduction, **options), x)[1](g)[0], jnp.asarray(grad), x
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_edges_of_the_logarithm():
    x, y = jnp.float32([0, 1, 0, 1]), jnp.float32([0, 1, 1, 0])
    np.testing.assert_array_equal(L.binary_cross_entropy(x, y, None, 0), [0, 0, 100, 100])
    assert np.isfinite(L.binary_cross_entropy_backward(jnp.ones(4), x, y, None, 0)).all()
    np.testing.assert_array_equal(L.soft_margin_loss(jnp.float32([-200]), jnp.ones(1), 0), [200])


def test_dtypes_and_broadcasting():
    assert jnp.isnan(L.mse_loss(jnp.zeros(0), jnp.zeros(0)))
    x = jnp.ones((4096,), jnp.bfloat16)
    out = L.mse_loss(x, 0 * x, 2)
    assert (out.dtype, float(out)) == (jnp.bfloat16, 4096)
    assert L.mse_loss(jnp.ones((3, 1)), jnp.ones(4), 0).shape == (3, 4)
    with jax.enable_x64(True):
        assert L.mse_loss(jnp.ones(3), jnp.ones(3, np.float32)).dtype == np.float64
        assert L.huber_loss(jnp.ones(3, np.float32), jnp.ones(3, np.float32)).dtype == np.float32


def test_margins_between_pairs():
    a, b, c = array(3, 4), array(3, 4), array(3, 4)
    norm = np.linalg.norm
    y = np.sign(Y[:, 0])
    np.testing.assert_allclose(
        L.margin_ranking_loss(a[:, 0], b[:, 0], y, 0.3, 0), np.maximum(0, -y * (a - b)[:, 0] + 0.3), rtol=1e-5
    )
    cos = (a * b).sum(1) / norm(a, axis=1) / norm(b, axis=1)
    want = np.where(y == 1, 1 - cos, np.maximum(0, cos - 0.1))
    np.testing.assert_allclose(L.cosine_embedding_loss(a, b, y, 0.1, 0), want, rtol=1e-4, atol=1e-6)
    near, far = norm(a - b, axis=1), np.minimum(norm(a - c, axis=1), norm(b - c, axis=1))
    got = L.triplet_margin_loss(a, b, c, 2.0, swap=True, reduction=0)
    np.testing.assert_allclose(got, np.maximum(0, near - far + 2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss(p):
    x, t, w = array(3, 4), np.int32([0, 3, 1]), sigmoid(array(4))
    want = [sum(max(0, 0.7 - x[i, t[i]] + x[i, j]) ** p * w[t[i]] for j in range(4) if j != t[i]) / 4 for i in range(3)]
    np.testing.assert_allclose(L.multi_margin_loss(x, t, p, 0.7, w, 0), want, rtol=1e-5)
    np.testing.assert_allclose(L.multi_margin_loss(x[0], t[0], p, 0.7, w, 1), want[0], rtol=1e-5)
    grad = L.multi_margin_loss_backward(jnp.float32(1), jnp.asarray(x), t, p, 0.7, w, 2)
    np.testing.assert_allclose(grad.sum(1), 0, atol=1e-5)


def test_multilabel_margin_loss():
    x, t = array(2, 4), np.int32([[3, 0, -1, 1], [-1, 2, 2, 2]])
    loss, is_target = jit(lambda x: L.multilabel_margin_loss_forward(x, t, 0), x)
    want = sum(max(0, 1 - x[0, i] + x[0, j]) for i in (3, 0) for j in (1, 2)) / 4
    np.testing.assert_allclose(loss, [want, 0], rtol=1e-5)
    np.testing.assert_array_equal(is_target, [[1, 0, 0, 1], [0] * 4])
    grad = jit(lambda x: L.multilabel_margin_loss_backward(jnp.float32(1), x, t, 1, is_target), x)
    np.testing.assert_allclose(grad, jit(jax.grad(lambda x: L.multilabel_margin_loss(x, t)), x), rtol=1e-5)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("spatial", [(), (2, 3)])
def test_nll_loss(reduction, weighted, spatial):
    x, t = array(4, 5, *spatial), R.integers(0, 5, (4, *spatial))
    t[0] = 2
    w = sigmoid(array(5)) if weighted else None
    forward, back = (
        (L.nll_loss2d_forward, L.nll_loss2d_backward) if spatial else (L.nll_loss_forward, L.nll_loss_backward)
    )
    weights = (np.ones(5) if w is None else w)[t] * (t != 2)
    each = -np.take_along_axis(x, t[:, None], 1)[:, 0] * weights
    want = [each, each.sum() / weights.sum(), each.sum()][reduction]
    loss, total = jit(lambda x: forward(x, t, w, reduction, 2), x)
    np.testing.assert_allclose(loss, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(total, weights.sum() if reduction else 0, rtol=1e-5)
    grad = jnp.asarray(array(*loss.shape))
    got = jit(lambda g, x: back(g, x, t, w, reduction, 2, total), grad, x)
    expected = jit(lambda g, x: jax.vjp(lambda x: forward(x, t, w, reduction, 2)[0], x)[1](g)[0], grad, x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_nll_loss_of_one_row_of_none_and_of_nothing_counted():
    x = jnp.log(jnp.float32([0.5, 0.25, 0.25]))
    np.testing.assert_allclose(L.nll_loss_forward(x, jnp.int32(1), None, 1, -100), [np.log(4), 1], rtol=1e-6)
    assert jnp.isnan(L.nll_loss_forward(x[None], jnp.int32([-100]), None, 1, -100)[0])
    grad = L.nll_loss_backward(jnp.float32(1), x[None], jnp.int32([-100]), None, 1, -100, jnp.float32(0))
    assert not grad.any()
    assert jnp.isnan(L.nll_loss_forward(x[None][:0], jnp.zeros(0, jnp.int32), None, 1, -100)[0])
    assert jnp.isnan(jit(lambda t: L.nll_loss(x[None], t), jnp.int32([3])))


def test_sixteen_bit_counts_are_not_rounded():
    x = jnp.full((300, 2), -1, jnp.bfloat16)
    loss, _ = L.nll_loss_forward(x, jnp.zeros(300, jnp.int32), None, 1, -100)
    assert loss == 1


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy(smoothing):
    x, t = array(4, 5), np.int32([0, 4, 1, 2])
    logs = x - np.log(np.exp(x).sum(1, keepdims=True))
    likely = np.eye(5)[t] * (1 - smoothing) + smoothing / 5
    want = -(likely * logs).sum(1).mean()
    np.testing.assert_allclose(L.cross_entropy_loss(x, t, label_smoothing=smoothing), want, rtol=1e-5)
    got = L.cross_entropy_loss(x, np.eye(5, dtype=np.float32)[t], label_smoothing=smoothing)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def ctc_by_paths(logs, target, blank):
    """The loss by listing every path."""
    total = 0.0
    for path in itertools.product(range(logs.shape[1]), repeat=logs.shape[0]):
        merged = [a for i, a in enumerate(path) if i == 0 or a != path[i - 1]]
        if [a for a in merged if a != blank] == list(target):
            total += np.exp(sum(logs[t, a] for t, a in enumerate(path)))
    return np.inf if total == 0 else -np.log(total)


def test_ctc():
    logs = jax.nn.log_softmax(array(4, 3, 3), -1)
    targets, inputs, lengths = np.int32([[1, 1], [2, 0], [2, 1]]), [4, 3, 1], [2, 1, 2]
    want = [ctc_by_paths(np.asarray(logs[:n, i]), targets[i, :m], 0) for i, (n, m) in enumerate(zip(inputs, lengths))]
    loss, alpha = jit(lambda x: C._ctc_loss(x, jnp.asarray(targets), inputs, lengths), logs)
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    assert alpha.shape == (3, 4, 5)
    flat = jnp.int32([1, 1, 2, 2, 1])
    got = jit(lambda x, n, m: C._ctc_loss_tensor(x, flat, n, m)[0], logs, np.int32(inputs), np.int32(lengths))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    # The gradient is to what log-softmax was taken of, so that it passes the softmax's own unchanged.
    finite = np.float32([1, 1, 0])
    grad = jit(lambda x: C._ctc_loss_backward(finite, x, targets, inputs, lengths, loss, alpha, 0, True), logs)

    def through(x):
        return jnp.where(finite > 0, C._ctc_loss(jax.nn.log_softmax(x), targets, inputs, lengths)[0], 0).sum()

    np.testing.assert_allclose(grad, jit(jax.grad(through), logs), rtol=1e-4, atol=1e-6)
    assert jnp.isnan(C._ctc_loss_backward(finite, logs, targets, inputs, lengths, loss, alpha, 0)[0, 2]).all()


def test_ctc_reduced():
    logs = jax.nn.log_softmax(array(4, 2, 3), -1)
    loss, _ = C._ctc_loss(logs, jnp.int32([[1], [2]]), [4, 4], [1, 0])
    mean = C.ctc_loss_intlist(logs, jnp.int32([[1], [2]]), [4, 4], [1, 0])
    np.testing.assert_allclose(mean, loss.mean(), rtol=1e-6)


def check(name, *args):
    lookup(f"aten::{name}").check(*args)


ROW = np.zeros((1, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: check("nll_loss_forward", ROW, np.int32([3]), None, 1, -100), IndexError, "Target 3 is out of bounds"),
        (lambda: check("nll_loss_forward", ROW, np.int32([-1]), None, 1, -100), IndexError, "Target -1"),
        (lambda: check("nll_loss_backward", 1.0, ROW, np.int32([3]), None, 1, -100, 1.0), IndexError, "Target 3"),
        (lambda: check("multi_margin_loss", ROW, np.int32([3])), RuntimeError, "out of range"),
        (lambda: check("multilabel_margin_loss_forward", ROW, np.int32([[3, -1, 0]]), 1), RuntimeError, "out of range"),
        (lambda: check("binary_cross_entropy", ROW - 1, ROW), RuntimeError, "input should be between 0 and 1"),
        (lambda: check("binary_cross_entropy", ROW, ROW + 2), RuntimeError, "target should be between 0 and 1"),
        (lambda: L.nll_loss(ROW, np.float32([1])), RuntimeError, "Long or Byte"),
        (lambda: L.nll_loss(ROW, np.int32([1, 1])), RuntimeError, "size mismatch"),
        (lambda: L.nll_loss(ROW, np.int32([1]), np.float32([1])), RuntimeError, "all 3 classes"),
        (lambda: L.mse_loss(jnp.arange(3), jnp.arange(3)), NotImplementedError, "not implemented"),
        (lambda: L.mse_loss(jnp.ones(3), jnp.ones(2)), RuntimeError, "must match"),
        (lambda: L.smooth_l1_loss(ROW, ROW, 1, -1.0), RuntimeError, "negative values for beta"),
        (lambda: L.huber_loss(ROW, ROW, 1, 0.0), RuntimeError, "non-positive values for delta"),
        (lambda: L.multi_margin_loss(ROW, np.int32([1]), 3), RuntimeError, "p == 1 and p == 2"),
        (lambda: L.binary_cross_entropy(ROW, jnp.zeros((1, 3), jnp.bfloat16)), RuntimeError, "Found dtype"),
        (lambda: C._ctc_loss(ROW[None], np.int32([[1]]), [2], [1]), RuntimeError, "value at most 1"),
        (lambda: C._ctc_loss(ROW[None], np.int32([[1]]), [1], [2]), RuntimeError, "size at least 2"),
        (lambda: C._ctc_loss(ROW[None], np.int32([[1]]), [1], [1], 3), RuntimeError, "label range"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()

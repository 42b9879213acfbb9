"""Recurrent cells and layers against their equations, and packed sequences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops.nn import rnn as N

R = np.random.default_rng(0)


def array(*shape):
    return R.standard_normal(shape).astype(np.float32)


def jit(f, *args):
    """One compilation for all of ``f``."""
    return jax.jit(f)(*args)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def tanh_step(x, h, w):
    return (np.tanh(x @ w[0].T + w[2] + h[0] @ w[1].T + w[3]),)


def relu_step(x, h, w):
    return (np.maximum(x @ w[0].T + w[2] + h[0] @ w[1].T + w[3], 0),)


def gru_step(x, h, w):
    ir, iz, i_n = np.split(x @ w[0].T + w[2], 3, -1)
    hr, hz, hn = np.split(h[0] @ w[1].T + w[3], 3, -1)
    n, z = np.tanh(i_n + sigmoid(ir + hr) * hn), sigmoid(iz + hz)
    return ((1 - z) * n + z * h[0],)


def lstm_step(x, h, w):
    i, f, g, o = np.split(x @ w[0].T + w[2] + h[0] @ w[1].T + w[3], 4, -1)
    c = sigmoid(f) * h[1] + sigmoid(i) * np.tanh(g)
    y = sigmoid(o) * np.tanh(c)
    return (y @ w[4].T if len(w) == 5 else y, c)


KINDS = {"rnn_tanh": (tanh_step, 1), "rnn_relu": (relu_step, 1), "gru": (gru_step, 3), "lstm": (lstm_step, 4)}


def weights(kind, features, hidden, projected=None):
    gates = KINDS[kind][1]
    shapes = [(gates * hidden, features), (gates * hidden, projected or hidden), (gates * hidden,), (gates * hidden,)]
    return [array(*s) / 2 for s in (*shapes, *([(projected, hidden)] if projected else []))]


def by_steps(kind, x, lengths, states, params, layers, directions):
    """Each sequence on its own, step by step."""
    step, size = KINDS[kind][0], len(params) // (layers * directions)
    rows, finals = [], []
    for b, length in enumerate(lengths):
        out, last = x[:length, b], []
        for layer in range(layers):
            parts = []
            for d in range(directions):
                i = layer * directions + d
                h, w, ys = tuple(s[i, b] for s in states), params[i * size : (i + 1) * size], []
                for at in out[::-1] if d else out:
                    h = step(at, h, w)
                    ys.append(h[0])
                parts.append(np.stack(ys[::-1] if d else ys))
                last.append(h)
            out = np.concatenate(parts, -1)
        rows.append(out)
        finals.append(last)
    return rows, [np.stack([[h[k] for h in last] for last in finals], 1) for k in range(len(states))]


def states(kind, count, batch, hidden, projected=None):
    first = array(count, batch, projected or hidden)
    return (first, array(count, batch, hidden)) if kind == "lstm" else (first,)


@pytest.mark.parametrize("kind", KINDS)
def test_cell(kind):
    x, (h, w) = array(2, 3), (states(kind, 1, 2, 4), weights(kind, 3, 4))
    h = tuple(s[0] for s in h)
    got = jit(getattr(N, f"{kind}_cell"), x, list(h) if kind == "lstm" else h[0], *w)
    want = KINDS[kind][0](x, h, w)
    for a, e in zip(got if kind == "lstm" else [got], want):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)


CASES = [(1, 1, None), (2, 2, None)]


@pytest.mark.parametrize(
    ("kind", "layers", "directions", "projected"), [(k, *c) for k in KINDS for c in CASES] + [("lstm", 1, 2, 2)]
)
@pytest.mark.parametrize("packed", [True, False])
def test_layers(kind, layers, directions, projected, packed):
    lengths = [5, 3] if packed else [5, 5]
    x, start = array(5, 2, 3), states(kind, layers * directions, 2, 4, projected)
    params = []
    for layer in range(layers):
        features = 3 if layer == 0 else directions * 4
        params += [w for _ in range(directions) for w in weights(kind, features, 4, projected)]
    rest = (True, layers, 0.0, False, directions == 2)
    hx = list(start) if kind == "lstm" else start[0]
    rows, finals = by_steps(kind, x, lengths, start, params, layers, directions)
    if packed:
        data, sizes = N._pack_padded_sequence(jnp.asarray(x), np.array(lengths), False)
        np.testing.assert_array_equal(sizes, [2, 2, 2, 1, 1])
        out, *last = jit(lambda d, n, h, p: getattr(N, f"{kind}_data")(d, n, h, p, *rest), data, sizes, hx, params)
        out, _ = N._pad_packed_sequence(out, sizes, False, 0.0, 0)
    else:
        out, *last = jit(lambda x, h, p: getattr(N, f"{kind}_input")(x, h, p, *rest, False), x, hx, params)
    for b, row in enumerate(rows):
        np.testing.assert_allclose(out[: lengths[b], b], row, rtol=1e-4, atol=1e-5)
    for a, e in zip(last, finals):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)


def test_batch_first_without_biases_under_grad_and_vmap():
    x, h, w = array(2, 5, 3), array(1, 2, 4), weights("gru", 3, 4)[:2]
    run = lambda x: N.gru_input(x, h, w, False, 1, 0.0, False, False, True)[0]  # noqa: E731
    out = jit(run, x)
    steps = jit(lambda x: N.gru_input(x, h, w, False, 1, 0.0, False, False, False)[0], x.swapaxes(0, 1))
    np.testing.assert_allclose(out, steps.swapaxes(0, 1), rtol=1e-6)
    assert jit(jax.grad(lambda x: run(x).sum()), x).shape == x.shape
    np.testing.assert_allclose(jit(jax.vmap(run), x[None])[0], out, rtol=1e-5, atol=1e-6)


def test_dropout_between_layers():
    x, h = array(5, 2, 3), array(2, 2, 4)
    params = [*weights("gru", 3, 4), *weights("gru", 4, 4)]
    run = lambda key: N.gru_input(x, h, params, True, 2, 0.5, True, False, False, key=key)[0]  # noqa: E731
    assert not np.allclose(jit(run, jax.random.key(0)), jit(run, jax.random.key(1)))
    with pytest.raises(TypeError, match="PRNG key"):
        run(None)


def test_fused_cells_backward():
    gates, hidden, c, b = array(2, 16), array(2, 16), array(2, 4), array(16)

    def lstm(grad_h, grad_c, *args):
        out = N._thnn_fused_lstm_cell(*args, b)
        back = N._thnn_fused_lstm_cell_backward_impl(grad_h, grad_c, args[2], out[1], out[2], True)
        return back, jax.vjp(lambda *a: N._thnn_fused_lstm_cell(*a, b)[:2], *args)[1]((grad_h, grad_c))

    got, want = jit(lstm, array(2, 4), array(2, 4), gates, hidden, c, b)
    for a, e in zip(got, (want[0], want[2], want[3])):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-6)
    assert N._thnn_fused_lstm_cell_backward_impl(None, None, c, c, gates, True) == (None, None, None)

    def gru(grad, *args):
        _, workspace = N._thnn_fused_gru_cell(*args)
        back = N._thnn_fused_gru_cell_backward(grad, workspace, True)
        return back, jax.vjp(lambda *a: N._thnn_fused_gru_cell(*a)[0], *args)[1](grad)

    got, want = jit(gru, array(2, 4), gates[:, :12], hidden[:, :12], c, b[:12], b[4:])
    for a, e in zip(got, want):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch_first", [True, False])
def test_packing(batch_first):
    x = array(4, 3, 2)
    lengths = np.array([4, 2, 1])
    given = x.swapaxes(0, 1) if batch_first else x
    data, sizes = N._pack_padded_sequence(jnp.asarray(given), lengths, batch_first)
    want = np.concatenate([x[t, : (lengths > t).sum()] for t in range(4)])
    np.testing.assert_array_equal(data, want)
    np.testing.assert_array_equal(sizes, [3, 2, 1, 1])
    out, again = N._pad_packed_sequence(data, sizes, batch_first, -1.0, 5)
    out = out.swapaxes(0, 1) if batch_first else out
    np.testing.assert_array_equal(again, lengths)
    inside = np.arange(5)[:, None] < lengths
    np.testing.assert_array_equal(out, np.where(inside[..., None], np.pad(x, ((0, 1), (0, 0), (0, 0))), -1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: N._pack_padded_sequence(x, np.array([1, 2, 3]), False), "decreasing"),
        (lambda x: N._pack_padded_sequence(x, np.array([2, 1, 0]), False), "greater than 0"),
        (lambda x: N._pack_padded_sequence(x, np.array([2, 1]), False), "batch_size"),
        (lambda x: jax.jit(lambda n: N._pack_padded_sequence(x, n, False))(jnp.array([2, 1, 1])), "known numbers"),
        (lambda x: N._pad_packed_sequence(x[0], np.array([2, 1]), False, 0.0, 1), "total_length"),
        (lambda x: N.gru_input(x[0], x, [], True, 1, 0.0, False, False, False), "3-dimensional"),
        (lambda x: N.gru_input(x, x, [], True, 1, 0.0, False, False, False), "hidden size of 1 layers"),
        (lambda x: N.gru_input(x, x[:1], [x], True, 1, 0.0, False, False, False), "expected 4 parameters"),
    ],
)
def test_errors(call, message):
    with pytest.raises(RuntimeError, match=message):
        call(jnp.zeros((4, 3, 2)))

"""The fused cells that PyTorch's recurrent layers are made of on a device of its own, and whole layers as scans.

Gates stand side by side along the last dimension, as in the layers' weights: input, forget, cell, output for LSTM;
reset, update, new for GRU.

Source: the equations of https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html and ...GRU.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchax_ops._promotion import cast, opmath
from torchax_ops._registry import exported, register

Array = jax.Array


def _compute(*arrays: Array | None) -> list[Array]:
    """The arrays that are given, in the computing dtype."""
    return [cast(a, opmath(a.dtype)) for a in arrays if a is not None]


def _biased(gates: Array, bias: Array | None) -> Array:
    gates = cast(gates, opmath(gates.dtype))
    return gates if bias is None else gates + cast(bias, gates.dtype)


@register("_thnn_fused_lstm_cell")
def _thnn_fused_lstm_cell(
    input_gates: Array,
    hidden_gates: Array,
    cx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array, Array]:
    """One LSTM step.

    Args:
        input_gates, hidden_gates: ``(B, 4 H)``, the products of input and state with their weights.
        cx: ``(B, H)``, the cell's state.
        input_bias, hidden_bias: ``(4 H,)``.

    Returns:
        the new hidden and cell state, ``(B, H)``, and the activated gates ``(B, 4 H)`` for the backward.
    """
    dtype = input_gates.dtype
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cy = f * cast(cx, gates.dtype) + i * g
    hy = o * jnp.tanh(cy)
    return cast(hy, dtype), cast(cy, dtype), cast(jnp.concatenate([i, f, g, o], axis=-1), dtype)


@register("_thnn_fused_lstm_cell_backward_impl")
def _thnn_fused_lstm_cell_backward_impl(
    grad_hy: Array | None, grad_cy: Array | None, cx: Array, cy: Array, workspace: Array, has_bias: bool
) -> tuple[Array | None, Array | None, Array | None]:
    """The gradients of `_thnn_fused_lstm_cell` to its gates, ``cx`` and (summed over the batch) a bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    dtype = workspace.dtype
    gates, old, new = _compute(workspace, cx, cy)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    squashed = jnp.tanh(new)
    to_hy = jnp.zeros_like(new) if grad_hy is None else cast(grad_hy, new.dtype)
    to_cy = to_hy * o * (1 - squashed * squashed)
    if grad_cy is not None:
        to_cy = to_cy + cast(grad_cy, new.dtype)
    grad_gates = jnp.concatenate(
        [
            to_cy * g * i * (1 - i),
            to_cy * old * f * (1 - f),
            to_cy * i * (1 - g * g),
            to_hy * squashed * o * (1 - o),
        ],
        axis=-1,
    )
    grad_bias = cast(grad_gates.sum(0), dtype) if has_bias else None
    return cast(grad_gates, dtype), cast(to_cy * f, dtype), grad_bias


@register("_thnn_fused_gru_cell")
def _thnn_fused_gru_cell(
    input_gates: Array,
    hidden_gates: Array,
    hx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array]:
    """One GRU step.

    Args:
        input_gates, hidden_gates: ``(B, 3 H)``, the products of input and state with their weights.
        hx: ``(B, H)``, the state.
        input_bias, hidden_bias: ``(3 H,)``.

    Returns:
        the new state ``(B, H)``, and what the backward needs, ``(B, 5 H)``: both gates, the candidate, the old state,
        and the state's part of the candidate.
    """
    dtype = input_gates.dtype
    ir, iz, in_ = jnp.split(_biased(input_gates, input_bias), 3, axis=-1)
    hr, hz, hn = jnp.split(_biased(hidden_gates, hidden_bias), 3, axis=-1)
    r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
    n = jnp.tanh(in_ + r * hn)
    h = cast(hx, n.dtype)
    return cast(n + z * (h - n), dtype), cast(jnp.concatenate([r, z, n, h, hn], axis=-1), dtype)


@register("_thnn_fused_gru_cell_backward")
def _thnn_fused_gru_cell_backward(
    grad_hy: Array, workspace: Array, has_bias: bool
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """The gradients of `_thnn_fused_gru_cell` to both gates, ``hx`` and (summed over the batch) both biases."""
    dtype = workspace.dtype
    saved, grad = _compute(workspace, grad_hy)
    r, z, n, h, hn = jnp.split(saved, 5, axis=-1)
    to_n = grad * (1 - z) * (1 - n * n)
    to_z = grad * (h - n) * z * (1 - z)
    to_r = to_n * hn * r * (1 - r)
    to_input = jnp.concatenate([to_r, to_z, to_n], axis=-1)
    to_hidden = jnp.concatenate([to_r, to_z, to_n * r], axis=-1)
    biases = (cast(to_input.sum(0), dtype), cast(to_hidden.sum(0), dtype)) if has_bias else (None, None)
    return cast(to_input, dtype), cast(to_hidden, dtype), cast(grad * z, dtype), *biases


# ---------------------------------------------------------------------------------------------------------------------
# Cells
# ---------------------------------------------------------------------------------------------------------------------


def _linear(x: Array, weight: Array, bias: Array | None) -> Array:
    out = jnp.matmul(x, cast(weight, x.dtype).T)
    return out if bias is None else out + cast(bias, x.dtype)


def _tanh_step(gates: Array, hidden_gates: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    return (jnp.tanh(gates + hidden_gates),)


def _relu_step(gates: Array, hidden_gates: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    return (jax.nn.relu(gates + hidden_gates),)


def _gru_step(gates: Array, hidden_gates: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    return _thnn_fused_gru_cell(gates, hidden_gates, state[0])[:1]


def _lstm_step(gates: Array, hidden_gates: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    return _thnn_fused_lstm_cell(gates, hidden_gates, state[1])[:2]


_Step = Callable[[Array, Array, tuple[Array, ...]], tuple[Array, ...]]


def _cell(step: _Step, input, state, w_ih, w_hh, b_ih, b_hh):
    dtype = opmath(input.dtype)
    states = tuple(cast(s, dtype) for s in state)
    new = step(_linear(cast(input, dtype), w_ih, b_ih), _linear(states[0], w_hh, b_hh), states)
    return tuple(cast(s, input.dtype) for s in new)


@register("lstm_cell")
def lstm_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    """One LSTM step on ``input (B, I)``: the new hidden and cell state from ``hx``, the list of both ``(B, H)``."""
    return _cell(_lstm_step, input, tuple(hx), w_ih, w_hh, b_ih, b_hh)


@register("gru_cell")
def gru_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    """One GRU step on ``input (B, I)``: the new state from ``hx (B, H)``."""
    return _cell(_gru_step, input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


@register("rnn_tanh_cell")
def rnn_tanh_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    """``tanh(input @ w_ih.T + b_ih + hx @ w_hh.T + b_hh)``."""
    return _cell(_tanh_step, input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


@register("rnn_relu_cell")
def rnn_relu_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    """``relu(input @ w_ih.T + b_ih + hx @ w_hh.T + b_hh)``."""
    return _cell(_relu_step, input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


# ---------------------------------------------------------------------------------------------------------------------
# Layers
# ---------------------------------------------------------------------------------------------------------------------


class _Weights(NamedTuple):
    """The parameters of one direction of one layer, as PyTorch orders them."""

    w_ih: Array
    w_hh: Array
    b_ih: Array | None
    b_hh: Array | None
    w_hr: Array | None


def _split_params(op: str, params: Sequence[Array], has_biases: bool, projected: bool, count: int) -> list[_Weights]:
    size = 2 + 2 * has_biases + projected
    if len(params) != size * count:
        raise RuntimeError(f"{op}: expected {size} parameters for each of {count} directions, but got {len(params)}")
    groups = [list(params[i * size : (i + 1) * size]) for i in range(count)]
    return [_Weights(*g[:2], *(g[2:4] if has_biases else (None, None)), g[-1] if projected else None) for g in groups]  # type: ignore[call-arg]


def _run(step: _Step, x: Array, inside: Array | None, state: tuple[Array, ...], weights: _Weights, reverse: bool):
    """One direction of one layer over ``x (T, B, I)``: outputs and last state; nothing moves where not ``inside``."""

    def move(state, at):
        gates, here = at
        new = step(gates, _linear(state[0], weights.w_hh, weights.b_hh), state)
        if weights.w_hr is not None:
            new = (jnp.matmul(new[0], cast(weights.w_hr, x.dtype).T), *new[1:])
        if here is not None:
            new = tuple(jnp.where(here[:, None], n, s) for n, s in zip(new, state))
        return new, new[0]

    last, outputs = lax.scan(move, state, (_linear(x, weights.w_ih, weights.b_ih), inside), reverse=reverse)
    return outputs, last


def _layers(
    op: str, step: _Step, x: Array, inside: Array | None, states: Sequence[Array], params: Sequence[Array],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, key: Array | None,
) -> tuple[Array, list[Array]]:  # fmt: skip
    """All layers over ``x (T, B, I)`` from states ``(layers * directions, B, H)``: the outputs and the last states."""
    directions = 2 if bidirectional else 1
    if states[0].shape[0] != num_layers * directions:
        raise RuntimeError(f"{op}: expected hidden size of {num_layers * directions} layers, got {states[0].shape[0]}")
    projected = len(states) == 2 and states[0].shape[-1] != states[1].shape[-1]
    weights = _split_params(op, params, has_biases, projected, num_layers * directions)
    if train and dropout > 0 and num_layers > 1 and key is None:
        raise TypeError(f"{op}: dropout={dropout} between layers needs a PRNG key: pass key=")
    dtype = opmath(x.dtype)
    out, finals = cast(x, dtype), []
    for layer in range(num_layers):
        if layer and train and dropout > 0:
            keep = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - dropout, out.shape)  # type: ignore[arg-type]
            out = jnp.where(keep, out / max(1 - dropout, np.finfo(np.float32).tiny), 0)  # type: ignore[operator]
        parts = []
        for direction in range(directions):
            i = layer * directions + direction
            outputs, last = _run(
                step, out, inside, tuple(cast(s[i], dtype) for s in states), weights[i], direction == 1
            )
            parts.append(outputs)
            finals.append(last)
        out = jnp.concatenate(parts, -1)
    return cast(out, x.dtype), [cast(jnp.stack(s), x.dtype) for s in zip(*finals)]


def _on_input(op, step, input, states, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, key):
    if input.ndim != 3:
        raise RuntimeError(f"{op}: Expected 3-dimensional input, but got {list(input.shape)}")
    x = input.swapaxes(0, 1) if batch_first else input
    out, finals = _layers(op, step, x, None, states, params, has_biases, num_layers, dropout, train, bidirectional, key)
    return out.swapaxes(0, 1) if batch_first else out, *finals


def _on_packed(op, step, data, batch_sizes, states, params, has_biases, num_layers, dropout, train, bidirectional, key):
    """The packed sequence is laid out ``(T, B)``, and its outputs packed again."""
    sizes = cast(jnp.asarray(batch_sizes), "int32")
    batch, total = states[0].shape[1], data.shape[0]
    inside = jnp.arange(batch, dtype=jnp.int32) < sizes[:, None]
    start = jnp.cumsum(sizes, dtype=jnp.int32) - sizes
    index = start[:, None] + jnp.arange(batch, dtype=jnp.int32)
    x = jnp.take(data, index, 0, mode="clip")
    out, finals = _layers(
        op, step, x, inside, states, params, has_biases, num_layers, dropout, train, bidirectional, key
    )
    place = jnp.where(inside, index, total)
    packed = jnp.zeros((total, out.shape[-1]), out.dtype).at[place].set(out, mode="drop")
    return packed, *finals


@register("lstm.input", static=("dropout",))
def lstm_input(
    input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, *, key=None
):  # fmt: skip
    """An LSTM over ``input (T, B, I)``, or ``(B, T, I)`` if ``batch_first``: outputs, last hidden and last cell state.

    ``hx`` lists both states, ``(layers * directions, B, H)``; ``params`` are ``w_ih``, ``w_hh``, the biases ``b_ih``
    and ``b_hh`` if any, and ``w_hr`` if projected, for each layer and direction.

    Raises:
        RuntimeError: shapes or numbers do not fit.
        TypeError: dropout between layers without ``key``.
    """
    return _on_input(
        "lstm", _lstm_step, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, key
    )


@register("lstm.data", static=("dropout",))
def lstm_data(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional, *, key=None):
    """`lstm_input` over a packed sequence: ``data (sum(batch_sizes), I)``."""
    return _on_packed(
        "lstm", _lstm_step, data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional, key
    )


@register("gru.input", static=("dropout",))
def gru_input(
    input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, *, key=None
):  # fmt: skip
    """A GRU over ``input (T, B, I)``, or ``(B, T, I)`` if ``batch_first``, from ``hx``: outputs and last state."""
    return _on_input(
        "gru", _gru_step, input, (hx,), params, has_biases, num_layers, dropout, train, bidirectional, batch_first, key
    )


@register("gru.data", static=("dropout",))
def gru_data(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional, *, key=None):
    """`gru_input` over a packed sequence: ``data (sum(batch_sizes), I)``."""
    return _on_packed(
        "gru", _gru_step, data, batch_sizes, (hx,), params, has_biases, num_layers, dropout, train, bidirectional, key
    )


@register("rnn_tanh.input", static=("dropout",))
def rnn_tanh_input(
    input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, *, key=None
):  # fmt: skip
    """A tanh network over ``input (T, B, I)``, or ``(B, T, I)`` if ``batch_first``: outputs and last state."""
    return _on_input(
        "rnn_tanh", _tanh_step, input, (hx,), params, has_biases, num_layers, dropout, train, bidirectional,
        batch_first, key,
    )  # fmt: skip


@register("rnn_tanh.data", static=("dropout",))
def rnn_tanh_data(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional, *, key=None):
    """`rnn_tanh_input` over a packed sequence: ``data (sum(batch_sizes), I)``."""
    return _on_packed(
        "rnn_tanh", _tanh_step, data, batch_sizes, (hx,), params, has_biases, num_layers, dropout, train,
        bidirectional, key,
    )  # fmt: skip


@register("rnn_relu.input", static=("dropout",))
def rnn_relu_input(
    input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, *, key=None
):  # fmt: skip
    """A relu network over ``input (T, B, I)``, or ``(B, T, I)`` if ``batch_first``: outputs and last state."""
    return _on_input(
        "rnn_relu", _relu_step, input, (hx,), params, has_biases, num_layers, dropout, train, bidirectional,
        batch_first, key,
    )  # fmt: skip


@register("rnn_relu.data", static=("dropout",))
def rnn_relu_data(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional, *, key=None):
    """`rnn_relu_input` over a packed sequence: ``data (sum(batch_sizes), I)``."""
    return _on_packed(
        "rnn_relu", _relu_step, data, batch_sizes, (hx,), params, has_biases, num_layers, dropout, train,
        bidirectional, key,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Packed sequences
# ---------------------------------------------------------------------------------------------------------------------


@register("_pack_padded_sequence", eager=True)
def _pack_padded_sequence(input, lengths, batch_first):
    """The elements of ``input (T, B, *)`` inside ``lengths``, time by time, and the batch size of each time (int64).

    Raises:
        RuntimeError: lengths are not positive and descending, or under a trace: how many elements there are depends on
            their values.
    """
    if isinstance(lengths, jax.core.Tracer):
        raise RuntimeError("_pack_padded_sequence: the result's size depends on lengths, which must be known numbers")
    lengths = np.asarray(lengths)
    batch = input.shape[0] if batch_first else input.shape[1]
    if lengths.shape != (batch,):
        raise RuntimeError(f"Expected `len(lengths)` to be equal to batch_size ({batch}), but got {lengths.shape}")
    if batch == 0 or (lengths <= 0).any():
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    if (np.diff(lengths) > 0).any():
        raise RuntimeError("`lengths` array must be sorted in decreasing order when `enforce_sorted` is True")
    time, row = np.nonzero(np.arange(lengths[0])[:, None] < lengths)
    x = input.swapaxes(0, 1) if batch_first else input
    sizes = np.bincount(time, minlength=int(lengths[0]))
    return x[jnp.asarray(time, jnp.int32), jnp.asarray(row, jnp.int32)], cast(sizes, "int64")


@register("_pad_packed_sequence", eager=True)
def _pad_packed_sequence(data, batch_sizes, batch_first, padding_value, total_length):
    """The packed ``data`` as ``(T, B, *)`` (or ``(B, T, *)``), filled with ``padding_value``, and each length (int64).

    ``T`` is ``total_length`` if that is positive, else the number of batch sizes.

    Raises:
        RuntimeError: ``total_length`` is too short, or under a trace: the batch size depends on values.
    """
    if isinstance(batch_sizes, jax.core.Tracer):
        raise RuntimeError(
            "_pad_packed_sequence: the result's size depends on batch_sizes, which must be known numbers"
        )
    sizes = np.asarray(batch_sizes)
    if 0 < total_length < len(sizes):
        raise RuntimeError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {len(sizes)}"
        )
    length = total_length if total_length > 0 else len(sizes)
    time, row = np.nonzero(np.arange(sizes[0]) < sizes[:, None])
    out = jnp.full((length, int(sizes[0]), *data.shape[1:]), cast(padding_value, data.dtype))
    out = out.at[jnp.asarray(time, jnp.int32), jnp.asarray(row, jnp.int32)].set(data)
    lengths = cast(np.bincount(row, minlength=int(sizes[0])), "int64")
    return out.swapaxes(0, 1) if batch_first else out, lengths


__all__ = exported(__name__)

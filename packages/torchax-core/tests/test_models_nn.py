"""Whole models of ``torch.nn`` on the device against CPU: outputs, every gradient, every buffer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves, tree_map

import torchax  # noqa: F401

DEVICE = "jax"


def moved(tree: Any, device: str) -> Any:
    """Copies on a device; floating tensors become leaves that want gradients."""

    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        x = x.detach().clone().to(device)
        return x.requires_grad_() if x.is_floating_point() else x

    return tree_map(move, tree)


def run(model: nn.Module, device: str, call: Callable[..., Any], inputs: tuple[Any, ...]) -> dict[str, torch.Tensor]:
    """One forward and backward; every output, gradient and buffer by name."""
    model = copy.deepcopy(model).to(device)
    inputs = moved(inputs, device)
    outputs = [x for x in tree_leaves(call(model, *inputs)) if isinstance(x, torch.Tensor)]
    found = {f"output.{i}": x for i, x in enumerate(outputs)}
    if any(x.requires_grad for x in outputs):
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in outputs]
        sum((x * w.to(x)).sum() for x, w in zip(outputs, weights, strict=True) if x.requires_grad).backward()
    given = [x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    found |= {f"input.{i}.grad": x.grad for i, x in enumerate(given) if x.grad is not None}
    found |= {f"{n}.grad": p.grad for n, p in model.named_parameters() if p.grad is not None}
    found |= dict(model.named_buffers())
    return found


def check(
    model: nn.Module,
    *inputs: Any,
    call: Callable[..., Any] = lambda model, *inputs: model(*inputs),
) -> None:
    got, want = run(model, DEVICE, call, inputs), run(model, "cpu", call, inputs)
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert got[name].device.type == DEVICE, name
        torch.testing.assert_close(got[name].detach().cpu(), value.detach(), msg=lambda m, name=name: f"{name}: {m}")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 32), nn.ReLU(), nn.Linear(32, 10))


def test_mlp():
    check(mlp(), torch.randn(4, 1, 28, 28))


def test_mlp_trains():
    x, y = torch.randn(16, 1, 28, 28), torch.randint(10, (16,))

    def losses(device: str) -> list[float]:
        torch.manual_seed(1)
        model = mlp().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        seen = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen

    got = losses(DEVICE)
    assert got == pytest.approx(losses("cpu"), rel=1e-4)
    assert got[-1] < got[0]


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu_(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += self.short(x)
        return torch.relu_(y)


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Block(8, 8, 1),
        Block(8, 16, 2),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def test_resnet_train():
    check(resnet(), torch.randn(4, 3, 32, 32))


def test_resnet_eval_after_train():
    def train_then_eval(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            model.train()(x.detach())
        return model.eval()(x)

    check(resnet(), torch.randn(4, 3, 32, 32), call=train_then_eval)


def test_resnet_in_inference_mode():
    def infer(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return model.eval()(x)

    check(resnet(), torch.randn(2, 3, 32, 32), call=infer)


def test_resnet_channels_last():
    x = torch.randn(2, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    check(resnet().to(memory_format=torch.channels_last).eval(), x)


RECURRENT = {
    "plain": {},
    "bidirectional": {"bidirectional": True},
    "num_layers": {"num_layers": 2},
    "no_bias": {"bias": False, "batch_first": True},
    "everything": {"num_layers": 2, "bidirectional": True, "batch_first": True},
}


@pytest.mark.parametrize("options", RECURRENT.values(), ids=RECURRENT)
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent(kind, options):
    check(kind(3, 4, **options), torch.randn(5, 2, 3))


def test_rnn_with_relu():
    check(nn.RNN(3, 4, nonlinearity="relu"), torch.randn(5, 2, 3))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_from_a_state(kind):
    state = torch.randn(4, 2, 4)
    check(
        kind(3, 4, num_layers=2, bidirectional=True),
        torch.randn(5, 2, 3),
        (state, torch.randn(4, 2, 4)) if kind is nn.LSTM else state,
    )


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_without_a_batch(kind):
    check(kind(3, 4), torch.randn(5, 3))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=["plain", "everything"])
def test_lstm_with_projections(options):
    check(nn.LSTM(3, 6, proj_size=2, **options), torch.randn(5, 2, 3))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_packed_sequences(kind, enforce_sorted, bidirectional):
    lengths = torch.tensor([5, 3, 2] if enforce_sorted else [2, 5, 3])

    def call(model: nn.Module, x: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=enforce_sorted)
        out, state = model(packed)
        assert isinstance(out, PackedSequence)
        padded, sizes = pad_packed_sequence(out)
        assert sizes.tolist() == lengths.tolist()
        return padded, state

    check(kind(3, 4, bidirectional=bidirectional), torch.randn(5, 3, 3), call=call)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_dropout_between_layers(kind):
    model = kind(3, 8, num_layers=2, dropout=0.5)
    check(copy.deepcopy(model).eval(), torch.randn(5, 2, 3))
    model, x = model.to(DEVICE), torch.randn(5, 2, 3).to(DEVICE)
    torch.manual_seed(3)
    first, second = model(x)[0].cpu(), model(x)[0].cpu()
    torch.manual_seed(3)
    again = model(x)[0].cpu()
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    assert not torch.equal(model.eval()(x)[0].cpu(), first)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_cells(kind):
    def unroll(model: nn.Module, xs: torch.Tensor) -> Any:
        state = None
        for x in xs:
            state = model(x, state)
        return state

    check(kind(3, 4), torch.randn(4, 2, 3), call=unroll)


def test_lstm_moves_with_its_flat_weights():
    model = nn.LSTM(3, 4).to(DEVICE)
    assert all(a is b for a, b in zip(model._flat_weights, model.parameters(), strict=True))
    assert {w.device.type for w in model._flat_weights} == {DEVICE}


def encoder(**options: Any) -> nn.Module:
    settings = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0, "batch_first": True} | options
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(**settings), 2)


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}, {"batch_first": False}], ids=str)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_transformer_encoder_train(options):
    check(encoder(**options), torch.randn(2, 5, 8))


@pytest.mark.parametrize("masked", [False, True])
def test_transformer_encoder_fast_path(masked):
    def infer(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(5).to(x.device) if masked else None
        with torch.no_grad():
            return model.eval()(x, mask=mask, is_causal=masked)

    check(encoder(), torch.randn(2, 5, 8), call=infer)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype:UserWarning")
def test_transformer_encoder_with_padding():
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])

    def padded(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x, src_key_padding_mask=padding.to(x.device))

    model = encoder()
    check(model, torch.randn(2, 5, 8), call=padded)
    model.use_nested_tensor = False  # which would write zeros where the padding is
    check(model.eval(), torch.randn(2, 5, 8), call=padded)


def test_transformer():
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def call(model: nn.Module, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(4, device=src.device)
        return model(src, tgt, tgt_mask=mask, tgt_is_causal=True)

    check(model, torch.randn(2, 5, 8), torch.randn(2, 4, 8), call=call)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"kdim": 6, "vdim": 4}, {"add_bias_kv": True, "add_zero_attn": True}, {"bias": False}], ids=str
)
def test_multihead_attention(options, need_weights):
    def call(model: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return model(q, k, v, need_weights=need_weights, average_attn_weights=False)

    k, v = options.get("kdim", 8), options.get("vdim", 8)
    inputs = torch.randn(5, 2, 8), torch.randn(6, 2, k), torch.randn(6, 2, v)
    check(nn.MultiheadAttention(8, 2, **options), *inputs, call=call)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_multihead_self_attention_with_masks(mode):
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    causal = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)

    def call(model: nn.Module, x: torch.Tensor) -> Any:
        masks = {"key_padding_mask": padding.to(x.device), "attn_mask": causal.to(x.device)}
        with torch.set_grad_enabled(mode == "train"):
            return model.train(mode == "train")(x, x, x, **masks)

    check(nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 4, 8), call=call)


class UNet(nn.Module):
    """Down and up again: transposed convolutions, resizing, group norm, concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.SiLU())
        self.up = nn.ConvTranspose2d(4, 4, 4, 2, 1)
        self.resize = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.out = nn.Conv2d(10, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(x)
        return self.out(torch.cat([x, self.up(y), self.resize(y)], 1))


def test_unet():
    check(UNet(), torch.randn(2, 2, 8, 8))


def test_text_classifier():
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 6, padding_idx=0)
            self.bag = nn.EmbeddingBag(11, 6, mode="mean")
            self.head = nn.Sequential(nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 3), nn.LogSoftmax(-1))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            mean = self.embed(ids).masked_fill((ids == 0)[..., None], 0).mean(1)
            return self.head(torch.cat([mean, self.bag(ids)], -1))

    check(Classifier(), torch.tensor([[1, 4, 0], [10, 2, 2]]))

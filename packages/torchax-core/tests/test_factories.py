"""Every factory makes its tensor where it is told, and every operator that draws draws anew each time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from _programs import DEVICE, aten_packets, layout
from torch import nn
from torch.utils._device import _device_constructors

import torchax

Make = Callable[..., torch.Tensor]

FACTORIES: dict[str, Make] = {
    "arange": lambda **k: torch.arange(1, 7, 2, **k),
    "as_tensor": lambda **k: torch.as_tensor([[1.5, 2], [3, 4]], **k),
    "asarray": lambda **k: torch.asarray(np.arange(3), **k),
    "bartlett_window": lambda **k: torch.bartlett_window(5, **k),
    "blackman_window": lambda **k: torch.blackman_window(5, periodic=False, **k),
    "empty": lambda **k: torch.empty(2, 3, dtype=torch.int8, **k).fill_(7),
    "empty_permuted": lambda **k: torch.empty_permuted((2, 3, 4), (2, 0, 1), **k).fill_(7),
    "empty_strided": lambda **k: torch.empty_strided((2, 3), (1, 2), **k).fill_(7),
    "eye": lambda **k: torch.eye(3, 2, **k),
    "fft_fftfreq": lambda **k: torch.fft.fftfreq(5, 0.5, **k),
    "fft_rfftfreq": lambda **k: torch.fft.rfftfreq(5, 0.5, **k),
    "full": lambda **k: torch.full((2, 3), 1.5, **k),
    "hamming_window": lambda **k: torch.hamming_window(5, **k),
    "hann_window": lambda **k: torch.hann_window(5, **k),
    "kaiser_window": lambda **k: torch.kaiser_window(5, **k),
    "linspace": lambda **k: torch.linspace(3, 10, 5, **k),
    "logspace": lambda **k: torch.logspace(0, 1, 5, **k),
    "ones": lambda **k: torch.ones(2, 3, dtype=torch.bool, **k),
    "rand": lambda **k: torch.rand(2, 3, **k),
    "randint": lambda **k: torch.randint(3, 9, (4,), **k),
    "randn": lambda **k: torch.randn(2, 3, **k),
    "randperm": lambda **k: torch.randperm(7, **k),
    "scalar_tensor": lambda **k: torch.scalar_tensor(4, **k),
    "tensor": lambda **k: torch.tensor([[1, 2], [3, 4]], **k),
    "tril_indices": lambda **k: torch.tril_indices(3, 3, **k),
    "triu_indices": lambda **k: torch.triu_indices(3, 4, 1, **k),
    "zeros": lambda **k: torch.zeros(0, 3, **k),
    # composed of others
    "cosine": lambda **k: torch.signal.windows.cosine(5, **k),
    "normal": lambda **k: torch.normal(0.0, 1.0, (3,), **k),
    "Parameter": lambda **k: nn.Linear(3, 2, **k).weight.detach(),
}
OUTSIDE_CONTEXTS = {"normal"}  # PyTorch's list of what ``with torch.device`` reaches lacks it
RANDOM = {"rand", "randint", "randn", "randperm", "normal", "Parameter"}

# Of layouts that the device does not have, and one that is deprecated.
ELSEWHERE = {
    "empty_quantized", "nested_tensor", "range", "sparse_bsc_tensor", "sparse_bsr_tensor", "sparse_compressed_tensor",
    "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor",
}  # fmt: skip


def test_the_table_names_every_factory_of_pytorch():
    assert {f.__name__ for f in _device_constructors()} - ELSEWHERE <= set(FACTORIES)


@pytest.mark.parametrize("inside", [False, True], ids=["plain", "environment"])
@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_makes_its_tensor_where_it_is_told(name: str, inside: bool):
    make = FACTORIES[name]
    if inside:
        torchax.enable_globally()
    try:
        got, want = make(device=DEVICE), make(device="cpu")
        assert want.device.type == "cpu"
        assert type(make()) is torch.Tensor
        with torch.device(DEVICE):
            assert make().device.type == ("cpu" if name in OUTSIDE_CONTEXTS else DEVICE)
            assert make(device="cpu").device.type == "cpu"
        with torch.device("cpu"):
            assert make(device=DEVICE).device.type == DEVICE
    finally:
        torchax.disable_globally()
    assert got.device == torch.device(DEVICE, 0)
    assert (got.dtype, got.shape, layout(got)) == (want.dtype, want.shape, layout(want))
    if name not in RANDOM:
        torch.testing.assert_close(got.cpu(), want)


LIKE: list[Make] = [
    lambda x, **k: torch.zeros_like(x, **k),
    lambda x, **k: torch.ones_like(x, **k),
    lambda x, **k: torch.full_like(x, 3, **k),
    lambda x, **k: torch.empty_like(x, **k).fill_(2),
    lambda x, **k: torch.rand_like(x, **k) * 0,
    lambda x, **k: torch.randn_like(x, **k) * 0,
    lambda x, **k: torch.randint_like(x, 3, 4, **k),
    lambda x, **k: x.new_zeros(3, **k),
    lambda x, **k: x.new_ones((2, 2), **k),
    lambda x, **k: x.new_full((3,), 2, **k),
    lambda x, **k: x.new_empty(2, **k).fill_(1),
    lambda x, **k: x.new_empty_strided((2, 3), (1, 2), **k).fill_(1),
    lambda x, **k: x.new_tensor([1, 2], **k),
]


@pytest.mark.parametrize("make", LIKE, ids=[f"line{f.__code__.co_firstlineno}" for f in LIKE])
@pytest.mark.parametrize("source", ["cpu", DEVICE])
def test_a_factory_after_another_tensor_goes_where_that_is_or_where_it_is_told(make: Make, source: str):
    x = torch.ones(2, 3).t()
    moved = x.to(source)
    assert make(moved).device.type == source
    for target in ("cpu", DEVICE):
        got, want = make(moved, device=target, dtype=torch.float64), make(x, dtype=torch.float64)
        assert got.device.type == target
        assert layout(got) == layout(want)
        torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("name", sorted(RANDOM - {"Parameter"}))
def test_a_factory_that_draws_takes_a_generator(name: str):
    generator = torch.Generator().manual_seed(1)
    a, b = (FACTORIES[name](device=DEVICE, generator=generator) for _ in range(2))
    assert not torch.equal(a, b)
    assert torch.equal(FACTORIES[name](device=DEVICE, generator=generator.manual_seed(1)), a)


# --- draws --------------------------------------------------------------------------------------------------------------

N = 512


def zeros() -> torch.Tensor:
    return torch.zeros(N, device=DEVICE)


DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "alpha_dropout": lambda: F.alpha_dropout(zeros() + 1, 0.5, training=True),
    "alpha_dropout_": lambda: torch.alpha_dropout_(zeros() + 1, 0.5, True),
    "bernoulli": lambda: torch.bernoulli(zeros() + 0.5),
    "bernoulli_": lambda: zeros().bernoulli_(0.5),
    "binomial": lambda: torch.binomial(zeros() + 20, zeros() + 0.5),
    "cauchy": lambda: torch.ops.aten.cauchy(zeros()),
    "cauchy_": lambda: zeros().cauchy_(),
    "dropout": lambda: F.dropout(zeros() + 1, 0.5),
    "dropout_": lambda: torch.dropout_(zeros() + 1, 0.5, True),
    "exponential": lambda: torch.ops.aten.exponential(zeros()),
    "exponential_": lambda: zeros().exponential_(),
    "geometric": lambda: torch.ops.aten.geometric(zeros(), 0.3),
    "geometric_": lambda: zeros().geometric_(0.3),
    "gru": lambda: nn.GRU(2, 4, 2, dropout=0.5, device=DEVICE)(torch.ones(9, 8, 2, device=DEVICE))[0].detach(),
    "log_normal": lambda: torch.ops.aten.log_normal(zeros()),
    "log_normal_": lambda: zeros().log_normal_(),
    "lstm": lambda: nn.LSTM(2, 4, 2, dropout=0.5, device=DEVICE)(torch.ones(9, 8, 2, device=DEVICE))[0].detach(),
    "multinomial": lambda: torch.multinomial(zeros() + 1, 64, replacement=True),
    "native_dropout": lambda: torch.native_dropout(zeros() + 1, 0.5, True)[0],
    "normal": lambda: torch.normal(zeros(), zeros() + 1),
    "normal_": lambda: zeros().normal_(),
    "normal_functional": lambda: torch.ops.aten.normal_functional(zeros()),
    "poisson": lambda: torch.poisson(zeros() + 5),
    "rand": lambda: torch.rand(N, device=DEVICE),
    "rand_like": lambda: torch.rand_like(zeros()),
    "randint": lambda: torch.randint(9, (N,), device=DEVICE),
    "randint_like": lambda: torch.randint_like(zeros(), 9),
    "randn": lambda: torch.randn(N, device=DEVICE),
    "randn_like": lambda: torch.randn_like(zeros()),
    "random": lambda: torch.ops.aten.random(zeros(), 0, 1000),
    "random_": lambda: zeros().random_(0, 1000),
    "randperm": lambda: torch.randperm(N, device=DEVICE),
    "rnn_relu": lambda: nn.RNN(2, 4, 2, nonlinearity="relu", dropout=0.5, device=DEVICE)(
        torch.ones(9, 8, 2, device=DEVICE)
    )[0].detach(),
    "rnn_tanh": lambda: nn.RNN(2, 4, 2, dropout=0.5, device=DEVICE)(torch.ones(9, 8, 2, device=DEVICE))[0].detach(),
    "rrelu": lambda: torch.rrelu(zeros() - 1, training=True),
    "rrelu_": lambda: torch.rrelu_(zeros() - 1, training=True),
    "rrelu_with_noise": lambda: F.rrelu(zeros() - 1, training=True),
    "rrelu_with_noise_": lambda: F.rrelu_(zeros() - 1, training=True),
    "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(
        *[torch.ones(1, 1, 32, 8, device=DEVICE)] * 3, dropout_p=0.5
    ),
    "standard_gamma": lambda: torch._standard_gamma(zeros() + 2),
    "uniform": lambda: torch.ops.aten.uniform(zeros()),
    "uniform_": lambda: zeros().uniform_(),
    # above aten
    "Dirichlet": lambda: torch.distributions.Dirichlet(torch.ones(3, device=DEVICE)).sample((64,)),
    "dropout2d": lambda: F.dropout2d(torch.ones(8, 64, 2, 2, device=DEVICE), 0.5),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(torch.ones(8, 64, 2, device=DEVICE), 0.5, training=True),
    "feature_alpha_dropout_": lambda: torch.feature_alpha_dropout_(torch.ones(8, 64, 2, device=DEVICE), 0.5, True),
    "feature_dropout": lambda: torch.feature_dropout(torch.ones(8, 64, 2, device=DEVICE), 0.5, True),
    "feature_dropout_": lambda: torch.feature_dropout_(torch.ones(8, 64, 2, device=DEVICE), 0.5, True),
    "fractional_max_pool2d": lambda: F.fractional_max_pool2d(
        torch.arange(4096.0, device=DEVICE).reshape(1, 1, 64, 64), 2, output_ratio=(0.6, 0.6)
    ),
    "gumbel_softmax": lambda: F.gumbel_softmax(torch.zeros(4, 8, device=DEVICE)),
    "init": lambda: nn.init.trunc_normal_(zeros()),
}

# Kernels of other devices, and the same under another name.
OTHER_KERNELS = {
    "_cudnn_rnn", "miopen_rnn", "_fused_dropout", "_standard_gamma", "rrelu_with_noise_functional",
    "_efficient_attention_forward", "_flash_attention_forward", "_flash_attention_forward_no_dropout_inplace",
    "_cudnn_attention_backward", "_cudnn_attention_forward", "_cudnn_init_dropout_state", "_fill_mem_eff_dropout_mask_",
    "_fused_sdp_choice", "_lstm_mps", "_nested_tensor_softmax_with_shape", "_sample_dirichlet",
    "_triton_scaled_dot_attention",
}  # fmt: skip


def test_the_table_names_every_operator_that_draws():
    drawing = {
        name
        for name, packet in aten_packets()
        if any(torch.Tag.nondeterministic_seeded in getattr(packet, o).tags for o in packet.overloads())
    }
    assert {n for n in drawing if not n.startswith("_scaled_dot_product")} - OTHER_KERNELS <= set(DRAWS)


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_differs_from_the_last_and_repeats_from_its_seed(name: str):
    torch.manual_seed(5)
    first, second = DRAWS[name](), DRAWS[name]()
    assert first.device.type == DEVICE
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(DRAWS[name](), first)
    state = torch.jax.get_rng_state()
    third = DRAWS[name]()
    torch.jax.set_rng_state(state)
    assert torch.equal(DRAWS[name](), third)

"""``torch.autocast("jax")``: each operator of PyTorch's cast lists for cuda, by what it does to dtypes.

Source of the lists: https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from _programs import DEVICE, ramp

from torchax import autocast

LOW, FULL = torch.bfloat16, torch.float32
Call = Callable[..., Any]
aten = torch.ops.aten


def some(*shape: int, dtype: torch.dtype = FULL) -> torch.Tensor:
    """Values between 0 and 1."""
    return (ramp(DEVICE, *shape) / (torch.Size(shape).numel() + 1)).to(dtype)


def cell(fn: Call, gates: int, lstm: bool = False) -> Any:
    state = (some(2, 3), some(2, 3)) if lstm else some(2, 3)
    return fn(some(2, 4), state, some(3 * gates, 4), some(3 * gates, 3), some(3 * gates), some(3 * gates))


# Given float32, these compute in the lower precision.
LOWER: dict[str, Call] = {
    "_convolution": lambda: torch._convolution(
        some(1, 2, 5), some(3, 2, 2), None, [1], [0], [1], False, [0], 1, False, False, False, False
    ),
    "conv1d": lambda: F.conv1d(some(1, 2, 5), some(3, 2, 2)),
    "conv2d": lambda: F.conv2d(some(1, 2, 5, 5), some(3, 2, 2, 2)),
    "conv3d": lambda: F.conv3d(some(1, 2, 3, 3, 3), some(3, 2, 2, 2, 2)),
    "conv_tbc": lambda: torch.conv_tbc(some(5, 1, 2), some(2, 2, 3), some(3)),
    "conv_transpose1d": lambda: F.conv_transpose1d(some(1, 2, 5), some(2, 3, 2)),
    "conv_transpose2d": lambda: F.conv_transpose2d(some(1, 2, 5, 5), some(2, 3, 2, 2)),
    "conv_transpose3d": lambda: F.conv_transpose3d(some(1, 2, 3, 3, 3), some(2, 3, 2, 2, 2)),
    "convolution": lambda: torch.convolution(some(1, 2, 5), some(3, 2, 2), None, [1], [0], [1], False, [0], 1),
    "prelu": lambda: F.prelu(some(2, 3), some(1)),
    "addmm": lambda: torch.addmm(some(2, 2), some(2, 3), some(3, 2)),
    "addmv": lambda: torch.addmv(some(2), some(2, 3), some(3)),
    "addr": lambda: torch.addr(some(2, 3), some(2), some(3)),
    "matmul": lambda: some(2, 3) @ some(3, 2),
    "einsum": lambda: torch.einsum("ij,jk->ik", some(2, 3), some(3, 2)),
    "mm": lambda: torch.mm(some(2, 3), some(3, 2)),
    "mv": lambda: torch.mv(some(2, 3), some(3)),
    "linalg_vecdot": lambda: torch.linalg.vecdot(some(2, 3), some(2, 3)),
    "linear": lambda: F.linear(some(2, 3), some(4, 3), some(4)),
    "addbmm": lambda: torch.addbmm(some(2, 2), some(3, 2, 3), some(3, 3, 2)),
    "baddbmm": lambda: torch.baddbmm(some(3, 2, 2), some(3, 2, 3), some(3, 3, 2)),
    "bmm": lambda: torch.bmm(some(3, 2, 3), some(3, 3, 2)),
    "chain_matmul": lambda: aten.chain_matmul([some(2, 3), some(3, 2), some(2, 2)]),
    "linalg_multi_dot": lambda: torch.linalg.multi_dot([some(2, 3), some(3, 2), some(2, 2)]),
    "lstm_cell": lambda: cell(torch.lstm_cell, 4, lstm=True)[0],
    "gru_cell": lambda: cell(torch.gru_cell, 3),
    "rnn_tanh_cell": lambda: cell(torch.rnn_tanh_cell, 1),
    "rnn_relu_cell": lambda: cell(torch.rnn_relu_cell, 1),
    "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(*[some(1, 1, 4, 8)] * 3),
}
OF_OTHER_DEVICES = {"_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "scaled_grouped_mm"}  # kernels of cuda


def low(*shape: int) -> torch.Tensor:
    return some(*shape, dtype=LOW)


# Given the lower precision, these compute in float32.
FLOAT32: dict[str, Call] = {
    **{
        name: lambda name=name: getattr(torch, name)(low(3))
        for name in (
            "acos", "asin", "erfinv", "cosh", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
            "sinh", "tan",
        )
    },
    "pow": lambda: (low(3) ** 2, low(3) ** low(3), 2 ** low(3)),
    "softplus": lambda: F.softplus(low(3)),
    "layer_norm": lambda: F.layer_norm(low(2, 3), (3,)),
    "native_layer_norm": lambda: torch.native_layer_norm(low(2, 3), (3,), None, None, 1e-5)[0],
    "group_norm": lambda: F.group_norm(low(2, 4), 2),
    "rms_norm": lambda: F.rms_norm(low(2, 3), (3,)),
    "frobenius_norm": lambda: aten.frobenius_norm.dim(low(2, 3), [0, 1]),
    "nuclear_norm": lambda: (aten.nuclear_norm(low(2, 3)), aten.nuclear_norm.dim(low(2, 3), [0, 1])),
    "cosine_similarity": lambda: F.cosine_similarity(low(2, 3), low(2, 3)),
    "poisson_nll_loss": lambda: F.poisson_nll_loss(low(3), low(3)),
    "cosine_embedding_loss": lambda: F.cosine_embedding_loss(low(2, 3), low(2, 3), low(2)),
    "nll_loss": lambda: F.nll_loss(low(2, 3), torch.tensor([0, 2], device=DEVICE)),
    "nll_loss2d": lambda: F.nll_loss(low(2, 3, 1, 1), torch.tensor([[[0]], [[2]]], device=DEVICE)),
    "hinge_embedding_loss": lambda: F.hinge_embedding_loss(low(3), low(3)),
    "kl_div": lambda: F.kl_div(low(2, 3), low(2, 3), reduction="sum"),
    "l1_loss": lambda: F.l1_loss(low(3), low(3)),
    "smooth_l1_loss": lambda: F.smooth_l1_loss(low(3), low(3)),
    "huber_loss": lambda: F.huber_loss(low(3), low(3)),
    "mse_loss": lambda: F.mse_loss(low(3), low(3)),
    "margin_ranking_loss": lambda: F.margin_ranking_loss(low(3), low(3), low(3)),
    "multilabel_margin_loss": lambda: F.multilabel_margin_loss(low(3), torch.tensor([0, 2, -1], device=DEVICE)),
    "soft_margin_loss": lambda: F.soft_margin_loss(low(3), low(3)),
    "triplet_margin_loss": lambda: F.triplet_margin_loss(low(2, 3), low(2, 3), low(2, 3)),
    "multi_margin_loss": lambda: F.multi_margin_loss(low(2, 3), torch.tensor([0, 2], device=DEVICE)),
    "binary_cross_entropy_with_logits": lambda: F.binary_cross_entropy_with_logits(low(3), low(3)),
    "dist": lambda: torch.dist(low(3), low(3) * 2),
    "pdist": lambda: torch.pdist(low(3, 2)),
    "cdist": lambda: torch.cdist(low(2, 3), low(2, 3)),
    "renorm": lambda: torch.renorm(low(2, 3), 2, 0, 1.0),
    "logsumexp": lambda: torch.logsumexp(low(2, 3), 1),
    "upsample_nearest1d": lambda: F.interpolate(low(1, 1, 4), scale_factor=2),
    "upsample_nearest2d": lambda: F.interpolate(low(1, 1, 4, 4), scale_factor=2),
    "upsample_nearest3d": lambda: F.interpolate(low(1, 1, 2, 2, 2), scale_factor=2),
    "upsample_linear1d": lambda: F.interpolate(low(1, 1, 4), scale_factor=2, mode="linear"),
    "upsample_bilinear2d": lambda: F.interpolate(low(1, 1, 4, 4), scale_factor=2, mode="bilinear"),
    "upsample_trilinear3d": lambda: F.interpolate(low(1, 1, 2, 2, 2), scale_factor=2, mode="trilinear"),
    "upsample_bicubic2d": lambda: F.interpolate(low(1, 1, 4, 4), scale_factor=2, mode="bicubic"),
}  # fmt: skip

# The same, unless the caller gives a dtype.
FLOAT32_BY_DTYPE: dict[str, Call] = {
    "prod": lambda **k: (low(2, 3).prod(**k), low(2, 3).prod(1, **k)),
    "softmax": lambda **k: torch.softmax(low(2, 3), 1, **k),
    "log_softmax": lambda **k: torch.log_softmax(low(2, 3), 1, **k),
    "cumprod": lambda **k: low(2, 3).cumprod(1, **k),
    "cumsum": lambda **k: low(2, 3).cumsum(1, **k),
    "linalg_vector_norm": lambda **k: torch.linalg.vector_norm(low(2, 3), **k),
    "linalg_matrix_norm": lambda **k: (
        torch.linalg.matrix_norm(low(2, 3), 1, **k),
        torch.linalg.matrix_norm(low(2, 3), **k),
    ),
    "sum": lambda **k: (low(2, 3).sum(**k), low(2, 3).sum(1, **k)),
}

# Given both, these take the wider.
PROMOTE: dict[str, Call] = {
    "addcdiv": lambda a, b: torch.addcdiv(a(3), b(3), a(3)),
    "addcmul": lambda a, b: torch.addcmul(a(3), b(3), a(3)),
    "atan2": lambda a, b: torch.atan2(a(3), b(3)),
    "bilinear": lambda a, b: torch.bilinear(a(2, 3), b(2, 3), a(4, 3, 3), None),
    "cross": lambda a, b: torch.cross(a(2, 3), b(2, 3), dim=1),
    "dot": lambda a, b: torch.dot(a(3), b(3)),
    "grid_sampler": lambda a, b: F.grid_sample(a(1, 1, 4, 4), b(1, 2, 2, 2), align_corners=False),
    "index_put": lambda a, b: torch.index_put(a(3), (torch.tensor([1], device=DEVICE),), b(1)),
    "tensordot": lambda a, b: torch.tensordot(a(2, 3), b(3, 2), 1),
    "scatter_add": lambda a, b: torch.scatter_add(a(3), 0, torch.tensor([1], device=DEVICE), b(1)),
    "cat": lambda a, b: torch.cat([a(3), b(3)]),
    "stack": lambda a, b: torch.stack([a(3), b(3)]),
}


def dtypes(out: Any) -> set[torch.dtype]:
    return {t.dtype for t in (out if isinstance(out, tuple) else (out,))}


def test_the_tables_are_the_lists():
    for table, names in (
        (LOWER, autocast._LOWER),
        (FLOAT32, autocast._FLOAT32),
        (FLOAT32_BY_DTYPE, autocast._FLOAT32_BY_DTYPE),
        (PROMOTE, autocast._PROMOTE),
    ):
        assert set(table) == {n.partition(".")[0] for n in names} - OF_OTHER_DEVICES


@pytest.mark.parametrize("dtype", [LOW, torch.float16], ids=str)
@pytest.mark.parametrize("name", LOWER)
def test_computed_in_the_lower_precision(name: str, dtype: torch.dtype):
    with torch.autocast(DEVICE, dtype=dtype):
        assert dtypes(LOWER[name]()) == {dtype}
        with torch.autocast(DEVICE, enabled=False):
            assert dtypes(LOWER[name]()) == {FULL}


@pytest.mark.parametrize("name", FLOAT32)
def test_computed_in_float32(name: str):
    with torch.autocast(DEVICE, dtype=LOW):
        assert dtypes(FLOAT32[name]()) == {FULL}


@pytest.mark.parametrize("name", FLOAT32_BY_DTYPE)
def test_computed_in_float32_unless_told(name: str):
    with torch.autocast(DEVICE, dtype=LOW):
        assert dtypes(FLOAT32_BY_DTYPE[name]()) == {FULL}
        if "norm" not in name:  # which refuse a narrower dtype than their input's
            assert dtypes(FLOAT32_BY_DTYPE[name](dtype=torch.float16)) == {torch.float16}


@pytest.mark.parametrize("name", PROMOTE)
def test_computed_in_the_widest(name: str):
    with torch.autocast(DEVICE, dtype=LOW):
        assert dtypes(PROMOTE[name](low, some)) == {FULL}
        assert dtypes(PROMOTE[name](some, low)) == {FULL}
        assert dtypes(PROMOTE[name](low, low)) == {LOW}


def test_what_is_in_no_list_stays_as_it_is():
    with torch.autocast(DEVICE, dtype=LOW):
        for fn in (
            torch.relu,
            torch.sin,
            torch.neg,
            torch.sqrt,
            torch.clone,
            lambda x: x + 1,
            lambda x: x.t(),
        ):
            for x in (some(2, 3), low(2, 3), some(2, 3, dtype=torch.float64)):
                assert fn(x).dtype == x.dtype
        assert (some(2, 3, dtype=torch.float64) @ some(3, 2, dtype=torch.float64)).dtype == torch.float64

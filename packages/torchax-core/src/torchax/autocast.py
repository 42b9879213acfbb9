"""``torch.autocast("jax")``: which operators run in the lower precision, which in float32.

Source: the lists of https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_LOWER = [
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "scaled_dot_product_attention",
]

_FLOAT32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "rms_norm",
]

# These take a dtype= of their own: float32 unless the caller says.
_FLOAT32_BY_DTYPE = [
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
]

_PROMOTE = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
    "cat",
    "stack",
    "scaled_grouped_mm",
]

_library: list[torch.library.Library] = []
_KEY = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]


def _overload(name: str) -> Any | None:
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return None if found is None else getattr(found, overload or "default", None)


def _eligible(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.device.type == "jax" and t.is_floating_point() and t.dtype != torch.float64


def _cast(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, (list, tuple)):
        return [_cast(y, dtype) for y in x]
    return x.to(dtype) if _eligible(x) and x.dtype != dtype else x


def _excluded() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY))


def _lower(op: Any, *args: Any, **kwargs: Any) -> Any:
    dtype = torch.get_autocast_dtype("jax")
    with _excluded():
        return op(*(_cast(a, dtype) for a in args), **{k: _cast(v, dtype) for k, v in kwargs.items()})


def _float32(op: Any, *args: Any, **kwargs: Any) -> Any:
    with _excluded():
        return op(*(_cast(a, torch.float32) for a in args), **{k: _cast(v, torch.float32) for k, v in kwargs.items()})


def _by_dtype(op: Any, *args: Any, **kwargs: Any) -> Any:
    names = [a.name for a in op._schema.arguments]
    position = names.index("dtype")
    given = args[position] if position < len(args) else kwargs.get("dtype")
    with _excluded():
        if given is None and _eligible(args[0]):
            if position < len(args):
                args = (*args[:position], torch.float32, *args[position + 1 :])
            else:
                kwargs = {**kwargs, "dtype": torch.float32}
        return op(*args, **kwargs)


def _promote(op: Any, *args: Any, **kwargs: Any) -> Any:
    flat = [t for a in (*args, *kwargs.values()) for t in (a if isinstance(a, (list, tuple)) else [a])]
    dtypes = {t.dtype for t in flat if _eligible(t)}
    dtype = torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("jax")
    with _excluded():
        if len(dtypes) > 1:
            return op(*(_cast(a, dtype) for a in args), **{k: _cast(v, dtype) for k, v in kwargs.items()})
        return op(*args, **kwargs)


def _refuse_bce(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Combine the sigmoid and "
        "the loss with torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which are safe."
    )


def register() -> None:
    """Register the kernels; all other operators fall through."""
    fallthrough = torch.library.Library("_", "IMPL")
    fallthrough.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    _library.extend([fallthrough, aten])
    for names, rule in ((_LOWER, _lower), (_FLOAT32, _float32), (_FLOAT32_BY_DTYPE, _by_dtype), (_PROMOTE, _promote)):
        for name in names:
            op = _overload(name)
            if op is not None:  # a newer or older PyTorch may lack one
                aten.impl(name, functools.partial(rule, op), "AutocastPrivateUse1")
    aten.impl("binary_cross_entropy", _refuse_bce, "AutocastPrivateUse1")

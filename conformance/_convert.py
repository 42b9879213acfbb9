"""Between torch tensors and JAX arrays, by their bits; the torch side of what `torchax.ops.mappings` does."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import torch

_BITS = {1: torch.uint8, 2: torch.int16}
_NUMPY = {
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
    torch.float8_e8m0fnu: np.dtype(ml_dtypes.float8_e8m0fnu),
}
_TORCH = {v: k for k, v in _NUMPY.items()}


class NotReplayable(Exception):
    """The call has an argument or a result that no `jax.Array` can hold (sparse, quantized, complex32)."""


def to_numpy_dtype(dtype: torch.dtype) -> np.dtype:
    if dtype in _NUMPY:
        return _NUMPY[dtype]
    name = str(dtype).removeprefix("torch.")
    if dtype == torch.complex32 or not hasattr(np, name):
        raise NotReplayable(name)
    return np.dtype(name)


def to_torch_dtype(dtype: np.dtype) -> torch.dtype:
    return _TORCH.get(dtype) or getattr(torch, dtype.name)


def to_numpy(x: torch.Tensor) -> np.ndarray:
    if x.layout != torch.strided or x.is_quantized or x.is_nested:
        raise NotReplayable(str(x.layout))
    dtype = to_numpy_dtype(x.dtype)
    x = x.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return x.view(_BITS[dtype.itemsize]).numpy().view(dtype) if x.dtype in _NUMPY else x.numpy()


def to_jax(x: torch.Tensor) -> jax.Array:
    return jax.numpy.asarray(to_numpy(x).copy())


def to_torch(x: Any) -> torch.Tensor:
    x = np.array(x)
    dtype = to_torch_dtype(x.dtype)
    if dtype in _NUMPY:
        return torch.from_numpy(x.view(f"u{x.itemsize}").astype(f"i{x.itemsize}")).view(dtype)
    return torch.from_numpy(x)

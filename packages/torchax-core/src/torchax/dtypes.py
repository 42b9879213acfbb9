"""The one table of PyTorch dtypes and their JAX (numpy) twins."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

_PAIRS: list[tuple[torch.dtype, str | type]] = [
    (torch.bool, "bool"),
    (torch.uint8, "uint8"),
    (torch.uint16, "uint16"),
    (torch.uint32, "uint32"),
    (torch.uint64, "uint64"),
    (torch.int8, "int8"),
    (torch.int16, "int16"),
    (torch.int32, "int32"),
    (torch.int64, "int64"),
    (torch.float16, "float16"),
    (torch.bfloat16, ml_dtypes.bfloat16),
    (torch.float32, "float32"),
    (torch.float64, "float64"),
    (torch.complex64, "complex64"),
    (torch.complex128, "complex128"),
    (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
    (torch.float8_e4m3fnuz, ml_dtypes.float8_e4m3fnuz),
    (torch.float8_e5m2, ml_dtypes.float8_e5m2),
    (torch.float8_e5m2fnuz, ml_dtypes.float8_e5m2fnuz),
    (torch.float8_e8m0fnu, ml_dtypes.float8_e8m0fnu),
    (torch.float4_e2m1fn_x2, ml_dtypes.float4_e2m1fn),
]

TORCH_DTYPE_TO_JAX: dict[torch.dtype, np.dtype] = {t: np.dtype(j) for t, j in _PAIRS}
JAX_DTYPE_TO_TORCH: dict[np.dtype, torch.dtype] = {np.dtype(j): t for t, j in _PAIRS}

# What a 64-bit dtype is stored as where JAX holds 32 bits (performance mode, a foreign trace without x64).
NARROWED: dict[np.dtype, np.dtype] = {
    np.dtype(wide): np.dtype(narrow)
    for wide, narrow in [
        ("int64", "int32"),
        ("uint64", "uint32"),
        ("float64", "float32"),
        ("complex128", "complex64"),
    ]
}


def t2j_dtype(dtype: torch.dtype) -> np.dtype:
    """The JAX dtype of a PyTorch dtype.

    Raises:
        TypeError: JAX has no such dtype (complex32, quantized types, sub-byte integers).
    """
    try:
        return TORCH_DTYPE_TO_JAX[dtype]
    except KeyError:
        known = ", ".join(str(t).removeprefix("torch.") for t in TORCH_DTYPE_TO_JAX)
        raise TypeError(f"{dtype} has no JAX twin, so it cannot live on device 'jax'. Supported: {known}") from None


def j2t_dtype(dtype: object) -> torch.dtype:
    """The PyTorch dtype of a JAX dtype.

    Raises:
        TypeError: PyTorch has no such dtype (int4, a PRNG key, ...).
    """
    try:
        return JAX_DTYPE_TO_TORCH[np.dtype(dtype)]  # type: ignore[call-overload]
    except (KeyError, TypeError):
        raise TypeError(
            f"JAX dtype {dtype} has no PyTorch twin, so an array of it cannot become a torchax.Tensor"
        ) from None

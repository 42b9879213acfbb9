"""Conversions of tensors, arrays and dtypes."""

from __future__ import annotations

from typing import Any

import jax
import torch

from torchax import transfer
from torchax.dtypes import JAX_DTYPE_TO_TORCH, TORCH_DTYPE_TO_JAX, j2t_dtype, t2j_dtype
from torchax.tensor import Tensor

__all__ = ["JAX_DTYPE_TO_TORCH", "TORCH_DTYPE_TO_JAX", "j2t", "j2t_dtype", "t2j", "t2j_dtype"]


def t2j(t: torch.Tensor, use_dlpack: bool = True) -> jax.Array:
    """A CPU tensor as an array, sharing its memory where its layout allows (``use_dlpack``), else copied by its bits.

    While they share memory, do not write to ``t``: JAX takes arrays to be immutable.
    """
    if isinstance(t, Tensor):
        return t.jax()
    return transfer.alias_to_array(t) if use_dlpack else transfer.to_array(t)


def j2t(x: Any, use_dlpack: bool = True) -> torch.Tensor:
    """An array as a CPU tensor, sharing its memory where it can (``use_dlpack``), else copied by its bits.

    While they share memory, do not write to the result.
    """
    return transfer.alias_to_torch(x) if use_dlpack else transfer.to_torch(x)

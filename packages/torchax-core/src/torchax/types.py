"""Type aliases: what may stand on either side of the crossing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias

import jax
import jax.numpy as jnp
import torch

from torchax.tensor import Tensor

P = ParamSpec("P")

TorchValue: TypeAlias = torch.Tensor | Tensor | torch.dtype | Callable[..., Any] | int | float | bool | None
TorchCallable: TypeAlias = Callable[P, TorchValue]
JaxValue: TypeAlias = jax.Array | jnp.dtype | Callable[..., Any] | int | float | bool | None
JaxCallable: TypeAlias = Callable[P, JaxValue]

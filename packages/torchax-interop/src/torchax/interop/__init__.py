"""Crossing between PyTorch and JAX, in both directions.

``jax_view`` / ``torch_view`` look at the same data from the other side; ``call_jax`` / ``call_torch`` call a function
of the other side, with gradients.
"""

from torchax._coexistence import check as _check

_check()

from torchax.interop._calls import call_jax, call_torch
from torchax.interop._custom_ops import jax_op
from torchax.interop._views import jax_view, torch_view

__version__ = "0.1.0"

__all__ = ["call_jax", "call_torch", "jax_op", "jax_view", "torch_view"]

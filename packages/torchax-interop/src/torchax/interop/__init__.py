"""Crossing between PyTorch and JAX, in both directions.

``jax_view`` / ``torch_view`` look at the same data from the other side; ``call_jax`` / ``call_torch`` call a function
of the other side, with gradients; ``jax_jit`` compiles a torch function with the state that it reaches.
"""

from torchax._coexistence import check as _check

_check()

from torchax.interop import _checkpoint, _dynamo, _higher_order
from torchax.interop._calls import call_jax, call_torch
from torchax.interop._compile import CompileOptions, compile
from torchax.interop._control_flow import fori_loop
from torchax.interop._custom_ops import jax_op
from torchax.interop._jit import jax_jit
from torchax.interop._module import JittableModule, extract_all_buffers, extract_jax, set_all_buffers
from torchax.interop._transforms import (
    gradient_checkpoint,
    j2t_autograd,
    jax_shard_map,
    jax_value_and_grad,
    shard_map,
    wrap_jax_jit,
)
from torchax.interop._views import jax_view, jax_view_elem, torch_view, torch_view_elem

_dynamo.register()
_higher_order.register()
_checkpoint.register()

__version__ = "0.1.0"

__all__ = [
    "CompileOptions",
    "JittableModule",
    "call_jax",
    "call_torch",
    "compile",
    "extract_all_buffers",
    "extract_jax",
    "fori_loop",
    "gradient_checkpoint",
    "j2t_autograd",
    "jax_jit",
    "jax_op",
    "jax_shard_map",
    "jax_value_and_grad",
    "jax_view",
    "jax_view_elem",
    "set_all_buffers",
    "shard_map",
    "torch_view",
    "torch_view_elem",
    "wrap_jax_jit",
]

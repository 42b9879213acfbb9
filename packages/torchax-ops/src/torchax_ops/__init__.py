"""PyTorch's operators as pure functions on ``jax.Array``, without PyTorch.

This page is the table of contents: each line is a section of PyTorch's own operator list.
"""
# ruff: noqa: F403

from torchax_ops._promotion import default_float_dtype, promote_types, result_type
from torchax_ops._registry import Op, lookup, register, registered

__version__ = "0.1.0"

"""PyTorch's operators as pure functions on ``jax.Array``, without PyTorch.

This page is the table of contents: each line is a section of PyTorch's own operator list.
"""
# ruff: noqa: F403

from torchax_ops._promotion import cast, default_float_dtype, promote_types, result_type
from torchax_ops._registry import Op, key_parameter, lookup, register, registered
from torchax_ops.amp import *
from torchax_ops.bitwise import *
from torchax_ops.comparison import *
from torchax_ops.conversion import *
from torchax_ops.creation import *
from torchax_ops.fft import *
from torchax_ops.foreach import *
from torchax_ops.grouped_matmul import *
from torchax_ops.histogram import *
from torchax_ops.indexing import *
from torchax_ops.linalg import *
from torchax_ops.linalg_decompositions import *
from torchax_ops.matmul import *
from torchax_ops.nn.activation import *
from torchax_ops.nn.attention import *
from torchax_ops.nn.convolution import *
from torchax_ops.nn.ctc import *
from torchax_ops.nn.embedding import *
from torchax_ops.nn.grid import *
from torchax_ops.nn.loss import *
from torchax_ops.nn.normalization import *
from torchax_ops.nn.padding import *
from torchax_ops.nn.pooling import *
from torchax_ops.nn.resize import *
from torchax_ops.nn.rnn import *
from torchax_ops.optim import *
from torchax_ops.pointwise import *
from torchax_ops.random import *
from torchax_ops.rearrange import *
from torchax_ops.reduction import *
from torchax_ops.scatter import *
from torchax_ops.segment import *
from torchax_ops.shape import *
from torchax_ops.sorting import *
from torchax_ops.special import *
from torchax_ops.special_polynomials import *
from torchax_ops.vision import *

__version__ = "0.1.0"

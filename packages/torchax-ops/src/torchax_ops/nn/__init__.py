"""The operators of ``torch.nn``: layers, normalization, pooling, attention, losses, recurrence."""
# ruff: noqa: F403

from torchax_ops.nn.attention import *
from torchax_ops.nn.convolution import *
from torchax_ops.nn.ctc import *
from torchax_ops.nn.loss import *
from torchax_ops.nn.normalization import *
from torchax_ops.nn.pooling import *
from torchax_ops.nn.rnn import *

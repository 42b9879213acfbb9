"""Training PyTorch models with optax, as JAX functions that compile whole."""

from torchax._coexistence import check as _check

_check()

from torchax.train import sharding
from torchax.train._remat import mark_sharding, remat
from torchax.train._scan import ScannedModule, scan_layers
from torchax.train._step import make_train_step

__version__ = "0.1.0"

__all__ = ["ScannedModule", "make_train_step", "mark_sharding", "remat", "scan_layers", "sharding"]

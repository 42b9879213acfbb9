"""Training PyTorch models with optax, as JAX functions that compile whole."""

from torchax._coexistence import check as _check

_check()

from torchax.train import distributed, sharding
from torchax.train._data import process_part
from torchax.train._optim import NoTwin, to_optax
from torchax.train._remat import mark_sharding, remat
from torchax.train._scan import ScannedModule, scan_layers
from torchax.train._step import make_train_step
from torchax.train._trainer import NotFinite, Trainer

__version__ = "0.1.0"

__all__ = [
    "NoTwin",
    "NotFinite",
    "ScannedModule",
    "Trainer",
    "distributed",
    "make_train_step",
    "mark_sharding",
    "process_part",
    "remat",
    "scan_layers",
    "sharding",
    "to_optax",
]

"""Training PyTorch models with optax, as JAX functions that compile whole."""

from torchax._coexistence import check as _check

_check()

from torchax.train._step import make_train_step

__version__ = "0.1.0"

__all__ = ["make_train_step"]

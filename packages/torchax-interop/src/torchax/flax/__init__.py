"""flax modules as PyTorch modules, and PyTorch modules as flax modules or ``(params, apply)``.

``FlaxNNModule`` takes any ``(init, apply)`` pair and needs no flax; ``as_nnx`` needs it (``pip install torchax-interop[flax]``).
"""

from torchax._coexistence import check as _check

_check()

from torchax.flax._functional import Apply, functional
from torchax.flax._module import FlaxNNModule
from torchax.flax._nnx import as_nnx

__all__ = ["Apply", "FlaxNNModule", "as_nnx", "functional"]

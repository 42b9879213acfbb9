"""Checkpoints: sharded, atomic and asynchronous, through orbax; PyTorch's and safetensors files in and out."""

from torchax._coexistence import check as _check

_check()

from torchax.checkpoint._errors import CheckpointError
from torchax.checkpoint._manager import CheckpointManager
from torchax.checkpoint._safetensors import save_safetensors
from torchax.checkpoint._saving import load_checkpoint, save_checkpoint

__all__ = ["CheckpointError", "CheckpointManager", "load_checkpoint", "save_checkpoint", "save_safetensors"]

"""PyTorch on JAX: importing this package makes ``jax`` a PyTorch device.

This page is the table of contents. ``torchax.interop`` and ``torchax.train`` come with packages of their own.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

# Other distributions add torchax/interop, torchax/train ... from folders of their own.
__path__ = pkgutil.extend_path(__path__, __name__)

from torchax import _coexistence

_coexistence.check()

import torch

from torchax import amp, backend, config, indexing, ops, pytree, tensor, types, util, view
from torchax.environment import Environment, default_env
from torchax.errors import OperatorNotFound
from torchax.modes import (
    disable_globally,
    disable_temporarily,
    enable_accuracy_mode,
    enable_globally,
    enable_performance_mode,
)
from torchax.tensor import Tensor

__version__ = "0.1.0"
VERSION = __version__

__all__ = [
    "VERSION",
    "Environment",
    "OperatorNotFound",
    "Tensor",
    "__version__",
    "amp",
    "backend",
    "config",
    "default_env",
    "disable_globally",
    "disable_temporarily",
    "enable_accuracy_mode",
    "enable_globally",
    "enable_performance_mode",
    "indexing",
    "ops",
    "pytree",
    "tensor",
    "torch",
    "types",
    "util",
    "view",
]

# Names that higher packages provide: name -> (module, distribution that brings it).
_LAZY = {
    "interop": ("torchax.interop", "torchax-interop"),
    "export": ("torchax.export", "torchax-interop"),
    "flax": ("torchax.flax", "torchax-interop"),
    "train": ("torchax.train", "torchax-train"),
    "checkpoint": ("torchax.checkpoint", "torchax-train"),
    "mesh_util": ("torchax.mesh_util", "torchax-train"),
    "extract_jax": ("torchax.interop:extract_jax", "torchax-interop"),
    "compile": ("torchax.interop:compile", "torchax-interop"),
    "CompileOptions": ("torchax.interop:CompileOptions", "torchax-interop"),
    "save_checkpoint": ("torchax.checkpoint:save_checkpoint", "torchax-train"),
    "load_checkpoint": ("torchax.checkpoint:load_checkpoint", "torchax-train"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'torchax' has no attribute {name!r}")
    target, distribution = _LAZY[name]
    module, _, attribute = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name != module:
            raise
        raise AttributeError(f"torchax.{name} comes with another package: pip install {distribution}") from e
    return getattr(found, attribute) if attribute else found

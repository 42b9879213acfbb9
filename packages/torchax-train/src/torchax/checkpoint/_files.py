"""Files of other makers: PyTorch's and safetensors."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from etils import epath

from torchax.checkpoint import _safetensors
from torchax.checkpoint._arrays import Spec, become
from torchax.checkpoint._errors import CheckpointError
from torchax.checkpoint._matching import match
from torchax.checkpoint._structure import leaves, put_together, take_apart
from torchax.dtypes import TORCH_DTYPE_TO_JAX
from torchax.transfer import numpy_view

Reader = Callable[[epath.Path, Any], Any]


def reader_of(path: epath.Path) -> Reader | None:
    """How to read what is at ``path``; None for a folder of torchax's own."""
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        return _read_safetensors
    if path.is_dir():
        return _read_safetensors if _safetensors.in_folder(path) else None
    return _read_torch


def _read_safetensors(path: epath.Path, like: Any) -> Any:
    entries = _safetensors.entries(_safetensors.in_folder(path) or path if path.is_dir() else path)
    tree = take_apart(entries)
    by_leaf: dict[str, _safetensors.Entry] = {leaf.name: leaf.value for leaf in leaves(tree)}
    saved = {name: Spec("tensor", entry.shape, entry.dtype) for name, entry in by_leaf.items()}
    shape, targets = match(tree, saved, {}, like, str(path))
    return put_together(shape, {n: _place(by_leaf[n].read, saved[n], targets[n]) for n in saved})


def _place(read: Callable[[Any], np.ndarray], saved: Spec, target: Spec) -> Any:
    """An array from ``read(index)``, called for each device's own part."""
    if target.sharding is None:
        return become(read(...), target)
    with jax.enable_x64(True):
        x = jax.make_array_from_callback(
            saved.shape, target.sharding, lambda i: read(i).astype(target.dtype, copy=False)
        )
    return become(x, target)


def _read_torch(path: epath.Path, like: Any) -> Any:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()  # memory mapping, below, checks nothing
            if damaged:
                raise CheckpointError(f"{path}: {damaged} in it is damaged (wrong checksum)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols, before it refuses the file
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as e:
        raise CheckpointError(
            f"{path} is refused: it is no PyTorch file, or holds objects other than tensors and plain containers, "
            f"which could run code when loaded. Save the state_dict() alone. ({str(e).splitlines()[0]})"
        ) from e
    except CheckpointError:
        raise
    except Exception as e:  # a damaged file makes the unpickler raise nearly anything
        raise CheckpointError(f"{path} cannot be read: {e}") from e
    tree = take_apart(state)
    tensors = {leaf.name: leaf.value for leaf in leaves(tree) if isinstance(leaf.value, torch.Tensor)}
    values = {leaf.name: leaf.value for leaf in leaves(tree) if leaf.name not in tensors}
    saved = {n: Spec("tensor", tuple(t.shape), np.dtype(TORCH_DTYPE_TO_JAX[t.dtype])) for n, t in tensors.items()}
    shape, targets = match(tree, saved, values, like, str(path))

    def reader(t: torch.Tensor) -> Callable[[Any], np.ndarray]:
        return lambda index: np.array(numpy_view(t)[index])  # a copy: the memory is the file's

    return put_together(shape, values | {n: _place(reader(t), saved[n], targets[n]) for n, t in tensors.items()})

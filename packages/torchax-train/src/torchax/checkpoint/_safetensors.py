"""safetensors: read in parts straight from the file, written as ``transformers`` reads them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import ml_dtypes
import numpy as np
import safetensors
import safetensors.torch
import torch
from etils import epath

from torchax.checkpoint._errors import CheckpointError, listed
from torchax.transfer import to_torch

_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F32": np.float32, "F64": np.float64, "C64": np.complex64, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}  # fmt: skip
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Entry:
    """One array in a file."""

    file: str
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self, index: Any) -> np.ndarray:
        """``array[index]``, copied; the mapped pages are let go afterwards."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)[index]
        return np.array(
            np.memmap(self.file, self.dtype, "r", self.offset, self.shape or (1,)).reshape(self.shape)[index]
        )


def in_folder(folder: epath.Path) -> epath.Path | None:
    """The index, or the one file, in a folder that holds a model."""
    for name in (_INDEX, "model.safetensors"):
        if (folder / name).exists():
            return folder / name
    return None


def entries(path: epath.Path) -> dict[str, Entry]:
    """What a file, or all files of an index, hold.

    Raises:
        CheckpointError: a file is missing or damaged, or the index does not tell the truth.
    """
    if path.name.endswith(".safetensors"):
        return _of_file(path)
    try:
        weight_map = {str(k): str(v) for k, v in json.loads(path.read_text())["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise CheckpointError(f"{path}: the index is damaged ({e!r})") from e
    found: dict[str, Entry] = {}
    for name in sorted(set(weight_map.values())):
        if os.path.basename(name) != name:
            raise CheckpointError(f"{path}: the index names {name!r}, which is outside its folder")
        file = path.parent / name
        if not file.exists():
            keys = [k for k, v in weight_map.items() if v == name]
            raise CheckpointError(f"{file}, which the index names, is missing; it has {listed(keys)}")
        found |= {k: e for k, e in _of_file(file).items() if weight_map.get(k) == name}
    absent = [k for k in weight_map if k not in found]
    if absent:
        raise CheckpointError(f"{path}: the index names what its files do not hold: {listed(absent)}")
    return {k: found[k] for k in weight_map}


def _of_file(path: epath.Path) -> dict[str, Entry]:
    try:
        with safetensors.safe_open(path, framework="numpy"):
            pass  # its header is right and fits the file's length
        with open(path, "rb") as f:
            start = 8 + int.from_bytes(f.read(8), "little")
            header = json.loads(f.read(start - 8))
    except (OSError, ValueError, safetensors.SafetensorError) as e:
        raise CheckpointError(f"{path} is damaged: {e}") from e
    header.pop("__metadata__", None)
    unknown = sorted({h["dtype"] for h in header.values()} - _DTYPES.keys())
    if unknown:
        raise CheckpointError(f"{path}: dtypes that JAX does not have: {listed(unknown)}")
    return {
        name: Entry(str(path), start + h["data_offsets"][0], tuple(h["shape"]), np.dtype(_DTYPES[h["dtype"]]))
        for name, h in header.items()
    }


def _size(text: int | str) -> int:
    if isinstance(text, int):
        return text
    found = re.fullmatch(r"(\d+)\s*([KMGT]?)B", text.strip().upper())
    if not found:
        raise ValueError(f"max_shard_size: a number of bytes or such as '5GB', got {text!r}")
    return int(found[1]) * 1000 ** " KMGT".index(found[2] or " ")


def save_safetensors(
    state: Mapping[str, Any], path: str | os.PathLike[str], *, max_shard_size: int | str = "5GB"
) -> None:
    """Write a flat state dict as ``transformers``' ``from_pretrained`` reads it.

    Args:
        state: names to tensors or arrays of any shape, dtype and sharding; one file's worth is on the host at a time.
        path: a ``.safetensors`` file; else a folder, which gets ``model.safetensors``, or, above ``max_shard_size``
            (bytes, or such as ``"5GB"``), ``model-00001-of-00003.safetensors`` ... and their index.

    Raises:
        CheckpointError: an entry is no tensor or array, or the disk is full; files of before stay whole.
    """
    single = os.fspath(path).endswith(".safetensors")
    folder = os.path.dirname(os.path.abspath(path)) if single else os.path.abspath(path)
    os.makedirs(folder, exist_ok=True)
    groups = [list(state)] if single else _groups(state, _size(max_shard_size))
    if len(groups) == 1:
        name = os.path.basename(path) if single else "model.safetensors"
        _write(state, groups[0], os.path.join(folder, name))
        return
    names = [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    for name, keys in zip(names, groups):
        _write(state, keys, os.path.join(folder, name))
    index = {
        "metadata": {"total_size": sum(map(_bytes, state.values()))},
        "weight_map": {key: name for name, keys in zip(names, groups) for key in keys},
    }
    temporary = os.path.join(folder, f".{_INDEX}.tmp")
    with open(temporary, "w") as f:
        json.dump(index, f, indent=2)
    os.replace(temporary, os.path.join(folder, _INDEX))


def _bytes(x: Any) -> int:
    return int(np.prod(x.shape, dtype=np.int64)) * x.dtype.itemsize


def _groups(state: Mapping[str, Any], limit: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    size = 0
    for name, x in state.items():
        if groups[-1] and size + _bytes(x) > limit:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += _bytes(x)
    return groups


def _write(state: Mapping[str, Any], keys: list[str], file: str) -> None:
    temporary = os.path.join(os.path.dirname(file), f".{os.path.basename(file)}.tmp")
    try:
        safetensors.torch.save_file({k: _on_cpu(k, state[k]) for k in keys}, temporary, metadata={"format": "pt"})
        os.replace(temporary, file)
    except (OSError, safetensors.SafetensorError) as e:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise CheckpointError(f"{file} was not written: {e}") from e


def _on_cpu(name: str, x: Any) -> torch.Tensor:
    if isinstance(x, jax.Array | np.ndarray):
        return to_torch(x)
    if not isinstance(x, torch.Tensor):
        raise CheckpointError(f"{name} is a {type(x).__name__}: safetensors holds tensors only")
    return x.detach().cpu().contiguous().clone()

"""Checkpoints on disk: a folder a step, each written beside its final name and renamed when it is whole."""

from __future__ import annotations

import json
import math
import os
import zlib
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from torchax.checkpoint import _files
from torchax.checkpoint._arrays import Spec, become, checksum, to_save
from torchax.checkpoint._errors import CheckpointError
from torchax.checkpoint._matching import match
from torchax.checkpoint._structure import Leaf, from_json, leaves, put_together, take_apart, to_json

_FORMAT = 1
_CHUNK = 1 << 26  # bytes: what a device reads at least, when a whole array is restored into shards


def save_args(state: Any) -> ocp.args.Composite:
    """What orbax is to write: the arrays by name, and JSON that says what they are and how they hang together."""
    tree = take_apart(state)
    arrays: dict[str, Any] = {}

    def describe(leaf: Leaf) -> Any:
        found = to_save(leaf.name, leaf.value)
        if found is None:
            return {"value": leaf.value}
        kind, array = found
        if array.size:  # tensorstore keeps no empty arrays
            arrays[leaf.name] = array
        sum_ = checksum(array) if array.size else 0
        return {"kind": kind, "shape": list(array.shape), "dtype": str(array.dtype), "checksum": sum_}

    text = json.dumps(to_json(tree, describe))
    content = {"format": _FORMAT, "crc32": zlib.crc32(text.encode()), "tree": text}
    save = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=_CHUNK), arrays)
    items: dict[str, Any] = {"structure": ocp.args.JsonSave(content)}
    if arrays:
        items["arrays"] = ocp.args.PyTreeSave(arrays, save_args=save)
    return ocp.args.Composite(**items)


def read_step(folder: epath.Path, like: Any = None) -> Any:
    """The state in one step's folder.

    Raises:
        CheckpointError: a file is damaged, or the state is not like ``like``.
    """
    tree = from_json(_structure(folder), str(folder))
    described = {leaf.name: leaf.value for leaf in leaves(tree)}
    saved = {name: _spec(folder, name, d) for name, d in described.items() if "value" not in d}
    values = {name: d["value"] for name, d in described.items() if "value" in d}
    shape, targets = match(tree, saved, values, like, str(folder))
    for name, x in _arrays(folder, {n: s for n, s in saved.items() if math.prod(s.shape)}, targets).items():
        if checksum(x) != described[name]["checksum"]:
            raise CheckpointError(f"{folder}: the values of {name} are damaged (wrong checksum)")
        values[name] = become(x, targets[name])
    for name, spec in saved.items():
        if name not in values:
            values[name] = become(_empty(spec, targets[name]), targets[name])
    return put_together(shape, values)


def _empty(spec: Spec, target: Spec) -> Any:
    with jax.enable_x64(True):
        return jax.numpy.zeros(spec.shape, spec.dtype, device=target.sharding)


def _structure(folder: epath.Path) -> Any:
    path = folder / "structure" / "metadata"
    try:
        content = json.loads(path.read_text())
        if content["format"] != _FORMAT:
            raise CheckpointError(f"{path}: format {content['format']!r}; this version of torchax reads {_FORMAT}")
        if zlib.crc32(content["tree"].encode()) != content["crc32"]:
            raise ValueError("wrong checksum")
        return json.loads(content["tree"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise CheckpointError(f"{path}: the description of the state is missing or damaged ({e})") from e


def _spec(folder: epath.Path, name: str, described: Any) -> Spec:
    try:
        return Spec(described["kind"], tuple(described["shape"]), np.dtype(described["dtype"]))
    except (KeyError, TypeError) as e:
        raise CheckpointError(f"{folder}: the description of {name} is damaged ({e!r})") from e


def _arrays(folder: epath.Path, saved: dict[str, Spec], targets: dict[str, Spec]) -> dict[str, Any]:
    """The arrays as saved, each where its target wants it; as numpy arrays where it does not say."""
    if not saved:
        return {}
    restore = {
        name: ocp.RestoreArgs(restore_type=np.ndarray)
        if targets[name].sharding is None
        else ocp.ArrayRestoreArgs(sharding=targets[name].sharding, global_shape=spec.shape, dtype=spec.dtype)
        for name, spec in saved.items()
    }
    item = {name: jax.ShapeDtypeStruct(spec.shape, spec.dtype) for name, spec in saved.items()}
    try:
        with jax.enable_x64(True), ocp.PyTreeCheckpointer() as reader:
            found = reader.restore(folder / "arrays", ocp.args.PyTreeRestore(item, restore_args=restore))
    except Exception as e:  # orbax and tensorstore raise a dozen kinds for damaged files
        raise CheckpointError(f"{folder / 'arrays'} cannot be read: {e}") from e
    for name, spec in saved.items():
        if found[name].shape != spec.shape or found[name].dtype != spec.dtype:
            raise CheckpointError(f"{folder}: {name} is {found[name].dtype}{list(found[name].shape)}, not {spec}")
    return found


def _pending(root: epath.Path, step: int) -> epath.Path:
    """Where a step is written that is to replace one of the same number."""
    return root / f".{step}.new"


def _replaced(root: epath.Path, step: int) -> epath.Path:
    return root / f".{step}.old"


def root_of(path: str | os.PathLike[str]) -> epath.Path:
    path = epath.Path(os.fspath(path))
    return path if "://" in os.fspath(path) else epath.Path(os.path.abspath(path))


def step_folders(root: epath.Path) -> dict[int, epath.Path]:
    """The whole checkpoints under ``root``, by step.

    A folder has its final name only when it is whole. One written in place of another is ``.N.new`` until that one has
    moved to ``.N.old``; a process killed between the two renames leaves only those two, and both are whole.
    """
    found = {int(p.name): p for p in root.iterdir() if p.name.isdecimal()}
    for p in root.iterdir():
        number = p.name.removeprefix(".").removesuffix(".new")
        if p.name == f".{number}.new" and number.isdecimal() and _replaced(root, int(number)).exists():
            found.setdefault(int(number), p)
    return found


def save_checkpoint(state: Any, path: str | os.PathLike[str], step: int = 0) -> None:
    """Write ``state`` to the folder ``path/step``; return when it is whole on disk.

    A process killed at any moment leaves what was there before loadable. A checkpoint of the same step is replaced.
    Every process of a multi-host run calls it; each writes its own shards. `CheckpointManager` does it in the
    background and keeps the last or best few.

    Args:
        state: dicts, lists, tuples, optax states and other pytrees of tensors, arrays (PRNG keys too), numbers, strings.
        path: a folder, made if missing.
        step: not negative.

    Raises:
        CheckpointError: the state holds something else, or writing fails (a full disk); what was there stays.
    """
    if step < 0:
        raise ValueError(f"save_checkpoint: step must not be negative, got {step}")
    root = root_of(path)
    final, fresh, old = root / str(step), _pending(root, step), _replaced(root, step)
    args = save_args(state)
    first = jax.process_index() == 0
    if first:
        root.mkdir(parents=True, exist_ok=True)
        if not final.exists() and fresh.exists() and old.exists():  # killed between the two renames below
            fresh.rename(final)
        for leftover in (fresh, old):
            if leftover.exists():
                leftover.rmtree()
    _together("torchax.save_checkpoint.start")
    target = fresh if final.exists() else final
    _together("torchax.save_checkpoint.target")
    write(args, target)
    if first and target is fresh:
        final.rename(old)
        fresh.rename(final)
        old.rmtree()
    _together("torchax.save_checkpoint.end")


def write(args: ocp.args.Composite, folder: epath.Path) -> None:
    """Write one folder, whole or not at all."""
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as writer:
            writer.save(folder, args)
    except Exception as e:  # the file system's errors come through tensorstore as ValueError
        raise CheckpointError(f"{folder} was not written: {e}") from e


def _together(what: str) -> None:
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(what)


def load_checkpoint(path: str | os.PathLike[str], *, step: int | None = None, like: Any = None) -> Any:
    """The state saved at ``path``, whose kind it finds out.

    Args:
        path: a folder that `save_checkpoint` or a `CheckpointManager` wrote (or one step's folder in it); a ``.pt`` or
            ``.pth`` file, read with ``weights_only=True``; a ``.safetensors`` file, its ``.index.json``, or a folder
            with either (as ``transformers`` saves models).
        step: which step, of a folder that has several; the last, by default.
        like: a state of the same structure, whose leaves say what to make: tensors and arrays (their own placement),
            ``jax.ShapeDtypeStruct`` with a ``sharding``, ``meta`` tensors. Each device reads its own part, and a
            floating array may take another floating dtype.

    Returns:
        The state. A saved tensor is a tensor on the device (a pytree whose leaf is its ``jax.Array``, so that JAX and
        ``load_state_dict`` take it as it is), an array an array.

    Raises:
        FileNotFoundError: nothing is there.
        CheckpointError: a file is damaged, unsafe, or not like ``like``: the message names the file and the keys.
    """
    root = root_of(path)
    if not root.exists():
        raise FileNotFoundError(f"no checkpoint at {root}")
    read = _files.reader_of(root)
    if read is not None:
        return read(root, like)
    if (root / "structure").exists():
        return read_step(root, like)
    found = step_folders(root) if root.is_dir() else {}
    if not found or (step is not None and step not in found):
        wanted = "checkpoint" if step is None else f"step {step}"
        raise FileNotFoundError(f"no {wanted} in {root}; steps there: {sorted(found) or 'none'}")
    return read_step(found[max(found) if step is None else step], like)

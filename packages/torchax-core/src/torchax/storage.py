"""Storage: the shared, mutable box that tensors and their views look into."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torchax import devices

# Addresses are identities, never dereferenced. They start above what an allocator would return first, are aligned as
# real ones are, and do not overlap, so that "do these two share memory?" has PyTorch's answer.
_address_lock = threading.Lock()
_address = 1 << 40


class Storage:
    """A box holding one ``jax.Array`` (or a tracer). An in-place operator puts a new array into it.

    Attributes:
        array: the data, in the logical shape of the tensor that made the storage. For a storage made by ``empty`` it
            is filled in (with zeros) only when somebody reads it, so that a following write costs nothing extra.
        strides: the strides, in elements, which PyTorch sees on that first tensor; ``None`` where contiguous.
    """

    __slots__ = ("__weakref__", "_address", "_empty", "array", "strides")

    array: Any

    def __init__(self, array: Any) -> None:
        self.array = array
        self.strides: tuple[int, ...] | None = None

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: np.dtype, device: jax.Device | None) -> Storage:
        """A storage whose array is made when first read, on ``device`` (``None``: JAX's default, uncommitted)."""
        self = cls.__new__(cls)
        self.strides = None
        self._empty = (shape, dtype, device)  # type: ignore[attr-defined]
        return self

    def __getattr__(self, name: str) -> Any:
        # Reached only while the slot ``array`` is unset: reads of a filled storage pay nothing for this.
        if name != "array":
            raise AttributeError(name)
        shape, dtype, device = self._empty
        with jax.enable_x64(True):
            # device=None inside a trace would make a tracer; an empty storage made before it must not hold one.
            self.array = jnp.zeros(shape, dtype, device=device)
        return self.array

    def settled(self, array: Any) -> Any:
        """An array to take the place of this storage's own, on the device or devices where that one is.

        A program that reads nothing of what it overwrites (``zero_``) answers on JAX's default device.
        """
        if not devices.several() or isinstance(array, jax.core.Tracer):
            return array
        try:
            old = object.__getattribute__(self, "array")
        except AttributeError:
            place = self._empty[2]
            here = place is None or array.devices() == {place}
        else:
            if isinstance(old, jax.core.Tracer):
                return array
            place = old.sharding
            # Uncommitted data go where what they are combined with is, as in JAX: a new tensor takes part in sharded ones.
            here = not old.committed or array.sharding.device_set == place.device_set
        return array if here else jax.device_put(array, place)

    @property
    def shape(self) -> tuple[int, ...]:
        try:
            return object.__getattribute__(self, "array").shape
        except AttributeError:
            return self._empty[0]

    @property
    def dtype(self) -> np.dtype:
        try:
            return np.dtype(object.__getattribute__(self, "array").dtype)
        except AttributeError:
            return self._empty[1]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def address(self) -> int:
        """A stable, non-zero number that no other living storage has: what ``data_ptr()`` answers."""
        try:
            return self._address  # type: ignore[has-type]
        except AttributeError:
            global _address
            with _address_lock:
                self._address = _address
                _address += max(64, -(-self.nbytes // 64) * 64)
            return self._address


_array = Storage.__dict__["array"]  # the slot itself
_init, _make_empty = Storage.__init__, Storage.__dict__["empty"].__func__


@contextmanager
def watched(
    born: Callable[[Storage], None], read: Callable[[Storage, Any], Any], write: Callable[[Storage, Any], None]
) -> Iterator[None]:
    """Follow what this thread does to storages: for a trace that lifts them.

    The class itself is changed meanwhile, so that nobody pays for it at other times.

    Args:
        born: called with each new storage.
        read: called with a storage and its array at each read; what it returns is read instead.
        write: called with a storage and its array (``None``: not filled in yet) before each write.
    """
    owner = threading.get_ident()

    def get(self: Storage) -> Any:
        found = _array.__get__(self, Storage)
        return read(self, found) if threading.get_ident() == owner else found

    def set(self: Storage, value: Any) -> None:
        if threading.get_ident() == owner:
            try:
                before = _array.__get__(self, Storage)
            except AttributeError:
                before = None
            write(self, before)
        _array.__set__(self, value)

    def init(self: Storage, array: Any) -> None:
        if threading.get_ident() == owner:
            born(self)
        _init(self, array)

    def empty(cls: type[Storage], *args: Any) -> Storage:
        made = _make_empty(cls, *args)
        if threading.get_ident() == owner:
            born(made)
        return made

    changed = {"array": property(get, set), "__init__": init, "empty": classmethod(empty)}
    before = {name: Storage.__dict__[name] for name in changed}
    for name, value in changed.items():
        setattr(Storage, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(Storage, name, value)

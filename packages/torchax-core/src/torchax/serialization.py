"""``pickle``, ``torch.save`` and ``torch.load`` of ``jax`` tensors.

What is saved is what PyTorch saves for any device: the storage's bytes, tagged with the device. So a file can be read without
torchax (``map_location="cpu"``), and never names a class of ours.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Any

import numpy as np
import torch

from torchax import devices, dispatch, stateful, transfer, view_ops
from torchax.storage import Storage
from torchax.tensor import OWN_ATTRIBUTES, Tensor, adopt, stored_dtype, view_on
from torchax.views import ROOT

# One CPU storage for all tensors of a torchax storage that are pickled together, so that they stay aliased.
_saved: weakref.WeakKeyDictionary[Storage, tuple[Any, weakref.ref[torch.UntypedStorage]]] = weakref.WeakKeyDictionary()
# Storages on their way in: PyTorch holds an empty storage on the device, which stands for these bytes until ``set_``.
_loading: dict[int, tuple[weakref.ref[torch.UntypedStorage], torch.UntypedStorage, dict[torch.dtype, Storage]]] = {}
_LOCATION, _BYTES = "_torchax_location", "_torchax_bytes"


def reduce(t: Tensor) -> tuple[Any, ...]:
    """What ``__reduce_ex__`` gives: PyTorch's own rebuild functions on a CPU storage tagged with the device."""
    torch.utils.hooks.warn_if_has_hooks(t)
    if t.dtype in torch.storage._dtype_to_storage_type_map():
        storage: Any = _Storage(wrap_storage=_cpu_storage(t), dtype=t.dtype, _internal=True)
        rebuild: Any = torch._utils._rebuild_tensor_v2
        dtype: tuple[torch.dtype, ...] = ()
    else:  # uint16 to uint64, as PyTorch saves them
        storage = _Storage(wrap_storage=_cpu_storage(t), dtype=torch.uint8, _internal=True)
        rebuild, dtype = torch._utils._rebuild_tensor_v3, (t.dtype,)
    rebuilt = (storage, int(t.storage_offset()), tuple(t.size()), t.stride(), t.requires_grad, OrderedDict(), *dtype)  # type: ignore[var-annotated]
    extra = {k: v for k, v in t.__dict__.items() if k not in OWN_ATTRIBUTES}
    if isinstance(t, torch.nn.Parameter):
        data = _AsTensor(rebuild, (*rebuilt[:4], False, OrderedDict(), *dtype))
        if extra:
            return torch._utils._rebuild_parameter_with_state, (data, t.requires_grad, OrderedDict(), extra)
        return torch._utils._rebuild_parameter, (data, t.requires_grad, OrderedDict())
    if extra:
        return rebuild, (*rebuilt, None), extra
    return rebuild, rebuilt


class _Storage(torch.storage.TypedStorage):
    """What ``torch.save`` takes for a storage as it is, and ``pickle`` asks how to pickle."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)  # PyTorch's own refuses subclasses that fix no dtype

    def __reduce__(self) -> Any:
        return _typed, (getattr(self._untyped_storage, _BYTES), self.dtype)


def _typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


class _Bytes:
    """Pickles as a storage's bytes: one object a storage, so that ``pickle`` keeps tensors of one storage together."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = weakref.ref(storage)

    def __reduce__(self) -> Any:
        storage = self.storage()
        assert storage is not None  # the tensor being pickled holds it
        values = torch.empty(0, dtype=torch.uint8).set_(storage)
        return _from_bytes, (values.numpy().tobytes(), getattr(storage, _LOCATION))


def _from_bytes(data: bytes, location: str) -> torch.UntypedStorage | None:
    cpu = torch.frombuffer(bytearray(data), dtype=torch.uint8).untyped_storage() if data else torch.UntypedStorage(0)
    return _restore(cpu, location)


class _AsTensor:
    """Pickles as a call of ``function``: the tensor inside a Parameter."""

    def __init__(self, function: Any, args: Any) -> None:
        self.reduced = (function, args)

    def __reduce__(self) -> Any:
        return self.reduced


def _cpu_storage(t: Tensor) -> torch.UntypedStorage:
    box = t._box
    known = _saved.get(box)
    if known is not None and known[0] is box.array:
        alive = known[1]()
        if alive is not None:
            return alive
    array = box.array
    flat = array
    if box.strides is not None:
        flat = np.asarray(array).transpose(np.argsort([-s for s in box.strides], kind="stable"))
    cpu = transfer.to_torch(np.ascontiguousarray(flat).reshape(-1))
    if stored_dtype(t) == box.dtype and cpu.dtype != t.dtype:
        cpu = cpu.to(t.dtype)  # 64-bit values stored in 32
    storage = cpu.untyped_storage()
    setattr(storage, _LOCATION, f"jax:{t.device.index or 0}")
    setattr(storage, _BYTES, _Bytes(storage))
    _saved[box] = (array, weakref.ref(storage))
    return storage


def _tag(storage: Any) -> str | None:
    return getattr(storage, _LOCATION, None)


def _restore(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    """An empty storage on the device, which stands for ``storage``'s bytes."""
    if location != "jax" and not location.startswith("jax:"):
        return None
    devices.jax_device(location)  # a device that does not exist is an error here, not later
    stand_in = torch._C._acc.create_empty_tensor((0,), torch.uint8).untyped_storage()
    key = stand_in._cdata
    _loading[key] = (weakref.ref(stand_in, lambda _: _loading.pop(key, None)), storage, {})
    setattr(stand_in, _LOCATION, location)
    # torch.load keeps a storage for the next tensor that shares it only where its address is not 0.
    stand_in.data_ptr = storage.data_ptr  # type: ignore[method-assign]
    return stand_in


def _attach(self: Tensor, source: Any, storage_offset: int = 0, size: Any = (), stride: Any = ()) -> Tensor:
    known = _loading.get(source._cdata)
    if known is None:
        raise RuntimeError(
            "set_: a torch.UntypedStorage on device 'jax' holds no data; use t.set_(other_tensor), or torch.load(..., "
            "map_location='jax')"
        )
    _, storage, boxes = known
    box = boxes.get(self.dtype)
    if box is None:
        flat = torch.empty(0, dtype=self.dtype).set_(storage)
        location = getattr(source, _LOCATION, "jax:0")
        array = transfer.to_array(flat, devices.jax_device(location), narrow=dispatch.narrow_storage)
        box = boxes[self.dtype] = Storage(array)
    device = devices.torch_device(devices.index_of(box.array))
    base = view_on(box, _flat_view(self, box), device)
    adopt(self, view_on(box, stateful._strided_view(base, tuple(size), tuple(stride), storage_offset), device))
    return self


def _flat_view(t: Tensor, box: Storage) -> view_ops.View:
    return view_ops.metadata(box.shape, (1,), t.dtype), 0, ROOT, ()


def register() -> None:
    """Make ``torch.save`` and ``torch.load`` know the device."""
    aten = torch.ops.aten
    dispatch.handlers[aten.set_.source_Storage_storage_offset] = lambda args, kwargs: _attach(*args, **kwargs)
    dispatch.handlers[aten.set_.source_Storage] = lambda args, kwargs: _attach_all(*args, **kwargs)
    # Before PyTorch's own for the CPU (10): the bytes are in a CPU storage, the tag says where they belong.
    torch.serialization.register_package(5, _tag, _restore)  # type: ignore[arg-type]


def _attach_all(self: Tensor, source: Any) -> Tensor:
    n = source.nbytes() // self.element_size()
    return _attach(self, source, 0, (n,), (1,))

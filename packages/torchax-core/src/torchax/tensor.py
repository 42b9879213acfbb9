"""``Tensor``: a ``torch.Tensor`` on device ``jax`` whose data is a ``jax.Array``."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from torchax import transfer, views
from torchax.devices import index_of, torch_device
from torchax.dtypes import JAX_DTYPE_TO_TORCH, NARROWED, TORCH_DTYPE_TO_JAX, j2t_dtype
from torchax.errors import OperatorNotFound, escaped
from torchax.storage import Storage
from torchax.view_ops import Metadata, View, metadata_of
from torchax.views import ROOT, Chain, Operands

__all__ = ["Environment", "OperatorNotFound", "Tensor"]  # noqa: F822 (Environment comes by __getattr__)

logger = logging.getLogger(__name__)

_make = torch.Tensor._make_wrapper_subclass
_JAX0 = torch_device(0)

# How each operator runs; torchax.dispatch fills it in. (It builds on this module, which builds on nothing above views.)
plans: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], Any]] = {}
build_plan: Callable[[Any], Callable[[tuple[Any, ...], dict[str, Any]], Any]] = None  # type: ignore[assignment]
_NO_KWARGS: dict[str, Any] = {}


class Tensor(torch.Tensor):
    """A PyTorch tensor on device ``jax``.

    It is made by PyTorch's factories (``torch.randn(2, 3, device="jax")``), moves (``t.to("jax")``) and operators, or
    from an array: ``Tensor(jnp.ones(3))`` shares the array, which is immutable; in-place operators replace it.

    Args:
        elem: a ``jax.Array`` or tracer of any shape, of a dtype that PyTorch has.
        env: accepted for code written for google/torchax; there is one environment.
        requires_grad: as in PyTorch.

    Raises:
        TypeError: PyTorch has no such dtype.
    """

    _box: Storage
    _chain: Chain = ROOT
    _operands: Operands = ()
    # Whether PyTorch sees other than contiguous strides; and, once a view was made, the interned metadata.
    _noncontiguous: bool = False
    _meta: Metadata | None = None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, elem: Any, env: Any = None, requires_grad: bool = False) -> Tensor:
        if isinstance(elem, Tensor):
            elem = elem._value()
        elif not isinstance(elem, jax.Array):
            elem = jnp.asarray(elem)
        return wrap(elem, torch_device(index_of(elem)), requires_grad=requires_grad)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        plan = plans.get(func)
        if plan is None:
            plan = build_plan(func)
        return plan(args, kwargs or _NO_KWARGS)

    def new_tensor(self, data: Any, *, device: Any = None, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        # PyTorch asks the device guard for the current device, which a Python backend's guard does not know.
        return super().new_tensor(data, device=self.device if device is None else device, **kwargs)

    # --- the JAX side -----------------------------------------------------------------------------------------------

    def _value(self) -> Any:
        """The view's value as an array (the storage's own array where this is no view)."""
        chain = self._chain
        if chain is ROOT:
            return self._box.array
        try:
            with wide_for(self._box.array):
                return views.read(chain, self._box.array, self._operands)
        except jax.errors.UnexpectedTracerError as e:
            raise escaped("reading a view", [self._box.array], e) from e

    def jax(self) -> jax.Array:
        """The tensor's data as a ``jax.Array`` (a tracer, under a trace). Not a copy, and immutable.

        On a *CPU* tensor, ``.jax()`` is PyTorch's method of that name for a device: it moves to device ``jax``.
        """
        return self._value()

    def torch(self) -> torch.Tensor:
        """A copy on CPU, detached."""
        return self.detach().cpu()

    @property
    def jax_device(self) -> jax.Device:  # type: ignore[name-defined]
        """The JAX device that holds the data (the first one, for a sharded tensor)."""
        return min(self._value().devices(), key=lambda d: d.id)

    def apply_jax(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """``fn(array, *args, **kwargs)`` as tensor(s); tensors among the arguments are passed as arrays.

        ``fn`` runs under the caller's own x64 setting. Where that is off, 64-bit arguments reach it in 32 bits.

        Raises:
            OverflowError: x64 is off and a value does not fit in 32 bits.
        """
        self_array, args, kwargs = jax.tree.map(_for_user, (self, args, kwargs), is_leaf=_is_tensor)
        return jax.tree.map(Tensor, fn(self_array, *args, **kwargs))

    def apply_jax_(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        """Put ``fn(array, *args, **kwargs)`` in this tensor's place; shape and dtype must stay. As `apply_jax` else.

        Raises:
            ValueError: ``fn`` changes the shape or the dtype.
        """
        old, args, kwargs = jax.tree.map(_for_user, (self, args, kwargs), is_leaf=_is_tensor)
        new = fn(old, *args, **kwargs)
        if new.shape != old.shape or new.dtype != old.dtype:
            raise ValueError(
                f"apply_jax_: the function made {new.dtype}{list(new.shape)} of {old.dtype}{list(old.shape)}; an "
                "in-place change keeps shape and dtype"
            )
        stored = self._box.dtype if self._chain is ROOT else self._value().dtype
        with wide_for(new):
            self._write(new if new.dtype == stored else jax.lax.convert_element_type(new, stored), moves=True)
        return self

    def shard_(self, sharding: Any) -> Tensor:
        """Lay the data out over devices as ``sharding`` says (a constraint, under a trace); returns ``self``."""
        place = jax.lax.with_sharding_constraint if isinstance(self._box.array, jax.core.Tracer) else jax.device_put
        self._write(place(self._value(), sharding), moves=True)
        return self

    def _write(self, value: Any, moves: bool = False) -> None:
        """Replace the view's value. ``value`` has its shape and stored dtype; ``moves``: it takes the storage to its device."""
        if self._chain is not ROOT:
            with wide_for(value):
                value = _write_view(self._chain, self._box.array, self._operands, value)
        self._box.array = value if moves else self._box.settled(value)

    def __jax_array__(self) -> jax.Array:  # type: ignore[name-defined]
        return self._value()

    # --- numpy, Python values, DLPack -------------------------------------------------------------------------------

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """The values as a numpy array: read-only, without a copy where JAX's device is the CPU.

        Raises:
            RuntimeError: the tensor requires grad (unless ``force``).
        """
        if self.requires_grad and not force:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        values = transfer.values_of(self._value())
        wanted = TORCH_DTYPE_TO_JAX[self.dtype]
        return values if values.dtype == wanted else values.astype(wanted)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self.numpy()
        if dtype is not None and values.dtype != dtype:
            return values.astype(dtype)
        return values.copy() if copy else values

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def __dlpack__(self, **kwargs: Any) -> Any:
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return self._value().__dlpack__(**{k: v for k, v in kwargs.items() if v is not None})

    def __dlpack_device__(self) -> Any:
        return self._value().__dlpack_device__()

    # --- identity of memory -----------------------------------------------------------------------------------------

    def data_ptr(self) -> int:
        """An identity, not an address: equal for tensors that start at the same element of one storage."""
        if self.numel() == 0:
            return 0
        return self._box.address + int(self.storage_offset()) * self.element_size()

    def untyped_storage(self) -> StorageIdentity:  # type: ignore[override]
        return identity_of(self._box, self.device)

    def storage(self) -> StorageIdentity:  # type: ignore[override]
        return identity_of(self._box, self.device)

    _typed_storage = storage

    def is_shared(self) -> bool:
        return False

    def share_memory_(self) -> Tensor:
        raise RuntimeError("share_memory_: a 'jax' tensor cannot be shared between processes; share its .cpu()")

    # --- data ---------------------------------------------------------------------------------------------------------

    def _get_data(self) -> Tensor:
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    def _set_data(self, new: torch.Tensor) -> None:  # type: ignore[name-defined]
        if not isinstance(new, Tensor):
            raise TypeError(
                f"incompatible tensor type: cannot set the data of a 'jax' tensor to one on {new.device}; move it with "
                ".to('jax') first"
            )
        adopt(self, new)

    data = property(_get_data, _set_data)  # type: ignore[assignment]

    def set_(self, source: Any = None, storage_offset: int = 0, size: Any = None, stride: Any = None) -> Any:  # type: ignore[override]
        """As in PyTorch. ``source`` may be what ``untyped_storage()`` answers."""
        if isinstance(source, StorageIdentity) or (isinstance(source, Tensor) and size is not None):
            # PyTorch would take the tensor apart to a storage, which has no bytes here
            from torchax.stateful import over

            return super().set_(over(source, self.dtype, storage_offset, size, stride))  # type: ignore[call-overload]
        if size is None:
            return super().set_(*() if source is None else (source,))  # type: ignore[call-overload]
        # A storage that torch.load is filling in.
        layout = (storage_offset, size) if stride is None else (storage_offset, size, stride)
        return super().set_(source, *layout)  # type: ignore[call-overload]

    # --- copies, pickles, printing ------------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the "
                "moment.  If you were attempting to deepcopy a module, this may be because of a torch.nn.utils."
                "weight_norm usage, see https://github.com/pytorch/pytorch/pull/103001"
            )
        box = memo.get(id(self._box))
        if box is None:
            box = memo[id(self._box)] = Storage(self._box.array)
            box.strides = self._box.strides
            memo.setdefault(id(memo), []).append(self._box)  # ids in the memo must outlive the copy
        with torch.no_grad():
            out = view_on(box, view_of(self), self.device)
        out.requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            out._is_param = True  # type: ignore[attr-defined]
        memo[id(self)] = out
        for name, value in self.__dict__.items():
            if name not in OWN_ATTRIBUTES:
                import copy

                setattr(out, name, copy.deepcopy(value, memo))
        if self.grad is not None:
            out.grad = self.grad.__deepcopy__(memo)
        return out

    def __reduce_ex__(self, protocol: Any) -> Any:
        from torchax.serialization import reduce

        return reduce(self)

    def __repr__(self, *, tensor_contents: str | None = None) -> str:  # type: ignore[override]
        from torch._tensor_str import _str, _str_intern

        if isinstance(self._box.array, jax.core.Tracer):
            body = (
                f"tensor(<{self._box.array!r}>, size={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}')"
            )
            return f"Parameter containing:\n{body}" if isinstance(self, torch.nn.Parameter) else body
        if torch._C._functorch.maybe_get_level(self) >= 0 or tensor_contents is not None:
            return _str(self, tensor_contents=tensor_contents)
        with torch.no_grad():
            values = self.detach().cpu()
        from torch._tensor_str import _tensor_str

        text = _str_intern(self, tensor_contents=_tensor_str(values, len("tensor(")) if values.numel() else "[]")
        if text.startswith("Parameter("):
            text = text[len("Parameter(") : -1]
        text = text.replace(f"{type(self).__name__}(", "tensor(", 1)
        return f"Parameter containing:\n{text}" if isinstance(self, torch.nn.Parameter) else text

    def __format__(self, spec: str) -> str:
        if self.dim() == 0 and not isinstance(self._box.array, jax.core.Tracer):
            return format(self.item(), spec)
        return object.__format__(self, spec)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["_plain"], None

    @property
    def _plain(self) -> torch.Tensor:  # type: ignore[name-defined]
        # The same one each time: Dynamo's guards know tensors by their objects.
        known = self.__dict__.get("_inner")
        if known is None or known.shape != self.shape or known.dtype != self.dtype:
            known = self._inner = torch._C._acc.create_empty_tensor(tuple(self.shape), self.dtype)
        return known

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, shape: Any, strides: Any) -> Tensor:
        from torchax.stateful import empty

        plain = inner["_plain"]
        if isinstance(plain, FakeTensor):  # Dynamo and AOT autograd trace plain fake tensors of this device
            with plain.fake_mode:
                return torch.empty_strided(shape, strides, dtype=plain.dtype, device=plain.device)  # type: ignore[return-value]
        return empty(tuple(shape), dtype=plain.dtype, device=plain.device)

    def __coerce_same_metadata_as_tangent__(self, metadata: Any, expected_type: Any = None) -> Tensor:
        if expected_type is not torch.Tensor:
            return self
        out = view_on(self._box, view_of(self), self.device)
        out.__class__ = Tangent
        return out


class _AnyLayout:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Tangent(Tensor):
    """A gradient on its way into a backward that AOT autograd compiled, which traced it as a plain tensor of some strides.

    So it does not look like a wrapper there, and is of whatever strides are wanted: arrays have none.
    """

    __tensor_flatten__ = property()  # type: ignore[assignment]

    def is_contiguous(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def stride(self, *args: Any) -> Any:
        return super().stride(*args) if args else _AnyLayout()


OWN_ATTRIBUTES = ("_box", "_chain", "_operands", "_noncontiguous", "_meta", "_is_param", "_inner")


class StorageIdentity:
    """What ``untyped_storage()`` answers: which memory a tensor has and how much, not the memory itself.

    JAX's arrays are immutable and may be spread over devices, so there are no bytes to hand out. Two of these are
    equal where they are of one storage.
    """

    __slots__ = ("__weakref__", "_box", "device")

    def __init__(self, box: Storage, device: torch.device) -> None:
        self._box = box
        self.device = device

    def data_ptr(self) -> int:
        return self._box.address

    @property
    def _cdata(self) -> int:
        return self._box.address

    def nbytes(self) -> int:
        return self._box.nbytes

    size = __len__ = nbytes

    def is_shared(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageIdentity) and other._box is self._box

    def __hash__(self) -> int:
        return hash(self._box.address)

    def __repr__(self) -> str:
        return f"<storage of {self.nbytes()} bytes on {self.device}>"


# While one is alive, a storage has no other: PyTorch's fake tensors know storages by their Python objects.
_identities: weakref.WeakValueDictionary[int, StorageIdentity] = weakref.WeakValueDictionary()


def identity_of(box: Storage, device: torch.device) -> StorageIdentity:
    """The identity of a storage."""
    found = _identities.get(box.address)
    if found is None:
        found = _identities[box.address] = StorageIdentity(box, device)
    return found


_write_view = jax.jit(
    lambda chain, array, operands, value: chain.write(array, operands, value), static_argnums=0, inline=True
)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


def _for_user(x: Any) -> Any:
    """A tensor as the array that a function written for JAX takes, under the caller's x64 setting."""
    if not isinstance(x, Tensor):
        return x
    wide = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    return x._value() if wide else jnp.asarray(transfer.narrowed(x._value(), "apply_jax"))


def wrap(
    array: Any, device: torch.device = _JAX0, dtype: torch.dtype | None = None, requires_grad: bool = False
) -> Tensor:
    """A contiguous tensor on a new storage holding ``array``.

    ``dtype`` is given where PyTorch's differs from the array's: 64-bit values stored in 32 bits.
    """
    if dtype is None:
        dtype = JAX_DTYPE_TO_TORCH.get(array.dtype) or j2t_dtype(array.dtype)
    t = _make(Tensor, array.shape, dtype=dtype, device=device, requires_grad=requires_grad)
    t._box = Storage(array)
    return t


def wide_for(array: Any) -> Any:
    """The context in which an array keeps its 64 bits: x64 on; for a tracer, as its own trace has it."""
    return jax.enable_x64(bool(jax.config.jax_enable_x64) or not isinstance(array, jax.core.Tracer))  # type: ignore[attr-defined]


def stored_dtype(t: Tensor) -> np.dtype:
    """The dtype in which a tensor's values are held: its own, or the narrow one of 64 bits."""
    wanted = TORCH_DTYPE_TO_JAX[t.dtype]
    return NARROWED[wanted] if NARROWED.get(wanted) == t._box.dtype else wanted


def view_of(t: Tensor) -> View:
    """What a tensor sees of its storage."""
    meta = t._meta
    if meta is None:
        meta = t._meta = metadata_of(t)
    return meta, int(t.storage_offset()), t._chain, t._operands


def view_on(box: Storage, view: View, device: torch.device) -> Tensor:
    """A tensor that looks at a storage as ``view`` says."""
    meta, offset, chain, operands = view
    t = _make(Tensor, meta.shape, strides=meta.strides, storage_offset=offset, dtype=meta.dtype, device=device)
    t._box = box
    t._meta = meta
    if chain is not ROOT:
        t._chain = chain
        t._operands = operands
    if not meta.contiguous:
        t._noncontiguous = True
    return t


def look_at(t: Tensor, other: Tensor) -> None:
    """Make ``t`` see what ``other`` sees; PyTorch's own metadata of ``t`` is the caller's to change."""
    t._box = other._box
    t._chain, t._operands = other._chain, other._operands
    t._meta, t._noncontiguous = other._meta, other._noncontiguous


def adopt(t: Tensor, other: Tensor) -> None:
    """Make ``t`` see what ``other`` sees, with its shape, strides and dtype (``t.data = other``)."""
    torch.Tensor.data.__set__(t, other)  # type: ignore[attr-defined]
    look_at(t, other)


def __getattr__(name: str) -> Any:
    if name == "Environment":
        from torchax.environment import Environment

        return Environment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

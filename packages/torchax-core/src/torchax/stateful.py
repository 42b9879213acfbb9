"""Operators that no function of arrays can be: factories without values, copies between devices, changes of metadata,
Python values, and the few of PyTorch's that write without saying so in their schema."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import torchax_ops
from torchax import devices, dispatch, overlap, transfer, view_ops, views
from torchax.dispatch import Functional, run
from torchax.dtypes import NARROWED, t2j_dtype
from torchax.errors import NoValues
from torchax.storage import Storage
from torchax.tensor import Tensor, adopt, look_at, stored_dtype, view_of, view_on, wide_for, wrap
from torchax.views import ROOT

aten = torch.ops.aten
Handler = Callable[..., Any]


def handles(*ops: Any) -> Callable[[Handler], Handler]:
    """Register the decorated function, called with the operator's own arguments, as the plan of ``ops``."""

    def decorate(fn: Handler) -> Handler:
        for op in ops:
            dispatch.handlers[op] = lambda args, kwargs: fn(*args, **kwargs)
        return fn

    return decorate


def _is_jax(device: Any) -> bool:
    return device is not None and torch.device(device).type == "jax"


# --- empty tensors ----------------------------------------------------------------------------------------------------


def empty(
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    """A tensor whose values nobody set; its array is made when somebody reads it."""
    shape = tuple(int(n) for n in size)
    if memory_format not in (None, torch.contiguous_format):
        strides = torch.empty(shape, device="meta", memory_format=memory_format).stride()
    else:
        strides = view_ops.contiguous_strides(shape)
    return empty_strided(shape, strides, dtype=dtype, layout=layout, device=device)


def empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    """An empty tensor with given strides."""
    if layout not in (None, torch.strided):
        raise RuntimeError(f"empty: device 'jax' holds dense (strided) tensors; layout {layout} is not supported")
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    shape, strides = tuple(int(n) for n in size), tuple(int(s) for s in stride)
    if any(n < 0 for n in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    dtype = dtype or torch.get_default_dtype()
    index = (torch.device(device).index or 0) if device is not None else 0
    stored = t2j_dtype(dtype)
    if dispatch.narrow_storage:
        stored = NARROWED.get(stored, stored)
    meta = view_ops.metadata(shape, strides, dtype)
    if meta.contiguous or overlap.is_dense(shape, strides):
        box = Storage.empty(shape, stored, devices.jax_device(index))
        box.strides = None if meta.contiguous else strides
        return view_on(box, (meta, 0, ROOT, ()), devices.torch_device(index))
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    box = Storage.empty((span,), stored, devices.jax_device(index))
    view = view_ops.as_strided((span,), None, t2j_dtype(dtype), dtype, shape, strides, 0)
    return view_on(box, view, devices.torch_device(index))


@handles(aten.empty_like.default)
def empty_like(self: torch.Tensor, *, dtype: Any = None, device: Any = None, **rest: Any) -> torch.Tensor:
    device = self.device if device is None else torch.device(device)
    if device.type != "jax":
        return torch.empty_strided(
            tuple(self.shape), _like_strides(self, rest), dtype=dtype or self.dtype, device=device
        )
    return empty_strided(self.shape, _like_strides(self, rest), dtype=dtype or self.dtype, device=device)


def _like_strides(self: torch.Tensor, rest: dict[str, Any]) -> tuple[int, ...]:
    if rest.get("memory_format") in (None, torch.preserve_format) and self.is_contiguous():
        return self.stride()
    on_meta = torch.empty_strided(tuple(self.shape), self.stride(), device="meta")
    return torch.empty_like(on_meta, memory_format=rest.get("memory_format") or torch.preserve_format).stride()


@handles(aten.new_empty.default)
def new_empty(self: torch.Tensor, size: Any, *, dtype: Any = None, device: Any = None, **rest: Any) -> torch.Tensor:
    return torch.empty(list(size), dtype=dtype or self.dtype, device=self.device if device is None else device)


@handles(aten.new_empty_strided.default)
def new_empty_strided(
    self: torch.Tensor, size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **rest: Any
) -> torch.Tensor:
    device = self.device if device is None else device
    return torch.empty_strided(list(size), list(stride), dtype=dtype or self.dtype, device=device)


def _with_target(op: Any, make: Handler) -> None:
    """A ``*_like`` or ``new_*`` factory: on the device it is told, which need not be its argument's."""
    on_jax: list[Any] = []

    def plan(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        like = op.overloadpacket.__name__.endswith("_like")
        if device is not None and not _is_jax(device):
            out = make(*args, **kwargs)
            return _laid_out(out, _like_strides(args[0], kwargs)) if like else out
        if not on_jax:
            found = dispatch._registered(op) or dispatch._decomposed(op)
            assert found is not None, op
            on_jax.append(found)
        out = on_jax[0](args, {k: v for k, v in kwargs.items() if k != "memory_format"})
        if device is not None and torch.device(device).index not in (None, out.device.index):
            return to_device(out, torch.device(device))
        if kwargs.get("memory_format") in (None, torch.preserve_format) and not args[0]._noncontiguous:
            return out
        if like:
            return dispatch._restride(out, (tuple(out.shape), _like_strides(args[0], kwargs)))
        return out

    dispatch.handlers[op] = plan


def _laid_out(t: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A tensor of another device, with the strides it is to have."""
    if t.stride() == strides:
        return t
    return torch.empty_strided(tuple(t.shape), strides, dtype=t.dtype, device=t.device).copy_(t)


def _like(make: Any) -> Handler:
    def on_other(self: torch.Tensor, *args: Any, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
        rest = {k: v for k, v in rest.items() if k in ("generator",)}
        return make(tuple(self.shape), *args, dtype=dtype or self.dtype, device=device, **rest)

    return on_other


def _new(make: Any) -> Handler:
    def on_other(self: torch.Tensor, *args: Any, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
        return make(*args, dtype=dtype or self.dtype, device=device)

    return on_other


_with_target(aten.zeros_like.default, _like(torch.zeros))
_with_target(aten.ones_like.default, _like(torch.ones))
_with_target(aten.full_like.default, _like(torch.full))
_with_target(aten.rand_like.default, _like(torch.rand))
_with_target(aten.randn_like.default, _like(torch.randn))
_with_target(aten.new_zeros.default, _new(torch.zeros))
_with_target(aten.new_ones.default, _new(torch.ones))
_with_target(aten.new_full.default, _new(torch.full))
_with_target(
    aten.randint_like.default,
    lambda self, high, dtype=None, device=None, **_: torch.randint(
        high, tuple(self.shape), dtype=dtype or self.dtype, device=device
    ),
)
_with_target(
    aten.randint_like.low_dtype,
    lambda self, low, high, dtype=None, device=None, **_: torch.randint(
        low, high, tuple(self.shape), dtype=dtype or self.dtype, device=device
    ),
)


# --- copies -----------------------------------------------------------------------------------------------------------


def to_device(t: Tensor, device: torch.device) -> Tensor:
    """A copy on another JAX device."""
    placed = jax.device_put(t._value(), devices.jax_device(device) or jax.local_devices()[0])
    return wrap(placed, devices.torch_device(device.index or 0), t.dtype)


@handles(aten._to_copy.default)
def to_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> torch.Tensor:
    target = self.device if device is None else torch.device(device)
    dtype = dtype or self.dtype
    if layout not in (None, torch.strided):
        raise RuntimeError(f"to: device 'jax' holds dense (strided) tensors; layout {layout} is not supported")
    if not isinstance(self, Tensor):
        return from_cpu(self.to(dtype), target, memory_format)
    if target.type == "meta":
        return torch.empty_strided(tuple(self.shape), self.stride(), dtype=dtype, device="meta")
    if target.type != "jax":
        return _to_other_device(self, dtype, target, memory_format)
    out: Tensor = self
    if dtype != self.dtype:
        out = _convert((self,), {"dtype": dtype})
    elif memory_format is not None or target.index in (None, self.device.index):
        out = clone(self, memory_format=memory_format)
    if target.index is not None and target.index != self.device.index:
        out = to_device(out, target)
    if memory_format in (None, torch.preserve_format):
        return out
    return dispatch._restride(out, (tuple(out.shape), _like_strides(self, {"memory_format": memory_format})))


_convert_plan: list[Functional] = []


def _convert(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    if not _convert_plan:
        op = torchax_ops.lookup("aten::_to_copy")
        assert op is not None
        _convert_plan.append(Functional(aten._to_copy.default, op))
    return _convert_plan[0](args, kwargs)


def _to_other_device(t: Tensor, dtype: torch.dtype, device: torch.device, memory_format: Any) -> torch.Tensor:
    out = transfer.to_torch(t._value(), t.dtype).to(dtype)
    if t._noncontiguous or memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        out = _laid_out(out, _like_strides(t, {"memory_format": memory_format}))
    return out if device.type == "cpu" else out.to(device)


def from_cpu(t: torch.Tensor, device: torch.device, memory_format: Any = None) -> Tensor:
    """A CPU tensor's copy on device ``jax``; it keeps dense strides."""
    if t.device.type != "cpu":
        t = t.cpu()
    array = transfer.to_array(t, devices.jax_device(device), narrow=dispatch.narrow_storage)
    out = wrap(array, devices.torch_device(device.index or 0), t.dtype)
    return dispatch._restride(out, (tuple(t.shape), _like_strides(t, {"memory_format": memory_format})))


@handles(aten.clone.default)
def clone(self: Tensor, *, memory_format: Any = None) -> Tensor:
    # Arrays are immutable, so a copy is another box around the same array.
    out = wrap(self._value(), self.device, self.dtype)
    if self._noncontiguous or memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return dispatch._restride(out, (tuple(self.shape), _like_strides(self, {"memory_format": memory_format})))
    return out


@functools.partial(jax.jit, static_argnums=(0, 3, 4), inline=True)
def _fitted(chain: views.Chain, array: Any, operands: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    value = torchax_ops.cast(chain.read(array, operands), dtype)
    return jnp.broadcast_to(value.reshape(value.shape[max(0, value.ndim - len(shape)) :]), shape)


def _read_as(source: Tensor, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """A tensor's value broadcast to ``shape`` in ``dtype``; its own array where that is what it holds."""
    array = source._box.array
    if source._chain is ROOT and array.shape == shape and array.dtype == dtype:
        return array
    with wide_for(array):
        return _fitted(source._chain, array, source._operands, shape, dtype)


def _copy(self: Tensor, src: torch.Tensor) -> None:
    shape = tuple(self.shape)
    if tuple(src.shape) != shape:
        try:
            fits = torch.broadcast_shapes(src.shape, shape) == shape
        except RuntimeError:
            fits = False
        squeezed = src.ndim > len(shape) and all(n == 1 for n in src.shape[: src.ndim - len(shape)])
        if not fits and not squeezed:
            raise RuntimeError(
                f"copy_: The size of the source {list(src.shape)} does not broadcast to the target {list(shape)}"
            )
    if not isinstance(src, Tensor):
        src = wrap(
            transfer.to_array(src, devices.jax_device(self.device), dispatch.narrow_storage), self.device, src.dtype
        )
    elif src.device != self.device:
        src = to_device(src, self.device)
    stored = t2j_dtype(self.dtype)
    if dispatch.narrow_storage or (isinstance(src._box.array, jax.core.Tracer) and not jax.config.jax_enable_x64):  # type: ignore[attr-defined]
        stored = NARROWED.get(stored, stored)
    self._write(_read_as(src, shape, stored))


_COPY_OVERLAPS = overlap.rule_of(aten.copy_.default)


@handles(aten.copy_.default)
def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(self, Tensor):
        return self.copy_(src.detach().cpu())
    overlap.check_written(self, aten.copy_.default)
    overlap.check_read(aten.copy_.default, _COPY_OVERLAPS, [self], [src])
    _copy(self, src)
    return self


@handles(aten._foreach_copy_.default)
def foreach_copy_(self: list[Tensor], src: list[torch.Tensor], non_blocking: bool = False) -> None:
    if len(self) == len(src) and any(t.device != s.device for t, s in zip(self, src, strict=True)):
        for t, s in zip(self, src, strict=True):
            t.copy_(s)
    else:
        _plan_of(aten._foreach_copy_.default)((self, src), {})


def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """PyTorch's own copy between a CPU and a ``jax`` tensor, where it calls below the Python key."""
    if isinstance(dst, Tensor):
        _copy(dst, self)
        return dst
    assert isinstance(self, Tensor)
    return dst.copy_(transfer.to_torch(self._value(), self.dtype))


# --- values for Python ------------------------------------------------------------------------------------------------


@handles(aten._local_scalar_dense.default)
def item(self: Tensor) -> Any:
    value = self._value()
    try:
        return value.item()
    except jax.errors.ConcretizationTypeError as e:
        raise NoValues("item() (a Python number, or the truth value of a branch)", value) from e


@handles(aten.equal.default)
def equal(self: Tensor, other: torch.Tensor) -> bool:
    if not isinstance(other, Tensor) or not isinstance(self, Tensor):
        raise RuntimeError(f"Expected all tensors to be on the same device (equal of {self.device} and {other.device})")
    return tuple(self.shape) == tuple(other.shape) and bool(torch.eq(self, other).all())


@handles(aten.allclose.default)
def allclose(self: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    return bool(torch.isclose(self, other, rtol, atol, equal_nan).all())


@handles(aten._assert_async.default, aten._assert_async.msg)
def assert_async(self: Tensor, message: str = "Expected a tensor with true value(s)") -> None:
    if not isinstance(self._box.array, jax.core.Tracer) and not bool(self._value()):
        raise RuntimeError(message)


@handles(aten._linalg_check_errors.default)
def linalg_check_errors(info: Tensor, api_name: str, *, is_matrix: bool) -> None:
    if isinstance(info._box.array, jax.core.Tracer):
        return  # no values under a trace: the result holds NaN, as on cuda without checks
    codes = info.detach().cpu()
    if bool((codes != 0).any()):
        torch.ops.aten._linalg_check_errors(codes, api_name, is_matrix=is_matrix)


# --- changes of metadata ----------------------------------------------------------------------------------------------

_IN_PLACE_VIEWS = {
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.swapdims_.default: aten.transpose.int,
    aten.swapaxes_.default: aten.transpose.int,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
}


def _change_view(func: Any, view: view_ops.View, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    self = args[0]
    other = view_on(self._box, view, self.device)
    with torch._C._DisableTorchDispatch():  # PyTorch's own sizes and strides of the same tensor object
        func(*args, **kwargs)
    look_at(self, other)
    return self


def _in_place_view(func: Any, source: Any) -> None:
    def plan(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        [view] = view_ops.derive(source, view_of(args[0]), args[1:], kwargs)
        return _change_view(func, view, args, kwargs)

    dispatch.handlers[func] = plan


for _func, _source in _IN_PLACE_VIEWS.items():
    _in_place_view(_func, _source)


def _strided_view(self: Tensor, size: Any, stride: Any, offset: int | None) -> view_ops.View:
    offset = int(self.storage_offset()) if offset is None else int(offset)
    return _view_over(self._box, self.dtype, size, stride, offset)


def _view_over(box: Storage, dtype: torch.dtype, size: Any, stride: Any, offset: int) -> view_ops.View:
    """A strided view of a storage's elements, taken to be of ``dtype``."""
    wanted = t2j_dtype(dtype)
    held = wanted if NARROWED.get(wanted) == box.dtype else box.dtype
    shape, strides = tuple(int(n) for n in size), tuple(int(s) for s in stride)
    if len(shape) != len(strides):
        raise RuntimeError(f"mismatch in length of strides and shape: {list(shape)} and {list(strides)}")
    if any(s < 0 for s in strides) or offset < 0:
        raise RuntimeError(
            f"as_strided: Negative strides are not supported at the moment, got strides: {list(strides)}"
        )
    return view_ops.as_strided(box.shape, box.strides, held, dtype, shape, strides, offset)


@handles(aten.as_strided.default)
def as_strided(self: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    return view_on(self._box, _strided_view(self, size, stride, storage_offset), self.device)


def _odd(t: torch.Tensor, step: views.Step) -> bool:
    return isinstance(t, Tensor) and t._chain.steps.count(step) % 2 == 1


# Views that conjugate or negate as they are read need no bit that says so: is_conj() and is_neg() are False. Resolving one
# gives memory of its own all the same, as it does where there is a bit.
@handles(aten.resolve_conj.default)
def resolve_conj(self: torch.Tensor) -> torch.Tensor:
    return self.clone() if _odd(self, views.Conj()) else self


@handles(aten.resolve_neg.default)
def resolve_neg(self: torch.Tensor) -> torch.Tensor:
    return self.clone() if _odd(self, views.Negate()) else self


# For PyTorch they are no views, but they share memory all the same.
for _unsafe, _view in (
    (aten.unsafe_split.Tensor, aten.split.Tensor),
    (aten.unsafe_split_with_sizes.default, aten.split_with_sizes.default),
):
    dispatch.handlers[_unsafe] = functools.partial(run, _view)


@handles(aten.as_strided_copy.default)
def as_strided_copy(self: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    return as_strided(self, size, stride, storage_offset).clone(memory_format=torch.contiguous_format)


@handles(aten.as_strided_scatter.default)
def as_strided_scatter(
    self: Tensor, src: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None
) -> Tensor:
    box = Storage(self._box.array)
    box.strides = self._box.strides
    out = view_on(box, view_of(self), self.device)
    _copy(as_strided(out, size, stride, storage_offset), src)
    return out


@handles(aten.as_strided_.default)
def as_strided_(self: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    view = _strided_view(self, size, stride, storage_offset)
    return _change_view(aten.as_strided_.default, view, (self, size, stride, storage_offset), {})


def resize(self: Tensor, shape: tuple[int, ...], memory_format: Any = None) -> None:
    """Give a tensor another shape: on the same storage where it is large enough, else on a new one with the old values."""
    if tuple(self.shape) == shape and memory_format is None:
        return
    box, n = self._box, int(np.prod(shape, dtype=np.int64))
    strides = torch.empty(shape, device="meta", memory_format=memory_format or torch.contiguous_format).stride()
    offset = int(self.storage_offset())
    held = int(np.prod(box.shape, dtype=np.int64)) * box.dtype.itemsize // stored_dtype(self).itemsize
    if offset + n <= held:
        fresh = view_on(box, _strided_view(self, shape, strides, offset), self.device)
    elif held == 0:
        fresh = empty_strided(shape, strides, dtype=self.dtype, device=self.device)
    else:
        fresh = empty_strided((offset + n,), (1,), dtype=self.dtype, device=self.device)
        old = view_on(box, _strided_view(self, (held,), (1,), 0), self.device)
        run(aten.slice.Tensor, (fresh, 0, 0, held), {}).copy_(old)
        fresh = view_on(fresh._box, _strided_view(fresh, shape, strides, offset), self.device)
    adopt(self, fresh)


@handles(aten.resize_.default)
def resize_(self: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    resize(self, tuple(int(n) for n in size), None if memory_format is torch.preserve_format else memory_format)
    return self


@handles(aten.resize_as_.default)
def resize_as_(self: Tensor, the_template: torch.Tensor, *, memory_format: Any = None) -> Tensor:
    resize(self, tuple(the_template.shape))
    return self


@handles(aten.set_.source_Tensor)
def set_tensor(self: Tensor, source: torch.Tensor) -> Tensor:
    if not isinstance(source, Tensor):
        raise RuntimeError(
            f"set_: the source is on {source.device}, the tensor on {self.device}; both must be on 'jax'"
        )
    adopt(self, source)
    return self


def over(source: Any, dtype: torch.dtype, offset: int = 0, size: Any = None, stride: Any = None) -> Tensor:
    """A tensor of ``dtype`` over the storage of ``source``, itself a tensor or a ``StorageIdentity``: all of it by default."""
    box = source._box
    shape = (box.nbytes // t2j_dtype(dtype).itemsize - offset,) if size is None else tuple(size)
    strides = view_ops.contiguous_strides(shape) if stride is None else stride
    return view_on(box, _view_over(box, dtype, shape, strides, int(offset)), source.device)


@handles(aten.set_.default)
def set_empty(self: Tensor) -> Tensor:
    adopt(self, empty((0,), dtype=self.dtype, device=self.device))
    return self


@handles(aten.is_set_to.default)
def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    return self._box is tensor._box and view_of(self)[:2] == view_of(tensor)[:2]


@handles(aten._has_same_storage_numel.default)
def has_same_storage_numel(self: Tensor, other: Tensor) -> bool:
    return self._box.nbytes * other.element_size() == other._box.nbytes * self.element_size()


@handles(aten._new_zeros_with_same_feature_meta.default)
def new_zeros_with_same_feature_meta(self: Tensor, other: torch.Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    shape = (*self.shape[:self_num_batch_dims], *other.shape)
    return torch.zeros(shape, dtype=other.dtype, device=self.device)  # type: ignore[return-value]


# --- pinning and streams: nothing to do here --------------------------------------------------------------------------


@handles(aten.is_pinned.default)
def is_pinned(self: Tensor, device: Any = None) -> bool:
    return False


@handles(aten._pin_memory.default)
def pin_memory(self: Tensor, device: Any = None) -> Tensor:
    raise RuntimeError(f"cannot pin 'torch.{self.device.type}' tensors: only dense CPU tensors can be pinned")


@handles(aten.record_stream.default)
def record_stream(self: Tensor, s: Any) -> None:
    return None


@handles(aten._pack_padded_sequence.default)
def pack_padded_sequence(input: Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences laid step after step; how many are left at each step stays on CPU, where PyTorch's loops read it."""
    steps = input.transpose(0, 1) if batch_first else input
    lengths = lengths.cpu()
    if lengths.numel() != steps.shape[1]:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {lengths.numel()} (batch_size={steps.shape[1]})"
        )
    if int(lengths[-1]) <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    if bool((lengths[1:] > lengths[:-1]).any()):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement if you do not "
            "need ONNX exportability."
        )
    left = torch.arange(int(lengths[0]))[:, None] < lengths
    rows = left.flatten().nonzero()[:, 0].to(input.device)
    return steps.reshape(-1, *steps.shape[2:]).index_select(0, rows), left.sum(1)


@handles(aten._nested_tensor_from_mask_left_aligned.default)
def nested_tensor_from_mask_left_aligned(t: Tensor, mask: Tensor) -> bool:
    return False  # so that nn.TransformerEncoder keeps to dense tensors: device 'jax' has no nested ones


# --- operators that write, or choose, without saying so ---------------------------------------------------------------


@functools.cache
def _plan_of(func: Any) -> dispatch.Plan:
    """The plan that an operator would have without its handler."""
    plan = dispatch._registered(func) or dispatch._writing(func)
    assert plan is not None, func
    return plan


@functools.cache
def _functional(func: Any, draws: bool = True) -> Functional:
    op = torchax_ops.lookup(dispatch.schema.schema_name(func))
    assert op is not None, func
    return Functional(func, op if draws else dataclasses.replace(op, key=None))


@handles(aten.native_batch_norm.default)
def native_batch_norm(
    input: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float
) -> Any:  # fmt: skip
    args = (input, weight, bias, running_mean, running_var, training, momentum, eps)
    if training and running_mean is not None and running_var is not None:
        return run(aten._native_batch_norm_legit.default, args, {})
    return _functional(aten.native_batch_norm.default)(args, {})


def _determinant(func: Any) -> None:
    """A determinant, with the LU that PyTorch's derivatives read: A's own, but its transpose's for a real contiguous A."""

    def plan(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        A = args[0]
        # torchax_ops, which knows no strides, factors the transpose of all that is real; both have one determinant.
        flip = A._noncontiguous and not A.is_complex() and A.ndim >= 2
        return _functional(func)((A.mT, *args[1:]) if flip else args, kwargs)

    dispatch.handlers[func] = plan


_determinant(aten._linalg_det.default)
_determinant(aten._linalg_slogdet.default)


@handles(aten.scaled_dot_product_attention.default)
def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Attention as one operator, where PyTorch would take it apart for this device.

    The fused operator has a first derivative only, so transforms that may ask for more (``torch.func``, forward mode) and
    shapes that it does not take get PyTorch's own composition.
    """
    if attn_mask is not None:
        if is_causal:
            raise RuntimeError(
                "_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True"
            )
        if attn_mask.dtype is torch.bool:  # the operators below add a mask
            zero, minus = (torch.full((), v, dtype=query.dtype, device=query.device) for v in (0.0, float("-inf")))
            attn_mask = torch.where(attn_mask, zero, minus)
    transformed = (
        torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0
    )
    plain = query.dim() == key.dim() == value.dim() == 4 and query.is_floating_point() and not enable_gqa
    if transformed or not plain or not (query.dtype == key.dtype == value.dtype):
        return aten._scaled_dot_product_attention_math.default(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    return aten._scaled_dot_product_fused_attention_overrideable.default(
        query, key, value, attn_mask, dropout_p, is_causal, False, scale=scale
    )[0]


@handles(aten._scaled_dot_product_fused_attention_overrideable.default)
def fused_attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
    dropout_p = args[1] if len(args) > 1 else kwargs.get("dropout_p", 0.0)
    plan = _functional(aten._scaled_dot_product_fused_attention_overrideable.default, dropout_p > 0)
    outs = list(plan((query, key, value, *args), kwargs))
    # Lengths are Python numbers, which a compiled function would turn into arrays.
    outs[4], outs[5] = int(query.shape[-2]), int(key.shape[-2])
    return tuple(outs)

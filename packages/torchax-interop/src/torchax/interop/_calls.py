"""Calling a function of the other side."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torchax.derivatives import jvp, vjp
from torchax.dtypes import NARROWED
from torchax.interop._scopes import named_modules
from torchax.interop._tree import is_array, is_tensor, to_array, tree_map
from torchax.interop._x64 import user_x64
from torchax.tensor import Tensor


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of the ``index``-th array in a tree whose arrays were taken out."""

    index: int


def _take(tree: Any, wanted: Callable[[Any], bool]) -> tuple[list[Any], Any]:
    """The wanted leaves of ``tree``, and ``tree`` with slots in their places."""
    taken: list[Any] = []

    def leaf(x: Any) -> Any:
        if not wanted(x):
            return x
        taken.append(x)
        return _Slot(len(taken) - 1)

    slots = tree_map(leaf, tree)
    return taken, slots


def _fill(slots: Any, values: Sequence[Any]) -> Any:
    return tree_map(lambda x: values[x.index] if isinstance(x, _Slot) else x, slots)


def _for_user(x: torch.Tensor) -> jax.Array:
    """The array of ``x`` as the caller's x64 setting can hold it."""
    array = to_array(x)
    narrow = None if user_x64() else NARROWED.get(array.dtype)
    if narrow is None:
        return array
    with jax.enable_x64(True):
        if not isinstance(array, jax.core.Tracer):
            info = jnp.iinfo(narrow) if jnp.issubdtype(narrow, jnp.integer) else jnp.finfo(narrow)
            with jax.ensure_compile_time_eval():
                size = array if jnp.issubdtype(narrow, jnp.integer) else jnp.where(jnp.isfinite(array), abs(array), 0)
                fits = bool(((size >= info.min) & (size <= info.max)).all())
            if not fits:
                raise OverflowError(
                    f"call_jax: an argument of dtype {array.dtype} and shape {array.shape} holds values that {narrow} "
                    "cannot, and JAX's x64 flag is off; call it under jax.enable_x64(True)"
                )
        return array.astype(narrow)


class _Call:
    """One call of a JAX function, flat: arrays in, arrays out."""

    def __init__(self, fn: Callable[..., Any], slots: Any, differentiate: bool) -> None:
        self.fn, self.slots, self.differentiate = fn, slots, differentiate
        self.outputs: Any = None
        self.pullback: Callable[[list[jax.Array]], tuple[jax.Array, ...]] | None = None

    def __call__(self, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        args, kwargs = _fill(self.slots, arrays)
        with jax.enable_x64(user_x64()):
            found, self.outputs = _take(self.fn(*args, **kwargs), is_array)
        return tuple(found)


class _Apply(torch.autograd.Function):
    """A `_Call` in PyTorch's autograd and in ``torch.func``."""

    @staticmethod
    def forward(call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arrays = [_for_user(x) for x in tensors]
        if not call.differentiate:
            return tuple(map(Tensor, call(*arrays)))
        out, call.pullback = vjp(call, arrays)
        return tuple(map(Tensor, out))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.call, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.mark_non_differentiable(*(x for x in output if not (x.is_floating_point() or x.is_complex())))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        call = ctx.call
        if torch.is_grad_enabled():  # the gradient is to be differentiated too: it is one more call
            return None, *call_jax(lambda xs, gs: vjp(call, xs)[1](gs), list(ctx.saved_tensors), list(grads))
        found = call.pullback([None if g is None else to_array(g) for g in grads])
        return None, *(None if g is None else Tensor(g) for g in found)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        return tuple(call_jax(functools.partial(jvp, ctx.call), list(ctx.saved_tensors), list(tangents)))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], call: _Call, *tensors: torch.Tensor) -> tuple[Any, Any]:
        batched = jax.vmap(call, in_axes=in_dims[1:], axis_size=info.batch_size)
        out = call_jax(batched, *tensors)
        return out, (0,) * len(out)


def call_torch(torch_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``torch_fn`` called with JAX arrays; its tensors come back as arrays.

    Works on concrete arrays and on tracers, so ``jax.jit``, ``jax.grad`` and ``jax.vmap`` go through it.

    Args:
        torch_fn: any callable over tensors.
        *args: pytrees; their arrays reach ``torch_fn`` as tensors on the device.
        **kwargs: the same.
    """
    arrays, slots = _take((args, kwargs), is_array)
    args, kwargs = _fill(slots, list(map(Tensor, arrays)))
    traced = any(isinstance(x, jax.core.Tracer) for x in arrays)
    with named_modules() if traced else nullcontext():
        out = torch_fn(*args, **kwargs)
    return tree_map(lambda x: to_array(x) if is_tensor(x) else x, out)


def call_jax(jax_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``jax_fn`` called with tensors; its arrays come back as tensors, differentiable by PyTorch's autograd.

    The gradient is ``jax.vjp``'s, to any order. ``jax_fn`` runs under the caller's own x64 setting: where it is off, a
    64-bit argument becomes its 32-bit twin.

    Args:
        jax_fn: any callable over arrays.
        *args: pytrees; their tensors reach ``jax_fn`` as arrays.
        **kwargs: the same.

    Raises:
        TypeError: a tensor is not on the device.
        OverflowError: x64 is off and a 64-bit argument holds a value that 32 bits cannot.
    """
    tensors, slots = _take((args, kwargs), is_tensor)
    if not tensors:
        with jax.enable_x64(user_x64()):
            out = jax_fn(*args, **kwargs)
        return tree_map(lambda x: Tensor(x) if is_array(x) else x, out)
    call = _Call(jax_fn, slots, torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
    out = _Apply.apply(call, *tensors)
    return _fill(call.outputs, out)

"""View chains: how a view reads from, and writes through to, the array in its storage.

A view is a chain of steps from the storage's array. Each step says how to read (``array -> view``) and how to write
(``array, value -> array``). Chains are interned, so a chain is one hashable token in the key of a compiled operator,
and an operator reads its views inside its own XLA program. Positions (which index, which start) are *operands*, kept
beside the chain: ``x[i]`` compiles once for all ``i``.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Operands = tuple[int, ...]


def _iota(n: int) -> Any:
    return lax.iota(np.int32 if n < 2**31 else np.int64, n)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a chain. Subclasses give ``read`` and ``write``; those with a position take it as ``at``."""

    def read(self, x: Any, at: Any) -> Any:
        raise NotImplementedError

    def write(self, x: Any, at: Any, value: Any) -> Any:
        """``x`` with the elements that ``read`` selects replaced by ``value``: by their indices, unless said better."""
        index = self.read(_iota(x.size).reshape(x.shape), at)
        return x.reshape(-1).at[index.reshape(-1)].set(value.reshape(-1)).reshape(x.shape)

    @property
    def positioned(self) -> bool:
        """Whether the step has a position."""
        return False

    @property
    def overlapping(self) -> bool:
        """Whether one element of the source may be read twice."""
        return False

    @property
    def rearranging(self) -> bool:
        """Whether the step reads elements as they are, and so an index as well as a value."""
        return True


@dataclass(frozen=True, slots=True)
class Permute(Step):
    dims: tuple[int, ...]

    def read(self, x: Any, at: Any) -> Any:
        return lax.transpose(x, self.dims)

    def write(self, x: Any, at: Any, value: Any) -> Any:
        return lax.transpose(value, tuple(int(d) for d in np.argsort(self.dims)))


@dataclass(frozen=True, slots=True)
class Reshape(Step):
    shape: tuple[int, ...]

    def read(self, x: Any, at: Any) -> Any:
        return x.reshape(self.shape)

    def write(self, x: Any, at: Any, value: Any) -> Any:
        return value.reshape(x.shape)


@dataclass(frozen=True, slots=True)
class Expand(Step):
    shape: tuple[int, ...]

    def read(self, x: Any, at: Any) -> Any:
        return jnp.broadcast_to(x, self.shape)

    @property
    def overlapping(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Select(Step):
    dim: int

    def read(self, x: Any, at: Any) -> Any:
        return lax.dynamic_index_in_dim(x, at, self.dim, keepdims=False)

    def write(self, x: Any, at: Any, value: Any) -> Any:
        return lax.dynamic_update_index_in_dim(x, value, at, self.dim)

    @property
    def positioned(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Slice(Step):
    dim: int
    length: int
    stride: int

    def read(self, x: Any, at: Any) -> Any:
        span = (self.length - 1) * self.stride + 1 if self.length else 0
        x = lax.dynamic_slice_in_dim(x, at, span, self.dim)
        return x if self.stride == 1 else lax.slice_in_dim(x, 0, span, self.stride, self.dim)

    def write(self, x: Any, at: Any, value: Any) -> Any:
        if self.stride == 1:
            return lax.dynamic_update_slice_in_dim(x, value, at, self.dim)
        where = (slice(None),) * self.dim + (at + self.stride * _iota(self.length),)
        return x.at[where].set(value)

    @property
    def positioned(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Diagonal(Step):
    offset: int
    dim1: int
    dim2: int

    def read(self, x: Any, at: Any) -> Any:
        return jnp.diagonal(x, self.offset, self.dim1, self.dim2)


@dataclass(frozen=True, slots=True)
class Unfold(Step):
    dim: int
    size: int
    step: int

    def read(self, x: Any, at: Any) -> Any:
        if x.ndim == 0:
            return x.reshape(1)[: self.size]
        count = (x.shape[self.dim] - self.size) // self.step + 1
        index = (_iota(count) * self.step)[:, None] + _iota(self.size)
        windows = jnp.take(x, index, axis=self.dim)
        return jnp.moveaxis(windows, self.dim + 1, -1)

    @property
    def overlapping(self) -> bool:
        return self.step < self.size


@dataclass(frozen=True, slots=True)
class Strided(Step):
    """``as_strided`` of a flat array; the storage offset is the position."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def read(self, x: Any, at: Any) -> Any:
        span = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        if math.prod(self.shape) == 0:
            return jnp.zeros(self.shape, x.dtype)
        index = jnp.zeros((), _iota(max(span, 1)).dtype)
        for n, s in zip(self.shape, self.strides, strict=True):
            index = index[..., None] + _iota(n) * np.asarray(s, index.dtype)
        return x[at + index]

    @property
    def positioned(self) -> bool:
        return True

    @property
    def overlapping(self) -> bool:
        reach = 0
        for stride, size in sorted((s, n) for n, s in zip(self.shape, self.strides, strict=True) if n != 1):
            if stride <= reach:
                return True
            reach += stride * (size - 1)
        return False


@dataclass(frozen=True, slots=True)
class Bitcast(Step):
    """``view(dtype)``: the same bits, with the last dimension longer or shorter where the sizes differ."""

    dtype: np.dtype

    def read(self, x: Any, at: Any) -> Any:
        return _bitcast(x, self.dtype)

    def write(self, x: Any, at: Any, value: Any) -> Any:
        return _bitcast(value, x.dtype).reshape(x.shape)

    @property
    def rearranging(self) -> bool:
        return False


def _bitcast(x: Any, dtype: np.dtype) -> Any:
    if jnp.iscomplexobj(x):
        x = jnp.stack([x.real, x.imag], -1).reshape(*x.shape[:-1], -1) if x.ndim else jnp.stack([x.real, x.imag])
    if x.dtype == np.bool_:
        x = x.astype(np.uint8)
    if np.issubdtype(dtype, np.complexfloating):
        parts = _bitcast(x, np.dtype(f"float{dtype.itemsize * 4}"))
        parts = parts.reshape(*parts.shape[:-1], -1, 2)
        return lax.complex(parts[..., 0], parts[..., 1])
    if dtype == np.bool_:
        return _bitcast(x, np.dtype("uint8")) != 0
    old, new = x.dtype.itemsize, dtype.itemsize
    if old == new:
        return lax.bitcast_convert_type(x, dtype)
    if old > new:
        out = lax.bitcast_convert_type(x, dtype)
        return out.reshape(*x.shape[:-1], -1)
    return lax.bitcast_convert_type(x.reshape(*x.shape[:-1], -1, new // old), dtype)


@dataclass(frozen=True, slots=True)
class AsReal(Step):
    def read(self, x: Any, at: Any) -> Any:
        return jnp.stack([x.real, x.imag], -1)

    def write(self, x: Any, at: Any, value: Any) -> Any:
        return lax.complex(value[..., 0], value[..., 1])

    @property
    def rearranging(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class AsComplex(Step):
    def read(self, x: Any, at: Any) -> Any:
        return lax.complex(x[..., 0], x[..., 1])

    def write(self, x: Any, at: Any, value: Any) -> Any:
        return jnp.stack([value.real, value.imag], -1)

    @property
    def rearranging(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Conj(Step):
    def read(self, x: Any, at: Any) -> Any:
        return jnp.conj(x)

    def write(self, x: Any, at: Any, value: Any) -> Any:
        return jnp.conj(value)

    @property
    def rearranging(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Negate(Step):
    def read(self, x: Any, at: Any) -> Any:
        return -x

    def write(self, x: Any, at: Any, value: Any) -> Any:
        return -value

    @property
    def rearranging(self) -> bool:
        return False


class Chain:
    """An interned sequence of steps. Two views made the same way from their storages share one chain."""

    __slots__ = ("_longer", "steps")

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps
        self._longer: dict[Step, Chain] = {}

    def read(self, array: Any, operands: Any) -> Any:
        """The view's value."""
        at = iter(operands)
        for step in self.steps:
            array = step.read(array, next(at) if step.positioned else None)
        return array

    def write(self, array: Any, operands: Any, value: Any) -> Any:
        """The storage's array after ``value`` (of the view's shape and dtype) is written to the view."""
        if any(step.overlapping for step in self.steps[:-1]) and all(step.rearranging for step in self.steps):
            # Written step by step, a step that reads an element twice would put its old value back beside the new one.
            index = self.read(_iota(array.size).reshape(array.shape), operands)
            return array.reshape(-1).at[index.reshape(-1)].set(value.reshape(-1)).reshape(array.shape)
        at = iter(operands)
        path = [array]
        positions = [next(at) if step.positioned else None for step in self.steps]
        for step, position in zip(self.steps[:-1], positions, strict=False):
            path.append(step.read(path[-1], position))
        for step, position, source in zip(reversed(self.steps), reversed(positions), reversed(path), strict=True):
            value = step.write(source, position, value)
        return value

    @property
    def positions(self) -> int:
        """How many operands the chain takes."""
        return sum(step.positioned for step in self.steps)

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.steps))})"


ROOT = Chain(())
_intern_lock = threading.Lock()


def _longer(chain: Chain, step: Step) -> Chain:
    found = chain._longer.get(step)
    if found is None:
        with _intern_lock:
            found = chain._longer.setdefault(step, Chain((*chain.steps, step)))
    return found


def extend(chain: Chain, operands: Operands, step: Step, at: int | None = None) -> tuple[Chain, Operands]:
    """The chain one step on, with steps that amount to one merged, so that chains stay short in loops."""
    last = chain.steps[-1] if chain.steps else None
    if isinstance(step, Permute):
        if step.dims == tuple(range(len(step.dims))):
            return chain, operands
        if isinstance(last, Permute):
            return extend(_parent(chain), operands, Permute(tuple(last.dims[d] for d in step.dims)))
    elif isinstance(step, Reshape):
        if isinstance(last, Reshape):
            chain = _parent(chain)
    elif isinstance(step, Slice) and isinstance(last, Slice) and last.dim == step.dim:
        merged = Slice(step.dim, step.length, last.stride * step.stride)
        start = operands[-1] + last.stride * (at or 0)
        return _longer(_parent(chain), merged), (*operands[:-1], start)
    elif isinstance(step, Select) and isinstance(last, Slice) and last.dim == step.dim:
        index = operands[-1] + last.stride * (at or 0)
        return _longer(_parent(chain), step), (*operands[:-1], index)
    elif isinstance(step, (Conj, Negate)) and last == step:
        return _parent(chain), operands
    return _longer(chain, step), operands if at is None else (*operands, at)


def _parent(chain: Chain) -> Chain:
    parent = ROOT
    for step in chain.steps[:-1]:
        parent = _longer(parent, step)
    return parent


_read_view = jax.jit(lambda chain, array, operands: chain.read(array, operands), static_argnums=0, inline=True)


def read(chain: Chain, array: Any, operands: Operands) -> Any:
    """A view's value as an array of its own, in one compiled call."""
    return array if chain is ROOT else _read_view(chain, array, operands)

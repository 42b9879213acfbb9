"""A PyTorch module as an nnx module."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchax.flax._functional import Apply, functional


@functools.cache
def _class() -> Any:
    """The nnx class, made when flax is first needed: it is an optional dependency."""
    from flax import nnx

    class TorchModule(nnx.Module):
        """A PyTorch module whose parameters are ``nnx.Param`` and whose buffers are ``nnx.BatchStat``."""

        def __init__(self, module: torch.nn.Module, rngs: Any = None) -> None:
            params, self.apply = functional(module)
            self.params = _nested(nnx, nnx.Param, params)
            self.buffers = _nested(nnx, nnx.BatchStat, self.apply.buffers)
            self.rngs = nnx.data(rngs)
            self.training = module.training

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            apply: Apply = self.apply
            key = None if self.rngs is None else self.rngs.dropout()
            params, buffers = _flat(nnx, self.params), _flat(nnx, self.buffers)
            values = [{name: v[...] for name, v in found.items()} for found in (params, buffers)]
            with _mode(apply.module, self.training):
                out, after = apply.with_buffers(*values, *args, rng=key, **kwargs)
            if self.training:
                for name, value in after.items():
                    buffers[name].set_value(value)
            return out

        def train(self, **attributes: Any) -> None:
            self.training = True

        def eval(self, **attributes: Any) -> None:
            self.training = False

    return TorchModule


@contextmanager
def _mode(module: torch.nn.Module, training: bool) -> Iterator[None]:
    """A module in train or eval mode for a while, all of it."""
    before = [(part, part.training) for part in module.modules()]
    try:
        module.train(training)
        yield
    finally:
        for part, mode in before:
            part.training = mode


def _nested(nnx: Any, kind: Any, arrays: dict[str, Any]) -> Any:
    """Arrays by dotted name as variables in nested ``nnx.Dict``."""
    root = nnx.Dict()
    for name, array in arrays.items():
        *owners, last = name.split(".")
        owner = root
        for part in owners:
            if part not in owner:
                owner[part] = nnx.Dict()
            owner = owner[part]
        owner[last] = kind(array)
    return root


def _flat(nnx: Any, tree: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= _flat(nnx, value, f"{prefix}{name}.") if isinstance(value, nnx.Dict) else {prefix + name: value}
    return found


def as_nnx(module: torch.nn.Module, rngs: Any = None) -> Any:
    """A PyTorch module as a ``flax.nnx.Module``, for ``nnx.jit``, ``nnx.grad``, ``nnx.Optimizer``.

    Args:
        module: on CPU or ``jax``; its values are taken, and it is not trained itself.
        rngs: ``nnx.Rngs`` for what draws (dropout), from its stream ``dropout``; without, the device's generator.

    Returns:
        An nnx module with ``params`` (``nnx.Param``), ``buffers`` (``nnx.BatchStat``, written in train mode), ``train()``
        and ``eval()``; called with arrays, it returns arrays.

    Raises:
        ModuleNotFoundError: flax is not installed.
    """
    return _class()(module, rngs)

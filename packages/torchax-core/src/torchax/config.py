"""Switches of the environment."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torchax import dispatch


@dataclass
class Configuration:
    """What ``torchax.default_env().config`` holds. A change takes effect at once, in all threads.

    Attributes:
        debug_print_each_op: log each operator with shapes, dtypes and time, to the logger ``torchax.tensor``.
        debug_print_each_op_operands: log the operands' values too.
        debug_accuracy_for_each_op: run each operator on CPU PyTorch as well and report the first result that differs.
        debug_mixed_tensor: log where a CPU tensor is mixed with ``jax`` tensors.
        cpu_fallback: run operators that have no JAX function on CPU PyTorch, with one warning each.
        use_int32_for_index: no effect: PyTorch's dtypes are kept, and XLA chooses how it computes indices.
        allow_mixed_math_with_scalar_tensor: let one-element CPU tensors mix with ``jax`` tensors; zero-dimensional ones always do.
        force_materialize_views: no effect: views are read inside the operator that uses them.
        use_dlpack_for_data_conversion: no effect on ``.to()``, which must copy; ``t2j``/``j2t`` take ``use_dlpack=``.
        treat_cuda_as_jax_device: inside the environment, ``device="cuda"`` in moves and factories means ``jax``.
        internal_respect_torch_return_dtypes: no effect: dtypes are always PyTorch's.
    """

    debug_print_each_op: bool = False
    debug_print_each_op_operands: bool = False
    debug_accuracy_for_each_op: bool = False
    debug_mixed_tensor: bool = False
    cpu_fallback: bool = False
    use_int32_for_index: bool = False
    allow_mixed_math_with_scalar_tensor: bool = True
    force_materialize_views: bool = False
    use_dlpack_for_data_conversion: bool = False
    treat_cuda_as_jax_device: bool = True
    internal_respect_torch_return_dtypes: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _NAMES:
            raise AttributeError(f"Configuration has no switch {name!r}; it has: {', '.join(sorted(_NAMES))}")
        object.__setattr__(self, name, value)
        if self is _active:
            _apply(self)


_NAMES = {f.name for f in fields(Configuration)}
_active: Configuration | None = None


def activate(config: Configuration) -> None:
    """Make ``config`` the one whose switches are in force."""
    global _active
    _active = config
    _apply(config)


def _apply(config: Configuration) -> None:
    from torchax import debug

    dispatch.mix_one_element = config.allow_mixed_math_with_scalar_tensor
    debug.configure(config)

"""Moving data between CPU tensors and ``jax.Array``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torchax.devices import refuse_in_fork
from torchax.dtypes import JAX_DTYPE_TO_TORCH, NARROWED, TORCH_DTYPE_TO_JAX, t2j_dtype
from torchax.errors import NoValues, describe_array, reused

# Types numpy does not know cross as unsigned integers of the same size: by their bits, never through float32.
_BITS = {1: torch.uint8, 2: torch.uint16}


def _is_numpys(dtype: np.dtype) -> bool:
    """Whether numpy itself has the dtype (ml_dtypes adds bfloat16, float8 ...)."""
    return dtype.isbuiltin == 1


def numpy_view(t: torch.Tensor) -> np.ndarray:
    """A numpy array over a CPU tensor's memory (ml_dtypes for bfloat16 and float8), without a copy where possible."""
    t = t.detach()
    if t.layout is not torch.strided:
        raise TypeError(
            f"a tensor with layout {t.layout} cannot move to device 'jax', which holds dense (strided) tensors: "
            "call .to_dense() first"
        )
    if t.is_quantized:
        raise TypeError("a quantized tensor cannot move to device 'jax': call .dequantize() first")
    t = t.resolve_conj().resolve_neg()
    dtype = t2j_dtype(t.dtype)
    if not _is_numpys(dtype):
        return t.view(_BITS[dtype.itemsize]).numpy().view(dtype)
    return t.numpy()


def to_array(t: torch.Tensor, device: jax.Device | None = None, narrow: bool = False) -> jax.Array:
    """A new ``jax.Array`` with a CPU tensor's values, dtype and shape; later writes to ``t`` do not reach it.

    Args:
        t: a dense CPU tensor.
        device: where to put it, committed; ``None``: JAX's default, uncommitted.
        narrow: store 64-bit values in 32 bits.

    Raises:
        TypeError: JAX has no such dtype, or ``t`` is sparse or quantized.
    """
    refuse_in_fork()
    if t.device.type == "meta":
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    values = numpy_view(t)
    if narrow and values.dtype in NARROWED:
        values = values.astype(NARROWED[values.dtype])
    with jax.enable_x64(True):
        # One copy, by numpy: JAX may then keep that buffer as it is.
        fresh = np.array(values, copy=True, order="C")
        return jnp.asarray(fresh) if device is None else jax.device_put(fresh, device)


def values_of(array: Any) -> np.ndarray:
    """An array's values, without a copy where JAX's device is the CPU.

    Raises:
        NoValues: under a trace.
        RuntimeError: the array was donated.
    """
    try:
        return np.asarray(array)
    except jax.errors.TracerArrayConversionError as e:
        raise NoValues("a copy on CPU", array) from e
    except RuntimeError as e:
        if "deleted" not in str(e):
            raise
        raise reused("a copy on CPU", describe_array(array)) from e


def to_torch(array: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A CPU tensor with a copy of an array's values; ``dtype`` where it differs from the array's (64 bits in 32).

    Raises:
        NoValues: under a trace.
        RuntimeError: the array was donated.
    """
    values = np.array(values_of(array), order="C")
    found = JAX_DTYPE_TO_TORCH[np.dtype(values.dtype)]
    if not _is_numpys(values.dtype):
        out = torch.from_numpy(values.view(f"u{values.dtype.itemsize}")).view(found)
    else:
        out = torch.from_numpy(values)
    return out if dtype is None or dtype == found else out.to(dtype)


def narrowed(a: Any, what: Any) -> Any:
    """A 64-bit array as one of 32 bits, for a JAX program that has no 64-bit values; anything else as it is.

    Args:
        a: an array or tracer, or what is none.
        what: the operator or function that takes it, for the message.

    Raises:
        OverflowError: a value, known now, does not fit.
    """
    if not isinstance(a, jax.Array) or np.dtype(a.dtype) not in NARROWED:
        return a
    if isinstance(a, jax.core.Tracer):
        return jax.lax.convert_element_type(a, NARROWED[np.dtype(a.dtype)])
    values = np.asarray(a)  # not by JAX: under a trace that would be a tracer
    with np.errstate(over="ignore"):
        small = values.astype(NARROWED[values.dtype])
    fits = small == values if small.dtype.kind in "iu" else np.isfinite(small) == np.isfinite(values)
    if not fits.all():
        raise OverflowError(
            f"{what}: a {a.dtype} tensor with values beyond 32 bits enters a JAX program whose x64 flag is off. Use "
            "torchax.interop.jax_jit, or switch x64 on around it (jax.enable_x64(True))."
        )
    return small


def alias_to_array(t: torch.Tensor) -> jax.Array:
    """A ``jax.Array`` over a CPU tensor's own memory (DLPack) where its layout allows, else a copy."""
    t = t.detach()
    if t.is_contiguous() and t.dtype in TORCH_DTYPE_TO_JAX and t.numel():
        try:
            with jax.enable_x64(True):
                dtype = TORCH_DTYPE_TO_JAX[t.dtype]
                if t.dtype is torch.bfloat16 or _is_numpys(dtype):
                    return jax.dlpack.from_dlpack(t)
        except (RuntimeError, ValueError, TypeError, BufferError):
            pass  # an unaligned buffer, or a dtype DLPack lacks: the copy below is right
    return to_array(t)


def alias_to_torch(array: jax.Array) -> torch.Tensor:
    """A CPU tensor over a ``jax.Array``'s own memory (DLPack) where it is on one CPU device, else a copy.

    The memory is JAX's, which takes it to be immutable: do not write to the result.
    """
    try:
        return torch.from_dlpack(array)
    except (RuntimeError, ValueError, TypeError, BufferError):
        return to_torch(array)

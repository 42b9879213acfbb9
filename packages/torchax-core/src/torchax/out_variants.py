"""``out=`` operators: the functional twin, then its results into the given tensors."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import torch

from torchax import dispatch, overlap, schema
from torchax.dtypes import TORCH_DTYPE_TO_JAX
from torchax.tensor import Tensor, stored_dtype, wide_for

# Operators that compute in the dtype of ``out=``, as if it were their ``dtype=``.
_DTYPE_BY_OUT = {"cumprod", "cumsum", "nansum", "prod", "sum"}

# Which operators convert their results to the dtype of ``out=``, and which want the exact one. PyTorch's elementwise
# operators and reductions convert, all others are exact, but for these (found by trying each on CPU):
_CONVERTS = {
    "_chunk_cat", "_fft_c2r", "addr", "bernoulli", "cat", "cholesky", "cholesky_inverse", "cholesky_solve", "floor_divide", "geqrf",
    "linalg_householder_product", "linalg_lstsq", "linalg_pinv", "normal", "special_ndtr", "stack",
} | _DTYPE_BY_OUT  # fmt: skip
_EXACT = {
    "all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "bitwise_not", "conj_physical", "fft_ifft", "fft_ihfft",
    "float_power", "frexp", "heaviside", "linalg_vector_norm", "nan_to_num", "neg", "norm", "round",
}  # fmt: skip
_TYPE_ERROR = {"_chunk_cat", "cat", "stack"}  # what these raise of a dtype


def run_out(func: Any, source: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an ``out=`` operator. Its tensors are resized where they must be; nothing is written before all is computed."""
    names = schema.out_arguments(func)
    order = [a.name for a in func._schema.arguments]
    given = dict(kwargs)
    outs = []
    for name in names:
        i = order.index(name)
        outs.append(given.pop(name) if name in given else args[i])
    args = args[: min(len(args), min(order.index(n) for n in names))]
    inputs = dispatch._flat([*args, *given.values()])
    for out in dispatch._flat(outs):
        if not isinstance(out, Tensor):
            there = dispatch._device_among(args, kwargs)
            raise RuntimeError(f"Expected out tensor to have device {there}, but got {out.device} instead ({func})")
    if torch.is_grad_enabled() and _is_composite(func) and outs[0].dtype.is_floating_point | outs[0].dtype.is_complex:
        _refuse_gradients(func, [*inputs, *outs])
    tensors = any(isinstance(a, torch.Tensor) for a in inputs)
    accepted = {a.name for a in source._schema.arguments}
    # linspace with tensors takes a dtype, and with ``out=`` it does not: then that stands for it.
    by_out = not tensors or "dtype" not in order or _name(func) in _DTYPE_BY_OUT
    if "dtype" in accepted and given.get("dtype") is None and by_out:
        given["dtype"] = outs[0].dtype
    if not tensors and "device" in accepted:
        given["device"] = outs[0].device
    results = dispatch.run(source, args, given)
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    if len(outs) == 1 and isinstance(outs[0], (list, tuple)):
        results = [results]
    pairs = list(zip(dispatch._flat(outs), dispatch._flat(results), strict=False))
    _check(func, pairs, inputs)
    if any(out.dtype != result.dtype for out, result in pairs):
        _refused_on_meta(func, names, args, given, outs, results)
    fitted = []
    for out, result in pairs:
        with wide_for(result._box.array):
            target = jax.ShapeDtypeStruct(tuple(result.shape), stored_dtype(out))
            fitted.append(dispatch._fit(result._value(), target, func))
    for (out, result), value in zip(pairs, fitted, strict=True):
        if out.shape != result.shape:
            resize_out(out, tuple(result.shape))
        out._write(value)
    if not func._schema.returns:
        return None
    return outs[0] if len(outs) == 1 else tuple(outs)


@functools.cache
def _is_composite(func: Any) -> bool:
    """Whether PyTorch's autograd knows nothing of an operator, but of its parts."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _refuse_gradients(func: Any, tensors: list[Any]) -> None:
    if any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors):
        raise RuntimeError(
            f"{_name(func)}(): functions with out=... arguments don't support automatic differentiation, but one of the "
            "arguments requires grad."
        )


def _name(func: Any) -> str:
    return func.overloadpacket.__name__


def _check(func: Any, pairs: list[tuple[Tensor, Tensor]], inputs: list[Any]) -> None:
    """Raise what PyTorch raises of these ``out=`` tensors, by its general rules."""
    for out, result in pairs:
        if out.device != result.device:
            raise RuntimeError(
                f"Expected out tensor to have device {result.device}, but got {out.device} instead ({func})"
            )
        if out.dtype != result.dtype:
            _check_dtype(func, out.dtype, result.dtype)
        if out.shape == result.shape:
            overlap.check_written(out, func)
            overlap.check_read(func, overlap.rule_of(func), [out], inputs)


def _check_dtype(func: Any, out: torch.dtype, result: torch.dtype) -> None:
    name = _name(func)
    elementwise = torch.Tag.pointwise in func.tags or torch.Tag.reduction in func.tags
    if name in _EXACT or not (elementwise or name in _CONVERTS):
        raise RuntimeError(f"Expected out tensor to have dtype {result}, but got {out} instead ({func})")
    if name in _TYPE_ERROR and not torch.can_cast(result, out):
        raise TypeError(f"torch.{name}(): input types can't be cast to the desired output type {out} ({func})")
    dispatch.check_can_cast(TORCH_DTYPE_TO_JAX[result], TORCH_DTYPE_TO_JAX[out], func)


def _refused_on_meta(func: Any, names: list[str], args: Any, kwargs: dict[str, Any], outs: Any, results: Any) -> None:
    """Raise what PyTorch's meta kernel raises of these dtypes (an elementwise operator that does not convert)."""

    def wanted(out: Any, result: Any) -> Any:
        if isinstance(out, (list, tuple)):
            return [wanted(o, r) for o, r in zip(out, result, strict=True)]
        return torch.empty_strided(tuple(result.shape), result.stride(), dtype=out.dtype, device="meta")

    on_meta = {name: wanted(o, r) for name, o, r in zip(names, outs, results, strict=True)}
    try:
        func(*map(dispatch._to_meta, args), **{k: dispatch._to_meta(v) for k, v in kwargs.items()}, **on_meta)
    except NotImplementedError:
        pass  # no meta kernel
    except Exception as e:
        raise RuntimeError(f"{e} ({func})") from e


def resize_out(out: Tensor, shape: tuple[int, ...]) -> None:
    """Resize an ``out=`` tensor, with PyTorch's warning where it was not empty."""
    if out.numel() != 0:
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(out.shape)}, which does not "
            f"match the required output shape {list(shape)}. This behavior is deprecated, and in a future PyTorch "
            "release outputs will not be resized unless they have zero elements. You can explicitly reuse an out "
            "tensor t by resizing it, inplace, to zero elements with t.resize_(0).",
            UserWarning,
            stacklevel=2,
        )
    from torchax.stateful import resize

    resize(out, shape)

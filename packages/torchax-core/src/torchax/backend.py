"""Makes ``jax`` a PyTorch device: the registration, and the few places where PyTorch must know a Python backend.

Importing this module registers the device. A process that never makes a ``jax`` tensor runs as before.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from typing import Any

import jax.extend.source_info_util
import torch
from torch.fx.experimental import proxy_tensor
from torch.optim.optimizer import _foreach_supported_types as _optimizer_types
from torch.utils._foreach_utils import _foreach_supported_types as _utility_types
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import torchax_ops
from torchax import autocast, device_module, dispatch, schema, serialization, stateful
from torchax.tensor import Tensor

_library: list[torch.library.Library] = []


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


_raise_pending = ctypes.pythonapi.PyErr_Occurred  # called through ctypes, it raises the error that is set
_DEVICE_TYPE = torch._C._autograd.DeviceType.PrivateUse1
_lost = threading.local()  # what `_DeviceGuard.type_` found set during a backward


class _DeviceGuard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        # When an operator raises during a backward, PyTorch's engine asks this from a destructor with the Python error still
        # set: an answer beside a pending error would end the process. Keep the error; `run_backward` below raises it.
        try:
            _raise_pending()
        except BaseException as e:
            _lost.error = e
        return _DEVICE_TYPE


# Factories that get a kernel of their own, so that ``torch.randn(..., device="jax")`` is one call and one XLA program.
# Others (``torch.hann_window`` ...) are composed by PyTorch from these.
_FACTORIES = [
    "arange",
    "arange.start",
    "arange.start_step",
    "eye",
    "eye.m",
    "full",
    "kaiser_window",
    "kaiser_window.beta",
    "kaiser_window.periodic",
    "linspace",
    "logspace",
    "ones",
    "rand",
    "rand.generator",
    "randint",
    "randint.generator",
    "randint.low",
    "randint.low_generator",
    "randn",
    "randn.generator",
    "randperm",
    "randperm.generator",
    "scalar_tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
]


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _factory(func: Any) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("pin_memory"):
            raise RuntimeError("Only dense CPU tensors can be pinned")
        return dispatch.run(func, args, kwargs)

    return kernel


def _register_kernels() -> None:
    """Kernels below the Python key, for calls that no ``jax`` tensor is an argument of, and for those PyTorch makes there.

    They work on storages: one that dispatched again would recurse for ever.
    """
    library = torch.library.Library("aten", "IMPL")
    _library.append(library)
    library.impl("empty.memory_format", stateful.empty, "PrivateUse1")
    library.impl("empty_strided", stateful.empty_strided, "PrivateUse1")
    library.impl("_efficientzerotensor", stateful.empty, "PrivateUse1")
    library.impl("_copy_from", stateful.copy_from, "PrivateUse1")
    for name in _FACTORIES:
        library.impl(name, _factory(_overload(name)), "PrivateUse1")
    # PyTorch has an autograd formula for the whole of these; it uses it for a backend that has a kernel of its own, where it
    # would else take them apart. Taken apart, one_hot looks at its values on CPU and cuda only, and the out= operators write
    # to a tensor that is not the one given. The Python key comes first, so this kernel is never run.
    for name in (
        "linear",
        "one_hot",
        "matmul.out",
        "fft_ihfft2.out",
        "fft_ihfftn.out",
        *_names_of("linalg_matrix_rank"),
    ):
        library.impl(name, functools.partial(_unreachable, name), "PrivateUse1")
    library.impl("scaled_dot_product_attention", stateful.attention, "AutogradPrivateUse1")
    library.impl("resolve_conj", stateful.resolve_conj, "AutogradPrivateUse1")
    library.impl("resolve_neg", stateful.resolve_neg, "AutogradPrivateUse1")
    library.impl("_pin_memory", _pin_memory, "CPU")


def _names_of(packet: str) -> list[str]:
    """The ``out=`` overloads of an operator."""
    overloads = getattr(torch.ops.aten, packet).overloads()
    return [f"{packet}.{name}" for name in overloads if schema.out_arguments(_overload(f"{packet}.{name}"))]


def _unreachable(name: str, *args: Any, **kwargs: Any) -> Any:
    raise AssertionError(f"aten::{name} reached device 'jax' without a torchax.Tensor")


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """A copy: with a Python backend as the accelerator, PyTorch has no allocator of pinned memory to ask."""
    if torch.cuda.is_available():
        return torch.empty_like(self, pin_memory=True).copy_(self)
    return self.clone()


def _backward_on_the_callers_thread() -> None:
    """JAX keeps traces, meshes and settings per thread; PyTorch would run a backward of this device on another one."""
    real = torch.autograd.graph._engine_run_backward

    @functools.wraps(real)
    def run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not dispatch.used:
            return real(t_outputs, *args, **kwargs)
        before, _lost.error = getattr(_lost, "error", None), None
        try:
            with torch.autograd.set_multithreading_enabled(False):
                return real(t_outputs, *args, **kwargs)
        except SystemError:
            if _lost.error is None:
                raise
            raise _lost.error from _lost.error.__cause__
        finally:
            _lost.error = before

    torch.autograd.graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward  # type: ignore[attr-defined]


def _foreach_optimizers() -> None:
    """Optimizers test a parameter's exact type before they take the whole list at once."""
    for known in (_optimizer_types, _utility_types):
        if Tensor not in known:
            known.append(Tensor)  # type: ignore[arg-type]


def _modules_keep_parameters() -> None:
    """``module.cpu()`` swaps ``jax`` parameters in place, as ``module.to("jax")`` does: ties and optimizers hold."""
    real = torch.nn.Module._apply

    @functools.wraps(real)
    def _apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        if not dispatch.used or not any(isinstance(p, Tensor) for p in self.parameters(recurse)):
            return real(self, fn, recurse)
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return real(self, fn, recurse)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    torch.nn.Module._apply = _apply  # type: ignore[method-assign]


def _swap_what_a_graph_holds() -> None:
    """Let a module move while the outputs of an earlier forward are alive.

    PyTorch refuses to swap a parameter that an autograd graph holds; other devices move by ``.data =``, which it does not
    allow between these classes. After the swap the graph keeps the old values, and its gradients have no parameter to go to.
    """
    real = torch.utils.swap_tensors

    @functools.wraps(real)
    def swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> None:
        if not (isinstance(t1, Tensor) or isinstance(t2, Tensor)):
            return real(t1, t2)
        try:
            return real(t1, t2)
        except RuntimeError as e:
            if "use_count" not in str(e):
                raise
        for t in (t1, t2):
            if t.requires_grad and t.is_leaf:
                torch.autograd.graph.get_gradient_edge(t).node.register_prehook(_moved_away)
        t1.__class__, t2.__class__ = t2.__class__, t1.__class__
        t1.__dict__, t2.__dict__ = t2.__dict__, t1.__dict__
        torch._C._swap_tensor_impl(t1, t2)
        return None

    torch.utils.swap_tensors = swap_tensors


def _moved_away(grads: Any) -> None:
    raise RuntimeError(
        "this backward goes through a graph made before its module moved to or from device 'jax': run the forward again"
    )


# What ``torch.accelerator`` asks of a C++ device guard or allocator, which a Python backend has not.
_ACCELERATOR = {
    "current_device_idx": device_module.current_device,
    "current_device_index": device_module.current_device,
    "device_count": device_module.device_count,
    "device_index": device_module.device,
    "empty_cache": device_module.empty_cache,
    "get_memory_info": device_module.mem_get_info,
    "max_memory_allocated": device_module.max_memory_allocated,
    "memory_allocated": device_module.memory_allocated,
    "memory_stats": device_module.memory_stats,
    "set_device_idx": device_module.set_device,
    "set_device_index": device_module.set_device,
    "synchronize": device_module.synchronize,
}


def _accelerator() -> None:
    """``torch.accelerator`` answers as ``torch.jax`` does."""
    for name, function in _ACCELERATOR.items():
        setattr(torch.accelerator, name, function)


def _lines_of_the_user() -> None:
    """JAX's messages and profiles name the line that called PyTorch, not those inside PyTorch or here."""
    for package in (torch, torchax_ops, sys.modules["torchax"]):
        for folder in package.__path__:
            jax.extend.source_info_util.register_exclusion(folder)


def _no_bare_storages() -> None:
    """``torch.UntypedStorage(8, device="jax")`` would end the process: there is no allocator to ask."""
    make = torch._C.StorageBase.__new__

    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None:
            return make(cls, *args, **kwargs)
        if torch.device(device).type == "jax":
            raise RuntimeError(
                "an UntypedStorage cannot be on device 'jax': JAX's arrays are no bytes to write to. Make a tensor "
                "(torch.empty(n, dtype=torch.uint8, device='jax')), or load with torch.load(..., map_location='jax')"
            )
        return make(cls, *args, device=device, **kwargs)  # type: ignore[call-arg]

    torch.UntypedStorage.__new__ = staticmethod(new)  # type: ignore[assignment]


def register() -> None:
    """Register the device; once a process."""
    _setup_privateuseone_for_python_backend("jax", device_module, _Hooks(), _DeviceGuard())
    _register_kernels()
    autocast.register()
    serialization.register()
    _backward_on_the_callers_thread()
    _foreach_optimizers()
    _modules_keep_parameters()
    _swap_what_a_graph_holds()
    _no_bare_storages()
    _lines_of_the_user()
    _accelerator()
    # make_fx and torch.func.linearize step aside for tensor classes that they do not know, and would freeze their values.
    proxy_tensor.HANDLED_TYPES = (*proxy_tensor.HANDLED_TYPES, Tensor)  # type: ignore[assignment]


register()

"""``nn.Module``s as functions of their tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from torchax.interop._jit import Jitted, _sequence
from torchax.interop._scopes import named_modules
from torchax.interop._views import jax_view, torch_view

Tensors = dict[str, torch.Tensor]


def _slots(module: torch.nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Every place for a tensor in a module and those inside it: name, dictionary, key. Plain attributes count too."""
    for prefix, inner in module.named_modules():
        dot = prefix + "." if prefix else ""
        for slots in (inner._parameters, inner._buffers, vars(inner)):
            for key, value in list(slots.items()):
                if isinstance(value, torch.Tensor):
                    yield dot + key, slots, key


def extract_all_buffers(m: torch.nn.Module, dedup_parameters: bool = False) -> tuple[Tensors, Tensors]:
    """``(params, buffers)``: every tensor of a module by its name; frozen parameters and plain attributes are in ``buffers``.

    Args:
        m: the module.
        dedup_parameters: whether a tensor that has several names counts once.
    """
    params: Tensors = {}
    buffers: Tensors = {}
    seen: set[int] = set()
    for name, slots, key in _slots(m):
        value = slots[key]
        if dedup_parameters and id(value) in seen:
            continue
        seen.add(id(value))
        trained = isinstance(value, torch.nn.Parameter) and value.requires_grad
        (params if trained else buffers)[name] = value
    return params, buffers


def set_all_buffers(m: torch.nn.Module, params: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
    """Put tensors into a module by their names; what was a parameter becomes one of the new value."""
    for name, slots, key in _slots(m):
        if name in buffers:
            slots[key] = buffers[name]
        elif name in params:
            value = params[name]
            slots[key] = value if isinstance(value, torch.nn.Parameter) else torch.nn.Parameter(value)


@contextmanager
def swapped(m: torch.nn.Module, tensors: Tensors) -> Iterator[None]:
    """The module with ``tensors`` in the places of those names, and of all names tied to them.

    What the module puts into these places meanwhile is in ``tensors`` afterwards.

    Raises:
        KeyError: the module has no tensor of a name.
    """
    slots = {name: (where, key) for name, where, key in _slots(m)}
    unknown = tensors.keys() - slots.keys()
    if unknown:
        raise KeyError(f"{type(m).__name__} has no tensor named {', '.join(sorted(unknown))}")
    tied: dict[int, list[str]] = {}
    for name, (where, key) in slots.items():
        tied.setdefault(id(where[key]), []).append(name)
    before = {name: where[key] for name, (where, key) in slots.items()}
    for name, value in tensors.items():
        for other in tied[id(before[name])]:
            if other == name or other not in tensors:
                where, key = slots[other]
                where[key] = value
    try:
        yield
        for name in tensors:
            where, key = slots[name]
            tensors[name] = where.get(key)  # type: ignore[assignment]
    finally:
        for name, (where, key) in slots.items():
            where[key] = before[name]


def extract_jax(
    mod: torch.nn.Module, env: Any = None, *, dedup_parameters: bool = True
) -> tuple[dict[str, Any], Callable[..., Any]]:
    """A module as its state and a JAX function: ``fn(state, args, kwargs=None)`` on arrays.

    Args:
        mod: a module on the device.
        env: accepted for code written for google/torchax.
        dedup_parameters: whether tied parameters count once in the state.

    Returns:
        ``(state, fn)``: the arrays by name, and a pure function of them, to be jitted, differentiated and so on. ``args``
        is a tuple of pytrees of arrays, ``kwargs`` a dictionary.
    """
    params, buffers = extract_all_buffers(mod, dedup_parameters)

    def fn(state: Mapping[str, Any], args: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
        args, kwargs = torch_view((tuple(args), dict(kwargs or {})))
        with swapped(mod, torch_view(dict(state))), named_modules():
            return jax_view(mod(*args, **kwargs))

    return jax_view({k: v.detach() for k, v in {**params, **buffers}.items()}), fn


class JittableModule(torch.nn.Module):
    """A module whose methods run compiled, each as one XLA program.

    It is an instance of the wrapped module's class, and answers all of its attributes. Its tensors stand in ``params``
    (those with ``requires_grad``) and ``buffers`` (all others); what a method writes to them stays. Replace an entry of
    either to compute with another tensor.

    Args:
        m: the module; it becomes the submodule ``_model``, so that state dictionaries have keys ``_model.…``.
        extra_jit_args: for ``jax.jit``; ``static_argnums`` and ``donate_argnums`` count ``params`` as 0, ``buffers`` as 1.
        dedup_parameters: whether tied parameters count once.
    """

    params: Tensors
    buffers: Tensors  # type: ignore[assignment]

    def __init__(
        self, m: torch.nn.Module, extra_jit_args: dict[str, Any] | None = None, dedup_parameters: bool = True
    ) -> None:
        super().__init__()
        params, buffers = extract_all_buffers(m, dedup_parameters)
        vars(self).update(
            params=params,
            buffers=buffers,
            _extra_jit_args=dict(extra_jit_args or {}),
            _jitted={},
            _log_recompiles=False,
        )
        self._model = m
        self.training = m.training

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        return type(self._modules["_model"])  # type: ignore[return-value]

    def __getattr__(self, key: str) -> Any:
        if key == "_model":
            return super().__getattr__(key)
        jitted = vars(self).get("_jitted", {})
        if key in jitted:
            return jitted[key]
        return getattr(self._model, key)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.jittable_call("forward", *args, **kwargs)

    def functional_call(
        self, method_or_name: str | Callable[..., Any], params: Tensors, buffers: Tensors, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a method of the wrapped module (by name, or a function that takes the module first) with other tensors.

        What it writes to ``params`` and ``buffers``, or puts in their places, is in them afterwards.
        """
        if isinstance(method_or_name, str):
            method = self._model if method_or_name == "forward" else getattr(self._model, method_or_name)
        elif getattr(method_or_name, "__self__", None) is not None:
            method = method_or_name
        else:
            method = functools.partial(method_or_name, self._model)
        tensors = {**params, **buffers}
        with swapped(self._model, tensors):
            out = method(*args, **kwargs)
        for given in (params, buffers):
            given.update({name: tensors[name] for name in given if tensors[name] is not given[name]})
        return out

    def jittable_call(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the wrapped module, compiled, with ``params`` and ``buffers``."""
        if method_name not in self._jitted:
            self.make_jitted(method_name)
        return self._jitted[method_name](*args, **kwargs)

    def make_jitted(self, name: str) -> None:
        """Compile a method of the wrapped module from now on, also where it is called by its own name."""
        if name not in self._jitted:
            self._jitted[name] = self._compile(name)

    def _compile(self, name: str) -> Jitted:
        def method(*args: Any, **kwargs: Any) -> Any:
            return self.functional_call(name, self.params, self.buffers, *args, **kwargs)

        method.__name__ = method.__qualname__ = f"{type(self._model).__name__}.{name}"
        options = dict(self._extra_jit_args)
        donate = _sequence(options.pop("donate_argnums", ()))
        static = _sequence(options.pop("static_argnums", ()))
        options["donate_argnums"] = [i - 2 for i in donate if i >= 2]
        options["static_argnums"] = [i - 2 for i in static if i >= 2]
        return Jitted.of(method, options, donate_state=any(i < 2 for i in donate), log_recompiles=self._log_recompiles)

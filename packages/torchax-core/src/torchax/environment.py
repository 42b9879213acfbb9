"""``Environment``: configuration, random keys, overrides and conversions, as code written for google/torchax knows them.

The device needs none of this: it is always on. There is one environment (`default_env`); entering it matters only for
``treat_cuda_as_jax_device``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from torchax import config, derived, dispatch, random, transfer
from torchax.functions import register_function
from torchax.stateful import from_cpu
from torchax.tensor import Tensor, wrap
from torchax_ops import Op, key_parameter

_JAX = torch.device("jax")


def _renamed(device: Any) -> Any:
    """``device``, with CUDA's name replaced by ``jax``."""
    if isinstance(device, str) and device.split(":")[0] == "cuda":
        return device.replace("cuda", "jax", 1)
    if isinstance(device, torch.device) and device.type == "cuda":
        return torch.device("jax", device.index) if device.index is not None else _JAX
    return device


class _CudaAsJax(TorchFunctionMode):
    """Sends ``"cuda"`` to ``jax`` in moves and factories."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if default_env().config.treat_cuda_as_jax_device:
            if func is torch.Tensor.cuda:
                index = args[1] if len(args) > 1 else kwargs.pop("device", None)
                device = (
                    _JAX if index is None else torch.device("jax", index) if isinstance(index, int) else _renamed(index)
                )
                return args[0].to(device)
            if "device" in kwargs:
                kwargs["device"] = _renamed(kwargs["device"])
            if func is torch.Tensor.to or func is torch.device:
                args = tuple(_renamed(a) for a in args)
        return func(*args, **kwargs)


class Environment:
    """The state that torchax's functions share. Use `default_env`; as a context manager or decorator it may be entered
    any number of times, in any thread."""

    def __init__(self, configuration: config.Configuration | None = None) -> None:
        self._config = configuration or config.Configuration()
        self._local = threading.local()

    # --- entering -----------------------------------------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        """Whether the environment is entered on this thread."""
        return bool(getattr(self._local, "stack", []))

    def enable_torch_modes(self) -> None:
        """Enter the environment; `disable_torch_modes` leaves it."""
        stack = self._local.__dict__.setdefault("stack", [])
        mode = _CudaAsJax()
        mode.__enter__()
        stack.append(mode)

    def disable_torch_modes(self, *exc: Any) -> None:
        """Leave the environment.

        Raises:
            RuntimeError: it is not entered on this thread.
        """
        stack = getattr(self._local, "stack", [])
        if not stack:
            raise RuntimeError("the torchax environment is not enabled on this thread")
        stack.pop().__exit__(*(exc or (None, None, None)))

    def __enter__(self) -> Environment:
        self.enable_torch_modes()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.disable_torch_modes(*exc)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fn(*args, **kwargs)

        return inside

    # --- properties ---------------------------------------------------------------------------------------------------

    @property
    def config(self) -> config.Configuration:
        return self._config

    @property
    def param(self) -> Any:
        """What `override_property` set on this thread: ``mesh``, ``prng`` and ``autocast_dtype`` as attributes."""
        return _Properties(self, getattr(self._local, "properties", {}))

    @contextmanager
    def override_property(self, **properties: Any) -> Iterator[None]:
        """Set ``mesh=``, ``prng=`` (a JAX PRNG key) or ``autocast_dtype=`` on this thread, for a while.

        Raises:
            TypeError: there is no such property.
        """
        unknown = set(properties) - {"mesh", "prng", "autocast_dtype"}
        if unknown:
            raise TypeError(
                f"override_property takes mesh=, prng= and autocast_dtype=, not {', '.join(sorted(unknown))}"
            )
        before = getattr(self._local, "properties", {})
        self._local.properties = {**before, **properties}
        prng, dtype = properties.get("prng"), properties.get("autocast_dtype")
        try:
            with _unless_none(prng, random.overridden), _unless_none(dtype, lambda d: torch.autocast("jax", dtype=d)):
                yield
        finally:
            self._local.properties = before

    # --- random state -------------------------------------------------------------------------------------------------

    def manual_seed(self, seed: int) -> None:
        """Seed the ``jax`` device's generators."""
        random.manual_seed_all(seed)

    @property
    def prng_key(self) -> jax.Array:
        """A key that repeats until the next draw."""
        with random.generator(0) as state:
            return random.draw(state.array)[0]

    def get_and_rotate_prng_key(self, generator: torch.Generator | None = None) -> jax.Array:
        """A fresh JAX PRNG key; the device's generator (or ``generator``) advances."""
        if generator is not None:
            return jax.random.key(random.seed_from(generator) & 0xFFFF_FFFF)
        with random.generator(0) as state:
            key, state.array = random.draw(state.array)
            return key

    # --- overrides ----------------------------------------------------------------------------------------------------

    def override_op_definition(self, op: Any, fn: Callable[..., Any], is_view_op: bool = False) -> None:
        """Replace an operator's definition by a function on ``jax.Array``s (a torch function's: on tensors).

        Args:
            op: an aten operator or its packet, a ``torch.library`` operator, or a torch function such as
                ``torch.nn.functional.scaled_dot_product_attention``.
            fn: the new definition, with ``op``'s arguments.
            is_view_op: accepted; the result of ``fn`` is always a new tensor.
        """
        if not isinstance(op, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            register_function(op, fn)
            return
        override(op, fn)

    # --- conversions --------------------------------------------------------------------------------------------------

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator as ``jax`` tensors would."""
        return dispatch.run(func, args, kwargs or {})

    def to_xla(self, tree: Any) -> Any:
        """A tree with its CPU tensors moved to ``jax``."""
        return tree_map(
            lambda t: from_cpu(t, _JAX) if isinstance(t, torch.Tensor) and not isinstance(t, Tensor) else t, tree
        )

    def t2j_iso(self, tree: Any) -> Any:
        """``jax`` tensors in a tree as their arrays (no copy).

        Raises:
            TypeError: a tensor is not on ``jax``.
        """

        def one(x: Any) -> Any:
            if isinstance(x, Tensor):
                return x.jax()
            if isinstance(x, torch.Tensor):
                raise TypeError(f"t2j_iso: a tensor on {x.device} has no array to share; t2j_copy makes one")
            return x

        return tree_map(one, tree)

    v2t_iso = staticmethod(lambda tree: tree)

    def j2t_iso(self, tree: Any) -> Any:
        """Arrays in a tree as ``jax`` tensors around them (no copy)."""
        return jax.tree.map(lambda x: wrap(x) if isinstance(x, jax.Array) else x, tree)

    def t2j_copy(self, tree: Any) -> Any:
        """Tensors in a tree, on any device, as arrays; CPU ones are copied."""
        return tree_map(
            lambda x: x.jax() if isinstance(x, Tensor) else transfer.to_array(x) if isinstance(x, torch.Tensor) else x,
            tree,
        )

    def j2t_copy(self, tree: Any) -> Any:
        """Arrays in a tree as CPU tensors, copied."""
        return jax.tree.map(lambda x: transfer.to_torch(x) if isinstance(x, jax.Array) else x, tree)


class _Properties:
    def __init__(self, env: Environment, values: dict[str, Any]) -> None:
        self._env = env
        self.mesh = values.get("mesh")
        self.autocast_dtype = values.get("autocast_dtype")

    @property
    def prng(self) -> jax.Array:
        return self._env.prng_key


@contextmanager
def _unless_none(value: Any, make: Callable[[Any], Any]) -> Iterator[None]:
    if value is None:
        yield
        return
    with make(value):
        yield


def override(op: Any, fn: Callable[..., Any], *, static: tuple[str, ...] = (), eager: bool = False) -> None:
    """Make a function on ``jax.Array``s the definition of an operator, of all its functional overloads if ``op`` is a
    packet; in-place and ``out=`` variants follow, and what `derived` derives."""
    op = getattr(op, "_opoverload", op)  # what torch.library.custom_op makes
    overloads = [getattr(op, o) for o in op.overloads()] if isinstance(op, torch._ops.OpOverloadPacket) else [op]

    for overload in overloads:
        if overload._schema.is_mutable:
            continue
        entry = Op(overload.name(), fn, frozenset(static), frozenset(), key_parameter(fn), eager, None)
        dispatch.overrides[overload] = dispatch.Functional(overload, entry)
        if entry.key is None and not eager:
            derived.derive(overload, fn, entry.static)
    dispatch.forget_plans()


@functools.cache
def default_env() -> Environment:
    """The environment."""
    env = Environment()
    config.activate(env.config)
    return env


__all__ = ["Environment", "default_env", "override"]

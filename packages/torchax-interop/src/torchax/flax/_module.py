"""``FlaxNNModule``: a JAX model as a PyTorch module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import jax
import torch

from torchax.environment import Environment, default_env
from torchax.flax._tree import ArrayTree
from torchax.interop import call_jax, jax_view


class _Model(Protocol):
    """A JAX model as `FlaxNNModule` runs it."""

    draws: bool

    def init(self, key: jax.Array, args: Any, kwargs: Any) -> Any:
        """The variables, a pytree of arrays."""

    def trainable(self, path: tuple[str, ...], array: jax.Array) -> bool: ...

    def train(self, mode: bool) -> None: ...

    def apply(self, variables: Any, training: bool, key: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The output, and the variables after it (``None``: as before). One that was not written stays the same object."""


class _Pair:
    """An ``(init, apply)`` pair: ``init(key, *args) -> params``, ``apply(params, *args) -> output``."""

    draws = False

    def __init__(self, init: Callable[..., Any], apply: Callable[..., Any]) -> None:
        self._init, self._apply = init, apply

    def init(self, key: jax.Array, args: Any, kwargs: Any) -> Any:
        return self._init(key, *args, **kwargs)

    def trainable(self, path: tuple[str, ...], array: jax.Array) -> bool:
        return True

    def train(self, mode: bool) -> None: ...

    def apply(self, variables: Any, training: bool, key: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return self._apply(variables, *args, **kwargs), None


class _Linen(_Pair):
    """A linen module. What is no parameter is written in train mode, and random numbers are to be had there."""

    draws = True

    def __init__(self, module: Any) -> None:
        super().__init__(module.init, module.apply)

    def trainable(self, path: tuple[str, ...], array: jax.Array) -> bool:
        return path[0] == "params"

    def apply(self, variables: Any, training: bool, key: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if not training:
            return self._apply(variables, *args, **kwargs), None
        rngs = {"params": jax.random.wrap_key_data(key)}  # linen draws every other stream from this one
        written = [name for name in variables if name != "params"]
        if not written:
            return self._apply(variables, *args, rngs=rngs, **kwargs), None
        out, updated = self._apply(variables, *args, rngs=rngs, mutable=written, **kwargs)
        return out, {**variables, **{name: updated[name] for name in written if name in updated}}


class _Nnx:
    """An nnx module, which holds its own variables and random state."""

    draws = False

    def __init__(self, module: Any) -> None:
        from flax import nnx

        self.nnx, self.module = nnx, module
        self.parameters = {
            tuple(map(str, path)) for path, v in nnx.to_flat_state(nnx.state(module)) if isinstance(v, nnx.Param)
        }

    def init(self, key: jax.Array, args: Any, kwargs: Any) -> Any:
        return self.nnx.to_pure_dict(self.nnx.state(self.module))

    def trainable(self, path: tuple[str, ...], array: jax.Array) -> bool:
        return path in self.parameters

    def train(self, mode: bool) -> None:
        (self.module.train if mode else self.module.eval)()

    def apply(self, variables: Any, training: bool, key: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        graph, state = self.nnx.split(self.module)
        self.nnx.replace_by_pure_dict(state, variables)
        module = self.nnx.merge(graph, state)
        out = module(*args, **kwargs)
        return out, self.nnx.to_pure_dict(self.nnx.state(module))


def _model(of: Any) -> _Model:
    flax = sys.modules.get("flax")  # whoever gives a flax module has imported it
    if flax is not None:
        from flax import linen, nnx

        if isinstance(of, nnx.Module):
            return _Nnx(of)
        if isinstance(of, linen.Module):
            return _Linen(of)
    if isinstance(of, tuple) and len(of) == 2 and all(map(callable, of)):
        return _Pair(*of)
    if callable(getattr(of, "init", None)) and callable(getattr(of, "apply", None)):
        return _Pair(of.init, of.apply)
    raise TypeError(f"FlaxNNModule takes a linen or nnx module or an (init, apply) pair, not {type(of).__name__}")


class FlaxNNModule(torch.nn.Module):
    """A flax module, or any ``(init, apply)`` pair, as a PyTorch module on device ``jax``.

    Its parameters are PyTorch's: optimizers, ``state_dict``, ``requires_grad_`` and hooks see them, under the names of
    their paths (``_params.params.Dense_0.kernel``). What is no parameter (batch statistics, random state) is a buffer;
    a linen module writes it in train mode, an nnx module when it does. The gradient is JAX's.

    Args:
        env: `torchax.default_env()`, whose random key initializes the parameters (``None``: that one).
        flax_module: a ``flax.linen`` module; a ``flax.nnx`` module, whose variables are taken as they are; a pair
            ``(init, apply)`` with ``init(key, *args, **kwargs) -> params`` and ``apply(params, *args, **kwargs) -> output``,
            or an object with these two.
        sample_args: tensors or arrays to initialize with (any, for an nnx module).
        sample_kwargs: the same, by keyword.

    Raises:
        TypeError: ``flax_module`` is none of these.
        ValueError: two parameters have the same name once it is written as text.
    """

    def __init__(
        self,
        env: Environment | None,
        flax_module: Any,
        sample_args: Any = (),
        sample_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._model = _model(flax_module)
        key = (env or default_env()).get_and_rotate_prng_key()
        args, kwargs = jax_view((tuple(sample_args or ()), dict(sample_kwargs or {})))
        self._params = ArrayTree(self._model.init(key, args, kwargs), self._model.trainable)

    def train(self, mode: bool = True) -> FlaxNNModule:
        self._model.train(mode)
        return super().train(mode)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output for tensors ``args`` and ``kwargs``; what is no tensor reaches it as it is."""
        variables, training = self._params.tree(), self.training
        key = _fresh_key() if training and self._model.draws else None

        def run(variables: Any, key: Any, args: Any, kwargs: Any) -> Any:
            known = self._params.arrays(variables)
            out, after = self._model.apply(known, training, key, args, kwargs)
            return out, None if after is None else self._params.written(known, after)

        out, written = call_jax(run, variables, key, args, kwargs)
        if written is not None:
            self._params.write(written)
        return out


def _fresh_key() -> torch.Tensor:
    """Data of a PRNG key, from the device's generator."""
    return torch.randint(0, 2**32 - 1, (2,), device="jax").to(torch.uint32)

"""``torch.compile(model, backend="jax")``: what Dynamo captures and AOT autograd takes apart, as XLA programs."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from torchax import devices, dispatch, random, transfer
from torchax.interop import _graph
from torchax.interop._x64 import wide
from torchax.tensor import Tensor, wrap

NAME = "jax"
_REGISTRY = "torch._dynamo.backends.registry"


def backend(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Dynamo's backend: forward and backward of a graph, each one XLA program a shape.

    Args:
        module: the graph that Dynamo captured, over ``jax`` or CPU tensors.
        example_inputs: its inputs.

    Raises:
        OperatorNotFound: an operator has neither a JAX function nor a decomposition.
    """
    from torch._dynamo.backends.common import aot_autograd

    _leave_torchax_alone()
    compiled = aot_autograd(
        fw_compiler=_compile, bw_compiler=_compile, inference_compiler=_compile, decompositions=_decompositions()
    )
    return compiled(module, list(example_inputs))


@functools.cache
def _leave_torchax_alone() -> None:
    """Keep Dynamo from capturing the Python that runs operators, between the graphs that it captures."""
    from torch._dynamo import trace_rules

    for name in ("torchax", "torchax.interop", "torchax_ops", "jax"):
        trace_rules.add(name)


def _decompositions() -> dict[Any, Any]:
    """PyTorch's decompositions of what has no function on arrays."""
    from torch._decomp import core_aten_decompositions

    return {func: table for func, table in core_aten_decompositions().items() if _graph.find(func) is None}


def _compile(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    from torch._functorch.aot_autograd import make_boxed_func

    return make_boxed_func(_Compiled(module))


class _Compiled:
    """A graph of operators as a function of tensors that runs one XLA program."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = _graph.without_assertions(module)
        used = list(_graph.operators(self.module))
        _graph.require(used)
        self.draws = any(op.key for op in map(_graph.find, used) if op)
        [output] = (node for node in module.graph.nodes if node.op == "output")
        self.outputs = [n.meta.get("val") if isinstance(n, torch.fx.Node) else n for n in output.args[0]]
        self.program = jax.jit(self.on_arrays, static_argnums=0)

    def on_arrays(self, numbers: tuple[Any, ...], state: Any, *arrays: jax.Array) -> tuple[Any, Any]:
        """The outputs, and the generator's state after them. ``numbers`` are the inputs that are no tensors."""

        def key() -> Any:
            nonlocal state
            found, state = random.draw(state)
            return found

        left = iter(arrays)
        inputs = [next(left) if x is _TENSOR else x for x in numbers]
        return _graph.OnArrays(self.module, key).run(*inputs, enable_io_processing=False), state

    def __call__(self, *inputs: Any) -> list[Any]:
        numbers = tuple(_TENSOR if isinstance(x, torch.Tensor) else x for x in inputs)
        arrays = [_array(x) for x in inputs if isinstance(x, torch.Tensor)]
        index = next((x.device.index or 0 for x in inputs if isinstance(x, Tensor)), 0)
        with wide():
            if self.draws:
                with random.generator(index) as box:
                    outs, box.array = self.program(numbers, box.array, *arrays)
            else:
                outs, _ = self.program(numbers, None, *arrays)
        return [_output(value, known) for value, known in zip(outs, self.outputs, strict=True)]


class _IsTensor:
    """Stands for a tensor among a program's inputs."""


_TENSOR = _IsTensor()


def _array(x: torch.Tensor) -> jax.Array:
    return x.jax() if isinstance(x, Tensor) else transfer.alias_to_array(x)


def _output(value: Any, known: Any) -> Any:
    """A result as PyTorch knows it from the trace: a tensor on CPU or ``jax`` with its strides, a number, ``None``."""
    if not isinstance(known, torch.Tensor):
        return None if value is None else int(value) if isinstance(known, (int, torch.SymInt)) else value.item()
    strides = tuple(known.stride()) if all(isinstance(s, int) for s in (*known.stride(), *known.shape)) else None
    if known.device.type == "jax":
        made = wrap(value, devices.torch_device(known.device.index or 0), known.dtype)
        return made if strides is None else dispatch._restride(made, (tuple(known.shape), strides))
    out = transfer.to_torch(value, known.dtype)
    if strides is None or out.stride() == strides:
        return out
    return torch.empty_strided(out.shape, strides, dtype=out.dtype).copy_(out)


# --- registration -------------------------------------------------------------------------------------------------------


def _register() -> None:
    from torch._dynamo.backends.registry import register_backend

    register_backend(backend, name=NAME)  # type: ignore[arg-type]


class _WhenDynamoLoads(importlib.abc.MetaPathFinder):
    """Registers the backend once Dynamo's registry is imported, which takes too long to do here."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != _REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            _register()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Make ``"jax"`` a backend that ``torch.compile`` knows, also where no distribution's entry point says so."""
    if _REGISTRY in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _WhenDynamoLoads())

"""An exported graph, run on arrays: each operator by the function that runs it on the device."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch._decomp import decomposition_table
from torch.fx import GraphModule, Interpreter

import torchax_ops
from torchax import dispatch, schema
from torchax.dtypes import t2j_dtype
from torchax.errors import OperatorNotFound
from torchax.interop import _higher_order
from torchax.schema import GENERATOR, SKIPPED, TENSOR, TRACED
from torchax.tensor import Tensor
from torchax_ops import Op

aten = torch.ops.aten

# What they check of sizes, jax.export checks; what they check of values, a compiled program cannot raise.
ASSERTIONS = {
    aten._assert_async.default,
    aten._assert_async.msg,
    aten._assert_scalar.default,
    aten._assert_tensor_metadata.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
    torch._check,
}

ON_SIZES: dict[Any, Callable[..., Any]] = {
    aten.sym_size.int: lambda x, dim: x.shape[dim],
    aten.sym_numel.default: lambda x: x.size,
    torch.sym_max: jax.core.max_dim,
    torch.sym_min: jax.core.min_dim,
    torch.sym_not: operator.not_,
    torch.sym_float: lambda n: float(n) if isinstance(n, int) else as_number(n).astype("float32"),
}


def find(func: Any) -> Op | None:
    """The function on arrays that runs an operator on the device: the user's, or the registered one."""
    mine = getattr(dispatch.overrides.get(func), "op", None)
    return mine or torchax_ops.lookup(schema.schema_name(func))


def runs(func: Any) -> bool:
    """Whether an operator runs on arrays: by its function, or as it runs on tensors (what `call` does for static sizes)."""
    if func in ON_SIZES or find(func) is not None:
        return True
    try:
        dispatch.build(func)
    except OperatorNotFound:
        return False
    return True


def operators(module: torch.nn.Module) -> Iterator[Any]:
    """The operators that a graph calls, those of its subgraphs too."""
    for part in module.modules():
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                if isinstance(node.target, torch._ops.OpOverload):
                    yield node.target


def in_known_operators(ep: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program without mutation, of operators that the device has; PyTorch takes the others apart.

    Raises:
        OperatorNotFound: PyTorch has no decomposition of one.
    """
    ep = ep.run_decompositions({})
    while True:
        missing = {f for f in operators(ep.graph_module) if f not in ASSERTIONS | ON_SIZES.keys() and find(f) is None}
        if not missing:
            break
        table = {**decomposition_table, **torch.export.default_decompositions()}
        require(func for func in missing if func not in table)
        known = {func: table[func] for func in missing if func in table}
        if not known:
            break
        ep = ep.run_decompositions(known)
    return ep


def require(funcs: Iterable[Any]) -> None:
    """Check that operators run on arrays.

    Raises:
        OperatorNotFound: one does not.
    """
    for func in funcs:
        if not runs(func):
            raise OperatorNotFound(
                f"{schema.schema_name(func)}, in a captured program, has no JAX function and no decomposition.\n"
                f"  schema: {func._schema}\nRegister one with  torchax.ops.jaten.op(torch.ops.{func})"
            )


def without_assertions(module: GraphModule) -> GraphModule:
    """A copy of the graph without `ASSERTIONS` and what only they use."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in reversed(graph.nodes):
        if node.target in ASSERTIONS:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    copied = GraphModule(module, graph)
    for name, child in module.named_children():
        if isinstance(child, GraphModule):
            setattr(copied, name, without_assertions(child))
    return copied


def as_number(n: Any) -> Any:
    """A symbolic dimension as a scalar of an operator; other things as they are."""
    if jax.export.is_symbolic_dim(n):
        n = jnp.asarray(n)
        return jax.lax.convert_element_type(n, int)  # weakly typed, as a Python number is
    return n


def _plain(a: Any, kind: int) -> Any:
    """An argument of an operator as its function on arrays takes it."""
    if isinstance(a, (list, tuple)):
        return [_plain(x, kind) for x in a]
    if isinstance(a, torch.dtype):
        return t2j_dtype(a)
    return as_number(a) if kind in (TENSOR, TRACED) else a


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: Callable[[], Any] | None = None) -> Any:
    """An operator on arrays."""
    op = find(func)
    if op is None:
        return _on_tensors(func, args, kwargs)
    arguments = func._schema.arguments
    kinds = {a.name: schema.kind_of(a, op.static, op.traced) for a in arguments}
    unset = (SKIPPED, GENERATOR)
    given = [None if kinds[a.name] in unset else _plain(x, kinds[a.name]) for a, x in zip(arguments, args)]
    named = {k: _plain(x, kinds[k]) for k, x in kwargs.items() if kinds[k] not in unset}
    if op.key:
        named[op.key] = key() if key else _NoKey(func)
    return op.fn(*given, **named)


def _on_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator that has no function of its own: as the device runs it."""
    args, kwargs = jax.tree.map(lambda x: Tensor(x) if isinstance(x, jax.Array) else x, (args, kwargs))
    out = dispatch.run(func, args, kwargs)
    return jax.tree.map(
        lambda x: x.jax() if isinstance(x, Tensor) else x, out, is_leaf=lambda x: isinstance(x, torch.Tensor)
    )


class _NoKey:
    """Stands for a random key, which an operator with a dropout of 0 does not look at."""

    def __init__(self, func: Any) -> None:
        self.func = func

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(
            f"{self.func} draws random numbers, and an exported program has no random state: export the model in eval mode, "
            "or trace the module itself (torchax.interop)"
        )


class OnArrays(Interpreter):
    """Runs a graph on arrays: ``OnArrays(module).run(*arrays)``.

    Args:
        module: the graph.
        key: gives a fresh PRNG key to each operator that draws random numbers; without it they are refused.
    """

    def __init__(self, module: GraphModule, key: Callable[[], Any] | None = None) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self.key = key

    def run_node(self, n: torch.fx.Node) -> Any:
        stack = n.meta.get("nn_module_stack") or {}
        path = next((path for path, _ in reversed(stack.values())), "")
        with jax.named_scope(path) if path else nullcontext():
            return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in ON_SIZES:
            return ON_SIZES[target](*args, **kwargs)
        if isinstance(target, torch._ops.OpOverload):
            with jax.named_scope(schema.schema_name(target).replace("::", "_").replace(".", "_")):
                return call(target, args, kwargs, self.key)
        if isinstance(target, torch._ops.HigherOrderOperator):
            return _higher_order.call(target, args, kwargs)
        return target(*args, **kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        found = super().get_attr(target, args, kwargs)
        return (lambda *xs: OnArrays(found, self.key).run(*xs)) if isinstance(found, GraphModule) else found

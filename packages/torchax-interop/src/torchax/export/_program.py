"""Exported programs: their state, their function, their inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import sympy
import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as torch_pytree
from torch.utils._sympy.numbers import int_oo

from torchax import transfer
from torchax.dtypes import TORCH_DTYPE_TO_JAX
from torchax.interop import _graph, _sizes
from torchax.interop._x64 import wide
from torchax.tensor import Tensor

Arrays = Sequence[Any]


class Results(NamedTuple):
    """What one run of a program gives.

    Attributes:
        outputs: the program's outputs, flat.
        state: the state after it, in the order of the state before.
        inputs: the new value of each input that the program writes to, by the input's name.
    """

    outputs: tuple[Any, ...]
    state: list[Any]
    inputs: dict[str, Any]


_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


class _Program:
    """An exported program in operators of the device, ready to run on arrays."""

    def __init__(self, ep: torch.export.ExportedProgram) -> None:
        self.ep = ep = _graph.in_known_operators(ep)
        self.module = _graph.without_assertions(ep.graph_module)
        specs = ep.graph_signature.input_specs
        for spec in specs:
            if spec.kind not in (*_STATE, InputKind.USER_INPUT):
                raise NotImplementedError(f"the input {spec.arg} of the exported program is of kind {spec.kind.name}")
        self.names = [str(spec.target) for spec in specs if spec.kind in _STATE]
        self.inputs = [spec.arg for spec in specs if spec.kind is InputKind.USER_INPUT]
        self.nodes = {node.name: node for node in ep.graph.nodes if node.op == "placeholder"}

    def tensors(self) -> list[torch.Tensor]:
        """The state, in the order of ``names``."""
        return [self.ep.state_dict[n] if n in self.ep.state_dict else self.ep.constants[n] for n in self.names]

    def arrays(self) -> list[jax.Array]:
        """The state as arrays; tensors that are one are one array."""
        made: dict[int, jax.Array] = {}
        tensors = self.tensors()
        for t in tensors:
            if id(t) not in made:
                made[id(t)] = t.jax() if isinstance(t, Tensor) else transfer.to_array(t.detach())
        return [made[id(t)] for t in tensors]

    def flat_inputs(self, args: Any, kwargs: Any) -> list[Any]:
        """The values of the program's inputs, from its arguments or from their arrays in order.

        Raises:
            TypeError: there are more or fewer than the program has.
            ValueError: a shape or a constant is not what the program was exported for.
        """
        kwargs = dict(kwargs or {})
        order = self.ep.call_spec.in_spec.child(1).context
        if kwargs.keys() == set(order):
            kwargs = {name: kwargs[name] for name in order}
        leaves, _ = torch_pytree.tree_flatten((tuple(args), kwargs))
        leaves = [x.jax() if isinstance(x, Tensor) else x for x in leaves]
        variable = [a for a in self.inputs if not isinstance(a, ConstantArgument)]
        if len(leaves) == len(self.inputs):
            pairs = list(zip(self.inputs, leaves))
        elif len(leaves) == len(variable):
            left = iter(leaves)
            pairs = [(a, a.value if isinstance(a, ConstantArgument) else next(left)) for a in self.inputs]
        else:
            raise TypeError(
                f"the program takes {len(self.inputs)} inputs ({', '.join(a.name for a in self.inputs)}), and was given "
                f"{len(leaves)}"
            )
        for argument, value in pairs:
            self.check(argument, value)
        return [value for _, value in pairs]

    def check(self, argument: Any, value: Any) -> None:
        if isinstance(argument, ConstantArgument):
            if type(value) is not type(argument.value) or value != argument.value:
                raise ValueError(f"{argument.name}: the program was exported for {argument.value!r}, not {value!r}")
        elif isinstance(argument, TensorArgument):
            wanted = tuple(self.nodes[argument.name].meta["val"].shape)
            given = tuple(getattr(value, "shape", ()))
            fixed = [(i, n) for i, n in enumerate(wanted) if isinstance(n, int)]
            if len(given) != len(wanted) or any(given[i] != n for i, n in fixed):
                raise ValueError(
                    f"{argument.name}: the program was exported for shape {list(wanted)}, not {list(given)}"
                )

    def run(self, state: Arrays, args: Any, kwargs: Any = None) -> Results:
        """One run of the program.

        Raises:
            ValueError: the state is of another length than the program's.
        """
        if len(state) != len(self.names):
            raise ValueError(f"the program has {len(self.names)} tensors of state, and was given {len(state)}")
        inputs = self.flat_inputs(args, kwargs)
        traced = any(isinstance(x, jax.core.Tracer) for x in (*state, *inputs))
        # Under a trace of the caller's with x64 off, 64-bit values are 32-bit ones, as everywhere in torchax.
        keep = bool(jax.config.jax_enable_x64) or not traced  # type: ignore[attr-defined]
        with wide() if keep else jax.enable_x64(False):
            held = [x if keep else transfer.narrowed(x, "an exported program") for x in (*state, *inputs)]
            out = _graph.OnArrays(self.module).run(*held)
            return self.results(out, list(held[: len(state)]))

    def results(self, out: Any, state: list[Any]) -> Results:
        outputs, written = [], {}
        for spec, value in zip(self.ep.graph_signature.output_specs, out, strict=True):
            if spec.kind is OutputKind.USER_OUTPUT:
                outputs.append(value)
            elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
                state[self.names.index(str(spec.target))] = value
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                written[str(spec.target)] = value
            else:
                raise NotImplementedError(f"the output {spec.arg} of the exported program is of kind {spec.kind.name}")
        return Results(tuple(outputs), state, written)


def exported_program_to_jax(ep: torch.export.ExportedProgram, export_raw: bool = False) -> Any:
    """An exported program as a JAX function.

    Args:
        ep: what ``torch.export.export`` gave.
        export_raw: whether to return ``(names, state, fn)``, with the state as the program's own tensors.

    Returns:
        ``(state, fn)``. ``state`` is the list of the program's parameters, buffers and constants as arrays. ``fn(state,
        args, kwargs=None)`` gives the tuple of the program's outputs; ``args`` and ``kwargs`` are those the program was
        exported with, or ``args`` alone their arrays in order. What the program writes to is not among its outputs: see
        `exported_program_to_stateful_jax`.

    Raises:
        OperatorNotFound: an operator has neither a JAX function nor a decomposition.
    """
    program = _Program(ep)

    def fn(state: Arrays, args: Any, kwargs: Any = None) -> tuple[Any, ...]:
        return program.run(state, args, kwargs).outputs

    if export_raw:
        return program.names, program.tensors(), fn
    return program.arrays(), fn


def exported_program_to_stateful_jax(
    ep: torch.export.ExportedProgram,
) -> tuple[list[jax.Array], Callable[..., Results]]:
    """Like `exported_program_to_jax`, for a program that writes to its buffers.

    Returns:
        ``(state, fn)`` with ``fn(state, args, kwargs=None) -> Results``: the outputs, and the state to pass next time.
    """
    program = _Program(ep)
    return program.arrays(), program.run


def _scope_of(ranges: Any) -> jax.export.SymbolicScope:
    """A scope with the ranges of an exported program's sizes (``ep.range_constraints``) as its constraints."""
    constraints = []
    for expr, found in ranges.items():
        if found.lower > 1:  # jax.export takes every size to be 1 at least
            constraints.append(f"{_sizes.text(expr)} >= {found.lower}")
        if found.upper not in (int_oo, sympy.oo):
            constraints.append(f"{_sizes.text(expr)} <= {found.upper}")
    return jax.export.SymbolicScope(constraints)


def extract_avals(ep: torch.export.ExportedProgram) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The shape and dtype of each array that an exported program takes, in order; sizes that vary are symbolic.

    A size's range, and its being derived from another (``2*s``), are kept: ``jax.export`` makes shape assertions of them.

    Raises:
        NotImplementedError: an input is a number that varies, or a size is an expression that ``jax.export`` has not.
    """
    nodes = {node.name: node for node in ep.graph.nodes if node.op == "placeholder"}
    scope = _scope_of(ep.range_constraints)
    avals = []
    for spec in ep.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT or isinstance(spec.arg, ConstantArgument):
            continue
        if not isinstance(spec.arg, TensorArgument):
            raise NotImplementedError(
                f"{spec.arg.name} is a number that varies, which StableHLO cannot take as a size: export the program with "
                "a tensor whose shape it is"
            )
        val = nodes[spec.arg.name].meta["val"]
        avals.append(jax.ShapeDtypeStruct(_sizes.in_scope(val.shape, scope), TORCH_DTYPE_TO_JAX[val.dtype]))
    return tuple(avals)


def exported_program_to_stablehlo(
    ep: torch.export.ExportedProgram, *, weights_inside: bool = False
) -> tuple[list[jax.Array], jax.export.Exported]:
    """An exported program as StableHLO, in an artifact of ``jax.export``.

    Args:
        ep: what ``torch.export.export`` gave.
        weights_inside: whether the artifact holds the weights; it is then called with an empty list of them.

    Returns:
        ``(weights, exported)``: ``exported.call(weights, args)`` runs it, with ``args`` the tuple of arrays in the order of
        `extract_avals`; ``exported.mlir_module()`` is StableHLO's text, ``exported.mlir_module_serialized`` its bytecode,
        and ``exported.serialize()`` what ``jax.export.deserialize`` reads in a process that need not have PyTorch.
    """
    state, fn = exported_program_to_jax(ep)
    held, taken = (state, []) if weights_inside else ([], state)

    def run(weights: list[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
        return fn([*held, *weights], args)

    with wide():
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in taken]
        return taken, jax.export.export(jax.jit(run))(shapes, extract_avals(ep))

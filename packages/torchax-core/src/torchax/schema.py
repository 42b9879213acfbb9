"""What an operator's schema says: which arguments are arrays, which static, what is written, which functional twin it has."""

from __future__ import annotations

import functools
from typing import Any

import torch

# How an argument reaches the compiled function.
TENSOR, TENSORS, TRACED, NUMBERS, STATIC, SKIPPED, GENERATOR = range(7)

_SKIPPED_TYPES = {"Device", "Layout", "MemoryFormat"}
_SKIPPED_NAMES = {"pin_memory", "non_blocking", "device", "layout", "memory_format"}


def schema_name(op: Any) -> str:
    """The registry's name of an ``OpOverload``: ``"aten::add.Tensor"``, ``"aten::relu"``."""
    schema = op._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def kind_of(argument: Any, static: frozenset[str], traced: frozenset[str]) -> int:
    """How an argument is passed; ``static`` and ``traced`` are the exceptions the operator's registration names."""
    type_ = str(argument.type)
    base = type_.removeprefix("Optional[").removesuffix("]") if type_.startswith("Optional[") else type_
    if argument.name in _SKIPPED_NAMES or base in _SKIPPED_TYPES:
        return SKIPPED
    if base == "Generator":
        return GENERATOR
    if argument.name in static:
        return STATIC
    if base == "Tensor":
        return TENSOR
    if base in ("List[Tensor]", "List[Optional[Tensor]]"):
        return TENSORS
    if base == "List[number]" or (argument.name in traced and base.startswith("List[")):
        return NUMBERS
    if base in ("number", "float", "complex") or argument.name in traced:
        return TRACED
    return STATIC


def written(op: Any) -> list[str]:
    """The arguments that an operator writes, ``out=`` ones excepted, in the schema's order."""
    return [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write and not a.is_out]


def out_arguments(op: Any) -> list[str]:
    """The ``out=`` arguments of an operator."""
    return [a.name for a in op._schema.arguments if a.is_out]


def fresh_returns(op: Any) -> int:
    """How many results are new tensors rather than written arguments."""
    return sum(1 for r in op._schema.returns if r.alias_info is None or not r.alias_info.is_write)


def reordered(op: Any, source: Any) -> bool:
    """Whether the functional twin takes its arguments in another order (``polygamma``)."""
    mine, its = ([a.name for a in x._schema.arguments] for x in (op, source))
    return [n for n in mine if n in its] != [n for n in its if n in mine]


@functools.cache
def functional(op: Any) -> Any | None:
    """The operator that computes what a writing one writes: ``add_.Tensor`` and ``add.out`` -> ``add.Tensor``.

    It has the same arguments (without ``out=``), seldom in another order (`reordered`), and returns the new results, then
    the new value of each written one.
    """
    schema = op._schema
    namespace, base = schema.name.split("::")
    wanted = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    names = [base.removesuffix("_"), base.removesuffix("_") + "_functional", base + "_functional"]
    if base.startswith("_") and base.endswith("_"):
        names.append(base[:-1])
    for name in names:
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if packet is None:
            continue
        candidates = [getattr(packet, overload) for overload in packet.overloads()]
        candidates.sort(key=lambda c: c._schema.overload_name != schema.overload_name)
        for candidate in candidates:
            if candidate is op or candidate._schema.is_mutable:
                continue
            if [(a.name, str(a.type)) for a in candidate._schema.arguments] == wanted:
                return candidate
        # Arguments may differ in what does not matter for the value (a dtype that out= gives instead).
        for candidate in candidates:
            if candidate is op or candidate._schema.is_mutable:
                continue
            given = [
                (a.name, str(a.type)) for a in candidate._schema.arguments if a.name not in _SKIPPED_NAMES | {"dtype"}
            ]
            if sorted(given) == sorted(w for w in wanted if w[0] not in _SKIPPED_NAMES | {"dtype"}):
                return candidate
    return None

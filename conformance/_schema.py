"""What the suites read from aten schemas: the functional twin of an operator, and which arguments a trace may hold."""

from __future__ import annotations

import functools
from typing import Any

import torch

# Arguments that `torchax_ops` leaves out of its signatures, or passes in its own way (a generator becomes ``key=``).
DROPPED = frozenset({"layout", "device", "pin_memory", "memory_format", "generator"})


def schema_name(overload: torch._ops.OpOverload) -> str:
    """``aten.add.Tensor -> "aten::add.Tensor"``, ``aten.relu.default -> "aten::relu"``."""
    return overload._schema.name + ("." + overload._schema.overload_name if overload._schema.overload_name else "")


def find_overload(name: str) -> torch._ops.OpOverload | None:
    """The overload of a schema name, ``None`` where torch has none."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(packet, overload or "default", None) if packet is not None else None


def is_out(argument: Any) -> bool:
    """Whether a schema argument is written and only written (``out=``)."""
    return argument.alias_info is not None and argument.alias_info.is_write and argument.kwarg_only


def mutated(overload: torch._ops.OpOverload) -> list[Any]:
    """The schema arguments an operator writes, in order."""
    return [a for a in overload._schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def _signature(overload: torch._ops.OpOverload) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in overload._schema.arguments if not is_out(a) and a.name != "generator"]


def _overloads(base: str) -> list[torch._ops.OpOverload]:
    namespace, _, name = base.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    found = [] if packet is None else [getattr(packet, o) for o in packet.overloads()]
    return [o for o in found if not mutated(o)]


@functools.cache
def functional_name(overload: torch._ops.OpOverload) -> str:
    """The schema name of the operator that computes what ``overload`` writes (itself if it writes nothing).

    ``add_.Tensor -> add.Tensor``, ``add.out -> add.Tensor``, ``normal_ -> normal_functional``, ``__ior__ -> __or__``.
    An operator without a functional twin keeps its own name.
    """
    if not mutated(overload):
        return schema_name(overload)
    base, own = overload._schema.name, overload._schema.overload_name
    bare = base.removesuffix("_") if not base.endswith("__") else base.replace("::__i", "::__")
    wanted = _signature(overload)
    candidates = [c for b in (f"{bare}_functional", bare) for c in _overloads(b)]
    same = [c for c in candidates if _signature(c) == wanted]
    if not same:  # a factory's `out=` has no dtype or layout of its own
        factory = DROPPED | {"dtype"}
        bare_wanted = [s for s in wanted if s[0] not in factory]
        same = [c for c in candidates if [s for s in _signature(c) if s[0] not in factory] == bare_wanted]
    if not same:  # names may differ (``src`` or ``value``); the types must not
        same = [c for c in candidates if [t for _, t in _signature(c)] == [t for _, t in wanted]]
    same.sort(key=lambda c: c._schema.overload_name != own)
    return schema_name(same[0]) if same else schema_name(overload)


def is_traced(kind: str) -> bool:
    """Whether a schema type (``str(argument.type)``) holds arrays or numbers that a trace may hold."""
    return any(word in kind for word in ("Tensor", "number", "Scalar")) or kind in ("float", "Optional[float]")


def is_view(overload: torch._ops.OpOverload) -> bool:
    """Whether a result aliases an argument that is not written."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in overload._schema.returns)

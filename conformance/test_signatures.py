"""Every function's arguments are its aten schema's: names, order, defaults, keyword-only or not.

Left out of a function: what `_schema.DROPPED` names and ``out=``; added to it: a PRNG key, where the schema draws
random numbers. A function bound to several overloads has, at each position, the name one of them has there.
"""

import inspect
import keyword
from collections import defaultdict

import numpy as np
import pytest
import replay
import torch
from _schema import DROPPED, find_overload, functional_name, is_out

replay.load_registry()

from torchax_ops import registered  # noqa: E402  the modules above fill it

OPS = [op for op in registered() if op.name.startswith("aten::")]
SHARED = defaultdict(list)
for _op in OPS:
    SHARED[_op.fn].append(find_overload(_op.name))


def arguments(overload, kwarg_only):
    """The schema's arguments that a function has, only keyword or only positional ones."""
    kept = [a for a in overload._schema.arguments if a.name not in DROPPED and not is_out(a)]
    return [a for a in kept if a.kwarg_only == kwarg_only]


def parameters(op):
    """All but the PRNG key."""
    return [p for p in inspect.signature(op.fn).parameters.values() if p.name != op.key]


def python_name(argument):
    return argument.name + "_" * keyword.iskeyword(argument.name)


def same_default(given, wanted):
    if isinstance(given, (list, tuple)) or isinstance(wanted, (list, tuple)):
        spread = lambda x, n: list(x) if isinstance(x, (list, tuple)) else [x] * n  # noqa: E731
        size = max(len(x) for x in (given, wanted) if isinstance(x, (list, tuple)))
        return spread(given, size) == spread(wanted, size)
    return given == wanted and isinstance(given, bool) == isinstance(wanted, bool)


@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in OPS])
def test_signature(op):
    overload = find_overload(op.name)
    assert overload is not None, "torch has no such operator"
    assert functional_name(overload) == op.name, "derived from its functional operator, so never registered"
    others = [o for o in SHARED[op.fn] if o is not None]
    given = parameters(op)
    by_name = {p.name: p for p in given}
    places = [p for p in given if p.kind is p.POSITIONAL_OR_KEYWORD]
    positional, named = arguments(overload, False), arguments(overload, True)
    assert len(places) >= len(positional), f"takes {len(places)} positional arguments, not {len(positional)}"
    for i, argument in enumerate(positional):
        names = {python_name(arguments(o, False)[i]) for o in others if len(arguments(o, False)) > i}
        assert places[i].name in names, f"argument {i} is {places[i].name}, not {argument.name}"
        check_default(places[i], argument, len(others) > 1)
    for argument in named:
        assert argument.name in by_name, f"no {argument.name}="
        check_default(by_name[argument.name], argument, len(others) > 1)
        if not any(argument.name == a.name for o in others for a in arguments(o, False)):
            assert by_name[argument.name].kind is inspect.Parameter.KEYWORD_ONLY, f"{argument.name} is keyword-only"
    wanted = {a.name for a in [*positional, *named]} | {p.name for p in places[: len(positional)]}
    for parameter in given:
        if parameter.name not in wanted:
            known = any(parameter.name == python_name(a) for o in others for a in o._schema.arguments)
            size = parameter.name == "size" and op.eager and parameter.kind is inspect.Parameter.KEYWORD_ONLY
            assert known or size, f"{parameter.name} is in no schema"
            assert parameter.default is not inspect.Parameter.empty, f"{parameter.name} has no default"
    names = {a.name for a in overload._schema.arguments}
    may_draw = torch.Tag.nondeterministic_seeded in overload.tags or "dropout_p" in names
    assert "generator" not in names or op.key, "the schema has a generator, the function no PRNG key"
    assert not op.key or "generator" in names or may_draw, "a PRNG key where the schema draws nothing"


def check_default(parameter, argument, shared):
    empty = parameter.default is inspect.Parameter.empty
    if argument.has_default_value():
        assert not empty, f"{argument.name} has the default {argument.default_value!r}"
        wanted = argument.default_value
        if str(argument.type) == "Optional[int]" and argument.name == "dtype" and wanted is not None:
            wanted = {4: np.int64}[wanted]  # the schema's ScalarType, by number
        equal = same_default(parameter.default, wanted)
        assert equal, f"{argument.name}={parameter.default!r}, not {wanted!r}"
    else:
        assert empty or shared, f"{argument.name} has no default"

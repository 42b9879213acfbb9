"""Every operator that PyTorch's schemas call a view is among the programs that prove the sharing of memory."""

from __future__ import annotations

import inspect
import re
import sys

import pytest
import test_views
import torch
from _programs import DEVICE, same
from test_views import MATRIX, View, aliasing

aten = torch.ops.aten

# Those that no method of a tensor reaches; the others are in test_views.py.
BY_NAME: list[View] = [
    lambda x: aten._neg_view(x),
    lambda x: aten._reshape_alias(x, (6, 4), (4, 1)),
    lambda x: aten.lift_fresh(x),
    lambda x: aten.numpy_T(x),
    lambda x: aten.positive(x),
    lambda x: aten.slice(x, 1, 2, 5, 2),
    lambda x: aten.swapdims(x, 0, 1),
]
NOT_HERE = {"_nested_view_from_buffer", "pin_memory"}  # of nested tensors, of CPU tensors


def view_operators() -> set[str]:
    """The names of operators whose result aliases their first argument, which they do not write."""
    named = set()
    for name in dir(aten):
        packet = getattr(aten, name)
        for overload in packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ():
            schema = getattr(packet, overload)._schema
            if schema.is_mutable or not schema.arguments or not schema.returns:
                continue
            if schema.arguments[0].alias_info and schema.returns[0].alias_info:
                named.add(name)
    return named


def test_every_view_operator_is_among_the_programs():
    programs = inspect.getsource(test_views) + inspect.getsource(sys.modules[__name__])
    missing = {n for n in view_operators() - NOT_HERE if not re.search(rf"\b_?{n.lstrip('_')}\(|\.{n}\b", programs)}
    assert missing == set()


@pytest.mark.parametrize("view", BY_NAME, ids=[f"line{v.__code__.co_firstlineno}" for v in BY_NAME])
def test_a_view_operator_called_by_name_shares_memory(view: View):
    got, want = (aliasing(d, MATRIX, torch.float32, view) for d in (DEVICE, "cpu"))
    same(got, want)

"""Every operator that PyTorch's schemas call a view is among the programs that prove the sharing of memory."""

from __future__ import annotations

import inspect
import re
import sys

import pytest
import test_views
import torch
from _programs import DEVICE, aten_packets, same
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
    lambda x: aten.linalg_diagonal(x),
    lambda x: aten.matrix_H(x),
    lambda x: aten.moveaxis(x, 0, 1),
    lambda x: aten.reshape_as(x, torch.empty(3, 8, device="meta")),
    lambda x: aten.resolve_conj(x),
    lambda x: aten.resolve_neg(x),
]
NOT_HERE = {
    "pin_memory", "cuda",  # of other devices
    "_nested_get_values", "_nested_view_from_buffer", "_nested_view_from_jagged",
    # of sparse tensors
    "_indices", "_sparse_broadcast_to", "_values", "ccol_indices", "coalesce", "col_indices", "crow_indices", "indices",
    "row_indices", "values",
    # of TorchScript
    "__getitem__", "_autocast_to_full_precision", "_autocast_to_reduced_precision", "_grad_sum_to_size", "_ncf_unsqueeze",
    "_ncf_view", "_unwrap_optional", "as_tensor",
    "_fw_primal", "_make_dual", "_unpack_dual",  # of forward-mode AD: test_func.py
    "_test_autograd_multiple_dispatch_view",
    "slice_inverse",  # of functionalization
}  # fmt: skip


def view_operators() -> set[str]:
    """The names of operators whose result aliases their first argument, which they do not write."""
    named = set()
    for name, packet in aten_packets():
        for overload in packet.overloads():
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

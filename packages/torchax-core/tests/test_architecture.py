"""How far it is from user code to XLA, in functions of ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from _programs import DEVICE, ramp

import torchax
import torchax_ops

OURS = tuple(str(Path(m.__file__).parent) for m in (torchax, torchax_ops) if m.__file__)


def functions_of_ours(call: Callable[[], Any]) -> list[str]:
    """The Python functions of this project that a call runs, in order."""
    seen: list[str] = []

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            seen.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": torch.add,
    "scalar mul": lambda x, y: x * 0.5,
    "matmul": torch.matmul,
    "gelu": lambda x, y: F.gelu(x),
    "softmax": lambda x, y: torch.softmax(x, -1),
    "sum": lambda x, y: x.sum(),
    "linear": F.linear,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_warm_call_runs_at_most_five_functions_of_ours(name: str):
    x, y = ramp(DEVICE, 4, 4), ramp(DEVICE, 4, 4)
    for _ in range(3):  # a Python float is kept on the device when it comes again
        CALLS[name](x, y)
    seen = functions_of_ours(lambda: CALLS[name](x, y))
    assert seen[0] == "tensor.py:Tensor.__torch_dispatch__"
    assert len(seen) <= 5, seen


def test_the_first_call_ends_in_the_operators_own_function():
    torchax.backend.dispatch.forget_plans()
    x = ramp(DEVICE, 3)
    seen = functions_of_ours(lambda: torch.add(x, x))
    assert seen[0] == "tensor.py:Tensor.__torch_dispatch__"
    assert "pointwise.py:add" in seen

"""Every known difference is still one: without its exception the check fails, with it the check passes."""

import device
import pytest
import torch
from _exceptions import load
from _samples import entries

import torchax  # noqa: F401  registers the device

SAMPLES = 8
KNOWN = load()
PLACES = [(k.witness, d, c) for k in KNOWN if not k.operator.startswith("aten::") for d in k.dtypes for c in k.checks]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("operator", "dtype", "check"), PLACES)
def test_exception(operator, dtype, check):
    (op,) = (op for op in entries([operator]) if op.formatted_name == operator)
    assert device.needs_exception(op, getattr(torch, dtype), check), "no longer needed: delete it from exceptions.toml"
    result = device.run(op, getattr(torch, dtype), check, SAMPLES, KNOWN)
    assert not result.failed, result.error

"""A small, fixed sample of the parity suite: every seventh `op_db` entry on the device, values and gradients."""

import device
import pytest
import torch
from _exceptions import load
from _samples import entries

import torchax  # noqa: F401  registers the device

KNOWN = load()
SAMPLE = sorted(entries([]), key=lambda op: op.formatted_name)[::7]
CASES = [
    pytest.param(op, dtype, check, id=f"{op.formatted_name}-{str(dtype).removeprefix('torch.')}-{check}")
    for op in SAMPLE
    for dtype, check in ((torch.float32, "forward"), (torch.float32, "grad"), (torch.int64, "forward"))
    if dtype in op.supported_dtypes("cpu") and (check == "forward" or op.supports_autograd)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "dtype", "check"), CASES)
def test_sample(op, dtype, check):
    result = device.run(op, dtype, check, 2, KNOWN)
    assert not result.failed, result.error

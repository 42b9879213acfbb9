"""Every dtype that PyTorch saves, saved from the device and read on it and on CPU."""

from __future__ import annotations

import io
import pickle

import pytest
import torch

import torchax  # noqa: F401


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("location", ["jax", "cpu"])
def test_dtype_comes_back(dtype, location):
    x = torch.arange(4, device="jax").to(dtype)
    file = io.BytesIO()
    torch.save({"x": x, "view": x[1:]}, file)
    file.seek(0)
    back = torch.load(file, map_location=location)
    assert (back["x"].dtype, back["x"].device.type) == (dtype, location)
    assert back["x"].tolist() == [0, 1, 2, 3]
    assert back["x"].untyped_storage().data_ptr() == back["view"].untyped_storage().data_ptr()
    again = pickle.loads(pickle.dumps(x))
    assert (again.dtype, again.device.type, again.tolist()) == (dtype, "jax", [0, 1, 2, 3])

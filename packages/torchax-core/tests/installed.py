"""Run by ``nox -s build`` where only this wheel and torchax-ops are installed: a model runs and trains a step."""

import importlib.util

import torch
from torch import nn

import torchax

assert importlib.util.find_spec("torchax.interop") is None
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
x = torch.randn(3, 4)
want = model(x).detach()
model.to("jax")
out = model(x.to("jax"))
assert out.device.type == "jax"
torch.testing.assert_close(out.cpu(), want)
opt = torch.optim.AdamW(model.parameters())
out.sum().backward()
opt.step()
assert not torch.equal(model(x.to("jax")).cpu(), want)
print("torchax-core", torchax.__version__, "runs a model")

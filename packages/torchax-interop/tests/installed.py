"""Run by ``nox -s build`` where this wheel and those below it are installed: a JAX function with a torch gradient."""

import importlib.util

import jax.numpy as jnp
import torch

from torchax import export, interop

assert importlib.util.find_spec("torchax.train") is None
x = torch.tensor([0.0, 1.0], device="jax", requires_grad=True)
interop.call_jax(jnp.sin, x).sum().backward()
torch.testing.assert_close(x.grad.cpu(), torch.cos(torch.tensor([0.0, 1.0])))
assert interop.call_torch(torch.sort, jnp.array([2.0, 1.0]))[1].tolist() == [1, 0]
_, fn = export.exported_program_to_jax(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)))
assert fn([], (jnp.array([-1.0, 1.0]),))[0].tolist() == [0, 1]
print("torchax-interop", interop.__version__, "crosses both ways")

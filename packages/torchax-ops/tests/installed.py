"""Run by ``nox -s build`` where only this wheel is installed: no torch to be imported, and operators that compute."""

import importlib.util
import sys

import jax
import jax.numpy as jnp

import torchax_ops as ops

assert importlib.util.find_spec("torch") is None
x = jnp.arange(6.0).reshape(2, 3)
assert ops.softmax(x, -1).sum() == 2
assert ops.sum(jnp.ones(3, jnp.int32) > 0).dtype == jnp.int32  # int64 to PyTorch; JAX's x64 flag is off
assert jax.jit(ops.relu)(-x).max() == 0
assert "torch" not in sys.modules
print("torchax-ops", ops.__version__, "computes with no torch importable")

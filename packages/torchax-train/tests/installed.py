"""Run by ``nox -s build`` where all four wheels are installed: a compiled training step lowers the loss."""

import jax
import optax
import torch
import torch.nn.functional as F
from torch import nn

from torchax import interop, train

torch.manual_seed(0)
model = nn.Linear(4, 3)
opt = optax.adam(1e-1)
step = jax.jit(
    train.make_train_step(lambda w, b, x: torch.func.functional_call(model, {**w, **b}, (x,)), F.cross_entropy, opt)
)
weights = {name: p.detach().to("jax") for name, p in model.named_parameters()}
state = interop.call_jax(opt.init, weights)
x, y = torch.randn(8, 4).to("jax"), torch.randint(0, 3, (8,)).to("jax")
losses = []
for _ in range(10):
    loss, weights, state = step(weights, {}, state, x, y)
    losses.append(loss.item())
assert losses[-1] < losses[0]
print("torchax-train", train.__version__, "trains")

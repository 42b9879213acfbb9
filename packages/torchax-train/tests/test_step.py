"""Training steps against torch.optim and against plain optax."""

from __future__ import annotations

import jax
import optax
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchax  # noqa: F401
from torchax import interop
from torchax.train import make_train_step


def _problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, torch.randn(16, 4), torch.randint(0, 3, (16,))


def _reference(model, x, y, steps):
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def _weights(model):
    return {name: p.detach().to("jax") for name, p in model.named_parameters()}


def _model_fn(model):
    return lambda weights, buffers, args: torch.func.functional_call(model, {**weights, **buffers}, (args,))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.nothing_saveable], ids=["keep", "remat"])
def test_steps_follow_torch_optim(compiled, policy):
    model, x, y = _problem()
    opt = optax.sgd(0.1, momentum=0.9)
    step = make_train_step(_model_fn(model), F.cross_entropy, opt, policy)
    step = jax.jit(step) if compiled else step
    weights = _weights(model)
    state = interop.call_jax(opt.init, weights)
    losses = []
    for _ in range(4):
        loss, weights, state = step(weights, {}, state, x.to("jax"), y.to("jax"))
        losses.append(loss.item())
    assert losses == pytest.approx(_reference(model, x, y, 4), rel=1e-5)
    for name, p in model.named_parameters():
        torch.testing.assert_close(weights[name].cpu(), p.detach())


def test_batches_and_outputs_may_be_dicts():
    model, x, y = _problem()
    opt = optax.sgd(0.1)

    def model_fn(weights, buffers, args):
        return {"logits": torch.func.functional_call(model, weights, (args["x"],))}

    step = jax.jit(make_train_step(model_fn, lambda out, label: F.cross_entropy(out["logits"], label["y"]), opt))
    weights = _weights(model)
    loss, after, _ = step(weights, {}, interop.call_jax(opt.init, weights), {"x": x.to("jax")}, {"y": y.to("jax")})
    assert loss.item() == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-5)
    assert after.keys() == weights.keys()
    assert all(after[k].dtype == torch.float32 and after[k].shape == weights[k].shape for k in weights)

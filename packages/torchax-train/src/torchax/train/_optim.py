"""``torch.optim`` optimizers as optax ones, where the two compute the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
import torch
from torch import nn


class NoTwin(TypeError):
    """A ``torch.optim`` optimizer has no exact optax twin; the message says why and what to use."""


def _sgd(g: Mapping[str, Any]) -> optax.GradientTransformation:
    if g["dampening"]:
        raise NoTwin("SGD with dampening: optax.trace does not dampen; use dampening=0")
    momentum = optax.trace(g["momentum"], nesterov=g["nesterov"]) if g["momentum"] else optax.identity()
    return optax.chain(_coupled(g), momentum, optax.scale(-g["lr"]))


def _adam(g: Mapping[str, Any]) -> optax.GradientTransformation:
    if g["amsgrad"]:
        raise NoTwin("amsgrad: optax takes the maximum after its bias correction, PyTorch before; use amsgrad=False")
    b1, b2 = g["betas"]
    decoupled = g.get("decoupled_weight_decay", False)
    return optax.chain(
        optax.identity() if decoupled else _coupled(g),
        optax.scale_by_adam(b1, b2, g["eps"]),
        optax.add_decayed_weights(g["weight_decay"]) if decoupled else optax.identity(),
        optax.scale(-g["lr"]),
    )


def _rmsprop(g: Mapping[str, Any]) -> optax.GradientTransformation:
    if g["centered"]:
        raise NoTwin("RMSprop(centered=True): optax puts eps inside the root of the variance; use centered=False")
    momentum = optax.trace(g["momentum"]) if g["momentum"] else optax.identity()
    rms = optax.scale_by_rms(g["alpha"], g["eps"], initial_scale=0.0, eps_in_sqrt=False)
    return optax.chain(_coupled(g), rms, momentum, optax.scale(-g["lr"]))


def _coupled(g: Mapping[str, Any]) -> optax.GradientTransformation:
    """What comes before the optimizer proper: the sign, and weight decay added to the gradient."""
    sign = optax.scale(-1.0) if g["maximize"] else optax.identity()
    return optax.chain(sign, optax.add_decayed_weights(g["weight_decay"])) if g["weight_decay"] else sign


_TWINS: dict[type, Callable[[Mapping[str, Any]], optax.GradientTransformation]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.RMSprop: _rmsprop,
}
_REASONS: dict[type, str] = {
    torch.optim.Adagrad: "optax.adagrad adds eps inside the root; use optax.adagrad itself",
    torch.optim.LBFGS: "it evaluates the loss several times a step; use optax.lbfgs in a loop of your own",
}


def to_optax(optimizer: torch.optim.Optimizer, model: nn.Module) -> optax.GradientTransformation:
    """An optax optimizer over ``dict(model.named_parameters())`` that takes the same steps.

    Args:
        optimizer: a fresh SGD, Adam, AdamW or RMSprop over parameters of ``model``, with any number of groups.
            Parameters that it does not hold stay as they are.
        model: whose names the parameters go by.

    Raises:
        NoTwin: there is no optax optimizer that computes the same, or the optimizer has taken steps already.
    """
    cls = type(optimizer)
    if cls not in _TWINS:
        why = _REASONS.get(cls, "optax has no twin that is known to compute the same; use one of optax's own")
        raise NoTwin(f"torch.optim.{cls.__name__}: {why}")
    if optimizer.state:
        raise NoTwin(f"torch.optim.{cls.__name__} has taken steps, whose state would be lost: pass a fresh one")
    names = {id(p): name for name, p in model.named_parameters()}
    labels, transforms = dict.fromkeys(names.values(), "frozen"), {"frozen": optax.set_to_zero()}
    for i, group in enumerate(optimizer.param_groups):
        transforms[f"group{i}"] = _TWINS[cls](group | {"lr": float(group["lr"])})
        for p in group["params"]:
            if id(p) not in names:
                raise NoTwin(f"torch.optim.{cls.__name__} holds a parameter of shape {tuple(p.shape)} not in the model")
            labels[names[id(p)]] = f"group{i}"
    if set(labels.values()) == {"group0"}:
        return transforms["group0"]
    return optax.partition(transforms, lambda tree: {name: labels[name] for name in tree})


def replicate(tree: Any, sharding: Any) -> Any:
    """The scalars of an optimizer's state on the whole mesh, where a compiled step will leave them."""
    return jax.tree.map(
        lambda x: x if isinstance(x.sharding, jax.sharding.NamedSharding) else jax.device_put(x, sharding), tree
    )

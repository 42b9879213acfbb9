"""Level 2: every optimizer of `optim_db` on the device "jax", step by step beside CPU's plain loop over tensors.

step        ``foreach=False``
foreach     ``foreach=True``, what the device takes by default
fused       ``fused=True``
capturable  ``capturable=True``, the step count on the device
"""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from typing import Any

import torch
from _compare import wide_dtype
from _sample import DEVICE, Sample, same

CHECKS = {"step": "foreach", "foreach": "foreach", "fused": "fused", "capturable": "capturable"}
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
STEPS = 4


@functools.cache
def entries() -> dict[str, Any]:
    """`optim_db` by name, without SparseAdam, which takes sparse gradients only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_optimizers import optim_db

    return {info.optim_cls.__name__: info for info in optim_db if not info.only_supports_sparse_grads}


def applies(info: Any, check: str) -> bool:
    """Whether the optimizer has the implementation that a check is of."""
    return check == "step" or CHECKS[check] in inspect.signature(info.optim_cls).parameters


def inputs(info: Any, dtype: torch.dtype) -> list[dict[str, Any]]:
    """The settings that PyTorch's own tests use, without the choice of an implementation."""
    implementations = {"foreach", "fused", "capturable", "differentiable"}
    found = info.optim_inputs_func(device="cpu", dtype=dtype)
    return [{k: v for k, v in one.kwargs.items() if k not in implementations} for one in found]


def trained(info: Any, kwargs: dict[str, Any], place: str, dtype: torch.dtype) -> list[Any]:
    """Parameters and optimizer state after some steps of a least-squares problem, from the same start everywhere."""
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((5, 3), (4, 3), (4, 5))]
    # Rounded to bfloat16 first: the same numbers in every dtype.
    weight, x, y = (t.to(torch.bfloat16).to(place, dtype) for t in start)
    weight.requires_grad_()
    optimizer = info.optim_cls([weight], **copy.deepcopy(kwargs))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (x @ weight.T - y).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    # Scalars like the step count are on CPU for an optimizer that is not capturable, whatever the device.
    state = {k: v for k, v in optimizer.state[weight].items() if isinstance(v, torch.Tensor) and v.dim()}
    return [weight.detach(), dict(sorted(state.items()))]


def check(info: Any, kwargs: dict[str, Any], sample: Sample, dtype: torch.dtype, name: str) -> None:
    """Raise an AssertionError where the optimizer on the device does not do what CPU's does."""
    plain = {"foreach": False} if applies(info, "foreach") else {}
    chosen = plain if name == "step" else {CHECKS[name]: True}
    want = trained(info, kwargs | plain, "cpu", dtype)
    known = sample.known
    truth = trained(info, kwargs | plain, "cpu", wide_dtype(dtype)) if known and known.bound == "float64" else None
    same(trained(info, kwargs | chosen, DEVICE, dtype), want, sample, truth=truth)

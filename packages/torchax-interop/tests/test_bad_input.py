"""What cannot be compiled says which tensor it was, where that was made, and what to do."""

from __future__ import annotations

import pytest
import torch

import torchax
from torchax import interop

HERE = r"float32\[\d*\] made at .*test_bad_input\.py:\d+"


class Hidden:
    """Nothing walks into its slot."""

    __slots__ = ("kept",)


def three():
    return torch.ones(3, device="jax")


@pytest.mark.parametrize(
    "use", [lambda t: t + 1, lambda t: t.cpu(), lambda t: t[0].item(), lambda t: t.add_(1), lambda t: t.tolist()]
)
def test_a_tensor_that_escaped(use):
    hidden = Hidden()

    def f(x):
        hidden.kept = x * 2
        return x.sum()

    interop.jax_jit(f)(three())
    with pytest.raises(Exception, match=rf"(?s){HERE}.*(?i:return it)"):
        use(hidden.kept)


@pytest.mark.parametrize(
    "use", [lambda t, f: t + 1, lambda t, f: t.cpu(), lambda t, f: f(t), lambda t, f: t.sum().item()]
)
def test_a_donated_tensor_used_again(use):
    f = interop.jax_jit(lambda x: x + 1, {"donate_argnums": 0})
    x = three()
    f(x)
    with pytest.raises(RuntimeError, match=r"float32\[3\].*deleted.*donated.*Use what that function returned"):
        use(x, f)


def test_an_array_of_state_taken_out_is_not_deleted():
    w = three()
    array = w.jax()
    torchax.compile(lambda: w.add_(1))()
    assert array.tolist() == [1, 1, 1]
    assert w.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    "branches",
    [
        lambda x: x if (x * 2).sum() > 0 else -x,
        lambda x: x * (x * 2).sum().item(),
        lambda x: x[: int((x * 2).sum())],
        lambda x: (x * 2).tolist(),
        lambda x: (x * 2).numpy(),
    ],
    ids=["if", "item", "int", "tolist", "numpy"],
)
def test_values_that_a_trace_does_not_have(branches):
    with pytest.raises(TypeError, match=r"\[\d*\] made at .*test_bad_input\.py:\d+.*torch\.where"):
        interop.jax_jit(branches)(three())


@pytest.mark.parametrize(
    ("dynamic", "remedy"),
    [
        (lambda x: (x * 2).nonzero(), "nonzero_static"),
        (lambda x: (x * 2)[(x * 2) > 0], "torch.where"),
        (lambda x: (x * 2).unique(), "outside jax.jit"),
    ],
    ids=["nonzero", "mask", "unique"],
)
def test_shapes_that_depend_on_values(dynamic, remedy):
    with pytest.raises(RuntimeError, match=rf"(?s){remedy}.*{HERE}"):
        interop.jax_jit(dynamic)(three())


def test_mixed_devices_in_a_trace():
    with pytest.raises(RuntimeError, match=r"same device.*jax:0 and cpu.*shape \[3\]"):
        interop.jax_jit(lambda x: x + torch.ones(3))(three())

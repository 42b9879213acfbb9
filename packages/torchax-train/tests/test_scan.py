"""Scanned layers against the loop; rematerialization and sharding marks against plain calls."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from torch import nn

import torchax
from torchax import interop
from torchax.train import ScannedModule, mark_sharding, remat, scan_layers
from torchax.train.sharding import Plan, batch_sharding, make_mesh, parallelize


class Layer(nn.Module):
    def __init__(self, width=8, dropout=0.0):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(dropout))

    def forward(self, h, scale, *, shift=None, flag="on"):
        assert flag == "on"
        out = h + torch.tanh(self.inner(h)) * scale
        return out if shift is None else out + shift


def _layers(n=3, **options):
    torch.manual_seed(0)
    return nn.ModuleList(Layer(**options) for _ in range(n)).to("jax")


def _loop(layers, h, *args, **kwargs):
    for layer in layers:
        h = layer(h, *args, **kwargs)
    return h


def _x(seed=0):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)).to("jax")


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.nothing_saveable], ids=["keep", "remat"])
@pytest.mark.parametrize("training", [True, False])
def test_parity_with_the_loop(policy, training):
    """Values, gradients (of parameters, input and other arguments), buffers, and the random numbers that come after."""
    layers = _layers(dropout=0.5).train(training)
    scanned = ScannedModule(_layers(dropout=0.5), policy).train(training)
    found = []
    for run in (lambda *a, **k: _loop(layers, *a, **k), scanned):
        torch.manual_seed(3)
        h, scale = _x().requires_grad_(), torch.tensor(0.5, device="jax", requires_grad=True)
        out = run(h, scale, shift=_x(1), flag="on")
        (out**2).sum().backward()
        found.append((out, h.grad, scale.grad, torch.rand(2, device="jax")))
    for a, b in zip(*found):
        torch.testing.assert_close(a, b)
    for name, _ in layers[0].named_parameters():
        grad = scanned.params[name.replace(".", "___")].grad
        for i, layer in enumerate(layers):
            torch.testing.assert_close(grad[i], layer.get_parameter(name).grad, rtol=1e-4, atol=1e-5)
    for name, _ in layers[0].named_buffers():
        stacked = getattr(scanned.buffers_, name.replace(".", "___"))
        torch.testing.assert_close(stacked, torch.stack([layer.get_buffer(name) for layer in layers]))
        assert stacked.dtype == layers[0].get_buffer(name).dtype


def test_under_jit_with_jax_gradients():
    layers, scanned = _layers().eval(), ScannedModule(_layers()).eval()
    params = dict(scanned.named_parameters())
    assert set(params) == {f"params.inner___{n}" for n in ("0___weight", "0___bias", "1___weight", "1___bias")}

    def loss(params, h):
        out = torch.func.functional_call(scanned, interop.torch_view(params), (Tensor(h), 0.5))
        return interop.jax_view((out**2).sum())

    Tensor = torchax.Tensor
    h = _x()
    grads = jax.jit(jax.grad(loss))(interop.jax_view(params), h.jax())
    (_loop(layers, h, 0.5) ** 2).sum().backward()
    for i, layer in enumerate(layers):
        np.testing.assert_allclose(
            grads["params.inner___0___weight"][i], layer.inner[0].weight.grad, rtol=1e-4, atol=1e-6
        )


def test_wide_arguments_stay_wide():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, h, n):
            assert n.dtype == torch.int64
            return h + self.w * n

    scanned = ScannedModule([Wide().to("jax"), Wide().to("jax")])
    out = scanned(torch.zeros(1, dtype=torch.float64, device="jax"), torch.tensor(2**40, device="jax"))
    assert out.item() == 2.0**41


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "no layers"),
        ([nn.Linear(2, 2), nn.Linear(2, 2, bias=False)], "layer 1 differs from layer 0 in bias"),
        ([nn.Linear(2, 2), nn.Linear(2, 3)], "layer 1 differs from layer 0 in weight"),
        ([nn.Tanh(), nn.ReLU()], "in its type"),
    ],
)
def test_layers_that_differ(layers, message):
    with pytest.raises(ValueError, match=message):
        ScannedModule(layers)


def _llama(layers=3):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 64}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=layers, use_cache=False)
    return transformers.LlamaForCausalLM(config)


TOKENS = torch.arange(48).reshape(4, 12) % 64


def test_scan_layers_keeps_the_original_names():
    reference = _llama()
    model = scan_layers(_llama().to("jax"))
    original = reference.state_dict()
    state = model.state_dict()
    assert set(state) == set(original)
    assert all(torch.equal(state[n].cpu(), x) for n, x in original.items())
    other = {n: x + 0.01 for n, x in original.items()}
    model.load_state_dict({n: x.to("jax") for n, x in other.items()})
    reference.load_state_dict(other)
    torch.testing.assert_close(model(TOKENS.to("jax")).logits.cpu(), reference(TOKENS).logits, rtol=1e-4, atol=1e-5)
    missing = {n: x for n, x in other.items() if n != "model.layers.1.mlp.up_proj.weight"}
    with pytest.raises(RuntimeError, match="up_proj"):
        model.load_state_dict(missing)
    with pytest.raises(IndexError, match="all 3 together"):
        model.model.layers[1]
    with pytest.raises(ValueError, match="no ModuleList of equal layers"):
        scan_layers(nn.Sequential(nn.Linear(2, 2)))


def _program(layers):
    model = scan_layers(_llama(layers).to("jax"))

    def loss(params, x):
        logits = torch.func.functional_call(model, interop.torch_view(params), (torchax.Tensor(x),)).logits
        return interop.jax_view(F.cross_entropy(logits.flatten(0, 1), torchax.Tensor(x).flatten()))

    params = interop.jax_view(dict(model.named_parameters()))
    return jax.jit(jax.grad(loss)).lower(params, TOKENS.to("jax").jax())


def test_the_program_does_not_grow_with_depth():
    small, large = (len(_program(n).as_text().splitlines()) for n in (2, 12))
    assert large <= 1.02 * small


def test_on_a_mesh():
    reference = _llama()
    mesh, plan = make_mesh({"fsdp": 4, "tensor": 2}), Plan(fsdp="fsdp", tensor="tensor")
    model = scan_layers(parallelize(_llama(), mesh, plan))
    stacked = model.model.layers.params["self_attn___q_proj___weight"].jax()
    assert stacked.sharding.shard_shape(stacked.shape) == (3, 16, 8)
    x = torchax.Tensor(jax.device_put(TOKENS.to("jax").jax(), batch_sharding(mesh, plan.batch_axes)))
    forward = jax.jit(lambda w, x: torch.func.functional_call(model, w, (x,)).logits)
    found = forward(dict(model.named_parameters()), x)
    torch.testing.assert_close(found.cpu(), reference(TOKENS).logits, rtol=1e-4, atol=1e-5)


# --- remat, mark_sharding ----------------------------------------------------------------------------------------------


def _block(x, w, *, power, name="block"):
    return {"out": torch.sin(x @ w) ** power, "name": name}


def test_remat_computes_the_same_and_again():
    x, w = _x().requires_grad_(), torch.eye(8, device="jax").requires_grad_()
    out = remat(_block)(x, w, power=2)
    assert out["name"] == "block"
    out["out"].sum().backward()
    grads = x.grad, w.grad
    x.grad = w.grad = None
    _block(x, w, power=2)["out"].sum().backward()
    torch.testing.assert_close(grads, (x.grad, w.grad))

    def loss(policy):
        fn = remat(_block, policy=policy)
        return lambda x, w: interop.jax_view(fn(torchax.Tensor(x), torchax.Tensor(w), power=2)["out"].sum())

    sines = {}
    for name in ("nothing_saveable", "everything_saveable"):
        program = jax.make_jaxpr(jax.grad(loss(getattr(jax.checkpoint_policies, name))))(jnp.ones((4, 8)), jnp.eye(8))
        sines[name] = str(program).count(" sin ")
    assert sines["nothing_saveable"] == sines["everything_saveable"] + 1


def test_remat_of_a_module_reaches_its_parameters():
    torch.manual_seed(0)
    module = nn.Linear(8, 8).to("jax")
    remat(module)(_x()).pow(2).sum().backward()
    grad, module.weight.grad = module.weight.grad, None
    module(_x()).pow(2).sum().backward()
    torch.testing.assert_close(grad, module.weight.grad)


def test_mark_sharding():
    sharding = NamedSharding(make_mesh({"x": 8}), P(None, "x"))
    x = _x().requires_grad_()
    y = mark_sharding(x * 2, sharding)
    assert y.jax().sharding == sharding
    y.sum().backward()
    assert x.grad.cpu().eq(2).all()
    compiled = jax.jit(lambda x: mark_sharding(x * 2, sharding))(_x())
    assert compiled.jax().sharding.is_equivalent_to(sharding, 2)

"""Models on meshes of eight CPU devices: the same losses and gradients, each device with its share."""

from __future__ import annotations

import collections
import io
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.nn.functional as F
import transformers
from jax.sharding import PartitionSpec as P
from rich.console import Console
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel

import torchax
from torchax import interop
from torchax.mesh_util import Mesh, SingleAxisSharder
from torchax.train.sharding import (
    Plan,
    Rules,
    ShardingError,
    abstract_state,
    batch_sharding,
    initialize,
    make_mesh,
    parallelize,
    sharding_table,
    shardings,
)

LLAMA = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 4, "vocab_size": 256, "use_cache": False}


def _llama(**changed):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA | changed))


def _gpt():
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 256, "n_positions": 32}
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **quiet))


def _mixtral():
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**LLAMA, num_local_experts=4, num_experts_per_tok=2)
    model = transformers.MixtralForCausalLM(config)
    model.set_experts_implementation("batched_mm")
    return model


def _vit():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=4, num_labels=8, hidden_dropout_prob=0.0)
    return transformers.ViTForImageClassification(config)


def _batch(model):
    generator = torch.Generator().manual_seed(1)
    if isinstance(model, transformers.ViTForImageClassification):
        return torch.randn(8, 3, 16, 16, generator=generator), torch.randint(0, 8, (8,), generator=generator)
    tokens = torch.randint(0, 256, (8, 33), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def _loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def _reference(model, steps=3):
    """Losses and the first gradients of the model on the CPU, in PyTorch."""
    inputs, labels = _batch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses, first = [], {}
    for _ in range(steps):
        optimizer.zero_grad()
        loss = _loss(model(inputs).logits, labels)
        loss.backward()
        first = first or {n: p.grad.clone() for n, p in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    return losses, first


def _on(mesh, x, axes, sequence=None):
    return torchax.Tensor(jax.device_put(x.to("jax").jax(), batch_sharding(mesh, axes, sequence)))


def _model_fn(model):
    return lambda w, b, x: torch.func.functional_call(model, {**w, **b}, (x,)).logits


def collectives(text):
    """``{(collective, shape): how often}`` in a compiled program."""
    found = collections.Counter()
    for line in text.splitlines():
        if m := re.search(r"= (\(.*?\)|\S+) (all-\w+|reduce-scatter|collective-permute)(-start)?\(", line):
            found.update((m[2], shape) for shape in re.findall(r"\w+\[([\d,]*)\]", m[1]))
    return found


PLANS = {
    "data": ({"data": 8}, Plan(data="data")),
    "fsdp": ({"fsdp": 8}, Plan(fsdp="fsdp")),
    "tensor": ({"tensor": 4}, Plan(tensor="tensor")),
    "fsdp_tensor": ({"fsdp": 4, "tensor": 2}, Plan(fsdp="fsdp", tensor="tensor")),
    "data_fsdp_tensor": ({"data": 2, "fsdp": 2, "tensor": 2}, Plan(data="data", fsdp="fsdp", tensor="tensor")),
    "sequence": ({"fsdp": 2, "tensor": 4}, Plan(fsdp="fsdp", tensor="tensor", sequence_parallel=True)),
    "context": ({"fsdp": 2, "context": 4}, Plan(fsdp="fsdp", context="context")),
}
MODELS = {"llama": _llama, "gpt": _gpt, "vit": _vit, "mixtral": _mixtral}
CASES = [("llama", plan) for plan in PLANS] + [("gpt", "fsdp_tensor"), ("vit", "fsdp_tensor"), ("mixtral", "fsdp")]


def _mesh(axes):
    count = int(np.prod(list(axes.values())))
    return make_mesh(axes, devices=jax.devices()[:count])


def _follows(name, axes, plan):
    model = MODELS[name]()
    losses, grads = _reference(MODELS[name]())
    mesh = _mesh(axes)
    parallelize(model, mesh, plan)
    weights = {n: p.detach() for n, p in model.named_parameters()}
    buffers = dict(model.named_buffers())
    inputs, labels = _batch(model)
    sequence = plan.context if isinstance(plan, Plan) else None
    axes = plan.batch_axes if isinstance(plan, Plan) else ()
    inputs, labels = _on(mesh, inputs, axes, sequence), _on(mesh, labels, axes, sequence if labels.ndim > 1 else None)
    model_fn = _model_fn(model)

    def loss(w, b, x, y):
        return interop.jax_view(_loss(model_fn(*interop.torch_view((w, b, x))), interop.torch_view(y)))

    step = jax.jit(jax.value_and_grad(loss))
    weights, *others = interop.jax_view((weights, buffers, inputs, labels))
    mine = []
    for _ in losses:
        value, found = step(weights, *others)
        if not mine:
            for n, g in grads.items():
                np.testing.assert_allclose(found[n], g, rtol=1e-4, atol=2e-6, err_msg=n)
        weights = jax.tree.map(lambda w, g: w - 0.5 * g, weights, found)
        mine.append(float(value))
    assert mine == pytest.approx(losses, rel=1e-4)
    return model


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_losses_and_gradients_are_those_of_one_device(name, plan):
    _follows(name, *PLANS[plan])


def test_experts_are_split():
    model = _follows("mixtral", {"fsdp": 2, "expert": 4}, Plan(fsdp="fsdp", expert="expert"))
    experts = model.model.layers[0].mlp.experts.gate_up_proj
    assert experts.jax().sharding.shard_shape(experts.shape) == (1, 128, 64)


@pytest.mark.parametrize("plan", [p for p in PLANS if "fsdp" in p])
def test_each_device_has_its_share(plan):
    """Of parameters and of the optimizer's state: all but what no axis divides."""
    axes, plan = PLANS[plan]
    mesh = _mesh(axes)
    model = parallelize(_llama(), mesh, plan)
    weights = {n: p.detach() for n, p in model.named_parameters()}
    state = interop.call_jax(optax.adamw(1e-3).init, weights)
    parts = int(np.prod([n for a, n in axes.items() if a in (plan.fsdp, plan.tensor)]))
    for tree in (weights, state):
        arrays = [x for x in jax.tree.leaves(tree) if x.ndim]
        whole = sum(x.nbytes for x in arrays)
        for device in mesh.devices.flat:
            held = sum(s.data.nbytes for x in arrays for s in x.addressable_shards if s.device == device)
            assert held <= 1.01 * whole / parts + sum(x.nbytes for x in arrays if x.ndim == 1)


def _program(plan, axes, what="step"):
    mesh = _mesh(axes)
    model = parallelize(_llama(num_hidden_layers=2), mesh, plan)
    weights, buffers = {n: p.detach() for n, p in model.named_parameters()}, dict(model.named_buffers())
    inputs, labels = (_on(mesh, x, plan.batch_axes) for x in _batch(model))
    model_fn = _model_fn(model)
    if what == "forward":
        return model, jax.jit(model_fn).lower(weights, buffers, inputs).compile().as_text()
    placed = jax.tree.map(lambda x: x.sharding, interop.jax_view(weights))
    step = jax.jit(
        jax.value_and_grad(lambda w: interop.jax_view(_loss(model_fn(interop.torch_view(w), buffers, inputs), labels))),
        out_shardings=(None, placed),
    )
    return model, step.lower(interop.jax_view(weights)).compile().as_text()


def _shape(x):
    return ",".join(map(str, x))


def test_fsdp_gathers_weights_and_reduces_gradients_and_moves_no_activation():
    """Each weight is gathered as such, each gradient reduced. (On TPU and GPU XLA makes one reduce-scatter of an all-reduce
    of which each device keeps a slice; on CPU it leaves the two.)"""
    plan, axes = Plan(fsdp="fsdp"), {"fsdp": 8}
    model, text = _program(plan, axes)
    found = collectives(text)
    shapes = {_shape(p.shape) for p in model.parameters()}
    gathered = {s for kind, s in found if kind == "all-gather"}
    reduced = {s for kind, s in found if kind in ("all-reduce", "reduce-scatter")}
    assert gathered == shapes
    assert reduced == shapes | {""}
    assert not {kind for kind, _ in found} - {"all-gather", "all-reduce", "reduce-scatter"}


def test_tensor_parallel_has_one_all_reduce_a_block():
    """Forward: two for each layer (attention, feed-forward) and one for the split embedding; weights stay where they are."""
    _, text = _program(Plan(tensor="tensor"), {"tensor": 4}, "forward")
    assert collectives(text) == {("all-reduce", "8,32,64"): 5}


def test_sequence_parallel_gathers_and_scatters_instead():
    _, text = _program(Plan(tensor="tensor", sequence_parallel=True), {"tensor": 4}, "forward")
    kinds = {kind for kind, _ in collectives(text)}
    assert "all-gather" in kinds
    assert ("all-gather", "256,64") not in collectives(text)


# --- PyTorch's plans -------------------------------------------------------------------------------------------------


class _Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        x = self.tok(x)
        return x + self.down(F.gelu(self.up(self.norm(x))))


TORCH_PLAN = {
    "tok": RowwiseParallel(),
    "norm": SequenceParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


def test_a_plan_of_pytorch():
    torch.manual_seed(0)
    model, mesh = _Mlp(), make_mesh({"tp": 8})
    x = torch.randint(0, 16, (4, 8))
    expected = model(x)
    parallelize(model, mesh, TORCH_PLAN)
    specs = {n: p.jax().sharding.spec for n, p in model.named_parameters()}
    assert specs["up.weight"] == specs["up.bias"] == specs["tok.weight"] == P("tp")
    assert specs["down.weight"] == P(None, "tp")
    assert specs["down.bias"] == specs["norm.weight"] == P()
    torch.testing.assert_close(model(x.to("jax")).cpu(), expected)
    compiled = jax.jit(lambda w, x: torch.func.functional_call(model, w, (x,)))
    torch.testing.assert_close(compiled(dict(model.named_parameters()), x.to("jax")).cpu(), expected)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"absent": ColwiseParallel()}, "'absent' matches no module"),
        ({"norm": ColwiseParallel()}, "for Linear and Embedding, not LayerNorm"),
        ({"up": PrepareModuleInput(input_layouts=(None,), desired_input_layouts=(None,))}, "PrepareModuleInput has no"),
        ({"up": ColwiseParallel()}, "up.bias: .* splits dim 0"),
    ],
)
def test_a_plan_of_pytorch_that_does_not_fit(plan, message):
    model = _Mlp()
    if "up" in plan and isinstance(plan["up"], ColwiseParallel):
        model.up = nn.Linear(8, 30)
    with pytest.raises(ShardingError, match=message):
        parallelize(model, make_mesh({"tp": 8}), plan)
    with pytest.raises(ShardingError, match="axis= says which"):
        parallelize(model, make_mesh({"a": 2, "b": 4}), TORCH_PLAN)


# --- rules, tables, meshes -------------------------------------------------------------------------------------------


def test_rules_in_order_and_what_they_get_wrong():
    parameters = {"a.weight": np.zeros((8, 6)), "a.bias": np.zeros(6), "b.weight": np.zeros((4, 4))}
    mesh = make_mesh({"x": 4, "y": 2})
    found = shardings(parameters, mesh, {"a.weight": ("x", "y"), "*.weight": (None, "x")})
    assert [s.spec for s in found.values()] == [P("x", "y"), P(), P(None, "x")]
    with pytest.raises(ShardingError) as e:
        shardings(parameters, mesh, Rules({"nothing.*": ("x",), "a.bias": ("x",), "b.*": ("z",), "a.*": ("x", "x")}))
    said = str(e.value)
    assert "rules that match no parameter: 'nothing.*'" in said
    assert "a.bias: P('x',) splits dim 0 of (6,) into 4 parts" in said
    assert "b.weight: P('z',) names axes ['z']" in said
    assert "a.weight: P('x', 'x') uses an axis twice" in said


def test_the_table_names_every_parameter():
    model = parallelize(
        _llama(num_hidden_layers=2), make_mesh({"fsdp": 4, "tensor": 2}), Plan(fsdp="fsdp", tensor="tensor")
    )
    console = Console(width=140, file=io.StringIO())
    console.print(sharding_table(model))
    text = console.file.getvalue()
    assert re.search(
        r"model\.layers\.\*\.self_attn\.q_proj\.weight\s+│\s+2\s+│\s+64×64\s+│ tensor, fsdp\s+│\s+32×16", text
    )
    assert "all" in text


def test_hybrid_meshes_put_slices_outermost():
    mesh = make_mesh({"fsdp": 2, "tensor": -1}, slices={"data": 2})
    assert mesh.shape == {"data": 2, "fsdp": 2, "tensor": 2}
    ids = np.vectorize(lambda d: d.id)(mesh.devices)
    assert ids.reshape(2, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    both = make_mesh({"fsdp": 4}, slices={"fsdp": 2})
    assert both.shape == {"fsdp": 8}


@pytest.mark.parametrize("axes", [{"a": 3}, {"a": -1, "b": -1}, {"a": 0}, {"a": -1, "b": 3}, {"a": 16}])
def test_meshes_that_do_not_divide(axes):
    with pytest.raises(ShardingError, match="mesh"):
        make_mesh(axes)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(tensor="tensor"), "3 heads, which do not divide over 2 devices"),
        (Plan(expert="fsdp"), "no mixture of experts"),
        (Plan(fsdp="absent"), "names axis 'absent'"),
    ],
)
def test_plans_that_do_not_fit(plan, message):
    model = _llama(num_attention_heads=3, num_key_value_heads=3, hidden_size=48, head_dim=16)
    with pytest.raises(ShardingError, match=message):
        parallelize(model, make_mesh({"fsdp": 4, "tensor": 2}), plan)
    with pytest.raises(ShardingError, match="two tasks"):
        Plan(fsdp="x", tensor="x")


# --- in place, ties, meshes one after another ------------------------------------------------------------------------


def test_parameters_stay_the_same_objects_and_tied(tmp_path):
    model = _gpt()
    parameters = list(model.parameters())
    parallelize(model, make_mesh({"fsdp": 8}), Plan(fsdp="fsdp"))
    assert all(a is b for a, b in zip(parameters, model.parameters()))
    assert model.lm_head.weight is model.transformer.wte.weight
    torchax.save_checkpoint(model.state_dict(), tmp_path)
    expected = model(torch.arange(8, device="jax")[None]).logits.cpu()
    parallelize(model, make_mesh({"tensor": 2}, devices=jax.devices()[:2]), Plan(tensor="tensor"))
    back = torchax.load_checkpoint(tmp_path, like=model.state_dict())
    assert back["transformer.h.0.mlp.c_fc.weight"].jax().sharding.spec == P(None, "tensor")
    assert all(torch.equal(x.cpu(), back[n].cpu()) for n, x in model.state_dict().items())
    torch.testing.assert_close(model(torch.arange(8, device="jax")[None]).logits.cpu(), expected)


def test_backward_of_pytorch_on_a_mesh():
    losses, grads = _reference(_llama(), steps=1)
    model, mesh = _llama(), make_mesh({"fsdp": 4, "tensor": 2})
    parallelize(model, mesh, Plan(fsdp="fsdp", tensor="tensor"))
    inputs, labels = (_on(mesh, x, ("fsdp",)) for x in _batch(model))
    loss = _loss(model(inputs).logits, labels)
    loss.backward()
    assert loss.item() == pytest.approx(losses[0], rel=1e-5)
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.grad.cpu(), grads[n], rtol=1e-4, atol=2e-6)
        assert p.grad.jax().sharding.is_equivalent_to(p.jax().sharding, p.ndim)


# --- initialization --------------------------------------------------------------------------------------------------


class _Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, 8)

    def forward(self, x):
        return self.b(self.norm(self.a(x)))


def test_initialization_does_not_depend_on_the_mesh():
    made = []
    for count in (8, 1):
        with torch.device("meta"):
            model = _Net(16)
        parallelize(model, make_mesh({"fsdp": count}, devices=jax.devices()[:count]), Plan(fsdp="fsdp"), seed=3)
        made.append(model.state_dict())
    assert made[0]["a.weight"].jax().sharding.shard_shape((16, 16)) == (2, 16)
    for a, b in zip(made[0].values(), made[1].values()):
        assert torch.equal(a.cpu(), b.cpu())
    bound = 1 / 4
    a = made[0]["a.weight"].cpu()
    assert a.abs().max() <= bound
    assert a.std() == pytest.approx(bound / 3**0.5, rel=0.15)
    assert torch.equal(made[0]["norm.running_var"].cpu(), torch.ones(16))


def test_transformers_models_initialize_themselves():
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    parallelize(model, make_mesh({"fsdp": 8}), Plan(fsdp="fsdp"))
    reference = _llama()
    assert model.lm_head.weight.std().item() == pytest.approx(reference.lm_head.weight.std().item(), rel=0.05)
    for (n, a), (_, b) in zip(model.named_buffers(), reference.named_buffers()):
        torch.testing.assert_close(a.cpu(), b, msg=n)
    reference.load_state_dict({n: x.cpu() for n, x in model.state_dict().items()})
    tokens = torch.arange(16)[None]
    torch.testing.assert_close(model(tokens.to("jax")).logits.cpu(), reference(tokens).logits, rtol=1e-4, atol=1e-5)


def test_a_module_that_cannot_initialize_itself_is_named():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), Scale())
    with pytest.raises(ShardingError, match=r"1 \(Scale\) has scale and no reset_parameters"):
        initialize(model, {})


def test_streamed_from_a_checkpoint(tmp_path):
    model = _llama()
    model.save_pretrained(tmp_path)
    with torch.device("meta"):
        empty = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    mesh, plan = make_mesh({"fsdp": 4, "tensor": 2}), Plan(fsdp="fsdp", tensor="tensor")
    specs = plan.specs(empty, mesh)
    state = torchax.load_checkpoint(tmp_path, like=abstract_state(empty, mesh, lambda n, x: specs[n]))
    assert state["lm_head.weight"].sharding.spec == P("tensor", "fsdp")
    np.testing.assert_array_equal(state["lm_head.weight"], model.lm_head.weight.detach())


MEMORY = """
import os, threading, time
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, torch, torchax
from torch import nn
from torchax.mesh_util import Mesh
from torchax.train.sharding import Plan, make_mesh, parallelize
def used():
    [line] = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
    return int(line.split()[1]) << 10
class Net(nn.Sequential):
    def __init__(self, n, width):
        super().__init__(*(nn.Linear(width, width, bias=False) for _ in range(n)))
with torch.device("meta"):
    small, model = Net(1, 8), Net(16, 2048)
mesh = make_mesh({"fsdp": 8})
parallelize(small, mesh, Plan(fsdp="fsdp"))
start, peak, on = used(), 0, True
def watch():
    global peak
    while on:
        peak = max(peak, used()); time.sleep(0.002)
t = threading.Thread(target=watch); t.start()
parallelize(model, mesh, Plan(fsdp="fsdp"))
jax.block_until_ready([p.jax() for p in model.parameters()])
on = False; t.join()
print(peak - start)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_initialization_never_holds_the_whole_twice():
    """256 MiB on eight simulated devices of one process: a copy on the host or on one device would be 256 MiB more."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1.7 * (1 << 28)


# --- mesh_util ---------------------------------------------------------------------------------------------------------


def test_mesh_of_one_axis_shards_models():
    mesh = Mesh.fsdp_mesh()
    torch.manual_seed(0)
    model = mesh.shard_model(_Net(16))
    assert model.a.weight.jax().sharding.shard_shape((16, 16)) == (2, 16)
    assert len({s.device for s in model.a.weight.jax().addressable_shards}) == 8
    made = mesh.initialize_model_sharded(_Net, (16,))
    assert made.a.weight.jax().sharding.spec == P("fsdp")
    assert made.norm.running_var.cpu().tolist() == [1.0] * 16
    assert made(torch.randn(8, 16, device="jax")).shape == (8, 8)
    whole = mesh.shard_model(_Net(16), override_sharder=lambda name, shaped: P())
    assert whole.a.weight.jax().sharding.spec == P()


def test_single_axis_sharder():
    sharder = SingleAxisSharder("x", 4)
    assert sharder("w", jnp.zeros((3, 8))) == P(None, "x")
    with pytest.raises(ShardingError, match=r"w: no dim of \(3, 5\) divides over 4"):
        sharder("w", jnp.zeros((3, 5)))
    assert SingleAxisSharder("x", 4, replicate_unshardable=True)("w", jnp.zeros(3)) == P()
    with pytest.raises(ShardingError, match="needs a sharder"):
        Mesh(jax.make_mesh((4, 2), ("a", "b")))
    assert Mesh(jax.make_mesh((8,), ("a",))).sharder("w", jnp.zeros(16)) == P("a")

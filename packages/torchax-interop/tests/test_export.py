"""Exported programs as JAX functions, StableHLO and artifacts, against the program on CPU torch."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import torchax
from torchax import export


class Block(nn.Module):
    """Attention with a causal mask, another with a boolean one, and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        masked = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None, :])
        x = x + self.out((causal + masked).transpose(1, 2).reshape(b, t, -1))
        return x + self.mlp(x)


class Ids(nn.Module):
    """64-bit integers: lookups, counts beyond 32 bits, sorting, comparison."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, i: torch.Tensor) -> dict[str, torch.Tensor]:
        big = i * 2**40 + 1
        values, order = i.sort(dim=1, descending=True, stable=True)
        return {
            "rows": self.table(i),
            "big": big,
            "values": values,
            "order": order,
            "n": (i > 3).sum(),
            "at": i.argmax(1),
        }


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros(3), persistent=False)
        self.scale = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.shape[0]
        self.last.copy_(x[-1])
        return x * self.scale


def mlp() -> Any:
    return nn.Sequential(nn.Linear(5, 8), nn.SiLU(), nn.Linear(8, 3), nn.Softmax(-1)), (torch.randn(2, 5),)


def cnn() -> Any:
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 2)), (
        torch.randn(4, 3, 8, 8),
    )


def cnn_in_eval() -> Any:
    model, args = cnn()
    return model.eval(), args


def attention() -> Any:
    keep = torch.ones(2, 6, dtype=torch.bool)
    keep[1, 4:] = False
    return Block(), (torch.randn(2, 6, 16), keep)


def multihead() -> Any:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
    return layer.eval(), (torch.randn(2, 6, 16),)


def ids() -> Any:
    return Ids(), (torch.randint(0, 10, (3, 7)),)


def bag() -> Any:
    return nn.EmbeddingBag(10, 4, mode="mean"), (torch.randint(0, 10, (3, 7)),)


def lstm() -> Any:
    return nn.LSTM(4, 6, batch_first=True), (torch.randn(2, 5, 4),)


MODELS = [mlp, cnn, cnn_in_eval, attention, multihead, ids, bag, lstm]


def exported(make: Any, **kwargs: Any) -> Any:
    """A model, its arguments and its program, made alike each time."""
    torch.manual_seed(0)
    model, args = make()
    return model, args, torch.export.export(model, args, **kwargs)


def arrays(tree: Any) -> tuple[Any, ...]:
    return tuple(x.numpy() if isinstance(x, torch.Tensor) else x for x in tree_leaves(tree))


def assert_same(got: Any, want: Any) -> None:
    want = [x.detach() for x in tree_leaves(want)]
    assert len(got) == len(want)
    for g, w in zip(got, want):
        array = np.asarray(g)
        torch.testing.assert_close(torch.from_numpy(array.copy()), w)


@pytest.mark.parametrize("make", MODELS)
def test_function_is_the_program(make):
    model, args, ep = exported(make)
    state, fn = export.exported_program_to_jax(ep)
    assert all(isinstance(x, jax.Array) for x in state)
    want = model(*args)
    given = tuple(x.to("jax").jax() for x in args)
    assert_same(fn(state, given), want)
    with jax.enable_x64(True):
        assert_same(jax.jit(fn)(state, given), want)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("inside", [False, True])
def test_stablehlo_is_the_program(make, inside):
    model, args, ep = exported(make)
    weights, artifact = export.exported_program_to_stablehlo(ep, weights_inside=inside)
    assert len(weights) == (0 if inside else len(ep.graph_signature.input_specs) - len(args))
    again = jax.export.deserialize(artifact.serialize())
    with jax.enable_x64(True):
        assert_same(again.call(weights, arrays(args)), model(*args))
    assert "stablehlo.constant" in artifact.mlir_module()
    assert artifact.mlir_module_serialized[:4] == b"ML\xefR"


def test_a_plain_jit_with_x64_off_has_32_bit_integers():
    _, args, ep = exported(lambda: (nn.Embedding(10, 3), (torch.tensor([[1, 2], [3, 9]]),)))
    state, fn = export.exported_program_to_jax(ep)
    [out] = jax.jit(fn)(state, (jnp.array(args[0].numpy()),))
    np.testing.assert_array_equal(out, ep.state_dict["weight"].detach().numpy()[args[0].numpy()])


def test_gradients_reach_the_state():
    model, args, ep = exported(mlp)
    state, fn = export.exported_program_to_jax(ep)
    got = jax.grad(lambda s: fn(s, arrays(args))[0][:, 0].sum())(state)
    model(*args)[:, 0].sum().backward()
    for g, p in zip(got, model.parameters(), strict=True):
        np.testing.assert_allclose(g, p.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_batch_statistics_are_available_and_not_among_the_outputs():
    model, args, ep = exported(cnn)
    state, fn = export.exported_program_to_jax(ep)
    assert len(fn(state, arrays(args))) == 1
    names, raw, _ = export.exported_program_to_jax(ep, export_raw=True)
    assert all(type(t) in (torch.Tensor, nn.Parameter) for t in raw)
    state, step = export.exported_program_to_stateful_jax(ep)
    for _ in range(2):
        out = step(state, arrays(args))
        state = out.state
        assert_same(out.outputs, model(*args))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(torch.from_numpy(np.array(state[names.index(name)])), value)


def test_buffers_of_every_kind():
    model, args, ep = exported(lambda: (Counts(), (torch.randn(2, 3),)))
    state, step = export.exported_program_to_stateful_jax(ep)
    out = step(step(state, arrays(args)).state, arrays(args))
    names, _, _ = export.exported_program_to_jax(ep, export_raw=True)
    assert set(names) == {"seen", "last", "scale"}
    assert int(out.state[names.index("seen")]) == 4
    np.testing.assert_array_equal(out.state[names.index("last")], args[0][-1].numpy())
    assert_same(out.outputs, model(*args))


def test_written_inputs_are_results():
    class Fill(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return x + 1

    _, _, ep = exported(lambda: (Fill(), (torch.ones(3),)))
    _, step = export.exported_program_to_stateful_jax(ep)
    out = step([], (jnp.ones(3),))
    np.testing.assert_array_equal(out.inputs["x"], [2, 2, 2])
    np.testing.assert_array_equal(out.outputs[0], [3, 3, 3])


def test_keywords_nested_arguments_and_constants():
    class Pick(nn.Module):
        def forward(self, pair: Any, *, scale: float, tail: Any = None) -> Any:
            return {"a": pair["x"] * scale, "b": (pair["y"] if tail is None else pair["y"] + tail,)}

    x, y, tail = torch.randn(2), torch.randn(3), torch.randn(3)
    ep = torch.export.export(Pick(), ({"x": x, "y": y},), {"scale": 2.0, "tail": tail})
    state, fn = export.exported_program_to_jax(ep)
    pair = {"x": x.numpy(), "y": y.numpy()}
    want = (x * 2, y + tail)
    assert_same(fn(state, (pair,), {"tail": tail.numpy(), "scale": 2.0}), want)
    flat = (x.numpy(), y.numpy(), tail.numpy())
    assert_same(fn(state, flat), want)
    with pytest.raises(ValueError, match=r"scale: the program was exported for 2.0, not 3.0"):
        fn(state, (pair,), {"scale": 3.0, "tail": tail.numpy()})
    with pytest.raises(ValueError, match=r"exported for shape \[3\], not \[4\]"):
        fn(state, (x.numpy(), y.numpy(), np.ones(4, "f4")))
    with pytest.raises(TypeError, match="takes 4 inputs"):
        fn(state, (pair,))


def test_tied_weights_are_one_array():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
            self.head.weight = self.emb.weight

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return self.head(self.emb(i))

    model, args, ep = exported(lambda: (Tied(), (torch.tensor([[1, 2]]),)))
    state, fn = export.exported_program_to_jax(ep)
    assert len({id(x) for x in state}) == 1
    assert_same(fn(state, arrays(args)), model(*args))


def test_control_flow():
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: self.a(x).relu(), lambda x: self.b(x).sin(), (x,))

    model, args, ep = exported(lambda: (Branch(), (torch.randn(2, 3),)))
    state, fn = export.exported_program_to_jax(ep)
    for x in (args[0].abs(), -args[0].abs()):
        assert_same(jax.jit(fn)(state, (x.numpy(),)), model(x))


# --- symbolic sizes -----------------------------------------------------------------------------------------------------


class Joined(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, a], 0) + b


def symbolic(model: nn.Module, args: Any, shapes: Any) -> Any:
    ep = torch.export.export(model, args, dynamic_shapes=shapes)
    return export.exported_program_to_stablehlo(ep)


def test_range_and_derived_size_are_shape_assertions():
    a = Dim("a", min=3, max=10)
    weights, artifact = symbolic(Joined(), (torch.ones(4), torch.ones(8)), ({0: a}, {0: 2 * a}))
    text = artifact.mlir_module()
    assert "shape_assertion" in text
    for what in (r">= 3", r"<= 10", r"2\*s"):
        assert any(re.search(what, line) for line in text.splitlines() if "shape_assertion" in line), what
    [out] = artifact.call(weights, (np.ones(5, "f4"), np.ones(10, "f4")))
    np.testing.assert_array_equal(out, np.full(10, 2))
    for a, b in ((2, 4), (11, 22), (4, 9)):
        with pytest.raises(ValueError, match="Input shapes do not match"):
            artifact.call(weights, (np.ones(a, "f4"), np.ones(b, "f4")))


def test_avals():
    a, t = Dim("a", max=10), Dim("t", min=2)
    ep = torch.export.export(
        Joined(), (torch.ones(4, 3), torch.ones(8, 3)), dynamic_shapes=({0: a, 1: t}, {0: 2 * a, 1: t})
    )
    x, y = export.extract_avals(ep)
    assert y.shape[0] == 2 * x.shape[0]
    assert y.shape[1] == x.shape[1]
    assert x.dtype == jnp.float32
    [i] = export.extract_avals(exported(ids)[2])
    assert (i.shape, i.dtype) == ((3, 7), np.int64)


def dynamic(name: str) -> Any:
    batch, length = Dim("batch", max=64), Dim("length", min=2, max=128)
    return {
        "mlp": (mlp, ({0: batch},)),
        "cnn": (cnn_in_eval, ({0: batch},)),
        "attention": (attention, ({0: batch, 1: length}, {0: batch, 1: length})),
        "multihead": (multihead, ({0: batch, 1: length},)),
        "ids": (ids, ({0: batch, 1: length},)),
    }[name]


OTHER = {
    "mlp": lambda: (torch.randn(7, 5),),
    "cnn": lambda: (torch.randn(7, 3, 8, 8),),
    "attention": lambda: (torch.randn(3, 9, 16), torch.rand(3, 9) < 0.8),
    "multihead": lambda: (torch.randn(3, 9, 16),),
    "ids": lambda: (torch.randint(0, 10, (5, 11)),),
}


@pytest.mark.parametrize("name", OTHER)
def test_models_with_symbolic_sizes(name):
    make, shapes = dynamic(name)
    torch.manual_seed(0)
    model, args = make()
    weights, artifact = symbolic(model, args, shapes)
    for given in (args, OTHER[name]()):
        with jax.enable_x64(True):
            assert_same(artifact.call(weights, arrays(given)), model(*given))


OPERATORS = {
    "reshape": lambda x: x.reshape(x.shape[0] * x.shape[1], -1),
    "flatten": lambda x: x.flatten(1),
    "mean": lambda x: (x.mean(), x.mean(0), x.var(1), x.std((0, 1))),
    "sum": lambda x: (x.sum(), x.sum(1, keepdim=True), x.prod(0), x.amax(1), x.cumsum(1)),
    "softmax": lambda x: (x.softmax(1), x.log_softmax(0), x.logsumexp(1)),
    "matmul": lambda x: x @ x.transpose(1, 2),
    "select": lambda x: (x[:, 0], x[:, -1], x[:, 1:], x[:, :-1], x[..., ::2]),
    "cat": lambda x: (torch.cat([x, x * 2], 1), torch.stack([x, x])),
    "expand": lambda x: x[:, :, None].expand(-1, -1, 3, -1) + torch.arange(x.shape[1], device=x.device)[:, None, None],
    "factories": lambda x: (torch.zeros(x.shape[0], 2), torch.ones_like(x), x.new_full((x.shape[1],), 3.0)),
    "triangle": lambda x: (torch.ones(x.shape[1], x.shape[1]).tril(), x.triu()),
    "mask": lambda x: x.masked_fill(torch.arange(x.shape[1])[None, :, None] > 1, 0.0),
    "size as number": lambda x: x * x.shape[0] + x.shape[1] ** 0.5,
    "norm": lambda x: (F.layer_norm(x, (4,)), F.normalize(x, dim=1), x.norm(dim=1)),
    "gather": lambda x: x.gather(1, torch.zeros(x.shape[0], 1, 4, dtype=torch.int64)),
    "index": lambda x: x[:, torch.tensor([1, 0])],
    "argmax": lambda x: (x.argmax(1), x.topk(2, dim=1)),
    "split": lambda x: x.split(2, dim=2),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0)),
    "repeat": lambda x: (x.repeat(1, 2, 1), x.flip(1), x.roll(1, 1)),
    "where": lambda x: torch.where(x > 0, x, -x).clamp(max=1.0),
    "loss": lambda x: F.cross_entropy(x.flatten(0, 1), torch.zeros(x.shape[0] * x.shape[1], dtype=torch.int64)),
    "one_hot": lambda x: F.one_hot(x.argmax(2), 4),
    "conv": lambda x: F.conv1d(x.transpose(1, 2), torch.ones(2, 4, 2), padding=1),
    "pool": lambda x: F.avg_pool1d(x, 2),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "halves": lambda x: x[:, : x.shape[1] // 2],
    "max of sizes": lambda x: x.new_zeros(torch.sym_max(x.shape[0], x.shape[1])),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_with_symbolic_sizes(name):
    class One(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return OPERATORS[name](x)

    batch, half = Dim("batch", min=2, max=64), Dim("half", min=2, max=64)
    torch.manual_seed(0)
    weights, artifact = symbolic(One(), (torch.randn(4, 6, 4),), ({0: batch, 1: 2 * half},))
    for shape in ((4, 6, 4), (3, 8, 4)):
        x = torch.randn(shape)
        with jax.enable_x64(True):
            assert_same(artifact.call(weights, (x.numpy(),)), One()(x))


# --- without torch ------------------------------------------------------------------------------------------------------

WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchax", "torchax_ops"):
            raise ImportError(f"{name} must not be imported here")

sys.meta_path.insert(0, Refuse())
import jax, numpy as np
folder = sys.argv[1]
artifact = jax.export.deserialize(bytearray(open(f"{folder}/program", "rb").read()))
weights = list(np.load(f"{folder}/weights.npz").values())
given = tuple(np.load(f"{folder}/args.npz").values())
with jax.enable_x64(True):
    np.savez(f"{folder}/out.npz", *artifact.call(weights, given))
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("make", [cnn_in_eval, ids])
@pytest.mark.parametrize("inside", [False, True])
def test_artifact_runs_in_a_process_without_torch(make, inside, tmp_path):
    model, args, ep = exported(make)
    weights, artifact = export.exported_program_to_stablehlo(ep, weights_inside=inside)
    (tmp_path / "program").write_bytes(artifact.serialize())
    np.savez(tmp_path / "weights.npz", *weights)
    np.savez(tmp_path / "args.npz", *arrays(args))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_TORCH), str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as found:
        assert_same(list(found.values()), model(*args))


# --- what cannot be -----------------------------------------------------------------------------------------------------


def test_an_override_is_exported():
    @torch.library.custom_op("export_test::twice", mutates_args=(), device_types="cpu")
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return twice(x)

    ep = torch.export.export(Twice(), (torch.ones(2),))
    with pytest.raises(torchax.OperatorNotFound, match=r"export_test::twice.*has no JAX function and no decomposition"):
        export.exported_program_to_jax(ep)
    torchax.default_env().override_op_definition(torch.ops.export_test.twice.default, lambda x: x * 2)
    _, fn = export.exported_program_to_jax(ep)
    np.testing.assert_array_equal(fn([], (jnp.ones(2),))[0], [2, 2])


def test_random_operators_are_refused():
    _, args, ep = exported(lambda: (nn.Dropout(0.5), (torch.ones(4),)))
    _, fn = export.exported_program_to_jax(ep)
    with pytest.raises(NotImplementedError, match=r"draws random numbers.*export the model in eval mode"):
        fn([], arrays(args))


def test_state_of_another_length_is_refused():
    _, args, ep = exported(mlp)
    state, fn = export.exported_program_to_jax(ep)
    with pytest.raises(ValueError, match="the program has 4 tensors of state, and was given 3"):
        fn(state[1:], arrays(args))

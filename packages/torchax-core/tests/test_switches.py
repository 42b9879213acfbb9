"""Autocast, debugging switches, overrides, the environment."""

import logging

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchax
from torchax import functions
from torchax.ops import jaten, jlibrary, jtorch, ops_registry


@pytest.fixture
def config():
    config = torchax.default_env().config
    before = dict(vars(config))
    yield config
    for name, value in before.items():
        setattr(config, name, value)


@pytest.fixture
def overrides():
    yield
    torchax.backend.dispatch.overrides.clear()
    torchax.backend.dispatch.forget_plans()


# --- autocast (PITFALLS 13) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_chooses_dtypes_and_keeps_gradients(dtype):
    torch.manual_seed(0)
    lin, x = nn.Linear(8, 8), torch.randn(4, 8)
    dev, y = nn.Linear(8, 8).to("jax"), x.to("jax")
    dev.load_state_dict(lin.state_dict())
    with torch.autocast("jax", dtype=dtype):
        h = dev(y)
        assert h.dtype == dtype
        assert (h @ h.t()).dtype == dtype
        assert F.conv1d(y[None].mT, torch.ones(2, 8, 1, device="jax")).dtype == dtype
        assert F.layer_norm(h, (8,)).dtype == torch.float32
        assert F.softmax(h, -1).dtype == torch.float32
        assert h.sum().dtype == torch.float32
        assert F.mse_loss(h, h).dtype == torch.float32
        assert torch.cat([h, y]).dtype == torch.float32
        assert F.scaled_dot_product_attention(*[y.reshape(1, 1, 4, 8)] * 3).dtype == dtype
        assert (y.double() @ y.double().t()).dtype == torch.float64
        with torch.autocast("jax", enabled=False):
            assert dev(y).dtype == torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(torch.sigmoid(y), y)
        h.float().square().mean().backward()
    assert dev.weight.grad.dtype == torch.float32
    lin(x).square().mean().backward()
    torch.testing.assert_close(dev.weight.grad.cpu(), lin.weight.grad, rtol=0.1, atol=0.02)  # 8 bits of mantissa
    assert torchax.amp.autocast("jax").device == "jax"
    assert dev(y).dtype == torch.float32


# --- debugging switches -----------------------------------------------------------------------------------------------


def test_each_operator_is_logged_with_shapes_dtypes_and_time(config, caplog):
    x = torch.ones(2, 3, device="jax")
    with caplog.at_level(logging.INFO, logger="torchax.tensor"):
        config.debug_print_each_op = True
        x + 1
        config.debug_print_each_op_operands = True
        x.sum()
        config.debug_print_each_op = False
        x * 2
    messages = [r.message for r in caplog.records]
    assert len(messages) == 2
    assert messages[0].startswith("aten.add.Tensor(float32[2, 3], 1) -> float32[2, 3]")
    assert messages[0].endswith(" us")
    assert "6." in messages[1]


def test_each_operator_is_checked_against_cpu(config, overrides):
    x = torch.arange(4.0).to("jax")
    config.debug_accuracy_for_each_op = True
    F.gelu(x[1:]).sum()
    x.clone().add_(1)
    torch.randn(3, device="jax")
    jaten.op(torch.ops.aten.cos.default)(lambda self: jnp.cos(self) + 0.1)
    with pytest.raises(AssertionError, match=r"result 0 of aten\.cos\.default differs.*float32\[4\]"):
        x.cos()


def test_mixed_tensors_are_logged(config, caplog):
    config.debug_mixed_tensor = True
    with caplog.at_level(logging.INFO, logger="torchax.tensor"):
        torch.ones(2, device="jax") * torch.tensor(2.0)
    assert "on cpu" in caplog.text


@pytest.fixture
def missing():
    """An operator that has no JAX function."""
    with torch.library._scoped_library("torchax_test", "FRAGMENT") as library:
        library.define("missing(Tensor x, Tensor y) -> Tensor")
        library.impl("missing", lambda x, y: x + 2 * y, "CPU")
        yield torch.ops.torchax_test.missing
        torchax.backend.dispatch.forget_plans()


def test_a_missing_operator_names_itself_its_schema_and_the_remedy(missing):
    x = torch.ones(2, device="jax")
    with pytest.raises(torchax.OperatorNotFound) as e:
        missing(x, x)
    assert isinstance(e.value, NotImplementedError)
    for part in ("torchax_test::missing", "missing(Tensor x, Tensor y) -> Tensor", "jaten.op", "cpu_fallback"):
        assert part in str(e.value)


def test_cpu_fallback_is_opt_in_and_warns_once(missing, config):
    x = torch.ones(2, device="jax")
    config.cpu_fallback = True
    with pytest.warns(UserWarning, match="runs on CPU PyTorch"):
        out = missing(x, x)
    assert out.device.type == "jax"
    assert missing(x, x).tolist() == [3.0, 3.0]  # no second warning: it would be an error
    with pytest.raises(RuntimeError, match="trace"):
        jax.jit(lambda v: missing(v, v))(x)
    config.cpu_fallback = False
    with pytest.raises(torchax.OperatorNotFound):
        missing(x, x)


def test_registering_the_missing_operator(missing, overrides):
    calls = []

    @jaten.op(torch.ops.torchax_test.missing)
    def missing_in_jax(x, y):
        calls.append(1)
        return x + 2 * y

    x = torch.ones(2, device="jax")
    assert missing(x, x).tolist() == [3.0, 3.0]
    assert jax.jit(lambda v: missing(v, v))(x).tolist() == [3.0, 3.0]
    assert calls


def test_unknown_switches_are_errors(config):
    with pytest.raises(AttributeError, match="debug_print_each_op"):
        config.debug_print_every_op = True


def test_profiles_show_the_names_of_operators(tmp_path):
    x = torch.ones(8, 8, device="jax")
    F.gelu(x)
    with jax.profiler.trace(str(tmp_path)):
        F.gelu(x).jax().block_until_ready()
        (x @ x).jax().block_until_ready()
    [profile] = tmp_path.rglob("*.xplane.pb")
    assert b"aten_gelu" in profile.read_bytes()
    assert b"aten_mm" in profile.read_bytes()


# --- overrides --------------------------------------------------------------------------------------------------------


def test_overriding_an_aten_operator_takes_its_variants_along(overrides):
    x = torch.tensor([4.0, 9.0], device="jax")
    torchax.default_env().override_op_definition(torch.ops.aten.sqrt, lambda self: jnp.sqrt(self) + 1)
    assert x.sqrt().tolist() == [3.0, 4.0]
    assert torch.sqrt(x, out=torch.empty(0, device="jax")).tolist() == [3.0, 4.0]
    assert x.sqrt_().tolist() == [3.0, 4.0]


def test_overriding_a_torch_function():
    x = torch.ones(1, 1, 2, 4, device="jax")
    base = torchax.Tensor.__torch_function__
    seen = []

    @jtorch.register_function(F.scaled_dot_product_attention)
    def attention(query, key, value, **kwargs):
        seen.append(kwargs)
        return F.scaled_dot_product_attention(query, key, value, **kwargs) * 0 + 5

    try:
        assert F.scaled_dot_product_attention(x, x, x, is_causal=True).mean().item() == 5
        assert seen == [{"is_causal": True}]
        assert (x + 1).sum().item() == 16
    finally:
        functions.unregister_function(F.scaled_dot_product_attention)
    assert torchax.Tensor.__torch_function__ == base
    assert F.scaled_dot_product_attention(x, x, x).mean().item() == 1
    with pytest.raises(TypeError, match="register_function"):
        jtorch.register_function("gelu")(lambda x: x)


def test_registries_under_google_torchax_names(overrides):
    ops_registry.register_torch_dispatch_op(torch.ops.aten.tan.default, lambda self: self * 0 + 7)
    assert torch.ones(1, device="jax").tan().item() == 7
    assert "aten::add.Tensor" in ops_registry.all_aten_ops
    assert len(ops_registry.all_aten_ops) > 500
    with pytest.raises(ValueError, match=r"torch\.library"):
        ops_registry.register_torch_dispatch_op(torch.ops.aten.tan.default, None, is_jax_function=False)
    jlibrary.register_jax_composite("mylib.tan", lambda self: jnp.tan(self), torch.ops.aten.tan.default)
    x = torch.ones(2, device="jax")
    torch.testing.assert_close(x.tan().cpu(), torch.ones(2).tan())
    assert "mylib.tan" in jax.jit(lambda v: v.tan()).lower(x).as_text()


# --- the environment --------------------------------------------------------------------------------------------------


def test_environment_as_context_and_decorator():
    env = torchax.default_env()
    assert env is torchax.default_env()
    assert not env.enabled
    with env:
        assert env.enabled
        assert torch.ones(2, device="cuda").device.type == "jax"
        assert torch.ones(2).to("cuda").device.type == "jax"
        assert torch.ones(2).cuda().device.type == "jax"
        assert type(torch.ones(2)) is torch.Tensor
    assert not env.enabled
    assert env(lambda: env.enabled)()
    torchax.enable_globally()
    torchax.enable_globally()
    with torchax.disable_temporarily():
        assert not env.enabled
    assert env.enabled
    torchax.disable_globally()
    torchax.disable_globally()
    assert not env.enabled


def test_environment_conversions_and_keys():
    env = torchax.default_env()
    tree = {"a": torch.ones(2), "b": [torch.zeros(1, device="jax"), 3]}
    moved = env.to_xla(tree)
    assert moved["a"].device.type == "jax"
    assert moved["b"][1] == 3
    arrays = env.t2j_iso(moved)
    assert isinstance(arrays["a"], jax.Array)
    assert env.j2t_iso(arrays)["a"].jax() is arrays["a"]
    assert type(env.j2t_copy(arrays)["a"]) is torch.Tensor
    assert isinstance(env.t2j_copy(tree)["a"], jax.Array)
    with pytest.raises(TypeError, match="t2j_copy"):
        env.t2j_iso(tree)
    env.manual_seed(3)
    a = env.get_and_rotate_prng_key()
    assert not jnp.array_equal(jax.random.key_data(a), jax.random.key_data(env.get_and_rotate_prng_key()))
    env.manual_seed(3)
    assert jnp.array_equal(jax.random.key_data(a), jax.random.key_data(env.prng_key))


def test_override_property():
    env = torchax.default_env()
    draws = []
    for _ in range(2):
        with env.override_property(prng=jax.random.key(7)):
            draws.append(torch.rand(2, device="jax").tolist())
    assert draws[0] == draws[1] != torch.rand(2, device="jax").tolist()
    with env.override_property(mesh="m", autocast_dtype=torch.bfloat16):
        assert env.param.mesh == "m"
        assert (torch.ones(2, 2, device="jax") @ torch.ones(2, 2, device="jax")).dtype == torch.bfloat16
    assert env.param.mesh is None
    with pytest.raises(TypeError, match="override_property"), env.override_property(seed=1):
        pass


def test_small_modules():
    from torchax.util import merge, partition
    from torchax.view import View

    assert not isinstance(torch.ones(2, device="jax")[0], View)
    a, b = partition([1, "x", 2], lambda v: isinstance(v, int))
    assert merge(a, b) == [1, "x", 2]

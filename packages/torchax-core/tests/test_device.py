"""The device itself: factories, dtypes, random state, interchange, printing, ``torch.jax``, and what importing leaves alone."""

import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torchax
from torchax.ops import mappings

FACTORIES = [
    lambda **k: torch.zeros(2, 3, **k),
    lambda **k: torch.ones(2, dtype=torch.int16, **k),
    lambda **k: torch.full((2,), 3, **k),
    lambda **k: torch.full((2,), 3.5, **k),
    lambda **k: torch.full((), True, **k),
    lambda **k: torch.arange(5, **k),
    lambda **k: torch.arange(1, 2, 0.25, **k),
    lambda **k: torch.linspace(3, 10, 5, **k),
    lambda **k: torch.logspace(0, 1, 5, **k),
    lambda **k: torch.eye(3, 2, **k),
    lambda **k: torch.tril_indices(3, 3, **k),
    lambda **k: torch.triu_indices(3, 4, 1, **k),
    lambda **k: torch.hann_window(4, **k),
    lambda **k: torch.tensor([[1, 2], [3, 4]], **k),
    lambda **k: torch.tensor(2.5, dtype=torch.bfloat16, **k),
    lambda **k: torch.as_tensor(np.arange(3.0), **k),
    lambda **k: torch.zeros(0, 3, **k),
    lambda **k: torch.scalar_tensor(4, **k),
    lambda **k: torch.complex(torch.ones(2, **k), torch.zeros(2, **k)),
    lambda **k: torch.empty_strided((2, 3), (1, 2), **k).fill_(1),
    lambda **k: torch.empty(2, 3, 4, 5, memory_format=torch.channels_last, **k).fill_(2),
    lambda **k: torch.zeros_like(torch.ones(2, 3, **k).t()),
    lambda **k: torch.ones(2, **k).new_full((3,), 7),
    lambda **k: torch.meshgrid(torch.arange(2, **k), torch.arange(3, **k), indexing="ij")[1],
]


@pytest.mark.parametrize("make", FACTORIES)
def test_factories_match_cpu(make):
    got, want = make(device="jax"), make(device="cpu")
    assert got.device == torch.device("jax:0")
    torch.testing.assert_close(got.cpu(), want)
    assert got.stride() == want.stride()
    assert type(make()) is torch.Tensor


RANDOM = [
    lambda **k: torch.rand(3, **k),
    lambda **k: torch.randn(2, 2, **k),
    lambda **k: torch.randint(0, 1000, (3,), **k),
    lambda **k: torch.randperm(10, **k),
    lambda **k: torch.empty(3, device=k["device"]).normal_(2, 3, generator=k.get("generator")),
    lambda **k: torch.empty(3, device=k["device"]).exponential_(generator=k.get("generator")),
    lambda **k: torch.bernoulli(torch.full((20,), 0.5, device=k["device"]), generator=k.get("generator")),
    lambda **k: torch.multinomial(torch.ones(20, device=k["device"]), 3, generator=k.get("generator")),
]


@pytest.mark.parametrize("draw", RANDOM)
def test_random_state(draw):
    torch.manual_seed(5)
    a, b = draw(device="jax").cpu(), draw(device="jax").cpu()
    assert not torch.equal(a, b)
    torch.manual_seed(5)
    assert torch.equal(draw(device="jax").cpu(), a)
    state = torch.jax.get_rng_state()
    c = draw(device="jax").cpu()
    torch.jax.set_rng_state(state)
    assert torch.equal(draw(device="jax").cpu(), c)
    g = torch.Generator().manual_seed(0)
    d, e = draw(device="jax", generator=g).cpu(), draw(device="jax", generator=g).cpu()
    assert not torch.equal(d, e)
    assert torch.equal(draw(device="jax", generator=g.manual_seed(0)).cpu(), d)
    assert draw(device="jax").dtype == draw(device="cpu").dtype


def test_seeds():
    torch.jax.manual_seed(11)
    assert torch.jax.initial_seed() == 11
    a = torch.rand(2, device="jax")
    with torch.random.fork_rng(range(torch.jax.device_count()), device_type="jax"):
        torch.rand(2, device="jax")
    b = torch.rand(2, device="jax")
    torch.manual_seed(11)
    assert torch.jax.initial_seed() == 11
    torch.testing.assert_close([torch.rand(2, device="jax"), torch.rand(2, device="jax")], [a, b])
    with pytest.raises(TypeError, match="ByteTensor"):
        torch.jax.set_rng_state(torch.zeros(4))


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
    torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_crosses_by_its_bits(dtype):
    values = torch.tensor([0, 1, 3, 7, 0, 1]).to(dtype).reshape(2, 3)
    moved = values.to("jax")
    assert moved.dtype == dtype
    assert moved.jax().dtype == mappings.t2j_dtype(dtype)
    assert mappings.j2t_dtype(moved.jax().dtype) == dtype
    back = moved.cpu()
    assert back.dtype == dtype
    size = torch.empty(0, dtype=dtype).element_size()
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}[size]
    assert torch.equal(back.view(bits), values.view(bits))
    assert torch.equal(values.t().to("jax").cpu().contiguous().view(bits), values.t().contiguous().view(bits))
    for dlpack in (True, False):
        array = mappings.t2j(values, use_dlpack=dlpack)
        assert array.dtype == mappings.t2j_dtype(dtype)
        assert torch.equal(mappings.j2t(array, use_dlpack=dlpack).view(bits), values.view(bits))


def test_dtypes_without_a_twin_say_so():
    with pytest.raises(TypeError, match="complex32"):
        torch.zeros(2, dtype=torch.complex32, device="jax")
    with pytest.raises(TypeError, match="no PyTorch twin"):
        torchax.Tensor(jnp.ones(2, jnp.int4))
    with pytest.raises(NotImplementedError, match="to_dense"):
        torch.eye(2).to_sparse().to("jax")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch deprecates such tensors
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    with pytest.raises((TypeError, NotImplementedError), match="quant"):
        quantized.to("jax")


def test_sixty_four_bits_without_the_flag():
    assert not jax.config.jax_enable_x64
    x = torch.tensor([2**40], device="jax")
    assert (x + 1).item() == 2**40 + 1
    assert (x * 1.0).dtype == torch.float32
    assert torch.ones(2, dtype=torch.float64, device="jax").sin().jax().dtype == np.float64
    assert (torch.ones(2, device="jax") * 2.5).jax().dtype == np.float32
    assert torch.arange(3, device="jax").sum().dtype == torch.int64
    assert torch.ones(2, dtype=torch.int32, device="jax").sum().dtype == torch.int64
    torch.set_default_dtype(torch.float64)
    try:
        assert (torch.arange(3, device="jax") / 2).dtype == torch.float64
        assert torch.zeros(1, device="jax").dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_foreign_trace_without_the_flag_narrows_integers_and_refuses_float64():
    # ARCHITECTURE: 64-bit integers follow JAX, a float64 result that would be cut is an error.
    x = torch.arange(3, device="jax")
    out = jax.jit(lambda v: v * 2 + torch.arange(3, device="jax"))(x)
    assert out.dtype == torch.int32
    assert out.tolist() == [0, 3, 6]
    assert jax.jit(lambda v: v.sum())(x).item() == 3
    with pytest.raises(RuntimeError, match="jax_jit"):
        jax.jit(lambda v: v.double() + 1)(x)
    big = torch.tensor([2**40], device="jax")
    with pytest.raises(OverflowError, match="x64"):
        jax.jit(lambda v: v + big)(x)
    with jax.enable_x64(True):
        assert jax.jit(lambda v: v.double() / 3)(x).dtype == torch.float64


def test_performance_mode_stores_32_bits_and_answers_64():
    torchax.enable_performance_mode()
    try:
        x = torch.arange(4, device="jax")
        y = torch.tensor([1.5, 2.5], dtype=torch.float64).to("jax")
        for t, stored in (
            (x, np.int32),
            (x.sum(), np.int32),
            (y, np.float32),
            (y * 2, np.float32),
            (x[1:] + 1, np.int32),
        ):
            assert t.jax().dtype == stored
        assert x.sum().dtype == torch.int64
        assert (y * 2).dtype == torch.float64
        assert x[1:].tolist() == [1, 2, 3]
        x[0] = 9
        x.add_(1)
        assert x.cpu().dtype == torch.int64
        assert x.cpu().tolist() == [10, 2, 3, 4]
        assert torch.argmax(y).dtype == torch.int64
        assert torch.nn.functional.cross_entropy(torch.zeros(4, 3, device="jax"), x % 3).item() == pytest.approx(
            np.log(3)
        )
    finally:
        torchax.enable_accuracy_mode()
        jax.config.update("jax_default_matmul_precision", None)


def test_numpy_and_dlpack():
    x = torch.arange(6.0).reshape(2, 3).to("jax")
    values = x.numpy()
    assert not values.flags.writeable
    np.testing.assert_array_equal(values, np.asarray(x.jax()))
    assert values.__array_interface__["data"][0] == x.jax().unsafe_buffer_pointer()  # no copy
    np.testing.assert_array_equal(np.asarray(x[:, 1:]), [[1, 2], [4, 5]])
    assert np.asarray(x, dtype=np.int64).dtype == np.int64
    with pytest.raises(RuntimeError, match="requires grad"):
        x.clone().requires_grad_().numpy()
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]

    shared = torch.from_dlpack(x)  # out: CPU, without a copy
    assert type(shared) is torch.Tensor
    assert shared.data_ptr() == x.jax().unsafe_buffer_pointer()
    assert jnp.from_dlpack(x).unsafe_buffer_pointer() == x.jax().unsafe_buffer_pointer()
    aligned = torch.empty(64)
    array = mappings.t2j(aligned)  # in, without a copy where the memory is aligned
    assert (array.unsafe_buffer_pointer() == aligned.data_ptr()) == (aligned.data_ptr() % 64 == 0)
    back = mappings.j2t(x.jax())
    assert back.data_ptr() == x.jax().unsafe_buffer_pointer()
    strided = torch.arange(6.0).reshape(2, 3).t()
    np.testing.assert_array_equal(np.asarray(mappings.t2j(strided)), strided.numpy())


def test_moves_copy():
    cpu = torch.zeros(64)
    dev = cpu.to("jax")
    cpu.add_(1)
    assert dev.sum().item() == 0
    out = dev.cpu()
    out.add_(1)
    assert dev.sum().item() == 0
    assert dev.to("jax") is dev
    assert cpu.jax().device.type == "jax"  # PyTorch's method of the device's name: it moves
    assert isinstance(dev.jax(), jax.Array)
    target = torch.empty(64)
    target.copy_(dev + 2)
    assert target.sum().item() == 128
    dev.copy_(target)
    assert dev.sum().item() == 128
    assert dev.to("meta").device.type == "meta"
    with pytest.raises(NotImplementedError, match="no data"):
        torch.ones(2, device="meta").to("jax")


def test_the_jax_side_of_a_tensor():
    x = torch.arange(4.0).to("jax")
    assert x.jax_device == jax.devices()[0]
    assert x.apply_jax(jnp.cumsum).tolist() == [0, 1, 3, 6]
    x[1:].apply_jax_(lambda a: a * 10)
    assert x.tolist() == [0, 10, 20, 30]
    with pytest.raises(ValueError, match="apply_jax_"):
        x.apply_jax_(lambda a: a[:1])
    x.shard_(jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    assert type(x.torch()) is torch.Tensor
    assert float(jnp.sum(jnp.asarray(x))) == 60
    assert torchax.Tensor(jnp.ones(2), requires_grad=True).requires_grad


@pytest.mark.parametrize(
    "t",
    [
        torch.arange(6.0).reshape(2, 3), torch.tensor(3), torch.zeros(0, 2), torch.ones(2, dtype=torch.float64),
        torch.tensor([True]), torch.tensor([1 + 2j]), torch.arange(2000.0), torch.tensor([1e10, 1e-5, float("nan")]),
        torch.ones(2, dtype=torch.bfloat16),
    ],
    ids=str,
)  # fmt: skip
def test_repr_is_pytorchs_with_the_device(t):
    def without(text):
        return "".join(text.replace(", device='jax:0'", "").split())

    assert without(repr(t.to("jax"))) == without(repr(t))
    if t.is_floating_point():
        assert "requires_grad=True" in repr(t.to("jax").requires_grad_())
        assert repr(torch.nn.Parameter(t).to("jax").detach() * 1).startswith("tensor(")
    assert str(t.to("jax").shape) == str(t.shape)
    if t.numel() == 1 and not t.is_complex():
        assert f"{t.to('jax').reshape(()):}" == f"{t.reshape(()):}"


def test_the_device_module():
    assert torch.jax.is_available()
    assert torch.jax.device_count() == len(jax.local_devices())
    assert torch.accelerator.current_accelerator() == torch.device("jax")
    held = torch.ones(2, device="jax") * 2
    torch.jax.synchronize()
    assert torch.jax.memory_allocated() >= held.nbytes
    assert torch.jax.max_memory_allocated() > 0
    assert isinstance(torch.jax.memory_stats(), dict)
    torch.jax.empty_cache()
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.zeros(1, device="jax:63")
    with pytest.raises((RuntimeError, ValueError)):
        torch.jax.set_device("cpu")


@pytest.mark.parametrize(
    "synchronize", [lambda: torch.jax.synchronize(), lambda: torch.accelerator.synchronize("jax:0")]
)
def test_synchronize_waits_for_what_is_pending(synchronize):
    x = torch.rand(1500, 1500, device="jax")
    results = [x @ x, (x @ x).t()[0] + 1]
    synchronize()
    assert all(r.jax().is_ready() for r in results)


def test_the_accelerator_answers_as_the_device_module_does():
    assert torch.accelerator.device_count() == torch.jax.device_count()
    held = torch.ones(2, device="jax") * 2
    assert torch.accelerator.memory_allocated() >= held.nbytes
    assert torch.accelerator.max_memory_allocated("jax:0") >= held.nbytes
    assert isinstance(torch.accelerator.memory_stats(0), dict)
    torch.accelerator.empty_cache()
    with torch.accelerator.device_index(0):
        torch.accelerator.set_device_index("jax:0")
        assert torch.accelerator.current_device_index() == 0
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.accelerator.set_device_index(63)


def test_importing_leaves_the_rest_alone():
    # Also that torchax may come before torch.
    code = """
import torchax, torch, jax, logging, numpy as np
assert not jax.config.jax_enable_x64 and torch.get_default_dtype() is torch.float32
assert torch.zeros(1).device.type == "cpu" and torch.is_grad_enabled()
assert jax.numpy.ones(2).dtype == np.float32 and (jax.numpy.arange(3) + 1).dtype == np.int32
assert torch.autograd.is_multithreading_enabled()
assert not torch.__future__.get_swap_module_params_on_conversion()
assert logging.getLogger().level == logging.WARNING and not logging.getLogger("torchax").handlers
assert torchax.tensor.logger.name == "torchax.tensor"
x = torch.ones(3, requires_grad=True)
(x * 2).sum().backward()
assert x.grad.tolist() == [2.0] * 3
m = torch.nn.Linear(2, 2); w = m.weight; m.double(); assert m.weight is w
import pickle, copy
assert torch.equal(pickle.loads(pickle.dumps(x.detach())), x.detach()) and torch.equal(copy.deepcopy(x), x)
for name in ("save_checkpoint", "compile"):
    try:
        getattr(torchax, name)
    except AttributeError as e:
        assert "pip install torchax-" in str(e) or "has no attribute" in str(e), e
"""
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True, timeout=120)


def test_compile_with_inductor_still_works():
    assert torch.compile(lambda: torch.zeros(2) + 1)().tolist() == [1.0, 1.0]

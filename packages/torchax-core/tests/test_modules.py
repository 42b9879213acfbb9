"""``nn.Module`` on the device: moving, ties, dtypes, state dicts, copies, data loaders."""

import copy
import io
import itertools
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torchax.tensor import Tensor


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.norm = nn.BatchNorm1d(3)
        self.head.weight = self.emb.weight

    def forward(self, i):
        return self.head(self.norm(self.emb(i)))


def test_moving_there_and_back_keeps_ties_identity_optimizer_and_grads():
    # PITFALLS 8
    m = Tied()
    weight = m.emb.weight
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    m(torch.tensor([1, 2])).sum().backward()
    grad = weight.grad.clone()
    for device in ("jax", "cpu", "jax"):
        assert m.to(device) is m
        assert m.emb.weight is weight is m.head.weight is opt.param_groups[0]["params"][0]
        assert weight.device.type == device
        assert isinstance(weight, Tensor) == (device == "jax")
        assert isinstance(weight, nn.Parameter)
        torch.testing.assert_close(weight.grad.cpu(), grad)
        assert m.norm.running_mean.device.type == device
    before = weight.detach().cpu().clone()
    m.zero_grad()
    m(torch.tensor([1, 2], device="jax")).square().sum().backward()  # BatchNorm leaves a plain sum no gradient
    opt.step()
    assert not torch.equal(weight.detach().cpu(), before)


def test_module_jax_method_and_dtypes():
    m = nn.Linear(2, 2).jax()
    assert m.weight.device.type == "jax"
    m.half()
    assert m.weight.dtype == torch.float16
    assert m(torch.ones(1, 2, dtype=torch.float16, device="jax")).dtype == torch.float16
    m.to(torch.float64)
    assert m.weight.jax().dtype == "float64"
    m.to("jax", torch.bfloat16)
    assert m.bias.dtype == torch.bfloat16


def test_lstm_moves_with_its_flat_weights():
    m = nn.LSTM(3, 4)
    x = torch.randn(5, 2, 3)
    want = m(x)[0]
    m.to("jax")
    assert all(w.device.type == "jax" for w in m._flat_weights)
    torch.testing.assert_close(m(x.to("jax"))[0].detach().cpu(), want.detach())


@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict(assign):
    source, target = Tied(), Tied().to("jax")
    state = {k: v.to("jax") for k, v in source.state_dict().items()} if assign else source.state_dict()
    assert not any(target.load_state_dict(state, assign=assign))
    for (k, a), b in zip(source.state_dict().items(), target.state_dict().values(), strict=True):
        assert b.device.type == "jax"
        torch.testing.assert_close(b.cpu(), a, msg=k)


def test_load_state_dict_names_what_does_not_fit():
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        nn.Linear(2, 2).to("jax").load_state_dict(nn.Linear(3, 2).state_dict())


def test_deepcopy_keeps_aliases_and_attributes():
    m = Tied().to("jax")
    m.emb.weight.note = "kept"
    c = copy.deepcopy(m)
    assert c.head.weight is c.emb.weight is not m.emb.weight
    assert isinstance(c.emb.weight, nn.Parameter)
    assert c.emb.weight.note == "kept"
    with torch.no_grad():
        c.emb.weight.add_(1)
    assert not torch.equal(c.emb.weight.cpu(), m.emb.weight.cpu())
    x = torch.arange(6.0, device="jax")
    a, b = copy.deepcopy((x, x.view(2, 3)))
    a[0] = 9
    assert b[0, 0].item() == 9
    assert x[0].item() == 0
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(m.emb.weight * 2)


@pytest.mark.parametrize("through", ["pickle", "save"])
def test_pickles_keep_class_aliases_and_values(through):
    # PITFALLS 7
    x = torch.arange(6.0).to("jax")
    p = nn.Parameter(torch.ones(2, dtype=torch.bfloat16, device="jax"))
    tree = {"x": x, "view": x.view(2, 3).t(), "p": p, "grad": torch.ones(1, device="jax", requires_grad=True)}
    if through == "pickle":
        back = pickle.loads(pickle.dumps(tree))
    else:
        buffer = io.BytesIO()
        torch.save(tree, buffer)
        buffer.seek(0)
        back = torch.load(buffer, weights_only=True)
    assert {k: v.device.type for k, v in back.items()} == dict.fromkeys(tree, "jax")
    assert isinstance(back["p"], nn.Parameter)
    assert back["p"].dtype == torch.bfloat16
    assert back["grad"].requires_grad
    assert back["view"].stride() == (1, 3)
    back["x"][1] = 7
    assert back["view"][1, 0].item() == 7
    assert x[1].item() == 1


def test_a_saved_model_opens_on_cpu_without_our_classes():
    m = Tied().to("jax")
    buffer = io.BytesIO()
    torch.save(m.state_dict(), buffer)
    assert b"torchax" not in buffer.getvalue()
    buffer.seek(0)
    back = torch.load(buffer, map_location="cpu", weights_only=True)
    assert all(type(v) is torch.Tensor for v in back.values())
    assert back["emb.weight"].data_ptr() == back["head.weight"].data_ptr()


@pytest.mark.parametrize("weights_only", [True, False])
def test_load_onto_the_device(weights_only):
    # PITFALLS 9
    base = torch.arange(6.0)
    buffer = io.BytesIO()
    torch.save(
        {"a": base, "b": base.view(2, 3).t(), "c": base[2:4], "s": torch.tensor(3), "e": torch.empty(0, 2)}, buffer
    )
    buffer.seek(0)
    back = torch.load(buffer, map_location="jax", weights_only=weights_only)
    assert {v.device.type for v in back.values()} == {"jax"}
    back["a"][2] = 50
    assert back["b"].cpu().tolist() == [[0.0, 3.0], [1.0, 4.0], [50.0, 5.0]]
    assert back["c"].tolist() == [50.0, 3.0]
    assert back["s"].item() == 3
    assert back["e"].shape == (0, 2)


def test_a_bare_storage_on_the_device_is_an_error():
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.UntypedStorage(8, device="jax")
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ones(2).untyped_storage().to(device="jax")
    with torch.jax.device(0):
        assert torch.jax.current_device() == 0


def test_memory_identity():
    # PITFALLS 7
    x = torch.zeros(2, 3, device="jax")
    assert x.data_ptr() != 0
    assert x.data_ptr() == x.view(6).data_ptr() == x.t().data_ptr()
    assert x[1].data_ptr() == x.data_ptr() + 12
    assert x.clone().data_ptr() != x.data_ptr()
    assert x[1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert x.untyped_storage().nbytes() == 24
    ends = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in [torch.empty(n, device="jax") for n in (1, 100, 7)])
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))


def test_weakrefs_to_parameters_do_not_stop_a_move_of_ours():
    m = nn.Linear(2, 2).to("jax")
    torch.save(m.state_dict(), io.BytesIO())  # what pickling remembers must not hold parameters weakly
    m(torch.ones(1, 2, device="jax")).sum().backward()
    m.zero_grad()
    m.cpu()
    assert m.weight.device.type == "cpu"


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader_pins_and_forks(workers):
    # PITFALLS 11 and 12
    torch.ones(1, device="jax").cpu()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        loader = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=3, num_workers=workers, pin_memory=True)
        assert [b.to("jax").sum().item() for (b,) in loader] == [3.0, 12.0]


class _OnDevice(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, i):
        return torch.ones(2, device="jax").sum().item()


def test_jax_in_a_forked_worker_is_an_error_that_says_what_to_do():
    torch.ones(1, device="jax").cpu()
    loader = DataLoader(_OnDevice(), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="spawn"):
        next(iter(loader))


def test_parametrizations_and_swaps():
    lin = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    x = torch.randn(4, 3)
    want = lin(x)
    torch.testing.assert_close(lin.to("jax")(x.to("jax")).detach().cpu(), want.detach())
    emb = nn.Linear(3, 3).to("jax")
    nn.init.orthogonal_(emb.weight)
    torch.testing.assert_close((emb.weight @ emb.weight.T).detach().cpu(), torch.eye(3), atol=1e-5, rtol=1e-5)
    nn.init.kaiming_uniform_(emb.weight)
    nn.init.trunc_normal_(emb.weight)
    assert emb.weight.abs().max().item() <= 2


def test_meta_modules_materialize_on_the_device():
    with torch.device("meta"):
        m = nn.Linear(3, 2)
    m.to_empty(device="jax")
    m.reset_parameters()
    assert m.weight.device.type == "jax"
    assert m(torch.ones(1, 3, device="jax")).isfinite().all()


def test_default_device():
    with torch.device("jax"):
        m = nn.Linear(3, 2)
        assert torch.tensor([1.0]).device.type == "jax"
    assert m.weight.device.type == "jax"
    torch.set_default_device("jax")
    try:
        assert torch.zeros(2).device.type == "jax"
        assert torch.tensor([[1, 2]]).sum().item() == 3
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device.type == "cpu"


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t[1:], lambda t: t.t()])
def test_values_loaded_onto_the_device_are_those_saved(view):
    buffer = io.BytesIO()
    saved = view(torch.arange(6).reshape(2, 3))
    torch.save({"x": saved}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, map_location="jax", weights_only=True)["x"]
    assert loaded.device.type == "jax"
    assert loaded.stride() == saved.stride()
    assert loaded.cpu().tolist() == saved.tolist()

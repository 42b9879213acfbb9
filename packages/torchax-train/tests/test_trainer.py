"""The trainer against PyTorch's own loop; what it does about restarts, NaN and wrong input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import torchax
from torchax.checkpoint import CheckpointError
from torchax.train import NotFinite, NoTwin, Trainer, process_part, to_optax
from torchax.train.sharding import Plan, ShardingError, make_mesh


def _model(dropout=0.0, norm=False):
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(8, 16), *middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 4))


def _loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def _dataset(n=64):
    g = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(n, 8, generator=g), torch.randint(0, 4, (n,), generator=g))


def _loader(batch=16, **options):
    return DataLoader(_dataset(), batch_size=batch, **options)


def _torch_loop(model, optimizer, batches, clip=None):
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _losses(history):
    return [m["loss"] for m in history]


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_all": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95)),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "maximize": lambda p: torch.optim.Adam(p, lr=0.01, maximize=True, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, weight_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_pytorch_take_the_same_steps(name):
    make, batches = OPTIMIZERS[name], list(_loader()) * 2
    norm = name.startswith("sgd")  # a bias before a norm has no gradient but rounding, which the others scale up
    reference, model = _model(norm=norm), _model(norm=norm)
    expected = _torch_loop(reference, make(reference.parameters()), batches)
    history = Trainer(model, make(model.parameters()), _loss, progress=False).fit(batches, len(batches))
    assert _losses(history) == pytest.approx(expected, rel=1e-4)
    for (n, a), (_, b) in zip(model.state_dict().items(), reference.state_dict().items()):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-5, msg=n)


def test_groups_and_parameters_left_out():
    def optimizer(model):
        return torch.optim.SGD([{"params": model[0].parameters()}, {"params": [model[-1].bias], "lr": 0.5}], lr=0.1)

    reference, model, batches = _model(), _model(), list(_loader())
    expected = _torch_loop(reference, optimizer(reference), batches)
    history = Trainer(model, optimizer(model), _loss, progress=False).fit(batches, 4)
    assert _losses(history) == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(model[-1].weight.cpu(), _model()[-1].weight)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.optim.SGD(p, momentum=0.9, dampening=0.1), "optax.trace does not dampen"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "amsgrad: optax takes the maximum after"),
        (lambda p: torch.optim.RMSprop(p, centered=True), "eps inside the root"),
        (lambda p: torch.optim.Adagrad(p), "Adagrad: optax.adagrad adds eps"),
        (lambda p: torch.optim.LBFGS(p), "several times a step"),
        (lambda p: torch.optim.Adadelta(p), "no twin that is known"),
        (lambda p: torch.optim.SGD(_model().parameters()), "not in the model"),
    ],
)
def test_optimizers_without_a_twin_are_refused(make, message):
    model = _model()
    with pytest.raises(NoTwin, match=message):
        to_optax(make(model.parameters()), model)


def test_an_optimizer_that_has_taken_steps_is_refused():
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    _torch_loop(model, optimizer, list(_loader())[:1])
    with pytest.raises(NoTwin, match="has taken steps"):
        Trainer(model, optimizer, _loss)


@pytest.mark.parametrize("mesh", [None, {"fsdp": 8}], ids=["one", "fsdp"])
def test_microbatches_add_up_and_gradients_are_clipped(mesh):
    batches = list(_loader(batch=64))
    reference = _model()
    expected = _torch_loop(reference, torch.optim.SGD(reference.parameters(), lr=1.0), batches * 3, clip=0.05)
    where = {} if mesh is None else {"mesh": make_mesh(mesh), "plan": Plan(fsdp="fsdp")}
    trainer = Trainer(_model(), optax.sgd(1.0), _loss, accumulate=4, clip=0.05, progress=False, **where)
    history = trainer.fit(batches, 3)
    assert _losses(history) == pytest.approx(expected, rel=1e-4)
    assert all(m["grad_norm"] > 0.05 for m in history)


def test_bfloat16_computes_so_and_keeps_weights_in_float32():
    seen = set()

    def loss(model, batch):
        out = model(batch[0])
        seen.add((out.dtype, batch[0].dtype, batch[1].dtype.is_floating_point))
        return F.cross_entropy(out, batch[1])

    whole = Trainer(_model(), optax.adam(0.01), _loss, progress=False).fit(_loader(), 8)
    trainer = Trainer(_model(), optax.adam(0.01), loss, dtype=torch.bfloat16, progress=False)
    history = trainer.fit(_loader(), 8)
    assert seen == {(torch.bfloat16, torch.bfloat16, False)}
    assert {x.dtype.name for x in jax.tree.leaves((trainer.state["weights"], trainer.state["opt"])) if x.ndim} == {
        "float32"
    }
    assert _losses(history) == pytest.approx(_losses(whole), rel=0.02)
    assert _losses(history) != _losses(whole)


def test_remat_changes_nothing_but_the_program():
    whole = Trainer(_model(0.5), optax.adam(0.01), _loss, progress=False).fit(_loader(), 4)
    again = Trainer(_model(0.5), optax.adam(0.01), _loss, remat="nothing_saveable", progress=False).fit(_loader(), 4)
    assert _losses(again) == pytest.approx(_losses(whole), rel=1e-6)
    with pytest.raises(ValueError, match=r"everything_saveable.*got 'some'"):
        Trainer(_model(), optax.sgd(0.1), _loss, remat="some")


def test_the_average_of_the_weights_and_evaluation():
    trainer = Trainer(_model(0.5, norm=True), optax.sgd(0.1), _loss, ema=0.5, progress=False)
    averages = {n: x.detach().clone().cpu() for n, x in trainer.model.named_parameters()}

    def follow(trainer, metrics):
        for n, p in trainer.update_model().named_parameters():
            averages[n] = 0.5 * averages[n] + 0.5 * p.detach().cpu()

    trainer.callbacks.append(follow)
    history = trainer.fit(_loader(), 6, evaluate=_loader(), evaluate_every=3)
    assert [("eval_loss" in m) for m in history] == [False, False, True] * 2
    trainer.update_model(ema=True)
    for n, p in trainer.model.named_parameters():
        torch.testing.assert_close(p.detach().cpu(), averages[n])
    model = trainer.model.cpu().eval()
    expected = np.mean([_loss(model, b).item() for b in _loader()])
    assert history[-1]["eval_loss"] == pytest.approx(expected, rel=1e-4)


# --- restart -----------------------------------------------------------------------------------------------------------


def _trainer(folder, sharded, **options):
    where = {"mesh": make_mesh({"fsdp": 4, "tensor": 2}), "plan": {"0.weight": ("fsdp",), "4.weight": (None, "tensor")}}
    model = _model(dropout=0.5, norm=True)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.05, 3, 12)
    options = {"accumulate": 2, "ema": 0.9, "clip": 1.0, "seed": 5, "save_every": 2, "progress": False} | options
    return Trainer(model, optax.adamw(schedule), _loss, folder=folder, **(where if sharded else {}), **options)


def _stop_after(step):
    return lambda trainer, metrics: metrics["step"] == step


@pytest.mark.parametrize("sharded", [False, True], ids=["one", "mesh"])
def test_a_restarted_run_goes_on_bit_for_bit(tmp_path, sharded):
    """Dropout, batch norm, shuffling (also by a sampler with a generator of its own), schedule, EMA, microbatches."""

    def data():
        sampler = WeightedRandomSampler(torch.ones(64), 64, generator=torch.Generator())
        return _loader(sampler=sampler)

    whole = _trainer(tmp_path / "a", sharded)
    expected = whole.fit(data(), 11)
    parts = []
    for stop in (3, 6, 11):
        trainer = _trainer(tmp_path / "b", sharded, callbacks=[_stop_after(stop)])
        torch.manual_seed(stop)  # nothing of the process counts
        parts += trainer.fit(data(), 11)
    assert _losses(parts) == _losses(expected)
    assert [m["grad_norm"] for m in parts] == [m["grad_norm"] for m in expected]
    assert len(set(_losses(parts))) == 11
    for a, b in zip(jax.tree.leaves(trainer.state), jax.tree.leaves(whole.state)):
        np.testing.assert_array_equal(a, b)
    lines = [json.loads(line) for line in (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()]
    assert [m["loss"] for m in lines] == _losses(expected)
    assert (tmp_path / "b" / "loss.png").stat().st_size > 5000


KILLED = """
import os, sys
sys.path.insert(0, os.path.dirname({tests!r}))
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import test_trainer as t
def say(trainer, metrics):
    print(metrics["step"], metrics["loss"].hex(), flush=True)
t._trainer(sys.argv[1], True, callbacks=[say]).fit(t._loader(shuffle=True), 40)
"""


def _run_steps(folder, until=None):
    command = [sys.executable, "-c", KILLED.format(tests=__file__), str(folder)]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.split())
            if until is not None and int(lines[-1][0]) >= until:
                process.send_signal(signal.SIGKILL)
                break
    return {int(step): loss for step, loss in lines}


def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    whole = _run_steps(tmp_path / "a")
    assert sorted(whole) == list(range(1, 41))
    first = _run_steps(tmp_path / "b", until=17)
    second = _run_steps(tmp_path / "b")
    assert max(first) >= 17
    assert min(second) <= max(first) + 1
    assert max(second) == 40
    assert {**first, **second} == whole


def test_a_changed_model_is_refused_on_resume(tmp_path):
    _trainer(tmp_path, False).fit(_loader(), 2)
    other = Trainer(nn.Linear(8, 4), optax.sgd(0.1), _loss, folder=tmp_path, progress=False)
    with pytest.raises(CheckpointError, match="missing from it: weights:weight, weights:bias; not ask"):
        other.fit(_loader(), 4)


def test_another_mesh_on_resume(tmp_path):
    _trainer(tmp_path, False).fit(_loader(), 4)
    trainer = _trainer(tmp_path, True)
    history = trainer.fit(_loader(), 6)
    assert [m["step"] for m in history] == [5, 6]
    assert trainer.state["weights"]["0.weight"].sharding.shard_shape((16, 8)) == (4, 8)


def test_keeps_the_best(tmp_path):
    trainer = Trainer(
        _model(), optax.sgd(2.0), _loss, folder=tmp_path, save_every=1, keep=1, keep_best=1, progress=False
    )
    history = trainer.fit(_loader(), 6)
    best = min(history, key=lambda m: m["loss"])["step"]
    assert {int(n) for n in os.listdir(tmp_path / "checkpoints")} == {best, 6}


def test_nothing_is_compiled_after_the_second_step():
    trainer = Trainer(
        _model(), optax.adam(0.1), _loss, mesh=make_mesh({"fsdp": 8}), plan=Plan(fsdp="fsdp"), progress=False
    )
    sizes = []
    trainer.callbacks.append(lambda trainer, metrics: sizes.append(trainer._step._cache_size()))
    trainer.fit(_loader(), 5)
    assert sizes == [1] * 5


# --- NaN, wrong input --------------------------------------------------------------------------------------------------


def _poisoned(at):
    batches = list(_loader()) * 2
    batches[at] = (torch.full((16, 8), float("nan")), batches[at][1])
    return batches


def test_nan_stops_with_the_weights_from_before():
    trainer = Trainer(_model(), optax.sgd(0.1), _loss, progress=False)
    good = Trainer(_model(), optax.sgd(0.1), _loss, progress=False)
    with pytest.raises(NotFinite, match="step 3: loss nan"):
        trainer.fit(_poisoned(2), 8)
    good.fit(_poisoned(2), 2)
    for a, b in zip(trainer.model.state_dict().values(), good.model.state_dict().values()):
        assert torch.equal(a, b)


def test_nan_is_skipped():
    batches = _poisoned(2)
    history = Trainer(_model(), optax.adam(0.01), _loss, on_nan="skip", progress=False).fit(batches, 8)
    without = Trainer(_model(), optax.adam(0.01), _loss, progress=False).fit(batches[:2] + batches[3:], 7)
    assert np.isnan(history[2]["loss"])
    assert _losses(history[:2] + history[3:]) == _losses(without)


def test_nan_rolls_back(tmp_path):
    batches, options = _poisoned(3), {"folder": tmp_path, "save_every": 2, "progress": False}
    history = Trainer(_model(), optax.adam(0.01), _loss, on_nan="rollback", **options).fit(batches, 8)
    without = Trainer(_model(), optax.adam(0.01), _loss, progress=False).fit(batches[:2] + batches[4:], 6)
    assert _losses(history[:2] + history[4:]) == _losses(without)
    with pytest.raises(NotFinite, match="nothing to roll back to"):
        Trainer(
            _model(), optax.adam(0.01), _loss, on_nan="rollback", folder=tmp_path / "new", save_every=5, progress=False
        ).fit(batches, 8)


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (lambda: _loader(batch=20), {"mesh": True}, ShardingError, "20 samples do not divide over 8 devices"),
        (lambda: _loader(batch=16), {"accumulate": 3}, ShardingError, "does not divide into 3 microbatches"),
        (lambda: iter(_loader()), {}, ValueError, "can be iterated over only once"),
        (list, {}, ValueError, "no batches"),
        (lambda: [("text", 1)], {}, TypeError, "a batch holds a str"),
        (lambda: [(torch.zeros(4, 8), torch.full((4,), 2**40))], {}, OverflowError, "beyond int32"),
    ],
)
def test_data_that_cannot_be_trained_on(data, options, error, message):
    if options.pop("mesh", False):
        options |= {"mesh": make_mesh({"fsdp": 8}), "plan": Plan(fsdp="fsdp")}
    trainer = Trainer(_model(), optax.sgd(0.1), _loss, progress=False, **options)
    with pytest.raises(error, match=message):
        trainer.fit(data(), 100)
    assert trainer.model[0].weight.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_nan": "ignore"}, "on_nan"),
        ({"on_nan": "rollback"}, "needs folder="),
        ({"mesh": 1}, "mesh and plan go together"),
    ],
)
def test_options_that_contradict(options, message):
    with pytest.raises(ValueError, match=message):
        Trainer(_model(), optax.sgd(0.1), _loss, **options)


def test_a_loss_that_is_none():
    with pytest.raises(TypeError, match=r"scalar floating tensor, got torch.float32 of shape \(16, 4\)"):
        Trainer(_model(), optax.sgd(0.1), lambda model, b: model(b[0]), progress=False).fit(_loader(), 1)
    with pytest.raises(TypeError, match="float64, which needs JAX's x64 flag"):
        Trainer(_model().double(), optax.sgd(0.1), _loss)


def test_batches_and_outputs_in_containers_of_their_own():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = _model()

        def forward(self, x, labels):
            return {"loss": F.cross_entropy(self.model(x), labels)}

    data = [{"x": x, "labels": y} for x, y in _loader()]
    history = Trainer(Wrapped(), optax.sgd(0.1), lambda m, b: m(**b)["loss"], progress=False).fit(data, 2)
    plain = Trainer(_model(), optax.sgd(0.1), _loss, progress=False).fit(_loader(), 2)
    assert _losses(history) == _losses(plain)


def test_each_process_reads_its_part_of_any_sampler():
    class Counting(TensorDataset):
        read = ()

        def __getitem__(self, i):
            self.read += (i,)
            return super().__getitem__(i)

    def batches(index, count):
        dataset = Counting(*_dataset().tensors)
        torch.manual_seed(3)
        found = list(process_part(DataLoader(dataset, batch_size=16, shuffle=True), index, count))
        return found, dataset.read

    whole, _ = batches(0, 1)
    parts = [batches(i, 4) for i in range(4)]
    assert all(len(read) == 16 for _, read in parts)
    for i, (x, y) in enumerate(whole):
        torch.testing.assert_close(torch.cat([found[i][0] for found, _ in parts]), x)
        assert torch.equal(torch.cat([found[i][1] for found, _ in parts]), y)
    with pytest.raises(ShardingError, match="16 does not divide over 3 processes"):
        batches(0, 3)


def test_tensorboard_missing_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    trainer = Trainer(_model(), optax.sgd(0.1), _loss, folder=tmp_path, tensorboard=True, progress=False)
    with pytest.raises(ModuleNotFoundError, match=r"torchax-train\[tensorboard\]"):
        trainer.fit(_loader(), 1)


def test_the_progress_bar_shows_loss_and_speed(capsys):
    Trainer(_model(), optax.sgd(0.1), _loss).fit(_loader(), 2)
    assert "samples/s" in capsys.readouterr().out


def test_scalars_and_tensors_of_the_state_are_arrays():
    trainer = Trainer(_model(), optax.sgd(0.1), _loss, progress=False)
    assert isinstance(trainer.state["step"], jnp.ndarray)
    assert isinstance(trainer.model[0].weight, torchax.Tensor)

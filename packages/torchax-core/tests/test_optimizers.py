"""Every optimizer of ``torch.optim`` on the device, against the same steps on CPU from the same weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

import torchax  # noqa: F401

DEVICE = "jax"
STEPS = 10

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "ASGD": [{}, {"lr": 0.05, "lambd": 0.1, "t0": 3, "weight_decay": 0.1}],
    "Adadelta": [{}, {"lr": 0.5, "rho": 0.8, "weight_decay": 0.1}],
    "Adafactor": [{}, {"lr": 0.1, "weight_decay": 0.1, "d": 1.5}],
    "Adagrad": [{}, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.1}],
    "Adam": [{}, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}, {"decoupled_weight_decay": True}],
    "AdamW": [{}, {"lr": 0.01, "betas": (0.8, 0.9), "amsgrad": True}],
    "Adamax": [{}, {"lr": 0.01, "weight_decay": 0.1}],
    "LBFGS": [{"max_iter": 3}, {"lr": 0.5, "max_iter": 4, "line_search_fn": "strong_wolfe"}],
    "Muon": [{}, {"lr": 0.02, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}],
    "NAdam": [{}, {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RAdam": [{}, {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RMSprop": [{}, {"weight_decay": 0.1, "momentum": 0.9, "centered": True}],
    "Rprop": [{}, {"lr": 0.02, "etas": (0.4, 1.3)}],
    "SGD": [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    ],
}

# It wants sparse gradients, which the device does not have.
SPARSE = {"SparseAdam"}


def takes(name: str, option: str) -> bool:
    return option in inspect.signature(getattr(torch.optim, name)).parameters


def cases(option: str) -> list[Any]:
    return [
        pytest.param(name, variant, id="-".join([name, *map(str, variant)]))
        for name, variants in VARIANTS.items()
        if takes(name, option)
        for variant in variants
    ]


def make_model(device: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)


def batch(device: str, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(6, 4, generator=generator)
    return x.to(device), torch.sin(x[:, :3] * 2).to(device)


def loss_of(model: nn.Module, device: str, step: int) -> torch.Tensor:
    x, y = batch(device, step)
    return nn.functional.mse_loss(model(x), y)


def train(
    device: str,
    make: Callable[[nn.Module], torch.optim.Optimizer],
    *,
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
    before_step: Callable[[nn.Module], Any] | None = None,
    steps: int = STEPS,
) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    model = make_model(device)
    optimizer = make(model)
    scheduler = schedule(optimizer) if schedule else None
    seen = []
    for step in range(steps):

        def closure(step: int) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, device, step)
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):  # one fixed batch: on changing ones it amplifies rounding
            loss = optimizer.step(lambda: closure(0))
        else:
            loss = closure(step)
            if before_step:
                seen.append(before_step(model))
            optimizer.step()
        if scheduler:
            scheduler.step(*([loss.item()] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
        seen.append(loss.detach())
    return [*seen, *(p.detach() for p in model.parameters())], optimizer


def agree(got: Any, want: Any, **tolerance: float) -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        if isinstance(w, torch.Tensor):
            assert g.device.type == DEVICE
            torch.testing.assert_close(g.cpu(), w, **tolerance)
        else:
            assert g == pytest.approx(w)


def maker(name: str, options: dict[str, Any]) -> Callable[[nn.Module], torch.optim.Optimizer]:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        params = [p for p in model.parameters() if p.ndim == 2 or name != "Muon"]
        return getattr(torch.optim, name)(params, **options)

    return make


def test_the_table_names_every_optimizer():
    named = {n for n, c in vars(torch.optim).items() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)}
    assert named - {"Optimizer"} - SPARSE == set(VARIANTS)


@pytest.mark.parametrize(("name", "options"), cases("lr"))
def test_plain_steps_are_those_of_cpu(name, options):
    plain = {"foreach": False} if takes(name, "foreach") else {}
    got, _ = train(DEVICE, maker(name, options | plain))
    want, _ = train("cpu", maker(name, options | plain))
    agree(got, want)


@pytest.mark.parametrize(("name", "options"), cases("foreach"))
def test_foreach_steps_are_those_of_cpu(name, options):
    got, _ = train(DEVICE, maker(name, options | {"foreach": True}))
    want, _ = train("cpu", maker(name, options))
    agree(got, want)


@pytest.mark.parametrize(("name", "options"), cases("capturable"))
def test_capturable_steps_are_those_of_cpu(name, options):
    got, optimizer = train(DEVICE, maker(name, options | {"capturable": True}))
    want, _ = train("cpu", maker(name, options))
    agree(got, want, rtol=1e-4, atol=1e-4)  # bias corrections in float32, where CPU's are Python floats
    steps = [state["step"] for state in optimizer.state.values()]
    assert {s.device.type for s in steps} == {DEVICE}


@pytest.mark.parametrize(("name", "options"), cases("fused"))
def test_fused_steps_are_those_of_cpu(name, options):
    got, _ = train(DEVICE, maker(name, options | {"fused": True}))
    want, _ = train("cpu", maker(name, options | {"fused": True}))
    agree(got, want)


@pytest.mark.parametrize("name", [n for n in VARIANTS if takes(n, "maximize")])
@pytest.mark.parametrize("foreach", [False, True])
def test_maximize(name, foreach):
    options = {"maximize": True, "lr": 0.01, "foreach": foreach}
    got, _ = train(DEVICE, maker(name, options), steps=4)
    want, _ = train("cpu", maker(name, options), steps=4)
    agree(got, want)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_fused_and_maximize(name):
    options = {"maximize": True, "fused": True}
    agree(train(DEVICE, maker(name, options), steps=4)[0], train("cpu", maker(name, options), steps=4)[0])


class Names(TorchDispatchMode):
    """The names of all operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [n for n in VARIANTS if takes(n, "foreach") and n != "Adafactor"])
def test_foreach_is_the_default_on_the_device(name):
    model = make_model(DEVICE)
    optimizer = maker(name, {})(model)
    loss_of(model, DEVICE, 0).backward()
    with Names() as names:
        optimizer.step()
    assert any(n.startswith("aten::_foreach_") for n in names.seen), sorted(names.seen)


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], optimizer=o
    ),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.25, total_iters=3),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum=False),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 3], 0.5),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 10),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.5),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[3]
    ),
    "SWALR": lambda o: SWALR(o, 0.01, anneal_epochs=4),
}


def test_the_table_names_every_schedule():
    named = {
        n for n, c in vars(lr_scheduler).items() if isinstance(c, type) and issubclass(c, lr_scheduler.LRScheduler)
    }
    assert {n for n in named if n.lstrip("_") != "LRScheduler"} <= set(SCHEDULES)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_learning_rate_that_changes_each_step(name, schedule):
    options = {"lr": 0.05} | ({"momentum": 0.9} if name == "SGD" else {})
    got, optimizer = train(DEVICE, maker(name, options), schedule=schedule)
    want, on_cpu = train("cpu", maker(name, options), schedule=schedule)
    agree(got, want)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(on_cpu.param_groups[0]["lr"])


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_a_changing_learning_rate_compiles_nothing(options):
    compiled: list[str] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    model = make_model(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for step in range(6):
            if step == 3:
                jax.jit(lambda x: x + 1)(1)
                assert len(compiled) >= 1, "the listener hears nothing"
                compiled.clear()
            optimizer.zero_grad()
            loss_of(model, DEVICE, step).backward()
            optimizer.step()
            scheduler.step()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not compiled


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adam"])
@pytest.mark.parametrize("path", ["foreach", "fused"])
def test_a_learning_rate_on_the_device(name, path):
    def make(model: nn.Module) -> torch.optim.Optimizer:
        options = {path: True} | ({"capturable": True} if takes(name, "capturable") else {})
        return maker(name, options | {"lr": torch.tensor(0.05, device=DEVICE)})(model)

    got, _ = train(DEVICE, make, steps=4)
    want, _ = train("cpu", maker(name, {"lr": 0.05}), steps=4)
    agree(got, want)


@pytest.mark.parametrize("foreach", [False, True, None])
@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_clip_grad_norm(norm_type, foreach):
    def clip(model: nn.Module) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type, foreach=foreach)

    make = maker("SGD", {"lr": 0.1})
    agree(train(DEVICE, make, before_step=clip, steps=4)[0], train("cpu", make, before_step=clip, steps=4)[0])


@pytest.mark.parametrize("foreach", [False, True])
def test_clip_grad_value(foreach):
    def clip(model: nn.Module) -> int:
        nn.utils.clip_grad_value_(model.parameters(), 0.02, foreach=foreach)
        return 0

    make = maker("SGD", {"lr": 0.1})
    agree(train(DEVICE, make, before_step=clip, steps=4)[0], train("cpu", make, before_step=clip, steps=4)[0])


def test_clip_grad_norm_of_a_gradient_that_is_not_finite():
    weight = nn.Parameter(torch.ones(2, device=DEVICE))
    weight.grad = torch.tensor([1.0, float("inf")], device=DEVICE)
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


def test_parameter_groups():
    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(
            [
                {"params": model[0].parameters(), "lr": 0.1, "weight_decay": 0.0},
                {"params": [model[2].weight], "betas": (0.5, 0.6)},
            ],
            lr=0.01,
        )
        optimizer.add_param_group({"params": [model[2].bias], "lr": 0.5, "amsgrad": True})
        return optimizer

    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return lr_scheduler.LambdaLR(optimizer, [lambda s: 0.9**s, lambda s: 1.0, lambda s: 1 / (s + 1)])

    agree(train(DEVICE, make, schedule=schedule)[0], train("cpu", make, schedule=schedule)[0])


@pytest.mark.parametrize(("source", "target"), [("cpu", DEVICE), (DEVICE, "cpu"), (DEVICE, DEVICE)])
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad", "NAdam"])
def test_state_dict_crosses(name, source, target):
    options = {"lr": 0.05} | ({"momentum": 0.9} if name == "SGD" else {})

    def run(devices: tuple[str, str]) -> list[torch.Tensor]:
        model = make_model(devices[0])
        optimizer = maker(name, options)(model)
        for step in range(6):
            if step == 3:
                state, weights = optimizer.state_dict(), model.state_dict()
                model = make_model(devices[1])
                model.load_state_dict(weights)
                optimizer = maker(name, options)(model)
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            loss_of(model, devices[1] if step >= 3 else devices[0], step).backward()
            optimizer.step()
        for p in model.parameters():
            moved = [v for k, v in optimizer.state[p].items() if isinstance(v, torch.Tensor) and k != "step"]
            assert {v.device.type for v in moved} == {devices[1]}
        return [p.detach().cpu() for p in model.parameters()]

    for got, want in zip(run((source, target)), run(("cpu", "cpu")), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_grad_scaler(name, options):
    def run(device: str) -> list[Any]:
        model = make_model(device)
        optimizer = maker(name, {"lr": 0.05} | options)(model)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**8, growth_interval=2)
        scales = []
        for step in range(6):
            optimizer.zero_grad()
            loss = loss_of(model, device, step)
            scaler.scale(loss * (float("inf") if step == 3 else 1.0)).backward()
            if step == 4:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        assert scaler.state_dict()["growth_interval"] == 2
        return [*scales, *(p.detach() for p in model.parameters())]

    got, want = run(DEVICE), run("cpu")
    assert len(set(want[:6])) > 1
    agree(got, want)


def test_zero_grad_in_place():
    model = make_model(DEVICE)
    loss_of(model, DEVICE, 0).backward()
    grads = [p.grad for p in model.parameters()]
    torch.optim.SGD(model.parameters(), lr=0.1).zero_grad(set_to_none=False)
    for p, grad in zip(model.parameters(), grads, strict=True):
        assert p.grad is grad
        assert not grad.cpu().any()


def test_averaged_weights():
    def run(device: str) -> list[torch.Tensor]:
        model = make_model(device)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, device, step).backward()
            optimizer.step()
            average.update_parameters(model)
        return [p.detach() for p in average.parameters()]

    agree(run(DEVICE), run("cpu"))


def test_hooks_around_a_step_see_the_optimizer():
    model, calls = make_model(DEVICE), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda o, args, kwargs: calls.append("before"))
    optimizer.register_step_post_hook(lambda o, args, kwargs: calls.append("after"))
    loss_of(model, DEVICE, 0).backward()
    optimizer.step()
    assert calls == ["before", "after"]

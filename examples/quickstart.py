"""Train a small CNN on scanned digits: CPU torch, torchax eager, torchax compiled, from one set of initial weights.

Run ``python examples/quickstart.py``. It prints a table and writes quickstart.png, and exits with 1 where a promise is
missed: 97 % test accuracy, and an eager loss curve that follows CPU torch's to 1e-4 over the first 20 steps.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import matplotlib as mpl
import optax
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn

import torchax  # noqa: F401  (brings the device "jax")

EPOCHS, BATCH, LR, WEIGHT_DECAY = 12, 64, 2e-3, 1e-2
SEED = 0
COMPARED_STEPS, TOLERANCE, WANTED_ACCURACY = 20, 1e-4, 0.97
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Predict = Callable[[torch.Tensor], torch.Tensor]


class Net(nn.Sequential):
    """Two convolutions and a linear layer, for 8x8 pictures of ten digits."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )


@dataclass
class Data:
    """Pictures scaled to [0, 1] of shape (n, 1, 8, 8), and labels of dtype int64."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The training batches of all epochs, shuffled from a seed; the last, shorter one of an epoch is left out."""
        order = torch.Generator().manual_seed(SEED)
        for _ in range(EPOCHS):
            for index in torch.randperm(len(self.train_x), generator=order).split(BATCH):
                if len(index) == BATCH:
                    yield self.train_x[index], self.train_y[index]

    @property
    def steps(self) -> int:
        return EPOCHS * (len(self.train_x) // BATCH)


@dataclass
class Run:
    """What one training gave."""

    name: str
    losses: list[float]
    predictions: torch.Tensor
    accuracy: float
    ms_per_step: float


def load() -> Data:
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(SEED))
    test, train = order[:360], order[360:]
    return Data(x[train], y[train], x[test], y[test])


def eager(model: nn.Module) -> tuple[Step, Predict]:
    """The PyTorch training step everyone writes, and the trained model."""
    opt = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step, model


def compiled(model: nn.Module) -> tuple[Step, Predict]:
    """The same step as one XLA program: a plain ``jax.jit`` over ``torch.func.functional_call``, with optax's AdamW."""
    opt = optax.adamw(LR, weight_decay=WEIGHT_DECAY)
    params = {name: p.detach() for name, p in model.named_parameters()}
    state = opt.init(params)

    @jax.jit
    def update(params, state, x, y):
        def loss_fn(p):
            return F.cross_entropy(torch.func.functional_call(model, p, (x,)), y).jax()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, state = opt.update(grads, state, params)
        return loss, optax.apply_updates(params, updates), state

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal params, state
        loss, params, state = update(params, state, x, y)
        return loss

    return step, lambda x: torch.func.functional_call(model, params, (x,))


def train(name: str, step: Step, predict: Predict, data: Data, device: str, progress: Progress) -> Run:
    """Train for all epochs; the time of a step is the median after the first epoch, each step waited for."""
    task = progress.add_task(name, total=data.steps)
    losses, times = [], []
    for x, y in data.batches():
        x, y = x.to(device), y.to(device)
        start = time.perf_counter()
        losses.append(float(step(x, y)))
        times.append(time.perf_counter() - start)
        progress.advance(task)
    with torch.no_grad():
        predictions = predict(data.test_x.to(device)).argmax(1).cpu()
    accuracy = (predictions == data.test_y).float().mean().item()
    return Run(name, losses, predictions, accuracy, 1e3 * statistics.median(times[data.steps // EPOCHS :]))


def draw(runs: list[Run], data: Data, path: str) -> None:
    """The loss curves over each other, and a grid of test pictures with what the last run says they are."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(12, 4.6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.2, 1))
    axes = left.subplots()
    for run, (style, width) in zip(runs, (("-", 5.0), ("-", 1.8), (":", 1.8)), strict=False):
        axes.plot(run.losses, style, linewidth=width, label=run.name, alpha=0.35 if width > 2 else 1)
    axes.set(yscale="log", xlabel="step", ylabel="training loss", title="The same training, three ways")
    axes.legend()
    right.suptitle(f"{runs[-1].name}: predictions on test scans (wrong ones in red)")
    for i, cell in enumerate(right.subplots(4, 8).flat):
        guess, truth = int(runs[-1].predictions[i]), int(data.test_y[i])
        cell.imshow(data.test_x[i, 0], cmap="gray_r")
        cell.set_title(str(guess), color="black" if guess == truth else "red", fontsize=9, pad=2)
        cell.axis("off")
    figure.savefig(path, dpi=150)


def report(runs: list[Run], console: Console) -> bool:
    """Print the table and the promises; whether all are kept."""
    table = Table(title="scikit-learn's digits: 1,437 scans to train, 360 to test")
    for column in ("", "test accuracy", "ms per step", "last loss"):
        table.add_column(column, justify="left" if not column else "right")
    for run in runs:
        table.add_row(run.name, f"{run.accuracy:.2%}", f"{run.ms_per_step:.2f}", f"{run.losses[-1]:.4f}")
    console.print(table)
    reference, eager = runs[0].losses[:COMPARED_STEPS], runs[1].losses[:COMPARED_STEPS]
    apart = max(abs(a - b) / abs(b) for a, b in zip(eager, reference, strict=True))
    kept = [
        (apart <= TOLERANCE, f"eager loss follows CPU torch's over {COMPARED_STEPS} steps: {apart:.1e} apart at most"),
        *((run.accuracy >= WANTED_ACCURACY, f"{run.name}: test accuracy {run.accuracy:.2%}") for run in runs[1:]),
    ]
    for ok, text in kept:
        console.print(f"[{'green' if ok else 'red'}]{'reached' if ok else 'MISSED '}[/] {text}")
    return all(ok for ok, _ in kept)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="jax", help="where the torchax runs train (default: jax)")
    parser.add_argument("--output", default="quickstart.png", help="the picture to write (default: quickstart.png)")
    args = parser.parse_args()

    console = Console()
    data = load()
    torch.manual_seed(SEED)
    initial = Net()
    bar = (TextColumn("{task.description:18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    runs = []
    with Progress(*bar, console=console) as progress:
        for name, make, device in (
            ("torch CPU", eager, "cpu"),
            ("torchax eager", eager, args.device),
            ("torchax compiled", compiled, args.device),
        ):
            if device == "cpu" and make is compiled:
                continue  # jax.jit takes no CPU tensors
            model = copy.deepcopy(initial).to(device)
            runs.append(train(name, *make(model), data, device, progress))
    kept = report(runs, console)
    draw(runs, data, args.output)
    console.print(f"wrote {args.output}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

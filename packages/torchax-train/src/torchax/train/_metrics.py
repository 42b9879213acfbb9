"""Where metrics go: a progress bar, JSON lines, TensorBoard, and a loss curve at the end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Console:
    """A progress bar with the loss, the time of a step and samples per second."""

    def __init__(self, start: int, total: int, show: bool) -> None:
        columns = (
            TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[said]}"), TimeRemainingColumn()
        )  # fmt: skip
        self._progress = Progress(*columns, disable=not show)
        self._progress.start()
        self._task = self._progress.add_task("", total=total, completed=start, said="compiling")

    def write(self, metrics: dict[str, Any]) -> None:
        said = f"loss {metrics['loss']:.4f}  {metrics['step_time'] * 1e3:.0f} ms  {metrics['samples_per_second']:.0f} samples/s"
        if "eval_loss" in metrics:
            said += f"  eval {metrics['eval_loss']:.4f}"
        self._progress.update(self._task, completed=metrics["step"], said=said)

    def close(self) -> None:
        self._progress.stop()


class JsonLines:
    """One JSON object a step in ``metrics.jsonl``; what an earlier run wrote beyond the start is dropped."""

    def __init__(self, folder: Path, start: int) -> None:
        path = folder / "metrics.jsonl"
        kept = [line for line in _lines(path) if line["step"] <= start]
        temporary = folder / ".metrics.jsonl.tmp"
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        os.replace(temporary, path)
        self._file = path.open("a")

    def write(self, metrics: dict[str, Any]) -> None:
        self._file.write(json.dumps(metrics) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; a last one that a killed process cut off is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


class TensorBoard:
    """Scalars for TensorBoard.

    Raises:
        ModuleNotFoundError: TensorBoard is not installed; it says which extra brings it.
    """

    def __init__(self, folder: Path, start: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as e:
            raise ModuleNotFoundError(
                "tensorboard=True needs TensorBoard: pip install 'torchax-train[tensorboard]'", name=e.name
            ) from e
        self._writer: Any = SummaryWriter(str(folder), purge_step=start + 1)  # type: ignore[no-untyped-call]

    def write(self, metrics: dict[str, Any]) -> None:
        for name, value in metrics.items():
            if name != "step":
                self._writer.add_scalar(name, value, metrics["step"])

    def close(self) -> None:
        self._writer.close()


def draw_loss(folder: Path) -> Path:
    """``loss.png`` from ``metrics.jsonl``: the loss of each step, and of each evaluation."""
    from matplotlib.figure import Figure

    lines = _lines(folder / "metrics.jsonl")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([m["step"] for m in lines], [m["loss"] for m in lines], linewidth=1, label="training")
    if evaluated := [m for m in lines if "eval_loss" in m]:
        axes.plot([m["step"] for m in evaluated], [m["eval_loss"] for m in evaluated], "o-", label="evaluation")
    axes.set(xlabel="step", ylabel="loss", title="Loss")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(folder / "loss.png", dpi=120)
    return folder / "loss.png"

"""A folder of checkpoints: written in the background, the last and best few kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from torchax.checkpoint._errors import CheckpointError
from torchax.checkpoint._saving import read_step, root_of, save_args, step_folders


class CheckpointManager:
    """Checkpoints under one folder, a folder a step; a context manager.

    Args:
        path: a folder, made if missing. `load_checkpoint` reads it too.
        keep: how many of the last to keep; all, by default.
        keep_best: how many of the best to keep besides, by ``metrics[best_metric]``.
        best_metric: the metric's name.
        best_mode: ``"min"`` or ``"max"``, which is better.
        asynchronous: return from `save` when the arrays are copied, and write in the background.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep: int | None = None,
        keep_best: int = 0,
        best_metric: str = "loss",
        best_mode: str = "min",
        asynchronous: bool = True,
    ) -> None:
        if best_mode not in ("min", "max"):
            raise ValueError(f"best_mode: 'min' or 'max', got {best_mode!r}")
        if keep is not None and keep < 1:
            raise ValueError(f"keep: at least 1, or None for all, got {keep}")
        self.path = root_of(path)
        self._metric, self._sign = best_metric, -1.0 if best_mode == "min" else 1.0
        self._keep_best = keep_best
        policies = checkpoint_managers
        kept: list[Any] = [policies.LatestN(keep)]
        if keep_best:
            kept.append(policies.BestN(get_metric_fn=self._score, n=keep_best, keep_checkpoints_without_metrics=False))
        self._orbax = ocp.CheckpointManager(
            self.path,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy(kept),
                best_fn=self._score if keep_best else None,
                enable_async_checkpointing=asynchronous,
            ),
        )

    def _score(self, metrics: Mapping[str, float]) -> float:
        return self._sign * metrics[self._metric]

    def save(self, step: int, state: Any, metrics: Mapping[str, float] | None = None) -> None:
        """Write ``state`` (see `save_checkpoint`) as ``step``. An earlier save, if still running, is waited for.

        Raises:
            CheckpointError: the step exists, the state cannot be saved, or this or the save before could not be
                written; checkpoints already whole stay.
        """
        if self._keep_best and (metrics is None or self._metric not in metrics):
            raise CheckpointError(f"step {step}: metrics with {self._metric!r} are needed to keep the best")
        if step in self.steps():
            raise CheckpointError(f"step {step} exists in {self.path}; delete({step}) first to write it again")
        args = save_args(state)
        try:
            self._orbax.save(step, args=args, metrics=None if metrics is None else dict(metrics), force=True)
        except Exception as e:  # see _saving.write
            raise CheckpointError(f"step {step} in {self.path} was not written: {e}") from e

    def restore(self, step: int | None = None, like: Any = None) -> Any:
        """The state of a step, by default the last; ``like`` as for `load_checkpoint`.

        Raises:
            FileNotFoundError: no such step.
            CheckpointError: as `load_checkpoint`.
        """
        self.wait()
        found = step_folders(self.path)
        if not found or (step is not None and step not in found):
            raise FileNotFoundError(
                f"no {'checkpoint' if step is None else f'step {step}'} in {self.path}; steps there: {sorted(found)}"
            )
        return read_step(found[max(found) if step is None else step], like)

    def steps(self) -> list[int]:
        """The steps that are whole or being written, in order."""
        return sorted(self._orbax.all_steps())

    def latest_step(self) -> int | None:
        """The last step, if there is one."""
        return max(self.steps(), default=None)

    def best_step(self) -> int | None:
        """The best step by ``best_metric``, if one was saved with it."""
        return self._orbax.best_step() if self._keep_best else None

    def delete(self, step: int) -> None:
        """Remove one step."""
        self.wait()
        self._orbax.delete(step)

    def wait(self) -> None:
        """Return when all is on disk.

        Raises:
            CheckpointError: a save in the background failed.
        """
        try:
            self._orbax.wait_until_finished()
        except Exception as e:  # see _saving.write
            raise CheckpointError(f"a checkpoint in {self.path} was not written: {e}") from e

    def close(self) -> None:
        """Wait, and let the background threads go."""
        try:
            self.wait()
        finally:
            self._orbax.close()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

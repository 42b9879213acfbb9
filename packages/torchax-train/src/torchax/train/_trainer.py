"""``Trainer``: the loop around a compiled step, which can be stopped anywhere and goes on exactly."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch
from jax.sharding import NamedSharding, PartitionSpec
from torch import nn

from torchax import interop
from torchax.checkpoint import CheckpointManager
from torchax.train._data import Batches, followed, placed, placer, prefetched
from torchax.train._metrics import Console, JsonLines, TensorBoard, draw_loss
from torchax.train._optim import replicate, to_optax
from torchax.train._update import Loss, Update
from torchax.train.sharding import Plan, parallelize
from torchax.train.sharding._layout import named_tensors

Callback = Callable[["Trainer", dict[str, Any]], Any]


class NotFinite(RuntimeError):
    """The loss or a gradient became NaN or infinite; the weights are those from before that step."""


class Trainer:
    """Trains a model with optax, on one device or a mesh.

    A step (forward, gradient, clipping, optimizer, EMA) is one compiled program. A run that is killed and started again
    with the same arguments goes on from its last checkpoint with the same losses, bit for bit on the same devices: data
    order, random numbers, schedule, optimizer state and EMA included.

    Args:
        model: on the CPU, ``jax`` or (with ``mesh``) ``meta``. Parameters that require grad are trained, in float32 or
            whatever they are; its tensors hold the result after `fit`.
        optimizer: an ``optax.GradientTransformation`` (schedules included), or a fresh ``torch.optim`` optimizer that has an
            exact twin (`to_optax`).
        loss: ``(model, batch) -> loss``, a scalar tensor, such as ``lambda model, batch: model(**batch).loss``.
        mesh: of ``make_mesh``; without one, JAX's default device.
        plan: as for ``parallelize``; with a mesh, needed.
        batch_axes: the mesh axes that split a batch; those of a `Plan`, or the mesh's first.
        accumulate: microbatches a step; gradients are their mean.
        clip: largest global norm of a gradient.
        dtype: compute in this dtype, ``torch.bfloat16``, with weights and optimizer in their own.
        remat: a policy, or the name of one, of ``jax.checkpoint_policies``: what the backward pass keeps.
        ema: decay of an exponential moving average of the weights, which `evaluate` then uses.
        seed: of dropout and of the order of the data.
        folder: for ``metrics.jsonl``, ``loss.png``, TensorBoard's files and ``checkpoints/``; none of them without it.
        save_every: steps between checkpoints; 0: only one, at the end.
        keep: how many of the last checkpoints to keep.
        keep_best: how many of the best besides, by evaluation loss if there is one.
        on_nan: ``"stop"`` raises `NotFinite`; ``"skip"`` leaves out such steps; ``"rollback"`` goes on from the last
            checkpoint's weights with the data that follows.
        callbacks: called with the trainer and each step's metrics; one that returns True ends the run.
        progress: show a progress bar.
        tensorboard: write TensorBoard files to ``folder``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: optax.GradientTransformation | torch.optim.Optimizer,
        loss: Loss,
        *,
        mesh: jax.sharding.Mesh | None = None,
        plan: Any = None,
        batch_axes: Sequence[str] | None = None,
        accumulate: int = 1,
        clip: float | None = None,
        dtype: torch.dtype | None = None,
        remat: str | Callable[..., bool] | None = None,
        ema: float | None = None,
        seed: int = 0,
        folder: str | os.PathLike[str] | None = None,
        save_every: int = 0,
        keep: int | None = 2,
        keep_best: int = 0,
        on_nan: str = "stop",
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        tensorboard: bool = False,
    ) -> None:
        if on_nan not in ("stop", "skip", "rollback"):
            raise ValueError(f"on_nan: 'stop', 'skip' or 'rollback', got {on_nan!r}")
        if on_nan == "rollback" and (folder is None or not save_every):
            raise ValueError("on_nan='rollback' needs folder= and save_every=: checkpoints to go back to")
        if (mesh is None) != (plan is None):
            raise ValueError("mesh and plan go together")
        transform = to_optax(optimizer, model) if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        self.model = model.to("jax") if mesh is None else parallelize(model, mesh, plan, seed=seed)
        self.mesh, self.seed, self.callbacks, self.on_nan = mesh, seed, list(callbacks), on_nan
        self.folder = None if folder is None else Path(folder)
        self.save_every, self.keep, self.keep_best = save_every, keep, keep_best
        self.progress, self.tensorboard = progress, tensorboard
        if isinstance(plan, Plan):
            axes, sequence = plan.batch_axes, plan.context
        else:
            axes, sequence = (() if mesh is None else mesh.axis_names[:1]), None
        self._accumulate = accumulate
        self._axes, self._sequence = tuple(axes if batch_axes is None else batch_axes), sequence
        compute = None if dtype is None else interop.jax_view(torch.empty((), dtype=dtype, device="jax")).dtype
        self._update = Update(self.model, loss, transform, accumulate, clip, compute, _policy(remat), ema)
        self.state = self._initial()
        self.position = (0, 0)
        self._eval_loss = float("inf")
        placement = None if mesh is None else (jax.tree.map(lambda x: x.sharding, self.state), None)
        self._step = jax.jit(self._update, donate_argnums=0, out_shardings=placement)
        self._value = jax.jit(lambda weights, buffers, batch: self._update.value(weights, buffers, batch, _no_key())[0])

    def _initial(self) -> dict[str, Any]:
        tensors: dict[str, Any] = named_tensors(self.model)
        arrays = {name: followed(x.jax(), name) for name, x in tensors.items()}
        weights = {n: arrays[n] for n, x in tensors.items() if x.requires_grad}
        rest = {n: arrays[n] for n in arrays if n not in weights}
        state: dict[str, Any] = {"weights": weights, "buffers": rest, "opt": self._update.optimizer.init(weights)}
        if self._update.ema is not None:
            state["ema"] = jax.tree.map(jnp.array, weights)
        state |= {"step": jnp.int32(0), "seed": jnp.uint32(self.seed & 0xFFFF_FFFF)}
        if self.mesh is not None:
            state = replicate(state, NamedSharding(self.mesh, PartitionSpec()))
        return state

    # --- the loop -----------------------------------------------------------------------------------------------------

    def fit(
        self,
        data: Iterable[Any],
        steps: int,
        *,
        evaluate: Iterable[Any] | None = None,
        evaluate_every: int = 0,
    ) -> list[dict[str, Any]]:
        """Train until ``steps`` steps are done, those of an earlier run whose checkpoint is in ``folder`` included.

        Args:
            data: a ``DataLoader`` (each process reads its part of each batch) or another iterable of batches that can be
                iterated over again for each epoch. A batch is any tree of CPU tensors and numpy arrays.
            steps: how many, in all.
            evaluate: batches for `evaluate`.
            evaluate_every: how often.

        Returns:
            The metrics of each step of this call: ``step``, ``loss``, ``grad_norm``, ``step_time`` in seconds,
            ``samples_per_second``, ``eval_loss`` where there was one.

        Raises:
            NotFinite: see ``on_nan``.
            ShardingError: a batch does not divide.
            CheckpointError: a checkpoint does not fit (a changed model), or cannot be written.
        """
        manager = self._manager(evaluate is not None)
        try:
            if manager is not None and manager.latest_step() is not None:
                self._restore(manager)
            history = self._fit(data, steps, manager, evaluate, evaluate_every)
        finally:
            self.update_model()
            if manager is not None:
                manager.close()
        if self.folder is not None and jax.process_index() == 0:
            draw_loss(self.folder)
        return history

    def _fit(
        self, data: Any, steps: int, manager: CheckpointManager | None, evaluate: Any, evaluate_every: int
    ) -> list[dict[str, Any]]:
        start = int(self.state["step"])
        sinks = self._sinks(start, steps)
        place = placer(self.mesh, self._axes, self._sequence, self._accumulate)
        batches = prefetched(Batches(data, self.seed, *self.position), lambda b: placed(b, place))
        history: list[dict[str, Any]] = []
        self.model.train()
        try:
            for step in range(start + 1, steps + 1):
                batch, position = next(batches)
                began = time.perf_counter()
                self.state, found = self._step(self.state, batch)
                self.position = position
                loss = float(found["loss"])  # waits for the step
                took = time.perf_counter() - began
                metrics = {
                    "step": step,
                    "loss": loss,
                    "grad_norm": float(found["grad_norm"]),
                    "step_time": took,
                    "samples_per_second": _samples(batch, self._accumulate) / took,
                }
                if not found["finite"]:
                    self._not_finite(step, metrics, manager)
                if evaluate is not None and evaluate_every and step % evaluate_every == 0:
                    metrics["eval_loss"] = self._eval_loss = self.evaluate(evaluate)
                history.append(metrics)
                for sink in sinks:
                    sink.write(metrics)
                last = _run(self.callbacks, self, metrics) or step == steps
                if manager is not None and (last or (self.save_every and step % self.save_every == 0)):
                    self._save(manager, step, metrics)
                if last:
                    break
        finally:
            for sink in sinks:
                sink.close()
        return history

    def evaluate(self, data: Iterable[Any]) -> float:
        """The mean loss over ``data``'s batches, in evaluation mode, with the EMA of the weights if there is one."""
        place = placer(self.mesh, self._axes, self._sequence, 1)
        weights = self.state.get("ema", self.state["weights"])
        training = self.model.training
        self.model.eval()
        try:
            losses = [float(self._value(weights, self.state["buffers"], placed(b, place))) for b in data]
        finally:
            self.model.train(training)
        if not losses:
            raise ValueError("evaluate: the data has no batches")
        return sum(losses) / len(losses)

    def update_model(self, ema: bool = False) -> nn.Module:
        """Put the state's weights (or their EMA) and buffers into the model's own tensors; returns the model.

        `fit` does so at its end. While it runs, the compiled step takes the memory of the state before: a callback that
        uses the model calls this first.
        """
        source = {**self.state["ema" if ema else "weights"], **self.state["buffers"]}
        tensors: dict[str, Any] = named_tensors(self.model)
        for name, x in tensors.items():
            with jax.enable_x64(True):
                array = source[name].astype(x.jax().dtype)
                x.apply_jax_(lambda _, new=array: new)
        return self.model

    # --- what happens around a step -----------------------------------------------------------------------------------

    def _not_finite(self, step: int, metrics: dict[str, Any], manager: CheckpointManager | None) -> None:
        if self.on_nan == "skip":
            return
        said = f"step {step}: loss {metrics['loss']}, gradient norm {metrics['grad_norm']}"
        if self.on_nan == "stop" or manager is None:
            raise NotFinite(f"{said}. The weights are those from before; on_nan='skip' or 'rollback' would go on")
        if manager.latest_step() is None:
            raise NotFinite(f"{said}, before the first checkpoint: there is nothing to roll back to")
        position, now = self.position, self.state["step"]
        self._restore(manager)
        self.position, self.state["step"] = position, now

    def _manager(self, evaluated: bool) -> CheckpointManager | None:
        if self.folder is None:
            return None
        metric = "eval_loss" if evaluated else "loss"
        return CheckpointManager(
            self.folder / "checkpoints", keep=self.keep, keep_best=self.keep_best, best_metric=metric
        )

    def _save(self, manager: CheckpointManager, step: int, metrics: dict[str, Any]) -> None:
        if step in manager.steps():
            return
        scores = {"loss": metrics["loss"], "eval_loss": self._eval_loss}
        manager.save(step, {**self.state, "position": list(self.position)}, scores if self.keep_best else None)

    def _restore(self, manager: CheckpointManager) -> None:
        found = manager.restore(like={**self.state, "position": [0, 0]})
        self.position = tuple(found.pop("position"))
        self.state = found

    def _sinks(self, start: int, steps: int) -> list[Any]:
        if jax.process_index():
            return []
        sinks: list[Any] = []
        if self.tensorboard:
            if self.folder is None:
                raise ValueError("tensorboard=True needs folder=")
            sinks.append(TensorBoard(self.folder, start))
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            sinks.append(JsonLines(self.folder, start))
        sinks.append(Console(start, steps, self.progress))
        return sinks


def _run(callbacks: Sequence[Callback], trainer: Trainer, metrics: dict[str, Any]) -> bool:
    """Call all of them; whether one wants to end the run."""
    asked = [bool(callback(trainer, metrics)) for callback in callbacks]
    return any(asked)


def _policy(remat: str | Callable[..., bool] | None) -> Callable[..., bool] | None:
    if not isinstance(remat, str):
        return remat
    named = [n for n in dir(jax.checkpoint_policies) if not n.startswith("_")]
    if remat not in named:
        raise ValueError(f"remat: a policy or one of {', '.join(named)}; got {remat!r}")
    policy: Callable[..., bool] = getattr(jax.checkpoint_policies, remat)
    return policy


def _no_key() -> jax.Array:
    """Evaluation draws nothing that matters; where a model draws all the same, it is the same each time."""
    return jax.random.key(0)


def _samples(batch: Any, accumulate: int) -> int:
    shape = jax.tree.leaves(batch)[0].shape
    return shape[0] * shape[1] if accumulate > 1 else shape[0]

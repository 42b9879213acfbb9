"""Batches: in an order that can be taken up again, each process its part, on the devices ahead of time."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
import torch
import torch.utils._pytree as pytree
from jax.sharding import NamedSharding, PartitionSpec
from torch.utils.data import DataLoader

from torchax.train.sharding import ShardingError
from torchax.transfer import numpy_view


class _PartOfEachBatch:
    """A batch sampler that takes this process's equal part of each batch of another."""

    def __init__(self, batches: Iterable[list[Any]], index: int, count: int) -> None:
        self.batches, self.index, self.count = batches, index, count

    def __iter__(self) -> Iterator[list[Any]]:
        for batch in self.batches:
            if len(batch) % self.count:
                raise ShardingError(f"a batch of {len(batch)} does not divide over {self.count} processes")
            size = len(batch) // self.count
            yield list(batch)[self.index * size : (self.index + 1) * size]

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]


def process_part(loader: DataLoader, index: int | None = None, count: int | None = None) -> DataLoader:
    """A loader of this process's part of each of ``loader``'s batches: with any sampler, only that part is read.

    All processes must draw the same batches: `Trainer` seeds the sampler.

    Args:
        loader: of a map-style dataset, with a batch size or batch sampler.
        index: this process; ``jax.process_index()`` by default.
        count: how many there are; ``jax.process_count()`` by default.

    Raises:
        ShardingError: the dataset is an iterable one, which has no indices to part.
    """
    index, count = jax.process_index() if index is None else index, jax.process_count() if count is None else count
    if count == 1:
        return loader
    if loader.batch_sampler is None:
        raise ShardingError("an iterable dataset has no indices: let it yield this process's part of each batch itself")
    return DataLoader(
        loader.dataset,
        batch_sampler=_PartOfEachBatch(loader.batch_sampler, index, count),  # type: ignore[arg-type]
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        timeout=loader.timeout,
        persistent_workers=loader.persistent_workers,
    )


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


def _samplers(loader: Any) -> Iterator[Any]:
    """A loader's samplers, from the outside in."""
    found, at = [loader], 0
    while at < len(found):
        for name in ("batch_sampler", "sampler", "batches"):
            inner = getattr(found[at], name, None)
            if inner is not None and not any(inner is x for x in found):
                found.append(inner)
        at += 1
    yield from found


class Batches:
    """Epochs of ``source`` without end, in an order that depends on ``seed`` and position alone.

    Before each batch PyTorch's and Python's random numbers are seeded from ``(seed, epoch, batch)``; before each epoch
    the samplers' own generators too, and ``set_epoch`` is called where there is one.
    """

    def __init__(self, source: Iterable[Any], seed: int, epoch: int = 0, batch: int = 0) -> None:
        self.source = process_part(source) if isinstance(source, DataLoader) else source
        self.seed, self.epoch, self.batch = seed, epoch, batch

    def __iter__(self) -> Iterator[tuple[Any, tuple[int, int]]]:
        """Batches, each with the position after it."""
        epoch, skip = self.epoch, self.batch
        while True:
            for i, part in enumerate(self._epoch(epoch)):
                if i >= skip:
                    yield part, (epoch, i + 1)
            epoch, skip = epoch + 1, 0

    def _epoch(self, epoch: int) -> Iterator[Any]:
        for sampler in _samplers(self.source):
            if isinstance(getattr(sampler, "generator", None), torch.Generator):
                sampler.generator.manual_seed(_seed(self.seed, epoch))
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        iterator: Iterator[Any] | None = None
        i = 0
        while True:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(_seed(self.seed, epoch, i))
                before = random.getstate()
                random.seed(_seed(self.seed, epoch, i))
                try:
                    iterator = iter(self.source) if iterator is None else iterator
                    part = next(iterator)
                except StopIteration:
                    if i == 0:
                        raise ValueError("the data has no batches (or can be iterated over only once)") from None
                    return
                finally:
                    random.setstate(before)
            yield part
            i += 1


def followed(x: Any, name: str) -> Any:
    """An array with JAX's own widths: without x64, a step is traced with 32-bit integers.

    Raises:
        OverflowError: an integer does not fit.
        TypeError: it is float64, which would lose digits.
    """
    narrow = _width(x, name)
    if narrow is None:
        return x
    with jax.enable_x64(True):
        return x.astype(narrow)


def _width(x: Any, name: str) -> np.dtype | None:
    """The narrower dtype in which a step would hold ``x``; ``None``: its own."""
    if jax.config.jax_enable_x64 or x.dtype.itemsize < 8 or x.dtype == np.complex64:  # type: ignore[attr-defined]
        return None
    if x.dtype.kind not in "iu":
        raise TypeError(f"{name} is {x.dtype}, which needs JAX's x64 flag: jax.config.update('jax_enable_x64', True)")
    narrow = np.dtype(x.dtype.kind + "4")
    if (
        isinstance(x, np.ndarray)
        and x.size
        and not (np.iinfo(narrow).min <= x.min() and x.max() <= np.iinfo(narrow).max)
    ):
        raise OverflowError(f"{name} holds integers beyond {narrow}, and JAX's x64 flag is off")
    return narrow


def placed(batch: Any, place: Callable[[np.ndarray], Any]) -> Any:
    """A batch's tensors and numpy arrays as ``jax.Array``s; what PyTorch knows as a container is taken apart.

    Raises:
        TypeError: a leaf is no tensor or array.
    """

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            x = numpy_view(x.cpu())
        if not isinstance(x, np.ndarray):
            raise TypeError(
                f"a batch holds a {type(x).__name__}: tensors and numpy arrays, in any containers, can be trained on"
            )
        _width(x, "a batch")  # for its errors: labels stay int64, as PyTorch's losses want them
        with jax.enable_x64(True):
            return place(x)

    return pytree.tree_map(leaf, batch)


def placer(
    mesh: jax.sharding.Mesh | None, axes: tuple[str, ...], sequence: str | None, accumulate: int
) -> Callable[[np.ndarray], jax.Array]:
    """How one array of a process's part of a batch goes onto the devices: split over ``axes``, in microbatches first."""

    def place(x: np.ndarray) -> jax.Array:
        if x.ndim == 0 or x.shape[0] % accumulate:
            raise ShardingError(f"a batch of shape {x.shape} does not divide into {accumulate} microbatches")
        if accumulate > 1:
            x = x.reshape(accumulate, x.shape[0] // accumulate, *x.shape[1:])
        if mesh is None:
            return jax.numpy.asarray(x)
        first = (None,) if accumulate > 1 else ()
        at = len(first)
        parts = int(np.prod([mesh.shape[a] for a in axes])) // jax.process_count()
        if parts and x.shape[at] % parts:
            raise ShardingError(
                f"{x.shape[at]} samples do not divide over {parts} devices (axes {', '.join(axes)}); choose another batch "
                "size, and drop_last=True for the last batch"
            )
        spec = [*first, axes or None]
        if sequence is not None and x.ndim > at + 1:
            spec.append(sequence)
        return jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec(*spec)), x)

    return place


def prefetched(batches: Iterable[tuple[Any, Any]], place: Callable[[Any], Any], ahead: int = 2) -> Iterator[Any]:
    """Batches on the devices, ``ahead`` of them sent while a step runs."""
    queue: collections.deque[Any] = collections.deque()
    for batch, position in batches:
        queue.append((place(batch), position))
        if len(queue) > ahead:
            yield queue.popleft()
    yield from queue

"""Worker processes, each a fresh interpreter: one that dies or hangs costs the row it was at, and is replaced."""

from __future__ import annotations

import importlib
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from _rows import Row, Unit

SPAWN = multiprocessing.get_context("spawn")
MEMORY = 5 * 2**30  # bytes that a worker may have used before it is replaced: XLA keeps every program it compiled


def _memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _work(connection: Connection, samples: int, suites: str) -> None:
    module = importlib.import_module(suites)  # with torch and JAX, in the worker only
    module.prepare()
    for unit in iter(connection.recv, None):
        for check in unit.checks:
            connection.send(("start", check, None))
            try:
                rows = module.execute(unit, check, samples)
            except Exception as error:  # of the suite, not of a sample: the others go on
                text = f"{type(error).__name__}: {error}"
                rows = [Row(unit.suite, unit.name, unit.dtype, check, "crash", faults=(text[:400],))]
            connection.send(("rows", check, rows))
        connection.send(("idle", "", _memory() > MEMORY))


@dataclass
class _Worker:
    process: Any
    connection: Connection
    unit: Unit | None = None
    check: str = ""
    since: float = 0.0

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _start(samples: int, suites: str) -> _Worker:
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_work, args=(there, samples, suites), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here, since=time.monotonic())


def run(
    units: list[Unit], workers: int, samples: int, timeout: float, suites: str = "_suites"
) -> Iterator[tuple[Unit, str, list[Row], float]]:
    """Run all checks of all units; yields each check as it is done, with its rows and seconds.

    ``suites`` is the module whose ``prepare`` and ``execute`` the workers call.
    A check that takes longer than ``timeout`` seconds, or kills its process, yields a row that says so.

    Raises:
        RuntimeError: workers die before they start a check.
    """
    queue = list(reversed(units))
    pool = [_start(samples, suites) for _ in range(min(workers, len(units)))]
    failures = 0

    def feed(worker: _Worker) -> None:
        worker.unit, worker.check, worker.since = (queue.pop() if queue else None), "", time.monotonic()
        worker.connection.send(worker.unit)

    def lose(worker: _Worker, status: str, text: str) -> tuple[Unit, str, list[Row], float]:
        unit, check = worker.unit, worker.check
        assert unit is not None
        rest = unit.checks[unit.checks.index(check) + 1 :]
        if rest:
            queue.append(replace(unit, checks=rest))
        seconds = time.monotonic() - worker.since
        return unit, check, [Row(unit.suite, unit.name, unit.dtype, check, status, faults=(text,))], seconds

    try:
        for worker in pool:
            feed(worker)
        while any(worker.unit is not None for worker in pool):
            ready = wait([worker.connection for worker in pool if worker.unit is not None], timeout=1.0)
            for i, worker in enumerate(pool):
                if worker.unit is None:
                    continue
                late = worker.check and time.monotonic() - worker.since > timeout
                if worker.connection not in ready and not late:
                    continue
                try:
                    if late and not worker.connection.poll():
                        raise TimeoutError
                    kind, check, value = worker.connection.recv()
                except (EOFError, OSError) as error:
                    if worker.check:
                        text = f"longer than {timeout:g} s" if isinstance(error, TimeoutError) else "the process died"
                        yield lose(worker, "timeout" if isinstance(error, TimeoutError) else "crash", text)
                    else:
                        failures += 1
                        queue.append(worker.unit)
                        if failures > workers:
                            raise RuntimeError("workers die at once: see their errors above") from None
                    worker.stop()
                    pool[i] = _start(samples, suites)
                    feed(pool[i])
                    continue
                if kind == "start":
                    worker.check, worker.since = check, time.monotonic()
                elif kind == "rows":
                    yield worker.unit, check, value, time.monotonic() - worker.since
                    worker.check = ""
                else:
                    if value:
                        worker.stop()
                        pool[i] = worker = _start(samples, suites)
                    feed(worker)
    finally:
        for worker in pool:
            worker.stop()

"""Parity with PyTorch, all of it: rows of operator, dtype and check, over all cores.

    python conformance/run.py                                        # everything, then docs/parity/ and parity.json
    python conformance/run.py --ops softmax,sort --dtypes float32 --checks forward,grad
    python conformance/run.py --level 1 --dtypes float32

A run that was killed goes on where it stopped if nothing changed since. It fails if a row got worse than the committed
parity.json says, or if an exception is no longer needed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import _jax_settings  # noqa: F401  must come before jax
import _parity
import _pool
import _suites
from _rows import BAD, ROOT, Log, Row, fold
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def _names(text: str) -> list[str]:
    return [t for t in text.split(",") if t]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=_names, default=[], help="op_db, module or optimizer names, globs allowed")
    parser.add_argument("--dtypes", type=_names, default=[], help=", ".join(_suites.DTYPES))
    parser.add_argument("--checks", type=_names, default=[], help=", ".join(_suites.checks()))
    parser.add_argument("--level", type=int, choices=(1, 2), help="1: functions of torchax_ops; 2: the device")
    parser.add_argument("--samples", type=int, default=5, help="at most so many inputs for a row")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a row")
    parser.add_argument("--resume", action="store_true", help="keep rows of the log though the sources changed since")
    parser.add_argument(
        "--failed", action="store_true", help="of the rows in the log, run only those that failed, again"
    )
    parser.add_argument("--log", type=Path, default=ROOT / "conformance/.rows.jsonl")
    options = parser.parse_args()
    for given, allowed in ((options.dtypes, _suites.DTYPES), (options.checks, _suites.checks())):
        if not set(given) <= set(allowed):
            parser.error(f"{given} are not all among {', '.join(allowed)}")
    return options


def main() -> int:
    options, console = _options(), Console()
    levels = [options.level] if options.level else [1, 2]
    units = _suites.plan(levels, options.ops, options.dtypes, options.checks)
    if not units:
        console.print("nothing fits these filters")
        return 2
    log = Log(options.log, options.samples)
    done = log.read(options.resume or options.failed)
    if options.failed:
        failed = {key for key, rows in done.items() if any(row.status in BAD for row in rows)}
        units = [u.only(c for c in u.checks if (u.suite, u.name, u.dtype, c) in failed) for u in units]
        units, done = [u for u in units if u.checks], {}
    rows: list[Row] = [row for u in units for c in u.checks for row in done.get((u.suite, u.name, u.dtype, c), [])]
    left = [u.only(c for c in u.checks if (u.suite, u.name, u.dtype, c) not in done) for u in units]
    left = [u for u in left if u.checks]
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=sum(len(u.checks) for u in units))
        bar.advance(task, sum(len(u.checks) for u in units) - sum(len(u.checks) for u in left))
        for unit, check, found, seconds in _pool.run(left, options.workers, options.samples, options.timeout):
            log.append(unit, check, found, seconds)
            rows += found
            for row in found:
                if row.status in BAD:
                    bar.console.print(_line(row), markup=False, highlight=False, soft_wrap=True)
            bar.update(task, advance=1, description=f"{unit.name} {unit.dtype} {check}")
    return _report(console, fold(rows), log, not (options.ops or options.failed))


def _line(row: Row) -> str:
    return f"{row.status} {row.suite} {row.op} {row.dtype} {row.check}: " + (row.faults or (row.reason,))[0]


def _report(console: Console, table: dict[tuple[str, str, str, str], Row], log: Log, whole: bool) -> int:
    """Print the figures, compare with the committed ones, and write both if all entries ran; the exit status."""
    committed = _parity.read()
    worse = _parity.worse(committed, table.values())
    console.print(_parity.summary(table.values()), markup=False, highlight=False)
    for line in worse:
        console.print(f"worse than parity.json: {line}", markup=False, highlight=False, soft_wrap=True)
    stale = [row for row in table.values() if row.status == "stale"]
    for row in stale:
        console.print(f"delete from exceptions.toml: {row.op} {row.dtype} {row.check}", markup=False, highlight=False)
    if whole:
        planned = {(u.suite, u.name, u.dtype, c) for u in _suites.plan([1, 2], [], [], []) for c in u.checks}
        run = log.read(any_sources=True).keys() & planned
        _parity.write(_parity.merged(committed, table.values()), len(run), len(planned))
    return int(bool(worse or stale))


if __name__ == "__main__":
    sys.exit(main())

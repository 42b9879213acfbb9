"""What a run consists of: units of work, the rows they give, and the log that a killed run goes on from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# From best to worst. "known" passes by an exception, "stale" is an exception that nothing needs, "none" compared nothing.
STATUSES = ("none", "pass", "known", "stale", "fail", "timeout", "crash")
BAD = frozenset({"stale", "fail", "timeout", "crash"})


@dataclass(frozen=True)
class Unit:
    """An entry of a suite in one dtype, with the checks to run; a worker does one at a time."""

    suite: str
    name: str
    dtype: str
    checks: tuple[str, ...]

    def only(self, checks: Iterable[str]) -> Unit:
        """The same with these checks."""
        return replace(self, checks=tuple(checks))


@dataclass(frozen=True)
class Row:
    """How one operator fared in one dtype and check: counts of samples, the first faults, the exception's reason."""

    suite: str
    op: str
    dtype: str
    check: str
    status: str
    passed: int = 0
    excepted: int = 0
    failed: int = 0
    faults: tuple[str, ...] = ()
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.suite, self.op, self.dtype, self.check


def judge(passed: int, excepted: int, failed: int) -> str:
    """The status of a row with these counts of samples."""
    if failed:
        return "fail"
    return "known" if excepted else "pass" if passed else "none"


def fold(rows: Iterable[Row]) -> dict[tuple[str, str, str, str], Row]:
    """One row for each key: counts add up, the worst status and the first faults stay."""
    found: dict[tuple[str, str, str, str], Row] = {}
    for row in rows:
        old = found.get(row.key)
        if old is not None:
            row = replace(
                row,
                status=max(old.status, row.status, key=STATUSES.index),
                passed=old.passed + row.passed,
                excepted=old.excepted + row.excepted,
                failed=old.failed + row.failed,
                faults=(old.faults + row.faults)[:3],
                reason=old.reason or row.reason,
            )
        found[row.key] = row
    return found


def sources() -> str:
    """A hash of everything a row depends on: the operators, the device, the suites, torch and JAX."""
    digest = hashlib.sha256()
    files = [*ROOT.glob("packages/torchax-ops/src/**/*.py"), *ROOT.glob("packages/torchax-core/src/**/*.py")]
    for path in sorted([*files, *ROOT.glob("conformance/*.py"), ROOT / "conformance/exceptions.toml"]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12] + f"-torch{version('torch')}-jax{version('jax')}"


class Log:
    """An append-only file, a JSON object for each check of a unit that is done."""

    def __init__(self, path: Path, samples: int) -> None:
        self.path = path
        self.stamp = {"sources": sources(), "samples": samples}

    def read(self, any_sources: bool = False) -> dict[tuple[str, str, str, str], list[Row]]:
        """The rows of each (suite, name, dtype, check) done with these sources (or any), the last of each."""
        found: dict[tuple[str, str, str, str], list[Row]] = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # cut off by a kill
                continue
            if any_sources or entry["stamp"] == self.stamp:
                rows = [Row(**{**row, "faults": tuple(row["faults"])}) for row in entry["rows"]]
                found[tuple(entry["key"])] = rows
        return found

    def append(self, unit: Unit, check: str, rows: list[Row], seconds: float) -> None:
        entry: dict[str, Any] = {"key": [unit.suite, unit.name, unit.dtype, check], "seconds": round(seconds, 2)}
        entry |= {"rows": [asdict(row) for row in rows], "stamp": self.stamp}
        with self.path.open("a+") as file:
            if file.tell() and not self.path.read_bytes().endswith(b"\n"):
                file.write("\n")
            file.write(json.dumps(entry) + "\n")

"""The suites: what each consists of, and how one check of one unit runs.

functions   level 1: the functions of `torchax_ops`, by aten calls that `op_db` makes
operators   level 2: `op_db` on the device
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import _jax_settings  # noqa: F401  must come before jax
import device
import replay
import torch
from _exceptions import Known, find, load
from _rows import Row, Unit, judge
from _samples import entries

DTYPES = (
    "float32", "int64", "bool", "float64", "bfloat16", "float16", "complex64", "complex128", "int32", "uint8", "int16",
    "int8",
)  # fmt: skip
ANY = "any"  # the dtype of a check whose inputs have dtypes of their own

known = functools.cache(load)


def prepare() -> None:
    """What a process does before its first unit."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import torchax  # noqa: F401  registers the device

    replay.load_registry()


@functools.cache
def _entries() -> dict[str, Any]:
    return {op.formatted_name: op for op in entries([])}


# --------------------------------------------------------------------------------------------------- level 2: operators


def _operator_units(patterns: list[str], dtypes: list[str], checks: list[str]) -> list[Unit]:
    ops = list(entries(patterns))
    units = [
        Unit(
            "operators",
            op.formatted_name,
            dtype,
            tuple(c for c in checks if c != "errors" and device.applies(op, t, c)),
        )
        for dtype in dtypes
        for t in [getattr(torch, dtype)]
        for op in ops
        if t in op.supported_dtypes("cpu")
    ]
    if "errors" in checks:
        units += [Unit("operators", op.formatted_name, ANY, ("errors",)) for op in ops if op.error_inputs_func]
    return units


def _operator_rows(name: str, dtype: str, check: str, samples: int) -> list[Row]:
    op, t = _entries()[name], getattr(torch, dtype, torch.float32)
    result = device.run(op, t, check, samples, known())
    status = judge(result.passed, result.excepted, result.failed)
    exception = find(known(), name, dtype, check)
    if status in ("pass", "none") and exception is not None and _own(exception, name, check):
        # Its own exception, and these samples do not need it: then one of all the others must.
        status = "known" if device.needs_exception(op, t, check) else "stale"
    reason = exception.reason if exception is not None and status in ("known", "stale") else ""
    counts = result.passed, result.excepted, result.failed
    return [Row("operators", name, dtype, check, status, *counts, tuple(result.faults[:3]), reason)]


def _own(exception: Known, name: str, check: str) -> bool:
    return exception.operator == name and check in exception.checks


# --------------------------------------------------------------------------------------------------- level 1: functions


def _function_units(patterns: list[str], dtypes: list[str], checks: list[str]) -> list[Unit]:
    return [
        Unit("functions", op.formatted_name, dtype, tuple(checks))
        for dtype in dtypes
        for op in entries(patterns)
        if getattr(torch, dtype) in op.supported_dtypes("cpu")
    ]


@functools.lru_cache(maxsize=1)
def _recorded(name: str, dtype: str, samples: int) -> replay.Recorder:
    recorder = replay.Recorder(cap=3)
    replay.record(_entries()[name], getattr(torch, dtype), recorder, samples)
    return recorder


def _function_rows(name: str, dtype: str, check: str, samples: int) -> list[Row]:
    return [
        Row("functions", aten, dtype, check, judge(t.passed, t.excepted, len(t.faults)), t.passed, t.excepted,
            len(t.faults), tuple(t.faults[:3]), t.reason)
        for aten, t in replay.replay(_recorded(name, dtype, samples), check, dtype).items()
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- all


SUITES: dict[str, tuple[int, tuple[str, ...], tuple[str, ...], Callable[..., list[Unit]], Callable[..., list[Row]]]] = {
    "operators": (2, (*device.SAMPLED, "errors"), DTYPES, _operator_units, _operator_rows),
    "functions": (1, replay.CHECKS, DTYPES[:5] + ("complex64",), _function_units, _function_rows),
}


def checks() -> list[str]:
    """The names of all checks."""
    return list(dict.fromkeys(check for suite in SUITES.values() for check in suite[1]))


def plan(levels: list[int], patterns: list[str], dtypes: list[str], checks: list[str]) -> list[Unit]:
    """The units of a run: all suites of these levels, narrowed to matching entries, dtypes and checks."""
    units = []
    for level, own_checks, own_dtypes, plan_suite, _ in SUITES.values():
        if level in levels:
            wanted = [c for c in own_checks if not checks or c in checks]
            units += plan_suite(patterns, [d for d in own_dtypes if not dtypes or d in dtypes], wanted)
    return [unit for unit in units if unit.checks]


def execute(unit: Unit, check: str, samples: int) -> list[Row]:
    """The rows of one check of a unit: one for an entry, in level 1 one for each aten operator it called."""
    return SUITES[unit.suite][-1](unit.name, unit.dtype, check, samples)

"""The suites: what each consists of, and how one check of one unit runs.

functions      level 1: the functions of `torchax_ops`, by aten calls that `op_db` makes
operators      level 2: `op_db` on the device
modules        level 2: `module_db`
optimizers     level 2: `optim_db`
distributions  level 2: what is random, against scipy
"""

from __future__ import annotations

import fnmatch
import functools
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import _jax_settings  # noqa: F401  must come before jax
import device
import distributions
import modules
import optimizers
import replay
import torch
from _exceptions import Known, find, load
from _rows import Row, Unit, judge
from _sample import Sample
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
    found = device.inputs(op, t, check, samples)
    row = _row("operators", name, dtype, check, [(sample, device.BODIES[check]) for sample in found])
    exception = find(known(), name, dtype, check)
    if row.status in ("pass", "none") and exception is not None and _own(exception, name, check):
        # Its own exception, and these samples do not need it: then one of all the others must.
        status = "known" if device.needs_exception(op, t, check) else "stale"
        return [replace(row, status=status, reason=exception.reason)]
    return [row]


def _own(exception: Known, name: str, check: str) -> bool:
    return exception.operator == name and check in exception.checks


def _row(suite: str, name: str, dtype: str, check: str, cases: list[tuple[Sample, Callable[[Sample], None]]]) -> Row:
    """The row of one check over samples, each with what checks it."""
    exception = find(known(), name, dtype, check)
    result = device.tally(cases, exception)
    status = judge(result.passed, result.excepted, result.failed)
    counts = result.passed, result.excepted, result.failed
    reason = exception.reason if exception is not None and status == "known" else ""
    return Row(suite, name, dtype, check, status, *counts, tuple(result.faults[:3]), reason)


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


# ------------------------------------------------------------------------------------- level 2: modules, optimizers, draws


def _matching(names: Iterable[str], patterns: list[str]) -> list[str]:
    return [name for name in names if not patterns or any(fnmatch.fnmatch(name, p) for p in patterns)]


def _module_units(patterns: list[str], dtypes: list[str], checks: list[str]) -> list[Unit]:
    return [
        Unit("modules", name, dtype, tuple(checks))
        for dtype in dtypes
        for name in _matching(modules.entries(), patterns)
        if getattr(torch, dtype) in modules.dtypes(modules.entries()[name])
    ]


def _module_rows(name: str, dtype: str, check: str, samples: int) -> list[Row]:
    info, mode = modules.entries()[name], check.partition("_")[0]
    cases = [
        (sample, lambda one, module=module: modules.check(module, one, check.endswith("_grad")))
        for module, sample in modules.inputs(info, getattr(torch, dtype), mode == "train", samples)
    ]
    return [_row("modules", name, dtype, check, cases)]


def _optimizer_units(patterns: list[str], dtypes: list[str], checks: list[str]) -> list[Unit]:
    return [
        Unit("optimizers", name, dtype, tuple(c for c in checks if optimizers.applies(optimizers.entries()[name], c)))
        for dtype in dtypes
        for name in _matching(optimizers.entries(), patterns)
    ]


def _optimizer_rows(name: str, dtype: str, check: str, samples: int) -> list[Row]:
    info, t = optimizers.entries()[name], getattr(torch, dtype)
    cases = [
        (Sample(info, None, (), kwargs), lambda one: optimizers.check(info, one.kwargs, one, t, check))
        for kwargs in optimizers.inputs(info, t)
    ]
    return [_row("optimizers", name, dtype, check, cases)]


def _draw_units(patterns: list[str], dtypes: list[str], checks: list[str]) -> list[Unit]:
    return [
        Unit("distributions", name, dtype, tuple(checks))
        for dtype in dtypes
        for name in _matching(distributions.DRAWS, patterns)
        if dtype in distributions.DRAWS[name].dtypes
    ]


def _draw_rows(name: str, dtype: str, check: str, samples: int) -> list[Row]:
    draw, body = distributions.DRAWS[name], getattr(distributions, f"check_{check}")
    return [
        _row(
            "distributions",
            name,
            dtype,
            check,
            [(Sample(draw, None, (), {}), lambda _: body(draw, getattr(torch, dtype)))],
        )
    ]


# ------------------------------------------------------------------------------------------------------------- all


SUITES: dict[str, tuple[int, tuple[str, ...], tuple[str, ...], Callable[..., list[Unit]], Callable[..., list[Row]]]] = {
    "operators": (2, (*device.SAMPLED, "errors"), DTYPES, _operator_units, _operator_rows),
    "modules": (2, modules.CHECKS, ("float32", "float64", "bfloat16"), _module_units, _module_rows),
    "optimizers": (2, tuple(optimizers.CHECKS), ("float32", "float64", "bfloat16"), _optimizer_units, _optimizer_rows),
    "distributions": (2, distributions.CHECKS, DTYPES, _draw_units, _draw_rows),
    "functions": (1, replay.CHECKS, (*DTYPES[:5], "complex64"), _function_units, _function_rows),
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

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
from dataclasses import dataclass
from typing import Any

import _jax_settings  # noqa: F401  must come before jax
import device
import distributions
import modules
import optimizers
import replay
import torch
from _exceptions import find, load
from _rows import Row, Unit, judge
from _sample import Sample
from _samples import entries

Cases = list[tuple[Sample, Callable[[Sample], None]]]
DTYPES = (
    "float32", "int64", "bool", "float64", "bfloat16", "float16", "complex64", "complex128", "int32", "uint8", "int16",
    "int8",
)  # fmt: skip
ALL = 10_000  # more samples than any entry has
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


def _operator_cases(name: str, dtype: str, check: str, samples: int) -> Cases:
    found = device.inputs(_entries()[name], getattr(torch, dtype, torch.float32), check, samples)
    return [(sample, device.BODIES[check]) for sample in found]


# --------------------------------------------------------------------------------------------------- level 1: functions


def _function_units(patterns: list[str], dtypes: list[str], checks: list[str]) -> list[Unit]:
    return [
        Unit("functions", op.formatted_name, dtype, tuple(checks))
        for dtype in dtypes
        for op in entries(patterns)
        if getattr(torch, dtype) in op.supported_dtypes("cpu")
    ]


def _names(op: Any) -> frozenset[str]:
    """The aten operators that an entry is there for."""
    return frozenset({op.aten_name or "", op.name.rpartition(".")[2], op.name.replace(".", "_")})


@functools.lru_cache(maxsize=1)
def _recorded(name: str, dtype: str, samples: int) -> replay.Recorder:
    op = _entries()[name]
    others = frozenset().union(*map(_names, _entries().values())) - _names(op)
    recorder = replay.Recorder(cap=3, skip=others)
    replay.record(op, getattr(torch, dtype), recorder, samples)
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


def _module_cases(name: str, dtype: str, check: str, samples: int) -> Cases:
    info, mode = modules.entries()[name], check.partition("_")[0]
    return [
        (sample, lambda one, module=module: modules.check(module, one, check.endswith("_grad")))
        for module, sample in modules.inputs(info, getattr(torch, dtype), mode == "train", samples)
    ]


def _optimizer_units(patterns: list[str], dtypes: list[str], checks: list[str]) -> list[Unit]:
    return [
        Unit("optimizers", name, dtype, tuple(c for c in checks if optimizers.applies(optimizers.entries()[name], c)))
        for dtype in dtypes
        for name in _matching(optimizers.entries(), patterns)
    ]


def _optimizer_cases(name: str, dtype: str, check: str, samples: int) -> Cases:
    info, t = optimizers.entries()[name], getattr(torch, dtype)
    return [
        (Sample(info, None, (), kwargs), lambda one: optimizers.check(info, one.kwargs, one, t, check))
        for kwargs in optimizers.inputs(info, t)
    ]


def _draw_units(patterns: list[str], dtypes: list[str], checks: list[str]) -> list[Unit]:
    return [
        Unit("distributions", name, dtype, tuple(checks))
        for dtype in dtypes
        for name in _matching(distributions.DRAWS, patterns)
        if dtype in distributions.DRAWS[name].dtypes
    ]


def _draw_cases(name: str, dtype: str, check: str, samples: int) -> Cases:
    draw, body = distributions.DRAWS[name], getattr(distributions, f"check_{check}")
    return [(Sample(draw, None, (), {}), lambda _: body(draw, getattr(torch, dtype)))]


# ------------------------------------------------------------------------------------------------------------- all


@dataclass(frozen=True)
class Suite:
    """A level's part: its checks and dtypes, its units, and the cases of a check (none in level 1, which replays calls)."""

    level: int
    checks: tuple[str, ...]
    dtypes: tuple[str, ...]
    units: Callable[[list[str], list[str], list[str]], list[Unit]]
    cases: Callable[[str, str, str, int], Cases] | None = None


_THREE = ("float32", "float64", "bfloat16")
SUITES = {
    "operators": Suite(2, (*device.SAMPLED, "errors"), DTYPES, _operator_units, _operator_cases),
    "modules": Suite(2, modules.CHECKS, _THREE, _module_units, _module_cases),
    "optimizers": Suite(2, tuple(optimizers.CHECKS), _THREE, _optimizer_units, _optimizer_cases),
    "distributions": Suite(2, distributions.CHECKS, DTYPES, _draw_units, _draw_cases),
    "functions": Suite(1, replay.CHECKS, (*DTYPES[:5], "complex64"), _function_units),
}


def checks() -> list[str]:
    """The names of all checks."""
    return list(dict.fromkeys(check for suite in SUITES.values() for check in suite.checks))


def plan(levels: list[int], patterns: list[str], dtypes: list[str], checks: list[str]) -> list[Unit]:
    """The units of a run: all suites of these levels, narrowed to matching entries, dtypes and checks."""
    units = []
    for suite in SUITES.values():
        if suite.level in levels:
            wanted = [c for c in suite.checks if not checks or c in checks]
            units += suite.units(patterns, [d for d in suite.dtypes if not dtypes or d in dtypes], wanted)
    return [unit for unit in units if unit.checks]


def execute(unit: Unit, check: str, samples: int) -> list[Row]:
    """The rows of one check of a unit: one for an entry, in level 1 one for each aten operator it called."""
    suite, place = SUITES[unit.suite], (unit.name, unit.dtype, check)
    if suite.cases is None:
        return _function_rows(*place, samples)
    exception = find(known(), *place)
    result = device.tally(suite.cases(*place, samples), exception)
    status = judge(result.passed, result.excepted, result.failed)
    own = exception is not None and exception.operator == unit.name and check in exception.checks
    if own and status in ("pass", "none"):  # these samples do not need its exception: then one of all the others must
        status = "known" if needs_exception(unit, check) else "stale"
    counts = result.passed, result.excepted, result.failed
    reason = exception.reason if exception is not None and status in ("known", "stale") else ""
    return [Row(unit.suite, *place, status, *counts, tuple(result.faults[:3]), reason)]


def needs_exception(unit: Unit, check: str) -> bool:
    """Whether a sample of all fails at a quarter of the tolerance: nearer than that, it would on another machine."""
    cases = SUITES[unit.suite].cases
    assert cases is not None, "exceptions of level 1 stand under the names of aten operators"
    return any(device.fails(sample, body) for sample, body in cases(unit.name, unit.dtype, check, ALL))

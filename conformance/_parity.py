"""The published table: `parity.json`, and the pages of docs/parity/ made from it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _rows import BAD, ROOT, STATUSES, Row

FILE = ROOT / "parity.json"
PAGES = ROOT / "docs/parity"
DTYPES = (
    "float32", "float64", "bfloat16", "float16", "int8", "int16", "int32", "int64", "uint8", "bool", "complex64",
    "complex128", "any",
)  # fmt: skip
# One letter a row: how it ended. "-" compared nothing or does not apply; "?" has not been run.
LETTERS = {"pass": "P", "known": "K", "stale": "S", "fail": "F", "timeout": "T", "crash": "C", "none": "-"}
NAMES = {letter: status for status, letter in LETTERS.items()} | {"?": "not run"}
TRIED = frozenset("PKSFTC")
SUITES = {
    "operators": "`op_db` on the device: each of PyTorch's operator entries, beside CPU",
    "functions": "the functions of `torchax_ops`, by the aten calls that `op_db` makes, without the device",
    "modules": "`module_db`: every module of `torch.nn`",
    "optimizers": "`optim_db`: every optimizer of `torch.optim`",
    "distributions": "random operators against scipy's distributions",
}

Table = dict[str, Any]
EMPTY: Table = {"rows": {}, "reasons": {}, "faults": {}}


def read(path: Path = FILE) -> Table:
    """The committed table, an empty one where there is none."""
    return json.loads(path.read_text()) if path.exists() else EMPTY


def merged(committed: Table, rows: Iterable[Row]) -> Table:
    """The committed table with these rows in place of its own."""
    table: Table = {"torch": version("torch"), "jax": version("jax"), "dtypes": DTYPES, "letters": NAMES}
    table |= {"run": 0, "planned": 0}
    table |= {kind: json.loads(json.dumps(committed[kind])) for kind in ("rows", "reasons", "faults")}
    for row in rows:
        checks = table["rows"].setdefault(row.suite, {}).setdefault(row.op, {})
        letters = list(checks.get(row.check, "?" * len(DTYPES)))
        letters[DTYPES.index(row.dtype)] = LETTERS[row.status]
        checks[row.check] = "".join(letters)
        key = " ".join(row.key)
        for kind, text in (
            ("reasons", row.reason if row.status == "known" else ""),
            ("faults", row.faults[0] if row.status in BAD and row.faults else ""),
        ):
            table[kind].pop(key, None)
            if text:
                table[kind][key] = " ".join(text.split())[:300]
    return table


def worse(committed: Table, rows: Iterable[Row]) -> list[str]:
    """The rows whose status is worse than the committed one; what passed and now compares nothing is worse too."""
    found = []
    for row in rows:
        letters = committed["rows"].get(row.suite, {}).get(row.op, {}).get(row.check)
        before = NAMES[letters[DTYPES.index(row.dtype)]] if letters else "not run"
        if before == "not run":
            continue
        lost = row.status == "none" and before in ("pass", "known")
        if lost or (before != "none" and STATUSES.index(row.status) > STATUSES.index(before)):
            found.append(f"{' '.join(row.key)}: {before} -> {row.status}. {(row.faults or ('',))[0]}")
    return sorted(found)


def write(table: Table, run: int, planned: int) -> None:
    """Write parity.json and the pages, the same bytes for the same table.

    ``run`` of the ``planned`` checks of entries and dtypes are in it.
    """
    table["run"], table["planned"] = run, planned
    table["rows"] = {
        suite: {op: dict(sorted(checks.items())) for op, checks in sorted(table["rows"][suite].items())}
        for suite in SUITES
        if suite in table["rows"]
    }
    for kind in ("reasons", "faults"):
        table[kind] = dict(sorted(table[kind].items()))
    FILE.write_text(_dump(table) + "\n")
    PAGES.mkdir(exist_ok=True)
    (PAGES / "index.md").write_text(_index(table))
    for suite in table["rows"]:
        (PAGES / f"{suite}.md").write_text(_page(table, suite))


def _dump(table: Table) -> str:
    """JSON with a line for an operator, so that a difference between two runs is one of lines."""
    suites = []
    for suite, ops in table["rows"].items():
        lines = (f"   {json.dumps(op)}: {json.dumps(checks)}" for op, checks in ops.items())
        suites.append(f"  {json.dumps(suite)}: {{\n" + ",\n".join(lines) + "\n  }")
    head = {k: v for k, v in sorted(table.items()) if k not in ("rows", "reasons", "faults")}
    parts = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
    parts.append(' "rows": {\n' + ",\n".join(suites) + "\n }")
    for kind in ("reasons", "faults"):
        lines = (f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in table[kind].items())
        parts.append(f' "{kind}": {{\n' + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}"


# ------------------------------------------------------------------------------------------------------- figures


def _count(letters: Iterable[str]) -> tuple[int, int, int]:
    """How many rows passed, by an exception or without, how many of them by one, and how many were tried."""
    letters = [letter for letter in letters if letter in TRIED]
    return sum(letter in "PK" for letter in letters), letters.count("K"), len(letters)


def _checks(ops: dict[str, dict[str, str]]) -> list[str]:
    """The checks of a suite, in the order of the first operator that has most of them."""
    found = {check for checks in ops.values() for check in checks}
    order = ["forward", "eager", "edges", "grad", "jvp", "gradgrad", "inplace", "out", "views", "jit", "vmap", "random"]
    return sorted(found, key=lambda check: (order.index(check) if check in order else len(order), check))


def figures(ops: dict[str, dict[str, str]]) -> str:
    """A table of checks and dtypes: rows passed of those tried."""
    used = [i for i in range(len(DTYPES)) if any(c[i] in TRIED for checks in ops.values() for c in checks.values())]
    lines = ["| check | " + " | ".join(DTYPES[i] for i in used) + " |", "| --- |" + " ---: |" * len(used)]
    for check in _checks(ops):
        cells = []
        for i in used:
            passed, known, tried = _count(checks[check][i] for checks in ops.values() if check in checks)
            cells.append(f"{passed} / {tried}" + (f" ({known} known)" if known else "") if tried else "–")
        lines.append(f"| {check} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(rows: Iterable[Row]) -> str:
    """The figures of rows, for a terminal."""
    table = merged(EMPTY, rows)
    lines = []
    for suite, ops in table["rows"].items():
        passed, known, tried = _count(letter for checks in ops.values() for row in checks.values() for letter in row)
        lines.append(f"{suite}: {passed} of {tried} rows pass, {known} of them by an exception")
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------------- pages


def _index(table: Table) -> str:
    letters = [x for ops in table["rows"].values() for checks in ops.values() for row in checks.values() for x in row]
    passed, known, tried = _count(letters)
    lines = [
        "# Parity",
        "",
        "Written by `nox -s conformance`; do not edit. A *row* is an operator, a dtype and a check, over several of PyTorch's own",
        f"test inputs, compared with CPU PyTorch {table['torch']} (JAX {table['jax']} on CPU) at the defaults of",
        "`torch.testing.assert_close`. *Known* rows pass at a wider bound, or differ, for a measured reason that the tables give.",
        "",
        f"**{passed} of {tried} rows pass ({100 * passed / max(tried, 1):.2f} %), {known} of them as known.** The run covers "
        f"{table['run']} of the {table['planned']} checks that there are of an entry in a dtype; where one compares nothing (a "
        "derivative of an integer, an in-place variant that does not exist), it makes no row.",
    ]
    for suite, ops in table["rows"].items():
        passed, known, tried = _count(x for checks in ops.values() for row in checks.values() for x in row)
        share = f"{passed} of {tried} rows pass, {known} known, {tried - passed} fail"
        lines += ["", f"## {suite.capitalize()}", "", f"{SUITES[suite]}: {share}. [All rows]({suite}.md).", ""]
        lines.append(figures(ops))
    return "\n".join(lines) + "\n"


def _page(table: Table, suite: str) -> str:
    ops = table["rows"][suite]
    checks = _checks(ops)
    notes: dict[str, list[str]] = {}
    for kind, word in (("reasons", ""), ("faults", "**fails:** ")):
        for key, text in table[kind].items():
            owner, op, dtype, check = key.split(" ")
            if owner == suite:
                notes.setdefault(op, []).append(f"{check} {dtype}: {word}{_escape(text)}")
    lines = [
        f"# {suite.capitalize()}",
        "",
        f"{SUITES[suite]}. A cell is dtypes passed of those tried; `*` marks known exceptions, given below the name, and dtypes",
        "that fail are named. A click on a heading sorts.",
        "",
        "| operator | " + " | ".join(checks) + " |",
        "| --- |" + " ---: |" * len(checks),
    ]
    for op, row in ops.items():
        name = f"`{op}`" + "".join(f"<br><small>{note}</small>" for note in _grouped(notes.get(op, [])))
        lines.append(f"| {name} | " + " | ".join(_cell(row.get(check, "")) for check in checks) + " |")
    return "\n".join(lines) + "\n"


def _grouped(notes: list[str]) -> list[str]:
    """Notes that differ only in check and dtype, as one."""
    places: dict[str, list[str]] = {}
    for note in notes:
        place, _, text = note.partition(": ")
        places.setdefault(text, []).append(place)
    return [f"{', '.join(places[text])}: {text}" for text in places]


def _escape(text: str) -> str:
    for character, code in {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        "|": "\\|",
        "*": "\\*",
        "_": "\\_",
        "`": "'",
    }.items():
        text = text.replace(character, code)
    return text


def _cell(letters: str) -> str:
    passed, known, tried = _count(letters)
    if not tried:
        return ""
    bad = [DTYPES[i] for i, letter in enumerate(letters) if letter in TRIED - set("PK")]
    return f"{passed}/{tried}" + ("\\*" if known else "") + (" " + " ".join(bad) if bad else "")

"""Known differences from CPU PyTorch: `exceptions.toml`, each with the bound that holds and the measured reason."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("exceptions.toml")
# A check, and the one whose exceptions hold for it too where it has none of its own: the same values by the same sums.
CHECKS = {
    "forward": "", "grad": "", "inplace": "", "out": "", "views": "", "errors": "", "random": "",
    "edges": "forward", "jit": "forward", "vmap": "forward", "eager": "forward", "jvp": "grad", "gradgrad": "grad",
    "train": "forward", "eval": "forward", "train_grad": "grad", "eval_grad": "grad", "step": "forward",
    "foreach": "forward", "fused": "forward", "capturable": "forward", "distribution": "", "repeats": "",
}  # fmt: skip
BOUNDS = frozenset({"float64", "ties", "phase", "shape", "differs"})


@dataclass(frozen=True)
class Known:
    """One entry: where it holds, and what is compared instead of `assert_close`'s defaults.

    The operator ``"*"`` is every one without an entry of its own; then ``witness`` names one that needs the exception.

    ``bound`` is ``{rtol=…, atol=…}`` or one of

    - ``"float64"``: the device's largest error against CPU's float64 answer is at most twice that of CPU itself;
    - ``"ties"``: indices may differ between equal elements, and pick the same values;
    - ``"phase"``: vectors may differ by a sign or a complex phase: absolute values are compared;
    - ``"shape"``: only dtype and shape are compared;
    - ``"differs"``: nothing is compared.
    """

    operator: str
    dtypes: tuple[str, ...]
    checks: tuple[str, ...]
    bound: Any
    reason: str
    witness: str


TIGHT = Known("", (), (), "tight", "a quarter of the default tolerance", "")


def load(path: Path = FILE) -> list[Known]:
    """All entries.

    Raises:
        ValueError: an entry is incomplete, or two cover the same operator, dtype and check.
    """
    found: list[Known] = []
    for entry in tomllib.loads(path.read_text()).get("exception", []):
        witness = entry.pop("witness", entry.get("operator"))
        if (
            entry.keys() != {"operator", "dtype", "check", "bound", "reason"}
            or witness == "*"
            or not entry["reason"].strip()
        ):
            raise ValueError(f"an exception has operator, dtype, check, bound and reason, not {entry}")
        bound, dtypes = entry["bound"], entry["dtype"]
        if not (bound.keys() == {"rtol", "atol"} if isinstance(bound, dict) else bound in BOUNDS):
            raise ValueError(f"{entry['operator']}: {bound} is neither {{rtol, atol}} nor one of {sorted(BOUNDS)}")
        if not CHECKS.keys() >= set(entry["check"]):
            raise ValueError(f"{entry['operator']}: no check is called {entry['check']}")
        found.append(Known(entry["operator"], tuple(dtypes), tuple(entry["check"]), bound, entry["reason"], witness))
    places = [(k.operator, d, c) for k in found for d in k.dtypes for c in k.checks]
    for place in places:
        if places.count(place) > 1:
            raise ValueError(f"{place} has two exceptions")
    return found


def find(known: list[Known], operator: str, dtype: str, check: str) -> Known | None:
    """The entry for an operator (an `op_db` name, or ``aten::`` name in a replay), dtype and check."""
    for one in (check, CHECKS[check]):
        fitting = [k for k in known if k.operator in (operator, "*") and dtype in k.dtypes and one in k.checks]
        if fitting:
            return min(fitting, key=lambda k: k.operator == "*")
    return None

"""Symbolic sizes of an exported program as those of ``jax.export``."""

from __future__ import annotations

from typing import Any

import jax
import sympy
from sympy.printing.str import StrPrinter
from torch.utils._sympy.numbers import int_oo


class _Printer(StrPrinter):
    """sympy expressions as ``jax.export.symbolic_shape`` reads them."""

    def _print_Pow(self, e: Any, rational: bool = False) -> str:
        return f"{self._print(e.base)}^{self._print(e.exp)}"

    def _function(self, name: str, e: Any) -> str:
        return f"{name}({', '.join(self._print(a) for a in e.args)})"

    def _print_FloorDiv(self, e: Any) -> str:
        return self._function("floordiv", e)

    _print_CleanDiv = _print_FloorDiv

    def _print_Mod(self, e: Any) -> str:
        return self._function("mod", e)

    _print_PythonMod = _print_Mod

    def _print_Max(self, e: Any) -> str:
        return self._function("max", e)

    def _print_Min(self, e: Any) -> str:
        return self._function("min", e)


def text(expr: Any) -> str:
    """A size as ``jax.export`` writes it.

    Raises:
        NotImplementedError: ``jax.export`` has no such expression.
    """
    expr = sympy.sympify(expr)
    written = _Printer().doprint(expr)
    for part in sympy.preorder_traversal(expr):
        if part.is_Function and not hasattr(_Printer, f"_print_{type(part).__name__}"):
            raise NotImplementedError(
                f"the size {expr} has no counterpart in jax.export, which knows +, -, *, //, %, max and min"
            )
    return written


def scope_of(ranges: Any) -> jax.export.SymbolicScope:
    """A scope with the ranges of an exported program's sizes (``ep.range_constraints``) as its constraints."""
    constraints = []
    for expr, found in ranges.items():
        if found.lower > 1:  # jax.export takes every size to be 1 at least
            constraints.append(f"{text(expr)} >= {found.lower}")
        if found.upper not in (int_oo, sympy.oo):
            constraints.append(f"{text(expr)} <= {found.upper}")
    return jax.export.SymbolicScope(constraints)

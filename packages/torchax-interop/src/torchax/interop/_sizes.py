"""PyTorch's symbolic sizes as those of ``jax.export``, and back."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import sympy
import torch
from sympy.printing.str import StrPrinter
from torch.fx.experimental.sym_node import SymNode


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


def text(size: Any) -> str:
    """A size (an ``int``, ``SymInt`` or sympy expression) as ``jax.export`` writes it.

    Raises:
        NotImplementedError: ``jax.export`` has no such expression.
    """
    expr = sympy.sympify(size.node.expr if isinstance(size, torch.SymInt) else size)
    for part in sympy.preorder_traversal(expr):
        if part.is_Function and not hasattr(_Printer, f"_print_{type(part).__name__}"):
            raise NotImplementedError(
                f"the size {expr} has no counterpart in jax.export, which knows +, -, *, //, %, max and min"
            )
    return _Printer().doprint(expr)


def in_scope(shape: Sequence[Any], scope: jax.export.SymbolicScope) -> tuple[Any, ...]:
    """A shape of PyTorch's as one of ``jax.export``'s."""
    return tuple(jax.export.symbolic_shape(f"({', '.join(map(text, shape))}{',' if shape else ''})", scope=scope))


_FUNCTIONS = {"floordiv": operator.floordiv, "mod": operator.mod, "max": torch.sym_max, "min": torch.sym_min}


@contextmanager
def symbolic(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[list[tuple[Any, ...]], Callable[[Any], Any]]]:
    """The tensors' shapes as ``jax.export``'s, and the function that takes a size computed from them back to PyTorch's."""
    sizes: list[Any] = [n for t in tensors for n in list[Any](t.shape) if isinstance(n, torch.SymInt)]
    known = {
        str(s): torch.SymInt(SymNode(s, n.node.shape_env, int, None)) for n in sizes for s in n.node.expr.free_symbols
    }
    if not sizes:
        yield [tuple(t.shape) for t in tensors], int
        return
    scope = jax.export.SymbolicScope()

    def back(size: Any) -> Any:
        if isinstance(size, int):
            return size
        # What jax.export writes is Python, but for the power.
        return eval(str(size).replace("^", "**"), {"__builtins__": {}, **_FUNCTIONS}, known)

    yield [in_scope(t.shape, scope) for t in tensors], back

"""A hook of mkdocs: writes the registered operators, section by section, into operators.md."""

from __future__ import annotations

import inspect
import sys
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torchax_ops

MARK = "<!-- operators -->"


def _modules() -> dict[str, ModuleType]:
    """The modules that hold operators: public, and no packages."""
    found = {n: m for n, m in sys.modules.items() if n.startswith("torchax_ops.") and not hasattr(m, "__path__")}
    return {n: m for n, m in found.items() if not n.rpartition(".")[2].startswith("_")}


def _home(fn: Callable[..., Any], modules: dict[str, ModuleType]) -> str:
    """The module that defines ``fn``; for one made by a shared helper, the first that has it."""
    if fn.__module__ in modules:
        return fn.__module__
    return next(name for name, module in modules.items() if any(value is fn for value in vars(module).values()))


def operators() -> str:
    """One heading a module, with its docstring's first line; under it a row for each function."""
    modules = _modules()
    sections: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    count = 0
    for op in torchax_ops.registered():
        count += 1
        sections[_home(op.fn, modules)][op.fn.__name__].append(op.name.removeprefix("aten::"))
    lines = [f"{count} overloads, {sum(map(len, sections.values()))} functions."]
    for name in sorted(sections):
        title = name.removeprefix("torchax_ops.").replace(".", "/")
        summary = (inspect.getdoc(modules[name]) or "").split("\n")[0]
        lines += ["", f"## {title}", "", summary, "", "| function | operators |", "| --- | --- |"]
        for fn, overloads in sorted(sections[name].items()):
            lines.append(f"| `{fn}` | {', '.join(f'`{o}`' for o in sorted(overloads))} |")
    return "\n".join(lines)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(MARK, operators()) if MARK in markdown else markdown

"""A hook of mkdocs: writes the registered operators, section by section, into operators.md."""

from __future__ import annotations

import inspect
from collections import defaultdict
from typing import Any

import torchax_ops

MARK = "<!-- operators -->"


def _section(module: str) -> str:
    return module.removeprefix("torchax_ops.").replace(".", "/")


def operators() -> str:
    """One heading a module, with its docstring's first line; under it a row for each function."""
    by_section: dict[str, dict[Any, list[str]]] = defaultdict(lambda: defaultdict(list))
    modules = {}
    for op in torchax_ops.registered():
        module = inspect.getmodule(inspect.unwrap(op.fn))
        name = op.fn.__module__
        modules[name] = inspect.getdoc(module) or ""
        by_section[name][op.fn].append(op.name.removeprefix("aten::"))
    total = sum(1 for _ in torchax_ops.registered())
    lines = [f"{total} overloads, {sum(map(len, by_section.values()))} functions."]
    for name in sorted(by_section, key=_section):
        lines += [
            "",
            f"## {_section(name)}",
            "",
            modules[name].split("\n")[0],
            "",
            "| function | operators |",
            "| --- | --- |",
        ]
        rows = {fn.__name__: names for fn, names in by_section[name].items()}
        lines += [f"| `{fn}` | {', '.join(f'`{n}`' for n in sorted(rows[fn]))} |" for fn in sorted(rows)]
    return "\n".join(lines)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(MARK, operators()) if MARK in markdown else markdown

"""Every Python block of the README and of the site runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("packages/*/README.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _blocks():
    for page in PAGES:
        text = page.read_text()
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start(1))
            yield pytest.param(page, line, found[1], id=f"{page.relative_to(ROOT)}:{line + 1}")


@pytest.mark.parametrize(("page", "line", "code"), list(_blocks()))
def test_block_runs(page, line, code):
    program = compile("\n" * line + code, str(page), "exec")
    exec(program, {"__name__": "__main__"})


def test_readme_shows_the_seven_things():
    assert len(BLOCK.findall((ROOT / "README.md").read_text())) >= 7


@pytest.mark.parametrize("session", ["quickstart", "tests"])
def test_readme_has_the_two_commands(session):
    assert f"python -m pip install nox && python -m nox -s {session}\n" in (ROOT / "README.md").read_text()


def test_ci_runs_the_readmes_test_command():
    assert "python -m pip install nox && python -m nox -s tests\n" in (ROOT / ".ci" / "run").read_text()

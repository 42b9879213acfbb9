"""google/torchax installed beside ours, simulated with its metadata (and its __init__) in a folder on the path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest


def _beside(folder: Path) -> None:
    info = folder / "torchax-0.0.13.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: torchax\nVersion: 0.0.13\n")


def _import_with(folder: Path, statement: str = "import torchax") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", statement], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )


def _torchax_folder() -> Path:
    return Path(find_spec("torchax").origin).parent


def test_importing_beside_google_torchax_says_what_to_uninstall(tmp_path):
    _beside(tmp_path)
    done = _import_with(tmp_path)
    assert done.returncode != 0
    assert "google/torchax 0.0.13" in done.stderr
    assert "python -m pip uninstall -y torchax" in done.stderr
    assert "python -m pip install --force-reinstall --no-deps torchax-core" in done.stderr


def test_importing_with_no_other_torchax_is_silent(tmp_path):
    done = _import_with(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("statement", ["from torchax import amp", "import torchax.amp"])
def test_google_torchax_installed_over_ours_says_so_too(tmp_path, statement):
    _beside(tmp_path)
    merged = tmp_path / "torchax"
    shutil.copytree(_torchax_folder(), merged, ignore=shutil.ignore_patterns("__pycache__"))
    (merged / "__init__.py").write_text(f"{statement}\n__version__ = '0.0.13'\n")
    for theirs in ("amp", "device_module", "tensor"):
        (merged / f"{theirs}.py").write_text("from torchax import amp\n")
    done = _import_with(tmp_path)
    assert done.returncode != 0
    assert "python -m pip uninstall -y torchax" in done.stderr


def test_an_init_taken_away_by_uninstalling_google_torchax_is_named(monkeypatch):
    from torchax._coexistence import check

    monkeypatch.setitem(sys.modules, "torchax", ModuleType("torchax"))
    with pytest.raises(ImportError, match=r"__init__\.py is missing(.|\n)*--force-reinstall --no-deps torchax-core"):
        check()

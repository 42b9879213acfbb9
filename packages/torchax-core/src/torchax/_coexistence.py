"""google/torchax (distribution ``torchax``) uses the same import name: say so, instead of failing strangely.

Both ship ``torchax/__init__.py``, so whichever was installed last wins. Where ours won, `check` is called by it. Where
theirs won, their ``__init__`` still imports names under which we ship a *package*, which Python prefers to their
module of that name (``torchax.amp``, ``torchax.interop``), and these call `check` too.
"""

from __future__ import annotations

import sys
from importlib import metadata

_OURS = ("torchax-core", "torchax-interop", "torchax-train")


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _reinstall() -> str:
    names = [name for name in _OURS if _installed(name)] or ["torchax-core"]
    return f"python -m pip install --force-reinstall --no-deps {' '.join(names)}"


def check() -> None:
    """Check that the ``torchax`` being imported is this project's, whole.

    Raises:
        ImportError: google/torchax is installed beside it, or has taken ``torchax/__init__.py`` with it when it was
            uninstalled. The message gives the commands that mend it.
    """
    theirs = _installed("torchax")
    if theirs:
        raise ImportError(
            f"google/torchax {theirs} (distribution 'torchax') is installed beside torchax-core, and both own the "
            "import name 'torchax'. Keep one. To keep torchax-core, run:\n"
            "    python -m pip uninstall -y torchax\n"
            f"    {_reinstall()}\n"
            "(the second restores the files that both had).",
            name="torchax",
        )
    package = sys.modules.get("torchax")
    if package is not None and getattr(package, "__file__", None) is None:
        raise ImportError(
            "torchax/__init__.py is missing, as it is after google/torchax (distribution 'torchax') was installed over "
            f"torchax-core and uninstalled. To restore it, run:\n    {_reinstall()}",
            name="torchax",
        )

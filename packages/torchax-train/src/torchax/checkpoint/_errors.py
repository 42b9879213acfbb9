"""The error of a checkpoint that cannot be written, read or made to fit."""

from __future__ import annotations

from collections.abc import Iterable


class CheckpointError(RuntimeError):
    """A file is damaged, unsafe or not what was asked for; the message names the file and the keys."""


def listed(names: Iterable[str], limit: int = 8) -> str:
    """``a, b, c and 5 more``."""
    names = list(names)
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")

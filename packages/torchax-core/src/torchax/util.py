"""``partition`` and ``merge``: take a sequence apart by a test, and put it together again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def partition(items: Iterable[Any], test: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    """Two lists as long as ``items``: what passes the test (``None`` elsewhere), and what does not (``None`` elsewhere)."""
    items = list(items)
    passed = [bool(test(x)) for x in items]
    return (
        [x if ok else None for x, ok in zip(items, passed, strict=True)],
        [None if ok else x for x, ok in zip(items, passed, strict=True)],
    )


def merge(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """What `partition` took apart.

    Raises:
        ValueError: the lists differ in length.
    """
    if len(first) != len(second):
        raise ValueError(f"merge: lists of {len(first)} and {len(second)} items")
    return [b if a is None else a for a, b in zip(first, second, strict=True)]

"""Rules: patterns of parameter names and how what they match is split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from jax.sharding import PartitionSpec

Sharder = Callable[[str, Any], PartitionSpec]


class Rules:
    """A sharder made of patterns; the first that matches counts.

    Args:
        rules: shell patterns over whole parameter names (``"*.q_proj.weight"``; ``*`` matches dots too) to
            ``PartitionSpec``s, or tuples of axis names and ``None``.
        default: what a parameter gets that none matches; replicated, if not given.
    """

    def __init__(
        self, rules: Mapping[str, PartitionSpec | tuple[Any, ...]], default: PartitionSpec | None = None
    ) -> None:
        self.rules = {pattern: s if isinstance(s, PartitionSpec) else PartitionSpec(*s) for pattern, s in rules.items()}
        self.default = PartitionSpec() if default is None else default

    def __call__(self, name: str, shaped: Any) -> PartitionSpec:
        return next((spec for pattern, spec in self.rules.items() if fnmatchcase(name, pattern)), self.default)

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """Patterns that match none of the names."""
        names = list(names)
        return [p for p in self.rules if not any(fnmatchcase(n, p) for n in names)]

    def __repr__(self) -> str:
        return f"Rules({self.rules}, default={self.default})"

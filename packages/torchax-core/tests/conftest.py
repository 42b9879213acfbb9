"""Marks the tests that `known_failures.toml` names as expected to fail, strictly."""

import tomllib
from pathlib import Path

import pytest

_GROUPS = tomllib.loads((Path(__file__).parent / "known_failures.toml").read_text()).get("group", [])
_REASONS = {test: group["reason"] for group in _GROUPS for test in group["tests"]}


def pytest_collection_modifyitems(items):
    for item in items:
        reason = _REASONS.get(f"{item.path.name}::{item.name}")
        if reason is not None:
            item.add_marker(pytest.mark.xfail(strict=True, reason=reason))

"""A small, fixed sample of the parity suite: every seventh unit of level 2, one dtype and check a test."""

import _suites
import pytest
from _rows import BAD

UNITS = _suites.plan([2], [], ["float32", "int64"], ["forward", "grad", "train_grad", "foreach", "distribution"])
CASES = [
    (unit, check) for unit in sorted(UNITS, key=lambda unit: (unit.name, unit.dtype))[::7] for check in unit.checks
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("unit", "check"), CASES, ids=[f"{unit.name}-{unit.dtype}-{check}" for unit, check in CASES])
def test_sample(unit, check):
    _suites.prepare()
    for row in _suites.execute(unit, check, 2):
        assert row.status not in BAD, row.faults

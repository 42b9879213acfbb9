"""Every known difference is still one: without its exception the check fails, with it the check passes."""

import _suites
import pytest
from _exceptions import load

SAMPLES = 8
KNOWN = [known for known in load() if not known.operator.startswith("aten::")]
PLACES = [(k.witness, d, c) for k in KNOWN for d in k.dtypes for c in k.checks]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("operator", "dtype", "check"), PLACES)
def test_exception(operator, dtype, check):
    _suites.prepare()
    units = _suites.plan([2], [operator], [dtype] if dtype != _suites.ANY else [], [check])
    (unit,) = (unit for unit in units if (unit.name, unit.dtype) == (operator, dtype))
    assert _suites.needs_exception(unit, check), "no longer needed: delete it from exceptions.toml"
    (row,) = _suites.execute(unit, check, SAMPLES)
    assert row.status == "known", row.faults

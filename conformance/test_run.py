"""The runner itself: what dies or hangs costs one row, what was done is not done again, what got worse is seen."""

import json

import _parity
import _pool
import pytest
from _rows import Log, Row, Unit, fold

SUITE = """
import os, time
from _rows import Row

def prepare(): pass

def execute(unit, check, samples):
    if check == "die":
        os._exit(11)
    if check == "hang":
        time.sleep(600)
    return [Row(unit.suite, unit.name, unit.dtype, check, "pass", passed=samples)]
"""


def row(check="forward", status="pass", **more):
    return Row("operators", "add", "float32", check, status, **more)


def test_workers_that_die_or_hang_cost_one_row(tmp_path, monkeypatch):
    (tmp_path / "one_suite.py").write_text(SUITE)
    monkeypatch.syspath_prepend(str(tmp_path))
    units = [Unit("operators", name, "float32", ("forward", "die", "grad", "hang", "out")) for name in ("add", "mul")]
    found = {
        (unit.name, check): row.status
        for unit, check, rows, _ in _pool.run(units, workers=2, samples=3, timeout=5, suites="one_suite")
        for row in rows
    }
    expected = {"forward": "pass", "die": "crash", "grad": "pass", "hang": "timeout", "out": "pass"}
    assert found == {(name, check): status for name in ("add", "mul") for check, status in expected.items()}


def test_workers_that_cannot_start_end_the_run(tmp_path, monkeypatch):
    (tmp_path / "broken_suite.py").write_text("import os; os._exit(1)")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuntimeError, match="die at once"):
        list(_pool.run([Unit("operators", "add", "float32", ("forward",))], 1, 3, 5, suites="broken_suite"))


def test_a_log_cut_off_by_a_kill_goes_on(tmp_path):
    log, unit = Log(tmp_path / "rows.jsonl", 3), Unit("operators", "add", "float32", ("forward", "grad"))
    log.append(unit, "forward", [row()], 0.1)
    with log.path.open("a") as file:
        file.write('{"key": ["operators", "add"')
    log.append(unit, "grad", [row("grad", "fail", failed=1, faults=("no",))], 0.1)
    done = log.read()
    assert done[("operators", "add", "float32", "forward")] == [row()]
    assert done[("operators", "add", "float32", "grad")][0].faults == ("no",)
    assert Log(log.path, 4).read() == {}, "rows of other samples count as done"
    assert len(Log(log.path, 4).read(any_sources=True)) == 2


def test_fold_adds_counts_and_keeps_the_worst():
    one, other = row(passed=2), row(status="fail", passed=1, failed=1, faults=("no",))
    (whole,) = fold([one, other]).values()
    assert (whole.status, whole.passed, whole.failed, whole.faults) == ("fail", 3, 1, ("no",))


def test_what_got_worse_is_named():
    committed = _parity.merged(_parity.EMPTY, [row(), row("grad", "known"), row("out", "fail"), row("jit", "none")])
    now = [row(status="none"), row("grad", "pass"), row("out", "pass"), row("jit", "fail"), row("views", "fail")]
    assert [line.partition(".")[0] for line in _parity.worse(committed, now)] == [
        "operators add float32 forward: pass -> none"
    ]
    (line,) = _parity.worse(committed, [row("grad", "timeout", faults=("longer than 5 s",))])
    assert line == "operators add float32 grad: known -> timeout. longer than 5 s"


def test_the_pages_say_what_the_table_says(tmp_path, monkeypatch):
    monkeypatch.setattr(_parity, "FILE", tmp_path / "parity.json")
    monkeypatch.setattr(_parity, "PAGES", tmp_path / "parity")
    rows = [row(), row("grad", "known", reason="rounds | otherwise"), row("out", "fail", faults=("wrong <here>",))]
    _parity.write(_parity.merged(_parity.EMPTY, rows), 3, 4)
    assert json.loads(_parity.FILE.read_text()) == _parity.read(_parity.FILE)
    page = (tmp_path / "parity" / "operators.md").read_text()
    assert "| 1/1 | 1/1\\* | 0/1 float32 |" in page
    assert "rounds \\| otherwise" in page
    assert "wrong &lt;here&gt;" in page
    index = (tmp_path / "parity" / "index.md").read_text()
    assert "**2 of 3 rows pass (66.67 %), 1 of them as known.**" in index
    assert "covers 3 of the 4 checks" in index
    assert _parity.worse(_parity.read(_parity.FILE), rows) == []

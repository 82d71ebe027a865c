"""What a run against reconciliation comes to, by hand."""

import json
from pathlib import Path

from tests.traffic.audits import Audit, compare
from tests.traffic.report import Report, count_kinds

AUDIT = Audit("planted", "runs/1", 12.0, 5, 1, 40, 2, (("a", "MISSING"), ("b", "PHANTOM")), 0)


def make_report(broken: list[str]) -> Report:
    truth = {("a", "MISSING"), ("c", "ORPHAN")}
    return Report(
        broken=broken,
        seed=8,
        commit="1234567",
        versions={"Kafka": "4.3.1"},
        seconds=100.0,
        reached={"kills": (2, 3)},
        done={"kill": 3},
        looked_at={"COMMITTED": 5},
        audits=[AUDIT],
        planted=count_kinds(truth),
        found=count_kinds(AUDIT.findings),
        same={"two runs": False},
    )


def test_what_is_not_found_and_what_is_false_are_told_apart() -> None:
    """A finding too many does not make up for one that is not there."""
    assert compare(AUDIT, {("a", "MISSING"), ("c", "ORPHAN")}) == [
        "planted: ORPHAN of c not found",
        "planted: PHANTOM of b is false",
    ]
    assert compare(AUDIT, set(AUDIT.findings)) == []


def test_report_shows_what_is_broken_and_every_kind(tmp_path: Path) -> None:
    """Nobody must look for a failure, or for what was not planted."""
    report = make_report(["planted: ORPHAN of c not found"])
    report.write(tmp_path, "traffic", report.markdown())
    assert json.loads((tmp_path / "traffic.json").read_text())["found"] == {"MISSING": 1, "PHANTOM": 1}
    text = (tmp_path / "traffic.md").read_text()
    assert text.splitlines()[2].startswith("BAD. ")
    for line in ("| ORPHAN | 1 | 0 |", "| PHANTOM | 0 | 1 |", "| STALE | 0 | 0 |", "* planted: ORPHAN of c not found"):
        assert line in text.splitlines()
    assert "* two runs: NOT byte-equal" in text
    assert "GOOD" in make_report([]).markdown()

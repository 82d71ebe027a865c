"""The ledger's file: what it is read as, and when it is refused."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from spark.errors import BadUsage
from spark.report.files import Run, RunIndex

ENTRY = Run(1, 1, "2026-11-22T18:08:55.058Z", 3, 2, 1, 0, closing=1, p95_ms=None)


def write(folder: Path, **changed: object) -> RunIndex:
    members = {name: value for name, value in (asdict(ENTRY) | changed).items() if value != "absent"}
    (folder / "ledger.json").write_text(json.dumps({"v": 1, "runs": [members]}))
    return RunIndex.open(folder)


def test_run_without_ended_transactions_is_read_again(tmp_path: Path) -> None:
    """It has no times; the next run must not take it for damaged."""
    RunIndex.open(tmp_path).add(ENTRY)
    assert RunIndex.open(tmp_path).entries == [ENTRY]


def test_ledger_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """What it does not tell is not known; a comparison is left out then."""
    assert write(tmp_path, closing="absent", p95_ms="absent").entries[0].closing is None


@pytest.mark.parametrize("changed", [{"run": None}, {"findings": "7"}, {"closing": "1"}, {"run": "absent"}])
def test_damaged_ledger_is_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    """With what to do."""
    with pytest.raises(BadUsage) as raised:
        write(tmp_path, **changed)
    assert raised.value.remedy

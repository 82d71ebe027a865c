"""Windows, ledgers and options: what is read back is what was written, and nonsense is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark.errors import BadUsage
from spark.options import parse_groups
from spark.read.envelope import GroupTimes, OffsetRange, QueuePlace
from spark.read.window import Window, decode_window, encode_window
from spark.report.files import Run, RunIndex

WINDOW = Window(
    "half",
    "op",
    "parked",
    5,
    {QueuePlace("orders", 1): OffsetRange(3, 9, 8), QueuePlace("half", 0): OffsetRange(0, 4, 4)},
)


def test_window_survives_its_file() -> None:
    """Number for number."""
    assert decode_window(encode_window(WINDOW)) == WINDOW
    assert WINDOW.real == ["orders"]


def test_queue_that_held_nothing_is_known_from_its_window_on() -> None:
    """Of another queue everything is known from its first record on."""
    window = replace(
        WINDOW,
        extents={QueuePlace("half", 0): OffsetRange(4, 4, 4), QueuePlace("half", 1): OffsetRange(4, 9, 9, first_ms=3)},
    )
    assert [extent.first_ms for extent in window.make_origins().values()] == [5, 3]


@pytest.mark.parametrize(
    ("members", "anew_ms"),
    [
        pytest.param({}, 9, id="made anew"),
        pytest.param({"taken_ms": 9}, 0, id="an older window read again"),
        pytest.param({"topic_ids": {"half": "J", "orders": "A"}}, 0, id="another bridge"),
        pytest.param({"topic_ids": {}}, 0, id="of an older release"),
    ],
)
def test_topic_that_was_made_anew_is_known_by_its_id(members: dict[str, Any], anew_ms: int) -> None:
    """In every later run of the folder, too, and in no other topic; with another journal it was another bridge."""
    orders = QueuePlace("orders", 1)
    last = replace(WINDOW, **{"topic_ids": {"half": "H", "orders": "A"}, **members})
    now = replace(WINDOW, taken_ms=9, topic_ids={"half": "H", "orders": "B"}).after(last)
    later = replace(WINDOW, taken_ms=12, topic_ids=now.topic_ids).after(decode_window(encode_window(now)))
    for window in (now, later):
        assert {place: extent.anew_ms for place, extent in window.extents.items() if extent.anew_ms} == (
            {orders: anew_ms} if anew_ms else {}
        )
        assert window.extents[orders].is_whole is not bool(anew_ms)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"v": 2}', encode_window(WINDOW).replace('"end": 9', '"end": 2'), encode_window(WINDOW)[:-9]]
)
def test_bad_window_is_refused(text: str) -> None:
    """Before anything is read."""
    with pytest.raises(BadUsage):
        decode_window(text)


def test_killed_run_leaves_its_number_to_the_next(tmp_path: Path) -> None:
    """Only what the ledger names counts."""
    ledger = RunIndex.open(tmp_path)
    run, folder = ledger.make_folder()
    (folder / "half-written").write_text("x")
    again, folder = RunIndex.open(tmp_path).make_folder()
    assert (run, again, list(folder.iterdir())) == (1, 1, [])
    ledger.add(Run(1, 1, "t", 2, 1, 1, 0))
    known = RunIndex.open(tmp_path)
    assert known.last == Run(1, 1, "t", 2, 1, 1, 0)
    assert known.make_folder()[0] == 2


def test_chain_holds_the_windows_that_lie_one_behind_the_other(tmp_path: Path) -> None:
    """A run from the beginning starts a new one."""
    entries = [Run(run, begins, "t", 0, 0, 0, 0) for run, begins in ((1, 1), (2, 1), (3, 3), (4, 3))]
    ledger = RunIndex(tmp_path, entries)
    assert ledger.chain_of(entries[1]) == [1, 2]
    assert ledger.chain_of(entries[3]) == [3, 4]


def test_damaged_ledger_is_refused(tmp_path: Path) -> None:
    """Reading on from a guess would hide what lies between."""
    (tmp_path / "ledger.json").write_text("{")
    with pytest.raises(BadUsage):
        RunIndex.open(tmp_path)


def test_groups_are_read_as_the_api_tells_them() -> None:
    """Seconds, which may have fractions."""
    check = {"transaction_timeout_seconds": 6.5, "max_checks": 15, "max_lifetime_seconds": 60.0, "mode": "push"}
    assert parse_groups({"producer_groups": [{"name": "shop", "check": check}]}) == {
        "shop": GroupTimes(6_500, 15, 60_000)
    }
    paused = parse_groups({"producer_groups": [{"name": "shop", "check": check, "checks_paused": True}]})
    assert paused["shop"].is_paused
    with pytest.raises(BadUsage):
        parse_groups({"producer_groups": [{"name": "shop"}]})

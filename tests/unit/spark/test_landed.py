"""Which landed folders make a window: whatever was landed one behind the other, and nothing with a gap."""

import shutil
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.topics import with_prefix
from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from spark import reconcile
from spark.errors import BadUsage, Indeterminate
from spark.options import Options
from spark.read.envelope import OffsetRange, QueuePlace
from spark.read.events import IngestedEvents, _folders_since_birth
from spark.read.window import Window, complete_units, encode_window, find_landed
from spark.report.files import Run, RunIndex

JOURNAL, ORDERS = QueuePlace("half", 0), QueuePlace("orders", 1)
Marks = list[tuple[int, int]]
_HOUR_MS = 3_600_000


def window(start: tuple[int, int], end: tuple[int, int]) -> Window:
    extents = {
        place: OffsetRange(low, high, high) for place, low, high in zip((JOURNAL, ORDERS), start, end, strict=True)
    }
    return Window("half", "op", "parked", end[0], extents)


def land(folder: Path, marks: Marks) -> None:
    """A unit from each mark to the next, and one behind them that was killed."""
    for number, (start, end) in enumerate(pairwise(marks), start=1):
        unit = folder / f"{number:06d}"
        unit.mkdir(parents=True)
        (unit / "window.json").write_text(encode_window(window(start, end)))
    (folder / f"{len(marks):06d}" / "events").mkdir(parents=True)


steps = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6)


def add_up(steps: Marks) -> Marks:
    marks = [(0, 0)]
    for journal, orders in steps:
        marks.append((marks[-1][0] + journal, marks[-1][1] + orders))
    return marks


@given(steps, st.data())
def test_units_make_one_window_from_any_place_on(steps: Marks, data: st.DataObject) -> None:
    """From wherever the last run ended, also inside a unit; units that hold nothing of it are left alone."""
    marks = add_up(steps)
    since = tuple(data.draw(st.integers(0, end)) for end in marks[-1])
    with tempfile.TemporaryDirectory() as name:
        land(Path(name), marks)
        whole = find_landed(Path(name))
        rest = find_landed(Path(name), {JOURNAL: since[0], ORDERS: since[1]})
        again = find_landed(Path(name), window=rest.window)
    assert (whole.window.extents, len(whole.units)) == (window(marks[0], marks[-1]).extents, len(steps))
    assert {place: (extent.start, extent.end) for place, extent in rest.window.extents.items()} == {
        JOURNAL: (since[0], marks[-1][0]),
        ORDERS: (since[1], marks[-1][1]),
    }
    first = len(steps) - len(rest.units)
    assert all(mark <= start for mark, start in zip(marks[first], since, strict=True))
    if len(rest.units) > 1:
        assert any(mark > start for mark, start in zip(marks[first + 1], since, strict=True))
    assert again.units == rest.units


def test_what_was_not_landed_is_told(tmp_path: Path) -> None:
    """A gap, a beginning that was removed, an end not reached: never a window that seems whole."""
    land(tmp_path, [(0, 0), (4, 1), (6, 3), (9, 3)])
    with pytest.raises(Indeterminate, match="landed up to 9; the last run has read up to 10"):
        find_landed(tmp_path, {JOURNAL: 10, ORDERS: 3})
    with pytest.raises(BadUsage, match="nothing of orders-7"):
        find_landed(tmp_path, {QueuePlace("orders", 7): 0})
    wanted = window((1, 0), (9, 4))
    with pytest.raises(BadUsage, match="holds orders-1 up to 3, the window ends at 4"):
        find_landed(tmp_path, window=wanted)
    shutil.rmtree(tmp_path / "000001")
    shortened = find_landed(tmp_path).window.extents
    assert shortened[JOURNAL] == replace(shortened[JOURNAL], start=4, end=9, is_whole=False)
    with pytest.raises(BadUsage, match="nothing of half-0 from 3 on"):
        find_landed(tmp_path, {JOURNAL: 3, ORDERS: 1})
    land(tmp_path / "gap", [(0, 0), (4, 1), (6, 3), (9, 3)])
    shutil.rmtree(tmp_path / "gap" / "000002")
    with pytest.raises(BadUsage, match="half-0 was landed up to 4, then from 6 on"):
        find_landed(tmp_path / "gap")
    with pytest.raises(BadUsage, match="holds nothing that was landed"):
        find_landed(tmp_path / "none")


def test_millionth_landing_comes_last(tmp_path: Path) -> None:
    """Two years of minutes: else each later landing was made in its place, and no run found the one before it."""
    land(tmp_path, [(0, 0), (4, 1), (6, 3)])
    (tmp_path / "000001").rename(tmp_path / "999999")
    (tmp_path / "000002").rename(tmp_path / "1000000")
    assert [unit.name for unit in complete_units(tmp_path)] == ["999999", "1000000"]
    assert find_landed(tmp_path).window.extents == window((0, 0), (6, 3)).extents
    entry = Run(999_999, 1, "2026-01-01T00:00:00Z", 0, 0, 0, 0)
    (tmp_path / "runs" / "999999").mkdir(parents=True)
    assert RunIndex(tmp_path / "runs", [entry]).make_folder()[0] == 1_000_000


@pytest.mark.parametrize(
    ("known", "options", "reason"),
    [
        (window((0, 0), (4, 3)), ["--landed", "landed"], "topic orders was made anew since the last run"),
        (window((0, 0), (4, 3)), ["--window", "other.json"], "topic orders was made anew since the last run"),
        (window((0, 0), (4, 3)), ["--window", "less.json"], "the last run read orders-1"),
        (None, ["--landed", "landed", "--window", "old.json"], "landed holds another topic orders than the window"),
    ],
)
def test_offsets_mean_nothing_in_a_topic_made_anew(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    known: Window | None,
    options: list[str],
    reason: str,
) -> None:
    """A new one begins at 0, also in a new folder: read on from the old end, what is before would be passed over."""
    monkeypatch.chdir(tmp_path)
    older, newer = {"half": "a", "orders": "b"}, {"half": "a", "orders": "c"}
    other = replace(window((4, 3), (9, 9)), topic_ids=newer)
    Path("landed/000001").mkdir(parents=True)
    Path("landed/000001/window.json").write_text(encode_window(replace(window((0, 0), (9, 9)), topic_ids=newer)))
    Path("other.json").write_text(encode_window(other))
    Path("old.json").write_text(encode_window(replace(other, topic_ids=older)))
    less = {place: extent for place, extent in other.extents.items() if place != ORDERS}
    Path("less.json").write_text(encode_window(replace(other, extents=less, topic_ids={"half": "a"})))
    if known is not None:
        Path("out/000001").mkdir(parents=True)
        Path("out/000001/window.json").write_text(encode_window(replace(known, topic_ids=older)))
        RunIndex.open(Path("out")).add(Run(1, 1, "t", 2, 1, 1, 0))
    arguments = ["--out", "out", "--kafka", "127.0.0.1:1", *options, *(["--since-last"] if known else [])]
    assert reconcile.main(arguments) == BadUsage.exit_code
    assert reason in capsys.readouterr().err


def test_window_is_read_again_until_op_messages_may_be_compacted(tmp_path: Path) -> None:
    """One that a later one of its transaction has replaced, behind the window's end, would be missed; but not where it
    was landed."""
    for hours, is_refused in ((23, False), (25, True)):
        taken = replace(window((0, 0), (9, 9)), taken_ms=time.time_ns() // 1_000_000 - hours * _HOUR_MS)
        (tmp_path / "events").mkdir(exist_ok=True)
        (tmp_path / "window.json").write_text(encode_window(taken))
        direct = Options(tmp_path / "out", with_prefix(""), {}, window=tmp_path / "window.json")
        with pytest.raises(BadUsage, match="more than a day ago") if is_refused else nullcontext():
            assert reconcile._choose_window(direct, RunIndex(direct.out, []), None) == (taken, [])
        landed = replace(direct, landed=tmp_path)
        assert reconcile._choose_window(landed, RunIndex(direct.out, []), None) == (taken, [tmp_path])


@pytest.mark.parametrize(
    ("born_ms", "numbers"), [(5 * _HOUR_MS, [2]), (_HOUR_MS, [1, 2]), (1 << 47, [1, 2]), (None, [1, 2])]
)
def test_history_is_looked_through_as_far_back_as_an_id_may_come_from(
    born_ms: int | None, numbers: list[int], tmp_path: Path
) -> None:
    """The digests of one idempotency key in 64 look like an id with a time, mostly a time to come: it says nothing."""
    folders = [tmp_path / str(number) for number in (1, 2)]
    for folder, taken_ms in zip(folders, (2 * _HOUR_MS, 4 * _HOUR_MS), strict=True):
        folder.mkdir()
        (folder / "window.json").write_text(encode_window(replace(window((0, 0), (0, 0)), taken_ms=taken_ms)))
    landed = IngestedEvents(tmp_path / "3", folders, 5 * _HOUR_MS)
    tx = make_transaction_id(0, 123 if born_ms is None else make_uuid7_bits(born_ms, 1))
    assert sorted(_folders_since_birth(landed, [tx])) == [folders[number - 1] for number in numbers]

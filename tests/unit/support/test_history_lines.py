"""Histories in files, and events from HTTP answers."""

import os
from pathlib import Path

import pytest

from bridge.core.message import Header, Message, Receipt
from tests.support.history.content import make_content, mark, mark_headers
from tests.support.history.events import Call, Event, Fail, Invoke, Ok, Unknown, make_end
from tests.support.history.lines import LineReader, LineWriter

CONTENT = make_content(Message("orders", b"\xff\x00", None, [("a", b""), ("a", None)], 2, 5))
INVOKE = Invoke("c-1", 1, Call.PREPARE, group="g", messages=(CONTENT,), ordering_key="", idempotency_key="K")
ENDS = (
    Ok("c-1", 2, 200, "t", "COMMITTED", receipts=(Receipt("orders", 2, 7), Receipt("orders", 1, None))),
    Fail("c-2", 3, 409, "t", "ROLLED_BACK", problem="already-resolved", outcome="not_applied"),
    Unknown("c-3", 4),
)


def append_raw(path: Path, raw: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(file, raw)
    os.close(file)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with an invoke and its end."""
    path = tmp_path / "client.jsonl"
    writer = LineWriter(path)
    writer.write(INVOKE)
    writer.write(ENDS[0])
    writer.close()
    return path


def test_events_come_back_as_written(path: Path) -> None:
    """Null is not empty; bytes need not be text."""
    writer = LineWriter(path)
    for event in ENDS[1:]:
        writer.write(event)
    writer.close()
    reader: LineReader[Event] = LineReader(Event, path)
    assert list(reader) == [INVOKE, *ENDS]
    assert list(reader) == [INVOKE, *ENDS]  # read anew
    assert reader.torn == 0


def test_torn_last_line_is_left_out_and_counted(path: Path) -> None:
    """A kill in the middle of a write costs that event, no other."""
    append_raw(path, b'{"event":"inv')
    reader: LineReader[Event] = LineReader(Event, path)
    assert list(reader) == [INVOKE, ENDS[0]]
    assert reader.torn == 1


def test_writer_goes_on_behind_a_torn_line(path: Path) -> None:
    """The next event must not be glued to what the killed writer left."""
    append_raw(path, b'{"event":"inv')
    writer = LineWriter(path)
    writer.write(ENDS[1])
    writer.close()
    reader: LineReader[Event] = LineReader(Event, path)
    assert list(reader) == [INVOKE, ENDS[0], ENDS[1]]
    assert reader.torn == 1


def test_whole_line_that_cannot_be_read_is_an_error(path: Path) -> None:
    """Only what a kill can do is forgiven."""
    append_raw(path, b'{"event":"invoke"}\n')
    with pytest.raises(ValueError, match=r"client\.jsonl line 3"):
        list(LineReader(Event, path))


def test_line_is_written_when_write_returns(path: Path) -> None:
    """Nothing waits in the process: it may be killed at once."""
    writer = LineWriter(path)
    before = path.stat().st_size
    writer.write(ENDS[1])
    assert path.stat().st_size > before
    writer.close()


def test_several_files_are_read_one_after_the_other(path: Path, tmp_path: Path) -> None:
    """One file for each client."""
    other = tmp_path / "other.jsonl"
    writer = LineWriter(other)
    writer.write(ENDS[2])
    writer.close()
    assert list(LineReader(Event, path, other)) == [INVOKE, ENDS[0], ENDS[2]]


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (201, {"transaction_id": "t", "state": "PREPARED"}, Ok),
        (202, {"transaction_id": "t", "resolution": "COMMIT"}, Ok),
        (409, {"type": "x/already-resolved", "outcome": "not_applied", "state": "COMMITTED"}, Fail),
        (503, {"type": "x/unavailable", "outcome": "not_applied"}, Fail),
        (503, {"type": "x/unavailable", "outcome": "unknown"}, Unknown),
        (503, {"type": "x/projection-behind"}, Unknown),
        (504, {"type": "x/outcome-unknown", "outcome": "unknown", "transaction_id": "t"}, Unknown),
        (500, {}, Unknown),
        (200, None, Unknown),
        (0, None, Unknown),
    ],
)
def test_answers_become_ends(status: int, body: dict[str, object] | None, kind: type) -> None:
    """A time-out is never a refusal, nor is half an answer a success."""
    assert type(make_end("c-1", 5, status, body)) is kind


def test_ends_keep_what_was_heard() -> None:
    """State, receipts, and the code of the problem."""
    receipts = [{"topic": "orders", "partition": 1, "offset": 7}]
    body = {"transaction_id": "t", "state": "COMMITTED", "blocked": False, "receipts": receipts, "check_times": 2}
    heard = make_end("c-1", 5, 200, body)
    assert heard == Ok("c-1", 5, 200, "t", "COMMITTED", receipts=(Receipt("orders", 1, 7),), check_times=2)
    refused = make_end("c-1", 5, 409, {"type": "https://x/problems/not-parked", "outcome": "not_applied"})
    assert refused == Fail("c-1", 5, 409, problem="not-parked", outcome="not_applied")


@pytest.mark.parametrize("raw", [None, b"", b"x" * 24, b"x" * 25, b"#" + b"x" * 24, b"x" * 1_000_000])
def test_marks_tell_bytes_apart(raw: bytes | None) -> None:
    """Null, empty, short and long ones, and those that look like the digest of others."""
    others = [None, b"", b"x", b"x" * 23, b"x" * 26, b"x" * 999_999, mark(b"x" * 25), mark(b"x" * 1_000_000)]
    assert mark(raw) not in [mark(other) for other in others if other != raw]
    assert len(mark(raw) or b"") <= 25


def test_header_lists_are_told_apart() -> None:
    """Order, repeats, null against empty, and where a name ends."""
    one, two = ("a", b"1"), ("b", b"2")
    lists: list[list[Header]] = [[], [("a", None)], [("a", b"")], [one, two], [two, one], [one, one], [one],
             [("ab", b"")], [("a", b"b")], [("a", b"-;")]]  # fmt: skip
    assert len({mark_headers(headers) for headers in lists}) == len(lists)

"""Whose turn it is."""

import pytest

from bridge.directory import Endpoint
from checker.concurrency import COOLING_MS, EndpointRotation, read_pause_ms, retry_after_ms

A, B, C = Endpoint("https://a.example/"), Endpoint("https://b.example/"), Endpoint("https://c.example/")
ALL = (A, B, C)


def first_of(turns: EndpointRotation, count: int, monotonic_ms: int = 0) -> str:
    """The hosts that come first in so many rounds."""
    return "".join(turns.order(ALL, monotonic_ms).urls[0][8] for _ in range(count))


def test_round_robin_with_the_others_behind() -> None:
    """Each round begins with the next endpoint and goes on with the rest."""
    turns = EndpointRotation()
    assert list(turns.order(ALL, 0).urls) == [A.url, B.url, C.url]
    assert list(turns.order(ALL, 0).urls) == [B.url, C.url, A.url]
    assert first_of(turns, 4) == "cabc"


def test_failed_lately_is_tried_last() -> None:
    """A dead instance does not cost every third round its deadline, but is not given up."""
    turns = EndpointRotation()
    turns.note_failure(A.url, 1_000)
    assert "a" not in first_of(turns, 6, 1_000 + COOLING_MS - 1)
    assert A.url in turns.order(ALL, 2_000).urls
    assert "a" in first_of(turns, 3, 1_000 + COOLING_MS)


def test_answer_ends_the_cooling() -> None:
    """An endpoint that answered takes its turn again at once."""
    turns = EndpointRotation()
    turns.note_answer(A.url)
    turns.note_failure(A.url, 0)
    turns.note_answer(A.url)
    assert first_of(turns, 3) == "abc"


def test_paused_endpoints_are_left_alone() -> None:
    """429: not before the pause is over, even if nobody else is there."""
    turns = EndpointRotation()
    turns.pause(A.url, 5_000)
    assert turns.order((A,), 4_999) == ((), 1)
    assert list(turns.order((A,), 5_000).urls) == [A.url]
    assert turns.order(ALL, 4_999) == ([C.url, B.url], 1)


def test_disabled_endpoints_are_not_asked() -> None:
    """410 disables; leases are the directory's, which shows none that is over."""
    gone, leased = Endpoint("u", disabled_reason="410 Gone"), Endpoint("v", is_leased=True, lease_until_ms=100)
    for look in (EndpointRotation().order, EndpointRotation().peek):
        assert look((gone,), 0) == ((), 0)
        assert look((gone, leased), 10**9) == (["v"], 0)


def test_marks_of_removed_endpoints_are_forgotten() -> None:
    """Instances that come and go leave nothing behind."""
    turns = EndpointRotation()
    for number in range(100):
        turns.note_failure(f"https://{number}.example/", 0)
        turns.pause(f"https://{number}.example/", 10**9)
    turns.order(ALL, 0)
    assert (len(turns._failed_ms), len(turns._paused_until_ms)) == (0, 0)


def test_peeking_takes_no_turn() -> None:
    """Looking whether somebody is there does not skip anybody."""
    turns = EndpointRotation()
    turns.peek(ALL, 0)
    assert first_of(turns, 3) == "abc"


@pytest.mark.parametrize(
    ("header", "pause_ms"),
    [
        ("7", 7_000),
        ("0", 1_000),
        (None, 1_000),
        ("86400", 300_000),
        ("999999999", 300_000),
        ("9999999999", 1_000),
        ("-5", 1_000),
        ("\u0667", 1_000),
        ("Wed, 21 Oct 2099 07:28:00 GMT", 1_000),
    ],
)
def test_retry_after_is_honoured_in_bounds(header: str | None, pause_ms: int) -> None:
    """Nobody silences the checker for a day, or makes it hammer."""
    assert retry_after_ms(header) == pause_ms


def test_pause_that_is_no_number_is_none() -> None:
    """However long it is."""
    assert [read_pause_ms(header) for header in ("86400", "0", None, "soon", "9" * 5_000)] == [86_400_000, 0, 0, 0, 0]

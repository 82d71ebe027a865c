"""Rows over HTTP to a bridge, or to whatever stands before it."""

from collections.abc import Iterator

import pytest

from outbox.client.errors import HandOverUnavailable
from outbox.hand_over import HttpHandOver, OutboxRow, PublishStatus
from tests.support.canned_http import CannedServer, canned_server

TOGETHER, ALONE = "/v1/messages/batch", "/v1/messages"
DONE = {"transaction_id": "t1", "state": "COMMITTED"}
ALL_DONE = {"results": [{"status": 200, **DONE}]}
ROWS = [OutboxRow(str(n), str(n), f"k{n}", "orders") for n in range(2)]


@pytest.fixture
def canned() -> Iterator[CannedServer]:
    with canned_server() as server:
        yield server


@pytest.fixture
def hand_over(canned: CannedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpHandOver]:
    """Where the environment names a proxy for what is farther away."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    made = HttpHandOver(canned.url, "orders")
    yield made
    made.close()


@pytest.mark.parametrize(("status", "slug"), [(413, "body-too-large"), (422, "invalid-request")])
def test_refused_request_is_halved(canned: CannedServer, hand_over: HttpHandOver, status: int, slug: str) -> None:
    """It says nothing of a row that was not alone; of one alone it does."""
    canned.refuse("POST", TOGETHER, status, slug, "no")
    canned.answer("POST", ALONE, 200, DONE)
    canned.refuse("POST", ALONE, status, slug, "no")
    assert [handed.fate for handed in hand_over.publish(ROWS)] == [PublishStatus.PUBLISHED, PublishStatus.REFUSED]


def test_request_too_large_for_a_proxy_is_halved(canned: CannedServer, hand_over: HttpHandOver) -> None:
    """What passes alone is published; of the rest nothing is known, and others go on without it."""
    canned.answer("POST", TOGETHER, 413, b"<html>")
    canned.answer("POST", ALONE, 200, DONE)
    canned.answer("POST", ALONE, 413, b"<html>")
    published, unknown = hand_over.publish(ROWS)
    assert (published.fate, unknown.fate) == (PublishStatus.PUBLISHED, PublishStatus.UNKNOWN)
    assert "client_max_body_size" in unknown.reason


@pytest.mark.parametrize(("status", "body"), [(502, b"<html>"), (403, b"<html>"), (200, b"<html>"), (200, ALL_DONE)])
def test_answer_that_judges_no_row_raises(
    canned: CannedServer, hand_over: HttpHandOver, status: int, body: object
) -> None:
    """And costs no row an attempt; of one row alone it is unknown, so that the others go on without it."""
    canned.answer("POST", TOGETHER, status, body)
    canned.answer("POST", ALONE, status, body)
    with pytest.raises(HandOverUnavailable):
        hand_over.publish(ROWS)
    assert [handed.fate for handed in hand_over.publish(ROWS[:1])] == [PublishStatus.UNKNOWN]


@pytest.mark.parametrize(("status", "slug"), [(503, "unavailable"), (401, "unauthenticated"), (429, "rate-limited")])
def test_refusal_of_the_caller_judges_no_row(
    canned: CannedServer, hand_over: HttpHandOver, status: int, slug: str
) -> None:
    """A draining bridge or a missing credential parks no outbox."""
    canned.refuse("POST", TOGETHER, status, slug, "not now")
    with pytest.raises(HandOverUnavailable, match=slug):
        hand_over.publish(ROWS)
    assert len(canned.asked) == 1


def test_unreadable_result_costs_its_own_row_alone(canned: CannedServer, hand_over: HttpHandOver) -> None:
    """The other one was published, whatever stands beside it."""
    canned.answer("POST", TOGETHER, 200, {"results": [{"status": 200}, {"status": 200, **DONE}]})
    assert [handed.fate for handed in hand_over.publish(ROWS)] == [PublishStatus.UNKNOWN, PublishStatus.PUBLISHED]


def test_nobody_listening_is_unavailable() -> None:
    """A refused connection, as after a crash of the bridge."""
    with canned_server() as canned:
        url = canned.url
    hand_over = HttpHandOver(url, "orders")
    with pytest.raises(HandOverUnavailable):
        hand_over.publish(ROWS)
    hand_over.close()

"""Rows over HTTP to a bridge, or to whatever stands before it."""

import pytest

from outbox.errors import HandOverUnavailable
from outbox.hand_over import Fate, HttpHandOver, OutboxRow
from tests.support.canned_http import canned_server

PATH = "/v1/messages/batch"
DONE = {"results": [{"status": 200, "state": "COMMITTED"}]}
ROWS = [OutboxRow(str(n), str(n), f"k{n}", "orders") for n in range(2)]


def test_too_large_request_is_halved() -> None:
    """413 says nothing of a row that was not alone; of one alone it does."""
    with canned_server() as canned:
        for status, body in ((413, {}), (200, DONE), (413, {})):
            canned.answer("POST", PATH, status, body)
        hand_over = HttpHandOver(canned.url, "orders")
        assert [handed.fate for handed in hand_over.publish(ROWS)] == [Fate.PUBLISHED, Fate.REFUSED]
        hand_over.close()


@pytest.mark.parametrize(("status", "body"), [(502, b"<html>"), (503, {}), (401, {}), (200, b"<html>"), (200, DONE)])
def test_answer_that_judges_no_row_raises(status: int, body: object) -> None:
    """And costs no row an attempt; of one row alone it is unknown, so that the others go on without it."""
    with canned_server() as canned:
        canned.answer("POST", PATH, status, body)
        hand_over = HttpHandOver(canned.url, "orders")
        with pytest.raises(HandOverUnavailable):
            hand_over.publish(ROWS)
        alone = hand_over.publish(ROWS[:1])
        assert [handed.fate for handed in alone] == [Fate.PUBLISHED if body == DONE else Fate.UNKNOWN]
        hand_over.close()


def test_nobody_listening_is_unavailable() -> None:
    """A refused connection, as after a crash of the bridge."""
    with canned_server() as canned:
        url = canned.url
    hand_over = HttpHandOver(url, "orders")
    with pytest.raises(HandOverUnavailable):
        hand_over.publish(ROWS)
    hand_over.close()

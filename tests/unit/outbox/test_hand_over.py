"""What an answer of the bridge says of a row, and how rows go into requests."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.bodies import MessageLimits, parse_prepare_batch
from outbox.enqueue import decode_headers, encode_headers
from outbox.errors import HandOverUnavailable
from outbox.hand_over import Fate, OutboxRow, decide, decode_batch, encode_batch, split_rows

BYTES = st.none() | st.binary(max_size=20)


def make_row(number: int = 0, value: bytes | None = b"v") -> OutboxRow:
    return OutboxRow(number, str(number), f"key-{number}", "orders", value=value)


def refusal(status: int, code: str) -> dict[str, object]:
    return {"status": status, "problem": {"type": f"https://bridge/problems/{code}", "status": status, "detail": "no"}}


@pytest.mark.parametrize(
    ("status", "result", "fate"),
    [
        (200, {"state": "COMMITTED"}, Fate.PUBLISHED),
        (202, {"state": "COMMITTED", "blocked": True}, Fate.PUBLISHED),
        (200, {"state": "ROLLED_BACK"}, Fate.REFUSED),
        (200, {"state": "PREPARED"}, Fate.UNKNOWN),
        (200, {}, Fate.UNKNOWN),
        (422, refusal(422, "unknown-topic"), Fate.REFUSED),
        (413, refusal(413, "message-too-large"), Fate.REFUSED),
        (409, refusal(409, "already-resolved"), Fate.REFUSED),
        (403, refusal(403, "reserved-topic"), Fate.REFUSED),
        (403, refusal(403, "forbidden"), Fate.UNKNOWN),
        (404, refusal(404, "unknown-producer-group"), Fate.UNKNOWN),
        (429, refusal(429, "rate-limited"), Fate.UNKNOWN),
        (503, refusal(503, "unavailable"), Fate.UNKNOWN),
        (504, refusal(504, "outcome-unknown"), Fate.UNKNOWN),
        (503, {}, Fate.UNKNOWN),
    ],
)
def test_only_a_recorded_commit_is_published(status: int, result: dict[str, object], fate: Fate) -> None:
    """A row is given up only where the bridge refuses the row itself: a missing grant must not park a whole outbox."""
    assert decide(status, result).fate is fate


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"{}", b'{"results":[]}', b'{"results":[1]}', b'{"results":[{}]}', b'{"results":{}}'],
)
def test_answer_that_is_none_says_nothing_of_any_row(body: bytes) -> None:
    """A proxy's page is not taken for a refusal."""
    with pytest.raises(HandOverUnavailable):
        decode_batch(body, 1)


@given(st.lists(st.tuples(st.text(max_size=5), BYTES)))
def test_headers_come_back_as_they_were(headers: list[tuple[str, bytes | None]]) -> None:
    """Order, repeats, null and empty."""
    assert decode_headers(encode_headers(headers)) == tuple(headers)


@given(BYTES, BYTES, st.lists(st.tuples(st.sampled_from(["h", "é"]), BYTES), max_size=3), st.none() | st.integers(0, 9))
def test_bridge_reads_the_bytes_that_were_enqueued(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], partition: int | None
) -> None:
    """Through the service's own parser."""
    row = OutboxRow(1, "1", "the-key", "orders", key, value, tuple(headers), partition, 5, "order é")
    body = encode_batch([row], "orders")
    (call,) = parse_prepare_batch(body, MessageLimits(), is_published=True)
    (message,) = call.messages
    assert (message.topic, message.key, message.value) == ("orders", key, value)
    assert [(name, raw) for name, raw in message.headers] == headers
    assert (call.idempotency_key, call.ordering_key) == ("the-key", "order é")


@given(st.lists(st.integers(0, 300), max_size=30), st.integers(1, 2_000))
def test_parts_hold_all_rows_in_order(sizes: list[int], max_bytes: int) -> None:
    """None is left out, none is empty, and only a row alone may be above the limit."""
    rows = [make_row(number, bytes(size)) for number, size in enumerate(sizes)]
    parts = split_rows(rows, max_bytes)
    assert [row for part in parts for row in part] == rows
    assert all(parts)
    for part in parts:
        assert len(part) == 1 or sum(300 + len(row.value or b"") * 4 // 3 for row in part) <= max_bytes


def test_values_are_base64_in_the_request() -> None:
    """Whatever bytes they are; null is left out, empty is not."""
    empty, none = make_row(1, b""), make_row(2, None)
    first, second = json.loads(encode_batch([empty, none], "g"))["transactions"]
    assert first["messages"] == [{"topic": "orders", "value_base64": base64.b64encode(b"").decode()}]
    assert second["messages"] == [{"topic": "orders"}]

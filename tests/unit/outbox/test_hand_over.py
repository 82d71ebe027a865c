"""What an answer of the bridge says of a row, and how rows go into requests."""

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from api.web.parse import parse_prepare_batch
from outbox.client.calls import PUBLISH, Call, join
from outbox.client.errors import Outcome, Problem
from outbox.client.replies import CallResult, NoReply, Reply
from outbox.enqueue import decode_headers, encode_headers
from outbox.hand_over import OutboxRow, PublishResult, PublishStatus, call_of, decide, split_calls
from outbox.sources import ColumnMap, MappedSource

BYTES = st.none() | st.binary(max_size=20)


def reply(status: int, state: str, **members: object) -> Reply:
    return Reply(status, {"transaction_id": "t", "state": state, **members})


@pytest.mark.parametrize(
    ("told", "fate"),
    [
        (reply(200, "COMMITTED"), PublishStatus.PUBLISHED),
        (reply(202, "COMMITTED", blocked=True), PublishStatus.PUBLISHED),
        (reply(200, "ROLLED_BACK"), PublishStatus.REFUSED),
        (reply(200, "PREPARED"), PublishStatus.UNKNOWN),
        (Problem("unknown-topic", 422), PublishStatus.REFUSED),
        (Problem("message-too-large", 413), PublishStatus.REFUSED),
        (Problem("already-resolved", 409), PublishStatus.REFUSED),
        (Problem("reserved-topic", 403), PublishStatus.REFUSED),
        (Problem("forbidden", 403), PublishStatus.NOT_YET),
        (Problem("unknown-producer-group", 404), PublishStatus.NOT_YET),
        (Problem("rate-limited", 429), PublishStatus.NOT_YET),
        (Problem("unavailable", 503), PublishStatus.UNKNOWN),
        (Problem("unavailable", 503, outcome=Outcome.NOT_APPLIED), PublishStatus.NOT_YET),
        (NoReply("refused", is_sent=False), PublishStatus.NOT_YET),
        (Problem("outcome-unknown", 504), PublishStatus.UNKNOWN),
        (NoReply("cut off"), PublishStatus.UNKNOWN),
    ],
)
def test_only_a_recorded_commit_is_published(told: CallResult, fate: PublishStatus) -> None:
    """A row is given up only where the bridge refuses the row itself: a missing grant must not park a whole outbox."""
    assert decide(told).fate is fate


def test_row_without_a_topic_is_no_message() -> None:
    """It went to one that is called None."""
    table = sa.Table("events", sa.MetaData(), *[sa.Column(name, sa.Text) for name in ("id", "topic", "key", "payload")])
    columns = {"id": "1", "topic": None, "key": None, "payload": "v"}
    with pytest.raises(ValueError, match="no topic"):
        MappedSource(table, ColumnMap(topic_format="events.{}"), "events").read(columns, "1", 0)


@pytest.mark.parametrize(
    "row",
    [
        OutboxRow(1, "1", "k", "no topic"),
        OutboxRow(1, "1", "k", "orders", headers=(("transaction-id", b"t"),)),
        OutboxRow(1, "1", "k", "orders", timestamp_ms=0),
        OutboxRow(1, "1", "", "orders"),
    ],
)
def test_row_that_no_call_can_carry_is_refused_unsent(row: OutboxRow) -> None:
    """It would spoil a request for the others; the reason holds nothing of its content."""
    handed = call_of(row, "orders")
    assert isinstance(handed, PublishResult)
    assert (handed.fate, handed.reason[:11]) == (PublishStatus.REFUSED, "no message:")


@given(st.lists(st.tuples(st.text(max_size=5), BYTES)))
def test_headers_come_back_as_they_were(headers: list[tuple[str, bytes | None]]) -> None:
    """Order, repeats, null and empty."""
    assert decode_headers(encode_headers(headers)) == tuple(headers)


@given(BYTES, BYTES, st.lists(st.tuples(st.sampled_from(["h", "é"]), BYTES), max_size=3), st.none() | st.integers(0, 9))
def test_bridge_reads_the_bytes_that_were_enqueued(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], partition: int | None
) -> None:
    """Through the service's own parser."""
    sent = call_of(OutboxRow(1, "1", "the-key", "orders", key, value, tuple(headers), partition, 5, "order é"), "g")
    assert isinstance(sent, Call)
    request = join(PUBLISH, [sent.item, sent.item], 1.0)
    for call in parse_prepare_batch(request.body or b"", 64, is_published=True):
        (message,) = call.messages
        assert (message.topic, message.key, message.value) == ("orders", key, value)
        assert [(name, raw) for name, raw in message.headers] == headers
        assert (call.idempotency_key, call.ordering_key) == ("the-key", "order é")


@given(st.lists(st.integers(1, 300), max_size=30), st.integers(1, 2_000), st.integers(1, 10))
def test_parts_hold_all_calls_in_order(sizes: list[int], max_bytes: int, max_items: int) -> None:
    """None is left out, none is empty, and only a call alone may be above the limit."""
    calls = [Call(PUBLISH, bytes(size)) for size in sizes]
    parts = split_calls(calls, max_bytes, max_items)
    assert [call for part in parts for call in part] == calls
    assert all(1 <= len(part) <= max_items for part in parts)
    for part in parts:
        assert len(part) == 1 or len(join(PUBLISH, [c.item for c in part], 1).body or b"") <= max_bytes + 20

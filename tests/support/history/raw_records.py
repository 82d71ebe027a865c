"""Rows of evidence from what lies in Kafka. Written from `docs/records.md`, not from the bridge's codecs."""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bridge.core.message import BY_KEY, Header, Receipt, StoredMessage
from tests.support.history.content import Content, mark, mark_headers
from tests.support.history.evidence import (
    PARKED,
    ActRow,
    EndRow,
    HalfRow,
    JournalRow,
    OpRow,
    ParkedRow,
    PositionRow,
    RealRecord,
)

_TRANSACTION_ID = "transaction-id"
_LONGEST_LOOK_UP_MS = 30_000
_RESOLUTIONS = {"8": "COMMIT", "12": "ROLLBACK", "0": "UNKNOWN"}

Stored = Iterable[tuple[int, StoredMessage]]
"""Records of a topic with their queue ids, queue by queue or mixed, in the order of offsets in each."""


def read_real(topic: str, stored: Stored) -> Iterator[RealRecord]:
    """Records of a real topic; those without a last header that is a transaction id have none."""
    for queue_id, message in stored:
        headers, transaction_id = split_id(message.headers)
        yield RealRecord(
            topic,
            queue_id,
            message.queue_offset,
            message.stored_ms,
            mark(message.key),
            mark(message.value),
            mark_headers(headers),
            transaction_id,
        )


def split_id(headers: Sequence[Header]) -> tuple[Sequence[Header], str | None]:
    """The user's headers, and the id that the bridge added behind them."""
    if headers and headers[-1][0] == _TRANSACTION_ID and headers[-1][1] is not None:
        return headers[:-1], headers[-1][1].decode("ascii", "backslashreplace")
    return headers, None


def read_journal(stored: Stored) -> Iterator[JournalRow]:
    """Half messages, ends and operators' acts; foreign records are left out."""
    for queue_id, message in stored:
        properties = _properties(message)
        kind = properties.get("KIND")
        if kind == "H":
            yield _half(queue_id, message, properties)
        elif kind == "E":
            yield EndRow(
                queue_id,
                message.queue_offset,
                message.stored_ms,
                properties["UNIQ_KEY"],
                _RESOLUTIONS[properties["RES"]],
                properties["SRC"],
                properties.get("PGROUP"),
                int(properties.get("TRANSACTION_CHECK_TIMES", "0")),
            )
        elif kind == "A":
            yield ActRow(queue_id, message.queue_offset, message.stored_ms, properties["UNIQ_KEY"], properties["ACT"])


def read_parked(stored: Stored) -> Iterator[ParkedRow]:
    """The parked topic."""
    for _, message in stored:
        properties = _properties(message)
        yield ParkedRow(message.queue_offset, properties["UNIQ_KEY"], _contents(message, properties))


def read_op(stored: Stored) -> tuple[list[OpRow], list[PositionRow]]:
    """The op topic: states and positions; answers that are no state are left out."""
    states: list[OpRow] = []
    positions: list[PositionRow] = []
    for queue_id, message in stored:
        if message.key is None or message.value is None or message.key == b"?":
            continue
        members = json.loads(message.value)
        if message.key == b"~":
            positions.append(PositionRow(queue_id, message.queue_offset, members["s"]))
        else:
            states.append(_op(queue_id, message, members))
    return states, positions


def _op(queue_id: int, message: StoredMessage, members: dict[str, Any]) -> OpRow:
    return OpRow(
        queue_id,
        message.queue_offset,
        (message.key or b"").decode(),
        members["state"],
        members["group"],
        members["at"],
        members["appended_ms"],
        members.get("ended_ms"),
        members.get("blocked", False),
        members["check_times"],
        members.get("by"),
        members.get("parked"),
        tuple(Receipt(*receipt) for receipt in members.get("receipts", ())),
        message.stored_ms,
        members.get("why", "?" if members["state"] == PARKED else None),
        members.get("base", 0),
        members.get("abandoned", False),
    )


def _half(queue_id: int, message: StoredMessage, properties: dict[str, str]) -> HalfRow:
    key = properties.get("IDEMPOTENCY_KEY")
    late_ms = message.stored_ms - int(properties.get("SEEN", "0"))
    return HalfRow(
        queue_id,
        message.queue_offset,
        message.stored_ms,
        properties["UNIQ_KEY"],
        properties["PGROUP"],
        _contents(message, properties),
        properties.get("ORDERING_KEY"),
        key,
        properties.get("RES") == "8",
        key is not None and late_ms > _LONGEST_LOOK_UP_MS,
    )


def _contents(message: StoredMessage, properties: dict[str, str]) -> tuple[Content, ...]:
    if properties["N"] != "1":
        return tuple(_unframed(frame) for frame in json.loads(message.value or b"[]"))
    timestamp = properties.get("TS")
    return (
        Content(
            properties["REAL_TOPIC"],
            mark(message.key),
            mark(message.value),
            mark_headers(message.headers[:-1]),
            int(properties.get("REAL_QID", BY_KEY)),
            None if timestamp is None else int(timestamp),
        ),
    )


def _unframed(frame: dict[str, Any]) -> Content:
    headers = [(name, _bytes(value)) for name, value in frame["headers"]]
    key, value = mark(_bytes(frame["key"])), mark(_bytes(frame["value"]))
    return Content(frame["topic"], key, value, mark_headers(headers), frame["qid"], frame["ts"])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _properties(message: StoredMessage) -> dict[str, str]:
    """Empty for a record without a last header `properties`."""
    if not message.headers or message.headers[-1][0] != "properties":
        return {}
    text = (message.headers[-1][1] or b"").decode()
    return dict(pair.split("\x01", 1) for pair in text.split("\x02") if pair)

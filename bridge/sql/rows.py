"""Rows of `transactions` <-> views: the JSON in its columns, and the order of pages."""

import base64
import json
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from bridge.core.message import Receipt
from bridge.core.transaction import TransactionState
from bridge.core.view import MessageSummary, TransactionView
from bridge.sql.tables import transactions

QUEUES = 1024  # a row's id is the half message's offset * QUEUES + its queue


class Place(NamedTuple):
    """A row's place in the order of all pages: newest born first."""

    born_ms: int
    row_id: int


def make_row_id(queue_id: int, half: int) -> int:
    """The id of the row of a transaction whose half message lies there."""
    return half * QUEUES + queue_id


def encode_messages(messages: Sequence[MessageSummary]) -> str:
    """JSON list of [topic, key in base64, bytes of the value, queue, timestamp]. Topic names need no escapes."""
    return "[" + ",".join([_encode_message(message) for message in messages]) + "]"


def encode_receipts(receipts: Sequence[Receipt]) -> str | None:
    """JSON list of [topic, queue, offset]; None if there is none."""
    if not receipts:
        return None
    return "[" + ",".join([f'["{r.topic}",{r.queue_id},{_number(r.queue_offset)}]' for r in receipts]) + "]"


def decode_messages(text: str | None) -> tuple[MessageSummary, ...]:
    """Inverse of `encode_messages`."""
    return tuple(
        MessageSummary(topic, None if key is None else base64.b64decode(key), size, queue_id, timestamp_ms)
        for topic, key, size, queue_id, timestamp_ms in json.loads(text or "[]")
    )


def decode_receipts(text: str | None) -> tuple[Receipt, ...]:
    """Inverse of `encode_receipts`."""
    return tuple(Receipt(*receipt) for receipt in json.loads(text or "[]"))


VIEW_COLUMNS = tuple(
    column for column in transactions.c if column.name not in {"live", "has_half", "at_offset", "published_ms"}
)


def select_views() -> sa.Select[Any]:
    """Selects what `make_view` needs."""
    return sa.select(*VIEW_COLUMNS)


def make_view(row: sa.Row[Any]) -> TransactionView:
    """The view a row of `select_views` shows."""
    members = dict(row._mapping)  # noqa: SLF001 - the documented way to a row's mapping
    del members["id"]
    members["group"] = members.pop("producer_group")
    members["by"] = members.pop("resolved_by")
    members["state"] = TransactionState(members["state"])
    members["blocked"] = bool(members["blocked"])
    members["abandoned"] = members.pop("abandoned_ms") is not None
    members["receipts"] = decode_receipts(members["receipts"])
    members["messages"] = decode_messages(members["messages"])
    return TransactionView(**members)


def _encode_message(message: MessageSummary) -> str:
    key = message.key
    text = "null" if key is None else f'"{b2a_base64(key, newline=False).decode()}"'
    size, time = _number(message.value_bytes), _number(message.timestamp_ms)
    return f'["{message.topic}",{text},{size},{message.queue_id},{time}]'


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)

"""Rows of the projection <-> views: JSON columns, pages and their cursors, positions, rows while they are folded."""

import asyncio
import base64
import hashlib
import json
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.errors import SqlUnavailable
from bridge.core.message import Receipt
from bridge.core.op_message import LogStart, LogTopics
from bridge.core.transaction import MessageSummary, TransactionState, TransactionView
from bridge.sql.bulk import make_upsert
from bridge.sql.engine import Database
from bridge.sql.tables import projection_positions, timeline_events, transactions

T = TypeVar("T")
_INT64 = 2**63
_LIST_TURN_S = 2.0


class MalformedCursor(ValueError):
    """A cursor of a page that cannot be read."""


def encode_cursor(kind: str, *numbers: int) -> str:
    """URL-safe, without padding."""
    text = ":".join([kind, *map(str, numbers)])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(kind: str, count: int, cursor: str) -> list[int]:
    """So many numbers of 64 bits. Raises MalformedCursor at any text but the one that is made of them."""
    try:
        raw = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        numbers = [int(part) for part in raw.split(b":")[1:]]
    except ValueError as error:
        raise MalformedCursor("not a cursor of this bridge") from error
    is_made = len(numbers) == count and encode_cursor(kind, *numbers) == cursor  # base64 and int() pass over much
    if not is_made or not all(-_INT64 <= number < _INT64 for number in numbers):
        raise MalformedCursor("not a cursor of this bridge")
    return numbers


_P = projection_positions.c


class AppliedPosition(NamedTuple):
    """`s`: everything the settler decided below this journal offset is in the rows.

    `journal_next`, `op_next`: where the projector goes on reading. All are 0 or the logs' beginning at first.
    """

    s: int
    journal_next: int
    op_next: int


class LogIdentity(NamedTuple):
    """The log that offsets belong to; after a deleted and recreated topic they mean nothing."""

    cluster_id: str
    journal_topic_id: str
    op_topic_id: str


async def read_list(database: Database, work: Callable[[Connection], T]) -> T:
    """As `Database.read`, of what callers look through: it has half of the threads at most, and so many may want it
    that what prepares look up would be sent away. Raises SqlUnavailable."""
    try:
        async with asyncio.timeout(_LIST_TURN_S):
            await database.list_turns.acquire()
    except TimeoutError as error:
        raise SqlUnavailable("the database is overloaded") from error
    try:
        return await database.read(work)
    finally:
        database.list_turns.release()


def read_positions(conn: Connection) -> dict[int, AppliedPosition]:
    """Position of each queue that a projector has begun."""
    query = sa.select(_P.queue_id, _P.s, _P.journal_next, _P.op_next)
    return {row.queue_id: AppliedPosition(row.s, row.journal_next, row.op_next) for row in conn.execute(query)}


def read_position(
    conn: Connection, queue_id: int, *, is_locked: bool = False
) -> tuple[AppliedPosition, LogIdentity] | None:
    """Position of a queue, and the log it belongs to. `is_locked`: nobody moves it until the SQL transaction ends."""
    query = sa.select(projection_positions).where(_P.queue_id == queue_id)
    row = conn.execute(query.with_for_update() if is_locked else query).one_or_none()
    if row is None:
        return None
    identity = LogIdentity(row.cluster_id, row.journal_topic_id, row.op_topic_id)
    return AppliedPosition(row.s, row.journal_next, row.op_next), identity


def is_of_before(known: tuple[AppliedPosition, LogIdentity], log: LogTopics, start: LogStart) -> bool:
    """Whether the projection is of a log whose past an operator has given up since, or of other topics: its database
    was restored from a backup."""
    applied, identity = known
    is_other = (identity.journal_topic_id, identity.op_topic_id) != (log.half, log.op)
    return is_other or applied.journal_next < start.journal or applied.op_next < start.op


def begin_position(conn: Connection, queue_id: int, position: AppliedPosition, identity: LogIdentity) -> None:
    """Begins a queue that has no position; nothing if another projector did."""
    values = {"queue_id": queue_id, **position._asdict(), **identity._asdict()}
    upsert = make_upsert(conn, projection_positions).values(values)
    conn.execute(upsert.on_conflict_do_nothing(index_elements=["queue_id"]))


def move_position(conn: Connection, queue_id: int, before: AppliedPosition, after: AppliedPosition) -> bool:
    """Moves the position if it is still `before`; locks it until the SQL transaction ends. Else False."""
    return (
        conn.execute(_MOVE, {"queue": queue_id, **_prefixed("before", before), **_prefixed("after", after)}).rowcount
        == 1
    )


def _prefixed(prefix: str, position: AppliedPosition) -> dict[str, int]:
    return {f"{prefix}_{name}": value for name, value in position._asdict().items()}


# made once: to put it together takes longer than to run it
_MOVE = (
    sa.update(projection_positions)
    .where(
        _P.queue_id == sa.bindparam("queue"),
        *[_P[name] == sa.bindparam(f"before_{name}") for name in AppliedPosition._fields],
    )
    .values({name: sa.bindparam(f"after_{name}") for name in AppliedPosition._fields})
)


QUEUES = 1024  # a row's id is the half message's offset * QUEUES + its queue


class PageKey(NamedTuple):
    """A row's place in the order of all pages: newest born first."""

    born_ms: int
    row_id: int


def make_row_id(queue_id: int, half: int) -> int:
    """The row id of the transaction whose half message has this offset."""
    return half * QUEUES + queue_id


_WHOLE_KEY_BYTES = 1_000  # PostgreSQL has no place for more than some 2,700 in an index


def make_search_key(key: bytes | None) -> bytes | None:
    """What stands for a message's key where it is searched for: the key, or its beginning and its hash."""
    if key is None or len(key) <= _WHOLE_KEY_BYTES:
        return key
    return key[:_WHOLE_KEY_BYTES] + hashlib.sha256(key).digest()


def encode_messages(messages: Sequence[MessageSummary]) -> str:
    """JSON list of [topic, key in base64, bytes of the value, queue, timestamp]. Topic names need no escapes."""
    return f"[{','.join([encode_message(message) for message in messages])}]"


def decode_messages(text: str | None) -> tuple[MessageSummary, ...]:
    """Inverse of `encode_messages`."""
    return tuple(
        MessageSummary(topic, None if key is None else base64.b64decode(key), size, queue_id, timestamp_ms)
        for topic, key, size, queue_id, timestamp_ms in json.loads(text or "[]")
    )


def decode_receipts(text: str | None) -> tuple[Receipt, ...]:
    """Inverse of `encode_receipts`; none from null."""
    return tuple(Receipt(*receipt) for receipt in json.loads(text or "[]"))


VIEW_COLUMNS = tuple(
    column for column in transactions.c if column.name not in {"live", "has_half", "at_offset", "published_ms"}
)

_LAST_PARKED_MS = (
    sa.select(sa.func.max(timeline_events.c.at_ms))
    .where(timeline_events.c.id == transactions.c.id, timeline_events.c.type == "parked")
    .scalar_subquery()
)
_PARKED_MS = sa.case((transactions.c.state == TransactionState.PARKED.value, _LAST_PARKED_MS)).label("parked_ms")


def select_views() -> sa.Select[Any]:
    """Selects what `make_view` needs."""
    return sa.select(*VIEW_COLUMNS, _PARKED_MS)


def make_view(row: sa.Row[Any]) -> TransactionView:
    """The view a row of `select_views` shows."""
    members = dict(row._mapping)  # noqa: SLF001 - the documented way to a row's mapping
    del members["id"]
    members["group"] = members.pop("producer_group")
    members["by"] = members.pop("resolved_by")
    members["reason"] = members.pop("why")
    members["state"] = TransactionState(members["state"])
    members["blocked"] = bool(members["blocked"])
    members["abandoned"] = members.pop("abandoned_ms") is not None
    members["receipts"] = decode_receipts(members["receipts"])
    members["messages"] = decode_messages(members["messages"])
    return TransactionView(**members)


def encode_message(message: MessageSummary) -> str:
    """One member of `encode_messages`."""
    key, size, time = message.key, message.value_bytes, message.timestamp_ms
    text = "null" if key is None else f'"{b2a_base64(key, newline=False).decode()}"'
    return (
        f'["{message.topic}",{text},{"null" if size is None else size},{message.queue_id},'
        f"{'null' if time is None else time}]"
    )


# Columns an op message decides, columns a half message decides, and those that never change.
STATE_COLUMNS = (
    "state", "live", "blocked", "queue_offset", "at_offset", "next_due_ms", "check_times", "base", "since_ms",
    "resolved_by", "ended_ms", "published_ms", "why", "parked_offset", "receipts", "abandoned_ms", "appended_ms",
)  # fmt: skip
HALF_COLUMNS = (
    "has_half", "born_ms", "first_check_ms", "max_checks", "max_life_s", "idempotency_key", "ordering_key", "messages",
)  # fmt: skip
FIXED_COLUMNS = ("id", "transaction_id", "producer_group", "queue_id")
ALL_COLUMNS = (*FIXED_COLUMNS, *HALF_COLUMNS, *STATE_COLUMNS)
LOADED_COLUMNS = (*FIXED_COLUMNS, "has_half", *STATE_COLUMNS)

PREPARED = TransactionState.PREPARED.value


class Counted(NamedTuple):
    """What a transaction is counted as. `pending_since_ms`: when its half message was appended, None
    if it is pending no more."""

    state: str
    blocked: int
    abandoned: bool
    pending_since_ms: int | None = None


class ProjectedRow:
    """Columns as attributes. `was`: as it is counted, None if not at all."""

    __slots__ = (*ALL_COLUMNS, "is_new", "was")

    id: int
    transaction_id: str
    producer_group: str
    queue_id: int
    appended_ms: int
    has_half: int
    born_ms: int
    first_check_ms: int | None
    max_checks: int | None
    max_life_s: int | None
    idempotency_key: str | None
    ordering_key: str | None
    messages: str | None
    state: str
    live: int
    blocked: int
    queue_offset: int
    at_offset: int
    next_due_ms: int | None
    check_times: int
    base: int
    since_ms: int | None
    resolved_by: str | None
    ended_ms: int | None
    published_ms: int | None
    why: str | None
    parked_offset: int | None
    receipts: str | None
    abandoned_ms: int | None
    is_new: bool
    was: Counted | None


def make_row(transaction_id: str, group: str, queue_id: int, half: int, appended_ms: int) -> ProjectedRow:
    """A PREPARED row of which only the half message's place is known."""
    row = ProjectedRow()
    row.id = make_row_id(queue_id, half)
    row.transaction_id = transaction_id
    row.producer_group = group
    row.queue_id = queue_id
    row.queue_offset = row.at_offset = half
    row.appended_ms = row.born_ms = row.since_ms = appended_ms
    row.has_half = row.blocked = row.check_times = row.base = 0
    row.live = 1
    row.state = PREPARED
    row.first_check_ms = row.max_checks = row.max_life_s = row.next_due_ms = None
    row.idempotency_key = row.ordering_key = row.messages = row.receipts = None
    row.resolved_by = row.ended_ms = row.published_ms = row.abandoned_ms = row.why = row.parked_offset = None
    row.is_new = True
    row.was = None
    return row


def load_row(values: Iterable[Any]) -> ProjectedRow:
    """A row read back in the order of LOADED_COLUMNS; the other columns are not known and not written."""
    row = ProjectedRow()
    (
        row.id, row.transaction_id, row.producer_group, row.queue_id, row.has_half,
        row.state, row.live, row.blocked, row.queue_offset, row.at_offset, row.next_due_ms, row.check_times,
        row.base, row.since_ms, row.resolved_by, row.ended_ms, row.published_ms, row.why, row.parked_offset,
        row.receipts, row.abandoned_ms, row.appended_ms,
    ) = values  # fmt: skip
    row.is_new = False
    row.was = counted_as(row)
    return row


def counted_as(row: ProjectedRow) -> Counted:
    """How a row is counted now."""
    pending_since_ms = row.appended_ms if row.state == PREPARED else None
    return Counted(row.state, row.blocked, row.abandoned_ms is not None, pending_since_ms)


all_values = attrgetter(*ALL_COLUMNS)
state_values = attrgetter(*STATE_COLUMNS, "id")
half_values = attrgetter(*HALF_COLUMNS, "id")

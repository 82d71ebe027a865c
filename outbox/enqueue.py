"""A row in the outbox table, in the caller's own transaction: it is published if that commits, and only then.

    enqueue(session, Message("orders.created", key="42", value={"order": 42}))
    session.commit()

A relay publishes it. Rows with one ordering key (else: one message key) are published in the order of their `id`;
of two local transactions that write such rows at the same time without a common lock, either may be the first.
"""

import base64
import hashlib
import json
import uuid
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import sqlalchemy as sa
from sqlalchemy import Connection, Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outbox.client.calls import check_ordering_key
from outbox.client.errors import InvalidMessage, OutboxConfigError
from outbox.client.message import add_trace
from outbox.tables import make_outbox_table, refuse_unkept
from outbox.transaction_record import DatabaseNow, find_connection, find_run, is_autocommitting, raise_missing

if TYPE_CHECKING:  # at run time it needs greenlet, which comes with `sqlalchemy[asyncio]` only
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

NOTIFY_CHANNEL: Final = "outbox_message"
_DEFAULT_TABLE: Final = make_outbox_table(sa.MetaData())


class OutboxMessage(Protocol):
    """What of a Message a row keeps."""

    @property
    def topic(self) -> str: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...
    @property
    def partition(self) -> int | None: ...
    @property
    def timestamp_ms(self) -> int | None: ...


def enqueue(
    session: Session | Connection,
    *messages: OutboxMessage,
    ordering_key: str | None = None,
    table: sa.Table = _DEFAULT_TABLE,
    notify: bool = True,
) -> Sequence[str]:
    """Writes a row for each message; commits nothing. Their message ids. Raises InvalidMessage.

    `notify`: wakes relays at once (PostgreSQL). Commits that notify go one after the other: switch it off where many
    commit at the same time; relays then look by themselves.
    """
    if not messages:
        return ()
    conn = find_connection(session, table, "enqueue_async")
    if is_autocommitting(conn):
        raise OutboxConfigError("with AUTOCOMMIT a message would be published whatever becomes of what it tells of")
    rows = [_make_row(message, ordering_key) for message in messages]
    refuse_unkept(conn, table)
    try:
        _insert(conn, table, rows, is_told=notify)
    except DBAPIError as error:
        raise_missing(error, conn, table, "make_outbox_table")
        raise
    return [row["message_id"] for row in rows]


async def enqueue_async(
    session: "AsyncSession | AsyncConnection",
    *messages: OutboxMessage,
    ordering_key: str | None = None,
    table: sa.Table = _DEFAULT_TABLE,
    notify: bool = True,
) -> Sequence[str]:
    """As `enqueue`."""
    work = partial(_enqueue_in, messages=messages, ordering_key=ordering_key, table=table, notify=notify)
    written: Sequence[str] = await find_run(session, "enqueue")(work)
    return written


_NO_HEADERS: Final = "[]"


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> str:
    """JSON: pairs of name and base64 text or null."""
    if not headers:
        return _NO_HEADERS
    return json.dumps([[name, None if raw is None else base64.b64encode(raw).decode()] for name, raw in headers])


def decode_headers(text: str) -> tuple[tuple[str, bytes | None], ...]:
    """Raises ValueError."""
    if text == _NO_HEADERS:
        return ()
    return tuple((name, None if coded is None else base64.b64decode(coded)) for name, coded in json.loads(text))


def _enqueue_in(
    session: Session | Connection,
    messages: Sequence[OutboxMessage],
    **options: Any,  # noqa: ANN401 - those of enqueue
) -> Sequence[str]:
    return enqueue(session, *messages, **options)


def _insert(conn: Connection, table: sa.Table, rows: Sequence[dict[str, Any]], *, is_told: bool) -> None:
    """In one statement. Rows go beside it where drivers take them so: with rows in it, it is compiled each time."""
    is_postgres = conn.dialect.name == "postgresql"
    if conn.dialect.driver == "aiomysql":  # 0.3 calls for bytes what PyMySQL has no more since 1.2
        rows = [{name: _without_bytes(value) for name, value in row.items()} for row in rows]
    elif len(rows) == 1 or (is_postgres and conn.dialect.insert_executemany_returning):
        conn.execute(_make_insert(table, is_postgres=is_postgres, is_told=is_told), rows).close()
        return
    listed = sa.insert(table).values([{**row, "created_ms": DatabaseNow()} for row in rows])
    conn.execute(listed)
    if is_postgres and is_told:
        conn.execute(sa.select(_tell()))


def _without_bytes(value: object) -> object:
    return sa.func.unhex(value.hex()) if isinstance(value, bytes) else value


@lru_cache(maxsize=32)  # of few tables: else built at each call
def _make_insert(table: sa.Table, *, is_postgres: bool, is_told: bool) -> Executable:
    """On PostgreSQL the returned statement notifies the relays: no way of its own, and many rows can go together."""
    statement = sa.insert(table).values(created_ms=DatabaseNow())
    return statement.returning(_tell() if is_told else sa.true()) if is_postgres else statement


def _tell() -> sa.ColumnElement[Any]:
    return sa.func.pg_notify(NOTIFY_CHANNEL, "")


def _make_row(message: OutboxMessage, ordering_key: str | None) -> dict[str, Any]:
    if not hasattr(message, "topic"):
        raise InvalidMessage(f"give a Message, not {type(message).__name__}")
    order = message.key if ordering_key is None else check_ordering_key(ordering_key).encode()
    return {
        "message_id": str(uuid.uuid4()),
        "topic": message.topic,
        "key": message.key,
        "value": message.value,
        "headers": encode_headers(add_trace(message.headers)),
        "partition": message.partition,
        "timestamp_ms": message.timestamp_ms,
        "ordering_key": ordering_key,
        "order_hash": None if order is None else hashlib.blake2b(order, digest_size=16).hexdigest(),
    }

"""What `enqueue` costs beside a bare INSERT of an equal row, by the same session in the same local transaction."""

import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from benchmarks.producers.shop import METADATA, ORDERS, OUTBOX, Shop
from benchmarks.rounds import Note
from outbox.client.message import Message
from outbox.enqueue import enqueue

_VALUE = b"x" * 300


def measure_enqueueing(shop: Shop, count: int, note: Note) -> None:
    """On PostgreSQL and on an SQLite file."""
    _measure(shop.engine, "postgres", count, note)
    with tempfile.TemporaryDirectory() as folder:
        engine = sa.create_engine(f"sqlite:///{Path(folder) / 'shop.db'}")
        METADATA.create_all(engine)
        _measure(engine, "sqlite", count, note)
        engine.dispose()


class _Write(NamedTuple):
    """A way to write a row. `figure`: of the call; `whole_figure`: of the whole local transaction."""

    figure: str
    whole_figure: str
    call: Callable[[Session], object]


def _measure(engine: sa.Engine, database: str, count: int, note: Note) -> None:
    """By turns, so that both find the same machine; the table is empty at the end."""
    sums = {write: [0.0, 0.0] for write in _WRITES}
    for _ in range(count):
        for write, seconds in sums.items():
            call_s, whole_s = _time_one(engine, write.call)
            seconds[0] += call_s
            seconds[1] += whole_s
    with engine.begin() as conn:
        conn.execute(sa.delete(OUTBOX))
    for write, (call_s, whole_s) in sums.items():
        note(f"{write.figure}_{database}_us", call_s / count * 1e6)
        note(f"{write.whole_figure}_{database}_us", whole_s / count * 1e6)


def _time_one(engine: sa.Engine, write: Callable[[Session], object]) -> tuple[float, float]:
    """Seconds of the call, and of the whole local transaction: an order, the row, the commit."""
    began = time.perf_counter()
    with Session(engine) as session:
        session.execute(sa.insert(ORDERS), {"customer": "customer-7", "amount": 3})
        called = time.perf_counter()
        write(session)
        written = time.perf_counter()
        session.commit()
    return written - called, time.perf_counter() - began


def _enqueue(session: Session) -> None:
    enqueue(session, _MESSAGE)


def _insert(session: Session) -> None:
    """All that the row holds, made before."""
    session.execute(_INSERT, {**_ROW, "message_id": str(uuid.uuid4())})


_MESSAGE = Message("orders.created", key=b"customer-7", value=_VALUE)
_INSERT = sa.insert(OUTBOX)
_ROW = {
    "topic": "orders.created",
    "key": b"customer-7",
    "value": _VALUE,
    "headers": "[]",
    "partition": None,
    "timestamp_ms": None,
    "ordering_key": None,
    "order_hash": "0" * 32,
    "created_ms": 1_750_000_000_000,
}
_WRITES = (_Write("enqueue", "enqueued", _enqueue), _Write("insert", "inserted", _insert))

"""`with bridge.transaction(session)` on a real bridge and PostgreSQL: an order, its record and a message each time.

Settled before the block is left; with `respond_async`, stored. Beside it the same local transaction without the bridge,
and the least that does what a block does: SQLAlchemy, and the two calls as bytes on a socket, without any care.
"""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from benchmarks.load import Load
from benchmarks.producers.shop import GROUP, ORDERS, RECORDS, Shop
from benchmarks.rounds import Note, drive
from benchmarks.stage import TOPIC, Stage
from outbox import AsyncBridge, Bridge, TransactionSendResult
from outbox.transaction_record import insert_record

_THREADS = (1, 16, 64)
_TASKS = 64
_VALUE = b"x" * 300
_INSERT = sa.insert(ORDERS)


def measure_sdk(stage: Stage, shop: Shop, seconds: float, note: Note) -> None:
    """Transactions a second of so many threads, and of tasks."""
    url = f"http://127.0.0.1:{stage.ports[0]}"
    engine = sa.create_engine(shop.url, pool_size=max(_THREADS))
    for threads in _THREADS:
        note(f"local{threads}_tps", _run_threads(threads, seconds, partial(_work_locally, engine)).per_second)
        with Bridge(url, GROUP) as bridge:
            for name, is_stored in (("", False), ("_stored", True)):
                block = partial(_work_in_blocks, bridge, engine, is_stored=is_stored)
                _note(f"sdk{threads}{name}_tps", _run_threads(threads, seconds, block), stage, note)
                lean = partial(_work_leanly, stage.ports[0], engine, is_stored=is_stored)
                _note(f"lean{threads}{name}_tps", _run_threads(threads, seconds, lean), stage, note)
    engine.dispose()  # PostgreSQL as it comes has connections for one of us
    _note(f"sdk_async{_TASKS}_tps", drive(lambda: _run_tasks(url, shop.url, seconds)), stage, note)


def _note(name: str, load: Load, stage: Stage, note: Note) -> None:
    stage.settled += load.transactions
    note(name, load.per_second)
    stage.await_projection()


_Work = Callable[[int, float], int]
"""What a thread of this number does until then; how often."""


def _run_threads(threads: int, seconds: float, work: _Work) -> Load:
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(lambda number: work(number, began + seconds), range(threads)))
    return Load(done, time.perf_counter() - began, ())


def _work_in_blocks(bridge: Bridge, engine: sa.Engine, number: int, stop_at: float, *, is_stored: bool) -> int:
    done = 0
    while time.perf_counter() < stop_at:
        block = bridge.transaction(session := Session(engine), respond_async=is_stored)
        with session, block as transaction:
            session.execute(_INSERT, _order(number))
            transaction.send(TOPIC, key=f"customer-{number}", value=_VALUE)
        _check(transaction.result)
        done += 1
    return done


def _work_locally(engine: sa.Engine, number: int, stop_at: float) -> int:
    done = 0
    while time.perf_counter() < stop_at:
        with Session(engine) as session, session.begin():
            session.execute(_INSERT, _order(number))
        done += 1
    return done


def _work_leanly(port: int, engine: sa.Engine, number: int, stop_at: float, *, is_stored: bool) -> int:
    done = 0
    message = {"topic": TOPIC, "key": f"customer-{number}", "value": _VALUE.decode()}
    half = json.dumps({"producer_group": GROUP, "messages": [message]}).encode()
    host = b"Host: 127.0.0.1:%d\r\n" % port
    host_of_end = host + (b"Prefer: respond-async\r\n" if is_stored else b"")
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while time.perf_counter() < stop_at:
            answer = _call(connection, b"/v1/transactions", half, host)
            transaction_id = answer[answer.index(b'_id":"') + 6 :][:28]
            with Session(engine) as session, session.begin():
                session.execute(_INSERT, _order(number))
                insert_record(session.connection(), RECORDS, transaction_id.decode(), GROUP)
            _call(connection, b"/v1/transactions/%b/commit" % transaction_id, b"{}", host_of_end)
            done += 1
    return done


def _call(connection: socket.socket, path: bytes, body: bytes, head: bytes) -> bytes:
    """Raises RuntimeError if it was not done."""
    fixed = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    connection.sendall(b"POST %b HTTP/1.1\r\n%b%b\r\n%b" % (path, fixed, head, body))
    answer = connection.recv(65_536)  # the bridge sends one this small in one piece
    if not answer.startswith(b"HTTP/1.1 20"):
        raise RuntimeError(answer.decode())
    return answer


async def _run_tasks(bridge_url: str, database_url: str, seconds: float) -> Load:
    engine = create_async_engine(database_url, pool_size=_TASKS)
    try:
        async with AsyncBridge(bridge_url, GROUP) as bridge:
            began = time.perf_counter()
            stop_at = began + seconds
            counts = await asyncio.gather(*(_work(bridge, engine, number, stop_at) for number in range(_TASKS)))
            return Load(sum(counts), time.perf_counter() - began, ())
    finally:
        await engine.dispose()


async def _work(bridge: AsyncBridge, engine: AsyncEngine, number: int, stop_at: float) -> int:
    done = 0
    while time.perf_counter() < stop_at:
        async with AsyncSession(engine) as session, bridge.transaction(session) as transaction:
            await session.execute(_INSERT, _order(number))
            transaction.send(TOPIC, key=f"customer-{number}", value=_VALUE)
        _check(transaction.result)
        done += 1
    return done


def _order(number: int) -> dict[str, object]:
    return {"customer": f"customer-{number}", "amount": 3}


def _check(result: TransactionSendResult | None) -> None:
    if result is None or not (result.is_settled or result.is_accepted):
        raise RuntimeError(f"neither settled nor stored: {result}")

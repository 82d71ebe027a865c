"""`with bridge.transaction(session)` on a real bridge and PostgreSQL: an order, its record and a message each time.

Settled before the block is left; with `respond_async`, stored.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from benchmarks.load import Load
from benchmarks.producers.shop import GROUP, ORDERS, Shop
from benchmarks.rounds import Note, drive
from benchmarks.stage import TOPIC, Stage
from outbox import AsyncBridge, Bridge, TransactionSendResult

_THREADS = (1, 16, 64)
_TASKS = 64
_VALUE = b"x" * 300
_INSERT = sa.insert(ORDERS)


def measure_sdk(stage: Stage, shop: Shop, seconds: float, note: Note) -> None:
    """Transactions a second of so many threads, and of tasks."""
    url = f"http://127.0.0.1:{stage.ports[0]}"
    engine = sa.create_engine(shop.url, pool_size=max(_THREADS))
    for threads in _THREADS:
        with Bridge(url, GROUP) as bridge:
            for name, is_stored in ((f"sdk{threads}_tps", False), (f"sdk{threads}_stored_tps", True)):
                _note(name, _run_threads(bridge, engine, threads, seconds, is_stored=is_stored), stage, note)
    engine.dispose()  # PostgreSQL as it comes has connections for one of us
    _note(f"sdk_async{_TASKS}_tps", drive(lambda: _run_tasks(url, shop.url, seconds)), stage, note)


def _note(name: str, load: Load, stage: Stage, note: Note) -> None:
    stage.settled += load.transactions
    note(name, load.per_second)
    stage.await_projection()


def _run_threads(bridge: Bridge, engine: sa.Engine, threads: int, seconds: float, *, is_stored: bool) -> Load:
    began = time.perf_counter()

    def work(number: int) -> int:
        done = 0
        while time.perf_counter() - began < seconds:
            block = bridge.transaction(session := Session(engine), respond_async=is_stored)
            with session, block as transaction:
                session.execute(_INSERT, _order(number))
                transaction.send(TOPIC, key=f"customer-{number}", value=_VALUE)
            _check(transaction.result)
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        return Load(sum(pool.map(work, range(threads))), time.perf_counter() - began, ())


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

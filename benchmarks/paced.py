"""Open-loop load: calls begin when they are due, not when the one before has ended, so that queueing is seen."""

import asyncio
import random
import time
from collections.abc import Sequence

from benchmarks.http_client import Connection
from benchmarks.load import Load, prepare_body

_LEAD_S = 0.5


async def load_paced(
    ports: Sequence[int], topic: str, clients: int, per_second: float, seconds: float, *, is_awaited: bool = True
) -> Load:
    """`clients` clients commit `per_second` transactions a second together; latencies count from when each was due.

    A commit is due when its client's turn comes; its prepare is made a moment before.
    """
    connections = [await Connection.open(ports[n % len(ports)]) for n in range(clients)]
    pause = clients / per_second
    lead = min(pause / 2, _LEAD_S)
    began = time.perf_counter()
    latencies: list[float] = []

    async def work(number: int, connection: Connection) -> int:
        rng = random.Random(number)
        due = began + lead + pause * rng.random()
        done = 0
        while due < began + seconds:
            await asyncio.sleep(max(0.0, due - lead - time.perf_counter()))
            prepared = await connection.post_ok("/v1/transactions", prepare_body(topic, rng.randrange(1_000)))
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await connection.commit(prepared["transaction_id"], is_awaited=is_awaited)
            latencies.append(time.perf_counter() - due)
            done += 1
            due += pause * rng.uniform(0.5, 1.5)
        return done

    try:
        counts = await asyncio.gather(*(work(n, connection) for n, connection in enumerate(connections)))
    finally:
        for connection in connections:
            connection.close()
    return Load(sum(counts), time.perf_counter() - began, latencies)


async def pace_prepares(
    ports: Sequence[int], body: bytes, clients: int, per_second: float, seconds: float
) -> list[float]:
    """Latencies of prepares that nobody ends, counted from when each was due."""
    pause = clients / per_second
    began = time.perf_counter()
    latencies: list[float] = []

    async def work(number: int) -> None:
        rng = random.Random(number)
        connection = await Connection.open(ports[number % len(ports)])
        due = began + pause * rng.random()
        while due < began + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await connection.post_ok("/v1/transactions", body)
            latencies.append(time.perf_counter() - due)
            due += pause * rng.uniform(0.5, 1.5)
        connection.close()

    await asyncio.gather(*(work(number) for number in range(clients)))
    return latencies

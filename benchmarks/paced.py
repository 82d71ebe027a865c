"""Open-loop load: calls begin when they are due, not when the one before has ended, so that queueing is seen."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from benchmarks.http_client import Connection
from benchmarks.load import Load, prepare_body

T = TypeVar("T")

_LEAD_S = 0.5


async def load_paced(
    ports: Sequence[int], topic: str, clients: int, per_second: float, seconds: float, *, is_awaited: bool = True
) -> Load:
    """`clients` clients commit `per_second` transactions a second together; latencies count from when each was due.

    A commit is due when its client's turn comes; its prepare is made a moment before.
    """

    async def prepare(connection: Connection, rng: random.Random) -> str:
        prepared = await connection.post_ok("/v1/transactions", prepare_body(topic, rng.randrange(1_000)))
        return str(prepared["transaction_id"])

    async def commit(connection: Connection, transaction_id: str) -> None:
        await connection.commit(transaction_id, is_awaited=is_awaited)

    lead = min(clients / per_second / 2, _LEAD_S)
    return await _pace(ports, Pace(clients, per_second, seconds, lead), prepare, commit)


async def pace_prepares(
    ports: Sequence[int], body: bytes, clients: int, per_second: float, seconds: float
) -> Sequence[float]:
    """Latencies of prepares that nobody ends, counted from when each was due."""

    async def nothing(_: Connection, __: random.Random) -> None:
        return None

    async def prepare(connection: Connection, _: None) -> None:
        await connection.post_ok("/v1/transactions", body)

    return (await _pace(ports, Pace(clients, per_second, seconds), nothing, prepare)).commit_latencies


class Pace(NamedTuple):
    """How many clients make how many calls a second together. `lead_s`: how long before its turn each gets ready."""

    clients: int
    per_second: float
    seconds: float
    lead_s: float = 0.0


async def _pace(
    ports: Sequence[int],
    pace: Pace,
    get_ready: Callable[[Connection, random.Random], Awaitable[T]],
    act: Callable[[Connection, T], Awaitable[None]],
) -> Load:
    """Each client gets ready, then acts when it is due; an act's latency counts from then."""
    connections = [await Connection.open(ports[n % len(ports)]) for n in range(pace.clients)]
    pause = pace.clients / pace.per_second
    began = time.perf_counter()
    latencies: list[float] = []

    async def work(number: int, connection: Connection) -> None:
        rng = random.Random(number)
        due = began + pace.lead_s + pause * rng.random()
        while due < began + pace.seconds:
            await asyncio.sleep(max(0.0, due - pace.lead_s - time.perf_counter()))
            ready = await get_ready(connection, rng)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await act(connection, ready)
            latencies.append(time.perf_counter() - due)
            due += pause * rng.uniform(0.5, 1.5)

    try:
        await asyncio.gather(*(work(n, connection) for n, connection in enumerate(connections)))
    finally:
        for connection in connections:
            connection.close()
    return Load(len(latencies), time.perf_counter() - began, latencies)

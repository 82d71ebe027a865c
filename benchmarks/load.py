"""Loads on the bridge's HTTP interface; every answer is checked."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import NamedTuple

from benchmarks.http_client import Connection


class Load(NamedTuple):
    """What a load did: transactions settled, seconds, and the latency of each commit in seconds."""

    transactions: int
    seconds: float
    commit_latencies: Sequence[float]

    @property
    def per_second(self) -> float:
        return self.transactions / self.seconds


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of all lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def _message(topic: str, number: int, value: str) -> str:
    return f'{{"topic":"{topic}","key":"{number % 1000}","value":"{value}"}}'


def prepare_body(topic: str, number: int = 7, bytes_: int = 300) -> bytes:
    """A prepare of one message."""
    return f'{{"producer_group":"bench","messages":[{_message(topic, number, "x" * bytes_)}]}}'.encode()


async def load_batches(
    ports: Sequence[int], topic: str, connections: int, seconds: float, size: int = 100, bytes_: int = 300
) -> Load:
    """Prepares and commits `size` transactions a call on each connection, for `seconds`."""
    return await load_mixed(ports, [batch_body([topic], ["bench"], size, bytes_)], connections, seconds)


def batch_body(
    topics: Sequence[str], groups: Sequence[str], size: int = 100, bytes_: int = 300, first: int = 0
) -> bytes:
    """A prepare of `size` transactions, dealt out to topics and groups from the `first` ones on."""
    value = "x" * bytes_
    prepares = [
        f'{{"producer_group":"{groups[n % len(groups)]}","messages":[{_message(topics[n % len(topics)], n, value)}]}}'
        for n in range(first, first + size)
    ]
    return f'{{"transactions":[{",".join(prepares)}]}}'.encode()


async def load_mixed(
    ports: Sequence[int], bodies: Sequence[bytes], connections: int, seconds: float, key: str | None = None
) -> Load:
    """Prepares what the bodies say, one after the other, and commits it, on each connection, for `seconds`."""
    turns = count()

    async def step(connection: Connection) -> tuple[int, float]:
        prepared = await connection.post_ok("/v1/transactions/batch", bodies[next(turns) % len(bodies)])
        ids = [_checked(result, 201)["transaction_id"] for result in prepared["results"]]
        ends = json.dumps({"resolutions": [{"transaction_id": i, "resolution": "COMMIT"} for i in ids]}).encode()
        started = time.perf_counter()
        settled = await connection.post_ok("/v1/resolutions", ends)
        latency = time.perf_counter() - started
        for result in settled["results"]:
            _checked(result, 200, 202)  # 202: recorded, and must be found in the end
        return len(ids), latency

    return await _run([(port, key) for port in ports], connections, seconds, step)


async def load_singles(
    ports: Sequence[int], topic: str, connections: int, seconds: float, bytes_: int = 300, key: str | None = None
) -> Load:
    """Prepares one transaction, then commits it, on each connection, for `seconds`."""
    bodies = [prepare_body(topic, number, bytes_) for number in range(100)]
    turns = count()

    async def step(connection: Connection) -> tuple[int, float]:
        prepared = await connection.post_ok("/v1/transactions", bodies[next(turns) % len(bodies)])
        started = time.perf_counter()
        await connection.commit(prepared["transaction_id"])
        return 1, time.perf_counter() - started

    return await _run([(port, key) for port in ports], connections, seconds, step)


def _checked(result: dict[str, object], *expected: int) -> dict[str, object]:
    if result["status"] not in expected:
        raise RuntimeError(f"expected {expected}: {result}")
    return result


async def _run(
    doors: Sequence[tuple[int, str | None]],
    connections: int,
    seconds: float,
    step: Callable[[Connection], Awaitable[tuple[int, float]]],
) -> Load:
    """`doors`: ports, and the key for each."""
    opened = [await Connection.open(*doors[n % len(doors)]) for n in range(connections)]
    latencies: list[float] = []
    started = time.perf_counter()

    async def work(connection: Connection) -> int:
        done = 0
        while time.perf_counter() - started < seconds:
            count, latency = await step(connection)
            done += count
            latencies.append(latency)
        return done

    try:
        counts = await asyncio.gather(*(work(connection) for connection in opened))
    finally:
        for connection in opened:
            connection.close()
    return Load(sum(counts), time.perf_counter() - started, latencies)

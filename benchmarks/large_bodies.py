"""`python -m benchmarks.large_bodies`: small prepares beside large bodies and large answers, on the api alone.

The api runs in a process of its own, over services in memory, so that nothing but HTTP and the reading of bodies is
measured. Rounds are interleaved: without large bodies, then beside each shape.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import statistics
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

from msgspec.structs import replace

from api.process import GC_THRESHOLD
from api.web.app import create_app
from api.web.limits import HttpLimits
from api.web.server import ApiServer, ServeConfig
from benchmarks import http_client
from bridge.core.message import Message
from bridge.service.contract import PrepareCall
from tests.support.api_fakes import FakeTransactions, make_services

HOST = "127.0.0.1"
SIZE = 8 * 1024 * 1024
SMALL = {"producer_group": "g", "messages": [{"topic": "t", "value": "v" * 300}]}
PAUSE_S = 0.005
_SPAWN = multiprocessing.get_context("spawn")
Request = tuple[str, bytes]  # without a body it is a GET
STORED = PrepareCall("g", [Message("t", b"k" * 60, b"v" * 300)] * 20)
UNKNOWN = {"transaction_id": f"00{'7' * 25}0", "resolution": "COMMIT"}


def make_shapes() -> Mapping[str, Request]:
    """Bodies of about 8 MiB by what they consist of, and calls with large answers."""

    def value(raw: bytes) -> Request:
        return "/v1/transactions", b'{"producer_group":"g","messages":[{"topic":"t","value":%b}]}' % raw

    def repeat(unit: bytes) -> bytes:
        return b"[" + b",".join([unit] * ((SIZE - 200) // (len(unit) + 1))) + b"]"

    def batch(message: object, messages: int, count: int) -> Request:
        item = {"producer_group": "g", "messages": [message] * messages}
        return "/v1/transactions/batch", json.dumps({"transactions": [item] * count}).encode()

    ends = json.dumps({"resolutions": [UNKNOWN] * 1_000}).encode()
    members = {f"{n:x}": 1 for n in range(SIZE // 13)}
    return {
        "one text": value(b'"' + b"x" * (SIZE - 200) + b'"'),
        "one text of escapes": value(b'"' + b"\\n" * (SIZE // 2 - 200) + b'"'),
        "numbers": value(repeat(b"1")),
        "texts": value(repeat(b'"\\ud83d\\ude00"')),
        "objects": value(repeat(b"{}")),
        "nested": value(repeat(b"[" * 20 + b"]" * 20)),
        "one object": value(json.dumps(members).encode()),
        "batch of 1,000 with 8 kB": batch({"topic": "t", "value": "x" * 8_000}, 1, 1_000),
        "batch of 1,000 with 60 messages": batch({"topic": "t", "key": "k" * 60, "value": {"a": [1, 2, 3]}}, 60, 1_000),
        "page of 500 with 20 messages": ("/v1/transactions?limit=500", b""),
        "ends of 1,000": ("/v1/resolutions", ends),
    }


async def serve(ready: Connection) -> None:
    """The api until it is killed."""
    limits = HttpLimits(body_bytes=2 * SIZE)
    fake = FakeTransactions()
    await fake.prepare([replace(STORED, idempotency_key=str(n)) for n in range(500)])
    server = ApiServer(create_app(make_services(fake, limits=limits)), ServeConfig(host=HOST, port=0))
    serving = asyncio.ensure_future(server.serve_until(asyncio.Event()))
    await server.wait_started()
    ready.send(server.port)
    await serving


def run_server(ready: Connection) -> None:
    """In a process of its own, with production's garbage collection."""
    gc.set_threshold(*GC_THRESHOLD)
    asyncio.run(serve(ready))


async def send_large(port: int, name: str, orders: Connection) -> None:
    """Sends one shape again and again until something is ordered; then tells how many were answered."""
    path, body = make_shapes()[name]
    client, answered = await http_client.Connection.open(port), 0
    orders.send("ready")
    while not orders.poll():
        await client.post(path, body, method="POST" if body else "GET")
        answered += 1
    client.close()
    orders.send(answered)


def run_sender(port: int, name: str, orders: Connection) -> None:
    """In a process of its own: making and sending such a body takes time, too."""
    asyncio.run(send_large(port, name, orders))


async def measure(port: int, seconds: float) -> list[float]:
    """Latencies of small prepares in ms."""
    body = json.dumps(SMALL).encode()
    client = await http_client.Connection.open(port)
    latencies: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        since = time.perf_counter()
        await client.post_ok("/v1/transactions", body)
        latencies.append((time.perf_counter() - since) * 1000)
        await asyncio.sleep(PAUSE_S)
    client.close()
    return latencies


def measure_beside(port: int, name: str, seconds: float) -> tuple[list[float], int]:
    """The same beside large bodies of a shape, and how many of them were answered."""
    here, there = multiprocessing.Pipe()
    sender = _SPAWN.Process(target=run_sender, args=(port, name, there), daemon=True)
    sender.start()
    here.recv()
    latencies = asyncio.run(measure(port, seconds))
    here.send("enough")
    answered: int = here.recv()
    sender.join()
    return latencies, answered


def show(name: str, rounds: Sequence[tuple[list[float], int]], alone: float) -> None:
    """A row of the table: medians over the rounds."""
    p50, p99, most = (
        statistics.median([sorted(found)[min(int(len(found) * part), len(found) - 1)] for found, _ in rounds])
        for part in (0.5, 0.99, 1.0)
    )
    answered = sum(count for _, count in rounds)
    print(f"| {name} | {p50:.1f} | {p99:.1f} | {most:.1f} | {p99 / alone:.1f} | {answered} |", flush=True)


def run(port: int, rounds: int, seconds: float) -> None:
    """All rounds, then the table."""
    found: dict[str, list[tuple[list[float], int]]] = {name: [] for name in ("none", *make_shapes())}
    asyncio.run(measure(port, 1))
    for _ in range(rounds):
        for name, results in found.items():
            alone = (asyncio.run(measure(port, seconds)), 0) if name == "none" else None
            results.append(alone or measure_beside(port, name, seconds))
    p99 = statistics.median([sorted(latencies)[int(len(latencies) * 0.99)] for latencies, _ in found["none"]])
    print("| beside bodies of 8 MiB, or large answers | p50 ms | p99 ms | most ms | p99 / alone | bodies answered |")
    print("|---|---|---|---|---|---|")
    for name, results in found.items():
        show(name, results, p99)


def main() -> None:
    """Starts the api, measures, ends it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_bodies", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="for each shape of a round (default 3)")
    options = parser.parse_args()
    here, there = multiprocessing.Pipe()
    process = _SPAWN.Process(target=run_server, args=(there,), daemon=True)
    process.start()
    try:
        run(here.recv(), options.rounds, options.seconds)
    finally:
        process.kill()
        process.join()


if __name__ == "__main__":
    main()

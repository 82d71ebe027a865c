"""`python -m benchmarks.attacks`: what a healthy producer group feels of attacks, and what a drain loses in the middle.

A bridge with keys and quotas, as three processes on a real Kafka. The healthy group prepares and commits at a given
pace, alone and beside each attack in turn, round by round; latencies count from when a call was due. Attackers have
processes of their own, at a lower priority: elsewhere they would not take the bridge's processors. At last api and
settler get SIGTERM beside the heaviest load; what was acknowledged must be in Kafka or known to the bridge.

The exit code is 1 if memory, drain or what was acknowledged break the promise.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import psutil
import uvloop

from benchmarks.http_client import Connection
from benchmarks.load import percentile, prepare_body
from benchmarks.stage import TOPIC
from bridge.core.keyring import RANDOM_BYTES, make_key_text
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.broker import running_broker

PACE = 50.0  # transactions a second of the healthy group
CROWD = 10  # as many others, each at the same pace
_CLIENTS = 16
_QUOTA = 4 * PACE  # requests a second: twice what the healthy group needs
_SILENT_GROUPS, _PENDING_EACH = 20, 50
_MOST_MIB, _MOST_DRAIN_S = 512.0, 10.0
_MEBIBYTE = 1024 * 1024
_SPAWN = multiprocessing.get_context("spawn")
_DONE = (200, 202)


class Target(NamedTuple):
    """The bridge under attack. `keys`: by principal."""

    port: int
    keys: Mapping[str, str]

    def connect(self, principal: str) -> Awaitable[Connection]:
        """A connection of this one."""
        return Connection.open(self.port, self.keys[principal])


class Heard(NamedTuple):
    """What a load was told: ids that were prepared, those of them whose commit was taken, latencies in seconds."""

    prepared: list[str]
    committed: list[str]
    prepares_s: list[float]
    commits_s: list[float]


Attack = Callable[[Target, Heard], Awaitable[None]]


async def call_at_pace(
    target: Target, principal: str, per_second: float, heard: Heard, clients: int = _CLIENTS
) -> None:
    """Prepares and commits for ever, as a group named as the principal; refusals are waited out as an SDK does."""

    async def work(number: int) -> None:
        rng, pause = random.Random(number), clients / per_second
        due = time.perf_counter() + pause * rng.random()
        with suppress(ConnectionError, asyncio.IncompleteReadError):  # the bridge ended
            connection = await target.connect(principal)
            while True:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                await _call_once(connection, principal, due, heard)
                due = max(due + pause * rng.uniform(0.5, 1.5), time.perf_counter() - 1)

    await asyncio.gather(*map(work, range(clients)))


async def _call_once(connection: Connection, group: str, due: float, heard: Heard) -> None:
    body = prepare_body(TOPIC).replace(b'"bench"', f'"{group}"'.encode())
    transaction_id = json.loads(await _post(connection, "/v1/transactions", body, (201,)))["transaction_id"]
    heard.prepared.append(transaction_id)
    prepared = time.perf_counter()
    await _post(connection, f"/v1/transactions/{transaction_id}/commit", b"", _DONE)
    heard.committed.append(transaction_id)
    heard.prepares_s.append(prepared - due)
    heard.commits_s.append(time.perf_counter() - prepared)


async def _post(connection: Connection, path: str, body: bytes, expected: Sequence[int]) -> bytes:
    while True:
        status, answer = await connection.post(path, body)
        if status in expected:
            return answer
        if status not in {429, 503}:
            raise RuntimeError(f"{path}: {status} {answer[:500]!r}")
        await asyncio.sleep(random.uniform(0.5, 1.5))


async def trickle(target: Target, _: Heard, connections: int = 2_000) -> None:
    """Connections that send a byte of a request's head each second; what is ended is opened anew."""

    async def drip(number: int) -> None:
        while True:
            await asyncio.sleep(number / connections)
            with suppress(OSError):
                writer = (await asyncio.open_connection("127.0.0.1", target.port))[1]
                for byte in b"POST /v1/transactions HTTP/1.1\r\nHost: bridge\r\nX-Long: " + b"x" * 2_000:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(1)

    await asyncio.gather(*map(drip, range(connections)))


async def answer_without_end(target: Target, _: Heard) -> None:
    """Check endpoints of other groups whose answers go on for ever: half of them as fast as they are read."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, part: bytes, pause_s: float) -> None:
        # it is cancelled in the end, which the stream's own callback would tell as a defect
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            while not writer.is_closing():
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                await writer.drain()
                await asyncio.sleep(pause_s)

    quick = await asyncio.start_server(lambda r, w: serve(r, w, b" " * 65_536, 0), "127.0.0.1", 0)
    slow = await asyncio.start_server(lambda r, w: serve(r, w, b" ", 0.2), "127.0.0.1", 0)
    ports = [server.sockets[0].getsockname()[1] for server in (quick, slow)]
    connection = await target.connect("admin")
    for number in range(_SILENT_GROUPS):
        name, url = f"silent-{number}", f"http://127.0.0.1:{ports[number % 2]}/check"
        check = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "max_checks": 1_000}
        body = json.dumps({"endpoints": [{"url": url}], "check": check}).encode()
        await connection.post(f"/v1/producer-groups/{name}", body, method="PUT")
        for _turn in range(_PENDING_EACH):
            prepare = prepare_body(TOPIC).replace(b'"bench"', f'"{name}"'.encode())
            await _post(connection, "/v1/transactions", prepare, (201,))
    await asyncio.Event().wait()


async def crowd(target: Target, heard: Heard) -> None:
    """Ten times the load: other groups with keys of their own, each like the healthy one."""
    await asyncio.gather(*(call_at_pace(target, f"crowd-{n}", PACE, heard, 8) for n in range(CROWD)))


async def use_ten_quotas(target: Target, _: Heard, clients: int = 32) -> None:
    """One principal sends ten times as many requests as its quota, whatever it is answered."""

    async def work() -> None:
        connection, pause = await target.connect("greedy"), clients / (10 * _QUOTA)
        due = time.perf_counter()
        while True:
            due = max(due + pause, time.perf_counter() - 1)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await connection.post("/v1/transactions", prepare_body(TOPIC).replace(b'"bench"', b'"greedy"'))

    await asyncio.gather(*(work() for _ in range(clients)))


ATTACKS: Mapping[str, tuple[str, Attack]] = {
    "trickle": ("2,000 connections that send a byte a second", trickle),
    "endless": (f"check endpoints of {_SILENT_GROUPS} groups whose answers never end", answer_without_end),
    "crowd": (f"{CROWD} other groups with the same load each", crowd),
    "greedy": ("one principal at ten times its quota", use_ten_quotas),
}


def run_attack(name: str, target: Target, orders: Pipe) -> None:
    """In a process of its own, until something is ordered; then tells what it heard."""
    os.nice(5)
    heard = Heard([], [], [], [])

    async def attack() -> None:
        work = asyncio.ensure_future(ATTACKS[name][1](target, heard))
        while not orders.poll() and not work.done():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work

    orders.send("ready")
    uvloop.run(attack())
    orders.send(heard)


@contextmanager
def attacking(name: str, target: Target, all_heard: list[Heard]) -> Iterator[None]:
    """One of the attacks goes on meanwhile; what it heard is added in the end."""
    here, there = _SPAWN.Pipe()
    process = _SPAWN.Process(target=run_attack, args=(name, target, there), daemon=True)
    process.start()
    here.recv()
    time.sleep(2)
    try:
        yield
    finally:
        here.send("enough")
        all_heard.append(here.recv())
        process.join()


class Stage:
    """A bridge with keys. `most_mib`: the most memory that a part has had."""

    def __init__(self, bridge: Bridge, stack: ExitStack, admin: str) -> None:
        self._stack = stack
        self._bridge = bridge
        self.most_mib: dict[str, float] = {}
        self.heard: list[Heard] = []
        self.parts: dict[str, BridgeProcess] = {}
        self.keys = {"admin": admin}
        for role in ("settler", "projector", "api"):
            self.start(role)

    @property
    def target(self) -> Target:
        """The api process."""
        return Target(self.parts["api"].port, self.keys)

    def start(self, role: str) -> None:
        """A process of this role."""
        self.parts[role] = self._stack.enter_context(self._bridge.serve(role))

    def make_principal(self, name: str) -> None:
        """One that may produce as a group of its name."""
        headers = {"Authorization": f"Bearer {self.keys['admin']}"}
        grants = [{"verbs": ["prepare", "decide", "check", "read"], "groups": name, "topics": "*"}]
        with httpx2.Client(base_url=self.parts["api"].url, headers=headers) as client:
            client.put(f"/v1/principals/{name}", json={"grants": grants}).raise_for_status()
            self.keys[name] = client.post(f"/v1/principals/{name}/keys", json={}).raise_for_status().json()["key"]

    @contextmanager
    def watching_memory(self) -> Iterator[None]:
        """Looks at api and settler five times a second."""
        stopped = threading.Event()

        def watch() -> None:
            while not stopped.wait(0.2):
                for role in ("api", "settler"):
                    with suppress(psutil.NoSuchProcess):
                        used = psutil.Process(self.parts[role].popen.pid).memory_info().rss / _MEBIBYTE
                        self.most_mib[role] = max(self.most_mib.get(role, 0.0), used)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def measure(self, seconds: float) -> Heard:
        """What the healthy group hears in so long."""
        heard = Heard([], [], [], [])

        async def call() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await call_at_pace(self.target, "healthy", PACE, heard)

        uvloop.run(call())
        self.heard.append(heard)
        return heard


def measure_rounds(stage: Stage, names: Sequence[str], rounds: int, seconds: float) -> dict[str, list[Heard]]:
    """Alone and beside each attack, by turns."""
    found: dict[str, list[Heard]] = {name: [] for name in ("alone", *names)}
    stage.measure(seconds)  # until compilers are done
    for _ in range(rounds):
        for name, results in found.items():
            if name == "alone":
                results.append(stage.measure(seconds))
                continue
            with attacking(name, stage.target, stage.heard):
                results.append(stage.measure(seconds))
    return found


def drain(stage: Stage, seconds: float) -> Mapping[str, float]:
    """Seconds from SIGTERM, in the middle of the crowd's load, until api and settler have ended; then they are back."""
    took: dict[str, float] = {}
    for role in ("api", "settler"):
        with attacking("crowd", stage.target, stage.heard):
            timer = threading.Timer(seconds / 2, lambda role=role: took.update({role: _stop(stage.parts[role])}))
            timer.start()
            stage.measure(seconds)
            timer.join()
        stage.start(role)
    return took


def _stop(process: BridgeProcess) -> float:
    began = time.perf_counter()
    process.stop()
    return time.perf_counter() - began


def find_lost(stage: Stage, kafka: str) -> list[str]:
    """Acknowledged commits that are not visible once; acknowledged prepares that the bridge knows nothing of."""
    committed = {one for heard in stage.heard for one in heard.committed}
    visible: list[str | None] = []

    def are_visible() -> bool:
        visible[:] = [record.transaction_id for record in read_committed(kafka, [TOPIC])]
        return committed <= set(visible)

    with suppress(AssertionError):
        wait_until(are_visible, 60, "commits")
    doubled = len(visible) - len(set(visible))
    lost = [f"{one} is not visible" for one in committed - set(visible)] + ["a message is doubled"] * doubled
    headers = {"Authorization": f"Bearer {stage.keys['admin']}"}
    open_ones = {one for heard in stage.heard for one in heard.prepared} - committed
    with httpx2.Client(base_url=stage.parts["api"].url, headers=headers) as client:
        lost += [f"{one} is unknown" for one in open_ones if client.get(f"/v1/transactions/{one}").status_code != 200]
    return lost


def show(found: Mapping[str, Sequence[Heard]]) -> None:
    """A table; figures over all rounds, and how the rounds' p99 differ."""
    print("| beside | prepare p50, p99 | / alone | commit p50, p99 | / alone | p99 of the rounds |")
    print("|---|---|---|---|---|---|")
    alone: dict[str, float] = {}
    for name, rounds in found.items():
        row = [ATTACKS[name][0] if name in ATTACKS else "nothing"]
        for what in ("prepares_s", "commits_s"):
            values = [value * 1000 for heard in rounds for value in getattr(heard, what)]
            p99 = percentile(values, 0.99)
            row += [f"{statistics.median(values):.1f}, {p99:.1f} ms", f"{p99 / alone.setdefault(what, p99):.2f}"]
        each = [percentile(heard.commits_s, 0.99) * 1000 for heard in rounds]
        print("|", " | ".join([*row, ", ".join(f"{value:.0f}" for value in each)]), "|", flush=True)


def main() -> int:
    """0, or 1 if something was lost, or took too much memory or time."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8, help="for each attack of a round (default 8)")
    parser.add_argument("--only", choices=list(ATTACKS), action="append")
    options = parser.parse_args()
    admin = make_key_text(os.urandom(RANDOM_BYTES))
    settings: dict[str, Any] = {
        "OUTBOX_BRIDGE_INSECURE_NO_AUTH": "false",
        "OUTBOX_BRIDGE_AUTH__ADMIN_KEY": admin,
        "OUTBOX_BRIDGE_QUOTAS__REQUESTS_PER_SECOND": str(_QUOTA),
        "OUTBOX_BRIDGE_LOG__LEVEL": "warning",
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = stack.enter_context(running_broker(heap_mb=1024, is_long_lived=True)).bootstrap
        create_topics(kafka, {TOPIC: 2})
        stage = Stage(Bridge.create(kafka, folder, queues=1, **settings), stack, admin)
        for name in ("healthy", "greedy", *(f"crowd-{n}" for n in range(CROWD))):
            stage.make_principal(name)
        with stage.watching_memory():
            show(measure_rounds(stage, options.only or list(ATTACKS), options.rounds, options.seconds))
            took = drain(stage, options.seconds)
        lost = find_lost(stage, kafka)
        count = sum(len(heard.committed) for heard in stage.heard)
    print(f"most memory: {_tell(stage.most_mib, 'MiB')}; SIGTERM to the end: {_tell(took, 's')}")
    print(f"{count} acknowledged commits; lost or doubled: {len(lost)}", *lost[:10], sep="\n")
    return int(bool(lost) or max(stage.most_mib.values()) > _MOST_MIB or max(took.values()) > _MOST_DRAIN_S)


def _tell(figures: Mapping[str, float], unit: str) -> str:
    return ", ".join(f"{name} {figure:.1f} {unit}" for name, figure in figures.items())


if __name__ == "__main__":
    sys.exit(main())

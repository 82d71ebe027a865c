"""Check endpoints whose answers never end: a settler on a real Kafka cuts them off, and asks everybody else in time."""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.integration.checker.hostile import OK_HEAD, Behaviour, HostileServer, repeating
from tests.support.bridge_process import Bridge, BridgeProcess, check_endpoint, create_topics, wait_until
from tests.support.memory_limit import MIB, peak_bytes

CHUNKED = OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b" " * 65_536 + b"\r\n"
POURED = 192 * MIB  # at most, if nobody cuts it off
MOST_TAKEN = 64 * MIB
HELD = 70  # groups: more than there are calls at once
SHARE = 16  # of these calls, for groups that do not answer
SOON = {"transaction_timeout_seconds": 1, "interval_seconds": 1}


def pouring(head: bytes, part: bytes) -> Behaviour:
    """Sends the head, then the part as fast as it is read; after very much of it a byte at a time."""

    async def behaviour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        for _ in range(POURED // len(part)):
            writer.write(part)
            await writer.drain()
        await repeating(b"", b" ", 0.1)(reader, writer)

    return behaviour


class Turning:
    """Endpoints by their paths: the first call of each goes on for ever at once, all others trickle."""

    def __init__(self) -> None:
        self.server = HostileServer(self._answer)
        self._known: set[bytes] = set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = self.server.requests[-1].split()[1]
        kind = KINDS["trickled-body" if path in self._known else "body"]
        self._known.add(path)
        await kind.behaviour(reader, writer)


@dataclass(frozen=True, slots=True)
class Endless:
    """What an endpoint sends, and how its calls may be told of: that depends on how much comes at once."""

    behaviour: Behaviour
    failures: Set[str]


FLOOD = {"malformed", "too-large"}
KINDS = {
    "one-header": Endless(pouring(b"HTTP/1.1 200 OK\r\nX-Long: ", b"x" * 65_536), FLOOD),
    "headers": Endless(pouring(b"HTTP/1.1 200 OK\r\n", b"X-More: x\r\n" * 4_096), FLOOD),
    "hints": Endless(pouring(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n" * 1_024), FLOOD),
    "body": Endless(pouring(CHUNKED, CHUNK), FLOOD),
    "trickled-head": Endless(repeating(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x", 0.1), {"timeout"}),
    "trickled-body": Endless(repeating(CHUNKED, b"1\r\n \r\n", 0.1), {"timeout"}),
}


@contextmanager
def serving(servers: Collection[HostileServer]) -> Iterator[None]:
    """They run on a loop of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        for server in servers:
            asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
        yield
    finally:
        for server in servers:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def has_ended(server: HostileServer) -> bool:
    """Whether the bridge has closed all its connections."""
    return server.closed.qsize() == server.connections


@dataclass(frozen=True, slots=True)
class Stage:
    """A bridge whose settler is a process of its own."""

    front: BridgeProcess
    settler: BridgeProcess
    topic: str

    def put_group(self, name: str, port: int, **check: Any) -> None:
        """A group with one endpoint."""
        body = {"endpoints": [{"url": f"http://127.0.0.1:{port}/{name}"}], "check": {**SOON, **check}}
        assert self.front.http.put(f"/v1/producer-groups/{name}", json=body).status_code == 201

    def prepare(self, group: str) -> str:
        """A transaction that nobody will end."""
        body = {"producer_group": group, "messages": [{"topic": self.topic, "value": "v"}]}
        answer = self.front.post("/v1/transactions", body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["transaction_id"])

    def get(self, path: str) -> dict[str, Any]:
        """What is answered."""
        answer = self.front.get(path)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def find_health(self, group: str) -> dict[str, Any] | None:
        """What is told of its endpoint, once a round of it is."""
        return next((one for one in self.get(f"/v1/producer-groups/{group}")["endpoints"] if one["unanswered"]), None)

    def wait_all(self, transaction_ids: list[str], state: str) -> None:
        """Until each is in this state."""
        for transaction_id in transaction_ids:
            wait_until(self._is_in(transaction_id, state), 60, f"{state} of {transaction_id}")

    def _is_in(self, transaction_id: str, state: str) -> Callable[[], bool]:
        return lambda: bool(self.get(f"/v1/transactions/{transaction_id}")["state"] == state)


@pytest.fixture(scope="module")
def bridge(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Bridge:
    """One for all tests."""
    return Bridge.create(kafka, tmp_path_factory.mktemp("bridge"))


@pytest.fixture(scope="module")
def front(bridge: Bridge) -> Iterator[BridgeProcess]:
    """What takes transactions and shows them."""
    create_topics(bridge.kafka, {f"{bridge.prefix}orders": 1})
    with bridge.serve("api,projector") as process:
        yield process


@pytest.fixture
def stage(bridge: Bridge, front: BridgeProcess) -> Iterator[Stage]:
    """With a new settler, whose memory nobody has used yet."""
    with bridge.serve("settler") as settler:
        yield Stage(front, settler, f"{bridge.prefix}orders")


def test_answer_without_end_is_cut_off_and_is_none(stage: Stage) -> None:
    """Whatever goes on for ever in it: it uses up no check, takes no memory, and its transaction is parked in time."""
    servers = {name: HostileServer(kind.behaviour) for name, kind in KINDS.items()}
    with serving(servers.values()):
        for name, server in servers.items():
            stage.put_group(name, server.port, call_timeout_seconds=1, max_lifetime_seconds=2)
        before = peak_bytes(stage.settler.popen.pid)
        pending = {name: stage.prepare(name) for name in servers}
        stage.wait_all(list(pending.values()), "PARKED")
        assert peak_bytes(stage.settler.popen.pid) - before < MOST_TAKEN
        for name, transaction_id in pending.items():
            found = stage.get(f"/v1/transactions/{transaction_id}")
            assert (found["reason"], found["check_times"]) == ("MAX_LIFE", 0), name
            wait_until(partial(has_ended, servers[name]), name=f"the end of all calls: {name}")
            health = wait_until(partial(stage.find_health, name), name=f"what is told of {name}")
            assert health["answered"] == 0
            assert health["last_failure"] in KINDS[name].failures, name


def test_answers_without_end_hold_nobody_elses_checks_back(stage: Stage) -> None:
    """More groups than there are calls have each been cut off once; then they trickle: another group is asked at once,
    while not one of those calls has ended. Those calls do not hold up the process's end either."""
    held = Turning().server
    with serving([held]), check_endpoint("COMMIT") as good:
        for number in range(HELD):
            stage.put_group(f"held-{number}", held.port, call_timeout_seconds=60)
        stage.put_group("good", good.port)
        for number in range(HELD):
            stage.prepare(f"held-{number}")
        wait_until(lambda: held.connections >= HELD + SHARE, 60, "trickling calls")
        asked = [stage.prepare("good") for _ in range(20)]
        stage.wait_all(asked, "COMMITTED")
        assert [good.asked(transaction_id) for transaction_id in asked] == [1] * len(asked)
        assert (held.closed.qsize(), held.connections) == (HELD, HELD + SHARE)
        assert stage.settler.stop() == 0

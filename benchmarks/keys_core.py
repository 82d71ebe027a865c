"""`python -m benchmarks.keys_core`: what a key costs a single call, from bytes on a connection to those of its answer.

CPU time of the api for a prepare and its commit, without sockets and Kafka, by turns without and with a key.
"""

import asyncio
import gc
import re
import statistics
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from api.web.app import create_app
from api.web.request import Services
from api.web.road import Road
from api.web.server import ServeConfig, _protocol_for
from benchmarks.api_core import open_service
from bridge.clock import SystemClock
from bridge.core.grants import Grant, Verb
from bridge.node import Node
from bridge.service.access import AccessConfig, AccessService
from bridge.service.operate import Who
from bridge.sql.access import MadeKey
from bridge.sql.engine import open_new_database
from tests.support.api_fakes import FakeTransactions, make_services

_CONNECTIONS = 64
_ROUNDS, _TRANSACTIONS = 7, 10_000
_HEAD = "Host: 127.0.0.1:1\r\nContent-Type: application/json\r\n{key}Content-Length: {length}\r\n\r\n"
_BODY = f'{{"producer_group":"bench","messages":[{{"topic":"orders","key":"7","value":"{"x" * 300}"}}]}}'
_ID = re.compile(rb'"transaction_id":"([0-9a-v]{28})"')


class _Transport:
    """Keeps what was answered last."""

    def __init__(self) -> None:
        self.answer = b""

    def write(self, data: bytes) -> None:
        self.answer += data

    def writelines(self, pieces: Any) -> None:
        self.answer += b"".join(pieces)

    def take(self) -> bytes:
        """The answer, which is as expected."""
        answer, self.answer = self.answer, b""
        assert answer.startswith(b"HTTP/1.1 20"), answer
        return answer

    def get_extra_info(self, _: str) -> None:
        return None

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """It stays."""

    pause_reading = resume_reading = close

    def set_write_buffer_limits(self, **_: int) -> None:
        """Everything is taken."""

    def get_write_buffer_size(self) -> int:
        return 0


class _Face:
    """Connections to an api over this node. `key`: that they send."""

    def __init__(self, services: Services, key: str | None) -> None:
        app = create_app(services)
        road: Road = app.state.road
        road.doorkeeper.listen("127.0.0.1", 1, ())
        config = Config(app, log_config=None)
        config.load()
        protocol: Any = _protocol_for(ServeConfig(), road)
        self._connections = []
        for _ in range(_CONNECTIONS):
            connection, transport = protocol(config, ServerState(), {}, asyncio.get_running_loop()), _Transport()
            connection.connection_made(transport)
            self._connections.append((connection, transport))
        self._key = "" if key is None else f"Authorization: Bearer {key}\r\n"

    def _write(self, path: str, body: str) -> bytes:
        return f"POST {path} HTTP/1.1\r\n{_HEAD.format(key=self._key, length=len(body))}{body}".encode()

    async def _ask(self, requests: list[bytes]) -> list[bytes]:
        for (connection, _), request in zip(self._connections, requests, strict=True):
            connection.data_received(request)
        while not all(transport.answer for _, transport in self._connections):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        return [transport.take() for _, transport in self._connections]

    async def measure(self, transactions: int) -> float:
        """Microseconds of a prepare and its commit, answered when it is settled."""
        spent = 0.0
        prepare = [self._write("/v1/transactions", _BODY)] * _CONNECTIONS
        for _ in range(transactions // _CONNECTIONS):
            at = time.process_time()
            answers = await self._ask(prepare)
            spent += time.process_time() - at
            ids = [found[1].decode() for answer in answers if (found := _ID.search(answer))]
            commits = [self._write(f"/v1/transactions/{i}/commit", "") for i in ids]
            at = time.process_time()
            await self._ask(commits)
            spent += time.process_time() - at
        return spent / (transactions // _CONNECTIONS * _CONNECTIONS) * 1e6


async def _make_access(folder: Path) -> tuple[AccessService, str]:
    access = AccessService(open_new_database(folder), SystemClock(), AccessConfig(is_open=False))
    who = Who("ops", "")
    await access.put("shop", [Grant(Verb.PREPARE, "bench", "orders"), Grant(Verb.DECIDE, "bench")], who)
    made = await access.make_key("shop", None, None, who)
    assert isinstance(made, MadeKey)
    return access, made.text


def _make_services(node: Node) -> Services:
    return replace(make_services(FakeTransactions()), transactions=node.transactions)


async def run(folder: Path) -> None:
    """Prints the medians."""
    async with open_service(folder) as node:
        access, key = await _make_access(folder)
        faces = {
            "without a key": _Face(_make_services(node), None),
            "with a key": _Face(replace(_make_services(node), access=access), key),
        }
        found: dict[str, list[float]] = {name: [] for name in faces}
        for turn in range(_ROUNDS + 1):
            for name, face in faces.items():
                took = await face.measure(_TRANSACTIONS)
                if turn:  # the first one warms up
                    found[name].append(took)
        without, with_key = (statistics.median(took) for took in found.values())
        ratios = [b / a for a, b in zip(*found.values(), strict=True)]
        print(f"without a key {without:.1f} us, with a key {with_key:.1f} us a transaction of two single calls")
        print(f"ratio of a round: median {statistics.median(ratios):.3f}, {min(ratios):.3f}..{max(ratios):.3f}")


def main() -> None:
    """One process, nothing else in it."""
    gc.set_threshold(100_000, 50, 1_000)
    with TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


if __name__ == "__main__":
    main()

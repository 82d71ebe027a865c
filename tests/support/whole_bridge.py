"""The whole bridge in one process on the in-memory log: HTTP application, service, settler, checker, projector, SQLite.

    with WholeBridge(folder) as bridge:
        bridge.endpoints["https://shop.example/check"] = answer     # what an endpoint says to a call
        reply = bridge.call("POST", "/v1/transactions", {...})
        bridge.pass_ms(30_000)

Every call runs on the virtual clock until it is answered; between calls time stands still. Nothing is random and
nothing depends on the wall clock. SQL runs inside the event loop, since threads know no virtual time.
"""

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from shutil import copyfile
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from starlette.types import Message, Receive

from api.app import create_app
from api.services import Services
from bridge.core.config import CheckTimes
from bridge.core.message import StoredMessage
from bridge.core.topics import InternalTopics
from bridge.projector import Projector, ProjectorConfig, ProjectorPorts
from bridge.service.assembly import Service, ServiceConfig, Stores, assemble
from bridge.settler.destinations import Destinations
from bridge.settler.ports import SettlerConfig, SettlerPorts
from bridge.settler.settler import Settler
from bridge.sql.check_board import SqlCheckBoard
from bridge.sql.directory import SqlDirectory
from bridge.sql.tables import metadata
from checker.check_service import CheckService
from checker.desk import CheckPorts
from checker.memory_caller import Handler, MemoryCaller
from tests.support.inline_database import InlineDatabase
from tests.support.memory_world import make_memory_world
from tests.support.virtual_time import VirtualClock

T = TypeVar("T")
_LIMIT_MS = 60_000
# One process writes alone and nothing fails here: what only looks after others need not look often.
_RARELY_MS = 60_000
_PROJECTING = ProjectorConfig(max_wait_ms=10_000, lease_ms=3 * _RARELY_MS, purge_interval_ms=_RARELY_MS)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the HTTP interface."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON; None if there is none."""
        return json.loads(self.body) if self.body else None


class WholeBridge:
    """One bridge, alive from `with` to the end of its block."""

    def __init__(
        self, folder: Path, topics: Mapping[str, int], *, queues: int = 2, clock: VirtualClock | None = None
    ) -> None:
        self.memory = make_memory_world(topics, topics=InternalTopics(queues=queues), clock=clock)
        self.clock = self.memory.clock
        self._random = Random(7)
        self._database = InlineDatabase(f"sqlite:///{_new_database(folder)}")
        self._directory = SqlDirectory(self._database, self.clock, refresh_ms=_RARELY_MS)
        self._caller = MemoryCaller(self.clock)
        self._service = self._make_service()
        self._projector = self._make_projector()
        self._checks = self._make_checks()
        self._settler = self._make_settler()
        self._app = create_app(
            Services(
                self._service.transactions,
                self._service.search,
                self._service.parked,
                self._service.groups,
                self._service.claims,
                now_ms=self.clock.now_ms,
            )
        )
        self._runner = asyncio.Runner()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def endpoints(self) -> dict[str, Handler]:
        """What is said to checks, by URL; any other URL refuses the connection."""
        return self._caller.endpoints

    def __enter__(self) -> Self:
        self._drive(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._drive(self._stop())
        finally:
            self._runner.close()
            self._database.engine.dispose()

    def call(self, method: str, path: str, document: object = None, headers: Mapping[str, str] | None = None) -> Reply:
        """One request; `document` is sent as JSON."""
        body = b"" if document is None else json.dumps(document).encode()
        given = {"content-type": "application/json", **(headers or {})} if body else dict(headers or {})
        return self._drive(self._request(method, path, body, given))

    def pass_ms(self, duration_ms: int) -> None:
        """Lets so much time pass."""
        self._runner.run(self.clock.advance(duration_ms))

    def read(self, topic: str, queue_id: int) -> Sequence[StoredMessage]:
        """What committed readers find in a queue of a topic."""
        self.memory.cluster.agenda.run_due()
        partition = self.memory.cluster.log.topics[topic].partitions[queue_id]
        return partition.read(partition.minimum, len(partition.records))[0]

    def _drive(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(self.clock.drive(call, _LIMIT_MS))

    async def _request(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        path, _, query = target.partition("?")
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path,
            "raw_path": path.encode(), "query_string": query.encode(), "client": ("127.0.0.1", 1), "server": None,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        sent: list[Message] = []

        async def keep(message: Message) -> None:
            sent.append(message)

        await self._app(scope, _once(body), keep)
        start, *parts = sent
        shown = {name.decode(): value.decode() for name, value in start["headers"]}
        return Reply(start["status"], shown, b"".join(part.get("body", b"") for part in parts))

    async def _start(self) -> None:
        await self._directory.refresh()
        service = self._service.loops()
        loops = (self._directory.run_forever, *service, self._projector.run_forever, self._checks.run_forever)
        self._tasks = [asyncio.ensure_future(loop()) for loop in (*loops, self._settler.run_forever)]
        while not (self._service.is_ready and len(self._settler.status) == self.memory.topics.queues):
            await self.clock.sleep_ms(10)

    async def _stop(self) -> None:
        """Nothing is left that would complain of being forgotten."""
        await self._checks.close()
        self._settler.stop()
        self._projector.stop()
        *cancelled, _, _ = self._tasks
        for task in cancelled:
            task.cancel()
        await asyncio.wait(self._tasks)

    def _make_service(self) -> Service:
        process = self.memory.start_process("api")
        stores = Stores(process.store, process.owners, process.admin, self._database)
        config = ServiceConfig(_refuse_no_url, self.memory.topics, prefix="api-", random_bits=self._random.getrandbits)
        return assemble(stores, self._directory, self.clock, config)

    def _make_projector(self) -> Projector:
        process = self.memory.start_process("projector")
        ports = ProjectorPorts(process.owners, process.store, process.admin, self._database, self.clock, self._times_of)
        return Projector(self.memory.topics, "projector", ports, _PROJECTING)

    def _make_checks(self) -> CheckService:
        store = self.memory.start_process("checker").store
        ports = CheckPorts(
            store, self._directory, self._caller, self.clock,
            self._random_text, self._random.random, SqlCheckBoard(self._database),
        )  # fmt: skip
        return CheckService(ports, self.memory.topics)

    def _make_settler(self) -> Settler:
        process = self.memory.start_process("settler")
        destinations = Destinations(process.admin, self.clock)
        ports = SettlerPorts(process.store, process.owners, destinations, self._times_of, self._checks, self.clock)
        return Settler(self.memory.topics, "settler", ports, SettlerConfig())

    def _times_of(self, group: str) -> CheckTimes:
        return self._directory.settings_of(group).times

    def _random_text(self) -> str:
        return f"{self._random.getrandbits(72):022d}"


def _refuse_no_url(url: str) -> None:
    """Nothing is really called."""


def _once(body: bytes) -> Receive:
    """The caller sends its body and waits for the answer, however long that takes."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return waiting.pop() if waiting else await asyncio.get_running_loop().create_future()

    return receive


def _new_database(folder: Path) -> Path:
    """A copy of one empty database: making its tables anew each time would cost more than a test's story."""
    empty, path = folder / "empty.db", folder / "bridge.db"
    if not empty.exists():
        made = sa.create_engine(f"sqlite:///{empty}")
        metadata.create_all(made)
        made.dispose()
    for old in folder.glob("bridge.db*"):
        old.unlink()
    copyfile(empty, path)
    return path

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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

from sqlalchemy import Connection
from starlette.types import Message, Receive

from api.testing.stand import OPEN, MemoryBridge
from api.web.request import Services
from bridge.core.grants import Masks
from bridge.core.message import StoredMessage
from bridge.core.topics import InternalTopics
from bridge.node import Backing
from bridge.service.access import AccessConfig
from bridge.sql.engine import Database, open_new_database
from checker.webhooks import WebhookTarget
from tests.support.check_fakes import Handler, MemoryCaller
from tests.support.memory_world import make_memory_world
from tests.support.virtual_time import VirtualClock

T = TypeVar("T")
_LIMIT_MS = 60_000


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
        self,
        folder: Path,
        topics: Mapping[str, int],
        *,
        queues: int = 2,
        clock: VirtualClock | None = None,
        access: AccessConfig = OPEN,
        reports: Path | None = None,
        adapt: Callable[[Services], Services] = lambda usual: usual,
        masks: Masks | None = None,
        webhooks: Sequence[WebhookTarget] = (),
    ) -> None:
        self.memory = make_memory_world(topics, topics=InternalTopics(queues=queues), clock=clock)
        self.clock = self.memory.clock
        self._database = open_new_database(folder)
        self._caller = MemoryCaller(self.clock)
        process = self.memory.start_process("bridge")
        backing = Backing(
            process.store, process.owners, process.admin, self._database, self.clock, lambda: self._caller, Random(7)
        )
        self._bridge = MemoryBridge(
            backing,
            self.memory.topics,
            access=access,
            choose=lambda usual: replace(usual, masks=masks or Masks(), webhooks=webhooks),
            adapt=lambda usual: adapt(replace(usual, reports=reports)),
        )
        self._runner = asyncio.Runner()

    @property
    def endpoints(self) -> dict[str, Handler]:
        """What is said to checks, by URL; any other URL refuses the connection."""
        return self._caller.endpoints

    def __enter__(self) -> Self:
        self._drive(self._bridge.start())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._drive(self._bridge.stop())
        finally:
            self._runner.close()
            self._database.dispose()

    def call(self, method: str, path: str, document: object = None, headers: Mapping[str, str] | None = None) -> Reply:
        """One request; `document` is sent as JSON."""
        body = b"" if document is None else json.dumps(document).encode()
        given = {"host": "localhost", "content-type": "application/json", **(headers or {})}
        return self._drive(self._request(method, path, body, given))

    def submit(self, path: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Reply:
        """A form, as a browser sends it from a page of the bridge."""
        form = {"content-type": "application/x-www-form-urlencoded", "origin": "http://localhost"}
        given = {"host": "localhost", **form, **(headers or {})}
        return self._drive(self._request("POST", path, urlencode(fields).encode(), given))

    def pass_ms(self, duration_ms: int) -> None:
        """Lets so much time pass."""
        self._runner.run(self.clock.advance(duration_ms))

    @property
    def database(self) -> Database:
        """The bridge's."""
        return self._database

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs something else in the bridge's loop."""
        return self._drive(call)

    def sql(self, work: Callable[[Connection], T]) -> T:
        """One SQL transaction in the bridge's database."""
        return self._drive(self._database.run(work))

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

        await self._bridge.app(scope, _once(body), keep)
        start, *parts = sent
        shown = {name.decode(): value.decode() for name, value in start["headers"]}
        return Reply(start["status"], shown, b"".join(part.get("body", b"") for part in parts))


def _once(body: bytes) -> Receive:
    """The caller sends its body and waits for the answer, however long that takes."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return waiting.pop() if waiting else await asyncio.get_running_loop().create_future()

    return receive

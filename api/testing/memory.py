"""A bridge on the in-memory log: started in milliseconds, gone without a trace, and its time can be moved."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from api.testing.bridge import MemoryBridge
from api.testing.clock import MovableClock, TrueDate
from api.testing.stand import LOOPBACK, QUEUES, Stand
from api.web.server import ApiServer, ServeConfig
from bridge.core.topics import InternalTopics
from bridge.node import Backing
from bridge.sql.engine import open_new_database
from bridge.store.memory.cluster import MemoryCluster
from bridge.store.memory.process import MemoryProcess
from bridge.store.message_store import MessageStore, TopicAdmin
from checker.endpoint_guard import CallbackPolicy, parse_networks
from checker.http_caller import HttpCaller

_HURRY_MS = 50


class MemoryStand(Stand):
    """Empty each time it is opened. `folder`: for the bridge's SQLite file."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._make_log()

    @property
    def store(self) -> MessageStore:
        return self._reader.store

    @property
    def admin(self) -> TopicAdmin:
        return self._reader.admin

    async def move(self, for_ms: int) -> None:
        """What is due in so much time is done or under way."""
        await self._clock.move(for_ms)

    async def move_to(self, until_ms: int) -> None:
        """The same, up to a time of the bridge's clock."""
        await self._clock.move(until_ms - self._clock.now_ms())

    def _make_log(self) -> None:
        self._clock = MovableClock()
        self._cluster = MemoryCluster(self._clock)
        self._reader = MemoryProcess(self._cluster, "test")

    async def _serve(self, on_started: Callable[[str], None]) -> None:
        self._make_log()
        database = open_new_database(self._folder)
        networks = CallbackPolicy(parse_networks(LOOPBACK))
        # an empty context: certificates take long to load, and nothing but loopback is called
        caller = HttpCaller(networks, self._clock, ssl_context=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        process = MemoryProcess(self._cluster, "bridge")
        backing = Backing(
            process.store, process.owners, process.admin, database, self._clock, lambda: caller,
            check_clock=TrueDate(self._clock),
        )  # fmt: skip
        try:
            await self._serve_until_stop(
                MemoryBridge(backing, InternalTopics(queues=QUEUES), self._put_between), on_started
            )
        finally:
            database.dispose()

    async def _serve_until_stop(self, bridge: MemoryBridge, on_started: Callable[[str], None]) -> None:
        server = ApiServer(bridge.app, ServeConfig(port=0))
        await self._hurry(bridge.start())
        try:
            serving = asyncio.create_task(server.serve_until(self._stop))
            await server.wait_started()
            on_started(f"http://127.0.0.1:{server.port}")
            await serving
        finally:
            await self._hurry(bridge.stop())

    async def _hurry(self, work: Coroutine[Any, Any, object]) -> None:
        """Whatever waits for time does not have to."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await self._clock.move(_HURRY_MS)
        task.result()

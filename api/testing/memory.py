"""A bridge on the in-memory log: started in milliseconds, gone without a trace, and its time can be moved."""

import asyncio
import ssl
from collections.abc import Coroutine, Sequence
from pathlib import Path
from random import SystemRandom
from typing import Any

from api.memory_bridge import MemoryBridge, MemoryPorts
from api.server import ApiServer, ServeConfig
from api.testing.bridge import OutboxBridge
from api.testing.clock import MovableClock, TrueDate
from bridge.core.topics import InternalTopics
from bridge.sql.inline_database import open_new_database
from bridge.store.memory.cluster import MemoryCluster
from bridge.store.memory.process import MemoryProcess
from bridge.store.message_store import MessageStore, TopicAdmin
from bridge.topology import rules_of
from checker.endpoint_guard import CallbackPolicy, parse_networks
from checker.http_caller import HttpCaller
from outbox import TransactionView

_LOOPBACK = ("127.0.0.0/8", "::1/128")
_QUEUES = 2
_HURRY_MS = 50


class MemoryOutboxBridge(OutboxBridge):
    """`folder`: for the bridge's SQLite file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(_QUEUES)
        self._folder = folder
        self._clock = MovableClock()
        self._cluster = MemoryCluster(self._clock)
        self._reader = MemoryProcess(self._cluster, "test")

    def let_time_pass(self, seconds: float) -> None:
        """As if so much time had passed for the bridge: what is due by then is done or under way.

        The machine's clock goes on as it did. Ten minutes take some seconds: much is done every second.
        """
        self._in_loop(self._clock.move(round(seconds * 1_000)))

    @property
    def _store(self) -> MessageStore:
        return self._reader.store

    @property
    def _admin(self) -> TopicAdmin:
        return self._reader.admin

    def _await_first_due(self, waiting: Sequence[TransactionView]) -> None:
        dues = [view.next_check_at for view in waiting if view.next_check_at is not None]
        left_ms = round(min(dues).timestamp() * 1_000) - self._clock.now_ms() + 1 if dues else 0
        if left_ms > 0:
            self._in_loop(self._clock.move(left_ms))

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        topics = InternalTopics(queues=_QUEUES)
        for name, rules in rules_of(topics).items():
            self._cluster.log.create_topic(name, rules.queues, rules.make_config(1))
        database = open_new_database(self._folder)
        networks = CallbackPolicy(parse_networks(_LOOPBACK))
        # an empty context: certificates take long to load, and nothing but loopback is called
        caller = HttpCaller(networks, self._clock, ssl_context=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        ports = MemoryPorts(
            self._cluster, topics, self._clock, TrueDate(self._clock), database, caller, SystemRandom(),
            face=self._put_between,
        )  # fmt: skip
        try:
            await self._serve_until_stop(MemoryBridge(ports))
        finally:
            await caller.close()
            database.dispose()

    async def _serve_until_stop(self, bridge: MemoryBridge) -> None:
        assert self._stop is not None
        server = ApiServer(bridge.app, ServeConfig(port=0))
        await bridge.start()
        try:
            serving = asyncio.create_task(server.serve_until(self._stop))
            await server.wait_started()
            self._note_started(f"http://127.0.0.1:{server.port}")
            await serving
        finally:
            await self._hurry(bridge.stop())

    async def _hurry(self, work: Coroutine[Any, Any, None]) -> None:
        """Whatever waits for time does not have to."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await self._clock.move(_HURRY_MS)
        task.result()

"""A bridge on a real Kafka on this machine, one for many tests."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from api.migration import migrate
from api.settings import CallbacksSettings, HttpSettings, Settings, TopicsSettings
from api.testing.stand import LOOPBACK, QUEUES, Stand
from api.wiring import Embedding, KafkaParts, kafka_parts, parse_roles, run_roles
from bridge.broker.dev_broker import DevBroker
from bridge.store.message_store import MessageStore, TopicAdmin


class KafkaStand(Stand):
    """With a broker of its own on free ports, whose data are in `folder`; `open` raises BrokerError without one."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._parts: KafkaParts | None = None

    @property
    def store(self) -> MessageStore:
        assert self._parts is not None
        return self._parts.store

    @property
    def admin(self) -> TopicAdmin:
        assert self._parts is not None
        return self._parts.admin

    async def _serve(self, on_started: Callable[[str], None]) -> None:
        broker = DevBroker(self._folder / "kafka", port=None)
        try:
            await asyncio.to_thread(broker.start)
            await self._serve_on(broker.bootstrap, on_started)
        finally:
            await asyncio.to_thread(broker.kill)

    async def _serve_on(self, bootstrap: str, on_started: Callable[[str], None]) -> None:
        settings = Settings(
            kafka={"bootstrap.servers": bootstrap},
            data_dir=self._folder,
            topics=TopicsSettings(queues=QUEUES),
            http=HttpSettings(port=0),
            callbacks=CallbacksSettings(allow_networks=LOOPBACK),
        )
        await migrate(settings)
        self._parts = kafka_parts(settings)
        try:
            roles = parse_roles("api,settler,projector")
            guest = Embedding(self._put_between)
            await run_roles(settings, roles, on_ready=on_started, stop=self._stop, guest=guest)
        finally:
            await self._parts.close()

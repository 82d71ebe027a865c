"""A bridge on a real Kafka on this machine, one for many tests: each sees what came since it began."""

import asyncio
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from api.settings import CallbacksSettings, HttpSettings, Settings, TopicsSettings
from api.testing.bridge import OutboxBridge
from api.testing.published import PublishedMessage
from api.wiring import Guest, KafkaParts, kafka_parts, migrate, parse_roles, run_roles
from bridge.broker.dev_broker import DevBroker
from bridge.broker.errors import BrokerError
from bridge.store.message_store import MessageStore, TopicAdmin
from outbox import TransactionState, TransactionView

_LOOPBACK = ("127.0.0.0/8", "::1/128")
_QUEUES = 2
_LONGEST_LOOK_S = 0.2


class NoKafka(Exception):
    """No broker could be started; the message says what to do."""


class KafkaOutboxBridge(OutboxBridge):
    """Like the one on the in-memory log, but nobody moves its time: checks are due a second after the prepare."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        super().__init__(_QUEUES)
        self._settings = Settings(
            kafka={"bootstrap.servers": bootstrap},
            data_dir=folder,
            topics=TopicsSettings(queues=_QUEUES),
            http=HttpSettings(port=0),
            callbacks=CallbacksSettings(allow_networks=_LOOPBACK),
        )
        self._parts: KafkaParts | None = None
        self._earlier: frozenset[str] = frozenset()
        self._seen: dict[str, frozenset[tuple[int, int]]] = {}  # partition and offset, by topic

    @contextmanager
    def for_one_test(self) -> Iterator[None]:
        """What other tests left pending or published is not seen; what this one serves ends with it."""
        self._earlier = frozenset()
        self._earlier = frozenset(view.transaction_id for view in (*self.pending(), *self.parked()))
        self._seen = {name: self._find(name) for name in self._seen}
        try:
            yield
        finally:
            self._apps.close()

    def create_topic(self, name: str, partitions: int = 1) -> str:
        """Its name. What an earlier test has published to it is not seen from now on."""
        super().create_topic(name, partitions)
        if name not in self._seen:
            self._seen[name] = self._find(name)
        return name

    @property
    def _store(self) -> MessageStore:
        assert self._parts is not None
        return self._parts.store

    @property
    def _admin(self) -> TopicAdmin:
        assert self._parts is not None
        return self._parts.admin

    def _read(self, topic: str) -> list[PublishedMessage] | None:
        found, seen = super()._read(topic), self._seen.get(topic, frozenset())
        return found and [message for message in found if (message.partition, message.offset) not in seen]

    def _find(self, topic: str) -> frozenset[tuple[int, int]]:
        return frozenset((message.partition, message.offset) for message in super()._read(topic) or ())

    def _list(self, state: TransactionState, group: str | None) -> list[TransactionView]:
        return [view for view in super()._list(state, group) if view.transaction_id not in self._earlier]

    def _default_check(self) -> dict[str, object]:
        return {"transaction_timeout_seconds": 1, "interval_seconds": 1}

    def _await_first_due(self, waiting: Sequence[TransactionView]) -> None:
        dues = [view.next_check_at for view in waiting if view.next_check_at is not None]
        left_s = (min(dues) - datetime.now(UTC)).total_seconds() if dues else 0.0
        time.sleep(min(max(left_s, 0.0), _LONGEST_LOOK_S))

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        before = gc.get_threshold()
        await migrate(self._settings)
        self._parts = kafka_parts(self._settings)
        roles = parse_roles("api,settler,projector")
        try:
            await run_roles(
                self._settings, roles, on_ready=self._note_started, stop=self._stop, guest=Guest(self._put_between)
            )
        finally:
            gc.set_threshold(*before)
            await self._parts.close()


@contextmanager
def running_bridge(folder: Path) -> Iterator[KafkaOutboxBridge]:
    """With a broker of its own on free ports, whose data are in `folder`. Raises NoKafka."""
    broker = DevBroker(folder / "kafka", port=None)
    try:
        broker.start()
    except BrokerError as error:
        raise NoKafka(f"no Kafka: {error.reason}. {error.remedy}") from error
    try:
        bridge = KafkaOutboxBridge(broker.bootstrap, folder)
        bridge.start()
        try:
            yield bridge
        finally:
            bridge.stop()
    finally:
        broker.kill()

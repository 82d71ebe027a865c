"""Follows the op topic and wakes those who wait for a state or an answer."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from bridge.clock import Clock, KafkaTime
from bridge.core.errors import MalformedRecord, QueueHalted, StoreError, UnknownRecordVersion
from bridge.core.message import MessageQueue, StoredMessage
from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY, decode_answers, decode_op, decode_position
from bridge.core.topics import InternalTopics
from bridge.service.journal import LogState, SoundLog
from bridge.service.waiters import Waiters
from bridge.store.message_store import MessageStore, OwnerStore, QueueReader
from bridge.store.sealed import SealWatch

_LOG = structlog.get_logger()

FIRST_BACKOFF_MS = 100
LONGEST_BACKOFF_MS = 5_000


@dataclass(frozen=True, slots=True)
class FollowerConfig:
    """Bounds of one read."""

    max_records: int = 2_000
    max_wait_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class FollowerPorts:
    """What the follower works with."""

    store: MessageStore
    owners: OwnerStore
    clock: Clock
    kafka_time: KafkaTime
    waiters: Waiters
    seal_watch: SealWatch = field(default_factory=SealWatch)
    log: LogState = field(default_factory=SoundLog)


class OpFollower:
    """All queues of the op topic, from their ends at the start of the process on.

    Ready only when every end is known: a record produced before could be answered below it.
    """

    def __init__(self, topics: InternalTopics, ports: FollowerPorts, config: FollowerConfig | None = None) -> None:
        self._topics = topics
        self._ports = ports
        self._config = config or FollowerConfig()
        self._tails = [_QueueTail(MessageQueue(topics.op, n), ports, self._config) for n in range(topics.queues)]

    @property
    def is_ready(self) -> bool:
        """Whether answers to what is appended from now on will be heard."""
        return all(tail.is_started for tail in self._tails)

    @property
    def is_failing(self) -> bool:
        """Whether a queue cannot be read now, so that its answers are late."""
        return any(tail.is_failing for tail in self._tails)

    def positions(self) -> dict[int, int]:
        """S of each queue, as far as a position was seen since the start."""
        found = {tail.queue_id: tail.read_s() for tail in self._tails}
        return {queue_id: s for queue_id, s in found.items() if s is not None}

    async def run_forever(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tails:
            for tail in self._tails:
                tails.create_task(tail.run_forever())


class _QueueTail:
    """One queue of the op topic."""

    def __init__(self, queue: MessageQueue, ports: FollowerPorts, config: FollowerConfig) -> None:
        self._queue = queue
        self._ports = ports
        self._config = config
        self._next_offset = -1
        self._reader: QueueReader | None = None
        self._backoff_ms = 0
        self.is_failing = False
        self._position: bytes | None = None  # the last one, not parsed before somebody asks

    @property
    def queue_id(self) -> int:
        return self._queue.queue_id

    @property
    def is_started(self) -> bool:
        return self._next_offset >= 0

    def read_s(self) -> int | None:
        """S of the last position seen, if one was that can be read."""
        try:
            return None if self._position is None else decode_position(self._position).s
        except (MalformedRecord, UnknownRecordVersion):
            return None

    async def run_forever(self) -> None:
        """Goes on from its last position after an error."""
        try:
            while True:
                try:
                    await self.run_once()
                except Exception as error:  # noqa: BLE001 - a loop that lives as long as the process
                    await self._back_off(error)
        finally:
            await self._close()

    async def run_once(self) -> int:
        """Reads what has come, waiting a little for the first; how many records there were. Raises StoreError."""
        if self._reader is None:
            self._reader = await self._open()
        got = await self._reader.get(self._config.max_records, self._config.max_wait_ms)
        self._next_offset = got.next_begin_offset
        self._backoff_ms, self.is_failing = 0, False
        if got.messages:
            self._ports.kafka_time.observe(got.messages[-1].stored_ms)
            self._hear(got.messages)
        return len(got.messages)

    async def _open(self) -> QueueReader:
        if not self.is_started:
            self._next_offset = (await self._ports.store.get_offsets(self._queue)).stable
        return self._ports.owners.open_reader(self._queue, self._next_offset)

    def _hear(self, messages: Iterable[StoredMessage]) -> None:
        waiters = self._ports.waiters
        wanted, prefix = waiters.by_id, waiters.prefix
        for message in messages:
            key, value = message.key, message.value
            if key is None or value is None:
                continue
            if key not in wanted and key != POSITION_KEY and not (key == ANSWERS_KEY and prefix in value):
                continue  # most of them: for others
            opened = self._ports.seal_watch.open(self._queue.queue_id, message)
            if opened is None:
                continue
            try:
                if key == POSITION_KEY:
                    self._position = opened
                elif key == ANSWERS_KEY:
                    waiters.hear_answers(decode_answers(opened))
                else:
                    waiters.hear_state(decode_op(key.decode(), opened))
            except (MalformedRecord, UnknownRecordVersion) as error:
                # whoever waits for it is told "unknown" at its deadline; the owner of the queue halts or quarantines
                _LOG.warning("op_message_unreadable", queue=self._queue.queue_id, reason=type(error).__name__)

    async def _back_off(self, error: Exception) -> None:
        self.is_failing = True
        self._backoff_ms = min(LONGEST_BACKOFF_MS, self._backoff_ms * 2 or FIRST_BACKOFF_MS)
        expected = isinstance(error, StoreError | QueueHalted)
        log = _LOG.warning if expected else _LOG.exception
        log("op_topic_unreadable", queue=self._queue.queue_id, reason=str(error), retry_ms=self._backoff_ms)
        if isinstance(error, QueueHalted):
            self._ports.log.doubt(self.queue_id)
            self._next_offset = -1  # the log does not reach back so far any more: those who wait hear "unknown"
        await self._close()
        await self._ports.clock.sleep_ms(self._backoff_ms)

    async def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

"""An OwnerStore whose op records are sealed as they are written, and believed as they are read only if they are."""

from collections.abc import Sequence
from dataclasses import replace

import structlog
from msgspec.structs import replace as replace_members

from bridge.core.keyring import Keyring, OpSeals
from bridge.core.message import Message, MessageQueue, Receipt, StoredMessage
from bridge.store.message_store import (
    AtomicBatch,
    BatchResult,
    BatchWriter,
    GetResult,
    GetStatus,
    GroupMember,
    OwnerStore,
    QueueReader,
)

_LOG = structlog.get_logger()
_MOST_KNOWN = 10_000


class SealWatch:
    """Opens op records, and keeps in mind those that are not the owner's."""

    def __init__(self, seals: OpSeals | None = None) -> None:
        self.seals = seals or OpSeals(Keyring())
        self._forged: set[tuple[int, int]] = set()

    @property
    def forged(self) -> int:
        """How many records that are not the owner's this process has met."""
        return len(self._forged)

    def open(self, queue_id: int, message: StoredMessage) -> bytes | None:
        """The value without its seal; None, and an alert, if it is not the owner's."""
        value = self.seals.open(queue_id, message.queue_offset, message.key, message.value)
        if value is None:
            place = (queue_id, message.queue_offset)
            if place not in self._forged:
                _LOG.error("op_record_not_ours", queue=queue_id, offset=message.queue_offset)
            if len(self._forged) < _MOST_KNOWN:
                self._forged.add(place)
        return value


class SealedOwnerStore:
    """OwnerStore. A reader of the op topic through it never sees a record that is not the owner's."""

    def __init__(self, inner: OwnerStore, op_topic: str, watch: SealWatch) -> None:
        self._inner = inner
        self._op_topic = op_topic
        self._watch = watch

    def open_reader(self, queue: MessageQueue, offset: int) -> QueueReader:
        reader = self._inner.open_reader(queue, offset)
        return _OpReader(reader, queue.queue_id, self._watch) if queue.topic == self._op_topic else reader

    def open_writer(self, transactional_ids: tuple[str, str]) -> BatchWriter:
        return _SealingWriter(self._inner.open_writer(transactional_ids), self._op_topic, self._watch.seals)

    def join_group(self, group: str, topic: str) -> GroupMember:
        return self._inner.join_group(group, topic)


class _OpReader:
    """QueueReader of the op topic."""

    def __init__(self, inner: QueueReader, queue_id: int, watch: SealWatch) -> None:
        self._inner = inner
        self._queue_id = queue_id
        self._watch = watch

    async def get(self, max_count: int, max_wait_ms: int) -> GetResult:
        result = await self._inner.get(max_count, max_wait_ms)
        messages = []
        for message in result.messages:
            value = self._watch.open(self._queue_id, message)
            if value is not None:
                messages.append(replace_members(message, value=value))
        is_empty = result.status is GetStatus.FOUND and not messages
        return result._replace(messages=messages, status=GetStatus.NO_MATCHED_MSG if is_empty else result.status)

    async def close(self) -> None:
        await self._inner.close()


class _SealingWriter:
    """BatchWriter. Values are as long again by at most 60 bytes."""

    def __init__(self, inner: BatchWriter, op_topic: str, seals: OpSeals) -> None:
        self._inner = inner
        self._op_topic = op_topic
        self._seals = seals

    async def fence(self) -> None:
        await self._inner.fence()

    async def put_all(self, batch: AtomicBatch) -> BatchResult:
        def finish(receipts: Sequence[Receipt]) -> list[Message]:
            return [self._seal(message) for message in batch.finish(receipts)]

        opening = None if batch.opening is None else self._seal(batch.opening)
        return await self._inner.put_all(replace(batch, finish=finish, opening=opening))

    def _seal(self, message: Message) -> Message:
        topic, key, value, headers, queue_id = (
            message.topic, message.key, message.value, message.headers, message.queue_id
        )  # fmt: skip
        if topic != self._op_topic or key is None or value is None:
            return message
        return Message(topic, key, self._seals.seal(queue_id, key, value), headers, queue_id)

    async def close(self) -> None:
        await self._inner.close()

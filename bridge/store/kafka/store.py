"""The store on Kafka: plain puts and look-ups, and what owners of queues open. Made and used inside one event loop."""

import asyncio
from collections.abc import Collection, Iterable
from typing import TypeVar

from msgspec.structs import replace

from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.store.kafka.consumer import KafkaQueueReader, LookUpClient
from bridge.store.kafka.groups import KafkaGroupMember, OffsetClient
from bridge.store.kafka.options import ClientErrors, KafkaConfig
from bridge.store.kafka.producer import AppendClients
from bridge.store.kafka.transactional_producer import KafkaBatchWriter, LimitOf, no_limit
from bridge.store.message_store import GetResult, GetStatus, PutResult

_AnyOpened = KafkaQueueReader | KafkaBatchWriter | KafkaGroupMember
Opened = TypeVar("Opened", KafkaQueueReader, KafkaBatchWriter, KafkaGroupMember)


class KafkaOwnerStore:
    """OwnerStore. `limit_of`: `max.message.bytes` of a topic, as far as known."""

    def __init__(self, config: KafkaConfig, limit_of: LimitOf = no_limit) -> None:
        self._config = config
        self._limit_of = limit_of
        self._opened: list[_AnyOpened] = []

    @property
    def last_error(self) -> str | None:
        """What one of the open clients complained of, if nothing has worked since."""
        return newest_error(each.errors for each in self._opened if not each.is_closed)

    def open_reader(self, queue: MessageQueue, offset: int) -> KafkaQueueReader:
        return self._keep(KafkaQueueReader(self._config, queue, offset))

    def open_writer(self, transactional_ids: tuple[str, str]) -> KafkaBatchWriter:
        return self._keep(KafkaBatchWriter(self._config, transactional_ids, self._limit_of))

    def join_group(self, group: str, topic: str) -> KafkaGroupMember:
        return self._keep(KafkaGroupMember(self._config, group, topic))

    def find_member(self, group: str) -> KafkaGroupMember | None:
        """This process's own member of the group."""
        members = (each for each in self._opened if isinstance(each, KafkaGroupMember) and not each.is_closed)
        return next((member for member in members if member.group == group), None)

    async def close(self) -> None:
        """Closes whatever is still open."""
        opened, self._opened = self._opened, []
        await asyncio.gather(*[each.close() for each in opened])

    def _keep(self, opened: Opened) -> Opened:
        """For `close`; those that are closed are forgotten at the next opening."""
        self._opened = [*(each for each in self._opened if not each.is_closed), opened]
        return opened


class KafkaMessageStore:
    """MessageStore. `owners` of the same process, if any, commit consume offsets for groups they are members of."""

    def __init__(self, config: KafkaConfig, owners: KafkaOwnerStore | None = None) -> None:
        self._owners = owners
        self._append = AppendClients(config)
        self._look_up = LookUpClient(config)
        self._offsets = OffsetClient(config)
        self.open, self.put_many, self.put_then = self._append.open, self._append.put_many, self._append.put_then
        self.get_offsets, self.get_consume_offsets = self._offsets.get_offsets, self._offsets.get_consume_offsets

    @property
    def last_error(self) -> str | None:
        """What one of the clients complained of, if nothing has worked since."""
        return newest_error([*self._append.errors, self._look_up.errors, self._offsets.errors])

    async def put(self, queue: MessageQueue, message: Message) -> PutResult:
        return (await self.put_many([replace(message, topic=queue.topic, queue_id=queue.queue_id)]))[0]

    async def get(self, queue: MessageQueue, offset: int, max_count: int) -> GetResult:
        minimum, stable, maximum = await self._offsets.get_offsets(queue)
        if not minimum <= offset <= maximum:
            nearest = minimum if offset < minimum else maximum
            return GetResult(GetStatus.OFFSET_ILLEGAL, (), nearest, minimum, maximum)
        if offset >= stable:
            return GetResult(GetStatus.NO_NEW_MSG, (), offset, minimum, maximum)
        messages, next_offset = await self._look_up.get_range(queue, offset, stable, max_count)
        status = GetStatus.FOUND if messages else GetStatus.NO_MATCHED_MSG
        return GetResult(status, messages, next_offset, minimum, maximum)

    async def get_each(
        self, queue: MessageQueue, offsets: Collection[int], max_bytes: int | None = None
    ) -> dict[int, StoredMessage]:
        if not offsets:
            return {}
        minimum, stable, _ = await self._offsets.get_offsets(queue)
        kept = sorted({offset for offset in offsets if minimum <= offset < stable})
        return await self._look_up.get_each(queue, kept, max_bytes) if kept else {}

    async def get_offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        found = await self._offsets.get_offset_by_time(queue, timestamp_ms)
        return found if found >= 0 else (await self._offsets.get_offsets(queue)).maximum

    async def put_consume_offset(self, group: str, queue: MessageQueue, offset: int, note: str = "") -> None:
        member = self._owners.find_member(group) if self._owners else None
        if member is not None:
            await member.put_consume_offset(queue, offset, note)
        else:
            await self._offsets.put_consume_offset(group, queue, offset, note)

    async def close(self) -> None:
        """Waits a little for puts in flight, then lets all clients go."""
        await asyncio.gather(self._append.close(), self._look_up.close(), self._offsets.close())


def newest_error(clients: Iterable[ClientErrors]) -> str | None:
    """The last complaint of several clients."""
    complaining = [client for client in clients if client.last_error is not None]
    return max(complaining, key=lambda client: client.last_error_monotonic_ms).last_error if complaining else None

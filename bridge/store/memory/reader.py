"""Following one queue of the in-memory log."""

from bridge.core.errors import QueueHalted
from bridge.core.message import MessageQueue
from bridge.store.memory.cluster import MemoryCluster
from bridge.store.memory.errors import BrokerError, make_store_error
from bridge.store.memory.link import Link
from bridge.store.memory.partition import Partition
from bridge.store.results import GetResult, GetStatus


class MemoryQueueReader:
    """A committed reader with a position of its own."""

    def __init__(self, cluster: MemoryCluster, link: Link, queue: MessageQueue, offset: int) -> None:
        self._cluster = cluster
        self._link = link
        self._queue = queue
        self._offset = offset

    async def get(self, max_count: int, max_wait_ms: int) -> GetResult:
        agenda = self._cluster.agenda
        until_ms = agenda.monotonic_ms() + max_wait_ms
        await self._link.pause()
        while True:
            agenda.run_due()
            partition = self._find()
            if partition.has_leader:
                result = self._read(partition, max_count)
                if result.messages:
                    return result
            if agenda.monotonic_ms() >= until_ms:
                return GetResult(GetStatus.NO_NEW_MSG, (), self._offset, partition.minimum, partition.maximum)
            await agenda.wait(partition.waiters, until_ms)
            if self._link.is_stopped:
                await self._link.pause()

    async def close(self) -> None:
        """Nothing to give back; kept so that a closed reader and a closed client behave alike."""

    def _find(self) -> Partition:
        try:
            return self._cluster.log.find(self._queue)
        except BrokerError as error:
            raise make_store_error(error) from error

    def _read(self, partition: Partition, max_count: int) -> GetResult:
        if not partition.minimum <= self._offset <= partition.maximum:
            held = f"{partition.minimum}..{partition.maximum}"
            raise QueueHalted(f"{self._queue}: offset {self._offset} is outside of {held}")
        messages, self._offset = partition.read(self._offset, max_count)
        status = GetStatus.FOUND if messages else GetStatus.NO_NEW_MSG
        return GetResult(status, messages, self._offset, partition.minimum, partition.maximum)


def get_from(partition: Partition, offset: int, max_count: int) -> GetResult:
    """One look at the log from `offset` on. Raises BrokerError without a leader."""
    minimum, stable, maximum = partition.get_offsets()
    if not minimum <= offset <= maximum:
        nearest = minimum if offset < minimum else maximum
        return GetResult(GetStatus.OFFSET_ILLEGAL, (), nearest, minimum, maximum)
    if offset >= stable:
        return GetResult(GetStatus.NO_NEW_MSG, (), offset, minimum, maximum)
    messages, next_offset = partition.read(offset, max_count)
    status = GetStatus.FOUND if messages else GetStatus.NO_MATCHED_MSG
    return GetResult(status, messages, next_offset, minimum, maximum)

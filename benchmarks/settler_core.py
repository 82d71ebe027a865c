"""`python -m benchmarks.settler_core`: CPU time of the settler itself for one committed transaction, without Kafka."""

import asyncio
import gc
import time
from collections.abc import Sequence

from bridge.clock import SystemClock
from bridge.core.check_rules import CheckTimes
from bridge.core.message import Message, MessageQueue, Receipt, StoredMessage
from bridge.core.record import EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_end, encode_half
from bridge.core.topics import InternalTopics
from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from bridge.log_watch import LogWatch
from bridge.settler.batch import BatchTarget
from bridge.settler.bodies import KnownTopics
from bridge.settler.owner import OwnedQueue
from bridge.settler.ports import QueueCounts, QueueMemory, SettlerConfig, SettlerPorts
from bridge.store.memory.process import MemoryProcess
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
from tests.support.memory_world import make_cluster
from tests.support.settler_world import NoDatabase, RecordingObserver

BATCH = 1_000
TIMES = CheckTimes()
TOPICS = InternalTopics(queues=1)
JOURNAL = MessageQueue(TOPICS.half, 0)


class _Reader:
    """Gives prepared records, a thousand transactions a read."""

    def __init__(self, records: Sequence[StoredMessage]) -> None:
        self._records = records
        self._next = 0

    async def get(self, max_count: int, max_wait_ms: int) -> GetResult:
        found = self._records[self._next : self._next + max_count]
        self._next += len(found)
        return GetResult(GetStatus.FOUND if found else GetStatus.NO_NEW_MSG, found, self._next, 0, len(self._records))

    async def close(self) -> None:
        return None


class _Writer:
    """Takes batches and says that they are committed."""

    offset = 0

    async def fence(self) -> None:
        return None

    async def put_all(self, batch: AtomicBatch) -> BatchResult:
        receipts = [Receipt(m.topic, m.queue_id, n) for n, m in enumerate(batch.messages)]
        self.offset += len(batch.finish(receipts)) + 1
        return BatchResult(receipts, self.offset, 1)

    async def close(self) -> None:
        return None


class _Owners:
    """The journal is prepared records, what is written is only counted; the op topic holds its first position."""

    def __init__(self, records: Sequence[StoredMessage], others: OwnerStore) -> None:
        self._records = records
        self._others = others

    def open_reader(self, queue: MessageQueue, offset: int) -> QueueReader:
        is_journal = queue.topic == InternalTopics().half
        return _Reader(self._records) if is_journal else self._others.open_reader(queue, offset)

    def open_writer(self, transactional_ids: tuple[str, str]) -> BatchWriter:
        return _Writer()

    def join_group(self, group: str, topic: str) -> GroupMember:
        raise LookupError("nobody shares")


def make_records(transactions: int) -> list[StoredMessage]:
    """Half messages and ends, in the order in which batches of a hundred arrive."""
    records: list[Message] = []
    for start in range(0, transactions, 100):
        ids = [make_transaction_id(0, make_uuid7_bits(1, n)) for n in range(start, start + 100)]
        for n, transaction_id in enumerate(ids):
            half = HalfMessage(transaction_id, "bench", 1, 1, "orders", -1)
            records.append(encode_half(half, [Message("orders", b"%d" % n, b"x" * 300)], "half", 0))
        records += [
            encode_end(EndRecord(i, Resolution.COMMIT, Source.PRODUCER, 1, request="0123456789ab-1"), "half", 0)
            for i in ids
        ]
    return [StoredMessage(n, m.key, m.value, list(m.headers), 1_000_000 + n) for n, m in enumerate(records)]


async def measure(transactions: int) -> float:
    """Microseconds of CPU for each transaction."""
    clock = SystemClock()
    cluster = make_cluster(clock, TOPICS)
    cluster.log.create_topic("orders", 2)
    process = MemoryProcess(cluster, "bench")
    ports = SettlerPorts(
        process.store,
        _Owners(make_records(transactions), process.owners),
        KnownTopics(process.admin, clock),
        lambda _: TIMES,
        RecordingObserver(),
        clock,
        LogWatch(process.admin, InternalTopics(queues=1), clock, NoDatabase()),
    )
    target = BatchTarget(TOPICS, 0, "bench")
    queue = OwnedQueue(target, ports, SettlerConfig(max_batch_records=2 * BATCH), QueueMemory(), QueueCounts())
    await queue.recover()
    gc.collect()
    started = time.process_time()
    while queue.counts.published < transactions:
        await queue.run_once()
    used = time.process_time() - started
    return used / transactions * 1e6


if __name__ == "__main__":
    gc.set_threshold(100_000, 50, 1_000)
    for _ in range(3):
        print(f"{asyncio.run(measure(100_000)):.1f} us a transaction")

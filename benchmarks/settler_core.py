"""`python -m benchmarks.settler_core`: CPU time of the settler itself for one committed transaction, without Kafka.

Half messages and ends come in one read, or in reads of their own, as they do when nobody lags behind: then each
transaction becomes pending, and the checker gets to know it.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bridge.clock import SystemClock
from bridge.core.check_rules import CheckTimes
from bridge.core.message import Message, MessageQueue, Receipt, StoredMessage
from bridge.core.pending_table import PendingTable
from bridge.core.record import EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_end, encode_half
from bridge.core.topics import InternalTopics, hash_effective_key
from bridge.core.transaction import Transaction, make_transaction_id, make_uuid7_bits
from bridge.log_watch import LogWatch, StableOffsetWatch
from bridge.settler.batch import BatchTarget
from bridge.settler.bodies import KnownTopics
from bridge.settler.owner import OwnedQueue
from bridge.settler.ports import QueueOwner, SettlerConfig, SettlerPorts
from bridge.settler.writer import QueueCounts, QueueMemory
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
from bridge.store.op_topic import DatabaseMark, SealWatch
from checker.scheduler import CheckScheduler
from tests.support.memory_world import make_cluster
from tests.support.settler_world import NoDatabase

BATCH = 1_000
TIMES = CheckTimes()
TOPICS = InternalTopics(queues=1)
JOURNAL = MessageQueue(TOPICS.half, 0)


class _Reader:
    """Gives prepared records, a bounded number a read."""

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


class _Checks:
    """An observer that keeps due times as the checker does."""

    def __init__(self) -> None:
        self._scheduler = CheckScheduler(lambda _: TIMES, report_wait_ms=30_000, max_lag_ms=5_000)

    def queue_taken(self, owner: QueueOwner, prepared: Iterable[Transaction], rows: PendingTable) -> None:
        self._scheduler.add_queue(owner.queue_id, prepared, rows=rows)

    def prepared(self, queue_id: int, transactions: Sequence[Transaction], read_monotonic_ms: int) -> None:
        self._scheduler.set_prepared(queue_id, transactions, read_monotonic_ms)

    def ended(self, queue_id: int, transaction_ids: Sequence[str]) -> None:
        self._scheduler.set_ended(queue_id, transaction_ids)

    def queue_released(self, queue_id: int) -> None:
        self._scheduler.drop_queue(queue_id)


def make_records(transactions: int, at_once: int, **answer: Any) -> list[StoredMessage]:
    """So many half messages and their ends, in turns. `answer`: what an end has that is none of a producer's."""
    records: list[Message] = []
    for start in range(0, transactions, at_once):
        ids = [make_transaction_id(0, make_uuid7_bits(1, n)) for n in range(start, start + at_once)]
        for n, transaction_id in enumerate(ids):
            key = b"%d" % (n % 1_000)
            hashed = hash_effective_key("bench", "orders", None, key)
            half = HalfMessage(transaction_id, "bench", 1, 1 + start // 100, "orders", -1, ordering_hash=hashed)
            records.append(encode_half(half, [Message("orders", key, b"x" * 300)], "half", 0))
        for n, transaction_id in enumerate(ids):
            members = answer or {"source": Source.PRODUCER, "request": f"0123456789ab-{n}"}
            end = EndRecord(transaction_id, Resolution.COMMIT, born_ms=1 + start // 100, **members)
            records.append(encode_end(end, "half", 0))
    return [StoredMessage(n, m.key, m.value, list(m.headers), 1_000_000 + n // 100) for n, m in enumerate(records)]


async def open_queue(records: Sequence[StoredMessage], max_batch_records: int) -> OwnedQueue:
    """An owner of prepared records, which it has not read yet."""
    clock = SystemClock()
    cluster = make_cluster(clock, TOPICS)
    cluster.log.create_topic("orders", 2)
    process = MemoryProcess(cluster, "bench")
    ports = SettlerPorts(
        process.store,
        _Owners(records, process.owners),
        KnownTopics(process.admin, clock),
        lambda _: TIMES,
        _Checks(),
        clock,
        LogWatch(process.admin, InternalTopics(queues=1), clock, NoDatabase()),
        StableOffsetWatch(process.store, clock),
        DatabaseMark(process.store, InternalTopics(queues=1), SealWatch()),
    )
    config = SettlerConfig(max_batch_records=max_batch_records)
    queue = OwnedQueue(BatchTarget(TOPICS, 0, "bench"), ports, config, QueueMemory(), QueueCounts())
    await queue.recover()
    return queue


async def settle(queue: OwnedQueue, is_done: Callable[[], bool]) -> float:
    """Seconds of CPU until then."""
    gc.collect()
    started = time.process_time()
    while not is_done():
        await queue.run_once()
    return time.process_time() - started


async def measure(transactions: int, *, is_apart: bool) -> float:
    """Microseconds of CPU for each transaction. `is_apart`: half messages and ends come in reads of their own."""
    records = make_records(transactions, BATCH if is_apart else 100)
    queue = await open_queue(records, BATCH if is_apart else 2 * BATCH)
    return await settle(queue, lambda: queue.counts.published >= transactions) / transactions * 1e6


def main(transactions: int = 50_000, runs: int = 3) -> None:
    """Shows the best of some runs of each kind, in turns."""
    gc.set_threshold(100_000, 50, 1_000)
    runs_of: dict[bool, list[float]] = {False: [], True: []}
    for is_apart in (False, True) * runs:
        runs_of[is_apart].append(asyncio.run(measure(transactions, is_apart=is_apart)))
    together, apart = min(runs_of[False]), min(runs_of[True])
    print(f"half message and end in one read: {together:.1f} us a transaction, apart: {apart:.1f} us")


if __name__ == "__main__":
    main()

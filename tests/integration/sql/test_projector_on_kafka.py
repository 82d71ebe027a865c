"""Settler and projector on a real Kafka and real databases: everything is projected, once, and can be rebuilt."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from uuid import uuid4

import pytest_asyncio

from bridge.clock import SystemClock
from bridge.core.message import Message
from bridge.core.record import EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_end, encode_half
from bridge.core.topics import InternalTopics, with_prefix
from bridge.core.transaction import make_transaction_id
from bridge.node import Backing, Node, NodeConfig
from bridge.projector import RebuildProgress, rebuild
from bridge.sql.engine import Database
from bridge.sql.search import GroupStats, SearchFilter, read_stats, search_transactions
from bridge.store.message_store import PutStatus
from bridge.store.op_topic import begin_queues
from bridge.topology import TopologyGuard, migrate_topics
from tests.contract.kafka_adapter import KafkaProcess, open_process
from tests.support.check_fakes import MemoryCaller
from tests.support.settler_world import RecordingObserver

QUEUES, COUNT = 2, 60


class KafkaBridge:
    """Internal topics and a real topic of this test's own."""

    def __init__(self, process: KafkaProcess, database: Database, topics: InternalTopics) -> None:
        self.process = process
        self.database = database
        self.topics = topics
        self.clock = SystemClock()
        self.real_topic = topics.transactional_prefix + "-orders"

    def make_node(self, owner: str) -> Node:
        process, clock = self.process, self.clock
        backing = Backing(
            process.store, process.owners, process.admin, self.database, clock, lambda: MemoryCaller(clock)
        )
        return Node(backing, NodeConfig(owner, self.topics))

    async def append(self, *messages: Message) -> None:
        results = await self.process.store.put_many(messages)
        assert {result.status for result in results} == {PutStatus.PUT_OK}

    def half(self, number: int) -> Message:
        queue_id = number % QUEUES
        half = HalfMessage(make_transaction_id(queue_id, number), "shop", 1, 1, self.real_topic)
        return encode_half(half, [Message(self.real_topic, b"%d" % number, b"v")], self.topics.half, queue_id)

    def end(self, number: int, resolution: Resolution) -> Message:
        queue_id = number % QUEUES
        record = EndRecord(make_transaction_id(queue_id, number), resolution, Source.PRODUCER, 1)
        return encode_end(record, self.topics.half, queue_id)

    async def wait_for(self, expected: tuple[int, int, int, int]) -> GroupStats:
        """Until the counts are (prepared, committed, rolled back, pending); C holds at every look."""
        async with asyncio.timeout(60):
            while True:
                total = (await self.database.read(lambda conn: read_stats(conn, 1))).total
                assert 0 <= total.pending <= total.prepared
                if (total.prepared, total.committed, total.rolled_back, total.pending) == expected:
                    return total
                await asyncio.sleep(0.02)


@pytest_asyncio.fixture
async def bridge(kafka: str, database: Database) -> AsyncIterator[KafkaBridge]:
    """Migrated, nothing running yet."""
    process = await open_process(kafka, "bridge")
    made = KafkaBridge(process, database, with_prefix(f"p{uuid4().hex[:8]}-", QUEUES))
    begin = partial(begin_queues, process.store, process.owners, made.topics)
    assert len(await migrate_topics(process.admin, database, made.topics, 1, begin)) == 4
    await process.admin.create_topic(made.real_topic, 1, 1, {})
    yield made
    await process.close()


async def test_everything_is_projected_once_and_a_rebuild_gives_the_same(bridge: KafkaBridge) -> None:
    """Two projectors, one after the other takes over, then a rebuild beside the one at work (C, 11, 67)."""
    first, second = bridge.make_node("first").make_projector(), bridge.make_node("second").make_projector()
    settler = bridge.make_node("settler").make_settler(RecordingObserver())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(settler.run_forever())
        working = tasks.create_task(first.run_forever())
        tasks.create_task(second.run_forever())
        await bridge.append(*[bridge.half(n) for n in range(COUNT)])
        await bridge.append(*[bridge.end(n, Resolution.COMMIT) for n in range(0, COUNT, 3)])
        await bridge.wait_for((COUNT, COUNT // 3, 0, COUNT * 2 // 3))
        first.stop()
        await working
        await bridge.append(*[bridge.end(n, Resolution.ROLLBACK) for n in range(1, COUNT, 3)])
        before = await bridge.wait_for((COUNT, COUNT // 3, COUNT // 3, COUNT // 3))
        rebuilder = bridge.make_node("rebuilder").make_projector()
        seen: list[RebuildProgress] = []
        verdict = await rebuild(rebuilder, seen.append)
        assert (replace(verdict.total, age_histogram=before.age_histogram), verdict.orphan_count) == (before, 0)
        assert seen[-1].applied == seen[-1].wanted
        await rebuilder.close()
        second.stop()
        settler.stop()
    views, _ = await bridge.database.read(lambda conn: search_transactions(conn, SearchFilter(key=b"3"), 10))
    assert [(view.transaction_id, view.state, len(view.receipts)) for view in views] == [
        (make_transaction_id(1, 3), "COMMITTED", 1)
    ]


async def test_migrated_topics_have_no_fault_on_a_real_cluster(bridge: KafkaBridge) -> None:
    """What `migrate` asks for is what Kafka says afterwards."""
    guard = TopologyGuard(bridge.process.admin, bridge.database, bridge.topics, bridge.clock)
    assert await guard.run_once() == []

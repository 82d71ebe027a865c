"""Commits of one ordering key that wait for each other: split, killed in between, put back, taken over."""

import asyncio
from collections.abc import Iterable

import pytest

from bridge.core.message import Message
from bridge.core.position import LowWatermarkConfig
from bridge.core.transaction import BODY_EXPIRED, ORDER, SPLIT, TransactionState
from bridge.settler.ports import SettlerConfig
from bridge.store.memory.link import PASSES, Fate, NoFaults, Step, StepKind
from bridge.store.memory.log import MemoryLog
from bridge.store.memory.process import MemoryProcess
from tests.support.memory_faults import ScriptedFaults
from tests.support.settler_world import SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world

CHAIN = ("t1", "t2", "t3")


class RefusedOnceThenKilled(NoFaults):
    """The first append of "first" to credits is refused; then "first" stops at its request number `point`.

    An odd point stands for the answer to a request, which has been carried out by then.
    """

    def __init__(self, point: int) -> None:
        self.log: MemoryLog | None = None
        self.is_split = False
        self.stopped = asyncio.Event()
        self._left = point

    async def before(self, step: Step) -> Fate:
        if step.client == "first" and self.log is not None:
            if not self.is_split:
                self._refuse(step, self.log)
            else:
                await self._pass()
        return PASSES

    async def after(self, step: Step) -> None:
        if step.client == "first" and self.is_split:
            await self._pass()

    def _refuse(self, step: Step, log: MemoryLog) -> None:
        if step.kind is StepKind.APPEND and step.queue is not None and step.queue.topic == "credits":
            log.topics["credits"].is_denied = True
        elif step.kind is StepKind.END and log.topics["credits"].is_denied:
            log.topics["credits"].is_denied = False
            self.is_split = True

    async def _pass(self) -> None:
        if self._left == 0:
            self.stopped.set()
            await asyncio.get_running_loop().create_future()
        self._left -= 1


def publishing_order(world: SettlerWorld) -> list[str]:
    """The chain's transactions in the order in which their receipts were written."""
    names = {world.id_of(name): name for name in CHAIN}
    done = [op.transaction for op in world.read_op().every if op.receipts]
    return [names[t.transaction_id] for t in done if t.transaction_id in names]


@pytest.mark.parametrize("point", range(49))
def test_split_batch_is_published_whole_and_in_order_whenever_its_owner_dies(point: int) -> None:
    """To {A, B}, {A} and {B} with one ordering key: each part once, in the order of the commits (L, D, O)."""
    faults = RefusedOnceThenKilled(point)
    world = make_settler_world(faults=faults)

    async def story() -> None:
        first = world.memory.start_process("first")
        running = asyncio.create_task(world.make_settler(first, "first").run_forever())
        for name, topics in zip(CHAIN, (("orders", "credits"), ("orders",), ("credits",)), strict=True):
            await world.prepare(name, *[Message(topic, b"k", name.encode()) for topic in topics], ordering_key="o")
        await world.settled()
        faults.log = world.memory.cluster.log
        first.freeze()
        for name in CHAIN:
            await world.commit(name)
        first.thaw()
        await faults.stopped.wait()
        first.kill()
        running.cancel()
        async with world.settling("second"):
            await world.memory.clock.sleep_ms(30_000)

    world.run(story())
    assert world.memory.visible("orders") == [b"t1", b"t2"]
    assert world.memory.visible("credits") == [b"t1", b"t3"]
    assert publishing_order(world) == list(CHAIN)


def test_chain_that_was_carried_forward_is_taken_over_in_the_order_of_its_ends() -> None:
    """States written again lie in another order than their ends; a successor publishes by the ends (O, L)."""
    config = SettlerConfig(horizon=LowWatermarkConfig(journal_records=1, journal_ms=1_000, op_messages=1, op_ms=20_000))
    world = make_settler_world(config=config)

    async def pass_traffic(count: int, prefix: str) -> None:
        for n in range(count):
            await world.prepare(f"{prefix}{n}", Message("orders", b"other", None))
            await world.rollback(f"{prefix}{n}")
            await world.memory.clock.sleep_ms(1_000)

    async def story() -> None:
        async with world.settling("first"):
            for name in reversed(CHAIN):
                topics = ("credits", "orders") if name == "t1" else ("orders",)
                await world.prepare(name, *[Message(topic, b"k", name.encode()) for topic in topics], ordering_key="o")
            world.memory.cluster.log.delete_topic("credits")
            for count, name in enumerate(CHAIN):
                await world.commit(name)
                await pass_traffic(5 + count, name)
            written = [op.transaction.transaction_id for op in world.read_op().every if op.transaction.blocked]
            last = sorted(CHAIN, key=lambda name: len(written) - written[::-1].index(world.id_of(name)))
            assert last != list(CHAIN), "put back, so that the last op messages lie in another order"
        async with world.settling("second"):
            await pass_traffic(3, "x")
        async with world.settling("third"):
            await world.memory.clock.sleep_ms(2_000)
            assert [world.op_of(name).transaction.blocked for name in CHAIN] == [True] * 3
            assert world.memory.visible("orders") == []
            world.memory.cluster.log.create_topic("credits", 1)
            await world.memory.clock.sleep_ms(90_000)

    world.run(story())
    assert world.memory.visible("credits") == [b"t1"]
    assert world.memory.visible("orders") == [b"t1", b"t2", b"t3"]
    assert [world.op_of(name).transaction.state for name in CHAIN] == [TransactionState.COMMITTED] * 3


def test_long_chain_of_many_destinations_is_published_in_few_kafka_transactions() -> None:
    """A busy ordering key would otherwise never catch up: more of its commits arrive than are published (B, O)."""
    faults = ScriptedFaults()
    world = make_settler_world(faults=faults)
    names = [f"t{n}" for n in range(300)]
    sets = (("orders",), ("credits",), ("orders", "credits"))

    async def story() -> None:
        async with world.settling():
            for n, name in enumerate(names):
                messages = [Message(topic, b"k", name.encode()) for topic in sets[n % 3]]
                await world.prepare(name, *messages, ordering_key="o")
            topics = world.memory.cluster.log.topics
            topics["orders"].is_denied = topics["credits"].is_denied = True
            for name in names:
                await world.commit(name)
            await world.memory.clock.sleep_ms(10_000)
            assert all(world.op_of(name).transaction.blocked for name in names)
            topics["orders"].is_denied = topics["credits"].is_denied = False
            begun = len(faults.steps)
            while world.op_of(names[-1]).transaction.blocked:
                await world.memory.clock.sleep_ms(1_000)
            ends = [step for step in faults.steps[begun:] if step.kind is StepKind.END]
            assert len(ends) < 100

    world.run(story())
    for topic in ("orders", "credits"):
        wanted = [name.encode() for n, name in enumerate(names) if topic in sets[n % 3]]
        assert world.memory.visible(topic) == wanted, topic


async def commit_together(world: SettlerWorld, process: MemoryProcess, names: Iterable[str]) -> None:
    """Commits that their owner finds in one read."""
    process.freeze()
    for name in names:
        await world.commit(name, request=name)
    process.thaw()


class Silent(NoFaults):
    """Appends to these topics are never answered."""

    topics: frozenset[str] = frozenset()

    async def before(self, step: Step) -> Fate:
        is_lost = step.kind is StepKind.APPEND and step.queue is not None and step.queue.topic in self.topics
        return Fate(request_ms=None) if is_lost else PASSES


@in_world(make_settler_world)
async def test_who_stands_behind_a_blocked_head_is_told_so_at_once(world: SettlerWorld) -> None:
    """One batch, one ordering key, the first to a topic that refuses: the others hear ORDER (A)."""
    async with world.settling() as process:
        for name, topic in zip(CHAIN, ("credits", "orders", "orders"), strict=True):
            await world.prepare(name, Message(topic, b"k", name.encode()), ordering_key="o")
        await world.settled()
        world.memory.cluster.log.topics["credits"].is_denied = True
        await commit_together(world, process, CHAIN)
        await world.memory.clock.sleep_ms(2_000)
        told = [world.op_of(name).transaction for name in CHAIN]
        assert [t.reason for t in told][1:] == [ORDER, ORDER]
        assert told[0].reason not in {None, SPLIT}
        world.memory.cluster.log.topics["credits"].is_denied = False
        await world.memory.clock.sleep_ms(120_000)
    assert publishing_order(world) == list(CHAIN)


def test_split_commit_gets_a_reason_in_time_however_many_others_are_tried_before() -> None:
    """Each of forty topics times out, one after the other: nobody is left without an answer for longer (A)."""
    topics = {f"bad{n}": 1 for n in range(40)}
    faults = Silent()
    world = make_settler_world(real_topics=topics, faults=faults)

    async def story() -> None:
        async with world.settling() as process:
            for topic in topics:
                await world.prepare(topic, Message(topic, topic.encode(), b"v"))
            await world.settled()
            faults.topics = frozenset(topics)
            await commit_together(world, process, topics)
            await world.memory.clock.sleep_ms(20_000)
            assert {world.op_of(topic).transaction.reason for topic in topics} & {None, SPLIT} == set()

    world.run(story())


@in_world(make_settler_world)
async def test_blocked_commit_whose_body_no_log_has_says_so(world: SettlerWorld) -> None:
    """It is tried like any other, shown with its reason, and told to whoever asks; so are those behind it (A)."""
    async with world.settling("first") as process:
        for name in CHAIN:
            await world.prepare(name, Message("credits", b"k", name.encode()), ordering_key="o")
        await world.settled()
        world.memory.cluster.log.topics["credits"].is_denied = True
        await commit_together(world, process, CHAIN[:1])
        await world.memory.clock.sleep_ms(2_000)
    journal = world.memory.cluster.log.topics[world.topics.half].partitions[0]
    journal.drop_below(world.op_of("t1").transaction.half + 1)
    world.memory.cluster.log.topics["credits"].is_denied = False
    async with world.settling("second"):
        await world.memory.clock.sleep_ms(2_000)
        assert world.op_of("t1").transaction.reason == BODY_EXPIRED
        await world.commit("t2", request="t2")
        await world.memory.clock.sleep_ms(2_000)
        assert world.op_of("t2").transaction.reason == ORDER
    assert world.memory.visible("credits") == []


@in_world(make_settler_world)
async def test_topic_that_became_compacted_is_the_reason_of_a_keyless_commit(world: SettlerWorld) -> None:
    """It is known without a refused Kafka transaction; when the topic takes it again it is published."""
    topic = world.memory.cluster.log.topics["credits"]
    async with world.settling("only"):
        await world.prepare("a", Message("credits", None, b"v"))
        topic.alter({"cleanup.policy": "compact"})
        await world.memory.clock.sleep_ms(10_000)
        await world.commit("a")
        await world.memory.clock.sleep_ms(10_000)
        assert world.op_of("a").transaction.reason == "KEY_REQUIRED"
        topic.alter({"cleanup.policy": "delete"})
        await world.memory.clock.sleep_ms(90_000)
    assert world.memory.visible("credits") == [b"v"]

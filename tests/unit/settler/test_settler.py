"""The settler on the in-memory log: what becomes of half messages, ends and acts."""

import asyncio

import pytest

from bridge.core.message import Message, MessageQueue, Receipt
from bridge.core.op_message import AnswerCode
from bridge.core.position import LowWatermarkConfig
from bridge.core.properties import decode_properties, encode_properties
from bridge.core.record import Act, ActRecord, Resolution, Source
from bridge.core.transaction import TransactionState
from bridge.settler.ports import SettlerConfig
from bridge.settler.settler import Hold
from bridge.store.memory.link import PASSES, Fate, NoFaults, Step, StepKind
from bridge.store.memory.log import clean
from tests.support.memory_faults import ScriptedFaults
from tests.support.settler_world import SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world


@in_world(make_settler_world)
async def test_committed_message_is_published_once_and_its_receipt_tells_where(world: SettlerWorld) -> None:
    """A commit puts exactly the prepared record into its topic (L, D, I)."""
    async with world.settling():
        await world.prepare("a", Message("credits", b"k", b"v", (("h", b"1"), ("h", None))))
        await world.commit("a", request="r1")
        await world.commit("a", request="r2")
        await world.settled()
    (record,) = world.memory.read_visible("credits")
    assert (record.key, record.value) == (b"k", b"v")
    assert list(record.headers) == [("h", b"1"), ("h", None), ("transaction-id", world.id_of("a").encode())]
    op = world.op_of("a")
    assert op.transaction.state is TransactionState.COMMITTED
    assert list(op.receipts) == [Receipt("credits", 0, record.queue_offset)]
    assert [(a.request, a.code) for a in world.read_op().answers] == [("r2", AnswerCode.ALREADY)]


@in_world(make_settler_world)
async def test_first_recorded_resolution_wins(world: SettlerWorld) -> None:
    """A commit after a rollback changes nothing (F)."""
    async with world.settling():
        await world.prepare("a", Message("credits", b"k", b"v"))
        await world.rollback("a")
        await world.commit("a", request="late")
        await world.settled()
    assert world.memory.visible("credits") == []
    (answer,) = world.read_op().answers
    assert answer.op is not None
    assert answer.op.transaction.state is TransactionState.ROLLED_BACK


@in_world(make_settler_world)
async def test_several_messages_to_several_topics_are_published_together(world: SettlerWorld) -> None:
    """One transaction, one Kafka transaction, receipts in message order (I)."""
    async with world.settling():
        await world.prepare("a", Message("credits", None, None), Message("orders", b"", b"", (("x", b"\xff"),), 2))
        await world.commit("a")
        await world.settled()
    (credit,) = world.memory.read_visible("credits")
    (order,) = world.memory.read_visible("orders")
    assert (credit.key, credit.value, order.key, order.value) == (None, None, b"", b"")
    assert order.headers[0] == ("x", b"\xff")
    assert [(r.topic, r.queue_id) for r in world.op_of("a").receipts] == [("credits", 0), ("orders", 2)]


@in_world(make_settler_world)
async def test_commit_to_a_deleted_topic_is_blocked_and_others_go_on(world: SettlerWorld) -> None:
    """The resolution stands, is listed, and is published when the topic is back (L, B)."""
    async with world.settling():
        for name, topic in (("a", "credits"), ("b", "orders")):
            await world.prepare(name, Message(topic, b"k%d" % len(topic), name.encode()))
        world.memory.cluster.log.delete_topic("credits")
        for name in ("a", "b"):
            await world.commit(name)
        await world.settled()
        blocked = world.op_of("a").transaction
        assert (blocked.state, blocked.blocked, blocked.reason) == ("COMMITTED", True, "UNKNOWN_TOPIC")
        assert world.memory.visible("orders") == [b"b"]
        world.memory.cluster.log.create_topic("credits", 1)
        await world.memory.clock.sleep_ms(70_000)
    assert world.memory.visible("credits") == [b"a"]
    assert not world.op_of("a").transaction.blocked


@in_world(make_settler_world)
async def test_topic_that_vanishes_costs_its_queue_one_time_out(world: SettlerWorld) -> None:
    """What is known of a topic that was in an unknown batch is asked anew: the next batch does not run into it (B)."""
    async with world.settling():
        for name, topic in (("a", "credits"), ("b", "credits"), ("c", "credits"), ("d", "orders")):
            await world.prepare(name, Message(topic, name.encode(), name.encode()))
        await world.commit("a")
        await world.settled()
        world.memory.cluster.log.delete_topic("credits")
        await world.commit("b")
        await world.memory.clock.sleep_ms(1_000)  # b's batch waits for the topic
        await world.commit("c")
        await world.commit("d")
        await world.memory.clock.sleep_ms(2_000)
        assert world.memory.visible("orders") == [b"d"]
        assert world.op_of("c").transaction.reason == "UNKNOWN_TOPIC"


@in_world(make_settler_world)
async def test_refused_destination_is_split_off_and_explained(world: SettlerWorld) -> None:
    """A topic the broker refuses fails its own commits only; callers are woken with the reason (B, T)."""
    async with world.settling():
        for name, topic in (("a", "credits"), ("b", "orders"), ("c", "credits")):
            await world.prepare(name, Message(topic, topic.encode(), name.encode()))
        world.memory.cluster.log.topics["credits"].is_denied = True
        for name in ("a", "b", "c"):
            await world.commit(name, request=name)
        await world.memory.clock.sleep_ms(15_000)
        assert world.memory.visible("orders") == [b"b"]
        await world.prepare("d", Message("credits", b"d", b"d"))
        await world.commit("d")
        await world.settled()
        for name in ("a", "c", "d"):  # the last one without a try
            blocked = world.op_of(name).transaction
            assert (blocked.blocked, blocked.reason) == (True, "TOPIC_AUTHORIZATION_FAILED")
        world.memory.cluster.log.topics["credits"].is_denied = False
        await world.memory.clock.sleep_ms(120_000)
    published = world.memory.visible("credits")
    assert sorted(published) == [b"a", b"c", b"d"]
    assert published.index(b"a") < published.index(b"c"), "in the order of their commits (O)"


@pytest.mark.parametrize(
    ("rule", "message", "why"),
    [
        ({"max.message.bytes": "1000"}, Message("credits", b"k", b"v" * 2_000), "MESSAGE_TOO_LARGE"),
        ({"message.timestamp.before.max.ms": "1000"}, Message("credits", timestamp_ms=1), "INVALID_TIMESTAMP"),
    ],
)
@in_world(make_settler_world)
async def test_topic_that_has_changed_its_rules_is_the_reason_at_once(
    world: SettlerWorld, rule: dict[str, str], message: Message, why: str
) -> None:
    """After a refused batch the cluster is asked anew: no try is needed to find out whose fault it was (B, T)."""
    async with world.settling():
        for name in ("before", "after"):
            await world.prepare(name, message)
        await world.prepare("other", Message("orders", None, b"v"))
        await world.commit("before")
        await world.settled()
        world.memory.cluster.log.topics["credits"].alter(rule)
        await world.commit("after")
        await world.settled()
        await world.commit("other")
        await world.settled()
        assert [op.transaction.reason for op in world.read_op().every if op.transaction.blocked] == [why]
    assert len(world.memory.visible("credits")) == len(world.memory.visible("orders")) == 1


@in_world(make_settler_world, faults=ScriptedFaults)
async def test_lost_answer_to_the_end_of_a_kafka_transaction_publishes_once(
    world: SettlerWorld, faults: ScriptedFaults
) -> None:
    """Committed, but the owner does not know: it takes the queue over and decides nothing twice (D)."""
    async with world.settling():
        await world.prepare("a", Message("credits", b"k", b"v"))
        await world.settled()
        faults.give(StepKind.END, Fate(answer_ms=None))
        await world.commit("a")
        await world.settled()
        await world.memory.clock.sleep_ms(10_000)
    assert world.memory.visible("credits") == [b"v"]
    assert world.op_of("a").transaction.state is TransactionState.COMMITTED


class DiesAt(NoFaults):
    """The client `first` never gets beyond its request number `point`, counted from `arm`."""

    def __init__(self, point: int) -> None:
        self.left = point
        self.is_armed = False

    async def before(self, step: Step) -> Fate:
        await self._pass(step)
        return PASSES

    async def after(self, step: Step) -> None:
        await self._pass(step)

    async def _pass(self, step: Step) -> None:
        if self.is_armed and step.client == "first":
            self.left -= 1
            if self.left < 0:
                await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("point", range(40))
def test_successor_settles_what_a_killed_owner_left(point: int) -> None:
    """Killed before or after any request: everything committed is published once, nothing else (L, P, D)."""
    faults = DiesAt(point)
    world = make_settler_world(faults=faults)
    names = [f"t{n}" for n in range(6)]

    async def story() -> None:
        first = world.memory.start_process("first")
        task = asyncio.create_task(world.make_settler(first, "first").run_forever())
        await world.memory.clock.sleep_ms(500)
        faults.is_armed = True
        for name in names:
            await world.prepare(name, Message("credits", name.encode(), name.encode()))
            await (world.rollback(name) if name == "t2" else world.commit(name))
            await world.memory.clock.sleep_ms(20)
        first.freeze()
        task.cancel()
        await asyncio.wait([task], timeout=0)
        async with world.settling("second"):
            await world.memory.clock.sleep_ms(20_000)
            await world.settled()

    world.run(story())
    assert sorted(v or b"" for v in world.memory.visible("credits")) == [n.encode() for n in names if n != "t2"]


@in_world(make_settler_world)
async def test_frozen_owner_is_fenced_by_its_successor(world: SettlerWorld) -> None:
    """An owner frozen longer than its session loses its queue and publishes nothing afterwards (D)."""
    async with world.settling("first") as first:
        await world.prepare("a", Message("credits", b"k", b"a"))
        await world.settled()
        first.freeze()
        await world.commit("a")
        async with world.settling("second"):
            await world.memory.clock.sleep_ms(30_000)
            assert world.memory.visible("credits") == [b"a"]
            first.thaw()
            await world.memory.clock.sleep_ms(30_000)
            await world.prepare("b", Message("credits", b"k", b"b"))
            await world.commit("b")
            await world.settled()
    assert world.memory.visible("credits") == [b"a", b"b"]


@in_world(make_settler_world)
async def test_parked_transaction_is_ended_by_a_late_commit_from_the_parked_copy(world: SettlerWorld) -> None:
    """Discarded with its message in one Kafka transaction; a late answer still ends it, once (S, L)."""
    async with world.settling():
        await world.prepare("a", Message("credits", b"k", b"v", (("h", b"1"),)))
        await world.settled()
        world.observer.owners[0].park({world.id_of("a"): "MAX_CHECKS"})
        await world.memory.clock.sleep_ms(1_000)
        parked = world.op_of("a").transaction
        assert (parked.state, parked.reason, parked.by) == ("PARKED", "MAX_CHECKS", "timer")
        assert world.id_of("a") not in world.observer.pending
        await world.commit("a", source=Source.OPERATOR, actor="me", reason="looked it up")
        await world.settled()
    (copy,) = world.memory.read_visible(world.topics.parked)
    assert decode_properties(copy.headers[-1][1] or b"")["KIND"] == "D"
    assert (copy.key, copy.value, copy.headers[0]) == (b"k", b"v", ("h", b"1"))
    assert world.memory.visible("credits") == [b"v"]
    assert world.op_of("a").transaction.by == "operator"


def test_park_that_is_refused_is_tried_again_after_a_while() -> None:
    """The parked topic is a destination that can fail: what the journal says is settled meanwhile (B)."""
    world = make_settler_world(config=SettlerConfig(park_backoff_ms=3_000))

    async def story() -> None:
        async with world.settling():
            for name in ("a", "b"):
                await world.prepare(name, Message("credits", b"k", b"v"))
            await world.settled()
            world.memory.cluster.log.topics[world.topics.parked].is_denied = True
            world.observer.owners[0].park({world.id_of("a"): "MAX_CHECKS"})
            await world.memory.clock.sleep_ms(500)
            world.memory.cluster.log.topics[world.topics.parked].is_denied = False
            await world.commit("b")
            await world.settled()
            assert world.memory.visible("credits") == [b"v"]
            assert world.op_of("a").transaction.state is TransactionState.PREPARED
            await world.memory.clock.sleep_ms(3_000)
            assert world.op_of("a").transaction.state is TransactionState.PARKED

    world.run(story())


@in_world(make_settler_world)
async def test_only_the_expected_check_number_is_counted(world: SettlerWorld) -> None:
    """UNKNOWN counts once for each round; a COMMIT from a check resolves whatever its number (K)."""
    async with world.settling():
        await world.prepare("a", Message("credits", b"k", b"v"))
        for number in (1, 1, 3, 2):
            await world.end("a", Resolution.UNKNOWN, source=Source.CHECK, check_number=number)
        await world.settled()
        assert world.observer.pending[world.id_of("a")].check_times == 2
        await world.commit("a", source=Source.CHECK, check_number=7)
        await world.settled()
    op = world.op_of("a").transaction
    assert (op.by, op.check_times) == ("check", 2)
    assert world.memory.visible("credits") == [b"v"]


@pytest.mark.parametrize("resolution", [Resolution.COMMIT, Resolution.ROLLBACK])
@in_world(make_settler_world)
async def test_check_that_decides_is_counted_too(world: SettlerWorld, resolution: Resolution) -> None:
    """Check times are the answered askings, the last one among them (K)."""
    async with world.settling():
        await world.prepare("a", Message("orders"))
        await world.end("a", Resolution.UNKNOWN, source=Source.CHECK, check_number=1)
        await world.end("a", resolution, source=Source.CHECK, check_number=2)
        await world.settled()
    assert world.op_of("a").transaction.check_times == 2


@in_world(make_settler_world)
async def test_keyed_half_message_appended_too_late_is_void(world: SettlerWorld) -> None:
    """Nobody applies a repeat that was looked up more than 30 s before its append (D)."""
    async with world.settling():
        seen = world.memory.clock.now_ms() - 30_001
        await world.prepare("a", Message("credits", b"k", b"v"), idempotency_key="i", seen_ms=seen, request="q")
        await world.commit("a", request="r")
        await world.settled()
    assert world.memory.visible("credits") == []
    assert [(a.request, a.code) for a in world.read_op().answers] == [("r", AnswerCode.UNKNOWN_TRANSACTION)]


@in_world(make_settler_world)
async def test_repeat_of_an_ended_transaction_writes_its_op_message_again(world: SettlerWorld) -> None:
    """A repeat is answered with the state and receipts, and changes nothing (D)."""
    async with world.settling():
        now = world.memory.clock.now_ms
        for request in ("q1", "q2"):
            await world.prepare(
                "a", Message("credits", b"k", b"v"), idempotency_key="i", seen_ms=now(), request=request
            )
            await world.settled()
            await world.commit("a")
            await world.settled()
    assert world.memory.visible("credits") == [b"v"]
    log = world.read_op()
    assert [op.transaction.state for op in log.every].count(TransactionState.COMMITTED) == 2
    answers = {a.request: a for a in log.answers}
    assert answers["q1"].op is not None
    assert answers["q1"].op.transaction.state is TransactionState.PREPARED
    assert answers["q2"].op == log.every[0]


@in_world(make_settler_world)
async def test_published_without_local_transaction_is_settled_in_one_step(world: SettlerWorld) -> None:
    """A half message with RES=8 needs no end (D on repeats)."""
    async with world.settling():
        await world.prepare("a", Message("credits", b"k", b"v"), is_published=True, request="q")
        await world.settled()
    assert world.memory.visible("credits") == [b"v"]
    assert world.op_of("a").transaction.requests == ("q",)


@in_world(make_settler_world)
async def test_resumed_transaction_begins_a_new_life(world: SettlerWorld) -> None:
    """Resume: PREPARED again, check numbers go on, the allowance starts anew (S, K)."""
    async with world.settling():
        await world.prepare("a", Message("credits", b"k", b"v"))
        await world.end("a", Resolution.UNKNOWN, source=Source.CHECK, check_number=1)
        await world.settled()
        world.observer.owners[0].park({world.id_of("a"): "MAX_CHECKS"})
        await world.memory.clock.sleep_ms(1_000)
        await world.act(ActRecord(world.id_of("a"), Act.RESUME, "me", "fixed", 0, "r"))
        await world.act(ActRecord(world.id_of("a"), Act.RESUME, "me", "fixed", 0, "r2"))
        await world.settled()
    t = world.observer.pending[world.id_of("a")]
    assert (t.state, t.check_times, t.base) == (TransactionState.PREPARED, 1, 1)
    assert t.requests == ("r",)
    assert [(a.request, a.code) for a in world.read_op().answers] == [("r2", AnswerCode.NOT_PARKED)]


@in_world(make_settler_world)
async def test_record_of_a_newer_version_halts_the_queue(world: SettlerWorld) -> None:
    """What this release does not know is never skipped (row 61)."""
    async with world.settling():
        await world.prepare("a", Message("credits", b"k", b"v"))
        raw = encode_properties({"KIND": "H", "UNIQ_KEY": world.id_of("b"), "V": "2"})
        newer = Message(world.topics.half, None, None, (("properties", raw),), 0)
        await world.memory.store.put_many([Message(world.topics.half, b"junk", b"junk", (), 0), newer])
        await world.commit("a")
        await world.memory.clock.sleep_ms(30_000)
        status = world.settlers["settler"].status[0]
        assert (status.hold, status.s, status.counts.quarantined) == (Hold.HALTED, 2, 1)
        assert status.reason.startswith("journal offset 2: kind 'H' version '2' is not of this release: start ")
    assert world.memory.visible("credits") == []


def test_blocked_commit_outlives_the_journal_in_the_parked_topic() -> None:
    """The body of a commit blocked for longer than the journal keeps it is published all the same (L)."""
    config = SettlerConfig(horizon=LowWatermarkConfig(journal_records=1, journal_ms=1_000, op_messages=1, op_ms=20_000))
    world = make_settler_world(config=config)

    async def story() -> None:
        log = world.memory.cluster.log
        log.topics[world.topics.half].alter({"segment.ms": "2000"})
        async with world.settling():
            await world.prepare("a", Message("credits", b"k", b"v"))
            log.delete_topic("credits")
            await world.commit("a")
            for n in range(40):
                await world.prepare(f"x{n}", Message("orders", None, None))
                await world.rollback(f"x{n}")
                await world.memory.clock.sleep_ms(1_000)
            await world.settled()
            assert world.op_of("a").transaction.parked == 0
            assert world.settlers["settler"].status[0].counts.carried > 1
        log.topics[world.topics.half].alter({"retention.ms": "5000"})
        clean(log)
        assert (await world.memory.store.get_offsets(MessageQueue(world.topics.half, 0))).minimum > 0
        log.create_topic("credits", 1)
        async with world.settling("second"):
            await world.memory.clock.sleep_ms(90_000)

    world.run(story())
    assert world.memory.visible("credits") == [b"v"]


@in_world(make_settler_world)
async def test_foreign_record_in_the_op_topic_does_not_stop_a_successor(world: SettlerWorld) -> None:
    """What cannot be parsed there is quarantined, and what lies before it still counts (row 61)."""
    async with world.settling():
        await world.prepare("a", Message("credits", b"k", b"v"))
        await world.commit("a")
        await world.settled()
    for key in (world.id_of("a").encode(), b"~", b"\xff"):
        await world.memory.store.put_many([Message(world.topics.op, key, b"junk", (), 0)])
    async with world.settling("second"):
        await world.prepare("b", Message("credits", b"k", b"w"))
        await world.commit("a", request="again")
        await world.commit("b")
        await world.memory.clock.sleep_ms(2_000)
    assert world.memory.visible("credits") == [b"v", b"w"]

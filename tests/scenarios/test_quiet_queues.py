"""Queues in which nothing happens: with an owner and without one, for longer than the topics keep their records."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.core.message import Message, MessageQueue
from bridge.core.position import LowWatermarkConfig
from bridge.core.record import Resolution, Source
from bridge.core.transaction import MAX_CHECKS, TransactionState, TransactionView
from bridge.service.contract import EndCall, Prepared, RefusalCode, Refused
from bridge.settler.ports import SettlerConfig
from bridge.settler.settler import Hold
from bridge.store.memory.log import clean
from tests.support.service_world import make_service_world
from tests.support.settler_world import SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world
from tests.support.whole_service import projecting

DAY_MS = 86_400_000

# The days of the topics and of put back as minutes, so that an owner need not idle through a month.
MINUTE_MS = 60_000
SHORT_DAYS = SettlerConfig(
    idle_wait_ms=5_000, idle_position_ms=MINUTE_MS, horizon=LowWatermarkConfig(op_ms=7 * MINUTE_MS)
)


def make_short_days(config: SettlerConfig = SHORT_DAYS) -> SettlerWorld:
    """A world in which the journal keeps 14 minutes, the op topic 30."""
    world = make_settler_world(config=config)
    for topic, minutes in ((world.topics.half, 14), (world.topics.op, 30), (world.topics.parked, 90)):
        settings = {
            "retention.ms": minutes * MINUTE_MS,
            "segment.ms": 3 * MINUTE_MS,
            "min.compaction.lag.ms": MINUTE_MS,
        }
        world.memory.cluster.log.topics[topic].alter({name: str(value) for name, value in settings.items()})
    return world


async def pass_minutes(world: SettlerWorld, minutes: int) -> None:
    """The log's cleaner runs every minute."""
    for _ in range(minutes):
        await world.memory.clock.sleep_ms(MINUTE_MS)
        clean(world.memory.cluster.log)


async def stay_quiet(world: SettlerWorld) -> None:
    """One owner, and not one record."""
    async with world.settling("first"):
        await pass_minutes(world, 40)


async def change_owners(world: SettlerWorld) -> None:
    """A new owner every five minutes, and one record at the end of each."""
    for n in range(8):
        async with world.settling(f"owner{n}"):
            await pass_minutes(world, 5)
            await world.prepare(f"x{n}", Message("orders", None, None))
            await world.rollback(f"x{n}")
            await world.settled()


Passing = Callable[[SettlerWorld], Awaitable[None]]


def test_idle_queue_serves_reads_and_keyed_prepares(tmp_path: Path) -> None:
    """Minutes without a record: reads are current at once, keys are looked up, ids are known or 404 (A)."""
    world = make_service_world(tmp_path)

    async def story() -> None:
        clock = world.settlers.memory.clock
        async with world.settlers.settling(), projecting(world), world.serving() as api:
            [first] = await api.transactions.prepare([world.call(idempotency_key="1")])
            assert isinstance(first, Prepared)
            await world.sleep(600_000)
            began_ms = clock.monotonic_ms()
            [second] = await api.transactions.prepare([world.call(b"w", idempotency_key="2")])
            assert isinstance(second, Prepared)
            [again] = await api.transactions.prepare([world.call(idempotency_key="1")])
            assert again == first
            await world.sleep(120_000)
            began_ms += 120_000
            [unkeyed] = await api.transactions.prepare([world.call(b"x")])
            assert isinstance(unkeyed, Prepared)
            found = await api.transactions.get(unkeyed.transaction_id)
            assert isinstance(found, TransactionView)
            unknown = await api.transactions.get(world.settlers.id_of("nobody"))
            assert isinstance(unknown, Refused)
            assert unknown.code is RefusalCode.UNKNOWN_TRANSACTION
            await world.sleep(120_000)
            began_ms += 120_000
            [ended] = await api.transactions.end([EndCall(first.transaction_id, Resolution.COMMIT)])
            assert isinstance(ended, TransactionView)
            assert clock.monotonic_ms() - began_ms < 2_000

    world.settlers.run(story(), limit_ms=DAY_MS)
    assert world.settlers.memory.visible("orders") == [b"v"]


@in_world(make_short_days)
async def test_position_of_an_idle_queue_outlives_the_op_topics_retention(world: SettlerWorld) -> None:
    """An idle owner writes it again: its successor does not find an op topic that says nothing (L)."""
    async with world.settling("first"):
        await world.prepare("a", Message("credits", b"k", b"a"))
        await world.commit("a")
        await pass_minutes(world, 40)
    async with world.settling("second"):
        await world.prepare("b", Message("credits", b"k", b"b"))
        await world.commit("b")
        await world.memory.clock.sleep_ms(30_000)
    assert world.memory.visible("credits") == [b"a", b"b"]


@pytest.mark.parametrize("pass_time", [stay_quiet, change_owners])
@in_world(make_short_days)
async def test_parked_one_outlives_the_op_topics_retention(world: SettlerWorld, pass_time: Passing) -> None:
    """Its op message is written again in time, without traffic and with owners that never stay long (S, L)."""
    async with world.settling("zeroth"):
        await world.prepare("a", Message("credits", b"k", b"v"))
        await world.settled()
        world.observer.owners[0].park({world.id_of("a"): MAX_CHECKS})
        await world.memory.clock.sleep_ms(10_000)
    await pass_time(world)
    async with world.settling("last"):
        await world.commit("a")
        await world.memory.clock.sleep_ms(30_000)
    assert world.memory.visible("credits") == [b"v"]


@pytest.mark.parametrize("pass_time", [stay_quiet, change_owners])
@in_world(make_short_days)
async def test_blocked_commit_outlives_a_quiet_journal(world: SettlerWorld, pass_time: Passing) -> None:
    """Its body is in the parked topic before the journal forgets it, without traffic and across owners (L)."""
    log = world.memory.cluster.log
    async with world.settling("zeroth"):
        await world.prepare("a", Message("credits", b"k", b"v"))
        log.delete_topic("credits")
        await world.commit("a")
        await world.memory.clock.sleep_ms(10_000)
    await pass_time(world)
    log.create_topic("credits", 1)
    async with world.settling("last"):
        await world.memory.clock.sleep_ms(90_000)
    assert world.memory.visible("credits") == [b"v"]


@in_world(make_short_days)
async def test_blocked_commit_that_is_tried_again_and_again_outlives_the_journal(world: SettlerWorld) -> None:
    """Each refusal writes its op message anew, so that never grows old; its half message does (L)."""
    topic = world.memory.cluster.log.topics["credits"]
    async with world.settling("first"):
        await world.prepare("a", Message("credits", None, b"v"))
        topic.is_denied = True
        await world.commit("a")
        await pass_minutes(world, 40)
        assert world.op_of("a").transaction.reason == "TOPIC_AUTHORIZATION_FAILED"
    topic.is_denied = False
    async with world.settling("last"):
        await world.memory.clock.sleep_ms(90_000)
    assert world.memory.visible("credits") == [b"v"]


@pytest.mark.parametrize("pass_time", [stay_quiet, change_owners])
@in_world(make_short_days)
async def test_pending_one_that_nobody_is_asked_about_outlives_the_journal(
    world: SettlerWorld, pass_time: Passing
) -> None:
    """Its life does not end while an operator has paused the checks of its group: it is copied before its half message
    goes, stays PREPARED, and can be parked and published from its copy (L)."""
    async with world.settling("before"):
        await world.prepare("a", Message("credits", b"k", b"v"))
        await world.settled()
    await pass_time(world)
    kept = world.op_of("a").transaction
    assert (kept.state, kept.parked) == (TransactionState.PREPARED, 0)
    async with world.settling("last"):
        await world.memory.clock.sleep_ms(5_000)
        world.observer.owners[0].park({world.id_of("a"): MAX_CHECKS})  # the pause is over
        await world.memory.clock.sleep_ms(1_000)
        assert world.op_of("a").transaction.state is TransactionState.PARKED
        await world.commit("a")
        await world.settled()
    assert world.memory.visible("credits") == [b"v"]
    assert len(world.memory.read_visible(world.topics.parked)) == 2


@in_world(make_short_days)
async def test_parked_topic_that_refuses_does_not_stop_the_queue(world: SettlerWorld) -> None:
    """A blocked commit is to be copied there, and cannot be: others go on, and it is copied later (B, L)."""
    log = world.memory.cluster.log
    async with world.settling("first"):
        await world.prepare("a", Message("credits", b"k", b"a"))
        log.delete_topic("credits")
        await world.commit("a")
        log.topics[world.topics.parked].is_denied = True
        await pass_minutes(world, 9)
        await world.prepare("b", Message("orders", b"other", b"b"))
        await world.commit("b")
        await world.memory.clock.sleep_ms(10_000)
        assert world.memory.visible("orders") == [b"b"]
        assert world.op_of("a").transaction.parked is None
        log.topics[world.topics.parked].is_denied = False
        await pass_minutes(world, 3)
        assert world.op_of("a").transaction.parked == 0
        assert world.settlers["first"].status[0].blocked == 1
    assert len(world.memory.read_visible(world.topics.parked)) == 1


@pytest.mark.parametrize("trouble", ["denied", "leaderless"])
def test_parked_topic_that_refuses_holds_up_no_commit(trouble: str) -> None:
    """Nobody takes the queue over for it, and what is to be parked is parked once the topic takes it (B, S)."""
    world = make_settler_world()
    latest_ms = 0

    def set_trouble(*, is_there: bool) -> None:
        log, parked = world.memory.cluster.log, world.topics.parked
        if trouble == "denied":
            log.topics[parked].is_denied = is_there
        else:
            log.set_leader(MessageQueue(parked, 0), has_leader=not is_there)

    async def story() -> None:
        nonlocal latest_ms
        async with world.settling("first"):
            await world.prepare("a", Message("credits", b"k", b"a"))
            await world.settled()
            set_trouble(is_there=True)
            world.observer.owners[0].park({world.id_of("a"): MAX_CHECKS})
            for n in range(100):
                await world.memory.clock.sleep_ms(400)
                await world.prepare(f"b{n}", Message("orders", b"other", None))
                began_ms = world.memory.clock.monotonic_ms()
                await world.commit(f"b{n}")
                await world.settled()
                latest_ms = max(latest_ms, world.memory.clock.monotonic_ms() - began_ms)
            assert world.settlers["first"].status[0].take_overs == 1
            assert world.id_of("a") in world.observer.pending
            set_trouble(is_there=False)
            await world.memory.clock.sleep_ms(15_000)
            assert world.op_of("a").transaction.state is TransactionState.PARKED
            assert world.id_of("a") not in world.observer.pending

    world.run(story())
    assert latest_ms < 1_000
    assert len(world.memory.read_visible(world.topics.parked)) == 1


@in_world(make_settler_world)
async def test_copy_too_large_for_the_parked_topic_holds_up_no_other(world: SettlerWorld) -> None:
    """One that cannot be parked waits, and stays PREPARED (B, S)."""
    async with world.settling("first"):
        for name, size in (("large", 5_000), ("small", 10)):
            await world.prepare(name, Message("credits", b"k", b"v" * size))
        await world.settled()
        world.memory.cluster.log.topics[world.topics.parked].alter({"max.message.bytes": "2000"})
        world.observer.owners[0].park({world.id_of(name): MAX_CHECKS for name in ("large", "small")})
        await world.memory.clock.sleep_ms(10_000)
        assert world.op_of("small").transaction.state is TransactionState.PARKED
        assert world.id_of("large") in world.observer.pending
        await world.commit("large")
        await world.settled()
    assert [len(value or b"") for value in world.memory.visible("credits")] == [5_000]


def park_and_leave(world: SettlerWorld) -> Awaitable[None]:
    """A parked transaction, everything decided, and nobody there any more."""

    async def story() -> None:
        async with world.settling("first"):
            await world.prepare("a", Message("credits", b"k", b"v"))
            await world.settled()
            world.observer.owners[0].park({world.id_of("a"): MAX_CHECKS})
            await world.memory.clock.sleep_ms(1_000)

    return story()


def test_stop_that_outlasts_the_journal_forgets_nothing_parked() -> None:
    """Three weeks without anybody: the journal is empty, the op topic and the parked topic are enough (S, L)."""
    world = make_settler_world()

    async def story() -> None:
        await park_and_leave(world)
        await world.memory.clock.sleep_ms(21 * DAY_MS)
        clean(world.memory.cluster.log)
        assert world.memory.read_visible(world.topics.half) == []
        async with world.settling("second"):
            await world.memory.clock.sleep_ms(5_000)
            await world.commit("a")
            await world.memory.clock.sleep_ms(5_000)

    world.run(story(), limit_ms=30 * DAY_MS)
    assert world.memory.visible("credits") == [b"v"]
    assert world.op_of("a").transaction.state is TransactionState.COMMITTED


def test_stop_that_outlasts_the_op_topic_halts_the_queue() -> None:
    """Forty days without anybody: what was parked cannot be known any more, and that is said (S)."""
    world = make_settler_world()

    async def story() -> None:
        await park_and_leave(world)
        await world.memory.clock.sleep_ms(40 * DAY_MS)
        clean(world.memory.cluster.log)
        async with world.settling("second"):
            await world.commit("a")
            await world.memory.clock.sleep_ms(30_000)
            assert world.settlers["second"].status[0].hold is Hold.HALTED
        assert world.read_op().positions == []

    world.run(story(), limit_ms=50 * DAY_MS)


@pytest.mark.parametrize("is_refused", [True, False])
def test_pending_one_is_copied_in_time_whenever_its_op_message_was_written(is_refused: bool) -> None:
    """Shortly before it was old, for an answer to a check; or together with a copy that the parked topic refused, of
    which only an owner knew that has left (L)."""
    horizon = LowWatermarkConfig(op_ms=7 * MINUTE_MS, journal_ms=2_000)  # put back at once, as five minutes of days are
    world = make_short_days(replace(SHORT_DAYS, horizon=horizon))

    async def story() -> None:
        parked = world.memory.cluster.log.topics[world.topics.parked]
        async with world.settling("first"):
            await world.prepare("a", Message("credits", b"k", b"v"))
            await pass_minutes(world, 6)
            if not is_refused:
                await world.end("a", Resolution.UNKNOWN, source=Source.CHECK, check_number=1)
            parked.is_denied = is_refused
            await pass_minutes(world, 3)
        parked.is_denied = False
        async with world.settling("second"):
            await pass_minutes(world, 4)
            assert world.op_of("a").transaction.parked == 0
            assert world.settlers["second"].status[0].counts.parked == 0
            await pass_minutes(world, 20)
            await world.commit("a")
            await world.settled()

    world.run(story())
    assert world.memory.visible("credits") == [b"v"]

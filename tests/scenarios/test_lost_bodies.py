"""Bodies of transactions that are not over are deleted from the journal: it is told before anybody misses them (56)."""

from bridge.core.record import Resolution
from bridge.core.transaction import TransactionState, TransactionView
from bridge.node import Node
from bridge.service.contract import Outcome, Prepared, RefusalCode, Refused
from bridge.store.memory.log import clean
from tests.support.lost_log_world import LostLogWorld, make_lost_log_world
from tests.support.virtual_time import in_world

_CARRIED_MS = 400_000  # by then a take-over needs their half messages no more, and does not halt for want of them
_LONG = {"max_lifetime_s": 86_400, "immunity_s": 80_000}


async def explain(node: Node, made: Prepared) -> str:
    view = await node.transactions.get(made.transaction_id)
    assert isinstance(view, TransactionView)
    explained = await node.transactions.explain(view)
    assert not isinstance(explained, Refused)
    return explained.text


async def lose_bodies(world: LostLogWorld) -> None:
    """Somebody empties the journal by a short retention, and sets it back when all is gone."""
    log = world.memory.cluster.log
    journal = log.topics[world.topics.half]
    before = journal.config["retention.ms"]
    journal.alter({"retention.ms": "60000"})
    for partition in journal.partitions:
        partition.roll(world.memory.clock.now_ms())
    await world.memory.clock.sleep_ms(61_000)
    clean(log)
    journal.alter({"retention.ms": before})


@in_world(make_lost_log_world)
async def test_retention_that_deletes_pending_messages_is_told_at_once(world: LostLogWorld) -> None:
    """Those that were deleted are counted and named, what is over or younger is not; a commit is refused once their
    owner has changed; rolled back, nothing is left to tell."""
    async with world.running() as node:
        lost = [await world.prepare(node, b"%d" % number, **_LONG) for number in range(12)]
        ended = await world.prepare(node, b"ended", **_LONG)
        assert (await world.end(node, ended)).state is TransactionState.COMMITTED
        await world.memory.clock.sleep_ms(_CARRIED_MS)
        await lose_bodies(world)
        young: list[Prepared] = []

        async def is_taken() -> bool:
            answer = await world.prepare(node, b"young", **_LONG)
            young.extend([answer] if isinstance(answer, Prepared) else [])
            return bool(young)

        await world.until_true(is_taken, "in order again")
        await world.until(lambda: bool(node.bodies.lost), "told")
        assert node.bodies.lost[0].transactions == 12
        assert node.bodies.lost[0].first == tuple(made.transaction_id for made in lost[:10])
        assert f"12 transactions that are not over lie before it without a copy: {lost[0].transaction_id}" in (
            node.bodies.describe()
        )
        assert "no log has its messages any more" in await explain(node, lost[0])
        assert "no log" not in await explain(node, young[0])
    async with world.running() as node:
        assert node.bodies.lost[0].transactions == 12
        refused = await world.end(node, lost[0])
        assert (refused.code, refused.outcome) == (RefusalCode.BODY_EXPIRED, Outcome.NOT_APPLIED)
        for made in lost:
            rolled_back = await world.end(node, made, Resolution.ROLLBACK)
            assert rolled_back.state is TransactionState.ROLLED_BACK
        await world.until(lambda: not node.bodies.lost, "all over")
        assert node.bodies.describe() == ""
    assert world.memory.visible("orders") == [b"ended"]


@in_world(make_lost_log_world)
async def test_short_retention_is_refused_before_kafka_looks_for_what_it_may_delete(world: LostLogWorld) -> None:
    """Kafka looks every five minutes."""
    async with world.running() as node:
        world.memory.cluster.log.topics[world.topics.half].alter({"retention.ms": "60000"})
        begun_ms = world.memory.clock.monotonic_ms()
        refused = await world.refused(node, "retention.ms 60000")
        assert refused.outcome is Outcome.NOT_APPLIED
        assert world.memory.clock.monotonic_ms() - begun_ms < 60_000


async def park(world: LostLogWorld, node: Node) -> Prepared:
    made = await world.prepare(node, b"v", max_lifetime_s=1, immunity_s=0)

    async def is_parked() -> bool:
        view = await node.transactions.get(made.transaction_id)
        return isinstance(view, TransactionView) and view.state is TransactionState.PARKED

    await world.until_true(is_parked, "parked")
    return made


@in_world(make_lost_log_world)
async def test_parked_transaction_is_not_told(world: LostLogWorld) -> None:
    """It has a copy, from which it is published."""
    async with world.running() as node:
        made = await park(world, node)
        await lose_bodies(world)
        await world.memory.clock.sleep_ms(60_000)
        assert node.bodies.lost == {}
        assert (await world.end(node, made)).state is TransactionState.COMMITTED
    assert world.memory.visible("orders") == [b"v"]


@in_world(make_lost_log_world)
async def test_parked_transaction_whose_copy_was_deleted_is_told(world: LostLogWorld) -> None:
    """Somebody takes the parked topic for a queue of dead letters, and empties it: as long as the journal has the
    message nothing is lost."""
    async with world.running() as node:
        made = await park(world, node)
        copies = world.memory.cluster.log.topics[world.topics.parked].partitions[0]
        copies.drop_below(copies.maximum)
        await world.memory.clock.sleep_ms(60_000)
        assert node.bodies.lost == {}
        await world.memory.clock.sleep_ms(_CARRIED_MS)
        await lose_bodies(world)
        await world.until(lambda: bool(node.bodies.lost), "told")
        assert made.transaction_id in node.bodies.describe()
        assert "no log has its messages any more" in await explain(node, made)


@in_world(make_lost_log_world)
async def test_pending_message_that_a_compacted_journal_dropped_is_told_and_given_up(world: LostLogWorld) -> None:
    """Somebody compacts the journal for a while: whoever takes the queue over would know nothing of it, and nobody
    would ever be asked about it; what is left goes on (S, A)."""
    async with world.running() as node:
        lost, kept = [await world.prepare(node, value, message_key=b"same", **_LONG) for value in (b"lost", b"kept")]
        done = await world.prepare(node, b"done", message_key=b"other", **_LONG)
        assert (await world.end(node, done)).state is TransactionState.COMMITTED
        await world.memory.clock.sleep_ms(5_000)
    journal = world.memory.cluster.log.topics[world.topics.half]
    journal.alter({"cleanup.policy": "compact"})
    journal.partitions[0].roll(world.memory.clock.now_ms())
    clean(world.memory.cluster.log)
    journal.alter({"cleanup.policy": "delete"})
    async with world.running(is_awaited=False) as node:
        await world.until(lambda: 0 in node.log.halts, "halted")
        assert f"1 pending transactions have no half message in the journal any more: {lost.transaction_id}" in (
            node.log.halts[0].detail
        )
        (loss,) = await world.give_up()
        assert [u.transaction_id for u in loss.unproven] == [lost.transaction_id]
        await world.until(lambda: node.is_ready and not node.log.halts, "ready")
        assert (await world.end(node, kept)).state is TransactionState.COMMITTED
        assert (await world.end(node, lost)).code is RefusalCode.GIVEN_UP
    assert sorted(world.memory.visible("orders")) == [b"done", b"kept"]


@in_world(make_lost_log_world)
async def test_record_that_a_compacted_journal_dropped_before_it_was_read_is_counted(world: LostLogWorld) -> None:
    """Nobody knows what it was, but for whoever prepared it: that there was one is told (S)."""
    async with world.running(is_settling=False) as api:
        for value in (b"lost", b"kept"):
            await world.prepare(api, value, message_key=b"same", **_LONG)
        journal = world.memory.cluster.log.topics[world.topics.half]
        journal.alter({"cleanup.policy": "compact"})
        journal.partitions[0].roll(world.memory.clock.now_ms())
        clean(world.memory.cluster.log)
        journal.alter({"cleanup.policy": "delete"})
        async with world.running() as node:
            assert node.settler is not None
            status = node.settler.status
            await world.until(lambda: status[0].counts.missing == 1, "told")
            assert status[0].live == 1

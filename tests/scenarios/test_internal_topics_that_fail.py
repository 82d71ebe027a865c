"""Journal, op topic and parked topic that are denied, without a leader, deleted or cut off, under load.

With the queue's owner there all the time, or replaced meanwhile. Nothing acknowledged is lost but what an operator was
told, nothing is published twice, and what was refused as not applied is nowhere (45 to 47, 53, 62).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bridge.core.errors import QueueHalted
from bridge.core.record import Resolution
from bridge.core.transaction import TransactionState, TransactionView
from bridge.node import Node
from bridge.service.contract import Outcome, Prepared, RefusalCode, Refused
from bridge.sql.identity import read_halts
from tests.support.lost_log_world import LostLogWorld, make_lost_log_world
from tests.support.virtual_time import in_world

TOPICS = ["half", "op", "parked"]
OWNERS = ["same owner", "replaced owner"]
LONG = {"max_lifetime_s": 86_400, "immunity_s": 80_000}


@dataclass
class Heard:
    """What the callers were told, by value; ids of what was acknowledged as prepared."""

    committed: list[bytes] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)
    ids: dict[bytes, str] = field(default_factory=dict)


@asynccontextmanager
async def load(world: LostLogWorld, nodes: list[Node]) -> AsyncIterator[Heard]:
    """Callers that prepare and commit all the time."""
    heard = Heard()

    async def produce(number: int) -> None:
        for count in range(10_000):
            value = b"%d-%d" % (number, count)
            made = await world.prepare(nodes[-1], value, message_key=value)
            if isinstance(made, Prepared):
                heard.ids[value] = made.transaction_id
                ended = await world.end(nodes[-1], made)
                is_done = isinstance(ended, TransactionView) and ended.state is TransactionState.COMMITTED
                (heard.committed if is_done else heard.unknown).append(value)
            else:
                is_refused = isinstance(made, Refused) and made.outcome is Outcome.NOT_APPLIED
                (heard.refused if is_refused else heard.unknown).append(value)
            await world.memory.clock.sleep_ms(100)

    tasks = [asyncio.create_task(produce(number)) for number in range(3)]
    try:
        yield heard
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def check_visible(world: LostLogWorld, heard: Heard) -> None:
    """Acknowledged: once. Refused: never. Unknown: at most once."""
    seen = world.memory.visible("orders")
    assert {value: seen.count(value) for value in heard.committed} == dict.fromkeys(heard.committed, 1)
    assert not set(heard.refused).intersection(seen)
    assert all(seen.count(value) <= 1 for value in heard.unknown)


async def progress(world: LostLogWorld, heard: Heard) -> None:
    """Commits are acknowledged again."""
    before = len(heard.committed)
    await world.until(lambda: len(heard.committed) > before + 10, "progress", 240_000)


def name_of(world: LostLogWorld, topic: str) -> str:
    return str(getattr(world.topics, topic))


@asynccontextmanager
async def leaderless(world: LostLogWorld, topic: str) -> AsyncIterator[None]:
    log = world.memory.cluster.log
    for partition in log.topics[name_of(world, topic)].partitions:
        log.set_leader(partition.queue, has_leader=False)
    yield
    for partition in log.topics[name_of(world, topic)].partitions:
        log.set_leader(partition.queue, has_leader=True)


@asynccontextmanager
async def denied(world: LostLogWorld, topic: str) -> AsyncIterator[None]:
    world.memory.cluster.log.topics[name_of(world, topic)].is_denied = True
    yield
    world.memory.cluster.log.topics[name_of(world, topic)].is_denied = False


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("trouble", [leaderless, denied], ids=lambda trouble: trouble.__name__)
@in_world(make_lost_log_world)
async def test_internal_topic_that_takes_nothing_for_a_while(
    world: LostLogWorld, trouble: Callable[..., object], topic: str, owner: str
) -> None:
    """Nobody halts and nobody acts: 503 or unknown meanwhile, afterwards everybody hears the truth (L, P, D, A, T)."""
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        nodes = [await first.enter_async_context(world.running())]
        if owner == "replaced owner":
            nodes.append(await second.enter_async_context(world.running()))
        short = await world.prepare(nodes[-1], b"short", max_lifetime_s=20, immunity_s=0)
        async with load(world, nodes) as heard:
            await progress(world, heard)
            async with trouble(world, topic):  # type: ignore[attr-defined]
                held = await world.prepare(nodes[-1], b"held")
                if topic == "half":
                    expected = Outcome.NOT_APPLIED if trouble is denied else Outcome.UNKNOWN
                    assert held.outcome is expected, held
                if owner == "replaced owner":
                    await first.aclose()
                await world.memory.clock.sleep_ms(60_000)
                if topic == "parked":
                    await progress(world, heard)
                    assert (await state_of(nodes[-1], short)) is TransactionState.PREPARED
            await progress(world, heard)
            assert await world.database.read(read_halts) == {}
            await world.until_true(lambda: is_parked(nodes[-1], short), "parked", 240_000)
        if topic != "half":
            ended = await world.end(nodes[-1], held)
            assert (ended.state, ended.blocked) == (TransactionState.COMMITTED, False)
        await find_truth(world, nodes[-1], heard)
    check_visible(world, heard)


async def state_of(node: Node, made: Prepared) -> TransactionState | None:
    view = await node.transactions.get(made.transaction_id)
    return view.state if isinstance(view, TransactionView) else None


async def is_parked(node: Node, made: Prepared) -> bool:
    return await state_of(node, made) is TransactionState.PARKED


async def find_truth(world: LostLogWorld, node: Node, heard: Heard) -> None:
    """Whoever heard "unknown" repeats the call once more, and is told (A)."""
    for value in [value for value in heard.unknown if value in heard.ids]:
        made = Prepared(heard.ids[value], "", TransactionState.PREPARED, 0, 0, 0, 0)
        ended = await world.end(node, made)
        assert isinstance(ended, TransactionView), ended
        assert ended.state is TransactionState.COMMITTED
        heard.unknown.remove(value)
        heard.committed.append(value)


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("how", ["deleted", "recreated", "cut off"])
@in_world(make_lost_log_world)
async def test_internal_topic_that_is_lost_is_refused_and_given_up(
    world: LostLogWorld, how: str, topic: str, owner: str
) -> None:
    """503 not applied within seconds, until an operator says what is given up; then all goes on, nothing comes twice,
    and each acknowledged transaction that was not ended is ended or was told (D, L, 53, 62)."""
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        nodes = [await first.enter_async_context(world.running())]
        pending = await world.prepare(nodes[-1], b"pending")
        async with load(world, nodes) as heard:
            await progress(world, heard)
            await world.until_true(lambda: is_searched(nodes[-1], pending), "in search")
            if owner == "replaced owner":
                nodes.append(await second.enter_async_context(world.running()))
            lose(world, topic, how)
            if owner == "replaced owner":
                await first.aclose()
            if topic == "parked" and how == "cut off":
                return  # nothing was parked: nothing is lost, and nobody can know
            refusal = await world.refused(nodes[-1], "--accept-identity")
            assert refusal.code is RefusalCode.UNAVAILABLE
            losses = await world.give_up()
            await progress(world, heard)
        told = {u.transaction_id for loss in losses for u in loss.unproven}
        assert (pending.transaction_id in told) is (topic != "parked")
        for value, transaction_id in [(b"pending", pending.transaction_id), *heard.ids.items()]:
            if value not in heard.committed:
                answer = await world.end(nodes[-1], pending_of(transaction_id))
                is_given_up = isinstance(answer, Refused) and answer.code is RefusalCode.GIVEN_UP
                assert is_given_up or isinstance(answer, TransactionView), (value, answer)
                assert not is_given_up or transaction_id in told or answer.state is None, "nobody knew it"
        await world.memory.clock.sleep_ms(10_000)
        assert await world.database.read(read_halts) == {}
    check_visible(world, heard)


def pending_of(transaction_id: str) -> Prepared:
    return Prepared(transaction_id, "", TransactionState.PREPARED, 0, 0, 0, 0)


async def is_searched(node: Node, made: Prepared) -> bool:
    return await state_of(node, made) is not None


def lose(world: LostLogWorld, topic: str, how: str) -> None:
    name = name_of(world, topic)
    if how == "deleted":
        world.lose(name)
    elif how == "recreated":
        world.recreate(name)
    else:
        partition = world.memory.cluster.log.topics[name].partitions[0]
        world.truncate(name, max(partition.minimum, partition.maximum - 12))


async def park(world: LostLogWorld, node: Node, value: bytes) -> Prepared:
    made = await world.prepare(node, value, message_key=value, max_lifetime_s=20, immunity_s=0)
    await world.until_true(lambda: is_parked(node, made), "parked", 240_000)
    return made


@pytest.mark.parametrize("how", ["recreated", "cut off"])
@pytest.mark.parametrize("is_in_journal", [True, False], ids=["journal has it", "journal has forgotten it"])
def test_parked_one_whose_copy_is_lost_is_published_from_the_journal_or_never_as_another(
    tmp_path: Path, how: str, *, is_in_journal: bool
) -> None:
    """A copy at the same offset is somebody else's: what no log has is refused for good, never guessed (I, P)."""
    world = make_lost_log_world(tmp_path)

    async def story() -> None:
        async with world.running() as node:
            old = await park(world, node, b"old")
            if how == "recreated":
                world.recreate(world.topics.parked)
                await world.refused(node, "--accept-identity")
                (loss,) = await world.give_up()
                assert [u.transaction_id for u in loss.unproven] == [old.transaction_id]
            else:
                world.truncate(world.topics.parked, 0)
        async with world.running() as node:
            other = await park(world, node, b"other")
            if not is_in_journal:
                journal = world.memory.cluster.log.topics[world.topics.half].partitions[0]
                journal.records = [r for r in journal.records if r.stored.queue_offset != old.queue_offset]
        async with world.running() as node:
            answer = await world.end(node, old)
            assert (answer.state is TransactionState.COMMITTED) if is_in_journal else is_expired(answer), answer
            assert (await world.end(node, other)).state is TransactionState.COMMITTED

    world.run(story())
    assert world.memory.visible("orders").count(b"other") == 1
    assert world.memory.visible("orders").count(b"old") == int(is_in_journal)


def is_expired(answer: object) -> bool:
    return isinstance(answer, Refused) and answer.code is RefusalCode.BODY_EXPIRED


@pytest.mark.parametrize("owner", OWNERS)
@in_world(make_lost_log_world)
async def test_op_topic_cut_off_under_its_owner_halts_at_the_next_batch(world: LostLogWorld, owner: str) -> None:
    """What it said of the last transactions is gone: a successor would take what is published for pending (D)."""
    async with world.running(is_settling=False) as api:
        async with world.running() as node:
            done = await world.prepare(node, b"done")
            assert (await world.end(node, done)).state is TransactionState.COMMITTED
            await world.until_true(lambda: is_searched(node, done), "in search")
            op = world.memory.cluster.log.topics[world.topics.op].partitions[0]
            first = min(r.stored.queue_offset for r in op.records if r.stored.key == done.transaction_id.encode())
            if owner == "same owner":
                world.truncate(world.topics.op, first)
                await world.prepare(node, b"next")
                await world.until_true(lambda: is_halted(world), "halted")
        if owner == "replaced owner":
            world.truncate(world.topics.op, first)
        async with world.running() as node:
            await world.until_true(lambda: is_halted(world), "halted")
            assert "--accept-identity" in (await world.refused(api, "--accept-identity")).detail
            await world.give_up()
            await world.until_true(lambda: is_open(world, node), "open again")
            again = await world.end(node, done)
            assert again.state is TransactionState.COMMITTED
            assert node.seal_watch.forged == 0  # what `migrate` wrote first, before there was a key, is its own
    assert world.memory.visible("orders").count(b"done") == 1


async def is_halted(world: LostLogWorld) -> bool:
    return 0 in await world.database.read(read_halts)


async def is_open(world: LostLogWorld, node: Node) -> bool:
    return isinstance(await world.prepare(node, b"open"), Prepared)


@pytest.mark.parametrize("topic", ["half", "op"])
@in_world(make_lost_log_world)
async def test_internal_topic_that_has_grown_is_refused_and_loses_nothing(world: LostLogWorld, topic: str) -> None:
    """Nobody would own the new queues: with the next look all is refused as not applied; what was there stays (53)."""
    async with world.running() as node:
        before = await world.prepare(node, b"before", immunity_s=3_600)
        world.memory.cluster.log.add_queues(name_of(world, topic), 3)
        assert (await world.end(node, before)).state is TransactionState.COMMITTED
        await world.memory.clock.sleep_ms(4_000)
        assert "3 queues, 1 are configured" in (await world.refused(node, "queues")).detail
    assert world.memory.visible("orders") == [b"before"]


@pytest.mark.parametrize("is_busy", [False, True])
def test_op_records_deleted_under_their_owner_are_written_again(tmp_path: Path, *, is_busy: bool) -> None:
    """Told while a successor would halt; after minutes it goes on with everything that was not over (S, T)."""
    world = make_lost_log_world(tmp_path)
    sleep_ms = world.memory.clock.sleep_ms

    async def story() -> None:
        async with world.running() as node:
            assert node.settler is not None
            status = node.settler.status
            done, parked = await world.prepare(node, b"done"), await world.prepare(node, b"parked", max_lifetime_s=1)
            assert (await world.end(node, done)).state is TransactionState.COMMITTED
            carried = await world.prepare(node, b"carried", **LONG)
            await sleep_ms(400_000)
            young = await world.prepare(node, b"young", **LONG)
            await sleep_ms(20_000)
            op = world.memory.cluster.log.topics[world.topics.op].partitions[0]
            op.drop_below(op.maximum)
            async with AsyncExitStack() as stack:
                if is_busy:
                    await stack.enter_async_context(load(world, [node]))
                await world.until(lambda: status[0].is_cut, "told")
                await world.until(lambda: not status[0].is_cut, "written again", 400_000)
        async with world.running() as node:
            for made in (parked, carried, young):
                assert (await world.end(node, made)).state is TransactionState.COMMITTED
            assert (await world.end(node, done)).state is TransactionState.COMMITTED

    world.run(story())
    visible = world.memory.visible("orders")
    assert [visible.count(value) for value in (b"done", b"parked", b"carried", b"young")] == [1, 1, 1, 1]


@in_world(make_lost_log_world)
async def test_what_had_ended_before_its_op_records_were_deleted_is_not_pending_again(world: LostLogWorld) -> None:
    """A rebuild finds half messages alone: they are no longer counted, and answered with what was known last (A, C)."""
    async with world.running() as node:
        assert node.settler is not None
        status = node.settler.status
        done = await world.prepare(node, b"done", idempotency_key="done", is_published=True)
        undone = await world.prepare(node, b"undone")
        assert (await world.end(node, undone, Resolution.ROLLBACK)).state is TransactionState.ROLLED_BACK
        carried = await world.prepare(node, b"carried", **LONG)
        await world.memory.clock.sleep_ms(400_000)
        young = await world.prepare(node, b"young", **LONG)
        await world.until_true(lambda: is_searched(node, done), "in search")
        op = world.memory.cluster.log.topics[world.topics.op].partitions[0]
        op.drop_below(op.maximum)
        await world.until(lambda: status[0].is_cut, "told")
        with pytest.raises(QueueHalted, match=r"the op topic of queue 0 begins at .* nothing was changed"):
            await world.rebuild()
        await world.until(lambda: not status[0].is_cut, "written again", 400_000)
        verdict = await world.rebuild()
        assert (verdict.unproven, verdict.orphan_count) == (2, 0)
        assert (verdict.total.prepared, verdict.total.pending) == (2, 2)
    async with world.running() as node:
        for made, state in ((done, TransactionState.COMMITTED), (undone, TransactionState.ROLLED_BACK)):
            view = await node.transactions.get(made.transaction_id)
            assert isinstance(view, TransactionView)
            assert (view.is_unproven, view.state) == (False, state)
        again = await world.prepare(node, b"done", idempotency_key="done", is_published=True)
        assert again.state is TransactionState.COMMITTED
        assert (await world.end(node, undone, Resolution.ROLLBACK)).state is TransactionState.ROLLED_BACK
        for made in (carried, young):
            assert (await world.end(node, made)).state is TransactionState.COMMITTED
    assert sorted(world.memory.visible("orders")) == [b"carried", b"done", b"young"]

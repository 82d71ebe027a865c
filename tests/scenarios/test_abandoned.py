"""Blocked commits that an operator gives up: whatever else happens at that moment, once, shown, and for good."""

import asyncio
from typing import Any

import pytest

from bridge.core.message import Message
from bridge.core.op_message import make_view
from bridge.core.record import Act, ActRecord, Resolution
from bridge.core.transaction import BODY_EXPIRED, ORDER, TransactionState, TransactionView
from bridge.node import Node
from bridge.service.contract import EndCall, Prepared, RefusalCode, Refused
from bridge.service.operate import Who
from bridge.sql.access import read_audit
from bridge.sql.search import read_stats
from bridge.store.memory.link import PASSES, Fate, NoFaults, Step
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.settler_world import SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world
from tests.support.whole_service import projecting

WHO = Who("ada", "because")
CHAIN = ("t1", "t2", "t3")


async def block_chain(world: SettlerWorld) -> None:
    """Three commits of one ordering key; the first goes to credits, which refuses it."""
    for name, topic in zip(CHAIN, ("credits", "orders", "orders"), strict=True):
        await world.prepare(name, Message(topic, b"k", name.encode()), ordering_key="o")
    await world.settled()
    world.memory.cluster.log.topics["credits"].is_denied = True
    for name in CHAIN:
        await world.commit(name)
    await world.settled()
    await world.memory.clock.sleep_ms(4_000)
    assert [world.op_of(name).transaction.blocked for name in CHAIN] == [True] * 3


async def abandon(world: SettlerWorld, name: str = "t1", request: str | None = None) -> None:
    await world.act(ActRecord(world.id_of(name), Act.ABANDON, "ada", "because", 0, request))


@in_world(make_settler_world)
async def test_abandoned_one_frees_its_ordering_key_and_is_never_published(world: SettlerWorld) -> None:
    """The next in order go on at once; the topic that comes back later gets nothing, nor does a successor try (O)."""
    async with world.settling("first"):
        await block_chain(world)
        assert world.op_of("t2").transaction.reason == ORDER
        await abandon(world)
        await world.settled()
        await world.memory.clock.sleep_ms(1_000)
        t = world.op_of("t1").transaction
        assert (t.state, t.blocked, t.abandoned) == (TransactionState.COMMITTED, False, True)
        assert world.memory.visible("orders") == [b"t2", b"t3"]
        assert world.settlers["first"].status[0].blocked == 0
        assert world.settlers["first"].status[0].counts.abandoned == 1
        world.memory.cluster.log.topics["credits"].is_denied = False
        await world.memory.clock.sleep_ms(120_000)
    async with world.settling("second"):
        await world.memory.clock.sleep_ms(120_000)
    assert world.memory.visible("credits") == []
    assert world.memory.visible("orders") == [b"t2", b"t3"]


@in_world(make_settler_world)
async def test_one_in_the_middle_is_given_up_alone(world: SettlerWorld) -> None:
    """Whoever is before it stays blocked, and whoever is behind it stays behind that one."""
    async with world.settling():
        await block_chain(world)
        await abandon(world, "t2")
        await world.memory.clock.sleep_ms(20_000)
        assert [world.op_of(name).transaction.blocked for name in CHAIN] == [True, False, True]
        assert world.memory.visible("orders") == []
        world.memory.cluster.log.topics["credits"].is_denied = False
        await world.memory.clock.sleep_ms(90_000)
    assert (world.memory.visible("credits"), world.memory.visible("orders")) == ([b"t1"], [b"t3"])


class ActsAtAStep(NoFaults):
    """When "first" has come to its request number `point`, the operator's act is in the journal.

    An odd point stands for the answer to a request, which has been carried out by then. `is_killed`: and it is dead.
    """

    def __init__(self, point: int, *, is_killed: bool) -> None:
        self.world: SettlerWorld | None = None  # from then on it counts
        self.stopped = asyncio.Event()
        self._left = point
        self._is_killed = is_killed

    async def before(self, step: Step) -> Fate:
        await self._pass(step)
        return PASSES

    async def after(self, step: Step) -> None:
        await self._pass(step)

    async def _pass(self, step: Step) -> None:
        if step.client != "first" or self.world is None:
            return
        self._left -= 1
        if self._left == -1:
            await abandon(self.world)
            self.stopped.set()
            if self._is_killed:
                await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("point", range(36))
def test_act_at_any_moment_of_a_try_publishes_or_abandons(point: int, is_killed: bool) -> None:
    """The topic is back, and the owner tries again, when the act comes, and may die of it: one of the two, for good;
    the others follow in their order (L, P, D, F, O)."""
    faults = ActsAtAStep(point, is_killed=is_killed)
    world = make_settler_world(faults=faults)

    async def story() -> None:
        first = world.memory.start_process("first")
        running = asyncio.create_task(world.make_settler(first, "first").run_forever())
        await block_chain(world)
        world.memory.cluster.log.topics["credits"].is_denied = False
        faults.world = world
        await faults.stopped.wait()
        if not is_killed:
            await world.memory.clock.sleep_ms(10_000)
        first.kill()
        running.cancel()
        async with world.settling("second"):
            await world.memory.clock.sleep_ms(90_000)

    world.run(story())
    t = world.op_of("t1").transaction
    assert (t.state, t.blocked) == (TransactionState.COMMITTED, False)
    assert world.memory.visible("credits") == ([] if t.abandoned else [b"t1"])
    assert bool(world.op_of("t1").receipts) != t.abandoned
    assert world.memory.visible("orders") == [b"t2", b"t3"]


@in_world(make_settler_world)
async def test_commit_whose_body_no_log_has_can_be_given_up(world: SettlerWorld) -> None:
    """It has a reason, nothing of it is needed for that, and its ordering key goes on."""
    async with world.settling("first"):
        await block_chain(world)
    journal = world.memory.cluster.log.topics[world.topics.half].partitions[0]
    journal.drop_below(world.op_of("t1").transaction.half + 1)
    world.memory.cluster.log.topics["credits"].is_denied = False
    async with world.settling("second"):
        await world.memory.clock.sleep_ms(2_000)
        assert world.op_of("t1").transaction.reason == BODY_EXPIRED
        await abandon(world)
        await world.memory.clock.sleep_ms(5_000)
        t = world.op_of("t1").transaction
        assert (t.abandoned, t.reason) == (True, BODY_EXPIRED)
    assert world.memory.visible("orders") == [b"t2", b"t3"]


async def read_entries(world: ServiceWorld) -> list[tuple[str, str, str, str | None]]:
    entries, _ = await world.database.read(lambda connection: read_audit(connection, 100))
    return [(e.what, e.actor, e.target, e.reason) for e in reversed(entries)]


async def prepare(world: ServiceWorld, api: Node, **members: Any) -> str:
    [answer] = await api.transactions.prepare([world.call(**members)])
    assert isinstance(answer, Prepared)
    return answer.transaction_id


async def block(world: ServiceWorld, api: Node, **members: Any) -> str:
    """A commit to a topic that is gone by then."""
    transaction_id = await prepare(world, api, topic="credits", **members)
    world.settlers.memory.cluster.log.topics.pop("credits", None)
    [answer] = await api.transactions.end([EndCall(transaction_id, Resolution.COMMIT)])
    assert isinstance(answer, TransactionView)
    assert (answer.blocked, answer.reason) == (True, "UNKNOWN_TOPIC")
    return transaction_id


@in_world(make_service_world)
async def test_abandoned_commit_is_shown_as_such_everywhere(world: ServiceWorld) -> None:
    """COMMITTED for ever: a repeated commit hears it, a rollback is refused, and all of it is audited (F, A)."""
    async with world.serving() as api, world.settlers.settling(), projecting(world):
        transaction_id = await block(world, api)
        view = await api.transactions.act(transaction_id, Act.ABANDON, WHO)
        assert isinstance(view, TransactionView)
        shown = (TransactionState.COMMITTED, False, True, "UNKNOWN_TOPIC", "producer", ())
        looked = await api.transactions.get(transaction_id)
        [again] = await api.transactions.end([EndCall(transaction_id, Resolution.COMMIT)])
        for seen in (view, looked, again):
            assert isinstance(seen, TransactionView)
            assert (seen.state, seen.blocked, seen.abandoned, seen.reason, seen.by, seen.receipts) == shown
        [refused] = await api.transactions.end([EndCall(transaction_id, Resolution.ROLLBACK)])
        assert isinstance(refused, Refused)
        assert (refused.code, refused.state) == (RefusalCode.ALREADY_RESOLVED, TransactionState.COMMITTED)
        assert await read_entries(world) == [
            ("transaction.abandon", "ada", transaction_id, "because"),
            ("transaction.abandon.answered", "ada", transaction_id, "because"),
        ]
        events = await api.transactions.timeline(transaction_id)
        assert isinstance(events, list)
        assert {e.type for e in events} == {"prepared", "end", "blocked", "abandoned"}
        [given_up] = [e for e in events if e.type == "abandoned"]
        assert given_up.members == {"actor": "ada", "reason": "because", "effective": True}
        stats = await world.database.read(lambda connection: read_stats(connection, 0))
        assert (stats.total.committed, stats.total.blocked, stats.total.abandoned) == (1, 0, 1)
        assert stats.groups[view.group].abandoned == 1


@in_world(make_service_world)
async def test_only_a_blocked_commit_can_be_abandoned(world: ServiceWorld) -> None:
    """Anything else is 409, also the second time; without a reason nothing is done and nothing audited."""
    async with world.serving() as api, world.settlers.settling(), projecting(world):
        transaction_id = await prepare(world, api)
        for state in (TransactionState.PREPARED, TransactionState.COMMITTED):
            refused = await api.transactions.act(transaction_id, Act.ABANDON, WHO)
            assert isinstance(refused, Refused)
            assert (refused.code, refused.state) == (RefusalCode.NOT_BLOCKED, state)
            await api.transactions.end([EndCall(transaction_id, Resolution.COMMIT)])
        transaction_id = await block(world, api)
        refused = await api.transactions.act(transaction_id, Act.ABANDON, Who("ada", " "))
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.INVALID_REQUEST
        assert await read_entries(world) == []
        assert isinstance(await api.transactions.act(transaction_id, Act.ABANDON, WHO), TransactionView)
        refused = await api.transactions.act(transaction_id, Act.ABANDON, WHO)
        assert isinstance(refused, Refused)
        assert (refused.code, "abandoned already" in refused.detail) == (RefusalCode.NOT_BLOCKED, True)


@in_world(make_service_world)
async def test_two_operators_abandon_once(world: ServiceWorld) -> None:
    """One of them does it; the other hears that it is done."""
    async with world.serving() as api, world.settlers.settling(), projecting(world):
        transaction_id = await block(world, api)
        await api.transactions.get(transaction_id)
        acts = [api.transactions.act(transaction_id, Act.ABANDON, WHO) for _ in range(2)]
        answers = await asyncio.gather(*acts)
        assert sorted(type(answer).__name__ for answer in answers) == ["Refused", "TransactionView"]


@in_world(make_service_world)
async def test_act_is_not_answered_by_the_state_before_it(world: ServiceWorld) -> None:
    """A try that fails writes COMMITTED and blocked meanwhile: that is no answer to whoever gives the commit up (A)."""
    async with world.serving() as api, projecting(world):
        async with world.settlers.settling():
            transaction_id = await block(world, api)
            await api.transactions.get(transaction_id)
        acting = asyncio.ensure_future(api.transactions.act(transaction_id, Act.ABANDON, WHO))
        while not api.waiters.by_id:
            await world.sleep(10)
        blocked = world.settlers.read_op().last[transaction_id]
        assert blocked.transaction.blocked
        api.waiters.hear_state(make_view(blocked), blocked.transaction.requests)
        async with world.settlers.settling("next"):
            view = await acting
        assert isinstance(view, TransactionView)
        assert (view.blocked, view.abandoned) == (False, True)


@in_world(make_settler_world)
async def test_topic_is_taken_as_it_is_once_nothing_is_blocked_any_more(world: SettlerWorld) -> None:
    """Its failures are those of the abandoned one: a commit that comes later is not told of them, nor waits (A, T)."""
    async with world.settling():
        await world.prepare("t1", Message("credits", b"k", b"t1"))
        await world.settled()
        world.memory.cluster.log.delete_topic("credits")
        await world.commit("t1")
        await world.memory.clock.sleep_ms(300_000)
        await abandon(world)
        await world.settled()
        world.memory.cluster.log.create_topic("credits", 1)
        await world.prepare("t2", Message("credits", b"k", b"t2"))
        await world.memory.clock.sleep_ms(10_000)
        await world.commit("t2")
        await world.memory.clock.sleep_ms(1_000)
    assert world.memory.visible("credits") == [b"t2"]
    told = [op.transaction for op in world.read_op().every if op.transaction.transaction_id == world.id_of("t2")]
    assert [(t.state, t.blocked) for t in told] == [(TransactionState.COMMITTED, False)]

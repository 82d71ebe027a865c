"""Keyed prepares: the same group, key and content are one transaction (design section 4, "Repeats")."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bridge.core.grants import EVERYTHING, Grant, Rights, Verb
from bridge.core.message import Message
from bridge.core.record import EndRecord, HalfMessage, Resolution, Source
from bridge.core.transaction import TransactionState, TransactionView, queue_of
from bridge.node import Node
from bridge.service.admission import KeyClaim, RecentKeys
from bridge.service.contract import EndCall, Outcome, PrepareCall, Prepared, RefusalCode, Refused
from bridge.service.operate import Who
from bridge.store.memory.link import Fate, StepKind
from tests.support.memory_faults import ScriptedFaults
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import VirtualClock, in_world


async def prepare(world: ServiceWorld, api: Node, value: bytes = b"v", key: str = "key", wait_ms: int = 5_000) -> Any:
    return (await api.transactions.prepare([world.call(value, idempotency_key=key)], wait_ms))[0]


async def halves(world: ServiceWorld) -> list[HalfMessage]:
    return [record for record in await world.journal() if isinstance(record, HalfMessage)]


@in_world(make_service_world)
async def test_repeat_is_the_same_transaction(world: ServiceWorld) -> None:
    """At once, later, at another process: one id, PREPARED."""
    async with world.serving() as api, world.serving("other") as other, world.settlers.settling(), world.projecting():
        answers = await asyncio.gather(*[prepare(world, process) for process in (api, api, other, other)])
        answers.append(await prepare(world, other))
        await world.sleep(500)
        answers.append(await prepare(world, api))
        assert {type(answer) for answer in answers} == {Prepared}
        assert len(set(answers)) == 1, "offset and times are those of the first"
        assert answers[0].state is TransactionState.PREPARED


@in_world(make_service_world)
async def test_repeat_of_an_ended_one_hears_its_end(world: ServiceWorld) -> None:
    """201 only for PREPARED: the local transaction must not run again. Known from settler, then from projection."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        first = await prepare(world, api)
        [ended] = await api.transactions.end([EndCall(first.transaction_id, Resolution.COMMIT)])
        assert isinstance(ended, TransactionView)
        for pause_ms in (0, 200, 200_000):
            await world.sleep(pause_ms)
            again = await prepare(world, api)
            assert isinstance(again, TransactionView)
            assert (again.state, again.transaction_id) == (TransactionState.COMMITTED, first.transaction_id)
            assert list(again.receipts) == list(ended.receipts)
        assert world.settlers.memory.visible("orders") == [b"v"]


@in_world(make_service_world)
async def test_known_and_pending_one_is_only_asked_about(world: ServiceWorld) -> None:
    """Where the projection knows it, its owner is asked for the state as it is; no second half message is written."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        first = await prepare(world, api)
        await world.sleep(70_000)
        before = len(await halves(world))
        assert await prepare(world, api) == first
        assert len(await halves(world)) == before
        assert isinstance((await world.journal())[-1], EndRecord)


@in_world(make_service_world)
async def test_published_one_is_not_called_blocked_again(world: ServiceWorld) -> None:
    """A projection that lags still has it blocked; who heard that it is published hears nothing older."""
    log = world.settlers.memory.cluster.log
    async with world.serving() as api, world.settlers.settling():
        async with world.projecting():
            first = await prepare(world, api)
            log.delete_topic("orders")
            commit = EndCall(first.transaction_id, Resolution.COMMIT)
            [blocked] = await api.transactions.end([commit])
            assert blocked.blocked
            await world.sleep(500)
        log.create_topic("orders", 1)
        await world.sleep(20_000)
        [published] = await api.transactions.end([commit])
        again = await prepare(world, api)
        assert (published.blocked, again.blocked) == (False, False)
        assert list(again.receipts) == list(published.receipts)


def lose_topic(world: ServiceWorld) -> None:
    world.settlers.memory.cluster.log.delete_topic("orders")


def deny_topic(world: ServiceWorld) -> None:
    world.settlers.memory.cluster.log.topics["orders"].is_denied = True


def take_small_messages(world: ServiceWorld) -> None:
    world.settlers.memory.cluster.log.topics["orders"].alter({"max.message.bytes": "10"})


def ask_for_keys(world: ServiceWorld) -> None:
    world.settlers.memory.cluster.log.topics["orders"].alter({"cleanup.policy": "compact"})


def take_young_timestamps(world: ServiceWorld) -> None:
    world.settlers.memory.cluster.log.topics["orders"].alter({"message.timestamp.before.max.ms": "60000"})


@pytest.mark.parametrize(
    "change",
    [lose_topic, deny_topic, take_small_messages, ask_for_keys, take_young_timestamps],
    ids=lambda c: c.__name__,
)
@in_world(make_service_world)
async def test_repeat_is_answered_as_ever_whatever_its_topic_takes_now(
    world: ServiceWorld, change: Callable[[ServiceWorld], None]
) -> None:
    """A: "not applied" of what is published would have it published again, under another key. What is new is refused
    as ever, and so is a repeat by somebody who may not."""
    clock = world.settlers.memory.clock
    old = Message("orders", None, b"v", timestamp_ms=clock.now_ms())
    async with world.serving() as api, world.settlers.settling(), world.projecting():

        async def publish(key: str, rights: Rights = EVERYTHING) -> object:
            call = PrepareCall("shop", [old], idempotency_key=key, is_published=True)
            return (await api.transactions.prepare([call], rights=rights))[0]

        first = await publish("key")
        assert isinstance(first, TransactionView)
        assert isinstance(await prepare(world, api, key="pending"), Prepared)
        change(world)
        await world.sleep(70_000)
        again = await publish("key")
        assert isinstance(again, TransactionView)
        assert (again.transaction_id, again.state) == (first.transaction_id, TransactionState.COMMITTED)
        pending = await prepare(world, api, key="pending")
        assert isinstance(pending, Prepared)
        fresh, other = await publish("new"), await publish("key", Rights((Grant(Verb.PREPARE, "shop", "bills"),)))
        assert isinstance(fresh, Refused)
        assert fresh.outcome is Outcome.NOT_APPLIED
        assert isinstance(other, Refused)
        assert other.code is RefusalCode.FORBIDDEN


@in_world(make_service_world)
async def test_repeat_of_a_group_that_is_gone_is_answered_as_ever(world: ServiceWorld) -> None:
    """It has nothing pending, so it could be deleted; what it published stays known."""
    async with world.settlers.settling(), world.projecting():
        async with world.serving() as api:
            published = await api.transactions.prepare([world.call(idempotency_key="key", is_published=True)])
            await world.sleep(500)
            assert await api.groups.delete("shop", Who("ann", "")) is None
        async with world.serving("other", auto_create_groups=False) as other:
            calls = [world.call(idempotency_key=key, is_published=True) for key in ("key", "new")]
            again, fresh = await other.transactions.prepare(calls)
            assert isinstance(again, TransactionView)
            assert [again.transaction_id] == [one.transaction_id for one in published]
            assert isinstance(fresh, Refused)
            assert fresh.code is RefusalCode.UNKNOWN_PRODUCER_GROUP


@in_world(make_service_world)
async def test_other_content_is_refused(world: ServiceWorld) -> None:
    """The same key with other content: known at once in this process, elsewhere from the projection."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        await prepare(world, api)
        other_kind = await api.transactions.prepare([world.call(idempotency_key="key", is_published=True)])
        await world.sleep(1_000)
        async with world.serving("other") as other:
            for refused in (await prepare(world, api, b"w"), await prepare(world, other, b"w"), *other_kind):
                assert isinstance(refused, Refused)
                assert refused.code is RefusalCode.IDEMPOTENCY_KEY_REUSED
                assert refused.outcome is Outcome.NOT_APPLIED
            other_group = await other.transactions.prepare([world.call(b"w", group="b", idempotency_key="key")])
            assert isinstance(other_group[0], Prepared)


@in_world(make_service_world)
async def test_refused_one_does_not_hold_its_key(world: ServiceWorld) -> None:
    """A key whose half message was certainly not written can be used with other content."""
    half = world.settlers.memory.cluster.log.topics[world.topics.half]
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        half.is_denied = True
        refused = await prepare(world, api)
        assert isinstance(refused, Refused)
        assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)
        half.is_denied = False
        assert isinstance(await prepare(world, api, b"w"), Prepared)


@in_world(make_service_world)
async def test_refused_one_that_could_not_be_heard_does_not_hold_its_key(world: ServiceWorld) -> None:
    """Whatever it is refused for: here there is no room to wait for the settlers' answer."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        full = api.waiters.open([f"{n:028}" for n in range(200_000)])
        refused = await prepare(world, api)
        assert isinstance(refused, Refused)
        assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)
        full.close()
        assert isinstance(await prepare(world, api, b"w"), Prepared)
        assert len({half.transaction_id for half in await halves(world)}) == 1


@in_world(make_service_world)
async def test_refused_repeat_leaves_the_key_to_the_first(world: ServiceWorld) -> None:
    """It is not the repeat's to give back: the first one is stored, and SQL does not know it yet."""
    half = world.settlers.memory.cluster.log.topics[world.topics.half]
    async with world.serving() as api, world.settlers.settling():
        await world.project()
        assert isinstance(await prepare(world, api), Prepared)
        half.is_denied = True
        assert isinstance(await prepare(world, api), Refused)
        half.is_denied = False
        other = await prepare(world, api, b"w")
        assert isinstance(other, Refused)
        assert other.code is RefusalCode.IDEMPOTENCY_KEY_REUSED


@in_world(make_service_world, faults=ScriptedFaults)
async def test_unknown_one_holds_its_key_for_minutes_only(world: ServiceWorld, faults: ScriptedFaults) -> None:
    """Until the projection knows whether it was stored; not until the process ends."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        await api.transactions.prepare([world.call()])
        faults.give(StepKind.PUT, Fate(request_ms=None), client="api")
        first = await prepare(world, api)
        assert isinstance(first, Refused)
        assert first.outcome is Outcome.UNKNOWN
        soon = await prepare(world, api, b"w")
        assert isinstance(soon, Refused)
        assert soon.code is RefusalCode.IDEMPOTENCY_KEY_REUSED
        await world.sleep(181_000)
        assert isinstance(await prepare(world, api, b"w"), Prepared)


@in_world(make_service_world)
async def test_first_try_fetches_the_time(world: ServiceWorld) -> None:
    """Without a known time SEEN is 0, the half message void for everybody, and the second one counts."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        now_ms = world.settlers.memory.clock.now_ms()
        prepared = await prepare(world, api)
        assert isinstance(prepared, Prepared)
        assert [half.seen_ms for half in await halves(world)] == [0, now_ms]
        assert prepared.queue_offset == 1


@in_world(make_service_world, faults=ScriptedFaults)
async def test_void_twice_is_unknown(world: ServiceWorld, faults: ScriptedFaults) -> None:
    """Frozen for longer than 30 s between look-up and append, twice: 503 unknown, and nothing is pending."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        await api.transactions.prepare([world.call()])
        for _ in range(2):
            faults.give(StepKind.PUT, Fate(request_ms=4_000), client="api")
        # every record of this process arrives when the brokers' clock has gone on by a minute
        world.settlers.memory.clock.shift_wall_clock(60_000)
        task = asyncio.create_task(prepare(world, api, wait_ms=9_000))
        await world.sleep(6_000)
        world.settlers.memory.clock.shift_wall_clock(60_000)
        refused = await task
        assert isinstance(refused, Refused)
        assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.UNKNOWN)
        assert refused.retry_after_s == 1
        keyed = [half for half in await halves(world) if half.idempotency_key]
        assert {half.transaction_id for half in keyed} == {refused.transaction_id}
        assert len(keyed) == 2
        assert len(api.waiters) == 0
        assert refused.transaction_id not in world.settlers.read_op().last


@in_world(make_service_world)
async def test_projection_behind_is_not_applied(world: ServiceWorld) -> None:
    """A projection that has not applied the queue's end of a minute ago cannot tell: 503, nothing appended."""
    async with world.serving() as api, world.settlers.settling():
        await api.transactions.prepare([world.call()])
        before = world.settlers.memory.clock.monotonic_ms()
        refused = await prepare(world, api)
        assert isinstance(refused, Refused)
        assert (refused.code, refused.outcome) == (RefusalCode.PROJECTION_BEHIND, Outcome.NOT_APPLIED)
        assert world.settlers.memory.clock.monotonic_ms() - before == 2_000
        assert len(await halves(world)) == 1


@in_world(make_service_world)
async def test_note_of_the_end_serves_for_a_minute(world: ServiceWorld) -> None:
    """A projection that has fallen behind only lately does not stop keyed prepares; after a minute it does."""
    async with world.serving() as api, world.settlers.settling():
        async with world.projecting():
            assert isinstance(await prepare(world, api, key="1"), Prepared)
        await world.sleep(59_000)
        assert isinstance(await prepare(world, api, key="2"), Prepared)
        await world.sleep(2_000)
        refused = await prepare(world, api, key="3")
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.PROJECTION_BEHIND
        async with world.projecting():
            assert isinstance(await prepare(world, api, key="3"), Prepared)


@in_world(make_service_world, faults=ScriptedFaults)
async def test_note_is_renewed_beside_the_calls(world: ServiceWorld, faults: ScriptedFaults) -> None:
    """A call of half a minute ago has seen to it: a log that says nothing now does not stop this one."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        for key in "12":
            assert isinstance(await prepare(world, api, key=key), Prepared)
            await world.sleep(40_000)
        for _ in range(3):
            faults.give(StepKind.GET, Fate(answer_ms=None), client="api")
        assert isinstance(await prepare(world, api, key="3"), Prepared)


@in_world(make_service_world, queues=4)
async def test_notes_of_one_queue_serve_beside_those_of_others(world: ServiceWorld) -> None:
    """Which queues a list of calls is spread over makes no difference to the next one."""

    async def prepare_each(api: Node, key: str) -> list[Prepared]:
        """One after the other, of all queues."""
        made = []
        for n in range(16):
            call = world.call(message_key=b"%d" % n, idempotency_key=f"{key}-{n}")
            made += [a for a in await api.transactions.prepare([call]) if isinstance(a, Prepared)]
        return made

    async with world.serving() as api, world.settlers.settling():
        async with world.projecting():
            first = await prepare_each(api, "1")
            assert {queue_of(prepared.transaction_id) for prepared in first} == {0, 1, 2, 3}
        await world.sleep(50_000)
        for key in ("2", "3"):  # the newest notes are beyond what the projection has; those before still serve
            assert len(await prepare_each(api, key)) == 16


async def test_key_is_held_until_the_projection_knows_it() -> None:
    """Three minutes, from its last use: by then a reuse with other content is found in SQL; few are kept at once."""
    clock = VirtualClock()
    keys, key = RecentKeys(clock, max_keys=2), ("shop", "k")
    await clock.advance(1_000_000)
    assert [keys.claim(key, name) for name in "aab"] == [KeyClaim.MADE, KeyClaim.HELD, KeyClaim.TAKEN]
    await clock.advance(180_000)
    assert keys.claim(key, "b") is KeyClaim.TAKEN
    assert keys.claim(key, "a") is KeyClaim.HELD
    await clock.advance(180_001)
    assert keys.claim(key, "b") is KeyClaim.MADE
    keys.forget(key)
    assert keys.claim(key, "c") is KeyClaim.MADE
    assert [keys.claim(("shop", other), other) for other in "xy"] == [KeyClaim.MADE] * 2
    assert keys.claim(key, "d") is KeyClaim.MADE, "the oldest was left out"


@in_world(make_service_world)
async def test_repeat_of_one_that_was_asked_about_tells_its_first_check(world: ServiceWorld) -> None:
    """An answer of UNKNOWN has moved the next check, not the first."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        first = await prepare(world, api)
        await world.sleep(7_000)
        answer = EndCall(first.transaction_id, Resolution.UNKNOWN, source=Source.CHECK, check_number=1)
        [asked] = await api.transactions.end([answer])
        assert isinstance(asked, TransactionView)
        assert asked.check_times == 1
        assert await prepare(world, api) == first


@in_world(make_service_world)
async def test_rebuilt_projection_is_not_believed(world: ServiceWorld) -> None:
    """Positions are read with the rows: one that begins again at 0 has forgotten what it knew."""
    async with world.serving() as api, world.settlers.settling():
        async with world.projecting():
            assert isinstance(await prepare(world, api, key="1"), Prepared)
            assert isinstance(await prepare(world, api, key="2"), Prepared)
            await world.sleep(11_000)
            assert isinstance(await prepare(world, api, key="3"), Prepared)
            await world.sleep(55_000)
            assert isinstance(await prepare(world, api, key="4"), Prepared)
        world.put_position(0, 0)
        refused = await prepare(world, api, key="5")
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.PROJECTION_BEHIND


@in_world(make_service_world)
async def test_no_settler_is_unknown_with_the_id(world: ServiceWorld) -> None:
    """Appended, but nobody says that it counts: 504 with the id, no waiter left, and the repeat tells the truth."""
    async with world.serving() as api:
        first = await prepare(world, api, wait_ms=1_000)
        assert isinstance(first, Refused)
        assert (first.code, first.outcome) == (RefusalCode.OUTCOME_UNKNOWN, Outcome.UNKNOWN)
        assert len(api.waiters) == 0
        async with world.settlers.settling(), world.projecting():
            again = await prepare(world, api)
            assert isinstance(again, Prepared)
            assert again.transaction_id == first.transaction_id


@in_world(make_service_world, faults=ScriptedFaults)
async def test_cancelled_prepare_is_whole(world: ServiceWorld, faults: ScriptedFaults) -> None:
    """A caller who goes away while the record is on its way leaves it on its way, and no waiter."""
    async with world.serving() as api:
        faults.give(StepKind.PUT, Fate(request_ms=500), client="api")
        task = asyncio.create_task(api.transactions.prepare([world.call(is_published=True)]))
        await world.sleep(100)
        assert len(api.waiters) == 1
        task.cancel()
        await asyncio.wait([task])
        assert len(api.waiters) == 0
        await world.sleep(1_000)
        assert len(await world.journal()) == 1

"""First tries that say so: answered once they are stored, and never a second transaction, however late they arrive."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from bridge.core.message import Message
from bridge.core.record import HalfMessage, Resolution
from bridge.core.transaction import TransactionState, TransactionView
from bridge.node import Node
from bridge.service.contract import EndCall, Outcome, Prepared, RefusalCode, Refused
from bridge.service.journal import Give, Journal
from bridge.store.memory.link import Fate, StepKind
from bridge.store.message_store import PutResult
from tests.support.memory_faults import ScriptedFaults
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world

S = 1_000


async def prepare(world: ServiceWorld, api: Node, first_ms: int | None, key: str = "key", **options: Any) -> Any:
    call = world.call(options.pop("value", b"v"), idempotency_key=key, **options)
    return (await api.transactions.prepare([call], 5 * S, first_ms))[0]


async def learn_time(world: ServiceWorld, api: Node) -> int:
    """Kafka's time as the process tells it, which it knows from what it appends."""
    await api.transactions.prepare([world.call(b"other")])
    return api.transactions.kafka_time_ms()


def facts(view: Any) -> tuple[object, ...]:
    """What a repeat must show as the first answer did."""
    return type(view), view.transaction_id, view.state, list(view.receipts)


async def halves(world: ServiceWorld, key: str = "key") -> list[HalfMessage]:
    return [r for r in await world.journal() if isinstance(r, HalfMessage) and r.idempotency_key == key]


@in_world(make_service_world)
async def test_it_is_answered_once_it_is_stored(world: ServiceWorld) -> None:
    """Without settler and SQL: what nobody has sent before is new. The record says since when it cannot be."""
    async with world.serving() as api:
        first_ms = await learn_time(world, api)
        world.database.is_down = True
        await world.sleep(2 * S)
        prepared = await prepare(world, api, first_ms)
        assert isinstance(prepared, Prepared)
        assert prepared.state is TransactionState.PREPARED
        [half] = await halves(world)
        assert (half.transaction_id, half.seen_ms, half.request) == (prepared.transaction_id, first_ms, None)


@in_world(make_service_world)
async def test_its_repeat_is_the_same_transaction(world: ServiceWorld) -> None:
    """Which its caller has ended, or not."""
    async with world.serving() as api, world.serving("other") as other, world.settlers.settling(), world.projecting():
        first = await prepare(world, api, await learn_time(world, api))
        again = await prepare(world, other, None)
        assert (again.transaction_id, again.state) == (first.transaction_id, TransactionState.PREPARED)
        await api.transactions.end([EndCall(first.transaction_id, Resolution.COMMIT)])
        ended = await prepare(world, other, None)
        assert (ended.transaction_id, ended.state) == (first.transaction_id, TransactionState.COMMITTED)


@pytest.mark.parametrize("is_published", [False, True])
@pytest.mark.parametrize("late_ms", [0, 29 * S, 31 * S, 150 * S])
@in_world(make_service_world)
async def test_it_may_arrive_after_its_repeat(world: ServiceWorld, late_ms: int, is_published: bool) -> None:
    """Within its time the settler still knows what became of the repeat; later the record is void for everybody."""
    async with world.serving() as api, world.serving("late") as late, world.settlers.settling(), world.projecting():
        first_ms = await learn_time(world, api)
        await learn_time(world, late)
        again = await prepare(world, api, None, is_published=is_published)
        if not is_published:
            await api.transactions.end([EndCall(again.transaction_id, Resolution.COMMIT)])
        for _ in range(3):
            await world.sleep(late_ms // 3)
            await api.transactions.prepare([world.call(b"tick")])  # the journal's time goes on
        await prepare(world, late, first_ms, is_published=is_published)
        await world.sleep(S)
        view = await api.transactions.get(again.transaction_id)
        assert isinstance(view, TransactionView)
        assert view.state is TransactionState.COMMITTED
        assert world.settlers.memory.visible("orders").count(b"v") == 1


@pytest.mark.parametrize("late_ms", [31 * S, 150 * S])
@in_world(make_service_world)
async def test_late_one_is_told_the_truth(world: ServiceWorld, late_ms: int) -> None:
    """201 only for PREPARED: it is looked up like any other."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        first_ms = await learn_time(world, api)
        again = await prepare(world, api, None)
        [ended] = await api.transactions.end([EndCall(again.transaction_id, Resolution.COMMIT)])
        await world.sleep(late_ms)
        assert facts(await prepare(world, api, first_ms)) == facts(ended)


@in_world(make_service_world, faults=ScriptedFaults)
async def test_append_that_takes_too_long_is_looked_up(world: ServiceWorld, faults: ScriptedFaults) -> None:
    """Its record is void, and the answer is that of a repeat, which there was meanwhile."""
    async with world.serving() as api, world.serving("other") as other, world.settlers.settling(), world.projecting():
        await learn_time(world, api)
        first_ms = await learn_time(world, other) - 29_000  # on its way for so long already
        faults.give(StepKind.PUT, Fate(request_ms=2_000), client="other")
        late = asyncio.create_task(prepare(world, other, first_ms))
        await world.sleep(10)
        again = await prepare(world, api, None)
        [ended] = await api.transactions.end([EndCall(again.transaction_id, Resolution.COMMIT)])
        assert facts(await late) == facts(ended)
        first, second, *_ = await halves(world)
        assert (first.seen_ms > second.seen_ms, second.seen_ms) == (True, first_ms)
        assert world.settlers.memory.visible("orders").count(b"v") == 1


@in_world(make_service_world)
async def test_clock_that_is_ahead_gains_nothing(world: ServiceWorld) -> None:
    """The bridge believes no later time than its own."""
    async with world.serving() as api:
        now_ms = await learn_time(world, api)
        await prepare(world, api, now_ms + 20 * S)
        [half] = await halves(world)
        assert half.seen_ms <= api.transactions.kafka_time_ms()


@in_world(make_service_world)
async def test_process_that_knows_no_time_looks_it_up(world: ServiceWorld) -> None:
    """As if nothing had been said."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        for number, first_ms in enumerate((0, 5)):
            prepared = await prepare(world, api, first_ms, f"key-{number}")
            assert isinstance(prepared, Prepared)
            assert (await halves(world, f"key-{number}"))[-1].request is not None


@in_world(make_service_world)
async def test_key_of_another_transaction_is_refused_where_that_is_known(world: ServiceWorld) -> None:
    """Whoever calls a key new that is not can still be told so by the process that took it."""
    async with world.serving() as api:
        first_ms = await learn_time(world, api)
        assert isinstance(await prepare(world, api, first_ms), Prepared)
        refused = await prepare(world, api, first_ms, value=b"w")
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.IDEMPOTENCY_KEY_REUSED
        assert len(await halves(world)) == 1


@in_world(make_service_world)
async def test_clock_that_was_set_back_is_not_believed(world: ServiceWorld) -> None:
    """Times told before are then ahead of what is written, so a late record would count: all is looked up instead."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        world.settlers.memory.clock.shift_wall_clock(300 * S)
        first_ms = await learn_time(world, api)
        again = await prepare(world, api, None)
        await api.transactions.end([EndCall(again.transaction_id, Resolution.COMMIT)])
        world.settlers.memory.clock.shift_wall_clock(-300 * S)
        await learn_time(world, api)
        await world.sleep(200 * S)
        assert await prepare(world, api, first_ms + 200 * S, "another") is not None
        assert (await halves(world, "another"))[-1].request is not None


@in_world(make_service_world)
async def test_time_told_before_a_clock_was_set_back_is_believed_by_nobody(world: ServiceWorld) -> None:
    """Nor by a process that has never seen the clock ahead: a first try that was on its way for minutes would count."""
    clock = world.settlers.memory.clock
    async with world.serving() as api:
        clock.shift_wall_clock(300 * S)
        first_ms = await learn_time(world, api)
        clock.shift_wall_clock(-300 * S)
    async with world.serving("late") as late, world.settlers.settling(), world.projecting():
        again = await prepare(world, late, None)
        await late.transactions.end([EndCall(again.transaction_id, Resolution.COMMIT)])
        for _ in range(4):
            await world.sleep(60 * S)
            await learn_time(world, late)
        late_one = await prepare(world, late, first_ms)
        assert (late_one.transaction_id, late_one.state) == (again.transaction_id, TransactionState.COMMITTED)


async def pass_two_minutes(world: ServiceWorld, api: Node) -> None:
    """In which the process appends now and then."""
    for _ in range(5):
        await world.sleep(25 * S)
        await learn_time(world, api)


@in_world(make_service_world)
async def test_time_of_a_clock_that_was_set_back_is_forgotten(world: ServiceWorld) -> None:
    """After two minutes in which nothing agreed with it; two later, first tries are answered once they are stored."""
    clock = world.settlers.memory.clock
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        clock.shift_wall_clock(300 * S)
        await learn_time(world, api)
        clock.shift_wall_clock(-300 * S)
        await learn_time(world, api)
        await pass_two_minutes(world, api)
        assert abs(await learn_time(world, api) - clock.now_ms()) < S
        await prepare(world, api, await learn_time(world, api), "doubted")
        assert (await halves(world, "doubted"))[-1].request is not None
        await pass_two_minutes(world, api)
        first_ms = await learn_time(world, api)
        assert isinstance(await prepare(world, api, first_ms), Prepared)
        [half] = await halves(world)
        assert (half.seen_ms, half.request) == (first_ms, None)


@in_world(make_service_world, faults=ScriptedFaults)
async def test_record_held_up_long_after_a_clock_was_set_back_is_void(
    world: ServiceWorld, faults: ScriptedFaults
) -> None:
    """Its repeat was published and forgotten meanwhile: it is not published twice (D)."""
    clock = world.settlers.memory.clock
    async with world.serving() as api, world.serving("slow") as slow, world.settlers.settling(), world.projecting():
        clock.shift_wall_clock(300 * S)
        await learn_time(world, slow)
        clock.shift_wall_clock(-300 * S)
        await pass_two_minutes(world, slow)
        await learn_time(world, api)
        faults.give(StepKind.PUT, Fate(request_ms=200_000), client="slow")
        await prepare(world, slow, None, is_published=True)
        await prepare(world, api, None, is_published=True)
        for _ in range(21):
            await world.sleep(10 * S)
            await api.transactions.prepare([world.call(b"tick")])
        assert len(await halves(world)) == 2
        assert world.settlers.memory.visible("orders").count(b"v") == 1


@in_world(make_service_world)
async def test_one_that_is_stored_at_a_time_nobody_knows_is_not_called_refused(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked up, for it may be void; if that cannot be done, it may be stored for good (A)."""
    put = Journal.put

    def put_undated(journal: Journal, messages: Sequence[Message], give: Give) -> None:
        put(journal, messages, lambda results: give([PutResult(result.status) for result in results]))

    async with world.serving() as api, world.settlers.settling(), world.projecting():
        first_ms = await learn_time(world, api)
        monkeypatch.setattr(Journal, "put", put_undated)
        assert isinstance(await prepare(world, api, first_ms), Prepared)
        world.database.is_down = True
        refused = await prepare(world, api, first_ms, "another")
        assert isinstance(refused, Refused)
        [half] = await halves(world, "another")
        assert (refused.outcome, refused.transaction_id) == (Outcome.UNKNOWN, half.transaction_id)

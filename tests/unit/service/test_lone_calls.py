"""Calls that nobody awaits: their answers are given by whoever brings them."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from bridge.core.record import Resolution
from bridge.core.transaction import TransactionState, TransactionView
from bridge.node import Node
from bridge.service.contract import EndCall, Outcome, Prepared, RefusalCode, Refused
from bridge.service.journal import LoneCall, Patience
from bridge.service.prepare import PrepareAnswer
from bridge.store.memory.link import Fate, StepKind
from tests.support.memory_faults import ScriptedFaults
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import VirtualClock, in_world

COMMIT, ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK
WAIT_MS = 2_000


class Call(LoneCall[str]):
    def give_up(self) -> None:
        self.give("late")


def never(_: object) -> None:
    raise AssertionError("answered")


async def prepare(world: ServiceWorld, api: Node) -> PrepareAnswer:
    told: asyncio.Future[PrepareAnswer] = asyncio.get_running_loop().create_future()
    assert api.transactions.begin_prepare(world.call(), WAIT_MS, told.set_result)
    return await told


async def learn(world: ServiceWorld, api: Node) -> str:
    """Group and topic are known then."""
    [prepared] = await api.transactions.prepare([world.call()])
    assert isinstance(prepared, Prepared)
    return prepared.transaction_id


async def end(api: Node, *calls: EndCall) -> Sequence[TransactionView | Refused]:
    told: list[asyncio.Future[TransactionView | Refused]] = []
    for call in calls:
        told.append(asyncio.get_running_loop().create_future())
        assert api.transactions.begin_end(call, WAIT_MS, told[-1].set_result)
    return [await each for each in told]


def test_each_call_is_given_up_at_its_time_unless_it_is_over() -> None:
    """In any order of their times, and never twice."""
    clock = VirtualClock()
    patience = Patience(clock)
    given: dict[int, tuple[str, int]] = {}

    def add(number: int, wait_ms: int) -> Call:
        call = Call(lambda answer: given.setdefault(number, (answer, clock.monotonic_ms())) and None)
        patience.add(call, wait_ms)
        return call

    async def story() -> None:
        calls = [add(0, 500), add(1, 300), add(2, 400), add(3, 0)]
        await clock.sleep_ms(100)
        calls[1].give("in time")
        calls[1].give("again")
        calls += [add(4, 100), add(5, 800)]
        await clock.sleep_ms(1_000)
        calls[0].give("too late")
        assert all(call.is_over for call in calls)
        calls.append(add(6, 50))
        await clock.sleep_ms(100)

    asyncio.run(clock.drive(story()))
    assert given == {
        0: ("late", 500), 1: ("in time", 100), 2: ("late", 400), 3: ("late", 0), 4: ("late", 200), 5: ("late", 900),
        6: ("late", 1_150),
    }  # fmt: skip


def test_calls_that_are_over_are_not_kept() -> None:
    """Memory is bounded by what waits, however long the longest may wait."""
    clock = VirtualClock()
    patience = Patience(clock)

    async def story() -> None:
        for _ in range(1_000):
            call = Call(str)
            patience.add(call, 10_000)
            call.give("done")
        assert [len(waiting) for waiting in patience._waiting.values()] == [1]

    asyncio.run(clock.drive(story()))


@in_world(make_service_world)
async def test_ends_hear_what_lists_hear(world: ServiceWorld) -> None:
    """Settled, repeated, contradicted, of another group, unknown to the owner and to everybody."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        call = EndCall(await learn(world, api), COMMIT)
        wrong = [EndCall(call.transaction_id, ROLLBACK), EndCall(call.transaction_id, COMMIT, "others")]
        first, again, *refused = await end(api, call, call, *wrong)
        assert isinstance(first, TransactionView)
        assert (first.state, len(first.receipts)) == (TransactionState.COMMITTED, 1)
        assert again == first
        calls = [call, *wrong, EndCall("00" + "0" * 26, COMMIT)]
        assert refused == list((await api.transactions.end(calls))[1:3])
        await world.sleep(200_000)  # the settler has forgotten
        await learn(world, api)
        await world.sleep(1_000)
        assert await end(api, *calls) == await api.transactions.end(calls)
        assert (len(api.waiters), api.waiters.by_id) == (0, {})


@in_world(make_service_world, faults=ScriptedFaults)
async def test_nobody_waits_longer_than_he_said(world: ServiceWorld, faults: ScriptedFaults) -> None:
    """Without a settler, or a report: unknown, and it may still happen."""
    async with world.serving() as api:
        transaction_id = await learn(world, api)
        began = world.settlers.memory.clock.monotonic_ms()
        [unknown] = await end(api, EndCall(transaction_id, COMMIT))
        faults.give(StepKind.PUT, Fate(request_ms=5_000))
        unstored = await prepare(world, api)
        for answer in (unknown, unstored):
            assert isinstance(answer, Refused)
            assert (answer.code, answer.outcome) == (RefusalCode.OUTCOME_UNKNOWN, Outcome.UNKNOWN)
        assert isinstance(unstored, Refused)
        assert unstored.transaction_id is not None
        assert world.settlers.memory.clock.monotonic_ms() == began + 2 * WAIT_MS
        assert len(api.waiters) == 0
        await world.sleep(10_000)
        assert len(await world.journal()) == 3


@in_world(make_service_world)
async def test_what_is_certainly_not_written_is_refused_at_once(world: ServiceWorld) -> None:
    """A queue that halts, a journal that is busy: nothing waits, and nothing was applied."""
    async with world.serving() as api:
        transaction_id = await learn(world, api)
        api.log.doubt(0)
        answers = [await prepare(world, api), *await end(api, EndCall(transaction_id, COMMIT))]
        for answer in answers:
            assert isinstance(answer, Refused)
            assert (answer.code, answer.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)
            assert "another one than before" in answer.detail
        assert len(await world.journal()) == 1
        assert len(api.waiters) == 0


@in_world(make_service_world)
async def test_rare_calls_are_not_begun(world: ServiceWorld) -> None:
    """Nothing happens: they are left to those who look at lists."""
    async with world.serving() as api:
        await learn(world, api)
        plain = world.call()
        for rare in (
            replace(plain, idempotency_key="k"),
            replace(plain, is_published=True),
            replace(plain, messages=[*plain.messages] * 2),
            replace(plain, group="new"),
            replace(plain, ordering_key="\x01"),
            world.call(topic="nowhere"),
        ):
            assert not api.transactions.begin_prepare(rare, WAIT_MS, never)
        assert not api.transactions.begin_end(EndCall("zz" + "0" * 26, COMMIT), WAIT_MS, never)
        api.follower._tails[0]._next_offset = -1
        assert not api.transactions.begin_end(EndCall("00" + "0" * 26, COMMIT), WAIT_MS, never)
        assert len(await world.journal()) == 1
        assert len(api.waiters) == 0

"""Keyed repeats at the edges of what is remembered: long ago, around restarts, inside and outside of two minutes."""

from typing import Any

import pytest

from bridge.core.message import Message
from bridge.core.record import Resolution
from bridge.core.transaction import TransactionState, TransactionView
from bridge.node import Node
from bridge.service.contract import EndCall, Prepared, RefusalCode, Refused
from bridge.store.memory.link import StepKind
from tests.support.held_steps import HeldSteps
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.settler_world import SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world
from tests.support.whole_service import projecting

COMMITTED = TransactionState.COMMITTED


async def prepare(world: ServiceWorld, api: Node, key: str = "key") -> Any:
    return (await api.transactions.prepare([world.call(key.encode(), idempotency_key=key)]))[0]


async def commit(api: Node, transaction_id: str) -> Any:
    return (await api.transactions.end([EndCall(transaction_id, Resolution.COMMIT)]))[0]


async def pass_traffic(world: SettlerWorld, duration_ms: int, name: str = "x") -> None:
    """Others are prepared and rolled back, one every ten seconds."""
    for n in range(duration_ms // 10_000):
        await world.prepare(f"{name}{n}", Message("orders", None, None))
        await world.rollback(f"{name}{n}")
        await world.memory.clock.sleep_ms(10_000)


async def repeat(world: SettlerWorld, request: str) -> None:
    """A keyed half message of `a`, as every call with its key appends it."""
    now_ms = world.memory.clock.now_ms()
    await world.prepare("a", Message("credits", b"k", b"v"), idempotency_key="i", seen_ms=now_ms, request=request)


@in_world(make_service_world)
async def test_repeat_of_one_that_ended_long_before_l_is_not_begun_anew(world: ServiceWorld) -> None:
    """Forgotten by every settler, and the projection not there yet: refused, then known; never published twice (D)."""
    answers: list[Any] = []
    async with world.settlers.settling("first"), world.serving() as api:
        prepared = await prepare(world, api)
        await commit(api, prepared.transaction_id)
        await pass_traffic(world.settlers, 180_000)
    assert world.settlers.read_op().positions[-1].l > prepared.queue_offset
    async with world.settlers.settling("second"), world.serving("again") as api:
        answers.append(await prepare(world, api))
        await commit(api, prepared.transaction_id)
        async with projecting(world):
            await world.sleep(1_000)
            answers.append(await prepare(world, api))
            answers.append(await commit(api, prepared.transaction_id))
    assert world.settlers.memory.visible("orders") == [b"key"]
    refused, known, ended = answers
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.PROJECTION_BEHIND
    assert isinstance(known, TransactionView)
    assert (known.state, ended.state, len(known.receipts)) == (COMMITTED, COMMITTED, 1)


@pytest.mark.parametrize("asked_after_ms", [58_000, 100_000])
@in_world(make_service_world, faults=HeldSteps)
async def test_repeat_looked_up_too_early_is_known_to_the_successor(
    world: ServiceWorld, asked_after_ms: int, faults: HeldSteps
) -> None:
    """The oldest note and the slowest append together stay inside of what a settler remembers, or are refused (D)."""
    answers: list[Any] = []
    async with world.serving() as api, world.serving("slow") as slow:
        async with world.settlers.settling("first"):
            async with world.projecting():
                for process in (slow, api):  # each has noted the queue's end and seen it projected
                    assert isinstance(await prepare(world, process, f"by {process is api}"), Prepared)
            prepared = await prepare(world, api)
            await commit(api, prepared.transaction_id)
            await world.sleep(asked_after_ms)
        async with world.settlers.settling("second"):
            late = faults.hold(StepKind.PUT, client="slow")
            answers.append(await prepare(world, slow))
            await world.sleep(12_000)
            await pass_traffic(world.settlers, 10_000)
            late.release()
            await world.sleep(1_000)
            await commit(api, prepared.transaction_id)
    assert world.settlers.memory.visible("orders") == [b"key"]
    [refused] = answers
    expected = RefusalCode.OUTCOME_UNKNOWN if asked_after_ms < 60_000 else RefusalCode.PROJECTION_BEHIND
    assert refused.code is expected


@in_world(make_settler_world)
async def test_repeat_that_waits_while_nobody_owns_the_queue_is_known(world: SettlerWorld) -> None:
    """Two minutes are journal time: the owner that comes ten minutes later still knows what ended before (D)."""
    async with world.settling("first"):
        await repeat(world, "q1")
        await world.commit("a")
        await pass_traffic(world, 100_000)
        await world.settled()
    await repeat(world, "q2")
    await world.commit("a", request="r2")
    await world.memory.clock.sleep_ms(600_000)
    async with world.settling("second"):
        await world.settled()
    assert world.memory.visible("credits") == [b"v"]
    answers = {answer.request: answer.op for answer in world.read_op().answers}
    assert answers["q2"] is not None
    assert answers["q2"].transaction.state is COMMITTED
    assert answers["r2"] == answers["q2"]


@in_world(make_settler_world)
async def test_repeat_is_not_taken_for_a_new_one_by_a_successor(world: SettlerWorld) -> None:
    """Its half message lies after L, what it repeats ended before: the op message written again tells (D, F)."""
    async with world.settling("first"):
        await repeat(world, "q1")
        await world.commit("a")
        await world.settled()
        await world.prepare("pending", Message("orders"))
        await pass_traffic(world, 100_000)
        await repeat(world, "q2")
        await pass_traffic(world, 150_000, "y")
        await world.settled()
    world.observer.pending.clear()
    async with world.settling("second"):
        await world.memory.clock.sleep_ms(1_000)
        assert world.observer.pending.keys() == {world.id_of("pending")}
        await world.commit("a")
        await world.settled()
    assert world.memory.visible("credits") == [b"v"]


@pytest.mark.parametrize("case", ["read together", "read before", "void before"])
@in_world(make_settler_world)
async def test_message_is_that_of_the_first_half_message_whatever_trace_its_repeat_names(
    world: SettlerWorld, case: str
) -> None:
    """A repeat is often made within another span; what was prepared first is what is published (I)."""

    async def prepare_within(span: bytes, seen_before_ms: int = 0) -> None:
        message = Message("credits", b"k", b"v", [("traceparent", span)])
        seen_ms = world.memory.clock.now_ms() - seen_before_ms
        await world.prepare("a", message, idempotency_key="i", seen_ms=seen_ms)

    if case == "void before":
        await prepare_within(b"too late", seen_before_ms=3_600_000)
    await prepare_within(b"first")
    if case == "read before":
        async with world.settling("earlier"):
            await world.settled()
    await prepare_within(b"second")
    await world.commit("a")
    async with world.settling():
        await world.settled()
    [message] = world.memory.read_visible("credits")
    assert dict(message.headers)["traceparent"] == b"first"

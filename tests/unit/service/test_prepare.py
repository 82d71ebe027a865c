"""Prepare: half messages into the journal."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from bridge.core.check_rules import CheckTimes, GroupSettings
from bridge.core.message import Message
from bridge.core.record import HalfMessage
from bridge.core.transaction import TransactionState, TransactionView, queue_of
from bridge.directory import DEFAULT_SETTINGS
from bridge.service.contract import Limits, Outcome, PrepareCall, Prepared, RefusalCode, Refused
from bridge.service.operate import Who
from bridge.store.memory.link import Fate, StepKind
from tests.support.memory_faults import ScriptedFaults
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world

WHO = Who("ada", "")


@in_world(make_service_world)
async def test_prepare_is_stored_and_answers_in_order(world: ServiceWorld) -> None:
    """Each call has its answer at its place; what is refused is not appended."""
    async with world.serving() as api:
        calls = [world.call(b"1"), world.call(b"2", topic="nowhere"), world.call(None, immunity_s=60)]
        first, second, third = await api.transactions.prepare(calls)
        assert isinstance(second, Refused)
        assert (second.code, second.outcome) == (RefusalCode.UNKNOWN_TOPIC, Outcome.NOT_APPLIED)
        assert isinstance(first, Prepared)
        assert isinstance(third, Prepared)
        now_ms = world.settlers.memory.clock.now_ms()
        assert first == Prepared(first.transaction_id, "shop", TransactionState.PREPARED, now_ms, now_ms + 6_000, 0, 0)
        assert (third.queue_offset, third.first_check_ms) == (1, now_ms + 60_000)
        halves = [record for record in await world.journal() if isinstance(record, HalfMessage)]
        assert [half.transaction_id for half in halves] == [first.transaction_id, third.transaction_id]
        assert halves[0].request is None


@in_world(make_service_world)
async def test_first_check_that_was_told_holds_for_a_settler_that_knows_other_settings(world: ServiceWorld) -> None:
    """Processes hear of new settings one after the other; nobody is asked before the time in the answer (K)."""
    hour = GroupSettings(CheckTimes(transaction_timeout_ms=3_600_000))
    async with world.serving() as api, world.settlers.settling():  # these settlers know the defaults alone
        await api.directory.put_group("shop", hour, [])
        [prepared] = await api.transactions.prepare([world.call()])
        assert isinstance(prepared, Prepared)
        assert prepared.first_check_ms == prepared.born_ms + 3_600_000
        await world.sleep(10)
        await api.directory.put_group("shop", DEFAULT_SETTINGS, [])
        [after] = await api.transactions.prepare([world.call()])
        assert isinstance(after, Prepared)
        await world.sleep(1_000)
        pending = world.settlers.observer.pending
        assert pending[prepared.transaction_id].next_due_ms == prepared.first_check_ms
        assert pending[after.transaction_id].next_due_ms == after.first_check_ms == after.born_ms + 6_000
        halves = [record for record in await world.journal() if isinstance(record, HalfMessage)]
        assert [half.immunity_s for half in halves] == [3_600, 6]


@in_world(make_service_world, queues=8)
async def test_order_key_chooses_the_queue(world: ServiceWorld) -> None:
    """Transactions of one effective ordering key are in one queue, which the id names."""
    async with world.serving() as api:
        calls = [world.call(message_key=b"same")] * 5 + [world.call(message_key=None)] * 20
        calls += [world.call(message_key=None, ordering_key="same"), world.call(ordering_key="same")]
        answers = [a for a in await api.transactions.prepare(calls) if isinstance(a, Prepared)]
        queues = [answer.queue_id for answer in answers]
        assert queues == [queue_of(answer.transaction_id) for answer in answers]
        assert len({*queues[:5], *queues[25:]}) == 1
        assert len(set(queues[5:25])) > 1
        assert len({answer.transaction_id for answer in answers}) == len(calls)


@in_world(make_service_world)
async def test_half_message_keeps_all_that_was_asked_for(world: ServiceWorld) -> None:
    """Its settler knows nothing else: the keys, and how long and how often the group is to be asked."""
    async with world.serving() as api:
        message = Message("orders", b"k", b"v", (("h", b"1"),), 2, 5)
        call = PrepareCall("shop", (message,), "order-1", None, 60, 3, 7_200)
        [prepared] = await api.transactions.prepare([call])
        assert isinstance(prepared, Prepared)
        [half] = await world.journal()
        assert isinstance(half, HalfMessage)
        assert (half.transaction_id, half.group, half.message_count) == (prepared.transaction_id, "shop", 1)
        assert (half.real_topic, half.real_queue_id, half.timestamp_ms) == ("orders", 2, 5)
        assert (half.ordering_key, half.immunity_s, half.max_checks, half.max_life_s) == ("order-1", 60, 3, 7_200)
        assert (half.idempotency_key, half.request, half.is_published) == (None, None, False)


def test_one_message_may_be_as_large_as_its_topic_takes(tmp_path: Path) -> None:
    """Only what several need together is measured here."""
    world = make_service_world(tmp_path, limits=Limits(max_record_bytes=1_000))

    async def story() -> None:
        async with world.serving() as api:
            large = Message("orders", None, b"x" * 900)
            calls = [PrepareCall("shop", (large,)), PrepareCall("shop", (large, large))]
            first, second = await api.transactions.prepare(calls)
            assert isinstance(first, Prepared)
            assert isinstance(second, Refused)
            assert second.code is RefusalCode.MESSAGE_TOO_LARGE

    world.run(story())


BAD = RefusalCode.INVALID_REQUEST
HEADERS = "/messages/0/headers"


@pytest.mark.parametrize(
    ("members", "code", "pointer"),
    [
        ({"messages": ()}, BAD, "/messages"),
        ({"messages": (Message("orders"),) * 101}, BAD, "/messages"),
        (
            {"messages": (Message("orders"), Message("orders", None, b"x" * (1024 * 1024 + 1)))},
            RefusalCode.MESSAGE_TOO_LARGE,
            "/messages/1",
        ),
        ({"messages": (Message("orders", headers=(("properties", b""),)),)}, BAD, HEADERS),
        ({"messages": (Message("orders", headers=(("transaction-id", b""),)),)}, BAD, HEADERS),
        ({"messages": (Message("orders", headers=(("\ud800", b""),)),)}, BAD, HEADERS),
        ({"messages": (Message("orders", headers=(("transaction-id\x00", b""),)),)}, BAD, HEADERS),
        ({"messages": (Message("RMQ_SYS_TRANS_OP_HALF_TOPIC"),)}, RefusalCode.RESERVED_TOPIC, "/messages/0/topic"),
        ({"ordering_key": "a\x01b"}, BAD, "/ordering_key"),
        ({"ordering_key": "a\x00b"}, BAD, "/ordering_key"),
        ({"ordering_key": "\ud800"}, BAD, "/ordering_key"),
        ({"ordering_key": "k" * 1_001}, BAD, "/ordering_key"),
        ({"idempotency_key": "\x02"}, BAD, "/idempotency_key"),
        ({"group": "no spaces"}, BAD, "/producer_group"),
        ({"group": ""}, BAD, "/producer_group"),
        ({"messages": (Message("orders", None, b"x" * 900_000),) * 8}, RefusalCode.MESSAGE_TOO_LARGE, None),
    ],
)
@in_world(make_service_world)
async def test_what_cannot_be_kept_is_refused(
    world: ServiceWorld, members: dict[str, object], code: RefusalCode, pointer: str | None
) -> None:
    """Nothing is appended, the pointer leads to what is wrong, and the others of the list go on."""
    async with world.serving() as api:
        bad = replace(world.call(), **members)
        answers = await api.transactions.prepare([bad, world.call()])
        assert isinstance(answers[0], Refused)
        assert (answers[0].code, answers[0].outcome) == (code, Outcome.NOT_APPLIED)
        assert [each for each, _ in answers[0].errors] == ([pointer] if pointer else [])
        assert isinstance(answers[1], Prepared)
        assert len(await world.journal()) == 1


@in_world(make_service_world)
async def test_several_messages_are_one_record(world: ServiceWorld) -> None:
    """A transaction is in the journal whole or not at all, and its bodies can be read back."""
    messages = (Message("orders", b"k", b"\xff", (("a", None),), 2, 5), Message("credits", None, None))
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        [prepared] = await api.transactions.prepare([PrepareCall("shop", messages)])
        assert isinstance(prepared, Prepared)
        assert len(await world.journal()) == 1
        view = await api.transactions.get(prepared.transaction_id)
        assert isinstance(view, TransactionView)
        assert await api.transactions.get_bodies(view, WHO) == list(messages)
        moved = replace(view, queue_offset=view.queue_offset + 7)
        assert await api.transactions.get_bodies(moved, WHO) is None


@in_world(make_service_world)
async def test_unknown_groups_are_created_or_refused(world: ServiceWorld) -> None:
    """The first prepare of a group creates it, which is logged once, unless that is switched off; one made elsewhere is
    known at once.
    """
    async with world.serving() as api:
        with capture_logs() as logged:
            await api.transactions.prepare([world.call(group="new")] * 2)
            await api.transactions.prepare([world.call(group="new")])
        assert [line["group"] for line in logged if line["event"] == "group_made_by_a_prepare"] == ["new"]
        assert api.directory.get("new") is not None
    async with world.serving("strict", auto_create_groups=False) as api:
        [refused, known] = await api.transactions.prepare([world.call(group="newer"), world.call(group="new")])
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.UNKNOWN_PRODUCER_GROUP
        assert isinstance(known, Prepared)
        world.database.is_down = True
        for answer in await api.transactions.prepare([world.call(group="newer"), world.call(group="newest")]):
            assert isinstance(answer, Refused)
            assert (answer.code, answer.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)


@in_world(make_service_world)
async def test_refused_prepare_makes_no_group(world: ServiceWorld) -> None:
    """A refusal says that nothing was done: a name that was mistyped with its topic is not kept."""
    async with world.serving() as api:
        await api.transactions.prepare([world.call(group="typo", topic="nowhere"), world.call(group="right")])
        await api.directory.refresh()
        assert sorted(api.directory.groups) == ["right"]


@in_world(make_service_world)
async def test_refused_put_is_not_applied(world: ServiceWorld) -> None:
    """The log's own no is a refusal: nothing was written."""
    async with world.serving() as api:
        world.settlers.memory.cluster.log.topics[world.topics.half].is_denied = True
        plain, published = await api.transactions.prepare([world.call(), world.call(is_published=True)])
        for refused in (plain, published):
            assert isinstance(refused, Refused)
            assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)
        assert len(api.waiters) == 0


@in_world(make_service_world, faults=ScriptedFaults)
async def test_lost_answer_is_unknown_with_the_id(world: ServiceWorld, faults: ScriptedFaults) -> None:
    """A put without an answer may be there: the caller hears the id, and finds it."""
    async with world.serving() as api:
        faults.give(StepKind.PUT, Fate(answer_ms=None))
        [refused] = await api.transactions.prepare([world.call()], wait_ms=500)
        assert isinstance(refused, Refused)
        assert (refused.code, refused.outcome) == (RefusalCode.OUTCOME_UNKNOWN, Outcome.UNKNOWN)
        [half] = await world.journal()
        assert half.transaction_id == refused.transaction_id


@in_world(make_service_world)
async def test_published_answers_with_receipts(world: ServiceWorld) -> None:
    """Prepared and committed in one step; keyed or not, the answer is the settled view."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        calls = [world.call(b"1", is_published=True), world.call(b"2", is_published=True, idempotency_key="k")]
        for answer in await api.transactions.prepare(calls):
            assert isinstance(answer, TransactionView)
            assert (answer.state, answer.by) == (TransactionState.COMMITTED, "producer")
            assert [receipt.topic for receipt in answer.receipts] == ["orders"]
        assert sorted(world.settlers.memory.visible("orders"), key=str) == [b"1", b"2"]
        assert len(api.waiters) == 0


@in_world(make_service_world)
async def test_blocked_publish_is_told(world: ServiceWorld) -> None:
    """A destination that is gone by now: recorded, not published, said so."""
    async with world.serving() as api, world.settlers.settling():
        await api.transactions.prepare([world.call()])
        world.settlers.memory.cluster.log.delete_topic("orders")
        [answer] = await api.transactions.prepare([world.call(is_published=True)])
        assert isinstance(answer, TransactionView)
        assert (answer.state, answer.blocked, list(answer.receipts)) == (TransactionState.COMMITTED, True, [])


def test_too_many_pending_are_refused(tmp_path: Path) -> None:
    """The bound on pending transactions is known from the projection's running totals."""
    world = make_service_world(tmp_path, limits=Limits(max_pending=0))

    async def story() -> None:
        async with world.serving() as api:
            assert await api.pending.run_once() == 0
            [refused] = await api.transactions.prepare([world.call()])
            assert isinstance(refused, Refused)
            assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)

    world.run(story())


@in_world(make_service_world)
async def test_sql_down_stops_only_what_needs_it(world: ServiceWorld) -> None:
    """Unkeyed prepares of known groups go on; keyed ones cannot be looked up."""
    async with world.serving() as api:
        await api.directory.ensure_group("shop")
        world.database.is_down = True
        plain, keyed, other = await api.transactions.prepare(
            [world.call(), world.call(idempotency_key="k"), world.call(group="other")]
        )
        assert isinstance(plain, Prepared)
        for refused in (keyed, other):
            assert isinstance(refused, Refused)
            assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)


@in_world(make_service_world)
async def test_not_heard_is_not_sent(world: ServiceWorld) -> None:
    """Before the op topic's ends are known, nothing that waits for an answer is appended."""
    api = world.make_process()
    plain, published = await api.transactions.prepare([world.call(), world.call(is_published=True)])
    assert isinstance(plain, Prepared)
    assert isinstance(published, Refused)
    assert (published.code, published.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)

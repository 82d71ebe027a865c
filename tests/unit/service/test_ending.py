"""End transaction: the first recorded resolution wins, and every caller hears it."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection

from bridge.core.message import Message, MessageQueue
from bridge.core.op_message import ANSWERS_KEY, Answer, AnswerCode, OpMessage, encode_answers, encode_op
from bridge.core.record import EndRecord, Resolution, Source
from bridge.core.transaction import SPLIT, Transaction, TransactionState, TransactionView
from bridge.node import Node
from bridge.service import reads
from bridge.service.contract import Accepted, EndCall, Outcome, Prepared, RefusalCode, Refused, Wait
from bridge.sql.identity import find_losses
from bridge.store.memory.link import Fate, StepKind
from tests.support.memory_faults import ScriptedFaults
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world

COMMIT, ROLLBACK, UNKNOWN = Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN
NOBODY = "00" + "0" * 26


async def prepare(world: ServiceWorld, api: Node, count: int = 1) -> list[str]:
    answers = await api.transactions.prepare([world.call(b"%d" % n) for n in range(count)])
    return [answer.transaction_id for answer in answers if isinstance(answer, Prepared)]


@in_world(make_service_world)
async def test_commit_and_its_repeats_hear_the_same(world: ServiceWorld) -> None:
    """Twice at once, later, after the settler has forgotten, at another process: one record, one answer."""
    async with world.serving() as api, world.serving("2") as other, world.settlers.settling(), world.projecting():
        [transaction_id] = await prepare(world, api)
        call = EndCall(transaction_id, COMMIT, "shop")
        answers = await api.transactions.end([call, call])
        answers += await other.transactions.end([call])
        await world.sleep(200_000)
        await prepare(world, api)
        await world.sleep(1_000)
        answers += await other.transactions.end([call])
        for answer in answers:
            assert isinstance(answer, TransactionView)
            assert (answer.transaction_id, answer.state) == (transaction_id, TransactionState.COMMITTED)
            assert list(answer.receipts) == list(answers[0].receipts)  # type: ignore[union-attr]
            assert len(answer.receipts) == 1
        assert world.settlers.memory.visible("orders") == [b"0"]
        assert len(api.waiters) == len(other.waiters) == 0


@in_world(make_service_world)
async def test_contradiction_hears_the_recorded_state(world: ServiceWorld) -> None:
    """In one list, by order of the journal; later from the settler; much later from the projection."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        [transaction_id] = await prepare(world, api)
        rolled_back, refused = await api.transactions.end(
            [EndCall(transaction_id, ROLLBACK), EndCall(transaction_id, COMMIT)]
        )
        assert isinstance(rolled_back, TransactionView)
        assert (rolled_back.state, rolled_back.by) == (TransactionState.ROLLED_BACK, "producer")
        answers = [refused, *await api.transactions.end([EndCall(transaction_id, COMMIT)])]
        await world.sleep(200_000)
        await prepare(world, api)
        await world.sleep(1_000)
        answers += await api.transactions.end([EndCall(transaction_id, COMMIT)])
        for answer in answers:
            assert isinstance(answer, Refused)
            assert (answer.code, answer.state) == (RefusalCode.ALREADY_RESOLVED, TransactionState.ROLLED_BACK)
            assert answer.outcome is Outcome.NOT_APPLIED
        [known] = await api.transactions.end([EndCall(transaction_id, UNKNOWN)])
        assert isinstance(known, TransactionView)
        assert known.state is TransactionState.ROLLED_BACK


@in_world(make_service_world)
async def test_each_call_of_a_list_has_its_own_answer(world: ServiceWorld) -> None:
    """Malformed and impossible ids cost no record; the rest is answered one by one."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        first, second, third = await prepare(world, api, 3)
        calls = [
            EndCall("nonsense", COMMIT),
            EndCall(first, COMMIT, "thief"),
            EndCall(first, COMMIT),
            EndCall("01" + "0" * 26, COMMIT),
            EndCall(second, UNKNOWN),
            EndCall(NOBODY, ROLLBACK),
            EndCall(third, COMMIT, "a\x01b"),
            EndCall(third, COMMIT, actor="a" * 10_000),
            EndCall(third, COMMIT, reason="\ud800"),
        ]
        answers = await api.transactions.end(calls)
        found = [a.code if isinstance(a, Refused) else a.state for a in answers if not isinstance(a, Accepted)]
        assert found == [
            RefusalCode.UNKNOWN_TRANSACTION,
            RefusalCode.PRODUCER_GROUP_MISMATCH,
            TransactionState.COMMITTED,
            RefusalCode.UNKNOWN_TRANSACTION,
            TransactionState.PREPARED,
            RefusalCode.UNKNOWN_TRANSACTION,
            *[RefusalCode.INVALID_REQUEST] * 3,
        ]
        refused = [answer for answer in answers if isinstance(answer, Refused)]
        assert [r.transaction_id for r in refused[:4]] == ["nonsense", first, "01" + "0" * 26, NOBODY]
        pointers = [pointer for r in refused for pointer, _ in r.errors]
        assert pointers == ["/producer_group", "/actor", "/reason"]
        ends = [record for record in await world.journal() if isinstance(record, EndRecord)]
        assert [end.transaction_id for end in ends] == [first, first, second, NOBODY]
        await world.sleep(200_000)
        await prepare(world, api)  # now its settler forgets the transaction
        await world.sleep(1_000)
        [thief] = await api.transactions.end([EndCall(first, COMMIT, "thief")])
        assert thief == refused[1]


@in_world(make_service_world)
async def test_end_whose_answer_could_not_be_heard_is_refused(world: ServiceWorld) -> None:
    """Before anything is appended, so nothing was done."""
    api = world.make_process()
    [refused] = await api.transactions.end([EndCall(NOBODY, COMMIT)])
    assert isinstance(refused, Refused)
    assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)
    assert (refused.transaction_id, refused.retry_after_s) == (NOBODY, 1)
    assert await world.journal() == []


@in_world(make_service_world)
async def test_durable_is_not_waited_for(world: ServiceWorld) -> None:
    """`respond-async`: accepted as soon as the end cannot be lost; nobody is answered."""
    async with world.serving() as api:
        [transaction_id] = await prepare(world, api)
        answers = await api.transactions.end([EndCall(transaction_id, COMMIT)], Wait.DURABLE)
        assert answers == [Accepted(transaction_id, COMMIT)]
        end = (await world.journal())[-1]
        assert isinstance(end, EndRecord)
        assert end == EndRecord(transaction_id, COMMIT, Source.PRODUCER, world.settlers.memory.clock.now_ms())
        world.settlers.memory.cluster.log.topics[world.topics.half].is_denied = True
        [refused] = await api.transactions.end([EndCall(transaction_id, COMMIT)], Wait.DURABLE)
        assert isinstance(refused, Refused)
        assert refused.outcome is Outcome.NOT_APPLIED


@in_world(make_service_world, faults=ScriptedFaults)
async def test_durable_end_without_an_answer_is_unknown(world: ServiceWorld, faults: ScriptedFaults) -> None:
    """With the id of each, so that it can be looked up."""
    async with world.serving() as api:
        ids = await prepare(world, api, 2)
        faults.give(StepKind.PUT, Fate(answer_ms=None), client="api")
        answers = await api.transactions.end([EndCall(i, COMMIT) for i in ids], Wait.DURABLE, wait_ms=2_000)
        assert [(a.code, a.outcome, a.transaction_id) for a in answers if isinstance(a, Refused)] == [
            (RefusalCode.OUTCOME_UNKNOWN, Outcome.UNKNOWN, transaction_id) for transaction_id in ids
        ]


@in_world(make_service_world)
async def test_refused_put_is_not_applied(world: ServiceWorld) -> None:
    """The log's own no; nobody is left waiting."""
    async with world.serving() as api, world.settlers.settling():
        [transaction_id] = await prepare(world, api)
        world.settlers.memory.cluster.log.topics[world.topics.half].is_denied = True
        [refused] = await api.transactions.end([EndCall(transaction_id, COMMIT)])
        assert isinstance(refused, Refused)
        assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)
        assert len(api.waiters) == 0


@pytest.mark.parametrize("fate", [Fate(answer_ms=None), Fate(request_ms=None)])
@in_world(make_service_world, faults=ScriptedFaults)
async def test_unknown_put_still_hears_the_settler(world: ServiceWorld, fate: Fate, faults: ScriptedFaults) -> None:
    """An append without an answer: settled if it arrived, else 504 unknown with the id."""
    async with world.serving() as api, world.settlers.settling():
        [transaction_id] = await prepare(world, api)
        faults.give(StepKind.PUT, fate, client="api")
        [answer] = await api.transactions.end([EndCall(transaction_id, COMMIT)], wait_ms=12_000)
        if fate.request_ms is None:
            assert isinstance(answer, Refused)
            assert (answer.code, answer.outcome) == (RefusalCode.OUTCOME_UNKNOWN, Outcome.UNKNOWN)
            assert answer.transaction_id == transaction_id
        else:
            assert isinstance(answer, TransactionView)
        assert len(api.waiters) == 0


@in_world(make_service_world)
async def test_timeout_is_unknown_and_the_repeat_tells(world: ServiceWorld) -> None:
    """No settler: 504 in time, no waiter left; the end stands."""
    async with world.serving() as api:
        [transaction_id] = await prepare(world, api)
        before_ms = world.settlers.memory.clock.monotonic_ms()
        [refused] = await api.transactions.end([EndCall(transaction_id, ROLLBACK)], wait_ms=700)
        assert world.settlers.memory.clock.monotonic_ms() - before_ms == 700
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.OUTCOME_UNKNOWN
        assert len(api.waiters) == 0
        async with world.settlers.settling():
            [late] = await api.transactions.end([EndCall(transaction_id, COMMIT)])
            assert isinstance(late, Refused)
            assert late.state is TransactionState.ROLLED_BACK


def test_many_unknown_ones_are_looked_up_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of a thousand ids that nobody knows costs the database no more than one of them."""
    world = make_service_world(tmp_path)
    asked: list[set[int]] = []

    def find(connection: Connection, queue_ids: set[int], since_ms: int) -> dict[int, int]:
        asked.append(queue_ids)
        return find_losses(connection, queue_ids, since_ms)

    async def story() -> None:
        async with world.serving() as api, world.settlers.settling(), world.projecting():
            calls = [EndCall(f"00{number:025d}0", COMMIT) for number in range(50)]
            answers = await api.transactions.end(calls)
            assert {a.code for a in answers if isinstance(a, Refused)} == {RefusalCode.UNKNOWN_TRANSACTION}
            assert len(answers) == len(calls)

    monkeypatch.setattr(reads, "find_losses", find)
    world.run(story())
    assert asked == [{0}]


@in_world(make_service_world)
async def test_forgotten_and_unreadable_is_unknown(world: ServiceWorld) -> None:
    """The settler has forgotten and the projection is behind: an earlier commit may stand, so never "not applied"."""
    async with world.serving() as api, world.settlers.settling():
        [refused] = await api.transactions.end([EndCall(NOBODY, COMMIT)])
        assert isinstance(refused, Refused)
        assert (refused.code, refused.outcome) == (RefusalCode.PROJECTION_BEHIND, Outcome.UNKNOWN)
        assert (refused.transaction_id, refused.retry_after_s) == (NOBODY, 1)
        world.database.is_down = True
        [refused] = await api.transactions.end([EndCall(NOBODY, COMMIT)])
        assert isinstance(refused, Refused)
        assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.UNKNOWN)
        assert (refused.transaction_id, refused.retry_after_s) == (NOBODY, 1)


@in_world(make_service_world)
async def test_answers_are_read_from_the_op_topic_alone(world: ServiceWorld) -> None:
    """Hand-written answers: an expired body; SPLIT wakes nobody, the blocked state after it does."""
    base = Transaction(NOBODY, "shop", 5, 1_000, 0)

    async def put(key: bytes, value: bytes) -> None:
        await world.settlers.memory.store.put(MessageQueue(world.topics.op, 0), Message("", key, value))

    async with world.serving() as api:
        task = asyncio.create_task(api.transactions.end([EndCall(NOBODY, COMMIT)] * 2))
        while not (records := await world.journal()):
            await world.sleep(1)
        end = records[0]
        assert isinstance(end, EndRecord)
        assert end.request is not None
        parked = OpMessage(replace(base, state=TransactionState.PARKED))
        expired = Answer(end.request, NOBODY, AnswerCode.BODY_EXPIRED, None)
        await put(ANSWERS_KEY, encode_answers([(expired, encode_op(parked))])[0])
        blocked = replace(base, state=TransactionState.COMMITTED, blocked=True, by="producer", ended_ms=2_000)
        await put(NOBODY.encode(), encode_op(OpMessage(replace(blocked, reason=SPLIT))))
        await world.sleep(3_000)
        assert not task.done()
        await put(NOBODY.encode(), encode_op(OpMessage(replace(blocked, reason="UNKNOWN_TOPIC"))))
        first, second = await task
        assert isinstance(first, Refused)
        assert (first.code, first.state) == (RefusalCode.BODY_EXPIRED, TransactionState.PARKED)
        assert isinstance(second, TransactionView)
        assert (second.blocked, second.reason, second.ended_ms) == (True, "UNKNOWN_TOPIC", 2_000)


@in_world(make_service_world)
async def test_answer_to_a_check_is_counted_once(world: ServiceWorld) -> None:
    """UNKNOWN with the next check's number uses a check up and is heard by whoever sent it."""
    async with world.serving() as api, world.settlers.settling():
        [transaction_id] = await prepare(world, api)
        call = EndCall(transaction_id, UNKNOWN, "shop", Source.CHECK, 1)
        for _ in range(2):
            [view] = await api.transactions.end([call])
            assert isinstance(view, TransactionView)
            assert (view.state, view.check_times) == (TransactionState.PREPARED, 1)

"""Who is woken by what."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from bridge.core.op_message import Answer, AnswerCode, OpMessage, make_view
from bridge.core.transaction import SPLIT, Transaction, TransactionState
from bridge.service.journal import Deadline
from bridge.service.replies import PendingReplies, ReplyBatch
from tests.support.virtual_time import VirtualClock

ID, OTHER = "00" + "0" * 26, "00" + "1" * 25 + "0"


def op(state: TransactionState, transaction_id: str = ID, **members: Any) -> OpMessage:
    return OpMessage(replace(Transaction(transaction_id, "shop", 5, 1_000, 0), state=state, **members))


def hear(waiters: PendingReplies, heard: OpMessage) -> None:
    waiters.hear_state(make_view(heard), heard.transaction.requests)


@pytest.mark.parametrize(
    ("state", "members", "is_woken"),
    [
        (TransactionState.COMMITTED, {}, True),
        (TransactionState.ROLLED_BACK, {}, True),
        (TransactionState.COMMITTED, {"blocked": True, "reason": "UNKNOWN_TOPIC"}, True),
        (TransactionState.COMMITTED, {"blocked": True, "reason": SPLIT}, False),
        (TransactionState.COMMITTED, {"blocked": True, "reason": SPLIT, "requests": ("p-0",)}, False),
        (TransactionState.PREPARED, {}, False),
        (TransactionState.PREPARED, {"requests": ("p-0",)}, True),
        (TransactionState.PREPARED, {"requests": ("p-1", "q-0")}, False),
        (TransactionState.PARKED, {}, False),
        (TransactionState.COMMITTED, {"transaction_id": OTHER}, False),
    ],
)
async def test_only_final_states_and_named_requests_wake(
    state: TransactionState, members: dict[str, Any], is_woken: bool
) -> None:
    """SPLIT, another id, another REQUEST and states that are not final wake nobody (design section 6)."""
    waiters = PendingReplies("p-")
    wait = waiters.open([ID])
    hear(waiters, op(state, **members))
    assert wait.done.done() is is_woken
    assert (wait.heard[0] is not None) is is_woken
    assert len(waiters) == (0 if is_woken else 1)


async def test_answer_wakes_the_one_who_asked() -> None:
    """An answer names one REQUEST; others that wait for the same id go on waiting."""
    waiters = PendingReplies("p-")
    first, second = waiters.open([ID]), waiters.open([ID])
    waiters.hear_answers([Answer(second.requests[0], ID, AnswerCode.UNKNOWN_TRANSACTION, None)])
    assert not first.done.done()
    assert second.done.done()
    heard = second.heard[0]
    assert heard is not None
    assert (heard.code, heard.view) == (AnswerCode.UNKNOWN_TRANSACTION, None)


async def test_answer_with_a_split_state_wakes_nobody() -> None:
    """A repeated commit must hear receipts, which follow at once, and not an interim state."""
    waiters = PendingReplies("p-")
    wait = waiters.open([ID])
    split = op(TransactionState.COMMITTED, blocked=True, reason=SPLIT)
    waiters.hear_answers([Answer(wait.requests[0], ID, AnswerCode.ALREADY, split)])
    assert not wait.done.done()


async def test_duplicate_ids_of_one_list_each_hear() -> None:
    """One final state answers every call for the id."""
    waiters = PendingReplies("p-")
    wait = waiters.open([ID, OTHER, ID])
    assert len(set(wait.requests)) == 3
    hear(waiters, op(TransactionState.COMMITTED))
    assert [heard is not None for heard in wait.heard] == [True, False, True]
    assert not wait.done.done()
    hear(waiters, op(TransactionState.ROLLED_BACK, OTHER))
    assert wait.done.done()


async def test_deadline_leaves_no_waiter_behind() -> None:
    """What timed out is forgotten, also where a part was heard."""
    clock, waiters = VirtualClock(), PendingReplies("p-")

    async def story() -> ReplyBatch:
        wait = waiters.open([ID, OTHER])
        hear(waiters, op(TransactionState.COMMITTED))
        await wait.until(Deadline.after(clock, 500))
        return wait

    wait = await clock.drive(story())
    assert clock.monotonic_ms() == 500
    assert (len(waiters), waiters.by_id) == (0, {})
    assert wait.heard[1] is None


async def test_cancelled_caller_leaves_no_waiter_behind() -> None:
    """A client that went away must not cost memory."""
    clock, waiters = VirtualClock(), PendingReplies("p-")
    wait = waiters.open([ID, OTHER])
    task = asyncio.create_task(wait.until(Deadline.after(clock, 500)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert (len(waiters), waiters.by_id) == (0, {})


async def test_all_dropped_is_done() -> None:
    """Refused records wait for nothing."""
    waiters = PendingReplies("p-")
    wait = waiters.open([ID, ID])
    wait.drop(0)
    wait.drop(0)
    assert not wait.done.done()
    wait.drop(1)
    assert wait.done.done()


async def test_room_is_bounded() -> None:
    """Waiters are limited."""
    waiters = PendingReplies("p-", max_waiting=2)
    waiters.open([ID])
    assert waiters.has_room(1)
    assert not waiters.has_room(2)
    waiters.open([ID])
    assert not waiters.has_room(1)

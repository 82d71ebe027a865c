"""Who waits for an answer of the settlers: plain slots in one dict, one future for a whole list of calls."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from bridge.core.op_message import Answer, AnswerCode, OpMessage
from bridge.core.transaction import SPLIT, Transaction, TransactionState
from bridge.service.deadline import Deadline

_COMMITTED, _ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK


class Heard(Struct, frozen=True, gc=False):
    """What woke a waiter: a state (`code` None), or an answer to its REQUEST with the state as it stood, if any."""

    code: AnswerCode | None
    op: OpMessage | None


@dataclass(slots=True, eq=False)
class BatchWait:
    """The answers a list of calls waits for. `requests[i]` goes into the record of `transaction_ids[i]`.

    `is_named`: only what names its request is an answer, since a final state may be the one before it.
    """

    transaction_ids: Sequence[str]
    requests: Sequence[str]
    waiters: "Waiters"
    is_named: bool = False
    heard: list[Heard | None] = field(init=False)
    done: "asyncio.Future[None]" = field(init=False)
    _left: int = field(init=False)

    def __post_init__(self) -> None:
        self._left = len(self.requests)
        self.heard = [None] * self._left
        self.done = asyncio.get_running_loop().create_future()
        if not self._left:
            self.done.set_result(None)

    def drop(self, index: int) -> None:
        """Nobody waits for this one any more."""
        if self.waiters.discard(self.transaction_ids[index], self.requests[index]):
            self.count_down()

    async def until(self, deadline: Deadline) -> None:
        """Returns when all have been heard or dropped, or at the deadline; leaves no waiter behind either way."""
        try:
            await deadline.wait(self.done)
        finally:
            self.close()

    def close(self) -> None:
        """Nobody waits for any of them any more."""
        if self._left:
            for index in range(len(self.requests)):
                self.drop(index)

    def count_down(self) -> None:
        """One waits no more."""
        self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(None)


_Slot = tuple[BatchWait, int, str]  # who waits, at which place, for which REQUEST; plain because it is quicker to make


class Waiters:
    """All that this process waits for. `prefix`: random, so that no other process ever makes the same REQUEST."""

    def __init__(self, prefix: str, max_waiting: int = 200_000) -> None:
        self.prefix = prefix.encode()
        self.by_id: dict[bytes, list[_Slot]] = {}
        self._prefix = prefix
        self._max_waiting = max_waiting
        self._count = 0
        self._made = 0

    def __len__(self) -> int:
        return self._count

    def has_room(self, count: int) -> bool:
        """Whether `count` more may wait."""
        return self._count + count <= self._max_waiting

    def open(self, transaction_ids: Sequence[str], *, is_named: bool = False) -> BatchWait:
        """Begins to wait for each of the ids. Before their records are produced, or an answer could be missed."""
        made, prefix = self._made, self._prefix
        self._made += len(transaction_ids)
        requests = [f"{prefix}{made + n:x}" for n in range(len(transaction_ids))]
        wait = BatchWait(transaction_ids, requests, self, is_named)
        by_id = self.by_id
        for index, transaction_id in enumerate(transaction_ids):
            slot = (wait, index, requests[index])
            key = transaction_id.encode()
            if key in by_id:
                by_id[key].append(slot)
            else:
                by_id[key] = [slot]
        self._count += len(transaction_ids)
        return wait

    def discard(self, transaction_id: str, request: str) -> bool:
        """Whether somebody did wait for it."""
        key = transaction_id.encode()
        slots = self.by_id.get(key, ())
        kept = [slot for slot in slots if slot[2] != request]
        self._keep(key, kept)
        self._count -= len(slots) - len(kept)
        return len(kept) < len(slots)

    def hear_state(self, op: OpMessage) -> None:
        """A state of an id: final ones wake all that wait for the id, others those they name; SPLIT wakes nobody."""
        t = op.transaction
        if is_interim(t):
            return
        is_final = t.state is _COMMITTED or t.state is _ROLLED_BACK
        self._wake(t.transaction_id, Heard(None, op), t.requests, is_for_all=is_final)

    def hear_answers(self, answers: Iterable[Answer]) -> None:
        """Answers wake whoever asked."""
        for answer in answers:
            if answer.op is None or not is_interim(answer.op.transaction):
                self._wake(answer.transaction_id, Heard(answer.code, answer.op), (answer.request,))

    def _wake(self, transaction_id: str, heard: Heard, requests: Sequence[str], *, is_for_all: bool = False) -> None:
        key = transaction_id.encode()
        slots = self.by_id.pop(key, None)
        if slots is None:
            return
        kept: list[_Slot] = []
        for slot in slots:
            wait, place, request = slot
            if request not in requests and (wait.is_named or not is_for_all):
                kept.append(slot)
                continue
            wait.heard[place] = heard
            wait.count_down()
            self._count -= 1
        if kept:
            self.by_id[key] = kept

    def _keep(self, key: bytes, kept: list[_Slot]) -> None:
        if kept:
            self.by_id[key] = kept
        else:
            self.by_id.pop(key, None)


def is_interim(t: Transaction) -> bool:
    """Whether the next op message of the transaction is about to follow: decided, tried again apart from others."""
    return t.blocked and t.why == SPLIT

"""End transaction: resolutions into the journal, the answer from the op topic (design section 6)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from bridge.clock import Clock
from bridge.core.check_rules import is_group_name
from bridge.core.message import Message
from bridge.core.record import MAX_REMARK_CHARS, EndRecord
from bridge.core.record_codec import encode_end
from bridge.core.transaction import TransactionView, queue_of
from bridge.fault_points import FaultPoint, reach
from bridge.service.admission import is_text
from bridge.service.answers import (
    answer_end,
    compare_end,
    refuse_missing,
    refuse_put,
    refuse_unheard,
    refuse_unknown,
)
from bridge.service.contract import Accepted, EndCall, Limits, Outcome, RefusalCode, Refused
from bridge.service.journal import Deadline, Journal, LoneCall
from bridge.service.reads import CurrentReads, refuse_read
from bridge.service.replies import OpFollower, ReceivedReply
from bridge.store.message_store import PutResult, PutStatus
from bridge.turns import Turns

Settled = TransactionView | Refused
T = TypeVar("T")
_REFUSED = PutStatus.REFUSED
_ACKED = FaultPoint.END_ACKED  # for lists, and for calls that are alone
_STEP_RECORDS = 256  # are made in about a millisecond


class Ender:
    """Ends lists of transactions: one put, one future."""

    def __init__(
        self, journal: Journal, follower: OpFollower, reads: CurrentReads, limits: Limits, clock: Clock, turns: Turns
    ) -> None:
        self._journal = journal
        self.follower = follower
        self._reads = reads
        self._limits = limits
        self._clock = clock
        self._turns = turns
        self._looking: set[asyncio.Task[None]] = set()

    async def settle(self, calls: Sequence[EndCall], deadline: Deadline) -> list[Settled]:
        """An answer for each call, same order, as soon as it is settled."""
        return await self._answer(calls, self._settle, deadline)

    async def append(self, calls: Sequence[EndCall], deadline: Deadline) -> list[Accepted | Refused]:
        """An answer for each call, same order, as soon as it is durable."""
        return await self._answer(calls, self._append, deadline)

    async def _answer(
        self,
        calls: Sequence[EndCall],
        make: Callable[[Sequence[EndCall], Deadline], Awaitable[list[T | Refused]]],
        deadline: Deadline,
    ) -> list[T | Refused]:
        refused = [self._check(call) for call in calls]
        possible = [call for call, refusal in zip(calls, refused, strict=True) if refusal is None]
        made = await make(possible, deadline) if possible else []
        if len(made) == len(calls):
            return made
        answers = iter(made)
        return [next(answers) if refusal is None else refusal for refusal in refused]

    def _check(self, call: EndCall) -> Refused | None:
        """Ids that cannot exist are refused without a record."""
        if not self._reads.can_exist(call.transaction_id):
            return refuse_missing(call.transaction_id)
        has_texts = call.actor is not None or call.reason is not None or call.remark is not None
        if not has_texts and (call.group is None or is_group_name(call.group)):
            return None
        texts = {"producer_group": call.group, "actor": call.actor, "reason": call.reason, "remark": call.remark}
        for name, text in texts.items():
            most = MAX_REMARK_CHARS if name == "remark" else self._limits.max_text_chars
            if text is not None and not is_text(text, most):
                detail = "too long, or holds a byte that is not allowed"
                return Refused(RefusalCode.INVALID_REQUEST, detail, errors=((f"/{name}", detail),))
        return None

    async def _append(self, calls: Sequence[EndCall], deadline: Deadline) -> list[Accepted | Refused]:
        messages = await self._encode(calls, [None] * len(calls))
        results = await self._journal.append(messages, deadline)
        return [
            refuse_put(result, call.transaction_id) or Accepted(call.transaction_id, call.resolution)
            for call, result in zip(calls, results, strict=True)
        ]

    async def _settle(self, calls: Sequence[EndCall], deadline: Deadline) -> list[Settled]:
        async def encode(requests: Sequence[str]) -> list[Message]:
            return await self._encode(calls, requests)

        ids = [call.transaction_id for call in calls]
        heard = await self.ask(ids, encode, deadline, _ACKED)
        return await self._find_forgotten(
            calls, [_read_reply(*pair) for pair in zip(calls, heard, strict=True)], deadline
        )

    def begin(self, call: EndCall, wait_ms: int, answer: Callable[[Settled], None]) -> bool:
        """The answer to a call is given when it is settled, without a task. False: it has to be looked at, and nothing
        has happened."""
        if self._check(call) is not None or not self.follower.can_open(1):
            return False
        alone = _LoneEnd(self, call, Deadline.after(self._clock, wait_ms), answer)
        self._journal.patience.add(alone, wait_ms)
        self._journal.put([alone.make_record(self._journal.topics.half, self._clock.now_ms())], alone.land)
        return True

    async def ask(
        self,
        ids: Sequence[str],
        encode: Callable[[Sequence[str]], Awaitable[Sequence[Message]]],
        deadline: Deadline,
        acked: FaultPoint,
        *,
        is_named: bool = False,
    ) -> list[ReceivedReply | Refused | None]:
        """Appends a record for each id and waits for what the settlers reply, same order; None: nothing came in time.

        `encode`: the records with these REQUESTs. `is_named`: only what names its request is a reply.
        """
        wait = self.follower.open(ids, is_named=is_named)
        if wait is None:
            return [refuse_unheard(transaction_id) for transaction_id in ids]
        refused: dict[int, Refused] = {}
        try:
            results = await self._journal.append(await encode(wait.requests), deadline)
            reach(acked)
            for place, result in enumerate(results):  # the settlers may still answer for records that may be written
                if result.status is _REFUSED and (refusal := refuse_put(result, ids[place])):
                    refused[place] = refusal
                    wait.drop(place)
            await wait.until(deadline)
        finally:
            wait.close()
        return [refused.get(place) or heard for place, heard in enumerate(wait.heard)]

    async def _find_forgotten(
        self, calls: Sequence[EndCall], answers: Sequence[Settled | None], deadline: Deadline
    ) -> list[Settled]:
        """None: the owner of the queue does not know it any more. The projection does not forget."""
        known: list[Settled] = [answer for answer in answers if answer is not None]
        if len(known) == len(calls):
            return known
        forgotten = {call.transaction_id for call, answer in zip(calls, answers, strict=True) if answer is None}
        read = await self._reads.find(forgotten, deadline)
        missing = {} if read.value is None else await self._reads.refuse_all_missing(forgotten - read.value.keys())
        found: list[Settled] = []
        for call, answer in zip(calls, answers, strict=True):
            if answer is not None:
                found.append(answer)
            elif read.value is None:
                found.append(_refuse_lookup(refuse_read(read.currency, call.transaction_id)))
            elif (view := read.value.get(call.transaction_id)) is None:
                refused = missing[call.transaction_id]
                found.append(_refuse_lookup(refused) if refused.code is RefusalCode.UNAVAILABLE else refused)
            else:
                found.append(compare_end(call, view))
        return found

    async def _encode(self, calls: Sequence[EndCall], requests: Sequence[str | None]) -> list[Message]:
        topic, born_ms = self._journal.topics.half, self._clock.now_ms()
        messages: list[Message] = []
        for call, request in zip(calls, requests, strict=True):
            if len(messages) % _STEP_RECORDS == _STEP_RECORDS - 1:
                await self._turns.take()
            messages.append(_make_record(call, request, topic, born_ms))
        return messages

    def look_up(self, alone: "_LoneEnd") -> None:
        """What the owner of the queue does not know is looked for, which nobody is in a hurry for."""

        async def find() -> None:
            alone.give((await self._find_forgotten([alone.call], [None], alone.deadline))[0])

        task = asyncio.ensure_future(find())
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)


class _LoneEnd(LoneCall[Settled]):
    """An end of one call. A Hearer."""

    __slots__ = ("_ender", "_request", "call", "deadline")
    is_named = False

    def __init__(self, ender: Ender, call: EndCall, deadline: Deadline, answer: Callable[[Settled], None]) -> None:
        super().__init__(answer)
        self.call = call
        self.deadline = deadline
        self._ender = ender
        self._request = ender.follower.waiters.open_one(call.transaction_id, self)

    def make_record(self, topic: str, born_ms: int) -> Message:
        """What is appended."""
        return _make_record(self.call, self._request, topic, born_ms)

    def land(self, results: Sequence[PutResult]) -> None:
        """The report of its record has come: the settlers may still answer for one that may be written."""
        reach(_ACKED)
        if results[0].status is _REFUSED and (refusal := refuse_put(results[0], self.call.transaction_id)):
            self._end(refusal)

    def hear(self, _: int, heard: ReceivedReply) -> None:
        answer = _read_reply(self.call, heard)
        if answer is None:
            self._ender.look_up(self)
        else:
            self.give(answer)

    def give_up(self) -> None:
        self._end(refuse_unknown(self.call.transaction_id))

    def _end(self, refused: Refused) -> None:
        self._ender.follower.waiters.discard(self.call.transaction_id, self._request)
        self.give(refused)


def _make_record(call: EndCall, request: str | None, topic: str, born_ms: int) -> Message:
    record = EndRecord(
        call.transaction_id,
        call.resolution,
        call.source,
        born_ms,
        call.group,
        request,
        call.check_number,
        None,  # endpoint, status and latency come from the checker
        0,
        0,
        call.actor,
        call.reason,
        call.remark,
    )
    message = encode_end(record, topic, queue_of(call.transaction_id))
    reach(FaultPoint.END_UNSENT)
    return message


def _read_reply(call: EndCall, heard: ReceivedReply | Refused | None) -> Settled | None:
    reach(FaultPoint.END_HEARD)
    if isinstance(heard, ReceivedReply):
        return answer_end(call, heard)
    return heard or refuse_unknown(call.transaction_id)


def _refuse_lookup(refused: Refused) -> Refused:
    """This end changed nothing, but an earlier one may have: "not applied" would be read as "not committed"."""
    return Refused(
        refused.code,
        refused.detail,
        Outcome.UNKNOWN,
        refused.transaction_id,
        retry_after_s=refused.retry_after_s,
    )

"""End transaction: resolutions into the journal, the answer from the op topic (design section 6)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from bridge.clock import Clock
from bridge.core.check_rules import is_group_name
from bridge.core.grants import EVERYTHING, Rights, Verb
from bridge.core.message import Message
from bridge.core.op_message import AnswerCode
from bridge.core.record import MAX_REMARK_CHARS, EndRecord, Resolution, Source
from bridge.core.record_codec import encode_end
from bridge.core.transaction import TransactionState, TransactionView, can_exist, queue_of
from bridge.fault_points import FaultPoint, reach
from bridge.service.admission import is_text
from bridge.service.contract import (
    Accepted,
    EndCall,
    Limits,
    Outcome,
    RefusalCode,
    Refused,
    Wait,
    refuse_given_up,
    refuse_missing,
    refuse_right,
    refuse_unheard,
    refuse_unknown,
)
from bridge.service.journal import Deadline, Journal, LoneCall, refuse_put
from bridge.service.reads import CurrentReads, refuse_read
from bridge.service.replies import OpFollower, ReceivedReply
from bridge.store.message_store import PutResult, PutStatus
from bridge.turns import Turns

Settled = TransactionView | Refused
T = TypeVar("T")
_ANY_GROUP = "for any producer group"

# Python finds a member of an enum, and its hash, only slowly.
_COMMITTED, _ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK
_COMMIT, _UNKNOWN = Resolution.COMMIT, Resolution.UNKNOWN
_BY_PRODUCER, _DECIDE = Source.PRODUCER, Verb.DECIDE
_REFUSED, _OTHER_GROUP = PutStatus.REFUSED, RefusalCode.PRODUCER_GROUP_MISMATCH
_UNSENT, _ACKED, _HEARD = FaultPoint.END_UNSENT, FaultPoint.END_ACKED, FaultPoint.END_HEARD
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

    async def end(
        self, calls: Sequence[EndCall], wait: Wait = Wait.SETTLED, wait_ms: int = 10_000, rights: Rights = EVERYTHING
    ) -> Sequence[TransactionView | Accepted | Refused]:
        """The settled view, the same for every repeat; Accepted with Wait.DURABLE, once the end cannot be lost."""
        deadline = Deadline.after(self._clock, wait_ms)
        end = self.settle if wait is Wait.SETTLED else self._accept
        if rights is EVERYTHING:
            return await end(calls, deadline)
        scoped = scope_ends(rights, calls)
        made = await end([call for call in scoped if isinstance(call, EndCall)], deadline)
        answers = iter([hide_others(rights, answer) for answer in made])
        return [next(answers) if isinstance(call, EndCall) else call for call in scoped]

    async def settle(self, calls: Sequence[EndCall], deadline: Deadline) -> list[Settled]:
        """An answer for each call, same order, as soon as it is settled."""
        return await self._answer(calls, self._settle, deadline)

    async def _accept(self, calls: Sequence[EndCall], deadline: Deadline) -> list[Accepted | Refused]:
        return await self._answer(calls, self._append, deadline)

    async def _answer(
        self,
        calls: Sequence[EndCall],
        make: Callable[[Sequence[EndCall], Deadline], Awaitable[list[T | Refused]]],
        deadline: Deadline,
    ) -> list[T | Refused]:
        refused = [self._check(call) for call in calls]
        if calls and not any(refused):
            return await make(calls, deadline)
        possible = [call for call, refusal in zip(calls, refused, strict=True) if refusal is None]
        answers = iter(await make(possible, deadline) if possible else [])
        return [next(answers) if refusal is None else refusal for refusal in refused]

    def _check(self, call: EndCall) -> Refused | None:
        """Ids that cannot exist are refused without a record."""
        if not can_exist(call.transaction_id, self._journal.topics.queues):
            return refuse_missing(call.transaction_id)
        if call.actor is None is call.reason is call.remark and (call.group is None or is_group_name(call.group)):
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
        answers = [_read_reply(call, told) for call, told in zip(calls, heard, strict=True)]
        return await self._find_forgotten(calls, answers, deadline)

    def begin(
        self, call: EndCall, wait_ms: int, answer: Callable[[Settled], None], rights: Rights = EVERYTHING
    ) -> bool:
        """The answer to a call is given when it is settled, without a task. False: it has to be looked at, and nothing
        has happened."""
        scoped = scope_end(rights, call)
        if isinstance(scoped, Refused) or self._check(scoped) is not None or not self.follower.can_open(1):
            return False
        deadline = Deadline.after(self._clock, wait_ms)
        alone = _LoneEnd(self, scoped, deadline, lambda told: answer(hide_others(rights, told)))
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
        return [refused.get(place) or heard for place, heard in enumerate(wait.heard)] if refused else [*wait.heard]

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
    reach(_UNSENT)
    return message


def _read_reply(call: EndCall, heard: ReceivedReply | Refused | None) -> Settled | None:
    reach(_HEARD)
    if isinstance(heard, ReceivedReply):
        return answer_end(call, heard)
    return heard or refuse_unknown(call.transaction_id)


def _refuse_lookup(refused: Refused) -> Refused:
    """This end changed nothing, but an earlier one may have: "not applied" would be read as "not committed"."""
    return Refused(
        refused.code, refused.detail, Outcome.UNKNOWN, refused.transaction_id, retry_after_s=refused.retry_after_s
    )


def answer_end(call: EndCall, heard: ReceivedReply) -> TransactionView | Refused | None:
    """The answer to an end that its queue's owner has decided; None if the owner does not know the transaction."""
    view, code = heard.view, heard.code
    if view is None or code is AnswerCode.UNKNOWN_TRANSACTION:
        return None
    if code is AnswerCode.GROUP_MISMATCH:
        return _refuse_group(call.transaction_id)
    if code is AnswerCode.BODY_EXPIRED:
        detail = "no log has the messages of this transaction any more"
        return Refused(RefusalCode.BODY_EXPIRED, detail, transaction_id=call.transaction_id, state=view.state)
    return compare_end(call, view)


def compare_end(call: EndCall, view: TransactionView) -> TransactionView | Refused:
    """The recorded state as the answer to an end: a repeat gets the same answer, a contradiction the recorded state."""
    if call.group is not None and call.group != view.group:
        return _refuse_group(call.transaction_id)
    if view.is_unproven:
        return refuse_given_up(view)
    resolution, state = call.resolution, view.state
    if state is (_COMMITTED if resolution is _COMMIT else _ROLLED_BACK) or resolution is _UNKNOWN:
        return view
    if state is _COMMITTED or state is _ROLLED_BACK:
        detail = f"the transaction is {view.state.value}"
        return Refused(RefusalCode.ALREADY_RESOLVED, detail, transaction_id=view.transaction_id, state=view.state)
    return refuse_unknown(call.transaction_id)


def _refuse_group(transaction_id: str) -> Refused:
    detail = "the transaction belongs to another producer group"
    return Refused(RefusalCode.PRODUCER_GROUP_MISMATCH, detail, transaction_id=transaction_id)


# --- which ends a caller may make, whichever way they came ---


def scope_ends(rights: Rights, calls: Iterable[EndCall]) -> list[EndCall | Refused]:
    """Each as `scope_end` has it."""
    only = rights.find_only_group(_DECIDE)
    return [
        replace(call, group=only)
        if only is not None and call.group is None and call.source is _BY_PRODUCER
        else scope_end(rights, call)
        for call in calls
    ]


def scope_end(rights: Rights, call: EndCall) -> EndCall | Refused:
    """The end in the name of a group that the caller may decide for. For him there are no transactions of others."""
    verb = Verb.CHECK if call.source is Source.CHECK else _DECIDE
    if call.group is None:
        only = rights.find_only_group(verb)
        return replace(call, group=only) if only is not None else _refuse_unscoped(rights, verb) or call
    if rights.may(verb, call.group):
        return call
    return refuse_missing(call.transaction_id) if rights.may_somewhere(verb) else refuse_right(verb, _ANY_GROUP)


def _refuse_unscoped(rights: Rights, verb: Verb) -> Refused | None:
    """Why an end that names no group may not be made."""
    if rights.may_everywhere(verb):
        return None
    if not rights.may_somewhere(verb):
        return refuse_right(verb, _ANY_GROUP)
    detail = "which group's? this caller may not decide for all of them"
    return Refused(RefusalCode.INVALID_REQUEST, detail, errors=(("/producer_group", detail),))


def hide_others(rights: Rights, answer: T) -> T | Refused:
    """The answer to an end, to somebody who must not learn that another group has such a transaction."""
    if not isinstance(answer, Refused) or answer.code is not _OTHER_GROUP:
        return answer
    is_all_known = rights.may_everywhere(Verb.READ) or answer.transaction_id is None
    return answer if is_all_known else refuse_missing(answer.transaction_id or "")

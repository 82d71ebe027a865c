"""End transaction: resolutions into the journal, the answer from the op topic (design section 6)."""

from collections.abc import Sequence

from bridge.core.message import Message
from bridge.core.record import EndRecord
from bridge.core.record_codec import encode_end
from bridge.core.transaction import TransactionView, is_transaction_id, queue_of
from bridge.fault_points import FaultPoint, reach
from bridge.service.admission import is_text
from bridge.service.answers import (
    answer_end,
    compare_end,
    refuse_missing,
    refuse_put,
    refuse_unavailable,
    refuse_unknown,
)
from bridge.service.contract import Accepted, EndCall, Outcome, RefusalCode, Refused
from bridge.service.journal import Deadline
from bridge.service.ports import ServicePorts
from bridge.service.reads import refuse_read
from bridge.service.replies import ReplyBatch
from bridge.store.message_store import PutStatus

EndAnswer = TransactionView | Accepted | Refused
_REFUSED = PutStatus.REFUSED
_STEP_RECORDS = 256  # are made in about a millisecond


class Ender:
    """Ends lists of transactions: one put, one future."""

    def __init__(self, ports: ServicePorts) -> None:
        self._ports = ports

    async def end(self, calls: Sequence[EndCall], deadline: Deadline, *, is_awaited: bool) -> list[EndAnswer]:
        """An answer for each call, same order; Accepted, once durable, if it is not awaited until settled."""
        make = self._settle if is_awaited else self._append
        answers: list[EndAnswer | None] = [self._check(call) for call in calls]
        open_places = [place for place, answer in enumerate(answers) if answer is None]
        if calls and len(open_places) == len(calls):
            return await make(calls, deadline)
        if open_places:
            made = await make([calls[place] for place in open_places], deadline)
            for place, answer in zip(open_places, made, strict=True):
                answers[place] = answer
        return [answer for answer in answers if answer is not None]

    def _check(self, call: EndCall) -> Refused | None:
        """Ids that cannot exist are refused without a record."""
        if not is_possible_id(call.transaction_id, self._ports.topics.queues):
            return refuse_missing(call.transaction_id)
        if call.group is None and call.actor is None and call.reason is None:
            return None
        for name, text in (("producer_group", call.group), ("actor", call.actor), ("reason", call.reason)):
            if text is not None and not is_text(text, self._ports.limits.max_text_chars):
                detail = "too long, or holds a byte that is not allowed"
                return Refused(RefusalCode.INVALID_REQUEST, detail, errors=((f"/{name}", detail),))
        return None

    async def _append(self, calls: Sequence[EndCall], deadline: Deadline) -> list[EndAnswer]:
        messages = await self._encode(calls, [None] * len(calls))
        results = await self._ports.journal.append(messages, deadline)
        return [
            refuse_put(result, call.transaction_id) or Accepted(call.transaction_id, call.resolution)
            for call, result in zip(calls, results, strict=True)
        ]

    async def _settle(self, calls: Sequence[EndCall], deadline: Deadline) -> list[EndAnswer]:
        hearing = self._ports.hearing
        if not (hearing.follower.is_ready and hearing.waiters.has_room(len(calls))):
            detail = "answers of the settlers cannot be heard now"
            return [refuse_unavailable(detail, call.transaction_id) for call in calls]
        wait = hearing.waiters.open([call.transaction_id for call in calls])
        try:
            messages = await self._encode(calls, wait.requests)
            reach(FaultPoint.END_UNSENT)
            refused = await self._put(calls, messages, wait, deadline)
            reach(FaultPoint.END_ACKED)
            await wait.until(deadline)
        finally:
            wait.close()
        reach(FaultPoint.END_HEARD)
        answers = [
            refused.get(place) or (answer_end(call, heard) if heard else refuse_unknown(call.transaction_id))
            for place, (call, heard) in enumerate(zip(calls, wait.heard, strict=True))
        ]
        return await self._find_forgotten(calls, answers, deadline)

    async def _put(
        self, calls: Sequence[EndCall], messages: Sequence[Message], wait: ReplyBatch, deadline: Deadline
    ) -> dict[int, Refused]:
        """Refusals by place. Of what may be written the settlers may still tell."""
        refused: dict[int, Refused] = {}
        for place, result in enumerate(await self._ports.journal.append(messages, deadline)):
            if result.status is _REFUSED and (refusal := refuse_put(result, calls[place].transaction_id)):
                refused[place] = refusal
                wait.drop(place)
        return refused

    async def _find_forgotten(
        self, calls: Sequence[EndCall], answers: Sequence[TransactionView | Refused | None], deadline: Deadline
    ) -> list[EndAnswer]:
        """None: the owner of the queue does not know it any more. The projection does not forget."""
        known: list[EndAnswer] = [answer for answer in answers if answer is not None]
        if len(known) == len(calls):
            return known
        forgotten = {call.transaction_id for call, answer in zip(calls, answers, strict=True) if answer is None}
        reads = self._ports.lookups.reads
        read = await reads.find(forgotten, deadline)
        missing = {} if read.value is None else await reads.refuse_all_missing(forgotten - read.value.keys())
        found: list[EndAnswer] = []
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
        topic, born_ms = self._ports.topics.half, self._ports.clock.now_ms()
        messages: list[Message] = []
        for call, request in zip(calls, requests, strict=True):
            if len(messages) % _STEP_RECORDS == _STEP_RECORDS - 1:
                await self._ports.turns.take()
            record = EndRecord(
                call.transaction_id,
                call.resolution,
                call.source,
                born_ms,
                call.group,
                request,
                call.check_number,
                None,  # endpoint, status and latency are the checker's to tell
                0,
                0,
                call.actor,
                call.reason,
            )
            messages.append(encode_end(record, topic, queue_of(call.transaction_id)))
        return messages


def is_possible_id(transaction_id: str, queues: int) -> bool:
    """Whether a transaction could have this id."""
    return is_transaction_id(transaction_id) and queue_of(transaction_id) < queues


def _refuse_lookup(refused: Refused) -> Refused:
    """This end changed nothing, but an earlier one may have: "not applied" would be read as "not committed"."""
    return Refused(
        refused.code,
        refused.detail,
        Outcome.UNKNOWN,
        refused.transaction_id,
        retry_after_s=refused.retry_after_s,
    )

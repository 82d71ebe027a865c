"""Operators' acts on one transaction: ask now, resume, force, abandon. Audited before and after."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from bridge.clock import KafkaTime
from bridge.core.errors import SqlUnavailable
from bridge.core.grants import EVERYTHING, Rights, Verb
from bridge.core.message import Message
from bridge.core.op_message import AnswerCode
from bridge.core.record import Act, ActRecord, Resolution, Source
from bridge.core.record_codec import encode_act
from bridge.core.topics import InternalTopics
from bridge.core.transaction import TransactionState, TransactionView, can_exist, queue_of
from bridge.fault_points import FaultPoint, reach
from bridge.service.admission import is_text
from bridge.service.contract import (
    FINAL,
    EndCall,
    Limits,
    Outcome,
    RefusalCode,
    Refused,
    refuse_given_up,
    refuse_missing,
    refuse_unavailable,
    refuse_unknown,
    refuse_view,
)
from bridge.service.end import Ender
from bridge.service.journal import Deadline
from bridge.service.reads import CurrentReads, refuse_read
from bridge.service.replies import ReceivedReply
from bridge.sql.access import ActEntry, record_act
from bridge.sql.engine import Database

_LOG = structlog.get_logger()
Members = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Who:
    """Who acts, why, and what he may do."""

    actor: str
    reason: str
    rights: Rights = EVERYTHING


class AuditTrail:
    """Keeps who did what."""

    def __init__(self, database: Database, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self._database = database

    async def record(self, who: Who, what: str, target: str, before: Members | None, after: Members | None) -> bool:
        """Whether the entry is kept."""
        entry = ActEntry(self.now_ms(), who.actor, what, target, who.reason or None, before, after)
        try:
            await self._database.run(lambda connection: record_act(connection, entry))
        except SqlUnavailable as error:
            _LOG.error("audit_not_kept", what=what, target=target, reason=str(error))
            return False
        return True


class Operators:
    """What an operator may do to a transaction. Nothing is done that cannot be audited first."""

    def __init__(
        self,
        ender: Ender,
        reads: CurrentReads,
        trail: AuditTrail,
        topics: InternalTopics,
        limits: Limits,
        kafka_time: KafkaTime,
    ) -> None:
        self._ender = ender
        self._reads = reads
        self._trail = trail
        self._half = topics.half
        self._max_text_chars = limits.max_text_chars
        self._kafka_time = kafka_time

    async def act(self, transaction_id: str, act: Act, who: Who, wait_ms: int = 10_000) -> TransactionView | Refused:
        """Asks the group now (CHECK), gives a parked transaction a new life (RESUME), a blocked commit up (ABANDON)."""
        if act is Act.ABANDON and not who.reason.strip():
            return Refused(RefusalCode.INVALID_REQUEST, "abandon needs a reason", transaction_id=transaction_id)
        deadline = Deadline.after(self._kafka_time.clock, wait_ms)
        view = await self._find(transaction_id, who, deadline)
        if isinstance(view, Refused):
            return view
        if (refused := self._refuse_act(act, view)) is not None:
            return refused
        what = f"transaction.{act.value.lower()}"
        if not await self._trail.record(who, what, transaction_id, describe(view), None):
            return refuse_unavailable("the act could not be audited", transaction_id)
        reach(FaultPoint.ACT_AUDITED)
        record = ActRecord(transaction_id, act, who.actor, who.reason, self._trail.now_ms())
        answer = (await self.append_acts([record], deadline))[0]
        await self._trail.record(who, f"{what}.answered", transaction_id, describe(view), describe(answer))
        return answer

    async def force(
        self, transaction_id: str, resolution: Resolution, who: Who, wait_ms: int = 10_000
    ) -> TransactionView | Refused:
        """Ends the transaction in the operator's name."""
        if not who.reason.strip() or resolution is Resolution.UNKNOWN:
            detail = "force needs COMMIT or ROLLBACK, and a reason"
            return Refused(RefusalCode.INVALID_REQUEST, detail, transaction_id=transaction_id)
        deadline = Deadline.after(self._kafka_time.clock, wait_ms)
        view = await self._find(transaction_id, who, deadline)
        if isinstance(view, Refused):
            return view
        if not await self._trail.record(who, "transaction.force", transaction_id, describe(view), None):
            return refuse_unavailable("the act could not be audited", transaction_id)
        call = EndCall(transaction_id, resolution, source=Source.OPERATOR, actor=who.actor, reason=who.reason)
        answer = (await self._ender.settle([call], deadline))[0]
        await self._trail.record(who, "transaction.force.answered", transaction_id, describe(view), describe(answer))
        return answer

    async def audit_reading(self, view: TransactionView, who: Who) -> Refused | None:
        """Keeps that somebody looks at the messages of this transaction; why he may not."""
        if (refused := refuse_view(who.rights, Verb.ADMIN, view)) is not None:
            return refused
        if await self._trail.record(who, "transaction.read-messages", view.transaction_id, None, None):
            return None
        return refuse_unavailable("the look at it could not be audited", view.transaction_id)

    async def _find(self, transaction_id: str, who: Who, deadline: Deadline) -> TransactionView | Refused:
        if not can_exist(transaction_id, self._reads.queues):
            return refuse_missing(transaction_id)
        if not all(is_text(text, self._max_text_chars) for text in (who.actor, who.reason)):
            return Refused(RefusalCode.INVALID_REQUEST, "actor or reason cannot be used", transaction_id=transaction_id)
        view = await self._reads.find_one(transaction_id, deadline)
        return view if isinstance(view, Refused) else refuse_view(who.rights, Verb.OPERATE, view) or view

    def _refuse_act(self, act: Act, view: TransactionView) -> Refused | None:
        if view.is_unproven:
            return refuse_given_up(view)
        if act is Act.ABANDON:
            return None if view.blocked else _refuse_not_blocked(view)
        if act is Act.RESUME:
            return (
                None if view.state is TransactionState.PARKED else _refuse_not_parked(view.transaction_id, view.state)
            )
        if view.state is not TransactionState.PREPARED:
            detail = f"the transaction is {view.state.value}; only a PREPARED one is asked about"
            return Refused(RefusalCode.ALREADY_RESOLVED, detail, transaction_id=view.transaction_id, state=view.state)
        early_ms = (view.first_check_ms or 0) - (self._kafka_time.now_ms() or self._trail.now_ms())
        if view.check_times == 0 and early_ms > 0:
            detail = "the first check is not due yet"
            code, again_s = RefusalCode.TOO_EARLY, early_ms // 1000 + 1
            return Refused(code, detail, transaction_id=view.transaction_id, state=view.state, retry_after_s=again_s)
        return None

    async def end_parked(
        self, ids: Sequence[str], resolution: Resolution, who: Who, deadline: Deadline
    ) -> list[TransactionView | Refused]:
        """Ends those that are not prepared again, same order. Neither checked nor audited here.

        Lists may be old: what was resumed since is its group's, whose local transaction may be under way. A queue whose
        projection is late holds up no other.
        """
        by_queue: dict[int, list[str]] = {}
        for i in ids:
            by_queue.setdefault(queue_of(i), []).append(i)
        reads = await asyncio.gather(*[self._reads.find(some, deadline) for some in by_queue.values()])
        refused: dict[str, Refused] = {}
        for some, read in zip(by_queue.values(), reads, strict=True):
            if read.value is None:
                refused |= {i: refuse_read(read.currency, i) for i in some}
            else:
                resumed = [view for view in read.value.values() if view.state is TransactionState.PREPARED]
                refused |= {v.transaction_id: _refuse_not_parked(v.transaction_id, v.state) for v in resumed}
        source, left = Source.OPERATOR, [i for i in ids if i not in refused]
        calls = [EndCall(i, resolution, source=source, actor=who.actor, reason=who.reason) for i in left]
        answers = iter(await self._ender.settle(calls, deadline))
        return [refused[i] if i in refused else next(answers) for i in ids]

    async def append_acts(self, records: Sequence[ActRecord], deadline: Deadline) -> list[TransactionView | Refused]:
        """Appends acts and returns the outcome of each, same order. Neither checked nor audited here."""

        async def encode(requests: Sequence[str]) -> list[Message]:
            return [
                encode_act(replace(record, request=request), self._half, queue_of(record.transaction_id))
                for record, request in zip(records, requests, strict=True)
            ]

        ids = [record.transaction_id for record in records]
        heard = await self._ender.ask(ids, encode, deadline, FaultPoint.ACT_ACKED, is_named=True)
        return [_answer_act(*pair) for pair in zip(records, heard, strict=True)]


def describe(answer: TransactionView | Refused) -> Members:
    """What an audit entry says of a transaction, or of why nothing came of it."""
    if isinstance(answer, Refused):
        outcome = answer.outcome or Outcome.NOT_APPLIED
        return {"refused": answer.code.value, "outcome": outcome.value}
    members = {"state": answer.state.value, "blocked": answer.blocked, "check_times": answer.check_times}
    return members | {"by": answer.by} | ({"abandoned": True} if answer.abandoned else {})


def _answer_act(record: ActRecord, heard: ReceivedReply | Refused | None) -> TransactionView | Refused:
    if not isinstance(heard, ReceivedReply):
        return heard or refuse_unknown(record.transaction_id)
    view = heard.view
    if view is None:
        return refuse_missing(record.transaction_id)
    if heard.code is AnswerCode.NOT_PARKED:
        return _refuse_not_parked(view.transaction_id, view.state)
    if record.act is Act.ABANDON:
        # without a code it is what our act has made of it
        return view if heard.code is None else _refuse_not_blocked(view)
    if view.state in FINAL:
        detail = f"the transaction is {view.state.value}"
        return Refused(RefusalCode.ALREADY_RESOLVED, detail, transaction_id=view.transaction_id, state=view.state)
    return view


def _refuse_not_blocked(view: TransactionView) -> Refused:
    now = "abandoned already" if view.abandoned else f"{view.state.value}, not a blocked commit"
    detail = f"the transaction is {now}, and nothing was changed; only a commit that is blocked can be abandoned"
    return Refused(RefusalCode.NOT_BLOCKED, detail, transaction_id=view.transaction_id, state=view.state)


def _refuse_not_parked(transaction_id: str, state: TransactionState) -> Refused:
    detail = f"the transaction is {state.value}, not PARKED"
    return Refused(RefusalCode.NOT_PARKED, detail, transaction_id=transaction_id, state=state)

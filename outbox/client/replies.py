"""Answers to calls, read with care, and when a call is sent again. Pure: time and chance are arguments.

Only what the bridge itself says counts: a proxy's page, a cut-off document, an answer about something else is
`NoReply`, which never says that nothing happened.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, TypeAlias

from outbox.client.calls import Call, Request
from outbox.client.errors import OutboxError, Outcome, OutcomeUnknown, Problem, Unavailable, refusal_of
from outbox.client.listener import Receipt, TransactionState
from outbox.client.message import Message, read_message

PROBLEM_PREFIX = "https://outbox-bridge.dev/problems/"
_STATES = frozenset(TransactionState)
_MAX_RETRY_AFTER_S = 3_600.0
_decode = json.JSONDecoder(parse_float=Decimal).decode

Members: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """A success in the bridge's own form."""

    status: int
    members: Members


@dataclass(frozen=True, slots=True)
class NoReply:
    """Nothing that can be believed. `is_sent` False: the bridge has certainly not seen the call.

    `is_away`: the bridge was not reached, or not heard. `is_final`: another try now is of no use.
    """

    why: str
    is_sent: bool = True
    retry_after_s: float | None = None
    is_away: bool = field(default=False, compare=False)
    is_final: bool = field(default=False, compare=False)
    cause: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class BatchRejected:
    """Refused as one request of many calls: each must be asked alone, for one of them spoils it.

    `reason`: what the bridge said; or NoReply: something before it said no, and may have let it through all the same.
    """

    reason: Problem | NoReply


CallResult: TypeAlias = Reply | Problem | NoReply | BatchRejected


def unwrap(told: CallResult) -> Reply | Problem | NoReply:
    """What was said, be it of one call or of the request that it was part of."""
    return told.reason if isinstance(told, BatchRejected) else told


@dataclass(frozen=True, slots=True)
class Answer:
    """What came over the wire. `retry_after`: that header as it is. `kafka_time_ms`: what the bridge says of it."""

    status: int
    body: bytes
    retry_after: str | None = None
    received: datetime | None = None
    kafka_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A stored half message. `queue_id` and `queue_offset`: its place in the journal."""

    transaction_id: str
    producer_group: str
    born_time: datetime | None
    first_check_at: datetime | None
    queue_id: int | None
    queue_offset: int | None


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transaction as it is recorded. `is_blocked`: committed, its publication is being retried, for `reason`.
    `is_abandoned`: committed, but an operator has given it up while it was blocked: it is never published.

    Answers to ends leave out what only a look-up returns: `born_time` and what follows.
    """

    transaction_id: str
    producer_group: str
    state: TransactionState
    is_blocked: bool = False
    reason: str | None = None
    resolved_by: str | None = None
    resolved_at: datetime | None = None
    receipts: tuple[Receipt, ...] = ()
    next_check_at: datetime | None = None
    check_times: int = 0
    queue_id: int | None = None
    queue_offset: int | None = None
    born_time: datetime | None = None
    first_check_at: datetime | None = None
    ordering_key: str | None = None
    idempotency_key: str | None = None
    messages: tuple[Message, ...] = ()
    is_abandoned: bool = False


def read_answer(answer: Answer, call: Call | Request) -> CallResult:
    """The answer to a call that went alone."""
    document = _read_document(answer.body)
    if not 200 <= answer.status < 300:
        return _read_problem(document, answer.status) or _surprise(answer)
    if answer.status == 204 and not answer.body and not _expects_transaction(call):
        return Reply(answer.status, {})
    if document is None:
        return _surprise(answer)
    return _read_success(answer.status, document, call) or _surprise(answer)


def read_answers(answer: Answer, calls: list[Call]) -> list[CallResult]:
    """The answers to calls that went together, one for each."""
    document = _read_document(answer.body)
    if not 200 <= answer.status < 300:
        told = _read_problem(document, answer.status) or _surprise(answer, len(calls))
        is_spoilt = len(calls) > 1 and 400 <= answer.status < 500 and answer.status not in {408, 425, 429}
        return [BatchRejected(told) if is_spoilt else told] * len(calls)
    results = None if document is None else document.get("results")
    if not isinstance(results, list) or len(results) != len(calls):
        return [_surprise(answer)] * len(calls)
    return [_read_result(result, call) for result, call in zip(results, calls, strict=True)]


def read_prepared(members: Members) -> Prepared:
    """A stored half message."""
    return Prepared(
        members["transaction_id"],
        str(members.get("producer_group", "")),
        _time(members.get("born_time")),
        _time(members.get("first_check_at")),
        _integer(members.get("queue_id")),
        _integer(members.get("queue_offset")),
    )


def read_view(members: Members) -> TransactionView:
    """A transaction."""
    return TransactionView(
        transaction_id=members["transaction_id"],
        producer_group=str(members.get("producer_group", "")),
        state=TransactionState(members["state"]),
        is_blocked=members.get("blocked") is True,
        is_abandoned=members.get("abandoned") is True,
        reason=_text(members.get("reason")),
        resolved_by=_text(members.get("resolved_by")),
        resolved_at=_time(members.get("resolved_at")),
        receipts=_receipts(members.get("receipts")),
        next_check_at=_time(members.get("next_check_at")),
        check_times=_integer(members.get("check_times")) or 0,
        queue_id=_integer(members.get("queue_id")),
        queue_offset=_integer(members.get("queue_offset")),
        born_time=_time(members.get("born_time")),
        first_check_at=_time(members.get("first_check_at")),
        ordering_key=_text(members.get("ordering_key")),
        idempotency_key=_text(members.get("idempotency_key")),
        messages=_messages(members.get("messages")),
    )


def read_retry_after(value: str | None, received: datetime | None = None) -> float | None:
    """Seconds from the header, which is a number or a date. Source: RFC 9110 section 10.2.3."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdecimal():
        return min(float(value), _MAX_RETRY_AFTER_S)
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if received is None:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max((moment - received).total_seconds(), 0.0), _MAX_RETRY_AFTER_S)


def _read_document(body: bytes) -> Members | None:
    """A JSON object, or None."""
    try:
        document = _decode(body.decode())
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _read_success(status: int, members: Members, call: Call | Request) -> Reply | None:
    """None for what cannot be the answer to this call."""
    if not _expects_transaction(call):
        return Reply(status, members)
    transaction_id = members.get("transaction_id")
    is_stored = status == 202 and isinstance(call, Call) and call.kind.prefers_async and "resolution" in members
    if not isinstance(transaction_id, str) or not transaction_id:
        return None
    state = members.get("state")
    if not (isinstance(state, str) and state in _STATES) and not is_stored:
        return None
    if call.transaction_id is not None and transaction_id != call.transaction_id:
        return None
    return Reply(status, members)


def _read_result(result: object, call: Call) -> CallResult:
    if not isinstance(result, dict):
        return NoReply("a result in the answer is none")
    status = result.get("status")
    if not isinstance(status, int) or isinstance(status, bool):
        return NoReply("a result in the answer has no status")
    is_success = 200 <= status < 300
    told = _read_success(status, result, call) if is_success else _read_problem(result.get("problem"), status)
    return told or NoReply(f"a result in the answer cannot be read (status {status})")


def _expects_transaction(call: Call | Request) -> bool:
    return isinstance(call, Call) or call.transaction_id is not None


def _read_problem(document: object, status: int) -> Problem | None:
    """A problem of the bridge's own types; None for any other document."""
    if not isinstance(document, dict):
        return None
    kind, told_status = document.get("type"), document.get("status")
    if not isinstance(kind, str) or not kind.startswith(PROBLEM_PREFIX) or told_status != status:
        return None
    outcome = _text(document.get("outcome"))
    return Problem(
        code=kind.removeprefix(PROBLEM_PREFIX),
        status=status,
        title=_text(document.get("title")) or "",
        detail=_text(document.get("detail")) or "",
        request_id=_text(document.get("instance")) or "",
        outcome=Outcome(outcome) if outcome in set(Outcome) else None,
        transaction_id=_text(document.get("transaction_id")),
        state=_text(document.get("state")),
        errors=_places(document.get("errors")),
        retry_after_s=_seconds(document.get("retry_after")),
    )


def _surprise(answer: Answer, calls: int = 1) -> NoReply:
    """Never shows the body: a proxy may repeat the request in it."""
    why = f"status {answer.status} and {len(answer.body)} bytes that are no answer of the bridge"
    is_size = answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    if is_size:
        why += "; what stands before it takes less than it does (of nginx, raise client_max_body_size)"
    return NoReply(
        why,
        retry_after_s=read_retry_after(answer.retry_after, answer.received),
        is_away=not is_size,
        is_final=is_size and calls == 1,
    )


def _places(errors: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(errors, list):
        return ()
    return tuple(
        (str(error.get("pointer", error.get("parameter", ""))), str(error.get("detail", "")))
        for error in errors
        if isinstance(error, dict)
    )


def _receipts(listed: object) -> tuple[Receipt, ...]:
    if not isinstance(listed, list):
        return ()
    return tuple(Receipt(r["topic"], r["partition"], r["offset"]) for r in listed if _is_receipt(r))


def _is_receipt(members: object) -> bool:
    return isinstance(members, dict) and {"topic", "partition", "offset"} <= members.keys()


def _messages(listed: object) -> tuple[Message, ...]:
    """Shown messages; ones with only their sizes are none."""
    if not isinstance(listed, list) or any("value_bytes" in members for members in listed):
        return ()
    return tuple(read_message(members) for members in listed)


def _seconds(value: object) -> float | None:
    if isinstance(value, int | Decimal) and not isinstance(value, bool) and value >= 0:
        return min(float(value), _MAX_RETRY_AFTER_S)
    return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _time(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 2.0
UNREACHED_S = 1.0  # what refuses connections, or has no address, is not waited for longer
_TEMPORARY = frozenset({408, 429, 503})


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Send it again after a pause."""

    pause_s: float


class RetryPolicy:
    """One call from its first try to its answer. `chance`: a number in [0, 1) at each call. `url`: for the errors."""

    def __init__(
        self, call: Call | Request, deadline_s: float, chance: Callable[[], float], began_s: float = 0.0, url: str = ""
    ) -> None:
        self.is_alone = isinstance(call, Request)
        self.tries = 0
        self._call = call
        self._deadline_s = deadline_s
        self._chance = chance
        self._began_s = began_s
        self._now_s = began_s
        self._url = url
        self._cause: BaseException | None = None
        self._is_doubtful = False  # an earlier try may have been applied
        self._why = "the deadline passed before it was sent"
        self._transaction_id = call.transaction_id

    def left_s(self, now_s: float) -> float:
        """Time until the deadline."""
        return self._deadline_s - now_s

    def take(self, told: CallResult, now_s: float) -> Reply | RetryAfter:
        """What follows from an answer, or from none. Raises the OutboxError for the caller."""
        self.tries += 1
        self._now_s = now_s
        if isinstance(told, Reply):
            return told
        if isinstance(told, BatchRejected):
            self.is_alone, told = True, told.reason
            if isinstance(told, Problem):
                return RetryAfter(0.0)
        if isinstance(told, Problem):
            self._note_problem(told)
            if not (told.status in _TEMPORARY or told.status >= 500):
                raise self._refused(told)
            return self._again(told.retry_after_s, now_s)
        self._why, self._cause = told.why, told.cause or self._cause
        self._doubt(told.is_sent)
        if told.is_away and not told.is_sent:
            self._deadline_s = min(self._deadline_s, self._began_s + UNREACHED_S)
        if told.is_final:
            self.tries -= not told.is_sent
            raise self.give_up(told.retry_after_s)
        return self._again(told.retry_after_s, now_s)

    def give_up(self, retry_after_s: float | None = None) -> OutboxError:
        """The error at the deadline."""
        tries = "1 try" if self.tries == 1 else f"{self.tries} tries"
        why = f"{self._url}: {self._why} ({tries}, {self._now_s - self._began_s:.2f} s)"
        error: OutboxError = Unavailable(why, retry_after_s)
        if self._is_doubtful:
            error = OutcomeUnknown(why, self._transaction_id)
        error.__cause__ = self._cause
        return error

    def _note_problem(self, problem: Problem) -> None:
        self._why, self._cause = str(problem), refusal_of(problem)
        self._transaction_id = problem.transaction_id or self._transaction_id
        self._doubt(problem.outcome is Outcome.UNKNOWN or (problem.outcome is None and problem.status >= 500))

    def _doubt(self, is_doubtful: bool) -> None:
        """Reading changes nothing, whatever becomes of it."""
        is_read = isinstance(self._call, Request) and self._call.method == "GET"
        self._is_doubtful = self._is_doubtful or (is_doubtful and not is_read)

    def _refused(self, problem: Problem) -> OutboxError:
        """The refusal of a repeat does not speak of the try before it, unless it says what is recorded."""
        refused = refusal_of(problem)
        is_definite = not self._is_doubtful or isinstance(self._call, Request) or self._call.is_query
        if is_definite and problem.outcome is not Outcome.UNKNOWN:
            return refused
        unknown = OutcomeUnknown(f"an earlier try may have been applied; the last one: {problem}", self._transaction_id)
        unknown.__cause__ = refused
        return unknown

    def _again(self, retry_after_s: float | None, now_s: float) -> RetryAfter:
        is_repeatable = isinstance(self._call, Request) or self._call.is_repeatable
        if self._is_doubtful and not is_repeatable:
            raise self.give_up(retry_after_s)
        most_s = min(FIRST_PAUSE_S * 2 ** min(self.tries - 1, 10), MAX_PAUSE_S)
        pause_s = (retry_after_s or 0.0) + most_s * self._chance()
        if pause_s >= self.left_s(now_s):
            raise self.give_up(retry_after_s)
        return RetryAfter(pause_s)

"""Handing outbox rows over to the bridge: the port, its HTTP adapter, and one in memory.

A row's idempotency key makes each hand-over repeatable: the bridge publishes a row once, however often it comes.
"""

import hashlib
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

import httpx2

from outbox.client.calls import JSON, PUBLISH, Call, PrepareOptions, check_group, is_batch, join, prepare_call
from outbox.client.config import HttpConfig, check_seconds, check_url, renewed_proof, renewed_tls
from outbox.client.errors import HandOverUnavailable, InvalidMessage, Outcome, Problem
from outbox.client.listener import TransactionState
from outbox.client.message import Message
from outbox.client.replies import Answer, BatchRejected, CallResult, NoReply, Reply, read_answer, read_answers, unwrap

# the bridge has certainly not seen a request that failed so
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_TIMEOUT_S: Final = 15.0
_WAITED_PART: Final = 2 / 3  # of it, until what the bridge recorded is settled; it waits 10 s at most
_MAX_REQUEST_BYTES: Final = 1_000_000  # below what nginx takes unless told otherwise; the bridge takes 8 MiB
_MAX_ITEMS: Final = 1_000  # of a batch, the bridge's own limit
# Refusals of the row itself. Others are of the caller: a missing grant or group, a rate; they pass when that is mended.
_OF_THE_ROW: Final = frozenset(
    {HTTPStatus.CONFLICT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)
_RESERVED: Final = "reserved-topic"
_KEY_REUSED: Final = "422 idempotency-key-reused"
_SERVER_ERRORS: Final = 500
_MAX_RETRY_AFTER_MS: Final = 300_000
# Refusals of a request that one of its rows may have brought about: halves of it show which
_OF_THE_REQUEST: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A row as it is to be published. `row`: its key in its table; `row_id`: the same as text, for leases."""

    row: object
    row_id: str
    idempotency_key: str
    topic: str
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None
    ordering_key: str | None = None
    attempts: int = 0


class PublishStatus(Enum):
    """What became of a row that was handed over."""

    PUBLISHED = "published"  # recorded for good; at most its publication is being retried
    REFUSED = "refused"  # it was not, and never will be as it is
    NOT_YET = "not yet"  # it was not, and may be when it is handed over again
    UNKNOWN = "unknown"  # not known; handing it over again shows it


class PublishResult(NamedTuple):
    """A row's fate. `reason`: the bridge's words, without anything of the row's content."""

    fate: PublishStatus
    reason: str = ""


class HandOver(Protocol):
    """Takes rows and says what became of each."""

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[PublishResult]:
        """In the order of the rows. Raises HandOverUnavailable if nothing can be said of any of them."""
        ...


class HttpHandOver:
    """The bridge over HTTP. Rows go to it in one request, or in some where one would be too large."""

    def __init__(
        self, url: str, producer_group: str, client: httpx2.Client | None = None, *, timeout_s: float = _TIMEOUT_S
    ) -> None:
        """`client`: with the caller's own key, certificates and limits; it stays the caller's, who makes one for each
        process. Without, key and certificates are those that the environment names (`HttpConfig`), and its proxies do
        not count.

        `timeout_s`: of a request, below the relay's `hand_over_ms`.
        """
        check_seconds("timeout_s", timeout_s)
        self.publisher = check_group(producer_group)
        self._url = check_url(url)
        self._timeout_s = timeout_s
        self._wait_s = min(timeout_s, _TIMEOUT_S) * _WAITED_PART
        self._given = client
        self._config = HttpConfig()
        is_secured = client is None and self._url.startswith("https:")
        # certificates that cannot be read are told now; without TLS none is needed, and reading them takes long
        self._tls = renewed_tls(self._config) if is_secured else None
        self._proof = renewed_proof(self._config)
        self._own: dict[int, httpx2.Client] = {}  # by process: two on one connection would get each other's answers
        self._renewed: dict[int, httpx2.Client] = {}  # other threads may still use them

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[PublishResult]:
        """As the port says."""
        calls = [call_of(row, self.publisher) for row in rows]
        fates = iter(self._send([call for call in calls if isinstance(call, Call)]))
        return [next(fates) if isinstance(call, Call) else call for call in calls]

    def close(self) -> None:
        """Closes its own connections."""
        for clients in (self._own, self._renewed):
            if (client := clients.get(os.getpid())) is not None:
                client.close()

    def _find_client(self) -> httpx2.Client:
        """After a fork another one; that of the parent is neither used nor closed."""
        if self._given is not None:
            return self._given
        pid, tls = os.getpid(), self._tls
        if tls is not None and tls.look(time.monotonic()) and pid in self._own:
            self._renewed[pid] = self._own.pop(pid)
        return self._own.get(pid) or self._own.setdefault(pid, self._make_client())

    def _make_client(self) -> httpx2.Client:
        verify = False if self._tls is None else self._tls.current
        return httpx2.Client(timeout=self._timeout_s, verify=verify, trust_env=self._config.trust_env)

    def _send(self, calls: Sequence[Call]) -> list[PublishResult]:
        fates: list[PublishResult] = []
        for part in split_calls(calls, _MAX_REQUEST_BYTES, _MAX_ITEMS):
            try:
                fates += self._send_part(part)
            except HandOverUnavailable as error:
                if len(part) == len(calls) and (len(calls) > 1 or not error.is_sent):
                    raise  # of one alone it may be its own fault, and the others must go on
                fate = PublishStatus.UNKNOWN if error.is_sent else PublishStatus.NOT_YET
                fates += [PublishResult(fate, str(error))] * len(part)
        return fates

    def _send_part(self, calls: Sequence[Call]) -> Sequence[PublishResult]:
        answer = self._exchange(calls)
        if not is_batch(PUBLISH, len(calls)):
            return [decide(read_answer(answer, calls[0]))]
        told = read_answers(answer, list(calls))
        first = told[0]
        if isinstance(first, BatchRejected) and answer.status in _OF_THE_REQUEST:
            middle = len(calls) // 2
            return [*self._send_part(calls[:middle]), *self._send_part(calls[middle:])]
        if answer.status != HTTPStatus.OK or all(isinstance(one, NoReply) for one in told):
            raise _unavailable(first)
        return [decide(one) for one in told]

    def _exchange(self, calls: Sequence[Call]) -> Answer:
        request = join(PUBLISH, [call.item for call in calls], self._wait_s)
        self._proof.look(time.monotonic())
        proof = self._proof.current if self._given is None else {}
        try:
            response = self._find_client().request(
                request.method,
                self._url + request.target,
                content=request.body,
                headers={"Content-Type": JSON, **proof},
            )
        except httpx2.HTTPError as error:
            is_sent = not isinstance(error, _NOT_SENT)
            raise HandOverUnavailable(f"no answer: {type(error).__name__}", is_sent=is_sent) from error
        return Answer(
            response.status_code, response.content, response.headers.get("Retry-After"), received=datetime.now(UTC)
        )


class MemoryHandOver:
    """A bridge in memory: remembers what was published, each idempotency key once."""

    def __init__(self) -> None:
        self.published: list[OutboxRow] = []
        self.refused_topics: set[str] = set()
        self.unsure_topics: set[str] = set()
        self.is_away = False
        self._contents: dict[str, bytes] = {}

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[PublishResult]:
        """As the port says."""
        if self.is_away:
            raise HandOverUnavailable("away")
        return [self._publish(row) for row in rows]

    def _publish(self, row: OutboxRow) -> PublishResult:
        call = call_of(row, "memory")
        if isinstance(call, PublishResult):
            return call
        if row.topic in self.refused_topics:
            return PublishResult(PublishStatus.REFUSED, "422 unknown-topic")
        if row.topic in self.unsure_topics:
            return PublishResult(PublishStatus.UNKNOWN, "504 outcome-unknown")
        known = self._contents.setdefault(row.idempotency_key, call.item)
        if known is call.item:
            self.published.append(row)
        return (
            PublishResult(PublishStatus.PUBLISHED)
            if known == call.item
            else PublishResult(PublishStatus.REFUSED, _KEY_REUSED)
        )


def call_of(row: OutboxRow, producer_group: str) -> Call | PublishResult:
    """The call that publishes a row; its fate at once if no call could."""
    options: PrepareOptions = {"idempotency_key": row.idempotency_key, "ordering_key": row.ordering_key}
    try:
        message = Message(
            row.topic,
            key=row.key,
            value=row.value,
            headers=row.headers,
            partition=row.partition,
            timestamp_ms=row.timestamp_ms,
        )
        return prepare_call(producer_group, [message], options, is_published=True)
    except InvalidMessage as error:
        return PublishResult(PublishStatus.REFUSED, f"no message: {error}")


def decide(told: CallResult) -> PublishResult:
    """What an answer says of its row. COMMITTED: the commit is recorded; a refusal: nothing is."""
    said = unwrap(told)
    if isinstance(said, Reply):
        state = said.members["state"]
        if state == TransactionState.COMMITTED:
            return PublishResult(PublishStatus.PUBLISHED)
        is_lost = state == TransactionState.ROLLED_BACK
        return PublishResult(PublishStatus.REFUSED if is_lost else PublishStatus.UNKNOWN, f"{said.status} {state}")
    if isinstance(said, NoReply):
        return PublishResult(PublishStatus.UNKNOWN if said.is_sent else PublishStatus.NOT_YET, said.why)
    if said.status in _OF_THE_ROW or said.code == _RESERVED:
        return PublishResult(PublishStatus.REFUSED, _words(said))
    return PublishResult(PublishStatus.UNKNOWN if _is_unsure(said) else PublishStatus.NOT_YET, _words(said))


def split_calls(calls: Sequence[Call], max_bytes: int, max_items: int) -> Sequence[Sequence[Call]]:
    """The calls in order, in parts of so many bytes and items at most; a larger call is alone."""
    parts: list[list[Call]] = []
    room = 0
    for call in calls:
        size = len(call.item) + 1  # the comma between two
        if not parts or size > room or len(parts[-1]) == max_items:
            parts.append([])
            room = max_bytes
        parts[-1].append(call)
        room -= size
    return parts


def _unavailable(told: CallResult) -> HandOverUnavailable:
    """What nobody said anything of."""
    said = unwrap(told)
    if isinstance(said, NoReply):
        return HandOverUnavailable(said.why, _milliseconds(said.retry_after_s), is_sent=said.is_sent)
    if isinstance(said, Reply):  # a success of another kind than the agreed one
        return HandOverUnavailable(f"status {said.status}")
    return HandOverUnavailable(_words(said), _milliseconds(said.retry_after_s), is_sent=_is_unsure(said))


def _is_unsure(problem: Problem) -> bool:
    """Whether something may have been recorded all the same."""
    return problem.outcome is Outcome.UNKNOWN or (problem.outcome is None and problem.status >= _SERVER_ERRORS)


def _words(problem: Problem) -> str:
    return f"{problem.status} {problem.code} {problem.detail}".strip()


def _milliseconds(seconds: float | None) -> int:
    return min(round((seconds or 0) * 1000), _MAX_RETRY_AFTER_MS)


# --- as whom a row was handed over: the bridge knows keys for each producer group ---

_MARK_LENGTH: Final = 12


def make_token(publisher: str | None) -> str:
    """Of a claim. It stays in the leases of rows that may have been published, and says as whom: the bridge knows keys
    for each producer group. None: whoever hands over does not say.
    """
    if publisher is None:
        return str(uuid.uuid4())
    mark = hashlib.blake2b(publisher.encode(), digest_size=_MARK_LENGTH // 2).hexdigest()
    return f"{mark}:{uuid.uuid4().hex[:23]}"


def is_of_another(token: str, own: str) -> bool:
    """Whether a publisher is named in both tokens, and not the same."""
    marks = {each[:_MARK_LENGTH] for each in (token, own) if each[_MARK_LENGTH] == ":"}
    return len(marks) > 1

"""The check endpoint without a framework: verifies a call, looks up, answers. Mounts: `asgi`, `wsgi`, `django`.

    handler = CheckHandler(["whsec_..."], record.answers(engine))
    handler = CheckHandler(["whsec_..."], from_callable(my_own_check))

Only what is known is answered. A transaction that could not be looked up in time is left out of the reply, which
the bridge takes as no answer and asks again; if nothing is known because of an error, the reply is a 503.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from inspect import iscoroutinefunction
from typing import Final, NamedTuple

from outbox.client.checks import (
    TOLERANCE_SECONDS,
    Answer,
    AsyncAnswer,
    Check,
    CheckCall,
    SignatureVerifier,
    Tell,
    decode_call,
    encode_answer,
    encode_echo,
)
from outbox.client.connection import submit_or_run
from outbox.client.errors import CallRefused, Misuse, OutboxConfigError, SignatureRefused, is_read_only
from outbox.client.listener import Answered, read_answered

_LOG: Final = logging.getLogger("outbox")
_READ_ONLY: Final = " reason=its database takes no writes, as a standby: give the check endpoint the primary"


@dataclass(frozen=True, slots=True)
class CheckConfig:
    """Bounds. `deadline_ms` must be below the group's `call_timeout_seconds` (5)."""

    deadline_ms: int = 4_000
    max_body_bytes: int = 16 * 1024 * 1024  # one transaction of many large messages comes alone
    max_calls_at_once: int = 4
    tolerance_seconds: int = TOLERANCE_SECONDS

    def __post_init__(self) -> None:
        if min(self.deadline_ms, self.max_body_bytes, self.max_calls_at_once, self.tolerance_seconds) < 1:
            raise OutboxConfigError("limits of the check endpoint must be above 0")


class CheckResponse(NamedTuple):
    """What a mount sends."""

    status: int
    body: bytes

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Names in lower case."""
        kind = "application/json" if self.status == HTTPStatus.OK else "application/problem+json"
        allow = [("allow", "POST")] if self.status == HTTPStatus.METHOD_NOT_ALLOWED else []
        return [("content-type", kind), ("content-length", str(len(self.body))), ("cache-control", "no-store"), *allow]


class CheckCallGuard:
    """What is the same for both colours: who may ask, how large, about which groups."""

    def __init__(self, secrets: Sequence[str], producer_groups: Sequence[str] | None, config: CheckConfig) -> None:
        self._verifier = SignatureVerifier(secrets, config.tolerance_seconds)
        self._groups = None if producer_groups is None else frozenset(producer_groups)
        self.config = config

    def refuse_head(self, method: str, content_length: str | None) -> CheckResponse | None:
        """The reply that can be given before the body is read."""
        if method != "POST":
            return refuse(HTTPStatus.METHOD_NOT_ALLOWED, "checks are POSTed")
        if content_length is not None and content_length.isdecimal():
            return self.refuse_size(float(content_length))  # int() raises at some thousand digits
        return None

    def refuse_size(self, size: float) -> CheckResponse | None:
        """The reply to a body that is too large, as soon as that is known."""
        if size > self.config.max_body_bytes:
            return refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the call is too large")
        return None

    def admit(self, method: str, headers: Mapping[str, str], body: bytes) -> CheckCall | CheckResponse:
        """The call, or the reply that refuses it. Nothing in the body is read before its signature is verified."""
        refused = self.refuse_head(method, None) or self.refuse_size(len(body))
        if refused is not None:
            return refused
        try:
            self._verifier.verify(headers, body, time.time_ns() // 1_000_000)
            call = decode_call(body)
        except SignatureRefused as error:
            _LOG.warning("check_refused reason=%s", error)
            return refuse(HTTPStatus.UNAUTHORIZED, str(error))
        except CallRefused as error:
            _LOG.warning("check_refused reason=%s", error)
            return refuse(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        if self._groups is not None and call.producer_group not in self._groups:
            _LOG.warning("check_refused reason=group %s is none of this endpoint's", call.producer_group)
            return refuse(HTTPStatus.FORBIDDEN, "this endpoint does not answer for that producer group")
        if call.challenge is not None and not call.checks:
            return CheckResponse(HTTPStatus.OK.value, encode_echo(call.challenge))
        return call


class CheckHandler:
    """Answers calls on threads: for WSGI and Django, and for ASGI with a synchronous engine."""

    def __init__(
        self,
        secrets: Sequence[str],
        answer: Answer,
        *,
        producer_groups: Sequence[str] | None = None,
        config: CheckConfig | None = None,
    ) -> None:
        """`secrets`: all that sign now. `producer_groups`: None answers for any group they sign for."""
        if _is_awaited(answer):
            raise Misuse("an answer that is awaited needs an AsyncCheckHandler")
        self.gate = CheckCallGuard(secrets, producer_groups, config or CheckConfig())
        self._answer = answer
        self._make_pool()

    def respond(self, method: str, headers: Mapping[str, str], body: bytes) -> CheckResponse:
        """The reply to one request; within the deadline, whatever the database does. Header names in lower case."""
        call = self.gate.admit(method, headers, body)
        if isinstance(call, CheckResponse):
            return call
        found = Findings(call)
        if self._pid != os.getpid():  # after a fork: threads are not inherited
            self._make_pool()
        work = submit_or_run(self._pool, self._answer, call.checks, found.tell)
        try:
            work.result(self.gate.config.deadline_ms / 1000)
        except Exception as error:  # noqa: BLE001 - the outermost edge of the user's own code
            work.cancel()
            found.note(error)
        return found.reply()

    async def respond_async(self, method: str, headers: Mapping[str, str], body: bytes) -> CheckResponse:
        """The same for an event loop, which goes on meanwhile."""
        return await asyncio.to_thread(self.respond, method, headers, body)

    def close(self) -> None:
        """Lets what is under way end; for the end of the process."""
        if self._pid == os.getpid():
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _make_pool(self) -> None:
        self._pid = os.getpid()
        self._pool = ThreadPoolExecutor(self.gate.config.max_calls_at_once, thread_name_prefix="outbox-check")


class AsyncCheckHandler:
    """Answers calls in the event loop: for ASGI with an async engine or an async callable."""

    def __init__(
        self,
        secrets: Sequence[str],
        answer: AsyncAnswer,
        *,
        producer_groups: Sequence[str] | None = None,
        config: CheckConfig | None = None,
    ) -> None:
        """As CheckHandler."""
        if not _is_awaited(answer):
            raise Misuse("an AsyncCheckHandler awaits its answer; CheckHandler takes this one")
        self.gate = CheckCallGuard(secrets, producer_groups, config or CheckConfig())
        self._answer = answer
        self._turns = asyncio.Semaphore(self.gate.config.max_calls_at_once)
        self._working: set[asyncio.Task[None]] = set()

    async def respond_async(self, method: str, headers: Mapping[str, str], body: bytes) -> CheckResponse:
        """As CheckHandler.respond."""
        call = self.gate.admit(method, headers, body)
        if isinstance(call, CheckResponse):
            return call
        found = Findings(call)
        work = asyncio.create_task(self._work(call.checks, found.tell))
        self._working.add(work)
        work.add_done_callback(self._end)
        try:
            async with asyncio.timeout(self.gate.config.deadline_ms / 1000):
                await asyncio.shield(work)  # its own end after a cancel, as of a connection that hangs, may take long
        except Exception as error:  # noqa: BLE001 - the outermost edge of the user's own code
            found.note(error)
        finally:
            work.cancel()
        return found.reply()

    async def _work(self, checks: Sequence[Check], tell: Tell) -> None:
        async with self._turns:
            await self._answer(checks, tell)

    def _end(self, work: "asyncio.Task[None]") -> None:
        self._working.discard(work)
        if not work.cancelled():
            work.exception()  # what comes after the reply interests nobody


def _is_awaited(answer: object) -> bool:
    return iscoroutinefunction(answer) or iscoroutinefunction(type(answer).__call__)


class Findings:
    """What is known about the checks of one call, until the reply is made; later answers are ignored."""

    def __init__(self, call: CheckCall) -> None:
        self._asked = {check.transaction_id: check for check in call.checks}
        self._found: dict[str, Answered] = {}
        self._error: BaseException | None = None

    def tell(self, check: Check, answer: Answered) -> None:
        """Raises TypeError or KeyError at what is no answer to a check of this call."""
        read_answered(answer)
        self._found[self._asked[check.transaction_id].transaction_id] = answer

    def note(self, error: Exception) -> None:
        """Remembers, and logs by its class alone, why something is missing: messages of drivers quote values.

        Who has this logger at DEBUG, as tests do, sees the whole of it.
        """
        self._error = error
        shown = error if _LOG.isEnabledFor(logging.DEBUG) else None
        why = _READ_ONLY if is_read_only(error) else ""
        _LOG.warning(
            "checks_left_out error=%s answered=%d%s", type(error).__name__, len(self._found), why, exc_info=shown
        )

    def reply(self) -> CheckResponse:
        """The answers; 503 if an error left none."""
        found = list(self._found.items())  # a thread that is late may still add to it
        if self._error is not None and not found:
            return refuse(HTTPStatus.SERVICE_UNAVAILABLE, "nothing could be looked up in time")
        answered = [(self._asked[transaction_id], answer) for transaction_id, answer in found]
        return CheckResponse(HTTPStatus.OK.value, encode_answer(answered))


def from_callable(answer: Callable[[Sequence[Check]], Sequence[Answered | None]]) -> Answer:
    """A function of the user's own: a resolution for each check, in their order, `Remarked` to say why; None leaves
    one out."""

    def tell_all(checks: Sequence[Check], tell: Tell) -> None:
        _tell_each(checks, answer(checks), tell)

    return tell_all


def from_async_callable(answer: Callable[[Sequence[Check]], Awaitable[Sequence[Answered | None]]]) -> AsyncAnswer:
    """The same for a coroutine function."""

    async def tell_all(checks: Sequence[Check], tell: Tell) -> None:
        _tell_each(checks, await answer(checks), tell)

    return tell_all


def refuse(status: HTTPStatus, detail: str) -> CheckResponse:
    """A problem document: for the bridge, no answer."""
    problem = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail}
    return CheckResponse(status.value, json.dumps(problem).encode())


def _tell_each(checks: Sequence[Check], resolutions: Sequence[Answered | None], tell: Tell) -> None:
    pairs = list(zip(checks, resolutions, strict=True))  # the wrong number of them raises before anything is answered
    for check, resolution in pairs:
        if resolution is not None:
            tell(check, resolution)

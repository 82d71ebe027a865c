"""Producers and operators of a simulated run, and the endpoints of the producer groups.

A producer runs its local transaction only after the half message was acknowledged; what became of it is
known to `Locals` alone, which answers checks. Every answer that a caller hears is kept.
"""

import asyncio
import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from msgspec import Struct

from bridge.core.message import Message
from bridge.core.record import Act, Resolution
from bridge.core.transaction import TransactionState, TransactionView
from bridge.node import Node
from bridge.service.contract import Accepted, EndCall, Outcome, PrepareCall, Prepared, Refused, Wait
from bridge.service.operate import Who
from checker.call import EndpointCall as HttpCall
from checker.call import EndpointReply, Failure, failure_of
from tests.simulation.database import endpoint_of, instance_endpoint_of
from tests.simulation.schedule import CALM_GROUPS, Call, Deed, Local, Manner, Verb
from tests.support.virtual_time import VirtualClock

Answer = Prepared | TransactionView | Accepted | Refused


class Heard(Struct, frozen=True):
    """One answer as its caller understood it. `outcome`: ok, fail (nothing was applied) or unknown."""

    at_ms: int
    number: int
    verb: Verb | None
    """None: the prepare."""
    outcome: str
    state: TransactionState | None = None
    code: str = ""
    transaction_id: str | None = None
    began_ms: int = 0
    asked_id: str | None = None
    """The transaction that the call named."""
    view: TransactionView | None = None
    bodies: Sequence[Message] | None = None
    """What a look showed of the messages."""
    prepared: Prepared | None = None
    node: str = ""
    """Who was asked."""
    detail: str = ""
    """What a refusal says of itself."""

    def __str__(self) -> str:
        return " ".join(filter(None, [self.outcome, self.state.value if self.state else "", self.code]))


def understand(call: Call, verb: Verb | None, answer: Answer | None, began_ms: int, at_ms: int) -> Heard:
    """An answer of the service; None: the connection broke before one came."""
    if answer is None:
        return Heard(at_ms, call.number, verb, "unknown", code="connection lost", began_ms=began_ms)
    if isinstance(answer, Refused):
        outcome = "unknown" if answer.outcome is Outcome.UNKNOWN else "fail"
        return Heard(
            at_ms, call.number, verb, outcome, answer.state, answer.code.value, answer.transaction_id, began_ms,
            detail=answer.detail,
        )  # fmt: skip
    if isinstance(answer, Accepted):
        return Heard(at_ms, call.number, verb, "ok", None, "accepted", answer.transaction_id, began_ms)
    view = answer if isinstance(answer, TransactionView) else None
    prepared = answer if isinstance(answer, Prepared) else None
    return Heard(
        at_ms, call.number, verb, "ok", answer.state, "", answer.transaction_id, began_ms, view=view, prepared=prepared
    )


def prepare_call(call: Call) -> PrepareCall:
    """The request body of a transaction."""
    return PrepareCall(
        call.group,
        call.messages,
        call.ordering_key,
        call.idempotency_key,
        call.immunity_s,
        call.max_checks,
        is_published=call.is_published,
    )


_ENDS = {Verb.COMMIT: Resolution.COMMIT, Verb.ROLLBACK: Resolution.ROLLBACK}
_FORCED = {Verb.FORCE_COMMIT: Resolution.COMMIT, Verb.FORCE_ROLLBACK: Resolution.ROLLBACK}
_ACTS = {Verb.CHECK: Act.CHECK, Verb.RESUME: Act.RESUME, Verb.ABANDON: Act.ABANDON}
_OPERATOR = Who("ops", "simulated")
WAIT_MS = 2_500


async def perform(service: Node, call: Call, deed: Deed, transaction_id: str) -> Answer:
    """Asks the service of one process."""
    transactions, verb, group = service.transactions, deed.verb, deed.group
    if verb is Verb.PREPARE_AGAIN:
        return await prepare(service, call)
    if verb in _ENDS and deed.is_waited:
        return await _end(service, EndCall(transaction_id, _ENDS[verb], group), is_alone=call.number % 2 == 1)
    if verb in _ENDS:
        return (await transactions.end([EndCall(transaction_id, _ENDS[verb], group)], Wait.DURABLE, WAIT_MS))[0]
    if verb in _FORCED:
        return await transactions.force(transaction_id, _FORCED[verb], _OPERATOR, WAIT_MS)
    if verb in _ACTS:
        return await transactions.act(transaction_id, _ACTS[verb], _OPERATOR, WAIT_MS)
    return await transactions.get(transaction_id)


async def prepare(service: Node, call: Call, first_ms: int | None = None) -> Answer:
    """Every other one that can be is begun without a task, as most are by the HTTP interface."""
    transactions, asked = service.transactions, prepare_call(call)
    told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    if call.number % 2 and first_ms is None and transactions.begin_prepare(asked, WAIT_MS, partial(_tell, told)):
        return await told
    return (await transactions.prepare([asked], WAIT_MS, first_ms))[0]


async def _end(service: Node, call: EndCall, *, is_alone: bool) -> Answer:
    told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    if is_alone and service.transactions.begin_end(call, WAIT_MS, partial(_tell, told)):
        return await told
    return (await service.transactions.end([call], wait_ms=WAIT_MS))[0]


def _tell(told: "asyncio.Future[Answer]", answer: Answer) -> None:
    if not told.done():  # its caller is gone
        told.set_result(answer)


@dataclass(slots=True)
class Locals:
    """The producers' own databases: what became of each local transaction, by transaction number."""

    now_ms: Callable[[], int]
    began: dict[int, int] = field(default_factory=dict)
    calls: Mapping[int, Call] = field(default_factory=dict)

    def begin(self, number: int) -> None:
        """The half message is stored, so the local transaction runs, once."""
        self.began.setdefault(number, self.now_ms())

    def look_up(self, number: int) -> Resolution:
        """What an honest endpoint says. A local transaction that never began never will."""
        began, call = self.began.get(number), self.calls[number]
        if began is None:
            return Resolution.ROLLBACK
        if call.local is Local.NEVER or self.now_ms() < began + call.decided_ms:
            return Resolution.UNKNOWN
        return Resolution.COMMIT if call.local is Local.COMMITS else Resolution.ROLLBACK


class Asked(Struct, frozen=True):
    """One check as the endpoint received it, and the answer it gave; None: none that counts."""

    at_ms: int
    transaction_id: str
    check_number: int
    answer: Resolution | None
    node: str = ""
    """Who asked."""
    strange: str | None = None
    """What the call showed otherwise than it was prepared."""
    began_ms: int = 0
    """Of a check that was claimed: when the claim was asked for."""


class Exchange(Struct, frozen=True):
    """One call of an endpoint, which holds a slot of the process that makes it for so long."""

    began_ms: int
    at_ms: int
    group: str
    node: str
    was_answered: bool


class Begun(Struct, frozen=True):
    """One call of an endpoint as it begins, whatever becomes of it."""

    at_ms: int
    group: str
    node: str
    asked_ids: frozenset[str]


class Endpoints:
    """All producer groups' endpoints, with their own log."""

    def __init__(self, clock: VirtualClock, known: Locals, random: Random) -> None:
        self._clock = clock
        self._locals = known
        self._random = random
        self.manners: dict[str, Manner] = {}
        self.log: list[Asked] = []
        self.begun: list[Begun] = []
        self.exchanges: list[Exchange] = []  # as they ended
        self.gone: set[str] = set()
        """Groups whose instance has gone."""
        self.late: list[tuple[int, str]] = []
        """Calls of an instance that had gone: when, and by whom."""

    async def call(self, call: HttpCall, node: str) -> EndpointReply:
        """One exchange."""
        group = next(name for name in CALM_GROUPS if call.url in {endpoint_of(name), instance_endpoint_of(name)})
        checks, began_ms, known = json.loads(call.body)["checks"], self._clock.monotonic_ms(), len(self.log)
        names = frozenset(check["transaction_id"] for check in checks)
        self.begun.append(Begun(began_ms, group, node, names))
        if group in self.gone and call.url == instance_endpoint_of(group):
            self.late.append((began_ms, node))
            return EndpointReply(call.url, 1, failure=Failure.REFUSED)
        reply = await self._answer(call, group, checks, node)
        was_answered = any(told.answer is not None for told in self.log[known:] if told.transaction_id in names)
        self.exchanges.append(Exchange(began_ms, self._clock.monotonic_ms(), group, node, was_answered))
        return reply

    async def _answer(self, call: HttpCall, group: str, checks: list[dict[str, object]], node: str) -> EndpointReply:
        manner = self.manners.get(group, Manner.HONEST)
        await self._clock.sleep_ms(self._random.randrange(3))
        if manner is Manner.REFUSES:
            return EndpointReply(call.url, 1, failure=Failure.REFUSED)
        if manner is Manner.HANGS:
            self._note(checks, {}, node)
            await self._clock.sleep_ms(call.timeout_ms)
            return EndpointReply(call.url, call.timeout_ms, failure=Failure.TIMEOUT)
        if manner is Manner.SLOW:
            await self._clock.sleep_ms(call.timeout_ms * 3 // 4)
        words = {check["transaction_id"]: self.decide(number_of(check), manner) for check in checks}
        if manner in {Manner.ERROR, Manner.GARBAGE, Manner.WRONG_NONCE}:
            self._note(checks, {}, node)
        else:
            left_out = {checks[0]["transaction_id"]} if manner is Manner.LEAVES_OUT else set()
            words = {name: word for name, word in words.items() if name not in left_out}
            self._note(checks, words, node)
        status = 500 if manner is Manner.ERROR else 200
        return EndpointReply(call.url, 1, status, _write(checks, words, manner), failure=failure_of(status))

    def decide(self, number: int, manner: Manner) -> Resolution:
        """What is answered to a check of the transaction of this number."""
        honest = self._locals.look_up(number)
        if manner is Manner.UNDECIDED:
            return Resolution.UNKNOWN
        if manner is Manner.LIES:
            return self._random.choice((Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN))
        return honest

    def _note(self, checks: list[dict[str, object]], words: Mapping[str, Resolution], node: str) -> None:
        now = self._clock.monotonic_ms()
        for check in checks:
            name = str(check["transaction_id"])
            prepared = self._locals.calls[number_of(check)].messages
            number, strange = int(str(check["check_number"])), find_difference(check, prepared)
            self.log.append(Asked(now, name, number, words.get(name), node, strange))


def number_of(check: Mapping[str, object]) -> int:
    """The number of the transaction a check is about, from its first message's value."""
    message = check["messages"][0]  # type: ignore[index]
    value = message["value"].encode() if "value" in message else base64.b64decode(message["value_base64"])
    return number_of_value(value)


def number_of_value(value: bytes) -> int:
    """The same, of a value as bytes."""
    return int(value.split(b"|", 1)[0])


def same_messages(left: Sequence[Message], right: Sequence[Message]) -> bool:
    """Whether they are the same to the last byte."""

    def parts(messages: Sequence[Message]) -> list[object]:
        return [(m.topic, m.key, m.value, [tuple(h) for h in m.headers], m.queue_id, m.timestamp_ms) for m in messages]

    return parts(left) == parts(right)


def find_difference(check: Mapping[str, Any], prepared: Sequence[Message]) -> str | None:
    """What a check call shows otherwise than it was prepared."""
    shown = [_read_message(message) for message in check["messages"]]
    wanted = [
        (m.topic, m.key, m.value, [tuple(h) for h in m.headers], max(m.queue_id, -1), m.timestamp_ms) for m in prepared
    ]
    return None if shown == wanted else f"{shown} instead of {wanted}"[:500]


def _read_message(shown: Mapping[str, Any]) -> tuple[object, ...]:
    def read(text: str | None, *, is_coded: bool) -> bytes | None:
        return text if text is None else base64.b64decode(text) if is_coded else text.encode()

    def member(name: str) -> bytes | None:
        is_coded = f"{name}_base64" in shown
        return read(shown[f"{name}_base64" if is_coded else name], is_coded=is_coded)

    is_coded = "headers_base64" in shown
    headers = shown["headers_base64" if is_coded else "headers"]
    return (
        shown["topic"], member("key"), member("value"),
        [(name, read(text, is_coded=is_coded)) for name, text in headers],
        shown.get("partition", -1), shown.get("timestamp_ms"),
    )  # fmt: skip


def _write(checks: list[dict[str, object]], words: Mapping[str, Resolution], manner: Manner) -> bytes:
    if manner is Manner.GARBAGE:
        return b"<html>"
    nonce_of = {check["transaction_id"]: check["nonce"] for check in checks}
    suffix = "x" if manner is Manner.WRONG_NONCE else ""
    entries = [
        {"transaction_id": name, "nonce": f"{nonce_of[name]}{suffix}", "resolution": word.name}
        for name, word in words.items()
    ]
    return json.dumps({"resolutions": entries}).encode()

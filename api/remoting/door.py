"""What the door does with each request: the bridge's rules, in RocketMQ's words."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from api.remoting.frame import RemotingCommand, encode_stored
from api.remoting.gathering import FirstTries, Gatherer, RecentUniqueKeys
from api.remoting.groups import ConnectedGroups, Member, RemotingCallers, reply
from api.remoting.message import (
    INNER_GROUP,
    KeyRule,
    RequestCode,
    ResponseCode,
    SendRequest,
    UnreadableMessage,
    make_route,
    read_end,
    read_heartbeat,
    read_send,
    write_place,
)
from api.web.limits import ByteBudget, Quotas, Usage
from api.web.problems import PROBLEMS
from bridge.clock import Clock
from bridge.core.check_rules import CheckCalls, CheckMode, GroupSettings, is_group_name
from bridge.core.grants import Rights, Verb
from bridge.core.transaction import TransactionView
from bridge.service.access import Caller
from bridge.service.contract import Accepted, EndCall, Outcome, PrepareCall, Prepared, RefusalCode, Refused, Wait
from bridge.service.transactions import TransactionService
from bridge.sql.directory import SqlDirectory
from checker.call import Nonces

_LOG = structlog.get_logger()
PrepareAnswer = Prepared | TransactionView | Refused
EndAnswer = TransactionView | Accepted | Refused
A = TypeVar("A")
S = TypeVar("S", "_Send", "_End")
_SEND_MS = 2_500  # less than the 3 s that clients wait
_END_MS = 5_000
# Of first tries: a check may have ended what was first sent long ago, and only a look-up says so.
_ANSWER_MS, _LEAST_WAIT_MS = 5_000, 6_000
_INSIST_MS, _PAUSE_MS = 60_000, 500  # of an end whose put failed: later, a check finds out
_MOST_ENDS = 100_000
_MOST_GROUPS = 100  # of one connection
_PULLING = GroupSettings(calls=CheckCalls(mode=CheckMode.PULL))  # of groups made here, else nobody would be asked
_GO_AWAY_SINCE = 441  # ordinal of V5_1_4 in MQVersion: clients of before may not know GO_AWAY
_BUSY = {RefusalCode.UNAVAILABLE, RefusalCode.PROJECTION_BEHIND, RefusalCode.RATE_LIMITED}
_TO_REPEAT = {*_BUSY, RefusalCode.OUTCOME_UNKNOWN}  # ends that may be lost
_NOT_SERVED = (
    "this is outbox-bridge: it takes messages and publishes them to Kafka; consume them from Kafka, and use "
    "outbox-bridge's own commands to look at transactions"
)


_UNPROVEN = (
    "unauthenticated: the request is not signed with a key that is valid; nothing was applied. Give the client an "
    "AclClientRPCHook with the key_id and signing_secret that `outbox-bridge key create` shows"
)
_FOR_ANYBODY = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.CHECK_CLIENT_CONFIG})
_SENDS = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE, RequestCode.SEND_BATCH_MESSAGE})
_ENDING = RequestCode.END_TRANSACTION  # Python finds the members of an enum only slowly


@dataclass(frozen=True, slots=True)
class DoorConfig:
    """`advertised`: host:port under which clients reach the door. `max_sends`: at a time; `budget`: their bytes."""

    advertised: str
    max_message_bytes: int
    rule: KeyRule = field(default_factory=KeyRule)
    max_sends: int = 2_000
    budget: ByteBudget = field(default_factory=ByteBudget)


@dataclass(frozen=True, slots=True)
class DoorParts:
    """What of the bridge is called."""

    transactions: TransactionService
    directory: SqlDirectory
    groups: ConnectedGroups
    callers: RemotingCallers
    nonces: Callable[[], Nonces]
    clock: Clock
    quotas: Quotas


class Requester(Member, Protocol):
    """A connection that makes requests. `caller`: who made the last one."""

    caller: Caller
    groups: set[str]
    tries: FirstTries


class _Send(Struct, gc=False):
    """One that waits for its answer. `first_try_ms` None: it is looked up."""

    call: PrepareCall
    rights: Rights
    first_try_ms: int | None
    peer: Requester
    sent: SendRequest
    usage: Usage | None


class _End(Struct, gc=False):
    """`asked`: by a client that waits; the first answer is told. `until_ms`: when one that may be lost is given up."""

    call: EndCall
    rights: Rights
    asked: tuple[Requester, RemotingCommand] | None
    until_ms: int = 0


@dataclass(slots=True)
class DoorTotals:
    """Counts since the process began."""

    sends: int = 0
    first_tries: int = 0
    refused: int = 0
    ends: int = 0
    strange_ends: int = 0
    unproven: int = 0
    insisted: int = 0
    given_up: int = 0


class Door:
    """Answers requests of all connections. Between two of them it knows nothing but who speaks for which group."""

    def __init__(self, parts: DoorParts, config: DoorConfig) -> None:
        self._parts = parts
        self._config = config
        self._place = write_place(config.advertised)
        self._route = make_route(config.advertised)
        self._prepares: Gatherer[_Send, PrepareAnswer] = Gatherer(self._ask_prepares, self._give_sent, _fail)
        # apart, since what is said of a list holds for each of its calls
        self._firsts: Gatherer[_Send, PrepareAnswer] = Gatherer(self._ask_prepares, self._give_first, _fail)
        self._ends: Gatherer[_End, EndAnswer] = Gatherer(self._ask_ends, self._give_ended, _fail)
        self._keys = RecentUniqueKeys()
        self._sends = 0
        self._insisting = 0
        self._generation = 0
        self.is_draining = False
        self.totals = DoorTotals()

    @property
    def is_idle(self) -> bool:
        """Whether every send has its answer and every end is kept."""
        return self._prepares.is_idle and self._firsts.is_idle and self._ends.is_idle and not self._insisting

    def take(self, peer: Requester, request: RemotingCommand) -> None:
        """Answers now or later; a request that nobody waits for gets no answer."""
        code = request.code
        if request.is_response or (code not in _FOR_ANYBODY and not self._identify(peer, request)):
            return
        if code in _SENDS:
            self._send(peer, request)
        elif code == _ENDING:
            self._end(peer, request)
        elif not request.is_one_way:
            peer.send(self._answer_now(peer, request))

    def _identify(self, peer: Requester, request: RemotingCommand) -> bool:
        caller = self._parts.callers.identify(request)
        if caller is not None:
            peer.caller = caller
            return True
        self.totals.unproven += 1
        # 16 would be tried again, without a word of ours
        reply(peer, request, request.answer(ResponseCode.MESSAGE_ILLEGAL, _UNPROVEN))
        return False

    def review(self, peers: Iterable[Requester]) -> None:
        """Connections whose rights have changed speak no more for groups that they may not be asked about."""
        generation = self._parts.callers.generation
        if generation == self._generation:
            return
        self._generation = generation
        for peer in peers:
            caller = self._parts.callers.renew(peer.caller)
            lost = [name for name in peer.groups if caller is None or not caller.rights.may(Verb.CHECK, name)]
            self._parts.groups.leave(peer, lost)
            peer.groups.difference_update(lost)

    def leave(self, peer: Requester) -> None:
        """The connection is gone."""
        self._parts.groups.leave(peer, peer.groups)
        peer.groups.clear()

    def _answer_now(self, peer: Requester, request: RemotingCommand) -> bytes:
        code, body = request.code, b""
        if code == RequestCode.HEART_BEAT:
            return self._hear_heartbeat(peer, request)
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            body = self._route
        elif code == RequestCode.UNREGISTER_CLIENT:
            group = request.fields.get("producerGroup") or ""
            self._parts.groups.leave(peer, [group])
            peer.groups.discard(group)
        elif code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            body = b'{"consumerIdList":[]}'
        elif code != RequestCode.CHECK_CLIENT_CONFIG:
            return request.answer(ResponseCode.NOT_SUPPORTED, f"request code {code} is not served: {_NOT_SERVED}")
        return request.answer(ResponseCode.SUCCESS, body=body)

    def _hear_heartbeat(self, peer: Requester, request: RemotingCommand) -> bytes:
        try:
            heartbeat = read_heartbeat(request.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return request.answer(ResponseCode.MESSAGE_ILLEGAL, "the heartbeat is not the JSON it should be")
        for group in heartbeat.groups[:_MOST_GROUPS]:
            self._join(peer, group)
        return request.answer(
            ResponseCode.SUCCESS, None, {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"}
        )

    def _join(self, peer: Requester, group: str) -> None:
        """Checks show messages: whoever may not answer them is not asked."""
        if group in peer.groups or len(peer.groups) >= _MOST_GROUPS or not is_group_name(group):
            return
        if group != INNER_GROUP and peer.caller.rights.may(Verb.CHECK, group) and self._parts.groups.join(group, peer):
            peer.groups.add(group)

    def _send(self, peer: Requester, request: RemotingCommand) -> None:
        if (self.is_draining or self._sends >= self._config.max_sends) and (refused := self._refuse_send(request)):
            reply(peer, request, refused)
            return
        try:
            sent = read_send(request, self._config.rule, self._config.max_message_bytes)
        except UnreadableMessage as error:
            self.totals.refused += 1
            reply(peer, request, request.answer(ResponseCode.MESSAGE_ILLEGAL, str(error), {}))
            return
        call, held, caller = sent.call, sent.held_bytes, peer.caller
        if call is None:
            reply(peer, request, self._show_sent(sent, "", 0))
            return
        if not call.is_published and call.group not in peer.groups:
            self._join(peer, call.group)
        usage = self._parts.quotas.find(caller.name) if caller.key_id is not None else None
        if (busy := self._find_busy(usage, held)) is not None:
            self.totals.refused += 1
            reply(peer, request, request.answer(ResponseCode.SYSTEM_BUSY, busy))
            return
        if usage is not None:
            stored = sum([len(message.value or b"") for message in call.messages])
            usage.charge_bytes(max(len(request.body), stored))
        self._sends += 1
        self._config.budget.used += held
        self.totals.sends += 1
        first_ms = self._find_first_try(peer, sent.born_ms, call)
        asked = _Send(call, caller.rights, first_ms, peer, sent, usage)
        if first_ms is None:
            self._prepares.add(asked)
        else:
            self.totals.first_tries += 1
            self._firsts.add(asked)

    def _find_busy(self, usage: Usage | None, held: int) -> str | None:
        if self._config.budget.is_over(held, held):
            return "unavailable: too many bytes of sends are being held; nothing was applied"
        problem = None if usage is None else self._parts.quotas.enter(usage, self._sends)
        if problem is None:
            return None
        return f"rate-limited: {problem.detail}; nothing was applied; again in {problem.retry_after_s} s"

    def _give_first(self, asked: Sequence[_Send], answers: Sequence[PrepareAnswer]) -> None:
        """That it is stored is an answer as long as no check can have ended it; later, a look-up answers."""
        if self._parts.transactions.kafka_time_ms() - (_find_oldest(asked) or 0) <= _ANSWER_MS:
            self._give_sent(asked, answers)
            return
        for one, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Prepared):
                self._prepares.add(replace(one, first_try_ms=None))
            else:
                self._give_sent([one], [answer])

    def _find_first_try(self, peer: Requester, born_ms: int, call: PrepareCall) -> int | None:
        key = call.idempotency_key
        if key is None or not self._keys.add(call.group, key, self._parts.clock.monotonic_ms()):
            return None
        if self._parts.directory.settings_of(call.group).times.transaction_timeout_ms < _LEAST_WAIT_MS:
            return None
        return peer.tries.find(key, born_ms, self._parts.transactions.kafka_time_ms())

    def _refuse_send(self, request: RemotingCommand) -> bytes | None:
        if self.is_draining:
            is_old = request.version < _GO_AWAY_SINCE
            code = ResponseCode.SERVICE_NOT_AVAILABLE if is_old else ResponseCode.GO_AWAY
            return request.answer(code, "unavailable: this process ends; nothing was applied, another one takes it")
        if self._sends >= self._config.max_sends:
            detail = f"unavailable: {self._config.max_sends} sends are being served; nothing was applied"
            return request.answer(ResponseCode.SYSTEM_BUSY, detail)
        return None

    def _give_sent(self, asked: Sequence[_Send], answers: Sequence[PrepareAnswer]) -> None:
        """What is for one connection is written together."""
        now_ms, place = self._parts.transactions.kafka_time_ms(), self._place
        frames: dict[Requester, list[bytes]] = {}
        for one, answer in zip(asked, answers, strict=True):
            peer, sent, usage = one.peer, one.sent, one.usage
            request = sent.request
            self._sends -= 1
            self._config.budget.used -= sent.held_bytes
            if usage is not None:
                usage.leave()
            if isinstance(answer, Prepared):
                transaction_id, offset = answer.transaction_id, answer.queue_offset
                peer.tries.note_answer(transaction_id, now_ms)
                frame = encode_stored(request, f"{place}{offset:016X}", sent.queue_id, offset, transaction_id)
            elif isinstance(answer, TransactionView):
                frame = self._show_ended(sent, answer)
            else:
                self.totals.refused += 1
                frame = self._show_refused(sent, answer)
            if not request.is_one_way:
                frames.setdefault(peer, []).append(frame)
        for peer, written in frames.items():
            peer.send(b"".join(written))

    def _show_sent(
        self,
        sent: SendRequest,
        transaction_id: str,
        offset: int,
        told: tuple[ResponseCode, str | None] = (ResponseCode.SUCCESS, None),
    ) -> bytes:
        fields = {
            "msgId": f"{self._place}{offset:016X}",
            "queueId": str(sent.queue_id),
            "queueOffset": str(offset),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "false",
        }
        if transaction_id:
            fields["transactionId"] = transaction_id
        code, remark = told
        return sent.request.answer(code, remark, fields)

    def _show_ended(self, sent: SendRequest, view: TransactionView) -> bytes:
        """Published at once, or a repeat of one that has ended: its local transaction must not run again."""
        if sent.call is not None and not sent.call.is_published:
            detail = (
                f"idempotency-key-reused: this message was sent before, as transaction {view.transaction_id}, which is "
                f"{view.state.value}: nothing was applied; create a new Message for a new transaction"
            )
            return sent.request.answer(ResponseCode.MESSAGE_ILLEGAL, detail)
        offset = next((receipt.queue_offset for receipt in view.receipts if receipt.queue_offset is not None), 0)
        return self._show_sent(sent, "", offset)

    def _show_refused(self, sent: SendRequest, refused: Refused) -> bytes:
        remark = show_refusal(refused)
        if refused.outcome is Outcome.UNKNOWN:  # the client does not run its local transaction, and rolls back
            told = ResponseCode.FLUSH_DISK_TIMEOUT, remark
            return self._show_sent(sent, refused.transaction_id or "", 0, told)
        code = ResponseCode.SYSTEM_BUSY if refused.code in _BUSY else ResponseCode.MESSAGE_ILLEGAL
        return sent.request.answer(code, remark)

    async def _ask_prepares(self, asked: Sequence[_Send]) -> Sequence[PrepareAnswer]:
        async def ask(sends: Sequence[_Send]) -> Sequence[PrepareAnswer]:
            calls, first_ms = [one.call for one in sends], _find_oldest(sends)
            return await self._parts.transactions.prepare(calls, _SEND_MS, first_ms, sends[0].rights, _PULLING)

        return await _ask_together(asked, ask)

    def _end(self, peer: Requester, request: RemotingCommand) -> None:
        call = read_end(request, lambda nonce, transaction_id: self._parts.nonces().read(nonce, transaction_id))
        refused = None
        if call is None:
            self.totals.strange_ends += 1
            refused = ResponseCode.MESSAGE_ILLEGAL, "unknown-transaction: this bridge has given out no such thing"
        elif len(self._ends) + self._insisting >= _MOST_ENDS:
            self.totals.given_up += 1
            refused = ResponseCode.SYSTEM_BUSY, f"unavailable: {_MOST_ENDS} ends wait already; nothing was applied"
        else:
            self.totals.ends += 1
            peer.tries.note_end(call.transaction_id)
            self._ends.add(_End(call, peer.caller.rights, None if request.is_one_way else (peer, request)))
        if refused is not None:
            reply(peer, request, request.answer(*refused))

    @staticmethod
    def _answer_end(peer: Requester, request: RemotingCommand, answer: EndAnswer) -> None:
        """Success only of what is kept. What is put again may still be applied, so it is not known."""
        if not isinstance(answer, Refused):
            peer.send(request.answer(ResponseCode.SUCCESS))
        elif answer.code in _TO_REPEAT:
            peer.send(request.answer(ResponseCode.FLUSH_DISK_TIMEOUT, f"not known yet: {answer.detail}"))
        else:
            peer.send(request.answer(ResponseCode.MESSAGE_ILLEGAL, show_refusal(answer)))

    def _give_ended(self, ends: Sequence[_End], answers: Sequence[EndAnswer]) -> None:
        """Nobody hears most of them: an end that may be lost is put again, which changes nothing if it is not."""
        for end, answer in zip(ends, answers, strict=True):
            if end.asked is not None:
                self._answer_end(*end.asked, answer)
                end.asked = None
            if isinstance(answer, Refused):
                self._look_after(end, answer)

    def _look_after(self, end: _End, refused: Refused) -> None:
        if refused.code not in _TO_REPEAT:
            _LOG.info("remoting_end_refused", transaction=end.call.transaction_id, code=refused.code.value)
            return
        now_ms = self._parts.clock.monotonic_ms()
        end.until_ms = end.until_ms or now_ms + _INSIST_MS
        if now_ms >= end.until_ms:
            self.totals.given_up += 1
            _LOG.warning("remoting_end_given_up", transaction=end.call.transaction_id, reason=refused.detail)
            return
        self._insisting += 1
        self.totals.insisted += 1
        asyncio.get_running_loop().call_later(_PAUSE_MS / 1000, self._insist, end)

    def _insist(self, end: _End) -> None:
        self._insisting -= 1
        self._ends.add(end)

    async def _ask_ends(self, asked: Sequence[_End]) -> Sequence[EndAnswer]:
        async def ask(ends: Sequence[_End]) -> Sequence[EndAnswer]:
            calls = [one.call for one in ends]
            return await self._parts.transactions.end(calls, Wait.DURABLE, _END_MS, ends[0].rights)

        return await _ask_together(asked, ask)


def _find_oldest(asked: Sequence[_Send]) -> int | None:
    """Since when all their keys can exist."""
    return min([one.first_try_ms for one in asked if one.first_try_ms is not None], default=None)


async def _ask_together(asked: Sequence[S], ask: Callable[[Sequence[S]], Awaitable[Sequence[A]]]) -> Sequence[A]:
    """Answers in the same order. Calls of one caller are one list; nobody's list waits for another's."""
    by_rights: dict[int, list[S]] = {}
    for one in asked:
        by_rights.setdefault(id(one.rights), []).append(one)
    if len(by_rights) == 1:
        return await ask(asked)
    made = await asyncio.gather(*map(ask, by_rights.values()))
    answers = dict(zip(by_rights, map(iter, made), strict=True))
    return [next(answers[id(one.rights)]) for one in asked]


def show_refusal(refused: Refused) -> str:
    """What reaches the exception of a Java client: what is wrong, whether anything was applied, and what to do."""
    kind, where = PROBLEMS[refused.code.value], ""
    if refused.code is RefusalCode.INVALID_REQUEST:  # its detail is said of a member, which is named nowhere else
        where = "".join([f" ({pointer})" for pointer, _ in refused.errors[:1]])
    return f"{kind.slug}: {refused.detail}{where}. {kind.remedy}"


def _fail(error: Exception) -> Refused:
    _LOG.error("remoting_batch_failed", exc_info=error)
    return Refused(RefusalCode.OUTCOME_UNKNOWN, "not known: the bridge failed", Outcome.UNKNOWN)

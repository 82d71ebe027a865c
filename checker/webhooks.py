"""Webhooks: the operators' own systems are told what needs a person. One process of all tells, under a lease.

Each event is kept in SQL with the mark that says how far was looked, until its receiver has answered 2xx: it comes at
least once, with the id it always has. Every receiver has its own queue, in order, and a loop of its own; nobody but
that loop waits for it.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import structlog

from bridge.clock import Clock
from bridge.core.check_rules import Backoff
from bridge.core.errors import MalformedRecord, SqlUnavailable, StoreError, UnknownRecordVersion
from bridge.core.message import MessageQueue, StoredMessage
from bridge.core.properties import decode_properties
from bridge.core.record_codec import decode_parked
from bridge.core.topics import PARKED_QUEUE, InternalTopics
from bridge.core.transaction import MAX_CHECKS, MAX_LIFE, NO_ENDPOINT, show_time
from bridge.service.contract import Refused
from bridge.service.groups import refuse_sql
from bridge.service.operate import Who
from bridge.sql.access import ActEntry, record_act
from bridge.sql.engine import Database
from bridge.sql.events import (
    CLOUD_EVENTS_JSON,
    PARKED,
    CloudEvent,
    Delivery,
    Happening,
    RoundCounts,
    Surroundings,
    Waiting,
    find_delivery,
    keep_events,
    make_cloud_event,
    name_source,
    note_failure,
    read_surroundings,
    read_waiting,
    remove_delivery,
)
from bridge.sql.identity import TopicIdentity, read_identity, read_now_ms
from bridge.store.message_store import MessageStore
from checker.call import CheckCaller, EndpointCall, Failure, sign_call
from checker.concurrency import read_pause_ms

_LOG = structlog.get_logger()
T = TypeVar("T")

FAILING, RECOVERED = "group.failing", "group.recovered"
STALLED, FINDINGS, TEST = "queue.stalled", "reconciliation.findings", "webhook.test"
EVENT_TYPES = (PARKED, FAILING, RECOVERED, STALLED, FINDINGS)

OUTCOMES = ("told", "failed", "given-up", "no-room")
MOST_WAITING = 10_000  # for one receiver; what comes then is not kept for it
KEPT_MS = 86_400_000
FAILING_AFTER_MS, FAILING_ROUNDS = 60_000, 3
STALLED_AFTER_MS = 60_000
LOOK_MS = 2_000
_IDLE_MS = 1_000
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 1_000, 600_000
_TIMEOUT_MS = 10_000
_MOST_ANSWER_BYTES = 64 * 1024
_PORTION = 50  # records of the parked topic, with their bodies
_REFUSING = frozenset({400, 413, 415, 422})  # this event, not the bridge
_MOST_REFUSALS = 5
_PARK_REASONS = frozenset({MAX_CHECKS, MAX_LIFE, NO_ENDPOINT})


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """A receiver. `secrets` (`whsec_…`): all of them sign, so that one can follow another."""

    name: str
    url: str = field(repr=False)
    secrets: Sequence[str] = field(repr=False)
    events: Collection[str] = EVENT_TYPES

    @property
    def place(self) -> str:
        """For people: a path or query may be secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


class WebhookAttempt(NamedTuple):
    """One call. `failure`: why it was in vain, None if the receiver has the event."""

    status: int
    failure: str | None
    latency_ms: int
    retry_after: str | None = None


class WebhookStatus(NamedTuple):
    """A receiver and what waits for it, None where nothing does."""

    target: WebhookTarget
    waiting: Waiting | None


@dataclass(frozen=True, slots=True)
class WebhookPorts:
    """`read_ages`: milliseconds by which the settling of each queue is late. `clock`: dates signatures.
    `make_text`: a text nobody can guess. `random`: 0 to 1."""

    store: MessageStore
    topics: InternalTopics
    database: Database
    clock: Clock
    caller: CheckCaller
    read_ages: Callable[[], Awaitable[Mapping[int, int]]]
    make_text: Callable[[], str]
    random: Callable[[], float]


class _Found(NamedTuple):
    """What a look found, and where the next one goes on, once it is kept."""

    happenings: list[Happening]
    marks: dict[str, str | None]
    groups: dict[str, "GroupMark"]


class Webhooks:
    """`waiting`: as the last look found it. `counts`: by webhook and what became of it, in this process."""

    def __init__(self, targets: Sequence[WebhookTarget], ports: WebhookPorts) -> None:
        self.targets = targets
        self.counts: Counter[tuple[str, str]] = Counter()
        self.waiting: Mapping[str, Waiting] = {}
        self._ports = ports
        self._groups: dict[str, GroupMark] = {}
        # by webhook: the event that was tried last, and what came of it, until SQL has taken note of that
        self._unnoted: dict[str, tuple[str, WebhookAttempt]] = {}

    async def work(self) -> None:
        """Looks and tells until cancelled; to be run by one process at a time."""
        self._groups, self._unnoted = {}, {}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._look_forever())
                for target in self.targets:
                    tasks.create_task(self._tell_forever(target))
        finally:
            self.waiting = {}  # whoever tells now knows

    async def list(self) -> Sequence[WebhookStatus] | Refused:
        """All receivers."""
        try:
            waiting = await self._ports.database.read(read_waiting)
        except SqlUnavailable as error:
            return refuse_sql(error)
        return [WebhookStatus(target, waiting.get(target.name)) for target in self.targets]

    async def report(self, happening: Happening, who: Who) -> int | Refused:
        """Keeps what somebody else has found for those who want it; how many there are. Audited: it wakes people."""
        now_ms, what = self._ports.clock.now_ms(), "webhook.findings"
        act = ActEntry(now_ms, who.actor, what, happening.subject, None, None, happening.data)
        try:
            identity = await self._ports.database.read(read_identity)
            event = make_cloud_event(self._name(identity), happening)
            await self._keep([event], {}, act)
        except SqlUnavailable as error:
            return refuse_sql(error)
        return len([target for target in self.targets if event.type in target.events])

    async def test(self, name: str, who: Who) -> WebhookAttempt | Refused | None:
        """Tells a receiver of a test, once and now, past what waits for it; None: there is no such receiver."""
        target = next((target for target in self.targets if target.name == name), None)
        if target is None:
            return None
        now_ms = self._ports.clock.now_ms()
        entry = ActEntry(now_ms, who.actor, "webhook.test", name, who.reason or None, None, {"url": target.place})
        try:
            identity = await self._ports.database.read(read_identity)
            await self._ports.database.run(lambda conn: record_act(conn, entry))
        except SqlUnavailable as error:
            return refuse_sql(error)
        happening = Happening(TEST, self._ports.make_text(), name, now_ms, {"webhook": name})
        event = make_cloud_event(self._name(identity), happening)
        return await self._send(target, event.event_id, event.text)

    # --- looking ---

    async def _look_forever(self) -> None:
        while True:
            is_behind = False
            try:
                is_behind = await self.look()
            except SqlUnavailable as error:
                _LOG.warning("webhooks_not_looked", reason=str(error))
            await self._ports.clock.sleep_ms(0 if is_behind else LOOK_MS)

    async def look(self) -> bool:
        """Keeps what has happened since the last look; whether there is more. What Kafka does not show now is looked
        at later, and holds up nothing else. Raises SqlUnavailable."""
        known = await self._ports.database.read(read_surroundings)
        self.waiting = known.waiting
        found = _Found([], {}, {})
        self._look_at_groups(known, found)
        self._look_at_queues(known, await self._unless_away(self._ports.read_ages()), found)
        is_behind = await self._unless_away(self._look_at_parked(known, found)) or False
        if found.happenings or found.marks:
            source = self._name(known.identity)
            events = [make_cloud_event(source, happening) for happening in found.happenings]
            await self._keep(events, found.marks)
        self._groups.update(found.groups)
        return is_behind

    async def _unless_away(self, looking: Awaitable[T]) -> T | None:
        try:
            return await looking
        except StoreError as error:
            _LOG.warning("webhooks_not_looked", reason=str(error))
            return None

    async def _keep(
        self, events: Sequence[CloudEvent], marks: Mapping[str, str | None], act: ActEntry | None = None
    ) -> None:
        wanted = {
            target.name: [event for event in events if event.type in target.events] for target in self.targets
        }  # fmt: skip
        now_ms = self._ports.clock.now_ms()

        def keep(conn: Any) -> dict[str, int]:  # noqa: ANN401
            lost = keep_events(conn, wanted=wanted, marks=marks, now_ms=now_ms, most=MOST_WAITING)
            if act is not None:
                record_act(conn, act)
            return lost

        for name, lost in (await self._ports.database.run(keep)).items():
            _LOG.error("webhook_full", webhook=name, lost=lost)
            self.counts[name, "no-room"] += lost

    async def _look_at_parked(self, known: Surroundings, found: _Found) -> bool:
        """From the parked topic on, where this was looked at last; at first from its end."""
        queue, mark = MessageQueue(self._ports.topics.parked, PARKED_QUEUE), known.marks.get("parked")
        topic_id = known.identity.get(queue.topic, TopicIdentity("", "")).topic_id
        looked_id = known.marks.get("parked-topic", topic_id)
        if looked_id != topic_id or "parked-topic" not in known.marks:
            found.marks["parked-topic"] = topic_id
        if mark is None:
            found.marks["parked"] = str((await self._ports.store.get_offsets(queue)).stable)
            return False
        begin = int(mark) if looked_id == topic_id else 0  # a topic that was made again is read from its beginning
        got = await self._ports.store.get(queue, begin, _PORTION)
        parkings = [parking for stored in got.messages if (parking := _describe_parking(stored, topic_id))]
        found.happenings.extend(parkings)
        if got.next_begin_offset != int(mark):
            found.marks["parked"] = str(got.next_begin_offset)
        return bool(got.messages)

    def _look_at_groups(self, known: Surroundings, found: _Found) -> None:
        for group, counts in known.rounds.items():
            name = f"group:{group}"
            before = self._groups.get(group) or GroupMark.load(known.marks.get(name))
            after, event_type = judge_group(before, counts)
            found.groups[group] = after
            if event_type is not None:
                since_ms = after.since_ms if event_type == FAILING else before.since_ms if before else 0
                data = {"producer_group": group, "since": show_time(since_ms), "unanswered_rounds": after.missed}
                at_ms = counts.last_unanswered_ms if event_type == FAILING else self._ports.clock.now_ms()
                found.happenings.append(Happening(event_type, f"{group}\0{since_ms}", group, at_ms, data))
            if after.since_ms or name in known.marks:
                text = after.dump() if after.since_ms else None
                if text != known.marks.get(name):
                    found.marks[name] = text

    def _look_at_queues(self, known: Surroundings, ages: Mapping[int, int] | None, found: _Found) -> None:
        """`ages` None: they cannot be told now, and queues that do not halt are left as they were."""
        now_ms = self._ports.clock.now_ms()
        for queue_id in range(self._ports.topics.queues):
            name, halt, age_ms = f"queue:{queue_id}", known.halts.get(queue_id), (ages or {}).get(queue_id, 0)
            if halt is None and ages is None:
                continue
            is_stalled = halt is not None or age_ms > STALLED_AFTER_MS
            if is_stalled == (name in known.marks):
                continue
            found.marks[name] = str(now_ms) if is_stalled else None
            if not is_stalled:
                continue
            kind, since_ms = ("settle-lag", now_ms - age_ms) if halt is None else (halt.kind.value, halt.since_ms)
            detail = f"settling is {age_ms} ms late" if halt is None else halt.detail
            data = {"queue": queue_id, "kind": kind, "detail": detail, "since": show_time(since_ms)}
            found.happenings.append(Happening(STALLED, f"{queue_id}\0{now_ms}", str(queue_id), now_ms, data))

    def _name(self, identity: Mapping[str, TopicIdentity]) -> str:
        journal = self._ports.topics.half
        return name_source(identity.get(journal, TopicIdentity("", "")).cluster_id, journal)

    # --- telling ---

    async def _tell_forever(self, target: WebhookTarget) -> None:
        backoff = Backoff(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS)
        while True:
            try:
                attempt = await self.tell_next(target)
            except SqlUnavailable as error:
                _LOG.warning("webhook_waits", webhook=target.name, reason=str(error))
                attempt = None
            if attempt is not None and attempt.failure is not None:
                await self._ports.clock.sleep_ms(self._choose_pause(backoff.next_ms(), attempt.retry_after))
                continue
            backoff.reset()
            if attempt is None:
                await self._ports.clock.sleep_ms(_IDLE_MS)

    async def tell_next(self, target: WebhookTarget) -> WebhookAttempt | None:
        """Tells a receiver the oldest event that waits for it; None if none does. Raises SqlUnavailable."""
        delivery = await self._ports.database.read(partial(find_delivery, webhook=target.name))
        if delivery is None:
            return None
        known = self._unnoted.get(target.name)
        if known is not None and known[0] == delivery.event_id:
            attempt = known[1]
        else:
            attempt = await self._send(target, delivery.event_id, delivery.body)
            self._unnoted[target.name] = delivery.event_id, attempt
        noted = await self._note(target, delivery, attempt)
        del self._unnoted[target.name]
        return noted

    async def _note(self, target: WebhookTarget, delivery: Delivery, attempt: WebhookAttempt) -> WebhookAttempt:
        database = self._ports.database
        if attempt.failure is None:
            await database.run(partial(remove_delivery, row_id=delivery.row_id))
            self.counts[target.name, "told"] += 1
            return attempt
        is_refusal = attempt.status in _REFUSING
        # once tried: the bridge may have been away for all of that day; by both clocks: this process's may be wrong
        is_old = self._ports.clock.now_ms() - delivery.created_ms > KEPT_MS
        is_old = is_old and await database.read(read_now_ms) - delivery.created_ms > KEPT_MS
        if is_old or (is_refusal and delivery.refusals + 1 >= _MOST_REFUSALS):
            return await self._give_up(target, delivery, attempt.failure)
        note = partial(note_failure, row_id=delivery.row_id, failure=attempt.failure, is_refusal=is_refusal)
        await database.run(note)
        self._count_failure(target, delivery, attempt.failure)
        return attempt

    async def _give_up(self, target: WebhookTarget, delivery: Delivery, reason: str) -> WebhookAttempt:
        await self._ports.database.run(partial(remove_delivery, row_id=delivery.row_id))
        self._count_failure(target, delivery, reason)
        self.counts[target.name, "given-up"] += 1
        _LOG.error("webhook_given_up", webhook=target.name, event_id=delivery.event_id, reason=reason)
        return WebhookAttempt(0, None, 0)

    def _count_failure(self, target: WebhookTarget, delivery: Delivery, reason: str) -> None:
        self.counts[target.name, "failed"] += 1
        _LOG.warning("webhook_failed", webhook=target.name, event_id=delivery.event_id, reason=reason)

    async def _send(self, target: WebhookTarget, event_id: str, body: str) -> WebhookAttempt:
        headers = sign_call(target.secrets, event_id, self._ports.clock.now_ms(), body)
        if headers is None:
            return WebhookAttempt(0, Failure.NO_SECRET.value, 0)
        headers = {**headers, "Content-Type": CLOUD_EVENTS_JSON}
        call = EndpointCall(target.url, headers, body.encode(), _TIMEOUT_MS, _MOST_ANSWER_BYTES, target.name)
        reply = await self._ports.caller.call(call)
        if 200 <= reply.status < 300:
            return WebhookAttempt(reply.status, None, reply.latency_ms)
        word = (reply.failure or Failure.STATUS).value
        failure = f"{word} {reply.status}" if reply.status else word
        return WebhookAttempt(reply.status, failure, reply.latency_ms, reply.retry_after)

    def _choose_pause(self, longest: int, retry_after: str | None) -> int:
        """A part of it by chance; or as long as the receiver says."""
        pause_ms = round(longest * (0.5 + self._ports.random() / 2))
        return max(pause_ms, min(read_pause_ms(retry_after), _LONGEST_PAUSE_MS))


class GroupMark(NamedTuple):
    """Rounds of a group when it answered last, or was first seen; `missed` since then, the first at `since_ms`.
    `is_told`: that it fails."""

    answered: int
    unanswered: int
    missed: int = 0
    since_ms: int = 0
    is_told: bool = False

    @classmethod
    def load(cls, text: str | None) -> "GroupMark | None":
        return None if text is None else cls(*json.loads(text))

    def dump(self) -> str:
        """For `load`."""
        return json.dumps(self)


def judge_group(before: GroupMark | None, counts: RoundCounts) -> tuple[GroupMark, str | None]:
    """A group fails when no round was answered for a minute, and at least three were not; and has recovered with the
    next one that is. What a rebuild counts anew was answered before it failed; where more are counted than ever, one
    was answered since, whatever clocks say: rounds in vain are dated by owners, answers by brokers."""
    if before is None:
        return GroupMark(counts.answered, counts.unanswered), None
    is_later = counts.answered != before.answered and counts.last_answered_ms > before.since_ms
    is_answered = is_later or counts.answered > before.answered
    if is_answered or counts.unanswered < before.unanswered:
        return GroupMark(counts.answered, counts.unanswered), RECOVERED if before.is_told else None
    missed = counts.unanswered - before.unanswered
    since_ms = before.since_ms or (counts.last_unanswered_ms if missed else 0)
    is_long = missed >= FAILING_ROUNDS and counts.last_unanswered_ms - since_ms >= FAILING_AFTER_MS
    after = GroupMark(before.answered, before.unanswered, missed, since_ms, before.is_told or is_long)
    return after, FAILING if after.is_told and not before.is_told else None


def _describe_parking(stored: StoredMessage, topic_id: str) -> Happening | None:
    """None for the copy of a blocked commit, and for what is not the bridge's."""
    try:
        half, properties = decode_parked(stored), decode_properties(stored.headers[-1][1] or b"")
        checks = int(properties["TRANSACTION_CHECK_TIMES"])
    except (MalformedRecord, UnknownRecordVersion, KeyError, ValueError):
        return None
    if properties.get("WHY") not in _PARK_REASONS:
        return None
    data = {
        "transaction_id": half.transaction_id,
        "producer_group": half.group,
        "reason": properties["WHY"],
        "checks": checks,
    }
    return Happening(PARKED, f"{topic_id}\0{stored.queue_offset}", half.transaction_id, stored.stored_ms, data)

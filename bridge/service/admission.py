"""What is refused at the door, before anything is written; and whether a keyed prepare is a repeat."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

import structlog

from bridge.clock import Clock
from bridge.core.check_rules import GroupSettings, is_group_name
from bridge.core.errors import SqlUnavailable, StoreError
from bridge.core.grants import Rights, Verb
from bridge.core.message import BY_KEY, Message
from bridge.core.properties import count_body_bytes, count_record_bytes, find_bad_header, is_property_text
from bridge.core.record import SEEN_LIMIT_MS
from bridge.core.transaction import TransactionView
from bridge.fault_points import FaultPoint, reach
from bridge.service.contract import (
    Limits,
    PrepareCall,
    RefusalCode,
    Refused,
    refuse_group,
    refuse_right,
    refuse_unavailable,
)
from bridge.service.journal import Deadline, EndOffsets
from bridge.service.reads import CurrentRead, CurrentReads, Freshness
from bridge.service.topics import TopicCache
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
from bridge.sql.search import count_pending, find_full_groups
from bridge.sql.transactions import find_many, find_many_by_key
from bridge.turns import Pace, Turns

# --- whether a keyed prepare has been seen before (design section 4, "Repeats") ---

_LOG = structlog.get_logger()

NOTE_LIMIT_MS = 60_000  # before SEEN; with SEEN_LIMIT_MS still inside the settler's memory of 2 minutes
_RENEW_MS = 10_000
_CLAIMED_MS = 2 * (SEEN_LIMIT_MS + NOTE_LIMIT_MS)  # appended by then or void, and by then in what is looked up

GroupKey = tuple[str, str]


class Keyed(NamedTuple):
    """A keyed prepare: the id its content gives, its group and key."""

    transaction_id: str
    queue_id: int
    key: GroupKey


class Known(NamedTuple):
    """What the projection knows: transactions by id, and the newest that carries each key."""

    currency: Freshness
    by_id: Mapping[str, TransactionView] = {}
    by_key: Mapping[GroupKey, TransactionView] = {}

    @property
    def is_current(self) -> bool:
        """Whether the projection was new enough."""
        return self.currency is Freshness.CURRENT


class _Note(NamedTuple):
    end: int
    noted_ms: int


class Repeats:
    """Look-ups in a projection that has applied each queue's end as noted at most a minute before, and in `keys`.

    The notes are shared by all calls and renewed beside them, so that a look-up seldom waits.
    """

    def __init__(self, reads: CurrentReads, ends: EndOffsets, clock: Clock, max_wait_ms: int) -> None:
        self.keys = RecentKeys(clock)
        self._reads = reads
        self._ends = ends
        self._clock = clock
        self._max_wait_ms = max_wait_ms
        self._applied: dict[int, _Note] = {}
        self._newest: dict[int, _Note] = {}
        self._renewing: dict[int, asyncio.Task[None]] = {}

    async def look_up(self, keyed: Sequence[Keyed], seen_at_ms: int, deadline: Deadline) -> Known:
        """What is known of these. `seen_at_ms`: when SEEN was taken, by the monotonic clock."""
        bounded = deadline.sooner(self._max_wait_ms)
        ends: dict[int, _Note] = {}
        try:
            for queue_id in {k.queue_id for k in keyed}:
                ends[queue_id] = await self._find_note(queue_id, seen_at_ms - NOTE_LIMIT_MS, bounded)
        except StoreError as error:
            _LOG.warning("journal_ends_unknown", reason=str(error))
            return Known(Freshness.UNREACHABLE)
        ids, keys = [k.transaction_id for k in keyed], list(dict.fromkeys([k.key for k in keyed]))
        read = await self._reads.read_beyond(
            {queue_id: note.end for queue_id, note in ends.items()},
            lambda connection: (find_many(connection, ids), find_many_by_key(connection, keys)),
            bounded,
        )
        if read.value is None:
            return Known(read.currency)
        self._applied |= ends
        by_id, by_key = read.value
        return Known(read.currency, by_id, by_key)

    async def find(self, ids: Collection[str], deadline: Deadline) -> CurrentRead[Mapping[str, TransactionView]]:
        """Those of these that are stored now, however lately."""
        return await self._reads.find(ids, deadline.sooner(self._max_wait_ms))

    async def _find_note(self, queue_id: int, not_before_ms: int, deadline: Deadline) -> _Note:
        """The note known to be applied if it is new enough, else the newest, else one made now."""
        now = self._clock.monotonic_ms()
        newest, applied = self._newest.get(queue_id), self._applied.get(queue_id)
        if newest is None or now - newest.noted_ms > _RENEW_MS:
            self._renew_beside(queue_id)
        if applied is not None and applied.noted_ms >= not_before_ms:
            return applied
        if newest is not None and newest.noted_ms >= not_before_ms:
            return newest
        await self._renew(queue_id, deadline)
        return self._newest[queue_id]

    def _renew_beside(self, queue_id: int) -> None:
        if queue_id not in self._renewing:
            task = asyncio.ensure_future(self._try_renew(queue_id))
            self._renewing[queue_id] = task
            task.add_done_callback(lambda _: self._renewing.pop(queue_id, None))

    async def _try_renew(self, queue_id: int) -> None:
        try:
            await self._renew(queue_id, Deadline.after(self._clock, self._max_wait_ms))
        except StoreError as error:
            _LOG.warning("journal_ends_unknown", reason=str(error))

    async def _renew(self, queue_id: int, deadline: Deadline) -> None:
        noted_ms = self._clock.monotonic_ms()
        self._newest[queue_id] = _Note(await self._ends.note(queue_id, deadline), noted_ms)


class KeyClaim(Enum):
    """MADE: the key is this call's. HELD: by the same transaction. TAKEN: it names another one."""

    MADE = "made"
    HELD = "held"
    TAKEN = "taken"


_MADE = KeyClaim.MADE  # Python finds the members of an enum only slowly


class RecentKeys:
    """The keys this process used lately, so that a reuse with other content is known before it is in SQL.

    A claim lasts as long as the projection may not know what was appended under it; after that it is as good as SQL.
    """

    def __init__(self, clock: Clock, max_keys: int = 65_536) -> None:
        self._clock = clock
        self._claims: OrderedDict[GroupKey, tuple[str, int]] = OrderedDict()  # id and time, oldest first
        self._max_keys = max_keys

    def claim(self, key: GroupKey, transaction_id: str) -> KeyClaim:
        """Takes the key for the transaction, or takes it again, unless it is known to name another one."""
        now = self._clock.monotonic_ms()
        self._drop_old(now)
        known = self._claims.get(key)
        if known is not None and known[0] != transaction_id:
            return KeyClaim.TAKEN
        self._claims[key] = transaction_id, now
        if known is not None:
            self._claims.move_to_end(key)
            return KeyClaim.HELD
        if len(self._claims) > self._max_keys:
            self._claims.popitem(last=False)
        return _MADE

    def forget(self, key: GroupKey) -> None:
        """What was claimed was certainly not stored after all."""
        self._claims.pop(key, None)

    def _drop_old(self, now: int) -> None:
        while self._claims:
            key, (_, at_ms) = next(iter(self._claims.items()))
            if now - at_ms <= _CLAIMED_MS:
                return
            del self._claims[key]


# --- what is refused at the door: before anything is written, and before the caller commits anything ---

_is_key = re.compile(r"[\x20-\x7e]{1,200}").fullmatch
_NO_LIMIT = 2**62
_COUNT_EVERY_MS = 5_000
_NO_MESSAGE = Message("", queue_id=0)
_PREPARE = Verb.PREPARE  # Python finds the members of an enum only slowly


class PendingGauge:
    """Read every few seconds; while it cannot be read the last number stands."""

    def __init__(self, database: Database, clock: Clock, limits: Limits) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits
        self.count = 0
        self.full_groups: Mapping[str, Refused] = {}  # and why they get nothing new

    @property
    def is_full(self) -> bool:
        """Whether no more may be prepared."""
        return self.count >= self._limits.max_pending

    async def run_forever(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.run_once()
            except SqlUnavailable as error:
                _LOG.warning("pending_not_counted", reason=str(error))
            except Exception:  # noqa: BLE001 - a loop that lives as long as the process
                _LOG.exception("pending_not_counted")
            await self._clock.sleep_ms(_COUNT_EVERY_MS)

    async def run_once(self) -> int:
        """Reads the number. Raises SqlUnavailable."""
        self.count = await self._database.read(count_pending)
        pending, parked = self._limits.max_pending_of_group, self._limits.max_parked_of_group
        if pending is not None or parked is not None:
            find = partial(find_full_groups, most_pending=pending or _NO_LIMIT, most_parked=parked or _NO_LIMIT)
            full = await self._database.read(find)
            self.full_groups = {
                group: _MANY_PARKED if is_parked else _MANY_PENDING for group, is_parked in full.items()
            }
        return self.count


_MANY_PENDING = Refused(
    RefusalCode.RATE_LIMITED, "the producer group has as many pending transactions as it may have", retry_after_s=5
)
_MANY_PARKED = Refused(
    RefusalCode.RATE_LIMITED,
    "the producer group has as many parked transactions as it may have: decide some (`outbox-bridge parked`)",
    retry_after_s=60,
)
_SWITCHED_OFF = refuse_unavailable("an operator has switched off prepares of this producer group (`accept_prepares`)")
_ALL_SWITCHED_OFF = refuse_unavailable("an operator has switched off prepares of all groups (`outbox-bridge resume`)")
_FULL = refuse_unavailable("too many transactions are pending")
_FOR_EVER = {RefusalCode.ILLEGAL_TOPIC, RefusalCode.RESERVED_TOPIC}
STEP_COST, _MESSAGE_COST = 64 * 1024, 256  # in bytes of values: what is looked at or made into records in about a ms


class Admission:
    """Checks prepares; what has to be looked up is looked up for many calls at once."""

    def __init__(
        self,
        destinations: TopicCache,
        directory: SqlDirectory,
        pending: PendingGauge,
        limits: Limits,
        turns: Turns,
        *,
        auto_create_groups: bool = True,
    ) -> None:
        self.directory = directory
        self.limits = limits
        self.turns = turns
        self._destinations = destinations
        self._pending = pending
        self._auto_create_groups = auto_create_groups

    async def refuse(
        self, calls: Sequence[PrepareCall], rights: Rights, deadline: Deadline, new_group: GroupSettings
    ) -> Sequence[Refused | None]:
        """Why calls are refused, by place. Groups last: a refused call makes none. `new_group`: of those made here."""
        pace, rooms = Pace(STEP_COST), dict[tuple[str, str], int]()
        for call in calls:
            only = call.messages[0] if len(call.messages) == 1 else _NO_MESSAGE
            about = call.group, only.topic
            is_known = _is_usual(call, only) and count_record_bytes(only) <= rooms.get(about, 0)
            if not (is_known or self.is_admitted(call, rights)):
                return await self._examine(calls, rights, deadline, new_group)
            if about not in rooms:
                rooms[about] = min(self.limits.max_message_bytes, self._destinations.find_room(only.topic))
            if pace.spend(find_cost(call)):
                await self.turns.take()
                rooms.clear()
        return [None] * len(calls)

    def is_admitted(self, call: PrepareCall, rights: Rights) -> bool:
        """Whether nothing speaks against the call, and nothing has to be looked up for it."""
        group = self.directory.get(call.group)
        return (
            group is not None
            and self.directory.accepts_prepares
            and group.settings.accepts_prepares
            and not self._pending.is_full
            and call.group not in self._pending.full_groups
            and refuse_prepare(rights, call) is None
            and refuse_call(call, self.limits, is_known=True) is None
            and self._destinations.check(call.messages) is None
        )

    def is_refused_as_new(self, call: PrepareCall, rights: Rights, answer: object) -> bool:
        """Whether what a call was refused for may have been otherwise when it came before: what switches, quotas, the
        cluster and the groups are now. What its caller was not granted he may not repeat either."""
        if not isinstance(answer, Refused) or answer.code in _FOR_EVER or refuse_prepare(rights, call) is not None:
            return False
        return answer.code is not RefusalCode.INVALID_REQUEST or refuse_call(call, self.limits) is None

    async def _examine(
        self, calls: Sequence[PrepareCall], rights: Rights, deadline: Deadline, new_group: GroupSettings
    ) -> Sequence[Refused | None]:
        refused = await self._in_turns(lambda call: self._check_content(call) or refuse_prepare(rights, call), calls)
        closed = self._find_closed()
        if closed is not None:
            return [refusal or closed for refusal in refused]
        refused = [refusal or self._refuse_group(call.group) for call, refusal in zip(calls, refused, strict=True)]
        left = [call for call, refusal in zip(calls, refused, strict=True) if refusal is None]
        await self._learn_topics(left, deadline)
        found = iter(await self._in_turns(lambda call: self._destinations.check(call.messages), left))
        refused = [refusal or next(found) for refusal in refused]
        groups = {call.group for call, refusal in zip(calls, refused, strict=True) if refusal is None}
        refused_groups = await self._learn_groups(groups, deadline, new_group)
        return [refusal or refused_groups.get(call.group) for call, refusal in zip(calls, refused, strict=True)]

    async def _in_turns(
        self, check: Callable[[PrepareCall], Refused | None], calls: Iterable[PrepareCall]
    ) -> list[Refused | None]:
        pace, refused = Pace(STEP_COST), []
        for call in calls:
            refused.append(check(call))
            if pace.spend(find_cost(call)):
                await self.turns.take()
        return refused

    def _find_closed(self) -> Refused | None:
        """Why nobody may begin anything now."""
        if not self.directory.accepts_prepares:
            return _ALL_SWITCHED_OFF
        return _FULL if self._pending.is_full else None

    def _refuse_group(self, name: str) -> Refused | None:
        group = self.directory.get(name)
        if group is not None and not group.settings.accepts_prepares:
            return _SWITCHED_OFF
        return self._pending.full_groups.get(name)

    def _check_content(self, call: PrepareCall) -> Refused | None:
        return refuse_call(call, self.limits, is_known=self.directory.get(call.group) is not None)

    async def _learn_topics(self, calls: Sequence[PrepareCall], deadline: Deadline) -> None:
        """Looks up topics that are not known. Groups that are not known count as one: anybody can invent them."""
        wanted = dict.fromkeys((call.group, message.topic) for call in calls for message in call.messages)
        groups = {group: group if self.directory.get(group) else "" for group, _ in wanted}
        await self._destinations.learn([(groups[group], topic) for group, topic in wanted], deadline)

    async def _learn_groups(
        self, groups: Iterable[str], deadline: Deadline, new_group: GroupSettings
    ) -> dict[str, Refused]:
        """Looks up or creates groups that are not known; those that cannot be used, with the reason."""
        missing = [group for group in groups if self.directory.get(group) is None]
        if not missing:
            return {}
        if not self._auto_create_groups:
            return await self._find(missing, deadline)
        return await self._create(missing, deadline, new_group)

    async def _find(self, groups: Collection[str], deadline: Deadline) -> dict[str, Refused]:
        """Another process may have made them a moment ago."""
        try:
            if deadline.left_ms():
                await self.directory.refresh()
                return {group: refuse_group(group) for group in groups if self.directory.get(group) is None}
        except SqlUnavailable as error:
            _LOG.warning("group_not_looked_up", reason=str(error))
        return dict.fromkeys(groups, refuse_unavailable("the producer group could not be looked up"))

    async def _create(self, groups: Collection[str], deadline: Deadline, settings: GroupSettings) -> dict[str, Refused]:
        refused: dict[str, Refused] = {}
        for group in groups:
            try:
                if deadline.left_ms() and not refused:
                    await self.directory.ensure_group(group, settings)
                    reach(FaultPoint.GROUP_CREATED)
                    continue
            except SqlUnavailable as error:
                _LOG.warning("group_not_looked_up", reason=str(error))
            refused[group] = refuse_unavailable("the producer group could not be looked up")
        return refused


def _is_usual(call: PrepareCall, only: Message) -> bool:
    """Whether nothing speaks against a call of one message, as another one of its list was admitted."""
    key, headers = call.idempotency_key, only.headers
    return (
        only.queue_id == BY_KEY
        and only.timestamp_ms is None
        and call.ordering_key is None
        and (not headers or find_bad_header(headers) is None)
        and (key is None or _is_key(key) is not None)
    )


def refuse_prepare(rights: Rights, call: PrepareCall) -> Refused | None:
    """Why this may not be prepared, whatever else is said of it."""
    may, group = rights.may, call.group
    for message in call.messages:
        if not may(_PREPARE, group, message.topic):
            return refuse_right(_PREPARE, f"for producer group {group} and topic {message.topic}")
    return None


def refuse_call(call: PrepareCall, limits: Limits, *, is_known: bool = False) -> Refused | None:
    """Why the call is refused whatever the cluster says; None if nothing speaks against it. `is_known`: its group."""
    if not (is_known or is_group_name(call.group)):
        return _invalid("/producer_group", "a group name has 1..120 characters of A-Z a-z 0-9 . _ -")
    refused = _refuse_ordering_key(call.ordering_key, limits) or _refuse_messages(call.messages, limits)
    if refused is None and call.idempotency_key is not None and not _is_key(call.idempotency_key):
        return _invalid("/idempotency_key", "1..200 printable ASCII characters")
    return refused


def _refuse_ordering_key(key: str | None, limits: Limits) -> Refused | None:
    if key is None or is_text(key, limits.max_text_chars):
        return None
    if len(key) > limits.max_text_chars:
        return _invalid("/ordering_key", f"at most {limits.max_text_chars} characters")
    return _invalid("/ordering_key", "the bytes 0x00, 0x01 and 0x02 are not allowed here")


def _refuse_messages(messages: Sequence[Message], limits: Limits) -> Refused | None:
    if not 1 <= len(messages) <= limits.max_messages:
        return _invalid("/messages", f"1 to {limits.max_messages} messages")
    for index, message in enumerate(messages):
        if message.headers and (fault := find_bad_header(message.headers)) is not None:
            return _invalid(f"/messages/{index}/headers", fault)
        size = count_body_bytes(message)
        if size > limits.max_message_bytes:
            detail = f"key, value and headers have {size} bytes, the limit is {limits.max_message_bytes}"
            return Refused(RefusalCode.MESSAGE_TOO_LARGE, detail, errors=((f"/messages/{index}", detail),))
    return None


def find_cost(call: PrepareCall) -> int:
    """What it costs to look at all messages of a call, in bytes of values."""
    messages = call.messages
    if len(messages) == 1:  # as usual, and asked three times a call
        return _MESSAGE_COST + len(messages[0].value or b"")
    return sum([_MESSAGE_COST + len(message.value or b"") for message in messages])


def is_text(text: str, max_chars: int) -> bool:
    """Whether a text of this length can travel in a record's properties."""
    return len(text) <= max_chars and is_property_text(text)


def _invalid(pointer: str, detail: str) -> Refused:
    return Refused(RefusalCode.INVALID_REQUEST, detail, errors=((pointer, detail),))

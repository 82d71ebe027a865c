"""What this process knows of the internal topics beside their records: ids, halted queues, bodies that are lost.

Both are looked at every second or two, cheaply, and read in memory: before each batch of a queue's owner, and
before each append of the api. What an operator's act changes is learned in the same look, so no process need be
restarted after it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import structlog
from sqlalchemy import Connection

from bridge.clock import Clock
from bridge.core.errors import HaltKind, QueueHalted, SqlUnavailable, StoreError, StoreUnavailable
from bridge.core.keyring import OpSeals
from bridge.core.message import MessageQueue, Receipt
from bridge.core.op_message import LogTopics, Position
from bridge.core.position import Witness, check_topics
from bridge.core.topics import PARKED_QUEUE, InternalTopics
from bridge.core.transaction import TransactionView
from bridge.sql.engine import Database
from bridge.sql.identity import (
    Halt,
    TopicIdentity,
    give_up_untold,
    read_beliefs,
    read_halts,
    read_identity,
    read_last_acts,
    read_live,
    store_halt,
)
from bridge.sql.rows import AppliedPosition, read_position, read_positions
from bridge.sql.search import read_without_body
from bridge.store.message_store import MessageStore, OwnerStore, QueueOffsets, TopicAdmin, TopicOutline
from bridge.store.op_topic import find_position, read_range
from bridge.topology import TopologyGuard

# --- what this process knows of the internal topics beside their records: their ids, and which queues halt ---

_LOG = structlog.get_logger()
_T = TypeVar("_T")
_UNKNOWN = -1  # acts that the database could not be asked for: a halt found meanwhile is looked for once more
REMEDY = "see what would be given up with `outbox-bridge migrate --accept-identity`, which asks before it acts"


class _Recorded(NamedTuple):
    """What SQL says."""

    halts: Mapping[int, Halt] = {}
    topics: Mapping[str, TopicIdentity] = {}
    believed: Mapping[int, int] = {}
    applied: Mapping[int, AppliedPosition] = {}
    last_acts: Mapping[int, int] = {}


class _Unstored(NamedTuple):
    """A halt that SQL does not know yet, and the last act known when what it speaks of was."""

    halt: Halt
    last_act: int


class _Doubt(NamedTuple):
    """Journal offset that was given out again, if that is it; what was known to be decided, of which topics, and after
    which act."""

    offset: int | None
    seen: int
    topics: Mapping[str, TopicIdentity]
    last_act: int


class LogWatch:
    """`seals`: where op records begin to need one.

    `guard` looks at everything else of the topics: when it is due, and as soon as one, or its queues, are others.
    """

    def __init__(
        self,
        admin: TopicAdmin,
        topics: InternalTopics,
        clock: Clock,
        database: Database,
        *,
        seals: OpSeals | None = None,
        guard: TopologyGuard | None = None,
    ) -> None:
        self._admin = admin
        self._topics = topics
        self._clock = clock
        self._database = database
        self._seals = seals
        self._guard = guard
        self._own: dict[int, _Unstored] = {}
        self._acts: dict[int, int] = {}  # the last one known when this process took the queue over
        self._recorded = _Recorded()
        self._now: Mapping[str, TopicOutline | None] = {}
        self._guarded: tuple[object, object] = ({}, {})  # topics and records that the guard has looked at
        self._doubts: dict[int, _Doubt] = {}

    @property
    def halts(self) -> Mapping[int, Halt]:
        """Queues that wait for an operator."""
        return {**{queue_id: found.halt for queue_id, found in self._own.items()}, **self._recorded.halts}

    async def identify(self) -> LogTopics:
        """The ids of the topics there are now. Raises StoreError, also where one is missing."""
        found = self._now = await self._admin.identify_topics(self._names)
        half, op, parked = [found[name] for name in self._names]
        if half is None or op is None or parked is None:
            raise StoreUnavailable("an internal topic is missing")
        return LogTopics(half.topic_id, op.topic_id, parked.topic_id)

    async def find_witness(self, queue_id: int) -> Witness | None:
        """What the projection has applied of the queue; None if it is not known now."""
        if (known := await self._ask(partial(read_position, queue_id=queue_id))) is None:
            return None
        applied, log = known
        return Witness(applied.s, log.journal_topic_id, log.op_topic_id, op_next=applied.op_next)

    async def find_pending(self, queue_id: int, begin: int, end: int) -> list[str]:
        """PREPARED ones with half messages there, as the projection has them; none if it cannot be asked now."""
        found = await self._ask(partial(read_live, queue_id=queue_id, pending_below=end)) or ()
        return [u.transaction_id for u in found if u.queue_offset >= begin]

    async def _ask(self, work: Callable[[Connection], _T]) -> _T | None:
        try:
            return await self._database.read(work)
        except SqlUnavailable as error:
            _LOG.warning("projection_not_asked", reason=str(error))
            return None

    async def check_halts(self, queue_id: int) -> None:
        """Asks now. Raises QueueHalted for a queue whose halt is stored."""
        await self._store_own()
        self._acts[queue_id] = self._recorded.last_acts.get(queue_id, 0) if await self._read() else _UNKNOWN
        self._check_halt(queue_id)

    def check(self, queue_id: int, log: LogTopics | None) -> None:
        """As of the last look, without I/O. Raises QueueHalted for a stored halt, and where topics are not `log`."""
        self._check_halt(queue_id)
        half, op, parked = [self._now.get(name) for name in self._names]
        if log is not None and half is not None and op is not None and parked is not None:
            check_topics(log, LogTopics(half.topic_id, op.topic_id, parked.topic_id))

    async def store_halt(self, queue_id: int, halted: QueueHalted) -> None:
        """The halt stays until an operator's act, for everybody; it is kept here while the database is away."""
        await self._halt(queue_id, halted, self._acts.get(queue_id, _UNKNOWN))

    def find_refusal(self, queue_id: int) -> str | None:
        """Why nothing may be appended to the queue now."""
        if (halt := self._find_halt(queue_id)) is not None:
            return f"queue {queue_id} halts: {halt.detail}; {REMEDY}"
        if queue_id in self._doubts:
            return f"the log of queue {queue_id} seems to be another one than before, and is being looked at"
        fault = self.find_fault()
        if fault is None and self._guard is not None:
            return next(map(str, self._guard.faults), None)
        return fault

    def find_seen(self, queue_id: int) -> int:
        """Records are known below this journal offset."""
        applied = self._recorded.applied.get(queue_id)
        return 0 if applied is None else applied.s

    def doubt(self, queue_id: int, offset: int | None = None) -> None:
        """Refuses the queue until the next look. `offset`: the journal has given it out again."""
        _LOG.error("log_in_doubt", queue=queue_id, offset=offset)
        known = self._recorded
        doubt = _Doubt(offset, self.find_seen(queue_id), known.topics, known.last_acts.get(queue_id, _UNKNOWN))
        self._doubts.setdefault(queue_id, doubt)

    def find_fault(self) -> str | None:
        """Which topic is missing or another one."""
        for name, topic in self._now.items():
            known = self._recorded.topics.get(name)
            if topic is None and known is not None:
                return f"{name}: the topic is missing; {REMEDY}"
            if topic is not None and known is not None and known.topic_id != topic.topic_id:
                return f"{name}: the topic was deleted and made again; {REMEDY}"
        return None

    async def run_once(self) -> None:
        """Looks now; what cannot be asked is left as it was known."""
        doubts = dict(self._doubts)
        await self._store_own()
        is_known = await self._read()
        try:
            self._now = await self._admin.identify_topics(self._names)
        except StoreError as error:
            _LOG.warning("topics_not_identified", reason=str(error))
            is_known = False
        if is_known:
            await self._judge(doubts)
        if self._guard is not None:
            before, self._guarded = self._guarded, (self._now, self._recorded.topics)
            await self._guard.run_if_due(is_due=before != self._guarded)

    async def run_forever(self, look_ms: int = 1_500) -> None:
        """Looks until it is cancelled."""
        while True:
            await self.run_once()
            await self._clock.sleep_ms(look_ms)

    @property
    def _names(self) -> tuple[str, str, str]:
        return self._topics.half, self._topics.op, self._topics.parked

    def _find_halt(self, queue_id: int) -> Halt | None:
        return self.halts.get(queue_id) if self._own or self._recorded.halts else None

    def _check_halt(self, queue_id: int) -> None:
        if (halt := self._find_halt(queue_id)) is not None:
            raise QueueHalted(halt.detail, halt.kind)

    async def _halt(self, queue_id: int, halted: QueueHalted, last_act: int) -> None:
        if queue_id not in self.halts:
            kind = halted.kind or HaltKind.OP_LOST
            halt = Halt(queue_id, kind, str(halted), self._clock.now_ms())
            self._own[queue_id] = _Unstored(halt, last_act)
            await self._store_own()

    async def _read(self) -> bool:
        """Whether it is known what SQL says."""
        try:
            self._recorded = await self._database.read(partial(_read_all, queues=self._topics.queues))
        except SqlUnavailable as error:
            _LOG.warning("halts_not_read", reason=str(error))
            return False
        if self._seals is not None:
            self._seals.believed.update(self._recorded.believed)
        return True

    async def _judge(self, doubts: Mapping[int, _Doubt]) -> None:
        """After a look that began later: a queue goes on unless what was given out again had been decided.

        A topic with another id is reported anyway. Where nobody had decided what is gone, nobody can know.
        """
        for queue_id, (offset, seen, topics, last_act) in doubts.items():
            if offset is not None and offset < seen <= self.find_seen(queue_id) and topics == self._recorded.topics:
                detail = f"journal offset {offset} was given out again, although all below {seen} was decided"
                await self._halt(queue_id, QueueHalted(detail, HaltKind.JOURNAL_LOST), last_act)
            self._doubts.pop(queue_id, None)

    async def _store_own(self) -> None:
        for queue_id, (halt, last_act) in list(self._own.items()):
            try:
                is_stored = await self._database.run(partial(store_halt, halt=halt, last_act=last_act))
            except SqlUnavailable as error:
                _LOG.error("halt_not_stored", queue=queue_id, reason=str(error))
                return
            if is_stored:
                self._recorded = self._recorded._replace(halts={**self._recorded.halts, queue_id: halt})
            self._own.pop(queue_id, None)


def _read_all(conn: Connection, queues: int) -> _Recorded:
    last_acts = read_last_acts(conn, range(queues))
    return _Recorded(read_halts(conn), read_identity(conn), read_beliefs(conn), read_positions(conn), last_acts)


# --- transactions whose messages no log has any more, although they are not over ---
# The journal keeps a body for longer than a transaction may live. If it was made to begin later, by a retention that
# was changed or by deleted records, nothing else tells before a commit is refused with `body-expired`.

_LOOK_MS = 30_000  # Kafka itself looks for what it may delete every five minutes
_SHOWN = 10
_BODIES_REMEDY = (
    "prepare anew what its producer has committed, then end it: "
    "outbox-bridge tx force ID ROLLBACK --reason 'messages lost'"
)


class LostBodies(NamedTuple):
    """Of one queue: where the journal begins now, how many transactions lie before it, and the first of them."""

    begin: int
    transactions: int
    first: tuple[str, ...]


class BodyWatch:
    """What this process knows of them, from a look every half a minute."""

    def __init__(self, store: MessageStore, database: Database, topics: InternalTopics, clock: Clock) -> None:
        self._store = store
        self._database = database
        self._topics = topics
        self._clock = clock
        self._begins: Mapping[int, int] = {}
        self._copies_begin = 0
        self.lost: Mapping[int, LostBodies] = {}

    def is_lost(self, view: TransactionView) -> bool:
        """Whether the journal begins after the half message, and there is no copy of it."""
        has_copy = view.parked_offset is not None and view.parked_offset >= self._copies_begin
        return not has_copy and view.queue_offset < self._begins.get(view.queue_id, 0)

    def describe(self) -> str:
        """For operators; nothing if none is lost."""
        told = [
            f"queue {queue_id}: the journal begins at offset {lost.begin} now, and {lost.transactions} transactions "
            f"that are not over lie before it without a copy: {', '.join(lost.first)}"
            f"{', ...' if lost.transactions > len(lost.first) else ''}"
            for queue_id, lost in self.lost.items()
        ]
        return f"{'; '.join(told)}; {_BODIES_REMEDY}" if told else ""

    async def run_forever(self) -> None:
        """Looks until it is cancelled. What cannot be asked is left as it was known."""
        while True:
            try:
                await self.run_once()
            except (StoreError, SqlUnavailable) as error:
                _LOG.warning("bodies_not_looked_for", reason=str(error))
            await self._clock.sleep_ms(_LOOK_MS)

    async def run_once(self) -> None:
        """Looks now. Raises StoreError and SqlUnavailable."""
        queues = [MessageQueue(self._topics.half, queue_id) for queue_id in range(self._topics.queues)]
        begins = {queue.queue_id: (await self._store.get_offsets(queue)).minimum for queue in queues}
        copies = (await self._store.get_offsets(MessageQueue(self._topics.parked, PARKED_QUEUE))).minimum
        found = await self._database.read(partial(read_without_body, begins=begins, copies_begin=copies, most=_SHOWN))
        lost = {queue_id: LostBodies(begins[queue_id], count, ids) for queue_id, (count, ids) in found.items()}
        for queue_id, one in lost.items():
            if one != self.lost.get(queue_id):
                begin, transactions, first = one
                _LOG.error("bodies_lost", queue=queue_id, journal_begins=begin, transactions=transactions, first=first)
        self._begins, self._copies_begin, self.lost = begins, copies, lost


# --- what is written, and cannot be read: a Kafka transaction that hangs (KIP-664) ---
# Readers of committed messages get no further than the last stable offset. Where it stands still nobody is told of an
# error: not the consumers of a topic, not the bridge, which goes on writing, or waits to read its op topic.

_STANDS_MS = 60_000  # no Kafka transaction of the bridge may take longer than ten seconds
_LOOK_AT_WRITTEN_MS = 10_000
_MOST_ASKED = 200  # partitions in one look
_STANDING_REMEDY = (
    "find it with Kafka's `kafka-transactions.sh find-hanging`, and see 'A Kafka transaction hangs' in docs/stuck.md"
)


@dataclass(slots=True)
class _Written:
    """Offsets of a partition that were not seen stable yet, and since when the first one is there, by the monotonic
    clock."""

    first: int
    last: int
    since_ms: int


class StableOffsetWatch:
    """What this process has written and nobody can read, from a look every ten seconds.

    It asks about partitions that were written to since they were last found readable, and about no others.
    """

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._written: dict[tuple[str, int], _Written] = {}
        self._standing: Mapping[MessageQueue, int] = {}  # last stable offsets
        self.begins: Mapping[tuple[str, int], int] = {}  # first offsets of what the last look asked about

    @property
    def age_ms(self) -> int:
        """For how long what was written somewhere could not be read; 0 if all can."""
        return max(map(self._age_ms, self._standing), default=0)

    def note(self, receipts: Iterable[Receipt]) -> None:
        """What is there should be readable now."""
        written = self._written
        for receipt in receipts:
            place, offset = (receipt.topic, receipt.queue_id), receipt.queue_offset
            if offset is None:
                continue
            known = written.get(place)
            if known is None:
                written[place] = _Written(offset, offset, self._clock.monotonic_ms())
            elif known.last < offset:
                known.last = offset

    def describe(self) -> str:
        """For operators; nothing as long as a Kafka transaction may take its time."""
        told = [
            f"{queue.topic}[{queue.queue_id}]: nothing from offset {stable} on can be read with `read_committed`, for "
            f"{self._age_ms(queue) // 1000} s: a Kafka transaction there hangs"
            for queue, stable in self._standing.items()
            if self._age_ms(queue) >= _STANDS_MS
        ]
        return f"{'; '.join(told)}; {_STANDING_REMEDY}" if told else ""

    async def run_forever(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await self.run_once()
            await self._clock.sleep_ms(_LOOK_AT_WRITTEN_MS)

    async def run_once(self) -> None:
        """Looks now. What cannot be asked, such as a topic that is gone, is asked again when it is written to."""
        # those that are not asked about now stand as they did
        standing, begins = dict(self._standing), dict[tuple[str, int], int]()
        for place, written in list(islice(self._written.items(), _MOST_ASKED)):
            queue, last = MessageQueue(*place), written.last  # of what is written meanwhile the answer says nothing
            offsets = await self._ask(queue)
            del self._written[place]
            standing.pop(queue, None)
            if offsets is not None:
                begins[place] = offsets.minimum
            if offsets is None or last >= offsets.maximum or written.last < offsets.stable:
                continue
            if offsets.stable <= written.first:
                standing[queue] = offsets.stable
            else:
                written.first, written.since_ms = offsets.stable, self._clock.monotonic_ms()
            self._written[place] = written  # behind those that were not asked about yet
        self._standing, self.begins = standing, begins
        if told := self.describe():
            _LOG.error("kafka_transaction_hangs", detail=told)

    async def _ask(self, queue: MessageQueue) -> QueueOffsets | None:
        try:
            return await self._store.get_offsets(queue)
        except StoreError as error:
            _LOG.warning("stable_offset_not_asked", topic=queue.topic, queue=queue.queue_id, reason=str(error))
            return None

    def _age_ms(self, queue: MessageQueue) -> int:
        written = self._written.get(queue)
        return 0 if written is None else self._clock.monotonic_ms() - written.since_ms


# --- what a rebuild of the projection needs of the log ---

_REBUILD_REMEDY = "nothing was changed; see `outbox-bridge migrate --accept-identity`, then rebuild again"


@dataclass(frozen=True, slots=True)
class LogToReread:
    """Journal and op topic, which are read again from the beginning."""

    store: MessageStore
    owners: OwnerStore
    admin: TopicAdmin
    database: Database
    topics: InternalTopics

    async def find_positions(self) -> dict[int, Position]:
        """Up to where each queue is decided. Raises StoreError."""
        find = partial(find_position, self.store, self.owners, self.topics)
        return {queue_id: found for queue_id in range(self.topics.queues) if (found := await find(queue_id))}

    async def check(self) -> Mapping[int, Position]:
        """The positions. Raises QueueHalted where the log is not what was left, and StoreError, SqlUnavailable."""
        recorded = await self.database.read(read_identity)
        found = await self.admin.identify_topics((self.topics.half, self.topics.op))
        for name, topic in found.items():
            if name in recorded and (topic is None or topic.topic_id != recorded[name].topic_id):
                what = "is missing" if topic is None else "was deleted and made again"
                raise QueueHalted(f"{name}: the topic {what}; {_REBUILD_REMEDY}")
        positions = await self.find_positions()
        for queue_id in range(self.topics.queues):
            position = positions.get(queue_id)
            half, op = MessageQueue(self.topics.half, queue_id), MessageQueue(self.topics.op, queue_id)
            end, begin = (await self.store.get_offsets(half)).maximum, (await self.store.get_offsets(op)).minimum
            if position is not None and end < position.s:
                lost = f"queue {queue_id} was decided up to journal offset {position.s}, but its journal ends at {end}"
                raise QueueHalted(f"{lost}: the log is not what was left; {_REBUILD_REMEDY}")
            if begin > (0 if position is None else position.o):
                cut = f"the op topic of queue {queue_id} begins at {begin}, behind what its successor needs"
                raise QueueHalted(f"{cut}: a running settler writes that again in minutes, else {_REBUILD_REMEDY}")
        return positions

    async def give_up_untold(self, positions: Mapping[int, Position], now_ms: int) -> int:
        """How many had ended, and have lost the op message that said how: below L all others have one from O on.
        Raises StoreError and SqlUnavailable."""
        return sum([await self._give_up_some(i, position, now_ms) for i, position in positions.items()])

    async def _give_up_some(self, queue_id: int, position: Position, now_ms: int) -> int:
        read = partial(read_live, queue_id=queue_id, pending_below=position.l)
        untold = {u.transaction_id: u for u in await self.database.read(read)}
        if untold:
            end = (await self.store.get_offsets(queue := MessageQueue(self.topics.op, queue_id))).maximum
            async for message in read_range(self.owners, queue, position.o, end):
                untold.pop((message.key or b"").decode("latin-1"), None)
        if untold:
            _LOG.error("ends_lost", queue=queue_id, transactions=len(untold), first=list(untold)[:_SHOWN])
            work = partial(give_up_untold, queue_id=queue_id, unproven=list(untold.values()), now_ms=now_ms)
            await self.database.run(work, timeout_ms=600_000)
        return len(untold)

"""Reads of the projection: some see everything decided before they began, lists and counts what is there."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import structlog

from bridge.clock import Clock, KafkaTime
from bridge.core.errors import SqlUnavailable, StoreError
from bridge.core.grants import EVERYTHING, Masks, Rights, Verb
from bridge.core.message import Message, MessageQueue
from bridge.core.topics import InternalTopics
from bridge.core.transaction import TransactionView, queue_of
from bridge.service.contract import Outcome, RefusalCode, Refused, refuse_missing, refuse_unavailable
from bridge.service.journal import Deadline, EndOffsets
from bridge.service.replies import OpFollower
from bridge.sql.access import ActEntry, read_audit
from bridge.sql.engine import Database
from bridge.sql.identity import find_losses
from bridge.sql.rows import AppliedPosition, MalformedCursor, read_list, read_positions
from bridge.sql.search import (
    ProjectionStats,
    SearchFilter,
    TopicActivity,
    find_last_published,
    read_stats,
    read_topics,
    restrict_stats,
    search_transactions,
)
from bridge.sql.transactions import find_many
from bridge.store.message_store import GetStatus, HalfPlace, MessageStore, read_halves
from bridge.turns import Recent, take_error

# --- reads of the projection that see everything decided before they began, bodies from the logs, lags ---


class Lag(NamedTuple):
    """Ages of the oldest journal record not decided, and of the oldest one not in the projection; 0 if none."""

    settle_ms: int
    projection_ms: int


class ConsumerLag:
    """Looks at the journal where settlers and projection stand."""

    def __init__(
        self, store: MessageStore, topics: InternalTopics, follower: OpFollower, kafka_time: KafkaTime
    ) -> None:
        self._store = store
        self._topics = topics
        self._follower = follower
        self._kafka_time = kafka_time

    async def read(self, applied: Mapping[int, int]) -> Lag:
        """`applied`: S of each queue in the projection. Raises StoreError."""
        settling, projection = await asyncio.gather(self.read_settling(applied), self._read_ages(applied))
        return Lag(max(settling.values()), max(projection.values()))

    async def read_settling(self, applied: Mapping[int, int]) -> Mapping[int, int]:
        """By how much the settling of each queue is late. Raises StoreError."""
        decided = self._follower.positions()
        return await self._read_ages({q: max(applied.get(q, 0), decided.get(q, 0)) for q in {*applied, *decided}})

    async def _read_ages(self, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Of the records at these offsets. All queues are asked about at once: they may be many."""
        queues = range(self._topics.queues)
        ages = await asyncio.gather(*[self._age_at(queue_id, offsets.get(queue_id, 0)) for queue_id in queues])
        return dict(zip(queues, ages, strict=True))

    async def _age_at(self, queue_id: int, offset: int) -> int:
        queue = MessageQueue(self._topics.half, queue_id)
        got = await self._store.get(queue, offset, 1)
        if got.status is GetStatus.OFFSET_ILLEGAL and got.next_begin_offset > offset:
            got = await self._store.get(queue, got.next_begin_offset, 1)
        if not got.messages:
            return 0
        return max(1, self._kafka_time.now_ms() - got.messages[0].stored_ms)


class BodyReader:
    """The messages of transactions, whoever owns their queues. `is_lost`: whether no log is known to have them."""

    def __init__(
        self,
        store: MessageStore,
        topics: InternalTopics,
        is_lost: Callable[[TransactionView], bool] = lambda _: False,
        masks: Masks | None = None,
    ) -> None:
        self._masks = masks or Masks()
        self._store = store
        self._topics = topics
        self.is_lost = is_lost

    async def read(self, views: Sequence[TransactionView]) -> dict[str, list[Message]]:
        """Messages by transaction id; what no log has any more is left out. Raises StoreError."""
        places = [HalfPlace(v.transaction_id, v.queue_id, v.queue_offset, v.parked_offset) for v in views]
        found = (await read_halves(self._store, self._topics, places)).found or {}
        return {transaction_id: list(loaded.messages) for transaction_id, loaded in found.items()}

    async def show(self, view: TransactionView, rights: Rights) -> list[Message] | None:
        """A transaction's messages for people: masked by the rules, unless they may administer its group; None if no
        log has them any more. Raises StoreError."""
        found = (await self.read([view])).get(view.transaction_id)
        if found is None or rights.may(Verb.ADMIN, view.group) or not self._masks.concern(found):
            return found
        return await asyncio.to_thread(self._masks.apply, found)


T = TypeVar("T")
Work = Callable[[Any], T]
Ends = Mapping[int, int]  # journal offset by queue
_LOG = structlog.get_logger()
_LOSS_MS = 14 * 86_400_000  # the journal's retention: what is older had ended, or was reported


class Freshness(Enum):
    """Whether a read is current."""

    CURRENT = "current"
    BEHIND = "behind"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class CurrentRead(Generic[T]):
    """What was read; `value` is None unless `currency` is CURRENT."""

    currency: Freshness
    value: T | None = None


_POLL_MS = 20


class ProjectionPositions:
    """Waits until the projection has applied journal positions; one poller for all who wait."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._waiting: dict[asyncio.Future[bool], Ends] = {}
        self._poller: asyncio.Task[None] | None = None

    async def wait_for(self, ends: Ends, deadline: Deadline) -> Freshness:
        """Returns when every queue's S is at or beyond its end, or at the deadline."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[future] = ends
        if self._poller is None or self._poller.done():
            self._poller = asyncio.ensure_future(self._poll())
        try:
            is_done = await deadline.wait(future)
        finally:
            self._waiting.pop(future, None)
        if not is_done:
            return Freshness.BEHIND
        return Freshness.CURRENT if future.result() else Freshness.UNREACHABLE

    async def _poll(self) -> None:
        while self._waiting:
            try:
                positions = await self._database.read(read_positions)
            except SqlUnavailable as error:
                _LOG.warning("projection_unreachable", reason=str(error))
                self._wake(lambda ends: False, is_reached=False)
                return
            self._wake(partial(is_behind, positions), is_reached=True)
            if self._waiting:
                await self._clock.sleep_ms(_POLL_MS)

    def _wake(self, is_to_wait: Callable[[Ends], bool], *, is_reached: bool) -> None:
        for future in [f for f, ends in self._waiting.items() if not is_to_wait(ends)]:
            del self._waiting[future]
            if not future.done():
                future.set_result(is_reached)


class CurrentReads:
    """Reads that wait for the projection. `is_aside`: of what is only shown; like lists they hold up nothing else."""

    def __init__(
        self,
        database: Database,
        ends: EndOffsets,
        positions: ProjectionPositions,
        clock: Clock,
        max_wait_ms: int,
        *,
        is_aside: bool = False,
    ) -> None:
        self._database = database
        self._read = partial(read_list, database) if is_aside else database.read
        self._clock = clock
        self._ends = ends
        self._positions = positions
        self._max_wait_ms = max_wait_ms
        self.queues = ends.queues

    def deadline(self) -> Deadline:
        """As long as a read may wait."""
        return Deadline.after(self._clock, self._max_wait_ms)

    async def find(self, ids: Collection[str], deadline: Deadline) -> CurrentRead[Mapping[str, TransactionView]]:
        """The transactions with these ids that there are."""
        wanted = list(ids)
        return await self.read(
            {queue_of(i) for i in wanted}, lambda connection: find_many(connection, wanted), deadline
        )

    async def find_one(self, transaction_id: str, deadline: Deadline) -> TransactionView | Refused:
        """The transaction with this id, or why it cannot be shown."""
        read = await self.find([transaction_id], deadline)
        if read.value is None:
            return refuse_read(read.currency, transaction_id)
        return read.value.get(transaction_id) or await self.refuse_missing(transaction_id)

    async def refuse_missing(self, transaction_id: str) -> Refused:
        """As `refuse_all_missing`, of one."""
        return (await self.refuse_all_missing([transaction_id]))[transaction_id]

    async def refuse_all_missing(self, ids: Collection[str]) -> Mapping[str, Refused]:
        """What is said of ids that nobody knows: what their journal lost a while ago may have held them."""
        if not ids:
            return {}
        work = partial(find_losses, queue_ids={queue_of(i) for i in ids}, since_ms=self._clock.now_ms() - _LOSS_MS)
        try:
            losses = await self._database.read(work)
        except SqlUnavailable as error:
            _LOG.warning("projection_unreachable", reason=str(error))
            return {i: refuse_read(Freshness.UNREACHABLE, i) for i in ids}
        return {i: refuse_missing(i, losses.get(queue_of(i))) for i in ids}

    async def read(self, queues: Collection[int], work: Work[T], deadline: Deadline) -> CurrentRead[T]:
        """What `work` reads when everything appended to these queues before this call is in the projection."""
        bounded = deadline.sooner(self._max_wait_ms)
        try:
            noted = [(queue_id, self._ends.note(queue_id, bounded)) for queue_id in queues]
            ends = dict(zip([q for q, _ in noted], await asyncio.gather(*[note for _, note in noted]), strict=True))
        except StoreError as error:
            _LOG.warning("journal_ends_unknown", reason=str(error))
            return CurrentRead(Freshness.UNREACHABLE)
        return await self.read_beyond(ends, work, bounded)

    async def read_beyond(self, ends: Ends, work: Work[T], deadline: Deadline) -> CurrentRead[T]:
        """What `work` reads when the projection has applied these positions.

        Positions and rows are read together: a projection that is being rebuilt begins again at 0.
        """
        try:
            while True:
                task = asyncio.ensure_future(self._read(lambda c: (read_positions(c), work(c))))
                task.add_done_callback(take_error)
                if not await deadline.wait(task):
                    task.cancel()
                    return CurrentRead(Freshness.UNREACHABLE)
                at, value = task.result()
                if not is_behind(at, ends):
                    return CurrentRead(Freshness.CURRENT, value)
                waited = await self._positions.wait_for(ends, deadline)
                if waited is not Freshness.CURRENT:
                    return CurrentRead(waited)
        except SqlUnavailable as error:
            _LOG.warning("projection_unreachable", reason=str(error))
            return CurrentRead(Freshness.UNREACHABLE)


def is_behind(applied: Mapping[int, AppliedPosition], ends: Ends) -> bool:
    """Whether a position is below what is wanted of it. An empty queue needs no position."""
    return any(end > (applied[queue_id].s if queue_id in applied else 0) for queue_id, end in ends.items())


def refuse_read(currency: Freshness, transaction_id: str | None = None) -> Refused:
    """The refusal of a read that is not current."""
    if currency is Freshness.BEHIND:
        code, detail = RefusalCode.PROJECTION_BEHIND, "the projection has not caught up yet"
    else:
        code, detail = RefusalCode.UNAVAILABLE, "Kafka or the database cannot be read now"
    return Refused(code, detail, Outcome.NOT_APPLIED, transaction_id, retry_after_s=1)


# --- lists, counts and the audit trail, from the projection as it is ---

MAX_PAGE = 500
_STATS_AGE_MS = 1_000


@dataclass(frozen=True, slots=True)
class TransactionList:
    """Newest first. `next`: cursor of the next page, None on the last."""

    transactions: Sequence[TransactionView]
    next: str | None


@dataclass(frozen=True, slots=True)
class AuditList:
    """Newest first. `next`: cursor of the next page, None on the last."""

    entries: Sequence[ActEntry]
    next: str | None


@dataclass(frozen=True, slots=True)
class BridgeStats:
    """Counts as the projection has applied them, `now_ms` for ages, and the lags."""

    projection: ProjectionStats
    lag: Lag
    now_ms: int


class SearchService:
    """Reads that may be a moment old; none waits for the projection."""

    def __init__(self, database: Database, clock: Clock, kafka_time: KafkaTime, lags: ConsumerLag) -> None:
        self._database = database
        self._clock = clock
        self._kafka_time = kafka_time
        self._lags = lags
        self._stats = Recent[BridgeStats](_STATS_AGE_MS, clock.monotonic_ms)

    async def search(self, wanted: SearchFilter, limit: int, cursor: str | None = None) -> TransactionList | Refused:
        """A page of transactions."""
        most = min(max(limit, 1), MAX_PAGE)
        read = await read_page(self._database, lambda c: search_transactions(c, wanted, most, cursor))
        return read if isinstance(read, Refused) else TransactionList(*read)

    async def topics(self, limit: int, after: str = "") -> Sequence[TopicActivity] | Refused:
        """Topics that transactions have messages of, in the order of their names."""
        most = min(max(limit, 1), MAX_PAGE)
        return await read_page(self._database, lambda c: read_topics(c, after, most))

    async def topic(self, name: str) -> TopicActivity | Refused:
        """One of them."""
        return await read_page(self._database, lambda c: TopicActivity(name, find_last_published(c, name)))

    async def audit(self, limit: int, cursor: str | None = None) -> AuditList | Refused:
        """A page of the audit trail."""
        most = min(max(limit, 1), MAX_PAGE)
        read = await read_page(self._database, lambda c: read_audit(c, most, cursor))
        return read if isinstance(read, Refused) else AuditList(*read)

    async def stats(self, rights: Rights = EVERYTHING) -> BridgeStats | Refused:
        """Counts of the groups that may be read, and lags; read at most once a second whoever asks."""
        try:
            stats = await self._stats.get(self._read_stats)
        except (SqlUnavailable, StoreError):
            return refuse_unavailable("the counts cannot be read now")
        if rights.may_everywhere(Verb.READ):
            return stats
        return replace(stats, projection=restrict_stats(stats.projection, partial(rights.may, Verb.READ)))

    async def _read_stats(self) -> BridgeStats:
        now_ms = self._kafka_time.now_ms() or self._clock.now_ms()
        stats, positions = await self._database.read(lambda c: (read_stats(c, now_ms), read_positions(c)))
        lag = await self._lags.read({queue_id: position.s for queue_id, position in positions.items()})
        return BridgeStats(stats, lag, now_ms)


async def read_page(database: Database, work: Callable[[Any], T]) -> T | Refused:
    """A page, or why it cannot be read."""
    try:
        return await read_list(database, work)
    except MalformedCursor:
        detail = "not a cursor of this bridge"
        return Refused(RefusalCode.INVALID_REQUEST, detail, errors=(("cursor", detail),))
    except SqlUnavailable:
        return refuse_unavailable("the database cannot be read now")

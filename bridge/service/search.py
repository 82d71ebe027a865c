"""Lists, counts and the audit trail, from the projection as it is."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from bridge.clock import Clock, KafkaTime
from bridge.core.errors import SqlUnavailable, StoreError
from bridge.core.grants import EVERYTHING, Rights, Verb
from bridge.core.transaction import TransactionView
from bridge.service.answers import refuse_unavailable
from bridge.service.contract import RefusalCode, Refused
from bridge.service.reads import ConsumerLag, Lag
from bridge.sql.audit import ActEntry, read_audit
from bridge.sql.engine import Database, MalformedCursor
from bridge.sql.search import TopicActivity, find_last_published, read_topics
from bridge.sql.stats import Histogram, count_ages, restrict_stats
from bridge.sql.transactions import (
    AppliedPosition,
    ProjectionStats,
    SearchFilter,
    read_positions,
    read_stats,
    search_transactions,
)
from bridge.turns import take_error

T = TypeVar("T")
MAX_PAGE = 500
_STATS_AGE_MS = 1_000
_QUICK_MS = 50
_AGES_SHARE = 50  # of the time, one part at most is spent on counting ages


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


class _Ages(NamedTuple):
    """Histograms by producer group, when they were counted by the monotonic clock, and how long that took."""

    histograms: Mapping[str, Histogram]
    counted_ms: int
    took_ms: int


class SearchService:
    """Reads that may be a moment old; none waits for the projection."""

    def __init__(self, database: Database, clock: Clock, kafka_time: KafkaTime, lags: ConsumerLag) -> None:
        self._database = database
        self._clock = clock
        self._kafka_time = kafka_time
        self._lags = lags
        self._stats: tuple[int, BridgeStats] | None = None
        self._reading: asyncio.Task[BridgeStats | Refused] | None = None
        self._ages = _Ages({}, 0, 0)
        self._counting: asyncio.Task[None] | None = None

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
        """Counts of the groups that may be read, and lags."""
        stats = await self._read_all()
        if rights.may_everywhere(Verb.READ) or isinstance(stats, Refused):
            return stats
        return replace(stats, projection=restrict_stats(stats.projection, partial(rights.may, Verb.READ)))

    async def _read_all(self) -> BridgeStats | Refused:
        """Read at most once a second whoever asks."""
        known = self._stats
        if known is not None and self._clock.monotonic_ms() - known[0] < _STATS_AGE_MS:
            return known[1]
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._try_read_stats())
        return await asyncio.shield(self._reading)

    async def _try_read_stats(self) -> BridgeStats | Refused:
        try:
            stats = await self._read_stats()
        except (SqlUnavailable, StoreError):
            return refuse_unavailable("the counts cannot be read now")
        self._stats = (self._clock.monotonic_ms(), stats)
        return stats

    async def _read_stats(self) -> BridgeStats:
        now_ms = self._kafka_time.now_ms() or self._clock.now_ms()
        known = self._ages

        def read(connection: Any) -> tuple[_Ages, ProjectionStats, dict[int, AppliedPosition]]:  # noqa: ANN401
            ages = self._count_ages(connection, now_ms) if known.took_ms <= _QUICK_MS else known
            return ages, read_stats(connection, now_ms, ages.histograms), read_positions(connection)

        ages, stats, positions = await self._database.read(read)
        if ages is known:
            self._count_later(now_ms)
        else:
            self._ages = ages
        lag = await self._lags.read({queue_id: position.s for queue_id, position in positions.items()})
        return BridgeStats(stats, lag, now_ms)

    def _count_ages(self, connection: Any, now_ms: int) -> _Ages:  # noqa: ANN401
        begin_ms = self._clock.monotonic_ms()
        histograms = count_ages(connection, now_ms)
        end_ms = self._clock.monotonic_ms()
        return _Ages(histograms, end_ms, end_ms - begin_ms)

    def _count_later(self, now_ms: int) -> None:
        """Ages of so many that nobody should wait for them are counted beside, for the next who asks."""
        is_due = self._clock.monotonic_ms() - self._ages.counted_ms >= _AGES_SHARE * self._ages.took_ms
        if is_due and (self._counting is None or self._counting.done()):
            self._counting = asyncio.ensure_future(self._recount(now_ms))
            self._counting.add_done_callback(take_error)

    async def _recount(self, now_ms: int) -> None:
        self._ages = await self._database.read(lambda connection: self._count_ages(connection, now_ms))


async def read_page(database: Database, work: Callable[[Any], T]) -> T | Refused:
    """A page, or why it cannot be read."""
    try:
        return await database.read(work)
    except MalformedCursor:
        detail = "not a cursor of this bridge"
        return Refused(RefusalCode.INVALID_REQUEST, detail, errors=(("cursor", detail),))
    except SqlUnavailable:
        return refuse_unavailable("the database cannot be read now")

"""The projector: follows journal and op topic and keeps the projection in SQL. Off the settler's path.

One works, under a lease; others stand by. Two at once are harmless: positions move by compare-and-set in
the SQL transaction of the rows, and who loses reads them again (design section 9).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import structlog
from sqlalchemy import Connection

from bridge.clock import Clock
from bridge.core.errors import ConfigError, QueueHalted, SqlUnavailable, StoreError, StoreTimeout, StoreUnavailable
from bridge.core.message import MessageQueue
from bridge.core.op_message import LogTopics, Position
from bridge.core.topics import InternalTopics
from bridge.fault_points import FaultPoint, reach
from bridge.log_watch import LogToReread
from bridge.sql.bulk import allow_long_statements
from bridge.sql.chunking import Chunk, JournalBuffer, OpBuffer, Quarantined, next_chunk
from bridge.sql.engine import Database
from bridge.sql.fold import TimesOf
from bridge.sql.identity import begin_projection, read_last_acts
from bridge.sql.leases import LeaseHolder
from bridge.sql.projection import (
    NotAsKnown,
    Orphan,
    PendingRows,
    apply_chunk,
    clear_projection,
    forget_previous,
    keep_positions,
    purge,
    read_orphans,
)
from bridge.sql.rows import AppliedPosition, LogIdentity, is_of_before, read_position, read_positions
from bridge.sql.search import GroupStats, read_stats, recount_pending
from bridge.store.message_store import MessageStore, OwnerStore, QueueReader, TopicAdmin
from bridge.store.op_topic import WatchedReader, find_position

_LOG = structlog.get_logger()
_LEASE = "projector"
_DAY_MS = 86_400_000
_REBUILD_STALL_MS = 60_000
_OLDER = "the database is older than what Kafka keeps, run `outbox-bridge projection rebuild`"
_OF_BEFORE = (
    "the projection is of a log that was lost or given up since; see `outbox-bridge migrate --accept-identity`, which "
    "keeps what it knows"
)
_LONG_TIMEOUT_MS = 600_000
_KNOWN_PENDING = 100_000  # rows of all queues, some 250 bytes each, that need no look-up when they end
_POSTGRES_WRITERS = 2  # half of the pool: readers are never kept out


@dataclass(frozen=True, slots=True)
class ProjectorConfig:
    """Bounds and rhythms. Two SQL transactions of a queue begin at least `min_interval_ms` apart, so that they grow.

    A busy queue waits half a millisecond for each transaction of its last one, at most `max_interval_ms`: the more
    half messages find their end in the same SQL transaction, the less there is to look up and to write twice.
    """

    max_read_records: int = 5_000
    max_wait_ms: int = 500
    max_waiting_records: int = 20_000
    min_interval_ms: int = 20
    max_interval_ms: int = 300
    lease_ms: int = 5_000
    retry_ms: int = 1_000
    purge_after_ms: int = 7 * _DAY_MS
    purge_interval_ms: int = 5_000
    max_purge_rows: int = 2_000

    def __post_init__(self) -> None:
        if self.purge_after_ms < _DAY_MS:
            raise ConfigError("purge_after_ms must be at least a day: repeats are recognised as long as rows are kept")

    def interval_after(self, moved: int) -> int:
        """Milliseconds from the begin of a SQL transaction that wrote so many transactions to that of the next one."""
        if moved >= self.max_read_records // 2:
            return 0  # there is more already
        return max(self.min_interval_ms, min(self.max_interval_ms, moved // 2))


@dataclass(frozen=True, slots=True)
class ProjectorPorts:
    """What a projector works with. `times_of`: check times of a group, to show the first check."""

    owners: OwnerStore
    store: MessageStore
    admin: TopicAdmin
    database: Database
    clock: Clock
    times_of: TimesOf


class RunResult(NamedTuple):
    """What one pass over all queues did. `chunks`: SQL transactions; 0 if nothing could be applied."""

    chunks: int = 0
    prepared: int = 0
    moved: int = 0
    quarantined: int = 0


class RebuildProgress(NamedTuple):
    """S of each queue: applied so far, and to be reached."""

    applied: Mapping[int, int]
    wanted: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class RebuildVerdict:
    """What a rebuild found. `orphans`: the first of those that only the database knew, not Kafka. `unproven`: how
    many have ended, and the op topic has lost how."""

    total: GroupStats
    orphan_count: int
    orphans: Sequence[Orphan]
    unproven: int


class PositionMoved(Exception):
    """Another projector applied a chunk of this queue; nothing was applied here."""


class QueueFollower:
    """Follows one queue from the position in SQL. After any error: close it and open another."""

    def __init__(
        self,
        queue_id: int,
        topics: InternalTopics,
        ports: ProjectorPorts,
        config: ProjectorConfig,
        writing: asyncio.Semaphore,
    ) -> None:
        self._queue_id = queue_id
        self._writing = writing
        self._topics = topics
        self._ports = ports
        self._config = config
        self._readers = AsyncExitStack()
        self._pending = PendingRows(max(1_000, _KNOWN_PENDING // topics.queues))
        self.newest_ms = self.newest_s = 0  # Kafka's time of what was applied last with its half messages, and S then

    async def open(self) -> None:
        """Finds the position, or begins at the logs' beginning. Raises QueueHalted if it is another log's."""
        last_acts = await self._ports.database.read(partial(read_last_acts, queue_ids=[self._queue_id]))
        identity = await self._identify()
        known = await self._ports.database.read(partial(read_position, queue_id=self._queue_id))
        if known is None:
            known = await self._begin(identity, last_acts[self._queue_id])
        self.position, recorded = known
        if recorded != identity:
            raise QueueHalted(_OF_BEFORE)
        room = self._config.max_waiting_records
        self._ops = OpBuffer(self.position.op_next, room)
        self._journal = JournalBuffer(self.position.journal_next, room, decided=self._ops.decided)
        self._journal_reader = await self._open_reader(self._topics.half, self.position.journal_next)
        self._op_reader = await self._open_reader(self._topics.op, self.position.op_next)

    async def close(self) -> None:
        """Gives the readers back."""
        await self._readers.aclose()

    async def step(self, max_wait_ms: int) -> RunResult | None:
        """Reads and applies at most one chunk; None if there was nothing to apply yet.

        Raises StoreError, SqlUnavailable, PositionMoved, and QueueHalted where an operator, or a newer
        release, is needed.
        """
        quarantined = await self._read_ops(max_wait_ms) + await self._read_journal()
        for record in quarantined:
            _LOG.warning("record_quarantined", queue=self._queue_id, offset=record.offset, reason=record.reason)
        chunk = next_chunk(self._queue_id, self.position, self._journal, self._ops)
        if chunk is None:
            halted = self._journal.halted or self._ops.halted
            if halted is not None:
                raise QueueHalted(halted)
            await self._check_position()
            return RunResult(quarantined=len(quarantined)) if quarantined else None
        return await self._apply(chunk, len(quarantined))

    async def _apply(self, chunk: Chunk, quarantined: int) -> RunResult:
        work = partial(apply_chunk, chunk=chunk, times_of=self._ports.times_of)
        reach(FaultPoint.PROJECT_READ)
        async with self._writing:
            try:
                result = await self._ports.database.run(partial(work, pending=self._pending))
            except NotAsKnown:
                result = await self._ports.database.run(work)
        reach(FaultPoint.PROJECT_COMMITTED)
        if result is None:
            raise PositionMoved
        for offset, reason in result.quarantined:
            _LOG.warning("record_quarantined", queue=self._queue_id, offset=offset, reason=reason)
        self.position = chunk.after
        self._pending.note(chunk, result.pending)
        if chunk.ops and chunk.is_closed:
            self.newest_ms, self.newest_s = max(self.newest_ms, chunk.ops[-1].stored_ms), chunk.after.s
        return RunResult(1, result.prepared, result.moved, quarantined + len(result.quarantined))

    async def _check_position(self) -> None:
        """An idle follower has no compare-and-set to fail: only so it learns of a rebuild."""
        known = await self._ports.database.read(partial(read_position, queue_id=self._queue_id))
        if known is None or known[0] != self.position:
            raise PositionMoved

    async def _read_ops(self, max_wait_ms: int) -> list[Quarantined]:
        if self._ops.halted is not None or self._ops.is_overfull or self._ops.groups:
            return []
        result = await self._op_reader.get(self._config.max_read_records, max_wait_ms)
        return self._ops.add(result.messages, result.next_begin_offset)

    async def _read_journal(self) -> list[Quarantined]:
        """Reads on until every position that is known is covered, as far as there is room."""
        quarantined: list[Quarantined] = []
        journal, groups = self._journal, self._ops.groups
        while groups and journal.next_offset < groups[-1].s and not journal.is_full and journal.halted is None:
            before = journal.next_offset
            result = await self._journal_reader.get(self._config.max_read_records, 100)
            quarantined += journal.add(result.messages, result.next_begin_offset)
            if journal.next_offset == before:
                break  # not here yet
        return quarantined

    async def _begin(self, identity: LogIdentity, last_act: int) -> tuple[AppliedPosition, LogIdentity]:
        journal, op = [
            await self._ports.store.get_offsets(MessageQueue(topic, self._queue_id))
            for topic in (self._topics.half, self._topics.op)
        ]
        # the last one, also if its markers are late: an earlier one speaks of what was given up since
        position = await find_position(
            self._ports.store, self._ports.owners, self._topics, self._queue_id, is_last=True
        )
        if position is None:
            raise StoreUnavailable(f"the op topic holds no position of queue {self._queue_id}")
        # s is 0 until a position is read: not even an empty journal says that nothing is pending
        start = AppliedPosition(0, max(journal.minimum, position.start.journal), max(op.minimum, position.start.op))
        begin = partial(begin_projection, queue_id=self._queue_id, position=start, identity=identity, last_act=last_act)
        await self._ports.database.run(begin)
        known = await self._ports.database.read(partial(read_position, queue_id=self._queue_id))
        if known is None:
            raise PositionMoved
        return known

    async def _identify(self) -> LogIdentity:
        names = (self._topics.half, self._topics.op)
        cluster = await self._ports.admin.describe_cluster()
        found = await self._ports.admin.describe_topics(names)
        journal, op = [found[name] for name in names]
        if journal is None or op is None:
            raise QueueHalted("an internal topic is missing")
        return LogIdentity(cluster.cluster_id, journal.topic_id, op.topic_id)

    async def _open_reader(self, topic: str, offset: int) -> QueueReader:
        ports, queue = self._ports, MessageQueue(topic, self._queue_id)
        if offset < (begin := (await ports.store.get_offsets(queue)).minimum):
            raise QueueHalted(f"{topic} begins at {begin}, and {offset} is the next to be applied: {_OLDER}")
        reader = WatchedReader(ports.owners, ports.store, ports.clock, queue, offset)
        self._readers.push_async_callback(reader.close)
        return reader


class Projector:
    """Keeps the projection of all queues. `halted`: queues that cannot go on, with the reason: not ready."""

    def __init__(
        self, topics: InternalTopics, owner: str, ports: ProjectorPorts, config: ProjectorConfig | None = None
    ) -> None:
        self.topics = topics
        self.ports = ports
        self._owner = owner
        self._config = config or ProjectorConfig()
        self._followers: dict[int, QueueFollower] = {}
        self.halted: dict[int, str] = {}  # queues that need an operator or a newer release
        self.held_up: dict[int, str] = {}  # queues that were tried in vain last, such as for a full disk
        self._lease = LeaseHolder(ports.database, ports.clock, _LEASE, owner, self._config.lease_ms)
        self._stopping = asyncio.Event()
        # queues wait for each other here, not at the one writer of SQLite, where others would be sent away
        self._writing = asyncio.Semaphore(1 if ports.database.is_sqlite else _POSTGRES_WRITERS)
        self.is_active = False
        self.quarantined = 0

    def stop(self) -> None:
        """Lets `run_forever` end soon."""
        self._stopping.set()

    async def run_once(self, max_wait_ms: int = 0) -> RunResult:
        """One step of each queue; what they did together. Raises what a step raises, that queue begun anew."""
        results = [await self._step(queue_id, max_wait_ms) for queue_id in range(self.topics.queues)]
        return RunResult(*[sum(numbers) for numbers in zip(*[r or RunResult() for r in results], strict=True)])

    async def run_forever(self) -> None:
        """Works whenever it has the lease, until it is stopped."""
        working = asyncio.ensure_future(self._run())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)
            await self.close()

    async def close(self) -> None:
        """Gives readers and lease back."""
        for queue_id in list(self._followers):
            await self._drop(queue_id)
        await self._lease.release()

    async def hold_lease(self) -> bool:
        """Takes or renews the lease; False if another projector works."""
        self.is_active = await self._lease.hold()
        return self.is_active

    async def _run(self) -> None:
        while True:
            try:
                if await self.hold_lease():
                    _LOG.info("projector_active", owner=self._owner)
                    await self.ports.database.run(recount_pending, timeout_ms=_LONG_TIMEOUT_MS)
                    await self._work()
            except SqlUnavailable as error:
                _LOG.warning("projector_waits", reason=str(error))
            except Exception:  # noqa: BLE001 - the loop outlives any error
                _LOG.exception("projector_failed")
            self.is_active = False
            self.halted.clear()  # who works now says what halts
            self.held_up.clear()
            await self.ports.clock.sleep_ms(self._config.lease_ms // 3)

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._follow(queue_id)) for queue_id in range(self.topics.queues)]
            running.append(tasks.create_task(self._purge_forever()))
            await self._keep_lease()
            for task in running:
                task.cancel()

    async def _keep_lease(self) -> None:
        """Returns when another projector has the lease."""
        is_held = True
        while is_held:
            await self.ports.clock.sleep_ms(self._config.lease_ms // 3)
            try:
                is_held = await self.hold_lease()
            except SqlUnavailable as error:
                _LOG.warning("lease_not_renewed", reason=str(error))

    async def _follow(self, queue_id: int) -> None:
        """Steps for ever; a queue that cannot go on does not hold up the others."""
        clock, config = self.ports.clock, self._config
        while True:
            began_ms = clock.monotonic_ms()
            try:
                result = await self._step(queue_id, config.max_wait_ms)
            except PositionMoved:
                _LOG.info("position_moved", queue=queue_id)
            except (QueueHalted, StoreError, SqlUnavailable) as error:
                self.held_up[queue_id] = str(error)
                _LOG.warning("queue_not_projected", queue=queue_id, reason=str(error))
                await clock.sleep_ms(config.retry_ms)
            except Exception as error:  # noqa: BLE001 - the loop outlives any error, and says that it is not ready
                self.halted[queue_id] = f"{type(error).__name__}: {error}"
                _LOG.exception("projector_failed", queue=queue_id)
                await clock.sleep_ms(config.retry_ms)
            else:
                if result is not None:
                    ends_ms = began_ms + config.interval_after(result.moved)
                    await clock.sleep_ms(max(0, ends_ms - clock.monotonic_ms()))

    async def _step(self, queue_id: int, max_wait_ms: int) -> RunResult | None:
        follower = self._followers.get(queue_id)
        try:
            if follower is None:
                follower = QueueFollower(queue_id, self.topics, self.ports, self._config, self._writing)
                self._followers[queue_id] = follower
                await follower.open()
            result = await follower.step(max_wait_ms)
        except BaseException as error:
            await self._drop(queue_id)
            if isinstance(error, QueueHalted):
                self.halted[queue_id] = str(error)
            raise
        self.halted.pop(queue_id, None)
        self.held_up.pop(queue_id, None)
        self.quarantined += result.quarantined if result else 0
        return result

    async def _drop(self, queue_id: int) -> None:
        await self._followers.pop(queue_id).close()

    async def _purge_forever(self) -> None:
        """Forgets by Kafka's time and by the clock here: one that is, or was, ahead forgets nothing too early."""
        while True:
            await self.ports.clock.sleep_ms(self._config.purge_interval_ms)
            try:
                await self.purge()
            except SqlUnavailable as error:
                _LOG.warning("purge_failed", reason=str(error))

    async def purge(self) -> int:
        """Forgets what ended long ago, bounded; how many transactions. Each queue by its own time: in one that lags
        there is more to come of what ended before, and it would be counted again."""
        purged, limit = 0, self._config.max_purge_rows
        for queue_id, follower in list(self._followers.items()):
            before_ms = min(follower.newest_ms, self.ports.clock.now_ms()) - self._config.purge_after_ms
            forget = partial(purge, queue_id=queue_id, s=follower.newest_s, before_ms=before_ms, limit=limit)
            for _ in range(20):
                count = await self.ports.database.run(forget)
                purged += count
                if count < limit:
                    break
        return purged


async def rebuild(projector: Projector, on_progress: Callable[[RebuildProgress], None]) -> RebuildVerdict:
    """Empties the projection and reads Kafka from the beginning, up to what is decided now; while the bridge runs.

    A projector at work notices and begins anew: then this one only watches. Raises QueueHalted, and changes nothing,
    where the log is not what was left: the projection alone may know then what has ended. Raises what a step raises,
    and StoreTimeout after a minute without progress; called again it starts again, and orphans are still compared
    with what there was at first.
    """
    ports, database = projector.ports, projector.ports.database
    log = LogToReread(ports.store, ports.owners, ports.admin, database, projector.topics)
    await _refuse_older(projector, await log.check())
    await database.run(clear_projection, timeout_ms=_LONG_TIMEOUT_MS)
    reach(FaultPoint.REBUILD_CLEARED)
    positions = await log.find_positions()  # now: what was in the tables when they were emptied is below
    wanted = {queue_id: position.s for queue_id, position in positions.items()}
    before, moved_ms = dict[int, int](), ports.clock.monotonic_ms()
    while True:
        result = await _run_or_begin_anew(projector) if await projector.hold_lease() else RunResult()
        reach(FaultPoint.REBUILD_STEPPED)
        applied = await database.read(partial(_read_applied, queues=wanted))
        on_progress(RebuildProgress(applied, wanted))
        if all(applied[queue_id] >= s for queue_id, s in wanted.items()):
            reach(FaultPoint.REBUILD_READ)
            unproven = await log.give_up_untold(positions, ports.clock.now_ms())
            conclude = partial(_conclude, wanted=wanted, unproven=unproven, now_ms=ports.clock.now_ms())
            if (verdict := await database.run(conclude, timeout_ms=_LONG_TIMEOUT_MS)) is not None:
                return verdict
        if applied != before or result.chunks:
            before, moved_ms = applied, ports.clock.monotonic_ms()
        elif ports.clock.monotonic_ms() - moved_ms > _REBUILD_STALL_MS:
            raise StoreTimeout(_tell_stall(applied, wanted))
        await ports.clock.sleep_ms(0 if result.chunks else 100)


async def _refuse_older(projector: Projector, positions: Mapping[int, Position]) -> None:
    """Raises QueueHalted: what ended before such an act the database alone knows."""
    names = (projector.topics.half, projector.topics.op)
    found = await projector.ports.admin.identify_topics(names)
    half, op = [topic.topic_id if (topic := found[name]) else "" for name in names]
    for queue_id, position in positions.items():
        known = await projector.ports.database.read(partial(read_position, queue_id=queue_id))
        if known is not None and is_of_before(known, LogTopics(half, op, ""), position.start):
            raise QueueHalted(_OF_BEFORE)


def _tell_stall(applied: Mapping[int, int], wanted: Mapping[int, int]) -> str:
    behind = ", ".join(f"queue {q} is at {applied[q]} of {s}" for q, s in wanted.items() if applied[q] < s)
    return f"no progress for {_REBUILD_STALL_MS // 1000} s: {behind}; the projection is not complete, rebuild again"


async def _run_or_begin_anew(projector: Projector) -> RunResult:
    try:
        return await projector.run_once(100)
    except PositionMoved:  # by a projector that was at work before it lost the lease
        return RunResult()


def _read_applied(conn: Connection, queues: Iterable[int]) -> dict[int, int]:
    known = read_positions(conn)
    return {queue_id: known[queue_id].s if queue_id in known else 0 for queue_id in queues}


def _conclude(conn: Connection, wanted: Mapping[int, int], unproven: int, now_ms: int) -> RebuildVerdict | None:
    """None if another rebuild has emptied the tables since they were complete: all would be told as orphans."""
    allow_long_statements(conn)
    keep_positions(conn)
    if any(wanted[queue_id] > s for queue_id, s in _read_applied(conn, wanted).items()):
        return None
    count, orphans = read_orphans(conn, 1_000)
    forget_previous(conn)
    return RebuildVerdict(read_stats(conn, now_ms).total, count, orphans, unproven)

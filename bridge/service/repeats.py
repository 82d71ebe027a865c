"""Whether a keyed prepare has been seen before (design section 4, "Repeats")."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import structlog

from bridge.clock import Clock
from bridge.core.errors import StoreError
from bridge.core.record import SEEN_LIMIT_MS
from bridge.core.transaction import TransactionView
from bridge.service.journal import Deadline, EndOffsets
from bridge.service.reads import CurrentReads, Freshness
from bridge.sql.transactions import find_many, find_many_by_key

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
        self._claims.move_to_end(key)
        if len(self._claims) > self._max_keys:
            self._claims.popitem(last=False)
        return KeyClaim.MADE if known is None else KeyClaim.HELD

    def forget(self, key: GroupKey) -> None:
        """What was claimed was certainly not stored after all."""
        self._claims.pop(key, None)

    def _drop_old(self, now: int) -> None:
        while self._claims:
            key, (_, at_ms) = next(iter(self._claims.items()))
            if now - at_ms <= _CLAIMED_MS:
                return
            del self._claims[key]

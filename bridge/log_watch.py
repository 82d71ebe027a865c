"""What this process knows of the internal topics beside their records: their ids, and which queues halt.

Both are looked at every second or two, cheaply, and read in memory: before each batch of a queue's owner, and
before each append of the api.
"""

from collections.abc import Mapping
from functools import partial

import structlog
from sqlalchemy import Connection

from bridge.clock import Clock
from bridge.core.errors import HaltKind, QueueHalted, StoreError, StoreUnavailable
from bridge.core.log_facts import Witness, check_topics
from bridge.core.op_message import LogTopics
from bridge.core.topics import InternalTopics
from bridge.sql.engine import Database
from bridge.sql.errors import SqlUnavailable
from bridge.sql.halts import Halt, read_halts, store_halt
from bridge.sql.identity import TopicIdentity, read_identity
from bridge.sql.positions import read_position
from bridge.store.message_store import TopicAdmin

_LOG = structlog.get_logger()
_LOOK_MS = 1_500
REMEDY = "see what would be given up with `outbox-bridge migrate --accept-identity`, which asks before it acts"


class LogWatch:
    """`database` None: halts are kept by this process alone."""

    def __init__(
        self, admin: TopicAdmin, topics: InternalTopics, clock: Clock, database: Database | None = None
    ) -> None:
        self._admin = admin
        self._topics = topics
        self._clock = clock
        self._database = database
        self._own: dict[int, Halt] = {}  # not stored yet
        self._stored: Mapping[int, Halt] = {}
        self._recorded: Mapping[str, TopicIdentity] = {}
        self._now: Mapping[str, str | None] = {}

    @property
    def halts(self) -> Mapping[int, Halt]:
        """Queues that wait for an operator."""
        return {**self._own, **self._stored}

    async def identify(self) -> LogTopics:
        found = self._now = await self._admin.identify_topics(self._names)
        half, op, parked = [found[name] for name in self._names]
        if half is None or op is None or parked is None:
            raise StoreUnavailable("an internal topic is missing")
        return LogTopics(half, op, parked)

    async def find_witness(self, queue_id: int) -> Witness | None:
        if self._database is None:
            return None
        try:
            known = await self._database.read(partial(read_position, queue_id=queue_id))
        except SqlUnavailable as error:
            _LOG.warning("projection_not_asked", queue=queue_id, reason=str(error))
            return None
        return None if known is None else Witness(known[0].s, known[1].journal_topic_id, known[1].op_topic_id)

    async def check_halts(self, queue_id: int) -> None:
        await self._store_own()
        await self._read()
        self._check_halt(queue_id)

    def check(self, queue_id: int, log: LogTopics | None) -> None:
        self._check_halt(queue_id)
        half, op, parked = [self._now.get(name) for name in self._names]
        if log is not None and half is not None and op is not None and parked is not None:
            check_topics(log, LogTopics(half, op, parked))

    async def store_halt(self, queue_id: int, halted: QueueHalted) -> None:
        if queue_id not in self.halts:
            kind = halted.kind or HaltKind.OP_LOST
            self._own[queue_id] = Halt(queue_id, kind, str(halted), self._clock.now_ms())
            await self._store_own()

    def find_refusal(self, queue_id: int) -> str | None:
        """Why nothing may be appended to the queue now."""
        halt = self.halts.get(queue_id) if self._own or self._stored else None
        if halt is not None:
            return f"queue {queue_id} halts: {halt.detail}; {REMEDY}"
        return self.find_fault()

    def find_fault(self) -> str | None:
        """What is wrong with the topics as such."""
        for name, topic_id in self._now.items():
            known = self._recorded.get(name)
            if topic_id is None and known is not None:
                return f"{name}: the topic is missing; {REMEDY}"
            if known is not None and known.topic_id != topic_id:
                return f"{name}: the topic was deleted and made again; {REMEDY}"
        return None

    async def run_once(self) -> None:
        """Looks now; what cannot be asked is left as it was known."""
        await self._store_own()
        await self._read()
        try:
            self._now = await self._admin.identify_topics(self._names)
        except StoreError as error:
            _LOG.warning("topics_not_identified", reason=str(error))

    async def run_forever(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await self.run_once()
            await self._clock.sleep_ms(_LOOK_MS)

    @property
    def _names(self) -> tuple[str, str, str]:
        return self._topics.half, self._topics.op, self._topics.parked

    def _check_halt(self, queue_id: int) -> None:
        halt = self.halts.get(queue_id) if self._own or self._stored else None
        if halt is not None:
            raise QueueHalted(halt.detail, halt.kind)

    async def _read(self) -> None:
        if self._database is None:
            return
        try:
            self._stored, self._recorded = await self._database.read(_read_both)
        except SqlUnavailable as error:
            _LOG.warning("halts_not_read", reason=str(error))

    async def _store_own(self) -> None:
        if self._database is None:
            return
        for queue_id, halt in list(self._own.items()):
            try:
                await self._database.run(partial(store_halt, halt=halt))
            except SqlUnavailable as error:
                _LOG.error("halt_not_stored", queue=queue_id, reason=str(error))
                return
            self._stored = {**self._stored, queue_id: halt}
            self._own.pop(queue_id, None)


def _read_both(conn: Connection) -> tuple[Mapping[int, Halt], Mapping[str, TopicIdentity]]:
    return read_halts(conn), read_identity(conn)

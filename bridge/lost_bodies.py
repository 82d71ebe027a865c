"""Transactions whose messages no log has any more, although they are not over.

The journal keeps a body for longer than a transaction may live. If it was made to begin later, by a retention that was
changed or by deleted records, nothing else tells before a commit is refused with `body-expired`.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import structlog

from bridge.clock import Clock
from bridge.core.errors import SqlUnavailable, StoreError
from bridge.core.message import MessageQueue
from bridge.core.topics import InternalTopics
from bridge.core.transaction import TransactionView
from bridge.sql.engine import Database
from bridge.sql.stats import read_without_body
from bridge.store.message_store import MessageStore

_LOG = structlog.get_logger()
_LOOK_MS = 30_000  # Kafka itself looks for what it may delete every five minutes
_SHOWN = 10
REMEDY = (
    "prepare anew what its producer has committed, then end it: "
    "outbox-bridge tx force ID ROLLBACK --reason 'messages lost'"
)


class LostBodies(NamedTuple):
    """Of one queue: where the journal begins now, how many transactions lie before it, and the first of them."""

    begin: int
    transactions: int
    first: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether all are among the first."""
        return len(self.first) == self.transactions


class BodyWatch:
    """What this process knows of them, from a look every half a minute."""

    def __init__(self, store: MessageStore, database: Database, topics: InternalTopics, clock: Clock) -> None:
        self._store = store
        self._database = database
        self._topics = topics
        self._clock = clock
        self._begins: Mapping[int, int] = {}
        self.lost: Mapping[int, LostBodies] = {}

    def is_lost(self, view: TransactionView) -> bool:
        """Whether the journal begins after the half message, and there is no copy of it."""
        return view.parked_offset is None and view.queue_offset < self._begins.get(view.queue_id, 0)

    def describe(self) -> str:
        """For operators; nothing if none is lost."""
        told = [
            f"queue {queue_id}: the journal begins at offset {lost.begin} now, and {lost.transactions} transactions "
            f"that are not over lie before it without a copy: {', '.join(lost.first)}{'' if lost.is_whole else ', ...'}"
            for queue_id, lost in self.lost.items()
        ]
        return f"{'; '.join(told)}; {REMEDY}" if told else ""

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
        found = await self._database.read(partial(read_without_body, begins=begins, most=_SHOWN))
        lost = {queue_id: LostBodies(begins[queue_id], count, ids) for queue_id, (count, ids) in found.items()}
        for queue_id, one in lost.items():
            if one != self.lost.get(queue_id):
                _LOG.error(
                    "bodies_lost",
                    queue=queue_id,
                    journal_begins=one.begin,
                    transactions=one.transactions,
                    first=one.first,
                )
        self._begins, self.lost = begins, lost

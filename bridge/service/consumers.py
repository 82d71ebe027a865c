"""How far consumer groups are behind in a topic, as its committed readers see it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

from bridge.clock import Clock
from bridge.core.errors import StoreError
from bridge.core.message import MessageQueue
from bridge.service.journal import Deadline
from bridge.store.message_store import MessageStore, TopicAdmin
from bridge.turns import take_error

_LOG = structlog.get_logger()
_FRESH_MS = 30_000
_WAIT_MS = 1_000
_MOST_TOPICS = 100  # remembered
_AT_ONCE = 2  # topics that are asked about
_MOST_GROUPS = 50  # each costs a connection
_MOST_QUEUES = 256


class GroupLag(NamedTuple):
    """A consumer group that has committed offsets in a topic, and how many offsets it has before it."""

    group: str
    behind: int


class TopicLag(NamedTuple):
    """A topic as committed readers see it. `offsets`: those they could read now; `is_cut`: more groups or queues were
    there than are asked about."""

    offsets: int
    groups: Sequence[GroupLag]
    is_cut: bool


class ConsumerWatch:
    """Asks Kafka beside whoever wants to know, at most once in half a minute for a topic."""

    def __init__(self, store: MessageStore, admin: TopicAdmin, clock: Clock) -> None:
        self._store = store
        self._admin = admin
        self._clock = clock
        self._known: dict[str, tuple[int, TopicLag | None]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def read(self, topic: str) -> TopicLag | None:
        """None: not known now, or there is no such topic. Waits a second at most."""
        known = self._known.get(topic)
        if known is not None and self._clock.monotonic_ms() - known[0] < _FRESH_MS:
            return known[1]
        task = self._asking.get(topic)
        if task is None and len(self._asking) < _AT_ONCE:
            task = self._asking[topic] = asyncio.ensure_future(self._ask(topic))
            task.add_done_callback(lambda _: self._asking.pop(topic))
            task.add_done_callback(take_error)
        if task is None or not await Deadline.after(self._clock, _WAIT_MS).wait(task):
            return None
        return self._known[topic][1] if topic in self._known else None

    async def _ask(self, topic: str) -> None:
        found = None
        try:
            found = await self._find(topic)
        except StoreError as error:
            _LOG.warning("consumers_unknown", topic=topic, reason=str(error))
        if len(self._known) >= _MOST_TOPICS:
            self._known.pop(next(iter(self._known)))
        self._known[topic] = (self._clock.monotonic_ms(), found)

    async def _find(self, topic: str) -> TopicLag | None:
        outline = (await self._admin.identify_topics([topic]))[topic]
        if outline is None:
            return None
        queues = [MessageQueue(topic, queue_id) for queue_id in range(min(outline.queues, _MOST_QUEUES))]
        found = await asyncio.gather(*[self._store.get_offsets(queue) for queue in queues])
        stable = {queue: offsets.stable for queue, offsets in zip(queues, found, strict=True)}
        names = await self._admin.list_groups()
        lags = [await self._find_lag(name, stable) for name in names[:_MOST_GROUPS]]
        behind = sorted([lag for lag in lags if lag is not None], key=lambda lag: -lag.behind)
        is_cut = len(names) > _MOST_GROUPS or outline.queues > _MOST_QUEUES
        return TopicLag(sum(offsets.stable - offsets.minimum for offsets in found), behind, is_cut)

    async def _find_lag(self, group: str, stable: Mapping[MessageQueue, int]) -> GroupLag | None:
        """None: it has committed nothing there, or nobody may know."""
        try:
            committed = await self._store.get_consume_offsets(group, list(stable))
        except StoreError:
            return None
        behind = [max(0, stable[queue] - offset) for queue, offset in committed.items() if offset >= 0]
        return GroupLag(group, sum(behind)) if behind else None

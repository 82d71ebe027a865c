"""Which topics messages may go to, how often the cluster may be asked, and how far consumers are behind."""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from typing import NamedTuple

import structlog

from bridge.clock import Clock, KafkaTime
from bridge.core.errors import StoreError
from bridge.core.message import Message, MessageQueue
from bridge.core.properties import ID_HEADER_BYTES, measure_published
from bridge.core.topics import (
    InternalTopics,
    NotTaken,
    TopicDescription,
    find_obstacle,
    is_legal_topic,
    is_reserved_topic,
)
from bridge.service.contract import RefusalCode, Refused
from bridge.service.journal import Deadline
from bridge.store.message_store import MessageStore, TopicAdmin
from bridge.turns import Bucket, take_error

# --- which topics messages may go to, and how often the cluster may be asked for names that are not known ---

_OTHERS = ""  # groups for which there is no bucket of their own


class LookUpBudget:
    """A question costs one of all, and one of each group that it is asked for. Full buckets are forgotten."""

    def __init__(self, per_s: int, group_per_s: int, max_groups: int, now: int) -> None:
        self._all = Bucket(per_s, per_s, now)
        self._group_per_s = group_per_s
        self._max_groups = max_groups
        self._groups: dict[str, Bucket] = {}

    def take(self, groups: Collection[str], now: int) -> list[str]:
        """Pays for one question for those of the groups that have something left; which they are."""
        if not self._all.has_one(now):
            return []
        paying = {group: bucket for group in groups if (bucket := self._find(group, now)).has_one(now)}
        if paying:
            self._all.take()
        for bucket in set(paying.values()):
            bucket.take()
        return list(paying)

    def give_back(self, groups: Collection[str], now: int) -> None:
        """The question was worth it: what was asked for is there."""
        self._all.give_back()
        for bucket in {self._find(group, now) for group in groups}:
            bucket.give_back()

    def _find(self, group: str, now: int) -> Bucket:
        found = self._groups.get(group)
        if found is None:
            if len(self._groups) >= self._max_groups:
                self._groups = {name: bucket for name, bucket in self._groups.items() if not bucket.is_full(now)}
            name = group if len(self._groups) < self._max_groups else _OTHERS
            found = self._groups.setdefault(name, Bucket(self._group_per_s, self._group_per_s, now))
        return found


def choose_in_turn(names_of: Mapping[str, Collection[str]], most: int) -> list[str]:
    """At most so many names, each once: the first of each group, then the second of each, and so on."""
    rows = zip_longest(*names_of.values())
    names = dict.fromkeys(name for name in chain.from_iterable(rows) if name is not None)
    return list(islice(names, most))


_LOG = structlog.get_logger()
_MOST_AT_ONCE = 500
_Reason = tuple[RefusalCode, str, str]  # code, detail, member of the message


@dataclass(frozen=True, slots=True)
class TopicCacheConfig:
    """How fresh descriptions are kept, and how often the cluster may be asked."""

    refresh_ms: int = 5_000
    max_age_ms: int = 60_000  # older ones are asked for again before they are believed
    missing_age_ms: int = 1_000  # a topic created a moment ago must be found soon
    unused_ms: int = 600_000
    max_topics: int = 10_000
    max_missing: int = 20_000  # names that are being asked for, and names remembered as missing
    max_asks_per_s: int = 40  # for names that are not known
    max_group_asks_per_s: int = 10
    max_known_asks_per_s: int = 5  # for names that were known and could not be refreshed
    max_groups: int = 1_000
    has_id_header: bool = True


@dataclass(slots=True)
class _Known:
    description: TopicDescription | None
    asked_ms: int
    used_ms: int


class TopicCache:
    """Descriptions of topics in use. `check` needs no I/O: ask `learn` for the topics before."""

    def __init__(
        self,
        admin: TopicAdmin,
        clock: Clock,
        internal: InternalTopics,
        kafka_time: KafkaTime,
        config: TopicCacheConfig | None = None,
    ) -> None:
        self._admin = admin
        self._clock = clock
        self._internal = internal
        self._kafka_time = kafka_time
        self._config = config or TopicCacheConfig()
        self._known: dict[str, _Known] = {}
        self._missing: dict[str, _Known] = {}  # oldest first; also what we may not write, since any name may be denied
        self._asking: dict[str, asyncio.Task[None]] = {}
        now, limits = clock.monotonic_ms(), self._config
        self._budget = LookUpBudget(limits.max_asks_per_s, limits.max_group_asks_per_s, limits.max_groups, now)
        self._known_asks = Bucket(limits.max_known_asks_per_s, limits.max_known_asks_per_s, now)

    async def learn(self, topics: Iterable[tuple[str, str]], deadline: Deadline) -> None:
        """Asks the cluster for topics, each with the group that wants it; what is over a limit stays unknown."""
        now = self._clock.monotonic_ms()
        wanted = [(g, topic) for g, topic in topics if not self._is_fresh(topic, now) and self._may_be_asked(topic)]
        if not wanted:
            return
        self._ask_beside([(group, topic) for group, topic in wanted if topic not in self._asking], now)
        for task in {self._asking[topic] for _, topic in wanted if topic in self._asking}:
            await deadline.wait(task)

    def check(self, messages: Sequence[Message]) -> Refused | None:
        """Why these messages could never be published; None if nothing speaks against it."""
        now = self._clock.monotonic_ms()
        for index, message in enumerate(messages):
            known = self._get(message.topic)
            description = None if known is None else known.description
            if known is None or description is None or not self._is_fresh(message.topic, now):
                refused: _Reason | None = self._refuse_topic(message.topic, known, now)
            else:
                known.used_ms = now
                refused = self._check_one(message, description)
            if refused is not None:
                code, detail, member = refused
                return Refused(
                    code,
                    detail,
                    errors=((f"/messages/{index}/{member}", detail),),
                    retry_after_s=1 if code is RefusalCode.UNAVAILABLE else None,
                )
        return None

    def find_room(self, topic: str) -> int:
        """Records of up to so many bytes, by their estimate, are taken as another one was that has no queue or time."""
        known = self._known.get(topic)
        description = None if known is None else known.description
        if description is None or description.is_key_required:
            return 0
        return description.max_message_bytes - ID_HEADER_BYTES

    async def run_forever(self) -> None:
        """Keeps the descriptions of topics in use fresh, until cancelled."""
        while True:
            try:
                await self.run_once()
            except Exception as error:  # noqa: BLE001 - a loop that lives as long as the process
                _LOG.warning("topics_not_refreshed", reason=str(error))
            await self._clock.sleep_ms(self._config.refresh_ms)

    async def run_once(self) -> int:
        """Asks again for the topics in use and forgets the others; how many were asked for. Raises StoreError."""
        self._forget(self._clock.monotonic_ms())
        topics = list(self._known)
        if topics:
            await self._ask(topics)
        return len(topics)

    def _ask_beside(self, wanted: Sequence[tuple[str, str]], now: int) -> None:
        """Asks once for all who want to know. Names that were known are asked for apart, so that others cost them
        nothing."""
        known = list(dict.fromkeys(topic for _, topic in wanted if topic in self._known))[:_MOST_AT_ONCE]
        if known and self._known_asks.has_one(now):
            self._known_asks.take()
            self._start(known, self._try_ask(known))
        new: dict[str, list[str]] = {}
        for group, topic in wanted:
            if topic not in self._known:
                new.setdefault(group, []).append(topic)
        if not new or len(self._asking) + _MOST_AT_ONCE > self._config.max_missing:
            return
        if groups := self._budget.take(new.keys(), now):
            names = choose_in_turn({group: new[group] for group in groups}, _MOST_AT_ONCE)
            self._start(names, self._ask_new(names, groups))

    def _start(self, topics: Collection[str], asking: Coroutine[None, None, None]) -> None:
        """The question goes on when its callers are gone."""
        task = asyncio.ensure_future(asking)
        self._asking |= dict.fromkeys(topics, task)

    async def _ask_new(self, topics: Collection[str], groups: Collection[str]) -> None:
        """Real topics cost nothing: a topic is new only once."""
        await self._try_ask(topics)
        if all(topic in self._known for topic in topics):
            self._budget.give_back(groups, self._clock.monotonic_ms())

    async def _try_ask(self, topics: Collection[str]) -> None:
        try:
            await self._ask(topics)
        except StoreError as error:
            _LOG.warning("topics_not_described", topics=len(topics), reason=str(error))
        finally:
            for topic in topics:
                self._asking.pop(topic, None)

    async def _ask(self, topics: Collection[str]) -> None:
        now = self._clock.monotonic_ms()
        described = await self._describe(topics)
        if len(self._known) + len(topics) > self._config.max_topics:
            self._forget(now)
        for topic in topics:
            self._keep(topic, described.get(topic), now)

    async def _describe(self, topics: Collection[str]) -> Mapping[str, TopicDescription | None]:
        """Who may not write op records is no settler, and cannot tell what settlers may write."""
        described = await self._admin.describe_topics([*topics, self._internal.op], with_denied=True)
        own = described.get(self._internal.op)
        if own is not None:
            self._warn_of_weak(described, own)
        if own is None or own.is_writable:
            return described
        return {
            name: replace(topic, is_writable=True) if topic is not None and topic.queues else topic
            for name, topic in described.items()
        }

    def _warn_of_weak(self, described: Mapping[str, TopicDescription | None], own: TopicDescription) -> None:
        """Once for each topic: what is published may be lost there, whatever we do."""
        for name, topic in described.items():
            if topic is not None and topic.queues and name not in self._known:
                weakness = topic.find_weakness(own)
                if weakness is not None:
                    _LOG.warning("topic_may_lose_messages", topic=name, reason=weakness)

    def _keep(self, topic: str, description: TopicDescription | None, now: int) -> None:
        known = self._known.pop(topic, None)
        self._missing.pop(topic, None)
        found = _Known(description, now, known.used_ms if known else now)
        if description is None or not description.is_writable:
            self._missing[topic] = found
            if len(self._missing) > self._config.max_missing:
                del self._missing[next(iter(self._missing))]
        elif len(self._known) < self._config.max_topics:
            self._known[topic] = found

    def _forget(self, now: int) -> None:
        unused_ms = self._config.unused_ms
        self._known = {t: known for t, known in self._known.items() if now - known.used_ms <= unused_ms}
        self._missing = {t: missing for t, missing in self._missing.items() if self._is_fresh(t, now)}

    def _get(self, topic: str) -> _Known | None:
        return self._known.get(topic) or self._missing.get(topic)

    def _is_fresh(self, topic: str, now: int) -> bool:
        if known := self._known.get(topic):
            return now - known.asked_ms <= self._config.max_age_ms
        missing = self._missing.get(topic)
        return missing is not None and now - missing.asked_ms <= self._config.missing_age_ms

    def _may_be_asked(self, topic: str) -> bool:
        return is_legal_topic(topic) and not is_reserved_topic(topic, self._internal)

    def _refuse_topic(self, topic: str, known: _Known | None, now: int) -> _Reason:
        if not is_legal_topic(topic):
            return RefusalCode.ILLEGAL_TOPIC, "not a legal topic name: 1 to 249 of a-z A-Z 0-9 . _ -", "topic"
        if is_reserved_topic(topic, self._internal):
            return RefusalCode.RESERVED_TOPIC, f"topic {topic} is reserved", "topic"
        if known is None or known.description is not None or not self._is_fresh(topic, now):
            return RefusalCode.UNAVAILABLE, f"topic {topic} could not be looked up now", "topic"
        detail = f"topic {topic} does not exist; create it with: outbox-bridge topic create {topic}"
        return RefusalCode.UNKNOWN_TOPIC, detail, "topic"

    def _check_one(self, message: Message, topic: TopicDescription) -> _Reason | None:
        if not topic.is_writable:
            return RefusalCode.FORBIDDEN, f"the bridge may not write to topic {topic.name}, or not describe it", "topic"
        if message.timestamp_ms is not None and message.timestamp_ms <= 0:
            return RefusalCode.INVALID_TIMESTAMP, "a timestamp must be above 0", "timestamp_ms"
        now = self._kafka_time.now_ms() or self._clock.now_ms()
        has_id_header = self._config.has_id_header
        obstacle = find_obstacle(message, topic, now, has_id_header=has_id_header)
        if obstacle is NotTaken.MESSAGE_TOO_LARGE:
            size = measure_published(message, has_id_header=has_id_header)
            detail = f"{size} bytes as a record; topic {topic.name} takes {topic.max_message_bytes}"
            return RefusalCode.MESSAGE_TOO_LARGE, detail, "value"
        return None if obstacle is None else _refuse(obstacle, message, topic, now)


def _refuse(obstacle: NotTaken, message: Message, topic: TopicDescription, now_ms: int) -> _Reason:
    """The refusal for the caller, and the member of the message to change."""
    name = f"topic {topic.name}"
    if obstacle is NotTaken.UNKNOWN_PARTITION:
        return RefusalCode.UNKNOWN_PARTITION, f"{name} has partitions 0..{topic.queues - 1}", "partition"
    if obstacle is NotTaken.KEY_REQUIRED:
        detail = f"{name} is compacted and takes no message without a key; give the message a key, or another topic"
        return RefusalCode.INVALID_REQUEST, detail, "key"
    limit = (
        f"{topic.timestamp_before_max_ms} ms old"
        if (message.timestamp_ms or 0) < now_ms
        else f"{topic.timestamp_after_max_ms} ms ahead"
    )
    return RefusalCode.INVALID_TIMESTAMP, f"{name} takes timestamps at most {limit}", "timestamp_ms"


# --- how far consumer groups are behind in a topic, as its committed readers see it ---

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
        behind = [max(0, stable[queue] - found.offset) for queue, found in committed.items() if found.offset >= 0]
        return GroupLag(group, sum(behind)) if behind else None

"""Which topics messages may go to, and whether what is prepared can be published there."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import structlog

from bridge.clock import Clock, KafkaTime
from bridge.core.errors import StoreError
from bridge.core.message import BY_KEY, Message
from bridge.core.record_size import ID_HEADER_BYTES, count_record_bytes
from bridge.core.topics import InternalTopics, is_legal_topic, is_reserved_topic
from bridge.service.contract import RefusalCode, Refused
from bridge.service.deadline import Deadline
from bridge.store.message_store import TopicAdmin, TopicDescription

_LOG = structlog.get_logger()
_MOST_AT_ONCE = 1_000
_Reason = tuple[RefusalCode, str, str]  # code, detail, member of the message


@dataclass(frozen=True, slots=True)
class DestinationsConfig:
    """How fresh descriptions are kept, and how often the cluster may be asked."""

    refresh_ms: int = 5_000
    max_age_ms: int = 60_000  # older ones are asked for again before they are believed
    missing_age_ms: int = 1_000  # a topic created a moment ago must be found soon
    unused_ms: int = 600_000
    max_topics: int = 10_000
    max_asks_per_s: int = 20
    has_id_header: bool = True


@dataclass(slots=True)
class _Known:
    description: TopicDescription | None
    asked_ms: int
    used_ms: int


class Destinations:
    """Descriptions of topics in use. `check` needs no I/O: ask `learn` for the topics before."""

    def __init__(
        self,
        admin: TopicAdmin,
        clock: Clock,
        internal: InternalTopics,
        kafka_time: KafkaTime,
        config: DestinationsConfig | None = None,
    ) -> None:
        self._admin = admin
        self._clock = clock
        self._internal = internal
        self._kafka_time = kafka_time
        self._config = config or DestinationsConfig()
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._asks_left = float(self._config.max_asks_per_s)
        self._asks_at_ms = clock.monotonic_ms()

    async def learn(self, topics: Iterable[str], deadline: Deadline) -> None:
        """Asks the cluster for those that are not known; what cannot be asked for in time stays unknown."""
        now = self._clock.monotonic_ms()
        wanted = {topic for topic in topics if not self._is_fresh(topic, now) and self._may_be_asked(topic)}
        if not wanted:
            return
        if new := list(wanted - self._asking.keys())[:_MOST_AT_ONCE]:
            self._ask_beside(new, now)
        for task in {self._asking[topic] for topic in wanted if topic in self._asking}:
            await deadline.wait(task)

    def check(self, messages: Sequence[Message]) -> Refused | None:
        """Why these messages could never be published; None if nothing speaks against it."""
        now = self._clock.monotonic_ms()
        for index, message in enumerate(messages):
            known = self._known.get(message.topic)
            description = None if known is None else known.description
            if known is None or description is None or now - known.asked_ms > self._config.max_age_ms:
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
        topics = [topic for topic, known in self._known.items() if known.description is not None]
        if topics:
            await self._ask(topics)
        return len(topics)

    def _ask_beside(self, topics: Collection[str], now: int) -> None:
        """Asks once for all who want to know, and goes on when they are gone."""
        if len(self._known) + len(self._asking) + len(topics) > self._config.max_topics:
            self._forget(now)
        if len(self._known) + len(self._asking) + len(topics) > self._config.max_topics or not self._take_ask(now):
            return
        task = asyncio.ensure_future(self._try_ask(topics))
        self._asking |= dict.fromkeys(topics, task)

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
        described = await self._admin.describe_topics(topics, with_denied=True)
        for topic in topics:
            used_ms = self._known[topic].used_ms if topic in self._known else now
            self._known[topic] = _Known(described.get(topic), now, used_ms)

    def _forget(self, now: int) -> None:
        for topic in [t for t, known in self._known.items() if not self._is_worth_keeping(known, now)]:
            del self._known[topic]

    def _is_fresh(self, topic: str, now: int) -> bool:
        known = self._known.get(topic)
        if known is None:
            return False
        age = self._config.missing_age_ms if known.description is None else self._config.max_age_ms
        return now - known.asked_ms <= age

    def _is_worth_keeping(self, known: _Known, now: int) -> bool:
        if known.description is None:
            return now - known.asked_ms <= self._config.missing_age_ms
        return now - known.used_ms <= self._config.unused_ms

    def _may_be_asked(self, topic: str) -> bool:
        return is_legal_topic(topic) and not is_reserved_topic(topic, self._internal)

    def _take_ask(self, now: int) -> bool:
        rate = self._config.max_asks_per_s
        self._asks_left = min(rate, self._asks_left + (now - self._asks_at_ms) * rate / 1000)
        self._asks_at_ms = now
        if self._asks_left < 1:
            return False
        self._asks_left -= 1
        return True

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
        queue_id = message.queue_id
        if queue_id != BY_KEY and not 0 <= queue_id < topic.queues:
            return (
                RefusalCode.UNKNOWN_PARTITION,
                f"topic {topic.name} has partitions 0..{topic.queues - 1}",
                "partition",
            )
        if message.timestamp_ms is not None and (detail := self._check_timestamp(message.timestamp_ms, topic)):
            return RefusalCode.INVALID_TIMESTAMP, detail, "timestamp_ms"
        size = count_record_bytes(message) + (ID_HEADER_BYTES if self._config.has_id_header else 0)
        if size > topic.max_message_bytes:
            detail = f"{size} bytes as a record; topic {topic.name} takes {topic.max_message_bytes}"
            return RefusalCode.MESSAGE_TOO_LARGE, detail, "value"
        return None

    def _check_timestamp(self, timestamp_ms: int, topic: TopicDescription) -> str | None:
        if timestamp_ms <= 0:
            return "a timestamp must be above 0"
        if topic.is_log_append_time:
            return None
        now = self._kafka_time.now_ms() or self._clock.now_ms()
        if now - timestamp_ms > topic.timestamp_before_max_ms:
            return f"topic {topic.name} takes timestamps at most {topic.timestamp_before_max_ms} ms old"
        if timestamp_ms - now > topic.timestamp_after_max_ms:
            return f"topic {topic.name} takes timestamps at most {topic.timestamp_after_max_ms} ms ahead"
        return None

"""What is known of the topics commits go to, and why a commit cannot be published there now."""

from collections.abc import Collection, Iterable, Sequence

from bridge.clock import Clock
from bridge.core.message import Message
from bridge.settler.batch import real_queue
from bridge.store.acceptance import find_obstacle
from bridge.store.message_store import TopicAdmin, TopicDescription

UNKNOWN_TOPIC = "UNKNOWN_TOPIC"
NOT_AUTHORISED = "NOT_AUTHORISED"  # we may not even describe it
LEADERLESS = "LEADERLESS"

_CLOSE_MS = 60_000  # to the limit of a topic: brokers' clocks differ, and a batch takes its time


class KnownTopics:
    """Descriptions of destination topics, asked anew when older than `max_age_ms`."""

    def __init__(self, admin: TopicAdmin, clock: Clock, max_age_ms: int = 5_000) -> None:
        self._admin = admin
        self._clock = clock
        self._max_age_ms = max_age_ms
        self._known: dict[str, tuple[TopicDescription | None, int]] = {}

    async def refresh(self, topics: Collection[str], *, is_forced: bool = False) -> None:
        """Sees to it that each topic's description is fresh. Raises StoreError."""
        now = self._clock.monotonic_ms()
        stale = [
            topic
            for topic in sorted(topics)
            if is_forced or topic not in self._known or now - self._known[topic][1] > self._max_age_ms
        ]
        if stale:
            described = await self._admin.describe_topics(stale, with_denied=True)
            self._known |= {topic: (described.get(topic), now) for topic in stale}

    def doubt(self, topics: Iterable[str]) -> None:
        """Something failed that touched these: what is known of them is too old for the next batch."""
        for topic in topics:
            if topic in self._known:
                self._known[topic] = (self._known[topic][0], -self._max_age_ms - 1)

    def queues_of(self, topic: str) -> int:
        """Number of queues of a topic that was described; 1 for one that is gone."""
        described = self._known[topic][0]
        return max(described.queues, 1) if described else 1

    def max_message_bytes(self, topic: str) -> int | None:
        """What a request to the topic may have; None if that is not known."""
        described, _ = self._known.get(topic, (None, 0))
        return described.max_message_bytes if described and described.queues else None

    def stamp(self, topic: str, decided_ms: int, now_ms: int) -> int:
        """The timestamp of a record for which none was asked: that of its commit, or the present one where the topic
        does not take it any more. Times are Kafka's."""
        described, _ = self._known.get(topic, (None, 0))
        if described is None or described.is_log_append_time:
            return decided_ms
        before_ms = described.timestamp_before_max_ms
        return decided_ms if now_ms - decided_ms < before_ms - min(_CLOSE_MS, before_ms // 2) else now_ms

    def find_reason(
        self, transaction_id: str, messages: Sequence[Message], now_ms: int, *, has_id_header: bool
    ) -> str | None:
        """Why these messages cannot be published now; None if nothing speaks against it. `now_ms`: Kafka's time."""
        for message in messages:
            described = self._known[message.topic][0]
            if described is None:
                return UNKNOWN_TOPIC
            if not described.queues:
                return NOT_AUTHORISED
            if obstacle := find_obstacle(message, described, now_ms, has_id_header=has_id_header):
                return obstacle.value
            if described.leaderless and real_queue(message, transaction_id, described.queues) in described.leaderless:
                return LEADERLESS
        return None


def topics_of(messages: Iterable[Message]) -> frozenset[str]:
    """The set of destinations of one transaction."""
    return frozenset([message.topic for message in messages])

"""The topics of the in-memory log, and what retention and compaction remove from them."""

from collections.abc import Callable, Iterator, Mapping

from bridge.core.message import MessageQueue
from bridge.core.topics import TopicDescription, is_legal_topic
from bridge.store.memory.link import Agenda, Code, LogError
from bridge.store.memory.partition import Partition, Record, complete_config, make_acceptance, make_cleaning


class Topic:
    """A topic: its id (a new one for each creation), its settings and its queues."""

    def __init__(self, name: str, topic_id: str, queues: int, config: Mapping[str, str]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.is_denied = False  # an ACL refuses writes
        self.config = complete_config(config)
        acceptance, cleaning = make_acceptance(self.config), make_cleaning(self.config)
        self.partitions = [Partition(MessageQueue(name, n), acceptance, cleaning) for n in range(queues)]

    def alter(self, config: Mapping[str, str]) -> None:
        """Changes settings; records that are in the log are not judged again."""
        self.config = complete_config({**self.config, **config})
        for partition in self.partitions:
            partition.acceptance = make_acceptance(self.config)
            partition.cleaning = make_cleaning(self.config)

    def describe(self) -> TopicDescription:
        """As the cluster would; one replica."""
        acceptance = self.partitions[0].acceptance
        return TopicDescription(
            name=self.name,
            topic_id=self.topic_id,
            queues=len(self.partitions),
            leaderless=frozenset(p.queue.queue_id for p in self.partitions if not p.has_leader),
            replication_factor=1,
            max_message_bytes=acceptance.max_message_bytes,
            is_log_append_time=acceptance.is_log_append_time,
            timestamp_before_max_ms=acceptance.timestamp_before_max_ms,
            timestamp_after_max_ms=acceptance.timestamp_after_max_ms,
            config=dict(self.config),
            is_writable=not self.is_denied,
        )


class MemoryLog:
    """All topics of one cluster, and what can be done to them from outside. One thread, no I/O."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self.topics: dict[str, Topic] = {}
        self._created = 0
        self.on_change: Callable[[str], None] = lambda name: None
        """Told of each topic that is created, deleted or grown."""

    def create_topic(self, name: str, queues: int = 1, config: Mapping[str, str] | None = None) -> Topic:
        """Raises LogError if the topic exists, or name, number of queues or settings are illegal."""
        if name in self.topics:
            raise LogError(Code.TOPIC_ALREADY_EXISTS, name)
        if not is_legal_topic(name) or queues < 1:
            raise LogError(Code.INVALID_TOPIC, name)
        self._created += 1
        self.topics[name] = Topic(name, f"topic-id-{self._created}", queues, config or {})
        self.on_change(name)
        return self.topics[name]

    def delete_topic(self, name: str) -> None:
        """Its records are gone; a topic created again under the name has another id and begins at 0."""
        topic = self.topics.pop(name)
        for partition in topic.partitions:
            partition.waiters.wake()
        self.on_change(name)

    def add_queues(self, name: str, queues: int) -> None:
        """Raises the number of queues to `queues`."""
        topic = self.topics[name]
        first = topic.partitions[0]
        for number in range(len(topic.partitions), queues):
            topic.partitions.append(Partition(MessageQueue(name, number), first.acceptance, first.cleaning))
        self.on_change(name)

    def set_leader(self, queue: MessageQueue, *, has_leader: bool) -> None:
        """Takes the queue's leader away, or elects one."""
        partition = self.find(queue)
        partition.has_leader = has_leader
        partition.waiters.wake()

    def find(self, queue: MessageQueue) -> Partition:
        """Raises LogError if there is no such topic or queue."""
        topic = self.topics.get(queue.topic)
        if topic is None or not 0 <= queue.queue_id < len(topic.partitions):
            raise LogError(Code.UNKNOWN_TOPIC_OR_PARTITION, queue.topic)
        return topic.partitions[queue.queue_id]

    def find_writable(self, queue: MessageQueue) -> Partition:
        """Raises LogError also where an ACL refuses writes."""
        partition = self.find(queue)
        if self.topics[queue.topic].is_denied:
            raise LogError(Code.TOPIC_AUTHORIZATION_FAILED, queue.topic)
        return partition

    def each_partition(self) -> Iterator[Partition]:
        """All queues of all topics, in order of creation."""
        for topic in self.topics.values():
            yield from topic.partitions


def clean(log: MemoryLog) -> None:
    """One run of retention and cleaner over all topics, at the log's present time."""
    now_ms = log.agenda.now_ms()
    for partition in log.each_partition():
        if partition.cleaning.is_deleted:
            retain(partition, now_ms)
        if partition.cleaning.is_compacted:
            compact(partition, now_ms)


def retain(partition: Partition, now_ms: int) -> None:
    """Drops whole segments from the front: those too old, then those above the size. Ages are record timestamps."""
    rules = partition.cleaning
    if partition.segments and 0 <= rules.retention_ms < now_ms - partition.segments[-1].newest_ms:
        partition.roll(now_ms)  # even the active segment goes when everything in it is too old
    kept = 0
    while kept < len(partition.segments) - 1 and _is_expired(partition, kept, now_ms):
        kept += 1
    if kept:
        partition.drop_below(partition.segments[kept].base_offset)


def _is_expired(partition: Partition, index: int, now_ms: int) -> bool:
    rules = partition.cleaning
    segments = partition.segments[index:]
    if rules.retention_ms >= 0 and now_ms - segments[0].newest_ms > rules.retention_ms:
        return True
    return rules.retention_bytes >= 0 and sum(s.size for s in segments[1:]) >= rules.retention_bytes


def compact(partition: Partition, now_ms: int) -> None:
    """Keeps the last record of each key, its offset and the order.

    Never touches the active segment, anything from the last stable offset on, or a segment with a
    record younger than the compaction lag. A tombstone goes when it has been the last one for the
    topic's delete retention.
    """
    end = _find_cleanable_end(partition, now_ms)
    last = {
        record.stored.key: record.stored.queue_offset
        for record in partition.records
        if record.stored.queue_offset < end and partition.is_visible(record)
    }
    kept = []
    for record in partition.records:
        if record.stored.queue_offset >= end or _is_kept(partition, record, last, now_ms):
            kept.append(record)
        else:
            partition.forget(record.stored.queue_offset)
    partition.records = kept


def _find_cleanable_end(partition: Partition, now_ms: int) -> int:
    lag_ms = partition.cleaning.min_compaction_lag_ms
    for segment in partition.segments[:-1]:
        if now_ms - segment.newest_ms < lag_ms:
            return min(segment.base_offset, partition.stable)
    if not partition.segments:
        return 0
    return min(partition.segments[-1].base_offset, partition.stable)


def _is_kept(partition: Partition, record: Record, last: dict[bytes | None, int], now_ms: int) -> bool:
    offset = record.stored.queue_offset
    if not partition.is_visible(record) or last[record.stored.key] != offset:
        return False
    if record.stored.value is not None:
        return True
    seen_ms = partition.tombstones_seen_ms.setdefault(offset, now_ms)
    return now_ms - seen_ms <= partition.cleaning.delete_retention_ms

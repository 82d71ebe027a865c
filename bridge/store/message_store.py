"""Ports of the store layer: RocketMQ's view of a log. Two adapters hold to them: Kafka, and an in-memory log."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.store.results import AtomicBatch, BatchResult, GetResult, GroupGeneration, PutResult, QueueOffsets


class MessageStore(Protocol):
    """Plain puts and look-ups. Reads see committed messages only."""

    async def put(self, queue: MessageQueue, message: Message) -> PutResult:
        """Appends one message (its own topic and queue_id are ignored). Never raises for a broker's answer."""
        ...

    async def put_many(self, messages: Sequence[Message]) -> list[PutResult]:
        """Appends each message to the queue it names; one result each, same order. Not atomic."""
        ...

    async def get(self, queue: MessageQueue, offset: int, max_count: int) -> GetResult:
        """Up to `max_count` committed messages from `offset` on, without waiting for new ones. Raises StoreError."""
        ...

    async def get_each(
        self, queue: MessageQueue, offsets: Collection[int], max_bytes: int | None = None
    ) -> dict[int, StoredMessage]:
        """The messages at exactly these offsets, read in batches; what the log no longer has is left out.

        Read in ascending order, up to the first with which they weigh `max_bytes` (`count_stored_bytes`): only
        then may messages at higher offsets be missing that are there.
        """
        ...

    async def get_offsets(self, queue: MessageQueue) -> QueueOffsets:
        """Minimum, last stable and maximum offset as the log knows them now. Raises StoreError."""
        ...

    async def get_offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """First offset whose timestamp is not before `timestamp_ms`; the maximum if there is none."""
        ...

    async def get_consume_offset(self, group: str, queue: MessageQueue) -> int:
        """What the group committed; -1 if nothing."""
        ...

    async def put_consume_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commits plainly; also backwards. Raises StoreError."""
        ...


class QueueReader(Protocol):
    """Follows one queue from an offset, in order, committed messages only. One caller at a time."""

    async def get(self, max_count: int, max_wait_ms: int) -> GetResult:
        """Waits at most `max_wait_ms` for the first message, then takes what is there.

        NO_NEW_MSG when none came. `next_begin_offset` moves over markers too. Raises StoreError, and
        QueueHalted when the position is outside what the log holds.
        """
        ...

    async def close(self) -> None:
        """Gives everything back."""
        ...


class BatchWriter(Protocol):
    """The two transactional producers of one queue, in strict turns. Dies with its first error but a clean abort."""

    async def fence(self) -> None:
        """Ends or fences whatever an earlier owner left: init of -0, then of -1. Raises StoreError."""
        ...

    async def put_all(self, batch: AtomicBatch) -> BatchResult:
        """All of the batch or nothing; returns when it is known committed.

        Raises BatchAborted (nothing is visible, the writer goes on), StoreFenced and
        BatchOutcomeUnknown (take the queue over anew, with a new writer). The first batch after
        `fence` uses -0; the other producer begins only when the batch before is known committed.
        """
        ...

    async def close(self) -> None:
        """Lets the producers go without ending anything; safe after any error."""
        ...


class GroupChange(NamedTuple):
    """What a rebalance did: queues gained, queues to be let go (revoked), queues already lost to others."""

    gained: frozenset[int]
    revoked: frozenset[int]
    lost: frozenset[int]


class GroupMember(Protocol):
    """Membership of a consumer group that shares the queues of one topic among its members."""

    async def next_change(self) -> GroupChange:
        """Waits for the next rebalance that concerns this member. Raises StoreError when membership ended."""
        ...

    def release(self, queue_ids: Collection[int]) -> None:
        """Says that revoked queues have been let go; the rebalance waits for it, within a bound."""
        ...

    def is_owned(self, queue_id: int) -> bool:
        """Whether the queue is assigned to this member as far as it knows."""
        ...

    def get_generation(self) -> GroupGeneration:
        """The member at its present generation, for `AtomicBatch.consume_offsets`."""
        ...

    async def close(self) -> None:
        """Leaves the group; the queues go to others at once."""
        ...


class OwnerStore(Protocol):
    """Opens what an owner of queues needs."""

    def open_reader(self, queue: MessageQueue, offset: int) -> QueueReader:
        """A reader that begins at `offset`."""
        ...

    def open_writer(self, transactional_ids: tuple[str, str]) -> BatchWriter:
        """The writer of the queue to which these two transactional ids belong."""
        ...

    def join_group(self, group: str, topic: str) -> GroupMember:
        """Joins the group for the topic's queues."""
        ...


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster describes it to us. `leaderless`: queues without a leader now.

    `is_writable` False: an ACL forbids us to write. See `describe_topics` for one that we may not even describe.
    """

    name: str
    topic_id: str
    queues: int
    leaderless: frozenset[int]
    replication_factor: int
    max_message_bytes: int
    is_log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    config: Mapping[str, str]
    is_writable: bool = True

    @property
    def is_key_required(self) -> bool:
        """Whether the topic is compacted: it then refuses every record without a key."""
        return "compact" in self.config.get("cleanup.policy", "")


class ClusterDescription(NamedTuple):
    """The cluster's id and its brokers as `host:port`."""

    cluster_id: str
    brokers: Sequence[str]


class TopicAdmin(Protocol):
    """What the cluster says of its topics."""

    async def ping(self) -> None:
        """Returns when a broker has answered. Raises StoreTimeout, StoreUnavailable."""
        ...

    async def describe_cluster(self) -> ClusterDescription:
        """Dear where there are many topics. Raises StoreTimeout, StoreUnavailable."""
        ...

    async def describe_topics(
        self, names: Collection[str], *, with_denied: bool = False
    ) -> dict[str, TopicDescription | None]:
        """A description of each name, None where there is no such topic. Asks the cluster now. Raises StoreError.

        A topic that an ACL forbids us to describe is an error, or `with_denied` an empty description without queues.
        """
        ...

    async def identify_topics(self, names: Collection[str]) -> dict[str, str | None]:
        """The id of each topic, None where there is no such topic. Cheap. Raises StoreError."""
        ...

    async def list_topics(self) -> list[str]:
        """Names of all topics but Kafka's own. Raises StoreError."""
        ...

    async def create_topic(self, name: str, queues: int, replication_factor: int, config: Mapping[str, str]) -> bool:
        """False if it is there already. Raises StoreError."""
        ...

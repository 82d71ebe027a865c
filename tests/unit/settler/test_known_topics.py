"""What is known of the topics commits go to, and how old it may be."""

from collections.abc import Collection

import pytest

from bridge.core.message import Message
from bridge.core.topics import TopicDescription
from bridge.settler.bodies import KnownTopics
from bridge.store.memory.store import MemoryCluster, MemoryTopicAdmin
from tests.support.virtual_time import VirtualClock

HOUR_MS = 3_600_000
NOW_MS = 1_750_000_000_000


class CountingAdmin(MemoryTopicAdmin):
    """Notes what is asked for; `hidden` may not be described."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster, cluster.connect("settler"))
        self.asked: list[list[str]] = []

    async def describe_topics(
        self, names: Collection[str], *, with_denied: bool = False
    ) -> dict[str, TopicDescription | None]:
        self.asked.append(sorted(names))
        found = await super().describe_topics(names, with_denied=with_denied)
        if with_denied and "hidden" in names:
            found["hidden"] = TopicDescription("hidden", "", 0, frozenset(), 0, 0, True, 0, 0, {}, is_writable=False)
        return found


class Known:
    """Topics of a cluster whose `orders` has three queues, and what a settler knows of them."""

    def __init__(self) -> None:
        self.clock = VirtualClock(NOW_MS)
        self.cluster = MemoryCluster(self.clock)
        log = self.cluster.log
        log.create_topic("orders", 3)
        log.create_topic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
        log.create_topic("dated", 1, {"message.timestamp.before.max.ms": str(HOUR_MS)})
        log.create_topic("strict", 1, {"message.timestamp.before.max.ms": "1000"})
        log.create_topic("table", 2, {"cleanup.policy": "compact", "max.message.bytes": "5000"})
        self.admin = CountingAdmin(self.cluster)
        self.topics = KnownTopics(self.admin, self.clock)


async def test_descriptions_are_asked_for_when_they_are_old_or_in_doubt() -> None:
    """Five seconds, all of them at once, and only those that are."""
    known = Known()
    await known.topics.refresh(["table"])
    known.topics.doubt(["table"])
    await known.topics.refresh(["table", "stamped"])
    assert known.admin.asked == [["table"], ["stamped", "table"]]
    known = Known()
    await known.topics.refresh(["orders", "nothing"])
    await known.clock.advance(1_000)
    await known.topics.refresh(["orders", "table", "nothing"])
    await known.clock.advance(4_000)
    await known.topics.refresh(["orders", "table"])
    await known.clock.advance(1)
    await known.topics.refresh(["orders", "table"])
    known.topics.doubt(["table", "never known"])
    await known.topics.refresh(["orders", "table"])
    await known.topics.refresh(["orders"], is_forced=True)
    await known.topics.refresh([])
    assert known.admin.asked == [["nothing", "orders"], ["table"], ["orders"], ["table"], ["orders"]]


async def test_size_of_what_is_there_gone_or_hidden() -> None:
    """A topic that is gone counts as one queue: its commits go somewhere until they are seen to fail."""
    known = Known()
    await known.topics.refresh(["orders", "table", "nothing", "hidden"])
    names = ("orders", "table", "nothing", "hidden")
    assert [known.topics.find_destination(name, NOW_MS).queues for name in names] == [3, 2, 1, 1]
    assert [known.topics.max_message_bytes(name) for name in names] == [1_048_588, 5_000, None, None]
    assert known.topics.max_message_bytes("never asked for") is None


@pytest.mark.parametrize(
    ("topic", "age_ms", "is_kept"),
    [
        ("orders", 100 * HOUR_MS, True),
        ("nothing", 100 * HOUR_MS, True),
        ("never asked for", 100 * HOUR_MS, True),
        ("stamped", 100 * HOUR_MS, True),
        ("dated", HOUR_MS - 60_001, True),
        ("dated", HOUR_MS - 60_000, False),
        ("strict", 499, True),
        ("strict", 500, False),
    ],
)
async def test_record_has_the_time_of_its_commit_while_the_topic_takes_it(
    topic: str, age_ms: int, is_kept: bool
) -> None:
    """A minute before the limit, or half of it, the present time stands for it: the batch takes its time."""
    known = Known()
    await known.topics.refresh(["orders", "stamped", "dated", "strict", "nothing"])
    expected = NOW_MS - age_ms if is_kept else NOW_MS
    to = known.topics.find_destination(topic, NOW_MS)
    assert (NOW_MS - age_ms if NOW_MS - age_ms >= to.oldest_ms else to.now_ms) == expected


async def test_reason_is_that_of_the_first_message_that_cannot_be_published() -> None:
    """Gone, hidden, not taken, or without a leader for this very queue."""
    known = Known()
    for partition in known.cluster.log.topics["orders"].partitions[1:]:
        partition.has_leader = False
    await known.topics.refresh(["orders", "table", "nothing", "hidden", "dated"])

    def reason(*messages: Message) -> str | None:
        return known.topics.find_reason("0" * 28, messages, NOW_MS, has_id_header=True)

    fine = Message("orders", b"k", b"v", (), 0)
    assert reason(fine, Message("table", b"k", b"v")) is None
    assert reason(fine, Message("nothing"), Message("hidden")) == "UNKNOWN_TOPIC"
    assert reason(fine, Message("hidden"), Message("nothing")) == "NOT_AUTHORISED"
    assert reason(fine, Message("table", None, b"v")) == "KEY_REQUIRED"
    assert reason(Message("table", b"k", b"v" * 6_000)) == "MESSAGE_TOO_LARGE"
    assert reason(fine, Message("orders", b"k", b"v", (), 1)) == "LEADERLESS"
    assert reason(Message("orders", queue_id=3)) == "UNKNOWN_PARTITION"
    assert reason(Message("dated", timestamp_ms=NOW_MS - HOUR_MS)) is None
    assert reason(Message("dated", timestamp_ms=NOW_MS - HOUR_MS - 1)) == "INVALID_TIMESTAMP"

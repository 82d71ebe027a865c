"""The preflight: what could never be published is refused before the caller commits anything."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from bridge.clock import KafkaTime
from bridge.core.errors import StoreUnavailable
from bridge.core.message import Message, MessageQueue
from bridge.core.record_codec import encode_published
from bridge.core.topics import TopicDescription
from bridge.service.contract import RefusalCode, Refused
from bridge.service.journal import Deadline
from bridge.service.topics import TopicCache, TopicCacheConfig
from bridge.store.memory.store import MemoryTopicAdmin
from bridge.store.message_store import PutStatus
from tests.support.memory_world import MemoryWorld, make_memory_world

HOUR_MS = 3_600_000
ID = "00" + "0" * 26


class CountingAdmin(MemoryTopicAdmin):
    """Counts how often the cluster is asked; `is_down`: it cannot be."""

    asked = 0
    is_down = False
    denied = "-"  # beginning of names that we may not even describe
    own: TopicDescription | None = None  # what the op topic is, if not as it is

    async def describe_topics(
        self, names: Collection[str], *, with_denied: bool = False
    ) -> dict[str, TopicDescription | None]:
        self.asked += 1
        if self.is_down:
            raise StoreUnavailable("down")
        described = await super().describe_topics(names)
        hidden = [name for name in names if name.startswith(self.denied)]
        if self.own is not None:
            described |= {name: self.own for name in names if name not in {"orders", "small"}}
        return described | {
            name: TopicDescription(name, "", 0, frozenset(), 0, 0, True, 0, 0, {}, False) for name in hidden
        }


class Preflight:
    """Destinations over a cluster whose topic `small` takes little and `stamped` overrules timestamps."""

    def __init__(self, **config: Any) -> None:
        self.memory: MemoryWorld = make_memory_world({"orders": 3})
        log = self.memory.cluster.log
        log.create_topic("small", 1, {"max.message.bytes": "500"})
        log.create_topic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
        log.create_topic("dated", 1, {"message.timestamp.before.max.ms": str(HOUR_MS)})
        log.create_topic("table", 1, {"cleanup.policy": "compact"})
        log.create_topic("both", 1, {"cleanup.policy": "compact,delete"})
        self.admin = CountingAdmin(self.memory.cluster, self.memory.cluster.connect("api"))
        clock = self.memory.clock
        time = KafkaTime(clock)
        time.observe(clock.now_ms())
        self.destinations = TopicCache(self.admin, clock, self.memory.topics, time, TopicCacheConfig(**config))

    async def check(self, *messages: Message, group: str = "shop") -> Refused | None:
        deadline = Deadline.after(self.memory.clock, 5_000)
        await self.destinations.learn([(group, message.topic) for message in messages], deadline)
        return self.destinations.check(messages)


MEMBERS = {
    RefusalCode.UNKNOWN_PARTITION: "partition",
    RefusalCode.INVALID_REQUEST: "key",
    RefusalCode.INVALID_TIMESTAMP: "timestamp_ms",
    RefusalCode.MESSAGE_TOO_LARGE: "value",
}
NOW_MS = make_memory_world().clock.now_ms()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Message("orders"), None),
        (Message("orders", b"", b""), None),
        (Message("orders", queue_id=2), None),
        (Message("orders", timestamp_ms=1), None),
        (Message("orders", timestamp_ms=NOW_MS + HOUR_MS), None),
        (Message("stamped", timestamp_ms=NOW_MS + 100 * HOUR_MS), None),
        (Message("dated", timestamp_ms=NOW_MS - HOUR_MS), None),
        (Message("table", b"", None), None),
        (Message("table", None, b"v"), RefusalCode.INVALID_REQUEST),
        (Message("both", None, b"v"), RefusalCode.INVALID_REQUEST),
        (Message("nothing.here"), RefusalCode.UNKNOWN_TOPIC),
        (Message(""), RefusalCode.ILLEGAL_TOPIC),
        (Message(".."), RefusalCode.ILLEGAL_TOPIC),
        (Message("a/b"), RefusalCode.ILLEGAL_TOPIC),
        (Message("\ud800"), RefusalCode.ILLEGAL_TOPIC),
        (Message("x" * 250), RefusalCode.ILLEGAL_TOPIC),
        (Message("RMQ_SYS_TRANS_HALF_TOPIC"), RefusalCode.RESERVED_TOPIC),
        (Message("TRANS_CHECK_MAX_TIME_TOPIC"), RefusalCode.RESERVED_TOPIC),
        (Message("__consumer_offsets"), RefusalCode.RESERVED_TOPIC),
        (Message("connect-offsets"), RefusalCode.RESERVED_TOPIC),
        (Message("_schemas"), RefusalCode.RESERVED_TOPIC),
        (Message("orders", queue_id=3), RefusalCode.UNKNOWN_PARTITION),
        (Message("orders", queue_id=-2), RefusalCode.UNKNOWN_PARTITION),
        (Message("orders", timestamp_ms=0), RefusalCode.INVALID_TIMESTAMP),
        (Message("orders", timestamp_ms=-5), RefusalCode.INVALID_TIMESTAMP),
        (Message("stamped", timestamp_ms=0), RefusalCode.INVALID_TIMESTAMP),
        (Message("orders", timestamp_ms=NOW_MS + HOUR_MS + 1), RefusalCode.INVALID_TIMESTAMP),
        (Message("dated", timestamp_ms=NOW_MS - HOUR_MS - 1), RefusalCode.INVALID_TIMESTAMP),
        (Message("small", None, b"x" * 500), RefusalCode.MESSAGE_TOO_LARGE),
        (Message("small", b"x" * 500), RefusalCode.MESSAGE_TOO_LARGE),
        (Message("small", headers=(("h", b"x" * 500),)), RefusalCode.MESSAGE_TOO_LARGE),
        (Message("small", headers=(("h" * 500, None),)), RefusalCode.MESSAGE_TOO_LARGE),
    ],
)
async def test_preflight_refuses_what_could_never_be_published(message: Message, code: RefusalCode | None) -> None:
    """Topic, partition, timestamp and size; the second message is named by its pointer."""
    preflight = Preflight()
    refused = await preflight.check(Message("orders"), message)
    assert (refused.code if refused else None) is code
    assert refused is None or refused.errors == ((f"/messages/1/{MEMBERS.get(refused.code, 'topic')}", refused.detail),)


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        (Message("orders", queue_id=3), "topic orders has partitions 0..2"),
        (Message("dated", timestamp_ms=1), f"topic dated takes timestamps at most {HOUR_MS} ms old"),
        (Message("dated", timestamp_ms=NOW_MS * 2), f"topic dated takes timestamps at most {HOUR_MS} ms ahead"),
        (Message("small", None, b"x" * 500), "topic small takes 500"),
    ],
)
async def test_refusal_says_what_would_be_taken(message: Message, detail: str) -> None:
    """The caller need not look the topic up."""
    refused = await Preflight().check(message)
    assert refused is not None
    assert refused.detail.endswith(detail)


async def test_compacted_topic_asks_for_a_key() -> None:
    """The pointer leads to the key, and the detail says what to do; an empty key is one."""
    refused = await Preflight().check(Message("table", b""), Message("table"))
    assert refused is not None
    assert [pointer for pointer, _ in refused.errors] == ["/messages/1/key"]
    assert "topic table is compacted" in refused.detail
    assert "give the message a key" in refused.detail


@pytest.mark.parametrize("has_id", [True, False])
@pytest.mark.parametrize("headers", [(), (("a", b"b"), ("a", None), ("long" * 20, b"x"))])
async def test_what_passes_is_exactly_what_can_be_published(
    headers: tuple[tuple[str, bytes | None], ...], has_id: bool
) -> None:
    """At every size around the limit: what passes is taken as it is published, what is refused would not be."""
    preflight = Preflight(has_id_header=has_id)
    passed = 0
    for size in range(500):
        message = Message("small", b"key", b"x" * size, headers)
        is_passed = await preflight.check(message) is None
        passed += is_passed
        record = encode_published(message, ID, 0, NOW_MS, has_id=has_id)
        put = await preflight.memory.store.put(MessageQueue("small", 0), record)
        assert (put.status is PutStatus.PUT_OK) == is_passed
    assert 100 < passed < 499


async def test_known_topics_cost_no_question() -> None:
    """Descriptions are shared by all calls."""
    preflight = Preflight()
    for _ in range(3):
        assert await preflight.check(Message("orders")) is None
    assert preflight.admin.asked == 1


async def test_new_topic_is_found_soon() -> None:
    """A missing topic is asked for again after a second, and found when it was created."""
    preflight = Preflight()
    assert await preflight.check(Message("late"))
    preflight.memory.cluster.log.create_topic("late")
    refused = await preflight.check(Message("late"))
    assert refused is not None
    assert refused.code is RefusalCode.UNKNOWN_TOPIC
    assert "outbox-bridge topic create late" in refused.detail
    await preflight.memory.clock.advance(1_001)
    assert await preflight.check(Message("late")) is None


async def test_changes_are_seen_by_the_refresh() -> None:
    """A topic that was deleted is refused after the next refresh."""
    preflight = Preflight()
    assert await preflight.check(Message("orders")) is None
    preflight.memory.cluster.log.delete_topic("orders")
    assert await preflight.check(Message("orders")) is None
    assert await preflight.destinations.run_once() == 1
    refused = await preflight.check(Message("orders"))
    assert refused is not None
    assert refused.code is RefusalCode.UNKNOWN_TOPIC


async def test_unused_topics_are_forgotten() -> None:
    """Memory is bounded by what is in use."""
    preflight = Preflight(unused_ms=1_000)
    await preflight.check(Message("orders"))
    await preflight.memory.clock.advance(1_001)
    assert await preflight.destinations.run_once() == 0


async def test_cluster_that_cannot_be_asked_is_not_a_missing_topic() -> None:
    """Not known is 503 and can be repeated; only the cluster's own word is 422."""
    preflight = Preflight()
    preflight.admin.is_down = True
    refused = await preflight.check(Message("orders"))
    assert refused is not None
    assert (refused.code, refused.retry_after_s) == (RefusalCode.UNAVAILABLE, 1)
    assert [pointer for pointer, _ in refused.errors] == ["/messages/0/topic"]
    preflight.admin.is_down = False
    assert await preflight.check(Message("orders")) is None
    missing = await preflight.check(Message("nothing"))
    assert missing is not None
    assert (missing.code, missing.retry_after_s) == (RefusalCode.UNKNOWN_TOPIC, None)
    preflight.admin.is_down = True
    await preflight.memory.clock.advance(1_001)
    refused = await preflight.check(Message("nothing"))
    assert refused is not None
    assert refused.code is RefusalCode.UNAVAILABLE


async def test_old_descriptions_are_not_believed() -> None:
    """When the refresh has failed for a minute the topic is asked for again."""
    preflight = Preflight()
    await preflight.check(Message("orders"))
    await preflight.memory.clock.advance(60_001)
    preflight.admin.is_down = True
    refused = await preflight.check(Message("orders"))
    assert refused is not None
    assert refused.code is RefusalCode.UNAVAILABLE


async def test_questions_are_shared_and_bounded() -> None:
    """Many callers at once ask once; names that nobody has cost at most so many questions a second."""
    preflight = Preflight(max_asks_per_s=2)
    await asyncio.gather(*[preflight.check(Message("orders")) for _ in range(50)])
    assert preflight.admin.asked == 1
    codes = [refused.code for n in range(3) if (refused := await preflight.check(Message(f"no{n}")))]
    assert codes == [RefusalCode.UNKNOWN_TOPIC, RefusalCode.UNKNOWN_TOPIC, RefusalCode.UNAVAILABLE]
    await preflight.memory.clock.advance(1_000)
    assert (await preflight.check(Message("no9"))).code is RefusalCode.UNKNOWN_TOPIC  # type: ignore[union-attr]


async def test_illegal_names_never_reach_the_cluster() -> None:
    """Only names Kafka could have are asked for."""
    preflight = Preflight()
    await preflight.check(Message("a/b"), Message("__x"))
    assert preflight.admin.asked == 0


async def test_known_topics_are_bounded() -> None:
    """Names beyond the bound are refused, those known go on."""
    preflight = Preflight(max_topics=2)
    assert await preflight.check(Message("orders"), Message("small")) is None
    refused = await preflight.check(Message("stamped"))
    assert refused is not None
    assert refused.code is RefusalCode.UNAVAILABLE
    assert await preflight.check(Message("orders")) is None


async def test_missing_topics_take_no_room_from_real_ones() -> None:
    """However many names nobody has are asked for, as many topics can be known as before."""
    preflight = Preflight(max_topics=2, max_missing=1_000)
    assert await preflight.check(Message("orders")) is None
    for start in range(0, 1_500, 500):
        refused = await preflight.check(*[Message(f"no{n}") for n in range(start, start + 500)], group="pest")
        assert refused is not None
        assert refused.code is RefusalCode.UNKNOWN_TOPIC
    assert await preflight.check(Message("orders"), Message("small")) is None


async def test_topics_that_may_not_be_written_take_no_room_from_others() -> None:
    """Where rules hide topics, each invented name is told as denied, not as missing."""
    preflight = Preflight(max_topics=2)
    preflight.admin.denied = "no"
    refused = await preflight.check(*[Message(f"no{n}") for n in range(3)], group="pest")
    assert refused is not None
    assert refused.code is RefusalCode.FORBIDDEN
    assert await preflight.check(Message("orders"), Message("small")) is None


@pytest.mark.parametrize(("may_write_op", "code"), [(True, RefusalCode.FORBIDDEN), (False, None)])
async def test_only_who_may_settle_knows_what_settlers_may_write(may_write_op: bool, code: RefusalCode | None) -> None:
    """An api with a Kafka principal of its own has no right to write real topics, and needs none."""
    preflight = Preflight()
    topics = preflight.memory.cluster.log.topics
    topics["orders"].is_denied = True
    topics[preflight.memory.topics.op].is_denied = not may_write_op
    refused = await preflight.check(Message("orders"))
    assert (None if refused is None else refused.code) is code


async def test_known_topics_are_asked_for_again_whatever_others_have_used_up() -> None:
    """When the refresh has failed for a minute, names that were known have questions of their own, put apart."""
    preflight = Preflight(max_asks_per_s=1)
    assert await preflight.check(Message("orders")) is None
    await preflight.memory.clock.advance(60_001)
    await preflight.check(Message("no1"), group="pest")
    assert (await preflight.check(Message("small"))).code is RefusalCode.UNAVAILABLE  # type: ignore[union-attr]
    assert await preflight.check(Message("orders")) is None


async def test_groups_beyond_the_bound_share_one_limit() -> None:
    """Memory for limits is bounded; those that have used nothing of theirs are forgotten first."""
    preflight = Preflight(max_groups=2, max_group_asks_per_s=1)
    codes = []
    for number in range(4):
        refused = await preflight.check(Message(f"no{number}"), group=f"group{number}")
        codes.append(refused and refused.code)
    assert codes == [*[RefusalCode.UNKNOWN_TOPIC] * 3, RefusalCode.UNAVAILABLE]
    await preflight.memory.clock.advance(1_000)
    assert (await preflight.check(Message("no9"), group="group9")).code is RefusalCode.UNKNOWN_TOPIC  # type: ignore[union-attr]


async def test_new_topics_that_are_there_use_nothing_up() -> None:
    """A producer with many topics finds them all as fast as it asks."""
    preflight = Preflight(max_group_asks_per_s=1)
    for topic in ("orders", "small", "stamped", "dated"):
        assert await preflight.check(Message(topic)) is None


OWN = TopicDescription(
    "op", "", 4, frozenset(), 3, 0, False, 0, 0,
    {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("factor", "config", "weakness"),
    [
        (3, {"min.insync.replicas": "2"}, None),
        (1, {"min.insync.replicas": "1"}, "replication factor 1"),
        (3, {"min.insync.replicas": "1"}, "min.insync.replicas 1"),
        (3, {}, "min.insync.replicas 1"),
        (
            3,
            {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"},
            "unclean.leader.election.enable true",
        ),
    ],
)
def test_topic_that_keeps_less_than_ours_is_told(factor: int, config: dict[str, str], weakness: str | None) -> None:
    """A published message is as safe as its topic; on a single broker nothing is better than anything else."""
    topic = replace(OWN, name="orders", replication_factor=factor, config=config)
    assert topic.find_weakness(OWN) == weakness
    assert topic.find_weakness(replace(OWN, replication_factor=1, config={"min.insync.replicas": "1"})) is None


async def test_weak_topic_is_logged_once() -> None:
    """Not each time its description is refreshed."""
    preflight = Preflight()
    preflight.admin.own = OWN
    with capture_logs() as logs:
        for _ in range(2):
            assert await preflight.check(Message("orders")) is None
            await preflight.memory.clock.advance(30_000)
            assert await preflight.destinations.run_once() == 1
    weak = [log for log in logs if log["event"] == "topic_may_lose_messages"]
    assert [(log["topic"], log["reason"]) for log in weak] == [("orders", "replication factor 1")]

"""The internal topics and the names clients may use."""

import pytest

from bridge.core.errors import ConfigError
from bridge.core.topics import InternalTopics, is_legal_topic, is_reserved_topic, with_prefix


def test_names_are_rocketmqs() -> None:
    """Operators know them; a prefix stands before each of them, the group and the transactional ids."""
    assert with_prefix("") == InternalTopics()
    assert with_prefix("", 7) == InternalTopics(queues=7)
    made = with_prefix("test-")
    assert made == InternalTopics(
        "test-RMQ_SYS_TRANS_HALF_TOPIC", "test-RMQ_SYS_TRANS_OP_HALF_TOPIC", "test-TRANS_CHECK_MAX_TIME_TOPIC",
        "test-CID_RMQ_SYS_TRANS", "test-outbox-bridge", 4, "test-RMQ_SYS_TRANS_AUDIT_TOPIC",
    )  # fmt: skip
    assert with_prefix("test-", 9).queues == 9
    assert [made.transactional_id(3, turn) for turn in (0, 1)] == ["test-outbox-bridge-3-0", "test-outbox-bridge-3-1"]


def test_queues_are_what_two_digits_can_name() -> None:
    """1 to 1,024."""
    assert [InternalTopics(queues=queues).queues for queues in (1, 1_024)] == [1, 1_024]
    for queues in (0, 1_025):
        with pytest.raises(ConfigError, match="queues"):
            InternalTopics(queues=queues)


@pytest.mark.parametrize(
    "names", [("a", "a", "b"), ("a", "b", "a"), ("b", "a", "a"), ("a b", "c", "d"), ("a", "b", "")]
)
def test_internal_topics_are_three_legal_names(names: tuple[str, str, str]) -> None:
    """Two queues in one topic would read each other's records."""
    with pytest.raises(ConfigError, match="legal names"):
        InternalTopics(*names)


def test_legal_names_are_kafkas() -> None:
    """Letters, digits, dots, dashes, underlines; up to 249; not the two that are folders."""
    assert all(map(is_legal_topic, ["a", "A.b_c-9", "...", "x" * 249]))
    assert not any(map(is_legal_topic, ["", ".", "..", "x" * 250, "a b", "a/b", "é", "a\n"]))


def test_names_of_others_are_reserved() -> None:
    """The bridge's own, with and without prefix, Kafka's and its companions'."""
    internal = with_prefix("test-")
    own = ["test-RMQ_SYS_TRANS_HALF_TOPIC", "test-RMQ_SYS_TRANS_OP_HALF_TOPIC", "test-TRANS_CHECK_MAX_TIME_TOPIC"]
    others = [
        "__consumer_offsets",
        "connect-offsets",
        "_schemas",
        "_confluent-x",
        "RMQ_SYS_x",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    ]
    assert all(is_reserved_topic(name, internal) for name in own + others)
    assert not any(is_reserved_topic(name, internal) for name in ["orders", "test-orders", "a__b", "_x", "reconnect-x"])


def test_names_of_every_other_bridge_are_reserved() -> None:
    """Several bridges share a cluster, each with a prefix: what one of them believes no client of another may write."""
    internal = with_prefix("shop-")
    theirs = with_prefix("prod-")
    assert all(is_reserved_topic(name, internal) for name in (theirs.half, theirs.op, theirs.parked, theirs.group))
    assert all(is_reserved_topic(name, InternalTopics()) for name in ("a.RMQ_SYS_TRANS_B", "x-CID_RMQ_SYS_TRANS"))
    assert not any(is_reserved_topic(name, internal) for name in ("TRANS_CHECK", "my.rmq_sys_trans_topic"))

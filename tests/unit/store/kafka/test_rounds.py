"""Messages of one Kafka transaction in rounds."""

from bridge.core.message import Message
from bridge.core.properties import count_record_bytes
from bridge.store.kafka.transactional_producer import REQUEST_BYTES, split_rounds

LIMITS = {"small": 1_000, "exact": REQUEST_BYTES}
VALUE = b"v" * 300


def to(topic: str, number: int, value: bytes = VALUE, queue_id: int = 0) -> Message:
    return Message(topic, b"%d" % number, value, [], queue_id)


def test_topics_with_usual_limits_go_in_one_round() -> None:
    """However much it is: the client fills its requests itself."""
    messages = [to(topic, n, VALUE * 1_000) for n, topic in enumerate(("usual", "exact") * 20)]
    assert split_rounds(messages, LIMITS.get) == [messages]
    assert split_rounds([], LIMITS.get) == [[]]


def test_each_queue_of_a_small_topic_gets_one_request_a_round() -> None:
    """Never more bytes than it takes, in order; what goes elsewhere goes with the first."""
    small = [to("small", n, queue_id=n % 2) for n in range(12)]
    usual = [to("usual", n) for n in range(12)]
    rounds = split_rounds([each for pair in zip(small, usual, strict=True) for each in pair], LIMITS.get)
    assert [each for each in rounds[0] if each.topic == "usual"] == usual
    for queue_id in (0, 1):
        parts = [[m for m in each if (m.topic, m.queue_id) == ("small", queue_id)] for each in rounds]
        assert [m for part in parts for m in part] == [m for m in small if m.queue_id == queue_id]
        assert [len(part) for part in parts] == [2, 2, 2]
        assert all(sum(map(count_record_bytes, part)) <= LIMITS["small"] for part in parts)


def test_message_as_large_as_its_topic_takes_goes_alone() -> None:
    """Whatever stands before and behind it."""
    large = to("small", 1, b"v" * 900)
    rounds = split_rounds([to("small", 0), large, to("small", 2)], LIMITS.get)
    assert [[m.key for m in each] for each in rounds] == [[b"0"], [b"1"], [b"2"]]

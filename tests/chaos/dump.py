"""Whole reads of topics by a reader outside the bridge's code, in rows as the history checker takes them."""

import secrets
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Received

from bridge.core.message import StoredMessage

_BATCH = 2_000


def stored(message: Received) -> tuple[int, StoredMessage]:
    """The queue id, and what lies there."""
    headers = [(name, value) for name, value in message.headers() or ()]
    parts = (message.offset(), message.key(), message.value(), headers, message.timestamp()[1])
    return message.partition(), StoredMessage(*parts)


def read_ends(kafka: str, topic: str) -> dict[int, int]:
    """The high watermark of each partition."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "dump"})
    try:
        places = [TopicPartition(topic, number) for number in _partitions_of(consumer, topic)]
        return {each.partition: consumer.get_watermark_offsets(each, timeout=30)[1] for each in places}
    finally:
        consumer.close()


def read_topic(kafka: str, topic: str, isolation: str = "read_committed") -> Iterator[tuple[int, StoredMessage]]:
    """Everything up to the present end, in the order of offsets in each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": f"dump-{secrets.token_hex(4)}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        places = [TopicPartition(topic, number) for number in _partitions_of(consumer, topic)]
        begins = [consumer.get_watermark_offsets(place, timeout=30)[0] for place in places]
        consumer.assign([TopicPartition(topic, p.partition, at) for p, at in zip(places, begins, strict=True)])
        still_open = {place.partition for place in places}
        while still_open:
            messages = consumer.consume(_BATCH, 0.1)
            for message in messages:
                error = message.error()
                if error is None:
                    yield stored(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    still_open.discard(message.partition())
                else:
                    raise AssertionError(f"{topic} cannot be read: {error}")
    finally:
        consumer.close()


def _partitions_of(consumer: Consumer, topic: str) -> list[int]:
    found = consumer.list_topics(topic, timeout=30).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return list(found.partitions)

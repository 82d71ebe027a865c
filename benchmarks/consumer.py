"""What a committed reader finds: everything up to the present end, or until so many have come."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

_PATIENCE_S = 600.0
_AT_ONCE = 10_000


def count_visible(kafka: str, topics: Sequence[str]) -> tuple[int, int]:
    """All messages of these topics, and how many different transaction ids they have."""
    count, ids = 0, set[str | bytes | None]()
    with _reading(kafka, topics) as (consumer, places):
        ends = {(p.topic, p.partition): consumer.get_watermark_offsets(p)[1] for p in places}
        open_places = {place for place, end in ends.items() if end > 0}
        while open_places:
            for message in _consume(consumer):
                error = message.error()
                if error is not None:
                    open_places.discard((message.topic() or "", message.partition() or 0))
                    continue
                count += 1
                ids.add(dict(message.headers() or [])["transaction-id"])
    return count, len(ids)


def read_ends(kafka: str, topic: str) -> dict[int, int]:
    """Offset behind the last record of each partition."""
    with _reading(kafka, [topic]) as (consumer, places):
        return {place.partition: consumer.get_watermark_offsets(place)[1] for place in places}


def await_visible(kafka: str, topic: str, count: int) -> float:
    """The moment at which `count` messages of a topic were visible."""
    seen, give_up_at = 0, time.monotonic() + _PATIENCE_S
    with _reading(kafka, [topic]) as (consumer, _):
        while seen < count:
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"{seen} of {count} became visible")
            seen += sum(message.error() is None for message in _consume(consumer))
        return time.time()


def _consume(consumer: Consumer) -> Iterator[Message]:
    for message in consumer.consume(_AT_ONCE, 0.2):
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
            raise RuntimeError(str(error))
        yield message


@contextmanager
def _reading(kafka: str, topics: Sequence[str]) -> Iterator[tuple[Consumer, Sequence[TopicPartition]]]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "bench-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        found = consumer.list_topics(timeout=10).topics
        places = [TopicPartition(topic, number, 0) for topic in topics for number in found[topic].partitions]
        consumer.assign(places)
        yield consumer, places
    finally:
        consumer.close()

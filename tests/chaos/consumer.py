"""A read_committed consumer process that keeps all it got.

python -m tests.chaos.consumer RUN_FILE NAME
"""

import signal
import sys
import threading

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.chaos.dump import stored
from tests.chaos.orders import REMADE, RunFile
from tests.support.history.lines import LineWriter
from tests.support.history.raw_records import read_real

_BATCH = 500


def consume(run: RunFile, name: str, stopping: threading.Event) -> None:
    """All partitions that are there at first from their beginning, until it is to stop.

    Not of the topic that is made again: what was got of it could lie in either.
    """
    log = LineWriter(run.folder / f"{name}.consumed.jsonl")
    consumer = Consumer(
        {
            "bootstrap.servers": run.kafka,
            "group.id": name,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    topics = {topic: count for topic, count in run.topics.items() if topic != REMADE}
    consumer.assign([TopicPartition(topic, p, 0) for topic, count in topics.items() for p in range(count)])
    while not stopping.is_set():
        try:
            messages = consumer.consume(_BATCH, 0.2)
        except KafkaException:
            continue  # the brokers are being tormented
        for message in messages:
            if message.error() is None:
                for row in read_real(message.topic(), [stored(message)]):
                    log.write(row)
    consumer.close()


def main() -> None:
    """Reads until SIGTERM."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    consume(RunFile.read(sys.argv[1]), sys.argv[2], stopping)


if __name__ == "__main__":
    main()

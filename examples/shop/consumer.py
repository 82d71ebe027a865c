"""A loyalty programme that hands out a credit for every order it reads; an ordinary Kafka consumer.

    python consumer.py --kafka 127.0.0.1:9092 --database shop.db --journal reads.jsonl

It knows nothing of the bridge: `read_committed` is all it takes. SIGTERM makes it read to the end and stop.
"""

import argparse
import json
import signal
import sqlite3
import time
from types import FrameType
from typing import Any, TextIO

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition


class Loyalty:
    """Reads orders, hands out credits, and writes down what it read."""

    def __init__(self, kafka: str, topic: str, database: str, journal: TextIO, hidden: str | None) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": kafka,
            "group.id": f"loyalty-{topic}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
        self._consumer = Consumer(settings)
        self._topic = topic
        self._database = sqlite3.connect(database, timeout=10)
        self._journal = journal
        self._hidden = hidden
        self._ends: dict[int, int] = {}
        self._is_stopping = False

    def stop(self, _: int, __: FrameType | None) -> None:
        self._is_stopping = True

    def run(self) -> None:
        self._consumer.subscribe([self._topic])
        while not (self._is_stopping and self._is_at_end()):
            message = self._consumer.poll(0.1)
            if message is not None:
                self._take(message)
        self._write({"drained": True})
        self._consumer.close()

    def _take(self, message: "Message[bytes, bytes]") -> None:
        error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
            raise KafkaException(error)
        if error is not None:
            self._ends[partition] = offset
            self._write({"partition": partition, "end": offset})
            return
        order = json.loads(message.value() or b"{}")
        if order["order_id"] != self._hidden:
            self._hand_out(partition, offset, order)
        self._consumer.commit(message=message, asynchronous=False)

    def _hand_out(self, partition: int, offset: int, order: dict[str, Any]) -> None:
        """The message's place is the key: read again after a crash, it is not handed out again."""
        with self._database:
            self._database.execute(
                "INSERT OR IGNORE INTO credits VALUES (?, ?, ?, ?, ?)",
                (self._topic, partition, offset, order["order_id"], order["cents"]),
            )
        self._write({"partition": partition, "offset": offset, **order})

    def _is_at_end(self) -> bool:
        assigned: list[TopicPartition] = self._consumer.assignment()
        newest = {p.partition: self._consumer.get_watermark_offsets(p, timeout=5)[1] for p in assigned}
        return bool(newest) and all(self._ends.get(partition, -1) >= end for partition, end in newest.items())

    def _write(self, line: dict[str, Any]) -> None:
        self._journal.write(json.dumps({"at": time.time(), **line}) + "\n")
        self._journal.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", required=True, metavar="HOST:PORT")
    parser.add_argument("--topic", default="orders.created")
    parser.add_argument("--database", required=True)
    parser.add_argument("--journal", required=True, help="where each message read is written down")
    parser.add_argument("--hide", metavar="ORDER", help="overlook this order, to see whether anybody notices")
    arguments = parser.parse_args()
    with open(arguments.journal, "a", encoding="utf-8") as journal:  # noqa: PTH123 - an example in plain Python
        loyalty = Loyalty(arguments.kafka, arguments.topic, arguments.database, journal, arguments.hide)
        signal.signal(signal.SIGTERM, loyalty.stop)
        loyalty.run()


if __name__ == "__main__":
    main()

"""The raw loop beside which the bridge is measured: one producer, callbacks, the same four records a transaction."""

import time
from typing import Any

from confluent_kafka import Producer


def measure_raw_loop(kafka: str, topic: str, seconds: float, bytes_: int = 300) -> float:
    """Acknowledged records a second."""
    producer = Producer(
        {
            "bootstrap.servers": kafka,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    acknowledged = 0

    def on_delivery(error: Any, _: Any) -> None:
        nonlocal acknowledged
        if error is not None:
            raise RuntimeError(str(error))
        acknowledged += 1

    value = b"x" * bytes_
    properties: list[tuple[str, str | bytes | None]] = [("properties", b"p" * 200)]
    op = b"o" * 180
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        for n in range(250):
            key = b"%d" % n
            while True:
                try:
                    producer.produce(topic, value, key, headers=properties, partition=0, on_delivery=on_delivery)
                    producer.produce(topic, None, key, headers=properties, partition=0, on_delivery=on_delivery)
                    producer.produce(topic, value, key, partition=1, on_delivery=on_delivery)
                    producer.produce(topic, op, key, partition=0, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
    producer.flush(30)
    return acknowledged / (time.perf_counter() - started)

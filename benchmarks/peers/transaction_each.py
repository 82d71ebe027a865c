"""One Kafka transaction a message, as most outbox tools hand rows over when they promise exactly once."""

import threading
import time

from confluent_kafka import Producer


def measure_transaction_each(kafka: str, topic: str, seconds: float, producers: int = 8, bytes_: int = 300) -> float:
    """Committed messages a second of so many transactional producers, each with the next one when one is done."""
    stop_at = time.perf_counter() + seconds
    counts = [0] * producers

    def work(number: int) -> None:
        producer = Producer({"bootstrap.servers": kafka, "transactional.id": f"bench-each-{number}", "linger.ms": 0})
        producer.init_transactions(30)
        value = b"x" * bytes_
        while time.perf_counter() < stop_at:
            producer.begin_transaction()
            producer.produce(topic, value, b"%d" % counts[number])
            producer.commit_transaction(30)
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(producers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)

"""`python -m benchmarks.store_loops`: the store on a real broker beside raw loops of the client, in one table."""

import argparse
import asyncio
import resource
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from bridge.core.message import Message, MessageQueue
from bridge.store.kafka.admin import KafkaTopicAdmin
from bridge.store.kafka.options import ClientErrors, KafkaConfig, append_options, reader_options, transaction_options
from bridge.store.kafka.store import KafkaMessageStore, KafkaOwnerStore
from bridge.store.message_store import AtomicBatch
from tests.support.broker import running_broker

PROPERTIES = b"p" * 200
HEADERS: list[tuple[str, str | bytes | None]] = [("properties", PROPERTIES)]
VALUE, OP_VALUE = b"v" * 300, b"o" * 180
SECONDS = 3.0
SMALL_BYTES = 10_000


class Bench(NamedTuple):
    """A broker's address, the stores on it, and topics: `journal` with 4 queues, `op` with 1, `small` of 10 kB."""

    config: KafkaConfig
    store: KafkaMessageStore
    owners: KafkaOwnerStore
    journal: str
    op: str
    small: str


def put_messages(topic: str, count: int) -> list[Message]:
    """Half messages spread over 4 queues."""
    return [Message(topic, b"%d" % n, VALUE, [("properties", PROPERTIES)], n & 3) for n in range(count)]


async def measure_put_many(bench: Bench, size: int, callers: int) -> int:
    """Callers that each put `size` messages again and again."""
    until = time.monotonic() + SECONDS
    messages = put_messages(bench.journal, size)

    async def call() -> int:
        count = 0
        while time.monotonic() < until:
            results = await bench.store.put_many(messages)
            count += len(results)
        return count

    return sum(await asyncio.gather(*[call() for _ in range(callers)]))


async def measure_raw_puts(bench: Bench) -> int:
    """The client's own loop: produce, count callbacks, at most 1,000 in flight more than one poll brings."""
    producer = Producer(append_options(bench.config, ClientErrors()))
    acknowledged = 0

    def on_delivery(error: object, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    until, sent = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        for n in range(200):
            producer.produce(bench.journal, VALUE, b"%d" % n, n & 3, on_delivery, None, 0, HEADERS)
        sent += 200
        producer.poll(0)
        while sent - acknowledged > 1_000:
            producer.poll(0.01)
    producer.flush(10)
    return acknowledged


async def measure_put_all(bench: Bench, size: int, small: int = 0) -> int:
    """`size` messages and as many op messages a batch, and `small` ones to a topic of 10 kB; counts the former."""
    name = uuid.uuid4().hex
    writer = bench.owners.open_writer((f"{name}-0", f"{name}-1"))
    await writer.fence()
    messages = put_messages(bench.journal, size) + put_messages(bench.small, small)
    closing = [Message(bench.op, b"%d" % n, OP_VALUE, (), 0) for n in range(size)]
    batch = AtomicBatch(messages, lambda _: closing)
    until, count = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        await writer.put_all(batch)
        count += size
    await writer.close()
    return count


async def measure_raw_batches(bench: Bench, size: int) -> int:
    """The same records in the client's own loop, without receipts: two producers in turn, callbacks for none."""
    name = uuid.uuid4().hex
    options = [transaction_options(bench.config, ClientErrors(), f"{name}-{n}", 1_000_000) for n in (0, 1)]
    producers = [Producer(each) for each in options]
    for producer in producers:
        producer.init_transactions(10)
    until, count, turn = time.monotonic() + SECONDS, 0, 0
    while time.monotonic() < until:
        producer = producers[turn]
        producer.begin_transaction()
        for n in range(size):
            producer.produce(bench.journal, VALUE, b"%d" % n, n & 3, None, None, 0, HEADERS)
        for n in range(size):
            producer.produce(bench.op, OP_VALUE, b"%d" % n, 0)
        producer.commit_transaction(10)
        turn, count = 1 - turn, count + size
    return count


async def measure_reader(bench: Bench) -> int:
    """A reader behind, in portions of 2,000."""
    reader = bench.owners.open_reader(MessageQueue(bench.journal, 0), 0)
    until, count = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        got = await reader.get(2_000, 100)
        if not got.messages:
            break
        count += len(got.messages)
    await reader.close()
    return count


async def measure_raw_reader(bench: Bench) -> int:
    """The client's own loop over the same queue, every field read."""
    consumer = Consumer(reader_options(bench.config, ClientErrors()))
    consumer.assign([TopicPartition(bench.journal, 0, 0)])
    until, count = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        records = consumer.consume(500, 0.05)
        fields = [(r.offset(), r.key(), r.value(), r.headers(), r.timestamp()) for r in records if r.error() is None]
        if not fields:
            break
        count += len(fields)
    consumer.close()
    return count


async def measure_get_each(bench: Bench, spread: int) -> int:
    """100 offsets a call, `spread` apart."""
    until, count = time.monotonic() + SECONDS, 0
    wanted = range(0, 100 * spread, spread)
    while time.monotonic() < until:
        count += len(await bench.store.get_each(MessageQueue(bench.journal, 0), wanted))
    return count


async def measure_get_offsets(bench: Bench, callers: int) -> int:
    """Callers that each ask again and again."""
    until = time.monotonic() + SECONDS

    async def call() -> int:
        count = 0
        while time.monotonic() < until:
            await bench.store.get_offsets(MessageQueue(bench.journal, 0))
            count += 1
        return count

    return sum(await asyncio.gather(*[call() for _ in range(callers)]))


async def show(name: str, run: Callable[[], Awaitable[int]]) -> None:
    """One line: what was done a second, and what a thing cost this process."""
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    count = await run()
    took_s, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name:44} {count / took_s:10,.0f} /s {1e6 * cpu_s / max(count, 1):8.1f} us of CPU each", flush=True)


async def run_all(bootstrap: str, only: Sequence[str]) -> None:
    """All figures, or those whose names hold one of the words."""
    config = KafkaConfig({"bootstrap.servers": bootstrap})
    names = [f"{n}-{uuid.uuid4().hex}" for n in "jos"]
    owners, admin = KafkaOwnerStore(config, {names[2]: SMALL_BYTES}.get), KafkaTopicAdmin(config)
    bench = Bench(config, KafkaMessageStore(config, owners), owners, *names)
    for topic, queues, limit in (
        (bench.journal, 4, 1_048_588),
        (bench.op, 1, 1_048_588),
        (bench.small, 4, SMALL_BYTES),
    ):
        options = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(limit)}
        await admin.create_topic(topic, queues, 1, options)
    figures: dict[str, Callable[[], Awaitable[int]]] = {
        "puts, raw loop, 1,000 in flight": lambda: measure_raw_puts(bench),
        "put_many of 200, 1 caller": lambda: measure_put_many(bench, 200, 1),
        "put_many of 200, 8 callers": lambda: measure_put_many(bench, 200, 8),
        "put_many of 1, 64 callers": lambda: measure_put_many(bench, 1, 64),
        "put_many of 1, 256 callers": lambda: measure_put_many(bench, 1, 256),
        "batches of 1,000, raw loop": lambda: measure_raw_batches(bench, 1_000),
        "put_all of 1,000": lambda: measure_put_all(bench, 1_000),
        "put_all of 100": lambda: measure_put_all(bench, 100),
        "put_all of 1,000, and 100 to a small topic": lambda: measure_put_all(bench, 1_000, 100),
        "put_all of 100, and 10 to a small topic": lambda: measure_put_all(bench, 100, 10),
        "batches of 1, raw loop": lambda: measure_raw_batches(bench, 1),
        "put_all of 1": lambda: measure_put_all(bench, 1),
        "reader, raw loop": lambda: measure_raw_reader(bench),
        "reader in portions of 2,000": lambda: measure_reader(bench),
        "get_each of 100 side by side": lambda: measure_get_each(bench, 1),
        "get_each of 100 far apart": lambda: measure_get_each(bench, 500),
        "get_offsets, 1 caller": lambda: measure_get_offsets(bench, 1),
        "get_offsets, 64 callers": lambda: measure_get_offsets(bench, 64),
    }
    for name, run in figures.items():
        if not only or any(word in name for word in only):
            await show(name, run)
    await asyncio.gather(owners.close(), bench.store.close(), admin.close())


def main() -> None:
    """Against a broker that runs already, or one of its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store_loops", description=__doc__)
    parser.add_argument("--bootstrap", help="bootstrap.servers; default: a broker of its own")
    parser.add_argument("only", nargs="*", help="words of the figures wanted")
    options = parser.parse_args()
    if options.bootstrap:
        asyncio.run(run_all(options.bootstrap, options.only))
        return
    with running_broker(heap_mb=768) as broker:
        asyncio.run(run_all(broker.bootstrap, options.only))


if __name__ == "__main__":
    main()

"""`python -m benchmarks.peers.faststream_relay DATABASE KAFKA TOPIC TUNING`: a relay made with faststream-outbox.

It is the one of its documentation (page "Relay to a foreign broker"): an outbox subscriber under a Kafka publisher, in
one FastStream application. In its favour: uvloop, no log line a message, no key (its documentation's relay has none),
and Kafka's `acks` stays at aiokafka's 1. See `TUNINGS` for its settings.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import uvloop
from faststream import FastStream
from faststream.kafka import KafkaBroker
from faststream_outbox import OutboxBroker, make_outbox_table, outbox_autovacuum_ddl
from sqlalchemy import Engine, MetaData, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

FASTEST, IN_ORDER, AS_IT_COMES = "fastest", "in-order", "as-it-comes"
_LARGE = {
    "fetch_batch_size": 500,
    "terminal_flush_batch_size": 100,
    "min_fetch_interval": 0.01,
    "max_fetch_interval": 0.1,
}
TUNINGS: Mapping[str, Mapping[str, Any]] = {
    FASTEST: {"max_workers": 32, **_LARGE},
    IN_ORDER: {"max_workers": 1, **_LARGE},
    AS_IT_COMES: {},
}
"""What its page "Performance" names for a high rate: many workers, large fetches, deletes flushed in batches; of the
sizes tried, the fastest. The same with one worker, as rows are published in their order only then. Its defaults."""

_QUEUE = "orders"
_TABLE = make_outbox_table(MetaData())
_CHUNK = 1_000


def create_tables(engine: Engine) -> None:
    """As its migrations page has them."""
    _TABLE.metadata.create_all(engine)
    with engine.begin() as conn:
        conn.execute(text(outbox_autovacuum_ddl(_TABLE.name)))


def publish_all(database: str, values: Sequence[bytes]) -> float:
    """Writes all in one local transaction, by its own broker; the moment of the commit."""

    async def publish() -> float:
        engine = create_async_engine(database)
        outbox = OutboxBroker(engine, outbox_table=_TABLE, logger=None)
        async with AsyncSession(engine) as session, session.begin():
            for first in range(0, len(values), _CHUNK):
                bodies = [json.loads(value) for value in values[first : first + _CHUNK]]
                await outbox.publish_batch(*bodies, queue=_QUEUE, session=session)
        at = time.time()
        await engine.dispose()
        return at

    return asyncio.run(publish())


def make_app(database: str, kafka: str, topic: str, tuning: Mapping[str, Any]) -> FastStream:
    """Connects when it runs."""
    engine = create_async_engine(database, pool_size=tuning.get("max_workers", 1) + 4)
    outbox = OutboxBroker(engine, outbox_table=_TABLE, logger=None)
    target = KafkaBroker(kafka, logger=None)

    @target.publisher(topic)
    @outbox.subscriber(_QUEUE, **tuning)
    async def relay(body: dict[str, Any]) -> dict[str, Any]:
        return body

    return FastStream(outbox, on_startup=[target.connect], after_shutdown=[target.stop], logger=None)


def main(database: str, kafka: str, topic: str, tuning: str) -> None:
    """Until it is stopped."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(make_app(database, kafka, topic, TUNINGS[tuning]).run())


if __name__ == "__main__":
    main(*sys.argv[1:])

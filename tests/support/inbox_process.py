"""A consumer with an inbox, to be killed: acts on each message of a topic, and commits its offset afterwards.

python -m tests.support.inbox_process KAFKA TOPIC GROUP DATABASE_URL PAUSE_MS

It pauses between its database commit and its offset commit: that is where most of its deaths come.
"""

import sys
import time

import sqlalchemy as sa
from confluent_kafka import Consumer
from sqlalchemy import orm

from outbox.inbox import Inbox
from outbox.tables import make_inbox_table

metadata = sa.MetaData()
make_inbox_table(metadata)
effects = sa.Table(
    "effects",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("value", sa.String(40)),
    sa.Column("process", sa.String(40)),
    mysql_engine="InnoDB",
)


def main(kafka: str, topic: str, group: str, url: str, pause_ms: str) -> None:
    engine = sa.create_engine(url)
    inbox = Inbox("effects")
    settings = {
        "bootstrap.servers": kafka,
        "group.id": group,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 300,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        polled = [message for message in consumer.consume(20, 0.2) if message.error() is None]
        if not polled:
            continue
        with orm.Session(engine) as session, session.begin(), inbox.once_each(session, polled) as new_messages:
            for message in new_messages:
                value = (message.value() or b"").decode()
                session.execute(effects.insert().values(value=value, process=f"{group} {time.time_ns()}"))
        time.sleep(int(pause_ms) / 1000)
        consumer.commit(asynchronous=False)


if __name__ == "__main__":
    main(*sys.argv[1:])

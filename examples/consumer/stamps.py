"""A stamp for each order that a customer placed, however often Kafka delivers the message.

    python stamps.py

That a message was seen is written in the same database transaction as what it causes.
"""

import os
import signal
import threading

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox.inbox import Inbox
from outbox.tables import make_inbox_table

KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:///stamps.db")
GROUP_ID = os.environ.get("GROUP_ID", "stamps")
TOPIC = "orders.created"


class Table(DeclarativeBase):
    """Tables of the service."""


class StampCard(Table):
    """How many orders a customer placed."""

    __tablename__ = "stamp_cards"
    customer: Mapped[str] = mapped_column(primary_key=True)
    stamps: Mapped[int]


make_inbox_table(Table.metadata)
inbox = Inbox("stamps")
engine = create_engine(DATABASE_URL, pool_pre_ping=True)
Table.metadata.create_all(engine)


def run(consumer: Consumer, stop: threading.Event) -> None:
    """Until `stop`. The offset is committed after the database: a crash in between repeats, and loses nothing."""
    consumer.subscribe([TOPIC])
    while not stop.is_set():
        message = consumer.poll(0.5)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            if not error.retriable() and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(error)
            continue
        give_stamp(message)
        consumer.commit(message=message, asynchronous=False)


def give_stamp(message: "Message[bytes, bytes]") -> None:
    """Once for each message."""
    customer = (message.key() or b"unknown").decode(errors="replace")
    with Session(engine) as session, session.begin(), inbox.once(session, message) as is_new:
        if is_new:
            card = session.get(StampCard, customer, with_for_update=True) or StampCard(customer=customer, stamps=0)
            card.stamps += 1
            session.add(card)


def main() -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": KAFKA,
            "group.id": GROUP_ID,
            "isolation.level": "read_committed",  # what was rolled back is never seen
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        run(consumer, stop)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()

"""A stamp for each order that a customer placed, however often Kafka delivers the message.

    python stamps.py

Where a message stands, and its transaction, are written in the same database transaction as what it causes.
"""

import os
import signal
import threading

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

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


class SeenMessage(Table):
    """A message whose effect is in the database.

    The place alone would do, but for topics that are deleted and made again; the transaction alone would, but for
    transactions with several messages.
    """

    __tablename__ = "seen_messages"
    topic: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    offset: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    transaction_id: Mapped[str] = mapped_column(primary_key=True)


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


def give_stamp(message: "Message[bytes, bytes]") -> bool:
    """Whether this was the first time."""
    customer = (message.key() or b"unknown").decode(errors="replace")
    try:
        with Session(engine) as session, session.begin():
            session.add(seen(message))
            session.flush()  # fails if it was seen, and waits for another process that is at it
            card = session.get(StampCard, customer, with_for_update=True) or StampCard(customer=customer, stamps=0)
            card.stamps += 1
            session.add(card)
    except IntegrityError:
        with Session(engine) as session:
            if session.get(SeenMessage, key_of(message)) is not None:
                return False
        raise  # two first stamps of one customer at once: start again from the last offset
    return True


def seen(message: "Message[bytes, bytes]") -> SeenMessage:
    topic, partition, offset, transaction_id = key_of(message)
    return SeenMessage(topic=topic, partition=partition, offset=offset, transaction_id=transaction_id)


def key_of(message: "Message[bytes, bytes]") -> tuple[str, int, int, str]:
    """Never the same for two messages."""
    raw = dict(message.headers() or []).get("transaction-id") or b""
    transaction_id = raw.decode() if isinstance(raw, bytes) else raw
    return str(message.topic()), message.partition() or 0, message.offset() or 0, transaction_id


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

"""Messages as the Kafka clients for Python give them to a consumer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

TRANSACTION_ID = "7F00000100002A9F5B8C0000000A"


@dataclass(frozen=True)
class WithMethods:
    """As confluent-kafka's Message."""

    place: tuple[str, int, int]
    pairs: list[tuple[str, bytes]] | None = None
    failure: str | None = None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.place[2]

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self.pairs

    def error(self) -> str | None:
        return self.failure


class WithAttributes(NamedTuple):
    """As the ConsumerRecord of aiokafka and kafka-python."""

    topic: str
    partition: int
    offset: int
    headers: Sequence[tuple[str, bytes]] = ()


def make_message(offset: int, topic: str = "orders") -> WithAttributes:
    """Of a transaction."""
    return WithAttributes(topic, 0, offset, [("a", b"1"), ("transaction-id", TRANSACTION_ID.encode())])

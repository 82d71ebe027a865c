"""Messages as RocketMQ's store speaks of them, on Kafka's terms (null is not empty, headers are a list)."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

Header = tuple[str, bytes | None]

BY_KEY = -1  # RocketMQ writes an unset queue id so


class MessageQueue(NamedTuple):
    """One totally ordered queue of a topic; Kafka calls it a partition."""

    topic: str
    queue_id: int


class Message(Struct, frozen=True, gc=False):
    """A message to be put. `queue_id` BY_KEY: the writer chooses as Java clients do."""

    topic: str
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] = ()
    queue_id: int = BY_KEY
    timestamp_ms: int | None = None


class StoredMessage(Struct, frozen=True, gc=False):
    """A message as the log holds it. `stored_ms`: its timestamp; the append time where the topic says so."""

    queue_offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    stored_ms: int


class Receipt(Struct, frozen=True, gc=False, array_like=True):
    """The place of a published message; `queue_offset` None where the log does not know it any more."""

    topic: str
    queue_id: int
    queue_offset: int | None

"""What a message holds, small enough to keep a million of them.

A *mark* stands for bytes: up to 24 bytes it is the bytes themselves, beyond that "#" and 24 bytes of their digest, so
25 bytes long. None is Kafka's null. Marks are equal if the bytes are.
"""

import hashlib
from collections.abc import Iterable, Sequence

from msgspec import Struct

from bridge.core.message import BY_KEY, Header, Message

Mark = bytes | None

_SHORT = 24


class Content(Struct, frozen=True, gc=False, array_like=True):
    """One message as it was asked for. `partition` BY_KEY and `timestamp_ms` None: nothing was asked for."""

    topic: str
    key: Mark
    value: Mark
    headers: bytes
    partition: int = BY_KEY
    timestamp_ms: int | None = None


def mark(raw: Mark) -> Mark:
    """Stands for these bytes."""
    if raw is None or len(raw) <= _SHORT:
        return raw
    return b"#" + hashlib.blake2b(raw, digest_size=_SHORT).digest()


def mark_headers(headers: Iterable[Header]) -> bytes:
    """Stands for a header list: order, repeats, bytes, and null against empty."""
    framed = b"".join([_frame(name.encode()) + _frame(value) for name, value in headers])
    return mark(framed) or b""


def make_content(message: Message) -> Content:
    """The content of a message as a client sends it."""
    return Content(
        message.topic,
        mark(message.key),
        mark(message.value),
        mark_headers(message.headers),
        message.queue_id,
        message.timestamp_ms,
    )


def print_of(topic: str, key: Mark, value: Mark, headers: bytes) -> bytes:
    """Finds a message again wherever it lies; of messages with the same bytes in one topic it is the same."""
    framed = b"".join([_frame(part) for part in (topic.encode(), key, value, headers)])
    return hashlib.blake2b(framed, digest_size=16).digest()


def prints_of(contents: Sequence[Content]) -> list[bytes]:
    """The print of each message."""
    return [print_of(content.topic, content.key, content.value, content.headers) for content in contents]


def effective_key(group: str | None, ordering_key: str | None, contents: Sequence[Content]) -> Mark:
    """The mark of the effective ordering key; None where the transaction is in order with no other.

    An ordering key orders within its group, the first message's key within group and topic.
    """
    scope = _frame((group or "").encode())
    if ordering_key is not None:
        return mark(scope + ordering_key.encode())
    if not contents or contents[0].key is None:
        return None
    return mark(scope + _frame(contents[0].topic.encode()) + b"k" + contents[0].key)


def show_mark(shown: Mark) -> str:
    """For people."""
    if shown is None:
        return "null"
    return f"digest {shown[1:7].hex()}…" if len(shown) > _SHORT else repr(shown)[1:]


def _frame(part: Mark) -> bytes:
    return b"-;" if part is None else b"%d:%b;" % (len(part), part)

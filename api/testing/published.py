"""What `read_committed` consumers find in a topic, as `outbox.testing.published` decodes it."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from bridge.core.message import MessageQueue, StoredMessage
from bridge.store.message_store import MessageStore, TopicAdmin

_PAGE = 1_000
_ID_HEADER = "transaction-id"


async def read_published(store: MessageStore, admin: TopicAdmin, topic: str) -> list[dict[str, Any]] | None:
    """All that committed readers find now, partition by partition; None if there is no such topic."""
    described = (await admin.describe_topics([topic]))[topic]
    if described is None:
        return None
    found: list[dict[str, Any]] = []
    for number in range(described.queues):
        found += [_encode(number, stored) for stored in await _read_queue(store, MessageQueue(topic, number))]
    return found


async def _read_queue(store: MessageStore, queue: MessageQueue) -> Sequence[StoredMessage]:
    offsets = await store.get_offsets(queue)
    offset, found = offsets.minimum, list[StoredMessage]()
    while offset < offsets.stable:
        result = await store.get(queue, offset, _PAGE)
        found += result.messages
        if result.next_begin_offset <= offset:
            break
        offset = result.next_begin_offset
    return found


def _encode(partition: int, stored: StoredMessage) -> dict[str, Any]:
    own = [value for name, value in stored.headers if name == _ID_HEADER and value is not None]
    return {
        "partition": partition,
        "offset": stored.queue_offset,
        "key": _text(stored.key),
        "value": _text(stored.value),
        "headers": [(name, _text(value)) for name, value in stored.headers if name != _ID_HEADER],
        "transaction_id": own[0].decode() if own else None,
    }


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else b64encode(raw).decode()

"""What `read_committed` consumers find in a topic, as a test wants to see it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from bridge.core.message import MessageQueue, StoredMessage
from bridge.store.message_store import MessageStore, TopicAdmin

_PAGE = 1_000
_ID_HEADER = "transaction-id"


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """One message. `headers`: without the bridge's own, which is `transaction_id`."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    transaction_id: str | None

    def json(self) -> Any:  # noqa: ANN401 - what JSON holds
        """The value read as JSON; decimals keep their digits. Raises ValueError if it is none."""
        return json.loads(self.value or b"null", parse_float=Decimal)


async def read_published(store: MessageStore, admin: TopicAdmin, topic: str) -> list[PublishedMessage] | None:
    """All that committed readers find now, partition by partition; None if there is no such topic."""
    described = (await admin.describe_topics([topic]))[topic]
    if described is None:
        return None
    found: list[PublishedMessage] = []
    for number in range(described.queues):
        queue = MessageQueue(topic, number)
        found += [_make_message(queue, stored) for stored in await _read_queue(store, queue)]
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


def _make_message(queue: MessageQueue, stored: StoredMessage) -> PublishedMessage:
    own = [value for name, value in stored.headers if name == _ID_HEADER and value is not None]
    headers = tuple((name, value) for name, value in stored.headers if name != _ID_HEADER)
    transaction_id = own[0].decode() if own else None
    return PublishedMessage(
        queue.topic, queue.queue_id, stored.queue_offset, stored.key, stored.value, headers, transaction_id
    )

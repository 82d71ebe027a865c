"""Raw writes to a bridge's topics, past the bridge, and the truth about them."""

import json
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Message as Delivered
from confluent_kafka import Producer

from bridge.core.message import Header, StoredMessage
from tests.support.bridge_process import Bridge

_TIMEOUT_S = 30.0

Json = dict[str, Any]
Truth = set[tuple[str, str]]
"""Transaction ids with the kinds of findings that must be told of them."""


class Ink:
    """Writes one record after the other. `topics`: the real ones with their partitions."""

    def __init__(self, bridge: Bridge, topics: Mapping[str, int]) -> None:
        self.bridge = bridge
        self.topics = dict(topics)
        self.truth: Truth = set()
        self._producer = Producer({"bootstrap.servers": bridge.kafka, "enable.idempotence": True})

    def write(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[Header],
        timestamp_ms: int = 0,
    ) -> int:
        """Where it lies then."""
        offsets: list[int] = []

        def note(error: object, delivered: Delivered) -> None:
            assert error is None, error
            offsets.append(delivered.offset() or 0)

        self._producer.produce(
            topic,
            key=key,
            value=value,
            partition=partition,
            headers=list(headers),
            timestamp=timestamp_ms,
            on_delivery=note,
        )
        self._producer.flush(_TIMEOUT_S)
        return offsets[0]

    def write_op(self, transaction_id: str, members: Json) -> int:
        """What the op topic tells of a transaction from now on."""
        value = json.dumps({"v": 1, **members}, separators=(",", ":")).encode()
        return self.write(self.bridge.op_topic, queue_of(transaction_id), transaction_id.encode(), value, [])

    def write_copy(self, topic: str, partition: int, record: StoredMessage, **changed: Any) -> int:
        """A record of a real topic again; `transaction_id` and `value` may be other ones."""
        headers = list(record.headers)
        if "transaction_id" in changed:
            headers[-1] = (headers[-1][0], changed["transaction_id"].encode())
        return self.write(topic, partition, record.key, changed.get("value", record.value), headers, record.stored_ms)

    def must_find(self, transaction_id: str, *kinds: str) -> None:
        """Keeps the truth."""
        self.truth |= {(transaction_id, kind) for kind in kinds}


def queue_of(transaction_id: str) -> int:
    """The journal queue that the id names."""
    return int(transaction_id[:2], 32)

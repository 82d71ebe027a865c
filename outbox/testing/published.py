"""What `read_committed` consumers find in a topic, as a test wants to see it."""

import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any


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


def decode_published(topic: str, members: Mapping[str, Any]) -> PublishedMessage:
    """From the answer of the bridge's process, whose bytes are base64."""
    return PublishedMessage(
        topic,
        members["partition"],
        members["offset"],
        _decode(members["key"]),
        _decode(members["value"]),
        tuple((name, _decode(value)) for name, value in members["headers"]),
        members["transaction_id"],
    )


def _decode(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)

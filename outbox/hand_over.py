"""Handing outbox rows over to the bridge: the port, its HTTP adapter, and one in memory.

A row's idempotency key makes each hand-over repeatable: the bridge publishes a row once, however often it comes.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

import httpx2

from outbox.errors import HandOverUnavailable

_PATH: Final = "/v1/messages/batch"
_TIMEOUT_S: Final = 15.0  # the bridge waits 10 s at most until what it recorded is settled
_MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024  # below the bridge's cap of a body, 8 MiB
_ROW_BYTES: Final = 300  # names, braces and the idempotency key in a request
# Refusals of the row itself. Others are of the caller: a missing grant or group, a rate; they pass when that is mended.
_OF_THE_ROW: Final = frozenset(
    {HTTPStatus.CONFLICT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)
_RESERVED: Final = "reserved-topic"


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A row as it is to be published. `row`: its key in its table; `row_id`: the same as text, for leases."""

    row: object
    row_id: str
    idempotency_key: str
    topic: str
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None
    ordering_key: str | None = None
    attempts: int = 0


class Fate(Enum):
    """What became of a row that was handed over."""

    PUBLISHED = "published"  # recorded for good; at most its publication is being retried
    REFUSED = "refused"  # it was not, and never will be as it is
    UNKNOWN = "unknown"  # not known; handing it over again tells


class HandedOver(NamedTuple):
    """A row's fate. `reason`: the bridge's words, without anything of the row's content."""

    fate: Fate
    reason: str = ""


class HandOver(Protocol):
    """Takes rows and says what became of each."""

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[HandedOver]:
        """In the order of the rows. Raises HandOverUnavailable if nothing can be said of any of them."""
        ...


class HttpHandOver:
    """The bridge over HTTP. Rows go to it in one request, or in some where one would be too large."""

    def __init__(self, url: str, producer_group: str, client: httpx2.Client | None = None) -> None:
        """`client`: with the caller's own credentials, certificates and limits; it stays the caller's."""
        self._group = producer_group
        self._url = url.rstrip("/") + _PATH
        self._is_own = client is None
        self._client = client or httpx2.Client(timeout=_TIMEOUT_S)

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[HandedOver]:
        """As the port says."""
        fates: list[HandedOver] = []
        for part in split_rows(rows, _MAX_REQUEST_BYTES):
            try:
                fates += self._publish_part(part)
            except HandOverUnavailable as error:
                if len(part) == len(rows) > 1:
                    raise  # of one alone it may be its own fault, and the others must go on
                fates += [HandedOver(Fate.UNKNOWN, str(error))] * len(part)
        return fates

    def _publish_part(self, rows: Sequence[OutboxRow]) -> Sequence[HandedOver]:
        body = encode_batch(rows, self._group)
        try:
            response = self._client.post(self._url, content=body, headers={"content-type": "application/json"})
        except httpx2.HTTPError as error:
            raise HandOverUnavailable(f"no answer: {type(error).__name__}") from error
        if response.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            if len(rows) == 1:
                return [HandedOver(Fate.REFUSED, "413 body-too-large")]
            middle = len(rows) // 2
            return [*self._publish_part(rows[:middle]), *self._publish_part(rows[middle:])]
        if response.status_code != HTTPStatus.OK:
            raise HandOverUnavailable(f"status {response.status_code}", _read_retry_after(response.headers))
        return decode_batch(response.content, len(rows))

    def close(self) -> None:
        """Closes its own connections."""
        if self._is_own:
            self._client.close()


class MemoryHandOver:
    """A bridge in memory: remembers what was published, each idempotency key once."""

    def __init__(self) -> None:
        self.published: list[OutboxRow] = []
        self.refused_topics: set[str] = set()
        self.unsure_topics: set[str] = set()
        self._keys: set[str] = set()

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[HandedOver]:
        """As the port says."""
        return [self._publish(row) for row in rows]

    def _publish(self, row: OutboxRow) -> HandedOver:
        if row.topic in self.refused_topics:
            return HandedOver(Fate.REFUSED, "422 unknown-topic")
        if row.topic in self.unsure_topics:
            return HandedOver(Fate.UNKNOWN, "504 outcome-unknown")
        if row.idempotency_key not in self._keys:
            self._keys.add(row.idempotency_key)
            self.published.append(row)
        return HandedOver(Fate.PUBLISHED)


def encode_batch(rows: Sequence[OutboxRow], producer_group: str) -> bytes:
    """The body of the request: a transaction for each row."""
    transactions = [
        {
            "producer_group": producer_group,
            "messages": [_encode_message(row)],
            "idempotency_key": row.idempotency_key,
            **({} if row.ordering_key is None else {"ordering_key": row.ordering_key}),
        }
        for row in rows
    ]
    return json.dumps({"transactions": transactions}, separators=(",", ":")).encode()


def decode_batch(body: bytes, count: int) -> Sequence[HandedOver]:
    """The fate of each row. Raises HandOverUnavailable at anything that is not the agreed answer."""
    try:
        results = json.loads(body)["results"]
        return [decide(int(result["status"]), result) for _, result in zip(range(count), results, strict=True)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HandOverUnavailable("an answer that is none of the bridge's") from error


def decide(status: int, result: Mapping[str, Any]) -> HandedOver:
    """What an item's answer says of its row. COMMITTED: the commit is recorded; a refusal: nothing is."""
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        state = result.get("state")
        if state == "COMMITTED":
            return HandedOver(Fate.PUBLISHED)
        return HandedOver(Fate.REFUSED if state == "ROLLED_BACK" else Fate.UNKNOWN, f"{status} {state}")
    problem = result.get("problem") or {}
    code = str(problem.get("type", "")).rpartition("/")[2]
    reason = f"{status} {code} {problem.get('detail') or ''}".strip()
    return HandedOver(Fate.REFUSED if status in _OF_THE_ROW or code == _RESERVED else Fate.UNKNOWN, reason)


def split_rows(rows: Sequence[OutboxRow], max_bytes: int) -> Sequence[Sequence[OutboxRow]]:
    """The rows in order, in parts of about so many bytes; a larger row is alone."""
    parts: list[list[OutboxRow]] = []
    room = 0
    for row in rows:
        contents = [row.key, row.value, *(raw for _, raw in row.headers)]
        size = _ROW_BYTES + sum(len(raw) * 4 // 3 for raw in contents if raw is not None)
        if not parts or size > room:
            parts.append([])
            room = max_bytes
        parts[-1].append(row)
        room -= size
    return parts


def _encode_message(row: OutboxRow) -> dict[str, object]:
    message: dict[str, object] = {"topic": row.topic}
    if row.key is not None:
        message["key_base64"] = base64.b64encode(row.key).decode()
    if row.value is not None:
        message["value_base64"] = base64.b64encode(row.value).decode()
    if row.headers:
        message["headers_base64"] = [
            [name, None if raw is None else base64.b64encode(raw).decode()] for name, raw in row.headers
        ]
    if row.partition is not None:
        message["partition"] = row.partition
    if row.timestamp_ms is not None:
        message["timestamp_ms"] = row.timestamp_ms
    return message


def _read_retry_after(headers: Mapping[str, str]) -> int:
    """Milliseconds; 0 if it says nothing in seconds."""
    text = headers.get("retry-after", "")
    return min(int(text), 300) * 1000 if text.isdecimal() else 0

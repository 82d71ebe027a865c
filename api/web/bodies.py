"""Bodies of prepares and ends, and their fast reading. Unknown fields are refused everywhere.

msgspec's parser is strict but for names given twice, depth, and the UTF-8 of what it hands on unread. Names are
counted instead of compared: as many members as there are colons that stand in no text, so none was given twice.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from api.web.json import MAX_DEPTH, read_strict
from api.web.problems import Rejected

MAX_MESSAGES = 100
MAX_BATCH = 1_000
GROUP_PATTERN = "^[A-Za-z0-9._-]{1,120}$"

_INT64 = 2**63 - 1

GroupName = Annotated[
    str,
    Meta(
        description="Name of a producer group.",
        examples=["orders"],
        extra_json_schema={"pattern": GROUP_PATTERN},
    ),
]
TransactionId = Annotated[
    str,
    Meta(
        description="Id of a transaction, minted by the bridge; opaque.",
        examples=["0206k8e9s5ta7vo3q1m4c8b2h6dg"],
        extra_json_schema={"pattern": "^[0-9a-z]{28}$"},
    ),
]
Base64 = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]
RequestTime = Annotated[str, Meta(extra_json_schema={"format": "date-time"}, examples=["2026-01-31T12:00:00.000Z"])]
Reason = Annotated[
    str,
    Meta(min_length=1, max_length=500, description="Why; kept in the audit.", examples=["payment confirmed by phone"]),
]
Headers = list[tuple[str, str | None]] | dict[str, str | None]
ResolutionWord = Annotated[
    Literal["COMMIT", "ROLLBACK", "UNKNOWN", 8, 12, 0],
    Meta(description="RocketMQ's numbers are taken as well: 8 commit, 12 rollback, 0 unknown."),
]
EndWord = Annotated[
    Literal["COMMIT", "ROLLBACK", 8, 12],
    Meta(description="RocketMQ's numbers are taken as well: 8 commit, 12 rollback."),
]


class Message(Struct, forbid_unknown_fields=True):
    """A message; only the topic is required. Each of key, value and headers has one form or its base64 form."""

    topic: Annotated[str, Meta(description="A topic that exists.", examples=["orders.created"])]
    key: Annotated[str | None, Meta(description="UTF-8 text or null.", examples=["42"])] | UnsetType = UNSET
    key_base64: Base64 | UnsetType = UNSET
    value: (
        Annotated[
            Raw,
            Meta(
                description="A text is taken as UTF-8; an object, array, number or boolean is written as compact JSON, "
                "numbers and texts exactly as sent; null is Kafka's null (a tombstone).",
                extra_json_schema={"examples": [{"order": 42, "amount": 19.90}]},
            ),
        ]
        | UnsetType
    ) = UNSET
    value_base64: Base64 | UnsetType = UNSET
    headers: (
        Annotated[
            Headers,
            Meta(description="Pairs (order and repeats are kept) or an object.", examples=[[["source", "shop"]]]),
        ]
        | UnsetType
    ) = UNSET
    headers_base64: Annotated[Headers, Meta(description="The same with base64 values.")] | UnsetType = UNSET
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1, description="Left out: chosen by the key.")] | None = None
    timestamp_ms: (
        Annotated[int, Meta(ge=-_INT64, le=_INT64, description="Left out: the time of the commit.")] | None
    ) = None


class Prepare(Struct, forbid_unknown_fields=True):
    """A half message: stored, and invisible until it is committed."""

    producer_group: GroupName
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    ordering_key: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=1_000,
                description="Transactions of a group with one key are published in order, over all topics; "
                "without one, those with one key of their first message, within its topic.",
            ),
        ]
        | None
    ) = None
    idempotency_key: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=200,
                description="Printable ASCII. Makes a prepare repeatable: the same group, key and content is one "
                "transaction. Also as header `Idempotency-Key`.",
                examples=["order-42"],
            ),
        ]
        | None
    ) = None
    check_immunity_seconds: (
        Annotated[int, Meta(ge=0, le=604_800, description="No check before this age.", examples=[60])] | None
    ) = None
    max_checks: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    max_lifetime_seconds: Annotated[int, Meta(ge=1, le=604_800)] | None = None


class PrepareBatch(Struct, forbid_unknown_fields=True):
    """At most 1,000 transactions; each is decided on its own."""

    transactions: Annotated[list[Raw], Meta(min_length=1, max_length=MAX_BATCH)]


class EndTransaction(Struct, forbid_unknown_fields=True):
    """An end transaction; the body may be left out."""

    producer_group: GroupName | None = None


class ResolutionItem(Struct, forbid_unknown_fields=True):
    """A resolution; with `nonce`, the answer to that check."""

    transaction_id: TransactionId
    resolution: ResolutionWord
    producer_group: GroupName | None = None
    nonce: Annotated[str, Meta(max_length=200, description="Of the check that is answered.")] | None = None


class Resolutions(Struct, forbid_unknown_fields=True):
    """At most 1,000 resolutions; each is decided on its own."""

    resolutions: Annotated[list[Raw], Meta(min_length=1, max_length=MAX_BATCH)]


class Nothing(Struct, forbid_unknown_fields=True):
    """No body, or an empty object."""


T = TypeVar("T")

_DEPTH_OF_VALUE = 3  # of a message's value, in a prepare alone


class _Prepares(Struct, forbid_unknown_fields=True):
    transactions: Annotated[list[Prepare], Meta(min_length=1, max_length=MAX_BATCH)]


class _Resolutions(Struct, forbid_unknown_fields=True):
    resolutions: Annotated[list[ResolutionItem], Meta(min_length=1, max_length=MAX_BATCH)]


_prepare = msgspec.json.Decoder(Prepare)
_prepares = msgspec.json.Decoder(_Prepares)
_resolutions = msgspec.json.Decoder(_Resolutions)


def read_plain_prepare(raw: bytes) -> Prepare | None:
    """A prepare whose values are compact."""
    return _read(raw, _prepare, partial(_count_prepare, depth=_DEPTH_OF_VALUE))


def read_plain_prepares(raw: bytes) -> list[Prepare] | None:
    """A batch in which nothing is wrong."""
    batch = _read(raw, _prepares, _count_prepares)
    return None if batch is None else batch.transactions


def read_plain_resolutions(raw: bytes) -> list[ResolutionItem] | None:
    """A batch in which nothing is wrong."""
    batch = _read(raw, _resolutions, lambda batch: 1 + sum([_count_resolution(item) for item in batch.resolutions]))
    return None if batch is None else batch.resolutions


def _read(raw: bytes, decoder: "msgspec.json.Decoder[T]", count: Callable[[T], int]) -> T | None:
    """None too for what has escapes, for then a text can be written in many ways."""
    if b"\\" in raw:
        return None
    try:
        raw.decode()
        body = decoder.decode(raw)
        return body if count(body) == raw.count(b":") else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Rejected):
        return None


def _count_prepares(batch: _Prepares) -> int:
    return 1 + sum([_count_prepare(item, _DEPTH_OF_VALUE + 2) for item in batch.transactions])


def _count_prepare(body: Prepare, depth: int) -> int:
    """The members that were certainly given, and the colons in their texts.

    Null where it means the same as nothing is not counted.
    """
    count = 2
    for message in body.messages:
        count += _count_message(message, depth)
    if body.ordering_key is not None:
        count += 1 + body.ordering_key.count(":")
    if body.idempotency_key is not None:
        count += 1 + body.idempotency_key.count(":")
    if body.check_immunity_seconds is not None:
        count += 1
    if body.max_checks is not None:
        count += 1
    return count + 1 if body.max_lifetime_seconds is not None else count


def _count_message(body: Message, depth: int) -> int:
    count = 1
    key, value = body.key, body.value
    if isinstance(key, str):
        count += 1 + key.count(":")
    elif key is None:
        count += 1
    if isinstance(value, msgspec.Raw):
        count += 1 + _count_value(body, bytes(value), depth)
    if body.partition is not None:
        count += 1
    if body.timestamp_ms is not None:
        count += 1
    if body.key_base64 is not UNSET:
        count += 1
    if body.value_base64 is not UNSET:
        count += 1
    if body.headers is not UNSET:
        count += _count_headers(body.headers)
    return count if body.headers_base64 is UNSET else count + _count_headers(body.headers_base64)


def _count_headers(headers: Headers | UnsetType) -> int:
    """An object's names could be given twice: it counts as nothing."""
    if not isinstance(headers, list):
        return 0
    return 1 + sum([name.count(":") + (0 if text is None else text.count(":")) for name, text in headers])


def _count_value(body: Message, value: bytes, depth: int) -> int:
    """An object or array is read strictly, and made compact. `depth`: how deep it lies."""
    if value[:1] in b"{[":
        body.value = msgspec.Raw(read_strict(value, MAX_DEPTH - depth))
    return value.count(b":")


def _count_resolution(item: ResolutionItem) -> int:
    nonce = item.nonce
    return 2 + (item.producer_group is not None) + (0 if nonce is None else 1 + nonce.count(":"))

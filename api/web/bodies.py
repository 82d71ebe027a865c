"""Bodies of prepares and ends, as the document shows them. Unknown fields are refused everywhere."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from api.web.json import MAX_DEPTH, read_strict

MAX_MESSAGES = 100
MAX_BATCH = 1_000
GROUP_PATTERN = "^[A-Za-z0-9._-]{1,120}$"

INT64 = 2**63 - 1
Int32 = Annotated[int, Meta(extra_json_schema={"format": "int32"})]

GroupName = Annotated[
    str,
    Meta(description="Name of a producer group.", examples=["orders"], extra_json_schema={"pattern": GROUP_PATTERN}),
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
MAX_REASON_CHARS = 500
Reason = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_REASON_CHARS,
        description="Why; kept in the audit.",
        examples=["payment confirmed by phone"],
    ),
]
Headers = list[tuple[str, str | None]] | dict[str, str | None]
ResolutionWord = Annotated[
    Literal["COMMIT", "ROLLBACK", "UNKNOWN", 8, 12, 0],
    Meta(description="RocketMQ's numbers are taken as well: 8 commit, 12 rollback, 0 unknown."),
]
Remark = Annotated[
    str,
    Meta(
        max_length=512,
        description="Why, in the producer's words; kept in the journal and shown in the timeline.",
        examples=["IllegalStateException: no stock for order 42"],
    ),
]
EndWord = Annotated[
    Literal["COMMIT", "ROLLBACK", 8, 12],
    Meta(description="RocketMQ's numbers are taken as well: 8 commit, 12 rollback."),
]


_APrepare = Annotated[Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/Prepare"})]
_AResolution = Annotated[Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/ResolutionItem"})]


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
            Meta(
                description="Pairs: order and repeats are kept. An object is taken as well.",
                examples=[[["source", "shop"]]],
            ),
        ]
        | UnsetType
    ) = UNSET
    headers_base64: Annotated[Headers, Meta(description="The same with base64 values.")] | UnsetType = UNSET
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1, description="Left out: chosen by the key.")] | None = None
    timestamp_ms: Annotated[int, Meta(ge=-INT64, le=INT64, description="Left out: the time of the commit.")] | None = (
        None
    )


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
        Annotated[int, Meta(ge=-1, le=604_800, description="No check before this age; -1: as left out.", examples=[60])]
        | None
    ) = None
    max_checks: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    max_lifetime_seconds: Annotated[int, Meta(ge=1, le=604_800)] | None = None


class PrepareBatch(Struct, forbid_unknown_fields=True):
    """At most 1,000 transactions; each is decided on its own."""

    transactions: Annotated[list[_APrepare], Meta(min_length=1, max_length=MAX_BATCH)]


class EndTransaction(Struct, forbid_unknown_fields=True):
    """An end transaction; the body may be left out."""

    producer_group: GroupName | None = None
    remark: Remark | None = None


class ResolutionItem(Struct, forbid_unknown_fields=True):
    """A resolution; with `nonce`, the answer to that check."""

    transaction_id: TransactionId
    resolution: ResolutionWord
    producer_group: GroupName | None = None
    nonce: Annotated[str, Meta(max_length=200, description="Of the check that is answered.")] | None = None
    remark: Remark | None = None


class Resolutions(Struct, forbid_unknown_fields=True):
    """At most 1,000 resolutions; each is decided on its own."""

    resolutions: Annotated[list[_AResolution], Meta(min_length=1, max_length=MAX_BATCH)]


class Nothing(Struct, forbid_unknown_fields=True):
    """No body, or an empty object."""


# --- their members that were certainly given, counted, and the colons in their texts ---
# Null where it means the same as nothing is not counted.


def count_end(body: EndTransaction) -> int:
    """Of an end."""
    group, remark = body.producer_group, body.remark
    count = 0 if group is None else 1 + group.count(":")
    return count if remark is None else count + 1 + remark.count(":")


def count_prepare(body: Prepare, depth: int) -> int:
    """Of a prepare. `depth`: of a message's value."""
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
    if isinstance(value, Raw):
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
    """An object or array is read strictly, and made compact. `depth`: its depth."""
    if value[:1] in b"{[":
        body.value = Raw(read_strict(value, MAX_DEPTH - depth))
    return value.count(b":")


def count_resolution(item: ResolutionItem) -> int:
    """Of one of many ends."""
    count = 2 + (item.producer_group is not None)
    if item.nonce is not None:
        count += 1 + item.nonce.count(":")
    return count if item.remark is None else count + 1 + item.remark.count(":")

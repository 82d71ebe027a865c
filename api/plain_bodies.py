"""Ordinary bodies read in one pass: the same structs as the strict reader makes, or None for it to look again.

msgspec's parser is strict but for names given twice, depth, and the UTF-8 of what it hands on unread. Names are
counted instead of compared: as many members as there are colons outside texts, so none was given twice.
"""

from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct

from api.problems import Rejected
from api.schemas.requests import MAX_BATCH, Message, Prepare, ResolutionItem
from api.strict_json import count_members, read_strict, strip_texts

T = TypeVar("T")


class _Prepares(Struct, forbid_unknown_fields=True):
    transactions: Annotated[list[Prepare], Meta(min_length=1, max_length=MAX_BATCH)]


class _Resolutions(Struct, forbid_unknown_fields=True):
    resolutions: Annotated[list[ResolutionItem], Meta(min_length=1, max_length=MAX_BATCH)]


_prepare = msgspec.json.Decoder(Prepare)
_prepares = msgspec.json.Decoder(_Prepares)
_resolutions = msgspec.json.Decoder(_Resolutions)


def read_plain_prepare(raw: bytes) -> Prepare | None:
    """A prepare whose values are compact."""
    return _read(raw, _prepare, _count_prepare)


def read_plain_prepares(raw: bytes) -> list[Prepare] | None:
    """A batch in which nothing is wrong."""
    batch = _read(raw, _prepares, lambda batch: 1 + sum([_count_prepare(item) for item in batch.transactions]))
    return None if batch is None else batch.transactions


def read_plain_resolutions(raw: bytes) -> list[ResolutionItem] | None:
    """A batch in which nothing is wrong."""
    batch = _read(raw, _resolutions, lambda batch: 1 + sum([_count_resolution(item) for item in batch.resolutions]))
    return None if batch is None else batch.resolutions


def _read(raw: bytes, decoder: "msgspec.json.Decoder[T]", count: Callable[[T], int]) -> T | None:
    """None too for what has escapes, for then a text can be written in many ways."""
    outside = strip_texts(raw)
    if outside is None:
        return None
    try:
        raw.decode()
        body = decoder.decode(raw)
        return body if count(body) == count_members(outside) else None
    except (msgspec.MsgspecError, UnicodeDecodeError, Rejected):
        return None


def _count_prepare(body: Prepare) -> int:
    """The members that were certainly given; null where it means the same as nothing is not counted."""
    count = 2
    for message in body.messages:
        count += _count_message(message)
    if body.ordering_key is not None:
        count += 1
    if body.idempotency_key is not None:
        count += 1
    if body.check_immunity_seconds is not None:
        count += 1
    if body.max_checks is not None:
        count += 1
    return count + 1 if body.max_lifetime_seconds is not None else count


def _count_message(body: Message) -> int:
    count = 1
    if body.key is not UNSET:
        count += 1
    if isinstance(body.value, msgspec.Raw):
        count += 1 + _count_value(body, bytes(body.value))
    if body.partition is not None:
        count += 1
    if body.timestamp_ms is not None:
        count += 1
    if body.key_base64 is not UNSET:
        count += 1
    if body.value_base64 is not UNSET:
        count += 1
    if isinstance(body.headers, list):
        count += 1
    return count + 1 if isinstance(body.headers_base64, list) else count


def _count_value(body: Message, value: bytes) -> int:
    """An object or array is read strictly, and made compact."""
    if value[:1] not in b"{[":
        return 0
    compact = read_strict(value)
    body.value = msgspec.Raw(compact)
    return count_members(strip_texts(compact) or b"")


def _count_resolution(item: ResolutionItem) -> int:
    return 2 + (item.producer_group is not None) + (item.nonce is not None)

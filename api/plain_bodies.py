"""Ordinary bodies read in one pass: the same structs as the strict reader makes, or None for it to look again.

msgspec's parser is strict but for names given twice, depth, and the UTF-8 of what it hands on unread. Names are
counted instead of compared: as many members as there are colons that stand in no text, so none was given twice.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from api.problems import Rejected
from api.schemas.requests import MAX_BATCH, Headers, Message, Prepare, ResolutionItem
from api.strict_json import MAX_DEPTH, read_strict

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

"""Large bodies read in short steps, with the same results: first the whole document, then its parts.

One that is large for its texts alone, with no more in it than a small one may have, is read as that.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from api.web.bodies import MAX_BATCH, MAX_MESSAGES, Prepare, PrepareBatch, ResolutionItem, Resolutions
from api.web.bodies import Message as MessageBody
from api.web.json import WINDOW, read_strict_in_steps
from api.web.parse import (
    NoncedEnd,
    PlainPrepares,
    decode_body,
    make_call,
    make_message,
    make_resolution,
    read_plain_prepare,
    read_plain_resolutions,
    refuse_headers,
)
from api.web.problems import Problem, Rejected
from bridge.core.message import Message
from bridge.service.contract import EndCall, PrepareCall
from bridge.turns import Pace, Steps

T = TypeVar("T")

LARGE_BYTES = 64 * 1024
_MOST_PLAIN_BYTES, _MOST_SEPARATORS = 16 * LARGE_BYTES, LARGE_BYTES // 4
_QUOTES_A_HEADER = 4


def _has_few_members(raw: bytes) -> bool:
    return len(raw) <= _MOST_PLAIN_BYTES and raw.count(b":") + raw.count(b",") <= _MOST_SEPARATORS


class _PrepareParts(Prepare, forbid_unknown_fields=True):
    """A prepare whose messages are not read yet."""

    messages: Annotated[list[Raw], Meta(min_length=1, max_length=MAX_MESSAGES)]  # type: ignore[assignment]


class _MessageParts(MessageBody, forbid_unknown_fields=True):
    """A message whose headers are not read yet."""

    headers: Raw | UnsetType = UNSET  # type: ignore[assignment]
    headers_base64: Raw | UnsetType = UNSET  # type: ignore[assignment]


_prepare_batch = msgspec.json.Decoder(PrepareBatch)
_resolution = msgspec.json.Decoder(ResolutionItem)
_resolutions = msgspec.json.Decoder(Resolutions)
_prepare_parts = msgspec.json.Decoder(_PrepareParts)
_message_parts = msgspec.json.Decoder(_MessageParts)
_message = msgspec.json.Decoder(MessageBody)


def body_in_steps(raw: bytes, decoder: "msgspec.json.Decoder[T]") -> Steps[T]:
    """As `parse_body`."""
    return decode_body((yield from read_strict_in_steps(raw, most=(MAX_BATCH,))), decoder)


def prepare_in_steps(
    raw: bytes, max_headers: int, *, header_key: str | None = None, is_published: bool = False
) -> Steps[PrepareCall]:
    """As `parse_prepare`."""
    if _has_few_members(raw):
        plain = read_plain_prepare(raw, max_headers, header_key, is_published=is_published)
        if plain is not None:
            return plain
    compact = yield from read_strict_in_steps(raw, most=(MAX_MESSAGES,))
    return (yield from _prepare_by_parts(compact, max_headers, header_key, is_published=is_published))


def prepare_batch_in_steps(
    raw: bytes, max_headers: int, *, is_published: bool = False
) -> Steps[list[PrepareCall | Problem]]:
    """As `parse_prepare_batch`."""
    plain = PlainPrepares(max_headers, None, is_published=is_published)
    if _has_few_members(raw) and (yield from plain.read_in_steps(raw)):
        return [*plain.calls]
    compact = yield from read_strict_in_steps(raw, most=(MAX_BATCH, MAX_MESSAGES))
    calls: list[PrepareCall | Problem] = []
    pace = Pace(WINDOW)
    for index, item in enumerate(decode_body(compact, _prepare_batch).transactions):
        try:
            calls.append((yield from _prepare_by_parts(item, max_headers, None, is_published=is_published)))
        except Rejected as rejected:
            calls.append(rejected.problem.at(f"/transactions/{index}"))
        if pace.spend(len(memoryview(item))):
            yield
    return calls


def resolutions_in_steps(raw: bytes) -> Steps[list[EndCall | NoncedEnd | Problem]]:
    """As `parse_resolutions`."""
    plain = read_plain_resolutions(raw) if _has_few_members(raw) else None
    if plain is not None:
        return [*plain]
    compact = yield from read_strict_in_steps(raw, most=(MAX_BATCH,))
    calls: list[EndCall | NoncedEnd | Problem] = []
    pace = Pace(WINDOW)
    for index, item in enumerate(decode_body(compact, _resolutions).resolutions):
        try:
            calls.append(make_resolution(decode_body(item, _resolution)))
        except Rejected as rejected:
            calls.append(rejected.problem.at(f"/resolutions/{index}"))
        if pace.spend(len(memoryview(item))):
            yield
    return calls


def resolution_in_steps(raw: bytes) -> Steps[EndCall | NoncedEnd]:
    """As `parse_resolution`."""
    return make_resolution((yield from body_in_steps(raw, _resolution)))


def _prepare_by_parts(
    raw: bytes | Raw, max_headers: int, header_key: str | None, *, is_published: bool
) -> Steps[PrepareCall]:
    """First the shape of everything, as where it is read at once: of several faults the same one is reported."""
    body = decode_body(raw, _prepare_parts)
    read: list[MessageBody] = []
    pace = Pace(WINDOW)
    for index, part in enumerate(body.messages):
        read.append(_read_message(part, max_headers, index))
        if pace.spend(len(memoryview(part))):
            yield
    messages: list[Message] = []
    for index, message in enumerate(read):
        messages.append(make_message(message, max_headers, index))
        if pace.spend(len(memoryview(body.messages[index]))):
            yield
    return make_call(body, messages, header_key, is_published=is_published)


def _read_message(raw: Raw, max_headers: int, index: int) -> MessageBody:
    try:
        if len(memoryview(raw)) > WINDOW:
            parts = decode_body(raw, _message_parts)
            for where, part in (("/headers", parts.headers), ("/headers_base64", parts.headers_base64)):
                headers = bytes(part) if isinstance(part, Raw) else b""
                quotes = headers.count(b'"') - headers.count(b'\\"')  # of texts, or at least half of them
                if quotes > _QUOTES_A_HEADER * max_headers:
                    raise refuse_headers(where, max_headers)
        return decode_body(raw, _message)
    except Rejected as rejected:
        raise Rejected(rejected.problem.at(f"/messages/{index}")) from None

"""Request bodies read strictly into the service's calls. Pure: bytes in, a call out, or Rejected.

msgspec's parser is strict but for names given twice, depth, and the UTF-8 of what it hands on unread. Names are
counted instead of compared: as many members as there are colons that stand in no text, so none was given twice.
What this fast reading does not take is read once more, by the strict parser, which names what is wrong.
"""

import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from api.web.bodies import (
    MAX_BATCH,
    EndTransaction,
    Headers,
    Prepare,
    PrepareBatch,
    ResolutionItem,
    Resolutions,
    count_end,
    count_prepare,
    count_resolution,
)
from api.web.bodies import Message as MessageBody
from api.web.json import MAX_DEPTH, escape_pointer, read_strict
from api.web.problems import INVALID_REQUEST, INVALID_TIMESTAMP, Problem, Rejected, invalid, reject
from bridge.core.check_rules import is_group_name
from bridge.core.message import BY_KEY, Header, Message
from bridge.core.properties import find_bad_header, is_property_text
from bridge.core.record import Resolution
from bridge.core.transaction import is_transaction_id
from bridge.service.contract import EndCall, PrepareCall
from bridge.turns import Pace, Steps

T = TypeVar("T")

_NAMED_FIELD = re.compile(r"^Object (?:contains unknown|missing required) field `(.*)`$", re.DOTALL)
_WORDS = {"COMMIT": Resolution.COMMIT, "ROLLBACK": Resolution.ROLLBACK, "UNKNOWN": Resolution.UNKNOWN}
_JSON_WORDS = {"`str`": "`string`", "`int`": "`integer`", "`float`": "`number`", "`bool`": "`boolean`"}
_MAX_DETAIL = 200

_prepare = msgspec.json.Decoder(Prepare)
_prepare_batch = msgspec.json.Decoder(PrepareBatch)
_end = msgspec.json.Decoder(EndTransaction)
_resolution = msgspec.json.Decoder(ResolutionItem)
_resolutions = msgspec.json.Decoder(Resolutions)
_text = msgspec.json.Decoder(str)


@dataclass(frozen=True, slots=True)
class NoncedEnd:
    """An end that answers a check: its nonce is still to be looked at."""

    call: EndCall
    nonce: str


def parse_body(raw: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """A body of a route without a parser of its own. Raises Rejected."""
    return decode_body(read_strict(raw), decoder)


def parse_prepare(
    raw: bytes, max_headers: int, *, header_key: str | None = None, is_published: bool = False
) -> PrepareCall:
    """A prepare, or a publish. `header_key`: the `Idempotency-Key` header. Raises Rejected."""
    plain = read_plain_prepare(raw, max_headers, header_key, is_published=is_published)
    if plain is not None:
        return plain
    return _make_prepare(decode_body(read_strict(raw), _prepare), max_headers, header_key, is_published=is_published)


def parse_prepare_batch(raw: bytes, max_headers: int, *, is_published: bool = False) -> list[PrepareCall | Problem]:
    """Every transaction of a batch, or what is wrong with it. Raises Rejected if it is no batch."""
    plain = read_plain_prepares(raw, max_headers, is_published=is_published)
    if plain is not None:
        return [*plain]
    calls: list[PrepareCall | Problem] = []
    for index, item in enumerate(decode_body(read_strict(raw), _prepare_batch).transactions):
        try:
            calls.append(_make_prepare(decode_body(item, _prepare), max_headers, None, is_published=is_published))
        except Rejected as rejected:
            calls.append(rejected.problem.at(f"/transactions/{index}"))
    return calls


def parse_end(raw: bytes, transaction_id: str, resolution: Resolution) -> EndCall:
    """An end transaction of the id in the path; the body may be empty. Raises Rejected."""
    check_transaction_id(transaction_id, "?transaction_id")
    if not raw:
        return EndCall(transaction_id, resolution)
    body = _read(raw, _end, count_end) or decode_body(read_strict(raw), _end)
    if body.producer_group is not None:
        check_group(body.producer_group, "/producer_group")
    check_property(body.remark, "/remark")
    return EndCall(transaction_id, resolution, body.producer_group, remark=body.remark)


def parse_resolution(raw: bytes) -> EndCall | NoncedEnd:
    """One resolution: a line of NDJSON. Raises Rejected."""
    return make_resolution(decode_body(read_strict(raw), _resolution))


def parse_resolutions(raw: bytes) -> list[EndCall | NoncedEnd | Problem]:
    """Every resolution of a batch, or what is wrong with it. Raises Rejected if it is no batch."""
    plain = read_plain_resolutions(raw)
    if plain is not None:
        return [*plain]
    calls: list[EndCall | NoncedEnd | Problem] = []
    for index, item in enumerate(decode_body(read_strict(raw), _resolutions).resolutions):
        try:
            calls.append(make_resolution(decode_body(item, _resolution)))
        except Rejected as rejected:
            calls.append(rejected.problem.at(f"/resolutions/{index}"))
    return calls


def check_group(name: str, where: str) -> None:
    """Raises Rejected unless it is a legal name of a producer group."""
    if not is_group_name(name):
        raise invalid(where, "a group name has 1..120 characters of A-Z a-z 0-9 . _ -")


def check_transaction_id(text: str, where: str) -> None:
    """Raises Rejected unless it has the form of a transaction id."""
    if not is_transaction_id(text):
        raise invalid(where, "not a transaction id: 28 characters as the bridge gave them")


def check_property(text: str | None, where: str) -> None:
    """Raises Rejected for a text that cannot stand in a record's properties."""
    if text is not None and not is_property_text(text):
        raise invalid(where, "the bytes 0x00, 0x01 and 0x02 are not allowed here")


def decode_body(raw: bytes | msgspec.Raw, decoder: "msgspec.json.Decoder[T]") -> T:
    """What is strict JSON already, so that only its shape can be wrong. Raises Rejected."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        what, _, path = str(error).rpartition(" - at `")
        raise _violation(what or path, path[1:-1] if what else "") from None


def _violation(what: str, path: str) -> Rejected:
    """A violation as msgspec words it, at `.messages[0].topic`, with a JSON pointer."""
    pointer = path.partition("[...]")[0].replace(".", "/").replace("[", "/").replace("]", "")
    named = _NAMED_FIELD.match(what)
    if named:
        pointer = f"{pointer}/{escape_pointer(named[1][:_MAX_DETAIL])}"
    for python, json_word in _JSON_WORDS.items():
        what = what.replace(python, json_word)
    return invalid(pointer, what[:_MAX_DETAIL])


def _make_prepare(body: Prepare, max_headers: int, header_key: str | None, *, is_published: bool) -> PrepareCall:
    messages = [make_message(message, max_headers, index) for index, message in enumerate(body.messages)]
    return make_call(body, messages, header_key, is_published=is_published)


def make_call(body: Prepare, messages: list[Message], header_key: str | None, *, is_published: bool) -> PrepareCall:
    """A prepare with its messages. Raises Rejected for two idempotency keys."""
    return PrepareCall(
        body.producer_group,
        messages,
        body.ordering_key,
        body.idempotency_key if header_key is None else _one_key(body.idempotency_key, header_key),
        None if body.check_immunity_seconds == -1 else body.check_immunity_seconds,
        body.max_checks,
        body.max_lifetime_seconds,
        is_published,
    )


def _one_key(in_body: str | None, in_header: str) -> str:
    if in_body is not None and in_body != in_header:
        raise reject(
            INVALID_REQUEST, "two idempotency keys", ("/idempotency_key", "differs from the header Idempotency-Key")
        )
    return in_header


def make_message(body: MessageBody, max_headers: int, index: int) -> Message:
    """Message number `index` of a prepare. Raises Rejected."""
    try:
        key, value, headers = _key(body), _value(body), _headers(body, max_headers)
        if body.timestamp_ms is not None and body.timestamp_ms <= 0:
            raise reject(INVALID_TIMESTAMP, "timestamp_ms is not above 0", ("/timestamp_ms", "must be above 0"))
    except Rejected as rejected:
        raise Rejected(rejected.problem.at(f"/messages/{index}")) from None
    partition = BY_KEY if body.partition is None else body.partition
    return Message(body.topic, key, value, headers, partition, body.timestamp_ms)


def _key(body: MessageBody) -> bytes | None:
    if isinstance(body.key_base64, str):
        if body.key is not UNSET:
            raise invalid("/key_base64", "key and key_base64 are both given")
        return parse_base64(body.key_base64, "/key_base64")
    return body.key.encode() if isinstance(body.key, str) else None


def _value(body: MessageBody) -> bytes | None:
    if isinstance(body.value_base64, str):
        if body.value is not UNSET:
            raise invalid("/value_base64", "value and value_base64 are both given")
        return parse_base64(body.value_base64, "/value_base64")
    raw = bytes(body.value) if isinstance(body.value, msgspec.Raw) else b"null"
    if raw[:1] == b'"':
        return raw[1:-1] if b"\\" not in raw else _text.decode(raw).encode()
    return None if raw == b"null" else raw


def _headers(body: MessageBody, max_headers: int) -> Sequence[Header]:
    plain, coded = body.headers, body.headers_base64
    if isinstance(coded, UnsetType) or not coded:  # generated clients send both lists, the one that is not used empty
        given = () if isinstance(plain, UnsetType) else _pairs(plain, "/headers", max_headers)
        return [(name, None if text is None else text.encode()) for name, text in given] if given else ()
    if plain:
        raise invalid("/headers_base64", "headers and headers_base64 are both given")
    pairs = _pairs(coded, "/headers_base64", max_headers)
    if (fault := find_bad_header(pairs)) is not None:  # looked for here too, for the member's own name
        raise invalid("/headers_base64", fault)
    return [
        (name, None if text is None else parse_base64(text, f"/headers_base64/{n}"))
        for n, (name, text) in enumerate(pairs)
    ]


def _pairs(headers: Headers, where: str, max_headers: int) -> Sequence[tuple[str, str | None]]:
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if len(pairs) > max_headers:
        raise refuse_headers(where, max_headers)
    return pairs


def refuse_headers(where: str, max_headers: int) -> Rejected:
    return invalid(where, f"more than {max_headers} headers")


def parse_base64(text: str, where: str) -> bytes:
    """Standard base64 with padding. Raises Rejected."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise invalid(where, "not base64 (RFC 4648 section 4, padded)") from None


def make_resolution(body: ResolutionItem) -> EndCall | NoncedEnd:
    """A resolution. Raises Rejected."""
    check_transaction_id(body.transaction_id, "/transaction_id")
    if body.producer_group is not None:
        check_group(body.producer_group, "/producer_group")
    word, remark = body.resolution, body.remark
    resolution = _WORDS[word] if isinstance(word, str) else Resolution(word)
    if remark is None:
        call = EndCall(body.transaction_id, resolution, body.producer_group)
    else:
        check_property(remark, "/remark")
        call = EndCall(body.transaction_id, resolution, body.producer_group, remark=remark)
    return call if body.nonce is None else NoncedEnd(call, body.nonce)


_DEPTH_OF_VALUE = 3  # of a message's value, in a prepare alone


class _Prepares(Struct, forbid_unknown_fields=True):
    transactions: Annotated[list[Prepare], Meta(min_length=1, max_length=MAX_BATCH)]


class _Resolutions(Struct, forbid_unknown_fields=True):
    resolutions: Annotated[list[ResolutionItem], Meta(min_length=1, max_length=MAX_BATCH)]


_STEP_CALLS = 256  # are made in about a millisecond
_COLON = 0x3A  # a number is the quicker thing to look for
_all_prepares = msgspec.json.Decoder(_Prepares)
_all_resolutions = msgspec.json.Decoder(_Resolutions)


def read_plain_prepare(
    raw: bytes, max_headers: int, header_key: str | None = None, *, is_published: bool = False
) -> PrepareCall | None:
    """A prepare in which nothing is wrong."""
    plain = PlainPrepares(max_headers, header_key, is_published=is_published)
    return plain.calls[0] if _read(raw, _prepare, plain.add) else None


def read_plain_prepares(raw: bytes, max_headers: int, *, is_published: bool = False) -> list[PrepareCall] | None:
    """A batch in which nothing is wrong."""
    plain = PlainPrepares(max_headers, None, is_published=is_published)
    return plain.calls if _read(raw, _all_prepares, plain.add_all) else None


def read_plain_resolutions(raw: bytes) -> list[EndCall | NoncedEnd] | None:
    """A batch in which nothing is wrong."""
    calls: list[EndCall | NoncedEnd] = []
    return calls if _read(raw, _all_resolutions, partial(_end_all, calls=calls)) else None


def _read(raw: bytes, decoder: "msgspec.json.Decoder[T]", count: Callable[[T], int]) -> T | None:
    body = _decode_plain(raw, decoder)
    try:
        return body if body is not None and count(body) == raw.count(b":") else None
    except Rejected:
        return None


def _decode_plain(raw: bytes, decoder: "msgspec.json.Decoder[T]") -> T | None:
    """None too for what has escapes, for then a text can be written in many ways."""
    if b"\\" in raw:
        return None
    try:
        raw.decode()
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class PlainPrepares:
    """Calls made of bodies as their members are counted."""

    def __init__(self, max_headers: int, header_key: str | None, *, is_published: bool) -> None:
        self.calls: list[PrepareCall] = []
        self._max_headers = max_headers
        self._header_key = header_key
        self._is_published = is_published

    def add_all(self, batch: _Prepares) -> int:
        return 1 + sum([self.add(item, _DEPTH_OF_VALUE + 2) for item in batch.transactions])

    def read_in_steps(self, raw: bytes) -> Steps[bool]:
        """Adds those of a batch; False if something may be wrong with it."""
        batch = _decode_plain(raw, _all_prepares)
        if batch is None:
            return False
        count, pace = 1, Pace(_STEP_CALLS)
        try:
            for item in batch.transactions:
                count += self.add(item, _DEPTH_OF_VALUE + 2)
                if pace.spend(1):
                    yield
        except Rejected:
            return False
        return count == raw.count(b":")

    def add(self, body: Prepare, depth: int = _DEPTH_OF_VALUE) -> int:
        """What is counted; one message with no more than key and value in a third of the time. Raises Rejected."""
        only = body.messages[0]
        if (
            len(body.messages) > 1
            or not (only.headers is only.headers_base64 is only.key_base64 is only.value_base64 is UNSET)
            or not (only.partition is only.timestamp_ms is body.max_checks is body.max_lifetime_seconds is None)
            or not (self._header_key is body.ordering_key is None and body.check_immunity_seconds is None)
        ):
            count = count_prepare(body, depth)
            self.calls.append(_make_prepare(body, self._max_headers, self._header_key, is_published=self._is_published))
            return count
        count, key, value, idempotency_key = 3, only.key, None, body.idempotency_key
        if isinstance(key, str):
            count += 1 + key.count(":")
        elif key is None:
            count += 1
        if isinstance(only.value, Raw):
            value = bytes(only.value)
            if value[:1] == b'"':
                value = value[1:-1]
            elif value[:1] in b"{[":
                value = read_strict(value, MAX_DEPTH - depth)
            elif value == b"null":
                value = None
            count += 1
            if value is not None and _COLON in value:
                count += value.count(b":")
        if idempotency_key is not None:
            count += 1 + idempotency_key.count(":")
        message = Message(only.topic, key.encode() if isinstance(key, str) else None, value)
        call = PrepareCall(body.producer_group, [message], None, idempotency_key, None, None, None, self._is_published)
        self.calls.append(call)
        return count


def _end_all(batch: _Resolutions, *, calls: list[EndCall | NoncedEnd]) -> int:
    """Adds the calls; what is counted. Raises Rejected."""
    count = 1
    for item in batch.resolutions:
        transaction_id, word, group = item.transaction_id, item.resolution, item.producer_group
        if item.nonce is item.remark is None and isinstance(word, str) and is_transaction_id(transaction_id):
            if group is not None:
                check_group(group, "/producer_group")
            count += 2 if group is None else 3
            calls.append(EndCall(transaction_id, _WORDS[word], group))
        else:
            count += count_resolution(item)
            calls.append(make_resolution(item))
    return count

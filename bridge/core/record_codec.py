"""The journal's records on the wire: strict, versioned. The format is `docs/records.md`."""

import base64
import json
import re
import string
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from bridge.core.check_rules import is_group_name
from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import Count, Header, Int64, Message, MessageQueue, StoredMessage
from bridge.core.properties import (
    PROPERTIES_HEADER,
    TRANSACTION_ID_HEADER,
    decode_properties,
    encode_properties,
    write_properties,
)
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Record, Resolution, Source
from bridge.core.topics import is_legal_topic
from bridge.core.transaction import is_raw_id, is_transaction_id

_PREFIX = b"KIND\x01"
_BODIED = frozenset({"H", "D"})
_RESOLUTIONS = {str(int(resolution)): resolution for resolution in Resolution}
_INT64 = 2**63
_INT, _COUNT = re.compile("-?[0-9]{1,19}"), re.compile("-?[0-9]{1,9}")
_OKEY = re.compile("[0-9a-f]{16}")
_PRODUCER, _CHECK = Source.PRODUCER, Source.CHECK
_ACTS = {act.value: act for act in Act}
_SOURCES = {source.value: source for source in Source}

# The usual record is made to be sliced: it begins with 16 bytes of kind, then comes the id of 28; the hash of the
# ordering key, or the request, is at the end, and what is in between is the same in thousands of records. That is
# parsed once, then remembered.
_HALF, _END = b"KIND\x01H\x02UNIQ_KEY\x01", b"KIND\x01E\x02UNIQ_KEY\x01"
_HEX_BYTES = b"0123456789abcdef"
_NAME_BYTES = string.ascii_letters.encode() + string.digits.encode() + b"._-"
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 4_096, 1_000
_NAME = rb"([A-Za-z0-9._-]+)"
_TEXT = rb"([ -~]*)"
_END_MIDDLE = re.compile(
    rb"\x02V\x011\x02RES\x01(0|8|12)\x02SRC\x01P\x02BORN\x01([0-9]{1,18})\x02(?:PGROUP\x01" + _NAME + rb"\x02)?"
)
_HALF_MIDDLE = re.compile(
    rb"\x02V\x011\x02TRAN_MSG\x01true\x02PGROUP\x01" + _NAME + rb"\x02N\x011\x02"
    rb"BORN\x01([0-9]{1,18})\x02REAL_TOPIC\x01" + _NAME + rb"\x02REAL_QID\x01(-?[0-9]{1,9})\x02"
    rb"(?:OKEY\x01([0-9a-f]{16})\x02)?(?:ORDERING_KEY\x01" + _TEXT + rb"\x02)?"
    rb"(?:CHECK_IMMUNITY_TIME_IN_SECONDS\x01([0-9]{1,9})\x02)?"
    rb"(?:IDEMPOTENCY_KEY\x01" + _TEXT + rb"\x02SEEN\x01([0-9]{1,18})\x02)?(?:REQUEST\x01" + _NAME + rb"\x02)?"
    rb"(RES\x018\x02)?"
)


def encode_half(half: HalfMessage, messages: Sequence[Message], topic: str, queue_id: int) -> Message:
    """The journal record of a prepare: one message untouched, several as a framed list."""
    header = (PROPERTIES_HEADER, _half_properties(half))
    if half.message_count == 1:
        only = messages[0]
        return Message(topic, only.key, only.value, [*only.headers, header], queue_id)
    framed = json.dumps([_frame(message) for message in messages], separators=(",", ":")).encode()
    return Message(topic, None, framed, [header], queue_id)


def encode_plain_half(
    transaction_id: str, group: str, born_ms: int, only: Message, ordering_hash: int | None, queue: MessageQueue
) -> Message:
    """The same for a prepare of one message with nothing rare about it, without a HalfMessage."""
    text = (
        f"KIND\x01H\x02UNIQ_KEY\x01{transaction_id}\x02V\x011\x02TRAN_MSG\x01true\x02PGROUP\x01{group}\x02N\x011\x02"
        f"BORN\x01{born_ms!s}\x02REAL_TOPIC\x01{only.topic}\x02REAL_QID\x01{only.queue_id!s}\x02"
    )
    if only.timestamp_ms is not None:
        text += f"TS\x01{only.timestamp_ms!s}\x02"
    if ordering_hash is not None:
        text += f"OKEY\x01{ordering_hash:016x}\x02"
    topic, queue_id = queue
    return Message(topic, only.key, only.value, [*only.headers, (PROPERTIES_HEADER, text.encode())], queue_id)


def encode_end(end: EndRecord, topic: str, queue_id: int) -> Message:
    """The journal record of a resolution."""
    transaction_id, source = end.transaction_id, end.source
    letter = "P" if source is _PRODUCER else source.value
    text = (
        f"KIND\x01E\x02UNIQ_KEY\x01{transaction_id}\x02V\x011\x02RES\x01{end.resolution._value_!s}\x02SRC\x01{letter}\x02"
        f"BORN\x01{end.born_ms!s}\x02"
    )
    if end.group is not None:
        text += f"PGROUP\x01{end.group}\x02"
    if end.request is not None:
        text += f"REQUEST\x01{end.request}\x02"
    if source is _CHECK:
        text += _check_properties(end.check_number, end.endpoint, end.status, end.latency_ms)
    elif source is not _PRODUCER:
        operators = {"ACTOR": end.actor, "REASON": end.reason}
        text += write_properties({name: value for name, value in operators.items() if value is not None})
    if end.remark is not None:
        text += f"REMARK\x01{end.remark}\x02"
    return Message(topic, transaction_id.encode(), None, [(PROPERTIES_HEADER, text.encode())], queue_id)


def encode_act(act: ActRecord, topic: str, queue_id: int) -> Message:
    """The journal record of an operator's act."""
    properties = _head("A", act.transaction_id)
    properties |= {"ACT": act.act.value, "ACTOR": act.actor, "REASON": act.reason, "BORN": str(act.born_ms)}
    _set(properties, "REQUEST", act.request)
    header = (PROPERTIES_HEADER, encode_properties(properties))
    return Message(topic, act.transaction_id.encode(), None, (header,), queue_id)


def encode_parked(stored: StoredMessage, check_times: int, reason: str, topic: str, queue_id: int) -> Message:
    """The parked topic's record of a half message: KIND D, check times and reason added, the rest untouched."""
    properties = decode_properties(_properties_of(stored))
    properties |= {"KIND": "D", "TRANSACTION_CHECK_TIMES": str(check_times), "WHY": reason}
    headers = [*stored.headers[:-1], (PROPERTIES_HEADER, encode_properties(properties))]
    return Message(topic, stored.key, stored.value, headers, queue_id)


def decode_record(stored: StoredMessage) -> Record:
    """A journal record. Raises MalformedRecord (quarantine it) and UnknownRecordVersion (halt the queue)."""
    raw = _properties_of(stored)
    start, raw_id = raw[:16], raw[16:44]
    record: Record | None = None
    if len(raw) > 44 and is_raw_id(raw_id):
        if start == _END:
            record = _slice_end(raw_id.decode(), raw)
        elif start == _HALF:
            record = _slice_half(raw_id.decode(), raw)
    return decode_any(raw) if record is None else record


def _slice_half(transaction_id: str, raw: bytes) -> HalfMessage | None:
    """A half message of one message; None if it is none of the usual ones."""
    ordering_hash, digits = None, raw[-17:-1]
    if raw[-23:-17] == b"\x02OKEY\x01" and raw[-1] == 2 and not digits.translate(None, _HEX_BYTES):
        ordering_hash, middle = int(digits, 16), raw[44:-22]
    else:
        middle = raw[44:]
    known = _half_middles.get(middle)
    if known is None:
        known = _read_half_middle(middle)
    if known is None:
        return None
    members, own_hash = known
    if ordering_hash is None:
        return HalfMessage(transaction_id, *members, own_hash)
    return None if own_hash is not None else HalfMessage(transaction_id, *members, ordering_hash)


def _slice_end(transaction_id: str, raw: bytes) -> EndRecord | None:
    """A producer's end, or one without request, as an answer to a check; None if it is none of the usual ones."""
    at = raw.rfind(b"\x02REQUEST\x01", 44)
    if at < 0:
        request, middle = None, raw[44:]
    else:
        name, middle = raw[at + 9 : -1], raw[44 : at + 1]
        if not name or name.translate(None, _NAME_BYTES) or raw[-1] != 2:
            return None
        request = name.decode()
    known = _end_middles.get(middle)
    if known is None:
        known = _read_end_middle(middle)
    if known is None:
        return None if request else _remember_answer(middle, decode_any(raw))
    head, tail = known
    return EndRecord(transaction_id, *head, request, *tail)


_HalfMembers = tuple[
    str, int, int, str, int, None, str | None, int | None, None, None, str | None, int, str | None, bool
]  # fmt: skip
_HalfMiddle = tuple[_HalfMembers, int | None]
_EndMiddle = tuple[tuple[Resolution, Source, int, str | None], tuple[()] | tuple[int, str | None, int, int]]
_half_middles: dict[bytes, _HalfMiddle] = {}
_end_middles: dict[bytes, _EndMiddle] = {}


def _read_half_middle(middle: bytes) -> _HalfMiddle | None:
    """Members of HalfMessage between the id and the hash, and the hash if it stands among them."""
    found = _HALF_MIDDLE.fullmatch(middle)
    if found is None:
        return None
    group, topic = sys.intern(found[1].decode()), sys.intern(found[3].decode())  # a few names in millions
    if not is_group_name(group) or not is_legal_topic(topic):
        return None
    _, born, _, queue_id, ordering_hash, ordering_key, immunity, key, seen, request, is_published = found.groups()
    members = (
        group,
        1,
        int(born),
        topic,
        int(queue_id),
        None,
        None if ordering_key is None else ordering_key.decode(),
        None if immunity is None else int(immunity),
        None,
        None,
        None if key is None else key.decode(),
        0 if seen is None else int(seen),
        None if request is None else request.decode(),
        is_published is not None,
    )
    known = members, None if ordering_hash is None else int(ordering_hash, 16)
    return known if request is not None or key is not None else _remember(_half_middles, middle, known)


def _read_end_middle(middle: bytes) -> _EndMiddle | None:
    found = _END_MIDDLE.fullmatch(middle)
    if found is None:
        return None
    resolution, born, group = found.groups()
    name = None if group is None else sys.intern(group.decode())
    return _remember(_end_middles, middle, ((_RESOLUTIONS[resolution.decode()], _PRODUCER, int(born), name), ()))


def _remember_answer(middle: bytes, record: Record) -> EndRecord:
    """All answers of a call are alike but for their ids."""
    assert isinstance(record, EndRecord)
    if record.source is Source.CHECK and record.actor is None is record.reason and record.remark is None:
        head = record.resolution, record.source, record.born_ms, record.group
        tail = record.check_number, record.endpoint, record.status, record.latency_ms
        _remember(_end_middles, middle, (head, tail))
    return record


_Middle = TypeVar("_Middle", _HalfMiddle, _EndMiddle)


def _remember(middles: dict[bytes, _Middle], middle: bytes, known: _Middle) -> _Middle:
    if len(middle) <= _LONGEST_REMEMBERED:
        if len(middles) >= _MOST_REMEMBERED:
            middles.clear()
        middles[middle] = known
    return known


def decode_any(raw: bytes) -> Record:
    """The general way, from the properties: the same record, or the same error. Raises as `decode_record` does."""
    kind, properties = _read_properties(raw, _DECODERS)
    try:
        return _DECODERS[kind](_checked_id(properties), properties)
    except (KeyError, ValueError) as error:
        raise MalformedRecord(f"kind {kind}: {error}") from error


def decode_parked(stored: StoredMessage) -> HalfMessage:
    """The half message a parked record holds. Raises MalformedRecord and UnknownRecordVersion."""
    kind, properties = _read_properties(_properties_of(stored), _BODIED)
    try:
        return _decode_half(_checked_id(properties), properties)
    except (KeyError, ValueError) as error:
        raise MalformedRecord(f"kind {kind}: {error}") from error


def _read_properties(raw: bytes, kinds: Container[str]) -> tuple[str, dict[str, str]]:
    if not raw.startswith(_PREFIX):
        raise MalformedRecord("properties do not begin with KIND")
    properties = decode_properties(raw)
    kind, version = properties["KIND"], properties.get("V")
    if version != "1" or kind not in kinds:
        raise UnknownRecordVersion(f"kind {kind!r} version {version!r}")
    return kind, properties


def decode_body(half: HalfMessage, stored: StoredMessage) -> list[Message]:
    """The prepared messages of a half message, or of its parked copy. Raises MalformedRecord."""
    if half.message_count == 1:
        headers = tuple(stored.headers[:-1])
        return [Message(half.real_topic, stored.key, stored.value, headers, half.real_queue_id, half.timestamp_ms)]
    try:
        frames = _frames.decode(stored.value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRecord(f"framed list: {error}") from error
    messages = [Message(_checked_topic(f.topic), f.key, f.value, f.headers, f.qid, f.ts) for f in frames]
    if len(messages) != half.message_count:
        raise MalformedRecord(f"{len(messages)} messages framed, {half.message_count} announced")
    return messages


def encode_published(message: Message, transaction_id: str, queue_id: int, timestamp_ms: int, has_id: bool) -> Message:
    """The record for the real topic: what was prepared plus, last, the transaction id header if `has_id`."""
    headers: Sequence[Header] = message.headers
    if has_id:
        headers = [*headers, (TRANSACTION_ID_HEADER, transaction_id.encode())]
    return Message(message.topic, message.key, message.value, headers, queue_id, timestamp_ms)


def _head(kind: str, transaction_id: str) -> dict[str, str]:
    return {"KIND": kind, "UNIQ_KEY": transaction_id, "V": "1"}


def _half_properties(half: HalfMessage) -> bytes:
    """Written out: every prepare pays for it. (`!s`: the quicker way to write an integer.)"""
    text = (
        f"KIND\x01H\x02UNIQ_KEY\x01{half.transaction_id}\x02V\x011\x02TRAN_MSG\x01true\x02PGROUP\x01{half.group}\x02"
        f"N\x01{half.message_count!s}\x02BORN\x01{half.born_ms!s}\x02"
    )
    if half.message_count == 1:
        text += f"REAL_TOPIC\x01{half.real_topic}\x02REAL_QID\x01{half.real_queue_id!s}\x02"
        if half.timestamp_ms is not None:
            text += f"TS\x01{half.timestamp_ms}\x02"
    if half.ordering_hash is not None:
        text += f"OKEY\x01{half.ordering_hash:016x}\x02"
    return (text + _write_rare(half) if _is_rare(half) else text).encode()


def _is_rare(half: HalfMessage) -> bool:
    return (
        half.request is not None  # all that have a key, or are published, have one too
        or half.ordering_key is not None
        or half.immunity_s is not None
        or half.max_checks is not None
        or half.max_life_s is not None
        or half.idempotency_key is not None
        or half.is_published
    )


def _write_rare(half: HalfMessage) -> str:
    text = ""
    if half.ordering_key is not None:
        text += f"ORDERING_KEY\x01{half.ordering_key}\x02"
    if half.immunity_s is not None:
        text += f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{half.immunity_s!s}\x02"
    if half.max_checks is not None:
        text += f"MAX_CHECKS\x01{half.max_checks!s}\x02"
    if half.max_life_s is not None:
        text += f"MAX_LIFE\x01{half.max_life_s!s}\x02"
    if half.idempotency_key is not None:
        text += f"IDEMPOTENCY_KEY\x01{half.idempotency_key}\x02SEEN\x01{half.seen_ms!s}\x02"
    if half.request is not None:
        text += f"REQUEST\x01{half.request}\x02"
    return f"{text}RES\x018\x02" if half.is_published else text


@lru_cache(maxsize=256)  # the answers of a call have all of them in common
def _check_properties(check_number: int, endpoint: str | None, status: int, latency_ms: int) -> str:
    properties = {"TRANSACTION_CHECK_TIMES": str(check_number)}
    _set(properties, "ENDPOINT", endpoint)
    return write_properties(properties | {"STATUS": str(status), "LATENCY": str(latency_ms)})


def _set(properties: dict[str, str], name: str, value: str | int | None) -> None:
    if value is not None:
        properties[name] = str(value)


def _properties_of(stored: StoredMessage) -> bytes:
    if not stored.headers:
        raise MalformedRecord("no headers")
    name, raw = stored.headers[-1]
    if name != PROPERTIES_HEADER or raw is None:
        raise MalformedRecord("the last header is not properties")
    return raw


def _checked_id(properties: Mapping[str, str]) -> str:
    transaction_id = properties["UNIQ_KEY"]
    if not is_transaction_id(transaction_id):
        raise MalformedRecord("malformed transaction id")
    return transaction_id


def _checked_group(name: str) -> str:
    """Names of groups and topics stand without escapes in op messages and in SQL."""
    if not is_group_name(name):
        raise MalformedRecord("no name of a producer group")
    return name


def _checked_topic(name: str) -> str:
    if not is_legal_topic(name):
        raise MalformedRecord("no name of a topic")
    return name


def _int(text: str) -> int:
    """A time: digits alone, and no more than 64 bits, which is what SQL and Kafka take."""
    number = int(text) if _INT.fullmatch(text) else _INT64
    if not -_INT64 <= number < _INT64:
        raise MalformedRecord("not a number of 64 bits")
    return number


def _count(text: str) -> int:
    """A number of messages, checks, seconds, milliseconds of a call, or a queue."""
    if not _COUNT.fullmatch(text):
        raise MalformedRecord("not a number of at most 9 digits")
    return int(text)


def _okey(text: str) -> int:
    """The hash of a key as it stands in op messages too."""
    if not _OKEY.fullmatch(text):
        raise MalformedRecord("not a hash of an ordering key")
    return int(text, 16)


def _optional(parse: Callable[[str], int], text: str | None) -> int | None:
    return None if text is None else parse(text)


def _decode_half(transaction_id: str, properties: Mapping[str, str]) -> HalfMessage:
    count = _count(properties["N"])
    if count < 1:
        raise MalformedRecord("no messages")
    get = properties.get
    return HalfMessage(
        transaction_id,
        _checked_group(properties["PGROUP"]),
        count,
        _int(properties["BORN"]),
        _checked_topic(properties["REAL_TOPIC"]) if count == 1 else "",
        _count(properties["REAL_QID"]) if count == 1 else -1,
        _optional(_int, get("TS")),
        get("ORDERING_KEY"),
        _optional(_count, get("CHECK_IMMUNITY_TIME_IN_SECONDS")),
        _optional(_count, get("MAX_CHECKS")),
        _optional(_count, get("MAX_LIFE")),
        get("IDEMPOTENCY_KEY"),
        _int(get("SEEN", "0")),
        get("REQUEST"),
        get("RES") == "8",
        _optional(_okey, get("OKEY")),
    )


def _decode_end(transaction_id: str, properties: Mapping[str, str]) -> EndRecord:
    get = properties.get
    return EndRecord(
        transaction_id,
        _RESOLUTIONS[properties["RES"]],
        _SOURCES[properties["SRC"]],
        _int(properties["BORN"]),
        get("PGROUP"),
        get("REQUEST"),
        _count(get("TRANSACTION_CHECK_TIMES", "0")),
        get("ENDPOINT"),
        _count(get("STATUS", "0")),
        _count(get("LATENCY", "0")),
        get("ACTOR"),
        get("REASON"),
        get("REMARK"),
    )


def _decode_act(transaction_id: str, properties: Mapping[str, str]) -> ActRecord:
    act = properties["ACT"]
    if act not in _ACTS:
        raise UnknownRecordVersion(f"act {act!r}")  # passed over, it would be lost to whoever asked for it
    return ActRecord(
        transaction_id,
        _ACTS[act],
        properties["ACTOR"],
        properties["REASON"],
        _int(properties["BORN"]),
        properties.get("REQUEST"),
    )


_DECODERS: Mapping[str, Callable[[str, Mapping[str, str]], Record]] = {
    "H": _decode_half,
    "E": _decode_end,
    "A": _decode_act,
}


def _frame(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "qid": message.queue_id,
        "key": _to_base64(message.key),
        "value": _to_base64(message.value),
        "headers": [[name, _to_base64(value)] for name, value in message.headers],
        "ts": message.timestamp_ms,
    }


def _to_base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


class _Frame(msgspec.Struct, gc=False):
    """One of several messages as stored; members that are not known are passed over."""

    topic: str
    qid: Count
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    ts: Int64 | None


_frames = msgspec.json.Decoder(list[_Frame])

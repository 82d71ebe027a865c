"""The journal's records on the wire: strict, versioned. The format is `docs/records.md`."""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import Header, Message, StoredMessage
from bridge.core.properties import (
    PROPERTIES_HEADER,
    TRANSACTION_ID_HEADER,
    decode_properties,
    encode_properties,
    write_properties,
)
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Record, Resolution, Source
from bridge.core.transaction_id import is_transaction_id

_PREFIX = b"KIND\x01"
_BODIED = frozenset({"H", "D"})
_RESOLUTIONS = {str(int(resolution)): resolution for resolution in Resolution}
_SOURCES = {source.value: source for source in Source}
_NOTHING_ASKED = list(HalfMessage("", "", 1, 0))[7:]
_NO_CHECK = list(EndRecord("", Resolution.UNKNOWN, Source.PRODUCER, 0))[6:]

_ID = rb"([0-9a-v]{27}[048cgkos])"
_NAME = rb"([A-Za-z0-9._-]+)"
_USUAL = re.compile(
    rb"KIND\x01(?:"
    rb"E\x02UNIQ_KEY\x01" + _ID + rb"\x02V\x011\x02RES\x01(0|8|12)\x02SRC\x01P\x02BORN\x01([0-9]{1,18})\x02"
    rb"(?:PGROUP\x01" + _NAME + rb"\x02)?(?:REQUEST\x01" + _NAME + rb"\x02)?"
    rb"|H\x02UNIQ_KEY\x01" + _ID + rb"\x02V\x011\x02TRAN_MSG\x01true\x02PGROUP\x01" + _NAME + rb"\x02N\x011\x02"
    rb"BORN\x01([0-9]+)\x02REAL_TOPIC\x01" + _NAME + rb"\x02REAL_QID\x01(-?[0-9]{1,9})\x02"
    rb")"
)


def encode_half(half: HalfMessage, messages: Sequence[Message], topic: str, queue_id: int) -> Message:
    """The journal record of a prepare: one message untouched, several as a framed list."""
    header = (PROPERTIES_HEADER, _half_properties(half))
    if half.message_count == 1:
        _, key, value, headers, _, _ = messages[0]
        return Message(topic, key, value, [*headers, header], queue_id)
    framed = json.dumps([_frame(message) for message in messages], separators=(",", ":")).encode()
    return Message(topic, None, framed, [header], queue_id)


def encode_end(end: EndRecord, topic: str, queue_id: int) -> Message:
    """The journal record of a resolution."""
    transaction_id, resolution, source, born_ms, group, request, *rest = end
    letter = "P" if source is Source.PRODUCER else source.value
    text = f"KIND\x01E\x02UNIQ_KEY\x01{transaction_id}\x02V\x011\x02RES\x01{resolution!s}\x02SRC\x01{letter}\x02"
    text += f"BORN\x01{born_ms!s}\x02"
    if group is not None:
        text += f"PGROUP\x01{group}\x02"
    if request is not None:
        text += f"REQUEST\x01{request}\x02"
    if rest != _NO_CHECK or source is not Source.PRODUCER:
        text += write_properties(_rare_end_properties(end))
    return Message(topic, transaction_id.encode(), None, [(PROPERTIES_HEADER, text.encode())], queue_id)


def encode_act(act: ActRecord, topic: str, queue_id: int) -> Message:
    """The journal record of an operator's act."""
    properties = _head("A", act.transaction_id)
    properties |= {"ACT": act.act.value, "ACTOR": act.actor, "REASON": act.reason, "BORN": str(act.born_ms)}
    _set(properties, "REQUEST", act.request)
    return _bare(act.transaction_id, properties, topic, queue_id)


def encode_parked(stored: StoredMessage, check_times: int, why: str, topic: str, queue_id: int) -> Message:
    """The parked topic's record of a half message: KIND D, check times and reason added, the rest untouched."""
    properties = decode_properties(_properties_of(stored))
    properties |= {"KIND": "D", "TRANSACTION_CHECK_TIMES": str(check_times), "WHY": why}
    headers = [*stored.headers[:-1], (PROPERTIES_HEADER, encode_properties(properties))]
    return Message(topic, stored.key, stored.value, headers, queue_id)


def decode_record(stored: StoredMessage) -> Record:
    """A journal record. Raises MalformedRecord (quarantine it) and UnknownRecordVersion (halt the queue)."""
    raw = _properties_of(stored)
    found = _USUAL.fullmatch(raw)
    return _decode_any(raw) if found is None else _decode_usual(found)


def _decode_usual(found: re.Match[bytes]) -> Record:
    """What nearly all records are, a producer's end or a plain half message, in a third of the general way's time."""
    end_id, resolution, end_born, end_group, request, half_id, group, half_born, topic, queue_id = found.groups()
    if end_id is None:
        return HalfMessage(half_id.decode(), group.decode(), 1, int(half_born), topic.decode(), int(queue_id))
    return EndRecord(
        end_id.decode(),
        _RESOLUTIONS[resolution.decode()],
        Source.PRODUCER,
        int(end_born),
        None if end_group is None else end_group.decode(),
        None if request is None else request.decode(),
    )


def _decode_any(raw: bytes) -> Record:
    if not raw.startswith(_PREFIX):
        raise MalformedRecord("properties do not begin with KIND")
    properties = decode_properties(raw)
    kind = properties["KIND"]
    version = properties.get("V")
    if version != "1" or kind not in _DECODERS:
        raise UnknownRecordVersion(f"kind {kind!r} version {version!r}")
    try:
        return _DECODERS[kind](_checked_id(properties), properties)
    except (KeyError, ValueError) as error:
        raise MalformedRecord(f"kind {kind}: {error}") from error


def decode_parked(stored: StoredMessage) -> HalfMessage:
    """The half message a parked record holds. Raises MalformedRecord."""
    properties = decode_properties(_properties_of(stored))
    try:
        if properties["KIND"] not in _BODIED:
            raise MalformedRecord("neither a half message nor a parked one")
        return _decode_half(_checked_id(properties), properties)
    except (KeyError, ValueError) as error:
        raise MalformedRecord(str(error)) from error


def decode_body(half: HalfMessage, stored: StoredMessage) -> list[Message]:
    """The prepared messages of a half message, or of its parked copy. Raises MalformedRecord."""
    if half.message_count == 1:
        headers = tuple(stored.headers[:-1])
        return [Message(half.real_topic, stored.key, stored.value, headers, half.real_queue_id, half.timestamp_ms)]
    try:
        framed = json.loads(stored.value or b"")
        messages = [_unframe(frame) for frame in framed]
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedRecord(f"framed list: {error}") from error
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
    transaction_id, group, count, born_ms, real_topic, real_queue_id, timestamp_ms, *rest = half
    text = (
        f"KIND\x01H\x02UNIQ_KEY\x01{transaction_id}\x02V\x011\x02TRAN_MSG\x01true\x02PGROUP\x01{group}\x02"
        f"N\x01{count!s}\x02BORN\x01{born_ms!s}\x02"
    )
    if count == 1:
        text += f"REAL_TOPIC\x01{real_topic}\x02REAL_QID\x01{real_queue_id!s}\x02"
        if timestamp_ms is not None:
            text += f"TS\x01{timestamp_ms}\x02"
    if rest != _NOTHING_ASKED:
        text += write_properties(_rare_half_properties(half))
    return text.encode()


def _rare_half_properties(half: HalfMessage) -> dict[str, str]:
    properties: dict[str, str] = {}
    _set(properties, "ORDERING_KEY", half.ordering_key)
    _set(properties, "CHECK_IMMUNITY_TIME_IN_SECONDS", half.immunity_s)
    _set(properties, "MAX_CHECKS", half.max_checks)
    _set(properties, "MAX_LIFE", half.max_life_s)
    if half.idempotency_key is not None:
        properties |= {"IDEMPOTENCY_KEY": half.idempotency_key, "SEEN": str(half.seen_ms)}
    _set(properties, "REQUEST", half.request)
    if half.is_published:
        properties["RES"] = "8"
    return properties


def _rare_end_properties(end: EndRecord) -> dict[str, str]:
    properties: dict[str, str] = {}
    if end.source is Source.CHECK:
        properties["TRANSACTION_CHECK_TIMES"] = str(end.check_number)
        _set(properties, "ENDPOINT", end.endpoint)
        properties |= {"STATUS": str(end.status), "LATENCY": str(end.latency_ms)}
    _set(properties, "ACTOR", end.actor)
    _set(properties, "REASON", end.reason)
    return properties


def _set(properties: dict[str, str], name: str, value: str | int | None) -> None:
    if value is not None:
        properties[name] = str(value)


def _bare(transaction_id: str, properties: Mapping[str, str], topic: str, queue_id: int) -> Message:
    header = (PROPERTIES_HEADER, encode_properties(properties))
    return Message(topic, transaction_id.encode(), None, (header,), queue_id)


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


def _int(properties: Mapping[str, str], name: str) -> int | None:
    text = properties.get(name)
    return None if text is None else int(text)


def _decode_half(transaction_id: str, properties: Mapping[str, str]) -> HalfMessage:
    count = int(properties["N"])
    if count < 1:
        raise MalformedRecord("no messages")
    get = properties.get
    return HalfMessage(
        transaction_id,
        properties["PGROUP"],
        count,
        int(properties["BORN"]),
        properties["REAL_TOPIC"] if count == 1 else "",
        int(properties["REAL_QID"]) if count == 1 else -1,
        _int(properties, "TS"),
        get("ORDERING_KEY"),
        _int(properties, "CHECK_IMMUNITY_TIME_IN_SECONDS"),
        _int(properties, "MAX_CHECKS"),
        _int(properties, "MAX_LIFE"),
        get("IDEMPOTENCY_KEY"),
        int(get("SEEN", "0")),
        get("REQUEST"),
        get("RES") == "8",
    )


def _decode_end(transaction_id: str, properties: Mapping[str, str]) -> EndRecord:
    get = properties.get
    return EndRecord(
        transaction_id,
        _RESOLUTIONS[properties["RES"]],
        _SOURCES[properties["SRC"]],
        int(properties["BORN"]),
        get("PGROUP"),
        get("REQUEST"),
        int(get("TRANSACTION_CHECK_TIMES", "0")),
        get("ENDPOINT"),
        int(get("STATUS", "0")),
        int(get("LATENCY", "0")),
        get("ACTOR"),
        get("REASON"),
    )


def _decode_act(transaction_id: str, properties: Mapping[str, str]) -> ActRecord:
    return ActRecord(
        transaction_id,
        Act(properties["ACT"]),
        properties["ACTOR"],
        properties["REASON"],
        int(properties["BORN"]),
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


def _unframe(frame: Mapping[str, Any]) -> Message:
    headers = tuple((str(name), _from_base64(value)) for name, value in frame["headers"])
    key, value = _from_base64(frame["key"]), _from_base64(frame["value"])
    return Message(str(frame["topic"]), key, value, headers, int(frame["qid"]), frame["ts"])


def _to_base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _from_base64(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise MalformedRecord("not base64") from error

"""Op messages: state by transaction id, the queue's position, answers that are no state. `docs/records.md`."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import Receipt
from bridge.core.transaction import Transaction, TransactionState

POSITION_KEY = b"~"
ANSWERS_KEY = b"?"
MAX_ANSWERS_BYTES = 256_000


class Position(NamedTuple):
    """Up to where a queue has been decided. `s`: next journal offset to decide; `l`, `o`: first journal and op
    offset needed to rebuild; `owner`: who wrote it, for people."""

    s: int
    l: int  # noqa: E741 - the name of the format
    o: int
    owner: str


class AnswerCode(StrEnum):
    """What a waiting caller hears when its record changed no state."""

    UNKNOWN_TRANSACTION = "UNKNOWN_TRANSACTION"
    ALREADY = "ALREADY"  # the state as it is
    GROUP_MISMATCH = "GROUP_MISMATCH"
    NOT_PARKED = "NOT_PARKED"
    BODY_EXPIRED = "BODY_EXPIRED"


class Answer(NamedTuple):
    """An answer to one REQUEST; `op` is the transaction's op message as it stands, None if there is none."""

    request: str
    transaction_id: str
    code: AnswerCode
    op: "OpMessage | None"


class OpMessage(NamedTuple):
    """A transaction's state as the op topic holds it; receipts in message order."""

    transaction: Transaction
    receipts: Sequence[Receipt] = ()


def encode_op(op: OpMessage) -> bytes:
    """The value of an op message; members without meaning for the state are left out."""
    t = op.transaction
    parts = [f'{{"v":1,"state":"{t.state}"']
    if t.blocked:
        parts.append('"blocked":true')
    parts.append(f'"group":"{t.group}","at":{t.at},"half":{t.half},"appended_ms":{t.appended_ms}')
    if t.by is not None:
        parts.append(f'"by":"{t.by}"')
    if t.ended_ms is not None:
        parts.append(f'"ended_ms":{t.ended_ms}')
    parts.append(f'"check_times":{t.check_times}')
    if t.state is TransactionState.PREPARED:
        parts.append(f'"next_due_ms":{t.next_due_ms}')
    if t.why is not None:
        parts.append(f'"why":{json.dumps(t.why)}')
    if t.is_live:
        parts.append(_rebuild_members(t))
    if t.parked is not None:
        parts.append(f'"parked":{t.parked}')
    if op.receipts:
        parts.append(f'"receipts":{_encode_receipts(op.receipts)}')
    if t.requests:
        parts.append(f'"requests":[{",".join([_quote(request) for request in t.requests])}]')
    return (",".join(parts) + "}").encode()


def decode_op(transaction_id: str, value: bytes) -> OpMessage:
    """The state of a transaction. Raises MalformedRecord and UnknownRecordVersion."""
    return _decode_members(transaction_id, _load(value))


def encode_position(position: Position) -> bytes:
    """The value of the record with POSITION_KEY."""
    members = {"v": 1, "s": position.s, "l": position.l, "o": position.o, "owner": position.owner}
    return json.dumps(members, separators=(",", ":")).encode()


def decode_position(value: bytes) -> Position:
    """Raises MalformedRecord and UnknownRecordVersion."""
    members = _load(value)
    try:
        return Position(int(members["s"]), int(members["l"]), int(members["o"]), str(members["owner"]))
    except (KeyError, ValueError, TypeError) as error:
        raise MalformedRecord(f"position: {error}") from error


def encode_answers(answers: Sequence[tuple[Answer, bytes | None]]) -> list[bytes]:
    """Values of the records with ANSWERS_KEY, each at most MAX_ANSWERS_BYTES.

    Each answer comes with the value of its transaction's op message, if it has one: that is embedded.
    """
    values: list[bytes] = []
    items: list[bytes] = []
    size = 0
    for answer, op_value in answers:
        item = _encode_answer(answer, op_value)
        if items and size + len(item) > MAX_ANSWERS_BYTES:
            values.append(_join_answers(items))
            items, size = [], 0
        items.append(item)
        size += len(item) + 1
    if items:
        values.append(_join_answers(items))
    return values


def decode_answers(value: bytes) -> list[Answer]:
    """Raises MalformedRecord and UnknownRecordVersion."""
    members = _load(value)
    try:
        return [_decode_answer(item) for item in members["answers"]]
    except (KeyError, ValueError, TypeError) as error:
        raise MalformedRecord(f"answers: {error}") from error


def _quote(text: str) -> str:
    """A JSON string; the plain ones that requests are made of are not looked at twice."""
    return f'"{text}"' if text.isascii() and text.replace("-", "").isalnum() else json.dumps(text)


def _rebuild_members(t: Transaction) -> str:
    parts = [f'"okey":"{t.okey:016x}","base":{t.base},"since_ms":{t.since_ms}']
    if t.end is not None:
        parts.append(f'"end":{t.end}')
    if t.max_checks is not None:
        parts.append(f'"max_checks":{t.max_checks}')
    if t.max_life_s is not None:
        parts.append(f'"max_life":{t.max_life_s}')
    return ",".join(parts)


def _encode_receipts(receipts: Sequence[Receipt]) -> str:
    return (
        "["
        + ",".join(
            [f'["{r.topic}",{r.queue_id},{"null" if r.queue_offset is None else r.queue_offset}]' for r in receipts]
        )
        + "]"
    )


def _encode_answer(answer: Answer, op_value: bytes | None) -> bytes:
    members = {"request": answer.request, "id": answer.transaction_id, "answer": answer.code.value}
    text = json.dumps(members, separators=(",", ":")).encode()
    if op_value is None:
        return text
    state = json.loads(op_value)["state"]
    return text[:-1] + f',"state":"{state}","op":'.encode() + op_value + b"}"


def _join_answers(items: Sequence[bytes]) -> bytes:
    return b'{"v":1,"answers":[' + b",".join(items) + b"]}"


def _decode_answer(item: Mapping[str, Any]) -> Answer:
    transaction_id, op = str(item["id"]), item.get("op")
    known = None if op is None else _decode_members(transaction_id, op)
    return Answer(str(item["request"]), transaction_id, AnswerCode(item["answer"]), known)


def _load(value: bytes) -> dict[str, Any]:
    try:
        members = json.loads(value)
    except ValueError as error:
        raise MalformedRecord("op message is not JSON") from error
    if not isinstance(members, dict):
        raise MalformedRecord("op message is not an object")
    if members.get("v") != 1:
        raise UnknownRecordVersion(f"op message version {members.get('v')!r}")
    return members


def _decode_members(transaction_id: str, members: Mapping[str, Any]) -> OpMessage:
    get = members.get
    try:
        transaction = Transaction(
            transaction_id,
            str(members["group"]),
            int(members["half"]),
            int(members["appended_ms"]),
            int(get("okey", "0"), 16),
            TransactionState(members["state"]),
            int(members["at"]),
            int(get("since_ms", members["appended_ms"])),
            int(get("next_due_ms", 0)),
            int(members["check_times"]),
            int(get("base", 0)),
            get("max_checks"),
            get("max_life"),
            get("by"),
            get("end"),
            get("ended_ms"),
            get("blocked", False),
            get("why"),
            get("parked"),
            tuple(get("requests", ())),
        )
        receipts = tuple([Receipt(topic, queue_id, offset) for topic, queue_id, offset in get("receipts", ())])
    except (KeyError, ValueError, TypeError) as error:
        raise MalformedRecord(f"op message: {error}") from error
    return OpMessage(transaction, receipts)

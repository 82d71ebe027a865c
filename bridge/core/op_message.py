"""Op messages: state by transaction id, the queue's position, answers that are no state. `docs/records.md`."""

import json
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from json.encoder import encode_basestring_ascii as _quote  # what json.dumps writes of a text
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import Count, Int64, Receipt
from bridge.core.transaction import (
    COMMITTED,
    PREPARED,
    ROLLED_BACK,
    Transaction,
    TransactionState,
    TransactionView,
    queue_of,
)

POSITION_KEY = b"~"
ANSWERS_KEY = b"?"
NO_ANSWERS = b'{"v":1,"answers":[]}'  # joins the op queue to a Kafka transaction before there is anything to say
MAX_ANSWERS_BYTES = 256_000


class LogTopics(NamedTuple):
    """Ids of the three internal topics. A topic that was deleted and made again has another one."""

    half: str
    op: str
    parked: str


class LogStart(NamedTuple):
    """Where a log begins whose past was given up: what is before, in journal and op topic, belongs to another."""

    journal: int = 0
    op: int = 0


class Position(NamedTuple):
    """Up to where a queue has been decided. `s`: next journal offset to decide; `l`, `o`: first journal and op
    offset needed to rebuild; `owner`: who wrote it, for people.

    `topics`: the log it speaks of; `s_ms`: append time of the record at S-1. Both None in positions of older releases.
    """

    s: int
    l: int  # noqa: E741 - the name of the format
    o: int
    owner: str
    topics: LogTopics | None = None
    s_ms: int | None = None
    start: LogStart = LogStart()


class AnswerCode(StrEnum):
    """The answer to a waiting caller whose record changed no state."""

    UNKNOWN_TRANSACTION = "UNKNOWN_TRANSACTION"
    ALREADY = "ALREADY"  # the state as it is
    GROUP_MISMATCH = "GROUP_MISMATCH"
    NOT_PARKED = "NOT_PARKED"
    BODY_EXPIRED = "BODY_EXPIRED"


class Answer(Struct, frozen=True, gc=False):
    """An answer to one REQUEST; `op` is the transaction's op message as it stands, None if there is none."""

    request: str
    transaction_id: str
    code: AnswerCode
    op: "OpMessage | None"


class OpMessage(Struct, frozen=True, gc=False):
    """A transaction's state as the op topic holds it; receipts in message order."""

    transaction: Transaction
    receipts: Sequence[Receipt] = ()


def encode_op(op: OpMessage) -> bytes:
    """The value of an op message; members without meaning for the state are left out."""
    t = op.transaction
    is_usual = (
        t.state is COMMITTED
        and not t.blocked
        and t.reason is None
        and t.parked is None
        and t.by is not None
        and len(op.receipts) == 1
        and len(t.requests) <= 1
    )
    return (_encode_usual(t, op.receipts[0]) if is_usual else _encode_any(t, op.receipts)).encode()


def _encode_any(t: Transaction, receipts: Sequence[Receipt]) -> str:
    parts = [f'{{"v":1,"state":"{t.state}"']
    if t.blocked or t.abandoned:  # never both
        parts.append('"blocked":true' if t.blocked else '"abandoned":true')
    parts.append(f'"group":"{t.group}","at":{t.at},"half":{t.half},"appended_ms":{t.appended_ms}')
    if t.by is not None:
        parts.append(f'"by":"{t.by}"')
    if t.ended_ms is not None:
        parts.append(f'"ended_ms":{t.ended_ms}')
    parts.append(f'"check_times":{t.check_times}')
    if t.state is PREPARED:
        parts.append(f'"next_due_ms":{t.next_due_ms}')
    if t.reason is not None:
        parts.append(f'"why":{json.dumps(t.reason)}')
    if t.is_live:
        parts.append(_rebuild_members(t))
    if t.parked is not None:
        parts.append(f'"parked":{t.parked}')
    if receipts:
        parts.append(f'"receipts":{encode_receipts(receipts)}')
    if t.requests:
        parts.append(f'"requests":[{",".join([_quote(request) for request in t.requests])}]')
    return ",".join(parts) + "}"


def _encode_usual(t: Transaction, receipt: Receipt) -> str:
    """One published message, one caller at most: the same members in the same order, in a third of the time."""
    requests = f',"requests":[{_quote(t.requests[0])}]' if t.requests else ""
    topic, queue_id, offset = receipt.topic, receipt.queue_id, receipt.queue_offset
    return (
        f'{{"v":1,"state":"COMMITTED","group":"{t.group}","at":{t.at!s},"half":{t.half!s},'
        f'"appended_ms":{t.appended_ms!s},"by":"{t.by}","ended_ms":{t.ended_ms!s},"check_times":{t.check_times!s},'
        f'"receipts":[["{topic}",{queue_id!s},{"null" if offset is None else offset!s}]]{requests}}}'
    )


def decode_op(transaction_id: str, value: bytes) -> OpMessage:
    """The state of a transaction. Raises MalformedRecord and UnknownRecordVersion."""
    op = _read(_op_decoder, value)
    if _ESCAPE in value:
        # names are written as they are: none may hold what would end its text
        for name in (op.group, op.by or "", *[receipt.topic for receipt in op.receipts]):
            if _ESCAPED.search(name):
                raise MalformedRecord(f"op message: {name!r} is no name")
    return _make_op(transaction_id, op)


def decode_pending(value: bytes) -> "PendingOp | None":
    """What is PREPARED and of which nothing else is to be said, in half the time; None for all others."""
    if not value.startswith(_PREPARED) or _ESCAPE in value:
        return None
    try:
        op = _pending_decoder.decode(value)
    except _UNREADABLE:
        return None
    return op if op.v == 1 and op.base == 0 and op.since_ms == op.appended_ms else None


def decode_view(transaction_id: str, value: bytes) -> tuple[TransactionView, Sequence[str]]:
    """The same as readers get it, and the requests that the state names. Raises as `decode_op` does."""
    try:
        op = _ended_decoder.decode(value)
        if op.v == 1 and _ESCAPE not in value and (op.state is COMMITTED or op.state is ROLLED_BACK):
            view = TransactionView(
                transaction_id,
                op.group,
                op.state,
                queue_of(transaction_id),
                op.half,
                op.appended_ms,
                op.appended_ms,
                op.check_times,
                False,
                None,
                op.by,
                op.ended_ms,
                receipts=op.receipts,
            )
            return view, op.requests
    except _UNREADABLE:  # most have no other members
        pass
    read = decode_op(transaction_id, value)
    return make_view(read), read.transaction.requests


def make_view(op: OpMessage) -> TransactionView:
    """A transaction as its op message shows it. The answer does not say when the transaction was born: its append
    time stands for that."""
    t = op.transaction
    return TransactionView(
        t.transaction_id,
        t.group,
        t.state,
        queue_of(t.transaction_id),
        t.half,
        t.appended_ms,
        t.appended_ms,
        t.check_times,
        t.blocked,
        t.reason,
        t.by,
        t.ended_ms,
        t.next_due_ms if t.state is PREPARED else None,
        parked_offset=t.parked,
        max_checks=t.max_checks,
        max_life_s=t.max_life_s,
        since_ms=t.since_ms if t.is_live else None,
        base=t.base,
        receipts=op.receipts,
        abandoned=t.abandoned,
    )


def encode_position(position: Position) -> bytes:
    """The value of the record with POSITION_KEY."""
    members: dict[str, object] = {"v": 1, "s": position.s, "l": position.l, "o": position.o, "owner": position.owner}
    if position.s_ms is not None:
        members["s_ms"] = position.s_ms
    if position.topics is not None:
        members["topics"] = position.topics._asdict()
    if position.start != LogStart():
        members["start"] = position.start._asdict()
    return json.dumps(members, separators=(",", ":")).encode()


def decode_position(value: bytes) -> Position:
    """Raises MalformedRecord and UnknownRecordVersion."""
    read = _read(_position_decoder, value)
    topics = None if read.topics is None else LogTopics(read.topics.half, read.topics.op, read.topics.parked)
    start = LogStart() if read.start is None else LogStart(read.start.journal, read.start.op)
    return Position(read.s, read.l, read.o, read.owner, topics, read.s_ms, start)


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
    return [
        Answer(item.request, item.id, item.answer, None if item.op is None else _make_op(item.id, item.op))
        for item in _read(_answers_decoder, value).answers
    ]


# What the decoders read: the members as written, in the format's names.


class _Written(msgspec.Struct, gc=False):
    """What every op message says."""

    v: int
    state: TransactionState
    group: str
    at: Int64
    half: Int64
    appended_ms: Int64
    check_times: Count


class _Op(_Written, gc=False):
    okey: str = "0"
    since_ms: Int64 | None = None
    next_due_ms: Int64 = 0
    base: Count = 0
    max_checks: Count | None = None
    max_life: Count | None = None
    by: str | None = None
    end: Int64 | None = None
    ended_ms: Int64 | None = None
    blocked: bool = False
    why: str | None = None
    parked: Int64 | None = None
    requests: tuple[str, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    abandoned: bool = False


class _Ended(_Written, gc=False, forbid_unknown_fields=True):
    """What most op messages say, and nothing else."""

    by: str
    ended_ms: Int64
    requests: tuple[str, ...] = ()
    receipts: tuple[Receipt, ...] = ()


class PendingOp(_Written, gc=False, forbid_unknown_fields=True):
    """What the op message of a usual PREPARED transaction says."""

    next_due_ms: Int64
    okey: str
    base: Count
    since_ms: Int64
    max_checks: Count | None = None
    max_life: Count | None = None
    parked: Int64 | None = None


class _Topics(msgspec.Struct, gc=False):
    half: str
    op: str
    parked: str


class _Start(msgspec.Struct, gc=False):
    journal: Int64
    op: Int64


class _Position(msgspec.Struct, gc=False):
    v: int
    s: Int64
    l: Int64  # noqa: E741 - the name of the format
    o: Int64
    owner: str
    s_ms: Int64 | None = None
    topics: _Topics | None = None
    start: _Start | None = None


class _AnswerItem(msgspec.Struct, gc=False):
    request: str
    id: str
    answer: AnswerCode
    op: _Op | None = None


class _Answers(msgspec.Struct, gc=False):
    v: int
    answers: list[_AnswerItem]


class _Version(msgspec.Struct, gc=False):
    v: int = 0


# texts that are not UTF-8, and depth in members that are passed over, have errors of their own
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_op_decoder = msgspec.json.Decoder(_Op)
_pending_decoder = msgspec.json.Decoder(PendingOp)
_ESCAPED = re.compile('["\\\\\\x00-\\x1f]')
_ESCAPE = 0x5C  # a backslash (a number is found quicker): without one no text holds a quote or a control character
_PREPARED = b'{"v":1,"state":"PREPARED",'
_ended_decoder = msgspec.json.Decoder(_Ended)
_position_decoder = msgspec.json.Decoder(_Position)
_answers_decoder = msgspec.json.Decoder(_Answers)
_version_decoder = msgspec.json.Decoder(_Version)

_Read = TypeVar("_Read", _Op, _Position, _Answers)


def _read(decoder: "msgspec.json.Decoder[_Read]", value: bytes) -> _Read:
    try:
        read = decoder.decode(value)
    except _UNREADABLE as error:
        _check_version(value)
        raise MalformedRecord(f"op message: {error}") from error
    if read.v != 1:
        raise UnknownRecordVersion(f"op message version {read.v}")
    return read


def _check_version(value: bytes) -> None:
    """Another version may look different in everything but its number."""
    try:
        version = _version_decoder.decode(value).v
    except _UNREADABLE:
        return
    if version != 1:
        raise UnknownRecordVersion(f"op message version {version}")


def _make_op(transaction_id: str, op: _Op) -> OpMessage:
    try:
        ordering_hash = int(op.okey, 16)
    except ValueError as error:
        raise MalformedRecord("op message: okey is not a hexadecimal number") from error
    transaction = Transaction(
        transaction_id,
        sys.intern(op.group),
        op.half,
        op.appended_ms,
        ordering_hash,
        op.state,
        op.half if op.at == op.half else op.at,  # one object where two are equal: millions may be pending
        op.appended_ms if op.since_ms in {None, op.appended_ms} else op.since_ms,
        op.next_due_ms,
        op.check_times,
        op.base,
        op.max_checks,
        op.max_life,
        op.by,
        op.end,
        op.ended_ms,
        op.blocked,
        op.why,
        op.parked,
        op.requests,
        op.abandoned,
    )
    return OpMessage(transaction, op.receipts)


def _rebuild_members(t: Transaction) -> str:
    parts = [f'"okey":"{t.ordering_hash:016x}","base":{t.base},"since_ms":{t.since_ms}']
    if t.end is not None:
        parts.append(f'"end":{t.end}')
    if t.max_checks is not None:
        parts.append(f'"max_checks":{t.max_checks}')
    if t.max_life_s is not None:
        parts.append(f'"max_life":{t.max_life_s}')
    return ",".join(parts)


def encode_receipts(receipts: Sequence[Receipt]) -> str:
    """JSON list of [topic, queue, offset]. Topic names need no escapes."""
    items = [f'["{r.topic}",{r.queue_id},{"null" if r.queue_offset is None else r.queue_offset}]' for r in receipts]
    return f"[{','.join(items)}]"


def _encode_answer(answer: Answer, op_value: bytes | None) -> bytes:
    members = {"request": answer.request, "id": answer.transaction_id, "answer": answer.code.value}
    text = json.dumps(members, separators=(",", ":")).encode()
    if op_value is None:
        return text
    state = json.loads(op_value)["state"]
    return text[:-1] + f',"state":"{state}","op":'.encode() + op_value + b"}"


def _join_answers(items: Sequence[bytes]) -> bytes:
    return b'{"v":1,"answers":[' + b",".join(items) + b"]}"

"""Records of the half topic and the op topic -> what the projection keeps of them.

The usual ends are read by slices, the usual op messages by one small decoder, all else by the codecs of
`bridge/core`. Both ways give the same rows.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec import Struct

from bridge.core.errors import MalformedRecord
from bridge.core.message import StoredMessage
from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY, OpMessage, decode_op, decode_position
from bridge.core.properties import PROPERTIES_HEADER
from bridge.core.record import HalfMessage, is_void
from bridge.core.record_codec import decode_body, decode_record
from bridge.core.transaction import MessageSummary, is_raw_id

_END_HEAD = b"KIND\x01E\x02UNIQ_KEY\x01"
_END_TAIL = b"\x02V\x011\x02"
_REMARK = b"\x02REMARK\x01"
_COMMIT_TAIL = _END_TAIL + b"RES\x018\x02SRC\x01P\x02"
_PLAIN = (None, None, None, None)


class HalfEntry(Struct, frozen=True, gc=False):
    """A half message that counts, without its body."""

    offset: int
    stored_ms: int
    transaction_id: str
    half: HalfMessage
    messages: Sequence[MessageSummary]
    is_plain: bool = False  # one message, nothing that few transactions have


class RawEntry(Struct, frozen=True, gc=False):
    """An end record or an act, decoded only if a timeline needs it: most ends come with the op message."""

    offset: int
    transaction_id: str
    stored: StoredMessage

    @property
    def has_remark(self) -> bool:
        """Whether it says more than the op message of the end that it is."""
        return _REMARK in (self.stored.headers[-1][1] or b"")


class CommitEntry(Struct, frozen=True, gc=False):
    """What most op messages say: committed by its producer, never checked, published. `receipts`: as in SQL."""

    offset: int
    stored_ms: int
    transaction_id: str
    half: int
    appended_ms: int
    at: int
    ended_ms: int
    receipts: str
    value: bytes


class OpEntry(Struct, frozen=True, gc=False):
    """A state as the op topic holds it."""

    offset: int
    stored_ms: int
    op: OpMessage

    @property
    def transaction_id(self) -> str:
        return self.op.transaction.transaction_id


class PositionEntry(Struct, frozen=True, gc=False):
    """The last record of a Kafka transaction of the settler."""

    offset: int
    s: int


JournalEntry = HalfEntry | RawEntry
StateEntry = CommitEntry | OpEntry
Decided = Mapping[int, CommitEntry]
"""Op messages that were read before the journal, by the offsets that they name: mostly their ends say no more."""


def read_journal_entry(stored: StoredMessage, decided: Decided = MappingProxyType({})) -> JournalEntry | None:
    """None for a void half message, and for an end that is `decided`. Raises MalformedRecord, UnknownRecordVersion."""
    headers = stored.headers
    raw = headers[-1][1] if headers and headers[-1][0] == PROPERTIES_HEADER else None
    if raw is not None and raw.startswith(_END_HEAD):
        raw_id, commit = raw[16:44], decided.get(stored.queue_offset)
        if (
            commit is not None
            and raw_id == commit.transaction_id.encode()
            and raw.startswith(_COMMIT_TAIL, 44)
            and stored.stored_ms == commit.ended_ms
            and _REMARK not in raw
        ):
            return None  # by this the fold knows the end that decided, of which no timeline tells
        if raw.startswith(_END_TAIL, 44) and is_raw_id(raw_id):
            return RawEntry(stored.queue_offset, raw_id.decode(), stored)
    record = decode_record(stored)
    if not isinstance(record, HalfMessage):
        return RawEntry(stored.queue_offset, record.transaction_id, stored)
    if is_void(record, stored.stored_ms):
        return None
    offset, stored_ms, transaction_id = stored.queue_offset, stored.stored_ms, record.transaction_id
    if record.message_count > 1:
        summaries = [
            MessageSummary(m.topic, m.key, None if m.value is None else len(m.value), m.queue_id, m.timestamp_ms)
            for m in decode_body(record, stored)
        ]
        return HalfEntry(offset, stored_ms, transaction_id, record, summaries)
    few_have = (record.idempotency_key, record.ordering_key, record.max_checks, record.max_life_s)
    return HalfEntry(offset, stored_ms, transaction_id, record, (_summarise(record, stored),), few_have == _PLAIN)


def _summarise(half: HalfMessage, stored: StoredMessage) -> MessageSummary:
    size = None if stored.value is None else len(stored.value)
    return MessageSummary(half.real_topic, stored.key, size, half.real_queue_id, half.timestamp_ms)


def read_op_entry(stored: StoredMessage) -> StateEntry | PositionEntry | None:
    """None for answers that are no state. Raises MalformedRecord and UnknownRecordVersion."""
    key, value = stored.key, stored.value
    if key is not None and value is not None and value.startswith(_COMMITTED) and is_raw_id(key):
        commit = _read_usual_commit(stored, key.decode(), value)
        if commit is not None:
            return commit
    if key == ANSWERS_KEY:
        return None
    if key is None or value is None:
        raise MalformedRecord("op message without key or value")
    if key == POSITION_KEY:
        return PositionEntry(stored.queue_offset, decode_position(value).s)
    if not is_raw_id(key):
        raise MalformedRecord("op message whose key is no transaction id")
    return OpEntry(stored.queue_offset, stored.stored_ms, decode_op(key.decode(), value))


class _Commit(Struct, gc=False, forbid_unknown_fields=True):
    """An op message with no other members than these."""

    v: Literal[1]
    state: Literal["COMMITTED"]
    group: str
    at: int
    half: int
    appended_ms: int
    by: Literal["producer"]
    ended_ms: int
    check_times: Literal[0]
    receipts: msgspec.Raw
    requests: tuple[str, ...] = ()


_COMMITTED = b'{"v":1,"state":"COMMITTED",'
_commit_decoder = msgspec.json.Decoder(_Commit)
_RECEIPT = r'\["[A-Za-z0-9._-]+",(?:0|[1-9][0-9]{0,8}),(?:0|[1-9][0-9]{0,17})\]'
_match_receipts = re.compile(rf"\[{_RECEIPT}(?:,{_RECEIPT})*\]").fullmatch


def _read_usual_commit(stored: StoredMessage, transaction_id: str, value: bytes) -> CommitEntry | None:
    """None for anything that is not written as the settler writes it: the general decoder says what it is."""
    try:
        commit = _commit_decoder.decode(value)
        receipts = bytes(commit.receipts).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if _match_receipts(receipts) is None:
        return None
    return CommitEntry(
        stored.queue_offset,
        stored.stored_ms,
        transaction_id,
        commit.half,
        commit.appended_ms,
        commit.at,
        commit.ended_ms,
        receipts,
        value,
    )


def widen(entry: StateEntry) -> OpEntry:
    """The same with everything that the op message says."""
    if isinstance(entry, OpEntry):
        return entry
    return OpEntry(entry.offset, entry.stored_ms, decode_op(entry.transaction_id, entry.value))

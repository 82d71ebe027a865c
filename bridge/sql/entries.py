"""What the projector reads: journal records and op messages, decoded as far as the fold needs them. No I/O."""

from collections.abc import Sequence

from msgspec import Struct

from bridge.core.errors import MalformedRecord
from bridge.core.message import StoredMessage
from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY, OpMessage, decode_op, decode_position
from bridge.core.properties import PROPERTIES_HEADER
from bridge.core.record import HalfMessage, is_void
from bridge.core.record_codec import decode_body, decode_record
from bridge.core.transaction_id import is_transaction_id
from bridge.core.view import MessageSummary

_END_HEAD = b"KIND\x01E\x02UNIQ_KEY\x01"
_END_TAIL = b"\x02V\x011\x02"


class HalfEntry(Struct, frozen=True, gc=False):
    """A half message that counts, without its body."""

    offset: int
    stored_ms: int
    half: HalfMessage
    messages: Sequence[MessageSummary]


class RawEntry(Struct, frozen=True, gc=False):
    """An end record or an act, decoded only if a timeline needs it: most ends are told by the op message."""

    offset: int
    transaction_id: str
    stored: StoredMessage


class OpEntry(Struct, frozen=True, gc=False):
    """A state as the op topic holds it."""

    offset: int
    stored_ms: int
    op: OpMessage


class PositionEntry(Struct, frozen=True, gc=False):
    """The last record of a Kafka transaction of the settler."""

    offset: int
    s: int


JournalEntry = HalfEntry | RawEntry


def read_journal_entry(stored: StoredMessage) -> JournalEntry | None:
    """None for a void half message. Raises MalformedRecord and UnknownRecordVersion."""
    raw = stored.headers[-1][1] if stored.headers and stored.headers[-1][0] == PROPERTIES_HEADER else None
    if raw is not None and raw.startswith(_END_HEAD) and raw[44:49] == _END_TAIL:
        return RawEntry(stored.queue_offset, raw[16:44].decode("latin-1"), stored)
    record = decode_record(stored)
    if not isinstance(record, HalfMessage):
        return RawEntry(stored.queue_offset, record.transaction_id, stored)
    if is_void(record, stored.stored_ms):
        return None
    return HalfEntry(stored.queue_offset, stored.stored_ms, record, _summarise(record, stored))


def read_op_entry(stored: StoredMessage) -> OpEntry | PositionEntry | None:
    """None for answers that are no state. Raises MalformedRecord and UnknownRecordVersion."""
    if stored.key == ANSWERS_KEY:
        return None
    if stored.key is None or stored.value is None:
        raise MalformedRecord("op message without key or value")
    if stored.key == POSITION_KEY:
        return PositionEntry(stored.queue_offset, decode_position(stored.value).s)
    transaction_id = stored.key.decode("latin-1")
    if not is_transaction_id(transaction_id):
        raise MalformedRecord("op message whose key is no transaction id")
    return OpEntry(stored.queue_offset, stored.stored_ms, decode_op(transaction_id, stored.value))


def _summarise(half: HalfMessage, stored: StoredMessage) -> Sequence[MessageSummary]:
    if half.message_count == 1:
        size = None if stored.value is None else len(stored.value)
        return (MessageSummary(half.real_topic, stored.key, size, half.real_queue_id, half.timestamp_ms),)
    return [
        MessageSummary(m.topic, m.key, None if m.value is None else len(m.value), m.queue_id, m.timestamp_ms)
        for m in decode_body(half, stored)
    ]

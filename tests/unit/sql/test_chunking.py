"""Which part of what was read may be applied."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from bridge.core.message import Message, StoredMessage
from bridge.core.op_message import ANSWERS_KEY, OpMessage, Position, encode_op, encode_position
from bridge.core.properties import count_stored_bytes
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_act, encode_end, encode_half
from bridge.core.transaction import Transaction, make_transaction_id
from bridge.sql.chunking import JournalBuffer, OpBuffer, next_chunk
from bridge.sql.rows import AppliedPosition

START = AppliedPosition(0, 0, 0)


def id_of(number: int) -> str:
    return make_transaction_id(0, number)


def store(message: Message, offset: int) -> StoredMessage:
    return StoredMessage(offset, message.key, message.value, message.headers, 1_000 + offset)


def half(offset: int) -> StoredMessage:
    record = HalfMessage(id_of(offset), "shop", 1, 1, "orders")
    return store(encode_half(record, [Message("orders", b"k", b"v")], "half", 0), offset)


def end(offset: int, number: int = 0) -> StoredMessage:
    record = EndRecord(id_of(number), Resolution.COMMIT, Source.PRODUCER, 1)
    return store(encode_end(record, "half", 0), offset)


def op(offset: int, number: int = 0) -> StoredMessage:
    value = encode_op(OpMessage(Transaction(id_of(number), "shop", number, 1_000, 1)))
    return StoredMessage(offset, id_of(number).encode(), value, (), 2_000 + offset)


def position(offset: int, s: int) -> StoredMessage:
    return StoredMessage(offset, b"~", encode_position(Position(s, 0, 0, "owner")), (), 2_000 + offset)


def test_op_messages_wait_for_their_position() -> None:
    """Half of a Kafka transaction is never applied, wherever a read ends (C)."""
    journal, ops = JournalBuffer(0, 100), OpBuffer(0, 100)
    journal.add([half(0)], 1)
    ops.add([op(0)], 1)
    assert next_chunk(0, START, journal, ops) is None
    ops.add([position(1, 1)], 3)
    chunk = next_chunk(0, START, journal, ops)
    assert chunk is not None
    assert (len(chunk.halves), len(chunk.ops), chunk.after) == (1, 1, AppliedPosition(1, 1, 2))


def test_position_waits_until_the_journal_has_been_read_up_to_it() -> None:
    """State without its half message would be a row that nobody can find by its topic."""
    journal, ops = JournalBuffer(0, 100), OpBuffer(0, 100)
    ops.add([op(0), position(1, 2)], 2)
    journal.add([half(0)], 1)
    assert next_chunk(0, START, journal, ops) is None
    journal.add([end(1)], 2)
    chunk = next_chunk(0, START, journal, ops)
    assert chunk is not None
    assert (len(chunk.halves), len(chunk.others)) == (1, 1)


def test_journal_records_from_s_on_wait_for_the_next_position() -> None:
    """What is not decided is not shown."""
    journal, ops = JournalBuffer(0, 100), OpBuffer(0, 100)
    journal.add([half(0), half(1), half(2)], 3)
    ops.add([position(0, 1)], 1)
    first = next_chunk(0, START, journal, ops)
    assert first is not None
    assert ([entry.offset for entry in first.halves], first.after.journal_next) == ([0], 1)
    ops.add([position(1, 3)], 2)
    second = next_chunk(0, first.after, journal, ops)
    assert second is not None
    assert [entry.offset for entry in second.halves] == [1, 2]


def test_many_kafka_transactions_become_one_chunk() -> None:
    """One SQL transaction for all that has arrived; ops in the order of the log."""
    journal, ops = JournalBuffer(0, 100), OpBuffer(0, 100)
    journal.add([half(0), half(1), half(2)], 3)
    ops.add([op(0), position(1, 1), op(2, 1), position(3, 2), op(4, 2), position(5, 9)], 6)
    chunk = next_chunk(0, START, journal, ops)
    assert chunk is not None
    assert ([entry.offset for entry in chunk.ops], chunk.after) == ([0, 2], AppliedPosition(2, 2, 4))


def test_too_large_group_goes_in_parts_and_s_moves_last() -> None:
    """Compaction can leave millions before a position; `s` never says more than is true."""
    journal, ops = JournalBuffer(0, 2), OpBuffer(0, 2)
    ops.add([op(0), op(1, 1)], 2)
    first = next_chunk(0, START, journal, ops)
    assert first is not None
    assert (len(first.ops), first.after) == (2, AppliedPosition(0, 0, 2))
    ops.add([op(2, 2), position(3, 3)], 4)
    journal.add([half(0), half(1)], 2)
    second = next_chunk(0, first.after, journal, ops)
    assert second is not None
    assert (len(second.ops), len(second.halves), second.after) == (1, 0, AppliedPosition(0, 0, 3))
    third = next_chunk(0, second.after, journal, ops)
    assert third is not None
    assert ([entry.offset for entry in third.halves], third.after) == ([0, 1], AppliedPosition(0, 2, 3))
    journal.add([half(2)], 3)
    fourth = next_chunk(0, third.after, journal, ops)
    assert fourth is not None
    assert (len(fourth.halves), fourth.after) == (1, AppliedPosition(3, 3, 4))


def test_position_never_moves_back() -> None:
    """A successor may write the position it found once more."""
    journal, ops = JournalBuffer(7, 100), OpBuffer(5, 100)
    ops.add([position(5, 4)], 6)
    chunk = next_chunk(0, AppliedPosition(6, 7, 5), journal, ops)
    assert chunk is not None
    assert chunk.after == AppliedPosition(6, 7, 6)


def test_answers_are_no_states() -> None:
    """They go to those who wait, not into the projection."""
    ops = OpBuffer(0, 100)
    assert ops.add([StoredMessage(0, ANSWERS_KEY, b'{"v":1,"answers":[]}', (), 1), position(1, 0)], 2) == []
    assert [group.ops for group in ops.groups] == [[]]


@pytest.mark.parametrize(
    "message",
    [
        StoredMessage(0, b"x", b"rubbish", (), 1),
        StoredMessage(0, None, None, (("properties", b"KIND\x01H\x02V\x011\x02"),), 1),
        StoredMessage(0, None, None, (("properties", None),), 1),
    ],
)
def test_unparsable_journal_record_is_stepped_over(message: StoredMessage) -> None:
    """With its offset; what follows is read (61)."""
    journal = JournalBuffer(0, 100)
    (quarantined,) = journal.add([message, half(1)], 2)
    assert (quarantined.offset, journal.next_offset, [*map(len, journal.take_below(2))]) == (0, 2, [1, 0])
    assert quarantined.reason not in {"", "None"}, "an operator reads it"


@pytest.mark.parametrize(("key", "value"), [(b"short", b"{}"), (None, b"{}"), (id_of(1).encode(), None), (b"~", b"[]")])
def test_unparsable_op_message_is_stepped_over(key: bytes | None, value: bytes | None) -> None:
    """Also a tombstone that nobody of ours writes."""
    ops = OpBuffer(0, 100)
    (quarantined,) = ops.add([StoredMessage(0, key, value, (), 1), position(1, 0)], 2)
    assert (quarantined.offset, ops.next_offset, len(ops.groups)) == (0, 2, 1)


def test_unknown_version_stops_before_the_record() -> None:
    """What came before is applied, nothing after it is guessed (40)."""
    journal, ops = JournalBuffer(0, 100), OpBuffer(0, 100)
    newer = replace(half(1), headers=(("properties", b"KIND\x01H\x02UNIQ_KEY\x01" + b"0" * 28 + b"\x02V\x012\x02"),))
    assert journal.add([half(0), newer, half(2)], 3) == []
    assert journal.halted is not None
    assert "journal offset 1:" in journal.halted, "where it stands"
    ops.add([position(0, 1), position(1, 3)], 2)
    chunk = next_chunk(0, START, journal, ops)
    assert chunk is not None
    assert chunk.after.s == 1
    assert next_chunk(0, chunk.after, journal, ops) is None
    ops.add([StoredMessage(2, id_of(1).encode(), b'{"v":2}', (), 1)], 3)
    assert (ops.halted is not None, ops.next_offset) == (True, 2)


LONG_KEY, LONG_VALUE = b"k" * 5_000, b"v" * 7_000


def long_half(offset: int, count: int = 1, *, is_rare: bool = False) -> StoredMessage:
    topic = {"real_topic": "orders"} if count == 1 else {}
    rare = {"ordering_key": "o" * 3_000} if is_rare else {}
    record = replace(HalfMessage(id_of(offset), "shop", count, 1), **topic, **rare)
    return store(encode_half(record, [Message("orders", LONG_KEY, LONG_VALUE)] * count, "half", 0), offset)


def long_act(offset: int) -> StoredMessage:
    return store(encode_act(ActRecord(id_of(0), Act.CHECK, "ann", "w" * 3_000, 1), "half", 0), offset)


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        (long_half(0), lambda m: 600 + 5_000),
        (replace(long_half(0), key=None), lambda m: 600),
        (long_half(0, is_rare=True), lambda m: count_stored_bytes(m) - 7_000),
        (replace(long_half(0, is_rare=True), value=None), count_stored_bytes),
        (long_half(0, 2), count_stored_bytes),
        (end(0), lambda m: 600 + 28 + len(m.headers[0][1])),
        (replace(end(0), key=None), lambda m: 600 + len(m.headers[0][1])),
        (replace(end(0), value=LONG_VALUE), count_stored_bytes),
        (replace(end(0), headers=(("x", LONG_VALUE), *end(0).headers)), count_stored_bytes),
        (long_act(0), lambda m: 600 + 28 + len(m.headers[0][1])),
    ],
    ids=["plain", "no-key", "rare", "rare-tombstone", "two", "end", "end-no-key", "end-value", "end-headers", "act"],
)
def test_journal_entries_wait_up_to_so_many_bytes(message: StoredMessage, kept: Callable[[StoredMessage], int]) -> None:
    """About what is kept of each: of one message all but its value. What is taken makes room."""
    size = kept(message)
    roomy, journal = JournalBuffer(0, 100, 2 * size + 1), JournalBuffer(0, 100, 2 * size)
    for buffer in (roomy, journal):
        assert not buffer.is_full
        assert buffer.add([message, replace(message, queue_offset=1)], 2) == []
    assert (roomy.is_full, journal.is_full) == (False, True)
    for offset in (2, 3):
        assert sum(map(len, journal.take_below(offset - 1))) == 1
        assert not journal.is_full
        journal.add([replace(message, queue_offset=offset)], offset + 1)
        assert journal.is_full


def test_so_many_journal_entries_wait_however_short_they_are() -> None:
    """The entries are counted too."""
    journal = JournalBuffer(0, 2)
    journal.add([half(0)], 1)
    assert not journal.is_full
    journal.add([half(1)], 2)
    assert journal.is_full


def test_op_messages_wait_for_a_position_up_to_so_many_bytes() -> None:
    """Then they go first; a position, or being taken, makes room."""
    size = 600 + len(op(0).value or b"")
    roomy, ops = OpBuffer(0, 100, 2 * size + 1), OpBuffer(0, 100, 2 * size)
    for buffer in (roomy, ops):
        buffer.add([op(0), op(1)], 2)
    assert (roomy.is_overfull, ops.is_overfull) == (False, True)
    assert len(ops.take_open()) == 2
    for offset in (2, 5):
        assert not ops.is_overfull
        ops.add([op(offset), op(offset + 1)], offset + 2)
        assert ops.is_overfull
        ops.add([position(offset + 2, 0)], offset + 3)

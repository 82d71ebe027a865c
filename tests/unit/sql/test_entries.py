"""The quick readers of usual records say what the codecs say, of legal records and of any others."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import Message, Receipt, StoredMessage
from bridge.core.op_message import OpMessage, decode_op, encode_op, encode_receipts
from bridge.core.record import EndRecord, HalfMessage, Resolution, Source, is_void
from bridge.core.record_codec import decode_body, decode_record, encode_end, encode_half
from bridge.core.transaction import (
    MessageSummary,
    Transaction,
    TransactionState,
    is_transaction_id,
    make_transaction_id,
)
from bridge.sql.chunking import CommitEntry, HalfEntry, OpEntry, RawEntry, read_journal_entry, read_op_entry, widen

IDS = st.builds(make_transaction_id, st.integers(0, 1023), st.integers(0, 2**128 - 1))
NAMES = st.sampled_from(["shop", "bank", "a.b-c_d"])
TIMES = st.integers(0, 2**41)
KEYS = st.none() | st.binary(max_size=4)
FEW = st.none() | st.integers(1, 99)

HALVES = st.builds(
    HalfMessage, IDS, NAMES, st.just(1), TIMES, NAMES, st.integers(-1, 9), st.none() | TIMES,
    st.none() | st.just("an order"), FEW, FEW, FEW, st.none() | st.just("key"), TIMES, st.none() | st.just("r-1"),
    st.booleans(), st.none() | st.integers(0, 2**64 - 1),
)  # fmt: skip
ENDS = st.builds(EndRecord, IDS, st.sampled_from(Resolution), st.sampled_from(Source), TIMES, st.none() | NAMES)
RECEIPTS = st.lists(st.builds(Receipt, NAMES, st.integers(0, 99), st.none() | st.integers(0, 2**40)), max_size=3)
BY = st.sampled_from(["producer", "check", None])
TRANSACTIONS = st.builds(
    Transaction, IDS, NAMES, st.integers(0, 99), TIMES, st.integers(0, 9), st.sampled_from(TransactionState),
    at=st.integers(0, 99), since_ms=TIMES, check_times=st.integers(0, 2), by=BY,
    ended_ms=st.none() | TIMES, reason=st.none() | st.just("ORDER"), requests=st.just(()) | st.just(("r-1",)),
)  # fmt: skip


def mutate(raw: bytes, place: int, cut: int, put: bytes) -> bytes:
    place = place % (len(raw) + 1)
    return raw[:place] + put + raw[place + cut :]


# what is cut out of a legal record, and what stands there instead; nothing, most of the time
CHANGES = st.just((0, 0, b"")) | st.tuples(
    st.integers(0, 400),
    st.integers(0, 3),
    st.binary(max_size=2) | st.sampled_from([b"\x02", b"\x01", b"0", b"Z", b'"', b",", b"V\x012"]),
)


def outcome(read: Callable[[StoredMessage], Any], stored: StoredMessage) -> Any:
    """What it gives, or the kind of error."""
    try:
        return read(stored)
    except (MalformedRecord, UnknownRecordVersion) as error:
        return type(error)


def read_half_by_codec(stored: StoredMessage) -> object:
    record = decode_record(stored)
    if not isinstance(record, HalfMessage):
        return record.transaction_id
    if is_void(record, stored.stored_ms):
        return None
    sizes = [
        MessageSummary(m.topic, m.key, None if m.value is None else len(m.value), m.queue_id, m.timestamp_ms)
        for m in decode_body(record, stored)
    ]
    return record.transaction_id, record, sizes


def simplified(entry: HalfEntry | RawEntry | None) -> object:
    """In the words of `read_half_by_codec`."""
    if isinstance(entry, HalfEntry):
        return entry.transaction_id, entry.half, list(entry.messages)
    return entry if entry is None else entry.transaction_id


@given(HALVES, KEYS, KEYS, CHANGES)
def test_half_message_is_read_as_its_codec_reads_it(
    half: HalfMessage, key: bytes | None, value: bytes | None, change: tuple[int, int, bytes]
) -> None:
    """Also where a byte of it is another one: quarantined, halted and taken are the same records."""
    raw = encode_half(half, [Message(half.real_topic, key, value)], "half", 0)
    name, properties = raw.headers[-1]
    stored = StoredMessage(7, raw.key, raw.value, ((name, mutate(properties or b"", *change)),), half.seen_ms)
    got = outcome(read_journal_entry, stored)
    wanted = outcome(read_half_by_codec, stored)
    if isinstance(got, RawEntry):  # an end is decoded when a timeline needs it
        assert got.transaction_id == wanted or not isinstance(wanted, tuple)
    else:
        assert (got if isinstance(got, type) else simplified(got)) == wanted


def test_half_message_with_what_few_have_is_not_plain() -> None:
    """With or without an ordering hash it can be told without a look-up, but not with columns of its own."""
    half = HalfMessage(make_transaction_id(0, 1), "shop", 1, 5, "orders")
    rare: list[dict[str, Any]] = [
        {"ordering_key": "k"},
        {"max_checks": 1},
        {"max_life_s": 1},
        {"idempotency_key": "k", "seen_ms": 1},
    ]
    changes: list[dict[str, Any]] = [{}, {"ordering_hash": 7}, {"immunity_s": 9}, *rare]
    raws = [encode_half(replace(half, **change), [Message("orders", b"k", b"v")], "half", 0) for change in changes]
    raws.append(encode_half(replace(half, message_count=2), [Message("orders"), Message("orders")], "half", 0))
    entries = [read_journal_entry(StoredMessage(0, raw.key, raw.value, raw.headers, 1)) for raw in raws]
    plain = [isinstance(entry, HalfEntry) and entry.is_plain for entry in entries]
    assert plain == [True, True, True, False, False, False, False, False]


@given(ENDS, CHANGES)
def test_end_has_the_id_that_its_codec_reads(end: EndRecord, change: tuple[int, int, bytes]) -> None:
    """An end that cannot be decoded is found out when it is needed, and quarantined then."""
    raw = encode_end(end, "half", 0)
    name, properties = raw.headers[-1]
    stored = StoredMessage(7, raw.key, raw.value, ((name, mutate(properties or b"", *change)),), 1)
    got, wanted = outcome(read_journal_entry, stored), outcome(decode_record, stored)
    if isinstance(got, RawEntry):
        assert wanted in (MalformedRecord, UnknownRecordVersion) or got.transaction_id == wanted.transaction_id
    else:
        assert got == wanted


@pytest.mark.parametrize("text", [b"\x00" * 28, b"\xff" * 28, b"0" * 27 + b"1"], ids=["nul", "no-text", "last-digit"])
def test_end_of_what_is_no_transaction_is_quarantined(text: bytes) -> None:
    """PostgreSQL takes no text with 0x00, not even to look it up: the queue would stand still for good."""
    raw = encode_end(EndRecord(COMMITTED.transaction_id, Resolution.COMMIT, Source.PRODUCER, 5), "half", 0)
    properties = (raw.headers[-1][1] or b"").replace(COMMITTED.transaction_id.encode(), text)
    with pytest.raises(MalformedRecord):
        read_journal_entry(StoredMessage(7, raw.key, None, (("properties", properties),), 1))


COMMITTED = Transaction(
    make_transaction_id(3, 7), "shop", 10, 1_000, 0, TransactionState.COMMITTED, 11, 1_000, by="producer", end=11,
    ended_ms=1_011, requests=("r-1",),
)  # fmt: skip


@given(TRANSACTIONS, RECEIPTS, CHANGES)
@example(COMMITTED, [Receipt("orders", 1, 5)], (0, 0, b""))
@example(COMMITTED, [Receipt("orders", 1, 5), Receipt("credits", 0, 0)], (0, 0, b""))
@example(COMMITTED, [Receipt("orders", 1, 5)], (152, 0, b"0"))
def test_op_message_is_read_as_its_codec_reads_it(
    t: Transaction, receipts: list[Receipt], change: tuple[int, int, bytes]
) -> None:
    """The receipts, which are not even read, come as they would be written anew."""
    value = mutate(encode_op(OpMessage(t, receipts)), *change)
    stored = StoredMessage(7, t.transaction_id.encode(), value, (), 1)
    got = outcome(read_op_entry, stored)
    wanted = outcome(lambda s: OpEntry(7, 1, decode_op(t.transaction_id, s.value or b"")), stored)
    if isinstance(got, CommitEntry):
        assert widen(got) == wanted
        w = wanted.op.transaction
        assert (got.half, got.appended_ms, got.at, got.ended_ms) == (w.half, w.appended_ms, w.at, w.ended_ms)
        assert (w.appended_ms, w.by, w.check_times, w.base, w.next_due_ms) == (w.since_ms, "producer", 0, 0, 0)
        assert (w.state, w.blocked, w.abandoned, w.reason, w.parked) == ("COMMITTED", False, False, None, None)
        assert got.receipts == (encode_receipts(wanted.op.receipts) if wanted.op.receipts else None)
    else:
        assert got == wanted


def test_what_the_settler_writes_most_is_read_the_quick_way() -> None:
    """Else it would be slow, and nobody would notice."""
    value = encode_op(OpMessage(COMMITTED, (Receipt("orders", 1, 5),)))
    entry = read_op_entry(StoredMessage(7, COMMITTED.transaction_id.encode(), value, (), 1))
    assert isinstance(entry, CommitEntry)
    assert entry.receipts == '[["orders",1,5]]'


@pytest.mark.parametrize(
    ("offset", "stored_ms", "changes", "is_left_out"),
    [
        (11, 1_011, {}, True),
        (11, 1_011, {"request": "r-1", "group": "shop"}, True),
        (11, 1_011, {"transaction_id": make_transaction_id(3, 8)}, False),
        (11, 1_011, {"resolution": Resolution.ROLLBACK}, False),
        (11, 1_011, {"source": Source.OPERATOR, "actor": "ann", "reason": "why"}, False),
        (11, 1_012, {}, False),
        (12, 1_011, {}, False),
    ],
)
def test_only_the_end_that_decided_is_left_out(
    offset: int, stored_ms: int, changes: dict[str, Any], *, is_left_out: bool
) -> None:
    """Its op message is known: every other end has a line of the timeline."""
    value = encode_op(OpMessage(COMMITTED, (Receipt("orders", 1, 5),)))
    commit = read_op_entry(StoredMessage(0, COMMITTED.transaction_id.encode(), value, (), 1))
    assert isinstance(commit, CommitEntry)
    end = replace(EndRecord(COMMITTED.transaction_id, Resolution.COMMIT, Source.PRODUCER, 5), **changes)
    raw = encode_end(end, "half", 0)
    entry = read_journal_entry(StoredMessage(offset, raw.key, raw.value, raw.headers, stored_ms), {commit.at: commit})
    assert (entry is None) is is_left_out
    assert is_left_out or (isinstance(entry, RawEntry) and entry.transaction_id == end.transaction_id)


def test_each_message_of_a_half_message_is_summarised() -> None:
    """Topic, key, size, queue and time; null has no size."""
    messages = [Message("orders", b"k", b"four", (), 3, 17), Message("credits", None, None)]
    raw = encode_half(HalfMessage(make_transaction_id(0, 1), "shop", 2, 5), messages, "half", 0)
    entry = read_journal_entry(StoredMessage(7, raw.key, raw.value, raw.headers, 1))
    assert isinstance(entry, HalfEntry)
    assert list(entry.messages) == [
        MessageSummary("orders", b"k", 4, 3, 17), MessageSummary("credits", None, None, -1, None)
    ]  # fmt: skip


@given(st.binary(max_size=30) | IDS.map(str.encode))
def test_key_of_an_op_message_is_an_id_or_the_record_is_quarantined(key: bytes) -> None:
    """By the same rule whichever way it is read."""
    value = encode_op(OpMessage(COMMITTED, (Receipt("orders", 1, 5),)))
    got = outcome(read_op_entry, StoredMessage(7, key, value, (), 1))
    if key not in {b"?", b"~"}:
        assert (got is MalformedRecord) == (not is_transaction_id(key.decode("latin-1")))


HALF = encode_half(
    HalfMessage(make_transaction_id(0, 1), "shop", 1, 5, "orders", ordering_hash=0xABCDEF),
    [Message("orders", b"k", b"v")],
    "half",
    0,
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"abcdef\x02", b"ABCDEF\x02"),
        (b"abcdef\x02", b"abcdef"),
        (b"abcdef\x02", b"abcdef\x03"),
        (b"g\x02V", b"h\x02V"),
        (b"V\x011", b"V\x012"),
        (b"shop", b"sh op"),
        (b"OKEY", b"OKEY\x010000000000000001\x02OKEY"),
    ],
)
def test_half_message_that_is_nearly_plain(old: bytes, new: bytes) -> None:
    """The codec's word counts for all of it."""
    properties = (HALF.headers[-1][1] or b"").replace(make_transaction_id(0, 1).encode(), b"0" * 26 + b"0g")
    stored = StoredMessage(0, b"k", b"v", (("properties", properties.replace(old, new)),), 1)
    assert properties.replace(old, new) != properties
    assert outcome(read_journal_entry, stored) == outcome(decode_record, stored)


@pytest.mark.parametrize("more", [b',"base":5}', b',"since_ms":7}', b',"blocked":true}', b',"abandoned":true}'])
def test_op_message_with_more_members_is_read_whole(more: bytes) -> None:
    """Each of them changes a column."""
    value = encode_op(OpMessage(COMMITTED, (Receipt("orders", 1, 5),)))[:-1] + more
    entry = read_op_entry(StoredMessage(7, COMMITTED.transaction_id.encode(), value, (), 1))
    assert isinstance(entry, OpEntry)

"""Valid records with one thing changed: read as what they are then, or refused by name, and never anything else."""

import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import Message, Receipt, StoredMessage
from bridge.core.op_message import OpMessage, decode_answers, decode_op, decode_position, decode_view, encode_op
from bridge.core.properties import decode_properties, encode_properties
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Record, Resolution, Source
from bridge.core.record_codec import decode_any, decode_body, decode_record, encode_act, encode_end, encode_half
from bridge.core.transaction import Transaction, TransactionState, make_transaction_id

ID = make_transaction_id(3, 99)
ONE = Message("orders", b"k", b"v", (("h", b"1"), ("h", None)), 2, 17)
TWO = [ONE, Message("credits", None, None)]
HALF = HalfMessage(ID, "shop", 1, 5, "orders", 2, 17, "line", 3, 4, 5, "key", 6, "a-1", True, 7)
PLAIN = HalfMessage(ID, "shop", 1, 5, "orders", 2)
CHECKED = EndRecord(ID, Resolution.UNKNOWN, Source.CHECK, 5, "shop", "a-1", 2, "https://a/", 200, 7)
FORCED = EndRecord(ID, Resolution.COMMIT, Source.OPERATOR, 5, actor="a", reason="r", remark="m")
ENDED = EndRecord(ID, Resolution.ROLLBACK, Source.PRODUCER, 5, "shop", "a-1")
ACT = ActRecord(ID, Act.RESUME, "a", "r", 5, "a-1")

# which field a property says; N, KIND and V say how the others are read
FIELDS = {
    "UNIQ_KEY": "transaction_id", "PGROUP": "group", "BORN": "born_ms", "REAL_TOPIC": "real_topic",
    "REAL_QID": "real_queue_id", "TS": "timestamp_ms", "ORDERING_KEY": "ordering_key", "OKEY": "okey",
    "MAX_CHECKS": "max_checks",
    "CHECK_IMMUNITY_TIME_IN_SECONDS": "immunity_s", "MAX_LIFE": "max_life_s", "IDEMPOTENCY_KEY": "idempotency_key",
    "SEEN": "seen_ms", "REQUEST": "request", "SRC": "source", "TRANSACTION_CHECK_TIMES": "check_number",
    "ENDPOINT": "endpoint", "STATUS": "status", "LATENCY": "latency_ms", "ACTOR": "actor", "REASON": "reason",
    "REMARK": "remark",
    "ACT": "act", "TRAN_MSG": "",
}  # fmt: skip
NASTY = st.sampled_from(
    ["", " 1", "1_0", "+1", "-1", "1.0", "1e3", "0x1", "٣", "9" * 18, "9" * 19, "9" * 5000, str(2**63 - 1),
     'a"b', "a\\", "a b", ".", "é", "NaN", "null", "true", "8", "P", "H", "A", ID.upper(), ID[:-1], ID[:-1] + "v"]
) | st.text(st.characters(exclude_characters="\x00\x01\x02", codec="utf-8"), max_size=5)  # fmt: skip


def encode(record: Record) -> bytes:
    """Its properties."""
    if isinstance(record, HalfMessage):
        message = encode_half(record, [ONE] * record.message_count, "H", 0)
    elif isinstance(record, EndRecord):
        message = encode_end(record, "H", 0)
    else:
        message = encode_act(record, "H", 0)
    return message.headers[-1][1] or b""


def read(properties: bytes) -> Record:
    return decode_record(StoredMessage(1, None, None, [("properties", properties)], 1))


RECORDS = st.sampled_from([HALF, PLAIN, CHECKED, FORCED, ENDED, ACT])


@given(RECORDS, st.sampled_from([*FIELDS]), NASTY)
def test_a_changed_property_changes_its_field_alone(record: Record, name: str, value: str) -> None:
    """Or the record is refused; what is read is written and read again as the same."""
    properties = decode_properties(encode(record))
    try:
        found = read(encode_properties({**properties, name: value}))
    except MalformedRecord:
        return
    except UnknownRecordVersion:
        assert name == "ACT", "of all values only an act may be a newer release's"
        return
    before, after = msgspec.structs.asdict(record), msgspec.structs.asdict(found)
    assert {field for field in before if before[field] != after[field]} <= {FIELDS[name]}
    assert encode(read(encode(found))) == encode(found)
    numbers = [number for number in after.values() if type(number) is int]
    assert all(-(2**63) <= number < 2**63 for number in numbers), "no database and no Kafka takes more"


@given(RECORDS, NASTY, st.sampled_from(["KIND", "V"]))
def test_another_version_or_kind_halts_and_is_never_taken(record: Record, value: str, name: str) -> None:
    """Our prefix, well formed, but not ours to read: neither quarantined nor decoded."""
    properties = {**decode_properties(encode(record)), name: value}
    if (name, value) in {("KIND", "H"), ("KIND", "E"), ("KIND", "A"), ("V", "1")}:
        return
    with pytest.raises(UnknownRecordVersion):
        read(encode_properties(properties))


def test_act_of_a_newer_release_halts_and_is_never_passed_over() -> None:
    """Whoever asked for it would wait for nothing, and a settler that knows it would have done it (40)."""
    properties = {**decode_properties(encode(ACT)), "ACT": "POSTPONE"}
    with pytest.raises(UnknownRecordVersion, match="act 'POSTPONE'"):
        read(encode_properties(properties))


@given(RECORDS, st.data())
def test_changed_bytes_are_a_record_or_a_named_error(record: Record, data: st.DataObject) -> None:
    """Bytes lost, added or changed; a record that is still read has a canonical form."""
    raw = encode(record)
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(len(raw), start + 4)))
    changed = raw[:start] + data.draw(st.binary(max_size=4)) + raw[end:]
    try:
        found = read(changed)
    except (MalformedRecord, UnknownRecordVersion):
        return
    assert encode(read(encode(found))) == encode(found)


USUAL = st.sampled_from([
    PLAIN, ENDED, msgspec.structs.replace(PLAIN, ordering_hash=2**63 + 7), msgspec.structs.replace(ENDED, group=None),
    HalfMessage(ID, "shop", 1, 5, "orders", request="a-1", is_published=True, ordering_hash=7),
    HalfMessage(ID, "shop", 1, 5, "orders", idempotency_key="k", seen_ms=6, request="a-1"),
])  # fmt: skip


@given(USUAL, st.data())
def test_sliced_records_are_what_the_general_way_reads(record: Record, data: st.DataObject) -> None:
    """Whole ones, and with properties changed, lost, repeated, in another order, with bytes changed or cut off."""
    pairs = [pair + b"\x02" for pair in encode(record).split(b"\x02")[:-1]]
    raw = b"".join(pairs)
    how = data.draw(st.sampled_from(["whole", "changed", "shuffled", "lost", "repeated", "bytes", "cut"]))
    at = data.draw(st.integers(0, len(pairs) - 1))
    if how == "changed":
        pairs[at] = pairs[at].split(b"\x01")[0] + b"\x01" + data.draw(NASTY).encode() + b"\x02"
        raw = b"".join(pairs)
    elif how == "shuffled":
        raw = b"".join(pairs[:3] + data.draw(st.permutations(pairs[3:])))
    elif how == "lost":
        raw = b"".join(pairs[:at] + pairs[at + 1 :])
    elif how == "repeated":
        raw = b"".join([*pairs, pairs[at]])
    elif how == "bytes":
        start = data.draw(st.integers(0, len(raw)))
        raw = raw[:start] + data.draw(st.binary(max_size=3)) + raw[start + data.draw(st.integers(0, 3)) :]
    elif how == "cut":
        raw = raw[: data.draw(st.integers(0, len(raw)))]
    assert outcome(read, raw) == outcome(decode_any, raw)


@pytest.mark.parametrize("members", [{"real_topic": ".."}, {"real_topic": "a" * 250}, {"group": "a" * 121}])
def test_name_that_cannot_be_makes_no_usual_record(members: dict[str, str]) -> None:
    """However plain the rest is: its half message is quarantined."""
    with pytest.raises(MalformedRecord, match="no name of a"):
        read(encode(msgspec.structs.replace(PLAIN, **members)))


@pytest.mark.parametrize(
    "record",
    [
        msgspec.structs.replace(PLAIN, ordering_key="x"),
        msgspec.structs.replace(PLAIN, group="x"),
        msgspec.structs.replace(ENDED, group="x"),
    ],
    ids=["ordering-key", "group", "group-of-end"],
)
def test_long_texts_are_not_remembered(record: HalfMessage | EndRecord) -> None:
    """What is remembered stays small, whatever others write to the journal."""
    raw, long = encode(record), b"x" * 500_000
    with suppress(MalformedRecord):
        read(raw)
    tracemalloc.start()
    try:
        for number in range(20):
            with suppress(MalformedRecord):
                read(raw.replace(b"\x01x\x02", b"\x01%d%b\x02" % (number, long)))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4 * len(long)


def outcome(decode: Callable[[bytes], Record], raw: bytes) -> tuple[str, object]:
    """The record, or the name and text of the error."""
    try:
        return "record", decode(raw)
    except (MalformedRecord, UnknownRecordVersion) as error:
        return type(error).__name__, str(error)


DEEP = "[" * 5000 + "]" * 5000
JSON = st.recursive(
    st.sampled_from([None, True, 1, -1, 2**70, 1.5, "x", "eA==", "eA", "a\"b", "", "COMMITTED", "ALREADY", "-1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["v", "key"]), inner, max_size=2),
    max_leaves=4,
).map(json.dumps) | st.sampled_from(["1e999", "NaN", DEEP, '"\\ud800"', '"\udcff"'])  # fmt: skip
FRAMES = json.loads(encode_half(HalfMessage(ID, "shop", 2, 5), TWO, "H", 0).value or b"")


def with_member(members: dict[str, Any], name: str, text: str) -> str:
    """The object as JSON, one member replaced by any text."""
    shown = {key: json.dumps(value) for key, value in members.items()} | {name: text}
    return "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in shown.items()) + "}"


@given(st.sampled_from([*FRAMES[0], "unknown"]), JSON)
def test_a_changed_frame_is_a_message_or_malformed(name: str, text: str) -> None:
    """Of several messages one has a changed member: it can be published, or the record is quarantined."""
    raw = f"[{with_member(FRAMES[0], name, text)},{json.dumps(FRAMES[1])}]".encode(errors="surrogateescape")
    half = HalfMessage(ID, "shop", 2, 5)
    try:
        messages = decode_body(half, StoredMessage(1, None, raw, [], 1))
    except MalformedRecord:
        return
    assert messages[1] == TWO[1]
    again = encode_half(half, messages, "H", 0)
    assert decode_body(half, StoredMessage(1, None, again.value, [], 1)) == messages


LIVE = Transaction(
    ID, "shop", 3, 10, 77, TransactionState.PARKED, 5, 10, 0, 2, 1, 3, 4, "timer", reason="MAX_CHECKS", parked=9,
    requests=("a-1",),
)  # fmt: skip
OPS = [
    OpMessage(LIVE),
    OpMessage(
        Transaction(ID, "shop", 3, 10, 0, TransactionState.COMMITTED, by="check", ended_ms=2), [Receipt("t", 0, 1)]
    ),
]
MEMBERS = sorted(
    {name for op in OPS for name in json.loads(encode_op(op))} | {"next_due_ms", "blocked", "end", "unknown"}
)


@given(st.sampled_from(OPS), st.sampled_from(MEMBERS), JSON)
def test_a_changed_op_message_is_a_state_or_a_named_error(op: OpMessage, name: str, text: str) -> None:
    """Also inside an answer, and where a position or answers are looked for."""
    value = with_member(json.loads(encode_op(op)), name, text).encode(errors="surrogateescape")
    answers = b'{"v":1,"answers":[{"request":"a-1","id":"%b","answer":"ALREADY","op":%b}]}' % (ID.encode(), value)
    for decode in (decode_position, decode_answers, lambda raw: decode_op(ID, raw), lambda raw: decode_view(ID, raw)):
        for raw in (value, answers):
            with suppress(MalformedRecord, UnknownRecordVersion):
                decode(raw)

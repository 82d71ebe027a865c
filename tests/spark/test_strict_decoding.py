"""What the bridge's codecs refuse is UNREADABLE to the job, and what they take it takes: both read mutated records."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import Message, Receipt, StoredMessage
from bridge.core.op_message import (
    ANSWERS_KEY,
    POSITION_KEY,
    Answer,
    AnswerCode,
    LogStart,
    LogTopics,
    OpMessage,
    Position,
    decode_answers,
    decode_position,
    encode_answers,
    encode_op,
    encode_position,
)
from bridge.core.op_message import decode_op as decode_state
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import decode_body, decode_record, encode_act, encode_end, encode_half, encode_parked
from bridge.core.record_codec import decode_parked as decode_copy
from bridge.core.transaction import Transaction, TransactionState, is_raw_id, make_transaction_id
from spark.read.decode import Decode, Records, decode_journal, decode_op, decode_parked, make_batch
from spark.read.envelope import ACT_ABANDON, ACT_CHECK, ACT_RESUME, COMMIT, OTHER_VERSION, UNKNOWN, Evidence, OpState

TX = make_transaction_id(3, 77)
STORED_MS = 100_000
MESSAGES = (Message("orders", b"k", b"v", [("a", b"1")], 2), Message("credits", None, None, [("b", None)], -1, 9))
_ACTS = {Act.CHECK: ACT_CHECK, Act.RESUME: ACT_RESUME, Act.ABANDON: ACT_ABANDON}


class Verdict(NamedTuple):
    """What a record is taken for; everything else is 0 where it is refused."""

    leg: int
    is_other_version: bool = False
    code: int | None = None
    group: str | None = None
    number: int | None = None
    remark: str | None = None


REFUSED, OTHER = Verdict(Evidence.UNREADABLE), Verdict(Evidence.UNREADABLE, is_other_version=True)


def judge_journal(stored: StoredMessage) -> Verdict:
    """As a settler takes it."""
    record = decode_record(stored)
    if isinstance(record, EndRecord):
        said = int(record.resolution), record.group, record.check_number, record.remark
        return Verdict(Evidence.END, False, *said)
    if isinstance(record, ActRecord):
        return Verdict(Evidence.ACT, False, _ACTS[record.act])
    decode_body(record, stored)
    return Verdict(Evidence.HALF, False, COMMIT if record.is_published else UNKNOWN, record.group, record.message_count)


def judge_parked(stored: StoredMessage) -> Verdict:
    """As the copy of a half message is taken when its journal record is gone."""
    half = decode_copy(stored)
    return Verdict(Evidence.PARKED, False, None, half.group, len(decode_body(half, stored)))


def judge_op(stored: StoredMessage) -> Verdict:
    """As projector, successor and waiting callers take it."""
    key, value = stored.key, stored.value
    if key is None or value is None:
        raise MalformedRecord
    if key == ANSWERS_KEY:
        decode_answers(value)
        return Verdict(Evidence.ANSWERS)
    if key == POSITION_KEY:
        return Verdict(Evidence.POSITION, number=decode_position(value).s)
    if not is_raw_id(key):
        raise MalformedRecord
    op = decode_state(key.decode(), value)
    t = op.transaction
    name = "ABANDONED" if t.abandoned else "BLOCKED" if t.blocked else t.state.value
    state = OpState[name if t.state is TransactionState.COMMITTED else t.state.value]
    return Verdict(Evidence.OP, False, state, t.group, len(op.receipts))


def told_by_codec(judge: Callable[[StoredMessage], Verdict], message: Message) -> Verdict:
    try:
        return judge(StoredMessage(0, message.key, message.value, message.headers, STORED_MS))
    except MalformedRecord:
        return REFUSED
    except UnknownRecordVersion:
        return OTHER


def told_by_job(decode: Decode, message: Message) -> Verdict:
    records = Records("half", 0, [0], [STORED_MS], [message.key], [message.value], [message.headers])
    (row,) = make_batch(decode, records).to_pylist()
    leg, code = row["leg"], row["code"]
    if leg == Evidence.UNREADABLE:
        return OTHER if code == OTHER_VERSION else REFUSED
    if leg in {Evidence.ANSWERS, Evidence.POSITION}:
        return Verdict(leg, number=row["cause"] if leg == Evidence.POSITION else None)
    assert row["tx"]
    if leg == Evidence.ACT:
        return Verdict(leg, False, code)
    if leg == Evidence.END:
        return Verdict(leg, False, code, row["grp"], row["num"] or 0, row["remark"])
    assert row["remark"] is None
    if leg == Evidence.OP:
        return Verdict(leg, False, code, row["grp"], row["n"] or 0)
    assert row["n"] == len(row["messages"])
    return Verdict(leg, False, code, row["grp"], row["n"])


# --- records as they are, and what may become of them ---


def _halves() -> list[Message]:
    one, several = HalfMessage(TX, "shop", 1, 5, "orders", 2), HalfMessage(TX, "shop", 2, 5)
    full = HalfMessage(TX, "shop", 1, 5, "orders", -1, 9, "o", 7, 3, 9, "once", STORED_MS - 9, "r-1", True, 77)
    keyed = HalfMessage(TX, "shop", 2, 5, ordering_key="o", idempotency_key="k", seen_ms=1, request="r", max_checks=3)
    return [encode_half(half, MESSAGES[: half.message_count], "half", 3) for half in (one, several, full, keyed)]


def _journal() -> list[Message]:
    ends = [
        EndRecord(TX, Resolution.COMMIT, Source.PRODUCER, 5, "shop", "r-1"),
        EndRecord(TX, Resolution.UNKNOWN, Source.CHECK, 5, "shop", None, 3, "e", 200, 17),
        EndRecord(TX, Resolution.ROLLBACK, Source.OPERATOR, 5, actor="me", reason="why"),
        EndRecord(TX, Resolution.ROLLBACK, Source.PRODUCER, 5, "shop", remark="no\u2028stock"),
        EndRecord(TX, Resolution.UNKNOWN, Source.CHECK, 5, "shop", None, 3, "e", 200, 17, remark="busy"),
    ]
    acts = [ActRecord(TX, act, "me", "why", 5, "r-1") for act in Act]
    made = [encode_end(end, "half", 3) for end in ends] + [encode_act(act, "half", 3) for act in acts]
    return _halves() + made


def _parked() -> list[Message]:
    stored = [StoredMessage(0, half.key, half.value, half.headers, STORED_MS) for half in _halves()]
    return [encode_parked(one, 3, "MAX_CHECKS", "parked", 0) for one in stored]


def _ops() -> list[Message]:
    def make(state: TransactionState, receipts: Sequence[Receipt] = (), **members: Any) -> OpMessage:
        return OpMessage(Transaction(TX, "shop", 10, 5, 77, state, since_ms=5, **members), receipts)

    committed = TransactionState.COMMITTED
    told = [Receipt("orders", 2, 99), Receipt("credits", 0, None)]
    states = [
        make(committed, told[:1], at=20, by="check", ended_ms=6, requests=("r",)),
        make(committed, told, at=20, by="check", ended_ms=6, check_times=2),
        make(committed, at=20, by="check", end=20, ended_ms=6, blocked=True, reason="gone"),
        make(committed, at=20, by="check", end=20, ended_ms=6, abandoned=True, reason="gone"),
        make(TransactionState.ROLLED_BACK, at=20, by="producer", ended_ms=6),
        make(TransactionState.PARKED, at=20, by="timer", reason="MAX_CHECKS", parked=4, max_checks=3, max_life_s=9),
        make(TransactionState.PREPARED, at=20),
    ]
    answered = [
        (Answer("r", TX, AnswerCode.UNKNOWN_TRANSACTION, None), None),
        (Answer("r", TX, AnswerCode.ALREADY, states[0]), encode_op(states[0])),
    ]
    positions = [Position(31, 10, 5, "me"), Position(31, 10, 5, "me", LogTopics("h", "o", "p"), 7, LogStart(1, 2))]
    return [
        *(Message("op", TX.encode(), encode_op(state)) for state in states),
        *(Message("op", POSITION_KEY, encode_position(position)) for position in positions),
        *(Message("op", ANSWERS_KEY, value) for value in encode_answers(answered)),
    ]


_TEXTS = st.sampled_from(
    [
        *("", "0", "1", "2", "-1", "+1", "01", "\u0663", "1_0", " 1", "1.0", "8", "12", "999999999", "-999999999"),
        *("1000000000", str(2**63 - 1), str(-(2**63)), str(2**63), "1" * 20, "00000000000000ff", "00000000000000FF"),
        *("H", "D", "E", "A", "X", "P", "C", "COMMIT", "CHECK", "RESUME", TX, TX[:-1], TX.upper()),
        *("ff", ".", "..", "a b", "\u00e4", "\x00", "x" * 120, "x" * 121, "x" * 249, "x" * 250),
    ]
)
_NAMES = st.sampled_from(
    [
        *(
            "KIND",
            "UNIQ_KEY",
            "V",
            "PGROUP",
            "N",
            "BORN",
            "REAL_TOPIC",
            "REAL_QID",
            "TS",
            "ORDERING_KEY",
            "OKEY",
            "RES",
        ),
        *("CHECK_IMMUNITY_TIME_IN_SECONDS", "MAX_CHECKS", "MAX_LIFE", "IDEMPOTENCY_KEY", "SEEN", "REQUEST", "SRC"),
        *("ACT", "ACTOR", "REASON", "REMARK", "TRANSACTION_CHECK_TIMES", "STATUS", "LATENCY", "ENDPOINT", "NEW", ""),
    ]
)
_BYTES = st.sampled_from(
    [b"", b"\x00", b"\x01", b"\x02", b"\xff", b"{", b"]", b'"', b",", b"0", b"1", b"2", b"A", b" "]
)
_VALUES = st.sampled_from(
    [
        *(None, True, False, 0, 1, 2, -1, 1.5, 10**9, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1),
        *("", "1", "ff", "xyz", "0x1f", " 1_f ", "PREPARED", "COMMITTED", "PARKED", "ALREADY", "orders", "a b", "."),
        *("x" * 250, "aw==", "aw=", "\u00e4", [], [1], ["a"], [["a", None]], [["a", "aw=="]], {}, {"v": 1}),
        *([["orders", 1, 2]], [["orders", 1, 2, 3]], [["orders", None, 2]], [["orders", 2**31, 2]]),
    ]
)


def _spoil_bytes(raw: bytes, data: st.DataObject) -> bytes:
    at = data.draw(st.integers(0, len(raw)))
    return raw[:at] + data.draw(_BYTES) + raw[at + data.draw(st.integers(0, 2)) :]


def _spoil_properties(raw: bytes, data: st.DataObject) -> bytes:
    pairs = [list(pair.partition("\x01")[::2]) for pair in raw.decode(errors="replace").split("\x02")[:-1]]
    if not pairs:
        return raw
    place, how = data.draw(st.integers(0, len(pairs) - 1)), data.draw(st.integers(0, 4))
    if how == 0:
        pairs[place][1] = data.draw(_TEXTS)
    elif how == 1:
        pairs[place][0] = data.draw(_NAMES)
    elif how == 2:
        del pairs[place]
    elif how == 3:
        pairs.insert(data.draw(st.integers(0, len(pairs))), [data.draw(_NAMES), data.draw(_TEXTS)])
    else:
        pairs.append(pairs[place])
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()


def _spoil_json(raw: bytes, data: st.DataObject) -> bytes:
    read = json.loads(raw)
    places: list[tuple[Any, Any]] = []

    def find(one: Any) -> None:
        members = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for name, member in members:
            places.append((one, name))
            find(member)

    find(read)
    if not places:
        return raw
    holder, name = data.draw(st.sampled_from(places))
    if data.draw(st.booleans()):
        holder[name] = data.draw(_VALUES)
    else:
        del holder[name]
    return json.dumps(read, ensure_ascii=data.draw(st.booleans())).encode()


def _spoil(message: Message, data: st.DataObject) -> Message:
    """Other bytes somewhere in what is read of it."""
    key, value, headers = message.key, message.value, list(message.headers)
    how = data.draw(st.integers(0, 9))
    if how == 0:
        key = data.draw(st.sampled_from([None, b"", b"~", b"?", b"\xff", TX.encode(), TX[1:].encode()]))
    elif how == 1:
        value = None if data.draw(st.booleans()) else _spoil_bytes(value or b"", data)
    elif how == 2 and headers:
        headers[-1] = (
            data.draw(st.sampled_from(["properties", "other"])),
            data.draw(st.sampled_from([None, b"", b"x"])),
        )
    elif how == 3:
        headers.append(("more", b""))
    elif how <= 6 and headers and headers[-1][1]:
        spoil = _spoil_bytes if how == 4 else _spoil_properties
        headers[-1] = (headers[-1][0], spoil(headers[-1][1], data))
    elif value and value[:1] in {b"{", b"["}:
        try:
            value = _spoil_json(value, data)
        except ValueError:  # spoiled before
            value = _spoil_bytes(value, data)
    return Message(message.topic, key, value, headers)


def _hold(data: st.DataObject, made: list[Message], judge: Callable[[StoredMessage], Verdict], decode: Decode) -> None:
    message = data.draw(st.sampled_from(made))
    for _ in range(data.draw(st.integers(0, 2))):
        message = _spoil(message, data)
    assert told_by_job(decode, message) == told_by_codec(judge, message), message


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_journal_is_read_as_settlers_do(data: st.DataObject) -> None:
    """Refused, of another version, or taken as the same (quarantine is told)."""
    _hold(data, _journal(), judge_journal, decode_journal)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_op_topic_is_read_as_successors_do(data: st.DataObject) -> None:
    """States, positions, answers."""
    _hold(data, _ops(), judge_op, decode_op)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_parked_topic_is_read_as_settlers_do(data: st.DataObject) -> None:
    """Copies of half messages."""
    _hold(data, _parked(), judge_parked, decode_parked)

"""Op messages on the wire."""

import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import Receipt
from bridge.core.op_message import (
    MAX_ANSWERS_BYTES,
    NO_ANSWERS,
    Answer,
    AnswerCode,
    LogStart,
    OpMessage,
    Position,
    _encode_any,
    decode_answers,
    decode_op,
    decode_pending,
    decode_position,
    decode_view,
    encode_answers,
    encode_op,
    encode_position,
    make_view,
)
from bridge.core.transaction import Transaction, TransactionState, make_transaction_id

ID = make_transaction_id(1, 99)
TIMES = st.integers(0, 2**41)
OFFSETS = st.integers(0, 2**62)
RECEIPTS = st.lists(st.builds(Receipt, st.just("a.b-c_d"), st.integers(0, 99), st.none() | OFFSETS), max_size=3)


@given(st.builds(
    Transaction, st.just(ID), st.just("shop.orders"), OFFSETS, TIMES, st.integers(0, 2**64 - 1),
    st.sampled_from([TransactionState.PREPARED, TransactionState.PARKED]), OFFSETS, TIMES, TIMES, st.integers(0, 99),
    st.integers(0, 99), st.none() | st.integers(1, 99), st.none() | st.integers(1, 99),
    st.none() | st.just("operator"), st.none(), st.none(), st.just(False), st.none() | st.text(), st.none() | OFFSETS,
    st.lists(st.text(max_size=3), max_size=2).map(tuple),
))  # fmt: skip
def test_live_state_comes_back_whole(transaction: Transaction) -> None:
    """Everything a successor needs is in the op message of what is not final (S, K, O)."""
    if transaction.state is TransactionState.PARKED:
        transaction = replace(transaction, next_due_ms=0)
    made = OpMessage(transaction)
    assert decode_op(ID, encode_op(made)) == made
    assert decode_view(ID, encode_op(made)) == (make_view(made), transaction.requests)


ENDED = st.builds(
    Transaction, st.just(ID), st.just("g"), OFFSETS, TIMES, st.integers(0, 2**64 - 1),
    st.sampled_from([TransactionState.COMMITTED, TransactionState.ROLLED_BACK]), OFFSETS, TIMES, st.just(0),
    st.integers(0, 9), st.just(0), st.none(), st.none(), st.sampled_from([None, "check"]), st.just(5), st.just(20),
    st.booleans(), st.sampled_from([None, "ORDER", 'a "b"']), st.none() | OFFSETS,
    st.lists(st.text(max_size=3), max_size=2).map(tuple),
)  # fmt: skip


def ended_with(**members: object) -> Transaction:
    made = Transaction(ID, "g", 3, 10, 0, TransactionState.COMMITTED, 5, 10, 0, 2, by="check", ended_ms=20)
    return replace(made, **members)


@given(ENDED, RECEIPTS.map(tuple))
@example(ended_with(reason="ORDER"), (Receipt("t", 0, 1),))
@example(ended_with(parked=6), (Receipt("t", 0, 1),))
@example(ended_with(abandoned=True), ())
@example(ended_with(by=None), (Receipt("t", 0, 1),))
@example(ended_with(blocked=True), (Receipt("t", 0, 1),))
@example(ended_with(state=TransactionState.ROLLED_BACK), (Receipt("t", 0, 1),))
def test_ended_state_and_receipts_come_back(made: Transaction, receipts: tuple[Receipt, ...]) -> None:
    """A final op message keeps who, when, where, why and for whom; what only the living need is left out."""
    kept = made if made.blocked else replace(made, end=None, ordering_hash=0, since_ms=made.appended_ms)
    value = encode_op(OpMessage(made, receipts))
    assert decode_op(ID, value) == OpMessage(kept, receipts)
    assert decode_view(ID, value) == (make_view(OpMessage(kept, receipts)), made.requests)


def test_members_are_those_of_the_format() -> None:
    """`v` is the first member; members without meaning for the state are absent."""
    made = Transaction(ID, "g", 3, 10, 77, TransactionState.ROLLED_BACK, 5, 10, 0, 0, by="producer", end=5, ended_ms=20)
    raw = encode_op(OpMessage(made)).decode()
    assert raw.startswith('{"v":1,"state":"ROLLED_BACK"')
    assert list(json.loads(raw)) == [
        "v",
        "state",
        "group",
        "at",
        "half",
        "appended_ms",
        "by",
        "ended_ms",
        "check_times",
    ]


def test_published_op_message_is_byte_for_byte_this() -> None:
    """What nearly all of the op topic consists of; readers of other languages slice it."""
    made = Transaction(
        ID, "g", 3, 10, 77, TransactionState.COMMITTED, 5, 10, 0, 2, by="check", end=5, ended_ms=20,
        requests=("a1-2", 'b"'),
    )  # fmt: skip
    assert encode_op(OpMessage(made, [Receipt("orders", 0, 7), Receipt("t", 1, None)])) == (
        b'{"v":1,"state":"COMMITTED","group":"g","at":5,"half":3,"appended_ms":10,"by":"check","ended_ms":20,'
        b'"check_times":2,"receipts":[["orders",0,7],["t",1,null]],"requests":["a1-2","b\\""]}'
    )
    assert encode_op(OpMessage(replace(made, requests=()), [Receipt("t", 1, 2)])).endswith(b'"receipts":[["t",1,2]]}')


@given(ENDED, RECEIPTS, st.lists(st.text(max_size=4), max_size=2))
@example(ended_with(), [Receipt("t", 0, 1)], ["a-1"])
@example(ended_with(), [Receipt("t", 0, None)], [])
@example(ended_with(blocked=True), [Receipt("t", 0, 1)], ["a-1"])
def test_usual_op_messages_are_written_as_all_others(
    made: Transaction, receipts: list[Receipt], names: list[str]
) -> None:
    """One message, one caller: the short way and the general one write the same bytes."""
    t = replace(made, requests=tuple(names))
    assert encode_op(OpMessage(t, receipts)) == _encode_any(t, receipts).encode()


def test_position_is_byte_for_byte_this() -> None:
    """Written with every Kafka transaction."""
    assert encode_position(Position(1, 2, 3, "me")) == b'{"v":1,"s":1,"l":2,"o":3,"owner":"me"}'


@given(
    st.builds(
        Position, OFFSETS, OFFSETS, OFFSETS, st.text(), s_ms=st.none() | TIMES,
        start=st.builds(LogStart, OFFSETS, OFFSETS),
    )
)  # fmt: skip
def test_position_comes_back(position: Position) -> None:
    """s, l, o and the owner."""
    assert decode_position(encode_position(position)) == position


def test_answers_are_split_below_their_limit_and_carry_the_state() -> None:
    """2,000 answers with states fit into a few records, each below 256 kB, none lost."""
    op = encode_op(OpMessage(Transaction(ID, "g", 3, 10, 77, TransactionState.COMMITTED, by="producer", ended_ms=2)))
    answers = [(Answer(f"r{n}", ID, AnswerCode.ALREADY, None), op) for n in range(2000)]
    answers.append((Answer("last", ID, AnswerCode.UNKNOWN_TRANSACTION, None), None))
    values = encode_answers(answers)
    assert all(len(value) <= MAX_ANSWERS_BYTES + 100 for value in values)
    found = [answer for value in values for answer in decode_answers(value)]
    assert [answer.request for answer in found] == [answer.request for answer, _ in answers]
    assert found[0].op is not None
    assert found[0].op.transaction.state is TransactionState.COMMITTED
    assert found[-1].op is None


def test_answers_show_their_state_and_come_back() -> None:
    """State and op message as they stand, or neither; nothing is written that need not be."""
    ended = Transaction(ID, "g", 3, 10, 0, TransactionState.COMMITTED, 5, 10, by="check", ended_ms=20)
    known = Answer("r1", ID, AnswerCode.ALREADY, OpMessage(ended))
    unknown = Answer("r2", ID, AnswerCode.UNKNOWN_TRANSACTION, None)
    op = encode_op(OpMessage(ended))
    (value,) = encode_answers([(known, op), (unknown, None)])
    assert value == (
        b'{"v":1,"answers":[{"request":"r1","id":"%b","answer":"ALREADY","state":"COMMITTED","op":%b},'
        b'{"request":"r2","id":"%b","answer":"UNKNOWN_TRANSACTION"}]}' % (ID.encode(), op, ID.encode())
    )
    assert decode_answers(value) == [known, unknown]


@pytest.mark.parametrize(("excess", "counts"), [(0, [2, 2]), (1, [1, 1, 1, 1])])
def test_answers_fill_a_record_up_to_its_limit(excess: int, counts: list[int]) -> None:
    """One byte too many opens the next; the first and every later record hold as much."""
    empty = len(encode_answers([(Answer("", ID, AnswerCode.ALREADY, None), None)])[0]) - len('{"v":1,"answers":[]}')
    short = Answer("s" * 100, ID, AnswerCode.ALREADY, None)
    rest = MAX_ANSWERS_BYTES - 2 * empty - len(short.request) - len(",") + excess
    long = Answer("l" * rest, ID, AnswerCode.ALREADY, None)
    values = encode_answers([(answer, None) for answer in (long, short, long, short)])
    assert [len(decode_answers(value)) for value in values] == counts


@given(st.binary(max_size=80))
def test_any_bytes_are_an_op_message_or_a_named_error(raw: bytes) -> None:
    """A foreign record in the op topic never raises anything else."""
    assume(raw != NO_ANSWERS)
    for decode in (lambda value: decode_op(ID, value), decode_position, decode_answers):
        with pytest.raises((MalformedRecord, UnknownRecordVersion)):
            decode(raw)


@pytest.mark.parametrize("value", [b'{"v":2}', b'{"state":"PREPARED"}'])
def test_another_version_is_told_apart(value: bytes) -> None:
    """A newer op message is not rubbish."""
    with pytest.raises(UnknownRecordVersion):
        decode_op(ID, value)


@pytest.mark.parametrize(
    "value",
    [
        b"[]",
        b'{"v":1}',
        b'{"v":1,"state":"GONE","group":"g","at":1,"half":1,"appended_ms":1,"check_times":0}',
        b'{"v":1,"state":"PREPARED","group":"g","at":1,"half":1,"appended_ms":1,"check_times":0,"okey":"x"}',
    ],
)
def test_what_is_not_a_state_is_malformed(value: bytes) -> None:
    """Our version, but not what the format says: quarantined."""
    with pytest.raises(MalformedRecord):
        decode_op(ID, value)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb"])
@pytest.mark.parametrize("member", ["group", "by", "receipts"])
def test_name_that_cannot_be_written_as_it_is_makes_no_state(member: str, name: str) -> None:
    """It would be unreadable when a settler writes it again; only a foreign writer makes one."""
    state = {"v": 1, "state": "COMMITTED", "group": "g", "at": 5, "half": 3, "appended_ms": 1, "by": "check"}
    state |= {"ended_ms": 2, "check_times": 1, "receipts": [["t", 0, 7]]}
    state[member] = [[name, 0, 7]] if member == "receipts" else name
    for value in (json.dumps(state).encode(), json.dumps(state | {"base": 0}).encode()):
        for decode in (decode_op, decode_view):
            with pytest.raises(MalformedRecord, match="is no name"):
                decode(ID, value)


def test_name_may_be_escaped() -> None:
    """What it means counts, not how a foreign writer spells it."""
    value = b'{"v":1,"state":"PREPARED","group":"\\u0067","at":5,"half":3,"appended_ms":1,"check_times":0}'
    assert decode_pending(value) is None
    assert decode_op(ID, value).transaction.group == "g"

"""Rows of evidence are what the bridge wrote, read by other code than the bridge's."""

from bridge.core.message import Message, Receipt, StoredMessage
from bridge.core.op_message import OpMessage, Position, encode_op, encode_position
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_act, encode_end, encode_half, encode_parked, encode_published
from bridge.core.transaction import Transaction, TransactionState
from tests.support.history.content import make_content, mark, mark_headers
from tests.support.history.evidence import ActRow, EndRow, HalfRow, OpRow, ParkedRow, PositionRow, RealRecord
from tests.support.history.raw_records import read_journal, read_op, read_parked, read_real

ID = "00" + "a" * 25 + "0"
MESSAGE = Message("orders", b"\xff", None, [("a", b""), ("a", None)], 2, 5)
OTHER = Message("credits", None, b"", [])


def lie(message: Message, offset: int, stored_ms: int) -> tuple[int, StoredMessage]:
    return 3, StoredMessage(offset, message.key, message.value, message.headers, stored_ms)


def test_half_message_of_one_message_is_read() -> None:
    """Its bytes lie in the record, the rest in properties."""
    half = HalfMessage(ID, "g", 1, 9, "orders", 2, 5, ordering_key="O", idempotency_key="K", seen_ms=100)
    record = lie(encode_half(half, [MESSAGE], "half", 3), 7, 30_100)
    (row,) = read_journal([record])
    assert row == HalfRow(3, 7, 30_100, ID, "g", (make_content(MESSAGE),), "O", "K")


def test_half_message_of_several_messages_is_read() -> None:
    """A framed list; published at once."""
    half = HalfMessage(ID, "g", 2, 9, is_published=True)
    (row,) = read_journal([lie(encode_half(half, [MESSAGE, OTHER], "half", 3), 7, 40)])
    assert row == HalfRow(3, 7, 40, ID, "g", (make_content(MESSAGE), make_content(OTHER)), is_published=True)


def test_half_message_appended_too_late_is_void() -> None:
    """More than 30 s after its look-up, if it has a key."""
    keyed = HalfMessage(ID, "g", 1, 9, "orders", idempotency_key="K", seen_ms=100)
    unkeyed = HalfMessage(ID, "g", 1, 9, "orders")
    rows = read_journal([lie(encode_half(half, [OTHER], "half", 3), 7, 30_101) for half in (keyed, unkeyed)])
    assert [isinstance(row, HalfRow) and row.is_void for row in rows] == [True, False]


def test_ends_are_read() -> None:
    """A producer's and a check's; foreign records are not."""
    producer = EndRecord(ID, Resolution.COMMIT, Source.PRODUCER, 9)
    check = EndRecord(ID, Resolution.UNKNOWN, Source.CHECK, 9, "g", check_number=4, endpoint="http://e", status=200)
    records = [lie(encode_end(end, "half", 3), 7 + at, 40) for at, end in enumerate((producer, check))]
    foreign = (3, StoredMessage(9, b"k", b"v", (), 41))
    assert list(read_journal([*records, foreign])) == [
        EndRow(3, 7, 40, ID, "COMMIT"),
        EndRow(3, 8, 40, ID, "UNKNOWN", "C", "g", 4),
    ]


def test_acts_are_read() -> None:
    """What an operator wanted, and of which transaction."""
    act = encode_act(ActRecord(ID, Act.ABANDON, "ada", "gone for good", 9), "half", 3)
    assert list(read_journal([lie(act, 7, 40)])) == [ActRow(3, 7, 40, ID, "ABANDON")]


def test_abandoned_op_message_is_read() -> None:
    """It is blocked no more, and keeps the reason."""
    transaction = Transaction(ID, "g", 1, 30, 5, TransactionState.COMMITTED, 2, end=1, abandoned=True, reason="ORDER")
    states, _ = read_op([lie(Message("op", ID.encode(), encode_op(OpMessage(transaction))), 7, 41)])
    assert [(row.state, row.blocked, row.abandoned, row.why) for row in states] == [("COMMITTED", False, True, "ORDER")]


def test_op_messages_and_positions_are_read() -> None:
    """Answers that are no state are left out."""
    transaction = Transaction(
        ID, "g", 1, 30, 5, TransactionState.COMMITTED, 2, check_times=1, by="check", end=2, ended_ms=40, parked=6
    )
    receipts = (Receipt("orders", 2, 8), Receipt("credits", 0, None))
    state = Message("op", ID.encode(), encode_op(OpMessage(transaction, receipts)))
    position = Message("op", b"~", encode_position(Position(12, 3, 4, "me")))
    answers = Message("op", b"?", b'{"v":1,"answers":[]}')
    states, positions = read_op([lie(state, 7, 41), lie(answers, 8, 41), lie(position, 9, 41)])
    assert states == [OpRow(3, 7, ID, "COMMITTED", "g", 2, 30, 40, False, 1, "check", 6, receipts, 41)]
    assert positions == [PositionRow(3, 9, 12)]


def test_blocked_op_message_is_read() -> None:
    """Blocked, with what a successor needs."""
    transaction = Transaction(
        ID,
        "g",
        1,
        30,
        5,
        TransactionState.COMMITTED,
        2,
        by="producer",
        end=2,
        ended_ms=40,
        blocked=True,
        reason="SPLIT",
    )
    states, _ = read_op([lie(Message("op", ID.encode(), encode_op(OpMessage(transaction))), 7, 41)])
    assert states == [OpRow(3, 7, ID, "COMMITTED", "g", 2, 30, 40, True, 0, "producer", stored_ms=41, why="SPLIT")]


def test_parked_op_message_says_why() -> None:
    """And how many checks were answered in earlier lives; one without a reason is not taken for good."""
    transaction = Transaction(
        ID, "g", 1, 30, 5, TransactionState.PARKED, 2, check_times=7, by="timer", base=4, reason="X"
    )
    message = Message("op", ID.encode(), encode_op(OpMessage(transaction)))
    unreasoned = Message("op", ID.encode(), (message.value or b"").replace(b'"why":"X",', b""))
    states, _ = read_op([lie(message, 7, 41), lie(unreasoned, 8, 41)])
    assert [(row.state, row.check_times, row.base, row.why) for row in states] == [
        ("PARKED", 7, 4, "X"),
        ("PARKED", 7, 4, "?"),
    ]


def test_parked_record_is_read() -> None:
    """The half message as it was."""
    half = HalfMessage(ID, "g", 1, 9, "orders", 2, 5)
    _, stored = lie(encode_half(half, [MESSAGE], "half", 3), 7, 40)
    parked = encode_parked(stored, 15, "MAX_CHECKS", "parked", 0)
    assert list(read_parked([lie(parked, 2, 50)])) == [ParkedRow(2, ID, (make_content(MESSAGE),))]


def test_published_record_is_read_without_its_id_header() -> None:
    """The id header is the bridge's, the others are the user's."""
    published = encode_published(MESSAGE, ID, 2, 5, has_id=True)
    (row,) = read_real("orders", [lie(published, 8, 5)])
    assert row == RealRecord("orders", 3, 8, 5, mark(b"\xff"), None, mark_headers(MESSAGE.headers), ID)
    bare = encode_published(MESSAGE, ID, 2, 5, has_id=False)
    (row,) = read_real("orders", [lie(bare, 8, 5)])
    assert row == RealRecord("orders", 3, 8, 5, mark(b"\xff"), None, mark_headers(MESSAGE.headers), None)


def test_id_header_in_the_wrong_place_is_the_users() -> None:
    """Only the last one is the bridge's; elsewhere the list is not as prepared."""
    headers = [("transaction-id", ID.encode()), ("a", b"")]
    (row,) = read_real("orders", [lie(Message("orders", None, b"v", headers), 8, 5)])
    assert (row.transaction_id, row.headers) == (None, mark_headers(headers))

"""Packed rows are a dictionary of what is pending, and a packed queue is a queue."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.message import Message
from bridge.core.op_message import OpMessage, decode_op, encode_op
from bridge.core.pending_table import PendingTable
from bridge.core.position import LongQueue, LowWatermarkConfig, QueueEntry
from bridge.core.queue_state import RecoveredOps
from bridge.core.record import EndRecord, HalfMessage, Resolution, Source
from bridge.core.transaction import COMMITTED, PARKED, PREPARED, Transaction, make_transaction_id
from tests.support.queue_log import QueueLog

_INT64 = st.integers(-(2**62), 2**62 - 1)
_DELAY = st.integers(-(2**31), 2**31 - 1)
_LIMIT = st.none() | st.integers(0, 999_999_999)
_TRANSACTIONS = st.builds(
    lambda n, group, half, appended_ms, at, okey, due_ms, times, most, life, parked: Transaction(
        make_transaction_id(n % 4, n), group, half, appended_ms, okey, at=half + at, since_ms=appended_ms,
        next_due_ms=appended_ms + due_ms,
        check_times=times, max_checks=most, max_life_s=life, parked=parked,
    ),
    st.integers(0, 40), st.sampled_from(["a", "b", "c"]), _INT64, _INT64, _DELAY, st.integers(0, 2**64 - 1), _DELAY,
    st.integers(0, 65_535), _LIMIT, _LIMIT, st.none() | st.integers(0, 2**31 - 1),
)  # fmt: skip


@given(st.lists(st.tuples(st.booleans(), _TRANSACTIONS, _INT64), max_size=120))
def test_rows_are_what_was_put_in(steps: list[tuple[bool, Transaction, int]]) -> None:
    """With their bounds, each member of them, whatever came and went before."""
    rows, model = PendingTable(), dict[str, tuple[Transaction, int]]()
    for is_added, t, bound in steps:
        id_ = t.transaction_id
        if is_added and id_ not in model:
            assert rows.add(t, bound)
            model[id_] = t, bound
        else:
            assert rows.pop(id_) == model.pop(id_, None)
        known = model.get(id_)
        assert rows.find(id_) == (known and (known[0].half, known[1]))
        assert rows.get(id_) == (known and known[0])
        assert (id_ in rows, rows.count) == (known is not None, len(model))
    assert {t.transaction_id: t for t in rows} == {i: t for i, (t, _) in model.items()}


_WRITTEN = _TRANSACTIONS | st.builds(
    lambda t, change: replace(t, **change), _TRANSACTIONS,
    st.sampled_from([
        {"base": 1}, {"since_ms": 77}, {"requests": ("q",)}, {"state": PARKED, "reason": "r"}, {"check_times": 70_000},
        {"state": COMMITTED, "by": "producer", "ended_ms": 7}, {"state": COMMITTED, "by": "check", "blocked": True},
    ]),
)  # fmt: skip


@given(st.lists(_WRITTEN, max_size=60))
def test_the_last_op_message_of_each_is_what_a_take_over_knows(written: list[Transaction]) -> None:
    """In a row with its offset, or decoded; and there is a mark for each live one at its offset."""
    ops, last = RecoveredOps(many=3), dict[str, tuple[int, Transaction]]()
    for offset, t in enumerate(written):
        value = encode_op(OpMessage(t))
        ops.add(offset, t.transaction_id.encode(), value, -offset)
        last.pop(t.transaction_id, None)
        last[t.transaction_id] = offset, decode_op(t.transaction_id, value).transaction
    others = {op.transaction.transaction_id: (op.offset, op.transaction) for op in ops.others()}
    packed = {t.transaction_id: (ops.rows.pop(t.transaction_id), t) for t in list(ops.rows)}
    assert others | {i: (found[1], t) for i, (found, t) in packed.items() if found is not None} == last
    assert list(others) == [i for i in last if i in others], "in the order of offsets"
    assert all(t.state is PREPARED for _, t in packed.values())
    marks = list(LongQueue(lambda _: True, 1, ops.marks))
    live = [QueueEntry(offset, -offset, i) for i, (offset, t) in last.items() if t.is_live]
    assert [mark for mark in marks if mark in live] == live


def test_many_rows_come_and_go() -> None:
    """Buckets are split and joined; what is left in them is found."""
    rows = PendingTable()
    ids = [make_transaction_id(1, n * 7919) for n in range(3_000)]
    all_of_them = [Transaction(id_, f"g{n % 3}", n, n, n, since_ms=n) for n, id_ in enumerate(ids)]
    for t in all_of_them:
        assert rows.add(t, t.half)
    for t in all_of_them[:2_990]:
        assert rows.pop(t.transaction_id) == (t, t.half)
        assert rows.pop(t.transaction_id) is None
    assert sorted(rows, key=lambda t: t.half) == all_of_them[2_990:]
    for t in all_of_them[2_990:]:
        assert rows.pop(t.transaction_id) == (t, t.half)
    assert (rows.count, list(rows)) == (0, [])


def test_what_a_row_cannot_hold_is_not_taken() -> None:
    """Nothing about a transaction gets lost: it stays an object then."""
    rows = PendingTable()
    plain = Transaction(make_transaction_id(1, 1), "g", 5, 7, 9, since_ms=7)
    unusual = [
        replace(plain, since_ms=8), replace(plain, base=1), replace(plain, by="operator"), replace(plain, reason="r"),
        replace(plain, state=PARKED), replace(plain, state=COMMITTED, blocked=True), replace(plain, parked=2**31),
        replace(plain, requests=("q",)), replace(plain, next_due_ms=2**40), replace(plain, check_times=2**16),
        replace(plain, transaction_id="short"), replace(plain, half=2**70),
    ]  # fmt: skip
    assert [t for t in unusual if rows.add(t, 0)] == []
    assert (rows.count, list(rows)) == (0, [])


def test_row_knows_its_copy_in_the_parked_topic() -> None:
    """A pause in which a million of them grow old, and are copied, makes no objects of them, nor does a take-over."""
    rows, ops = PendingTable(), RecoveredOps()
    copied = Transaction(make_transaction_id(1, 1), "g", 5, 7, 9, at=5, since_ms=7, parked=0)
    assert rows.add(copied, 3)
    assert rows.find(copied.transaction_id) == (5, 3)
    assert [row.raw_id.decode() for row in rows.due_rows()] == [copied.transaction_id]
    assert rows.pop(copied.transaction_id) == (copied, 3)
    ops.add(8, copied.transaction_id.encode(), encode_op(OpMessage(copied)), 7)
    assert (list(ops.rows), list(ops.others())) == ([copied], [])


@given(st.lists(st.sampled_from(["add", "drop", "first", "pack"]), max_size=200))
def test_long_queue_gives_the_first_that_counts(steps: list[str]) -> None:
    """However much of it is packed."""
    counting: dict[str, QueueEntry] = {}
    queue = LongQueue(lambda entry: counting.get(entry.transaction_id) == entry, 2)
    for number, step in enumerate(steps):
        if step == "add":
            entry = QueueEntry(number, -number, make_transaction_id(0, number))
            counting[entry.transaction_id] = entry
            queue.append(entry)
        elif step == "drop" and counting:
            del counting[list(counting)[number % len(counting)]]
        elif step == "pack":
            queue.pack()
        assert queue.first() == next(iter(counting.values()), None)
        assert [entry for entry in queue if entry in counting.values()] == list(counting.values())


def test_row_that_something_happened_to_rests_with_its_bound() -> None:
    """An end that changed nothing leaves what a successor must read as it was (D)."""
    log = QueueLog(LowWatermarkConfig(15, 6, 40, 5, 60, max_objects=0))
    state = log.restore()
    id_ = make_transaction_id(0, 1)
    log.append(HalfMessage(id_, "g", 1, 0, "t"), [Message("t", b"k", b"v")])
    for _ in range(20):
        log.append(EndRecord(make_transaction_id(0, 2), Resolution.COMMIT, Source.PRODUCER, 0))
    log.decide(state, 30, set())
    log.decide(state, 30, set())
    assert (log.position.l, state.live, state.rows.count) == (21, {}, 1)
    log.append(EndRecord(id_, Resolution.UNKNOWN, Source.PRODUCER, 0, request="r"))
    log.decide(state, 30, set())
    for _ in range(20):
        log.append(EndRecord(id_, Resolution.UNKNOWN, Source.PRODUCER, 0))
        log.decide(state, 30, set())
        assert id_ in log.restore().rows

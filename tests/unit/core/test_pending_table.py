"""Packed rows are a dictionary of what is pending, and a packed queue is a queue."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.long_queue import LongQueue, QueueEntry
from bridge.core.low_watermarks import LowWatermarkConfig
from bridge.core.message import Message
from bridge.core.pending_table import PendingTable
from bridge.core.record import EndRecord, HalfMessage, Resolution, Source
from bridge.core.transaction import COMMITTED, PARKED, Transaction, make_transaction_id
from tests.support.queue_log import QueueLog

_INT64 = st.integers(-(2**63), 2**63 - 1)
_LIMIT = st.none() | st.integers(0, 999_999_999)
_TRANSACTIONS = st.builds(
    lambda n, group, half, appended_ms, at, okey, due_ms, times, most, life: Transaction(
        make_transaction_id(n % 4, n), group, half, appended_ms, okey, at=at, since_ms=appended_ms, next_due_ms=due_ms,
        check_times=times, max_checks=most, max_life_s=life,
    ),
    st.integers(0, 40), st.sampled_from(["a", "b", "c"]), _INT64, _INT64, _INT64, st.integers(0, 2**64 - 1), _INT64,
    st.integers(0, 999_999_999), _LIMIT, _LIMIT,
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
        replace(plain, state=PARKED), replace(plain, state=COMMITTED, blocked=True), replace(plain, parked=4),
        replace(plain, requests=("q",)), replace(plain, max_checks=2**40), replace(plain, check_times=2**33),
        replace(plain, transaction_id="short"), replace(plain, half=2**70),
    ]  # fmt: skip
    assert [t for t in unusual if rows.add(t, 0)] == []
    assert (rows.count, list(rows)) == (0, [])


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

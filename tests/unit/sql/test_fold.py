"""Entries -> rows, counts and events, without a database."""

import json

import pytest
from msgspec.structs import replace

from bridge.core.check_rules import CheckTimes
from bridge.core.message import Message, Receipt, StoredMessage
from bridge.core.op_message import OpMessage
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_act, encode_end
from bridge.core.transaction import MessageSummary, Transaction, TransactionState, make_transaction_id
from bridge.sql.chunking import HalfEntry, OpEntry, RawEntry
from bridge.sql.fold import Answered, Fold
from bridge.sql.rows import ProjectedRow, counted_as, make_row

ID = make_transaction_id(3, 7)
PREPARED = Transaction(ID, "shop", 10, 1_000, 1, at=10)
COMMITTED = replace(PREPARED, state=TransactionState.COMMITTED, at=11, end=11, by="producer", ended_ms=1_011)
COUNTS = ("prepared", "committed", "blocked", "rolled_back", "parked", "abandoned")


def half(offset: int = 10, *topics: str) -> HalfEntry:
    messages = [MessageSummary(topic, b"k", 1, -1, None) for topic in topics or ("orders",)]
    return HalfEntry(offset, 990 + offset, ID, HalfMessage(ID, "shop", len(messages), 5), messages)


def op(t: Transaction, offset: int = 0, *receipts: Receipt) -> OpEntry:
    return OpEntry(offset, 2_000 + offset, OpMessage(t, receipts))


def end(offset: int, resolution: Resolution = Resolution.COMMIT, **members: object) -> RawEntry:
    record = replace(EndRecord(ID, resolution, Source.PRODUCER, 1), **members)
    raw: Message = encode_end(record, "half", 3)
    return RawEntry(offset, ID, StoredMessage(offset, raw.key, raw.value, raw.headers, 1_000 + offset))


def fold(
    *ops: OpEntry, halves: list[HalfEntry] | None = None, others: list[RawEntry] | None = None,
    known: ProjectedRow | None = None,
) -> Fold:  # fmt: skip
    made = Fold(3, {ID: known} if known else {}, {"shop": CheckTimes()}.__getitem__)
    made.apply([half()] if halves is None else halves, ops, others or [])
    return made


def known_row(t: Transaction = PREPARED) -> ProjectedRow:
    """A row as an earlier chunk left it."""
    row = make_row(ID, "shop", 3, t.half, t.appended_ms)
    row.has_half, row.is_new = 1, False
    row.state, row.blocked, row.live = t.state.value, int(t.blocked), int(t.is_live)
    row.why, row.ended_ms, row.resolved_by, row.at_offset = t.reason, t.ended_ms, t.by, t.at
    row.was = counted_as(row)
    return row


def counts_of(made: Fold) -> dict[str, int]:
    return {name: n for name, n in zip(COUNTS, made.counts.get("shop", [0] * 6), strict=True) if n}


def told(made: Fold) -> list[tuple[object, ...]]:
    """Its events: topic, offset, time, type, by whom, members. The topic is 0 for the journal, 1 for op."""
    assert {event.id for event in made.events} <= {10 * 1024 + 3}
    return [(*event[1:-1], json.loads(event.members)) for event in made.events]


def test_half_messages_of_a_chunk_are_all_described_and_counted() -> None:
    """Each with what its producer asked for, its messages, and a key for every topic."""
    other = make_transaction_id(3, 8)
    rare = HalfMessage(
        other, "shop", 2, 6, immunity_s=60, max_checks=3, max_life_s=90, ordering_key="o", idempotency_key="key"
    )
    messages = [MessageSummary("orders", b"k", 1, -1, None), MessageSummary("credits", None, None, 4, 17)]
    made = fold(halves=[half(), HalfEntry(12, 1_002, other, rare, messages)])
    row = made.rows[other]
    assert counts_of(made) == {"prepared": 2}
    assert (row.transaction_id, row.appended_ms, row.has_half, row.born_ms) == (other, 1_002, 1, 6)
    assert (row.first_check_ms, row.next_due_ms) == (61_002, 61_002)
    assert (row.max_checks, row.max_life_s, row.ordering_key, row.idempotency_key) == (3, 90, "o", "key")
    assert json.loads(row.messages or "") == [["orders", "aw==", 1, -1, None], ["credits", None, None, 4, 17]]
    assert made.keys == [
        ("orders", 5, 10 * 1024 + 3, 0, b"k"),
        ("orders", 6, 12 * 1024 + 3, 0, b"k"),
        ("credits", 6, 12 * 1024 + 3, 1, None),
    ]
    assert (list(made.moved), made.enriched) == ([ID, other], {})


def test_half_message_alone_is_prepared_and_counted() -> None:
    """With the first check that its group's settings give it."""
    made = fold()
    row = made.rows[ID]
    assert (row.state, row.id, row.next_due_ms, row.live) == ("PREPARED", 10 * 1024 + 3, 7_000, 1)
    assert counts_of(made) == {"prepared": 1}


def test_prepared_and_ended_in_one_chunk_is_one_new_row() -> None:
    """The usual case: written once, in its last state."""
    made = fold(op(COMMITTED, 0, Receipt("orders", 1, 5)), others=[end(11)])
    row = made.rows[ID]
    assert (row.state, row.live, row.published_ms, row.next_due_ms) == ("COMMITTED", 0, 2_000, None)
    assert json.loads(row.receipts or "") == [["orders", 1, 5]]
    assert counts_of(made) == {"prepared": 1, "committed": 1}
    assert made.events == []


def test_counts_move_by_comparing_with_the_stored_state() -> None:
    """A state that was counted before is not counted again (C)."""
    parked = known_row(replace(PREPARED, state=TransactionState.PARKED))
    assert counts_of(fold(op(COMMITTED), halves=[], known=parked)) == {"parked": -1, "committed": 1}
    assert counts_of(fold(op(COMMITTED), halves=[], known=known_row(COMMITTED))) == {}


def test_blocked_is_counted_beside_committed_until_it_is_published() -> None:
    """SPLIT, a reason, then published: three op messages, one commit."""
    split = replace(COMMITTED, blocked=True, reason="SPLIT")
    made = fold(op(split), halves=[], known=known_row())
    assert counts_of(made) == {"committed": 1, "blocked": 1}
    gone = replace(split, reason="UNKNOWN_TOPIC")
    made = fold(op(gone, 1), op(replace(COMMITTED, at=12), 2), halves=[], known=known_row(split))
    assert counts_of(made) == {"blocked": -1}
    assert told(made) == [(1, 1, 2_001, "blocked", None, {"why": "UNKNOWN_TOPIC"})]


def test_op_message_of_an_unknown_half_makes_a_row_and_the_half_enriches_it() -> None:
    """The journal has forgotten it, or comes later in a rebuild: state and counts are right at once."""
    made = fold(op(COMMITTED), halves=[])
    row = made.rows[ID]
    assert (row.has_half, row.messages, row.born_ms, row.transaction_id) == (0, None, 1_000, ID)
    assert counts_of(made) == {"prepared": 1, "committed": 1}
    row.is_new, row.was = False, counted_as(row)
    later = fold(halves=[half()], known=row)
    assert later.enriched == {ID: row}
    assert (row.has_half, row.born_ms, row.state) == (1, 5, "COMMITTED")
    assert counts_of(later) == {}
    assert len(later.keys) == 1


def test_id_prepared_again_after_it_was_forgotten_is_another_transaction() -> None:
    """The settler decided it again; the old state must not be taken for it (30)."""
    again = replace(PREPARED, half=90, at=90, appended_ms=5_000)
    made = fold(op(again), halves=[half(90)], known=known_row(COMMITTED))
    assert (made.rows[ID].state, made.rows[ID].queue_offset) == ("PREPARED", 90)
    assert counts_of(made) == {"prepared": 1}
    late = fold(op(COMMITTED), halves=[], known=made.rows[ID])
    assert late.rows[ID].state == "PREPARED"


def test_rewritten_op_message_changes_nothing_that_is_shown() -> None:
    """A repeated prepare makes the settler write the op message again."""
    known = known_row(COMMITTED)
    known.published_ms = 1_500
    made = fold(op(COMMITTED, 9), halves=[half(20)], known=known)
    assert (made.rows[ID].published_ms, counts_of(made), made.events, made.keys) == (1_500, {}, [], [])


def test_end_before_its_half_message_is_no_event() -> None:
    """Nobody knew the transaction then."""
    made = fold(others=[end(9), end(12, Resolution.ROLLBACK)])
    assert told(made) == [(0, 12, 1_012, "end", "producer", {"resolution": "ROLLBACK", "effective": False})]


def test_same_topic_and_key_are_indexed_once() -> None:
    """Several messages of a transaction must not show it twice in a page."""
    made = fold(halves=[half(10, "orders", "credits", "orders")])
    assert [(key.topic, key.position) for key in made.keys] == [("orders", 0), ("credits", 1)]


def test_unparsable_end_is_quarantined() -> None:
    """Only its own transaction's timeline misses it."""
    broken = end(12)
    headers = (("properties", b"KIND\x01E\x02UNIQ_KEY\x01" + ID.encode() + b"\x02V\x011\x02"),)
    made = fold(others=[replace(broken, stored=replace(broken.stored, headers=headers))])
    assert [offset for offset, _ in made.quarantined] == [12]


ABANDON = ActRecord(ID, Act.ABANDON, "ann", "its topic is gone", 1)


def act(offset: int, record: ActRecord = ABANDON) -> RawEntry:
    raw = encode_act(record, "half", 3)
    return RawEntry(offset, ID, StoredMessage(offset, raw.key, raw.value, raw.headers, 1_000 + offset))


def test_abandoned_is_counted_beside_committed_and_blocked_no_more() -> None:
    """Its own count, its own time, nothing left to do, and the operator's act on the timeline (C)."""
    blocked = replace(COMMITTED, blocked=True, reason="UNKNOWN_TOPIC")
    abandoned = replace(blocked, blocked=False, abandoned=True, at=20)
    made = fold(op(abandoned, 7), halves=[], others=[end(11), act(20)], known=known_row(blocked))
    row = made.rows[ID]
    assert (row.state, row.blocked, row.live, row.published_ms, row.abandoned_ms) == ("COMMITTED", 0, 0, None, 2_007)
    assert counts_of(made) == {"blocked": -1, "abandoned": 1}
    members = {"actor": "ann", "reason": "its topic is gone", "effective": True}
    assert told(made) == [(0, 20, 1_020, "abandoned", "operator", members)]
    again = fold(op(abandoned, 9), halves=[], known=row)
    assert (again.rows[ID].abandoned_ms, counts_of(again)) == (2_007, {})


def test_abandoning_what_was_published_meanwhile_is_told_without_effect() -> None:
    """The journal decides: a publication before the act stands."""
    made = fold(
        op(replace(COMMITTED, at=15), 7, Receipt("orders", 0, 1)), halves=[], others=[act(20)], known=known_row()
    )
    assert counts_of(made) == {"committed": 1}
    assert [json.loads(e.members)["effective"] for e in made.events if e.type == "abandoned"] == [False]


BLOCKED = replace(COMMITTED, blocked=True, reason="UNKNOWN_TOPIC")
PARKED = replace(PREPARED, state=TransactionState.PARKED, reason="MAX_LIFE", parked=4, check_times=2, by="timer")


@pytest.mark.parametrize("is_apart", [False, True], ids=["one chunk", "two"])
def test_repeat_of_one_whose_half_message_is_gone_is_no_other_transaction(*, is_apart: bool) -> None:
    """Read anew after retention; the op message was written again when the repeat was decided (F, C)."""
    ended, repeat = op(COMMITTED, 7), half(50)
    if is_apart:
        row = fold(halves=[repeat]).rows[ID]
        row.is_new = False
        made = fold(ended, halves=[], known=row)
        assert counts_of(made) == {"committed": 1}
    else:
        made = fold(ended, halves=[repeat])
        assert counts_of(made) == {"prepared": 1, "committed": 1}
    row = made.rows[ID]
    assert (row.state, row.queue_offset, row.at_offset) == ("COMMITTED", COMMITTED.half, COMMITTED.at)
    assert row.appended_ms == COMMITTED.appended_ms


def test_op_message_of_an_earlier_transaction_with_the_id_says_nothing_of_the_present_one() -> None:
    """It is older than the half message: everybody had forgotten the earlier one by then."""
    made = fold(op(COMMITTED, 7), halves=[half(3_000)])
    assert (made.rows[ID].state, made.rows[ID].queue_offset, counts_of(made)) == ("PREPARED", 3_000, {"prepared": 1})


@pytest.mark.parametrize(
    ("t", "counts", "events"),
    [
        (COMMITTED, {"committed": 1}, []),
        (replace(COMMITTED, abandoned=True), {"committed": 1, "abandoned": 1}, []),
        (BLOCKED, {"committed": 1, "blocked": 1}, [("blocked", None, {"why": "UNKNOWN_TOPIC"})]),
        (PARKED, {"parked": 1}, [("parked", "timer", {"why": "MAX_LIFE", "check_times": 2, "parked_offset": 4})]),
    ],
    ids=["committed", "abandoned", "blocked", "parked"],
)
def test_id_prepared_again_has_nothing_of_what_it_was(
    t: Transaction, counts: dict[str, int], events: list[tuple[object, ...]]
) -> None:
    """The same end as before is another one: counted again, with its own times, and told again (C)."""
    known = known_row(t)
    known.published_ms, known.abandoned_ms = (None, 1_500) if t.abandoned else (1_500, None)
    known.was = counted_as(known)
    made = fold(op(replace(t, half=90, at=91), 7), halves=[], known=known)
    row = made.rows[ID]
    assert counts_of(made) == {"prepared": 1, **counts}
    assert told(made) == [(1, 7, 2_007, *event) for event in events]
    assert (row.queue_offset, row.at_offset) == (90, 91)
    assert row.published_ms == (2_007 if t is COMMITTED else None)
    assert row.abandoned_ms == (2_007 if t.abandoned else None)


def test_state_of_an_unknown_half_message_shows_its_limits() -> None:
    """The op message has them too."""
    row = fold(op(replace(PREPARED, max_checks=3, max_life_s=60, next_due_ms=9)), halves=[]).rows[ID]
    assert (row.max_checks, row.max_life_s, row.next_due_ms, row.queue_id) == (3, 60, 9, 3)


@pytest.mark.parametrize(
    ("t", "offset", "due_ms", "shown_ms"),
    [
        (PREPARED, 20, 5_000, 1_020),
        (PREPARED, 20, 1_021, 1_020),
        (PREPARED, 20, 1_020, 1_020),
        (PREPARED, 20, 1_000, 1_000),
        (PREPARED, 20, None, None),
        (PREPARED, 10, 5_000, 5_000),
        (replace(PREPARED, at=20), 20, 5_000, 5_000),
        (PARKED, 20, 5_000, 5_000),
    ],
)
def test_asking_now_brings_the_next_check_forward(
    t: Transaction, offset: int, due_ms: int | None, shown_ms: int | None
) -> None:
    """Of what is PREPARED, and has seen nothing later; written only if it is sooner than it was."""
    known = known_row(t)
    known.next_due_ms = due_ms
    made = fold(halves=[], others=[act(offset, replace(ABANDON, act=Act.CHECK))], known=known)
    assert made.rows[ID].next_due_ms == shown_ms
    assert (ID in made.moved) is (shown_ms != due_ms)
    assert made.events == []


def test_resuming_is_told_with_who_and_why() -> None:
    """It needs no word about its effect."""
    made = fold(halves=[], others=[act(20, replace(ABANDON, act=Act.RESUME))], known=known_row(PARKED))
    members = {"actor": "ann", "reason": "its topic is gone"}
    assert told(made) == [(0, 20, 1_020, "resumed", "operator", members)]


def test_answers_are_counted_for_each_endpoint() -> None:
    """How many, when the last one came, and how long that took; each with its own line of the timeline."""
    said = {"source": Source.CHECK, "status": 200, "group": "shop"}
    answers = [
        end(11, Resolution.UNKNOWN, check_number=1, endpoint="a", latency_ms=7, **said),
        end(12, Resolution.UNKNOWN, check_number=2, endpoint="b", latency_ms=8, **said),
        end(13, Resolution.ROLLBACK, check_number=3, endpoint="a", latency_ms=9, **said),
        end(14, Resolution.UNKNOWN, check_number=4, latency_ms=1, **said),
    ]
    made = fold(others=answers)
    assert made.answered == {
        ("shop", "a"): Answered(2, 1_013, 9), ("shop", "b"): Answered(1, 1_012, 8), ("shop", ""): Answered(1, 1_014, 1)
    }  # fmt: skip
    assert [event[:-1] for event in told(made)] == [(0, n, 1_000 + n, "check_answered", "check") for n in range(11, 15)]
    assert told(made)[2][-1] == {"number": 3, "endpoint": "a", "status": 200, "latency_ms": 9, "answer": "ROLLBACK"}


def test_what_a_producer_remarks_is_kept_also_of_the_end_that_decided() -> None:
    """Else a deciding end has no event of its own: the transaction's row has all of it."""
    decided = fold(halves=[], others=[end(11, Resolution.COMMIT, remark="paid")], known=known_row(COMMITTED))
    members = {"resolution": "COMMIT", "effective": True, "remark": "paid"}
    assert told(decided) == [(0, 11, 1_011, "end", "producer", members)]
    answered = fold(others=[end(11, Resolution.UNKNOWN, source=Source.CHECK, check_number=1, remark="no such row")])
    assert told(answered)[0][-1]["remark"] == "no such row"


@pytest.mark.parametrize(
    ("t", "resolution", "is_effective"),
    [
        (replace(COMMITTED, by="operator"), Resolution.COMMIT, True),
        (replace(COMMITTED, by="operator"), Resolution.ROLLBACK, False),
        (replace(COMMITTED, by="operator", ended_ms=1_012), Resolution.COMMIT, False),
        (COMMITTED, Resolution.COMMIT, False),
        (PREPARED, Resolution.COMMIT, False),
        (replace(COMMITTED, by="operator", state=TransactionState.ROLLED_BACK), Resolution.ROLLBACK, True),
    ],
)
def test_forced_end_says_whether_it_decided(t: Transaction, resolution: Resolution, *, is_effective: bool) -> None:
    """It did if who, when and what are those of the state."""
    forced = end(11, resolution, source=Source.OPERATOR, actor="ann", reason="asked")
    made = fold(op(t), halves=[], others=[forced])
    members = {"resolution": resolution.name, "effective": is_effective, "actor": "ann", "reason": "asked"}
    assert told(made) == [(0, 11, 1_011, "forced", "operator", members)]

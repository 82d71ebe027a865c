"""Transactions by what they show: every kind of finding, and beside each what looks like it and is right."""

from spark.read.envelope import ACT_ABANDON, ACT_RESUME, COMMIT, Event, Evidence, PreparedMessage, ReceiptRow
from tests.support.envelope_rows import (
    END_MS,
    HALF,
    HALF_MS,
    HOUR_MS,
    NOW_MS,
    ONE,
    TWO,
    TX,
    check,
    commit,
    copy,
    half,
    op,
    record,
    rollback,
)

BOTH = (ReceiptRow("orders", 0, 100), ReceiptRow("credits", 0, 7))
RESUME = Event(TX, Evidence.ACT, HALF, 0, 40, END_MS + 1_000, code=ACT_RESUME)
GIVE_UP = Event(TX, Evidence.ACT, HALF, 0, 40, END_MS + 1_000, code=ACT_ABANDON)
COMMITTED, ABANDONED = op("COMMITTED"), op("ABANDONED", off=45, cause=40)

RIGHT = {
    "committed": [half(), commit(), COMMITTED, record()],
    "rolled back": [half(), rollback(), op("ROLLED_BACK")],
    "published at once": [half(code=COMMIT), op("COMMITTED", cause=10), record()],
    "several messages": [
        half(TWO), commit(), op("COMMITTED", receipts=BOTH), record(), record(7, 222, "credits"),
    ],
    "two equal messages": [
        half((*ONE, *ONE)), commit(), record(), record(101),
        op("COMMITTED", receipts=[ReceiptRow("orders", 0, 100), ReceiptRow("orders", 0, 101)]),
    ],
    "two equal messages, told in another order": [
        half((*ONE, *ONE)), commit(), record(), record(101),
        op("COMMITTED", receipts=[ReceiptRow("orders", 0, 101), ReceiptRow("orders", 0, 100)]),
    ],
    "several messages in two partitions": [
        half((*ONE, PreparedMessage("orders", None, 112, None))), commit(), record(101), record(100, 112, part=1),
        op("COMMITTED", receipts=[ReceiptRow("orders", 0, 101), ReceiptRow("orders", 1, 100)]),
    ],
    "receipts without offset": [half(), commit(), op("COMMITTED", receipts=[ReceiptRow("orders", 0, None)]), record()],
    "repeated ends": [half(), commit(), commit(21), commit(22), COMMITTED, record()],
    "a contradiction, the first won": [half(), commit(), rollback(21), COMMITTED, record()],
    "another group's end in vain": [half(), rollback(15, grp="thief"), commit(), COMMITTED, record()],
    "an end before the half message": [rollback(9), half(), commit(), COMMITTED, record()],
    "op message written again": [half(), commit(), COMMITTED, op("COMMITTED", off=40), record()],
    "a repeated half message": [half(), half(off=25), commit(), COMMITTED, record()],
    "a void repeat": [half(is_void=True), half(off=12), commit(), op("COMMITTED", half=12), record()],
    "a void half message alone": [half(is_void=True)],
    "counted unknowns, then a commit": [
        half(), check(1, 15, HALF_MS + 6_200), op("PREPARED", 28, 15), commit(), COMMITTED, record(),
    ],
    "an UNKNOWN for nobody": [check(1, 15, HALF_MS)],
    "put back": [half(), op("PREPARED", 28, 15)],
    "young and pending": [half()],
    "rolled back, whether it was prepared or not": [rollback()],
    "decided a moment ago": [half(), commit(ms=NOW_MS - 1_000)],
    "decided a moment ago, seen already": [half(), commit(ms=NOW_MS - 1_000), record(off=999)],
    "blocked": [half(), commit(), op("BLOCKED")],
    "blocked, then published": [half(), commit(), op("BLOCKED"), op("COMMITTED", off=45, cause=33), record()],
    "blocked, then abandoned": [half(), commit(), op("BLOCKED"), GIVE_UP, ABANDONED],
    "abandoned, told again": [half(), commit(), GIVE_UP, ABANDONED, op("ABANDONED", off=50, cause=40)],
    "abandoned, another commit in vain": [half(), commit(), GIVE_UP, ABANDONED, commit(41), rollback(42)],
    "given up when it was published": [half(), commit(), op("COMMITTED", cause=33), GIVE_UP, record()],
    "parked": [half(), op("PARKED", cause=25, parked=5), copy()],
    "parked, then committed": [
        half(), op("PARKED", cause=15, parked=5), copy(), commit(), op("COMMITTED", 45), record(),
    ],
    "parked, resumed, asked again": [
        half(max_checks=1), check(1, 12, HALF_MS + 7_000), op("PARKED", cause=15, parked=5), copy(), RESUME,
        op("PREPARED", 45, 40), check(2, 50, END_MS + 9_000), op("PREPARED", 46, 50),
    ],
    "partition and time as asked": [
        half([PreparedMessage("orders", 0, 111, 77)]), commit(), COMMITTED, record(ms=77),
    ],
}  # fmt: skip

WRONG = {
    "nothing of it": ([half(), commit(), COMMITTED], "MISSING"),
    "one of two": ([half(TWO), commit(), op("COMMITTED", receipts=BOTH), record()], "PARTIAL"),
    "twice": ([half(), commit(), COMMITTED, record(), record(900)], "DUPLICATE"),
    "twice, and one never": (
        [half(TWO), commit(), op("COMMITTED", receipts=BOTH), record(), record(900)], "PARTIAL DUPLICATE",
    ),
    "visible, rolled back": ([half(), rollback(), op("ROLLED_BACK"), record()], "PHANTOM"),
    "visible, parked": ([half(), op("PARKED", cause=25, parked=5), copy(), record()], "PHANTOM"),
    "visible, undecided": ([half(), record()], "PHANTOM"),
    "record without half": ([record()], "ORPHAN"),
    "op message without half": ([op("ROLLED_BACK")], "ORPHAN"),
    "end without half": ([commit()], "ORPHAN"),
    "void half, and yet settled": ([half(is_void=True), commit(), COMMITTED, record()], "ORPHAN"),
    "another content": ([half(), commit(), COMMITTED, record(content=112)], "CORRUPT"),
    "another time": (
        [half([PreparedMessage("orders", None, 111, 77)]), commit(), COMMITTED, record(ms=78)], "CORRUPT",
    ),
    "another topic": (
        [half(), commit(), op("COMMITTED", receipts=[ReceiptRow("credits", 0, 7)]), record(7, 111, "credits")],
        "WRONG_PLACE",
    ),
    "another topic than the receipt says": ([half(), commit(), COMMITTED, record(7, 111, "credits")], "WRONG_PLACE"),
    "another partition": (
        [half([PreparedMessage("orders", 2, 111, None)]), commit(), COMMITTED, record()], "WRONG_PLACE"),
    "elsewhere than the receipt": ([half(), commit(), COMMITTED, record(101)], "WRONG_RECEIPT"),
    "receipts in another order": (
        [half(TWO), commit(), op("COMMITTED", receipts=BOTH[::-1]), record(), record(7, 222, "credits")],
        "WRONG_RECEIPT",
    ),
    "receipts of one topic exchanged": (
        [half((*ONE, PreparedMessage("orders", None, 112, None))), commit(), record(), record(101, 112),
         op("COMMITTED", receipts=[ReceiptRow("orders", 0, 101), ReceiptRow("orders", 0, 100)])], "WRONG_RECEIPT",
    ),
    "messages of one partition in another order": (
        [half((*ONE, PreparedMessage("orders", None, 112, None))), commit(), record(101), record(100, 112),
         op("COMMITTED", receipts=[ReceiptRow("orders", 0, 101), ReceiptRow("orders", 0, 100)])], "OUT_OF_ORDER",
    ),
    "more receipts than messages": ([half(), commit(), op("COMMITTED", receipts=BOTH), record()], "WRONG_RECEIPT"),
    "fewer receipts than messages": (
        [half(TWO), commit(), op("COMMITTED", receipts=BOTH[:1]), record(), record(7, 222, "credits")], "WRONG_RECEIPT",
    ),
    "no receipt": ([half(), commit(), op("COMMITTED", receipts=()), record()], "WRONG_RECEIPT"),
    "caused by what nobody wrote": ([half(), commit(), op("COMMITTED", cause=1_000), record()], "CONTRADICTION"),
    "prepared by what nobody wrote": ([half(), commit(), op("COMMITTED", half=1_000), record()], "CONTRADICTION"),
    "put back by what nobody wrote": ([half(), op("PREPARED", cause=1_000)], "CONTRADICTION"),
    "op message of what nobody wrote": ([op("ROLLED_BACK", cause=1_001, half=1_000)], "ORPHAN"),
    "visible, blocked": ([half(), commit(), op("BLOCKED"), record()], "PHANTOM"),
    "visible, abandoned": ([half(), commit(), op("BLOCKED"), GIVE_UP, ABANDONED, record()], "PHANTOM"),
    "abandoned by nobody": ([half(), commit(), op("ABANDONED")], "CONTRADICTION"),
    "abandoned where another act lies": ([half(), commit(), GIVE_UP, op("ABANDONED", 45, 38)], "CONTRADICTION"),
    "published after it was abandoned": (
        [half(), commit(), GIVE_UP, ABANDONED, op("COMMITTED", off=50, cause=48), record()], "CONTRADICTION",
    ),
    "abandoned after it was published": ([half(), commit(), COMMITTED, GIVE_UP, ABANDONED, record()], "CONTRADICTION"),
    "blocked after it was abandoned": (
        [half(), commit(), GIVE_UP, ABANDONED, op("BLOCKED", off=50)], "CONTRADICTION",
    ),
    "abandoned without a commit": ([half(), GIVE_UP, ABANDONED], "CONTRADICTION"),
    "abandoned although rolled back": ([half(), rollback(), GIVE_UP, ABANDONED], "CONTRADICTION"),
    "blocked again after it was published": (
        [half(), commit(), COMMITTED, op("BLOCKED", 40), record()], "CONTRADICTION",
    ),
    "told as another group's": ([half(), commit(), op("COMMITTED", grp="thief"), record()], "CONTRADICTION"),
    "told as another half message's": ([half(), commit(), op("COMMITTED", half=9), record()], "CONTRADICTION"),
    "told in another queue too": ([half(), commit(), COMMITTED, op("COMMITTED", part=1), record()], "CONTRADICTION"),
    "told in another queue": ([half(), commit(), op("COMMITTED", part=1), record()], "CONTRADICTION UNSETTLED"),
    "prepared in another queue": ([half(part=1)], "CONTRADICTION"),
    "prepared in another queue, ended in its own": ([half(part=1), commit()], "ORPHAN CONTRADICTION"),
    "ended in another queue": ([half(), commit(), commit(21, part=1), COMMITTED, record()], "CONTRADICTION"),
    "told the contrary": ([half(), commit(), op("ROLLED_BACK")], "CONTRADICTION"),
    "two facts": ([half(), commit(), COMMITTED, op("ROLLED_BACK", 40), record()], "CONTRADICTION"),
    "published twice, told twice": (
        [half(), commit(), COMMITTED, op("COMMITTED", 40, receipts=[ReceiptRow("orders", 0, 900)]), record(),
         record(900)],
        "DUPLICATE CONTRADICTION",
    ),
    "a fact from nowhere": ([half(), op("ROLLED_BACK")], "CONTRADICTION"),
    "final no more": ([half(), commit(), COMMITTED, op("PREPARED", 40), record()], "CONTRADICTION"),
    "rollback recorded, commit done": (
        [half(), rollback(), COMMITTED, record()], "PHANTOM CONTRADICTION",
    ),
    "never settled": ([half(), commit()], "UNSETTLED"),
    "outlived": ([half(life_ms=1_000, ms=NOW_MS - 2 * HOUR_MS)], "STALE"),
    "parked without its message": ([half(), op("PARKED", cause=25, parked=5)], "BAD_PARK"),
    "parked with another": ([half(), op("PARKED", cause=25, parked=5), copy(messages=TWO)], "BAD_PARK"),
    "asked too early": ([half(), check(1, 15, HALF_MS + 500), op("PREPARED", cause=15)], "BAD_CHECK"),
    "asked too often": (
        [half(max_checks=1), check(1, 15, HALF_MS + 7_000), check(2, 16, HALF_MS + 40_000), op("PREPARED", cause=16)],
        "BAD_CHECK",
    ),
    "asked after the end": ([half(), commit(), COMMITTED, record(), check(1, 25, END_MS + 70_000)], "BAD_CHECK"),
    "ended by another group": ([half(), commit(grp="thief"), COMMITTED, record()], "WRONG_GROUP"),
}  # fmt: skip

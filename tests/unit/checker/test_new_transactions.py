"""What was prepared lately: little is kept of those that have ended, however late they would have been asked about."""

from bridge.core.transaction import Transaction
from checker.new_transactions import NewTransactions


def test_slots_of_ended_ones_are_forgotten() -> None:
    """Each with an immunity of its own, which may be a week: what has ended is not kept for as long."""
    new = NewTransactions()
    for number in range(5_000):
        new.add(Transaction(str(number), "g", number, 0, 0, next_due_ms=number * 1_000), 7)
        if number != 3_000:
            del new.transactions[str(number)]
        new.compact()
    assert new.first_ms is not None
    assert 0 <= 3_000_000 - new.first_ms < 256, "an earlier slot has nothing to be looked at"
    ((left, read_ms),) = new.pop_due(3_000_000)
    assert (left.transaction_id, read_ms) == ("3000", 7)
    assert list(new.pop_due(5_000_000)) == []
    assert new.first_ms is None

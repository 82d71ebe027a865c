"""What is remembered of transactions that an operator gave up with their log."""

import re
from itertools import groupby
from pathlib import Path

import sqlalchemy as sa

from bridge.core.transaction import TransactionState, make_transaction_id
from bridge.sql.engine import open_new_database
from bridge.sql.identity import Unproven, find_given_up, give_up_queue, give_up_some
from bridge.sql.rows import ALL_COLUMNS, ProjectedRow, all_values, make_row
from bridge.sql.search import add_pending, read_stats
from bridge.sql.tables import group_counts, transactions

PREPARED = TransactionState.PREPARED
_IS_WRITE = re.compile(r"(?:DELETE FROM|UPDATE|INSERT INTO) (\w+)")


def test_what_the_journal_alone_knows_of_an_abandoned_commit_is_kept(tmp_path: Path) -> None:
    """It is shown as abandoned, not as published: nobody ever sees its messages."""
    database = open_new_database(tmp_path)
    abandoned, blocked = make_transaction_id(0, 1), make_transaction_id(0, 2)
    unproven = [
        Unproven(abandoned, "shop", TransactionState.COMMITTED, 1, abandoned=True),
        Unproven(blocked, "shop", TransactionState.COMMITTED, 2, blocked=True),
    ]
    with database.engine.begin() as conn:
        give_up_queue(conn, 0, unproven, 1_000)
        found = find_given_up(conn, [abandoned, blocked])
    assert {name: (view.blocked, view.abandoned) for name, view in found.items()} == {
        abandoned: (False, True), blocked: (True, False),
    }  # fmt: skip
    database.engine.dispose()


def test_many_that_are_given_up_cost_one_look_at_all_that_is_pending(tmp_path: Path) -> None:
    """However many they are. Counts are changed after all rows and before ages, as projectors do: a lock of all ages
    that is held while counts are waited for would make both wait in a circle."""
    database, statements = open_new_database(tmp_path), list[str]()
    rows = [_make_pending(offset, "abc"[offset % 3]) for offset in range(1_202)]
    with database.engine.begin() as conn:
        conn.execute(sa.insert(transactions), [dict(zip(ALL_COLUMNS, all_values(row), strict=True)) for row in rows])
        for group in "abc":
            count = len([row for row in rows if row.producer_group == group])
            values = dict.fromkeys(("committed", "blocked", "rolled_back", "parked"), 0) | {"prepared": count}
            conn.execute(sa.insert(group_counts).values(producer_group=group, **values))
            add_pending(conn, {(group, 1): count})
        sa.event.listen(conn, "before_cursor_execute", lambda _c, _k, statement, *_: statements.append(statement))
        give_up_some(
            conn, [Unproven(r.transaction_id, r.producer_group, PREPARED, r.queue_offset) for r in rows[2:]], 1
        )
        stats = read_stats(conn, 2_000)
    order = "transactions", "group_counts", "pending_ages"
    written = [found[1] for one in statements if (found := _IS_WRITE.match(one)) and found[1] in order]
    assert tuple(table for table, _ in groupby(written)) == order
    assert len([one for one in statements if one.startswith("DELETE FROM pending_ages")]) == 1
    assert {name: group.pending for name, group in stats.groups.items()} == {"a": 1, "b": 1, "c": 0}
    assert sum(count for _, count in stats.total.age_histogram) == 2
    database.engine.dispose()


def _make_pending(offset: int, group: str) -> ProjectedRow:
    return make_row(make_transaction_id(0, offset), group, 0, offset, 1_000)

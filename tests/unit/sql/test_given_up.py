"""What is remembered of transactions that an operator gave up with their log."""

from pathlib import Path

from bridge.core.transaction import TransactionState, make_transaction_id
from bridge.sql.engine import open_new_database
from bridge.sql.identity import Unproven, find_given_up, give_up_queue


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

"""What the projection knew of transactions whose log an operator has given up.

Rebuilding leaves it alone: a repeat of what may have been published must never be taken for new.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.transaction import TransactionState
from bridge.core.view import TransactionView
from bridge.sql.search import chunks
from bridge.sql.tables import (
    given_up,
    group_counts,
    projection_positions,
    timeline_events,
    transaction_keys,
    transactions,
)

GIVEN_UP = "GIVEN_UP"  # `why` of such a transaction
_G, _T = given_up.c, transactions.c
_SHARED = (
    "transaction_id", "producer_group", "state", "blocked", "queue_id", "queue_offset", "born_ms", "appended_ms",
    "check_times", "idempotency_key", "abandoned_ms",
)  # fmt: skip


class Unproven(NamedTuple):
    """A transaction of which no log says any more how it ends. `state`: as it was known last."""

    transaction_id: str
    group: str
    state: TransactionState
    queue_offset: int
    idempotency_key: str | None = None
    blocked: bool = False


def read_live(conn: Connection, queue_id: int) -> list[Unproven]:
    """Transactions of a queue for which something was still to be done."""
    columns = _T.transaction_id, _T.producer_group, _T.state, _T.queue_offset, _T.idempotency_key
    query = sa.select(*columns).where(_T.queue_id == queue_id, _T.live == 1).order_by(_T.id)
    return [Unproven(i, group, TransactionState(state), at, key) for i, group, state, at, key in conn.execute(query)]


def find_known_ids(conn: Connection, transaction_ids: Collection[str]) -> set[str]:
    """Those of the ids that the projection knows."""
    found: set[str] = set()
    for chunk in chunks(set(transaction_ids), 500):
        found.update(conn.execute(sa.select(_T.transaction_id).where(_T.transaction_id.in_(chunk))).scalars())
    return found


def give_up_queue(conn: Connection, queue_id: int, unproven: Sequence[Unproven], now_ms: int) -> None:
    """Takes a queue's transactions out of the projection, which begins the queue anew, and remembers them."""
    is_here = _T.queue_id == queue_id
    _keep(conn, is_here, now_ms)
    _remember_others(conn, queue_id, unproven, now_ms)
    _forget(conn, is_here)
    conn.execute(sa.delete(projection_positions).where(projection_positions.c.queue_id == queue_id))


def give_up_some(conn: Connection, unproven: Sequence[Unproven], now_ms: int) -> None:
    """Takes these out of the projection, and remembers them; the rest of their queue goes on."""
    for chunk in chunks([u.transaction_id for u in unproven], 500):
        is_one = _T.transaction_id.in_(chunk)
        _keep(conn, is_one, now_ms)
        _forget(conn, is_one)


def find_given_up(conn: Connection, transaction_ids: Iterable[str]) -> dict[str, TransactionView]:
    """Those of the ids that were given up."""
    found: dict[str, TransactionView] = {}
    for chunk in chunks(set(transaction_ids), 500):
        for row in conn.execute(sa.select(given_up).where(_G.transaction_id.in_(chunk))):
            found[row.transaction_id] = _make_view(row)
    return found


def find_given_up_keys(
    conn: Connection, group: str, keys: Collection[str]
) -> Mapping[tuple[str, str], TransactionView]:
    """The transactions of a group that were given up and carry one of these idempotency keys."""
    query = sa.select(given_up).where(_G.producer_group == group, _G.idempotency_key.in_(keys)).order_by(_G.appended_ms)
    return {(group, row.idempotency_key): _make_view(row) for row in conn.execute(query)}


def _remember_others(conn: Connection, queue_id: int, unproven: Sequence[Unproven], now_ms: int) -> None:
    """What the journal alone knows."""
    known = find_known_ids(conn, [u.transaction_id for u in unproven])
    known |= find_given_up(conn, [u.transaction_id for u in unproven]).keys()
    rows = [
        {
            "transaction_id": u.transaction_id, "producer_group": u.group, "state": u.state.value,
            "blocked": int(u.blocked), "queue_id": queue_id, "queue_offset": u.queue_offset, "born_ms": now_ms,
            "appended_ms": now_ms, "check_times": 0, "idempotency_key": u.idempotency_key, "given_up_ms": now_ms,
        }
        for u in unproven
        if u.transaction_id not in known
    ]  # fmt: skip
    if rows:
        conn.execute(sa.insert(given_up), rows)


def _keep(conn: Connection, is_given_up: sa.ColumnElement[bool], now_ms: int) -> None:
    is_kept = sa.exists().where(_G.transaction_id == _T.transaction_id)
    kept = sa.select(*[_T[name] for name in _SHARED], sa.literal(now_ms)).where(is_given_up, ~is_kept)
    conn.execute(sa.insert(given_up).from_select([*_SHARED, "given_up_ms"], kept))


def _forget(conn: Connection, is_given_up: sa.ColumnElement[bool]) -> None:
    _correct_counts(conn, is_given_up)
    ids = sa.select(_T.id).where(is_given_up)
    for table in (transaction_keys, timeline_events):
        conn.execute(sa.delete(table).where(table.c.id.in_(ids)))
    conn.execute(sa.delete(transactions).where(is_given_up))


def _correct_counts(conn: Connection, is_here: sa.ColumnElement[bool]) -> None:
    """What ended stays counted; what nobody can prove is pending, parked and blocked no more (C)."""
    query = sa.select(_T.producer_group, _T.state, sa.func.count()).where(is_here, _T.live == 1)
    for group, state, count in conn.execute(query.group_by(_T.producer_group, _T.state)).all():
        taken = {"prepared": group_counts.c.prepared - count}
        if state == TransactionState.PARKED.value:
            taken["parked"] = group_counts.c.parked - count
        elif state == TransactionState.COMMITTED.value:
            taken |= {"committed": group_counts.c.committed - count, "blocked": group_counts.c.blocked - count}
        conn.execute(sa.update(group_counts).where(group_counts.c.producer_group == group).values(taken))


def _make_view(row: sa.Row[Any]) -> TransactionView:
    return TransactionView(
        row.transaction_id, row.producer_group, TransactionState(row.state), row.queue_id, row.queue_offset,
        row.born_ms, row.appended_ms, row.check_times, bool(row.blocked), GIVEN_UP,
        idempotency_key=row.idempotency_key, given_up_ms=row.given_up_ms, abandoned=row.abandoned_ms is not None,
    )  # fmt: skip

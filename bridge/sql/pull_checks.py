"""The board of due checks in SQL: rows that a queue's owner puts there, and claimers hold under check leases."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.directory import LEASE_SLACK_MS, PullCheck
from bridge.sql.bulk import make_upsert, select_many
from bridge.sql.engine import Database
from bridge.sql.search import chunks
from bridge.sql.tables import pull_checks, pull_queues

_C, _Q = pull_checks.c, pull_queues.c
_MOST_NAMES = 500  # in one statement
_KNOWN = ("transaction_id", "check_number", "owner", "claims")


class SqlPullCheckStore:
    """Port CheckBoard, shared by all processes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take_queue(self, queue_id: int, owner: str) -> int:
        return await self._database.run(partial(_take_queue, queue_id=queue_id, owner=owner))

    async def put(
        self, queue_id: int, owner: str, tick_ms: int, checks: Sequence[PullCheck]
    ) -> Mapping[str, int] | None:
        def work(conn: Connection) -> Mapping[str, int] | None:
            return _put(conn, queue_id, owner, checks) if _move_tick(conn, queue_id, owner, tick_ms) else None

        return await self._database.run(work)

    async def tick(self, queue_id: int, owner: str, tick_ms: int) -> bool:
        def work(conn: Connection) -> bool:
            is_ours = _move_tick(conn, queue_id, owner, tick_ms)
            if is_ours:
                _sweep(conn, queue_id, _C.owner != owner)
            return is_ours

        return await self._database.run(work)

    async def leave_queue(self, queue_id: int, owner: str) -> None:
        def work(conn: Connection) -> None:
            _sweep(conn, queue_id, _C.owner == owner)
            conn.execute(sa.update(pull_queues).where(_Q.queue_id == queue_id, _Q.owner == owner).values(owner=""))

        await self._database.run(work)

    async def remove(self, checks: Collection[PullCheck]) -> None:
        await self._database.run(partial(_remove, checks=checks))

    async def claim(self, group: str, limit: int, lease_ms: int) -> Sequence[PullCheck]:
        return await self._database.run(partial(_claim, group=group, limit=limit, lease_ms=lease_ms))

    async def release(self, checks: Collection[PullCheck]) -> None:
        await self._database.run(partial(_release, checks=checks))

    async def count_free(self, groups: Collection[str]) -> Mapping[str, int]:
        return await self._database.read(partial(_count_free, groups=groups))


def _take_queue(conn: Connection, queue_id: int, owner: str) -> int:
    upsert = make_upsert(conn, pull_queues).values(queue_id=queue_id, owner=owner, tick_ms=0)
    taken = upsert.on_conflict_do_update(index_elements=["queue_id"], set_={"owner": owner})
    return int(conn.execute(taken.returning(_Q.tick_ms)).scalar_one())


def _move_tick(conn: Connection, queue_id: int, owner: str, tick_ms: int) -> bool:
    """Holds the queue's row until the SQL transaction ends: nobody takes the queue meanwhile."""
    newer = sa.case((_Q.tick_ms < tick_ms, tick_ms), else_=_Q.tick_ms)
    moved = sa.update(pull_queues).where(_Q.queue_id == queue_id, _Q.owner == owner).values(tick_ms=newer)
    return conn.execute(moved).rowcount == 1


def _put(conn: Connection, queue_id: int, owner: str, checks: Sequence[PullCheck]) -> Mapping[str, int]:
    """Writes only rows that are missing or differ."""
    ids = [check.transaction_id for check in checks]
    known = {row[0]: row for row in select_many(conn, pull_checks, _KNOWN, ids)}
    missing = []
    for check in sorted(checks):
        row = known.get(check.transaction_id)
        if row is None or row[1:3] != (check.check_number, owner):
            missing.append(check)
    if missing:
        conn.execute(_make_put(conn), [_values(check, queue_id, owner) for check in missing])
    return {
        check.transaction_id: row[3] if (row := known.get(check.transaction_id)) and row[1] == check.check_number else 0
        for check in checks
    }


def _make_put(conn: Connection) -> sa.Insert:
    """The same check, put again, keeps its check lease."""
    upsert = make_upsert(conn, pull_checks)
    new, old = upsert.excluded, _C
    is_same = old.check_number == new.check_number
    changed = {name: new[name] for name in ("producer_group", "queue_id", "owner", "check_number", "due_ms")}
    kept = {name: sa.case((is_same, old[name]), else_=new[name]) for name in ("lease_until_ms", "claims")}
    return upsert.on_conflict_do_update(index_elements=["transaction_id"], set_=changed | kept)


def _values(check: PullCheck, queue_id: int, owner: str) -> dict[str, object]:
    return {
        "transaction_id": check.transaction_id,
        "producer_group": check.group,
        "queue_id": queue_id,
        "owner": owner,
        "check_number": check.check_number,
        "due_ms": check.due_ms,
        "lease_until_ms": 0,
        "claims": 0,
    }


def _sweep(conn: Connection, queue_id: int, is_meant: sa.ColumnElement[bool]) -> None:
    """Removes checks of the queue that nobody holds."""
    tick = sa.select(_Q.tick_ms).where(_Q.queue_id == queue_id).scalar_subquery()
    conn.execute(sa.delete(pull_checks).where(_C.queue_id == queue_id, is_meant, _C.lease_until_ms <= tick))


def _remove(conn: Connection, checks: Collection[PullCheck]) -> None:
    numbers = [{"id": check.transaction_id, "number": check.check_number} for check in sorted(checks)]
    if numbers:
        place = (_C.transaction_id == sa.bindparam("id"), _C.check_number == sa.bindparam("number"))
        conn.execute(sa.delete(pull_checks).where(*place), numbers)


def _claim(conn: Connection, group: str, limit: int, lease_ms: int) -> list[PullCheck]:
    """Rows that another claimer is about to take are passed over, not waited for."""
    query = sa.select(_C.transaction_id, _C.check_number, _C.due_ms, _C.claims, _Q.tick_ms).where(*_is_free({group}))
    query = query.order_by(_C.due_ms, _C.transaction_id).limit(limit)
    rows = conn.execute(query.with_for_update(of=pull_checks, skip_locked=True)).all()
    if rows:
        held = sa.update(pull_checks).where(_C.transaction_id == sa.bindparam("id"))
        held = held.values(claims=_C.claims + 1, lease_until_ms=sa.bindparam("until_ms"))
        leases = [{"id": row.transaction_id, "until_ms": row.tick_ms + lease_ms + LEASE_SLACK_MS} for row in rows]
        conn.execute(held, sorted(leases, key=lambda lease: str(lease["id"])))
    return [PullCheck(row.transaction_id, group, row.check_number, row.due_ms, row.claims + 1) for row in rows]


def _release(conn: Connection, checks: Collection[PullCheck]) -> None:
    leases = [{"id": c.transaction_id, "number": c.check_number, "times": c.claims} for c in sorted(checks)]
    if leases:
        same = (_C.check_number == sa.bindparam("number"), _C.claims == sa.bindparam("times"))
        held = sa.update(pull_checks).where(_C.transaction_id == sa.bindparam("id"), *same)
        conn.execute(held.values(lease_until_ms=0), leases)


def _count_free(conn: Connection, groups: Collection[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for chunk in chunks(set(groups), _MOST_NAMES):
        query = sa.select(_C.producer_group, sa.func.count()).where(*_is_free(chunk)).group_by(_C.producer_group)
        found.update((name, count) for name, count in conn.execute(query))
    return found


def _is_free(groups: Collection[str]) -> tuple[sa.ColumnElement[bool], ...]:
    """Put by the present owner of its queue, and held by nobody."""
    owned = (_C.queue_id == _Q.queue_id, _C.owner == _Q.owner)
    return (*owned, _C.producer_group.in_(groups), _C.lease_until_ms <= _Q.tick_ms)

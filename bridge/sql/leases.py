"""Leases in SQL: of loops of which one works, of endpoints that live instances register, of due checks.

A lease is over for whoever has seen it unchanged for its whole length by the monotonic clock (docs/decisions/0010).
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection

from bridge.clock import Clock
from bridge.core.errors import SecretUnreadable, SqlUnavailable
from bridge.directory import LEASE_SLACK_MS, PullCheck
from bridge.sql.at_rest import load_url, stored_url
from bridge.sql.bulk import chunks, make_upsert, select_many
from bridge.sql.engine import Database
from bridge.sql.tables import endpoints, leases, producer_groups, pull_checks, pull_queues

# --- leases in SQL: of loops of which one works, and of endpoints that live instances register ---

_LOG = structlog.get_logger()


class Lease(NamedTuple):
    """The lease's owner, and its end by the owner's wall clock."""

    owner: str
    until_ms: int


class LeaseWatch:
    """Tells a lease that nobody renews by the monotonic clock: by a wall clock it may seem held for hours."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._seen: Lease | None = None
        self._since_ms = 0

    def note(self, lease: Lease, monotonic_ms: int) -> None:
        """The lease as it was found."""
        if lease != self._seen:
            self._seen, self._since_ms = lease, monotonic_ms

    def find_abandoned(self, monotonic_ms: int) -> Lease | None:
        """The lease, if it has stood unchanged for as long as it lasts."""
        return self._seen if monotonic_ms - self._since_ms >= self._lease_ms else None


def take_lease(
    conn: Connection, name: str, owner: str, now_ms: int, lease_ms: int, abandoned: Lease | None = None
) -> Lease:
    """Takes the lease if it is free, over, ours already, or still exactly the abandoned one; how it stands then."""
    wanted = Lease(owner, now_ms + lease_ms)
    is_free = is_takeable(leases.c.owner, leases.c.until_ms, owner, now_ms, abandoned)
    taken = (
        make_upsert(conn, leases)
        .values(name=name, **wanted._asdict())
        .on_conflict_do_update(index_elements=["name"], set_=wanted._asdict(), where=is_free)
    )
    if conn.execute(taken.returning(leases.c.name)).first() is not None:
        return wanted
    found = conn.execute(sa.select(leases.c.owner, leases.c.until_ms).where(leases.c.name == name)).first()
    return Lease(*found) if found else Lease("", 0)


def is_takeable(
    held_by: sa.ColumnElement[str], until_ms: sa.ColumnElement[int], owner: str, now_ms: int, abandoned: Lease | None
) -> sa.ColumnElement[bool]:
    """Whether the lease in these columns is ours already, over, or still exactly the abandoned one."""
    is_free = sa.or_(held_by == owner, until_ms <= now_ms)
    if abandoned is None:
        return is_free
    return sa.or_(is_free, sa.and_(held_by == abandoned.owner, until_ms == abandoned.until_ms))


def release_lease(conn: Connection, name: str, owner: str) -> None:
    """Gives the lease back, if it is ours."""
    conn.execute(sa.delete(leases).where(leases.c.name == name, leases.c.owner == owner))


class LeaseHolder:
    """What one process knows of a lease of loops of which one works; it renews it at a third of its length."""

    def __init__(self, database: Database, clock: Clock, name: str, owner: str, lease_ms: int = 5_000) -> None:
        self._database = database
        self._clock = clock
        self._name = name
        self._owner = owner
        self._lease_ms = lease_ms
        self._watch = LeaseWatch(lease_ms)
        self.is_held = False

    async def hold(self) -> bool:
        """Takes or renews the lease; False if another process has it. Raises SqlUnavailable."""
        now_ms, abandoned = self._clock.now_ms(), self._watch.find_abandoned(self._clock.monotonic_ms())
        lease = await self._database.run(
            partial(take_lease, name=self._name, owner=self._owner, now_ms=now_ms, lease_ms=self._lease_ms,
                    abandoned=abandoned)
        )  # fmt: skip
        self._watch.note(lease, self._clock.monotonic_ms())
        self.is_held = lease.owner == self._owner
        return self.is_held

    async def release(self) -> None:
        """Gives it back, if SQL can be told; else it is left to end."""
        self.is_held = False
        try:
            await self._database.run(partial(release_lease, name=self._name, owner=self._owner))
        except SqlUnavailable:
            _LOG.info("lease_left_to_expire", lease=self._name, owner=self._owner)

    async def work_forever(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs what never ends by itself whenever the lease is held, until cancelled. It is cancelled when another
        process has the lease, begun anew when it fails, and goes on while SQL does not answer."""
        try:
            while True:
                try:
                    if await self.hold():
                        await self._work(work)
                except SqlUnavailable as error:
                    _LOG.warning("lease_not_taken", lease=self._name, reason=str(error))
                await self._clock.sleep_ms(self._lease_ms // 3)
        finally:
            await self.release()

    async def _work(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        working = asyncio.ensure_future(work())
        try:
            while self.is_held and not working.done():
                await self._clock.sleep_ms(self._lease_ms // 3)
                try:
                    await self.hold()
                except SqlUnavailable as error:
                    _LOG.warning("lease_not_renewed", lease=self._name, reason=str(error))
        finally:
            working.cancel()
            [result] = await asyncio.gather(working, return_exceptions=True)
            if isinstance(result, Exception):
                _LOG.error("leased_work_failed", lease=self._name, exc_info=result)


_E = endpoints.c
Place = tuple[str, str]
"""A group and a URL."""


class EndpointTerm(NamedTuple):
    """A lease as it was taken or renewed last; `until_ms` by the wall clock of whoever wrote it."""

    until_ms: int
    lease_ms: int


class Registration(Enum):
    """STATIC: the URL is one of the group's settings and needs no lease."""

    NEW = "new"
    RENEWED = "renewed"
    STATIC = "static"
    UNKNOWN_GROUP = "unknown-group"
    TOO_MANY = "too-many"


@dataclass(frozen=True, slots=True)
class EndpointLease:
    """What an instance asks for."""

    group: str
    url: str
    term: EndpointTerm


def register_endpoint(conn: Connection, wanted: EndpointLease, most: int) -> tuple[Registration, bool]:
    """Takes or renews a lease; whether the rounds change by it: a new endpoint, or one that had said it was gone."""
    place = (_E.producer_group == wanted.group, _E.url == stored_url(conn, wanted.group, wanted.url))
    found = conn.execute(sa.select(_E.is_leased, _E.disabled_reason).where(*place)).one_or_none()
    if found is None:
        made = _insert(conn, wanted, most)
        return made, made is Registration.NEW
    if not found.is_leased:
        return Registration.STATIC, False
    values = {"lease_until_ms": wanted.term.until_ms, "lease_ms": wanted.term.lease_ms, "disabled_reason": None}
    renewed = conn.execute(sa.update(endpoints).where(*place, _E.is_leased).values(**values)).rowcount
    if not renewed:  # ended, or made static, in this very moment
        return register_endpoint(conn, wanted, most)
    return Registration.RENEWED, found.disabled_reason is not None


def remove_endpoint(conn: Connection, group: str, url: str) -> bool:
    """Ends a lease; False if there is none. What the group's settings name stays."""
    is_it = sa.and_(_E.producer_group == group, _E.url == stored_url(conn, group, url))
    gone = sa.delete(endpoints).where(is_it, _E.is_leased)
    return conn.execute(gone).rowcount > 0


def read_terms(conn: Connection) -> dict[Place, EndpointTerm]:
    """All leases but those of endpoints that cannot be decrypted, which are asked no more anyway."""
    query = sa.select(_E.producer_group, _E.url, _E.lease_until_ms, _E.lease_ms)
    rows = conn.execute(query.where(_E.is_leased, _E.lease_ms.is_not(None)))
    found = {}
    for group, url, until_ms, lease_ms in rows:
        with suppress(SecretUnreadable):
            found[group, load_url(conn, group, url)] = EndpointTerm(until_ms, lease_ms)
    return found


def remove_ended(conn: Connection, ended: Mapping[Place, EndpointTerm]) -> int:
    """Forgets leases that are over, unless they have been renewed meanwhile; how many."""
    removed = 0
    for (group, url), term in ended.items():
        same = (_E.lease_until_ms == term.until_ms, _E.lease_ms == term.lease_ms)
        is_it = sa.and_(_E.producer_group == group, _E.url == stored_url(conn, group, url))
        gone = sa.delete(endpoints).where(is_it, _E.is_leased, *same)
        removed += conn.execute(gone).rowcount
    return removed


class LeaseTerms:
    """Tells which leases are over, by the monotonic clock of this process."""

    def __init__(self) -> None:
        self._seen: dict[Place, tuple[EndpointTerm, int]] = {}

    def note(self, terms: Mapping[Place, EndpointTerm], monotonic_ms: int) -> dict[Place, EndpointTerm]:
        """The leases as they stand; those of them that are over."""
        self._forget(terms.keys())
        ended: dict[Place, EndpointTerm] = {}
        for place, term in terms.items():
            seen, since_ms = self._seen.get(place, (None, 0))
            if seen != term:
                self._seen[place] = (term, monotonic_ms)
            elif monotonic_ms - since_ms >= term.lease_ms:
                ended[place] = term
        return ended

    def _forget(self, known: Collection[Place]) -> None:
        for place in self._seen.keys() - set(known):
            del self._seen[place]


def _insert(conn: Connection, wanted: EndpointLease, most: int) -> Registration:
    """The group's row is locked, so that two who come at once count each other."""
    group = sa.select(producer_groups.c.name).where(producer_groups.c.name == wanted.group).with_for_update()
    if conn.execute(group).one_or_none() is None:
        return Registration.UNKNOWN_GROUP
    of_group = (_E.producer_group == wanted.group, _E.is_leased)
    if conn.execute(sa.select(sa.func.count()).select_from(endpoints).where(*of_group)).scalar_one() >= most:
        return Registration.TOO_MANY
    values = {"lease_until_ms": wanted.term.until_ms, "lease_ms": wanted.term.lease_ms}
    place = {"producer_group": wanted.group, "url": stored_url(conn, wanted.group, wanted.url)}
    upsert = make_upsert(conn, endpoints).values(**place, **values, is_leased=True)
    # the same URL registered twice at once: a renewal; put as a static one meanwhile: it stays one
    conn.execute(
        upsert.on_conflict_do_update(index_elements=["producer_group", "url"], set_=values, where=_E.is_leased)
    )
    return Registration.NEW


# --- the board of due checks in SQL: rows that a queue's owner puts there, and claimers hold under check leases ---

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

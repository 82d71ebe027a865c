"""What this bridge's database knows of its log, and of the processes that share it.

Rebuilding leaves it alone: a repeat of what may have been published must never be taken for new.
"""

import json
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection

from bridge.clock import Clock
from bridge.core.errors import HaltKind, SqlUnavailable
from bridge.core.keyring import SECRET_BYTES, BridgeKey
from bridge.core.topics import InternalTopics
from bridge.core.transaction import TransactionState, TransactionView
from bridge.sql.at_rest import cipher_of, load_bridge_key, seal_bridge_key
from bridge.sql.bulk import allow_long_statements, chunks, make_upsert
from bridge.sql.engine import Database
from bridge.sql.rows import AppliedPosition, LogIdentity, begin_position, read_position
from bridge.sql.search import make_ages_anew
from bridge.sql.tables import (
    audit,
    bridge_keys,
    cluster_identity,
    given_up,
    group_counts,
    op_beliefs,
    processes,
    projection_positions,
    projection_previous,
    queue_halts,
    timeline_events,
    transaction_keys,
    transactions,
)

# --- what this bridge's database knows of its log: cluster, topics, keys, halts, and what was given up ---


class TopicIdentity(NamedTuple):
    """A topic of a cluster; deleted and created again, it has another id."""

    cluster_id: str
    topic_id: str


def read_identity(conn: Connection) -> dict[str, TopicIdentity]:
    """What was recorded, by topic name; empty where this bridge never ran."""
    return {row.topic: TopicIdentity(row.cluster_id, row.topic_id) for row in conn.execute(sa.select(cluster_identity))}


def record_identity(conn: Connection, topics: Mapping[str, TopicIdentity], now_ms: int) -> None:
    """Records, or replaces what was recorded."""
    for name, identity in sorted(topics.items()):
        values = {"topic_id": identity.topic_id, "cluster_id": identity.cluster_id, "recorded_ms": now_ms}
        upsert = make_upsert(conn, cluster_identity).values(topic=name, **values)
        conn.execute(upsert.on_conflict_do_update(index_elements=["topic"], set_=values))


_FIRST = "1"


def read_keys(conn: Connection) -> list[BridgeKey]:
    """All that are valid, the one that makes new MACs first; none where `migrate` has not made one."""
    c = bridge_keys.c
    rows = conn.execute(sa.select(c.key_id, c.secret).order_by(c.signs.desc(), c.created_ms.desc(), c.key_id))
    return [BridgeKey(row.key_id, load_bridge_key(conn, row.key_id, row.secret)) for row in rows]


def read_beliefs(conn: Connection) -> dict[int, int]:
    """By queue, the op offset below which records need no seal."""
    return {row.queue_id: row.op_offset for row in conn.execute(sa.select(op_beliefs))}


def begin_seals(conn: Connection, believed: Mapping[int, int], now_ms: int) -> None:
    """The first key if there is none, and what is believed without a seal; both or nothing."""
    if not read_keys(conn):
        secret = seal_bridge_key(conn, cipher_of(conn).first, _FIRST, secrets.token_bytes(SECRET_BYTES))
        values = {"key_id": _FIRST, "secret": secret, "signs": 1, "created_ms": now_ms}
        conn.execute(sa.insert(bridge_keys).values(values))
    for queue_id, op_offset in sorted(believed.items()):
        believe_from(conn, queue_id, op_offset)


def believe_from(conn: Connection, queue_id: int, op_offset: int) -> None:
    """From this offset on records need a seal."""
    upsert = make_upsert(conn, op_beliefs).values(queue_id=queue_id, op_offset=op_offset)
    conn.execute(upsert.on_conflict_do_update(index_elements=["queue_id"], set_={"op_offset": op_offset}))


GIVE_UP = "queue.give-up"  # as the audit has it


def name_target(queue_id: int) -> str:
    """The queue as the audit has it."""
    return f"queue {queue_id}"


class Halt(NamedTuple):
    """Why a queue halts, and since when."""

    queue_id: int
    kind: HaltKind
    detail: str
    since_ms: int


def read_halts(conn: Connection) -> dict[int, Halt]:
    """By queue; a handful of rows at most."""
    rows = conn.execute(sa.select(queue_halts))
    return {row.queue_id: Halt(row.queue_id, HaltKind(row.kind), row.detail, row.since_ms) for row in rows}


def read_last_acts(conn: Connection, queue_ids: Iterable[int]) -> dict[int, int]:
    """Which act gave up the log of each of these queues last; 0 if none did."""
    queues = {name_target(queue_id): queue_id for queue_id in queue_ids}
    acts = sa.select(audit.c.target, sa.func.max(audit.c.id)).where(audit.c.what == GIVE_UP, audit.c.target.in_(queues))
    last = dict.fromkeys(queues.values(), 0)
    return last | {queues[target]: act for target, act in conn.execute(acts.group_by(audit.c.target))}


def begin_projection(
    conn: Connection, queue_id: int, position: AppliedPosition, identity: LogIdentity, last_act: int
) -> None:
    """Begins a queue that has no position; nothing if another projector did, or if its log was given up after
    `last_act`: then log and position were looked at too early."""
    if read_last_acts(conn, [queue_id])[queue_id] == last_act:
        begin_position(conn, queue_id, position, identity)


def find_losses(conn: Connection, queue_ids: Collection[int], since_ms: int) -> dict[int, int]:
    """By queue, when records of its journal may have been lost last that nobody else knew, if given up since then."""
    queues = {name_target(queue_id): queue_id for queue_id in queue_ids}
    acts = sa.select(audit.c.target, audit.c.at_ms, audit.c.after).where(
        audit.c.what == GIVE_UP, audit.c.target.in_(queues), audit.c.at_ms >= since_ms
    )
    return {
        queues[target]: at_ms
        for target, at_ms, after in conn.execute(acts.order_by(audit.c.id))
        if json.loads(after or "{}").get("kind") != HaltKind.OTHER_PARKED.value
    }


def store_halt(conn: Connection, halt: Halt, last_act: int | None = None) -> bool:
    """Keeps the first one: what is found later may follow from it. Whether a halt of the queue is stored now.

    `last_act`: as it was when whoever found the halt took the queue over, or began to doubt. After another act it
    speaks of what was given up, and is not stored.
    """
    if last_act is not None and last_act != read_last_acts(conn, [halt.queue_id])[halt.queue_id]:
        return False
    upsert = make_upsert(conn, queue_halts).values(halt._asdict() | {"kind": halt.kind.value})
    conn.execute(upsert.on_conflict_do_nothing(index_elements=["queue_id"]))
    return True


def clear_halt(conn: Connection, queue_id: int) -> None:
    """An operator has said what is given up."""
    conn.execute(sa.delete(queue_halts).where(queue_halts.c.queue_id == queue_id))


GIVEN_UP = "GIVEN_UP"  # `reason` of such a transaction
_G, _T, _B = given_up.c, transactions.c, projection_previous.c
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
    abandoned: bool = False


def read_live(conn: Connection, queue_id: int, pending_below: int | None = None) -> list[Unproven]:
    """Transactions of a queue for which something was still to be done; or those of them that are PREPARED, with half
    messages below that offset."""
    columns = _T.transaction_id, _T.producer_group, _T.state, _T.queue_offset, _T.idempotency_key
    query = sa.select(*columns).where(_T.queue_id == queue_id, _T.live == 1).order_by(_T.id)
    if pending_below is not None:
        query = query.where(_T.state == TransactionState.PREPARED.value, _T.queue_offset < pending_below)
    return [Unproven(i, group, TransactionState(state), at, key) for i, group, state, at, key in conn.execute(query)]


def find_known_ids(conn: Connection, transaction_ids: Collection[str]) -> set[str]:
    """The ids that the projection knows."""
    found: set[str] = set()
    for chunk in chunks(set(transaction_ids), 500):
        found.update(conn.execute(sa.select(_T.transaction_id).where(_T.transaction_id.in_(chunk))).scalars())
    return found


def give_up_queue(conn: Connection, queue_id: int, unproven: Sequence[Unproven], now_ms: int) -> None:
    """Takes a queue's transactions out of the projection, which begins the queue anew, and remembers them."""
    is_here = _T.queue_id == queue_id
    _keep(conn, is_here, now_ms)
    _remember_others(conn, queue_id, unproven, now_ms)
    # before the ages: who makes those anew has locked all positions by then
    conn.execute(sa.delete(projection_positions).where(projection_positions.c.queue_id == queue_id))
    _forget(conn, [is_here])


def give_up_some(conn: Connection, unproven: Sequence[Unproven], now_ms: int) -> None:
    """Takes these out of the projection, and remembers them; the rest of their queue goes on."""
    are_some = [_T.transaction_id.in_(chunk) for chunk in chunks([u.transaction_id for u in unproven], 500)]
    for is_one in are_some:
        _keep(conn, is_one, now_ms)
    _forget(conn, are_some)


def give_up_untold(conn: Connection, queue_id: int, unproven: Sequence[Unproven], now_ms: int) -> None:
    """The same of those that the projection, until it was emptied, may have known better than any log does now."""
    allow_long_statements(conn)
    read_position(conn, queue_id, is_locked=True)
    give_up_some(conn, unproven, now_ms)
    for chunk in chunks([u.transaction_id for u in unproven], 500):
        before = sa.select(_B.state).where(_B.transaction_id == _G.transaction_id).scalar_subquery()
        is_known = _G.transaction_id.in_(chunk), sa.exists().where(_B.transaction_id == _G.transaction_id)
        conn.execute(sa.update(given_up).where(*is_known).values(state=before))
        conn.execute(sa.delete(projection_previous).where(_B.transaction_id.in_(chunk)))


def find_given_up(conn: Connection, transaction_ids: Iterable[str]) -> dict[str, TransactionView]:
    """The ids that were given up."""
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
            "abandoned_ms": now_ms if u.abandoned else None,
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


def _forget(conn: Connection, given_up_parts: Sequence[sa.ColumnElement[bool]]) -> None:
    """Counts come last, in the order in which projectors write them: neither waits for the other in a circle."""
    lost = Counter[tuple[str, str]]()
    for is_given_up in given_up_parts:
        query = sa.select(_T.producer_group, _T.state, sa.func.count()).where(is_given_up, _T.live == 1)
        for group, state, count in conn.execute(query.group_by(_T.producer_group, _T.state)):
            lost[group, state] += count
        ids = sa.select(_T.id).where(is_given_up)
        for table in (transaction_keys, timeline_events):
            conn.execute(sa.delete(table).where(table.c.id.in_(ids)))
        conn.execute(sa.delete(transactions).where(is_given_up))
    _correct_counts(conn, lost)
    make_ages_anew(conn)


def _correct_counts(conn: Connection, lost: Mapping[tuple[str, str], int]) -> None:
    """What ended stays counted; what nobody can prove is pending, parked and blocked no more (C)."""
    for (group, state), count in sorted(lost.items()):
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


# --- the processes of a bridge ---

_LOG = structlog.get_logger()
_EVERY_MS = 10_000
_GONE_MS = 30_000
_FORGOTTEN_MS = 3_600_000
MAX_APART_MS = 5_000
_MAX_AHEAD_MS = 60_000  # of the database's clock: there may be no other process. Endpoints allow calls five minutes
_ROLES, _HELD = "roles", "queues held"
_UNHELD_MS = 60_000  # longer than a queue changes hands
_NOTHING = "published, rolled back or checked"
_NEEDED = {
    "settler": f"nothing is {_NOTHING}",
    "projector": "search stands still, and repeats with an idempotency key are refused",
}
_NOW_MS = {
    "postgresql": "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}


def read_now_ms(conn: Connection) -> int:
    """By the database's clock; that of SQLite is this machine's."""
    return int(conn.execute(sa.text(_NOW_MS[conn.dialect.name])).scalar_one())


class ProcessNote(NamedTuple):
    """What a process says of itself. `ahead_ms`: of the database's clock. `calls`: to the endpoints of each group."""

    owner: str
    ahead_ms: int
    settings: Mapping[str, str]
    calls: Mapping[str, Sequence[int]] = {}


class ProcessBoard:
    """What the processes of this bridge, this one too, noted lately.

    `note_calls`: numbers by group, that only those understand who note them, too.
    """

    def __init__(
        self, database: Database, clock: Clock, owner: str, note_calls: Callable[[], Mapping[str, Sequence[int]]] = dict
    ) -> None:
        self._database = database
        self._clock = clock
        self._own = ProcessNote(owner, 0, {})
        self._note_calls = note_calls
        self._topics: InternalTopics | None = None
        self._find_held: Callable[[], Iterable[int]] = tuple
        self._unheld_since: dict[int, int] = {}
        self._notes: list[ProcessNote] = []
        self._has_own_clock = True  # what SQLite calls its clock is the process's
        self.failure = ""  # why the database has not taken the last note

    def share(self, settings: Mapping[str, str], roles: Sequence[str] = ()) -> None:
        """What this process has of the settings that all must share, as they are shown, and what it does."""
        self._own = self._own._replace(settings={**settings, _ROLES: " ".join(roles)})

    def watch_queues(self, topics: InternalTopics, find_held: Callable[[], Iterable[int]]) -> None:
        """From now on the queues that this process holds are noted, and those that no settler holds are told."""
        self._topics, self._find_held = topics, find_held

    def calls_of(self, group: str) -> list[Sequence[int]]:
        """What others have noted of their calls to the endpoints of a group, some seconds ago."""
        return [other.calls[group] for other in self._notes if group in other.calls]

    def describe(self) -> str:
        """How others differ from this process, and what none does; nothing if all is well."""
        told, own = [*self._find_idle(), *self._tell_unheld()], self._own
        if abs(own.ahead_ms) > _MAX_AHEAD_MS and self._has_own_clock:
            told.append(_tell_apart(own.owner, own.ahead_ms, "the database"))
        for other in self._notes:
            if abs(apart_ms := other.ahead_ms - own.ahead_ms) > MAX_APART_MS:
                told.append(_tell_apart(other.owner, apart_ms, own.owner))
            for name in sorted(self._own.settings.keys() & other.settings.keys() - {_ROLES, _HELD}):
                here, there = self._own.settings[name], other.settings[name]
                if here != there:
                    told.append(f"{name} is {there!r} in {other.owner}, and {here!r} in {self._own.owner}")
        return "; ".join(told)

    def _find_idle(self) -> list[str]:
        """Roles that no process has. One of an older version does not say what it does."""
        notes = [note.settings.get(_ROLES, "") for note in (self._own, *self._notes)]
        does = set(" ".join(notes).split()) if all(notes) else _NEEDED
        return [f"no process has the role {role}: {_NEEDED[role]}" for role in _NEEDED if role not in does]

    def _tell_unheld(self) -> list[str]:
        """Kafka shares queues out to all members of the group, whoever they are."""
        unheld = [queue for queue, since_ms in self._unheld_since.items() if self._now_ms() - since_ms > _UNHELD_MS]
        if not unheld or self._topics is None:
            return []
        told = f"no settler holds queue {', '.join(map(str, sorted(unheld)))}: nothing of it is {_NOTHING}"
        who = f"another program in the consumer group {self._topics.group}, or a settler with a copy of this database,"
        return [f"{told}; {who} may have it (kafka-consumer-groups.sh --describe --members): end it"]

    def _find_unheld(self) -> set[int]:
        """None are told where a settler of an older version does not say what it holds, or there is no settler."""
        settlers = [n.settings for n in (self._own, *self._notes) if "settler" in n.settings.get(_ROLES, "").split()]
        if self._topics is None or not settlers or not all(_HELD in settings for settings in settlers):
            return set()
        return {*range(self._topics.queues)} - {int(n) for settings in settlers for n in settings[_HELD].split()}

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()

    async def run_forever(self) -> None:
        """Notes and looks until it is cancelled. What cannot be asked is left as it was known."""
        while True:
            try:
                await self.run_once()
            except SqlUnavailable as error:
                _LOG.warning("processes_not_looked_at", reason=str(error))
            await self._clock.sleep_ms(_EVERY_MS)

    async def run_once(self) -> None:
        """Notes now, then reads what the others have noted. Raises SqlUnavailable."""
        before = self.describe()
        if self._topics is not None:
            held = " ".join(map(str, self._find_held()))
            self._own = self._own._replace(settings={**self._own.settings, _HELD: held})
        calls = json.dumps(self._note_calls())  # here: a thread of SQL would read what this one changes meanwhile
        try:
            self._own, notes = await self._database.run(partial(self._exchange, calls=calls))
        except SqlUnavailable as error:
            self.failure = str(error)
            self._unheld_since.clear()  # they may be held since
            raise
        if not self.failure:  # else the others could not note themselves either
            self._notes = notes
        self.failure = ""
        self._unheld_since = {queue: self._unheld_since.get(queue, self._now_ms()) for queue in self._find_unheld()}
        if (found := self.describe()) and found != before:
            _LOG.warning("processes_differ", found=found)

    def _exchange(self, conn: Connection, calls: str) -> tuple[ProcessNote, list[ProcessNote]]:
        begun_ms = self._clock.now_ms()
        now_ms = read_now_ms(conn)
        own = self._own._replace(ahead_ms=(begun_ms + self._clock.now_ms()) // 2 - now_ms)
        self._has_own_clock = conn.dialect.name != "sqlite"
        settings = json.dumps(own.settings)
        values = {"seen_ms": now_ms, "ahead_ms": own.ahead_ms, "settings": settings, "calls": calls}
        upsert = make_upsert(conn, processes).values(owner=own.owner, **values)
        conn.execute(upsert.on_conflict_do_update(index_elements=["owner"], set_=values))
        conn.execute(sa.delete(processes).where(processes.c.seen_ms < now_ms - _FORGOTTEN_MS))
        others = (processes.c.owner != own.owner, processes.c.seen_ms > now_ms - _GONE_MS)
        rows = conn.execute(sa.select(processes).where(*others).order_by(processes.c.owner))
        return own, [
            ProcessNote(r.owner, r.ahead_ms, json.loads(r.settings), json.loads(r.calls or "{}")) for r in rows
        ]


def _tell_apart(owner: str, apart_ms: int, other: str) -> str:
    word = "ahead of" if apart_ms > 0 else "behind"
    return f"the clock of {owner} is {abs(apart_ms) / 1000:.1f} s {word} that of {other}"

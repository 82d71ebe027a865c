"""Producer groups in SQL: settings, endpoints, secrets and their encryption, and what became of their rounds.

Every write moves the directory's version, so that other processes see it within a second.
"""

import base64
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from secrets import token_bytes
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.check_rules import CheckCalls, CheckMode, CheckTimes, GroupSettings, WhenExhausted
from bridge.core.errors import SecretDamaged, SecretUnreadable
from bridge.directory import DEFAULT_SETTINGS, Endpoint, GroupSwitch, ProducerGroup, UnansweredRound, place_of
from bridge.sql.access import ActEntry, record_act
from bridge.sql.at_rest import (
    find_key_in_use,
    key_id_of,
    load_bridge_key,
    load_secret,
    load_url,
    read_bytes,
    seal_bridge_key,
    seal_secret,
    seal_url,
    stored_url,
)
from bridge.sql.bulk import make_upsert, move_version
from bridge.sql.engine import Database
from bridge.sql.identity import read_keys
from bridge.sql.search import GroupStats, read_group_stats
from bridge.sql.tables import (
    bridge_keys,
    check_results,
    directory_version,
    endpoints,
    producer_groups,
    secrets,
    unanswered_rounds,
)
from bridge.sql.transactions import count_live

# --- producer groups in SQL: settings, endpoints, secrets, and what became of their rounds ---

OLD_SECRET_SIGNS_MS = 86_400_000
MAX_SIGNING = 16  # of one group at a time; verifiers compare no more signatures
_SECRET_BYTES = 32
RandomBytes = Callable[[int], bytes]
Unread = list[tuple[str, SecretUnreadable]]  # by group; "": the bridge's own key
_SWITCHES = {GroupSwitch.CHECKS: ("pauses_checks", 1), GroupSwitch.PREPARES: ("accepts_prepares", 0)}


class GroupPut(NamedTuple):
    """`secret` is returned once, when a put created the group."""

    is_created: bool
    secret: str | None


class GroupDeletion(Enum):
    """IN_USE: transactions of the group are pending, parked or blocked."""

    DELETED = "deleted"
    UNKNOWN = "unknown"
    IN_USE = "in-use"


@dataclass(frozen=True)
class Snapshot:
    """All groups at a version; `next_expiry_ms`: when a secret stops signing. `damaged`: what cannot be decrypted, and
    is left out: no secret signs, or an endpoint is not asked, of these groups alone; `keyless`: of which, for want of a
    key in the settings. `accepts_prepares` False: an operator has switched them off for all groups. `read_ms`: when, by
    the clock of whoever read it."""

    version: int = -1
    groups: Mapping[str, ProducerGroup] = field(default_factory=dict)
    next_expiry_ms: int | None = None
    damaged: Sequence[str] = ()
    keyless: Mapping[str, SecretUnreadable] = field(default_factory=dict)
    accepts_prepares: bool = True
    read_ms: int = 0

    @cached_property
    def has_leases(self) -> bool:
        """Whether an endpoint of any group is leased."""
        return any(endpoint.is_leased for group in self.groups.values() for endpoint in group.endpoints)


def put_group(
    conn: Connection,
    name: str,
    settings: GroupSettings,
    urls: Collection[str],
    now_ms: int,
    random_bytes: RandomBytes = token_bytes,
) -> GroupPut:
    """Creates the group, or replaces settings and static endpoints; leased endpoints stay, disabled ones come back."""
    key_id = find_key_in_use(conn)  # first of all, as whoever changes it does: else they would wait for each other
    is_created = ensure_group(conn, name, now_ms)
    values = {**settings_values(settings), "updated_ms": now_ms}
    conn.execute(sa.update(producer_groups).where(producer_groups.c.name == name).values(**values))
    conn.execute(sa.delete(endpoints).where(endpoints.c.producer_group == name, endpoints.c.is_leased == sa.false()))
    conn.execute(sa.update(endpoints).where(endpoints.c.producer_group == name).values(disabled_reason=None))
    for url in dict.fromkeys(urls):
        stored = stored_url(conn, name, url)
        upsert = make_upsert(conn, endpoints).values(producer_group=name, url=stored, is_leased=False)
        static = {"is_leased": False, "lease_until_ms": None, "lease_ms": None}
        conn.execute(upsert.on_conflict_do_update(index_elements=["producer_group", "url"], set_=static))
    move_version(conn, directory_version)
    forget_results(conn, name, now_ms)
    return GroupPut(is_created, _add_secret(conn, key_id, name, now_ms, random_bytes) if is_created else None)


def ensure_group(conn: Connection, name: str, now_ms: int, settings: GroupSettings = DEFAULT_SETTINGS) -> bool:
    """Creates the group with these settings, no endpoint and no secret; False if it is there."""
    values = {"name": name, **settings_values(settings), "created_ms": now_ms, "updated_ms": now_ms}
    upsert = make_upsert(conn, producer_groups).values(values).on_conflict_do_nothing(index_elements=["name"])
    if conn.execute(upsert.returning(producer_groups.c.name)).first() is None:
        return False
    move_version(conn, directory_version)
    return True


def switch_group(conn: Connection, name: str, what: GroupSwitch, now_ms: int, *, is_paused: bool) -> bool | None:
    """Pauses the group's checks or prepares, or lets them go on; whether that changed anything. None: no such group.

    A put leaves paused checks paused: programs put their groups when they start.
    """
    column, value = _SWITCHES[what]
    row = conn.execute(sa.select(producer_groups.c[column]).where(producer_groups.c.name == name)).first()
    if row is None:
        return None
    wanted = value if is_paused else 1 - value
    changed = {column: wanted, "updated_ms": now_ms}
    conn.execute(sa.update(producer_groups).where(producer_groups.c.name == name).values(**changed))
    move_version(conn, directory_version)
    return bool(row[0] != wanted)


def switch_prepares(conn: Connection, *, is_paused: bool) -> None:
    """Takes nothing new of any group, or takes it again."""
    move_version(conn, directory_version)
    conn.execute(sa.update(directory_version).values(accepts_prepares=int(not is_paused)))


def delete_group(conn: Connection, name: str) -> GroupDeletion:
    """Forgets the group, its endpoints and secrets, unless something of it is still to be done."""
    if conn.execute(sa.select(producer_groups.c.name).where(producer_groups.c.name == name)).first() is None:
        return GroupDeletion.UNKNOWN
    if count_live(conn, name):
        return GroupDeletion.IN_USE
    conn.execute(sa.delete(producer_groups).where(producer_groups.c.name == name))
    move_version(conn, directory_version)
    return GroupDeletion.DELETED


def rotate_secret(conn: Connection, name: str, now_ms: int, random_bytes: RandomBytes = token_bytes) -> str | None:
    """A new secret; each that was current within the last 24 h signs too, up to a number, but for what cannot be
    decrypted, which goes. None: no such group."""
    key_id = find_key_in_use(conn)
    if conn.execute(sa.select(producer_groups.c.name).where(producer_groups.c.name == name)).first() is None:
        return None
    of_group = secrets.c.producer_group == name
    is_current = secrets.c.expires_ms.is_(None)
    conn.execute(sa.update(secrets).where(of_group, is_current).values(expires_ms=now_ms + OLD_SECRET_SIGNS_MS))
    newest = sa.select(secrets.c.id).where(of_group).order_by(secrets.c.id.desc()).limit(MAX_SIGNING - 1)
    rows = conn.execute(sa.select(secrets.c.id, secrets.c.secret).where(of_group)).all()
    damaged = [row.id for row in rows if _is_damaged(conn, name, row.secret)]
    is_over = sa.or_(secrets.c.expires_ms <= now_ms, secrets.c.id.not_in(newest), secrets.c.id.in_(damaged))
    conn.execute(sa.delete(secrets).where(of_group, is_over))
    secret = _add_secret(conn, key_id, name, now_ms, random_bytes)
    move_version(conn, directory_version)
    return secret


def _is_damaged(conn: Connection, name: str, stored: str) -> bool:
    try:
        load_secret(conn, name, stored)
    except SecretDamaged:
        return True
    return False


def disable_endpoint(conn: Connection, name: str, url: str, reason: str) -> None:
    """Takes the endpoint out of the rounds until the group is put again."""
    where = (endpoints.c.producer_group == name, endpoints.c.url == stored_url(conn, name, url))
    conn.execute(sa.update(endpoints).where(*where).values(disabled_reason=reason))
    move_version(conn, directory_version)


def read_snapshot(conn: Connection, known: Snapshot, now_ms: int) -> Snapshot:
    """All groups as they are; `known` itself if nothing has changed since. The first read raises SecretUnreadable."""
    row = conn.execute(sa.select(directory_version.c.version, directory_version.c.accepts_prepares)).one_or_none()
    version, accepts_prepares = row or (0, 1)
    is_expired = known.next_expiry_ms is not None and known.next_expiry_ms <= now_ms
    is_set_back = now_ms < known.read_ms  # the clock: secrets that had stopped may sign again
    if version == known.version and not (is_expired or is_set_back):
        return known
    rows = conn.execute(sa.select(producer_groups).order_by(producer_groups.c.name)).all()
    unread: Unread = []
    urls = _read_endpoints(conn, unread)
    signing = _read_secrets(conn, unread, now_ms)
    try:
        read_keys(conn)
    except SecretUnreadable as error:  # no act of an operator can be audited here
        unread.append(("", error))
    keyless = {group: error for group, error in unread if not isinstance(error, SecretDamaged)}
    if known.version < 0 and keyless:
        raise next(iter(keyless.values()))
    expiries = [expires_ms for found in signing.values() for _, expires_ms in found if expires_ms is not None]
    groups = {
        row.name: _make_group(row, urls.get(row.name, ()), [secret for secret, _ in signing.get(row.name, ())])
        for row in rows
    }
    damaged = [str(error) for _, error in unread]
    return Snapshot(version, groups, min(expiries, default=None), damaged, keyless, bool(accepts_prepares), now_ms)


def read_group(conn: Connection, name: str, now_ms: int, unread: Unread) -> ProducerGroup | None:
    """One group as it is now. What cannot be decrypted is told in `unread`."""
    row = conn.execute(sa.select(producer_groups).where(producer_groups.c.name == name)).one_or_none()
    if row is None:
        return None
    signing = _read_secrets(conn, unread, now_ms, secrets.c.producer_group == name)
    urls = _read_endpoints(conn, unread, endpoints.c.producer_group == name)
    return _make_group(row, urls.get(name, ()), [secret for secret, _ in signing.get(name, ())])


def _read_endpoints(conn: Connection, unread: Unread, *where: sa.ColumnElement[bool]) -> dict[str, list[Endpoint]]:
    found: dict[str, list[Endpoint]] = {}
    query = sa.select(endpoints).where(*where).order_by(endpoints.c.producer_group, endpoints.c.url)
    for row in conn.execute(query):
        try:
            url, disabled_reason = load_url(conn, row.producer_group, row.url), row.disabled_reason
        except SecretUnreadable as error:
            url, disabled_reason = place_of(row.url), str(error)
            unread.append((row.producer_group, error))
        endpoint = Endpoint(url, row.is_leased, row.lease_until_ms, disabled_reason)
        found.setdefault(row.producer_group, []).append(endpoint)
    return found


def _read_secrets(
    conn: Connection, unread: Unread, now_ms: int, *where: sa.ColumnElement[bool]
) -> dict[str, list[tuple[str, int | None]]]:
    """Secrets that sign, newest first, with the time at which they stop."""
    found: dict[str, list[tuple[str, int | None]]] = {}
    signs = sa.or_(secrets.c.expires_ms.is_(None), secrets.c.expires_ms > now_ms)
    for row in conn.execute(sa.select(secrets).where(signs, *where).order_by(secrets.c.id.desc())):
        try:
            secret = load_secret(conn, row.producer_group, row.secret)
        except SecretUnreadable as error:
            unread.append((row.producer_group, error))
        else:
            found.setdefault(row.producer_group, []).append((secret, row.expires_ms))
    return found


def _make_group(row: sa.Row[Any], urls: Sequence[Endpoint], signing: Sequence[str]) -> ProducerGroup:
    times = CheckTimes(row.transaction_timeout_ms, row.interval_ms, row.max_checks, row.max_lifetime_ms)
    calls = CheckCalls(row.call_timeout_ms, row.batch_size, row.concurrency, CheckMode(row.mode))
    settings = GroupSettings(
        times, calls, WhenExhausted(row.when_exhausted), bool(row.accepts_prepares), bool(row.pauses_checks)
    )
    return ProducerGroup(row.name, settings, tuple(urls), tuple(signing), row.created_ms, row.updated_ms)


def settings_values(settings: GroupSettings) -> dict[str, object]:
    """What is stored of them, by column; a pause of checks has its own statement."""
    times, calls = settings.times, settings.calls
    return {
        "transaction_timeout_ms": times.transaction_timeout_ms,
        "interval_ms": times.interval_ms,
        "max_checks": times.max_checks,
        "max_lifetime_ms": times.max_lifetime_ms,
        "call_timeout_ms": calls.call_timeout_ms,
        "batch_size": calls.batch_size,
        "concurrency": calls.concurrency,
        "mode": calls.mode.value,
        "when_exhausted": settings.when_exhausted.value,
        "accepts_prepares": int(settings.accepts_prepares),
    }


def _add_secret(conn: Connection, key_id: str | None, name: str, now_ms: int, random_bytes: RandomBytes) -> str:
    secret = "whsec_" + base64.b64encode(random_bytes(_SECRET_BYTES)).decode()
    stored = seal_secret(conn, key_id, name, secret)
    conn.execute(sa.insert(secrets).values(producer_group=name, secret=stored, created_ms=now_ms))
    return secret


_LEFT = "(left)"  # no URL: results of endpoints that left long ago, together
_SHOWN_MS = 86_400_000


def forget_results(conn: Connection, name: str, now_ms: int) -> None:
    """Adds up what became of rounds of endpoints that the group has no more, and that nobody called in the last day:
    each instance that ever was has a row of its own, and all rows are read again and again."""
    r, e = check_results.c, endpoints.c
    before_ms = now_ms - _SHOWN_MS
    is_old = [sa.func.coalesce(last_ms, 0) < before_ms for last_ms in (r.last_answered_ms, r.last_unanswered_ms)]
    place = sa.func.substr(e.url, 1, sa.func.length(r.endpoint) + 1)  # a URL may have a query
    is_there = sa.exists().where(e.producer_group == name, place.in_([r.endpoint, r.endpoint + "?"]))
    gone = (r.producer_group == name, r.endpoint.not_in(("", _LEFT)), *is_old, sa.not_(is_there))
    taken = conn.execute(sa.delete(check_results).where(*gone).returning(check_results)).all()
    if not taken:
        return
    upsert = make_upsert(conn, check_results).values(
        producer_group=name,
        endpoint=_LEFT,
        answered=sum(row.answered for row in taken),
        unanswered=sum(row.unanswered for row in taken),
        last_answered_ms=max(row.last_answered_ms or 0 for row in taken) or None,
        last_unanswered_ms=max(row.last_unanswered_ms or 0 for row in taken) or None,
    )
    new = upsert.excluded
    times = {
        last_ms.name: sa.case((new[last_ms.name] > sa.func.coalesce(last_ms, 0), new[last_ms.name]), else_=last_ms)
        for last_ms in (r.last_answered_ms, r.last_unanswered_ms)
    }
    added = {"answered": r.answered + new.answered, "unanswered": r.unanswered + new.unanswered, **times}
    conn.execute(upsert.on_conflict_do_update(index_elements=["producer_group", "endpoint"], set_=added))


class EndpointHealth(NamedTuple):
    """Rounds of an endpoint. `endpoint.url` is "" for rounds in which the group had none, or fetched its checks."""

    endpoint: Endpoint
    answered: int = 0
    last_answered_ms: int | None = None
    last_latency_ms: int | None = None
    unanswered: int = 0
    last_unanswered_ms: int | None = None
    last_failure: str | None = None


@dataclass(frozen=True, slots=True)
class GroupHealth:
    """A group, its endpoints' results (for a day those that left, too), and its counts. `damaged`: what of it cannot be
    decrypted, in words."""

    group: ProducerGroup
    endpoints: Sequence[EndpointHealth]
    stats: GroupStats
    damaged: Sequence[str] = ()


def record_rounds(conn: Connection, rounds: Sequence[UnansweredRound]) -> None:
    """Adds up rounds per transaction and failure, and per endpoint."""
    if not rounds:
        return
    ordered = sorted(rounds, key=lambda r: (r.transaction_id, r.failure, r.at_ms))
    conn.execute(
        _add_rounds(conn),
        [
            {
                "transaction_id": r.transaction_id,
                "failure": r.failure,
                "producer_group": r.group,
                "endpoint": r.endpoint,
                "first_ms": r.at_ms,
                "last_ms": r.at_ms,
                "count": 1,
            }
            for r in ordered
        ],
    )
    conn.execute(
        _add_results(conn),
        [
            {
                "producer_group": r.group,
                "endpoint": r.endpoint or "",
                "unanswered": 1,
                "last_unanswered_ms": r.at_ms,
                "last_failure": f"{r.failure}: {r.said}" if r.said else r.failure,
            }
            for r in sorted(rounds, key=lambda r: (r.group, r.endpoint or "", r.at_ms))
        ],
    )


def read_health(conn: Connection, name: str, now_ms: int) -> GroupHealth | None:
    """None: no such group."""
    unread: Unread = []
    group = read_group(conn, name, now_ms, unread)
    if group is None:
        return None
    c = check_results.c
    columns = c.answered, c.last_answered_ms, c.last_latency_ms, c.unanswered, c.last_unanswered_ms, c.last_failure
    query = sa.select(c.endpoint, *columns).where(c.producer_group == name, c.endpoint != _LEFT)
    results = {place: found for place, *found in conn.execute(query)}
    gone = results.keys() - {place_of(endpoint.url) for endpoint in group.endpoints}
    shown = [*group.endpoints, *map(Endpoint, gone)]
    healths = [EndpointHealth(one, *results.get(place_of(one.url), ())) for one in shown]
    healths.sort(key=lambda health: health.endpoint.url)
    return GroupHealth(group, healths, read_group_stats(conn, name, now_ms), [str(error) for _, error in unread])


def _add_rounds(conn: Connection) -> sa.Insert:
    upsert = make_upsert(conn, unanswered_rounds)
    new, old = upsert.excluded, unanswered_rounds.c
    added = {"count": old.count + new["count"], "last_ms": new.last_ms, "endpoint": new.endpoint}
    return upsert.on_conflict_do_update(index_elements=["transaction_id", "failure"], set_=added)


def _add_results(conn: Connection) -> sa.Insert:
    upsert = make_upsert(conn, check_results)
    new, old = upsert.excluded, check_results.c
    added = {
        "unanswered": old.unanswered + new.unanswered,
        "last_unanswered_ms": new.last_unanswered_ms,
        "last_failure": new.last_failure,
    }
    return upsert.on_conflict_do_update(index_elements=["producer_group", "endpoint"], set_=added)


# --- what is done to all secrets in SQL at once: encrypted with another key, counted ---


async def rewrap_secrets(
    database: Database, key_id: str | None, actor: str, now_ms: int, step_rows: int = 500
) -> Counter[str]:
    """Encrypts with this key, or None with no key, what is stored otherwise, and lets everything be from now on; how
    many of each kind. Step by step, each audited: run again, it goes on. Raises SqlUnavailable."""
    step = partial(_take_step, key_id=key_id, actor=actor, now_ms=now_ms, limit=step_rows)
    total = Counter[str]()
    while (done := await database.run(step)).total():
        total.update(done)
    return total


def count_by_key(conn: Connection) -> Counter[str | None]:
    """How many secrets are encrypted with which key; None: with no key."""
    urls = conn.execute(sa.select(endpoints.c.url).where(endpoints.c.url.like("%?_%"))).scalars()
    found = [
        *conn.execute(sa.select(secrets.c.secret)).scalars(),
        *[url.partition("?")[2] for url in urls],
        *map(read_bytes, conn.execute(sa.select(bridge_keys.c.secret)).scalars()),
    ]
    return Counter(map(key_id_of, found))


def _take_step(conn: Connection, key_id: str | None, actor: str, now_ms: int, limit: int) -> Counter[str]:
    find_key_in_use(conn, is_to_change=True)
    done = Counter(
        {
            "bridge keys": _rewrap_bridge_keys(conn, key_id),
            "signing secrets": _rewrap_secrets(conn, key_id, limit),
            "endpoints": _rewrap_urls(conn, key_id, limit),
        }
    )
    if done.total():
        move_version(conn, directory_version)
        target = "no key" if key_id is None else f"key {key_id}"
        record_act(conn, ActEntry(now_ms, actor, "secrets.rewrap", target, None, None, dict(done)))
    return done


def _rewrap_bridge_keys(conn: Connection, key_id: str | None) -> int:
    c = bridge_keys.c
    rows = [row for row in conn.execute(sa.select(c.key_id, c.secret)) if key_id_of(read_bytes(row.secret)) != key_id]
    for name, stored in rows:
        secret = seal_bridge_key(conn, key_id, name, load_bridge_key(conn, name, stored))
        conn.execute(sa.update(bridge_keys).where(c.key_id == name).values(secret=secret))
    return len(rows)


def _rewrap_secrets(conn: Connection, key_id: str | None, limit: int) -> int:
    c = secrets.c
    is_other = c.secret.startswith("{") if key_id is None else ~c.secret.startswith(f"{{{key_id}}}", autoescape=True)
    rows = conn.execute(sa.select(secrets).where(is_other).order_by(c.id).limit(limit)).all()
    for row in rows:
        group = row.producer_group
        stored = seal_secret(conn, key_id, group, load_secret(conn, group, row.secret))
        conn.execute(sa.update(secrets).where(c.id == row.id).values(secret=stored))
    return len(rows)


def _rewrap_urls(conn: Connection, key_id: str | None, limit: int) -> int:
    c = endpoints.c
    ours = c.url.contains("?{") if key_id is None else ~c.url.contains(f"?{{{key_id}}}", autoescape=True)
    rows = conn.execute(sa.select(c.producer_group, c.url).where(c.url.like("%?_%"), ours).limit(limit)).all()
    for group, url in rows:
        stored = seal_url(conn, key_id, group, load_url(conn, group, url))
        conn.execute(sa.delete(endpoints).where(c.producer_group == group, c.url == stored))  # there twice: never due
        conn.execute(sa.update(endpoints).where(c.producer_group == group, c.url == url).values(url=stored))
    return len(rows)

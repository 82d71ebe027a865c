"""Who may, and who did, in SQL: principals, their grants and keys, and the audit."""

import hmac
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from secrets import token_bytes
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.audit_chain import AuditLink, AuditRow, make_link
from bridge.core.grants import Grant, Rights, Verb
from bridge.core.keyring import RANDOM_BYTES, Keyring, hash_key, make_key_text, read_key_id
from bridge.directory import show_url
from bridge.sql.bulk import chunks, make_upsert, move_version
from bridge.sql.engine import RepeatableError
from bridge.sql.identity import read_keys
from bridge.sql.rows import decode_cursor, encode_cursor
from bridge.sql.tables import access_version, api_keys, audit, audit_links, audit_turn, grants, principals

# --- principals ---

MAX_KEYS = 2  # of a principal at a time: the old one and the new one
_NO_HASH = "0" * 64


class Key(NamedTuple):
    """What is known of an API key; never the key itself."""

    key_id: str
    principal: str
    label: str | None
    created_ms: int
    expires_ms: int | None
    last_used_ms: int | None


class Principal(NamedTuple):
    """Somebody who calls the bridge, by name."""

    name: str
    created_ms: int
    grants: Sequence[Grant]
    keys: Sequence[Key]


class KeyRefusal(Enum):
    """Why a key is not made."""

    UNKNOWN_PRINCIPAL = "unknown-principal"
    TOO_MANY_KEYS = "too-many-keys"


class MadeKey(NamedTuple):
    """A new key, whose text is shown once."""

    key: Key
    text: str


class StoredKey(NamedTuple):
    """What a given key is compared with."""

    principal: str
    secret_hash: str
    expires_ms: int | None


@dataclass(frozen=True)
class AccessSnapshot:
    """Everybody who is let in, at a version."""

    version: int = -1
    keys: Mapping[str, StoredKey] = field(default_factory=dict)
    rights: Mapping[str, Rights] = field(default_factory=dict)

    def find(self, text: str, now_ms: int) -> tuple[str, str] | None:
        """Principal and id of the key with this text. As much work is done for ids that nobody has."""
        key_id = read_key_id(text)
        known = self.keys.get(key_id or "")
        is_same = hmac.compare_digest(hash_key(text), _NO_HASH if known is None else known.secret_hash)
        if key_id is None or known is None or not is_same or not _is_live(known.expires_ms, now_ms):
            return None
        return known.principal, key_id


def put_principal(conn: Connection, name: str, wanted: Collection[Grant], now_ms: int) -> Sequence[Grant] | None:
    """Creates a principal, or replaces its grants; those that it had, None: it is new."""
    upsert = make_upsert(conn, principals).values(name=name, created_ms=now_ms)
    made = upsert.on_conflict_do_nothing(index_elements=["name"]).returning(principals.c.name)
    is_new = conn.execute(made).first() is not None
    # before its grants are looked at: whoever replaces them at this moment adds some that cannot be seen yet
    if not _lock_principal(conn, name):
        raise RepeatableError("the principal was deleted meanwhile")
    before = _read_grants(conn).get(name, ())
    conn.execute(sa.delete(grants).where(grants.c.principal == name))
    rows = [
        {"principal": name, "verb": grant.verb.value, "group_pattern": grant.groups, "topic_pattern": grant.topics}
        for grant in sorted(set(wanted))
    ]
    if rows:
        conn.execute(sa.insert(grants), rows)
    move_version(conn, access_version)
    return None if is_new else before


def delete_principal(conn: Connection, name: str) -> Sequence[Grant] | None:
    """Forgets a principal, its grants and keys; what it had been granted, None: there is none."""
    if not _lock_principal(conn, name):
        return None
    before = _read_grants(conn).get(name, ())
    conn.execute(sa.delete(principals).where(principals.c.name == name))
    move_version(conn, access_version)
    return before


def _lock_principal(conn: Connection, name: str) -> bool:
    """Whether there is such a principal; until the end of the SQL transaction nobody else changes it."""
    locked = sa.select(principals.c.name).where(principals.c.name == name).with_for_update()
    return conn.execute(locked).first() is not None


def make_key(
    conn: Connection,
    principal: str,
    label: str | None,
    now_ms: int,
    expires_ms: int | None,
    random_bytes: Callable[[int], bytes] = token_bytes,
) -> MadeKey | KeyRefusal:
    """A key of a principal. Those that have expired make room."""
    if not _lock_principal(conn, principal):
        return KeyRefusal.UNKNOWN_PRINCIPAL
    own = api_keys.c.principal == principal
    conn.execute(sa.delete(api_keys).where(own, api_keys.c.expires_ms <= now_ms))
    if conn.execute(sa.select(sa.func.count()).select_from(api_keys).where(own)).scalar_one() >= MAX_KEYS:
        return KeyRefusal.TOO_MANY_KEYS
    text = make_key_text(random_bytes(RANDOM_BYTES))
    key = Key(read_key_id(text) or "", principal, label, now_ms, expires_ms, None)
    conn.execute(sa.insert(api_keys).values(**key._asdict(), secret_hash=hash_key(text)))
    move_version(conn, access_version)
    return MadeKey(key, text)


def revoke_key(conn: Connection, key_id: str) -> str | None:
    """Ends a key; the principal it belonged to, None: there is none."""
    deleted = sa.delete(api_keys).where(api_keys.c.key_id == key_id).returning(api_keys.c.principal)
    principal = conn.execute(deleted).scalar_one_or_none()
    move_version(conn, access_version)
    return principal


def note_uses(conn: Connection, used: Mapping[str, int]) -> None:
    """When keys, by id, were last used."""
    for key_id, at_ms in sorted(used.items()):
        is_later = sa.or_(api_keys.c.last_used_ms.is_(None), api_keys.c.last_used_ms < at_ms)
        conn.execute(
            sa.update(api_keys).where(api_keys.c.key_id == key_id, is_later).values(last_used_ms=at_ms)
        )  # fmt: skip


def list_principals(conn: Connection, name: str | None = None) -> list[Principal]:
    """All of them in the order of their names, or the one with this name."""
    query = sa.select(principals).order_by(principals.c.name)
    if name is not None:
        query = query.where(principals.c.name == name)
    owned: dict[str, list[Key]] = {}
    for row in conn.execute(sa.select(api_keys).order_by(api_keys.c.created_ms, api_keys.c.key_id)):
        key = Key(row.key_id, row.principal, row.label, row.created_ms, row.expires_ms, row.last_used_ms)
        owned.setdefault(row.principal, []).append(key)
    granted = _read_grants(conn)
    return [
        Principal(row.name, row.created_ms, granted.get(row.name, ()), owned.get(row.name, ()))
        for row in conn.execute(query)
    ]


def read_access(conn: Connection, known: AccessSnapshot) -> AccessSnapshot:
    """Everybody as of now; `known` itself if nothing has changed since."""
    version = conn.execute(sa.select(access_version.c.version)).scalar_one_or_none() or 0
    if version == known.version:
        return known
    names = conn.execute(sa.select(principals.c.name)).scalars()
    granted = _read_grants(conn)
    keys = {
        row.key_id: StoredKey(row.principal, row.secret_hash, row.expires_ms)
        for row in conn.execute(sa.select(api_keys))
    }
    return AccessSnapshot(version, keys, {name: Rights(granted.get(name, ())) for name in names})


def _read_grants(conn: Connection) -> Mapping[str, Sequence[Grant]]:
    granted: dict[str, list[Grant]] = {}
    columns = (grants.c.principal, grants.c.verb, grants.c.group_pattern, grants.c.topic_pattern)
    for name, verb, groups, topics in conn.execute(sa.select(*columns).order_by(*columns)):
        granted.setdefault(name, []).append(Grant(Verb(verb), groups, topics))
    return granted


def _is_live(expires_ms: int | None, now_ms: int) -> bool:
    return expires_ms is None or now_ms < expires_ms


# --- the audit: who did what, kept in the SQL transaction of what was done, each entry linked to the one before ---

_CURSOR = "a"
_L = audit_links.c
_A = audit.c
_ENTRY = (_A.id, _A.at_ms, _A.actor, _A.what, _A.target, _A.reason, _A.before, _A.after)


@dataclass(frozen=True, slots=True)
class ActEntry:
    """An audited act. `before`, `after`: JSON members of what changed; never secrets, nor queries of URLs."""

    at_ms: int
    actor: str
    what: str
    target: str
    reason: str | None = None
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None


def record_act(conn: Connection, entry: ActEntry) -> None:
    """Keeps the entry with its link, in the SQL transaction of what it speaks of.

    Always the last that is done there: until COMMIT all others who add to the audit wait, and none of them may then be
    waited for. Raises SecretUnreadable.
    """
    move_version(conn, audit_turn)
    values = asdict(entry) | {"before": _encode(entry.before), "after": _encode(entry.after)}
    audit_id = conn.execute(sa.insert(audit).values(values).returning(audit.c.id)).scalar_one()
    _add_links(conn, [AuditRow(audit_id, **values)], None)


def _add_links(conn: Connection, rows: Sequence[AuditRow], adopted_ms: int | None) -> None:
    keyring, last = Keyring(read_keys(conn)), read_last_link(conn)
    for row in rows:
        last = make_link(keyring, row, last, adopted_ms)
        conn.execute(sa.insert(audit_links).values(last._asdict()))


def read_last_link(conn: Connection) -> AuditLink | None:
    """The newest one; None where nothing was ever audited."""
    row = conn.execute(sa.select(audit_links).order_by(_L.number.desc()).limit(1)).first()
    return None if row is None else AuditLink(*row)


def read_links(conn: Connection, after: int, limit: int) -> list[tuple[AuditLink, AuditRow | None]]:
    """Links behind this number in their order, each with its entry if that is there."""
    query = sa.select(audit_links, *_ENTRY).outerjoin(audit, audit.c.id == _L.audit_id)
    rows = conn.execute(query.where(_L.number > after).order_by(_L.number).limit(limit))
    count = len(audit_links.c)
    return [(AuditLink(*row[:count]), None if row[count] is None else AuditRow(*row[count:])) for row in rows]


def read_macs(conn: Connection, numbers: Collection[int]) -> dict[int, str]:
    """Of the links with these numbers that there are."""
    found: dict[int, str] = {}
    for chunk in chunks(numbers, 500):
        rows = conn.execute(sa.select(_L.number, _L.mac).where(_L.number.in_(chunk)))
        found.update({row.number: row.mac for row in rows})
    return found


def find_unlinked(conn: Connection, after_id: int, most: int = 10_000) -> tuple[int, int, int]:
    """How many entries of the next `most` ids have no link; the last of these ids, and the last that there is."""
    last_id = conn.execute(sa.select(sa.func.max(audit.c.id))).scalar_one() or 0
    end_id = min(after_id + most, last_id)
    here = (audit.c.id > after_id, audit.c.id <= end_id, _L.number.is_(None))
    query = sa.select(sa.func.count()).select_from(audit.outerjoin(audit_links, audit.c.id == _L.audit_id))
    return conn.execute(query.where(*here)).scalar_one(), end_id, last_id


def adopt_entries(conn: Connection, after_id: int, now_ms: int, limit: int = 500) -> int:
    """Gives links to entries that were written without: by versions before there were links, or by anybody."""
    move_version(conn, audit_turn)
    query = sa.select(*_ENTRY).outerjoin(audit_links, audit.c.id == _L.audit_id)
    rows = conn.execute(query.where(_L.number.is_(None), audit.c.id > after_id).order_by(audit.c.id).limit(limit))
    adopted = [AuditRow(*row) for row in rows]
    _add_links(conn, adopted, now_ms)
    return len(adopted)


def read_audit(conn: Connection, limit: int, cursor: str | None = None) -> tuple[list[ActEntry], str | None]:
    """A page, newest first, and the cursor of the next one. Raises MalformedCursor."""
    query = sa.select(audit).order_by(audit.c.id.desc()).limit(limit + 1)
    if cursor is not None:
        query = query.where(audit.c.id < decode_cursor(_CURSOR, 1, cursor)[0])
    rows = list(conn.execute(query))
    entries = [
        ActEntry(row.at_ms, row.actor, row.what, row.target, row.reason, *map(decode_members, (row.before, row.after)))
        for row in rows[:limit]
    ]
    return entries, encode_cursor(_CURSOR, rows[limit - 1].id) if len(rows) > limit else None


def _encode(members: Mapping[str, object] | None) -> str | None:
    return None if members is None else json.dumps(_hide_queries(members), separators=(",", ":"))


def decode_members(text: str | None) -> Mapping[str, object] | None:
    """What an entry keeps of `before` or `after`, as it may be shown. Raises ValueError at what is no JSON object."""
    return None if text is None else _hide_queries(json.loads(text))


def _hide_queries(members: Mapping[str, object]) -> Mapping[str, object]:
    """Also of what was kept before they were hidden."""
    shown = dict(members)
    if isinstance(url := shown.get("url"), str):
        shown["url"] = show_url(url)
    if isinstance(urls := shown.get("endpoints"), list):
        shown["endpoints"] = [show_url(str(one)) for one in urls]
    return shown

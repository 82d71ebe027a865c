"""The audit: who did what, kept in the SQL transaction of what was done, each entry linked to the one before."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.audit_chain import AuditLink, AuditRow, make_link
from bridge.core.keyring import Keyring
from bridge.directory import show_url
from bridge.sql.bulk import move_version
from bridge.sql.identity import read_keys
from bridge.sql.rows import decode_cursor, encode_cursor
from bridge.sql.search import chunks
from bridge.sql.tables import audit, audit_links, audit_turn

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
    values = {
        "at_ms": entry.at_ms,
        "actor": entry.actor,
        "what": entry.what,
        "target": entry.target,
        "reason": entry.reason,
        "before": _encode(entry.before),
        "after": _encode(entry.after),
    }
    audit_id = conn.execute(sa.insert(audit).values(values).returning(audit.c.id)).scalar_one()
    _add_links(conn, [AuditRow(audit_id, **values)], None)  # type: ignore[arg-type]


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
        ActEntry(row.at_ms, row.actor, row.what, row.target, row.reason, _decode(row.before), _decode(row.after))
        for row in rows[:limit]
    ]
    return entries, encode_cursor(_CURSOR, rows[limit - 1].id) if len(rows) > limit else None


def _encode(members: Mapping[str, object] | None) -> str | None:
    return None if members is None else json.dumps(_hide_queries(members), separators=(",", ":"))


def _decode(text: str | None) -> Mapping[str, object] | None:
    return None if text is None else _hide_queries(json.loads(text))


def _hide_queries(members: Mapping[str, object]) -> Mapping[str, object]:
    """Also of what was kept before they were hidden."""
    shown = dict(members)
    if isinstance(url := shown.get("url"), str):
        shown["url"] = show_url(url)
    if isinstance(urls := shown.get("endpoints"), list):
        shown["endpoints"] = [show_url(str(one)) for one in urls]
    return shown

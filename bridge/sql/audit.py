"""The audit: who did what, kept in the SQL transaction of what was done."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.directory import show_url
from bridge.sql.rows import decode_cursor, encode_cursor
from bridge.sql.tables import audit

_CURSOR = "a"


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
    """Keeps the entry, in the SQL transaction of what it speaks of."""
    conn.execute(
        sa.insert(audit).values(
            at_ms=entry.at_ms,
            actor=entry.actor,
            what=entry.what,
            target=entry.target,
            reason=entry.reason,
            before=_encode(entry.before),
            after=_encode(entry.after),
        )
    )


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

"""Who did what, when, to what and why."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.sql.errors import MalformedCursor
from bridge.sql.tables import audit


@dataclass(frozen=True, slots=True)
class ActEntry:
    """An audited act. `before`, `after`: JSON members of what changed; secrets never."""

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
        query = query.where(audit.c.id < _decode_cursor(cursor))
    rows = list(conn.execute(query))
    entries = [
        ActEntry(row.at_ms, row.actor, row.what, row.target, row.reason, _decode(row.before), _decode(row.after))
        for row in rows[:limit]
    ]
    return entries, _encode_cursor(rows[limit - 1].id) if len(rows) > limit else None


def _encode(members: Mapping[str, object] | None) -> str | None:
    return None if members is None else json.dumps(members, separators=(",", ":"))


def _decode(text: str | None) -> Mapping[str, object] | None:
    return None if text is None else dict(json.loads(text))


def _encode_cursor(row_id: int) -> str:
    return base64.urlsafe_b64encode(b"a:%d" % row_id).decode().rstrip("=")


def _decode_cursor(cursor: str) -> int:
    try:
        raw = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        kind, row_id = raw.split(b":")
        number = int(row_id)
    except ValueError as error:
        raise MalformedCursor("not a cursor of this bridge") from error
    if kind != b"a" or not 0 <= number < 2**63:
        raise MalformedCursor("not a cursor of this bridge")
    return number

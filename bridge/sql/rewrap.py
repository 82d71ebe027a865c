"""What is done to all secrets in SQL at once: encrypted with another key, counted."""

from collections import Counter
from functools import partial

import sqlalchemy as sa
from sqlalchemy import Connection

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
)
from bridge.sql.audit import ActEntry, record_act
from bridge.sql.bulk import move_version
from bridge.sql.engine import Database
from bridge.sql.tables import bridge_keys, directory_version, endpoints, secrets


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

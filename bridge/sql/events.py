"""Events that wait for webhooks: CloudEvents 1.0 in JSON, and how far those who make them have looked."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.core.audit_chain import AuditLink, AuditRow
from bridge.core.message import write_json
from bridge.core.transaction import show_time
from bridge.sql.access import read_links
from bridge.sql.bulk import make_upsert
from bridge.sql.identity import Halt, TopicIdentity, read_halts, read_identity
from bridge.sql.tables import check_results, event_marks, webhook_deliveries

# --- what the bridge tells others about itself, as CloudEvents 1.0 in JSON ---
# Source: CloudEvents 1.0.2, JSON format 1.0.2. The id is made of what happened, so that whoever hears it twice can
# tell.

CLOUD_EVENTS_JSON = "application/cloudevents+json"
PARKED = "transaction.parked"


class CloudEvent(NamedTuple):
    """`text`: the whole event as JSON."""

    event_id: str
    type: str
    text: str


class Happening(NamedTuple):
    """`key`: what makes it this one and no other of its type. `data`: JSON members."""

    type: str
    key: str
    subject: str
    at_ms: int
    data: Mapping[str, object]


def make_cloud_event(source: str, happening: Happening) -> CloudEvent:
    """Equal happenings of one source are one event."""
    told = f"{source}\0{happening.type}\0{happening.key}".encode()
    event_id = f"evt_{hashlib.blake2b(told, digest_size=16).hexdigest()}"
    members = {
        "specversion": "1.0",
        "id": event_id,
        "source": source,
        "type": happening.type,
        "subject": happening.subject,
        "time": show_time(happening.at_ms),
        "datacontenttype": "application/json",
        "data": dict(happening.data),
    }
    return CloudEvent(event_id, happening.type, write_json(members))


def name_source(cluster_id: str, topic: str) -> str:
    """The bridge as the source of events: that of this journal in this cluster. A URI."""
    return f"urn:outbox-bridge:{cluster_id or '-'}:{topic}"


# --- events that wait for webhooks, and how far those who make events have looked ---

_D = webhook_deliveries.c
_R = check_results.c


class Delivery(NamedTuple):
    """An event that a webhook has not been told yet; `refusals`: how often its receiver would not have it."""

    row_id: int
    event_id: str
    body: str
    created_ms: int
    refusals: int


class Waiting(NamedTuple):
    """What a webhook has not been told yet. `failure`: why the oldest was not, the last time."""

    events: int
    oldest_ms: int
    failure: str | None


class RoundCounts(NamedTuple):
    """A producer group's rounds, of all its endpoints together."""

    answered: int
    unanswered: int
    last_unanswered_ms: int
    last_answered_ms: int


class Surroundings(NamedTuple):
    """What there is to tell of, at one moment."""

    marks: Mapping[str, str]
    identity: Mapping[str, TopicIdentity]
    rounds: Mapping[str, RoundCounts]
    halts: Mapping[int, Halt]
    waiting: Mapping[str, Waiting]


def keep_events(
    conn: Connection,
    wanted: Mapping[str, Sequence[CloudEvent]],
    marks: Mapping[str, str | None],
    now_ms: int,
    most: int,
) -> dict[str, int]:
    """Keeps events by webhook together with the marks behind them, so that none is left out and none is made anew; how
    many found no room, where any did."""
    write_marks(conn, marks)
    lost = {webhook: add_deliveries(conn, webhook, events, now_ms, most) for webhook, events in wanted.items()}
    return {webhook: count for webhook, count in lost.items() if count}


def read_surroundings(conn: Connection) -> Surroundings:
    """All that a look needs of SQL."""
    known = (read_marks(conn), read_identity(conn), count_rounds(conn), read_halts(conn))
    return Surroundings(*known, read_waiting(conn))


def add_deliveries(conn: Connection, webhook: str, events: Collection[CloudEvent], now_ms: int, most: int) -> int:
    """Keeps events for a webhook, those that wait already once; how many found no room. A producer can have as many
    transactions parked as it likes: the last tenth of the room is for all else."""
    waiting = _D.webhook == webhook
    count = sa.select(sa.func.count()).select_from(webhook_deliveries).where(waiting)
    taken = conn.execute(count).scalar_one() if events else 0
    lost = 0
    for event in events:
        if taken >= (most - most // 10 if event.type == PARKED else most):
            lost += 1
            continue
        values = {"webhook": webhook, "event_id": event.event_id, "body": event.text, "created_ms": now_ms}
        upsert = make_upsert(conn, webhook_deliveries).values(values)
        conn.execute(upsert.on_conflict_do_nothing(index_elements=["webhook", "event_id"]))
        taken += 1
    return lost


def find_delivery(conn: Connection, webhook: str) -> Delivery | None:
    """The oldest that waits."""
    query = sa.select(_D.id, _D.event_id, _D.body, _D.created_ms, _D.tries).where(_D.webhook == webhook)
    row = conn.execute(query.order_by(_D.id).limit(1)).first()
    return None if row is None else Delivery(*row)


def remove_delivery(conn: Connection, row_id: int) -> None:
    """It was told, or is given up."""
    conn.execute(sa.delete(webhook_deliveries).where(_D.id == row_id))


def note_failure(conn: Connection, row_id: int, failure: str, *, is_refusal: bool) -> None:
    """It was tried in vain."""
    values = {"tries": _D.tries + int(is_refusal), "failure": failure}
    conn.execute(sa.update(webhook_deliveries).where(_D.id == row_id).values(values))


def read_waiting(conn: Connection) -> dict[str, Waiting]:
    """By webhook; those for which nothing waits are left out."""
    totals = sa.select(_D.webhook, sa.func.count(), sa.func.min(_D.created_ms), sa.func.min(_D.id)).group_by(_D.webhook)
    rows = list(conn.execute(totals))
    heads = sa.select(_D.id, _D.failure).where(_D.id.in_([row[3] for row in rows]))
    failures = {row.id: row.failure for row in conn.execute(heads)}
    return {webhook: Waiting(count, oldest_ms, failures.get(head)) for webhook, count, oldest_ms, head in rows}


def read_marks(conn: Connection) -> dict[str, str]:
    """All of them."""
    return {row.name: row.value for row in conn.execute(sa.select(event_marks))}


class Acts(NamedTuple):
    """Links of the audit behind the one that a mark names, each with its entry if that is there; the identity of the
    topic that the bridge is known by."""

    after: int
    links: list[tuple[AuditLink, AuditRow | None]]
    identity: TopicIdentity | None


def read_acts(conn: Connection, mark: str, topic: str, limit: int) -> Acts:
    """As they stand at one moment."""
    after = int(read_marks(conn).get(mark, "0"))
    return Acts(after, read_links(conn, after, limit), read_identity(conn).get(topic))


def write_marks(conn: Connection, marks: Mapping[str, str | None]) -> None:
    """Sets them; None removes one."""
    for name, value in marks.items():
        if value is None:
            conn.execute(sa.delete(event_marks).where(event_marks.c.name == name))
        else:
            upsert = make_upsert(conn, event_marks).values(name=name, value=value)
            conn.execute(upsert.on_conflict_do_update(index_elements=["name"], set_={"value": value}))


def count_rounds(conn: Connection) -> dict[str, RoundCounts]:
    """By producer group, as projector and checkers have counted them."""
    last_ms = [sa.func.coalesce(sa.func.max(each), 0) for each in (_R.last_unanswered_ms, _R.last_answered_ms)]
    query = sa.select(_R.producer_group, sa.func.sum(_R.answered), sa.func.sum(_R.unanswered), *last_ms)
    rows = conn.execute(query.group_by(_R.producer_group))
    return {
        group: RoundCounts(int(answered), int(not_answered), *times) for group, answered, not_answered, *times in rows
    }

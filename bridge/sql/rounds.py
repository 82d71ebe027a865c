"""Rounds without an answer, and what became of all rounds by endpoint: a group's health."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.directory import Endpoint, ProducerGroup, UnansweredRound
from bridge.sql.bulk import make_upsert
from bridge.sql.groups import read_group
from bridge.sql.stats import GroupStats, read_group_stats
from bridge.sql.tables import check_results, unanswered_rounds


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
    """A group, its endpoints' results (those that left, too, as long as there are any), and its counts."""

    group: ProducerGroup
    endpoints: Sequence[EndpointHealth]
    stats: GroupStats


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
                "last_failure": r.failure,
            }
            for r in sorted(rounds, key=lambda r: (r.group, r.endpoint or "", r.at_ms))
        ],
    )


def read_health(conn: Connection, name: str, now_ms: int) -> GroupHealth | None:
    """None: no such group."""
    group = read_group(conn, name, now_ms)
    if group is None:
        return None
    known = {endpoint.url: endpoint for endpoint in group.endpoints}
    rows = conn.execute(
        sa.select(check_results).where(check_results.c.producer_group == name).order_by(check_results.c.endpoint)
    )
    results = {
        row.endpoint: EndpointHealth(
            known.get(row.endpoint, Endpoint(row.endpoint)),
            row.answered,
            row.last_answered_ms,
            row.last_latency_ms,
            row.unanswered,
            row.last_unanswered_ms,
            row.last_failure,
        )
        for row in rows
    }
    silent = {url: EndpointHealth(endpoint) for url, endpoint in known.items() if url not in results}
    ordered = [health for _, health in sorted((results | silent).items())]
    return GroupHealth(group, ordered, read_group_stats(conn, name, now_ms))


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

"""Redrive jobs: an act on all parked transactions that match a filter, step by step, by one process at a time."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.sql.leases import Lease, is_takeable
from bridge.sql.tables import redrive_jobs

_J = redrive_jobs.c


class JobState(StrEnum):
    """RUNNING until it is done, stopped by an operator, or failed."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RedriveJob:
    """A job. `action`: resume, commit or rollback. `cursor`: the page of the search to do next, None: the first."""

    job_id: str
    created_ms: int
    updated_ms: int
    actor: str
    reason: str
    filter: Mapping[str, Any]
    action: str
    rate_per_s: int
    state: JobState = JobState.RUNNING
    cursor: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


def create_job(conn: Connection, job: RedriveJob) -> None:
    """Keeps a new job, claimed by nobody."""
    texts = {"filter": json.dumps(job.filter), "state": job.state.value, "counts": json.dumps(job.counts)}
    conn.execute(sa.insert(redrive_jobs).values(asdict(job) | texts | {"lease_until_ms": 0}))


def find_job(conn: Connection, job_id: str) -> RedriveJob | None:
    """The job as it stands."""
    row = conn.execute(sa.select(redrive_jobs).where(_J.job_id == job_id)).one_or_none()
    return None if row is None else _make_job(row)


def list_jobs(
    conn: Connection, limit: int, is_visible: Callable[[Mapping[str, Any]], bool] | None = None
) -> list[RedriveJob]:
    """The newest jobs, newest first, of those whose filter may be seen."""
    newest = _J.created_ms.desc(), _J.job_id.desc()
    query = sa.select(redrive_jobs).order_by(*newest).limit(limit)
    if is_visible is not None:
        filters = conn.execute(sa.select(_J.job_id, _J.filter).order_by(*newest))
        seen = (row.job_id for row in filters if is_visible(json.loads(row.filter)))
        query = query.where(_J.job_id.in_(list(islice(seen, limit))))
    return [_make_job(row) for row in conn.execute(query)]


def claim_job(
    conn: Connection, owner: str, now_ms: int, lease_ms: int, abandoned: Lease | None = None
) -> RedriveJob | None:
    """A running job that nobody works at, leased to `owner`; or one that is the owner's already, the lease renewed.

    One whose lease is still exactly the abandoned one counts as worked at by nobody. Jobs take turns, whatever becomes
    of their steps, and what the owner had before is free for others.
    """
    is_free = is_takeable(_J.owner, _J.lease_until_ms, owner, now_ms, abandoned)
    is_running = _J.state == JobState.RUNNING.value
    row = conn.execute(
        sa.select(redrive_jobs)
        .where(is_running, is_free)
        .order_by(_J.lease_until_ms, _J.created_ms, _J.job_id)
        .limit(1)
    ).one_or_none()
    if row is None:
        return None
    is_before = (_J.owner == owner, _J.job_id != row.job_id, is_running, _J.lease_until_ms > now_ms)
    conn.execute(sa.update(redrive_jobs).where(*is_before).values(lease_until_ms=now_ms))
    update = sa.update(redrive_jobs).where(_J.job_id == row.job_id, is_running, is_free)
    taken = conn.execute(update.values(owner=owner, lease_until_ms=now_ms + lease_ms)).rowcount
    return _make_job(row) if taken == 1 else None


def find_lease(conn: Connection) -> Lease | None:
    """The lease of running jobs that ends last: one of a dead process whose clock was ahead, if there is any. None if
    no job runs, or nobody works at any."""
    is_held = (_J.state == JobState.RUNNING.value, _J.owner.is_not(None))
    query = sa.select(_J.owner, _J.lease_until_ms).where(*is_held).order_by(_J.lease_until_ms.desc(), _J.job_id)
    row = conn.execute(query.limit(1)).one_or_none()
    return None if row is None else Lease(row.owner, row.lease_until_ms)


def advance_job(conn: Connection, job: RedriveJob, owner: str) -> bool:
    """Keeps `updated_ms`, cursor, counts and state of a step, if the job is still running and the owner's; else False.

    A job that was stopped during the step stays stopped, and its counts include the step.
    """
    his = (_J.job_id == job.job_id, _J.owner == owner)
    values = {"updated_ms": job.updated_ms, "cursor": job.cursor, "counts": json.dumps(job.counts)}
    running = sa.update(redrive_jobs).where(*his, _J.state == JobState.RUNNING.value)
    if conn.execute(running.values(**values, state=job.state.value)).rowcount == 1:
        return True
    conn.execute(sa.update(redrive_jobs).where(*his, _J.state == JobState.STOPPED.value).values(**values))
    return False


def stop_job(conn: Connection, job_id: str, now_ms: int) -> bool:
    """Stops a running job after its present step; False if it is not running."""
    update = sa.update(redrive_jobs).where(_J.job_id == job_id, _J.state == JobState.RUNNING.value)
    return conn.execute(update.values(state=JobState.STOPPED.value, updated_ms=now_ms)).rowcount == 1


def _make_job(row: sa.Row[Any]) -> RedriveJob:
    members = {member.name: getattr(row, member.name) for member in fields(RedriveJob)}
    read = {"filter": json.loads(row.filter), "state": JobState(row.state), "counts": json.loads(row.counts)}
    return RedriveJob(**members | read)

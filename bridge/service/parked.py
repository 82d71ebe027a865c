"""Parked transactions, and redrive: resume, commit or roll back all that match a filter, as a job."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from bridge.clock import Clock
from bridge.core.transaction import TransactionState
from bridge.core.view import TransactionView
from bridge.service.contract import RefusalCode, Refused
from bridge.service.groups import refuse_sql
from bridge.service.operators import Who
from bridge.service.search import MAX_PAGE, TransactionPage, read_page
from bridge.sql.audit import ActEntry, record_act
from bridge.sql.engine import Database
from bridge.sql.errors import SqlUnavailable
from bridge.sql.redrive import JobState, RedriveJob, create_job, find_job, list_jobs, stop_job
from bridge.sql.transactions import SearchFilter, search_transactions

MAX_RATE_PER_S = 1_000
_MAX_COUNTED = 10_000
_SAMPLE = 10


class RedriveAction(StrEnum):
    """What becomes of those that match."""

    RESUME = "resume"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class RedrivePreview:
    """What a job would act on. `is_more`: counting stopped at `count`."""

    count: int
    is_more: bool
    sample: Sequence[TransactionView]


class ParkedService:
    """Every job is audited with its start and its stop; the loop that runs it with its end."""

    def __init__(self, database: Database, clock: Clock, make_job_id: Callable[[], str]) -> None:
        self._database = database
        self._clock = clock
        self._make_job_id = make_job_id

    async def list(self, wanted: SearchFilter, limit: int, cursor: str | None = None) -> TransactionPage | Refused:
        """A page of parked transactions, newest first."""
        parked = only_parked(wanted)
        most = min(max(limit, 1), MAX_PAGE)
        read = await read_page(self._database, lambda c: search_transactions(c, parked, most, cursor))
        return read if isinstance(read, Refused) else TransactionPage(*read)

    async def preview(self, wanted: SearchFilter) -> RedrivePreview | Refused:
        """How many match now, and some of them. Changes nothing."""
        parked = only_parked(wanted)
        count, cursor = 0, None
        sample: Sequence[TransactionView] = ()
        while True:
            page = await self.list(parked, MAX_PAGE, cursor)
            if isinstance(page, Refused):
                return page
            sample = sample or tuple(page.transactions[:_SAMPLE])
            count, cursor = count + len(page.transactions), page.next
            if cursor is None or count >= _MAX_COUNTED:
                return RedrivePreview(count, cursor is not None, sample)

    async def redrive(
        self, wanted: SearchFilter, action: RedriveAction, rate_per_s: int, who: Who
    ) -> RedriveJob | Refused:
        """Begins a job; a loop of some process takes it up."""
        if not 1 <= rate_per_s <= MAX_RATE_PER_S or not who.reason.strip():
            detail = f"a redrive needs a reason and a rate of 1 to {MAX_RATE_PER_S} a second"
            return Refused(RefusalCode.INVALID_REQUEST, detail)
        now_ms = self._clock.now_ms()
        job = RedriveJob(
            self._make_job_id(),
            now_ms,
            now_ms,
            who.actor,
            who.reason,
            encode_filter(wanted),
            action.value,
            rate_per_s,
        )
        after = {"action": job.action, "filter": job.filter, "rate_per_s": rate_per_s}
        entry = ActEntry(now_ms, who.actor, "redrive.start", job.job_id, who.reason, None, after)

        def begin(connection: Any) -> None:  # noqa: ANN401
            create_job(connection, job)
            record_act(connection, entry)

        try:
            await self._database.run(begin)
        except SqlUnavailable as error:
            return refuse_sql(error)
        return job

    async def get_job(self, job_id: str) -> RedriveJob | Refused | None:
        """The job as it stands; None if there is none."""
        return await read_page(self._database, lambda c: find_job(c, job_id))

    async def list_jobs(self, limit: int) -> Sequence[RedriveJob] | Refused:
        """The newest jobs."""
        most = min(max(limit, 1), MAX_PAGE)
        return await read_page(self._database, lambda c: list_jobs(c, most))

    async def stop(self, job_id: str, who: Who) -> RedriveJob | Refused | None:
        """Stops the job after its present step; the job as it stands then. Stopping it again changes nothing."""
        now_ms = self._clock.now_ms()

        def stop(connection: Any) -> RedriveJob | None:  # noqa: ANN401
            before = find_job(connection, job_id)
            if before is not None and stop_job(connection, job_id, now_ms):
                counts = {"state": before.state.value, **before.counts}
                after = {"state": JobState.STOPPED.value}
                record_act(connection, ActEntry(now_ms, who.actor, "redrive.stop", job_id, who.reason, counts, after))
            return find_job(connection, job_id)

        try:
            return await self._database.run(stop)
        except SqlUnavailable as error:
            return refuse_sql(error)


def only_parked(wanted: SearchFilter) -> SearchFilter:
    """The same filter, of parked ones alone."""
    return replace(wanted, states=(TransactionState.PARKED,), blocked=None)


def encode_filter(wanted: SearchFilter) -> Mapping[str, Any]:
    """The filter as JSON members."""
    key = None if wanted.key is None else base64.b64encode(wanted.key).decode()
    members = {
        "producer_group": wanted.group,
        "topic": wanted.topic,
        "key_base64": key,
        "born_after_ms": wanted.born_after_ms,
        "born_before_ms": wanted.born_before_ms,
    }
    return {name: value for name, value in members.items() if value is not None}


def decode_filter(members: Mapping[str, Any]) -> SearchFilter:
    """The filter of a job. Raises ValueError."""
    key = members.get("key_base64")
    return only_parked(
        SearchFilter(
            group=members.get("producer_group"),
            topic=members.get("topic"),
            key=None if key is None else base64.b64decode(key, validate=True),
            born_after_ms=members.get("born_after_ms"),
            born_before_ms=members.get("born_before_ms"),
        )
    )

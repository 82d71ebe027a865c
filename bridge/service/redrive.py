"""Parked transactions, and redrive jobs: resume, commit or roll back all that match a filter, step by step."""

import base64
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import structlog

from bridge.clock import Clock
from bridge.core.errors import SqlUnavailable
from bridge.core.grants import EVERYTHING, Rights, Verb
from bridge.core.record import Act, ActRecord, Resolution
from bridge.core.transaction import TransactionState, TransactionView
from bridge.fault_points import FaultPoint, reach
from bridge.service.contract import Outcome, RefusalCode, Refused, refuse_for_group, refuse_right
from bridge.service.groups import refuse_sql
from bridge.service.journal import Deadline
from bridge.service.operate import Operators, Who
from bridge.service.reads import MAX_PAGE, TransactionList, read_page
from bridge.sql.access import ActEntry, record_act
from bridge.sql.engine import Database
from bridge.sql.leases import Lease, LeaseWatch
from bridge.sql.redrive import (
    JobState,
    RedriveJob,
    advance_job,
    claim_job,
    create_job,
    find_job,
    find_lease,
    list_jobs,
    stop_job,
)
from bridge.sql.rows import MalformedCursor
from bridge.sql.search import SearchFilter, search_transactions

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

    async def list(self, wanted: SearchFilter, limit: int, cursor: str | None = None) -> TransactionList | Refused:
        """A page of parked transactions, newest first."""
        parked = only_parked(wanted)
        most = min(max(limit, 1), MAX_PAGE)
        read = await read_page(self._database, lambda c: search_transactions(c, parked, most, cursor))
        return read if isinstance(read, Refused) else TransactionList(*read)

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
        if (refused := _refuse_filter(who.rights, wanted.group)) is not None:
            return refused
        if not 1 <= rate_per_s <= MAX_RATE_PER_S or not who.reason.strip():
            detail = f"a redrive needs a reason and a rate of 1 to {MAX_RATE_PER_S} a second"
            return Refused(RefusalCode.INVALID_REQUEST, detail)
        now_ms = self._clock.now_ms()
        job = RedriveJob(
            self._make_job_id(), now_ms, now_ms, who.actor, who.reason, encode_filter(wanted), action.value, rate_per_s
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

    async def get_job(self, job_id: str, rights: Rights = EVERYTHING) -> RedriveJob | Refused | None:
        """The job as it stands; None if there is none that the caller may know of."""
        job = await read_page(self._database, lambda c: find_job(c, job_id))
        return job if isinstance(job, Refused) or (job is not None and _is_visible(rights, job.filter)) else None

    async def list_jobs(self, limit: int, rights: Rights = EVERYTHING) -> Sequence[RedriveJob] | Refused:
        """The newest jobs that the caller may know of."""
        most = min(max(limit, 1), MAX_PAGE)
        is_visible = None if rights.may_everywhere(Verb.READ) else partial(_is_visible, rights)
        return await read_page(self._database, lambda c: list_jobs(c, most, is_visible))

    async def stop(self, job_id: str, who: Who) -> RedriveJob | Refused | None:
        """Stops the job after its present step; the job as it stands then. Stopping it again changes nothing."""
        job = await self.get_job(job_id, who.rights)
        if job is None or isinstance(job, Refused):
            return job
        if (refused := _refuse_filter(who.rights, job.filter.get("producer_group"))) is not None:
            return refused
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


def _is_visible(rights: Rights, wanted: Mapping[str, Any]) -> bool:
    """Whether a job with this filter is one that the caller may know of."""
    group = wanted.get("producer_group")
    return rights.may_everywhere(Verb.READ) or (group is not None and rights.may(Verb.READ, group))


def _refuse_filter(rights: Rights, group: str | None) -> Refused | None:
    """Why a caller may not redrive what is parked of this group, or of all of them."""
    if rights.may_everywhere(Verb.OPERATE):
        return None
    if group is None:
        return refuse_right(Verb.OPERATE, "for all producer groups; name one in the filter")
    return refuse_for_group(rights, Verb.OPERATE, group)


def only_parked(wanted: SearchFilter) -> SearchFilter:
    """The same filter, of parked ones alone."""
    return replace(wanted, states=(TransactionState.PARKED,), blocked=None, abandoned=None)


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


_LOG = structlog.get_logger()
_RESOLUTIONS = {RedriveAction.COMMIT: Resolution.COMMIT, RedriveAction.ROLLBACK: Resolution.ROLLBACK}
_NO_LEASE = Lease("", 0)
_Answer = TransactionView | Refused


@dataclass(frozen=True, slots=True)
class RedriveConfig:
    """Bounds of a step."""

    idle_ms: int = 2_000
    lease_ms: int = 60_000
    step_wait_ms: int = 10_000
    max_step: int = 100


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did: `acted` transactions, and how long to pause after it; `is_idle`: there was no job."""

    acted: int
    pause_ms: int
    is_idle: bool = False


class RedriveLoop:
    """One step: a page of parked ones, acted on at once, then the job's row moved on. Running jobs take turns.

    A job ends with the rights of who began it. `rights_of`: what somebody, called as in the audit, may do now.
    A step that is repeated after a crash gets each one's recorded state, and changes nothing twice.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        operators: Operators,
        rights_of: Callable[[str], Rights],
        owner: str,
        config: RedriveConfig | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._operators = operators
        self._rights_of = rights_of
        self._owner = owner
        self._config = config or RedriveConfig()
        self._watch = LeaseWatch(self._config.lease_ms)
        self._done: dict[str, set[str]] = {}  # by job: what of its page need not be done again
        # after a step: what was acted on is not found again, so only this counts
        self._unkept: RedriveJob | None = None

    async def run_forever(self) -> None:
        """Until cancelled."""
        while True:
            pause_ms = self._config.idle_ms
            try:
                pause_ms = (await self.run_once()).pause_ms
            except SqlUnavailable as error:
                _LOG.warning("redrive_delayed", reason=str(error))
            except Exception:  # noqa: BLE001 - a loop that lives as long as the process
                _LOG.exception("redrive_failed")
            await self._clock.sleep_ms(pause_ms)

    async def run_once(self) -> StepResult:
        """One step of one job, if there is any. Raises SqlUnavailable."""
        if self._unkept is not None:
            await self._keep(self._unkept)
        job = await self._claim()
        if job is None:
            self._done.clear()
            return StepResult(0, self._config.idle_ms, is_idle=True)
        if _refuse_filter(self._rights_of(job.actor), job.filter.get("producer_group")) is not None:
            _LOG.warning("redrive_job_not_granted", job=job.job_id, actor=job.actor)
            await self._keep(replace(job, state=JobState.FAILED))
            return StepResult(0, 0)
        try:
            return await self._step(job, RedriveAction(job.action))
        except (MalformedCursor, ValueError) as error:
            _LOG.error("redrive_job_unusable", job=job.job_id, reason=type(error).__name__)
            await self._keep(replace(job, state=JobState.FAILED))
            return StepResult(0, 0)

    async def _claim(self) -> RedriveJob | None:
        """A lease ends by either of two clocks, as the projector's does: a dead process's clock may be ahead."""
        now_ms, lease_ms = self._clock.now_ms(), self._config.lease_ms
        abandoned = self._watch.find_abandoned(self._clock.monotonic_ms())

        def claim(connection: Any) -> tuple[RedriveJob | None, Lease | None]:  # noqa: ANN401
            job = claim_job(connection, self._owner, now_ms, lease_ms, abandoned)
            return job, None if job is not None else find_lease(connection)

        job, lease = await self._database.run(claim)
        self._watch.note(lease or _NO_LEASE, self._clock.monotonic_ms())
        return job

    async def _step(self, job: RedriveJob, action: RedriveAction) -> StepResult:
        wanted, size = decode_filter(job.filter), min(self._config.max_step, job.rate_per_s)
        views, cursor = await self._database.read(lambda c: search_transactions(c, wanted, size, job.cursor))
        done = self._done.pop(job.job_id, set())
        ids = [view.transaction_id for view in views if view.transaction_id not in done]
        answers = await self._act(ids, action, Who(job.actor, job.reason))
        reach(FaultPoint.REDRIVE_ACTED)
        known = {i: answer for i, answer in zip(ids, answers, strict=True) if not _is_to_repeat(answer)}
        counts = Counter(job.counts)
        counts.update([_word_for(answer) for answer in known.values()])
        moved = replace(job, counts=dict(counts))
        is_again = len(known) < len(ids)
        if is_again:
            self._done[job.job_id] = done | known.keys()
        else:
            state = JobState.DONE if cursor is None else job.state
            moved = replace(moved, cursor=cursor or job.cursor, state=state)
        await self._keep(moved)
        _LOG.info("redrive_step", job=job.job_id, action=job.action, acted=len(ids), known=len(known))
        return StepResult(len(known), self._config.idle_ms if is_again else len(ids) * 1_000 // job.rate_per_s)

    async def _act(self, ids: Sequence[str], action: RedriveAction, who: Who) -> Sequence[_Answer]:
        if not ids:
            return []
        deadline = Deadline.after(self._clock, self._config.step_wait_ms)
        if action is RedriveAction.RESUME:
            now_ms = self._clock.now_ms()
            return await self._operators.append_acts(
                [ActRecord(i, Act.RESUME, who.actor, who.reason, now_ms) for i in ids], deadline
            )
        return await self._operators.end_parked(ids, _RESOLUTIONS[action], who, deadline)

    async def _keep(self, job: RedriveJob) -> None:
        """Moves the job's row on; a job that was stopped meanwhile, or taken over, stays as it is."""
        moved = self._unkept = replace(job, updated_ms=self._clock.now_ms())

        def keep(connection: Any) -> None:  # noqa: ANN401
            if advance_job(connection, moved, self._owner) and moved.state is not JobState.RUNNING:
                record_act(connection, _make_entry(moved))

        await self._database.run(keep)
        self._unkept = None


def _make_entry(job: RedriveJob) -> ActEntry:
    after: Mapping[str, object] = {"state": job.state.value, **job.counts}
    return ActEntry(job.updated_ms, job.actor, "redrive.end", job.job_id, job.reason, None, after)


def _is_to_repeat(answer: _Answer) -> bool:
    """Whether the step must be done again for this one: not known, or not possible just now."""
    return isinstance(answer, Refused) and (
        answer.outcome is Outcome.UNKNOWN or answer.code in {RefusalCode.UNAVAILABLE, RefusalCode.PROJECTION_BEHIND}
    )


def _word_for(answer: _Answer) -> str:
    return answer.code.value if isinstance(answer, Refused) else "done"

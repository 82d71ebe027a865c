"""Redrive: acts on all parked transactions that match, as a job."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bridge.core.errors import SqlUnavailable
from bridge.core.grants import Grant, Rights, Verb
from bridge.core.record import Act, ActRecord, HalfMessage, Resolution
from bridge.core.transaction import TransactionState, TransactionView
from bridge.node import Node
from bridge.service.access import AccessConfig
from bridge.service.contract import EndCall, Prepared, RefusalCode, Refused
from bridge.service.journal import Deadline
from bridge.service.operate import Who
from bridge.service.reads import AuditList, TransactionList
from bridge.service.redrive import RedriveAction, RedrivePreview, decode_filter, encode_filter
from bridge.sql.redrive import JobState, RedriveJob, advance_job, create_job
from bridge.sql.search import SearchFilter
from bridge.store.memory.link import Fate, StepKind
from tests.support.memory_faults import ScriptedFaults
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world

WHO = Who("ada", "why")


async def park_some(world: ServiceWorld, api: Node, count: int, group: str = "shop") -> list[str]:
    answers = await api.transactions.prepare([world.call(b"%d" % n, group=group) for n in range(count)])
    ids = [answer.transaction_id for answer in answers if isinstance(answer, Prepared)]
    await world.settlers.settled()
    world.settlers.observer.owners[0].park(dict.fromkeys(ids, "MAX_CHECKS"))
    while len(await list_parked(api, SearchFilter(group=group))) < count:
        await world.sleep(50)
    return ids


async def list_parked(api: Node, wanted: SearchFilter) -> list[str]:
    page = await api.parked.list(wanted, 500)
    assert isinstance(page, TransactionList)
    return [view.transaction_id for view in page.transactions]


async def finish(api: Node, job: RedriveJob | Refused) -> RedriveJob:
    assert isinstance(job, RedriveJob)
    while not (await api.redrive.run_once()).is_idle:
        pass
    done = await api.parked.get_job(job.job_id)
    assert isinstance(done, RedriveJob)
    return done


async def states_of(api: Node, ids: list[str]) -> set[TransactionState]:
    views = [await api.transactions.get(transaction_id) for transaction_id in ids]
    return {view.state for view in views if isinstance(view, TransactionView)}


@pytest.mark.parametrize(
    ("action", "state"),
    [
        (RedriveAction.COMMIT, TransactionState.COMMITTED),
        (RedriveAction.ROLLBACK, TransactionState.ROLLED_BACK),
        (RedriveAction.RESUME, TransactionState.PREPARED),
    ],
)
@in_world(make_service_world)
async def test_job_acts_on_what_matches(world: ServiceWorld, action: RedriveAction, state: TransactionState) -> None:
    """In steps of the rate, audited with its start and its end; others stay parked."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        mine, others = await park_some(world, api, 5), await park_some(world, api, 2, "other")
        parked, wanted = api.parked, SearchFilter(group="shop")
        preview = await parked.preview(wanted)
        assert isinstance(preview, RedrivePreview)
        assert (preview.count, preview.is_more, len(preview.sample)) == (5, False, 5)
        done = await finish(api, await parked.redrive(wanted, action, 2, WHO))
        assert (done.state, done.counts) == (JobState.DONE, {"done": 5})
        assert await states_of(api, mine) == {state}
        assert await states_of(api, others) == {TransactionState.PARKED}
        audit = await api.search.audit(10)
        assert isinstance(audit, AuditList)
        assert [(e.what, e.target, e.reason) for e in audit.entries] == [
            ("redrive.end", done.job_id, "why"),
            ("redrive.start", done.job_id, "why"),
        ]
        assert audit.entries[0].after == {"state": "done", "done": 5}
        told = {"action": action.value, "filter": {"producer_group": "shop"}, "rate_per_s": 2}
        assert audit.entries[1].after == told
        acts = [record for record in await world.journal() if not isinstance(record, HalfMessage)]
        assert {(record.transaction_id, record.actor, record.reason) for record in acts} == {
            (transaction_id, "ada", "why") for transaction_id in mine
        }


@pytest.mark.parametrize(
    ("wanted", "members"),
    [
        (SearchFilter(), {}),
        (SearchFilter(group="shop"), {"producer_group": "shop"}),
        (SearchFilter(topic="orders", key=b"\xff"), {"topic": "orders", "key_base64": "/w=="}),
        (SearchFilter(born_after_ms=5), {"born_after_ms": 5}),
        (SearchFilter(born_before_ms=0), {"born_before_ms": 0}),
        (SearchFilter(states=(TransactionState.PREPARED,), blocked=True), {}),
    ],
)
def test_job_keeps_its_filter(wanted: SearchFilter, members: dict[str, object]) -> None:
    """One that was lost on the way would act on what nobody asked for; only parked ones are acted on in any case."""
    assert encode_filter(wanted) == members
    assert decode_filter(members) == replace(wanted, states=(TransactionState.PARKED,), blocked=None)


@in_world(make_service_world)
async def test_rate_is_kept_by_the_loop(world: ServiceWorld) -> None:
    """Two a second: five take more than two seconds."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        await park_some(world, api, 5)
        task = asyncio.create_task(api.redrive.run_forever())
        await world.sleep(2_100)  # the loop has looked, twice, and found nothing to do
        job = await api.parked.redrive(SearchFilter(), RedriveAction.COMMIT, 2, WHO)
        assert isinstance(job, RedriveJob)
        before_ms = world.settlers.memory.clock.monotonic_ms()
        while True:
            now = await api.parked.get_job(job.job_id)
            assert isinstance(now, RedriveJob)
            if now.state is JobState.DONE:
                break
            await world.sleep(10)
        task.cancel()
        await asyncio.wait([task])
        assert world.settlers.memory.clock.monotonic_ms() - before_ms >= 2_000


@in_world(make_service_world)
async def test_job_goes_on_in_another_process(world: ServiceWorld) -> None:
    """The rows remember how far it came; a lease keeps two from working at it at once."""
    async with world.serving() as api, world.serving("2") as other, world.settlers.settling(), world.projecting():
        ids = await park_some(world, api, 4)
        job = await api.parked.redrive(SearchFilter(), RedriveAction.ROLLBACK, 2, WHO)
        assert (await api.redrive.run_once()).acted == 2
        assert (await other.redrive.run_once()).is_idle
        await world.sleep(60_001)
        done = await finish(other, job)
        assert (done.state, done.counts) == (JobState.DONE, {"done": 4})
        assert await states_of(api, ids) == {TransactionState.ROLLED_BACK}


@in_world(make_service_world)
async def test_job_of_a_process_whose_clock_was_ahead_goes_on(world: ServiceWorld) -> None:
    """It was killed, and its lease ends in an hour by every other clock: unchanged for its length is over (68)."""
    async with world.serving() as api, world.serving("2") as other, world.settlers.settling(), world.projecting():
        ids = await park_some(world, api, 4)
        job = await api.parked.redrive(SearchFilter(), RedriveAction.ROLLBACK, 2, WHO)
        world.settlers.memory.clock.shift_wall_clock(3_600_000)
        assert (await api.redrive.run_once()).acted == 2
        world.settlers.memory.clock.shift_wall_clock(-3_600_000)
        for _ in range(6):
            assert (await other.redrive.run_once()).is_idle
            await world.sleep(10_001)
        done = await finish(other, job)
        assert (done.state, done.counts) == (JobState.DONE, {"done": 4})
        assert await states_of(api, ids) == {TransactionState.ROLLED_BACK}


@in_world(make_service_world)
async def test_abandoned_job_does_not_wait_for_one_that_goes_on(world: ServiceWorld) -> None:
    """Only the oldest job's lease was watched: another one of a dead process whose clock was ahead waited for hours."""
    async with (
        world.serving() as api,
        world.serving("2") as other,
        world.serving("3") as dead,
        world.settlers.settling(),
        world.projecting(),
    ):
        await park_some(world, api, 40)
        ids = await park_some(world, api, 2, "other")
        await api.parked.redrive(SearchFilter(group="shop"), RedriveAction.ROLLBACK, 1, WHO)
        assert (await api.redrive.run_once()).acted == 1
        await world.sleep(10)
        job = await api.parked.redrive(SearchFilter(group="other"), RedriveAction.ROLLBACK, 1, WHO)
        assert (await dead.redrive.run_once()).acted == 1
        await world.database.run(
            lambda c: c.exec_driver_sql(
                "UPDATE redrive_jobs SET lease_until_ms = lease_until_ms + 3600000 WHERE filter LIKE '%other%'"
            )
        )
        for _ in range(7):
            await api.redrive.run_once()
            await other.redrive.run_once()
            await world.sleep(10_001)
        assert isinstance(job, RedriveJob)
        done = await api.parked.get_job(job.job_id)
        assert isinstance(done, RedriveJob)
        assert (done.state, done.counts) == (JobState.DONE, {"done": 2})
        assert await states_of(api, ids) == {TransactionState.ROLLED_BACK}


@pytest.mark.parametrize("is_deleted", [True, False], ids=["principal deleted", "grants taken"])
@in_world(make_service_world)
async def test_job_of_somebody_who_may_no_more_goes_no_further(world: ServiceWorld, is_deleted: bool) -> None:
    """It lasts for hours at a low rate: no right that is taken is kept so long. A key may be exchanged meanwhile."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        access = api.access
        access.config = AccessConfig(is_open=False)
        operates = [Grant(Verb.OPERATE, "shop")]
        await access.put("ada", operates, WHO)
        await park_some(world, api, 5)
        who = Who("ada/abcdefgh@10.0.0.7", "why", Rights(operates))
        job = await api.parked.redrive(SearchFilter(group="shop"), RedriveAction.COMMIT, 2, who)
        assert (await api.redrive.run_once()).acted == 2
        await (access.delete("ada", WHO) if is_deleted else access.put("ada", [Grant(Verb.OPERATE, "bank")], WHO))
        ended = await finish(api, job)
        assert (ended.state, ended.counts) == (JobState.FAILED, {"done": 2})
        await world.sleep(100)  # for the projection
        assert len(await list_parked(api, SearchFilter())) == 3
        audit = await api.search.audit(1)
        assert isinstance(audit, AuditList)
        assert (audit.entries[0].what, audit.entries[0].after) == ("redrive.end", {"state": "failed", "done": 2})


@in_world(make_service_world)
async def test_job_at_a_low_rate_holds_up_no_other(world: ServiceWorld) -> None:
    """One process did nothing else until the oldest job was done, hours later, or never where its queue halts. What it
    lets go while it is at another one, a second process goes on with."""
    async with world.serving() as api, world.serving("2") as other, world.settlers.settling(), world.projecting():
        for group, count in (("shop", 4), ("bank", 2), ("post", 1)):
            await park_some(world, api, count, group)
        jobs = []
        for group in ("shop", "bank", "post"):
            jobs.append(await api.parked.redrive(SearchFilter(group=group), RedriveAction.COMMIT, 1, WHO))
            await world.sleep(10)
        for _ in jobs:
            assert (await api.redrive.run_once()).acted == 1
        assert (await other.redrive.run_once()).acted == 1
        counts = []
        for job in jobs:
            assert isinstance(job, RedriveJob)
            found = await api.parked.get_job(job.job_id)
            assert isinstance(found, RedriveJob)
            counts.append(found.counts)
        assert counts == [{"done": 2}, {"done": 1}, {"done": 1}]


@in_world(make_service_world, faults=ScriptedFaults)
async def test_stopped_job_tells_of_its_last_step(world: ServiceWorld, faults: ScriptedFaults) -> None:
    """Stopped while a step is under way: what the step did is counted, and nothing more is begun."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        await park_some(world, api, 4)
        job = await api.parked.redrive(SearchFilter(), RedriveAction.COMMIT, 2, WHO)
        assert isinstance(job, RedriveJob)
        faults.give(StepKind.PUT, Fate(answer_ms=500))
        step = asyncio.ensure_future(api.redrive.run_once())
        await world.sleep(100)
        assert isinstance(await api.parked.stop(job.job_id, WHO), RedriveJob)
        assert (await step).acted == 2
        assert (await api.redrive.run_once()).is_idle
        stopped = await api.parked.get_job(job.job_id)
        assert isinstance(stopped, RedriveJob)
        assert (stopped.state, stopped.counts) == (JobState.STOPPED, {"done": 2})


@in_world(make_service_world)
async def test_stop_holds_after_the_present_step(world: ServiceWorld) -> None:
    """A stopped job is not taken up again; stopping it twice changes nothing."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        ids = await park_some(world, api, 4)
        parked = api.parked
        job = await parked.redrive(SearchFilter(), RedriveAction.COMMIT, 2, WHO)
        assert isinstance(job, RedriveJob)
        await api.redrive.run_once()
        for _ in range(2):
            stopped = await parked.stop(job.job_id, WHO)
            assert isinstance(stopped, RedriveJob)
            assert (stopped.state, stopped.counts) == (JobState.STOPPED, {"done": 2})
        assert (await api.redrive.run_once()).is_idle
        assert await states_of(api, ids) == {TransactionState.COMMITTED, TransactionState.PARKED}
        assert await parked.stop("nothing", WHO) is None
        jobs = await parked.list_jobs(10)
        assert not isinstance(jobs, Refused)
        assert [j.job_id for j in jobs] == [job.job_id]


@in_world(make_service_world)
async def test_jobs_of_others_take_no_place_in_a_list(world: ServiceWorld) -> None:
    """A caller sees as many of those that he may see as anybody."""
    async with world.serving() as api:
        for number, group in enumerate(["shop", "bank", "bank", None, "shop", "bank", "bank"]):
            job = RedriveJob(
                f"r-{number}", number, number, "ada", "why", encode_filter(SearchFilter(group=group)), "resume", 1
            )
            await api.backing.database.run(lambda conn, job=job: create_job(conn, job))
        shop = await api.parked.list_jobs(2, Rights([Grant(Verb.READ, "shop")]))
        everybody = await api.parked.list_jobs(2)
        assert not isinstance(shop, Refused)
        assert not isinstance(everybody, Refused)
        assert [job.job_id for job in shop] == ["r-4", "r-0"]
        assert [job.job_id for job in everybody] == ["r-6", "r-5"]


@in_world(make_service_world)
async def test_late_commit_against_redrive_is_one_end(world: ServiceWorld) -> None:
    """Whoever is first in the journal wins; the job counts what it heard."""
    async with world.serving() as api, world.settlers.settling():
        async with world.projecting():
            ids = await park_some(world, api, 2)
        await api.transactions.end([EndCall(ids[0], Resolution.COMMIT)])
        job = await api.parked.redrive(SearchFilter(), RedriveAction.ROLLBACK, 100, WHO)
        step = asyncio.ensure_future(api.redrive.run_once())
        await world.sleep(100)  # it has searched, and waits for the projection
        async with world.projecting():
            await step
            done = await finish(api, job)
        assert done.counts == {"done": 1, "already-resolved": 1}
        assert world.settlers.memory.visible("orders") == [b"0"]


@pytest.mark.parametrize("action", [RedriveAction.COMMIT, RedriveAction.ROLLBACK])
@in_world(make_service_world)
async def test_what_was_resumed_before_a_late_projection_saw_it_is_not_ended(
    world: ServiceWorld, action: RedriveAction
) -> None:
    """Two operators: one has its group asked again, the other's job finds it parked still, and ended what a local
    transaction was at work for."""
    async with world.serving() as api, world.settlers.settling():
        async with world.projecting():
            ids = await park_some(world, api, 2)
        job = await api.parked.redrive(SearchFilter(), action, 100, WHO)
        resume = ActRecord(ids[0], Act.RESUME, "bob", "repaired", 0)
        deadline = Deadline.after(world.settlers.memory.clock, 5_000)
        [resumed] = await api.transactions._operators.append_acts([resume], deadline)
        assert isinstance(resumed, TransactionView)
        for _ in range(2):  # as long as nobody knows how they are now, nothing is done
            assert (await api.redrive.run_once()).acted == 0
        step = asyncio.ensure_future(api.redrive.run_once())
        await world.sleep(100)  # it has searched, and waits for the projection
        async with world.projecting():
            await step
            done = await finish(api, job)
            assert (done.state, done.counts) == (JobState.DONE, {"done": 1, "not-parked": 1})
            assert await states_of(api, ids[:1]) == {TransactionState.PREPARED}


@in_world(make_service_world, faults=ScriptedFaults)
async def test_unknown_step_is_done_again(world: ServiceWorld, faults: ScriptedFaults) -> None:
    """Lost records: the page is done again, and what was done is not counted twice."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        ids = await park_some(world, api, 3)
        job = await api.parked.redrive(SearchFilter(), RedriveAction.RESUME, 100, WHO)
        faults.give(StepKind.PUT, Fate(request_ms=None), client="api")
        step = await api.redrive.run_once()
        assert (step.acted, step.is_idle) == (0, False)
        done = await finish(api, job)
        assert (done.state, done.counts) == (JobState.DONE, {"done": 3})
        assert await states_of(api, ids) == {TransactionState.PREPARED}


@pytest.mark.parametrize(
    "members",
    [{"action": "delete"}, {"cursor": "nonsense"}, {"filter": {"key_base64": "/"}}],
    ids=["act", "page", "key"],
)
@in_world(make_service_world)
async def test_job_that_makes_no_sense_fails_and_the_next_one_goes_on(
    world: ServiceWorld, members: dict[str, object]
) -> None:
    """Left by another release: it is audited as failed, and nobody stands still behind it."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        ids = await park_some(world, api, 1)
        job = await api.parked.redrive(SearchFilter(), RedriveAction.COMMIT, 1, WHO)
        assert isinstance(job, RedriveJob)
        strange = replace(job, job_id="0", created_ms=0, **members)  # type: ignore[arg-type]
        await world.database.run(lambda connection: create_job(connection, strange))
        step = await api.redrive.run_once()
        assert (step.acted, step.pause_ms, step.is_idle) == (0, 0, False)
        failed = await api.parked.get_job("0")
        assert isinstance(failed, RedriveJob)
        assert failed.state is JobState.FAILED
        audit = await api.search.audit(1)
        assert isinstance(audit, AuditList)
        assert [(e.what, e.target, e.after) for e in audit.entries] == [("redrive.end", "0", {"state": "failed"})]
        assert (await finish(api, job)).counts == {"done": 1}
        assert await states_of(api, ids) == {TransactionState.COMMITTED}


@in_world(make_service_world)
async def test_unreasonable_jobs_are_refused(world: ServiceWorld) -> None:
    """A reason and a rate are needed; without SQL nothing begins."""
    async with world.serving() as api:
        parked = api.parked
        for rate, who in ((0, WHO), (10_000, WHO), (10, Who("ada", " "))):
            refused = await parked.redrive(SearchFilter(), RedriveAction.COMMIT, rate, who)
            assert isinstance(refused, Refused)
            assert refused.code is RefusalCode.INVALID_REQUEST
        world.database.is_down = True
        refused = await parked.redrive(SearchFilter(), RedriveAction.COMMIT, 10, WHO)
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.UNAVAILABLE


@pytest.mark.parametrize("action", list(RedriveAction))
@in_world(make_service_world)
async def test_step_that_sql_did_not_keep_is_counted(
    world: ServiceWorld, action: RedriveAction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database went away right behind the acts, which the search does not find again: the row, and the audit's
    entry of the job's end, told of fewer than were acted on."""
    failures = [SqlUnavailable("away"), SqlUnavailable("still away")]

    def keep(connection: Any, job: RedriveJob, owner: str) -> bool:
        if failures:
            raise failures.pop()
        return advance_job(connection, job, owner)

    async with world.serving() as api, world.settlers.settling(), world.projecting():
        ids = await park_some(world, api, 4)
        job = await api.parked.redrive(SearchFilter(), action, 2, WHO)
        monkeypatch.setattr("bridge.service.redrive.advance_job", keep)
        for _ in range(2):
            with pytest.raises(SqlUnavailable):
                await api.redrive.run_once()
            await world.sleep(2_000)
        done = await finish(api, job)
        assert (done.state, done.counts) == (JobState.DONE, {"done": 4})
        assert TransactionState.PARKED not in await states_of(api, ids)
        audit = await api.search.audit(1)
        assert isinstance(audit, AuditList)
        assert audit.entries[0].after == {"state": "done", "done": 4}

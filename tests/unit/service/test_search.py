"""Lists, counts, lags and the audit trail."""

from bridge.core.record import Resolution
from bridge.core.transaction import TransactionState
from bridge.service.contract import EndCall, Prepared, RefusalCode, Refused
from bridge.service.operate import Who
from bridge.service.reads import AuditList, BridgeStats, TransactionList
from bridge.sql.search import SearchFilter
from bridge.store.memory.link import Fate, NoFaults, Step, StepKind
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world


@in_world(make_service_world)
async def test_pages_are_newest_first(world: ServiceWorld) -> None:
    """A cursor leads from page to page; a strange one is the caller's mistake."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        ids = []
        for _ in range(5):
            [prepared] = await api.transactions.prepare([world.call()])
            assert isinstance(prepared, Prepared)
            ids.append(prepared.transaction_id)
            await world.sleep(10)
        await api.transactions.end([EndCall(ids[0], Resolution.COMMIT)])
        await api.transactions.get(ids[0])
        found: list[str] = []
        cursor = None
        while True:
            page = await api.search.search(SearchFilter(states=(TransactionState.PREPARED,)), 2, cursor)
            assert isinstance(page, TransactionList)
            found += [view.transaction_id for view in page.transactions]
            cursor = page.next
            if cursor is None:
                break
        assert found == ids[:0:-1]
        refused = await api.search.search(SearchFilter(), 2, "no cursor")
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.INVALID_REQUEST
        assert refused.errors == (("cursor", refused.detail),)


@in_world(make_service_world)
async def test_lags_tell_who_is_behind(world: ServiceWorld) -> None:
    """Without a settler the journal ages; with one only the projection does; counts are read once a second."""
    async with world.serving() as api:
        await api.transactions.prepare([world.call()])
        await world.sleep(5_000)
        stats = await api.search.stats()
        assert isinstance(stats, BridgeStats)
        assert (stats.lag.settle_ms, stats.lag.projection_ms) == (5_000, 5_000)
        async with world.settlers.settling():
            await world.settlers.settled()
            await world.sleep(1_000)
            stats = await api.search.stats()
            assert isinstance(stats, BridgeStats)
            assert stats.lag.settle_ms == 0
            assert stats.lag.projection_ms > 5_000
            await world.project()
            assert await api.search.stats() is stats
            await world.sleep(1_000)
            stats = await api.search.stats()
            assert isinstance(stats, BridgeStats)
            assert stats.lag == (0, 0)
            kafka_ms = api.kafka_time.now_ms()
            assert stats.now_ms == kafka_ms


class SlowReads(NoFaults):
    """Each read of a log takes so long."""

    ms = 0

    async def before(self, step: Step) -> Fate:
        return Fate(answer_ms=self.ms if step.kind is StepKind.GET else 0)


@in_world(make_service_world, queues=64, faults=SlowReads)
async def test_lags_of_many_queues_are_asked_about_at_once(world: ServiceWorld, faults: SlowReads) -> None:
    """One after the other 64 queues took seconds on a busy machine: readiness gave up, and was not ready."""
    clock = world.settlers.memory.clock
    async with world.serving() as api:
        faults.ms, began = 50, clock.monotonic_ms()
        assert isinstance(await api.search.stats(), BridgeStats)
        assert clock.monotonic_ms() - began <= 4 * faults.ms


@in_world(make_service_world)
async def test_sql_down_is_said(world: ServiceWorld) -> None:
    """Lists and counts need the database."""
    async with world.serving() as api:
        world.database.is_down = True
        search = api.search
        for answer in (await search.search(SearchFilter(), 10), await search.audit(10), await search.stats()):
            assert isinstance(answer, Refused)
            assert answer.code is RefusalCode.UNAVAILABLE


@in_world(make_service_world)
async def test_audit_is_paged(world: ServiceWorld) -> None:
    """Newest first."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        [prepared] = await api.transactions.prepare([world.call()])
        assert isinstance(prepared, Prepared)
        await api.transactions.force(prepared.transaction_id, Resolution.COMMIT, Who("ada", "why"))
        first = await api.search.audit(1)
        assert isinstance(first, AuditList)
        second = await api.search.audit(1, first.next)
        assert isinstance(second, AuditList)
        assert [entry.what for entry in (*first.entries, *second.entries)] == [
            "transaction.force.answered",
            "transaction.force",
        ]
        assert first.entries[0].after == {"state": "COMMITTED", "blocked": False, "check_times": 0, "by": "operator"}
        assert second.next is None

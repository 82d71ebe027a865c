"""Reading a transaction, and operators' acts on it."""

from pathlib import Path

from bridge.core.record import Act, EndRecord, Resolution, Source
from bridge.core.transaction import TransactionState, TransactionView
from bridge.node import Node
from bridge.service.contract import EndCall, Outcome, Prepared, RefusalCode, Refused
from bridge.service.operate import Who
from bridge.sql.directory import read_audit
from tests.support.service_world import ServiceWorld, make_service_world

WHO = Who("ada", "because")
NOBODY = "00" + "0" * 26


async def prepare(world: ServiceWorld, api: Node) -> str:
    [answer] = await api.transactions.prepare([world.call()])
    assert isinstance(answer, Prepared)
    return answer.transaction_id


async def park(world: ServiceWorld, api: Node, transaction_id: str) -> None:
    world.settlers.observer.owners[0].park({transaction_id: "MAX_CHECKS"})
    while True:
        view = await api.transactions.get(transaction_id)
        if isinstance(view, TransactionView) and view.state is TransactionState.PARKED:
            return
        await world.sleep(100)


async def read_entries(world: ServiceWorld) -> list[tuple[str, str, str, str | None]]:
    entries, _ = await world.database.read(lambda connection: read_audit(connection, 100))
    return [(e.what, e.actor, e.target, e.reason) for e in reversed(entries)]


def test_get_sees_every_write(tmp_path: Path) -> None:
    """It waits for the projection; 404 only after that."""
    world = make_service_world(tmp_path)

    async def story() -> None:
        async with world.serving() as api, world.settlers.settling(), world.projecting(500):
            transaction_id = await prepare(world, api)
            view = await api.transactions.get(transaction_id)
            assert isinstance(view, TransactionView)
            assert view.state is TransactionState.PREPARED
            await api.transactions.end([EndCall(transaction_id, Resolution.COMMIT)])
            view = await api.transactions.get(transaction_id)
            assert isinstance(view, TransactionView)
            assert view.state is TransactionState.COMMITTED
            for missing in (NOBODY, "nonsense", "7v" + "0" * 26):
                answer = await api.transactions.get(missing)
                assert isinstance(answer, Refused)
                assert answer.code is RefusalCode.UNKNOWN_TRANSACTION
            events = await api.transactions.timeline(transaction_id)
            assert isinstance(events, list)
            assert [event.type for event in events] == ["prepared", "end"]
            assert isinstance(await api.transactions.timeline(NOBODY), Refused)

    world.run(story())


def test_get_behind_says_so(tmp_path: Path) -> None:
    """At most 2 s, then 503 with Retry-After; never a 404 that may be wrong."""
    world = make_service_world(tmp_path)

    async def story() -> None:
        async with world.serving() as api, world.settlers.settling():
            transaction_id = await prepare(world, api)
            before_ms = world.settlers.memory.clock.monotonic_ms()
            answer = await api.transactions.get(transaction_id)
            assert isinstance(answer, Refused)
            assert (answer.code, answer.retry_after_s) == (RefusalCode.PROJECTION_BEHIND, 1)
            assert world.settlers.memory.clock.monotonic_ms() - before_ms == 2_000
            world.database.is_down = True
            answer = await api.transactions.get(transaction_id)
            assert isinstance(answer, Refused)
            assert answer.code is RefusalCode.UNAVAILABLE

    world.run(story())


def test_resume_gives_a_parked_one_a_new_life(tmp_path: Path) -> None:
    """PARKED -> PREPARED, audited before and after; of any other state it is refused."""
    world = make_service_world(tmp_path)

    async def story() -> None:
        async with world.serving() as api, world.settlers.settling(), world.projecting():
            transaction_id = await prepare(world, api)
            refused = await api.transactions.act(transaction_id, Act.RESUME, WHO)
            assert isinstance(refused, Refused)
            assert (refused.code, refused.state) == (RefusalCode.NOT_PARKED, TransactionState.PREPARED)
            assert await read_entries(world) == []
            await park(world, api, transaction_id)
            view = await api.transactions.act(transaction_id, Act.RESUME, WHO)
            assert isinstance(view, TransactionView)
            assert (view.state, view.by) == (TransactionState.PREPARED, "operator")
            assert view.next_due_ms == world.settlers.memory.clock.now_ms()
            assert await read_entries(world) == [
                ("transaction.resume", "ada", transaction_id, "because"),
                ("transaction.resume.answered", "ada", transaction_id, "because"),
            ]
            assert len(api.waiters) == 0

    world.run(story())


def test_check_is_not_asked_for_too_early(tmp_path: Path) -> None:
    """Before the first due time 409; then the owner is told; of an ended one there is nothing to ask."""
    world = make_service_world(tmp_path)

    async def story() -> None:
        async with world.serving() as api, world.settlers.settling(), world.projecting():
            transaction_id = await prepare(world, api)
            refused = await api.transactions.act(transaction_id, Act.CHECK, WHO)
            assert isinstance(refused, Refused)
            assert (refused.code, refused.retry_after_s) == (RefusalCode.TOO_EARLY, 6)
            assert (refused.transaction_id, refused.state) == (transaction_id, TransactionState.PREPARED)
            await world.sleep(6_001)
            view = await api.transactions.act(transaction_id, Act.CHECK, WHO)
            assert isinstance(view, TransactionView)
            assert view.state is TransactionState.PREPARED
            await api.transactions.end([EndCall(transaction_id, Resolution.COMMIT)])
            refused = await api.transactions.act(transaction_id, Act.CHECK, WHO)
            assert isinstance(refused, Refused)
            assert (refused.code, refused.state) == (RefusalCode.ALREADY_RESOLVED, TransactionState.COMMITTED)
            missing = await api.transactions.act(NOBODY, Act.CHECK, WHO)
            assert isinstance(missing, Refused)
            assert missing.code is RefusalCode.UNKNOWN_TRANSACTION

    world.run(story())


def test_force_ends_in_the_operators_name(tmp_path: Path) -> None:
    """The journal names actor and reason; a later producer hears who was first."""
    world = make_service_world(tmp_path)

    async def story() -> None:
        async with world.serving() as api, world.settlers.settling(), world.projecting():
            transaction_id = await prepare(world, api)
            view = await api.transactions.force(transaction_id, Resolution.ROLLBACK, WHO)
            assert isinstance(view, TransactionView)
            assert (view.state, view.by) == (TransactionState.ROLLED_BACK, "operator")
            end = (await world.journal())[-1]
            assert isinstance(end, EndRecord)
            assert (end.source, end.actor, end.reason) == (Source.OPERATOR, "ada", "because")
            refused = await api.transactions.force(transaction_id, Resolution.COMMIT, WHO)
            assert isinstance(refused, Refused)
            assert refused.code is RefusalCode.ALREADY_RESOLVED
            whats = [what for what, *_ in await read_entries(world)]
            assert whats == ["transaction.force", "transaction.force.answered"] * 2
            for resolution, who in ((Resolution.UNKNOWN, WHO), (Resolution.COMMIT, Who("ada", " "))):
                refused = await api.transactions.force(transaction_id, resolution, who)
                assert isinstance(refused, Refused)
                assert refused.code is RefusalCode.INVALID_REQUEST

    world.run(story())


def test_what_cannot_be_audited_is_not_done(tmp_path: Path) -> None:
    """Without SQL an operator's act is refused, and nothing is appended."""
    world = make_service_world(tmp_path)

    async def story() -> None:
        async with world.serving() as api, world.settlers.settling(), world.projecting():
            transaction_id = await prepare(world, api)
            await api.transactions.get(transaction_id)
            before = len(await world.journal())
            world.database.is_down = True
            refused = await api.transactions.force(transaction_id, Resolution.COMMIT, WHO)
            world.database.is_down = False
            assert isinstance(refused, Refused)
            assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)
            assert len(await world.journal()) == before

    world.run(story())

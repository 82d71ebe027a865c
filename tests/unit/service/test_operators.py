"""Reading a transaction, and operators' acts on it."""

from bridge.core.message import Message
from bridge.core.record import Act, ActRecord, EndRecord, Resolution, Source
from bridge.core.transaction import TransactionState, TransactionView
from bridge.node import Node
from bridge.service.contract import EndCall, Outcome, Prepared, RefusalCode, Refused
from bridge.service.journal import Deadline
from bridge.service.operate import Who
from bridge.sql.access import read_audit
from bridge.store.memory.link import Fate, StepKind
from tests.support.memory_faults import ScriptedFaults
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world

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


async def read_changes(world: ServiceWorld) -> list[tuple[str, object, object]]:
    """What the audit says of the transaction before and after, the oldest first."""
    entries, _ = await world.database.read(lambda connection: read_audit(connection, 100))
    return [(e.what, e.before, e.after) for e in reversed(entries)]


async def read_entries(world: ServiceWorld) -> list[tuple[str, str, str, str | None]]:
    entries, _ = await world.database.read(lambda connection: read_audit(connection, 100))
    return [(e.what, e.actor, e.target, e.reason) for e in reversed(entries)]


@in_world(make_service_world)
async def test_get_sees_every_write(world: ServiceWorld) -> None:
    """It waits for the projection; 404 only after that."""
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


@in_world(make_service_world)
async def test_get_behind_says_so(world: ServiceWorld) -> None:
    """At most 2 s, then 503 with Retry-After; never a 404 that may be wrong."""
    async with world.serving() as api, world.settlers.settling():
        transaction_id = await prepare(world, api)
        before_ms = world.settlers.memory.clock.monotonic_ms()
        answer = await api.transactions.get(transaction_id)
        behind = Refused(
            RefusalCode.PROJECTION_BEHIND, "the projection has not caught up yet",
            transaction_id=transaction_id, retry_after_s=1,
        )  # fmt: skip
        assert answer == behind
        assert world.settlers.memory.clock.monotonic_ms() - before_ms == 2_000
        assert await api.transactions.timeline(transaction_id) == behind
        assert await api.transactions.force(transaction_id, Resolution.COMMIT, WHO) == behind
        world.database.is_down = True
        for answer in (await api.transactions.get(transaction_id), await api.transactions.timeline(transaction_id)):
            assert isinstance(answer, Refused)
            assert (answer.code, answer.transaction_id) == (RefusalCode.UNAVAILABLE, transaction_id)


@in_world(make_service_world, faults=ScriptedFaults)
async def test_bodies_are_read_from_the_journal_then_from_the_parked_topic(
    world: ServiceWorld, faults: ScriptedFaults
) -> None:
    """Retention of the journal takes none of a parked one's; a log that cannot be read is no lost body."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        pending, parked = await prepare(world, api), await prepare(world, api)
        await world.settlers.settled()
        await park(world, api, parked)
        views = [await api.transactions.get(transaction_id) for transaction_id in (pending, parked)]
        journal = world.settlers.memory.cluster.log.topics[world.topics.half].partitions[0]
        for expected in ([[b"v"], [b"v"]], [None, [b"v"]]):
            found = [
                await api.transactions.get_bodies(view, WHO) for view in views if isinstance(view, TransactionView)
            ]
            assert [each and [m.value for m in each if isinstance(m, Message)] for each in found] == expected
            journal.drop_below(2)
        faults.give(StepKind.GET, Fate(answer_ms=None), client="api")
        assert isinstance(views[0], TransactionView)
        refused = await api.transactions.get_bodies(views[0], WHO)
        assert isinstance(refused, Refused)
        assert (refused.code, refused.transaction_id) == (RefusalCode.UNAVAILABLE, pending)


@in_world(make_service_world)
async def test_resume_gives_a_parked_one_a_new_life(world: ServiceWorld) -> None:
    """PARKED -> PREPARED, audited before and after; of any other state it is refused."""
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


@in_world(make_service_world)
async def test_check_is_not_asked_for_too_early(world: ServiceWorld) -> None:
    """Before the first due time 409; then the owner is told; of an ended one there is nothing to ask."""
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


@in_world(make_service_world)
async def test_force_ends_in_the_operators_name(world: ServiceWorld) -> None:
    """The journal names actor and reason; a later producer hears who was first."""
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


@in_world(make_service_world)
async def test_what_cannot_be_audited_is_not_done(world: ServiceWorld) -> None:
    """Without SQL an operator's act is refused, and nothing is appended."""
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


@in_world(make_service_world)
async def test_only_a_blocked_commit_is_abandoned(world: ServiceWorld) -> None:
    """With a reason, once; the audit tells what it was and what has become of it."""

    async def refuse(api: Node, transaction_id: str, who: Who = WHO) -> tuple[RefusalCode, str | None, str]:
        refused = await api.transactions.act(transaction_id, Act.ABANDON, who)
        assert isinstance(refused, Refused)
        return refused.code, refused.transaction_id, refused.state.value if refused.state else ""

    async with world.serving() as api, world.settlers.settling(), world.projecting():
        doomed, other = await prepare(world, api), await prepare(world, api)
        assert await refuse(api, doomed) == (RefusalCode.NOT_BLOCKED, doomed, "PREPARED")
        await api.transactions.end([EndCall(other, Resolution.COMMIT)])
        assert await refuse(api, other) == (RefusalCode.NOT_BLOCKED, other, "COMMITTED")
        assert await refuse(api, doomed, Who("ada", " ")) == (RefusalCode.INVALID_REQUEST, doomed, "")
        assert await refuse(api, doomed, Who("a" * 10_000, "why")) == (RefusalCode.INVALID_REQUEST, doomed, "")
        world.settlers.memory.cluster.log.topics["orders"].is_denied = True
        await api.transactions.end([EndCall(doomed, Resolution.COMMIT)])
        assert await read_changes(world) == []
        view = await api.transactions.act(doomed, Act.ABANDON, WHO)
        assert isinstance(view, TransactionView)
        assert (view.transaction_id, view.blocked, view.abandoned) == (doomed, False, True)
        before = {"state": "COMMITTED", "blocked": True, "check_times": 0, "by": "producer"}
        assert await read_changes(world) == [
            ("transaction.abandon", before, None),
            ("transaction.abandon.answered", before, before | {"blocked": False, "abandoned": True}),
        ]
        assert await refuse(api, doomed) == (RefusalCode.NOT_BLOCKED, doomed, "COMMITTED")


@in_world(make_service_world)
async def test_act_on_what_ended_meanwhile_is_answered_by_its_owner(world: ServiceWorld) -> None:
    """The projection did not know yet: the settler's answer counts, whatever was looked at before."""
    async with world.serving() as api, world.settlers.settling():
        clock = world.settlers.memory.clock
        operators = api.transactions._operators
        [blocked, parked, pending] = [await prepare(world, api) for _ in range(3)]
        world.settlers.memory.cluster.log.topics["orders"].is_denied = True
        await api.transactions.end([EndCall(blocked, Resolution.COMMIT)])
        world.settlers.observer.owners[0].park({parked: "MAX_CHECKS"})
        await world.sleep(7_000)
        acts = [ActRecord(i, act, "ada", "because", 0) for i, act in (
            (blocked, Act.ABANDON), (blocked, Act.ABANDON), (parked, Act.RESUME), (parked, Act.RESUME),
            (pending, Act.CHECK), (blocked, Act.CHECK), (NOBODY, Act.CHECK),
        )]  # fmt: skip
        answers = await operators.append_acts(acts, Deadline.after(clock, 5_000))
        told = [(a.code if isinstance(a, Refused) else a.state.value, a.transaction_id, a.state) for a in answers]
        assert told == [
            ("COMMITTED", blocked, TransactionState.COMMITTED),
            (RefusalCode.NOT_BLOCKED, blocked, TransactionState.COMMITTED),
            ("PREPARED", parked, TransactionState.PREPARED),
            (RefusalCode.NOT_PARKED, parked, TransactionState.PREPARED),
            ("PREPARED", pending, TransactionState.PREPARED),
            (RefusalCode.ALREADY_RESOLVED, blocked, TransactionState.COMMITTED),
            (RefusalCode.UNKNOWN_TRANSACTION, NOBODY, None),
        ]


@in_world(make_service_world)
async def test_act_that_the_log_refuses_has_changed_nothing(world: ServiceWorld) -> None:
    """Not applied; the audit says that nothing came of it, and nobody is left waiting."""
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        transaction_id = await prepare(world, api)
        await world.settlers.settled()
        await park(world, api, transaction_id)
        world.settlers.memory.cluster.log.topics[world.topics.half].is_denied = True
        refused = await api.transactions.act(transaction_id, Act.RESUME, WHO)
        assert isinstance(refused, Refused)
        assert (refused.code, refused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)
        assert len(api.waiters) == 0
        assert (await read_changes(world))[-1][2] == {"refused": "unavailable", "outcome": "not_applied"}

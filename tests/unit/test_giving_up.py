"""bridge.giving_up and bridge.sql.identity: what an operator is told of a lost log, and how its queue goes on."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from api.cli.examinations import make_void
from bridge.core.errors import ConfigError, HaltKind, QueueHalted, SqlUnavailable
from bridge.core.message import Message, MessageQueue
from bridge.giving_up import GivingUp, _record
from bridge.projector import rebuild
from bridge.sql.identity import Halt, begin_projection, clear_halt, read_halts, read_last_acts, store_halt
from bridge.sql.rows import AppliedPosition, LogIdentity, read_position
from bridge.sql.tables import metadata, projection_positions
from bridge.store.memory.link import PASSES, Fate, NoFaults, Step
from tests.support.projector_world import ProjectorWorld, make_projector_world
from tests.support.virtual_time import in_world

ORDER = Message("orders", b"k", b"v")


def recreate(world: ProjectorWorld, name: str) -> None:
    """Deleted and made again: another id, and empty."""
    log = world.settlers.memory.cluster.log
    config, queues = log.topics[name].config, len(log.topics[name].partitions)
    log.delete_topic(name)
    log.create_topic(name, queues, config)


async def lose_with_one_pending(world: ProjectorWorld, topic: str) -> None:
    """A transaction is pending, and projected; then the topic is another."""
    async with world.settlers.settling():
        await world.settlers.prepare("pending", ORDER)
        await world.settlers.settled()
        await world.catch_up()
    await world.projector.close()
    recreate(world, topic)


def make_giving_up(world: ProjectorWorld) -> GivingUp:
    ports = world.make_projector("operator").ports
    return GivingUp(ports.store, ports.owners, ports.admin, world.database, ports.clock, world.topics)


@pytest.mark.parametrize(("lost", "kind"), [("op", HaltKind.NO_POSITION), ("half", HaltKind.OTHER_JOURNAL)])
@in_world(make_projector_world)
async def test_what_is_lost_is_told_first_and_the_queue_goes_on_without_it(
    world: ProjectorWorld, lost: str, kind: HaltKind
) -> None:
    """A look changes nothing; then what was pending is given up and nothing is published twice (D, L, 53)."""
    async with world.settlers.settling():
        await world.settlers.prepare("done", ORDER)
        await world.settlers.commit("done")
        await world.settlers.prepare("pending", ORDER)
        await world.settlers.settled()
        await world.catch_up()
    await world.projector.close()
    recreate(world, getattr(world.topics, lost))
    giving_up = make_giving_up(world)
    for _ in range(2):
        (loss,) = await giving_up.survey()
        assert loss.kind is kind
        assert [u.transaction_id for u in loss.unproven] == [world.settlers.id_of("pending")]
    assert await giving_up.find_faults() == {0: kind}
    assert len(await giving_up.act("operator")) == 1
    assert await giving_up.survey() == []
    async with world.settlers.settling("next"):
        await world.settlers.prepare("new", Message("orders", b"k", b"w"))
        await world.settlers.commit("new")
        await world.settlers.settled()
    assert world.settlers.memory.visible("orders") == [b"v", b"w"]


@in_world(make_projector_world)
async def test_nothing_is_given_up_that_was_not_shown(world: ProjectorWorld) -> None:
    """The question may be answered hours later, when another queue's log is gone too: nobody has seen its ids."""
    giving_up = make_giving_up(world)
    await lose_with_one_pending(world, world.topics.op)
    with pytest.raises(ConfigError, match="nothing was given up: 1 transactions that were not shown"):
        await giving_up.refuse_more([])
    shown = await giving_up.survey()
    assert [loss.kind for loss in shown] == [HaltKind.NO_POSITION]
    await giving_up.refuse_more(shown)
    assert len(await giving_up.act("operator")) == 1


class BusyLog(NoFaults):
    """Something is done before each request of the operator's."""

    def __init__(self) -> None:
        self.work: Callable[[], Awaitable[None]] | None = None

    async def before(self, step: Step) -> Fate:
        work, self.work = self.work, None
        if step.client == "operator" and work is not None:
            await work()
        self.work = work
        return PASSES


@pytest.mark.parametrize("is_projected", [True, False])
def test_queue_that_is_written_to_is_no_loss(database_url: str, *, is_projected: bool) -> None:
    """Its owner moves journal, position and projection between any two looks: nothing is given up (L)."""
    log = BusyLog()
    world = make_projector_world(database_url, faults=log)
    settlers, names = world.settlers, iter(map(str, range(1_000)))

    async def work() -> None:
        name = next(names)
        await settlers.prepare(name, ORDER)
        await settlers.commit(name)
        await world.settled()
        if is_projected:
            await world.project()

    async def story() -> None:
        async with settlers.settling():
            await settlers.prepare("pending", ORDER)
            await work()
            await world.project()
            giving_up, log.work = make_giving_up(world), work
            assert await giving_up.find_faults() == {}
            assert await giving_up.survey() == []
            assert await giving_up.act("operator") == []
            log.work = None
            assert await world.database.read(read_halts) == {}
            await settlers.commit("pending")
            await settlers.settled()

    world.run(story())


@in_world(make_projector_world)
async def test_what_a_new_journal_was_given_before_the_place_to_go_on_from_is_told(world: ProjectorWorld) -> None:
    """By processes that had not noticed that it is another one: nobody has read it, and nobody will."""
    await lose_with_one_pending(world, world.topics.half)
    for name in ("unread", "pending"):
        await world.settlers.prepare(name, ORDER)
    (loss,) = await make_giving_up(world).survey()
    assert loss.position.s == 2
    assert {u.transaction_id for u in loss.unproven} == {world.settlers.id_of(name) for name in ("unread", "pending")}


@in_world(make_projector_world)
async def test_void_half_message_is_no_transaction_to_be_given_up(world: ProjectorWorld) -> None:
    """It counts for nobody, as those of `doctor` do."""
    async with world.settlers.settling():
        journal = MessageQueue(world.topics.half, 0)
        await world.settlers.memory.store.put(journal, make_void(journal.topic, 0, 1))
        await world.settlers.settled()
    recreate(world, world.topics.op)
    (loss,) = await make_giving_up(world).survey()
    assert loss.unproven == []


@pytest.mark.parametrize("lost", ["op", "half"])
@in_world(make_projector_world)
async def test_act_that_ends_between_log_and_database_is_finished_by_its_repeat(
    world: ProjectorWorld, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new position alone would say that all is well, and nobody would be told what is given up (L)."""

    def fail(*_: object, **__: object) -> None:
        raise SqlUnavailable("down")

    await lose_with_one_pending(world, getattr(world.topics, lost))
    giving_up = make_giving_up(world)
    monkeypatch.setattr("bridge.giving_up._record", fail)
    with pytest.raises(SqlUnavailable):
        await giving_up.act("operator")
    monkeypatch.undo()
    assert 0 in await world.database.read(read_halts)
    (loss,) = await giving_up.act("operator")
    assert [u.transaction_id for u in loss.unproven] == [world.settlers.id_of("pending")]
    assert await world.database.read(read_halts) == {}
    view = world.view("pending")
    assert view is not None
    assert view.is_unproven


@in_world(make_projector_world)
async def test_act_is_not_recorded_once_the_projection_has_gone_on(
    world: ProjectorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may know more of the log by now than was looked at: the look is taken again (L)."""
    answers = list[bool]()

    def record_late(conn: sa.Connection, **known: Any) -> bool:
        if not answers:
            conn.execute(sa.update(projection_positions).values(op_next=projection_positions.c.op_next + 1))
        answers.append(_record(conn, **known))
        return answers[-1]

    await lose_with_one_pending(world, world.topics.half)
    monkeypatch.setattr("bridge.giving_up._record", record_late)
    (loss,) = await make_giving_up(world).act("operator")
    assert [u.transaction_id for u in loss.unproven] == [world.settlers.id_of("pending")]
    assert answers == [False, True]


@in_world(make_projector_world)
async def test_projection_does_not_begin_where_it_looked_before_an_act(world: ProjectorWorld) -> None:
    """Log and place are those of before: it would speak of what was given up (L)."""
    async with world.settlers.settling():
        await world.settlers.prepare("pending", ORDER)
        await world.settlers.settled()
    before = await world.database.read(partial(read_last_acts, queue_ids=[0]))
    recreate(world, world.topics.half)
    assert len(await make_giving_up(world).act("operator")) == 1
    since = await world.database.read(partial(read_last_acts, queue_ids=[0]))
    place, log = AppliedPosition(0, 0, 0), LogIdentity("cluster", "journal", "op")
    for last_act, is_begun in ((before[0], False), (since[0], True)):
        begin = partial(begin_projection, queue_id=0, position=place, identity=log, last_act=last_act)
        await world.database.run(begin)
        assert (await world.database.read(partial(read_position, queue_id=0)) is not None) is is_begun


def test_first_halt_of_a_queue_stays_until_it_is_cleared(database_url: str) -> None:
    """What is found later may follow from it."""
    world = make_projector_world(database_url)
    first = Halt(0, HaltKind.JOURNAL_LOST, "ends", 1)
    world.query(partial(store_halt, halt=first))
    world.query(partial(store_halt, halt=Halt(0, HaltKind.OP_LOST, "later", 2)))
    assert world.query(read_halts) == {0: first}
    world.query(partial(clear_halt, queue_id=0))
    assert world.query(read_halts) == {}


@in_world(make_projector_world)
async def test_queue_that_was_added_begins_with_nothing_given_up(world: ProjectorWorld) -> None:
    """Journal and op topic have both grown, and the setting with them: the new queue gets its first position (53)."""
    async with world.settlers.settling():
        await world.settlers.prepare("before", ORDER)
        await world.settlers.settled()
        await world.catch_up()
    await world.projector.close()
    for name in (world.topics.half, world.topics.op):
        world.settlers.memory.cluster.log.add_queues(name, 2)
    ports, topics = world.make_projector("operator").ports, replace(world.topics, queues=2)
    giving_up = GivingUp(ports.store, ports.owners, ports.admin, world.database, ports.clock, topics)
    (loss,) = await giving_up.act("operator")
    assert (loss.queue_id, loss.kind, loss.unproven) == (1, HaltKind.NO_POSITION, [])
    assert await giving_up.find_faults() == {}
    assert world.query(read_halts) == {}
    async with world.settlers.settling():
        await world.settlers.commit("before")
        await world.settlers.settled()
    assert world.settlers.memory.visible("orders") == [b"v"]


def back_up(conn: sa.Connection) -> Mapping[str, list[Mapping[str, Any]]]:
    """All that is in the database."""
    return {t.name: [dict(row) for row in conn.execute(sa.select(t)).mappings()] for t in metadata.sorted_tables}


def restore(conn: sa.Connection, backup: Mapping[str, list[Mapping[str, Any]]]) -> None:
    """As it was."""
    for table in reversed(metadata.sorted_tables):
        conn.execute(sa.delete(table))
    for table in metadata.sorted_tables:
        if backup[table.name]:
            conn.execute(sa.insert(table), backup[table.name])


@pytest.mark.parametrize("is_same_topic", [False, True])
@in_world(make_projector_world)
async def test_database_of_before_an_act_knows_what_it_knew_and_nothing_of_before_the_act_is_taken_for_new(
    world: ProjectorWorld, *, is_same_topic: bool
) -> None:
    """What had ended stays known, what nobody can prove is told; what the log has since goes on (D, F, L, 63)."""
    async with world.settlers.settling():
        for name in ("ended", "pending"):
            await world.settlers.prepare(name, ORDER)
        await world.settlers.commit("ended")
        await world.catch_up()
        backup = world.query(back_up)
        await world.settlers.prepare("late", Message("orders", b"k", b"late"))
        await world.settlers.commit("late")
        await world.catch_up()
    await world.projector.close()
    if is_same_topic:
        world.query(partial(store_halt, halt=Halt(0, HaltKind.OP_LOST, "was cut off", 1)))
    else:
        recreate(world, world.topics.op)
    assert len(await make_giving_up(world).act("operator")) == 1
    async with world.settlers.settling("next"):
        await world.settlers.prepare("since", Message("orders", b"k", b"since"))
        await world.settlers.commit("since")
        await world.settlers.prepare("waiting", Message("orders", b"k", b"waiting"))
        await world.settlers.settled()
    world.query(partial(restore, backup=backup))
    with pytest.raises(QueueHalted, match="lost or given up since"):
        await rebuild(world.projector, lambda _: None)
    giving_up = make_giving_up(world)
    (loss,) = await giving_up.survey()
    assert loss.kind is HaltKind.OLDER_DATABASE
    assert {u.transaction_id for u in loss.unproven} == {world.settlers.id_of(name) for name in ("pending", "late")}
    assert len(await giving_up.act("operator")) == 1
    assert await giving_up.survey() == []
    async with world.settlers.settling("last"):
        await world.settlers.commit("waiting")
        await world.catch_up()
    views = {name: world.view(name) for name in ("ended", "pending", "late", "since", "waiting")}
    told = {name: view and (view.state.value, view.is_unproven) for name, view in views.items()}
    assert told == {
        "ended": ("COMMITTED", False), "pending": ("PREPARED", True), "late": ("PREPARED", True),
        "since": ("COMMITTED", False), "waiting": ("COMMITTED", False),
    }  # fmt: skip
    assert world.settlers.memory.visible("orders") == [b"v", b"late", b"since", b"waiting"]
    assert world.stats().total.pending == 0


@in_world(make_projector_world)
async def test_new_database_in_place_of_a_lost_one_is_told_what_an_act_gave_up(world: ProjectorWorld) -> None:
    """It knows nothing of before the act: a repeat of what was published then must not be taken for new (D, 53)."""
    empty = world.query(back_up)
    async with world.settlers.settling():
        for name in ("ended", "pending"):
            await world.settlers.prepare(name, ORDER)
        await world.settlers.commit("ended")
        await world.catch_up()
    await world.projector.close()
    recreate(world, world.topics.op)
    assert len(await make_giving_up(world).act("operator")) == 1
    async with world.settlers.settling("next"):
        await world.settlers.prepare("since", Message("orders", b"k", b"since"))
        await world.settlers.settled()
    world.query(partial(restore, backup=empty))
    giving_up = make_giving_up(world)
    assert await giving_up.find_faults() == {0: HaltKind.OLDER_DATABASE}
    (loss,) = await giving_up.act("operator")
    assert {u.transaction_id for u in loss.unproven} == {world.settlers.id_of(name) for name in ("ended", "pending")}
    assert await giving_up.find_faults() == {}
    async with world.settlers.settling("last"):
        await world.settlers.commit("since")
        await world.catch_up()
    views = {name: world.view(name) for name in ("ended", "pending", "since")}
    assert {name: view and (view.state.value, view.is_unproven) for name, view in views.items()} == {
        "ended": ("PREPARED", True), "pending": ("PREPARED", True), "since": ("COMMITTED", False),
    }  # fmt: skip

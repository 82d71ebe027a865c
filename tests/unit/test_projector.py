"""The projector behind a real settler on the in-memory log: what it shows, and that it counts once."""

import pytest

from bridge.core.errors import QueueHalted, SqlUnavailable
from bridge.core.message import Message, MessageQueue
from bridge.core.record import Act, ActRecord, Resolution, Source
from bridge.core.transaction import MessageSummary
from bridge.projector import PositionMoved
from bridge.sql.rows import read_positions
from bridge.sql.search import SearchFilter, search_transactions
from tests.support.projector_world import ProjectorWorld, make_projector_world
from tests.support.virtual_time import in_world


def of(value: bytes = b"v", key: bytes | None = b"k", topic: str = "orders") -> Message:
    return Message(topic, key, value)


def act(world: ProjectorWorld, name: str, what: Act, reason: str = "because") -> ActRecord:
    return ActRecord(world.settlers.id_of(name), what, "ann", reason, world.settlers.memory.clock.now_ms())


def counts_of(world: ProjectorWorld) -> tuple[int, int, int, int, int, int]:
    t = world.stats().total
    return t.prepared, t.committed, t.blocked, t.rolled_back, t.parked, t.pending


def types_of(world: ProjectorWorld, name: str) -> list[str]:
    return [event.type for event in world.timeline(name)]


@in_world(make_projector_world)
async def test_committed_rolled_back_and_pending_are_told_apart(world: ProjectorWorld) -> None:
    """State, receipts, metadata and counts as journal and op topic say (C)."""
    async with world.settlers.settling():
        await world.settlers.prepare("a", of(b"four"), ordering_key="o-1", immunity_s=60, max_checks=3)
        await world.settlers.prepare("b", of(), Message("credits", None, None))
        await world.settlers.prepare("c", of())
        await world.settlers.commit("b")
        await world.settlers.rollback("c")
        await world.catch_up()
    a, b, c = world.view("a"), world.view("b"), world.view("c")
    assert a is not None
    assert b is not None
    assert c is not None
    assert (a.state, b.state, c.state) == ("PREPARED", "COMMITTED", "ROLLED_BACK")
    assert (a.ordering_key, a.max_checks, a.check_times, a.receipts) == ("o-1", 3, 0, ())
    assert a.first_check_ms == a.next_due_ms == a.appended_ms + 60_000
    assert a.messages == (MessageSummary("orders", b"k", 4, -1, None),)
    assert [(r.topic, r.queue_offset) for r in b.receipts] == [("orders", 0), ("credits", 0)]
    assert b.messages == (MessageSummary("orders", b"k", 1, -1, None), MessageSummary("credits", None, None, -1, None))
    assert (b.by, b.next_due_ms, c.receipts) == ("producer", None, ())
    assert counts_of(world) == (3, 1, 0, 1, 0, 1)


@in_world(make_projector_world)
async def test_timeline_of_a_commit_is_prepared_end_published(world: ProjectorWorld) -> None:
    """The usual story costs no rows of its own; the row tells it."""
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.settlers.memory.clock.sleep_ms(5)
        await world.settlers.commit("a")
        await world.catch_up()
    prepared, end, published = world.timeline("a")
    assert (prepared.type, prepared.by) == ("prepared", "producer")
    assert (end.type, end.by, end.members) == ("end", "producer", {"resolution": "COMMIT", "effective": True})
    assert end.at_ms == prepared.at_ms + 5
    assert published.type == "published"
    assert world.dump()["timeline_events"] == []


@in_world(make_projector_world)
async def test_contradicting_end_is_in_the_timeline(world: ProjectorWorld) -> None:
    """An operator sees that somebody wanted something else (F)."""
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.settlers.rollback("a")
        await world.catch_up()
        await world.settlers.commit("a")
        await world.catch_up()
    ends = [event.members for event in world.timeline("a") if event.type == "end"]
    assert {"resolution": "ROLLBACK", "effective": True} in ends
    assert {"resolution": "COMMIT", "effective": False} in ends
    assert counts_of(world) == (1, 0, 0, 1, 0, 0)


@in_world(make_projector_world)
async def test_answered_checks_are_counted_and_told(world: ProjectorWorld) -> None:
    """UNKNOWN uses a check up; the deciding answer is both an answer and the end."""
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        check = {"source": Source.CHECK, "endpoint": "https://shop/check", "status": 200}
        await world.settlers.end("a", Resolution.UNKNOWN, check_number=1, latency_ms=7, **check)
        await world.catch_up()
        view = world.view("a")
        assert view is not None
        assert (view.state, view.check_times) == ("PREPARED", 1)
        await world.settlers.end("a", Resolution.COMMIT, check_number=2, latency_ms=9, **check)
        await world.catch_up()
    assert types_of(world, "a") == ["prepared", "check_answered", "check_answered", "end", "published"]
    first = world.timeline("a")[1]
    assert first.members == {
        "number": 1, "endpoint": "https://shop/check", "status": 200, "latency_ms": 7, "answer": "UNKNOWN",
    }  # fmt: skip
    (row,) = world.dump()["check_results"]
    assert row[:3] == ("shop", "https://shop/check", 2)


@in_world(make_projector_world)
async def test_parked_resumed_and_forced_are_told(world: ProjectorWorld) -> None:
    """Each act with who and why; the counts follow (C)."""
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.settlers.settled()
        world.settlers.observer.owners[0].park({world.settlers.id_of("a"): "MAX_CHECKS"})
        while world.settlers.read_op().last.get(world.settlers.id_of("a")) is None:
            await world.settlers.memory.clock.sleep_ms(20)
        await world.catch_up()
        assert counts_of(world) == (1, 0, 0, 0, 1, 0)
        await world.settlers.act(act(world, "a", Act.RESUME))
        await world.catch_up()
        assert counts_of(world) == (1, 0, 0, 0, 0, 1)
        await world.settlers.end("a", Resolution.ROLLBACK, source=Source.OPERATOR, actor="bob", reason="asked")
        await world.catch_up()
    assert types_of(world, "a") == ["prepared", "parked", "resumed", "forced", "end"]
    _, parked, resumed, forced, end = world.timeline("a")
    assert (parked.by, parked.members["why"]) == ("timer", "MAX_CHECKS")
    assert resumed.members == {"actor": "ann", "reason": "because"}
    assert forced.members == {"resolution": "ROLLBACK", "effective": True, "actor": "bob", "reason": "asked"}
    assert end.by == "operator"
    assert counts_of(world) == (1, 0, 0, 1, 0, 0)


@in_world(make_projector_world)
async def test_blocked_commit_is_counted_beside_and_told_until_published(world: ProjectorWorld) -> None:
    """COMMITTED at once; `blocked` is a part of it and goes away (C, L)."""
    topic = world.settlers.memory.cluster.log.topics["credits"]
    async with world.settlers.settling():
        await world.settlers.prepare("a", of(topic="credits"))
        await world.settlers.settled()
        topic.is_denied = True
        await world.settlers.commit("a")
        await world.catch_up()
        assert counts_of(world) == (1, 1, 1, 0, 0, 0)
        topic.is_denied = False
        while world.settlers.op_of("a").transaction.blocked:
            await world.settlers.memory.clock.sleep_ms(100)
        await world.project()
    assert counts_of(world) == (1, 1, 0, 0, 0, 0)
    types = types_of(world, "a")
    assert types[:2] == ["prepared", "end"]
    assert types[2:-1] == ["blocked"] * (len(types) - 3)
    assert types[-1] == "published"


@pytest.mark.parametrize("is_read_at_once", [True, False])
def test_answers_that_came_while_a_commit_was_blocked_are_told(database_url: str, *, is_read_at_once: bool) -> None:
    """The try that publishes names the last record before it, which need not be the end that decided (F)."""
    world = make_projector_world(database_url)
    check = {"source": Source.CHECK, "endpoint": "https://shop/check", "status": 200, "check_number": 1}

    async def story() -> None:
        topic = world.settlers.memory.cluster.log.topics["credits"]
        async with world.settlers.settling():
            for name in ("a", "b", "c"):
                topic.is_denied = False
                await world.settlers.prepare(name, of(topic="credits"))
                await world.settlers.settled()
                topic.is_denied = True
                await world.settlers.commit(name)
                await world.settlers.settled()
                if is_read_at_once:
                    await world.catch_up()
                if name == "b":
                    await world.settlers.rollback(name)
                else:
                    await world.settlers.end(name, Resolution.UNKNOWN if name == "a" else Resolution.COMMIT, **check)
                await world.settlers.settled()
                topic.is_denied = False
                while world.settlers.op_of(name).transaction.blocked:
                    await world.settlers.memory.clock.sleep_ms(100)
            await world.catch_up()

    world.run(story())
    told = [(name, e.type, e.members.get("answer")) for name in "abc" for e in world.timeline(name)]
    assert [event for event in told if event[1] == "check_answered"] == [
        ("a", "check_answered", "UNKNOWN"), ("c", "check_answered", "COMMIT"),
    ]  # fmt: skip
    ends = [e.members for e in world.timeline("b") if e.type == "end"]
    assert {"resolution": "ROLLBACK", "effective": False} in ends
    assert {"resolution": "COMMIT", "effective": True} in ends


@in_world(make_projector_world)
async def test_ask_now_is_seen_in_the_next_check(world: ProjectorWorld) -> None:
    """`check` moves the due time although no op message says so."""
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.settlers.act(act(world, "a", Act.CHECK))
        await world.catch_up()
    view = world.view("a")
    assert view is not None
    assert view.next_due_ms == view.appended_ms
    assert view.first_check_ms == view.appended_ms + 6_000


@in_world(make_projector_world)
async def test_void_and_repeated_half_messages_are_not_counted(world: ProjectorWorld) -> None:
    """What nobody decides is not prepared (C)."""
    clock = world.settlers.memory.clock
    async with world.settlers.settling():
        await world.settlers.prepare("void", of(), idempotency_key="x", seen_ms=clock.now_ms() - 60_000)
        for _ in range(2):
            await world.settlers.prepare("a", of(), idempotency_key="y", seen_ms=clock.now_ms())
            await world.catch_up()
        await world.settlers.commit("a")
        await world.settlers.prepare("a", of(), idempotency_key="y", seen_ms=clock.now_ms())
        await world.catch_up()
    assert world.view("void") is None
    assert counts_of(world) == (1, 1, 0, 0, 0, 0)
    assert len(world.dump()["transaction_keys"]) == 1


@in_world(make_projector_world)
async def test_position_s_says_what_is_complete(world: ProjectorWorld) -> None:
    """A reader that waits for S beyond the journal's end sees everything before it."""
    await world.project()
    assert world.query(read_positions)[0].s == 0
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.settlers.commit("a")
        await world.catch_up()
    assert world.query(read_positions)[0][:2] == (2, 2)


def test_messages_are_found_by_topic_and_key(database_url: str) -> None:
    """Each of several messages leads to its transaction, once."""
    world = make_projector_world(database_url)

    async def story() -> None:
        async with world.settlers.settling():
            await world.settlers.prepare("a", of(key=b"1"), of(key=b"1"), of(key=b"2"), of(key=b"1", topic="credits"))
            await world.settlers.prepare("b", of(key=b"1"))
            await world.catch_up()

    world.run(story())

    def found(**wanted: object) -> list[str]:
        views, _ = world.query(lambda c: search_transactions(c, SearchFilter(**wanted), 10))  # type: ignore[arg-type]
        return sorted(view.transaction_id for view in views)

    a, b = world.settlers.id_of("a"), world.settlers.id_of("b")
    assert found(topic="orders") == found(key=b"1") == [a, b]
    assert found(topic="credits") == found(key=b"2") == found(topic="orders", key=b"2") == [a]
    assert found(topic="credits", key=b"2") == []


@in_world(make_projector_world)
async def test_two_projectors_at_once_count_once(world: ProjectorWorld) -> None:
    """The loser of the compare-and-set applies nothing and reads the positions again (C)."""
    other = world.make_projector("other")
    await world.projector.run_once()
    await other.run_once()
    async with world.settlers.settling():
        for name in ("a", "b"):
            await world.settlers.prepare(name, of())
            await world.settlers.commit(name)
            await world.settled()
            await world.project()
            with pytest.raises(PositionMoved):
                await other.run_once()
            await world.project(other)
    await other.close()
    assert counts_of(world) == (2, 2, 0, 0, 0, 0)


@pytest.mark.parametrize("point", ["fail_before", "fail_after", "lose_before"])
@in_world(make_projector_world)
async def test_crash_around_the_sql_transaction_counts_once(world: ProjectorWorld, point: str) -> None:
    """Rows and positions are one: applied with both, or read again (11)."""
    await world.project()
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.settlers.commit("a")
        await world.settled()
        setattr(world.database, point, 1)
        with pytest.raises(SqlUnavailable):
            await world.project()
        await world.project()
    assert counts_of(world) == (1, 1, 0, 0, 0, 0)


@in_world(make_projector_world)
async def test_unparsable_records_are_stepped_over_and_counted(world: ProjectorWorld) -> None:
    """Foreign rubbish in an internal topic does not stop the projection (61)."""
    store, topics = world.settlers.memory.store, world.topics
    await store.put(MessageQueue(topics.half, 0), Message(topics.half, b"x", b"rubbish"))
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.settled()
    await store.put(MessageQueue(topics.op, 0), Message(topics.op, b"rubbish", b"{"))
    await world.project()
    assert counts_of(world) == (1, 0, 0, 0, 0, 1)
    assert world.projector.quarantined == 2


@in_world(make_projector_world)
async def test_recreated_topic_halts_until_it_is_given_up(world: ProjectorWorld) -> None:
    """Offsets of another log mean nothing: they are not applied (53, 62)."""
    log = world.settlers.memory.cluster.log
    async with world.settlers.settling():
        await world.settlers.prepare("a", of())
        await world.catch_up()
    await world.projector.close()
    config = log.topics[world.topics.op].config
    log.delete_topic(world.topics.op)
    log.create_topic(world.topics.op, 1, config)
    with pytest.raises(QueueHalted, match="--accept-identity"):
        await world.projector.run_once()
    assert counts_of(world) == (1, 0, 0, 0, 0, 1)


@in_world(make_projector_world)
async def test_commit_published_after_a_long_block_is_kept_as_long_as_any_other(world: ProjectorWorld) -> None:
    """Its seven days count from its publication: nobody could have looked at it before (S)."""
    clock = world.settlers.memory.clock

    async def pass_a_week() -> None:
        clock.shift_wall_clock(7 * 86_400_000 + 1_000)
        await world.settlers.prepare("new", of())
        await world.settlers.rollback("new")
        await world.catch_up()

    topic = world.settlers.memory.cluster.log.topics["credits"]
    async with world.settlers.settling():
        await world.settlers.prepare("late", of(topic="credits"))
        await world.settlers.settled()
        topic.is_denied = True
        await world.settlers.commit("late")
        await clock.sleep_ms(1_000)
        await pass_a_week()
        assert await world.projector.purge() == 0
        topic.is_denied = False
        await clock.sleep_ms(120_000)
        await world.catch_up()
        assert not world.settlers.op_of("late").transaction.blocked
        assert await world.projector.purge() == 0
        await pass_a_week()
        assert await world.projector.purge() == 2
    assert world.view("late") is None


@in_world(make_projector_world)
async def test_abandoned_one_is_kept_for_seven_days_from_the_act(world: ProjectorWorld) -> None:
    """However long it was blocked before; counted on its own, as a part of committed, and shown (C, S)."""
    clock = world.settlers.memory.clock

    async def pass_a_week() -> None:
        clock.shift_wall_clock(7 * 86_400_000 + 1_000)
        await world.settlers.prepare("new", of())
        await world.settlers.rollback("new")
        await world.catch_up()

    async with world.settlers.settling():
        await world.settlers.prepare("doomed", of(topic="credits"))
        world.settlers.memory.cluster.log.topics["credits"].is_denied = True
        await world.settlers.commit("doomed")
        await pass_a_week()
        assert await world.projector.purge() == 0
        await world.settlers.act(act(world, "doomed", Act.ABANDON))
        await world.settlers.settled()
        await world.catch_up()
        assert counts_of(world) == (2, 1, 0, 1, 0, 0)
        assert world.stats().total.abandoned == 1
        assert list(dict.fromkeys(types_of(world, "doomed"))) == ["prepared", "end", "blocked", "abandoned"]
        assert await world.projector.purge() == 0
        await pass_a_week()
        assert await world.projector.purge() == 2
    assert world.view("doomed") is None
    assert world.stats().total.abandoned == 1


@in_world(make_projector_world, queues=2)
async def test_queue_that_lags_is_purged_by_its_own_time(world: ProjectorWorld) -> None:
    """What another queue has come to says nothing of it: its op message told again would be counted again (C, S)."""
    stuck = MessageQueue(world.topics.op, 1)
    log = world.settlers.memory.cluster.log
    async with world.settlers.settling():
        await world.settlers.prepare("slow", of(), queue_id=1)
        await world.settlers.commit("slow", queue_id=1)
        await world.catch_up()
        await world.settlers.prepare("slow", of(), queue_id=1)  # its op message is written again
        await world.settled()
        log.set_leader(stuck, has_leader=False)
        world.settlers.memory.clock.shift_wall_clock(7 * 86_400_000 + 1_000)
        await world.settlers.prepare("new", of())
        await world.settlers.rollback("new")
        await world.settlers.settled(0)
        await world.project()
        assert await world.projector.purge() == 0
        log.set_leader(stuck, has_leader=True)
        await world.project()
        assert counts_of(world) == (2, 1, 0, 1, 0, 0)
        await world.settlers.prepare("next", of(), queue_id=1)
        await world.settlers.rollback("next", queue_id=1)
        await world.catch_up()
        assert await world.projector.purge() == 1
    assert world.view("slow", 1) is None
    assert counts_of(world) == (3, 1, 0, 2, 0, 0)


@in_world(make_projector_world)
async def test_long_ended_ones_are_purged_and_pending_ones_never(world: ProjectorWorld) -> None:
    """Seven days by Kafka's time after the end; the totals still count them (C)."""
    async with world.settlers.settling():
        await world.settlers.prepare("old", of(), of(topic="credits"))
        await world.settlers.prepare("pending", of())
        await world.settlers.commit("old")
        await world.settlers.commit("old")
        await world.catch_up()
        assert await world.projector.purge() == 0
        world.settlers.memory.clock.shift_wall_clock(7 * 86_400_000 + 1_000)
        await world.settlers.prepare("new", of())
        await world.settlers.commit("new")
        await world.catch_up()
        assert await world.projector.purge() == 1
    assert world.view("old") is None
    assert [view is not None for view in (world.view("pending"), world.view("new"))] == [True, True]
    assert counts_of(world) == (3, 2, 0, 0, 0, 1)
    dump = world.dump()
    assert (len(dump["transaction_keys"]), len(dump["timeline_events"])) == (2, 0)

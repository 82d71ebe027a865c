"""What a settler does with the queues it is given and must let go, one of them stuck."""

import asyncio
from collections.abc import Collection

import pytest

from bridge.core.check_rules import Backoff
from bridge.core.errors import BatchOutcomeUnknown, StoreError, StoreTimeout
from bridge.core.message import Message, MessageQueue
from bridge.settler.settler import Hold, Settler, _choose_pause_ms
from bridge.store.memory.link import PASSES, Fate, NoFaults, Step, StepKind
from bridge.store.memory.process import MemoryOwnerStore
from bridge.store.message_store import BatchWriter, GroupChange, GroupMember, QueueReader
from tests.support.settler_world import SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world

NONE: frozenset[int] = frozenset()
ZERO, ONE = frozenset({0}), frozenset({1})


class ScriptedMember:
    """A group member that is told its changes, or of the end of its membership, and keeps what was released."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[GroupChange | StoreError] = asyncio.Queue()
        self.owned: set[int] = set()
        self.released: list[int] = []

    def tell(
        self, *, gained: frozenset[int] = NONE, revoked: frozenset[int] = NONE, lost: frozenset[int] = NONE
    ) -> None:
        self.owned = (self.owned - revoked - lost) | gained
        self.changes.put_nowait(GroupChange(gained, revoked, lost))

    async def next_change(self) -> GroupChange:
        change = await self.changes.get()
        if isinstance(change, StoreError):
            raise change
        return change

    def release(self, queue_ids: Collection[int]) -> None:
        self.released += queue_ids

    def is_owned(self, queue_id: int) -> bool:
        return queue_id in self.owned

    async def close(self) -> None:
        return None


class ScriptedOwners:
    """The stores of a process, with that member."""

    def __init__(self, owners: MemoryOwnerStore, member: ScriptedMember) -> None:
        self._owners = owners
        self._member = member
        self.joins = 0

    def open_reader(self, queue: MessageQueue, offset: int) -> QueueReader:
        return self._owners.open_reader(queue, offset)

    def open_writer(self, transactional_ids: tuple[str, str]) -> BatchWriter:
        return self._owners.open_writer(transactional_ids)

    def join_group(self, group: str, topic: str) -> GroupMember:
        self.joins += 1
        return self._member


class StuckQueue(NoFaults):
    """The owner of queue 0 stands still in its Kafka transactions while `is_stuck`."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.is_stuck = False

    async def before(self, step: Step) -> Fate:
        if self.is_stuck and step.kind is StepKind.END and step.subject.endswith(("-0-0", "-0-1")):
            await self.free.wait()
        return PASSES


class World:
    """A settler whose membership the test scripts."""

    def __init__(self) -> None:
        self.faults = StuckQueue()
        self.settlers: SettlerWorld = make_settler_world(queues=2, faults=self.faults)
        self.member = ScriptedMember()
        process = self.settlers.memory.start_process("settler")
        self.owners = ScriptedOwners(process.owners, self.member)
        self.settler: Settler = self.settlers.make_settler(process, owners=lambda _: self.owners)

    async def sleep(self, ms: int) -> None:
        await self.settlers.memory.clock.sleep_ms(ms)

    async def get_stuck(self) -> asyncio.Task[None]:
        """Queue 0 is owned, and its owner does not come back from a batch."""
        running = asyncio.create_task(self.settler.run_forever())
        self.member.tell(gained=ZERO)
        await self.settlers.settled()
        self.faults.is_stuck = True
        await self.settlers.prepare("a", Message("credits", None, b"v"))
        await self.settlers.commit("a")
        await self.sleep(500)
        return running

    async def end(self, running: asyncio.Task[None]) -> None:
        self.settler.stop()
        self.faults.free.set()
        await running


@pytest.mark.parametrize("is_lost", [False, True], ids=["revoked", "lost"])
@pytest.mark.parametrize("is_together", [False, True], ids=["told apart", "told together"])
def test_gained_queue_does_not_wait_for_one_that_is_stuck(*, is_lost: bool, is_together: bool) -> None:
    """It is taken over at once; the stuck one is released when it has been let go, and only then (B, T)."""
    world = World()

    async def story() -> None:
        running = await world.get_stuck()
        gone = {"lost" if is_lost else "revoked": ZERO}
        if is_together:
            world.member.tell(gained=ONE, **gone)
        else:
            world.member.tell(**gone)
            world.member.tell(gained=ONE)
        await world.sleep(1_000)
        assert world.settler.status[1].hold is Hold.OWNED
        assert world.member.released == []
        world.faults.free.set()
        await world.sleep(1_000)
        assert world.member.released == [0]
        assert list(world.settler.status) == [1]
        await world.end(running)

    world.settlers.run(story())


def test_queue_that_comes_back_is_owned_once() -> None:
    """Its old task is let end first: two owners in one process would tell the checker different things."""
    world = World()

    async def story() -> None:
        running = await world.get_stuck()
        world.member.tell(lost=ZERO)
        world.member.tell(gained=ZERO)
        await world.sleep(1_000)
        assert world.settler.status[0].hold is Hold.TAKING_OVER
        world.faults.is_stuck = False
        world.faults.free.set()
        await world.sleep(1_000)
        assert world.settler.status[0].hold is Hold.OWNED
        assert world.settlers.memory.visible("credits") == [b"v"]
        await world.end(running)

    world.settlers.run(story())


def test_settler_that_stops_waits_for_the_stuck_one_too() -> None:
    """Whoever stops has let everything go, so that nothing of his is under way."""
    world = World()

    async def story() -> None:
        running = await world.get_stuck()
        world.member.tell(revoked=ZERO)
        await world.sleep(1_000)
        world.settler.stop()
        await world.sleep(1_000)
        assert not running.done()
        world.faults.free.set()
        await running
        assert world.member.released == [0]

    world.settlers.run(story())


def test_first_pause_is_short_where_nobody_else_is_expected() -> None:
    """Later ones have jitter, so that two settlers do not fence each other in step."""
    quick, slow = Backoff(100, 5_000), Backoff(100, 5_000)
    assert _choose_pause_ms(quick, is_slow=False) == 25
    assert 100 <= _choose_pause_ms(quick, is_slow=False) <= 200
    assert 50 <= _choose_pause_ms(slow) <= 100


class EverySecondBatchFails(NoFaults):
    """Every other Kafka transaction has an unknown outcome."""

    def __init__(self) -> None:
        self.count = 0

    async def before(self, step: Step) -> Fate:
        if step.kind is StepKind.END and step.is_commit:
            self.count += 1
            if self.count % 2 == 0:
                raise BatchOutcomeUnknown("no answer")
        return PASSES


def test_queue_that_is_lost_soon_after_each_take_over_waits_longer_each_time() -> None:
    """It read records in between, but was not held: hundreds of take-overs a minute help nobody (T)."""
    settlers = make_settler_world(queues=1, faults=EverySecondBatchFails())
    member = ScriptedMember()
    settler = settlers.make_settler(
        settlers.memory.start_process("settler"), owners=lambda owners: ScriptedOwners(owners, member)
    )

    async def story() -> None:
        running = asyncio.create_task(settler.run_forever())
        member.tell(gained=ZERO)
        for number in range(600):
            await settlers.prepare(f"{number}", Message("credits", None, b"v"))
            await settlers.memory.clock.sleep_ms(100)
        assert 5 < settler.status[0].take_overs < 30
        settler.stop()
        await running

    settlers.run(story())


def test_settler_whose_membership_ends_lets_go_and_joins_again() -> None:
    """Later each time, up to 5 s; soon again when it has been a member in between."""
    world = World()

    async def end_membership() -> int:
        """Milliseconds until it has joined again."""
        joins, clock = world.owners.joins, world.settlers.memory.clock
        began_ms = clock.monotonic_ms()
        world.member.changes.put_nowait(StoreTimeout("no coordinator"))
        while world.owners.joins == joins:
            await world.sleep(1)
        return clock.monotonic_ms() - began_ms

    async def story() -> None:
        running = asyncio.create_task(world.settler.run_forever())
        world.member.tell(gained=ZERO | ONE)
        await world.sleep(1_000)
        assert world.settler.is_placed
        pauses = [await end_membership() for _ in range(8)]
        assert sorted(world.member.released) == [0, 1]
        assert world.settler.status == {}
        assert not world.settler.is_placed
        longest = [200, 400, 800, 1_600, 3_200, 5_000, 5_000]  # the first one also waits for its queues
        assert all(most // 2 <= pause <= most + 1 for pause, most in zip(pauses[1:], longest, strict=True)), pauses
        world.member.tell(gained=ONE)
        await world.sleep(1_000)
        assert list(world.settler.status) == [1]
        assert await end_membership() <= 501  # with the queue's last batch
        await world.end(running)

    world.settlers.run(story())


def test_settler_without_queues_stands_by_after_a_while() -> None:
    """Ready, since there may be more settlers than queues; not before the group had time to give it some."""
    world = World()

    async def story() -> None:
        assert not world.settler.is_placed
        running = asyncio.create_task(world.settler.run_forever())
        await world.sleep(10_000)
        assert not world.settler.is_placed
        await world.sleep(1)
        assert world.settler.is_placed
        await world.end(running)
        assert not world.settler.is_placed

    world.settlers.run(story())


def test_status_and_consume_offset_show_how_a_queue_stands() -> None:
    """For health, metrics and Kafka's lag tools."""
    world = World()
    memory = world.settlers.memory

    async def story() -> None:
        running = asyncio.create_task(world.settler.run_forever())
        world.member.tell(gained=ZERO)
        await world.settlers.prepare("pending", Message("orders", b"k", b"v" * 500))
        await world.settlers.prepare("doomed", Message("credits", None, b"v"))
        await world.settlers.settled()
        memory.cluster.log.topics["credits"].is_denied = True
        await world.settlers.commit("doomed")
        await world.settlers.settled()
        await world.sleep(5_000)
        status = world.settler.status[0]
        assert (status.hold, status.reason, status.take_overs) == (Hold.OWNED, None, 1)
        assert (status.s, status.live, status.blocked) == (3, 2, 1)
        assert status.held_bytes > 500
        assert 0 <= memory.clock.now_ms() - status.journal_ms <= 60_000
        journal = MessageQueue(world.settlers.topics.half, 0)
        assert (await memory.store.get_consume_offsets(world.settlers.topics.group, [journal]))[journal].offset == 3
        await world.end(running)

    world.settlers.run(story())


@in_world(make_settler_world)
async def test_successor_of_an_idle_queue_knows_its_journal_time(world: SettlerWorld) -> None:
    """From the last record that was decided, although it has none to read (T)."""
    async with world.settling("first"):
        await world.prepare("a", Message("credits", None, b"v"))
        last_ms = (await world.rollback("a")).stored_ms
        await world.settled()
    await world.memory.clock.sleep_ms(10_000)
    async with world.settling("second"):
        while not (status := world.settlers["second"].status.get(0)) or status.hold is not Hold.OWNED:
            await world.memory.clock.sleep_ms(10)
        await world.memory.clock.sleep_ms(1_000)
        assert status.journal_ms == last_ms


class BrokenQueue(NoFaults):
    """Whoever fences queue 0 meets a bug."""

    is_broken = True

    async def before(self, step: Step) -> Fate:
        if self.is_broken and step.kind is StepKind.INIT and step.subject.endswith(("-0-0", "-0-1")):
            raise ZeroDivisionError
        return PASSES


@in_world(make_settler_world, queues=2, faults=BrokenQueue)
async def test_bug_in_one_queue_stops_no_other(settlers: SettlerWorld, faults: BrokenQueue) -> None:
    """It is tried again and again, and says so."""
    async with settlers.settling():
        await settlers.prepare("a", Message("orders", b"k", b"v"), queue_id=1)
        await settlers.settled(1)
        status = settlers.settlers["settler"].status
        assert (status[0].hold, status[0].reason) == (Hold.TAKING_OVER, "internal error")
        assert status[1].hold is Hold.OWNED
        faults.is_broken = False
        await settlers.memory.clock.sleep_ms(5_001)
        assert (status[0].hold, status[0].reason) == (Hold.OWNED, None)

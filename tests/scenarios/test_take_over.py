"""Take-overs whose windows are staged: who fences whom between which two requests."""

import asyncio
from collections.abc import Collection

import pytest

from bridge.core.errors import StoreTimeout
from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.settler.ports import SettlerConfig
from bridge.settler.settler import Hold
from bridge.store.memory.link import StepKind
from bridge.store.memory.log import compact
from bridge.store.memory.process import MemoryBatchWriter
from bridge.store.memory.store import MemoryQueueReader
from bridge.store.message_store import AtomicBatch, BatchResult, GetResult, GetStatus, QueueOffsets
from tests.support.held_steps import HeldSteps
from tests.support.settler_world import SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world

Stored = dict[int, StoredMessage]


@in_world(make_settler_world, faults=HeldSteps)
async def test_successor_fences_before_it_reads_back(world: SettlerWorld, faults: HeldSteps) -> None:
    """What the last owner still commits while its successor comes is not decided again (D)."""
    async with world.settling("first") as first:
        await world.prepare("a", Message("credits", b"k", b"v"))
        await world.settled()
        decided = faults.hold(StepKind.ADD_QUEUES, client="first")
        await world.commit("a")
        await decided.reached.wait()
        first.freeze()
        coming = faults.hold(StepKind.INIT, client="second")
        async with world.settling("second"):
            await coming.reached.wait()
            first.thaw()
            decided.release()
            await world.memory.clock.sleep_ms(1_000)
            assert world.memory.visible("credits") == [b"v"], "committed in the window"
            coming.release()
            await world.memory.clock.sleep_ms(20_000)
    assert world.memory.visible("credits") == [b"v"]
    assert world.read_op().positions[-1].owner == "second"


@in_world(make_settler_world, faults=HeldSteps)
async def test_successor_reads_to_the_real_end_of_the_op_topic(world: SettlerWorld, faults: HeldSteps) -> None:
    """A Kafka transaction whose marker is late is no less committed: nothing of it is decided again (D)."""
    async with world.settling("first") as first:
        await world.prepare("a", Message("credits", b"k", b"v"))
        await world.settled()
        first.owners.members[0].freeze()  # no heartbeat comes from it any more, and it does not know
        async with world.settling("second"):
            await world.memory.clock.sleep_ms(9_500)
            ending = faults.hold(StepKind.END, client="first")
            coming = faults.hold(StepKind.INIT, client="second")
            await world.commit("a")
            await ending.reached.wait()
            await coming.reached.wait()
            faults.marker_delays[MessageQueue(world.topics.op, 0)] = 500
            ending.release()
            await world.memory.clock.sleep_ms(100)
            assert world.memory.visible("credits") == [b"v"], "its marker is there, that of the op topic is not"
            coming.release()
            await world.memory.clock.sleep_ms(1_000)
            faults.marker_delays.clear()
            await world.memory.clock.sleep_ms(20_000)
    assert world.memory.visible("credits") == [b"v"]
    assert world.read_op().positions[-1].owner == "second"


@pytest.mark.parametrize(
    ("name", "times"), [("op", 1), ("half", 1), ("half", 2)], ids=["op", "half", "half, frozen twice"]
)
def test_broker_that_was_frozen_tells_the_end_of_its_log_as_it_was(name: str, times: int) -> None:
    """Until it knows that another one leads: nothing is decided again, and nothing is taken for lost (D, T)."""
    world = make_settler_world()
    queue, clock = MessageQueue(getattr(world.topics, name), 0), world.memory.clock

    async def story() -> None:
        async with world.settling("first") as first:
            await world.prepare("a", Message("credits", b"k", b"v"))
            await world.settled()
            old = await world.memory.store.get_offsets(queue)
            await world.commit("a")
            await world.settled()
            first.freeze()
            async with world.settling("second") as second:
                asked_ms: list[int] = []
                ask = second.store.get_offsets

                async def answer(of: MessageQueue) -> QueueOffsets:
                    if of != queue:
                        return await ask(of)
                    asked_ms.append(clock.monotonic_ms())
                    number, since_ms = divmod(asked_ms[-1] - asked_ms[0], 15_000)
                    if number < times and since_ms < 8_000:
                        return old
                    if number < times - 1:
                        raise StoreTimeout("frozen again")
                    return await ask(of)

                second.store.get_offsets = answer  # type: ignore[method-assign]
                await clock.sleep_ms(40_000)
                assert world.settlers["second"].status[0].hold is Hold.OWNED
            assert not world.watches["second"].halts
            first.thaw()

    world.run(story())
    assert world.memory.visible("credits") == [b"v"]


def test_broker_that_was_frozen_expires_no_body() -> None:
    """What it does not have yet was read by the queue's owner: no commit is refused because it seems to be gone (A)."""
    world = make_settler_world(config=SettlerConfig(max_body_bytes=0))
    journal, clock = MessageQueue(world.topics.half, 0), world.memory.clock

    async def story() -> None:
        async with world.settling("first") as first:
            ends, each = first.store.get_offsets, first.store.get_each
            old = await ends(journal)
            await world.prepare("a", Message("credits", b"k", b"v"))
            await world.settled()
            until_ms = clock.monotonic_ms() + 1_500

            async def get_offsets(queue: MessageQueue) -> QueueOffsets:
                return old if queue == journal and clock.monotonic_ms() < until_ms else await ends(queue)

            async def get_each(queue: MessageQueue, offsets: Collection[int], room: int | None = None) -> Stored:
                return {} if clock.monotonic_ms() < until_ms else await each(queue, offsets, room)

            first.store.get_offsets, first.store.get_each = get_offsets, get_each  # type: ignore[method-assign]
            await world.commit("a")
            await clock.sleep_ms(30_000)

    world.run(story())
    assert world.memory.visible("credits") == [b"v"]


@pytest.mark.parametrize("batches", [1, 2])
@in_world(make_settler_world, faults=HeldSteps)
@pytest.mark.parametrize("is_written_meanwhile", [True, False])
async def test_owner_frozen_between_its_two_inits_commits_nothing(
    world: SettlerWorld, batches: int, faults: HeldSteps, *, is_written_meanwhile: bool
) -> None:
    """Of two owners that hold one producer each, only the one that was fenced by nobody decides (D).

    `batches` of the other since its take-over: the next one uses the producer it still has, or has lost.
    `is_written_meanwhile`: the other writes once more before the frozen one does, which the end of the op topic shows.
    """
    between = faults.hold(StepKind.INIT, client="first", subject=world.topics.transactional_id(0, 1))
    async with world.settling("first") as first:
        await between.reached.wait()
        first.freeze()
        async with world.settling("second"):
            for n in range(batches):
                await world.prepare(f"a{n}", Message("credits", b"k", f"a{n}".encode()))
                await world.settled()
            writing = faults.hold(StepKind.ADD_QUEUES, client="first")
            first.thaw()
            between.release()
            await writing.reached.wait()
            if not is_written_meanwhile:
                writing.release()
                await world.memory.clock.sleep_ms(5_000)
            await world.commit("a0")
            await world.memory.clock.sleep_ms(5_000)
            writing.release()
            await world.memory.clock.sleep_ms(30_000)
    assert world.memory.visible("credits") == [b"a0"]
    positions = world.read_op().positions
    assert {position.owner for position in positions} == {"migrate", "second"}
    assert [position.s for position in positions] == sorted(position.s for position in positions)


@pytest.mark.parametrize("gone", ["position", "half message"])
@pytest.mark.parametrize("is_overtaken", [True, False], ids=["frozen meanwhile", "lost"])
def test_owner_frozen_in_its_take_over_halts_nothing(gone: str, *, is_overtaken: bool) -> None:
    """What another owner needs no more may be cleaned away by right; where there was no other one it is a loss (T)."""
    faults = HeldSteps()
    world = make_settler_world(faults=faults)
    log, clock = world.memory.cluster.log, world.memory.clock
    log.topics[world.topics.op].alter({"min.compaction.lag.ms": "0"})
    op, journal = (log.topics[name].partitions[0] for name in (world.topics.op, world.topics.half))

    async def take_over() -> None:
        async with world.settling("second"):
            await world.commit("a")
            await world.settled()
            await clock.sleep_ms(180_000)  # what has ended is forgotten
            await world.prepare("b", Message("credits", None, b"b"))
            await world.settled()

    async def story() -> None:
        async with world.settling("zero"):
            await world.prepare("a", Message("credits", None, b"a"))
            await world.settled()
        looking = faults.hold(StepKind.GET, client="first", subject=world.topics.half)
        async with world.settling("first") as first:
            await looking.reached.wait()
            first.freeze()
            end = op.maximum
            if is_overtaken:
                await take_over()
            if gone == "half message":
                journal.drop_below(1)
            elif is_overtaken:
                op.roll(clock.now_ms())
                compact(op, clock.now_ms())
            else:
                op.drop_below(end)
            first.thaw()
            looking.release()
            await clock.sleep_ms(20_000)
            assert bool(world.watches["first"].halts) is not is_overtaken
            assert (world.settlers["first"].status[0].hold is Hold.OWNED) is is_overtaken

    world.run(story())


def test_owner_that_dies_between_two_parts_of_a_read_is_succeeded_whatever_lies_between() -> None:
    """A foreign record there belongs to neither part: its append time is nobody's proof of another journal (T)."""
    faults = HeldSteps()
    world = make_settler_world(faults=faults, config=SettlerConfig(max_batch_bytes=4_000))

    async def story() -> None:
        for name in ("a", "b"):
            await world.prepare(name, Message("credits", name.encode(), name.encode() * 3_000))
        await world.commit("a")
        await world.memory.clock.sleep_ms(10)
        await world.memory.store.put_many([Message(world.topics.half, b"foreign", b"x", [], 0)])
        await world.memory.clock.sleep_ms(10)
        await world.commit("b")
        first = world.memory.start_process("first")
        running = asyncio.create_task(world.make_settler(first, "first").run_forever())
        taking, settling_a, settling_b = [faults.hold(StepKind.END, client="first") for _ in range(3)]
        for ending in (taking, settling_a):
            await ending.reached.wait()
            ending.release()
        await settling_b.reached.wait()
        first.kill()
        running.cancel()
        async with world.settling("second"):
            await world.memory.clock.sleep_ms(30_000)
            assert world.settlers["second"].status[0].hold is Hold.OWNED

    world.run(story())
    assert [value[:1] for value in world.memory.visible("credits") if value] == [b"a", b"b"]


@in_world(make_settler_world)
async def test_owner_that_is_not_told_when_it_wrote_goes_by_the_journal(
    world: SettlerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first position is written, but not known where and when: else nothing would be due until the next one (T)."""

    async def put_all(self: MemoryBatchWriter, batch: AtomicBatch) -> BatchResult:
        return BatchResult((await put(self, batch)).receipts, None, -1)

    put = MemoryBatchWriter.put_all
    async with world.settling("first"):
        appended_ms = (await world.prepare("a", Message("orders", b"k", b"v"))).stored_ms
        await world.settled()
    monkeypatch.setattr(MemoryBatchWriter, "put_all", put_all)
    await world.memory.clock.sleep_ms(60_000)
    async with world.settling("second"):
        await world.memory.clock.sleep_ms(20_000)
        known_ms = world.observer.owners[0].now_ms()
        assert appended_ms + 10_000 < known_ms <= world.memory.clock.now_ms()


@in_world(make_settler_world)
async def test_owner_whose_reader_hears_nothing_takes_its_queue_over_anew(
    world: SettlerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client can stay deaf for ever; what it does not give is there, as everybody else sees (T)."""
    deaf = list[MemoryQueueReader]()
    get = MemoryQueueReader.get

    async def get_nothing(self: MemoryQueueReader, max_count: int, max_wait_ms: int) -> GetResult:
        if not deaf:
            deaf.append(self)  # the one that follows the journal: there is no other now
        if self is deaf[0]:
            await world.memory.clock.sleep_ms(max_wait_ms)
            return GetResult(GetStatus.NO_NEW_MSG, (), self._offset, 0, 0)
        return await get(self, max_count, max_wait_ms)

    async with world.settling():
        await world.prepare("a", Message("credits", b"k", b"v"))
        await world.settled()
        monkeypatch.setattr(MemoryQueueReader, "get", get_nothing)
        await world.memory.clock.sleep_ms(1_000)
        await world.commit("a")
        await world.memory.clock.sleep_ms(180_000)
        assert world.memory.visible("credits") == [b"v"]
        assert world.settlers["settler"].status[0].take_overs == 2
        await world.memory.clock.sleep_ms(600_000)
        assert world.settlers["settler"].status[0].take_overs == 2, "one that has nothing to read is not deaf"

"""Bodies of pending transactions: kept within a budget, else read again, from whichever log has them."""

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from bridge.core import transition
from bridge.core.check_rules import CheckTimes
from bridge.core.errors import StoreError
from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.core.properties import count_stored_bytes
from bridge.core.record import HalfMessage
from bridge.core.record_codec import decode_record
from bridge.core.transaction import Transaction
from bridge.core.transition import LogPosition
from bridge.settler.bodies import Bodies
from bridge.store.memory.link import Fate, StepKind
from bridge.store.memory.store import MemoryStore
from bridge.store.message_store import LoadedHalf
from tests.support.memory_faults import ScriptedFaults
from tests.support.settler_world import SettlerWorld, make_settler_world

KIB = 1_024


class WeighingStore(MemoryStore):
    """`most`: what weighed most of what was read at once."""

    most = 0

    async def get_each(
        self, queue: MessageQueue, offsets: Collection[int], max_bytes: int | None = None
    ) -> dict[int, StoredMessage]:
        found = await super().get_each(queue, offsets, max_bytes)
        self.most = max(self.most, sum(map(count_stored_bytes, found.values())))
        return found


class Shelf:
    """A journal with half messages of `sizes` kibibytes, named by their place."""

    def __init__(self, *sizes: int, faults: ScriptedFaults | None = None) -> None:
        self.world: SettlerWorld = make_settler_world(**({} if faults is None else {"faults": faults}))
        self.sizes = sizes
        self.stored: list[StoredMessage] = []
        cluster = self.world.memory.cluster
        self.store = WeighingStore(cluster, cluster.connect("owner"))

    @property
    def journal(self) -> MessageQueue:
        return MessageQueue(self.world.topics.half, 0)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            for place, size in enumerate(self.sizes):
                await self.world.prepare(str(place), Message("orders", b"k", b"x" * KIB * size))
            self.stored = list((await self.world.memory.store.get(self.journal, 0, 100)).messages)
            await story

        self.world.run(whole())

    def make(self, max_bytes: int = 10**9, max_load_bytes: int = 10**9) -> Bodies:
        return Bodies(self.store, self.world.topics, 0, max_bytes, max_load_bytes)

    def half(self, place: int) -> HalfMessage:
        half = decode_record(self.stored[place])
        assert isinstance(half, HalfMessage)
        return half

    def transactions(self, *places: int) -> list[Transaction]:
        return [
            transition.prepare(self.half(place), LogPosition(place, 0), 0, CheckTimes()).transaction for place in places
        ]

    def bytes_of(self, *places: int) -> int:
        return sum(count_stored_bytes(self.stored[place]) for place in places)

    def keep(self, bodies: Bodies, *places: int) -> None:
        for place in places:
            bodies.keep(LoadedHalf.decode(self.half(place), self.stored[place]))

    def ids(self, places: Sequence[int]) -> list[str]:
        return [self.world.id_of(str(place)) for place in places]


def test_budget_counts_what_is_held() -> None:
    """What fits is kept, once; what is dropped makes room; what was never kept is none."""
    shelf = Shelf(4, 4, 4)

    async def story() -> None:
        bodies = shelf.make(shelf.bytes_of(0, 1))
        shelf.keep(bodies, 0, 0, 1, 2)
        assert (await bodies.load(shelf.transactions(0, 1, 2), shelf.bytes_of(0, 1))).asked == 2
        assert bodies.held_bytes == shelf.bytes_of(0, 1)
        bodies.drop(shelf.transactions(0, 0, 2))
        assert bodies.held_bytes == shelf.bytes_of(1)
        shelf.keep(bodies, 2)
        assert bodies.held_bytes == shelf.bytes_of(1, 2)

    shelf.run(story())


@pytest.mark.parametrize("held", [(), (0, 1), (1, 3), (0, 1, 2, 3)])
def test_bodies_are_the_same_from_memory_and_from_the_journal(held: Sequence[int]) -> None:
    """Those that are held cost no read."""
    faults = ScriptedFaults()
    shelf = Shelf(1, 2, 1, 2, faults=faults)

    async def story() -> None:
        bodies = shelf.make()
        shelf.keep(bodies, *held)
        faults.steps.clear()
        found, asked = await bodies.load(shelf.transactions(0, 1, 2, 3))
        assert (sorted(found), asked) == (sorted(shelf.ids(range(4))), 4)
        for place in range(4):
            loaded = found[shelf.world.id_of(str(place))]
            assert (loaded.half, loaded.stored) == (shelf.half(place), shelf.stored[place])
            assert [message.value for message in loaded.messages] == [b"x" * KIB * shelf.sizes[place]]
        assert (StepKind.GET in [step.kind for step in faults.steps]) == (len(held) < 4)

    shelf.run(story())


@pytest.mark.parametrize("held", [(), (0, 2, 4), tuple(range(8))])
@pytest.mark.parametrize("kib", [1, 20, 45, 100])
def test_no_more_is_given_out_than_may_be_at_once(kib: int, held: Sequence[int]) -> None:
    """The first of them, of one at least, however large; nobody knows before how large those in the log are."""
    shelf = Shelf(4, 30, 4, 4, 60, 1, 1, 1)

    async def story() -> None:
        for own, limit in ((kib, None), (50, kib)):  # in KiB: of the queue, and of whoever asks
            bodies, most = shelf.make(10**9, own * KIB), min(own, kib) * KIB
            shelf.keep(bodies, *held)
            left, rounds = list(range(8)), 0
            while left:
                found, asked = await bodies.load(shelf.transactions(*left), limit and limit * KIB)
                taken, left = left[:asked], left[asked:]
                assert sorted(found) == sorted(shelf.ids(taken))
                assert asked == 1 or (asked > 1 and shelf.bytes_of(*taken) <= most)
                if left and len(held) == 8:
                    assert shelf.bytes_of(*taken, left[0]) > most
                rounds += 1
            largest = max(shelf.bytes_of(place) for place in range(8) if place not in held or len(held) == 8)
            assert shelf.store.most < most + largest, "read at once"
            assert rounds <= (3 if most == 100 * KIB else 8)

    shelf.run(story())


def test_body_that_the_journal_has_lost_is_the_parked_copy() -> None:
    """What neither has is left out, and so is a record of somebody else in its place."""
    shelf = Shelf(1, 2, 3)

    async def story() -> None:
        world = shelf.world
        async with world.settling():
            await world.settled()
            world.observer.owners[0].park(dict.fromkeys(shelf.ids([0, 1]), "MAX_CHECKS"))
            while len(world.read_op().last) < 2:
                await world.memory.clock.sleep_ms(20)
        parked = [world.op_of(str(place)).transaction for place in (0, 1)]
        bodies = shelf.make()
        world.memory.cluster.log.topics[world.topics.half].partitions[0].drop_below(1)
        third = shelf.transactions(2)[0]
        found, asked = await bodies.load([*parked, third])
        assert asked == 3
        assert {i: loaded.messages[0].value for i, loaded in found.items()} == {
            world.id_of(str(place)): b"x" * KIB * (place + 1) for place in range(3)
        }
        lost, elsewhere = replace(parked[0], parked=None), replace(third, half=1)
        astray = replace(parked[0], parked=parked[1].parked)
        assert await bodies.load([lost, elsewhere]) == ({}, 2)
        assert await bodies.load([astray]) == ({}, 1)
        await bodies.load(parked[:1])  # so that both seem to fit
        found, asked = await bodies.load(parked, 3 * KIB)
        assert (sorted(found), asked) == (shelf.ids([0]), 1)

    shelf.run(story())


def test_records_that_are_no_half_messages_are_left_out() -> None:
    """Rubbish, an end, or a newer version where a half message should be."""
    shelf = Shelf(1)

    async def story() -> None:
        world, half = shelf.world, shelf.journal
        await world.memory.store.put(half, Message(half.topic, b"x", b"rubbish"))
        await world.commit("0")
        transactions = [replace(shelf.transactions(0)[0], half=offset) for offset in (1, 2)]
        for transaction in transactions:
            assert await shelf.make().load([transaction]) == ({}, 1)
        assert list((await shelf.make().load(shelf.transactions(0))).found) == shelf.ids([0])

    shelf.run(story())


def test_log_that_cannot_be_read_is_no_lost_body() -> None:
    """An error, and nothing is given out."""
    faults = ScriptedFaults()
    shelf = Shelf(1, faults=faults)

    async def story() -> None:
        faults.give(StepKind.GET, Fate(answer_ms=None))
        with pytest.raises(StoreError):
            await shelf.make().load(shelf.transactions(0))
        await asyncio.sleep(0)

    shelf.run(story())

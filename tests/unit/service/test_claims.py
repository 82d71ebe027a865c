"""Claims of due checks: handed out current, waited for together, given back when they cannot be shown."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from bridge.core.check_rules import CheckCalls, CheckMode, GroupSettings
from bridge.core.errors import StoreTimeout
from bridge.core.message import MessageQueue, StoredMessage
from bridge.core.record import Resolution
from bridge.core.transaction import MessageSummary, TransactionView
from bridge.directory import PullCheck
from bridge.node import Node
from bridge.service.claims import ClaimCall, ClaimedCheck, ClaimsConfig, ClaimService
from bridge.service.contract import EndCall, Prepared, RefusalCode, Refused
from bridge.service.journal import Deadline
from bridge.service.operate import Who
from bridge.service.reads import BodyReader, CurrentRead, CurrentReads
from bridge.sql.directory import SqlDirectory
from bridge.store.memory.store import MemoryStore
from tests.support.check_fakes import MemoryPullCheckStore
from tests.support.service_world import GROUP, ServiceWorld, make_service_world
from tests.support.virtual_time import in_world

PULL = GroupSettings(calls=CheckCalls(mode=CheckMode.PULL))
WHO = Who("ada", "why")
LEASE_MS = 60_000


class CountingBoard(MemoryPullCheckStore):
    """Counts looks; the queue is `ann`'s."""

    def __init__(self) -> None:
        super().__init__(owners={0: "ann"})
        self.looks = 0

    async def count_free(self, groups: Collection[str]) -> Mapping[str, int]:
        self.looks += 1
        return await super().count_free(groups)

    async def lay(self, *ids: str, number: int = 1) -> None:
        """As the checker does when they are due."""
        await self.put(0, "ann", 0, [PullCheck(id_, GROUP, number, due_ms) for due_ms, id_ in enumerate(ids)])

    def free(self) -> list[str]:
        """What nobody holds."""
        return [lying.check.transaction_id for lying in self.lying.values() if not lying.lease_until_ms]


class StoreThatGoes(MemoryStore):
    """`is_down`: no record can be read; `is_slow`: whoever reads one waits for ever."""

    is_down = is_slow = False

    async def get_each(
        self, queue: MessageQueue, offsets: Collection[int], max_bytes: int | None = None
    ) -> dict[int, StoredMessage]:
        if self.is_down:
            raise StoreTimeout("no leader")
        if self.is_slow:
            await asyncio.Event().wait()
        return await super().get_each(queue, offsets, max_bytes)


class SizedReads(CurrentReads):
    """Values are as large as said here."""

    def __init__(self, reads: CurrentReads, sizes: Mapping[str, int]) -> None:
        self._reads = reads
        self._sizes = sizes

    async def find(self, ids: Collection[str], deadline: Deadline) -> CurrentRead[Mapping[str, TransactionView]]:
        read = await self._reads.find(ids, deadline)
        views = {
            i: replace(view, messages=(MessageSummary("orders", None, self._sizes[i], -1, None),))
            for i, view in (read.value or {}).items()
        }
        return CurrentRead(read.currency, views)


def make_claims(
    world: ServiceWorld, api: Node, board: CountingBoard, config: ClaimsConfig | None = None
) -> ClaimService:
    bodies = BodyReader(api.backing.store, world.topics)
    return ClaimService(board, api.directory, api.reads, bodies, world.settlers.memory.clock, config)


def call(wait_ms: int = 0, limit: int = 10, group: str = GROUP) -> ClaimCall:
    return ClaimCall(group, limit, wait_ms, LEASE_MS, lambda: True)


def ids_of(claimed: Sequence[ClaimedCheck] | Refused) -> list[str]:
    assert not isinstance(claimed, Refused), claimed
    return [check.view.transaction_id for check in claimed]


async def prepare(world: ServiceWorld, api: Node, count: int) -> list[str]:
    """So many transactions of the group, which fetches its checks."""
    await api.groups.put(GROUP, PULL, [], WHO)
    prepared = await api.transactions.prepare([world.call(b"v%d" % number) for number in range(count)])
    return [each.transaction_id for each in prepared if isinstance(each, Prepared)]


@in_world(make_service_world)
async def test_check_is_handed_out_whole_and_to_one(world: ServiceWorld) -> None:
    """With what the transaction was prepared with; nobody else gets it before its lease is over."""
    board = CountingBoard()
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        (transaction_id,) = await prepare(world, api, 1)
        claims = make_claims(world, api, board)
        await board.lay(transaction_id)
        claimed = await claims.claim(call())
        assert not isinstance(claimed, Refused)
        ((view, number, messages, _),) = claimed
        assert (view.transaction_id, view.group, number) == (transaction_id, GROUP, 1)
        assert [message.value for message in messages] == [b"v0"]
        assert await claims.claim(call()) == []


@in_world(make_service_world)
async def test_what_ended_or_was_counted_is_removed_instead(world: ServiceWorld) -> None:
    """As current as a GET: the end was acknowledged before the claim, whatever the board still says (K)."""
    board = CountingBoard()
    async with world.serving() as api, world.settlers.settling(), world.projecting(interval_ms=700):
        ended, other, left = await prepare(world, api, 3)
        await board.lay(ended, left, "0" * 28)
        await board.lay(other, number=2)
        await api.transactions.end([EndCall(ended, Resolution.COMMIT)])
        assert ids_of(await make_claims(world, api, board).claim(call())) == [left]
        assert list(board.lying) == [left]


@in_world(make_service_world)
async def test_waiting_claims_share_one_look(world: ServiceWorld) -> None:
    """A hundred wait 10 s: two looks a second; what comes goes to who came first, as many as it can serve."""
    board = CountingBoard()
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        first, second, third = await prepare(world, api, 3)
        claims = make_claims(world, api, board)
        waiting = [asyncio.ensure_future(claims.claim(call(10_000, limit=2))) for _ in range(100)]
        await world.sleep(5_000)
        assert board.looks <= 100 + 11
        await board.lay(first, second, third)
        await world.sleep(1_000)
        assert [task.done() for task in waiting[:3]] == [True, True, False]
        assert [ids_of(task.result()) for task in waiting[:2]] == [[first, second], [third]]
        await world.sleep(5_000)
        assert [ids_of(task.result()) for task in waiting[2:]] == [[]] * 98
        looks = board.looks
        await world.sleep(5_000)
        assert board.looks == looks


@in_world(make_service_world)
async def test_caller_that_hung_up_holds_nothing(world: ServiceWorld) -> None:
    """Its claim ends at the next look, before something comes."""
    board = CountingBoard()
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        (transaction_id,) = await prepare(world, api, 1)
        is_there = [True]
        gone = call(60_000)._replace(is_wanted=lambda: is_there[0])
        waiting = asyncio.ensure_future(make_claims(world, api, board).claim(gone))
        await world.sleep(1_000)
        is_there[0] = False
        await board.lay(transaction_id)
        await world.sleep(600)
        assert ids_of(waiting.result()) == []
        assert board.free() == [transaction_id]


@in_world(make_service_world)
async def test_caller_that_hangs_up_while_its_checks_are_read_holds_none(world: ServiceWorld) -> None:
    """They were leased to nobody, for up to an hour; and nobody whose right was taken just then is shown them."""
    board = CountingBoard()
    async with world.serving() as api, world.settlers.settling():
        async with world.projecting():
            (transaction_id,) = await prepare(world, api, 1)
        await board.lay(transaction_id)
        is_there = [True]
        gone = call()._replace(is_wanted=lambda: is_there[0])
        claiming = asyncio.ensure_future(make_claims(world, api, board).claim(gone))
        await world.sleep(100)  # it has claimed, and waits for the projection
        assert board.free() == []
        is_there[0] = False
        async with world.projecting():
            assert ids_of(await claiming) == []
        assert board.free() == [transaction_id]


@in_world(make_service_world)
async def test_too_many_waiting_are_sent_away(world: ServiceWorld) -> None:
    """503 at once: those that wait must not fill the process (82)."""
    board = CountingBoard()
    async with world.serving() as api:
        await api.groups.put(GROUP, PULL, [], WHO)
        claims = make_claims(world, api, board, ClaimsConfig(max_waiting=2))
        waiting = [asyncio.ensure_future(claims.claim(call(10_000))) for _ in range(2)]
        await world.sleep(100)
        refused = await claims.claim(call(10_000))
        assert isinstance(refused, Refused)
        assert (refused.code, refused.retry_after_s) == (RefusalCode.UNAVAILABLE, 1)
        assert await claims.claim(call(0)) == []
        await world.sleep(10_000)
        assert all(task.done() for task in waiting)


@in_world(make_service_world)
async def test_many_claims_of_one_group_keep_out_no_other(world: ServiceWorld) -> None:
    """A service with hundreds of instances fills all places that there are (B): its oldest claim ends for another's."""
    board = CountingBoard()
    async with world.serving() as api:
        for group in (GROUP, "other"):
            await api.groups.put(group, PULL, [], WHO)
        claims = make_claims(world, api, board, ClaimsConfig(max_waiting=2))
        oldest, younger = [asyncio.ensure_future(claims.claim(call(10_000))) for _ in range(2)]
        await world.sleep(100)
        other = asyncio.ensure_future(claims.claim(call(10_000)._replace(group="other")))
        await world.sleep(100)
        assert oldest.result() == []
        assert not younger.done()
        assert not other.done()
        for group in (GROUP, "other"):
            assert isinstance(await claims.claim(call(10_000)._replace(group=group)), Refused)
        await world.sleep(10_000)
        assert (younger.result(), other.result()) == ([], [])


@in_world(make_service_world)
async def test_claims_of_a_door_are_not_counted_among_those_that_wait(world: ServiceWorld) -> None:
    """It has one for each group with a connection: a few hundred of these would send away whoever fetches checks, and
    be sent away themselves, with a look at the database for each every two seconds."""
    board = CountingBoard()
    async with world.serving() as api:
        await api.groups.put(GROUP, PULL, [], WHO)
        claims = make_claims(world, api, board, ClaimsConfig(max_waiting=2))
        door = call(10_000)._replace(is_counted=False)
        waiting = [asyncio.ensure_future(claims.claim(one)) for one in (*[door] * 5, call(9_000), call(10_000))]
        await world.sleep(100)
        waiting.append(asyncio.ensure_future(claims.claim(door)))
        await world.sleep(100)
        assert not any(task.done() for task in waiting)
        assert isinstance(await claims.claim(call(10_000)), Refused)
        await world.sleep(9_000)
        assert await claims.claim(call(500)) == []
        await world.sleep(1_000)
        assert all(task.result() == [] for task in waiting)


@in_world(make_service_world)
async def test_database_away_is_told_and_nothing_lost(world: ServiceWorld) -> None:
    """503, while waiting too; the projection behind likewise, and then what was claimed is free again."""
    async with world.serving() as api, world.settlers.settling():
        (transaction_id,) = await prepare(world, api, 1)
        claims = api.claims
        waiting = asyncio.ensure_future(claims.claim(call(10_000)))
        await world.sleep(200)
        world.database.is_down = True
        await world.sleep(500)
        refused = waiting.result()
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.UNAVAILABLE
        assert isinstance(await claims.claim(call()), Refused)
        world.database.is_down = False
        board = CountingBoard()
        await board.lay(transaction_id)
        behind = await make_claims(world, api, board).claim(call())
        assert isinstance(behind, Refused)
        assert behind.code is RefusalCode.PROJECTION_BEHIND
        assert board.free() == [transaction_id]


@in_world(make_service_world)
async def test_journal_away_gives_the_checks_back(world: ServiceWorld) -> None:
    """503, and the next claim gets them."""
    board = CountingBoard()
    cluster = world.settlers.memory.cluster
    store = StoreThatGoes(cluster, cluster.connect("claims"))
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        (transaction_id,) = await prepare(world, api, 1)
        await world.sleep(1_000)
        await board.lay(transaction_id)
        claims = ClaimService(
            board, api.directory, api.reads, BodyReader(store, world.topics), world.settlers.memory.clock
        )
        store.is_down = True
        refused = await claims.claim(call())
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.UNAVAILABLE
        assert board.free() == [transaction_id]
        store.is_down = False
        assert ids_of(await claims.claim(call())) == [transaction_id]


@in_world(make_service_world)
async def test_claim_takes_as_many_as_fit_into_an_answer(world: ServiceWorld) -> None:
    """All values together count; one that is too large for any answer goes alone, and the rest is free for others."""
    board = CountingBoard()
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        ids = await prepare(world, api, 6)
        sizes = dict(zip(ids, [4, 3, 3, 11, 1, 9], strict=True))
        reads, bodies = SizedReads(api.reads, sizes), BodyReader(api.backing.store, world.topics)
        clock, config = world.settlers.memory.clock, ClaimsConfig(max_bytes=10)
        claims = ClaimService(board, api.directory, reads, bodies, clock, config)
        await board.lay(*ids)
        for taken in (ids[:3], ids[3:4], ids[4:]):
            assert ids_of(await claims.claim(call())) == taken
        assert board.free() == []


@in_world(make_service_world)
async def test_caller_that_goes_while_bodies_are_read_holds_nothing(world: ServiceWorld) -> None:
    """His checks are free at once, not when their check lease is over."""
    board = CountingBoard()
    store = StoreThatGoes(world.settlers.memory.cluster, world.settlers.memory.cluster.connect("claims"))
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        (transaction_id,) = await prepare(world, api, 1)
        await world.sleep(1_000)
        await board.lay(transaction_id)
        clock = world.settlers.memory.clock
        bodies = BodyReader(store, world.topics)
        claims = ClaimService(board, api.directory, api.reads, bodies, clock)
        store.is_slow = True
        claiming = asyncio.ensure_future(claims.claim(call()))
        await world.sleep(100)
        assert board.free() == []
        claiming.cancel()
        await asyncio.wait([claiming])
        assert board.free() == [transaction_id]


@in_world(make_service_world)
async def test_mode_that_another_process_changed_counts(world: ServiceWorld) -> None:
    """Refused for groups that nobody created or that are called; a change of a moment ago is looked up."""
    board = CountingBoard()
    async with world.serving() as api:
        claims = make_claims(world, api, board)
        other = SqlDirectory(world.database, world.settlers.memory.clock)
        for settings, code in ((None, "unknown-producer-group"), (GroupSettings(), "not-pull-mode")):
            if settings is not None:
                await other.put_group(GROUP, settings, [])
            refused = await claims.claim(call())
            assert isinstance(refused, Refused)
            assert refused.code.value == code
        await other.put_group(GROUP, PULL, [])
        assert await claims.claim(call()) == []


@in_world(make_service_world)
async def test_checks_that_nobody_can_be_asked_are_given_back(world: ServiceWorld) -> None:
    """At once, and with nothing used up: the next claim gets the same check."""
    board = CountingBoard()
    async with world.serving() as api, world.settlers.settling(), world.projecting():
        (transaction_id,) = await prepare(world, api, 1)
        claims = make_claims(world, api, board)
        await board.lay(transaction_id)
        first = await claims.claim(call())
        assert not isinstance(first, Refused)
        await claims.give_back(first)
        again = await claims.claim(call())
        assert not isinstance(again, Refused)
        assert [(one.view.transaction_id, one.number) for one in again] == [(transaction_id, 1)]

"""Pull mode in the checker: due checks lie on the board as long as they are to be asked, and no longer."""

import asyncio
from collections.abc import Sequence

import pytest
import structlog

from bridge.core.check_rules import CheckCalls, CheckMode, CheckTimes
from bridge.core.transaction import Transaction
from bridge.directory import LEASE_SLACK_MS
from tests.unit.checker.world import FIRST_MS, World

PULL = CheckCalls(mode=CheckMode.PULL)
INTERVAL_MS = 30_000
LEASE_MS = 60_000
MOMENT_MS = 300  # until the board has been kept
MOST_LYING = 10_000


@pytest.fixture
def pulling(world: World) -> World:
    """A world whose group fetches its checks."""
    world.add_group("shop", calls=PULL)
    return world


async def claim(world: World, limit: int = 100) -> list[tuple[str, int]]:
    """Id and number of what a claimer gets."""
    return [(check.transaction_id, check.check_number) for check in await world.board.claim("shop", limit, LEASE_MS)]


def ids(transactions: Sequence[Transaction], number: int = 1) -> list[tuple[str, int]]:
    return [(transaction.transaction_id, number) for transaction in transactions]


async def test_due_checks_lie_ready_and_none_before(pulling: World) -> None:
    """Not before the first due time; then each once, the longest due first; no endpoint is called (K)."""
    due = [pulling.prepare("shop", delay_ms=FIRST_MS + n) for n in range(3)]
    await pulling.pass_ms(FIRST_MS - 1)
    assert await claim(pulling) == []
    await pulling.pass_ms(MOMENT_MS)
    assert await claim(pulling) == ids(due)
    assert await claim(pulling) == []
    assert pulling.service.counts.asked == 3


async def test_nothing_is_laid_before_the_queue_is_read(pulling: World) -> None:
    """While the settler lags, nobody is asked about what may have ended (K)."""
    pulling.owners[0].is_lagging = True
    pulling.prepare("shop")
    await pulling.pass_ms(FIRST_MS + 10_000)
    assert await claim(pulling) == []
    pulling.owners[0].is_lagging = False
    await pulling.pass_ms(1_000)
    assert len(await claim(pulling)) == 1


async def test_ended_check_is_taken_away(pulling: World) -> None:
    """Whether somebody holds it or not."""
    first, second = pulling.prepare("shop"), pulling.prepare("shop")
    await pulling.pass_ms(FIRST_MS + MOMENT_MS)
    assert await claim(pulling, 1) == ids([first])
    pulling.end(first, second)
    await pulling.pass_ms(MOMENT_MS)
    assert pulling.board.lying == {}


async def test_counted_unknown_brings_the_next_number_after_the_interval(pulling: World) -> None:
    """The answered check is gone at once; the next one is another, and free."""
    transaction = pulling.prepare("shop")
    await pulling.pass_ms(FIRST_MS + MOMENT_MS)
    assert await claim(pulling) == ids([transaction])
    pulling.count(transaction)
    await pulling.pass_ms(INTERVAL_MS - MOMENT_MS)
    assert pulling.board.lying == {}
    await pulling.pass_ms(2 * MOMENT_MS)
    assert await claim(pulling) == ids([transaction], 2)


async def test_no_answer_uses_nothing_up(pulling: World) -> None:
    """The same number lies there for whoever comes when the check lease is over; told as a round without answer."""
    transaction = pulling.prepare("shop")
    await pulling.pass_ms(FIRST_MS + MOMENT_MS)
    assert await claim(pulling) == ids([transaction])
    await pulling.pass_ms(LEASE_MS - 1_000)
    assert await claim(pulling) == []
    await pulling.pass_ms(LEASE_SLACK_MS + 2_000)
    assert await claim(pulling) == ids([transaction])
    assert pulling.failures() == ["not-answered", "not-claimed"]
    assert pulling.ends() == []


async def test_nobody_comes(pulling: World) -> None:
    """One alert and a note for each interval; parked at the end of its life, never for its checks (74)."""
    pulling.add_group("shop", times=CheckTimes(max_lifetime_ms=100_000, max_checks=1), calls=PULL)
    with structlog.testing.capture_logs() as logs:
        transaction = pulling.prepare("shop")
        await pulling.pass_ms(FIRST_MS + 2 * INTERVAL_MS + 1_000)
        assert pulling.failures() == ["not-claimed"] * 2
        assert pulling.owners[0].parked == {}
        await pulling.pass_ms(100_000)
    assert pulling.owners[0].parked == {transaction.transaction_id: "NO_ENDPOINT"}
    assert [log["event"] for log in logs if log["log_level"] == "error"] == ["producer_group_claims_no_checks"]


async def test_life_that_is_over_gets_a_whole_interval(pulling: World) -> None:
    """After a take-over everybody has a chance to fetch it before it is parked (41)."""
    pulling.add_group("shop", times=CheckTimes(max_lifetime_ms=1_000), calls=PULL)
    old = pulling.make("shop", delay_ms=0)
    await pulling.pass_ms(60_000)
    pulling.take_queue(0, [old])
    await pulling.pass_ms(INTERVAL_MS - MOMENT_MS)
    assert await claim(pulling) == ids([old])
    assert pulling.owners[0].parked == {}
    await pulling.pass_ms(2 * MOMENT_MS)
    assert pulling.owners[0].parked == {old.transaction_id: "MAX_LIFE"}


async def test_database_away_loses_nothing(pulling: World) -> None:
    """Laid when it is back; a check whose transaction ended meanwhile is taken away then (66)."""
    first = pulling.prepare("shop")
    await pulling.pass_ms(FIRST_MS + MOMENT_MS)
    pulling.board.is_down = True
    second = pulling.prepare("shop")
    pulling.end(first)
    await pulling.pass_ms(FIRST_MS + 20_000)
    assert [found.check.transaction_id for found in pulling.board.lying.values()] == [first.transaction_id]
    pulling.board.is_down = False
    await pulling.pass_ms(10_000)
    assert await claim(pulling) == ids([second])
    assert second.check_times == 0
    assert pulling.failures() == []


async def test_one_groups_board_does_not_hold_up_anothers_endpoints(pulling: World) -> None:
    """A database that hangs is the pulling group's own (B)."""
    pulling.add_group("bank", "https://bank.example/")
    pulling.board.put_slowly = asyncio.Event()
    pulling.prepare("shop")
    pulling.prepare("bank")
    await pulling.pass_ms(FIRST_MS + MOMENT_MS)
    assert [seen.url for seen in pulling.calls] == ["https://bank.example/"]
    pulling.board.put_slowly.set()
    await pulling.pass_ms(MOMENT_MS)


async def test_what_ends_while_it_is_laid_is_taken_away(pulling: World) -> None:
    """The settler speaks while the database works."""
    gone, stays = pulling.prepare("shop"), pulling.prepare("shop")
    pulling.board.put_slowly = asyncio.Event()
    await pulling.pass_ms(FIRST_MS + MOMENT_MS)
    assert len(pulling.board.lying) == 2
    pulling.end(gone)
    pulling.board.put_slowly.set()
    await pulling.pass_ms(2 * MOMENT_MS)
    assert list(pulling.board.lying) == [stays.transaction_id]


async def test_released_queue_gives_nothing_out(pulling: World) -> None:
    """Its next owner asks; what somebody holds stays held for that one."""
    held, free = pulling.prepare("shop"), pulling.prepare("shop")
    await pulling.pass_ms(FIRST_MS + MOMENT_MS)
    assert await claim(pulling, 1) == ids([held])
    pulling.service.queue_released(0)
    await pulling.pass_ms(MOMENT_MS)
    assert list(pulling.board.lying) == [held.transaction_id]
    assert await claim(pulling) == []
    pulling.take_queue(0, [held, free])
    await pulling.pass_ms(MOMENT_MS)
    assert await claim(pulling) == ids([free])


async def test_queue_released_while_it_is_laid_leaves_nothing(pulling: World) -> None:
    """The put was done, and nobody of us looks after it any more."""
    pulling.prepare("shop")
    pulling.board.put_slowly = asyncio.Event()
    await pulling.pass_ms(FIRST_MS + MOMENT_MS)
    pulling.service.queue_released(0)
    pulling.board.put_slowly.set()
    await pulling.pass_ms(2 * MOMENT_MS)
    assert pulling.board.lying == {}


async def test_queue_that_another_took_is_taken_again_while_it_is_ours(pulling: World) -> None:
    """A frozen settler that woke up and took it did so in vain; ours hears of it and lays anew."""
    transaction = pulling.prepare("shop")
    await pulling.pass_ms(FIRST_MS + MOMENT_MS)
    await pulling.board.take_queue(0, "frozen")
    await pulling.pass_ms(INTERVAL_MS + 10_000)
    assert await claim(pulling) == ids([transaction])


async def test_ticks_are_written_only_while_something_lies_there(pulling: World) -> None:
    """Once a second; after a pause the clock goes on slowly, so that no check lease is over at once."""
    await pulling.pass_ms(10_000)
    assert pulling.board.ticks_written == []
    transaction = pulling.prepare("shop")
    await pulling.pass_ms(FIRST_MS + 5_000)
    assert 4 <= len(pulling.board.ticks_written) <= 6
    before_ms = pulling.board.ticks[0]
    pulling.board.is_down = True
    await pulling.pass_ms(60_000)
    pulling.board.is_down = False
    await pulling.pass_ms(5_000)
    assert 3_000 <= pulling.board.ticks[0] - before_ms <= LEASE_SLACK_MS + 5_000
    pulling.end(transaction)
    await pulling.pass_ms(MOMENT_MS)
    written = len(pulling.board.ticks_written)
    await pulling.pass_ms(10_000)
    assert len(pulling.board.ticks_written) == written


async def test_closing_lets_the_queues_go(pulling: World) -> None:
    """SIGTERM: the next owner finds what is held, and no more."""
    pulling.prepare("shop")
    await pulling.pass_ms(FIRST_MS + MOMENT_MS)
    closing = asyncio.ensure_future(pulling.service.close())
    await pulling.pass_ms(5_000)
    assert closing.done()
    assert (pulling.board.lying, pulling.board.owners) == ({}, {0: ""})


async def test_board_has_a_limit_for_a_group(pulling: World) -> None:
    """What finds no room waits without being counted as asked, and comes when there is room; others go on (B)."""
    pulling.add_group("bank", calls=PULL)
    mine = [pulling.prepare("shop") for _ in range(MOST_LYING + 2)]
    pulling.prepare("bank")
    await pulling.pass_ms(FIRST_MS + MOMENT_MS)
    assert len(await pulling.board.claim("bank", 10, LEASE_MS)) == 1
    assert await claim(pulling, 2 * MOST_LYING) == ids(mine[:MOST_LYING])
    pulling.end(*mine[:2])
    await pulling.pass_ms(INTERVAL_MS)
    assert await claim(pulling, 2 * MOST_LYING) == ids(mine[MOST_LYING:])
    assert pulling.service.counts.asked == MOST_LYING + 3


async def test_group_that_fetches_no_more_is_called(pulling: World) -> None:
    """A put changes the mode for the next round; what lies there is taken away when it is answered."""
    transaction = pulling.prepare("shop")
    await pulling.pass_ms(FIRST_MS + MOMENT_MS)
    pulling.add_group("shop", "https://shop.example/")
    await pulling.pass_ms(INTERVAL_MS)
    assert [seen.ids for seen in pulling.calls] == [[transaction.transaction_id]]
    pulling.end(transaction)
    await pulling.pass_ms(MOMENT_MS)
    assert pulling.board.lying == {}

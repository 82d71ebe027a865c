"""Notes about rounds without answer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from bridge.directory import Endpoint, ProducerGroup, UnansweredRound
from checker.call import CheckCounts
from checker.context import RoundRecorder
from tests.support.check_fakes import MemoryDirectory
from tests.support.virtual_time import VirtualClock

URL = "https://a.example/"


@dataclass
class FlakyDirectory(MemoryDirectory):
    """A directory whose database may be down."""

    is_down: bool = False

    async def record_rounds(self, rounds: Sequence[UnansweredRound]) -> None:
        if self.is_down:
            raise OSError("no database")
        await super().record_rounds(rounds)


def make_round(number: int) -> UnansweredRound:
    return UnansweredRound(f"{number}", "shop", number, "timeout", URL)


def make_recorder() -> tuple[RoundRecorder, FlakyDirectory, CheckCounts, VirtualClock]:
    directory = FlakyDirectory({"shop": ProducerGroup("shop", endpoints=(Endpoint(URL),))})
    counts, clock = CheckCounts(), VirtualClock()
    return RoundRecorder(directory, clock, counts), directory, counts, clock


async def test_written_in_batches_in_their_order() -> None:
    """At most a thousand at once."""
    recorder, directory, _, _ = make_recorder()
    recorder.add([make_round(number) for number in range(2_500)])
    assert [await recorder.run_once() for _ in range(4)] == [1_000, 1_000, 500, 0]
    assert [r.at_ms for r in directory.rounds] == list(range(2_500))


async def test_what_could_not_be_written_is_kept_in_its_order() -> None:
    """The database comes back."""
    recorder, directory, _, _ = make_recorder()
    directory.is_down = True
    recorder.add([make_round(number) for number in range(3)])
    with pytest.raises(OSError, match="no database"):
        await recorder.run_once()
    recorder.add([make_round(3)])
    directory.is_down = False
    await recorder.run_once()
    assert [r.at_ms for r in directory.rounds] == [0, 1, 2, 3]


async def test_the_oldest_are_dropped_when_too_many_wait() -> None:
    """Memory is bounded: they are for people to look at."""
    recorder, directory, _, _ = make_recorder()
    directory.is_down = True
    recorder.add([make_round(number) for number in range(30_000)])
    with pytest.raises(OSError, match="no database"):
        await recorder.run_once()
    directory.is_down = False
    while await recorder.run_once():
        pass
    assert [r.at_ms for r in directory.rounds] == list(range(10_000, 30_000))


async def test_loop_outlives_the_database_and_writes_the_last_notes() -> None:
    """Counted, tried again; closing tries once more."""
    recorder, directory, counts, clock = make_recorder()
    running = asyncio.ensure_future(recorder.run_forever())
    directory.is_down = True
    recorder.add([make_round(1)])
    await clock.advance(10_000)
    assert counts.errors == 3  # at 0, 5 and 10 s
    directory.is_down = False
    recorder.close()
    await clock.drive(asyncio.wait_for(running, None))
    assert len(directory.rounds) == 1


async def test_endpoints_that_are_gone_are_disabled_once() -> None:
    """Of a group that was deleted meanwhile nothing needs to be written."""
    recorder, directory, _, _ = make_recorder()
    told: list[tuple[str, str, str]] = []
    directory.on_disable = lambda group, url, reason: told.append((group, url, reason))
    recorder.disable("shop", URL, "410 Gone")
    recorder.disable("deleted", URL, "410 Gone")
    await recorder.run_once()
    await recorder.run_once()
    assert told == [("shop", URL, "410 Gone")]

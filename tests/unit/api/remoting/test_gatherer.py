"""Calls are gathered into batches: all are asked once, in order, and each gets its own answer."""

import asyncio
from collections.abc import Callable, Sequence

from api.remoting.gathering import Gatherer


async def until(is_so: Callable[[], bool]) -> None:
    """Lets the loop turn until it is so."""
    for _ in range(1_000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


async def test_calls_that_come_meanwhile_go_together() -> None:
    """Two batches are on their way at most; what comes then waits, and goes as one."""
    batches, gates = list[Sequence[int]](), list[asyncio.Event]()

    async def ask(calls: Sequence[int]) -> Sequence[int]:
        batches.append(calls)
        gates.append(gate := asyncio.Event())
        await gate.wait()
        return [call * 10 for call in calls]

    answers = list[int]()
    gatherer = Gatherer[int, int](ask, lambda _, given: answers.extend(given), lambda _: -1)
    for call in range(2):
        gatherer.add(call)
        await until(lambda: len(batches) > call)  # noqa: B023
    for call in range(2, 7):
        gatherer.add(call)
    await asyncio.sleep(0)
    assert [list(batch) for batch in batches] == [[0], [1]]
    gates[0].set()
    await until(lambda: len(batches) == 3)
    gates[1].set()
    gates[2].set()
    await until(lambda: gatherer.is_idle)
    assert list(batches[2]) == [2, 3, 4, 5, 6]
    assert sorted(answers) == [0, 10, 20, 30, 40, 50, 60]


async def test_a_batch_that_fails_answers_all_its_calls() -> None:
    """And the next one goes out."""

    async def ask(calls: Sequence[int]) -> Sequence[int]:
        if 1 in calls:
            raise RuntimeError("broken")
        return calls

    answers = list[int]()
    gatherer = Gatherer[int, int](ask, lambda _, given: answers.extend(given), lambda _: -1)
    gatherer.add(1)
    await until(lambda: gatherer.is_idle)
    gatherer.add(2)
    await until(lambda: gatherer.is_idle)
    assert answers == [-1, 2]

"""Two logs under the same program: the first difference, and the shortest program found that still shows one."""

import asyncio
import itertools
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.differential.executor import Executor
from tests.differential.program import Batch, Hang, Program, PutMany, Step
from tests.differential.worlds import DifferentialWorld, KafkaDifferentialWorld, MemoryDifferentialWorld

AT_ONCE = 6
PROGRAM_TIMEOUT_S = 90


@dataclass(frozen=True, slots=True)
class Difference:
    """A step at which the logs part, and what was seen there."""

    program: Program
    place: int
    memory: Any
    kafka: Any

    def __str__(self) -> str:
        step = self.program.steps[self.place]
        return f"{self.program!r}\nstep {self.place}: {step!r}\nmemory: {self.memory}\nKafka:  {self.kafka}"


class Comparison:
    """Runs programs on a fresh in-memory log each, and on one Kafka together."""

    def __init__(self, kafka: KafkaDifferentialWorld) -> None:
        self._kafka = kafka
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._run_id = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()

    async def compare(self, programs: Sequence[Program]) -> list[Difference | None]:
        """The first difference of each, if any."""
        seen = await asyncio.gather(*[self._run(program) for program in programs])
        return [
            find_difference(program, await run_in_memory(program), kafka)
            for program, kafka in zip(programs, seen, strict=True)
        ]

    async def shrink(self, found: Difference) -> Difference:
        """Takes parts away for as long as the rest still differs."""
        steps = found.program.steps[: found.place + 1]
        found = await self._try(iter([replace(found.program, steps=steps)])) or found
        size = max(1, len(found.program.steps) // 2)
        while True:
            smaller = await self._try(without_blocks(found.program, size))
            if smaller is not None:
                found = smaller
            elif size > 1:
                size //= 2
            else:
                smaller = await self._try(with_thinner_steps(found.program))
                if smaller is None:
                    return found
                found = smaller

    async def _try(self, candidates: Iterator[Program]) -> Difference | None:
        differences = await self.compare(list(candidates))
        return next((difference for difference in differences if difference is not None), None)

    async def _run(self, program: Program) -> list[Any]:
        async with self._at_once, asyncio.timeout(PROGRAM_TIMEOUT_S):
            queues = await self._kafka.allot(program.topics)
            return await Executor(self._kafka, program, queues, self._prefix()).run()

    def _prefix(self) -> str:
        return f"differential-{self._run_id}-{next(self._numbers)}"


async def run_in_memory(program: Program) -> list[Any]:
    """What is seen on a fresh in-memory log."""
    world: DifferentialWorld = MemoryDifferentialWorld()
    try:
        queues = await world.allot(program.topics)
        return await Executor(world, program, queues, "program").run()
    finally:
        await world.close()


def find_difference(program: Program, memory: Sequence[Any], kafka: Sequence[Any]) -> Difference | None:
    """The first step at which something else was seen."""
    for place, (one, other) in enumerate(zip(memory, kafka, strict=True)):
        if one != other:
            return Difference(program, place, one, other)
    return None


def without_blocks(program: Program, size: int) -> Iterator[Program]:
    """Each program that has `size` steps less."""
    for start in range(0, len(program.steps), size):
        rest = (*program.steps[:start], *program.steps[start + size :])
        if rest:
            yield replace(program, steps=rest)


def with_thinner_steps(program: Program) -> Iterator[Program]:
    """Each program that has one part of one step less."""
    for place, step in enumerate(program.steps):
        for thinner in thin(step):
            yield replace(program, steps=(*program.steps[:place], thinner, *program.steps[place + 1 :]))


def thin(step: Step) -> Iterator[Step]:
    """The step without one of its records, or of what happens inside of it."""
    if isinstance(step, PutMany | Hang | Batch):
        least = 1 if isinstance(step, Hang) else 0
        yield from (replace(step, records=rest) for rest in without_one(step.records) if len(rest) >= least)
    if isinstance(step, Batch):
        yield from (replace(step, closing=rest) for rest in without_one(step.closing) if rest)
        yield from (replace(step, during=rest) for rest in without_one(step.during))


def without_one(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Each tuple that has one item less."""
    return ((*items[:place], *items[place + 1 :]) for place in range(len(items)))

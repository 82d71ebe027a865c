"""What operators and groups that fetch their checks do in a simulated run, and what happens to its database.

An operator changes and deletes groups, redrives parked transactions, restores a backup and rebuilds the projection.
"""

import sqlite3
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bridge.core.errors import QueueHalted, SqlUnavailable, StoreError
from bridge.core.message import MessageQueue
from bridge.core.record import Resolution, Source
from bridge.node import Node
from bridge.projector import PositionMoved
from bridge.service.claims import ClaimCall, ClaimedCheck
from bridge.service.contract import EndCall, Refused
from bridge.service.groups import EndpointRegistered
from bridge.service.operate import Who
from bridge.service.redrive import RedriveAction, RedrivePreview
from bridge.sql.groups import put_group
from bridge.sql.redrive import JobState, RedriveJob
from bridge.sql.search import SearchFilter
from bridge.store.memory.process import MemoryProcess
from tests.simulation.clients import Asked, number_of_value, same_messages
from tests.simulation.database import back_up, endpoint_of, instance_endpoint_of, restore
from tests.simulation.node import NodeClock, NodeDatabase, SqlFate, put_together
from tests.simulation.schedule import Fault, FaultKind, Manner
from tests.simulation.situations import (
    ENDPOINT_LEASE_MS,
    PULL_LEASE_MS,
    Chore,
    ChoreKind,
    Instance,
    PauseKind,
    changed_times,
    settings_of,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

PULLED = "pulled"  # who asked, of a check that was claimed
_ANSWER_MS = 6_000
_CLAIM_WAIT_MS = 400
_OUTAGE_MS = 300  # while a backup is restored
_ATTEMPTS = 60
_ACTIONS = {
    ChoreKind.RESUME: RedriveAction.RESUME,
    ChoreKind.COMMIT: RedriveAction.COMMIT,
    ChoreKind.ROLLBACK: RedriveAction.ROLLBACK,
}
_ENDED = {ChoreKind.CHANGE: (PauseKind.PREPARES,), ChoreKind.DELETE: (PauseKind.CHECKS, PauseKind.PREPARES)}
_SILENT = {Manner.HANGS, Manner.ERROR, Manner.GARBAGE, Manner.WRONG_NONCE}


class Done(Struct, frozen=True):
    """What became of a chore. `job_ids`: redrives that it began or stopped; `is_running`: one of them ran then."""

    chore: Chore
    began_ms: int
    at_ms: int
    is_ok: bool
    job_ids: tuple[str, ...] = ()
    is_running: bool = False


class Written(Struct, frozen=True):
    """From when until when the switches of a group, or of all, may have been written. A put says whether prepares are
    taken, and nothing of checks."""

    began_ms: int
    at_ms: int
    group: str | None
    kinds: tuple[PauseKind, ...]


class Claimed(Struct, frozen=True):
    """A claim that was answered with checks."""

    began_ms: int
    at_ms: int
    group: str
    node: str
    asked_ids: frozenset[str]


class Operating:
    """`done`: chores with their answers; `orphans`: how many a rebuild found."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._random = Random(world.schedule.seed ^ 0xC)
        self._fates: list[tuple[int, float, Random]] = []
        self._down_until_ms = 0
        self._rebuilds = 0
        self._is_over = False
        self.done: list[Done] = []
        self.orphans = 0
        self.parked: int | None = None
        """How many a preview of everybody's redrive counted at the end."""
        self.is_restored = False
        self.gone_ms = 0
        """When the instance with an endpoint lease went."""
        self.over_ms = 0
        """When all was quiet."""
        self.processes: dict[str, Any] = {}
        """All there have been, by name."""
        self.down_ms = 0
        """For how long the database could not be read, at most."""
        self.outages: list[tuple[int, int]] = []
        """From when until when."""
        self.written: list[Written] = []
        """What may have ended pauses, besides those who resume."""
        self.claims: list[Claimed] = []

    # --- the database ---

    def sql_fate(self, *, is_write: bool) -> SqlFate:
        """What becomes of a SQL transaction now."""
        now = self._world.clock.monotonic_ms()
        if now < self._down_until_ms:
            return SqlFate.DOWN
        for until_ms, chance, random in self._fates if is_write else ():
            if now < until_ms and random.random() < chance:
                fate = random.choice((SqlFate.APPLIED_UNKNOWN, SqlFate.NOT_APPLIED_UNKNOWN))
                self._world.struck[fate.value] += 1
                return fate
        return SqlFate.WORKS

    def take_down(self, for_ms: int) -> None:
        """Nothing can be read or written for so long."""
        now_ms = self._world.clock.monotonic_ms()
        self.down_ms += for_ms
        self.outages.append((now_ms, now_ms + for_ms))
        self._down_until_ms = max(self._down_until_ms, now_ms + for_ms)

    def heal(self) -> None:
        """The database works; what operators did to groups is undone."""
        self._down_until_ms = 0
        self._fates.clear()

    def put_groups_back(self) -> None:
        """Settings and endpoints as they were at first."""
        world = self._world
        touched = {chore.group for chore in world.schedule.situation.chores}
        touched |= set(world.schedule.situation.pull_groups)
        with world.engine.begin() as connection:
            for group in sorted(touched):
                settings = settings_of(group, world.schedule.situation)
                put_group(connection, group, settings, [endpoint_of(group)], world.clock.now_ms())
                self._note_written(world.clock.monotonic_ms(), group, PauseKind.PREPARES)

    def _note_written(self, began_ms: int, group: str | None, *kinds: PauseKind) -> None:
        self.written.append(Written(began_ms, self._world.clock.monotonic_ms(), group, kinds))

    async def inflict(self, fault: Fault) -> None:
        """A fault of the database, or of the brokers' clocks."""
        world = self._world
        if fault.kind is FaultKind.SQL_UNKNOWN:
            until_ms = world.clock.monotonic_ms() + fault.for_ms
            self._fates.append((until_ms, fault.chance, Random(fault.seed)))
        elif fault.kind is FaultKind.RESTORE_SQL:
            copy = back_up(world.engine)
            await world.clock.sleep_ms(fault.for_ms)
            await self._restore(copy, is_rebuilt=fault.chance < 0.5)
        elif fault.kind is FaultKind.BROKER_CLOCK:
            self._set_clocks(fault.delay_ms, fault.seed)
            await world.clock.sleep_ms(fault.for_ms)
            self._set_clocks(0, fault.seed)

    def _set_clocks(self, ahead_ms: int, seed: int) -> None:
        """Of all brokers, of those that lead the journal, or of all others."""
        half = self._world.topics.half
        for partition in self._world.cluster.log.each_partition():
            if seed % 3 == 0 or (partition.queue.topic == half) is (seed % 3 == 1):
                partition.ahead_ms = ahead_ms

    async def _restore(self, copy: sqlite3.Connection, *, is_rebuilt: bool) -> None:
        """As the documents say: the backup, then `projection rebuild`; without it if the log still has what followed.

        A fail-over that lost the last commits is such a case: nobody hears of it.
        """
        world = self._world
        self.take_down(_OUTAGE_MS)
        await world.clock.sleep_ms(_OUTAGE_MS // 2)
        restore(copy, world.engine)
        self._note_written(world.clock.monotonic_ms() - _OUTAGE_MS, None, *PauseKind)
        self.is_restored = True
        if not is_rebuilt and not self._is_log_shorter():
            return
        await world.clock.sleep_ms(_OUTAGE_MS)
        await self._rebuild()

    def _is_log_shorter(self) -> bool:
        """Whether retention or compaction took what the restored projection has still to read."""
        world = self._world
        return any(
            world.cluster.log.find(MessageQueue(name, queue_id)).minimum > 0
            for name in (world.topics.half, world.topics.op)
            for queue_id in range(world.topics.queues)
        )

    async def _rebuild(self) -> None:
        world = self._world
        for _ in range(_ATTEMPTS):
            self._rebuilds += 1
            name = f"9.{self._rebuilds}"
            process = MemoryProcess(world.cluster, name)
            clock = NodeClock(world.clock, process)
            database = NodeDatabase(world.engine, process, clock, self.sql_fate, self._random)
            node = put_together(name, process, database, clock, world.surroundings, self._random)
            try:
                verdict = await node.rebuild(lambda _: None)
            except (StoreError, QueueHalted, SqlUnavailable, PositionMoved) as error:
                world.story.tell("operator", f"rebuild failed: {error}")
                await world.clock.sleep_ms(1_000)
                continue
            self.orphans += verdict.orphan_count
            world.story.tell("operator", f"rebuilt the projection: {verdict.total}")
            return

    # --- operators ---

    async def do(self, chore: Chore) -> None:
        """One act, asked of one process."""
        world, began = self._world, self._world.clock.monotonic_ms()
        node = world.nodes[chore.instance]
        if node.is_dead or node.is_closed:
            return
        found = await world.callers.reach(node, lambda service: self._ask(service, chore), _ANSWER_MS)
        if chore.kind in _ENDED:
            self._note_written(began, chore.group, *_ENDED[chore.kind])
        is_ok = found is not None and not isinstance(found, Refused)
        jobs = found if isinstance(found, list) else [found]
        jobs = [job for job in jobs if isinstance(job, RedriveJob)]
        ids = tuple(job.job_id for job in jobs)
        is_running = any(job.state is JobState.RUNNING for job in jobs)
        self.done.append(Done(chore, began, world.clock.monotonic_ms(), is_ok, ids, is_running))
        world.story.tell("operator", f"{chore.kind.value} {chore.group} at {node.name} -> {found}"[:300])

    async def _ask(self, service: Node, chore: Chore) -> Any:
        group, who, situation = chore.group, Who("ops", chore.reason), self._world.schedule.situation
        if chore.kind is ChoreKind.CHANGE:
            settings = settings_of(group, situation, changed_times(chore))
            return await service.groups.put(group, settings, [endpoint_of(group)], who)
        if chore.kind is ChoreKind.DELETE:
            return await service.groups.delete(group, who) or "deleted"
        if chore.kind is ChoreKind.ROTATE:
            return await service.groups.rotate_secret(group, who)
        if chore.kind is ChoreKind.STOP:
            jobs = await service.parked.list_jobs(10)
            running = [] if isinstance(jobs, Refused) else [job for job in jobs if job.state is JobState.RUNNING]
            return [await service.parked.stop(job.job_id, who) for job in running]
        return await service.parked.redrive(SearchFilter(group=group), _ACTIONS[chore.kind], 5, who)

    async def find_unfinished(self) -> str | None:
        """A redrive that still runs."""
        world = self._world
        for node in world.nodes.values():
            if not node.is_dead and any(done.job_ids for done in self.done):
                jobs = await world.callers.reach(node, lambda service: service.parked.list_jobs(10), _ANSWER_MS)
                running = [job for job in jobs or () if isinstance(job, RedriveJob) and job.state is JobState.RUNNING]
                return f"a redrive runs: {running[0].job_id}" if running else None
        return None

    async def look_at_parked(self) -> None:
        """What a redrive of everything would act on; asked only where somebody redrives."""
        node = next((node for node in self._world.nodes.values() if not node.is_dead), None)
        if node is not None and self._world.schedule.situation.chores:
            found = await self._world.callers.reach(
                node, lambda service: service.parked.preview(SearchFilter()), _ANSWER_MS
            )
            self.parked = found.count if isinstance(found, RedrivePreview) else None

    # --- instances with an endpoint lease ---

    async def register(self, instance: Instance) -> None:
        """One instance: registers its endpoint, renews the lease, and goes."""
        world, turn = self._world, 0
        url, who = instance_endpoint_of(instance.group), Who("instance", "")
        while world.clock.monotonic_ms() < instance.gone_ms:
            node = world.nodes[turn % world.schedule.instances]
            turn += 1
            if not node.is_dead and not node.is_closed:
                made = await world.callers.reach(
                    node,
                    lambda service: service.groups.register_endpoint(instance.group, url, ENDPOINT_LEASE_MS, who),
                    _ANSWER_MS,
                )
                world.struck["endpoints registered"] += isinstance(made, EndpointRegistered)
            await world.clock.sleep_ms(ENDPOINT_LEASE_MS // 3)
        self.gone_ms = world.clock.monotonic_ms()
        world.endpoints.gone.add(instance.group)
        world.story.tell(f"instance of {instance.group}", "goes")

    # --- groups that fetch their checks ---

    def stop(self) -> None:
        """Nobody claims any more."""
        self.over_ms = self._world.clock.monotonic_ms()
        self._is_over = True

    async def pull(self, group: str, number: int) -> None:
        """One instance of a group: claims, answers, and goes on."""
        world, turn = self._world, number
        while not self._is_over:
            turn += 1
            node = world.nodes[turn % world.schedule.instances]
            manner = world.endpoints.manners.get(group, Manner.HONEST)
            if node.is_dead or node.is_closed or manner is Manner.REFUSES:
                await world.clock.sleep_ms(500)
                continue
            began = world.clock.monotonic_ms()
            claimed = await world.callers.reach(node, partial(_claim, group), _ANSWER_MS)
            if not claimed or isinstance(claimed, Refused):
                await world.clock.sleep_ms(500)
                continue
            world.struck["checks claimed"] += len(claimed)
            ids = frozenset(check.view.transaction_id for check in claimed)
            self.claims.append(Claimed(began, world.clock.monotonic_ms(), group, node.name, ids))
            await self._answer(group, claimed, began)

    async def _answer(self, group: str, claimed: Sequence[ClaimedCheck], began_ms: int) -> None:
        world = self._world
        manner = world.endpoints.manners.get(group, Manner.HONEST)
        calls = []
        for place, check in enumerate(claimed):
            number = number_of_value(check.messages[0].value or b"")
            prepared = world.schedule_call(number).messages
            strange = None if same_messages(check.messages, prepared) else f"{list(check.messages)}"[:500]
            is_left_out = manner in _SILENT or (manner is Manner.LEAVES_OUT and place == 0)
            word = None if is_left_out else world.endpoints.decide(number, manner)
            world.endpoints.log.append(
                Asked(
                    world.clock.monotonic_ms(), check.view.transaction_id, check.number, word, PULLED, strange, began_ms
                )
            )
            if word is not None:
                calls.append(_end(check, word, group))
        if manner is Manner.SLOW:
            await world.clock.sleep_ms(PULL_LEASE_MS + 200)
        node = world.nodes[self._random.randrange(world.schedule.instances)]
        if calls and not node.is_dead and not node.is_closed:
            await world.callers.reach(node, lambda service: service.transactions.end(calls, wait_ms=2_000), _ANSWER_MS)


def _claim(group: str, service: Node) -> Any:
    return service.claims.claim(ClaimCall(group, 4, _CLAIM_WAIT_MS, PULL_LEASE_MS, lambda: True))


def _end(check: ClaimedCheck, word: Resolution, group: str) -> EndCall:
    transaction_id = check.view.transaction_id
    return EndCall(transaction_id, word, group, source=Source.CHECK, check_number=check.number)

"""One simulated run: the whole bridge on the in-memory log, on virtual time, under a schedule.

run = simulate(make_schedule(4711))
run.violations   what was promised and not kept
run.story        what happened; `run.story.hash()` is the same for every replay
"""

import asyncio
import gc
import random as global_random
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import structlog
from msgspec import Struct

from bridge import clock
from bridge.core import record
from bridge.core.keyring import OpSeals
from bridge.core.message import Message, MessageQueue
from bridge.core.record import Resolution
from bridge.core.topics import InternalTopics
from bridge.core.transaction import make_transaction_id, queue_of
from bridge.service import admission
from bridge.service.contract import EndCall
from bridge.sql.identity import TopicIdentity, record_identity
from bridge.store.memory.log import clean
from bridge.store.memory.partition import Stamp
from bridge.store.memory.store import MemoryCluster
from tests.simulation.abandoning import give_up
from tests.simulation.bulkhead import check_bulkhead
from tests.simulation.callers import Callers, Finding
from tests.simulation.clients import Endpoints, Locals
from tests.simulation.database import open_database
from tests.simulation.evidence import Archive, read_applied
from tests.simulation.faults import FaultsInForce, instance_of
from tests.simulation.loop import run_virtually
from tests.simulation.node import KEYRING, Node, Surroundings, running_name, track_tasks
from tests.simulation.operated import check_operated
from tests.simulation.operating import Operating
from tests.simulation.paused import check_paused
from tests.simulation.pausing import Pausing
from tests.simulation.promises import Evidence, Violation, check_promises
from tests.simulation.rules import check_rules
from tests.simulation.schedule import CALLS_MS, TOPICS, Call, Fault, FaultKind, Manner, Schedule
from tests.simulation.situations import SHRUNK_BYTES, BadKind
from tests.simulation.story import Story, log_into
from tests.support.memory_world import AUDIT_CONFIG, HALF_CONFIG, OP_CONFIG, PARKED_CONFIG, append_first_positions
from tests.support.virtual_time import NothingEverHappensError, VirtualClock

_SESSION_MS = 2_000
_QUIET_LIMIT_MS = 150_000
_PROJECTED_MS = 3_000  # what timers decide moves no position to wait for
_KAFKAS_LIMIT_BYTES = 1_048_588
_FOREIGN = 1_000_000  # producer ids of others


class Run(Struct):
    """The outcome of one run."""

    schedule: Schedule
    story: Story
    violations: list[Violation]
    evidence: Evidence
    struck: Counter[str]


class World:
    """Cluster, processes, database, clients and endpoints of one run."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.clock = VirtualClock()
        self.topics = InternalTopics(queues=schedule.queues)
        self.story = Story(self.clock.monotonic_ms)
        self.faults = FaultsInForce(self.clock.monotonic_ms, self._strike, self._feel, self._note_fault)
        self.cluster = MemoryCluster(self.clock, self.faults, _SESSION_MS)
        self.archive = Archive(self.cluster.log)
        self.engine = open_database()
        self.healed_ms = 0
        self.nodes: dict[int, Node] = {}
        self.callers = Callers(self)
        self.operating = Operating(self)
        self.pausing = Pausing(self)
        self.locals = Locals(self.clock.monotonic_ms, calls={call.number: call for call in schedule.calls})
        self.endpoints = Endpoints(self.clock, self.locals, Random(schedule.seed ^ 0xE))
        self.struck: Counter[str] = Counter()
        self.unheard: list[dict[str, Any]] = []  # errors that nobody awaited
        self.surroundings = Surroundings(
            self.topics,
            self.engine,
            schedule.has_sql,
            self.operating.sql_fate,
            self.endpoints.call,
            schedule.situation.is_calm,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._lives: dict[int, int] = {}
        self._skews: dict[int, int] = {}
        self._wakers: dict[int, int] = {}  # instance -> until when it is frozen
        self._foreign = _FOREIGN
        self._create_topics()

    # --- the run ---

    async def run(self) -> None:
        """Calls and faults, then quiet; every unknown outcome is asked for again; then everybody stops."""
        loop = asyncio.get_running_loop()
        track_tasks(loop)
        loop.set_exception_handler(lambda _, context: self.unheard.append(context))
        self.operating.put_groups_back()
        for instance in range(self.schedule.instances):
            self._start(instance)
        situation = self.schedule.situation
        acting = [self._at(call.at_ms, self.callers.follow, call) for call in self.schedule.calls]
        acting += [self._at(chore.at_ms, self.operating.do, chore) for chore in situation.chores]
        acting += [self._at(pause.at_ms, self.pausing.do, pause) for pause in situation.pauses]
        pulling = [
            asyncio.create_task(self.operating.pull(group, n)) for group in situation.pull_groups for n in (0, 1)
        ]
        if situation.registered is not None:
            acting.append(asyncio.create_task(self.operating.register(situation.registered)))
        if situation.bad is not None:
            self._tasks.add(self._at(situation.bad.at_ms, self._go_bad, None))
        failing = [self._at(fault.at_ms, self._inflict, fault) for fault in self.schedule.faults]
        await asyncio.gather(*failing)
        await self.clock.sleep_ms(max(0, CALLS_MS - self.clock.monotonic_ms()))
        self._heal()
        await asyncio.gather(*acting)
        self.operating.put_groups_back()
        await self.pausing.resume_all()
        await self._wait_quiet()
        if self.schedule.has_sql:
            await asyncio.gather(*[self.callers.find_truth(call) for call in self.schedule.calls])
            await self._wait_quiet()
            await self.clock.sleep_ms(_PROJECTED_MS)
            await self.operating.look_at_parked()
        if any(f.kind is FaultKind.BROKER_CLOCK and f.delay_ms > record.SEEN_LIMIT_MS for f in self.schedule.faults):
            await self._find_clocks_forgotten()
            await self._wait_quiet()
        self.operating.stop()
        await asyncio.gather(*pulling)
        await self._wait_quiet()  # what stays blocked is written again now and then
        self.story.tell("world", "quiet")
        for node in self.nodes.values():
            node.kill()

    async def _find_clocks_forgotten(self) -> None:
        """D: a process knows Kafka's time soon after brokers' clocks were ahead: a repeat that is dated by them counts
        however late it comes. Raises Finding."""
        await self.clock.sleep_ms(clock.DOUBT_MS + 1_000)
        nobodys = EndCall(make_transaction_id(0, 1), Resolution.UNKNOWN)
        for node in self.nodes.values():
            await self.callers.reach(node, lambda service: service.transactions.end([nobodys], wait_ms=500), 1_000)
            ahead_ms = node.bridge.transactions.kafka_time_ms() - self.clock.now_ms()
            if ahead_ms > record.SEEN_LIMIT_MS:
                raise Finding(f"node {node.name} is {ahead_ms} ms ahead, long after clocks were set back")

    def _at(self, at_ms: int, work: Callable[[Any], Awaitable[None]], what: Any) -> "asyncio.Task[None]":
        async def later() -> None:
            await self.clock.sleep_ms(at_ms)
            await work(what)

        return asyncio.create_task(later())

    def _create_topics(self) -> None:
        topics, log = self.topics, self.cluster.log
        log.create_topic(topics.half, topics.queues, HALF_CONFIG)
        # small segments and no lag: a cleaner as greedy as can be
        log.create_topic(topics.op, topics.queues, OP_CONFIG | {"min.compaction.lag.ms": "0", "segment.bytes": "16384"})
        log.create_topic(topics.parked, 1, PARKED_CONFIG)
        log.create_topic(topics.audit, 1, AUDIT_CONFIG)
        append_first_positions(self.cluster, topics, OpSeals(KEYRING))
        names = (topics.half, topics.op, topics.parked)
        known = {name: TopicIdentity("memory-cluster", log.topics[name].topic_id) for name in names}
        with self.engine.begin() as connection:
            record_identity(connection, known, 0)
        for name, queues in TOPICS.items():
            log.create_topic(name, queues, {"max.message.bytes": self._largest})

    @property
    def _largest(self) -> str:
        """What real topics take."""
        return str(self.schedule.situation.limit_bytes or _KAFKAS_LIMIT_BYTES)

    # --- processes ---

    def _start(self, instance: int) -> None:
        self._lives[instance] = life = self._lives.get(instance, 0) + 1
        name = f"{instance}.{life}"
        node = Node(name, self.cluster, self.clock, self.surroundings, Random(f"{self.schedule.seed}/{name}"))
        node.clock.skew_ms = self._skews.get(instance, 0)
        self.nodes[instance] = node
        self.story.tell(f"node {name}", "starts")
        self.operating.processes[name] = node
        node.start().add_done_callback(lambda ended: self._note_failure(node, ended))

    def _note_failure(self, node: Node, ended: "asyncio.Task[None]") -> None:
        """A loop that should never end has ended: production's process would end with it."""
        if not node.is_dead and not ended.cancelled():
            self.unheard.append({"exception": ended.exception()})

    def schedule_call(self, number: int) -> Call:
        """The transaction of this number."""
        return self.locals.calls[number]

    def _kill(self, instance: int, down_ms: int) -> None:
        node = self.nodes[instance]
        if not node.is_dead:
            self.struck["kills"] += 1
            self.story.tell(f"node {node.name}", f"is killed, for {down_ms} ms")
            node.kill()
            self._start_later(node, down_ms)

    def _start_later(self, dead: Node, down_ms: int) -> None:
        async def start() -> None:
            await self.clock.sleep_ms(down_ms)
            if self.nodes[instance_of(dead.name)] is dead:
                self._start(instance_of(dead.name))

        self._background(start())

    def _freeze(self, instance: int, for_ms: int) -> None:
        node = self.nodes[instance]
        if node.is_dead:
            return
        self.struck["freezes"] += 1
        self.story.tell(f"node {node.name}", f"is frozen for {for_ms} ms")
        node.freeze()
        until_ms = self._wakers[instance] = max(self._wakers.get(instance, 0), self.clock.monotonic_ms() + for_ms)

        async def thaw() -> None:
            await self.clock.sleep_ms(for_ms)
            if self._wakers[instance] == until_ms and not node.is_dead:
                self.story.tell(f"node {node.name}", "goes on")
                node.thaw()

        self._background(thaw())

    def _background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- faults ---

    def _note_fault(self, client: str, kind: str, what: str) -> None:
        self.struck[kind] += 1
        self.story.tell(f"node {client}", what)

    def _strike(self, fault: Fault) -> None:
        if fault.kind is FaultKind.KILL_AT:
            self._kill(fault.instance, fault.for_ms)
        else:
            self._freeze(fault.instance, fault.for_ms)

    async def _feel(self, client: str) -> None:
        node = self.nodes[instance_of(client)]
        if node.name == client:
            await node.process.pause()
        else:
            raise asyncio.CancelledError

    async def _inflict(self, fault: Fault) -> None:
        kind, log = fault.kind, self.cluster.log
        self.story.tell("fault", _describe(fault))
        if kind in _AT_ONCE:
            self.struck[kind.value] += 1
        now = self.clock.monotonic_ms()
        if kind is FaultKind.KILL:
            self._kill(fault.instance, fault.for_ms)
        elif kind is FaultKind.STOP:
            await self._stop(fault)
        elif kind is FaultKind.FREEZE:
            self._freeze(fault.instance, fault.for_ms)
        elif kind is FaultKind.COMPACT:
            self.archive.keep()
            for partition in log.topics[self.topics.op].partitions:
                partition.roll(log.agenda.now_ms())
            clean(log)
        elif kind is FaultKind.RETAIN:
            self._retain()
        elif kind is FaultKind.DELETE_OFFSETS:
            self.cluster.groups.delete_offsets(self.topics.group)
        elif kind is FaultKind.SKEW:
            self._skews[fault.instance] = fault.delay_ms
            self.nodes[fault.instance].clock.skew_ms = fault.delay_ms
        elif kind is FaultKind.SQL_DOWN:
            self.operating.take_down(min(fault.for_ms, 3_000))
        elif kind in _OF_OPERATING:
            await self.operating.inflict(fault)
        elif kind is FaultKind.ENDPOINT:
            self.endpoints.manners[fault.group] = fault.manner
            await self.clock.sleep_ms(fault.for_ms)
            self.endpoints.manners[fault.group] = Manner.HONEST
        elif kind is FaultKind.ABANDON:
            await give_up(self, fault)
        elif fault.topic and kind is not FaultKind.LATE_MARKERS:
            await self._spoil_topic(fault)
        else:
            self.faults.add(fault, now + (fault.for_ms or CALLS_MS))

    async def _stop(self, fault: Fault) -> None:
        node = self.nodes[fault.instance]
        if node.is_dead or node.process.is_stopped:
            return
        self.story.tell(f"node {node.name}", "is told to stop")
        self._background(node.stop())
        await self.clock.sleep_ms(max(800, fault.for_ms))
        if self.nodes[fault.instance] is node:
            node.kill()
            self._start(fault.instance)

    def _retain(self) -> None:
        """Retention at its worst: the journal begins at L, at the oldest body that lies nowhere else, or where the
        projection stands."""
        self.archive.keep()
        ops = [op.transaction for op in self.archive.last_ops(self.topics).values()]
        projected = read_applied(self.engine) if self.schedule.has_sql else {}
        for queue_id, position in self.archive.last_positions(self.topics).items():
            needed = [t.half for t in ops if t.is_live and t.parked is None and queue_of(t.transaction_id) == queue_id]
            behind = position.l
            if self.schedule.has_sql:
                behind = projected[queue_id].journal_next if queue_id in projected else 0
            begin = min([position.l, behind, *needed])
            self.cluster.log.find(MessageQueue(self.topics.half, queue_id)).drop_below(begin)

    async def _spoil_topic(self, fault: Fault) -> None:
        log, name, for_ms = self.cluster.log, fault.topic, fault.for_ms
        if name not in log.topics:
            return
        topic = log.topics[name]
        if fault.kind is FaultKind.LEADERLESS:
            queue = MessageQueue(name, fault.seed % len(topic.partitions))
            log.set_leader(queue, has_leader=False)
            await self.clock.sleep_ms(for_ms)
            if log.topics.get(name) is topic:
                log.set_leader(queue, has_leader=True)
        elif fault.kind is FaultKind.DELETE_TOPIC:
            self.archive.bury(name)
            log.delete_topic(name)
            await self.clock.sleep_ms(for_ms)
            if name not in log.topics:
                log.create_topic(name, TOPICS[name], {"max.message.bytes": self._largest})
        elif fault.kind is FaultKind.SHRINK:
            topic.alter({"max.message.bytes": str(SHRUNK_BYTES)})
            await self.clock.sleep_ms(for_ms)
            topic.alter({"max.message.bytes": self._largest})
        elif fault.kind is FaultKind.DENY:
            topic.is_denied = True
            await self.clock.sleep_ms(for_ms)
            topic.is_denied = False
        elif fault.kind is FaultKind.HANGING:
            await self._hang(fault)

    async def _hang(self, fault: Fault) -> None:
        """Somebody else's Kafka transaction stays open in a real topic, then ends one way or the other."""
        self._foreign += 1
        partition = self.cluster.log.topics[fault.topic].partitions[0]
        if not partition.has_leader:
            return
        stamp = Stamp(self._foreign, 0, 0)
        partition.append([Message(fault.topic, b"foreign", b"foreign")], stamp, self.cluster.agenda.now_ms())
        await self.clock.sleep_ms(fault.for_ms)
        partition.has_leader = True
        partition.end(stamp.producer_id, 0, fault.seed % 2 == 0, self.cluster.agenda.now_ms())

    def _heal(self) -> None:
        """The last fault is over."""
        self.healed_ms = self.clock.monotonic_ms()
        self.story.tell("world", "heals")
        self.faults.clear()
        self.endpoints.manners.clear()
        self.operating.heal()
        self.operating.put_groups_back()
        for instance, node in list(self.nodes.items()):
            if node.is_dead:
                self._start(instance)
            elif node.process.is_stopped:
                node.thaw()
        self.cluster.agenda.run_due()
        for name, queues in TOPICS.items():
            if name not in self.cluster.log.topics:
                self.cluster.log.create_topic(name, queues)
            topic = self.cluster.log.topics[name]
            topic.is_denied = False
            topic.alter({"max.message.bytes": self._largest})
            for partition in topic.partitions:
                self.cluster.log.set_leader(partition.queue, has_leader=True)
        self._spoil_for_good()

    async def _go_bad(self, _: None) -> None:
        self.struck["bad to the end"] += 1
        self._spoil_for_good()

    def _spoil_for_good(self) -> None:
        """The destination that stays bad, if there is one, is bad now."""
        bad, log = self.schedule.situation.bad, self.cluster.log
        if bad is None or bad.topic not in log.topics:
            return
        self.story.tell("world", f"{bad.topic} is {bad.kind.value} for good")
        if bad.kind is BadKind.DENIED:
            log.topics[bad.topic].is_denied = True
        elif bad.kind is BadKind.SHRUNK:
            log.topics[bad.topic].alter({"max.message.bytes": str(SHRUNK_BYTES)})
        else:
            self.archive.bury(bad.topic)
            log.delete_topic(bad.topic)

    # --- the end ---

    def conclude(self) -> None:
        """Before promises are checked; for worlds with rules of their own."""

    async def _wait_quiet(self) -> None:
        """Until everything due is decided, published and projected. Raises Finding if that never comes."""
        until_ms = self.clock.monotonic_ms() + _QUIET_LIMIT_MS
        while (reason := await self._find_unquiet()) is not None:
            if self.clock.monotonic_ms() > until_ms:
                raise Finding(f"not at rest {_QUIET_LIMIT_MS} ms after the last fault: {reason}")
            await self.clock.sleep_ms(1_000)

    async def _find_unquiet(self) -> str | None:
        has_sql = self.schedule.has_sql
        reason = await self.operating.find_unfinished() if has_sql else None  # takes a while, in which more is written
        return reason or self.archive.unquiet(
            self.topics, self.engine if has_sql else None, self.schedule.situation.bad
        )


_AT_ONCE = {
    FaultKind.STOP, FaultKind.LATE_MARKERS, FaultKind.LEADERLESS, FaultKind.DELETE_TOPIC, FaultKind.SHRINK,
    FaultKind.DENY, FaultKind.HANGING, FaultKind.COMPACT, FaultKind.RETAIN, FaultKind.DELETE_OFFSETS,
    FaultKind.SKEW, FaultKind.SQL_DOWN, FaultKind.ENDPOINT, FaultKind.ABANDON, FaultKind.RESTORE_SQL,
    FaultKind.BROKER_CLOCK,
}  # fmt: skip
_OF_OPERATING = {FaultKind.SQL_UNKNOWN, FaultKind.RESTORE_SQL, FaultKind.BROKER_CLOCK}


def _describe(fault: Fault) -> str:
    shown = {
        name: getattr(value, "value", value)
        for name in fault.__struct_fields__
        if name not in {"at_ms", "kind", "seed"} and (value := getattr(fault, name))
    }
    return f"{fault.kind.value} {shown}"


def _scale_times() -> None:
    """How long repeats are recognised, a tenth of what it is, as `node.SETTLER` has it: a run lasts 20 s."""
    record.SEEN_LIMIT_MS, admission.NOTE_LIMIT_MS, admission._RENEW_MS, clock.DOUBT_MS = 3_000, 6_000, 1_000, 12_000


def simulate(schedule: Schedule, make: Callable[[Schedule], World] | None = None) -> Run:
    """Runs a schedule to its end and checks every promise. `make`: another world than the usual one."""
    global_random.seed(schedule.seed)
    world = (make or World)(schedule)
    log_into(world.story, running_name)
    failed: list[Violation] = []
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        _scale_times()
        run_virtually(world.clock, world.run())
    except (Finding, NothingEverHappensError) as error:
        failed.append(Violation("T", "", str(error)))
    else:
        failed += [Violation("T", "nobody awaited it", f"{each.get('exception')!r}") for each in world.unheard]
    finally:
        if was_enabled:
            gc.enable()
        structlog.reset_defaults()
    world.archive.keep()
    world.conclude()
    evidence = Evidence(schedule, world.topics, world.archive, world.callers.heard, world.endpoints.log, world.engine)
    evidence.healed_ms, evidence.operating, evidence.pausing = world.healed_ms, world.operating, world.pausing
    evidence.begun = world.endpoints.begun
    evidence.exchanges, evidence.late_calls = world.endpoints.exchanges, world.endpoints.late
    violations = failed + check_promises(evidence) + check_rules(evidence)
    violations += check_operated(evidence) + check_paused(evidence) + check_bulkhead(evidence)
    return Run(schedule, world.story, violations, evidence, world.struck)

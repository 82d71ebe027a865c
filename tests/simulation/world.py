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

import msgspec
import structlog
from msgspec import Struct

from bridge.core import record
from bridge.core.message import Message, MessageQueue
from bridge.core.op_seal import OpSeals
from bridge.core.topics import InternalTopics
from bridge.core.transaction import TransactionState
from bridge.core.transaction_id import queue_of
from bridge.service import repeats
from bridge.service.contract import Outcome, RefusalCode, Refused
from bridge.store.memory.cluster import MemoryCluster
from bridge.store.memory.partition import Stamp
from bridge.store.memory.retention import clean
from tests.simulation.abandoning import give_up
from tests.simulation.clients import WAIT_MS, Answer, Endpoints, Heard, Locals, perform, prepare_call, understand
from tests.simulation.database import open_database
from tests.simulation.evidence import Archive, read_applied
from tests.simulation.faults import FaultsInForce, instance_of
from tests.simulation.loop import run_virtually
from tests.simulation.node import KEYRING, Node, Surroundings, running_name, track_tasks
from tests.simulation.promises import Evidence, Violation, check_promises
from tests.simulation.rules import check_rules
from tests.simulation.schedule import CALLS_MS, TOPICS, Call, Deed, Fault, FaultKind, Manner, Schedule, Verb
from tests.simulation.story import Story, log_into
from tests.support.memory_world import HALF_CONFIG, OP_CONFIG, PARKED_CONFIG, append_first_positions
from tests.support.virtual_time import NothingEverHappensError, VirtualClock

_SESSION_MS = 2_000
_QUIET_LIMIT_MS = 150_000
_ASK_LIMIT_MS = WAIT_MS + 1_000
_PROJECTED_MS = 3_000  # what timers decide moves no position to wait for
_RETRIES = 4
_LOOKED_AT = 4  # one transaction in so many is asked for at the end; the projection's rows are compared for all
_RETRY_MS = 600
_SMALL_BYTES = 1_000
_FOREIGN = 1_000_000  # producer ids of others


class Run(Struct):
    """The outcome of one run."""

    schedule: Schedule
    story: Story
    violations: list[Violation]
    evidence: Evidence
    struck: Counter[str]


class Finding(Exception):
    """The run itself came to an end that no promise allows."""


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
        self.sql_down_until_ms = 0
        self.healed_ms = 0
        self.nodes: dict[int, Node] = {}
        self.heard: list[Heard] = []
        self.locals = Locals(self.clock.monotonic_ms, calls={call.number: call for call in schedule.calls})
        self.endpoints = Endpoints(self.clock, self.locals, Random(schedule.seed ^ 0xE))
        self.struck: Counter[str] = Counter()
        self.unheard: list[dict[str, Any]] = []  # errors that nobody awaited
        self._surroundings = Surroundings(
            self.topics, self.engine, schedule.has_sql, self._is_sql_down, self.endpoints.call
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
        for instance in range(self.schedule.instances):
            self._start(instance)
        acting = [self._at(call.at_ms, self._follow, call) for call in self.schedule.calls]
        failing = [self._at(fault.at_ms, self._inflict, fault) for fault in self.schedule.faults]
        await asyncio.gather(*failing)
        await self.clock.sleep_ms(max(0, CALLS_MS - self.clock.monotonic_ms()))
        self._heal()
        await asyncio.gather(*acting)
        await self._wait_quiet()
        if self.schedule.has_sql:
            await asyncio.gather(*[self._find_truth(call) for call in self.schedule.calls])
            await self._wait_quiet()
            await self.clock.sleep_ms(_PROJECTED_MS)
        self.story.tell("world", "quiet")
        for node in self.nodes.values():
            node.kill()

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
        append_first_positions(self.cluster, topics, OpSeals(KEYRING))
        for name, queues in TOPICS.items():
            log.create_topic(name, queues)

    # --- processes ---

    def _start(self, instance: int) -> None:
        self._lives[instance] = life = self._lives.get(instance, 0) + 1
        name = f"{instance}.{life}"
        node = Node(name, self.cluster, self.clock, self._surroundings, Random(f"{self.schedule.seed}/{name}"))
        node.clock.skew_ms = self._skews.get(instance, 0)
        self.nodes[instance] = node
        self.story.tell(f"node {name}", "starts")
        node.start()
        node.failed.add_done_callback(lambda _: self._note_failure(node))

    def _note_failure(self, node: Node) -> None:
        """A loop that should never end has ended: production's process would end with it."""
        error = node.failed.exception()
        if not node.is_dead:
            self.unheard.append({"exception": error})

    def _is_sql_down(self) -> bool:
        return self.clock.monotonic_ms() < self.sql_down_until_ms

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
            self.sql_down_until_ms = max(self.sql_down_until_ms, now + min(fault.for_ms, 3_000))
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
            behind = projected.get(queue_id, 0) if self.schedule.has_sql else position.l
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
            log.create_topic(name, TOPICS[name])
        elif fault.kind is FaultKind.SHRINK:
            topic.alter({"max.message.bytes": str(_SMALL_BYTES)})
            await self.clock.sleep_ms(for_ms)
            topic.alter({"max.message.bytes": "1048588"})
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
        self.sql_down_until_ms = 0
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
            topic.alter({"max.message.bytes": "1048588"})
            for partition in topic.partitions:
                self.cluster.log.set_leader(partition.queue, has_leader=True)

    # --- clients ---

    async def _follow(self, call: Call) -> None:
        """One transaction's life as its producer leads it."""
        heard = await self._prepare(call, call.instance)
        for _ in range(_RETRIES):
            if heard.outcome == "ok" or call.idempotency_key is None:
                break
            await self.clock.sleep_ms(_RETRY_MS)
            heard = await self._prepare(call, call.instance)
        if heard.outcome != "ok" or heard.transaction_id is None:
            return
        if heard.state is TransactionState.PREPARED:
            self.locals.begin(call.number)
        started = self.clock.monotonic_ms()
        for deed in call.deeds:
            await self.clock.sleep_ms(max(0, started + deed.after_ms - self.clock.monotonic_ms()))
            await self.do(call, deed, heard.transaction_id)

    async def _prepare(self, call: Call, instance: int) -> Heard:
        return await self._ask(
            call, None, instance, lambda service: service.transactions.prepare([prepare_call(call)], WAIT_MS)
        )

    async def do(self, call: Call, deed: Deed, transaction_id: str) -> Heard:
        """One further call about a transaction."""
        heard = await self._ask(
            call, deed.verb, deed.instance, lambda service: perform(service, call, deed, transaction_id), transaction_id
        )
        if heard.view is None or deed.verb is not Verb.LOOK:
            return heard
        return await self._look_inside(heard, deed.instance)

    async def _look_inside(self, heard: Heard, instance: int) -> Heard:
        """The messages of one that was looked at."""
        node, view = self.nodes[instance], heard.view
        if node.is_dead or node.process.is_stopped or view is None:
            return heard
        asking = node.spawn(node.ask(lambda service: service.transactions.get_bodies(view)))
        await asyncio.wait({asking})
        found = None if asking.cancelled() else asking.result()
        if isinstance(found, list):
            heard = msgspec.structs.replace(heard, bodies=found)
            self.heard.append(heard)
        return heard

    async def _ask(
        self, call: Call, verb: Verb | None, instance: int, work: Any, transaction_id: str | None = None
    ) -> Heard:
        node, began = self.nodes[instance], self.clock.monotonic_ms()
        what = verb.value if verb else "prepare"
        if node.is_dead or node.is_closed:
            heard = understand(call, verb, _no_connection(), began, began)
        else:
            answering = node.spawn(node.ask(work))
            limit = asyncio.ensure_future(self.clock.sleep_ms(_ASK_LIMIT_MS))
            await asyncio.wait({answering, limit}, return_when=asyncio.FIRST_COMPLETED)
            limit.cancel()
            answer: Answer | None = None
            if answering.done() and not answering.cancelled():
                found = answering.result()
                answer = found[0] if isinstance(found, list) else found
            elif not answering.done():
                answering.cancel()
            heard = understand(call, verb, answer, began, self.clock.monotonic_ms())
        heard = msgspec.structs.replace(heard, asked_id=transaction_id)
        self.heard.append(heard)
        self.story.tell(f"client {call.number}", f"{what} at {node.name} -> {heard} {heard.transaction_id or ''}")
        return heard

    async def _find_truth(self, call: Call) -> None:
        """Repeats what is unknown until it is known, then looks."""
        mine = [heard for heard in self.heard if heard.number == call.number]
        instance = call.number % self.schedule.instances
        last = {heard.verb: heard for heard in mine}
        known = next((heard.transaction_id for heard in mine if heard.transaction_id), None)
        if call.idempotency_key is not None and last[None].outcome != "ok":
            heard = await self._insist(call, lambda: self._prepare(call, instance))
            known = known or heard.transaction_id
        if known is None:
            return
        for verb in (Verb.COMMIT, Verb.ROLLBACK):
            if verb in last and last[verb].outcome == "unknown":
                await self._insist(call, lambda verb=verb: self.do(call, Deed(0, verb, instance, call.group), known))
        if call.number % _LOOKED_AT == 0:
            await self._insist(call, lambda: self.do(call, Deed(0, Verb.LOOK, instance), known))

    async def _insist(self, call: Call, ask: Callable[[], Awaitable[Heard]]) -> Heard:
        """Asks until the answer is no doubt. T: it comes. A: all rests, so nobody hears "unknown" twice in a row."""
        is_doubt = False
        for _ in range(40):
            heard = await ask()
            if is_doubt and heard.outcome == "unknown":
                raise Finding(f"client {call.number} was told {heard.code} twice in a row")
            is_doubt = heard.outcome == "unknown"
            if heard.outcome == "ok" or (heard.outcome == "fail" and heard.code not in _TRY_AGAIN):
                return heard
            await self.clock.sleep_ms(1_000)
        raise Finding(f"client {call.number} never heard the truth")

    # --- the end ---

    def conclude(self) -> None:
        """Before promises are checked; for worlds with rules of their own."""

    async def _wait_quiet(self) -> None:
        """Until everything due is decided, published and projected. Raises Finding if that never comes."""
        until_ms = self.clock.monotonic_ms() + _QUIET_LIMIT_MS
        while (why := self.archive.unquiet(self.topics, self.engine if self.schedule.has_sql else None)) is not None:
            if self.clock.monotonic_ms() > until_ms:
                raise Finding(f"not at rest {_QUIET_LIMIT_MS} ms after the last fault: {why}")
            await self.clock.sleep_ms(1_000)


_AT_ONCE = {
    FaultKind.STOP, FaultKind.LATE_MARKERS, FaultKind.LEADERLESS, FaultKind.DELETE_TOPIC, FaultKind.SHRINK,
    FaultKind.DENY, FaultKind.HANGING, FaultKind.COMPACT, FaultKind.RETAIN, FaultKind.DELETE_OFFSETS,
    FaultKind.SKEW, FaultKind.SQL_DOWN, FaultKind.ENDPOINT, FaultKind.ABANDON,
}  # fmt: skip
_TRY_AGAIN = {RefusalCode.UNAVAILABLE.value, RefusalCode.PROJECTION_BEHIND.value, "connection refused"}


def _no_connection() -> Refused:
    return Refused(RefusalCode.UNAVAILABLE, "connection refused", Outcome.NOT_APPLIED)


def _describe(fault: Fault) -> str:
    shown = {
        name: getattr(value, "value", value)
        for name in fault.__struct_fields__
        if name not in {"at_ms", "kind", "seed"} and (value := getattr(fault, name))
    }
    return f"{fault.kind.value} {shown}"


def _scale_times() -> None:
    """How long repeats are recognised, a tenth of what it is, as `node.SETTLER` has it: a run lasts 20 s."""
    record.SEEN_LIMIT_MS, repeats.NOTE_LIMIT_MS, repeats._RENEW_MS = 3_000, 6_000, 1_000


def simulate(schedule: Schedule, make: Callable[[Schedule], World] | None = None) -> Run:
    """Runs a schedule to its end and checks every promise. `make`: another world than the usual one."""
    global_random.seed(schedule.seed)
    world = (make or World)(schedule)
    log_into(world.story, running_name)
    failed: list[Violation] = []
    gc.disable()
    try:
        _scale_times()
        run_virtually(world.clock, world.run())
    except (Finding, NothingEverHappensError) as error:
        failed.append(Violation("T", "", str(error)))
    else:
        failed += [Violation("T", "nobody awaited it", f"{each.get('exception')!r}") for each in world.unheard]
    finally:
        gc.enable()
        structlog.reset_defaults()
    world.archive.keep()
    world.conclude()
    evidence = Evidence(schedule, world.topics, world.archive, world.heard, world.endpoints.log, world.engine)
    evidence.healed_ms = world.healed_ms
    violations = failed + check_promises(evidence) + check_rules(evidence)
    return Run(schedule, world.story, violations, evidence, world.struck)

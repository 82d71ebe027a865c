"""How each fault is done, and the diary of those that were."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.chaos.destinations import TOPIC_OF, Destinations
from tests.chaos.fleet import ClientProcess, Fleet
from tests.chaos.insist import insist
from tests.chaos.recorded_calls import now_ms
from tests.chaos.schedule import DESTINATION_KINDS, HELD_KINDS, Done, Fault, Kind
from tests.support.history.lines import LineWriter
from tests.support.kafka_cluster import ClusterNode, KafkaCluster
from tests.support.kafka_proxy import END_TXN, PRODUCE, Frame, Gate
from tests.support.postgres import PostgresServer

_CATCH_S = 12.0  # an EndTxn comes by at least so often, if all is well
_LOOK_S = 0.1
_DISK_S = 20.0  # until a broker without space has noticed
_GRACE_S = 1.0
_TAKE_OVER_S = 30.0
_CLOSING = b"COMMITTED"  # op messages: the real messages of the same Kafka transaction are written
_PROGRESS = 20
_PATIENCE_S = 45.0


class Stage(msgspec.Struct):
    """All that can be broken."""

    cluster: KafkaCluster
    fleet: Fleet
    clients: Sequence[ClientProcess]  # those that may be killed
    sql: PostgresServer
    destinations: Destinations
    writer: str  # what the client ids of all transactional producers have in common


class Faults:
    """Does the faults of all lanes until `stopping` is set; whatever is broken then is mended first."""

    def __init__(self, stage: Stage, diary: Path, stopping: threading.Event, count: Callable[[], int]) -> None:
        """`count`: of transactions so far."""
        self.done: list[Done] = []
        self.errors: list[str] = []  # what went wrong here, whatever the histories say
        self._stage = stage
        self._diary = LineWriter(diary)
        self._stopping = stopping
        self._count = count
        self._acts: Mapping[Kind, Callable[[Fault, random.Random], bool]] = {
            Kind.KILL: self._kill,
            Kind.PAUSE: self._pause,
            Kind.KILL_CLIENT: self._kill_client,
            Kind.BROKER_KILL: self._kill_broker,
            Kind.BROKER_PAUSE: self._pause_broker,
            Kind.DISK_FULL: self._fill_disk,
            Kind.CUT: self._cut,
            Kind.REFUSE: self._refuse,
            Kind.SLOW: self._slow_down,
            Kind.SQL_KILL: self._kill_sql,
            Kind.SQL_FREEZE: self._freeze_sql,
            **dict.fromkeys(HELD_KINDS, self._hold),
            **dict.fromkeys(DESTINATION_KINDS, self._trouble),
        }

    def run(self, faults: Sequence[Fault], seed: int) -> None:
        """One lane, in a thread of its own. A fault that found nothing to hit is tried again at the end.

        Between two faults some transactions must get through, or where a machine is slow everything would be down
        for ever and nothing tested.
        """
        choice = random.Random(seed)
        started = time.monotonic()
        waiting = list(faults)
        try:
            while waiting and not self._stopping.is_set():
                fault = waiting.pop(0)
                self._wait(started + fault.at_s - time.monotonic())
                if not self._stopping.is_set() and not self._acts[fault.kind](fault, choice):
                    waiting.append(fault)
                self._await_progress()
        except Exception as error:  # noqa: BLE001 - a lane's end must be told by the thread that waits for it
            self.errors.append(f"{type(error).__name__}: {error}")
            self._stopping.set()

    def _await_progress(self) -> None:
        wanted, give_up_at = self._count() + _PROGRESS, time.monotonic() + _PATIENCE_S
        while self._count() < wanted and time.monotonic() < give_up_at and not self._stopping.is_set():
            self._wait(_LOOK_S)

    def count(self, *kinds: Kind) -> int:
        """How many of these were done."""
        return sum(done.kind in kinds for done in self.done)

    def count_held(self) -> int:
        """How many EndTxn were held for a second at least."""
        return sum(done.kind in HELD_KINDS and done.seconds >= _GRACE_S for done in self.done)

    def _wait(self, seconds: float) -> None:
        self._stopping.wait(max(0.0, seconds))

    @contextmanager
    def _noted(self, kind: Kind, target: str, queues: Sequence[int] = ()) -> Iterator[Done]:
        done = Done(kind, target, now_ms(), queues=tuple(queues))
        yield done
        done.until_ms = now_ms()
        self._diary.write(done)
        self.done.append(done)

    def _hurt(
        self, fault: Fault, target: str, hurt: Callable[[], object], heal: Callable[[], object],
        queues: Sequence[int] = (),
    ) -> bool:  # fmt: skip
        """Both can be repeated."""
        with self._noted(fault.kind, target, queues):
            insist(hurt)
            self._wait(fault.seconds)
            insist(heal)
        return True

    def _kill(self, fault: Fault, choice: random.Random) -> bool:
        fleet = self._stage.fleet
        slot = fleet.choose(choice)
        if slot is None:
            return False
        queues = slot.owned_queues()
        return self._hurt(fault, slot.name, lambda: fleet.kill(slot), lambda: fleet.start(slot), queues)

    def _pause(self, fault: Fault, choice: random.Random) -> bool:
        slot = self._stage.fleet.choose(choice)
        if slot is None:
            return False
        process = slot.process
        return self._hurt(fault, slot.name, process.pause, process.resume, slot.owned_queues())

    def _kill_client(self, fault: Fault, choice: random.Random) -> bool:
        client = choice.choice(self._stage.clients)
        with self._noted(fault.kind, client.name):
            client.kill()
            insist(client.start)
        return True

    def _node(self, fault: Fault) -> ClusterNode:
        """The one to be hit. Should it have ended by itself, as one without space may do late, it is started first."""
        nodes = self._stage.cluster.nodes
        node = nodes[fault.target % len(nodes)]
        insist(node.broker.start)
        return node

    def _kill_broker(self, fault: Fault, _: random.Random) -> bool:
        node = self._node(fault)
        return self._hurt(fault, node.folder.name, node.broker.kill, node.broker.start)

    def _pause_broker(self, fault: Fault, _: random.Random) -> bool:
        node = self._node(fault)
        longer = fault._replace(seconds=2 * fault.seconds)
        return self._hurt(longer, node.folder.name, node.broker.pause, node.broker.resume)

    def _fill_disk(self, fault: Fault, _: random.Random) -> bool:
        """Kafka ends itself when it cannot write; an operator makes space and starts it."""
        node = self._node(fault)
        with self._noted(fault.kind, node.folder.name) as done:
            insist(node.fill_disk)
            give_up_at = time.monotonic() + _DISK_S
            while node.broker.is_running and time.monotonic() < give_up_at:
                time.sleep(_LOOK_S)
            done.note = f"{node.way_to_fill}, broker {'lived' if node.broker.is_running else 'ended'}"
            self._wait(fault.seconds)
            node.empty_disk()
            insist(node.broker.start)
            self._wait(_GRACE_S)
            insist(node.broker.start)  # one that lived may have been about to end
        return True

    def _cut(self, fault: Fault, choice: random.Random) -> bool:
        node = self._node(fault)
        with self._noted(fault.kind, node.folder.name) as done:
            done.note = f"{node.proxy.cut(choice.choice((0.3, 1.0)), choice)} connections"
        return True

    def _refuse(self, fault: Fault, choice: random.Random) -> bool:
        node = self._node(fault)
        with self._noted(fault.kind, node.folder.name):
            node.proxy.is_refusing = True
            node.proxy.cut(1.0, choice)
            self._wait(fault.seconds)
            node.proxy.is_refusing = False
        return True

    def _slow_down(self, fault: Fault, choice: random.Random) -> bool:
        node = self._node(fault)
        with self._noted(fault.kind, node.folder.name) as done:
            node.proxy.delay_s = choice.uniform(0.01, 0.15)
            done.note = f"{node.proxy.delay_s * 1_000:.0f} ms a frame"
            self._wait(fault.seconds)
            node.proxy.delay_s = 0.0
        return True

    def _kill_sql(self, fault: Fault, _: random.Random) -> bool:
        return self._hurt(fault, "PostgreSQL", self._stage.sql.kill, self._stage.sql.start)

    def _freeze_sql(self, fault: Fault, _: random.Random) -> bool:
        return self._hurt(fault, "PostgreSQL", self._stage.sql.freeze, self._stage.sql.thaw)

    def _trouble(self, fault: Fault, _: random.Random) -> bool:
        with self._noted(fault.kind, TOPIC_OF[fault.kind]) as done:
            done.note = self._stage.destinations.do(fault.kind, fault.seconds)
        return True

    # --- EndTxn ---

    def _hold(self, fault: Fault, _: random.Random) -> bool:
        is_reply = fault.kind is Kind.HOLD_REPLY
        with self._caught(END_TXN, self._stage.writer, is_reply=is_reply) as caught:
            if caught is None:
                return False
            node, gate, frame = caught
            with self._noted(fault.kind, frame.client_id, (_queue_of(frame),)) as done:
                if fault.kind is Kind.LATE_COPY:
                    gate.cut()
                    done.note = self._deliver_late(node, frame)
                elif fault.kind is Kind.FROZEN_OWNER:
                    done.note = self._freeze_owner(done.queues[0], gate, fault.seconds)
                else:
                    self._wait(fault.seconds)
        return done.seconds >= _GRACE_S  # shorter only when the run was stopped

    def _deliver_late(self, node: ClusterNode, frame: Frame) -> str:
        """A copy of it arrives when the same producer's next Kafka transaction has begun; the broker's answer."""
        lost_at = time.monotonic()
        with self._caught(PRODUCE, frame.client_id, containing=_CLOSING) as following:
            self._wait(lost_at + _GRACE_S - time.monotonic())
            try:
                code = node.proxy.deliver(frame)
            except (OSError, AssertionError):
                return "the broker was away"
        if following and code == 0:
            self.errors.append(f"D: {frame.client_id} had sent EndTxn twice; the late one ended its next transaction")
        return f"error code {code}, {'in the next' if following else 'after its'} Kafka transaction"

    def _freeze_owner(self, queue: int, gate: Gate, seconds: float) -> str:
        """The settler stands still until another one has its queue; what it said last arrives before it wakes up."""
        owner = next((slot for slot in self._stage.fleet.slots if slot.lives and queue in slot.owned_queues()), None)
        if owner is None:  # killed meanwhile
            self._wait(seconds)
            return "nobody to freeze"
        process, others = owner.process, [slot for slot in self._stage.fleet.slots if slot is not owner]
        process.pause()
        give_up_at = time.monotonic() + _TAKE_OVER_S
        is_taken = False
        while not is_taken and time.monotonic() < give_up_at and not self._stopping.is_set():
            self._wait(_LOOK_S)
            is_taken = any(slot.lives and queue in slot.owned_queues() for slot in others)
        gate.open()
        self._wait(_GRACE_S)
        process.resume()
        return "taken over" if is_taken else "not taken over in time"

    @contextmanager
    def _caught(
        self, api_key: int, client: str, *, containing: bytes = b"", is_reply: bool = False
    ) -> Iterator[tuple[ClusterNode, Gate, Frame] | None]:
        """The first such frame at any broker, held until the block ends; None if none comes by."""
        nodes = self._stage.cluster.nodes
        gates = [
            (node, node.proxy.hold(api_key, client=client, containing=containing, is_reply=is_reply)) for node in nodes
        ]
        give_up_at = time.monotonic() + _CATCH_S
        caught = None
        try:
            while caught is None and time.monotonic() < give_up_at and not self._stopping.is_set():
                time.sleep(_LOOK_S)
                caught = next(((n, gate, gate.wait_caught(1)) for n, gate in gates if gate.has_caught), None)
            for _, gate in gates:
                if caught is None or gate is not caught[1]:
                    gate.open()
            yield caught
        finally:
            for _, gate in gates:
                gate.open()


def _queue_of(frame: Frame) -> int:
    """Client ids end with the queue and the number of the producer."""
    return int(frame.client_id.rsplit("-", 2)[-2])

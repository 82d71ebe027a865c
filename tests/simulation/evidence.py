"""Everything that ever lay in the topics of a run, also what was deleted, compacted or outlived its retention."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy import Engine

from bridge.core.message import MessageQueue, StoredMessage
from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY, OpMessage, Position, decode_op, decode_position
from bridge.core.properties import TRANSACTION_ID_HEADER
from bridge.core.topics import InternalTopics
from bridge.core.transaction import TransactionState
from bridge.sql.rows import AppliedPosition
from bridge.sql.tables import projection_positions
from bridge.store.memory.log import MemoryLog
from tests.simulation.oracle import Truth, find_truth
from tests.simulation.situations import Bad

Place = tuple[str, int]  # topic id, queue


@dataclass(slots=True)
class Archive:
    """What readers could see, by topic and queue, in order of offsets."""

    log: MemoryLog
    buried: set[tuple[str, str]] = field(default_factory=set)
    """(topic, transaction id) whose records lay in a topic, their Kafka transaction open, when it was deleted."""
    _visible: dict[str, dict[Place, dict[int, StoredMessage]]] = field(default_factory=dict)

    def keep(self) -> None:
        """Takes note of what lies in the log now; before anything is removed, and at the end."""
        self.log.agenda.run_due()
        for topic in self.log.topics.values():
            places = self._visible.setdefault(topic.name, {})
            for partition in topic.partitions:
                known = places.setdefault((topic.topic_id, partition.queue.queue_id), {})
                found, _ = partition.read(partition.minimum, len(partition.records))
                known.update({stored.queue_offset: stored for stored in found})

    def bury(self, name: str) -> None:
        """The topic is about to be deleted, with whatever lies in it."""
        self.keep()
        for partition in self.log.topics[name].partitions:
            for record in partition.records[partition.find_index(partition.stable) :]:
                ids = [value for header, value in record.stored.headers if header == TRANSACTION_ID_HEADER and value]
                self.buried.update((name, transaction_id.decode()) for transaction_id in ids)

    def read(self, topic: str) -> list[tuple[Place, list[StoredMessage]]]:
        """What committed readers found, each queue in order."""
        return [
            (place, [known[offset] for offset in sorted(known)])
            for place, known in self._visible.get(topic, {}).items()
        ]

    def last_positions(self, topics: InternalTopics) -> Mapping[int, Position]:
        """The last position of each queue."""
        found: dict[int, Position] = {}
        for partition in self.log.topics[topics.op].partitions:
            messages, _ = partition.read(partition.minimum, len(partition.records))
            for stored in reversed(messages):
                if stored.key == POSITION_KEY and stored.value is not None:
                    found[partition.queue.queue_id] = decode_position(stored.value)
                    break
        return found

    def op_history(self, topics: InternalTopics) -> list[tuple[int, OpMessage]]:
        """Every op message with its append time, queue by queue."""
        return [
            (stored.stored_ms, decode_op(stored.key.decode(), stored.value))
            for _, messages in self.read(topics.op)
            for stored in messages
            if stored.key is not None and stored.value is not None and stored.key not in {POSITION_KEY, ANSWERS_KEY}
        ]

    def last_ops(self, topics: InternalTopics) -> dict[str, OpMessage]:
        """The last op message of each id."""
        return {op.transaction.transaction_id: op for _, op in self.op_history(topics)}

    def unquiet(self, topics: InternalTopics, engine: Engine | None, bad: Bad | None = None) -> str | None:
        """What is still to be done; None when everything is decided, published and, over SQL, projected.

        What cannot be published because a destination stays bad, or is behind such a one, stays blocked.
        """
        self.log.agenda.run_due()
        positions = self.last_positions(topics)
        applied = read_applied(engine) if engine is not None else None
        for queue_id in range(topics.queues):
            end = self.log.find(MessageQueue(topics.half, queue_id)).maximum
            position = positions.get(queue_id)
            if end and (position is None or position.s < end):
                return f"queue {queue_id} is decided up to {position.s if position else 0} of {end}"
            if end and applied is not None:
                place = applied.get(queue_id, AppliedPosition(0, 0, 0))
                if place.journal_next < end:
                    return f"queue {queue_id} is projected up to {place.journal_next} of {end}"
                if self.log.find(MessageQueue(topics.op, queue_id)).read(place.op_next, 1)[0]:
                    return f"queue {queue_id} has op messages from {place.op_next} on that are not projected"
        for partition in self.log.each_partition():
            if partition.stable < partition.maximum:
                return f"a Kafka transaction is open in {partition.queue}"
        self.keep()
        truth, ops = find_truth(self, topics), self.last_ops(topics)
        stuck = find_stuck(truth.values(), bad)
        for transaction_id, op in ops.items():
            if op.transaction.blocked and transaction_id not in stuck:
                return f"{transaction_id} is blocked: {op.transaction.reason}"
        return _find_pending(truth, ops)


def _find_pending(truths: Mapping[str, Truth], ops: Mapping[str, OpMessage]) -> str | None:
    for transaction_id in truths:
        op = ops.get(transaction_id)
        if op is None or op.transaction.state is TransactionState.PREPARED:
            return f"{transaction_id} is PREPARED"
    return None


def find_stuck(truths: Iterable[Truth], bad: Bad | None) -> set[str]:
    """Who may stay blocked: commits to a destination that stays bad, and later ones of their ordering key."""
    stuck: set[str] = set()
    lanes: set[tuple[object, ...]] = set()
    for t in sorted(truths, key=lambda t: t.decided_at) if bad is not None else ():
        if t.state is TransactionState.COMMITTED:
            lane = (t.queue_id, *t.ordering)
            if lane in lanes or (bad is not None and any(bad.refuses(m) for m in t.messages)):
                lanes.add(lane)
                stuck.add(t.transaction_id)
    return stuck


def read_applied(engine: Engine) -> dict[int, AppliedPosition]:
    """Up to where each queue is projected."""
    p = projection_positions.c
    with engine.begin() as connection:
        rows = connection.execute(sa.select(p.queue_id, p.s, p.journal_next, p.op_next))
        return {queue_id: AppliedPosition(*place) for queue_id, *place in rows}

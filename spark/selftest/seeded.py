"""A tale on a stage: which topics it is written to, and what its steps look like there, in the bridge's formats.

The stage takes the times it is given, so that a transaction can be a day old. Nothing is written here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from bridge.core.message import Message, Receipt, StoredMessage
from bridge.core.op_message import OpMessage, encode_op
from bridge.core.properties import PROPERTIES_HEADER
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_act, encode_end, encode_half, encode_parked, encode_published
from bridge.core.topics import InternalTopics, choose_real_queue, with_prefix
from bridge.core.transaction import Transaction, TransactionState
from spark.read.envelope import ACT_ABANDON, OpState
from spark.selftest.anomalies import CREDITS, EXPIRED, ORDERS, Scenario, ScenarioStep, anomalies, look_alikes, ordinary

REAL = {ORDERS: 3, CREDITS: 1, EXPIRED: 1}
QUEUES = 2
_JOURNAL = frozenset({"half", "end", "act"})
_STATES = {
    OpState.PREPARED: TransactionState.PREPARED,
    OpState.PARKED: TransactionState.PARKED,
    OpState.COMMITTED: TransactionState.COMMITTED,
    OpState.ROLLED_BACK: TransactionState.ROLLED_BACK,
    OpState.BLOCKED: TransactionState.COMMITTED,
    OpState.ABANDONED: TransactionState.COMMITTED,
}


@dataclass(frozen=True)
class SeededTopics:
    """Topics of one self-test; the real ones have the prefix too. `has_id_header`: records name their transactions."""

    prefix: str
    has_id_header: bool = True

    @cached_property
    def internal(self) -> InternalTopics:
        """Journal, op and parked topic."""
        return with_prefix(self.prefix, QUEUES)

    def real(self, topic: str) -> str:
        """The name of a real topic."""
        return self.prefix + topic

    @cached_property
    def topics(self) -> dict[str, int]:
        """Every topic with its partitions."""
        internal = self.internal
        real = {self.real(topic): count for topic, count in REAL.items()}
        return {internal.half: QUEUES, internal.op: QUEUES, internal.parked: 1, **real}


@dataclass(slots=True)
class Planted:
    """A tale with the id it got. `places`: the places of its journal records, `shown`: its records that are
    reported."""

    tale: Scenario
    tx: str
    born_ms: int
    places: list[int] = field(default_factory=list)
    shown: list[Receipt] = field(default_factory=list)
    parked: int | None = None

    @property
    def queue(self) -> int:
        """Its journal queue."""
        return int(self.tx[:2], 32)


def make_tales(transactions: int, rounds: int) -> Iterator[Scenario]:
    """So many ordinary ones, and between them so many rounds of everything else."""
    every = max(1, transactions // max(1, rounds))
    for number in range(transactions):
        yield ordinary(number)
        if number % every == 0 and number // every < rounds:
            yield from look_alikes(f"{number}")
            yield from anomalies(f"{number}")


@dataclass(frozen=True, slots=True)
class RecordBuilder:
    """Tells the records of steps."""

    stage: SeededTopics

    def journal_record(self, planted: Planted, step: ScenarioStep) -> Message:
        """A half message, an end, or an act."""
        topic, given, queue = self.stage.internal.half, step.options, self._queue_of(planted, step)
        stored_ms = planted.born_ms + given.get("after_ms", 0 if step.name == "half" else 1_000)
        if step.name == "half":
            record = encode_half(_half_of(planted, given, self.stage), self.named(planted), topic, queue)
        elif step.name == "end":
            is_check = given.get("src") == "C"
            source = Source.CHECK if is_check else Source.PRODUCER
            end = EndRecord(
                planted.tx, Resolution(given["code"]), source, stored_ms, given.get("grp"),
                check_number=given.get("num", 0), endpoint="e" if is_check else None, status=200, latency_ms=20,
            )  # fmt: skip
            record = encode_end(end, topic, queue)
        else:
            act = Act.ABANDON if given["act"] == ACT_ABANDON else Act.RESUME
            record = encode_act(ActRecord(planted.tx, act, "me", "why", stored_ms), topic, queue)
        return _at(record, stored_ms)

    def named(self, planted: Planted) -> list[Message]:
        """The prepared messages with the stage's names of topics."""
        return [self.at_topic(message) for message in planted.tale.messages]

    def at_topic(self, message: Message) -> Message:
        """The message with the stage's name of its topic."""
        return _to(message, self.stage.real(message.topic))

    def visible(self, planted: Planted, message: Message, given: Mapping[str, Any]) -> Message:
        """A record of a real topic."""
        asked = given.get("part", message.queue_id)
        parts = self.stage.topics[message.topic]
        part = asked if asked >= 0 else choose_real_queue(message.key, planted.tx, parts)
        shown_ms = message.timestamp_ms or planted.born_ms + 1_000
        return encode_published(message, planted.tx, part, shown_ms, self.stage.has_id_header)

    def parked_copy(self, planted: Planted, given: Mapping[str, Any]) -> Message:
        """A record of the parked topic."""
        changed = given.get("message")
        messages = self.named(planted) if changed is None else [self.at_topic(changed)]
        internal = self.stage.internal
        half = encode_half(_half_of(planted, {}, self.stage, messages), messages, internal.half, planted.queue)
        stored = StoredMessage(0, half.key, half.value, tuple(half.headers), planted.born_ms)
        return _at(encode_parked(stored, 3, "MAX_CHECKS", internal.parked, 0), planted.born_ms + 2_000)

    def op_record(self, planted: Planted, step: ScenarioStep) -> Message:
        """An op message."""
        given, places = step.options, planted.places
        state: OpState = given["state"]
        receipts = [Receipt(self.stage.real(topic), part, off) for topic, part, off in given.get("receipts", ())]
        if not receipts and state is OpState.COMMITTED:
            lost = given.get("lost")
            receipts = planted.shown + ([Receipt(self.stage.real(lost[0]), *lost[1:])] if lost else [])
            receipts = receipts[::-1] if given.get("is_reversed") else receipts
        half_index = next((i for i, s in enumerate(journal_steps(planted)) if _is_half(s)), None)
        transaction = Transaction(
            planted.tx,
            given.get("grp", planted.tale.group),
            given.get("half_at", 0 if half_index is None else places[half_index]),
            planted.born_ms,
            0,
            _STATES[state],
            _cause(planted, given),
            since_ms=planted.born_ms,
            by="producer",
            ended_ms=planted.born_ms + 1_000,
            blocked=state is OpState.BLOCKED,
            abandoned=state is OpState.ABANDONED,
            parked=given.get("parked", planted.parked),
        )
        value = encode_op(OpMessage(transaction, receipts))
        queue = self._queue_of(planted, step)
        return Message(self.stage.internal.op, planted.tx.encode(), value, (), queue, planted.born_ms + 1_050)

    def unreadable(self, tx: str) -> Iterator[Message]:
        """Records that the bridge never writes: none of a format, one of another version, an empty op message."""
        internal = self.stage.internal
        yield Message(internal.half, b"key", b"value")
        version = f"KIND\x01E\x02UNIQ_KEY\x01{tx}\x02V\x012\x02RES\x018\x02SRC\x01P\x02".encode()
        yield Message(internal.half, tx.encode(), None, [(PROPERTIES_HEADER, version)])
        yield Message(internal.op, tx.encode(), None)
        yield Message(internal.op, b"key", b"{}")
        yield Message(internal.parked, None, b"value")

    def _queue_of(self, planted: Planted, step: ScenarioStep) -> int:
        is_astray = bool(step.options.get("is_astray"))
        return (planted.queue + is_astray) % self.stage.internal.queues


def _half_of(
    planted: Planted, given: Mapping[str, Any], stage: SeededTopics, messages: Sequence[Message] | None = None
) -> HalfMessage:
    named = [_to(m, stage.real(m.topic)) for m in planted.tale.messages] if messages is None else messages
    first = named[0]
    single: dict[str, Any] = {
        "real_topic": first.topic,
        "real_queue_id": first.queue_id,
        "timestamp_ms": first.timestamp_ms,
    }
    void: dict[str, Any] = {"idempotency_key": planted.tx, "seen_ms": 0} if given.get("is_void") else {}
    return HalfMessage(
        planted.tx,
        planted.tale.group,
        len(named),
        planted.born_ms,
        **(single if len(named) == 1 else {}),
        **void,
        **planted.tale.half,
        is_published=given.get("is_published", False),
    )


def journal_steps(planted: Planted, *, is_late: bool = False) -> list[ScenarioStep]:
    """Its steps in the journal: those in their turn, or those that are late."""
    return [step for step in planted.tale.steps if step.name in _JOURNAL and step.is_late is is_late]


def _is_half(step: ScenarioStep) -> bool:
    return step.name == "half" and not step.options.get("is_void")


def _cause(planted: Planted, given: Mapping[str, Any]) -> int:
    """The journal offset that an honest bridge would name: of the first end that decides."""
    if "at" in given:
        return int(given["at"])
    if "cause" in given:
        return 0 if given["cause"] is None else planted.places[given["cause"]]
    for place, step in zip(planted.places, journal_steps(planted), strict=True):
        if (step.name == "end" and step.options["code"]) or step.options.get("is_published"):
            return place
    return planted.places[0] if planted.places else 0


def due_steps(planted: Planted, *, is_late: bool) -> list[ScenarioStep]:
    """Steps of its publication: those in their turn, or those that are late."""
    if planted.tale.is_late:
        return list(planted.tale.steps) if is_late else []
    return [step for step in planted.tale.steps if step.is_late is is_late]


def _to(message: Message, topic: str) -> Message:
    return Message(topic, message.key, message.value, message.headers, message.queue_id, message.timestamp_ms)


def _at(message: Message, stored_ms: int) -> Message:
    return Message(message.topic, message.key, message.value, message.headers, message.queue_id, stored_ms)

"""What the self-test plants, and what it looks like in the bridge's formats.

The stage takes the times it is given, so that a transaction can be a day old. Nothing is written here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

from bridge.core.message import Message, Receipt, StoredMessage
from bridge.core.op_message import OpMessage, encode_op
from bridge.core.properties import PROPERTIES_HEADER
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_act, encode_end, encode_half, encode_parked, encode_published
from bridge.core.topics import InternalTopics, choose_real_queue, with_prefix
from bridge.core.transaction import Transaction, TransactionState
from spark.judge.rules import FindingKind
from spark.read.envelope import ACT_ABANDON, ACT_RESUME, COMMIT, ROLLBACK, UNKNOWN, OpState
from spark.read.table_list import BARRED, WRITTEN

# --- what the self-test plants: every kind of finding, and everything that looks like one and is right ---
# A tale is one transaction's records as steps. The journal's steps are written first, for all tales; then real, parked
# and op records, batch by batch in Kafka transactions; steps and tales that are late come after all others.

ORDERS, CREDITS, EXPIRED = "orders", "credits", "expired"  # of the last, everything is removed after it was written
HOUR_MS = 3_600_000
SHOP, BANK = "shop", "bank"  # groups; of the second each committed transaction has a transaction record
_NOWHERE = 2**40  # an offset that no log has come to
MAX_CHECKS, LIFE_MS, TIMEOUT_MS = 3, 24 * HOUR_MS, 6_000  # of both


class ScenarioStep(NamedTuple):
    """One record. `options` overrule what an honest bridge would have written."""

    name: str  # half, end, act, show, park, op
    options: Mapping[str, Any]
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """A transaction. `age_ms`: how long ago it was prepared; `kinds`: what must be found; `row`: its record's state."""

    name: str
    steps: Sequence[ScenarioStep]
    kinds: Sequence[FindingKind] = ()
    messages: Sequence[Message] = ()
    age_ms: int = 2 * HOUR_MS
    is_late: bool = False
    half: Mapping[str, Any] = field(default_factory=dict)
    group: str = SHOP
    row: str | None = None


def step(name: str, **options: Any) -> ScenarioStep:  # noqa: ANN401 - fields of six kinds of records
    """A step in its turn."""
    return ScenarioStep(name, options)


def late(name: str, **options: Any) -> ScenarioStep:  # noqa: ANN401
    """A step after everybody's others."""
    return ScenarioStep(name, options, is_late=True)


HALF, COMMITS, ROLLS_BACK = step("half"), step("end", code=COMMIT), step("end", code=ROLLBACK)
SHOW = step("show", index=0)
COMMITTED, ROLLED_BACK = step("op", state=OpState.COMMITTED), step("op", state=OpState.ROLLED_BACK)
BLOCKED, GIVES_UP = step("op", state=OpState.BLOCKED, cause=1), step("act", act=ACT_ABANDON)
ABANDONED = step("op", state=OpState.ABANDONED, cause=2)
PARK, PARKED = step("park"), step("op", state=OpState.PARKED)
RIGHT = (HALF, COMMITS, SHOW, COMMITTED)
_RIGHT_WITH_FOUR = (HALF, COMMITS, *(step("show", index=index) for index in range(4)), COMMITTED)


def ordinary(number: int) -> Scenario:
    """Of ten one rolls back, and two have four messages: 4.5 records each, on an average."""
    key, headers = b"order-%d" % number, [("source", b"shop")]
    if number % 5 == 0:
        lines = tuple(Message(ORDERS, key, b'{"number":%d,"line":%d}' % (number, i), headers) for i in range(4))
        return Scenario("ordinary", _RIGHT_WITH_FOUR, (), lines)
    message = Message(ORDERS, key, b'{"number":%d}' % number, headers)
    if number % 10 == 9:
        return Scenario("ordinary", (HALF, ROLLS_BACK, ROLLED_BACK), (), (message,))
    return Scenario("ordinary", RIGHT, (), (message,))


def look_alikes(name: str) -> Iterator[Scenario]:
    """Nothing may be found. `name` keeps the keys of several rounds apart."""
    one, two = _messages(name, 1), _messages(name, 2)

    def right(title: str, *steps: ScenarioStep, **members: Any) -> Scenario:  # noqa: ANN401
        return Scenario(title, steps, (), members.pop("messages", one), **members)

    answered = step("end", code=UNKNOWN, src="C", num=1, after_ms=TIMEOUT_MS + 2_000)
    yield right("repeated ends", HALF, COMMITS, COMMITS, SHOW, COMMITTED)
    yield right("the first won", HALF, COMMITS, ROLLS_BACK, SHOW, COMMITTED)
    yield right("another group in vain", HALF, step("end", code=ROLLBACK, grp="thief"), COMMITS, SHOW,
                step("op", state=OpState.COMMITTED, cause=2))  # fmt: skip
    yield right("end before half", step("end", code=UNKNOWN), HALF, ROLLS_BACK, step("op", state=OpState.ROLLED_BACK))
    yield right("answered unknown", HALF, answered, COMMITS, SHOW, step("op", state=OpState.COMMITTED, cause=2))
    yield right("put back", HALF, step("op", state=OpState.PREPARED, cause=0), age_ms=HOUR_MS)
    yield right("void", step("half", is_void=True))
    yield right("void repeat", HALF, step("half", is_void=True), COMMITS, SHOW, COMMITTED)
    yield right("repeated half", HALF, HALF, COMMITS, SHOW, COMMITTED, COMMITTED)
    yield right("repeated half long after", *RIGHT, late("half", after_ms=HOUR_MS), late("op", state=OpState.COMMITTED))
    yield right("young", HALF, age_ms=0)
    yield right("decided now", HALF, COMMITS, age_ms=0)
    yield right("blocked", HALF, COMMITS, BLOCKED)
    yield right("abandoned", HALF, COMMITS, BLOCKED, GIVES_UP, ABANDONED)
    yield right("abandoned once of two acts", HALF, COMMITS, BLOCKED, GIVES_UP, GIVES_UP, ABANDONED, ABANDONED)
    yield right("given up in vain", HALF, COMMITS, BLOCKED, GIVES_UP, SHOW, COMMITTED)
    yield right("parked", HALF, PARK, PARKED)
    yield right("parked, then committed", HALF, PARK, PARKED, COMMITS, SHOW, COMMITTED)
    resumed = step("act", act=ACT_RESUME)
    yield right("parked, resumed", HALF, PARK, PARKED, resumed, step("op", state=OpState.PREPARED, cause=1),
                age_ms=HOUR_MS)  # fmt: skip
    yield right("several messages", HALF, COMMITS, SHOW, step("show", index=1), COMMITTED, messages=two)
    yield right("two equal", HALF, COMMITS, SHOW, step("show", index=1), COMMITTED, messages=(*one, *one))
    yield right("published at once", step("half", is_published=True), SHOW, COMMITTED)
    yield right("as asked", HALF, COMMITS, SHOW, COMMITTED, messages=(
        Message(ORDERS, one[0].key, b"", [("a", None), ("a", b"")], 2, 1_234_567_890_123),))  # fmt: skip
    yield right("without key and value", HALF, COMMITS, SHOW, COMMITTED, messages=(Message(ORDERS),))
    yield right("row of a commit", *RIGHT, group=BANK, row=WRITTEN)
    yield right("row that waits", HALF, group=BANK, row=WRITTEN, age_ms=HOUR_MS)
    yield right("barred", HALF, ROLLS_BACK, ROLLED_BACK, group=BANK, row=BARRED)
    yield right("published without a row", step("half", is_published=True), SHOW, COMMITTED, group=BANK)


def anomalies(name: str) -> Iterator[Scenario]:
    """Every kind, some in several forms."""
    one, two = _messages(name, 1), _messages(name, 2)
    elsewhere = Message(CREDITS, one[0].key, one[0].value, one[0].headers)
    wrong = partial(_wrong, name)
    ghost = step("op", state=OpState.COMMITTED, receipts=((ORDERS, 0, 0),))
    yield wrong("missing", "MISSING", HALF, COMMITS, ghost)
    yield wrong("partial", "PARTIAL", HALF, COMMITS, SHOW, step("op", state=OpState.COMMITTED, lost=(CREDITS, 0, 0)),
                messages=two)  # fmt: skip
    yield wrong("duplicate", "DUPLICATE", *RIGHT, step("show", index=0, is_told=False))
    yield wrong("duplicate long after", "DUPLICATE", *RIGHT, late("show", index=0, is_told=False))
    yield wrong("phantom of a rollback", "PHANTOM", HALF, ROLLS_BACK, SHOW, ROLLED_BACK)
    yield wrong("phantom of a parked one", "PHANTOM", HALF, PARK, SHOW, PARKED)
    yield wrong("phantom of an undecided one", "PHANTOM", HALF, SHOW, age_ms=HOUR_MS)
    yield wrong("orphaned record", "ORPHAN", SHOW)
    yield wrong("orphaned op message", "ORPHAN", step("op", state=OpState.ROLLED_BACK, cause=None))
    yield wrong("orphaned end", "ORPHAN", COMMITS)
    for title, change in _changes(one[0]):
        yield wrong(f"other {title}", "CORRUPT", HALF, COMMITS, step("show", message=change), COMMITTED)
    yield wrong("null for empty", "CORRUPT", HALF, COMMITS, step("show", message=Message(ORDERS, one[0].key)),
                COMMITTED, messages=(Message(ORDERS, one[0].key, b""),))  # fmt: skip
    yield wrong("wrong topic", "WRONG_PLACE", HALF, COMMITS, step("show", message=elsewhere), COMMITTED)
    yield wrong("wrong partition", "WRONG_PLACE", HALF, COMMITS, step("show", index=0, part=1), COMMITTED,
                messages=(Message(ORDERS, one[0].key, b"v", (), 2),))  # fmt: skip
    yield wrong("wrong receipt", "WRONG_RECEIPT", HALF, COMMITS, SHOW, ghost)
    yield from _told_wrongly(name)
    yield wrong("contrary", "CONTRADICTION", HALF, COMMITS, ROLLED_BACK)
    yield wrong("two facts", "CONTRADICTION", *RIGHT, ROLLED_BACK)
    yield wrong("unsettled", "UNSETTLED", HALF, COMMITS)
    yield wrong("stale", "STALE", HALF, age_ms=LIFE_MS + 2 * HOUR_MS)
    yield wrong("parked without copy", "BAD_PARK", HALF, step("op", state=OpState.PARKED, parked=2**40))
    yield wrong("parked with another", "BAD_PARK", HALF, step("park", message=elsewhere), PARKED)
    answers = [step("end", code=UNKNOWN, src="C", num=n, after_ms=30_000 * n) for n in range(1, MAX_CHECKS + 2)]
    yield wrong("asked too often", "BAD_CHECK", HALF, *answers, age_ms=HOUR_MS)
    yield wrong("asked too early", "BAD_CHECK", HALF, step("end", code=ROLLBACK, src="C", num=1, after_ms=100),
                ROLLED_BACK, half={"immunity_s": 60})  # fmt: skip
    yield wrong("asked after the end", "BAD_CHECK", HALF, ROLLS_BACK, ROLLED_BACK,
                step("end", code=UNKNOWN, src="C", num=1, after_ms=HOUR_MS))  # fmt: skip
    yield wrong("another group's end", "WRONG_GROUP", HALF, step("end", code=COMMIT, grp="thief"), SHOW, COMMITTED)
    yield wrong("unprovable", "UNPROVABLE", *RIGHT, messages=(Message(EXPIRED, one[0].key, b"v"),))
    yield wrong("row alone", "TABLE_MISMATCH", group=BANK, row=WRITTEN)
    yield wrong("row of a rollback", "TABLE_MISMATCH", HALF, ROLLS_BACK, ROLLED_BACK, group=BANK, row=WRITTEN)
    yield wrong("barred, but committed", "TABLE_MISMATCH", *RIGHT, group=BANK, row=BARRED)
    yield wrong("commit without a row", "TABLE_MISMATCH", *RIGHT, group=BANK)
    # the first is decided before the second and published after it
    ordered = (Message(ORDERS, b"ordered-" + name.encode(), b"v", (), 0),)
    yield wrong("overtaken", "", *RIGHT, messages=ordered, is_late=True)
    yield wrong("overtaking", "OUT_OF_ORDER", *RIGHT, messages=ordered)


def _told_wrongly(name: str) -> Iterator[Scenario]:
    """Records that say what is not so of a transaction that is right, or of none, or where nobody looks."""
    wrong, two = partial(_wrong, name), _messages(name, 2)
    pair = tuple(Message(ORDERS, None, b"%d of " % i + name.encode(), (), 0) for i in range(2))
    for title, messages in (("exchanged between topics", two), ("exchanged within a partition", pair)):
        yield wrong(f"receipts {title}", "WRONG_RECEIPT", HALF, COMMITS, SHOW, step("show", index=1),
                    step("op", state=OpState.COMMITTED, is_reversed=True), messages=messages)  # fmt: skip
    yield wrong("messages in another order", "OUT_OF_ORDER", HALF, COMMITS, step("show", index=1), SHOW,
                step("op", state=OpState.COMMITTED, is_reversed=True),
                messages=tuple(Message(ORDERS, None, message.value) for message in pair))  # fmt: skip
    keyed = Message(ORDERS, b"place-" + name.encode(), b"v")
    other = (choose_real_queue(keyed.key, "", REAL[ORDERS]) + 1) % REAL[ORDERS]
    yield wrong("wrong partition of a key", "WRONG_PLACE", HALF, COMMITS, step("show", index=0, part=other), COMMITTED,
                messages=(keyed,), age_ms=HOUR_MS)  # fmt: skip
    yield wrong("too many receipts", "WRONG_RECEIPT", HALF, COMMITS, SHOW,
                step("op", state=OpState.COMMITTED, lost=(CREDITS, 0, 0)))  # fmt: skip
    yield wrong("caused by nothing", "CONTRADICTION", HALF, COMMITS, SHOW,
                step("op", state=OpState.COMMITTED, at=_NOWHERE))  # fmt: skip
    yield wrong("prepared by nothing", "ORPHAN", step("op", state=OpState.ROLLED_BACK, at=_NOWHERE, half_at=_NOWHERE))
    yield wrong("told as another group's", "CONTRADICTION", HALF, COMMITS, SHOW,
                step("op", state=OpState.COMMITTED, grp="thief"))  # fmt: skip
    yield wrong("told as another half message's", "CONTRADICTION", HALF, COMMITS, SHOW,
                step("op", state=OpState.COMMITTED, half_at=0))  # fmt: skip
    yield wrong("told in another queue", "UNSETTLED CONTRADICTION", HALF, COMMITS, SHOW,
                step("op", state=OpState.COMMITTED, is_astray=True))  # fmt: skip
    yield wrong("prepared in another queue", "CONTRADICTION", step("half", is_astray=True))
    unasked = step("show", index=0, is_told=False)
    yield wrong("phantom of a blocked one", "PHANTOM", HALF, COMMITS, unasked, BLOCKED)
    yield wrong("phantom of an abandoned one", "PHANTOM", HALF, COMMITS, BLOCKED, GIVES_UP, unasked, ABANDONED)
    yield wrong("abandoned by nobody", "CONTRADICTION", HALF, COMMITS, BLOCKED,
                step("op", state=OpState.ABANDONED, cause=1))  # fmt: skip
    yield wrong(
        "published after it was abandoned", "CONTRADICTION", HALF, COMMITS, GIVES_UP, ABANDONED, SHOW, COMMITTED
    )
    yield wrong("abandoned after it was published", "CONTRADICTION", *RIGHT, GIVES_UP, ABANDONED)


def _wrong(name: str, title: str, kinds: str, *steps: ScenarioStep, **members: Any) -> Scenario:  # noqa: ANN401
    messages = members.pop("messages", None) or _messages(name, 1)
    return Scenario(title, steps, [FindingKind(kind) for kind in kinds.split()], messages, **members)


def _messages(name: str, count: int) -> tuple[Message, ...]:
    key = b"key-" + name.encode()
    topics: Callable[[int], str] = lambda i: (ORDERS, CREDITS)[i % 2]  # noqa: E731 - the shortest name for it
    return tuple(Message(topics(i), None, b"%b-%d" % (key, i), [("n", b"%d" % i)]) for i in range(count))


def _changes(message: Message) -> Iterator[tuple[str, Message]]:
    """The same message with one thing that differs."""
    topic, key, value, headers = message.topic, message.key, message.value, list(message.headers)
    yield "key", Message(topic, b"", value, headers)
    yield "value", Message(topic, key, (value or b"") + b" ", headers)
    yield "headers", Message(topic, key, value, [*headers, *headers])
    yield "header order", Message(topic, key, value, [("z", b""), *headers])


# --- a tale on a stage ---

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
                remark=given.get("remark"),
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
        halves = (s.name == "half" and not s.options.get("is_void") for s in journal_steps(planted))
        half_index = next((i for i, is_half in enumerate(halves) if is_half), None)
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

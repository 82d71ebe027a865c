"""The promises of the design, checked on everything a run left behind. Each check names the promise it found broken."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct
from sqlalchemy import Engine

from bridge.core.check_rules import CheckTimes
from bridge.core.message import Message, StoredMessage
from bridge.core.op_message import OpMessage
from bridge.core.properties import TRANSACTION_ID_HEADER
from bridge.core.record import ActRecord, Source
from bridge.core.topics import InternalTopics
from bridge.core.transaction import TransactionState
from bridge.sql.search import read_stats
from bridge.sql.transactions import find_many
from tests.simulation.clients import Asked, Begun, Exchange, Heard
from tests.simulation.evidence import Archive, find_stuck
from tests.simulation.oracle import Ended, Truth, find_acts, find_ends, find_truth
from tests.simulation.schedule import START_MS, TOPICS, FaultKind, Schedule, Verb
from tests.simulation.situations import possible_times

if TYPE_CHECKING:
    from tests.simulation.operating import Operating
    from tests.simulation.pausing import Pausing

_COMMITTED, _ROLLED_BACK, _PARKED, _PREPARED = (
    TransactionState.COMMITTED,
    TransactionState.ROLLED_BACK,
    TransactionState.PARKED,
    TransactionState.PREPARED,
)
_FINAL = {_COMMITTED, _ROLLED_BACK}


class Violation(Struct, frozen=True):
    """A promise that was not kept. `promise`: its letter in the design."""

    promise: str
    about: str
    what: str

    def __str__(self) -> str:
        return f"promise {self.promise} broken: {self.what}" + (f" ({self.about})" if self.about else "")


class Visible(Struct, frozen=True):
    """A record as a committed reader found it."""

    topic: str
    topic_id: str
    queue_id: int
    stored: StoredMessage


class Evidence:
    """What is known after a run."""

    def __init__(
        self, schedule: Schedule, topics: InternalTopics, archive: Archive,
        heard: Sequence[Heard], asked: Sequence[Asked], engine: Engine,
    ) -> None:  # fmt: skip
        self.schedule = schedule
        self.topics = topics
        self.archive = archive
        self.heard = heard
        self.asked = asked
        self.engine = engine
        self._times: dict[str, list[CheckTimes]] = {}
        self.healed_ms = 0
        """When the last fault was over, by the monotonic clock; 0: never."""
        self.operating: Operating | None = None
        self.pausing: Pausing | None = None
        self.begun: Sequence[Begun] = ()
        """All calls of endpoints, as they began."""
        self.exchanges: Sequence[Exchange] = ()
        """All calls of endpoints, as they ended."""
        self.late_calls: Sequence[tuple[int, str]] = ()
        """Calls of an instance that had gone: when, and by whom."""

    @cached_property
    def clock_ms(self) -> int:
        """By how much append times may differ from the time that there was, and from each other."""
        faults = self.schedule.faults
        return max((abs(f.delay_ms) for f in faults if f.kind is FaultKind.BROKER_CLOCK), default=0)

    @property
    def is_restored(self) -> bool:
        """Whether the database was set back: of what was compacted since nobody tells any more."""
        return self.operating is not None and self.operating.is_restored

    def times_of(self, group: str) -> list[CheckTimes]:
        """All that the settings of a group may have said in the run."""
        if group not in self._times:
            self._times[group] = possible_times(group, self.schedule.situation)
        return self._times[group]

    def first_due_ms(self, truth: Truth) -> int:
        """Nobody may be asked about it before."""
        timeout_ms = min(times.transaction_timeout_ms for times in self.times_of(truth.group))
        return truth.appended_ms + max(timeout_ms, truth.immunity_s * 1000)

    def most_checks(self, truth: Truth) -> int:
        """How many answered checks it may have in one life."""
        return truth.max_checks or max(times.max_checks for times in self.times_of(truth.group))

    @cached_property
    def truth(self) -> Mapping[str, Truth]:
        return find_truth(self.archive, self.topics)

    @cached_property
    def stuck(self) -> set[str]:
        """Commits that may stay blocked to the end."""
        return find_stuck(self.truth.values(), self.schedule.situation.bad)

    @cached_property
    def ops(self) -> Mapping[str, OpMessage]:
        return self.archive.last_ops(self.topics)

    @cached_property
    def op_history(self) -> Sequence[tuple[int, OpMessage]]:
        """Every op message that there ever was, with its append time, in order of its queue."""
        return self.archive.op_history(self.topics)

    @cached_property
    def abandoned(self) -> Collection[str]:
        """Commits that were given up: they owe no record."""
        return {i for i, op in self.ops.items() if op.transaction.abandoned}

    @cached_property
    def ends(self) -> Sequence[Ended]:
        return find_ends(self.archive, self.topics)

    @cached_property
    def ends_of(self) -> Mapping[str, Sequence[Ended]]:
        """Every end record by transaction id."""
        found: dict[str, list[Ended]] = defaultdict(list)
        for end in self.ends:
            found[end.transaction_id].append(end)
        return found

    @cached_property
    def acts(self) -> Sequence[tuple[int, ActRecord]]:
        """Operators' acts with their append times."""
        return find_acts(self.archive, self.topics)

    @cached_property
    def acts_of(self) -> Mapping[str, Sequence[ActRecord]]:
        """Operators' acts by transaction id."""
        found: dict[str, list[ActRecord]] = defaultdict(list)
        for _, act in self.acts:
            found[act.transaction_id].append(act)
        return found

    @cached_property
    def answers(self) -> Mapping[str, Sequence[Ended]]:
        """Recorded answers to checks by transaction id."""
        found: dict[str, list[Ended]] = defaultdict(list)
        for end in self.ends:
            if end.source is Source.CHECK:
                found[end.transaction_id].append(end)
        return found

    @cached_property
    def visible(self) -> Mapping[str, list[Visible]]:
        """Records of ours by transaction id."""
        found: dict[str, list[Visible]] = defaultdict(list)
        for topic in TOPICS:
            for (topic_id, queue_id), messages in self.archive.read(topic):
                for stored in messages:
                    names = [value for name, value in stored.headers if name == TRANSACTION_ID_HEADER]
                    if names or stored.key != b"foreign":
                        owner = names[-1].decode() if names and names[-1] else ""
                        found[owner].append(Visible(topic, topic_id, queue_id, stored))
        return found


def check_promises(evidence: Evidence) -> list[Violation]:
    """All violations, the gravest first."""
    checks = (_published, _ordered, _agreed, _answered, _conserved, _checked, _kept)
    return [violation for check in checks for violation in check(evidence)]


def check_records(evidence: Evidence) -> list[Violation]:
    """What real topics and op topic alone show to be broken."""
    return [violation for check in (_published, _ordered, _agreed) for violation in check(evidence)]


def _published(evidence: Evidence) -> Iterator[Violation]:
    """L, P, D, I: exactly the prepared records of exactly the committed transactions, once each."""
    for transaction_id, records in evidence.visible.items():
        truth = evidence.truth.get(transaction_id)
        if truth is None or truth.state is not _COMMITTED:
            state = truth.state.value if truth else "never prepared"
            yield Violation("P", transaction_id, f"{len(records)} records are visible, but it is {state}")
    for transaction_id, truth in evidence.truth.items():
        op = evidence.ops.get(transaction_id)
        if transaction_id in evidence.abandoned:
            if count := len(evidence.visible.get(transaction_id, [])):
                yield Violation("P", transaction_id, f"{count} records are visible, but it is abandoned")
        elif op is not None and op.transaction.blocked:
            yield from _judge_blocked(evidence, truth)
        elif truth.state is _COMMITTED:
            buried = {topic for topic, of in evidence.archive.buried if of == transaction_id}
            yield from _compare(truth, evidence.visible.get(transaction_id, []), buried)


def _judge_blocked(evidence: Evidence, truth: Truth) -> Iterator[Violation]:
    """What stays blocked is where a destination stays bad, and nothing of it is seen."""
    if truth.transaction_id not in evidence.stuck:
        yield Violation("L", truth.transaction_id, "blocked to the end, although its destinations work")
    if evidence.visible.get(truth.transaction_id):
        yield Violation("D", truth.transaction_id, "blocked, and yet records of it are visible")


def _compare(truth: Truth, records: Sequence[Visible], buried: Collection[str]) -> Iterator[Violation]:
    transaction_id = truth.transaction_id
    found = Counter((r.topic, r.stored.value) for r in records)
    wanted = Counter((m.topic, m.value) for m in truth.messages)
    for (topic, value), count in wanted.items():
        seen = found.pop((topic, value), 0)
        if seen < count and topic in buried:
            continue
        if seen < count:
            kind = "is torn" if records else "is lost"
            yield Violation(
                "L", transaction_id, f"a committed transaction {kind}: {topic} lacks {(value or b'')[:12]!r}"
            )
        elif seen > count:
            yield Violation("D", transaction_id, f"{topic} holds {(value or b'')[:12]!r} {seen} times")
    if found:
        yield Violation("I", transaction_id, f"other values than prepared: {list(found)[:2]}")
    for record in records:
        alike = [m for m in truth.messages if (m.topic, m.value) == (record.topic, record.stored.value)]
        differences = [_differs(truth, m, record) for m in alike]
        if differences and None not in differences:
            yield Violation("I", transaction_id, str(differences[0]))


def _differs(truth: Truth, message: Message, record: Visible) -> str | None:
    stored = record.stored
    headers = [(name, value) for name, value in stored.headers if name != TRANSACTION_ID_HEADER]
    if stored.key != message.key:
        return f"key {stored.key!r} instead of {message.key!r}"
    if headers != [(name, value) for name, value in message.headers]:
        return f"headers {headers} instead of {list(message.headers)}"
    timestamp_ms = truth.decided_ms if message.timestamp_ms is None else message.timestamp_ms
    if stored.stored_ms != timestamp_ms:
        return f"timestamp {stored.stored_ms} instead of {timestamp_ms}"
    if message.queue_id >= 0 and record.queue_id != message.queue_id:
        return f"partition {record.queue_id} instead of {message.queue_id}"
    return None


def _ordered(evidence: Evidence) -> Iterator[Violation]:
    """O: of one ordering key, in each partition, in the order in which the commits were recorded."""
    lanes: dict[tuple[object, ...], list[tuple[int, int, str]]] = defaultdict(list)
    for transaction_id, records in evidence.visible.items():
        truth = evidence.truth.get(transaction_id)
        if truth is not None:
            for r in records:
                lane = (truth.queue_id, truth.ordering, r.topic_id, r.queue_id)
                lanes[lane].append((r.stored.queue_offset, truth.decided_at, transaction_id))
    blocked_at = _find_blocked_lanes(evidence)
    for lane, entries in lanes.items():
        first_blocked = blocked_at.get((lane[0], lane[1]))
        for _, decided_at, transaction_id in entries if first_blocked is not None else ():
            if first_blocked is not None and decided_at > first_blocked:
                yield Violation("O", transaction_id, f"published although an earlier commit of {lane[1]!r} is blocked")
        entries.sort()
        for (_, before, _), (_, after, transaction_id) in itertools.pairwise(entries):
            if after < before:
                yield Violation("O", transaction_id, f"published behind a later commit of {lane[1]!r} in {lane[2:]}")


def _find_blocked_lanes(evidence: Evidence) -> dict[tuple[object, ...], int]:
    """Where the first blocked commit of each ordering key was recorded."""
    found: dict[tuple[object, ...], int] = {}
    for transaction_id, op in evidence.ops.items():
        truth = evidence.truth.get(transaction_id)
        if op.transaction.blocked and truth is not None:
            lane = (truth.queue_id, truth.ordering)
            found[lane] = min(found.get(lane, truth.decided_at), truth.decided_at)
    return found


def _agreed(evidence: Evidence) -> Iterator[Violation]:
    """F, S: op topic and projection say what the journal says; nothing is left undecided."""
    rows = {}
    if evidence.schedule.has_sql:
        with evidence.engine.begin() as connection:
            rows = find_many(connection, list(evidence.truth))
    for transaction_id, truth in evidence.truth.items():
        op, row = evidence.ops.get(transaction_id), rows.get(transaction_id)
        state = op.transaction.state if op else _PREPARED
        if truth.state in _FINAL and state is not truth.state:
            yield Violation("F", transaction_id, f"op topic says {state.value}, the journal {truth.state.value}")
        if truth.state not in _FINAL and state is not _PARKED:
            yield Violation("S", transaction_id, f"neither decided nor parked: {state.value}")
        if not evidence.schedule.has_sql:
            continue
        if row is None:
            yield Violation("S", transaction_id, "the projection does not list it")
        elif row.state is not state:
            yield Violation("F", transaction_id, f"projection says {row.state.value}, op topic {state.value}")
    for transaction_id in evidence.ops.keys() - evidence.truth.keys():
        yield Violation("P", transaction_id, "an op message about a transaction that no journal holds")


def _answered(evidence: Evidence) -> Iterator[Violation]:
    """A, F: what callers heard is so."""
    finals: dict[int, TransactionState] = {}
    ids: dict[int, str] = {}
    for heard in evidence.heard:
        if heard.transaction_id is not None and heard.outcome == "ok":
            if ids.setdefault(heard.number, heard.transaction_id) != heard.transaction_id:
                yield Violation("D", heard.transaction_id, f"client {heard.number} heard of two transactions")
            if heard.transaction_id not in evidence.truth:
                yield Violation("S", heard.transaction_id, f"client {heard.number} heard ok; no journal holds it")
        if heard.state in _FINAL:
            assert heard.state is not None
            if finals.setdefault(heard.number, heard.state) is not heard.state:
                yield Violation("F", str(heard.number), f"heard {finals[heard.number].value}, then {heard.state.value}")
            truth = evidence.truth.get(heard.transaction_id or "")
            if truth is not None and truth.state is not heard.state:
                yield Violation("F", truth.transaction_id, f"heard {heard.state.value}, it is {truth.state.value}")
        if heard.verb in {None, Verb.PREPARE_AGAIN} and heard.outcome == "ok" and heard.state is _PREPARED:
            yield from _judge_prepared(evidence, heard)
        if heard.verb is None or heard.verb is Verb.LOOK or heard.outcome == "unknown":
            continue
        yield from _judge_end(heard)


def _judge_prepared(evidence: Evidence, heard: Heard) -> Iterator[Violation]:
    """PREPARED makes the caller run his local transaction: never told of one that had ended before he asked."""
    truth = evidence.truth.get(heard.transaction_id or "")
    if truth is not None and truth.state in _FINAL and truth.decided_ms + evidence.clock_ms < START_MS + heard.began_ms:
        yield Violation("A", truth.transaction_id, f"told PREPARED after it was {truth.state.value}")


def _judge_end(heard: Heard) -> Iterator[Violation]:
    wanted = {Verb.COMMIT: _COMMITTED, Verb.FORCE_COMMIT: _COMMITTED, Verb.ROLLBACK: _ROLLED_BACK,
              Verb.FORCE_ROLLBACK: _ROLLED_BACK}.get(heard.verb) if heard.verb else None  # fmt: skip
    if wanted is not None and heard.outcome == "ok" and heard.code != "accepted" and heard.state is not wanted:
        yield Violation("A", heard.transaction_id or "", f"{heard.verb} answered ok with {heard.state}")
    if heard.verb in {Verb.COMMIT, Verb.ROLLBACK} and heard.code == "unknown-transaction":
        yield Violation("S", str(heard.number), "an acknowledged transaction is unknown")


def _conserved(evidence: Evidence) -> Iterator[Violation]:
    """C: the running counts are what the journal says."""
    if not evidence.schedule.has_sql:
        return
    with evidence.engine.begin() as connection:
        stats = read_stats(connection, 0)
    for group in {truth.group for truth in evidence.truth.values()}:
        states = Counter(
            truth.state if truth.state in _FINAL else _PARKED
            for truth in evidence.truth.values()
            if truth.group == group
        )
        counted = stats.groups.get(group)
        blocked = sum(op.transaction.blocked and op.transaction.group == group for op in evidence.ops.values())
        given_up = sum(evidence.truth[i].group == group for i in evidence.abandoned)
        found = None
        if counted is not None:
            c = counted
            ages = sum(count for _, count in c.age_histogram)
            found = (c.committed, c.blocked, c.abandoned, c.rolled_back, c.parked, c.pending, ages)
        wanted = (states[_COMMITTED], blocked, given_up, states[_ROLLED_BACK], states[_PARKED], 0, 0)
        if found != wanted:
            names = "committed, blocked, abandoned, rolled back, parked, pending, of an age"
            what = f"{names} are counted {found}, not {wanted}"
            yield Violation("C", group, what)


def _checked(evidence: Evidence) -> Iterator[Violation]:
    """K: none too early, none that was decided before it was due, no more answered ones than allowed."""
    start_ms, clock_ms = START_MS, evidence.clock_ms
    for asked in evidence.asked:
        truth = evidence.truth.get(asked.transaction_id)
        if truth is None:
            yield Violation("K", asked.transaction_id, "a check about a transaction that no journal holds")
            continue
        due_ms = evidence.first_due_ms(truth) - clock_ms
        if start_ms + asked.at_ms < due_ms:
            yield Violation("K", asked.transaction_id, f"asked {due_ms - start_ms - asked.at_ms} ms too early")
        if truth.decided_at >= 0 and truth.decided_ms < due_ms - clock_ms:
            yield Violation("K", asked.transaction_id, "asked about although it ended before its first check was due")
        if asked.check_number < 1:
            yield Violation("K", asked.transaction_id, f"check number {asked.check_number}")
    given = {(asked.transaction_id, asked.check_number, asked.answer) for asked in evidence.asked}
    for answer in itertools.chain.from_iterable(evidence.answers.values()):
        if (answer.transaction_id, answer.check_number, answer.resolution) not in given:
            what = f"{answer.resolution.name} is recorded for check {answer.check_number}; no endpoint said so"
            yield Violation("K", answer.transaction_id, what)
    for truth in evidence.truth.values():
        if truth.most_answered > evidence.most_checks(truth):
            what = f"{truth.most_answered} answered checks, {evidence.most_checks(truth)} allowed"
            yield Violation("K", truth.transaction_id, what)


def _kept(evidence: Evidence) -> Iterator[Violation]:
    """A: what was refused as not applied, every time, is nowhere."""
    outcomes: dict[int, set[str]] = defaultdict(set)
    for heard in evidence.heard:
        if heard.verb is None or heard.verb is Verb.PREPARE_AGAIN:
            outcomes[heard.number].add(heard.outcome)
    by_marker = {
        truth.messages[0].value.split(b"|")[0]: t for t, truth in evidence.truth.items() if truth.messages[0].value
    }
    for number, seen in outcomes.items():
        stored = by_marker.get(b"%d" % number)
        if seen == {"fail"} and stored is not None:
            yield Violation("A", stored, f"client {number} only heard that nothing was applied")
        if "ok" in seen and stored is None:
            yield Violation("S", str(number), f"client {number} heard ok, but no journal holds it")

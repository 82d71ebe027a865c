"""A bridge that keeps every promise, as small as can be: what clients would hear of it and what it would leave behind.

It is the source of correct histories; corruptions are made in what it tells. Each deed takes 10 ms of its clock.
"""

from enum import Enum
from typing import Any

import msgspec
from msgspec import Struct

from bridge.core.message import Message, Receipt
from tests.support.history.content import Content, make_content
from tests.support.history.events import MAKING, Call, Event, Fail, Invoke, Ok, Unknown
from tests.support.history.evidence import (
    COMMITTED,
    FINAL,
    PARKED,
    PREPARED,
    ROLLED_BACK,
    ActRow,
    AuditRow,
    CheckCall,
    CountsRow,
    EndRow,
    Evidence,
    HalfRow,
    JournalRow,
    OpRow,
    ParkedRow,
    PositionRow,
    RealRecord,
    ShownRow,
)
from tests.support.history.facts import FINAL_OF


class Fate(Enum):
    """What becomes of a call: heard; lost on the way back; the client killed; never arrived; refused."""

    HEARD = ""
    LOST = "?"
    KILLED = "~"
    NEVER = "?0"
    KILLED_BEFORE = "~0"
    REFUSED = "!"


class Made(Struct):
    """A transaction of the model."""

    invoke: Invoke
    op: OpRow
    half: HalfRow | None = None


class Ask(Struct):
    """What a prepare asks for besides the defaults."""

    group: str = "g"
    count: int = 1
    message_key: str | None = None
    ordering_key: str | None = None
    idempotency_key: str | None = None
    partition: int = -1
    twin: int | None = None  # the first message once more, to this partition
    timestamp_ms: int | None = None
    immunity_s: int | None = None
    max_checks: int | None = None


def make_messages(name: str, ask: Ask) -> tuple[Content, ...]:
    """Messages no other transaction has: to `orders`, then `credits`, in turn."""
    key = None if ask.message_key is None else ask.message_key.encode()
    made = tuple(
        make_content(
            Message(
                ("orders", "credits")[number % 2],
                key,
                f"{name}/{number} {'long ' * (number * 5)}".encode(),
                [("source", b"shop"), ("empty", b""), ("null", None)],
                ask.partition,
                ask.timestamp_ms,
            )
        )
        for number in range(ask.count)
    )
    return made if ask.twin is None else (*made, msgspec.structs.replace(made[0], partition=ask.twin))


class ModelBridge:
    """One queue, two topics with two partitions. Transaction ids are the names that the caller gives."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.events: list[Event] = []
        self.made: dict[str, Made] = {}
        self.journal: list[JournalRow] = []
        self.op: list[OpRow] = []
        self.parked: list[ParkedRow] = []
        self.records: list[RealRecord] = []
        self.aborted: list[RealRecord] = []
        self.consumed: list[RealRecord] = []
        self.checks: list[CheckCall] = []
        self.counts: list[CountsRow] = []
        self.audited: list[AuditRow] = []
        self.is_blocking = False
        self._calls = 0
        self._ends: dict[tuple[str, int], int] = {}

    # --- calls ---

    def prepare(
        self, name: str, ask: Ask, fate: Fate = Fate.HEARD, *, is_published: bool = False, source: str = ""
    ) -> None:
        """Prepare, or publish; `source`: the transaction whose bytes it has, its own by default."""
        invoke = self.invoke(
            Call.PUBLISH if is_published else Call.PREPARE,
            group=ask.group,
            messages=make_messages(source or name, ask),
            ordering_key=ask.ordering_key,
            idempotency_key=ask.idempotency_key,
            immunity_s=ask.immunity_s,
            max_checks=ask.max_checks,
        )
        if fate in {Fate.HEARD, Fate.LOST, Fate.KILLED}:
            self._store(name, invoke)
        self.end(invoke, name, fate)

    def resolve(self, name: str, call: Call, fate: Fate = Fate.HEARD, nonce: str | None = None) -> None:
        """Any other call for a transaction."""
        invoke = self.invoke(call, transaction_id=name, nonce=nonce)
        is_right = True
        if fate in {Fate.HEARD, Fate.LOST, Fate.KILLED}:
            is_right = self._apply(name, call)
        self.end(invoke, name, fate if is_right or fate is not Fate.HEARD else Fate.REFUSED)

    def invoke(self, call: Call, **members: Any) -> Invoke:
        """Begins a call."""
        self._calls += 1
        invoke = Invoke(f"c-{self._calls}", self.tick(), call, **members)
        self.events.append(invoke)
        return invoke

    def end(self, invoke: Invoke, name: str, fate: Fate) -> None:
        """Ends a call as the bridge would."""
        at_ms = self.tick()
        if fate in {Fate.LOST, Fate.NEVER}:
            self.events.append(Unknown(invoke.call_id, at_ms, 504, invoke.transaction_id, outcome="unknown"))
        elif fate in {Fate.HEARD, Fate.REFUSED}:
            self.events.append(self._answer(invoke, name, at_ms, is_refused=fate is Fate.REFUSED))

    def _answer(self, invoke: Invoke, name: str, at_ms: int, *, is_refused: bool) -> Event:
        made = self.made.get(name)
        if is_refused or made is None:
            is_known = made is not None and invoke.call not in MAKING
            state, problem = (
                (made.op.state, "already-resolved") if is_known and made is not None else (None, "illegal-topic")
            )
            return Fail(
                invoke.call_id, at_ms, 409, invoke.transaction_id, state, problem=problem, outcome="not_applied"
            )
        op = made.op
        is_new = invoke.call is Call.PREPARE and op.state == PREPARED
        status = 201 if is_new else 202 if op.blocked and invoke.call is not Call.GET else 200
        return Ok(invoke.call_id, at_ms, status, name, op.state, op.blocked, op.receipts, abandoned=op.abandoned)

    # --- what the bridge does ---

    def tick(self, ms: int = 10) -> int:
        """Time goes on."""
        self.now_ms += ms
        return self.now_ms

    def _store(self, name: str, invoke: Invoke) -> None:
        if name in self.made:
            return
        is_published = invoke.call is Call.PUBLISH
        half = HalfRow(
            0, len(self.journal), self.tick(), name, invoke.group or "", invoke.messages, invoke.ordering_key,
            invoke.idempotency_key, is_published,
        )  # fmt: skip
        self.journal.append(half)
        op = OpRow(0, 0, name, PREPARED, half.group, half.offset, half.stored_ms)
        self.made[name] = Made(invoke, op, half)
        if is_published:
            self._finish(name, COMMITTED, half.offset, half.stored_ms, "producer")

    def _apply(self, name: str, call: Call) -> bool:
        if call in {Call.GET, Call.CHECK, Call.UNKNOWN}:
            return name in self.made
        if call is Call.RESUME:
            return self.resume(name)
        if call is Call.ABANDON:
            return self.abandon(name)
        is_commit = call in {Call.COMMIT, Call.FORCE_COMMIT}
        self.append_end(name, "COMMIT" if is_commit else "ROLLBACK", "O" if "force" in call else "P")
        return name in self.made and self.made[name].op.state == (COMMITTED if is_commit else ROLLED_BACK)

    def append_end(self, name: str, resolution: str, source: str = "P", number: int = 0) -> None:
        """An end record, decided at once."""
        row = EndRow(0, len(self.journal), self.tick(), name, resolution, source, None, number)
        self.journal.append(row)
        made = self.made.get(name)
        if made is None or made.op.state in FINAL:
            return
        if source == "C":
            made.op = msgspec.structs.replace(made.op, check_times=number)
        if resolution in FINAL_OF:
            by = {"P": "producer", "C": "check", "O": "operator"}[source]
            self._finish(name, FINAL_OF[resolution], row.offset, row.stored_ms, by)
        else:
            self._write(name)

    def _finish(self, name: str, state: str, at: int, ended_ms: int, by: str) -> None:
        made = self.made[name]
        made.op = msgspec.structs.replace(made.op, state=state, at=at, ended_ms=ended_ms, by=by)
        if state == COMMITTED and self.is_blocking:
            made.op = msgspec.structs.replace(made.op, blocked=True)
        elif state == COMMITTED:
            made.op = msgspec.structs.replace(made.op, receipts=self._publish(name))
        self._write(name)

    def _publish(self, name: str) -> tuple[Receipt, ...]:
        made = self.made[name]
        published = [self._record(content, made.op) for content in made.invoke.messages]
        self.records += published
        return tuple(Receipt(*record.place) for record in published)

    def _record(self, content: Content, op: OpRow) -> RealRecord:
        partition = content.partition if content.partition >= 0 else sum(content.key or b"") % 2
        queue = (content.topic, partition)
        offset = self._ends.get(queue, 0)
        self._ends[queue] = offset + 1
        timestamp_ms = content.timestamp_ms if content.timestamp_ms is not None else op.ended_ms or 0
        return RealRecord(
            *queue, offset, timestamp_ms, content.key, content.value, content.headers, op.transaction_id or None
        )

    def _write(self, name: str) -> None:
        made = self.made[name]
        made.op = msgspec.structs.replace(made.op, offset=len(self.op), stored_ms=self.now_ms)
        self.op.append(made.op)

    def unblock(self, name: str) -> None:
        """The destination is well again."""
        made = self.made[name]
        made.op = msgspec.structs.replace(
            made.op, blocked=False, at=len(self.journal) - 1, receipts=self._publish(name)
        )
        self._write(name)

    def rewrite(self, name: str) -> None:
        """A repeat of an ended one, or a put back."""
        self._write(name)

    def park(self, name: str) -> None:
        """Discards a PREPARED one."""
        made = self.made[name]
        row = ParkedRow(len(self.parked), name, made.invoke.messages)
        self.parked.append(row)
        made.op = msgspec.structs.replace(
            made.op, state=PARKED, at=len(self.journal) - 1, by="timer", parked=row.offset
        )
        self._write(name)

    def resume(self, name: str) -> bool:
        """PARKED to PREPARED."""
        made = self.made.get(name)
        if made is None or made.op.state != PARKED:
            return False
        made.op = msgspec.structs.replace(made.op, state=PREPARED, by="operator")
        self._write(name)
        return True

    def abandon(self, name: str) -> bool:
        """Gives a blocked commit up; the act lies in the journal whatever it finds."""
        made = self.made[name]
        row = ActRow(0, len(self.journal), self.tick(), name, "ABANDON")
        self.journal.append(row)
        self.audited.append(AuditRow(name))
        if not made.op.blocked:
            return False
        made.op = msgspec.structs.replace(made.op, blocked=False, abandoned=True, at=row.offset)
        self._write(name)
        return True

    def check(self, name: str, answer: str | None, *, arrives: bool = True) -> None:
        """A check reaches the endpoint; its answer reaches the journal."""
        made = self.made[name]
        number = made.op.check_times + 1
        self.checks.append(CheckCall(self.tick(), name, number, f"{name}{number}", made.op.group, answer))
        if answer is not None and arrives:
            self.append_end(name, answer, "C", number)

    def abort(self, name: str) -> None:
        """A Kafka transaction with its records is aborted: they take offsets."""
        made = self.made[name]
        self.aborted += [self._record(content, made.op) for content in made.invoke.messages]

    def write_foreign(self) -> None:
        """Another producer's record in one of the topics."""
        record = self._record(Content("orders", b"foreign", b"not ours", b""), OpRow(0, 0, "", PREPARED, ""))
        self.records.append(record)

    def repeat_half(self, name: str, *, is_void: bool) -> None:
        """The half message once more; void ones carry another time of look-up."""
        half = self.made[name].half
        if half is not None:
            again = msgspec.structs.replace(half, offset=len(self.journal), stored_ms=self.tick(), is_void=is_void)
            self.journal.append(again)

    def count(self, *, is_last: bool = False) -> None:
        """An observation of the counts, group by group."""
        for group in sorted({made.op.group for made in self.made.values()}):
            ops = [made.op for made in self.made.values() if made.op.group == group]
            states = [op.state for op in ops]
            self.counts.append(
                CountsRow(
                    self.tick(), group, len(ops), states.count(COMMITTED), states.count(ROLLED_BACK),
                    states.count(PARKED), states.count(PREPARED), sum(op.blocked for op in ops), is_last,
                    sum(op.abandoned for op in ops),
                )
            )  # fmt: skip

    def consume(self) -> None:
        """A read_committed consumer gets everything, from the beginning."""
        self.consumed += self.records

    def collect(self) -> Evidence:
        """What is found when all is at rest."""
        self.count(is_last=True)
        shown = [
            ShownRow(
                name, made.op.group, made.op.state, made.op.blocked, made.op.check_times, made.op.receipts,
                made.invoke.idempotency_key, made.op.abandoned,
            )
            for name, made in self.made.items()
        ]  # fmt: skip
        return Evidence(
            committed=list(self.records),
            uncommitted=self.records + self.aborted,
            consumed=list(self.consumed),
            journal=list(self.journal),
            op=list(self.op),
            positions=[PositionRow(0, 0, len(self.journal))],
            parked=list(self.parked),
            sql=shown,
            shown=list(shown),
            checks=list(self.checks),
            counts=list(self.counts),
            audited=list(self.audited),
        )

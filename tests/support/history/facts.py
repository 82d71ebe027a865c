"""All that is known of one transaction: what clients asked and heard, what each view of the run holds."""

from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct

from tests.support.history.content import Content, Mark
from tests.support.history.events import End, Invoke
from tests.support.history.evidence import (
    COMMITTED,
    FINAL,
    ROLLED_BACK,
    ActRow,
    CheckCall,
    EndRow,
    HalfRow,
    OpRow,
    ParkedRow,
    RealRecord,
    ShownRow,
)

T = TypeVar("T")


class Heard(Struct, frozen=True, gc=False):
    """An answer that tells a state: the call was made at `asked_ms` and heard it at `heard_ms`. `blocked` None: the
    answer does not say."""

    call_id: str
    asked_ms: int
    heard_ms: int
    state: str
    blocked: bool | None
    receipts: tuple[tuple[str, int, int | None], ...]


class Side(Struct, gc=False):
    """What may have led to one of the two ends. `first_ms`: not before; `ok`: a call told that it is so, at
    `ok_ms` first; `refused`: a call that was not applied."""

    first_ms: int | None = None
    ok: str | None = None
    ok_ms: int | None = None
    refused: str | None = None

    def may_begin(self, at_ms: int) -> None:
        """Something that may lead to this end began."""
        if self.first_ms is None or at_ms < self.first_ms:
            self.first_ms = at_ms

    def note(self, invoke: Invoke, end: End | None, *, is_told: bool, is_refused: bool) -> None:
        """A call for this end."""
        if is_refused:
            self.refused = self.refused or invoke.call_id
            return
        self.may_begin(invoke.at_ms)
        if is_told and end is not None and (self.ok_ms is None or end.at_ms < self.ok_ms):
            self.ok, self.ok_ms = invoke.call_id, end.at_ms


class Facts(Struct, gc=False):
    """One transaction. `contents` None: nobody is known to have asked for it. The first group is what clients told,
    the second what lies in Kafka and SQL; `state` is the truth that all views must share. `published_ms`: append time
    of the first op message that says so. `given_up_by`: a call that may have abandoned it; `given_up`: the act in the
    journal."""

    transaction_id: str
    group: str | None = None
    contents: tuple[Content, ...] | None = None
    order: Mark = None
    asked_ms: int = 0
    immunity_s: int = 0
    max_checks: int | None = None
    acked: str | None = None
    acked_ms: int = 0
    refused: str | None = None
    unknown: str | None = None
    lies: tuple[str, ...] = ()
    commit: Side | None = None
    rollback: Side | None = None
    first_final: Heard | None = None
    first_published: Heard | None = None
    last_open: Heard | None = None
    last_blocked: Heard | None = None
    odd: Heard | None = None
    forgotten: Heard | None = None
    resumes: int = 0
    is_hastened: bool = False
    given_up_by: str | None = None
    first_abandoned: Heard | None = None

    state: str | None = None
    half: HalfRow | None = None
    decided: HalfRow | EndRow | None = None
    op: OpRow | None = None
    op_odd: OpRow | None = None
    published_ms: int | None = None
    given_up: ActRow | None = None
    is_audited: bool = False
    sql: ShownRow | None = None
    shown: ShownRow | None = None
    parked: ParkedRow | None = None
    parks: Sequence[OpRow] = ()
    records: Sequence[RealRecord] = ()
    aborted: RealRecord | None = None
    checks: Sequence[CheckCall] = ()

    def committing(self) -> Side:
        """What may have committed it."""
        if self.commit is None:
            self.commit = Side()
        return self.commit

    def rolling_back(self) -> Side:
        """What may have rolled it back."""
        if self.rollback is None:
            self.rollback = Side()
        return self.rollback

    def add_record(self, record: RealRecord) -> None:
        """One more that can be read."""
        self.records = _extend(self.records, record)

    def add_park(self, row: OpRow) -> None:
        """One more op message that says PARKED."""
        self.parks = _extend(self.parks, row)

    def add_check(self, call: CheckCall) -> None:
        """One more that reached an endpoint."""
        self.checks = _extend(self.checks, call)

    def is_published(self) -> bool:
        """Whether its records must be there."""
        if self.is_abandoned():
            return False
        return self.state == COMMITTED and not (self.op is not None and self.op.blocked)

    def is_abandoned(self) -> bool:
        """Whether an operator has given up its publication; by the op topic, or the next best view."""
        view = self.op or self.sql or self.shown
        return view.abandoned if view is not None else self.first_abandoned is not None

    def appended_ms(self) -> int:
        """When its half message was appended; not before, if no view tells."""
        if self.half is not None:
            return self.half.stored_ms
        return self.op.appended_ms if self.op is not None and self.op.appended_ms else self.asked_ms

    def resolved_ms(self) -> int | None:
        """When its resolution was recorded; not after, if no view tells."""
        if self.decided is not None:
            return self.decided.stored_ms
        if self.op is not None and self.op.state in FINAL and self.op.ended_ms is not None:
            return self.op.ended_ms
        return None if self.first_final is None else self.first_final.heard_ms

    def hear(self, heard: Heard, *, is_abandoned: bool = False) -> None:
        """An answer with a state; of many only those are kept that can contradict others."""
        if is_abandoned:
            self.first_abandoned = _earlier(self.first_abandoned, heard)
        if heard.state not in FINAL:
            self.last_open = _later(self.last_open, heard)
            return
        known = self.first_final
        if known is not None and (heard.state != known.state or _are_other(heard, self.first_published or known)):
            self.odd = self.odd or heard
        self.first_final = _earlier(known, heard)
        if heard.blocked:
            self.last_blocked = _later(self.last_blocked, heard)
        elif heard.blocked is False:
            self.first_published = _earlier(self.first_published, heard)


FINAL_OF = {"COMMIT": COMMITTED, "ROLLBACK": ROLLED_BACK}


def are_other_receipts(
    one: tuple[tuple[str, int, int | None], ...], other: tuple[tuple[str, int, int | None], ...]
) -> bool:
    """Whether two lists of receipts contradict each other; an offset may be unknown."""
    if len(one) != len(other):
        return True
    return any(a[:2] != b[:2] or (a[2] != b[2] and None not in (a[2], b[2])) for a, b in zip(one, other, strict=True))


def _extend(rows: Sequence[T], row: T) -> list[T]:
    """Most transactions have no row or one: no empty list is kept for each."""
    if not isinstance(rows, list):
        return [row]
    rows.append(row)
    return rows


def _are_other(one: Heard, other: Heard) -> bool:
    return bool(one.receipts and other.receipts) and are_other_receipts(one.receipts, other.receipts)


def _earlier(known: Heard | None, heard: Heard) -> Heard:
    return heard if known is None or heard.heard_ms < known.heard_ms else known


def _later(known: Heard | None, heard: Heard) -> Heard:
    return heard if known is None or heard.asked_ms > known.asked_ms else known

"""What a run left behind, to be held against its history. Every part but the records is optional: None is not empty.

Rows of one queue come in the order of their offsets; parts are iterated once. `tests.support.history.raw_records`
makes rows of what Kafka holds, with readers of its own, so that an error in the bridge's codecs shows.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct

from bridge.core.message import Receipt
from tests.support.history.content import Content, Mark

PREPARED, PARKED, COMMITTED, ROLLED_BACK = "PREPARED", "PARKED", "COMMITTED", "ROLLED_BACK"
FINAL = frozenset({COMMITTED, ROLLED_BACK})

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class RealRecord(Struct, frozen=True, gc=False, omit_defaults=True):
    """A record of a real topic. `headers` without the transaction id header, which must be the last one."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Mark
    value: Mark
    headers: bytes
    transaction_id: str | None = None

    @property
    def place(self) -> Place:
        return self.topic, self.partition, self.offset


class HalfRow(Struct, frozen=True, gc=False):
    """A half message of the journal. `is_void`: appended too long after its look-up."""

    queue_id: int
    offset: int
    stored_ms: int
    transaction_id: str
    group: str
    contents: tuple[Content, ...]
    ordering_key: str | None = None
    idempotency_key: str | None = None
    is_published: bool = False
    is_void: bool = False


class EndRow(Struct, frozen=True, gc=False):
    """A resolution in the journal. `source`: P, C or O; `check_number` for C."""

    queue_id: int
    offset: int
    stored_ms: int
    transaction_id: str
    resolution: str  # COMMIT, ROLLBACK, UNKNOWN
    source: str = "P"
    group: str | None = None
    check_number: int = 0


class ActRow(Struct, frozen=True, gc=False):
    """An operator's act in the journal."""

    queue_id: int
    offset: int
    stored_ms: int
    transaction_id: str
    act: str  # CHECK, RESUME, ABANDON


JournalRow = HalfRow | EndRow | ActRow


class OpRow(Struct, frozen=True, gc=False):
    """An op message that tells a transaction's state; appended itself at `stored_ms`. `why` it is parked or blocked;
    `base`: answered checks of earlier lives."""

    queue_id: int
    offset: int
    transaction_id: str
    state: str
    group: str
    at: int = 0
    appended_ms: int = 0
    ended_ms: int | None = None
    blocked: bool = False
    check_times: int = 0
    by: str | None = None
    parked: int | None = None
    receipts: tuple[Receipt, ...] = ()
    stored_ms: int = 0
    why: str | None = None
    base: int = 0
    abandoned: bool = False


class PositionRow(Struct, frozen=True, gc=False):
    """A position of a queue. `s`: next journal offset to decide."""

    queue_id: int
    offset: int
    s: int


class ParkedRow(Struct, frozen=True, gc=False):
    """A record of the parked topic."""

    offset: int
    transaction_id: str
    contents: tuple[Content, ...]


class ShownRow(Struct, frozen=True, gc=False, omit_defaults=True):
    """A transaction as SQL holds it or as GET /v1/transactions/{id} shows it when the run is over."""

    transaction_id: str
    group: str
    state: str
    blocked: bool = False
    check_times: int = 0
    receipts: tuple[Receipt, ...] = ()
    idempotency_key: str | None = None
    abandoned: bool = False


class CheckCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """A check as it reached a producer group's endpoint. `answer`: what was said in time, COMMIT, ROLLBACK or
    UNKNOWN; None if nothing that counts was said, or if the check was fetched (pull mode)."""

    at_ms: int
    transaction_id: str
    check_number: int
    nonce: str
    group: str = ""
    answer: str | None = None


class CountsRow(Struct, frozen=True, gc=False, omit_defaults=True):
    """Counts of a producer group at one observation. `is_last`: read when all else was at rest."""

    at_ms: int
    group: str
    prepared: int
    committed: int
    rolled_back: int
    parked: int
    pending: int
    blocked: int = 0
    is_last: bool = False
    abandoned: int = 0


class AuditRow(Struct, frozen=True, gc=False):
    """An entry of the audit: somebody wanted to abandon it."""

    transaction_id: str


class Gone(Struct, frozen=True):
    """A real topic that was deleted, and made again under the same name. From `from_ms` on its partitions, which ended
    at `ends` then, were read at both levels; by `until_ms` the new one was there."""

    topic: str
    from_ms: int
    until_ms: int
    ends: dict[int, int]
    committed: list[RealRecord]
    uncommitted: list[RealRecord]


class Evidence(Struct, frozen=True):
    """All that was found. `committed`, `uncommitted`: every real topic at both isolation levels, whole. `consumed`:
    what committed readers got during the run, repeats and all. `op`: at least the last op message of each id;
    `checks`: all calls of all endpoints, in the order in which each got them. `gone`: what the real topics of the other
    parts held before they were deleted."""

    committed: Iterable[RealRecord]
    uncommitted: Iterable[RealRecord] | None = None
    consumed: Iterable[RealRecord] | None = None
    journal: Iterable[JournalRow] | None = None
    op: Iterable[OpRow] | None = None
    positions: Iterable[PositionRow] | None = None
    parked: Iterable[ParkedRow] | None = None
    sql: Iterable[ShownRow] | None = None
    shown: Iterable[ShownRow] | None = None
    checks: Iterable[CheckCall] | None = None
    counts: Iterable[CountsRow] | None = None
    gone: Iterable[Gone] = ()
    audited: Iterable[AuditRow] | None = None


def nothing_is_foreign(_: RealRecord) -> bool:
    """The topics belong to the run alone."""
    return False


class GroupRules(Struct, frozen=True, gc=False):
    """Settings of a producer group that the checks depend on."""

    timeout_ms: int = 6_000
    interval_ms: int = 30_000
    max_checks: int = 15
    max_life_ms: int = 86_400_000


class Trouble(Struct, frozen=True, gc=False):
    """Meanwhile, and so long as somebody may remember it, calls for a real topic may be refused with these problems."""

    topic: str
    problems: frozenset[str]
    from_ms: int
    until_ms: int


class Rules(Struct, frozen=True):
    """What the run allows. `may_pend`, `may_block`: transactions may be left PREPARED, or blocked.

    `is_foreign`: records of other producers. `in_flight_ms`: a check may still arrive so long after a resolution was
    recorded. `clock_slack_ms`: how far the clients', endpoints' and brokers' clocks may be apart. `append_time`:
    topics that overrule timestamps. `groups`: settings by name, the defaults for all others. `troubles`: all that can
    have been wrong with real topics; None: nobody kept account of it.
    """

    is_foreign: Callable[[RealRecord], bool] = nothing_is_foreign
    may_pend: bool = False
    may_block: bool = False
    in_flight_ms: int = 1_000
    clock_slack_ms: int = 0
    append_time: frozenset[str] = frozenset()
    groups: dict[str, GroupRules] = {}
    troubles: tuple[Trouble, ...] | None = None

"""A transaction as its queue's owner knows it."""

from enum import StrEnum

from msgspec import Struct

from bridge.core.record import Resolution


class TransactionState(StrEnum):
    """Facts; the first two are not final."""

    PREPARED = "PREPARED"
    PARKED = "PARKED"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"


# Members by name: looking one up in its class costs ten times as much, and that for every record.
PREPARED = TransactionState.PREPARED
PARKED = TransactionState.PARKED
COMMITTED = TransactionState.COMMITTED
ROLLED_BACK = TransactionState.ROLLED_BACK

STATE_AFTER = {Resolution.COMMIT: COMMITTED, Resolution.ROLLBACK: ROLLED_BACK}
RESOLUTION_OF = {state: resolution for resolution, state in STATE_AFTER.items()}

# Why a transaction is parked or blocked, where the reason is the bridge's own.
MAX_CHECKS = "MAX_CHECKS"
MAX_LIFE = "MAX_LIFE"
NO_ENDPOINT = "NO_ENDPOINT"
SPLIT = "SPLIT"  # decided, to be tried apart from the others; nobody is woken for it, so it never stays
UNTRIED = "UNTRIED"  # split off, and others are tried before it for longer than callers should wait
ORDER = "ORDER"  # behind a blocked one of the same effective ordering key
BODY_EXPIRED = "BODY_EXPIRED"  # no log has the messages any more


class Transaction(Struct, frozen=True, gc=False):
    """One transaction. Offsets are the journal's, times are Kafka's append times in milliseconds.

    `half`, `appended_ms`: its half message. `at`: the record that caused the present state. `end`,
    `ended_ms`, `by`: the deciding end. `since_ms`: start of its life, moved by a resume; `base`: check
    times at that moment. `max_checks`, `max_life_s`: its own limits, else its group's hold. `okey`: hash
    of the effective ordering key. `parked`: offset of its copy in the parked topic. `abandoned`: committed, and given
    up by an operator while it was blocked, for `why`: it is never published.
    """

    transaction_id: str
    group: str
    half: int
    appended_ms: int
    okey: int
    state: TransactionState = PREPARED
    at: int = 0
    since_ms: int = 0
    next_due_ms: int = 0
    check_times: int = 0
    base: int = 0
    max_checks: int | None = None
    max_life_s: int | None = None
    by: str | None = None
    end: int | None = None
    ended_ms: int | None = None
    blocked: bool = False
    why: str | None = None
    parked: int | None = None
    requests: tuple[str, ...] = ()
    abandoned: bool = False

    @property
    def is_final(self) -> bool:
        """Whether no later resolution can change it; a blocked commit is final too."""
        return self.state is COMMITTED or self.state is ROLLED_BACK

    @property
    def is_live(self) -> bool:
        """Whether its owner must still do something for it one day."""
        state = self.state
        return self.blocked or (state is not COMMITTED and state is not ROLLED_BACK)

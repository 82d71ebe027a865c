"""A transaction: its id, its state as its queue's owner knows it, and the view that readers get."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from bridge.core.message import Header, Message, Receipt
from bridge.core.record import Resolution

# --- the trace that a prepare belongs to, kept as two headers of its messages ---
# What is invalid is dropped, never an error.

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
NO_TRACE: Sequence[Header] = ()
TRACE_HEADERS = frozenset({TRACEPARENT, TRACESTATE})
_PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,100})?")
_PARENT_BYTES = 55  # of version 00, which has no more parts
_MEMBER = re.compile(
    rb"([a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})=[ -+\--<>-~]{1,256}"
)
_MOST_MEMBERS, _MOST_STATE_BYTES, _LONG_MEMBER_BYTES = 32, 512, 128


def read_trace(parents: Sequence[bytes], states: Sequence[bytes] = ()) -> Sequence[Header]:
    """The headers of a trace, from the values that were given; none if they are not valid."""
    parent = parents[0].strip(b" \t") if len(parents) == 1 else b""
    if _PARENT.fullmatch(parent) is None or (parent.startswith(b"00") and len(parent) > _PARENT_BYTES):
        return ()
    state = _read_state(b",".join(states)) if states else b""
    return ((TRACEPARENT, parent), (TRACESTATE, state)) if state else ((TRACEPARENT, parent),)


def find_trace(headers: Sequence[Header]) -> Sequence[Header]:
    """The trace that a message's headers name, if it can be passed on as it is."""
    if not headers:
        return ()
    parents, states = (
        [value or b"" for name, value in headers if name == wanted] for wanted in (TRACEPARENT, TRACESTATE)
    )
    return read_trace(parents, states)


def find_common_trace(traces: Sequence[Sequence[Header]]) -> Mapping[str, str]:
    """The trace as headers of a call, if all that it is about have the same one."""
    first = traces[0] if traces else ()
    if not first or any(trace != first for trace in traces):
        return {}
    return {name: (value or b"").decode() for name, value in first}


def find_trace_id(trace: Sequence[Header]) -> str | None:
    """The 32 characters that name it; None without a trace."""
    parent = trace[0][1] if trace else None
    return None if parent is None else parent[3:35].decode()


def is_sampled(trace: Sequence[Header]) -> bool:
    """Whether whoever began it records it. Source: W3C Trace Context, trace-flags."""
    parent = trace[0][1] if trace else None
    return parent is not None and parent[54] in b"13579bdf"  # the lowest bit of its flags


def add_trace(messages: Sequence[Message], trace: Sequence[Header]) -> list[Message]:
    """The messages with these headers, behind their own; one that names a trace itself stays as it is."""
    return [
        message
        if any(name == TRACEPARENT for name, _ in message.headers)
        else replace(message, headers=[*[h for h in message.headers if h[0] != TRACESTATE], *trace])
        for message in messages
    ]


def _read_state(raw: bytes) -> bytes:
    members = [member for part in raw.split(b",") if (member := part.strip(b" \t"))]
    keys = {member.partition(b"=")[0] for member in members}
    is_valid = len(keys) == len(members) <= _MOST_MEMBERS and all(map(_MEMBER.fullmatch, members))
    if is_valid and len(b",".join(members)) > _MOST_STATE_BYTES:  # the long ones go first, then the oldest
        members = [member for member in members if len(member) <= _LONG_MEMBER_BYTES]
        while len(b",".join(members)) > _MOST_STATE_BYTES:
            members.pop()
    return b",".join(members) if is_valid else b""


# --- a transaction ---

_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = tuple(a + b for a in _DIGITS for b in _DIGITS)
_QUEUES = {pair: queue_id for queue_id, pair in enumerate(_PAIRS)}
_TRIPLES = tuple(pair + digit for pair in _PAIRS for digit in _DIGITS)
_WORD = (1 << 60) - 1
_COUNTER_GUARD = 1 << 22
_ID = re.compile(r"[0-9a-v]{27}[048cgkos]")
_ID_BYTES, _LAST_BYTES = b"0123456789abcdefghijklmnopqrstuv", frozenset(b"048cgkos")
_DIGEST_VERSION = "15:outbox-bridge/1;"  # frozen: another digest would make another transaction of a repeat

TRANSACTION_ID_LENGTH = 28


def make_transaction_id(queue_id: int, bits: int) -> str:
    """The id of a transaction in `queue_id` with these 128 bits."""
    triples = _TRIPLES
    # in words that fit a machine's: shifting all 128 bits for each step costs more than twice as much
    high, middle = bits >> 68, bits >> 8 & _WORD
    return (
        f"{_beginning(queue_id, high >> 15)}{triples[high & 32767]}"
        f"{triples[middle >> 45]}{triples[middle >> 30 & 32767]}{triples[middle >> 15 & 32767]}"
        f"{triples[middle & 32767]}{_PAIRS[bits << 2 & 1023]}"
    )


@lru_cache(maxsize=1_024)  # the time: what is prepared within 8 ms begins alike
def _beginning(queue_id: int, highest: int) -> str:
    triples = _TRIPLES
    return f"{_PAIRS[queue_id]}{triples[highest >> 30]}{triples[highest >> 15 & 32767]}{triples[highest & 32767]}"


def make_uuid7_bits(now_ms: int, random_bits: int) -> int:
    """128 bits of a UUIDv7 from the time and 74 random bits. Source: RFC 9562 section 5.7."""
    high = random_bits >> 62 & 0xFFF
    low = random_bits & (1 << 62) - 1
    return (now_ms & (1 << 48) - 1) << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low


class IdRun:
    """Ids of one millisecond: one random number, counted up. Source: RFC 9562 section 6.2, method 1.

    A bit of the counter is left free, so that counting changes no more than the last characters.
    """

    __slots__ = ("_end", "_middle", "_next", "_now_ms")

    def __init__(self, now_ms: int, random_bits: int) -> None:
        self._now_ms = now_ms
        self._next = make_uuid7_bits(now_ms, random_bits & ~_COUNTER_GUARD)
        self._end = self._next + _COUNTER_GUARD
        self._middle = make_transaction_id(0, self._next)[2:23]

    def take(self, now_ms: int, count: int) -> int | None:
        """The first of so many numbers that nobody else gets; None if it is time for another run."""
        first = self._next
        if now_ms != self._now_ms or first + count > self._end:
            return None
        self._next += count
        return first

    def make_id(self, queue_id: int, bits: int) -> str:
        """The same as `make_transaction_id` for a number of this run, in less time."""
        return f"{_PAIRS[queue_id]}{self._middle}{_TRIPLES[bits >> 8 & 32767]}{_PAIRS[bits << 2 & 1023]}"


def is_transaction_id(text: str) -> bool:
    """Whether the text has the form of an id; says nothing of its existence."""
    return _ID.fullmatch(text) is not None


def is_raw_id(raw: bytes) -> bool:
    """The same of bytes, in less time."""
    return len(raw) == TRANSACTION_ID_LENGTH and raw[-1] in _LAST_BYTES and not raw.translate(None, _ID_BYTES)


def can_exist(transaction_id: str, queues: int) -> bool:
    """Whether a transaction could have this id where there are so many queues."""
    return _ID.fullmatch(transaction_id) is not None and _QUEUES[transaction_id[:2]] < queues


def queue_of(transaction_id: str) -> int:
    """The queue of the half topic that holds the transaction."""
    return _QUEUES[transaction_id[:2]]


def digest_bits(
    group: str, idempotency_key: str, is_published: bool, ordering_key: str | None, messages: Sequence[Message]
) -> int:
    """128 bits that name a keyed prepare: the same group, key, kind of call and bytes give the same id.

    A trace context is left out: a repeat is often made within another span.
    """
    kind = "publish" if is_published else "prepare"
    ordered = "-;" if ordering_key is None else _frame_text(ordering_key)
    framed = [f"{_DIGEST_VERSION}{_frame_text(group)}{_frame_text(idempotency_key)}7:{kind};{ordered}".encode()]
    for message in messages:
        headers = [header for header in message.headers if header[0] not in TRACE_HEADERS]
        at = "-;" if message.timestamp_ms is None else _frame_text(str(message.timestamp_ms))
        numbers = f"{_frame_text(str(message.queue_id))}{at}{_frame_text(str(len(headers)))}"
        framed += (_frame_text(message.topic).encode(), _frame(message.key), _frame(message.value), numbers.encode())
        for name, value in headers:
            framed += (_frame_text(name).encode(), _frame(value))
    return int.from_bytes(hashlib.sha256(b"".join(framed)).digest()[:16])


def _frame_text(text: str) -> str:
    return f"{len(text) if text.isascii() else len(text.encode())}:{text};"


def _frame(part: bytes | None) -> bytes:
    return b"-;" if part is None else b"%d:%b;" % (len(part), part)


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
    times at that moment. `max_checks`, `max_life_s`: its own limits, else its group's hold. `ordering_hash`: hash
    of the effective ordering key. `parked`: offset of its copy in the parked topic. `abandoned`: committed, and given
    up by an operator while it was blocked, for `reason`: it is never published.
    """

    transaction_id: str
    group: str
    half: int
    appended_ms: int
    ordering_hash: int
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
    reason: str | None = None
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


class MessageSummary(Struct, frozen=True, gc=False):
    """A prepared message without its value. `value_bytes` None: null."""

    topic: str
    key: bytes | None
    value_bytes: int | None
    queue_id: int
    timestamp_ms: int | None


class TransactionView(Struct, frozen=True, gc=False):
    """One transaction. Times are milliseconds; `by`: producer, check, operator or timer.

    `given_up_ms`: when an operator gave up the log that held it. What is shown is what was known before.
    `parked_ms`: since when it is parked, where the projection was asked.
    """

    transaction_id: str
    group: str
    state: TransactionState
    queue_id: int
    queue_offset: int
    born_ms: int
    appended_ms: int
    check_times: int = 0
    blocked: bool = False
    reason: str | None = None
    by: str | None = None
    ended_ms: int | None = None
    next_due_ms: int | None = None
    first_check_ms: int | None = None
    idempotency_key: str | None = None
    ordering_key: str | None = None
    parked_offset: int | None = None
    max_checks: int | None = None
    max_life_s: int | None = None
    since_ms: int | None = None
    base: int = 0
    receipts: Sequence[Receipt] = ()
    messages: Sequence[MessageSummary] = ()
    given_up_ms: int | None = None
    abandoned: bool = False
    parked_ms: int | None = None

    @property
    def is_unproven(self) -> bool:
        """Whether no log says how it ends, and none will."""
        return self.given_up_ms is not None and (
            self.blocked or self.state in (TransactionState.PREPARED, TransactionState.PARKED)
        )


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """Something that happened to a transaction. `members`: what the type of event says besides, JSON values."""

    at_ms: int
    type: str
    by: str | None
    members: Mapping[str, object]


# --- moments as text: RFC 3339 in UTC ---

_LAST_MS = 253_402_300_799_999  # of the year 9999


@lru_cache(maxsize=4096)  # what is in one batch often has one time
def show_time(time_ms: int) -> str:
    """With milliseconds; what lies outside 1970 to 9999 is shown as its nearest end."""
    seconds, millis = divmod(min(max(time_ms, 0), _LAST_MS), 1000)
    return f"{_show(seconds)}.{millis:03d}Z"


def show_second(time_ms: int) -> str:
    """The same without them."""
    return f"{_show(min(max(time_ms, 0), _LAST_MS) // 1000)}Z"


@lru_cache(maxsize=1024)
def _show(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"

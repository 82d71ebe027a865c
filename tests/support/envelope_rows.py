"""Events of the envelope for tests, made by hand: one transaction is half, end, op, record unless a test says else.

    events = [half(), commit(), op("COMMITTED"), record()]
    kinds(events)                       # what `rules.judge` finds

The half message lies at journal offset 10, the end at 20, a second later; the window was taken 1,000 s after.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from spark.judge.rules import judge
from spark.read.envelope import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    EndSource,
    Event,
    Evidence,
    GroupTimes,
    OffsetRange,
    OpState,
    PreparedMessage,
    QueuePlace,
    ReceiptRow,
    Scope,
)

HALF, OP, PARKED = "half", "op", "parked"
HALF_MS, END_MS, NOW_MS = 1_000_000_000, 1_000_001_000, 1_001_000_000
HOUR_MS = 3_600_000
TX = make_transaction_id(0, make_uuid7_bits(HALF_MS, 1))
ONE = (PreparedMessage("orders", None, 111, None),)
TWO = (PreparedMessage("orders", None, 111, None), PreparedMessage("credits", None, 222, None))

_WHOLE = OffsetRange(0, 1_000, 1_000)
SCOPE = Scope(
    HALF,
    OP,
    PARKED,
    {QueuePlace(topic, part): _WHOLE
     for topic, parts in ((HALF, 2), (OP, 2), (PARKED, 1), ("orders", 3), ("credits", 1))
     for part in range(parts)},
    NOW_MS,
    {"shop": GroupTimes(6_000, 15, 24 * HOUR_MS)},
)  # fmt: skip


def with_extent(scope: Scope, topic: str, **members: Any) -> Scope:
    """The same scope, where all partitions of a topic were read so."""
    extents = {p: replace(e, **members) if p.topic == topic else e for p, e in scope.extents.items()}
    return replace(scope, extents=extents)


def kinds(events: Iterable[Event], scope: Scope = SCOPE, tx: str = TX) -> list[str]:
    """The kinds of findings."""
    return [found.kind.value for found in judge(tx, events, scope)]


def digest(*parts: object) -> int:
    """A hash of 52 bits, the same in every run."""
    text = repr(parts).encode()
    return zlib.crc32(text) << 20 | zlib.crc32(text[::-1]) & 0xFFFFF


def half(messages: Sequence[PreparedMessage] = ONE, **members: Any) -> Event:
    """A half message at journal offset 10."""
    made = Event(
        TX,
        Evidence.HALF,
        HALF,
        0,
        10,
        HALF_MS,
        "shop",
        n=len(messages),
        body=body_of(messages),
        code=UNKNOWN,
        is_void=False,
        asked=sum(message.part is not None or message.ts is not None for message in messages),
        topic_id=digest(messages[0].topic) if len({message.topic for message in messages}) == 1 else 0,
        messages=tuple(messages),
    )
    return _made(made, members)


def end(code: int, off: int = 20, ms: int = END_MS, **members: Any) -> Event:
    """An end by the producer, who names no group."""
    return _made(Event(TX, Evidence.END, HALF, 0, off, ms, code=code, src=EndSource.PRODUCER), members)


def commit(off: int = 20, **members: Any) -> Event:
    """See `end`."""
    return end(COMMIT, off, **members)


def rollback(off: int = 20, **members: Any) -> Event:
    """See `end`."""
    return end(ROLLBACK, off, **members)


def check(number: int, off: int, ms: int, code: int = UNKNOWN, **members: Any) -> Event:
    """An answered check that took 100 ms."""
    return _made(end(code, off, ms, src=EndSource.CHECK, num=number, latency_ms=100), members)


def op(
    state: str, off: int = 30, cause: int = 20, receipts: Sequence[ReceiptRow] | None = None, **members: Any
) -> Event:
    """An op message; a COMMITTED one names offset 100 of orders-0 unless told otherwise."""
    code = OpState[state]
    if receipts is None:
        receipts = (ReceiptRow("orders", 0, 100),) if code == OpState.COMMITTED else ()
    made = Event(
        TX,
        Evidence.OP,
        OP,
        0,
        off,
        END_MS + 50,
        "shop",
        n=len(receipts),
        place=sum(digest(*receipt) for receipt in receipts),
        code=code,
        cause=cause,
        half=10,
        num=0,
        receipts=tuple(receipts),
    )
    return _made(made, members)


def record(off: int = 100, content: int = 111, topic: str = "orders", part: int = 0, **members: Any) -> Event:
    """A visible record with our id."""
    made = Event(
        TX, Evidence.VISIBLE, topic, part, off, END_MS, content=content, body=digest(topic, content),
        place=digest(topic, part, off), topic_id=digest(topic),
    )  # fmt: skip
    return _made(made, members)


def copy(off: int = 5, messages: Sequence[PreparedMessage] = ONE, **members: Any) -> Event:
    """A parked message."""
    made = Event(TX, Evidence.PARKED, PARKED, 0, off, END_MS, "shop", n=len(messages), body=body_of(messages))
    return _made(made, members)


def body_of(messages: Sequence[PreparedMessage]) -> int:
    """The sum of hashes a half message shows."""
    return sum(body_of_each(messages) or [])


def body_of_each(messages: Sequence[PreparedMessage] | None) -> list[int] | None:
    """The hash of each."""
    return None if messages is None else [digest(message.topic, message.content) for message in messages]


def place_of_each(receipts: Sequence[ReceiptRow] | None) -> list[int] | None:
    """The hash of each."""
    return None if receipts is None else [digest(*receipt) for receipt in receipts]


def hashed(event: Event) -> Event:
    """The event with the hashes of what it says."""
    if event.leg == Evidence.OP:
        places = place_of_each(event.receipts) or []
        event = event._replace(n=len(places), place=sum(places), receipts=tuple(event.receipts or ()))
    if event.leg == Evidence.VISIBLE:
        place = digest(event.topic, event.part, event.off)
        event = event._replace(place=place, body=digest(event.topic, event.content))
    return event if event.grp is None else event._replace(grp_id=digest(event.grp))


def _made(event: Event, members: dict[str, Any]) -> Event:
    made = event._replace(**members)
    return made if made.grp is None else made._replace(grp_id=digest(made.grp))

"""The envelope: one row an event, whatever kind of record it was.

Hashes have 52 bits, so that thousands of them add up in 64. No key, value or header is ever landed. `spark.read.decode`
makes the rows; SQL that hashes what is elsewhere does it as is done there.
"""

from enum import IntEnum
from typing import NamedTuple


class Evidence(IntEnum):
    """What kind of record an event is."""

    UNREADABLE = 0  # in an internal topic, but not of the format; or of a version nobody here knows
    HALF = 1
    END = 2
    ACT = 3
    OP = 4
    PARKED = 5  # the copy of a half message in the parked topic
    VISIBLE = 6  # a record of a real topic with a transaction id
    POSITION = 7  # `cause`: its S
    ANSWERS = 8
    FOREIGN = 9  # another producer's record in a real topic


class OpState(IntEnum):
    """The state in an op message, as its `code`."""

    PREPARED = 1
    PARKED = 2
    COMMITTED = 3
    ROLLED_BACK = 4
    BLOCKED = 5  # COMMITTED, not yet published
    ABANDONED = 6  # COMMITTED, given up by an operator: never published


class EndSource(IntEnum):
    """The source of an end, as its `src`."""

    PRODUCER = 1
    CHECK = 2
    OPERATOR = 3


COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0  # `code` of an end; a half message published at once has COMMIT too
EMPTY, OTHER_VERSION = -1, -2  # `code` of what cannot be read, if more than that is known
ACT_CHECK, ACT_RESUME, ACT_ABANDON = 1, 2, 3  # `code` of an act


class PreparedMessage(NamedTuple):
    """A prepared message: its topic, the partition and time asked for (None: none), hash of key, value, headers.

    `key`: hash of the key, None if there is none.
    """

    topic: str
    part: int | None
    content: int
    ts: int | None
    key: int | None = None


class ReceiptRow(NamedTuple):
    """Where an op message says that a message was published; `off` None: the log did not know."""

    topic: str
    part: int
    off: int | None


class Event(NamedTuple):
    """A row of the envelope; members without meaning for a leg are None.

    tx: transaction id, "" for legs without one. off, ms: offset and timestamp of the record.
    grp, grp_id: producer group, as said there, and its hash. n: messages announced (half), receipts (op).
    content: hash of key, value, headers (visible). body: sum over messages of the hash of topic and content.
    place: sum over receipts, or of the record itself, of the hash of topic, partition, offset.
    code: see above. cause, half, parked, since_ms: `at` and others of the op message.
    num: the check's number, or check times.
    is_void: a keyed half message that came too late for everybody. asked: messages with partition or time asked.
    okey: hash of the effective ordering key, None where there is neither an ordering key nor a message key.
    topic_id: hash of the topic (visible), or of that of all messages, 0 if they have several (half).
    """

    tx: str
    leg: int
    topic: str
    part: int
    off: int
    ms: int
    grp: str | None = None
    grp_id: int | None = None
    n: int | None = None
    content: int | None = None
    body: int | None = None
    place: int | None = None
    code: int | None = None
    src: int | None = None
    cause: int | None = None
    half: int | None = None
    parked: int | None = None
    num: int | None = None
    latency_ms: int | None = None
    immunity_ms: int | None = None
    max_checks: int | None = None
    life_ms: int | None = None
    since_ms: int | None = None
    is_void: bool | None = None
    asked: int | None = None
    okey: int | None = None
    topic_id: int | None = None
    messages: tuple[PreparedMessage, ...] | None = None
    receipts: tuple[ReceiptRow, ...] | None = None


_SPECIAL = {
    **dict.fromkeys(("tx", "topic", "grp"), "STRING"),
    **dict.fromkeys(("leg", "part", "n", "code", "src", "num", "max_checks", "asked"), "INT"),
    "is_void": "BOOLEAN",
    "messages": "ARRAY<STRUCT<topic: STRING, part: INT, content: BIGINT, ts: BIGINT, key: BIGINT>>",
    "receipts": "ARRAY<STRUCT<topic: STRING, part: INT, off: BIGINT>>",
}

EVENT_TYPES = {name: _SPECIAL.get(name, "BIGINT") for name in Event._fields}
"""The envelope's columns with Spark's types, in the order of `Event`."""

EVENT_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in EVENT_TYPES.items())
"""The same as DDL."""


UNREADABLE_SQL = f"WHERE leg = {Evidence.UNREADABLE:d} ORDER BY topic, part, off LIMIT 10000"
"""Of events: those that findings name, and that the next run must see again."""


def pair_product(body: str, place: str) -> str:
    """What a message adds to its transaction's `paired`: another number at another place."""
    return f"({body} % {_PRIMES[0]}) * ({place} % {_PRIMES[1]})"


_PRIMES = 33_554_393, 33_554_383  # below 2**25: thousands of products add up in 64 bits


_BITS = (1 << 52) - 1
ID_PATTERN = "'^[0-9a-v]{27}[048cgkos]$'"


def key_hash(key: str) -> str:
    """The hash by which a key is known; null for none. `key`: an expression of type BINARY."""
    return f"IF({key} IS NULL, NULL, {_hash(key)})"


def group_hash(group: str) -> str:
    """The hash by which a producer group is known. `group`: an expression of type STRING."""
    return _hash(group)


def body_hash(topic: str, content: str) -> str:
    """What a message adds to its transaction's `body`. Expressions of types STRING and BIGINT."""
    return _hash(topic, content)


def paired_sql() -> str:
    """The sum of `pair_product` over a half message's `messages` and an op message's `receipts`."""
    product = pair_product(body_hash("m.topic", "m.content"), _hash("r.topic", "r.part", "r.off"))
    return f"aggregate(zip_with(messages, receipts, (m, r) -> {product}), 0L, (total, one) -> total + one)"


def _hash(*values: str) -> str:
    return f"(xxhash64({', '.join(values)}) & {_BITS})"

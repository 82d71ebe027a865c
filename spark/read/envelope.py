"""The envelope, one row an event, and what a window of them can prove.

Hashes have 52 bits, so that thousands of them add up in 64. No key, value or header of a message is ever landed.
`spark.read.decode` makes the rows; SQL that hashes what is elsewhere does it as is done there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

# --- what a window can prove: offsets read, the time they were noted, the rules of each producer group ---

_DAY_MS = 86_400_000


class QueuePlace(NamedTuple):
    """A partition of a topic."""

    topic: str
    part: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What was read of a partition: from `start` to below `end`.

    `seen`: its end as noted before the journal's, so everything below it was caused by journal records that
    were read. `first_ms`: timestamp of the first record, for journal and op topic. `is_whole`: nothing before
    `start` was ever removed or left out. `is_compacted`: records may vanish one by one. `has_append_time`: the
    topic's own clock overrules timestamps. `epoch`: the leader's, by which a log that was cut below `end` is known
    however far it has grown since; `start_epoch`: that of the window that ended where this one starts; -1: not noted.
    `given_up`: what lies below is of a log that an operator has given up, for journal and op topic. `anew_ms`: until
    then the topic may have been another one of the same name, that was deleted since; 0: none is known.
    """

    start: int
    end: int
    seen: int
    first_ms: int = 0
    is_whole: bool = True
    is_compacted: bool = False
    has_append_time: bool = False
    epoch: int = -1
    start_epoch: int = -1
    given_up: int = 0
    anew_ms: int = 0

    def as_anew(self, until_ms: int) -> "OffsetRange":
        """The same of a topic of which this is known. What it was before cannot be read any more."""
        return replace(self, anew_ms=until_ms, is_whole=False) if until_ms > self.anew_ms else self


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """When and how often a group may be asked. The defaults are the bounds: they never accuse wrongly.

    `is_paused`: nobody is asked now, and nothing is parked for its age.
    """

    transaction_timeout_ms: int = 1_000
    max_checks: int = 1_000
    max_lifetime_ms: int = 7 * _DAY_MS
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What may take its time before it is a finding.

    `settle_ms`: how old a recorded resolution may be without its op message; `stale_ms`: what is added to a longest
    life; `slack_ms`: how far the brokers' clocks may differ; `apart_ms`: how far those of others may be from theirs.
    """

    settle_ms: int = 60_000
    stale_ms: int = 3_600_000
    slack_ms: int = 5_000
    apart_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class Scope:
    """A window. `now_ms`: when its offsets were noted, by which all ages are counted.

    `by_receipts`: records do not name their transactions, and were found by the places that receipts name.
    """

    half_topic: str
    op_topic: str
    parked_topic: str
    extents: Mapping[QueuePlace, OffsetRange]
    now_ms: int
    groups: Mapping[str, GroupTimes] = field(default_factory=dict)
    graces: Tolerances = Tolerances()
    other_groups: GroupTimes = GroupTimes()
    by_receipts: bool = False

    def times_of(self, group: str | None) -> GroupTimes:
        """The rules of a producer group."""
        return self.groups.get(group or "", self.other_groups)

    def journal_of(self, transaction_id: str) -> OffsetRange | None:
        """What was read of the journal queue that the id names."""
        return self.extents.get(QueuePlace(self.half_topic, queue_of(transaction_id)))

    def is_given_up(self, record: "Event") -> bool:
        """Whether a record of journal or op topic is of a log that an operator has given up: the other one is gone."""
        own = self.extents.get(QueuePlace(record.topic, record.part))
        return own is not None and record.off < own.given_up

    def is_op_provable(self, decided: "Event") -> bool:
        """Whether the op message of a recorded resolution, had there been one, would have been read.

        An owner writes each day: where nothing is left it was not retention that removed it.
        """
        own = self.extents.get(QueuePlace(self.op_topic, decided.part))
        return own is None or own.is_whole or not own.first_ms or own.first_ms + self.graces.slack_ms <= decided.ms

    def is_provable(self, transaction_id: str) -> bool:
        """Whether the half message, had there been one, would have been read.

        In a queue that there is not, it can only have been before the whole journal was made anew.
        """
        own = QueuePlace(self.half_topic, queue_of(transaction_id))
        queues = [own] if own in self.extents else [place for place in self.extents if place.topic == self.half_topic]
        return bool(queues) and all(self._reaches_back(queue, born_ms(transaction_id)) for queue in queues)

    def _reaches_back(self, queue: QueuePlace, born: int | None) -> bool:
        journal, op = self.extents[queue], self.extents.get(QueuePlace(self.op_topic, queue.part))
        is_whole = journal.is_whole and (op is None or not op.given_up)
        if is_whole or born is None or not journal.first_ms:  # 0: nothing is left of it
            return is_whole
        # `born` is by an api's clock
        return journal.first_ms + self.graces.apart_ms < born <= self.now_ms + self.graces.apart_ms


def queue_of(transaction_id: str) -> int:
    """The queue of journal and op topic that an id names."""
    return int(transaction_id[:2], 32)


def born_ms(transaction_id: str) -> int | None:
    """The time inside an id that looks like a UUIDv7; None for most digests, which have none."""
    bits = int(transaction_id[2:], 32) >> 2
    is_uuid7 = bits >> 76 & 0xF == 7 and bits >> 62 & 0x3 == 2
    return bits >> 80 if is_uuid7 else None


# --- the envelope: one row an event, whatever kind of record it was ---


class Evidence(IntEnum):
    """What kind of record an event is."""

    UNREADABLE = 0  # in an internal topic, but not of the format; or of a version nobody here knows
    HALF = 1
    END = 2
    ACT = 3
    OP = 4
    PARKED = 5  # the copy of a half message in the parked topic
    VISIBLE = 6  # a record of a real topic with a transaction id
    POSITION = 7  # `cause`: its S; `half`, `parked`: where journal and op topic begin, after a log was given up
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
APPEND_TIME = 1  # `code` of a record in a real topic whose timestamp is the broker's own


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
    remark: what came with an end, as it was said (end).
    spread: what the key says of the partition: the rest by the number of partitions (visible).
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
    remark: str | None = None
    spread: int | None = None
    messages: tuple[PreparedMessage, ...] | None = None
    receipts: tuple[ReceiptRow, ...] | None = None


_SPECIAL = {
    **dict.fromkeys(("tx", "topic", "grp", "remark"), "STRING"),
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


def shuffled_sql() -> str:
    """Whether an op message's `receipts` in one partition are not in the order of their offsets."""
    numbered = "transform(receipts, (r, i) -> struct(r.topic, r.part, i AS number, r.off))"
    return f"transform(array_sort({numbered}), r -> r.off) <> transform(array_sort(receipts), r -> r.off)"


def _hash(*values: str) -> str:
    return f"(xxhash64({', '.join(values)}) & {_BITS})"

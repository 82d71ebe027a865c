"""PURE. Programs for a log: steps as values. What a program prints is Python that makes it again."""

from dataclasses import dataclass, fields
from typing import NamedTuple

QUEUES = 2  # of each of a program's topics
SEGMENT_BYTES = 1_048_576  # Kafka's least
ALONE = "alone"  # a topic that has the program's two queues and no other: what a group shares
TOPIC_CONFIGS: dict[str, dict[str, str]] = {
    "plain": {},
    ALONE: {},
    "small": {"max.message.bytes": "2000"},
    "append_time": {"message.timestamp.type": "LogAppendTime"},
    "bounded": {"message.timestamp.before.max.ms": "7200000", "message.timestamp.after.max.ms": "3600000"},
    "keyed": {"cleanup.policy": "compact,delete"},
    "compacted": {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": "60000",
    },
    "forgetful": {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": "0",
    },
}


class Place(NamedTuple):
    """A queue of the program's topic with this number; there may be no such topic or queue."""

    topic: int
    queue_id: int

    def __repr__(self) -> str:
        return f"Place({self.topic}, {self.queue_id})"


class Value:
    """Prints as Python, without what has its default."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)  # type: ignore[arg-type]
            if getattr(self, each.name) != each.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True, repr=False)
class Record(Value):
    """A message to be put. `padding`: so many bytes more in its value. `age_ms`: its timestamp, before the start."""

    at: Place
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    age_ms: int | None = None
    timestamp_ms: int | None = None
    padding: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Put(Value):
    """One plain put."""

    record: Record


@dataclass(frozen=True, slots=True, repr=False)
class PutMany(Value):
    """Plain puts in one call."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Fence(Value):
    """This instance of an owner takes the owner's two transactional ids with a new writer."""

    owner: int
    instance: int


@dataclass(frozen=True, slots=True, repr=False)
class Batch(Value):
    """An atomic batch. `during`: happens when `records` are written and `closing` are not."""

    owner: int
    instance: int
    records: tuple[Record, ...] = ()
    closing: tuple[Record, ...] = ()
    during: tuple["Step", ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Hang(Value):
    """A Kafka transaction left open: of a producer of its own, or of an owner's first or second id (`turn`)."""

    name: int
    records: tuple[Record, ...]
    owner: int | None = None
    turn: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class End(Value):
    """Ends what `Hang` left open."""

    name: int
    is_commit: bool


@dataclass(frozen=True, slots=True, repr=False)
class Get(Value):
    """Committed messages from an offset on."""

    at: Place
    offset: int
    max_count: int


@dataclass(frozen=True, slots=True, repr=False)
class GetEach(Value):
    """The messages at these offsets."""

    at: Place
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Offsets(Value):
    """Minimum, last stable offset and maximum."""

    at: Place


@dataclass(frozen=True, slots=True, repr=False)
class ByTime(Value):
    """The first offset not older than this."""

    at: Place
    age_ms: int


@dataclass(frozen=True, slots=True, repr=False)
class Follow(Value):
    """A reader goes on up to the last stable offset; at its first step it is opened at `offset`."""

    reader: int
    at: Place
    offset: int
    max_count: int


@dataclass(frozen=True, slots=True, repr=False)
class Dump(Value):
    """What an uncommitted reader sees of the whole queue."""

    at: Place


@dataclass(frozen=True, slots=True, repr=False)
class DropBelow(Value):
    """The log forgets everything before the offset."""

    at: Place
    offset: int


@dataclass(frozen=True, slots=True, repr=False)
class Compact(Value):
    """The cleaner has been once over everything that lies in the queue."""

    at: Place


@dataclass(frozen=True, slots=True, repr=False)
class CommitOffset(Value):
    """A plain commit by one of two processes; members are of one of them."""

    group: int
    at: Place
    offset: int
    process: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class GetOffset(Value):
    """What the group committed."""

    group: int
    at: Place


@dataclass(frozen=True, slots=True, repr=False)
class ForgetGroup(Value):
    """The group is deleted, with its offsets."""

    group: int


@dataclass(frozen=True, slots=True, repr=False)
class Join(Value):
    """A member joins; what the shares are when all is quiet again. Member n lives in process n mod 2."""

    member: int
    group: int
    topic: int


@dataclass(frozen=True, slots=True, repr=False)
class Leave(Value):
    """A member leaves; what the shares are when all is quiet again."""

    member: int


Step = (
    Put | PutMany | Fence | Batch | Hang | End | Get | GetEach | Offsets | ByTime | Follow | Dump | DropBelow
    | Compact | CommitOffset | GetOffset | ForgetGroup | Join | Leave
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Program:
    """Topics by their kind, two queues each, and what is done, in order."""

    topics: tuple[str, ...]
    steps: tuple[Step, ...]

    def __repr__(self) -> str:
        lines = "".join(f"        {step!r},\n" for step in self.steps)
        return f"Program(\n    topics={self.topics!r},\n    steps=(\n{lines}    ),\n)"

"""A window: what is read of which topic, in numbers, noted once. Written beside the report, so it can be read again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from spark.errors import BadUsage
from spark.read.scope import GroupTimes, OffsetRange, QueuePlace, Scope, Tolerances

_VERSION = 1


WINDOW_FILE = "window.json"


@dataclass(frozen=True, slots=True)
class Window:
    """`taken_ms`: when the ends were noted. `extents`: of every partition of the three internal and the real topics.

    `topic_ids`: Kafka's own, by which a topic that was made anew is known; empty where nobody has noted them.
    """

    half: str
    op: str
    parked: str
    taken_ms: int
    extents: Mapping[QueuePlace, OffsetRange]
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def real(self) -> list[str]:
        """The real topics, in the order of their names."""
        return sorted({place.topic for place in self.extents} - {self.half, self.op, self.parked})

    @property
    def offsets(self) -> int:
        """How many it spans."""
        return sum(extent.end - extent.start for extent in self.extents.values())

    def ranges_of(self, topics: Sequence[str]) -> dict[QueuePlace, OffsetRange]:
        """The extents of these topics."""
        return {place: extent for place, extent in sorted(self.extents.items()) if place.topic in topics}

    def with_first_ms(self, first_ms: Mapping[int, int]) -> "Window":
        """The same, knowing the timestamp of the first record read of each journal queue."""
        known = {QueuePlace(self.half, queue): ms for queue, ms in first_ms.items()}
        return replace(
            self, extents={p: replace(e, first_ms=known.get(p, e.first_ms)) for p, e in self.extents.items()}
        )

    def make_origins(self) -> dict[QueuePlace, OffsetRange]:
        """Its extents for runs that go on from here: of a queue that held nothing, all is read that comes later."""
        return {place: replace(one, first_ms=one.first_ms or self.taken_ms) for place, one in self.extents.items()}

    def make_scope(self, groups: Mapping[str, GroupTimes], graces: Tolerances) -> Scope:
        """What the window can prove, with the rules of these producer groups."""
        return Scope(self.half, self.op, self.parked, self.extents, self.taken_ms, groups, graces)


def encode_window(window: Window) -> str:
    """JSON, the same for the same window."""
    partitions = [{**place._asdict(), **asdict(extent)} for place, extent in sorted(window.extents.items())]
    members = {"v": _VERSION, "half": window.half, "op": window.op, "parked": window.parked}
    noted = {"taken_ms": window.taken_ms, "topic_ids": dict(sorted(window.topic_ids.items()))}
    return json.dumps({**members, **noted, "partitions": partitions}, indent=1) + "\n"


def decode_window(text: str) -> Window:
    """Raises BadUsage."""
    try:
        read = json.loads(text)
        if read["v"] != _VERSION:
            raise BadUsage(f"window of version {read['v']}, not {_VERSION}")
        extents = dict(_read_extent(dict(partition)) for partition in read["partitions"])
        topic_ids = dict(read.get("topic_ids", {}))
        return Window(read["half"], read["op"], read["parked"], int(read["taken_ms"]), extents, topic_ids)
    except (ValueError, KeyError, TypeError) as error:
        raise BadUsage(f"cannot be read: {error!r}", "Take one that a run has written.") from error


def read_window(path: Path) -> Window:
    """A window's file. Raises BadUsage, which names the file, and OSError."""
    try:
        return decode_window(path.read_text(encoding="utf-8"))
    except BadUsage as error:
        raise BadUsage(f"{path}: {error.reason}", error.remedy) from error


def _read_extent(partition: dict[str, Any]) -> tuple[QueuePlace, OffsetRange]:
    place = QueuePlace(partition.pop("topic"), partition.pop("part"))
    extent = OffsetRange(**partition)
    if not 0 <= extent.start <= extent.end:
        raise BadUsage(f"window of {place.topic}-{place.part} ends at {extent.end}, before its start {extent.start}")
    return place, extent

"""A window: what is read of which topic, in numbers, noted once. Written beside the report, so it can be read again.

A unit is a folder with `events/` and, written last, `window.json`; one without it is not complete and not looked at.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from spark.errors import BadUsage, Indeterminate
from spark.read.envelope import GroupTimes, OffsetRange, QueuePlace, Scope, Tolerances

_VERSION = 1
ANEW = "Begin anew: run once without --since-last, or land into a new folder."
CUT = f"Was a leader elected uncleanly, or a disk restored? {ANEW}"

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

    def with_times(self, times: Mapping[QueuePlace, tuple[int, int]]) -> "Window":
        """The same, knowing the timestamps of the first and the last record read of each queue of journal and op topic.

        What was appended before the ends were noted cannot be younger than that: so a clock that is behind is seen.
        """
        known = {place: both for place, both in times.items() if place.topic in {self.half, self.op}}
        journal = [(self.extents[place], last) for place, (_, last) in known.items() if place.topic == self.half]
        appended = [last for extent, last in journal if extent.has_append_time]
        extents = {p: replace(e, first_ms=known[p][0] if p in known else e.first_ms) for p, e in self.extents.items()}
        return replace(self, taken_ms=max([self.taken_ms, *appended]), extents=extents)

    def with_starts(self, starts: Mapping[int, tuple[int, int]]) -> "Window":
        """The same, knowing where journal and op topic of a queue begin, after a log was given up."""
        given_up = {
            QueuePlace(topic, queue): start
            for queue, both in starts.items()
            for topic, start in zip((self.half, self.op), both, strict=True)
        }
        return replace(
            self, extents={p: replace(e, given_up=given_up.get(p, e.given_up)) for p, e in self.extents.items()}
        )

    def after(self, last: "Window") -> "Window":
        """The same, knowing which topics were made anew since the `last` run of the folder, or before: what had been
        published to them went with them. With another journal it was a run on another bridge."""
        ids = self.topic_ids
        if last.taken_ms >= self.taken_ms or last.topic_ids.get(last.half) != ids.get(self.half):
            return self
        known = {place.topic: extent.anew_ms for place, extent in last.extents.items()}
        known |= {topic: self.taken_ms for topic, one in last.topic_ids.items() if ids.get(topic, one) != one}
        return replace(self, extents={p: e.as_anew(known.get(p.topic, 0)) for p, e in self.extents.items()})

    def make_origins(self) -> dict[QueuePlace, OffsetRange]:
        """Its extents for runs that go on from here: of a queue that held nothing, all is read that comes later."""
        begun = {place: self.taken_ms if place.topic == self.half else 0 for place in self.extents}
        return {place: replace(one, first_ms=one.first_ms or begun[place]) for place, one in self.extents.items()}

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


def check_goes_on(last: Window, window: Window) -> None:
    """Raises BadUsage where a window is not of the topics that the last one read: their offsets mean nothing in it."""
    topic = _find_anew(last, window)
    if topic is not None:
        raise BadUsage(f"topic {topic} was made anew since the last run", ANEW)
    lost = min(last.extents.keys() - window.extents.keys(), default=None)
    if lost is not None:
        raise BadUsage(f"the last run read {lost.topic}-{lost.part}, this window has nothing of it", ANEW)


def _find_anew(known: Window, window: Window) -> str | None:
    """The first topic that is another one by now, by Kafka's own ids."""
    both = sorted(known.topic_ids.keys() & window.topic_ids.keys())
    return next((topic for topic in both if known.topic_ids[topic] != window.topic_ids[topic]), None)


Starts = Mapping[QueuePlace, int]


@dataclass(frozen=True, slots=True)
class IngestedWindow:
    """A window and the units that hold it, oldest first."""

    window: Window
    units: Sequence[Path]


def complete_units(folder: Path) -> list[Path]:
    """`folder` itself if it is one, else those inside, oldest first."""
    if (folder / WINDOW_FILE).exists():
        return [folder]
    return sorted([path.parent for path in folder.glob(f"[0-9]*/{WINDOW_FILE}")], key=lambda unit: by_number(unit.name))


def by_number(name: str) -> tuple[int, str]:
    """The order of folders that begin with a number: the millionth, of some two years of landings, has a digit more."""
    return int(name[: len(name) - len(name.lstrip("0123456789"))]), name


def window_of(unit: Path) -> Window:
    """What the unit holds. Raises BadUsage, Indeterminate."""
    try:
        return read_window(unit / WINDOW_FILE)
    except OSError as error:
        raise Indeterminate(f"cannot read {unit / WINDOW_FILE}: {error.strerror}") from error


def find_landed(folder: Path, since: Starts | None = None, *, window: Window | None = None) -> IngestedWindow:
    """All that is landed completely, from `since` on if it is given; or the units that hold `window`.

    Raises BadUsage where something between was never landed, or is not there any more.
    """
    starts = (since or {}) if window is None else {place: extent.start for place, extent in window.extents.items()}
    units = complete_units(folder)
    if not units:
        raise BadUsage(f"{folder} holds nothing that was landed", "Run `outbox-bridge report land` first.")
    chosen: list[tuple[Path, Window]] = []
    for unit in reversed(units):
        chosen.insert(0, (unit, window_of(unit)))
        # whether nothing before this unit is wanted
        if all(place in starts and extent.start <= starts[place] for place, extent in chosen[0][1].extents.items()):
            break
    whole = _narrow(_join([one for _, one in chosen], folder), starts, folder)
    if window is not None:
        _check_within(window, whole, folder)
    return IngestedWindow(window or whole, [unit for unit, _ in chosen])


def _join(windows: Sequence[Window], folder: Path) -> Window:
    """One window of several in a row; what it proves is what the newest proves."""
    extents: dict[QueuePlace, OffsetRange] = {}
    for window in windows:
        for place, extent in window.extents.items():
            known = extents.get(place)
            if known is not None and known.end != extent.start:
                raise BadUsage(
                    f"{folder}: {place.topic}-{place.part} was landed up to {known.end}, then from {extent.start} on",
                    "Remove the folders before the gap.",
                )
            start = extent.start if known is None else known.start
            extents[place] = replace(extent, start=start, is_whole=extent.is_whole and start == 0)
    return replace(windows[-1], extents=extents)


def _narrow(window: Window, starts: Starts, folder: Path) -> Window:
    """The same from `starts` on, for what they name."""
    extents = dict(window.extents)
    for place, start in starts.items():
        extent = extents.get(place)
        if extent is None or start < extent.start:
            raise BadUsage(
                f"{folder} holds nothing of {place.topic}-{place.part} from {start} on",
                "It was not landed, or its folder was removed: read it from Kafka, or begin anew.",
            )
        if start > extent.end:
            raise Indeterminate(
                f"{place.topic}-{place.part} is landed up to {extent.end}; the last run has read up to {start}",
                "Land first, then run again.",
            )
        extents[place] = replace(extent, start=start)
    return replace(window, extents=extents)


def _check_within(window: Window, whole: Window, folder: Path) -> None:
    topic = _find_anew(window, whole)
    if topic is not None:
        raise BadUsage(f"{folder} holds another topic {topic} than the window speaks of", "It was made anew.")
    for place, extent in window.extents.items():
        landed = whole.extents[place].end
        if extent.end > landed:
            name = f"{place.topic}-{place.part}"
            raise BadUsage(f"{folder} holds {name} up to {landed}, the window ends at {extent.end}", "Land first.")

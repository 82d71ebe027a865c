"""What was landed before, by runs or by the landing job: which of its folders hold a window, without gaps.

A unit is a folder with `events/` and, written last, `window.json`; one without it is not complete and not looked at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spark.errors import BadUsage, Indeterminate
from spark.read.scope import OffsetRange, QueuePlace
from spark.read.window import WINDOW_FILE, Window, read_window

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
    return sorted(path.parent for path in folder.glob(f"[0-9]*/{WINDOW_FILE}"))


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
        if _is_enough(chosen[0][1], starts):
            break
    whole = _narrow(_join([one for _, one in chosen], folder), starts, folder)
    if window is not None:
        _check_within(window, whole, folder)
    return IngestedWindow(window or whole, [unit for unit, _ in chosen])


def _is_enough(window: Window, starts: Starts) -> bool:
    """Whether nothing before this unit is wanted."""
    return all(place in starts and extent.start <= starts[place] for place, extent in window.extents.items())


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
    for place, extent in window.extents.items():
        landed = whole.extents[place].end
        if extent.end > landed:
            name = f"{place.topic}-{place.part}"
            raise BadUsage(f"{folder} holds {name} up to {landed}, the window ends at {extent.end}", "Land first.")

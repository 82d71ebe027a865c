"""The parts of a run of release size, and what they come to together."""

from collections import Counter
from pathlib import Path

import msgspec

from tests.chaos.orders import RELEASE_PARTS
from tests.chaos.report import Report

_decoder = msgspec.json.Decoder(Report)


def name_part(name: str, number: int) -> str:
    """The name of a part's report."""
    return f"{name}-{number}"


def read_part(folder: Path, name: str, number: int) -> Report | None:
    """The report of a part, if there is one."""
    path = folder / f"{name_part(name, number)}.json"
    return _decoder.decode(path.read_bytes()) if path.exists() else None


def write_summary(folder: Path, name: str) -> None:
    """NAME.md: the sums of all parts that have run, and where their reports are."""
    numbers = range(1, RELEASE_PARTS + 1)
    parts = {number: part for number in numbers if (part := read_part(folder, name, number)) is not None}
    (folder / f"{name}.md").write_text(_show(name, parts))


def _show(name: str, parts: dict[int, Report]) -> str:
    wanted: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    for part in parts.values():
        for what, (least, got) in part.reached.items():
            wanted[what] += least
            reached[what] += got
    is_good = len(parts) == RELEASE_PARTS and all(part.is_good for part in parts.values())
    verdict = "GOOD" if is_good else "NOT COMPLETE, OR BAD"
    lines = [
        "# Chaos run of release size",
        "",
        f"{verdict}: {len(parts)} of {RELEASE_PARTS} parts.",
        "Each has a bridge, brokers and a database of its own, and is judged as a whole.",
        "",
        "| what | wanted at least | reached |",
        "|---|---|---|",
        *[f"| {what} | {wanted[what]:,} | {reached[what]:,} |" for what in wanted],
        "",
        "| part | verdict | seed | commit | minutes | transactions judged |",
        "|---|---|---|---|---|---|",
        *[_row(name, number, part) for number, part in parts.items()],
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, number: int, part: Report) -> str:
    verdict = "good" if part.is_good else "BAD"
    judged = part.looked_at.get("transactions", 0)
    return (
        f"| [{number}]({name_part(name, number)}.md) | {verdict} | {part.seed} | {part.commit} "
        f"| {part.seconds / 60:.0f} | {judged:,} |"
    )

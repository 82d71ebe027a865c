"""What runs found, kept in one JSON file: each run replaces the figures of the run of its name before."""

import json
import os
import platform
import statistics
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.figures import FIGURES
from benchmarks.peers.rocketmq.broker import VERSION as ROCKETMQ_VERSION
from benchmarks.stage import Shape
from tests.support.source_tree import ROOT, read_commit

LATEST = ROOT / "benchmarks" / "results" / "latest.json"
_PACKAGES = ("confluent-kafka", "uvicorn", "uvloop", "httptools", "msgspec", "fastapi", "pydantic", "sqlalchemy")
_PEERS = ("faststream-outbox", "faststream", "aiokafka", "asyncpg")  # not on every machine that measures


class Values:
    """The values of each figure, round by round."""

    def __init__(self) -> None:
        self._found: dict[str, list[float]] = {}

    def note(self, name: str, value: float) -> None:
        """One more value."""
        self._found.setdefault(name, []).append(value)

    def note_ratio(self, name: str, above: str, below: str) -> None:
        """A figure made of two others of the same rounds; nothing where one of them is missing."""
        for pair in zip(self.of(above), self.of(below), strict=False):
            self.note(name, pair[0] / pair[1])

    def of(self, name: str) -> Sequence[float]:
        """Values so far."""
        return self._found.get(name, ())

    def medians(self) -> dict[str, float]:
        """Of each figure."""
        return {name: round(statistics.median(found), 4) for name, found in self._found.items()}

    def ranges(self) -> dict[str, list[float]]:
        """Least and most of each figure."""
        return {name: [round(min(found), 4), round(max(found), 4)] for name, found in self._found.items()}


def tell(text: str) -> None:
    """A line of progress, with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def conclude(
    run: str,
    values: Values,
    shape: Shape,
    output: Path,
    mistakes: Sequence[str] = (),
    *,
    sections: Mapping[str, Mapping[str, Any]] | None = None,
    remarks: Mapping[str, str] | None = None,
) -> int:
    """Prints and keeps what a run found, and how. Its exit code: 1 if something was lost, or visible twice.

    `sections`: what is no single figure, such as the points of curves, by name.
    """
    _print_figures(values)
    how = {"shape": shape._asdict(), "remarks": dict(remarks or {})}
    _write_results(run, values, how, output, sections or {})
    for mistake in mistakes:
        print(f"WRONG: {mistake}", file=sys.stderr)
    return 1 if mistakes else 0


def _print_figures(values: Values) -> None:
    """A table for people."""
    print(f"\n{'figure':<30}{'median':>12}{'least':>12}{'most':>12}{'asked':>14}")
    ranges = values.ranges()
    for name, median in values.medians().items():
        figure = FIGURES[name]
        asked = "" if figure.least is None else f"{figure.least:g} {'ok' if figure.reaches(median) else 'MISSED'}"
        print(f"{name:<30}{median:>12.2f}{ranges[name][0]:>12.2f}{ranges[name][1]:>12.2f}{asked:>14}")


def _write_results(run: str, values: Values, how: Mapping[str, Any], output: Path, sections: Mapping[str, Any]) -> None:
    """Replaces in `output` what the last run of this name found."""
    document = _read(output)
    before = document["runs"].get(run, {"figures": []})
    for name in before["figures"]:
        document["figures"].pop(name, None)
        document["ranges"].pop(name, None)
    commit, when = read_commit(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    medians = values.medians()
    document["figures"] |= medians
    document["ranges"] |= values.ranges()
    for name, content in sections.items():
        document[name] = {**document.get(name, {}), **content}
    known = {"commit": commit, "when": when, "python": _tell_python(), "figures": sorted(medians)}
    document["runs"][run] = {**known, **how}
    machine = {"cpus": os.cpu_count(), "memory_gib": round(psutil.virtual_memory().total / 2**30)}
    document |= {"commit": commit, "when": when, "versions": _versions(), "machine": machine}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    print(f"\nwritten to {output}")


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"figures": {}, "ranges": {}, "runs": {}}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _tell_python() -> str:
    """Its version and build: one optimised by profile takes less for the same. Distributions' are, but hide it."""
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    is_optimised = "--enable-optimizations" in arguments or sys.base_prefix == "/usr"
    return f"{platform.python_version()}, {'' if is_optimised else 'not '}optimised by profile"


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in _PACKAGES}
    for name in _PEERS:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return {"kafka": "4.3.1", "rocketmq": ROCKETMQ_VERSION, **packages}

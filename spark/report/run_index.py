"""The folders of runs: each run has one of its own, and counts only when the ledger names it.

    OUT/ledger.json         runs that are complete, oldest first; replaced in one step
    OUT/000001/             the report, and for later runs: window.json, events/, carry/

    OUT/.lock               held by the run that is at work; the system frees it when that is killed

A run that was killed is in no ledger: the next one takes its number and begins at the same offsets.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark.errors import BadUsage, Indeterminate
from spark.read.window import WINDOW_FILE, Window, read_window

_NAME = "ledger.json"
_MAY_LACK = ("closing", "p95_ms")
_ANEW = "Restore it, or begin with a new folder."


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keeps others out of a folder of runs, which is made if need be. Raises Indeterminate."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise Indeterminate(f"{folder} cannot be written to: {error.strerror}", "Choose another folder.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Indeterminate(f"another run is at work in {folder}", "Wait for its end.") from error
        yield


def write_durably(path: Path, text: str) -> None:
    """In one step: whoever reads it finds all of it, or what was there before."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


@dataclass(frozen=True, slots=True)
class Run:
    """A complete run. `begins`: the number of the run its chain of windows began with."""

    run: int
    begins: int
    taken_at: str
    prepared: int
    committed: int
    open: int
    findings: int
    closing: int | None = None  # transactions that were not final
    p95_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RunIndex:
    """Complete runs in `folder`."""

    folder: Path
    entries: Sequence[Run]

    @classmethod
    def open(cls, folder: Path) -> "RunIndex":
        """Raises BadUsage, Indeterminate."""
        try:
            path = folder / _NAME
            runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
            return cls(folder, [_read_entry(entry) for entry in runs])
        except OSError as error:
            raise Indeterminate(f"{folder} cannot be used: {error.strerror}", "Choose another folder.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise BadUsage(f"{folder / _NAME} cannot be read: {error!r}", _ANEW) from error

    @property
    def last(self) -> Run | None:
        """The newest run."""
        return self.entries[-1] if self.entries else None

    def folder_of(self, run: int) -> Path:
        """Where a run's files are."""
        return self.folder / f"{run:06d}"

    def make_folder(self) -> tuple[int, Path]:
        """Number and empty folder of the next run; what a killed one left there is removed. Raises BadUsage."""
        run = 1 if self.last is None else self.last.run + 1
        later = sorted(path.name for path in self.folder.glob("[0-9]*") if path.name > f"{run:06d}")
        if later:
            raise BadUsage(f"{self.folder} holds run {later[0]}, of which {_NAME} knows nothing", _ANEW)
        path = self.folder_of(run)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return run, path

    def window_of(self, run: int) -> Window:
        """What a run has read. Raises BadUsage, Indeterminate."""
        try:
            return read_window(self.folder_of(run) / WINDOW_FILE)
        except OSError as error:
            raise Indeterminate(f"run {run} has lost its {WINDOW_FILE}: {error.strerror}", _ANEW) from error

    def chain_of(self, entry: Run) -> list[int]:
        """The runs whose windows follow each other, up to this one."""
        return [known.run for known in self.entries if entry.begins <= known.run <= entry.run]

    def add(self, entry: Run) -> None:
        """From now on the run counts."""
        document: Mapping[str, Any] = {"v": 1, "runs": [asdict(known) for known in (*self.entries, entry)]}
        write_durably(self.folder / _NAME, json.dumps(document, indent=1) + "\n")


def _read_entry(members: Mapping[str, Any]) -> Run:
    """Raises ValueError, TypeError."""
    entry = Run(**members)
    known = {name: value for name, value in members.items() if value is not None or name not in _MAY_LACK}
    if not all(isinstance(value, int) for name, value in known.items() if name != "taken_at"):
        raise ValueError(f"run {entry.run} is no entry")
    return entry

"""Many simulated schedules, on several processes, with progress, a ledger to go on from, and stories of what failed.

A seed replays to the same event hash everywhere; PYTHONHASHSEED is fixed all the same, so that a failure can be
told from the order in which Python walks a set of texts.
"""

import argparse
import gc
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import msgspec
from msgspec import Struct

from tests.simulation.schedule import Schedule, make_schedule
from tests.simulation.shrink import shrink
from tests.simulation.world import simulate

CORPUS = Path(__file__).with_name("corpus")
_CHUNK = 25
_PARTS = 8
_COLLECTED = 5  # garbage of so many runs at a time
_TOLD = 3  # failing seeds whose whole story is told


class Outcome(Struct, frozen=True):
    """What a chunk of seeds came to. `hash`: over all event hashes; `struck`: faults by kind."""

    first: int
    count: int
    hash: str
    struck: dict[str, int]
    failed: dict[int, list[str]]


def main(arguments: Sequence[str]) -> int:
    """The command. 0: every promise kept; 1: some broken; 2: usage; 130: stopped."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        again = [sys.executable, "-m", "tests.simulation", *arguments]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})
    options = _parse(arguments)
    if options.replay is not None:
        return _replay(options.replay, is_shrunk=not options.whole, keep_as=options.keep_as)
    return _run_campaign(options)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.simulation", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--seeds", type=int, default=10_000, help="how many schedules (default %(default)s)")
    parser.add_argument("--part", type=int, metavar="N", help=f"one {_PARTS}th of them, another one for the next N")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a processor)")
    parser.add_argument("--ledger", type=Path, help="file of finished seeds: a run that was stopped goes on from there")
    parser.add_argument("--stop-at-first", action="store_true", help="ends with the first chunk that has a failure")
    parser.add_argument("--no-stories", action="store_true", help="names failing seeds only")
    parser.add_argument("--replay", type=int, help="runs one seed and tells its story, shortened if it fails")
    parser.add_argument("--keep-as", metavar="NAME", help="with --replay: puts the shortened schedule into the corpus")
    parser.add_argument("--whole", action="store_true", help="with --replay: the schedule as it is, not shortened")
    return parser.parse_args(arguments)


# --- many ---


def _run_campaign(options: argparse.Namespace) -> int:
    tally = _Tally(time.monotonic(), _plan(options))
    context = multiprocessing.get_context("spawn")
    try:
        with context.Pool(options.jobs, _ignore_interrupts) as pool:
            for outcome in pool.imap_unordered(_run_chunk, tally.chunks):
                tally.add(outcome)
                _write_ledger(options.ledger, outcome)
                _show_progress(sys.stderr, tally)
                if tally.failed and options.stop_at_first:
                    break
    except KeyboardInterrupt:
        print(f"\nstopped after {tally.done} of {tally.wanted} schedules", file=sys.stderr)
        _tell_failures(tally.failed, is_whole_story=False)
        return 130
    print(tally.summary())
    _tell_failures(tally.failed, is_whole_story=not options.no_stories)
    return 1 if tally.failed else 0


@dataclass(slots=True)
class _Tally:
    started: float
    chunks: list[list[int]]
    done: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    failed: dict[int, list[str]] = field(default_factory=dict)
    hashes: list[tuple[int, str]] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        return sum(map(len, self.chunks))

    def add(self, outcome: Outcome) -> None:
        self.done += outcome.count
        self.struck.update(outcome.struck)
        self.failed |= outcome.failed
        self.hashes.append((outcome.first, outcome.hash))

    def summary(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.struck.items()))
        whole = _hash(repr(sorted(self.hashes)))
        seconds = time.monotonic() - self.started
        return f"{self.done} schedules in {seconds:.0f} s, {len(self.failed)} failed, event hash {whole}; {faults}"


def _plan(options: argparse.Namespace) -> list[list[int]]:
    """The seeds in chunks; none that the ledger has."""
    done = _read_ledger(options.ledger)
    wanted = range(options.first, options.first + options.seeds)
    if options.part is not None:
        part = len(wanted) // _PARTS
        wanted = wanted[options.part % _PARTS * part :][:part]
    chunks = [list(wanted[place : place + _CHUNK]) for place in range(0, len(wanted), _CHUNK)]
    return [chunk for chunk in chunks if (chunk[0], len(chunk)) not in done]


def read_corpus() -> dict[str, Schedule]:
    """Schedules that once broke a promise, shortened; by what they found. They outlive changes of the generator."""
    return {path.stem: msgspec.json.decode(path.read_bytes(), type=Schedule) for path in sorted(CORPUS.glob("*.json"))}


def _run_chunk(seeds: Sequence[int]) -> Outcome:
    struck: Counter[str] = Counter()
    failed: dict[int, list[str]] = {}
    hashes = []
    _collect_seldom()
    for place, seed in enumerate(seeds):
        if place % _COLLECTED == 0:
            gc.collect()
        try:
            run = simulate(make_schedule(seed))
        except Exception as error:  # noqa: BLE001 - the seed must be told, whatever it was
            failed[seed] = [f"the simulation itself failed: {type(error).__name__}: {error}"]
            continue
        struck.update(run.struck)
        hashes.append(run.story.hash())
        if run.violations:
            failed[seed] = [str(violation) for violation in run.violations]
    return Outcome(seeds[0] if seeds else 0, len(seeds), _hash("".join(hashes)), dict(struck), failed)


def _collect_seldom() -> None:
    """What outlives all runs is never looked at again, and no collection falls into a run or its checks."""
    if gc.isenabled():
        gc.disable()
        gc.freeze()


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _read_ledger(path: Path | None) -> set[tuple[int, int]]:
    if path is None or not path.exists():
        return set()
    return {(entry["first"], entry["count"]) for entry in map(json.loads, _whole_lines(path)) if not entry["failed"]}


def _whole_lines(path: Path) -> Iterator[str]:
    """A line that a killed run has not finished counts for nothing."""
    return (line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n"))


def _write_ledger(path: Path | None, outcome: Outcome) -> None:
    if path is not None and outcome.count:
        entry = {name: getattr(outcome, name) for name in ("first", "count", "hash", "failed")}
        with path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _show_progress(out: TextIO, tally: _Tally) -> None:
    rate = tally.done / (time.monotonic() - tally.started)
    left = tally.wanted - tally.done
    line = (
        f"{tally.done} of {tally.wanted} schedules, {rate:.0f}/s, {len(tally.failed)} failed, {left / rate:.0f} s to go"
    )
    if out.isatty():
        print(f"\r{line}   ", end="" if left else "\n", file=out, flush=True)
    elif tally.done * 10 // tally.wanted != (tally.done - _CHUNK) * 10 // tally.wanted:
        print(line, file=out, flush=True)


# --- what failed ---


def _tell_failures(failed: dict[int, list[str]], *, is_whole_story: bool) -> None:
    for seed in sorted(failed):
        print(f"seed {seed}: {failed[seed][0]}")
    for seed in sorted(failed)[:_TOLD] if is_whole_story else ():
        _replay(seed, is_shrunk=True)


def _replay(seed: int, *, is_shrunk: bool, keep_as: str | None = None) -> int:
    run = simulate(make_schedule(seed))
    if run.violations and is_shrunk:
        whole = len(run.schedule.calls), len(run.schedule.faults)
        run = shrink(run)
        left = len(run.schedule.calls), len(run.schedule.faults)
        print(f"\nseed {seed}: {whole[0]} transactions and {whole[1]} faults, shortened to {left[0]} and {left[1]}")
    if keep_as is not None:
        (CORPUS / f"{keep_as}.json").write_bytes(msgspec.json.format(msgspec.json.encode(run.schedule), indent=1))
    print(f"\n{run.story.text()}\n")
    for violation in run.violations:
        print(violation)
    verdict = f"{len(run.violations)} violations" if run.violations else "every promise kept"
    print(f"seed {seed}: {verdict}; event hash {run.story.hash()}; again: python -m tests.simulation --replay {seed}")
    return 1 if run.violations else 0

"""Plants each bug in a copy of the code, and sees it found: `python -m tests.planted`, or `--report` for the table.

A bug is a patch beside this file. Its first line says what is wrong; `Found by:` names the layer that must find it:
`simulation`, or a path for pytest. Simulation begins with the seed that found it last (`simulation from seed 126`), and
goes through all of them if that one finds it no more; `--note-seeds` writes down which one does.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import IO

from msgspec import Struct
from msgspec.structs import replace

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
_COPIED = ("api", "bridge", "checker", "outbox", "spark", "alembic", "examples", "tests", "pyproject.toml")
_SEEDS = 1_000
_LIKELY_SEEDS = 5
_REPORT_SEEDS = 200
_PARTS = 8
_MOST_S = 600
_FROM_SEED = " from seed "


class Bug(Struct, frozen=True):
    """A patch. `seed`: that of the schedule which found it last; 0 if none is noted."""

    name: str
    title: str
    layer: str
    seed: int = 0


class Copy(Struct, frozen=True):
    """Of the code, where a bug is planted, and what runs pytest there: a line asks for a layer, another one answers."""

    folder: Path
    asks: IO[str]
    answers: IO[str]


class Verdict(Struct, frozen=True):
    """Whether it was found, by what, in how many of how many runs; the first seed, if by simulation."""

    bug: Bug
    is_found: bool
    evidence: str
    share: str
    seed: int = 0
    seconds: float = 0.0


def main(arguments: Sequence[str]) -> int:
    """0: every bug was found."""
    parser = argparse.ArgumentParser("python -m tests.planted", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="bugs to plant (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--part", type=int, metavar="N", help=f"one of {_PARTS} only, another one for the next N")
    parser.add_argument("--report", action="store_true", help=f"{_REPORT_SEEDS} seeds each, as a Markdown table")
    parser.add_argument("--note-seeds", action="store_true", help="writes into patches which seed has found them")
    options = parser.parse_args(arguments)
    bugs = [bug for bug in read_bugs() if not options.names or bug.name in options.names]
    if options.part is not None:
        bugs = bugs[options.part % _PARTS :: _PARTS]
    missed: list[Verdict] = []
    if options.report:
        print("| bug | layer | promise broken | found in |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="planted-") as folder, ExitStack() as stack:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(options.jobs):
            copies.put(stack.enter_context(copied_code(Path(folder, str(number)))))
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        for verdict in pool.map(lambda bug: _plant(bug, copies, is_report=options.report), bugs):
            if not verdict.is_found:
                missed.append(verdict)
            elif options.note_seeds and verdict.seed != verdict.bug.seed:
                _note_seed(verdict)
            _show(verdict, is_report=options.report)
    print(f"\n{len(bugs) - len(missed)} of {len(bugs)} planted bugs found", file=sys.stderr)
    for verdict in missed:
        print(f"MISSED {verdict.bug.name}: {verdict.evidence}", file=sys.stderr)
    return 1 if missed else 0


def read_bugs() -> list[Bug]:
    """All bugs, by name."""
    return [_read_bug(path) for path in sorted(FOLDER.glob("*.patch"))]


def _read_bug(path: Path) -> Bug:
    title, layer = path.read_text().splitlines()[:2]
    layer, _, seed = layer.removeprefix("Found by: ").partition(_FROM_SEED)
    return Bug(path.stem, title, layer, int(seed or 0))


def _note_seed(verdict: Verdict) -> None:
    path = FOLDER / f"{verdict.bug.name}.patch"
    title, _, patch = path.read_text().split("\n", 2)
    path.write_text(f"{title}\nFound by: {verdict.bug.layer}{_FROM_SEED}{verdict.seed}\n{patch}")


@contextmanager
def copied_code(folder: Path) -> Iterator[Copy]:
    """With what is compiled already, which stays valid for all that no bug changes."""
    folder.mkdir()
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        elif source.exists():
            shutil.copy2(source, folder / name)
    with subprocess.Popen(
        [sys.executable, "-P", FOLDER / "nursery.py"],
        cwd=folder, env=_environment(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as nursery:  # fmt: skip
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        yield Copy(folder, nursery.stdin, nursery.stdout)


def _plant(bug: Bug, copies: "SimpleQueue[Copy]", *, is_report: bool) -> Verdict:
    copy = copies.get()
    began = time.monotonic()
    try:
        subprocess.run(["git", "apply", "-p1", str(FOLDER / f"{bug.name}.patch")], cwd=copy.folder, check=True)
        verdict = _simulate(bug, copy.folder, is_report=is_report) if bug.layer == "simulation" else _test(bug, copy)
    finally:
        _pull_out(bug, copy.folder)
        copies.put(copy)
    return replace(verdict, seconds=time.monotonic() - began)


def _pull_out(bug: Bug, copy: Path) -> None:
    for name in re.findall(r"^\+\+\+ b/(\S+)", (FOLDER / f"{bug.name}.patch").read_text(), re.MULTILINE):
        shutil.copy2(ROOT / name, copy / name)


def _simulate(bug: Bug, copy: Path, *, is_report: bool) -> Verdict:
    if is_report:
        return _simulate_seeds(bug, copy, "--seeds", _REPORT_SEEDS)
    likely = ("--first", bug.seed, "--seeds", _LIKELY_SEEDS, "--stop-at-first")
    if bug.seed and (verdict := _simulate_seeds(bug, copy, *likely)).is_found:
        return verdict
    return _simulate_seeds(bug, copy, "--seeds", _SEEDS, "--stop-at-first")


def _simulate_seeds(bug: Bug, copy: Path, *scope: object) -> Verdict:
    done = _run([sys.executable, "-m", "tests.simulation", "--jobs", "1", "--no-stories", *map(str, scope)], copy)
    found = re.search(r"promise (\w) broken", done.stdout) or re.search(r"(simulation itself failed)", done.stdout)
    counts = re.search(r"(\d+) schedules in \d+ s, (\d+) failed", done.stdout)
    seed = re.search(r"^seed (\d+): ", done.stdout, re.MULTILINE)
    is_found = done.returncode == 1 and found is not None and seed is not None
    share = f"{counts[2]} of {counts[1]} schedules" if counts else "?"
    return Verdict(
        bug,
        is_found,
        found[1] if found else _tail(done.returncode, done.stdout, done.stderr),
        share,
        int(seed[1]) if seed else 0,
    )


def _test(bug: Bug, copy: Copy) -> Verdict:
    print(json.dumps(bug.layer), file=copy.asks, flush=True)
    code, output = json.loads(copy.answers.readline())
    failed = re.search(r"^FAILED (\S+)", output, re.MULTILINE)
    return Verdict(bug, code == 1 and failed is not None, failed[1] if failed else _tail(code, output), "every run")


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}  # nothing of a bug stays


def _run(command: Sequence[str], copy: Path) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, cwd=copy, env=_environment(copy), capture_output=True, text=True, check=False, timeout=_MOST_S
        )
    except subprocess.TimeoutExpired:  # a bug may never come to an end
        return subprocess.CompletedProcess(command, -1, "", f"not over after {_MOST_S} s")


def _tail(code: int, *outputs: str) -> str:
    return " / ".join([f"ended with {code}", *[line for text in outputs for line in text.strip().splitlines()[-2:]]])


def _show(verdict: Verdict, *, is_report: bool) -> None:
    if is_report:
        print(f"| {verdict.bug.title} | {verdict.bug.layer} | {verdict.evidence} | {verdict.share} |", flush=True)
    else:
        word = "found" if verdict.is_found else "MISSED"
        how = f"{verdict.share}; {verdict.seconds:.0f} s"
        print(f"{word:<7} {verdict.bug.name:<32} {verdict.evidence} ({how})", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

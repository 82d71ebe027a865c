"""`python -m benchmarks.profiles`: where the processor time of each part goes, sampled by py-spy while a load runs.

A sample is of the thread that holds the interpreter, and belongs to its innermost Python function; C code that this
calls (msgspec, handing a record to the client of Kafka) is in it. The shares are those of all that the process used.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.load import Load, load_batches, load_singles
from benchmarks.outcome import LATEST, Values, conclude, tell
from benchmarks.rounds import settle, warm_up
from benchmarks.stage import TOPIC, Shape, Stage, running_stage

Drive = Callable[[Sequence[int]], Awaitable[Load]]

_PARTS = ("api", "settler", "projector")
_RATE = 100  # samples a second; the process stands still for each
# the first whose mark is in a file's path has its samples
_PLACES = (
    ("core", ("/bridge/core/",)),
    ("settler", ("/bridge/settler/",)),
    ("service", ("/bridge/service/",)),
    ("Kafka adapter", ("/bridge/store/",)),
    ("projection", ("/bridge/sql/", "/bridge/projector", "/sqlalchemy/")),
    ("checker", ("/checker/",)),
    ("HTTP", ("/api/", "/uvicorn/", "/starlette/", "/fastapi/", "/pydantic/")),
    ("event loop and sockets", ("/asyncio/", "/uvloop/", "/selectors")),
)
_REST = "everything else"


def main() -> int:
    """Exit code 1: something was lost, or visible twice."""
    options = _read_options()
    shape = Shape(1, 1, 1)
    loads: dict[str, Drive] = {
        "batches of 100, 32 connections": lambda ports: load_batches(ports, TOPIC, 32, options.seconds),
        "single calls, 256 connections": lambda ports: load_singles(ports, TOPIC, 256, options.seconds),
    }
    profiles: dict[str, dict[str, dict[str, float]]] = {}
    with running_stage(shape) as stage:
        tell("warming up")
        warm_up(stage, options.warm_up)
        for name, load in loads.items():
            profiles[name] = _profile(stage, load, options.seconds)
            tell(f"{name}: {profiles[name]}")
            stage.await_projection()
        mistakes = stage.find_mistakes()
    return conclude("profiles", Values(), shape, options.output, mistakes, sections={"profiles": profiles})


def find_place(stack: str) -> str:
    """To what a sample belongs: a stack from the outermost to the innermost frame, "name (file:line)" each."""
    file = stack.rpartition(";")[2].rpartition(" (")[2]
    return next((place for place, marks in _PLACES if any(mark in file for mark in marks)), _REST)


def _profile(stage: Stage, load: Drive, seconds: float) -> dict[str, dict[str, float]]:
    """Microseconds for a transaction: of each part, by place."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        samplers = {part: _sample(stage.parts[part][0], seconds, Path(folder, part)) for part in _PARTS}
        for sampler in samplers.values():
            stack.callback(sampler.kill)
        done, used = stage.watch(lambda: settle(stage, load))
        for sampler in samplers.values():
            sampler.wait(60)
        counts = {part: _count(Path(folder, part)) for part in _PARTS}
    each = {part: used.cpu[part] / done.transactions * 1e6 / counts[part].total() for part in _PARTS}
    return {part: {place: round(n * each[part], 1) for place, n in counts[part].most_common()} for part in _PARTS}


def _sample(pid: int, seconds: float, output: Path) -> "subprocess.Popen[bytes]":
    spy = Path(sys.executable).with_name("py-spy")
    command = (spy, "record", "--format", "raw", "--full-filenames", "--rate", str(_RATE), "--gil")
    options = ("--duration", str(round(seconds)), "--pid", str(pid), "--output", str(output))
    return subprocess.Popen((*command, *options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _count(folded: Path) -> Counter[str]:
    """Samples by place; a line is a stack and how often it was seen."""
    counts: Counter[str] = Counter()
    for line in folded.read_text().splitlines():
        stack, _, times = line.rpartition(" ")
        counts[find_place(stack)] += int(times)
    return counts


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiles", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="for each load (default %(default)s)")
    parser.add_argument("--warm-up", type=float, default=45, help="before the first load (default %(default)s)")
    parser.add_argument("--output", type=Path, default=LATEST)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())

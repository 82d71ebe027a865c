"""`python -m benchmarks.reconciliation`: a million transactions with everything planted, reconciled in windows.

The data is written once, through real Kafka transactions. Then the job runs as its users start it, a process each
time: twice over everything, then window by window. Each time all that was planted must be found, and nothing else.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.outcome import LATEST, Values, conclude, tell
from benchmarks.stage import Shape
from bridge.broker.ports import find_java
from spark.judge.findings import CLEARED, FINDINGS_FILE, decode_findings, encode_findings
from spark.read.envelope import OffsetRange, QueuePlace
from spark.read.offsets import take_window
from spark.read.window import WINDOW_FILE, Window, encode_window
from spark.report.files import MANIFEST
from spark.selftest.run import Injector, compare_truth, groups_document
from spark.selftest.seeded import BANK, Scenario, SeededTopics, make_tales
from tests.support.broker import running_broker
from tests.support.source_tree import ROOT

_PORTIONS = 16  # of the data: between them lie the ends of windows
_WINDOWS = (4, 16)
_FINDINGS_EXIT = 1
_STARTED = "Spark has started"
_PREFIX = "bench."
_HEAP_MB = 1024


class Scene(NamedTuple):
    """What lies in Kafka. `marks`: the ends after each portion; `truth`: what must be found in all of it."""

    kafka: str
    whole: Window
    marks: Sequence[Mapping[QueuePlace, int]]
    truth: Sequence[tuple[str, str]]
    folder: Path


@dataclass(slots=True)
class Run:
    """A job that has ended. `start_s`: until Spark had started, `job_s`: from there to the end of the process."""

    folder: Path
    start_s: float
    job_s: float
    peak_bytes: int
    mistakes: list[str] = field(default_factory=list)


def main() -> int:
    """Measures everything once. Exit code 1: something was not found, found wrongly, or two runs differ."""
    options = _read_options()
    values = Values()
    with running_broker(heap_mb=_HEAP_MB) as broker, tempfile.TemporaryDirectory() as folder:
        scene = _write(broker.bootstrap, options, Path(folder), values)
        mistakes = _measure_whole(scene, options, values)
        for count in options.windows:
            mistakes += _measure_chain(scene, options, values, count)
    remarks = {"transactions": f"{options.transactions:,} and {len(scene.truth):,} findings", "records": _count(scene)}
    if os.sched_getscheduler(0) == os.SCHED_IDLE:
        remarks["priority"] = "idle, beside other work: it takes longer than on a machine that rests"
    return conclude("reconciliation", values, Shape(2, 0, 0), options.output, mistakes, remarks=remarks)


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reconciliation", description=__doc__)
    parser.add_argument("--transactions", type=int, default=1_000_000, help="ordinary ones (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=160, help="of everything else (default %(default)s)")
    parser.add_argument("--windows", type=int, nargs="+", choices=_WINDOWS, default=_WINDOWS, help="default: 4 16")
    parser.add_argument("--memory-mb", type=int, default=0, help="Java heap of the job (default: the job's own)")
    parser.add_argument("--output", type=Path, default=LATEST)
    return parser.parse_args()


def _write(kafka: str, options: argparse.Namespace, folder: Path, values: Values) -> Scene:
    """All portions, and the offsets between them."""
    stage = SeededTopics(_PREFIX)
    now_ms = time.time_ns() // 1_000_000
    injector = Injector({"bootstrap.servers": kafka}, stage, now_ms)
    injector.create_topics()
    (folder / "groups.json").write_text(json.dumps(groups_document()))
    total = sum(1 for _ in _tales(options))
    tales = _tales(options)
    truth, marks = [], []
    began = time.perf_counter()
    for number in range(1, _PORTIONS + 1):
        truth += injector.write(islice(tales, -(-total // _PORTIONS)))
        if number == _PORTIONS:
            truth += injector.finish()
        marks.append(_look(kafka, stage))
        tell(f"portion {number} of {_PORTIONS} is written")
    values.note("reconcile_planting_s", time.perf_counter() - began)
    whole = replace(marks[-1], taken_ms=now_ms)  # for all windows alike, so that what is young stays young
    ends = [{place: extent.end for place, extent in mark.extents.items()} for mark in marks]
    return Scene(kafka, whole, ends, sorted(truth), folder)


def _tales(options: argparse.Namespace) -> Iterator[Scenario]:
    """Without those that are about a producer's table: there is none here."""
    return (tale for tale in make_tales(options.transactions, options.rounds) if tale.group != BANK)


def _look(kafka: str, stage: SeededTopics) -> Window:
    real = sorted(set(stage.topics) - {stage.internal.half, stage.internal.op, stage.internal.parked})
    return take_window({"bootstrap.servers": kafka}, stage.internal, real)


def _measure_whole(scene: Scene, options: argparse.Namespace, values: Values) -> list[str]:
    """Everything in one window; then once more, which must give the same bytes."""
    runs = [_reconcile(scene, options, scene.whole, scene.folder / f"whole-{number}") for number in (1, 2)]
    for run in runs:
        tell(f"whole: {run.job_s:.1f} s after {run.start_s:.1f} s, {run.peak_bytes / 1e6:,.0f} MB")
        values.note("reconcile_s", run.job_s)
        values.note("reconcile_start_s", run.start_s)
        values.note("reconcile_peak_mb", run.peak_bytes / 1e6)
    mistakes = [mistake for run in runs for mistake in (*run.mistakes, *_compare_truth(run, scene.truth))]
    return mistakes + _compare_bytes(*(run.folder for run in runs))


def _measure_chain(scene: Scene, options: argparse.Namespace, values: Values, count: int) -> list[str]:
    """The same in so many windows, each since the last."""
    mistakes = []
    out = scene.folder / f"chain-{count}"
    seconds = []
    for number, window in enumerate(_cut(scene, count), start=1):
        run = _reconcile(scene, options, window, out, ["--since-last"])
        tell(f"window {number} of {count}: {run.job_s:.1f} s, {run.peak_bytes / 1e6:,.0f} MB")
        values.note(f"reconcile_{count}_windows_s", run.job_s)
        seconds.append(run.job_s)
        mistakes += run.mistakes
    quarter = count // 4
    values.note(f"reconcile_{count}_last_vs_first", sum(seconds[-quarter:]) / sum(seconds[:quarter]))
    return mistakes + [f"{count} windows: {mistake}" for mistake in _compare_truth(run, scene.truth)]


def _cut(scene: Scene, count: int) -> Iterator[Window]:
    """So many windows of the same size, one behind the other."""
    starts = {place: extent.start for place, extent in scene.whole.extents.items()}
    for number in range(1, count + 1):
        mark = scene.marks[number * _PORTIONS // count - 1]
        extents = {
            place: _share(extent, starts[place], max(mark[place], starts[place]))
            for place, extent in scene.whole.extents.items()
        }
        yield replace(scene.whole, extents=extents)
        starts = {place: extent.end for place, extent in extents.items()}


def _share(extent: OffsetRange, start: int, end: int) -> OffsetRange:
    return replace(extent, start=start, end=end, seen=end)


def _reconcile(scene: Scene, options: argparse.Namespace, window: Window, out: Path, flags: Sequence[str] = ()) -> Run:
    """One process of the job."""
    path = scene.folder / WINDOW_FILE
    path.write_text(encode_window(window))
    given: dict[str, object] = {"--kafka": scene.kafka, "--prefix": _PREFIX, "--window": path, "--out": out}
    given["--groups"] = scene.folder / "groups.json"
    if options.memory_mb:
        given["--memory-mb"] = options.memory_mb
    command = [sys.executable, "-m", "spark.reconcile", *(f"{name}={value}" for name, value in given.items()), *flags]
    began = time.perf_counter()
    process = subprocess.Popen(command, env=_environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with process, _watching(process.pid) as peak:
        started, said = _follow(process)
    ended = time.perf_counter()
    folder = max(out.glob("[0-9]*"), default=out)
    mistakes = [] if process.returncode == _FINDINGS_EXIT else [f"exit code {process.returncode}: {said}"]
    return Run(folder, started - began, ended - started, peak[0], mistakes)


def _follow(process: "subprocess.Popen[bytes]") -> tuple[float, str]:
    """When Spark had started, and the last words."""
    started, last = time.perf_counter(), ""
    assert process.stderr is not None
    for line in process.stderr:
        last = line.decode(errors="replace").strip()
        if last.endswith(_STARTED):
            started = time.perf_counter()
    return started, last


def _environment() -> dict[str, str]:
    home = find_java().path.resolve().parents[1]
    return {**os.environ, "JAVA_HOME": str(home), "PYTHONPATH": str(ROOT)}


@contextmanager
def _watching(pid: int) -> Iterator[list[int]]:
    """The most memory that the process and all its children had together, looked at five times a second."""
    peak, is_over = [0], threading.Event()

    def look() -> None:
        process = psutil.Process(pid)
        while not is_over.wait(0.2):
            with suppress(psutil.Error):
                peak[0] = max(peak[0], sum(_memory(one) for one in (process, *process.children(recursive=True))))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        is_over.set()
        watcher.join()


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has just ended
        return 0


def _compare_truth(run: Run, truth: Sequence[tuple[str, str]]) -> list[str]:
    """What was planted and not found, or found and not planted; CLEARED ones are none."""
    if run.mistakes:  # there is no report to compare
        return []
    findings = decode_findings((run.folder / FINDINGS_FILE).read_text(encoding="utf-8"))
    unseen, invented = compare_truth(truth, encode_findings(one for one in findings if one.state != CLEARED))
    wrong = [(title, sorted(pairs)) for title, pairs in (("not found", unseen), ("false", invented)) if pairs]
    return [f"{run.folder}: {len(pairs)} {title}, such as {pairs[0]}" for title, pairs in wrong]


def _compare_bytes(one: Path, other: Path) -> list[str]:
    """Files that differ."""
    if not (one / MANIFEST).exists():
        return []
    names = [*json.loads((one / MANIFEST).read_text())["sha256"], MANIFEST]
    return [f"{name} differs" for name in names if (one / name).read_bytes() != (other / name).read_bytes()]


def _count(scene: Scene) -> str:
    return f"{sum(extent.end - extent.start for extent in scene.whole.extents.values()):,}"


if __name__ == "__main__":
    raise SystemExit(main())

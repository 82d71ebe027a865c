"""What is landed minute by minute, and runs that end in the middle: the next one goes on as if nothing had been."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from pyspark.sql import Row, SparkSession

from spark.errors import Indeterminate
from spark.judge.findings import CLEARED, decode_findings
from spark.landing import _begin, land_once
from spark.options import Access, Options, parse_groups
from spark.read.envelope import OffsetRange, QueuePlace
from spark.read.events import EVENTS
from spark.read.sources import KafkaAccess, land_kafka, read_landed
from spark.read.window import Window, encode_window, find_landed
from spark.reconcile import RunOutcome, Tell, reconcile
from spark.selftest.run import Injector, SeededTopics, groups_document, make_tales
from tests.support.bridge_process import wait_until
from tests.support.cli_process import environment
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.timeout(600)  # seconds where nothing else runs
PLACE = ("topic", "part", "off")


class Killed(BaseException):
    """The end of a process, as far as its files can tell."""


@dataclass
class World:
    """Topics with everything planted in two goes, each landed."""

    kafka: str
    stage: SeededTopics
    landings: Path
    standing: set[tuple[str, str]] = field(default_factory=set)

    @property
    def access(self) -> Access:
        real = sorted(self.stage.topics.keys() - {self.stage.internal.half, self.stage.internal.op})
        real.remove(self.stage.internal.parked)
        return Access(self.landings, self.stage.internal, {"bootstrap.servers": self.kafka}, topics=real)

    def run(self, spark: SparkSession, out: Path, tell: Tell = lambda _: None, **members: object) -> RunOutcome:
        groups = parse_groups(groups_document())
        given: dict[str, object] = {"landed": self.landings, "groups": groups, **members}
        return reconcile(spark, Options(out, self.stage.internal, self.access.kafka, **given), tell)  # type: ignore[arg-type]


@contextmanager
def job(module: str, *arguments: str, settings: Mapping[str, str] | None = None) -> Iterator["subprocess.Popen[str]"]:
    """A command in a session of its own, as a terminal starts it; whatever it started is gone afterwards."""
    own = {**environment(settings), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", module, *arguments, "--cores", "1"]
    with subprocess.Popen(
        command, cwd=ROOT, env=own, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as popen:
        try:
            yield popen
        finally:
            with suppress(ProcessLookupError):
                os.killpg(popen.pid, signal.SIGKILL)


def end(popen: "subprocess.Popen[str]", number: signal.Signals, *, is_for_all: bool = False) -> int:
    """Signals it, or all it started too, as a terminal does; the exit code once all of them are gone."""
    family = psutil.Process(popen.pid).children(recursive=True)
    if is_for_all:
        os.killpg(popen.pid, number)
    else:
        popen.send_signal(number)
    code = popen.wait(300)
    assert psutil.wait_procs(family, timeout=300)[1] == []
    return code


def wait_for(popen: "subprocess.Popen[str]", is_so: Callable[[], bool]) -> None:
    """Until the job has come so far."""
    wait_until(lambda: is_so() or popen.poll() is not None, 600, "the job")
    assert popen.poll() is None, popen.communicate()[1]


def rows_of(events: object) -> list[Row]:
    rows: list[Row] = events.sort(*PLACE).collect()  # type: ignore[attr-defined]
    return rows


def standing(folder: Path) -> set[tuple[str, str]]:
    """Findings that are not cleared."""
    return {one.name for one in decode_findings((folder / "findings.jsonl").read_text()) if one.state != CLEARED}


@pytest.fixture(scope="module")
def world(spark: SparkSession, kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The first landing was killed at its end, and gone on with; the second met an open Kafka transaction."""
    stage = SeededTopics(f"landing-{time.time_ns()}.")
    made = World(kafka, stage, tmp_path_factory.mktemp("landed"))
    injector = Injector(made.access.kafka, stage, time.time_ns() // 1_000_000)
    injector.create_topics()
    injector.plant(make_tales(60, 1))
    events = made.landings / "000001" / EVENTS
    with pytest.raises(Killed):
        land_once(spark, made.access, end_at("everything landed"))
    first = {path.name: path.stat().st_mtime_ns for path in events.iterdir()}
    injector.plant(make_tales(1, 0))  # behind the ends that the first has noted
    land_once(spark, made.access, lambda _: None)
    assert {path.name: path.stat().st_mtime_ns for path in events.iterdir()} == first
    injector.plant(tale for tale in make_tales(40, 1) if tale.name != "unprovable")
    writer = Producer({"bootstrap.servers": kafka, "transactional.id": f"{stage.prefix}open"})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(stage.real("orders"), b"not yet", partition=0)
    writer.flush(30)
    land_once(spark, made.access, lambda _: None)
    land_once(spark, made.access, lambda _: None)  # nothing is new
    writer.abort_transaction(30)
    yield made
    injector.delete_topics()


def test_landings_hold_what_kafka_holds(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """Each committed record of their window once, whatever was killed; nothing behind an open Kafka transaction."""
    found = find_landed(world.landings)
    landed = rows_of(read_landed(spark, *(unit / EVENTS for unit in found.units)))
    assert len(found.units) == 3
    land_kafka(spark, found.window, KafkaAccess(world.access.kafka), tmp_path)
    assert landed == rows_of(read_landed(spark, tmp_path))
    assert len(landed) > 300


def test_killed_landing_is_begun_anew_where_a_topic_was_made_again(tmp_path: Path) -> None:
    """Its files hold records of the topic that was, and its ends may never come in the one that is."""
    place, unit = QueuePlace("orders", 0), tmp_path / "000001"
    killed = Window("half", "op", "parked", 1, {place: OffsetRange(0, 900, 900)}, {"orders": "first"})
    assert _begin(unit, killed) == killed
    (unit / EVENTS).mkdir()
    assert _begin(unit, replace(killed, taken_ms=2)) == killed
    assert (unit / EVENTS).exists()
    again = Window("half", "op", "parked", 2, {place: OffsetRange(0, 5, 5)}, {"orders": "second"})
    assert _begin(unit, again) == again
    assert not (unit / EVENTS).exists()


FILES = (
    "window.json",
    "summary.json",
    "findings.jsonl",
    "repair.jsonl",
    "metrics.prom",
    "report.html",
    "manifest.json",
)


@pytest.fixture(scope="module")
def whole(spark: SparkSession, world: World, tmp_path_factory: pytest.TempPathFactory) -> RunOutcome:
    """One run on everything that was landed."""
    return world.run(spark, tmp_path_factory.mktemp("whole"))


def test_report_on_landed_files_is_the_report_on_kafka(
    spark: SparkSession, world: World, whole: RunOutcome, tmp_path: Path
) -> None:
    """Byte for byte, for the same window."""
    direct = world.run(spark, tmp_path, landed=None, window=whole.folder / "window.json")
    assert [name for name in FILES if (direct.folder / name).read_bytes() != (whole.folder / name).read_bytes()] == []
    assert len(standing(whole.folder)) > 50
    sizes = [path.stat().st_size for path in (whole.folder / EVENTS).glob("*.parquet")]
    assert max(sizes) < 200_000  # a filter for very many ids alone is 1 MiB


def cut_journal(window: Window) -> Window:
    """The same where the journal was looked at long before everything else."""
    extents = {
        place: replace(extent, end=extent.end * 2 // 5, seen=extent.end * 2 // 5)
        if place.topic == window.half
        else replace(extent, seen=extent.start)
        for place, extent in window.extents.items()
    }
    return replace(window, extents=extents)


def end_at(step: str) -> Tell:
    """Ends the run as soon as it tells of this step."""

    def tell(text: str) -> None:
        if step in text:
            raise Killed

    return tell


def test_runs_that_end_in_the_middle_count_for_nothing(
    spark: SparkSession, world: World, whole: RunOutcome, tmp_path: Path
) -> None:
    """SIGKILL while the report is made, the end at any step, Ctrl-C (130): two windows find what one finds.

    Books balance; Java goes with its job. Of the first window, what ended is ahead of what was prepared: none of that
    is forgotten until its half message comes.
    """
    out, lagging = tmp_path / "runs", tmp_path / "lagging.json"
    lagging.write_text(encode_window(cut_journal(find_landed(world.landings).window)))
    landed = ("--out", str(out), "--landed", str(world.landings), "--since-last")
    with job("spark.reconcile", *landed, "--window", str(lagging), "--prefix", world.stage.prefix) as killed:
        wait_for(killed, (out / "000001" / "carry").exists)
        killed.send_signal(signal.SIGSTOP)
        with pytest.raises(Indeterminate, match="another run is at work"):
            world.run(spark, out, since_last=True)
        assert end(killed, signal.SIGKILL) == -signal.SIGKILL
    first = world.run(spark, out, since_last=True, window=lagging)
    for step in ("run 2", "landed", "report written"):
        with pytest.raises(Killed):
            world.run(spark, out, end_at(step), since_last=True)
    settings = {"OUTBOX_BRIDGE_TOPICS__PREFIX": world.stage.prefix, "OUTBOX_BRIDGE_DATA_DIR": str(tmp_path)}
    with job("api", "report", "run", *landed, settings=settings) as interrupted:
        wait_for(interrupted, (out / "000002" / EVENTS / "_temporary").exists)
        assert end(interrupted, signal.SIGINT, is_for_all=True) == 130
        assert "what was begun does not count" in interrupted.communicate()[1].splitlines()[-1]
    last = world.run(spark, out, since_last=True)
    assert [first.folder.name, last.folder.name] == ["000001", "000002"]
    assert standing(last.folder) == standing(whole.folder)
    books = [json.loads((run.folder / "summary.json").read_text())["books"]["total"] for run in (first, last, whole)]
    assert [book["is_balanced"] for book in books] == [True] * 3
    assert books[1]["opening"] == sum(books[0][name] for name in ("blocked", "parked", "open"))

"""What is landed minute by minute, and runs that end in the middle: the next one goes on as if nothing had been."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from pyspark.sql import Row, SparkSession

from api.cli.spark_jars import connector_jars
from spark.errors import Indeterminate
from spark.findings import CLEARED, decode_findings
from spark.history import EVENTS
from spark.landed import find_landed
from spark.landing import land_once
from spark.ledger import Ledger
from spark.options import Access, Options, parse_groups
from spark.reconcile import Outcome, Tell, reconcile
from spark.selftest import Injector, Stage, groups_document, make_tales
from spark.sources import KafkaAccess, read_kafka, read_landed
from tests.support.bridge_process import wait_until
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.timeout(300)
PLACE = ("topic", "part", "off")


class Killed(BaseException):
    """The end of a process, as far as its files can tell."""


@dataclass
class World:
    """Topics with everything planted in two goes, each landed."""

    kafka: str
    stage: Stage
    landings: Path
    standing: set[tuple[str, str]] = field(default_factory=set)

    @property
    def access(self) -> Access:
        real = sorted(self.stage.topics.keys() - {self.stage.internal.half, self.stage.internal.op})
        real.remove(self.stage.internal.parked)
        return Access(self.landings, self.stage.internal, {"bootstrap.servers": self.kafka}, topics=real)

    def run(self, spark: SparkSession, out: Path, tell: Tell = lambda _: None, **members: object) -> Outcome:
        groups = parse_groups(groups_document())
        given: dict[str, object] = {"landed": self.landings, "groups": groups, **members}
        return reconcile(spark, Options(out, self.stage.internal, self.access.kafka, **given), tell)  # type: ignore[arg-type]


@contextmanager
def job(module: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A job as a process of its own, with a Java of its own; both are gone afterwards."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    jars = ",".join(str(jar) for jar in connector_jars())
    command = [sys.executable, "-m", module, *arguments, "--jars", jars, "--cores", "1"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as popen:
        family: list[psutil.Process] = []
        try:
            yield popen
        finally:
            if popen.poll() is None:
                family = psutil.Process(popen.pid).children(recursive=True)
                popen.kill()
            psutil.wait_procs(family, timeout=30)


def wait_for(popen: "subprocess.Popen[str]", is_so: Callable[[], bool]) -> None:
    """Until the job has come so far."""
    wait_until(lambda: is_so() or popen.poll() is not None, 120, "the job")
    assert popen.poll() is None, popen.communicate()[1]


def rows_of(events: object) -> list[Row]:
    rows: list[Row] = events.sort(*PLACE).collect()  # type: ignore[attr-defined]
    return rows


def standing(folder: Path) -> set[tuple[str, str]]:
    """Findings that are not cleared."""
    return {one.name for one in decode_findings((folder / "findings.jsonl").read_text()) if one.state != CLEARED}


@pytest.fixture(scope="module")
def world(spark: SparkSession, kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The first landing was killed between two batches, and gone on with; the second met an open Kafka transaction."""
    stage = Stage(f"landing-{time.time_ns()}.")
    made = World(kafka, stage, tmp_path_factory.mktemp("landed"))
    injector = Injector(made.access.kafka, stage, time.time_ns() // 1_000_000)
    injector.create_topics()
    injector.plant(make_tales(60, 1))
    batches = made.landings / "000001" / EVENTS
    arguments = ("--out", str(made.landings), "--kafka", kafka, "--prefix", stage.prefix)
    with job("spark.landing", *arguments, "--topics", ",".join(made.access.topics), "--max-batch-offsets", "30") as one:
        wait_for(one, (batches / "journal-000001").exists)
    first = [path.stat().st_mtime_ns for path in (batches / "journal-000000").iterdir()]
    land_once(spark, made.access, lambda _: None)
    assert [path.stat().st_mtime_ns for path in (batches / "journal-000000").iterdir()] == first
    injector.plant(tale for tale in make_tales(40, 1) if tale.name != "unprovable")
    writer = Producer({"bootstrap.servers": kafka, "transactional.id": f"{stage.prefix}open"})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(stage.real("orders"), b"not yet", partition=0)
    writer.flush(30)
    land_once(spark, made.access, lambda _: None)
    writer.abort_transaction(30)
    yield made
    injector.delete_topics()


def test_landings_hold_what_kafka_holds(spark: SparkSession, world: World) -> None:
    """Each committed record of their window once, whatever was killed; nothing behind an open Kafka transaction."""
    found = find_landed(world.landings)
    landed = rows_of(read_landed(spark, *(unit / EVENTS for unit in found.units)))
    assert len(found.units) == 2
    assert landed == rows_of(read_kafka(spark, found.window, KafkaAccess(world.access.kafka, {})))
    assert len(landed) > 300


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
def whole(spark: SparkSession, world: World, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One run on everything that was landed."""
    return world.run(spark, tmp_path_factory.mktemp("whole"))


def test_report_on_landed_files_is_the_report_on_kafka(
    spark: SparkSession, world: World, whole: Outcome, tmp_path: Path
) -> None:
    """Byte for byte, for the same window."""
    direct = world.run(spark, tmp_path, landed=None, window=whole.folder / "window.json")
    assert [name for name in FILES if (direct.folder / name).read_bytes() != (whole.folder / name).read_bytes()] == []
    assert len(standing(whole.folder)) > 50


def test_run_ended_at_any_step_is_made_again(spark: SparkSession, world: World, whole: Outcome, tmp_path: Path) -> None:
    """It counts for nothing until the ledger names it: two windows find what one finds, and their books balance."""
    world.run(spark, tmp_path, since_last=True, landed=world.landings / "000001")
    told: list[str] = []

    def end_after(count: int) -> Tell:
        def tell(text: str) -> None:
            told.append(text)
            if len(told) == count:
                raise Killed

        return tell

    steps = 0
    while True:
        told.clear()
        steps += 1
        try:
            outcome = world.run(spark, tmp_path, end_after(steps), since_last=True)
        except Killed:
            assert [entry.run for entry in Ledger.open(tmp_path).entries] == [1]
        else:
            break
    assert steps == 8, told
    assert outcome.folder.name == "000002"
    assert standing(outcome.folder) == standing(whole.folder)
    books = [
        json.loads((tmp_path / run / "summary.json").read_text())["books"]["total"] for run in ("000001", "000002")
    ]
    assert [book["is_balanced"] for book in books] == [True, True]
    assert json.loads((whole.folder / "summary.json").read_text())["books"]["total"]["is_balanced"]
    unended = sum(books[0][name] for name in ("blocked", "parked", "open"))
    assert books[1]["opening"] == unended


def test_processes_that_are_killed_or_interrupted_leave_nothing_that_counts(
    spark: SparkSession, world: World, whole: Outcome, tmp_path: Path
) -> None:
    """SIGKILL between two files of the report; Ctrl-C while events are read: one line, 130. Java goes with them."""
    out = tmp_path / "runs"
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps(groups_document()))
    arguments = ("--out", str(out), "--prefix", world.stage.prefix, "--since-last", "--groups", str(groups))
    with job("spark.reconcile", *arguments, "--landed", str(world.landings / "000001")) as killed:
        wait_for(killed, (out / "000001" / "summary.json").exists)
        with pytest.raises(Indeterminate, match="another run is at work"):
            world.run(spark, out, since_last=True)
        killed.kill()
    world.run(spark, out, since_last=True, landed=world.landings / "000001")
    with job("spark.reconcile", *arguments, "--landed", str(world.landings)) as interrupted:
        wait_for(interrupted, (out / "000002" / EVENTS).exists)
        family = psutil.Process(interrupted.pid).children(recursive=True)
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.wait(30) == 130
        assert interrupted.communicate()[1].splitlines()[-1] == "interrupted: what was begun does not count"
        assert psutil.wait_procs(family, timeout=30)[1] == []
    last = world.run(spark, out, since_last=True)
    assert last.folder.name == "000002"
    assert standing(last.folder) == standing(whole.folder)

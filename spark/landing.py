"""Lands the topics into Parquet, to be run each minute: hashes only, like a run's own `events/`.

    OUT/000001/events/       Parquet, a folder for each micro-batch
    OUT/000001/window.json   what was landed, written last: a folder with one is complete, all others do not count
    OUT/000001/plan.json, checkpoint/    while it is not complete: a landing that was killed is gone on with

Structured Streaming reads what is available and ends. The journal is landed first and everything else after it, so
that what the journal decided had time to get into the rest: a report on complete landings is as right as on Kafka.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark.errors import BadUsage
from spark.options import Access, add_access, read_access
from spark.read.events import EVENTS
from spark.read.offsets import take_window
from spark.read.scope import QueuePlace
from spark.read.sources import KafkaAccess, stream_kafka
from spark.read.window import WINDOW_FILE, Window, complete_units, encode_window, window_of
from spark.reconcile import Tell, explained, run_command
from spark.report.run_index import hold, write_durably
from spark.session import BRIEF_OFFSETS, running_session

_PLAN, _CHECKPOINT = "plan.json", "checkpoint"
_JOURNAL, _OTHERS = "journal", "others"
MAX_BATCH_OFFSETS = 2_000_000  # of a micro-batch: what a kill can cost


@dataclass(frozen=True, slots=True)
class Ingested:
    """A complete landing."""

    unit: Path
    window: Window


def land_once(spark: SparkSession, access: Access, tell: Tell, *, max_offsets: int = MAX_BATCH_OFFSETS) -> Ingested:
    """Lands what came since the last landing in `access.out`. Raises ReconcileError."""
    with explained(), hold(access.out):
        plan = _make_plan(access)
        units = complete_units(access.out)
        unit = access.out / f"{int(units[-1].name) + 1 if units else 1:06d}"
        _begin(unit, plan)
        tell(f"landing {int(unit.name)}: {len(plan.extents)} partitions")
        kafka = KafkaAccess(access.kafka, access.kafka_java)
        streams = _Streams(spark, unit, plan, kafka, max_offsets)
        journal = streams.run(_JOURNAL)
        taken_ms = time.time_ns() // 1_000_000
        tell("journal landed")
        window = _with_ends(plan, {**journal, **streams.run(_OTHERS)}, taken_ms)
        tell("everything landed")
        write_durably(unit / WINDOW_FILE, encode_window(window))
        shutil.rmtree(unit / _CHECKPOINT, ignore_errors=True)
        (unit / _PLAN).unlink()
        return Ingested(unit, window)


def _make_plan(access: Access) -> Window:
    """What came since the last landing. Raises BadUsage, Indeterminate."""
    units = complete_units(access.out)
    return take_window(access.kafka, access.internal, access.topics, window_of(units[-1]) if units else None)


def _begin(unit: Path, plan: Window) -> None:
    """Makes the folder, or leaves what a landing that was killed has there, if it began where this one begins."""
    starts = json.dumps([[*place, extent.start] for place, extent in sorted(plan.extents.items())])
    path = unit / _PLAN
    if path.exists() and path.read_text(encoding="utf-8") == starts:
        return
    shutil.rmtree(unit, ignore_errors=True)
    (unit / EVENTS).mkdir(parents=True)  # also where nothing is new
    write_durably(path, starts)


@dataclass(frozen=True, slots=True)
class _Streams:
    spark: SparkSession
    unit: Path
    plan: Window
    kafka: KafkaAccess
    max_offsets: int

    def run(self, name: str) -> Mapping[QueuePlace, int]:
        """Lands what is available of the journal, or of the others; where that ends."""
        events = stream_kafka(
            self.spark, self.plan, self.kafka, is_journal=name == _JOURNAL, max_offsets=self.max_offsets
        )
        checkpoint = self.unit / _CHECKPOINT / name
        files = self.spark.sparkContext.defaultParallelism

        def write(batch: DataFrame, number: int) -> None:
            """After a kill the same batch comes again with the same number: it replaces what is there."""
            folder = self.unit / EVENTS / f"{name}-{number:06d}"
            batch.coalesce(files).write.mode("overwrite").parquet(str(folder))

        writer = events.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
        return _read_ends(checkpoint)


def _read_ends(checkpoint: Path) -> dict[QueuePlace, int]:
    """Where the last batch ended, from Spark's log of offsets: version, settings, then a line for each source."""
    batches = [int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*")]
    if not batches:
        return {}
    lines = (checkpoint / "offsets" / str(max(batches))).read_text(encoding="utf-8").splitlines()[2:]
    sources: list[dict[str, dict[str, int]]] = [json.loads(line) for line in lines if line.startswith("{")]
    return {
        QueuePlace(topic, int(part)): end
        for source in sources
        for topic, parts in source.items()
        for part, end in parts.items()
    }


def _with_ends(plan: Window, ends: Mapping[QueuePlace, int], taken_ms: int) -> Window:
    """The window that was landed. What was seen before the journal's end is what the plan has noted."""
    extents = {
        place: replace(
            extent,
            end=ends.get(place, extent.start),
            seen=ends.get(place, extent.start) if place.topic == plan.half else extent.seen,
        )
        for place, extent in plan.extents.items()
    }
    return replace(plan, taken_ms=taken_ms, extents=extents)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 landed, 2 usage, 3 indeterminate."""
    parser = argparse.ArgumentParser(prog="landing", description="Lands Kafka's topics for `reconcile --landed`.")
    add_access(parser)
    parser.add_argument("--max-batch-offsets", type=int, default=MAX_BATCH_OFFSETS, help="of a micro-batch")
    given = parser.parse_args(arguments)
    return run_command(lambda tell: _land(read_access(given), given.max_batch_offsets, tell))


def _land(access: Access, max_offsets: int, tell: Tell) -> int:
    if max_offsets < 1:
        raise BadUsage(f"--max-batch-offsets {max_offsets}: from 1")
    is_brief = _make_plan(access).offsets <= BRIEF_OFFSETS  # what cannot be is refused before Spark starts
    with running_session(access.jars, cores=access.cores, memory_mb=access.memory_mb, is_brief=is_brief) as spark:
        landed = land_once(spark, access, tell, max_offsets=max_offsets)
    sys.stdout.write(f"{landed.window.offsets:,} offsets landed in {landed.unit}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

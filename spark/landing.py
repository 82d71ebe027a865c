"""Lands the topics into Parquet, to be run each minute: hashes only, like a run's own `events/`.

    OUT/000001/events/       Parquet, a file for each range of offsets
    OUT/000001/window.json   what was landed, written last: a folder with one is complete, all others do not count
    OUT/000001/planned.json  the same, while it is not complete: a landing that was killed is gone on with

The ends are noted as a run notes them, so that what the journal decided had time to get into the rest: a report on
complete landings is as right as on Kafka.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from spark.options import Access, add_access, read_access
from spark.read.envelope import QueuePlace
from spark.read.events import EVENTS
from spark.read.offsets import take_window
from spark.read.sources import KafkaAccess, land_kafka
from spark.read.window import WINDOW_FILE, Window, complete_units, encode_window, read_window, window_of
from spark.reconcile import Tell, explained, run_command
from spark.report.files import hold, write_durably
from spark.session import BRIEF_OFFSETS, running_session

_PLAN = "planned.json"


@dataclass(frozen=True, slots=True)
class Ingested:
    """A complete landing."""

    unit: Path
    window: Window


def land_once(spark: SparkSession, access: Access, tell: Tell, *, by_receipts: bool = False) -> Ingested:
    """Lands what came since the last landing in `access.out`. Raises ReconcileError.

    `by_receipts`: with hashes of all records, for runs that find them by their receipts.
    """
    with explained(), hold(access.out):
        plan = _make_plan(access)
        units = complete_units(access.out)
        unit = access.out / f"{int(units[-1].name) + 1 if units else 1:06d}"
        plan = _begin(unit, plan)
        tell(f"landing {int(unit.name)}: {len(plan.extents)} partitions")
        land_kafka(spark, plan, KafkaAccess(access.kafka, by_receipts), unit / EVENTS)
        tell("everything landed")
        os.sync()  # its files, before they count
        (unit / _PLAN).replace(unit / WINDOW_FILE)
        return Ingested(unit, plan)


def _make_plan(access: Access) -> Window:
    """What came since the last landing. Raises BadUsage, Indeterminate."""
    units = complete_units(access.out)
    return take_window(access.kafka, access.internal, access.topics, window_of(units[-1]) if units else None)


def _begin(unit: Path, plan: Window) -> Window:
    """Makes the folder; or the plan of a killed landing, if it began where this one begins, in the same topics."""
    path = unit / _PLAN
    if path.exists() and _origin(before := read_window(path)) == _origin(plan):
        return before
    shutil.rmtree(unit, ignore_errors=True)
    unit.mkdir(parents=True)
    write_durably(path, encode_window(plan))
    return plan


def _origin(window: Window) -> tuple[dict[QueuePlace, int], Mapping[str, str]]:
    return {place: extent.start for place, extent in window.extents.items()}, window.topic_ids


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 landed, 2 usage, 3 indeterminate."""
    parser = argparse.ArgumentParser(prog="landing", description="Lands Kafka's topics for `reconcile --landed`.")
    add_access(parser)
    parser.add_argument("--by-receipts", action="store_true", help="records do not name their transactions (no header)")
    given = parser.parse_args(arguments)
    return run_command(lambda tell: _land(read_access(given), tell, by_receipts=given.by_receipts))


def _land(access: Access, tell: Tell, *, by_receipts: bool) -> int:
    with explained():  # what cannot be is refused before Spark starts
        is_brief = _make_plan(access).offsets <= BRIEF_OFFSETS
    with running_session(access.jars, cores=access.cores, memory_mb=access.memory_mb, is_brief=is_brief) as spark:
        landed = land_once(spark, access, tell, by_receipts=by_receipts)
    sys.stdout.write(f"{landed.window.offsets:,} offsets landed in {landed.unit}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

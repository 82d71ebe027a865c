"""`python -m benchmarks.producers`: relays from PostgreSQL to Kafka beside each other, in interleaved rounds.

Also what `enqueue` costs beside a bare INSERT, and how many transactions a second threads and tasks make with the SDK.
"""

import argparse
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.outcome import LATEST, Values, conclude, tell
from benchmarks.producers.enqueueing import measure_enqueueing
from benchmarks.producers.relays import Race
from benchmarks.producers.sdk import measure_sdk
from benchmarks.producers.shop import Shop, running_shop
from benchmarks.rounds import warm_up
from benchmarks.stage import TOPIC, Shape, running_stage

_RATIOS = {
    "relay_vs_faststream": ("relay_tps", "faststream_tps"),
    "relay_vs_faststreams": ("relay_tps", "faststreams_tps"),
    "relay_vs_faststream_ordered": ("relay_tps", "faststream_ordered_tps"),
    "relay_vs_faststream_defaults": ("relay_tps", "faststream_defaults_tps"),
    "relay_vs_plain": ("relay_tps", "plain_tps"),
    "enqueue_vs_insert_postgres": ("enqueue_postgres_us", "insert_postgres_us"),
    "enqueue_vs_insert_sqlite": ("enqueue_sqlite_us", "insert_sqlite_us"),
    "enqueued_vs_inserted_postgres": ("enqueued_postgres_us", "inserted_postgres_us"),
}


def main() -> int:
    """Runs all rounds, prints a table, writes JSON. Exit code 1: something was lost, or visible twice."""
    options = _read_options()
    values = Values()
    shape = Shape(1, 1, 1)
    with ExitStack() as stack:
        shop = stack.enter_context(running_shop())
        tell(shop.settings)
        stage = stack.enter_context(running_stage(shape, (TOPIC, *Race.topics(options.rounds))))
        race = Race(stage, shop, options.rows)
        tell(f"warming up, {options.warm_up:g} s")
        warm_up(stage, options.warm_up)
        for number in range(options.rounds):
            tell(f"round {number + 1} of {options.rounds}")
            race.measure_round(number, values.note)
            measure_enqueueing(shop, options.enqueues, values.note)
            measure_sdk(stage, shop, options.seconds, values.note)
        mistakes = stage.find_mistakes()
    for name, (above, below) in _RATIOS.items():
        values.note_ratio(name, above, below)
    return conclude("producers", values, shape, options.output, mistakes, remarks=_remarks(shop, options))


def _remarks(shop: Shop, options: argparse.Namespace) -> Mapping[str, str]:
    remarks = {"database": shop.settings, "rows": f"{options.rows:,} a measurement"}
    if os.sched_getscheduler(0) == os.SCHED_IDLE:
        remarks["priority"] = "idle, beside other work: rates are lower than on a machine that rests"
    return remarks


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.producers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default %(default)s)")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of a relay's backlog (default %(default)s)")
    parser.add_argument("--enqueues", type=int, default=2_000, help="calls of enqueue (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=6, help="for each figure of the SDK (default %(default)s)")
    parser.add_argument("--warm-up", type=float, default=60, help="seconds of load before (default %(default)s)")
    parser.add_argument("--output", type=Path, default=LATEST)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())

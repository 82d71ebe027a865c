"""`python -m benchmarks`: the bridge on a real broker beside a raw producer loop, in interleaved rounds.

With --peers also beside plain FastAPI routes, one Kafka transaction a message, and a real RocketMQ.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import psutil

from benchmarks.figures import FIGURES
from benchmarks.peer_rounds import Peers
from benchmarks.peers.rocketmq.broker import VERSION as ROCKETMQ_VERSION
from benchmarks.rounds import measure_round, warm_up
from benchmarks.stage import Shape, Stage, running_stage
from tests.support.bridge_process import read_committed
from tests.support.source_tree import read_commit

Values = dict[str, list[float]]
_PACKAGES = ("confluent-kafka", "uvicorn", "uvloop", "httptools", "msgspec", "fastapi", "pydantic", "sqlalchemy")
_EACH = max(1, (os.cpu_count() or 1) // 2)  # the broker, the projector and the load want processors too
_RATIOS = {
    "batch_vs_rocketmq": ("batch_tps_1000", "rocketmq_tps"),
    "single_vs_fastapi": ("single256_tps", "fastapi_single256_tps"),
    "single64_vs_transaction_each": ("single64_tps", "transaction_each_tps"),
}


def main() -> int:
    """Runs all rounds, prints a table, writes JSON. Exit code 1: something was lost, or visible twice."""
    options = _read_options()
    values: Values = {}

    def note(name: str, value: float) -> None:
        values.setdefault(name, []).append(value)

    with ExitStack() as stack:
        stage = stack.enter_context(running_stage(Shape(options.queues, options.apis, options.settlers)))
        peers = Peers(stage, stack) if options.peers else None
        print(f"warming up, {options.warm_up:g} s", file=sys.stderr)
        warm_up(stage, options.warm_up)
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            measure_round(stage, options.seconds, note)
            if peers is not None:
                peers.measure_round(options.seconds, note)
        mistakes = _find_mistakes(stage)
    for name, (above, below) in _RATIOS.items():
        for pair in zip(values.get(above, ()), values.get(below, ()), strict=False):
            note(name, pair[0] / pair[1])
    _print(values)
    _write(values, options)
    for mistake in mistakes:
        print(f"WRONG: {mistake}", file=sys.stderr)
    return 1 if mistakes else 0


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--seconds", type=float, default=6, help="seconds for each figure of a round (default 6)")
    parser.add_argument("--warm-up", type=float, default=60, help="seconds of load before the first round (default 60)")
    parser.add_argument("--queues", type=int, default=_EACH, help="journal queues (default %(default)s)")
    parser.add_argument("--apis", type=int, default=_EACH, help="api processes (default %(default)s)")
    parser.add_argument("--settlers", type=int, default=_EACH, help="settler processes (default %(default)s)")
    parser.add_argument("--peers", action="store_true", help="also what the bridge is compared with")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/latest.json"))
    return parser.parse_args()


def _find_mistakes(stage: Stage) -> list[str]:
    """What was settled must be visible once; loads stop at the first answer that is not 2xx."""
    found = []
    for topic, settled in stage.settled.items():
        visible = len(read_committed(stage.kafka, [topic]))
        if visible != settled:
            found.append(f"{settled} settled to {topic}, {visible} visible")
    return found


def _print(values: Values) -> None:
    print(f"\n{'figure':<30}{'median':>12}{'least':>12}{'most':>12}{'asked':>12}")
    for name, figure in FIGURES.items():
        if name in values:
            found = values[name]
            median = statistics.median(found)
            asked = "" if figure.least is None else f"{figure.least:g} {'ok' if figure.reaches(median) else 'MISSED'}"
            print(f"{name:<30}{median:>12.2f}{min(found):>12.2f}{max(found):>12.2f}{asked:>14}")


def _write(values: Mapping[str, Sequence[float]], options: argparse.Namespace) -> None:
    document = {
        "commit": read_commit(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": _versions(),
        "machine": {"cpus": os.cpu_count(), "memory_gib": round(psutil.virtual_memory().total / 2**30)},
        "shape": {"queues": options.queues, "apis": options.apis, "settlers": options.settlers},
        "figures": {name: round(statistics.median(found), 4) for name, found in values.items()},
        "ranges": {name: [round(min(found), 4), round(max(found), 4)] for name, found in values.items()},
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=2) + "\n")
    print(f"\nwritten to {options.output}")


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), "kafka": "4.3.1", "rocketmq": ROCKETMQ_VERSION, **packages}


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m benchmarks`: the bridge on a real broker beside a raw producer loop, in interleaved rounds."""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import httpx2
import psutil
import uvloop

from benchmarks.load import Load, load_batches, load_singles, percentile
from benchmarks.raw_loop import measure_raw_loop
from tests.support.bridge_process import Bridge, create_topics, read_committed
from tests.support.broker import running_broker

TOPIC = "bench.orders"
RAW_TOPIC = "bench.raw"
Parts = Mapping[str, Sequence[int]]  # process ids
MOST_LAG_SECONDS = 0.2
WARM_UP_SECONDS = 10  # the broker's compiler needs them


def main() -> int:
    """Runs all rounds, prints a table, writes JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--seconds", type=float, default=6, help="seconds for each figure of a round (default 6)")
    parser.add_argument("--queues", type=int, default=2, help="journal queues (default 2)")
    parser.add_argument("--apis", type=int, default=2, help="api processes (default 2)")
    parser.add_argument("--settlers", type=int, default=2, help="settler processes (default 2)")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/latest.json"))
    options = parser.parse_args()
    figures: dict[str, list[float]] = {}
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker(heap_mb=768))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = broker.bootstrap
        create_topics(kafka, {TOPIC: 2, RAW_TOPIC: 2})
        bridge = Bridge.create(kafka, folder, queues=options.queues, OUTBOX_BRIDGE_LOG__LEVEL="warning")
        projector = stack.enter_context(bridge.serve("projector"))
        settlers = [stack.enter_context(bridge.serve("settler")) for _ in range(options.settlers)]
        apis = [stack.enter_context(bridge.serve("api")) for _ in range(options.apis)]
        parts = {
            "broker": [broker.pid],
            "api": [api.popen.pid for api in apis],
            "settler": [settler.popen.pid for settler in settlers],
            "projector": [projector.popen.pid],
        }
        ports = [api.port for api in apis]
        settled = _drive(lambda: load_batches(ports, TOPIC, 32, WARM_UP_SECONDS)).transactions
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            settled += _measure_round(ports, kafka, options.seconds, figures, parts)
        published = len(read_committed(kafka, [TOPIC]))
    if published != settled:
        print(f"WRONG: {settled} settled, {published} visible", file=sys.stderr)
        return 1
    _report(figures, options.output, settled)
    return 0


def _measure_round(
    ports: Sequence[int], kafka: str, seconds: float, figures: dict[str, list[float]], parts: Parts
) -> int:
    def note(name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)

    raw = measure_raw_loop(kafka, RAW_TOPIC, seconds) / 4
    note("raw_tps", raw)
    before = _cpu_seconds(parts)
    batches = _drive(lambda: load_batches(ports, TOPIC, 32, seconds))
    for part, used in _cpu_seconds(parts).items():
        note(f"batch_{part}_us", (used - before[part]) / batches.transactions * 1e6)
    note("batch_tps_300", batches.per_second)
    note("batch_vs_raw", batches.per_second / raw)
    note("projection_lag_s", _await_projection(ports[0]))
    large = _drive(lambda: load_batches(ports, TOPIC, 32, seconds, bytes_=1000))
    note("batch_tps_1000", large.per_second)
    _await_projection(ports[0])
    singles = _drive(lambda: load_singles(ports, TOPIC, 64, seconds))
    note("single64_tps", singles.per_second)
    note("commit64_p50_ms", percentile(singles.commit_latencies, 0.5) * 1000)
    note("commit64_p99_ms", percentile(singles.commit_latencies, 0.99) * 1000)
    one = _drive(lambda: load_singles(ports, TOPIC, 1, seconds))
    note("commit1_p50_ms", percentile(one.commit_latencies, 0.5) * 1000)
    note("commit1_p99_ms", percentile(one.commit_latencies, 0.99) * 1000)
    return sum(load.transactions for load in (batches, large, singles, one))


def _drive(load: Callable[[], Any]) -> Load:
    async def run() -> Load:
        result: Load = await load()
        return result

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def _await_projection(port: int) -> float:
    """Seconds until the projection has caught up: where processors are short it steps back for the commits."""
    started = time.perf_counter()
    while httpx2.get(f"http://127.0.0.1:{port}/v1/stats").json()["projection_lag_seconds"] > MOST_LAG_SECONDS:
        time.sleep(0.05)
    return time.perf_counter() - started


def _cpu_seconds(parts: Parts) -> dict[str, float]:
    return {name: sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids) for name, pids in parts.items()}


def _report(figures: dict[str, list[float]], output: Path, settled: int) -> None:
    print(f"\n{'figure':<22}{'median':>12}{'least':>12}{'most':>12}")
    for name, values in figures.items():
        print(f"{name:<22}{statistics.median(values):>12.2f}{min(values):>12.2f}{max(values):>12.2f}")
    print(f"\n{settled} transactions settled, all visible once; load average {os.getloadavg()[0]:.1f}")
    document = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {"python": platform.python_version(), "confluent-kafka": confluent_kafka.__version__},
        "machine": {"cpus": os.cpu_count(), "memory_gib": round(psutil.virtual_memory().total / 2**30)},
        "figures": {name: statistics.median(values) for name, values in figures.items()},
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written to {output}")


if __name__ == "__main__":
    raise SystemExit(main())

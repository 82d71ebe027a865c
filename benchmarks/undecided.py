"""`python -m benchmarks.undecided`: a million undecided transactions, and a hundred thousand that are due at once.

What they cost in memory, what they do to the others, how long a restart and a take-over take with them, and how fast
they are asked about and settled, beside a loop that only makes the same calls.
"""

import argparse
import asyncio
import json
import time
from contextlib import ExitStack
from pathlib import Path

import httpx2
import psutil

from benchmarks.consumer import await_visible
from benchmarks.decider import GROUP, measure_bare_calls, running_decider
from benchmarks.load import load_batches, percentile
from benchmarks.outcome import LATEST, Values, conclude, tell
from benchmarks.paced import pace_prepares
from benchmarks.pending import SLEEPERS, VALUE, prepare_many, put_group, put_sleepers, transaction
from benchmarks.rounds import drive, settle
from benchmarks.stage import TOPIC, Shape, Stage, running_stage
from tests.support.bridge_process import BridgeProcess

DUE_TOPIC = "bench.due"
_LEAST_WAIT_S = 20.0
_GIVE_UP_S = 600.0
_RESTS_PERCENT = 30.0  # of a processor, with 200 prepares a second


def main() -> int:
    """Measures everything once. Exit code 1: something was lost, or visible twice."""
    options = _read_options()
    values = Values()
    shape = Shape(1, 1, 1)
    with ExitStack() as stack:
        url = stack.enter_context(running_decider())
        settings = {"OUTBOX_BRIDGE_SETTLER__HELD_BODY_BYTES": "2000000000"}  # all bodies, so that their size is seen
        stage = stack.enter_context(running_stage(shape, (TOPIC, DUE_TOPIC), settings=settings))
        measure = _Measure(stage, options, values)
        measure.create_groups(url)
        measure.warm_up()
        measure.measure_pending()
        measure.measure_restarts(stack)
        measure.measure_due(url)
        mistakes = stage.find_mistakes()
    return conclude("undecided", values, shape, options.output, mistakes)


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.undecided", description=__doc__)
    parser.add_argument("--pending", type=int, default=1_000_000, help="undecided ones (default %(default)s)")
    parser.add_argument("--due", type=int, default=100_000, help="of them due at once (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="for each load (default %(default)s)")
    parser.add_argument("--output", type=Path, default=LATEST)
    return parser.parse_args()


class _Measure:
    """One run after the other on one stage."""

    def __init__(self, stage: Stage, options: argparse.Namespace, values: Values) -> None:
        self._stage = stage
        self._options = options
        self._values = values
        self._settler: BridgeProcess = stage.settlers[0]

    def create_groups(self, url: str) -> None:
        """One whose transactions sleep for a day, one that is asked when they are due."""
        put_sleepers(self._stage)
        put_group(self._stage, GROUP, {"endpoints": [{"url": url}]})

    def warm_up(self) -> None:
        """Until broker and bridge are at their speed."""
        tell("warming up")
        settle(self._stage, lambda ports: load_batches(ports, TOPIC, 32, self._options.seconds))
        self._stage.await_projection()

    def measure_pending(self) -> None:
        """Memory, and what others notice."""
        rested = self._prepare_p99_ms()
        before = self._memory()
        count = self._options.pending
        tell(f"preparing {count:,}")
        self._note("fill_tps", count / prepare_many(self._stage, TOPIC, count))
        self._stage.await_projection()
        self._note("pending_bytes", (self._memory() - before) / count)
        self._note("prepare_1m_put_back_p99_ms", self._prepare_p99_ms())
        self._await_put_back()
        crowded = self._prepare_p99_ms()
        self._note("prepare_p99_ms", rested)
        self._note("prepare_1m_p99_ms", crowded)
        self._note("prepare_1m_vs_none", crowded / rested)

    def measure_restarts(self, stack: ExitStack) -> None:
        """A settler alone stops and starts; then one is killed beside another that takes its queue over."""
        tell(f"restart of the settler, {self._memory() / 2**20:,.0f} MiB")
        self._settler.stop()
        began = time.perf_counter()
        self._settler = stack.enter_context(self._stage.bridge.start("settler"))
        self._await_commit()
        self._note("restart_1m_s", time.perf_counter() - began)
        self._settler.wait_ready()
        self._note("pending_bytes_without_body", self._memory_of_pending())
        heir = stack.enter_context(self._stage.bridge.serve("settler"))
        tell("a kill, and a take-over")
        began = time.perf_counter()
        self._settler.kill()
        self._settler = heir
        self._await_commit()
        self._note("take_over_1m_s", time.perf_counter() - began)

    def measure_due(self, url: str) -> None:
        """From the moment they are due until the last one is visible; the bare calls before and after."""
        count = self._options.due
        bare = [asyncio.run(measure_bare_calls(url, count, VALUE))]
        tell(f"preparing {count:,} that are due at once")
        due_at = time.time() + max(_LEAST_WAIT_S, count / 5_000)
        prepare_many(self._stage, DUE_TOPIC, count, GROUP, due_at)
        if time.time() > due_at:
            raise RuntimeError("prepared too slowly: some were due before the last was there")
        rate = count / (await_visible(self._stage.kafka, DUE_TOPIC, count) - due_at)
        self._stage.settled += count
        bare.append(asyncio.run(measure_bare_calls(url, count, VALUE)))
        self._note("due_tps", rate)
        self._note("bare_calls_tps", sum(bare) / 2)
        self._values.note_ratio("pending_vs_due_loop", "due_tps", "bare_calls_tps")

    def _prepare_p99_ms(self) -> float:
        body = json.dumps(transaction(SLEEPERS, TOPIC)).encode()
        latencies = drive(lambda: pace_prepares(self._stage.ports, body, 64, 200, self._options.seconds))
        return percentile(latencies, 0.99) * 1000

    def _await_put_back(self) -> None:
        """What waits for long is written again as others come, so the same load goes on until that has been done."""
        tell("waiting until they are put back")
        process = psutil.Process(self._settler.popen.pid)
        give_up_at = time.perf_counter() + _GIVE_UP_S
        process.cpu_percent()
        while self._prepare_p99_ms() and process.cpu_percent() > _RESTS_PERCENT:
            if time.perf_counter() > give_up_at:
                raise RuntimeError("the settler does not come to rest")

    def _memory(self) -> int:
        return int(psutil.Process(self._settler.popen.pid).memory_info().rss)

    def _memory_of_pending(self) -> float:
        """Against a settler that owns nothing: a second one beside this, which has the only queue."""
        with self._stage.bridge.serve("settler") as idle:
            nothing = psutil.Process(idle.popen.pid).memory_info().rss
        return float((self._memory() - nothing) / self._options.pending)

    def _await_commit(self) -> None:
        """One transaction, settled as soon as anybody settles."""
        with httpx2.Client(base_url=f"http://127.0.0.1:{self._stage.ports[0]}", timeout=30) as client:
            prepared = client.post("/v1/transactions", json=transaction("bench", TOPIC))
            prepared.raise_for_status()
            give_up_at = time.perf_counter() + _GIVE_UP_S
            while True:
                path = f"/v1/transactions/{prepared.json()['transaction_id']}/commit"
                if client.post(path, json={}).status_code == 200:
                    break
                if time.perf_counter() > give_up_at:
                    raise RuntimeError("nothing is settled any more")
        self._stage.settled += 1

    def _note(self, name: str, value: float) -> None:
        tell(f"{name} {value:,.2f}")
        self._values.note(name, value)


if __name__ == "__main__":
    raise SystemExit(main())

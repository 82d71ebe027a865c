"""One round: every figure once, one after the other."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import uvloop

from benchmarks.load import Load, load_batches, load_singles, percentile
from benchmarks.paced import load_paced
from benchmarks.peers.raw_loop import measure_raw_loop
from benchmarks.stage import RAW_TOPIC, TOPIC, Stage, Used
from benchmarks.wrk import has_wrk, load_wrk

T = TypeVar("T")
Note = Callable[[str, float], None]

_CONNECTIONS = 32
_PACE = {1: 20, 64: 400, 1_000: 600}  # commits a second of so many clients: well below what is possible


def drive(load: Callable[[], Awaitable[T]]) -> T:
    """Runs a load in an event loop of its own."""

    async def run() -> T:
        return await load()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def warm_up(stage: Stage, seconds: float) -> None:
    """Until the broker's compiler is done with most of its work."""
    settle(stage, lambda ports: load_batches(ports, TOPIC, _CONNECTIONS, seconds * 0.7))
    settle(stage, lambda ports: load_singles(ports, TOPIC, 64, seconds * 0.3))
    stage.await_projection()


def measure_round(stage: Stage, seconds: float, note: Note) -> None:
    """Batches beside the raw loop, singles, latencies at a given pace."""
    raw = measure_raw_loop(stage.kafka, RAW_TOPIC, seconds) / 4
    note("raw_tps", raw)
    batches, used = stage.watch(lambda: settle(stage, lambda p: load_batches(p, TOPIC, _CONNECTIONS, seconds)))
    _note_cpu(used, batches.transactions, note)
    note("batch_tps_300", batches.per_second)
    note("batch_vs_raw", batches.per_second / raw)
    note("batch_p50_ms", percentile(batches.commit_latencies, 0.5) * 1000)
    note("projection_lag_s", stage.await_projection())
    large = settle(stage, lambda ports: load_batches(ports, TOPIC, _CONNECTIONS, seconds, bytes_=1000))
    note("batch_tps_1000", large.per_second)
    stage.await_projection()
    for connections in (64, 256):
        load = settle(stage, lambda ports, n=connections: load_singles(ports, TOPIC, n, seconds))  # type: ignore[misc]
        note(f"single{connections}_tps", load.per_second)
        stage.await_projection()
        if has_wrk():
            load = load_wrk(stage.ports[0], TOPIC, connections, round(seconds))
            stage.settled += load.transactions
            note(f"wrk{connections}_tps", load.per_second)
            stage.await_projection()
    for clients, pace in _PACE.items():
        load = settle(stage, lambda p, n=clients, r=pace: load_paced(p, TOPIC, n, r, seconds))  # type: ignore[misc]
        _note_latencies(f"commit{clients}", load, note)
    load = settle(stage, lambda ports: load_paced(ports, TOPIC, 1, _PACE[1], seconds, is_awaited=False))
    _note_latencies("async1", load, note)
    stage.await_projection()


def settle(stage: Stage, load: Callable[[Sequence[int]], Awaitable[Load]], ports: Sequence[int] | None = None) -> Load:
    """A load on the bridge; what it settled must be found by a consumer in the end."""
    done = drive(lambda: load(ports or stage.ports))
    stage.settled += done.transactions
    return done


def _note_cpu(used: Used, transactions: int, note: Note) -> None:
    for part, seconds in used.cpu.items():
        note(f"{part}_us", seconds / transactions * 1e6)
    note("foreign_cores", used.foreign / used.seconds)


def _note_latencies(name: str, load: Load, note: Note) -> None:
    note(f"{name}_p50_ms", percentile(load.commit_latencies, 0.5) * 1000)
    note(f"{name}_p99_ms", percentile(load.commit_latencies, 0.99) * 1000)

"""A broker and the bridge's parts as processes of their own, and what they use of the machine."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import psutil
import sqlalchemy as sa

from benchmarks.consumer import count_visible, read_ends
from bridge.sql.rows import read_positions
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics
from tests.support.broker import running_broker
from tests.support.kafka_cluster import running_cluster

T = TypeVar("T")

TOPIC = "bench.orders"
RAW_TOPIC = "bench.raw"
QUEUES_OF_A_TOPIC = 2
_HEAP_MB = 1024
_DISK_MB = 4_096
_SHOWN = 20  # lines of each log, if a run fails
_GIVE_UP_S = 300.0
_BLOCKED_S = 60.0


class Shape(NamedTuple):
    """How many of everything."""

    queues: int = 2
    apis: int = 2
    settlers: int = 2


class Used(NamedTuple):
    """What ran meanwhile: seconds, CPU seconds of each part, and of processes that are none of ours."""

    seconds: float
    cpu: Mapping[str, float]
    foreign: float


@dataclass(slots=True)
class Stage:
    """A running bridge. `parts`: process ids by part."""

    kafka: str
    bridge: Bridge
    apis: Sequence[BridgeProcess]
    settlers: Sequence[BridgeProcess]
    parts: Mapping[str, Sequence[int]]
    topics: Sequence[str]
    settled: int = 0  # what consumers must find in the topics in the end

    @property
    def ports(self) -> Sequence[int]:
        """Where the api processes listen."""
        return [api.port for api in self.apis]

    def watch(self, work: Callable[[], T]) -> tuple[T, Used]:
        """What `work` gave, and what it used."""
        began, before, busy = time.perf_counter(), self._cpu(), _busy_seconds()
        result = work()
        seconds = time.perf_counter() - began
        cpu = {part: used - before[part] for part, used in self._cpu().items()}
        return result, Used(seconds, cpu, max(0.0, _busy_seconds() - busy - sum(cpu.values())))

    def await_projection(self) -> float:
        """Seconds until SQL has what the journal holds now. Where processors are short it steps back for commits."""
        began = time.perf_counter()
        ends = read_ends(self.kafka, self.bridge.half_topic)
        engine = sa.create_engine(self.bridge.database_url)
        while True:
            with engine.connect() as connection:
                applied = read_positions(connection)
            if all(queue in applied and applied[queue].s >= end for queue, end in ends.items()):
                engine.dispose()
                return time.perf_counter() - began
            if time.perf_counter() - began > _GIVE_UP_S:
                raise RuntimeError("the projection does not catch up")
            time.sleep(0.02)

    def find_mistakes(self) -> list[str]:
        """What was recorded must be visible once; loads stop at the first answer that is not 2xx."""
        give_up_at = time.monotonic() + _BLOCKED_S
        visible, different = count_visible(self.kafka, self.topics)
        while visible < self.settled and time.monotonic() < give_up_at:  # some were answered as blocked
            time.sleep(1)
            visible, different = count_visible(self.kafka, self.topics)
        if visible == different == self.settled:
            return []
        return [f"{self.settled} settled, {visible} visible, {different} different ones"]

    def _cpu(self) -> dict[str, float]:
        return {part: sum(_cpu_seconds(pid) for pid in pids) for part, pids in self.parts.items()}


@contextmanager
def running_stage(
    shape: Shape, topics: Sequence[str] = (TOPIC,), *, brokers: int = 1, settings: Mapping[str, str] | None = None
) -> Iterator[Stage]:
    """Everything on brokers of its own; gone afterwards. With several brokers each topic has a replica on each."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka, pids = stack.enter_context(_running_kafka(folder, brokers))
        create_topics(kafka, dict.fromkeys((RAW_TOPIC, *topics), QUEUES_OF_A_TOPIC), replicas=brokers)
        quiet = {"OUTBOX_BRIDGE_LOG__LEVEL": "warning"}
        bridge = Bridge.create(kafka, folder, queues=shape.queues, **quiet | dict(settings or {}))
        projector = stack.enter_context(bridge.serve("projector"))
        settlers = [stack.enter_context(bridge.serve("settler")) for _ in range(shape.settlers)]
        apis = [stack.enter_context(bridge.serve("api")) for _ in range(shape.apis)]
        parts = {
            "broker": pids,
            "api": [api.popen.pid for api in apis],
            "settler": [settler.popen.pid for settler in settlers],
            "projector": [projector.popen.pid],
            "load": [os.getpid()],
        }
        try:
            yield Stage(kafka, bridge, apis, settlers, parts, topics)
        except Exception:
            for process in (projector, *settlers, *apis):
                last = process.log.read_text().splitlines()[-_SHOWN:]
                print(f"{process.log.name}:", *last, sep="\n", file=sys.stderr)
            raise


@contextmanager
def _running_kafka(folder: Path, brokers: int) -> Iterator[tuple[str, Sequence[int]]]:
    """Addresses, and process ids."""
    if brokers == 1:
        with running_broker(heap_mb=_HEAP_MB, is_long_lived=True) as broker:
            yield broker.bootstrap, [broker.pid or 0]
        return
    with running_cluster(folder, brokers, disk_mb=_DISK_MB, heap_mb=_HEAP_MB, is_long_lived=True) as cluster:
        yield cluster.direct, [node.broker.pid or 0 for node in cluster.nodes]


def _cpu_seconds(pid: int) -> float:
    return sum(psutil.Process(pid).cpu_times()[:2])


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))

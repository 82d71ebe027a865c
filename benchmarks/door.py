"""`python -m benchmarks.door`: a Java program with RocketMQ's client, against RocketMQ and the door in turn.

Client, broker and bridge share the machine's processors on both sides, so the ratio is what counts.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.consumer import count_visible
from benchmarks.outcome import LATEST, Values, conclude, tell
from benchmarks.peers.rocketmq.broker import RocketMq, running_rocketmq
from benchmarks.stage import QUEUES_OF_A_TOPIC, Shape
from bridge.broker.ports import choose_free_port
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, wait_until
from tests.support.broker import running_broker

_THREADS = (1, 8, 32, 64)
_SHAPE = Shape(queues=1, apis=1, settlers=1)
_WARM_UP_S = 4
_COMPILE_S = 40  # of load, until the compilers of both brokers are done


class DoorStage(NamedTuple):
    """A bridge whose only face is the door. `sent`: by topic, what a consumer must find."""

    kafka: str
    name_server: str
    door: BridgeProcess
    settler: BridgeProcess
    sent: dict[str, int]

    def published(self) -> float:
        """How many transactions have been, which whoever reads committed messages sees."""
        lines = self.settler.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("outbox_bridge_queue_published_total{"))

    def load(self, client: RocketMq, threads: int, seconds: int, warm_up_s: int = _WARM_UP_S) -> dict[str, float]:
        """What the client measured, and what became visible meanwhile."""
        topic, seen = f"bench_{threads}", dict[str, float]()

        def note(line: str) -> None:
            if line in {"measuring", "measured"}:
                seen[line] = self.published()

        found = client.load_at(self.name_server, topic, threads, warm_up_s, seconds, tell=note)
        self.sent[topic] = self.sent.get(topic, 0) + round(found["sent"])
        return {**found, "visible_per_s": (seen["measured"] - seen["measuring"]) / seconds}

    def find_mistakes(self) -> list[str]:
        """What was sent must be visible, once each."""
        wanted, topics = sum(self.sent.values()), list(self.sent)
        wait_until(lambda: count_visible(self.kafka, topics)[0] >= wanted, 60, "all messages")
        visible, different = count_visible(self.kafka, topics)
        right = visible == different == wanted
        return [] if right else [f"{wanted} committed, {visible} visible, {different} different ones"]


@contextmanager
def running_door(settings: Mapping[str, str] | None = None) -> Iterator[DoorStage]:
    """Each role in a process of its own, on a broker of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker, port = stack.enter_context(running_broker(heap_mb=1024, is_long_lived=True)), choose_free_port()
        topics = {f"bench_{threads}": QUEUES_OF_A_TOPIC for threads in _THREADS}
        create_topics(broker.bootstrap, topics)
        own = {"OUTBOX_BRIDGE_LOG__LEVEL": "warning", "OUTBOX_BRIDGE_REMOTING__PORT": str(port)}
        bridge = Bridge.create(broker.bootstrap, folder, queues=_SHAPE.queues, **own, **dict(settings or {}))
        stack.enter_context(bridge.serve("projector"))
        settler, door = [stack.enter_context(bridge.serve(role)) for role in ("settler", "remoting")]
        yield DoorStage(broker.bootstrap, f"127.0.0.1:{port}", door, settler, {})


def measure_round(stage: DoorStage, rocketmq: RocketMq, seconds: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Each number of threads, first there, then here."""
    for threads in _THREADS:
        yield f"rocketmq, {threads} threads", rocketmq.load(threads, _WARM_UP_S, seconds)
        with rocketmq.paused():
            yield f"door, {threads} threads", stage.load(rocketmq, threads, seconds)


def main() -> int:
    """Exit code 1: something was lost, or visible twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--output", type=Path, default=LATEST)
    options = parser.parse_args()
    values, rounds = Values(), list[dict[str, dict[str, float]]]()
    with running_rocketmq() as rocketmq, running_door() as stage:
        rocketmq.load(_THREADS[-1], _COMPILE_S, 1)
        with rocketmq.paused():
            stage.load(rocketmq, _THREADS[-1], 1, _COMPILE_S)
        for _ in range(options.rounds):
            found = dict[str, dict[str, float]]()
            rounds.append(found)
            for name, measured in measure_round(stage, rocketmq, options.seconds):
                found[name] = measured
                tell(f"{name}: {measured}")
            visible = found["door, 64 threads"]["visible_per_s"]
            values.note("door_visible_tps", visible)
            values.note("door_vs_rocketmq", visible / found["rocketmq, 64 threads"]["visible_per_s"])
        mistakes = stage.find_mistakes()
    sections = {"door_rounds": {str(number): found for number, found in enumerate(rounds, 1)}}
    return conclude("door", values, _SHAPE, options.output, mistakes, sections=sections)


if __name__ == "__main__":
    raise SystemExit(main())

"""What the bridge is compared with, each once a round: in the same run, so that the machine is the same."""

import sys
from contextlib import ExitStack

from benchmarks.load import Load, load_singles
from benchmarks.peers.rocketmq.broker import THREADS, PeerUnavailable, RocketMq, running_rocketmq
from benchmarks.peers.transaction_each import measure_transaction_each
from benchmarks.rounds import Note, settle
from benchmarks.stage import RAW_TOPIC, TOPIC, Stage
from tests.support.source_tree import ROOT

_WARM_UP_S = 4


class Peers:
    """All of them; those that cannot be run here are left out, and it is said."""

    def __init__(self, stage: Stage, stack: ExitStack) -> None:
        self._stage = stage
        self._rocketmq: RocketMq | None = None
        try:
            self._rocketmq = stack.enter_context(running_rocketmq())
        except PeerUnavailable as reason:
            print(f"without RocketMQ: {reason}", file=sys.stderr)

    def measure_round(self, seconds: float, note: Note) -> None:
        """Beside the bridge, which rests meanwhile."""
        note("transaction_each_tps", measure_transaction_each(self._stage.kafka, RAW_TOPIC, seconds))
        note("fastapi_single256_tps", self._measure_plain_api(seconds).per_second)
        if self._rocketmq is not None:
            found = [self._rocketmq.load(threads, _WARM_UP_S, max(1, round(seconds))) for threads in THREADS]
            note("rocketmq_tps", max(each["calls_per_s"] for each in found))
            note("rocketmq_visible_tps", max(each["visible_per_s"] for each in found))

    def _measure_plain_api(self, seconds: float) -> Load:
        """As many processes as the bridge has, only while they are measured."""
        stage = self._stage
        module = "benchmarks.peers.plain_api"
        with ExitStack() as stack:
            plain = [
                stack.enter_context(stage.bridge.serve("api", module=module, PYTHONPATH=str(ROOT))) for _ in stage.apis
            ]
            ports = [each.port for each in plain]
            settle(stage, lambda ports: load_singles(ports, TOPIC, 64, 1), ports)
            load = settle(stage, lambda ports: load_singles(ports, TOPIC, 256, seconds), ports)
        stage.await_projection()
        return load

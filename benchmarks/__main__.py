"""`python -m benchmarks`: the bridge on a real broker beside a raw producer loop, in interleaved rounds.

With --peers also beside plain FastAPI routes, one Kafka transaction a message, and a real RocketMQ.
"""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path

from benchmarks.outcome import LATEST, Values, conclude, tell
from benchmarks.peer_rounds import Peers
from benchmarks.rounds import measure_round, warm_up
from benchmarks.stage import Shape, running_stage

_EACH = max(1, (os.cpu_count() or 1) // 2)  # the broker, the projector and the load want processors too
_RATIOS = {
    "batch_vs_rocketmq": ("batch_tps_1000", "rocketmq_tps"),
    "single_vs_fastapi": ("single256_tps", "fastapi_single256_tps"),
    "single64_vs_transaction_each": ("single64_tps", "transaction_each_tps"),
}


def main() -> int:
    """Runs all rounds, prints a table, writes JSON. Exit code 1: something was lost, or visible twice."""
    options = _read_options()
    values = Values()
    shape = Shape(options.queues, options.apis, options.settlers)
    with ExitStack() as stack:
        stage = stack.enter_context(running_stage(shape))
        peers = Peers(stage, stack) if options.peers else None
        tell(f"warming up, {options.warm_up:g} s")
        warm_up(stage, options.warm_up)
        for number in range(options.rounds):
            tell(f"round {number + 1} of {options.rounds}")
            measure_round(stage, options.seconds, values.note)
            if peers is not None:
                peers.measure_round(options.seconds, values.note)
        mistakes = stage.find_mistakes()
    for name, (above, below) in _RATIOS.items():
        values.note_ratio(name, above, below)
    return conclude("main", values, shape, options.output, mistakes)


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--seconds", type=float, default=6, help="seconds for each figure of a round (default 6)")
    parser.add_argument("--warm-up", type=float, default=60, help="seconds of load before the first round (default 60)")
    parser.add_argument("--queues", type=int, default=_EACH, help="journal queues (default %(default)s)")
    parser.add_argument("--apis", type=int, default=_EACH, help="api processes (default %(default)s)")
    parser.add_argument("--settlers", type=int, default=_EACH, help="settler processes (default %(default)s)")
    parser.add_argument("--peers", action="store_true", help="also what the bridge is compared with")
    parser.add_argument("--output", type=Path, default=LATEST)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m tests.chaos`: the bridge on real Kafka and SQL, tormented, and a verdict on every transaction.

Ctrl-C ends the faults and the load; what there is by then is still judged. A second one ends at once.
"""

import argparse
import secrets
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from tests.chaos.driver import Run
from tests.chaos.orders import make_size
from tests.support.source_tree import ROOT

_EVIDENCE = ROOT / "docs" / "evidence"
_SAME_S = 2.0


def main() -> int:
    """Exit code 0: every promise held and the run was as large as it had to be."""
    options = _read_options()
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    size = make_size(
        options.size,
        transactions=options.transactions,
        kills=options.kills,
        broker_faults=options.broker_faults,
        held_ends=options.held_ends,
        minutes=options.minutes,
        pending=options.pending,
        brokers=options.brokers,
    )
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    tell(f"seed {seed}, {size}")
    run = Run(size, seed, tell)

    first: list[float] = []

    def stop(*_: int | FrameType | None) -> None:
        """A process and its group may be told of one Ctrl-C each: only a later one is a second."""
        if first and time.monotonic() > first[0] + _SAME_S:
            raise KeyboardInterrupt
        first.append(time.monotonic())
        run.stopping.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    report = run.run()
    report.write(options.evidence, f"chaos-{options.size}" + (f"-{size.brokers}-brokers" if size.brokers > 1 else ""))
    print(report.markdown(), flush=True)
    return 0 if report.is_good else 1


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("size", nargs="?", default="ci", choices=("ci", "release"))
    for name in ("seed", "transactions", "kills", "broker-faults", "held-ends", "pending", "brokers"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--minutes", type=float, help="over which the faults are spread")
    parser.add_argument("--evidence", type=Path, default=_EVIDENCE, help="where the report goes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

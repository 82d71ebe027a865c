"""`python -m tests.traffic`: reconciliation held to a real bridge's traffic with chaos, and to what is planted in it.

Ctrl-C ends the faults and the load; what there is by then is still reported. A second one ends at once.
"""

import argparse
import secrets
import sys
from pathlib import Path

from msgspec.structs import replace

from spark.session import start_session
from tests.chaos.orders import make_size
from tests.chaos.report import Report as ChaosReport
from tests.support.ctrl_c import stop_at_ctrl_c
from tests.support.progress import make_tell
from tests.traffic.driver import TrafficRun
from tests.traffic.report import Report, count_kinds

_LONGEST_HOLD_S = 10.0  # a resolution older than a minute without its op message is a finding, and a true one


def main() -> int:
    """Exit code 0: during the traffic and at rest nothing was found, afterwards all that was planted, nothing else."""
    options = _read_options()
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    size = make_size(
        "release",
        transactions=options.transactions,
        kills=options.kills,
        broker_faults=options.broker_faults,
        held_ends=options.held_ends,
        destination_faults=0,  # what was in a deleted topic is truly missing
        minutes=options.minutes,
        pending=options.transactions // 20,
        longest_hold_s=_LONGEST_HOLD_S,
        workers=24,
    )
    tell = make_tell()
    tell(f"seed {seed}, {size}")
    spark = start_session()
    run = TrafficRun(size, seed, tell, spark, options.rounds)
    stop_at_ctrl_c(run.stopping)
    report = make_report(run, run.run())
    spark.stop()
    text = report.markdown()
    if options.evidence is not None:
        report.write(options.evidence, "reconciliation-run", text)
    sys.stdout.write(text)
    return 0 if report.is_good else 1


def make_report(run: TrafficRun, chaos: ChaosReport) -> Report:
    """Both parts together."""
    planted = next((audit for audit in run.audits if audit.name == "planted"), None)
    return Report(
        broken=chaos.broken,
        seed=chaos.seed,
        commit=chaos.commit,
        versions=chaos.versions,
        seconds=chaos.seconds,
        reached=chaos.reached,
        done=chaos.done,
        looked_at=chaos.looked_at,
        audits=[replace(audit, place="/".join(audit.folder.parts[-2:])) for audit in run.audits],
        planted=count_kinds(run.truth),
        found=count_kinds(planted.findings if planted is not None else ()),
        same=run.same,
    )


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.traffic", description=__doc__)
    numbers = {"transactions": 20_000, "kills": 8, "broker-faults": 3, "held-ends": 4, "rounds": 5}
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--minutes", type=float, default=2.0, help="over which the faults are spread")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--evidence", type=Path, help="folder for the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

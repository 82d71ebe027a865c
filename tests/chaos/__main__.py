"""`python -m tests.chaos`: the bridge on real Kafka and SQL, tormented, and a verdict on every transaction.

Ctrl-C ends the faults and the load; what there is by then is still judged. A second one ends at once.
"""

import argparse
import secrets
import sys
from pathlib import Path

from tests.chaos import release
from tests.chaos.driver import Run
from tests.chaos.orders import RELEASE_PARTS, Size, make_size
from tests.chaos.report import Report, is_same_code
from tests.support.ctrl_c import stop_at_ctrl_c
from tests.support.progress import make_tell
from tests.support.source_tree import ROOT

_EVIDENCE = ROOT / "docs" / "evidence"


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
        destination_faults=options.destination_faults,
        minutes=options.minutes,
        pending=options.pending,
        brokers=options.brokers,
    )
    if options.size == "release":
        return _run_release(size, seed, options)
    report = _run(size, seed, options.evidence, f"chaos-{_name(options.size, size)}")
    return 0 if report.is_good else 1


def _run_release(size: Size, seed: int, options: argparse.Namespace) -> int:
    """The parts that are missing, one after the other: each is judged, and its report kept, before the next begins."""
    name = f"chaos-{_name('release', size)}"
    for number in [options.part] if options.part else range(1, RELEASE_PARTS + 1):
        done = release.read_part(options.evidence, name, number)
        if done is not None and done.is_good and is_same_code(done.commit) and not options.part:
            print(f"part {number} of {RELEASE_PARTS} was good: seed {done.seed}, commit {done.commit}", flush=True)
            continue
        report = _run(size, seed + number, options.evidence, release.name_part(name, number))
        release.write_summary(options.evidence, name)
        if not report.is_good:
            return 1
    return 0


def _name(name: str, size: Size) -> str:
    return name + (f"-{size.brokers}-brokers" if size.brokers > 1 else "")


def _run(size: Size, seed: int, evidence: Path, name: str) -> Report:
    tell = make_tell()
    tell(f"seed {seed}, {size}")
    run = Run(size, seed, tell)

    stop_at_ctrl_c(run.stopping)
    report = run.run()
    text = report.markdown()
    report.write(evidence, name, text)
    print(text, flush=True)
    for each in report.broken:
        tell(f"FAILED: {each}")
    return report


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("size", nargs="?", default="ci", choices=("ci", "release"))
    faults = ("kills", "broker-faults", "held-ends", "destination-faults")
    for name in ("seed", "transactions", *faults, "pending", "brokers"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--part", type=int, choices=range(1, RELEASE_PARTS + 1), help="only this one of a release")
    parser.add_argument("--minutes", type=float, help="over which the faults are spread")
    parser.add_argument("--evidence", type=Path, default=_EVIDENCE, help="where the report goes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

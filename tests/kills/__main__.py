"""`python -m tests.kills`: producers, relays and the bridge killed at random; then orders and messages are counted.

Ctrl-C ends the kills and the load; what there is by then is still judged. A second one, or one before the load is
running, ends at once. Nothing is left running in any case.
"""

import argparse
import secrets
import sys
from pathlib import Path

from tests.kills.driver import Run, Size
from tests.kills.planted import PLANTED
from tests.support.ctrl_c import stop_at_ctrl_c
from tests.support.progress import make_tell

_INTERRUPTED = 130
_SECONDS_EACH = 2.4  # for a kill, where nobody says otherwise: a start of the bridge costs seconds of a processor


def main() -> int:
    """Exit code 0: the set of orders is the set of messages, and the run was as large as it had to be."""
    options = _read_options()
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    size = Size(options.kills, options.minutes or options.kills * _SECONDS_EACH / 60)
    tell = make_tell()
    tell(f"seed {seed}, {size}")
    run = Run(size, seed, options.planted, tell, options.upgrade_from)
    stop_at_ctrl_c(run.stopping)
    try:
        report = run.run()
    except KeyboardInterrupt:
        tell("interrupted; all that was started has been ended")
        return _INTERRUPTED
    text = report.markdown()
    if options.evidence is not None:
        report.write(options.evidence, "kills", text)
    print(text, flush=True)
    return 0 if report.is_good else 1


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--minutes", type=float, help="over which the kills are spread")
    parser.add_argument(
        "--upgrade-from",
        default=sys.executable,
        metavar="PYTHON",
        help="that has the release before installed: kills meet it, the upgrade, the roll-back, and the upgrade again",
    )
    parser.add_argument("--evidence", type=Path, help="folder for the report")
    parser.add_argument("--planted", default="", choices=PLANTED, help="a bug to build in; the verdict must be BAD")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Simulates many schedules: `python -m tests.simulation --seeds 10000`, or one again: `--replay 4711`."""

import sys

from tests.simulation.campaign import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

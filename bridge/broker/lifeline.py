"""Runs as a process beside the broker: when its parent dies, it stops the broker. See `Lifeline`."""

import sys
from pathlib import Path

from bridge.broker.broker_process import stop_process

_STOP_TIMEOUT_S = 10.0


def main() -> None:
    """Arguments: the broker's pid and its properties file. Waits for the end of standard input."""
    pid, properties_file = int(sys.argv[1]), Path(sys.argv[2])
    sys.stdin.buffer.read()
    stop_process(pid, properties_file, _STOP_TIMEOUT_S)


if __name__ == "__main__":
    main()

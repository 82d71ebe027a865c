"""Stands in for a Spark job: tells a step, makes noise, and ends as it is told."""

import argparse
import signal
import sys


def main() -> int:
    """Ends with the code given, with a result or an error before, or with a defect, or not before it is signalled."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--code", type=int, default=0)
    parser.add_argument("--result", default="")
    parser.add_argument("--error", default="")
    parser.add_argument("--is-waiting", default="")
    parser.add_argument("--jars")
    given = parser.parse_args()
    sys.stderr.write("WARN noise of Java\n[   0.1 s] first step\n")
    sys.stderr.flush()
    if given.is_waiting:
        try:
            signal.pause()
        except KeyboardInterrupt:
            return 130
    if given.error:
        sys.stderr.write(f"error: {given.error}\nwhat to do: Something else.\n")
    if given.result:
        sys.stdout.write(f"sentence\n{given.result}\n")
    if given.code == 99:
        raise RuntimeError("a defect")
    return int(given.code)


if __name__ == "__main__":
    sys.exit(main())

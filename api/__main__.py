"""The command `outbox-bridge`; also `python -m api`."""

import sys

from api.cli.main import run


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    sys.exit(run())


if __name__ == "__main__":
    main()

"""The command `outbox-bridge`; also `python -m outbox`."""

import sys
from importlib import import_module
from importlib.util import find_spec

from outbox.application import enter_application

_PARTS = ("typer", "rich", "pydantic_settings", "structlog")  # of what every command needs


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    if any(find_spec(name) is None for name in _PARTS):
        sys.exit("outbox-bridge: the command needs more than the SDK does: pip install 'outbox-bridge[server]'")
    enter_application()
    import_module("api.cli.main").main()


if __name__ == "__main__":
    main()

"""`python -m tests.fuzz`: schemathesis with all its checks against a running `outbox-bridge dev`.

Arguments go to schemathesis: --seed 7, --max-examples 500.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2

from tests.support.cli_process import running_dev
from tests.support.source_tree import ROOT

_DEFAULTS = ("--max-examples", "40", "--seed", "1")
_HERE = Path(__file__).parent


def main() -> int:
    """Exit code of schemathesis, or 1 if the service broke down under it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_dev(folder, "--ephemeral", "--kafka-port", "0", "--topic", "orders.created") as dev:
            code = subprocess.run(
                [Path(sys.executable).with_name("schemathesis"), "--config-file", _HERE / "schemathesis.toml", "run",
                 f"{dev.url}/openapi.json", *_DEFAULTS, *sys.argv[1:]],
                cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
            ).returncode  # fmt: skip
            ready = httpx2.get(f"{dev.url}/readyz")
            if ready.status_code != 200:
                print(f"not ready afterwards: {ready.text}", file=sys.stderr)
                return 1
        complaints = [line for line in dev.log.read_text().splitlines() if "Traceback" in line]
        if complaints:
            print(dev.log.read_text(), file=sys.stderr)
    return code or int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())

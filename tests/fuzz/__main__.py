"""`python -m tests.fuzz`: schemathesis with all its checks against a bridge that takes calls without keys, then against
one that asks for them.

Arguments go to schemathesis: --seed 7, --max-examples 500.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2

from bridge.core.keyring import RANDOM_BYTES, make_key_text
from tests.support.bridge_process import Bridge
from tests.support.cli_process import running_dev
from tests.support.source_tree import ROOT

_DEFAULTS = ("--max-examples", "40", "--seed", "1")
_CALLS_NOBODY = {"OUTBOX_BRIDGE_CALLBACKS__PROVE_OWNERSHIP": "none"}  # whatever endpoints are made up
_HERE = Path(__file__).parent


def main() -> int:
    """0, or 1 if schemathesis found something or a service broke down under it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = ("--ephemeral", "--kafka-port", "0", "--topic", "orders.created")
        with running_dev(folder, *arguments, settings=_CALLS_NOBODY) as dev:
            is_good = _ask(folder, dev.url)
            bridge = Bridge.create(dev.kafka, folder, OUTBOX_BRIDGE_INSECURE_NO_AUTH="false")
            key = make_key_text(os.urandom(RANDOM_BYTES))
            with bridge.serve(OUTBOX_BRIDGE_AUTH__ADMIN_KEY=key) as keyed:
                is_good &= _ask(folder, keyed.url, "--header", f"Authorization: Bearer {key}")
        for log in (dev.log, keyed.log):
            if "Traceback" in log.read_text():
                print(log.read_text(), file=sys.stderr)
                is_good = False
    return int(not is_good)


def _ask(folder: Path, url: str, *proof: str) -> bool:
    """Whether schemathesis found nothing and the service is still ready."""
    print(f"\n-- {'with a key' if proof else 'without keys'} --", flush=True)
    command = [Path(sys.executable).with_name("schemathesis"), "--config-file", _HERE / "schemathesis.toml", "run"]
    # what OpenAPI cannot say: without a body, a content type or this header is needed
    headers = ("--header", "Outbox-Bridge-Request: 1", *proof)
    code = subprocess.run(
        [*command, f"{url}/openapi.json", *headers, *_DEFAULTS, *sys.argv[1:]],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    ).returncode  # fmt: skip
    ready = httpx2.get(f"{url}/readyz")
    if ready.status_code != 200:
        print(f"not ready afterwards: {ready.text}", file=sys.stderr)
    return code == 0 and ready.status_code == 200


if __name__ == "__main__":
    sys.exit(main())

"""What a bridge tells of itself: real processes on a real Kafka, and receivers that are real programs."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.broker.ports import choose_free_port
from tests.support.bridge_process import Bridge, check_endpoint, create_topics, wait_until
from tests.support.source_tree import ROOT

SECRET = f"whsec_{b64encode(secrets.token_bytes(32)).decode()}"
SOON = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "max_checks": 1}


@contextmanager
def documented_receiver(folder: Path, port: int) -> Iterator[Path]:
    """The program of the documentation; what it prints."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "operating.md").read_text(), re.DOTALL)
    (program,) = [block for block in blocks if "webhook.verify" in block]
    (folder / "receiver.py").write_text(program)
    environment = {**os.environ, "WEBHOOK_SECRET": SECRET, "PORT": str(port)}
    log = folder / "receiver.log"
    with log.open("wb") as output:
        command = [sys.executable, folder / "receiver.py"]
        popen = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield log
    finally:
        popen.kill()
        popen.wait()


@pytest.mark.timeout(900)
def test_parked_transaction_is_told_although_the_process_that_tells_is_killed(kafka: str, tmp_path: Path) -> None:
    """The receiver of the documentation is away at first, and hears it from the other process, once."""
    port = choose_free_port()
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    receiver = {"name": "pager", "url": f"http://127.0.0.1:{port}/bridge?token=t", "secret_file": f"{tmp_path}/secret"}
    bridge = Bridge.create(kafka, tmp_path, OUTBOX_BRIDGE_WEBHOOKS=json.dumps([receiver]))
    topic = f"{bridge.prefix}orders"
    create_topics(kafka, {topic: 1})
    with bridge.serve() as first, bridge.serve("api") as second, check_endpoint() as endpoint:
        bridge_url = ("--url", second.url)
        group = {"endpoints": [{"url": endpoint.url}], "check": SOON}
        assert first.http.put("/v1/producer-groups/shop", json=group).status_code == 201
        message = {"topic": topic, "key": "k", "value": "v"}
        body = {"producer_group": "shop", "messages": [message]}
        transaction_id = first.post("/v1/transactions", body).json()["transaction_id"]

        def waiting() -> int:
            return int(second.get("/v1/webhooks").json()["webhooks"][0]["waiting"])

        wait_until(lambda: waiting() == 1, 60, "an event waits")
        wait_until(lambda: "refused" in bridge.run("webhook", "list", *bridge_url), 60, "it was told once, in vain")
        assert "did not take the event: refused" in bridge.run_refused("webhook", "test", "pager", *bridge_url)
        first.kill()
        with documented_receiver(tmp_path, port) as log:
            wait_until(lambda: f"transaction.parked {transaction_id}" in log.read_text(), 60, "it is told")
            wait_until(lambda: waiting() == 0, 60, "nothing waits")
            bridge.run("webhook", "test", "pager", *bridge_url)
            assert len(re.findall(r"(?m)^transaction.parked ", log.read_text())) == 1
            assert len(re.findall(r"(?m)^webhook.test ", log.read_text())) == 1
        shown = bridge.run("config", "show")
        assert SECRET not in shown
        assert "token=t" not in shown
        audit = second.get("/v1/audit?limit=5").json()["entries"]
        assert [entry["action"] for entry in audit].count("webhook.test") == 2
        assert 'webhook_events_total{webhook="pager",word="told"} 1.0' in second.get("/metrics").text
        second.send(signal.SIGTERM)

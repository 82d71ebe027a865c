"""The shop in Node.js while nobody answers at the bridge, and after it was killed: no stage is needed."""

import base64
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from bridge.broker.ports import choose_free_port
from checker.call import sign_call
from tests.support.canned_http import canned_server
from tests.support.example_process import ExampleProcess, copy_without_traces

_PLACED, _UNKNOWN = "0206k8e9s5ta7vo3q1m4c8b2h6dg", "0206k8e9s5ta7vo3q1m4c8b2h6d0"
_SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()
# each process has the number 1, as in a container; with DIES it is killed where it takes the second name of a file away
_PRELOAD = """
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
const number = process.pid;
Object.defineProperty(process, "pid", { value: 1 });
if (process.env.DIES) fs.unlinkSync = () => process.kill(number, "SIGKILL");
syncBuiltinESMExports();
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ExampleProcess]:
    """Not started yet; its bridge is away."""
    if shutil.which("node") is None:
        pytest.skip("no node")
    copy_without_traces("node-orders", tmp_path)
    (tmp_path / "preload.mjs").write_text(_PRELOAD)
    settings = {"BRIDGE_URL": f"http://127.0.0.1:{choose_free_port()}", "OUTBOX_SECRET": _SECRET}
    command = ["node", "--import", str(tmp_path / "preload.mjs"), "shop.mjs", "{port}"]
    process = ExampleProcess(command, tmp_path / "node-orders", settings, tmp_path / "log")
    yield process
    process.kill()


def place(shop: ExampleProcess, body: bytes = b'{"order_id": "42", "cents": 10}') -> int | None:
    """The status of the answer; None if it died."""
    try:
        return httpx2.post(f"{shop.url}/orders", content=body, timeout=30).status_code
    except httpx2.TransportError:
        return None


def ask(shop: ExampleProcess, transaction_id: str) -> str:
    """What it answers to a check."""
    checks = [{"transaction_id": transaction_id, "nonce": "n"}]
    body = json.dumps({"type": "transaction.check", "producer_group": "node-orders", "checks": checks})
    signed = sign_call([_SECRET], "msg", time.time_ns() // 1_000_000, body)
    answer = httpx2.post(f"{shop.url}/outbox-checks", content=body, headers=dict(signed or {}), timeout=30)
    (resolution,) = answer.raise_for_status().json()["resolutions"]
    return str(resolution["resolution"])


def test_order_while_the_bridge_is_away_is_no_fault_of_the_customer(shop: ExampleProcess) -> None:
    """503, try again: who hears 400 takes the order for one that can never be placed."""
    shop.start().wait_answering("/nothing")
    assert place(shop) == 503
    for odd in (b"no JSON", b"null", b"[]", b'{"order_id": 42}'):
        assert place(shop, odd) == 400


def test_order_is_kept_whose_process_was_killed_before_its_file_had_one_name(shop: ExampleProcess) -> None:
    """The next process writes a bar: not over what was left behind, which is the order under a second name."""
    with canned_server() as bridge:
        bridge.answer("POST", "/v1/transactions", 201, {"transaction_id": _PLACED})
        shop.settings = {**shop.settings, "BRIDGE_URL": bridge.url, "DIES": "1"}
        shop.start().wait_answering("/nothing")
        assert place(shop) is None
        shop.kill()
    shop.settings = {name: value for name, value in shop.settings.items() if name != "DIES"}
    shop.start().wait_answering("/nothing")
    assert ask(shop, _UNKNOWN) == "ROLLBACK"
    assert ask(shop, _PLACED) == "COMMIT"

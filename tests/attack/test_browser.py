"""A browser on the machine of a developer whose bridge listens on loopback: what pages of others can make it do."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.browser import Tab, open_tab
from tests.support.socket_bridge import SocketBridge, socket_bridge

GROUP = "orders"
JSON = {"Content-Type": "application/json"}
REBOUND = "rebound.example"  # a name of the attacker's, whose DNS now answers with this machine's loopback


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    """One browser for all."""
    with open_tab(f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1") as opened:
        yield opened


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[SocketBridge]:
    """As `dev` runs it, with a group."""
    with socket_bridge(tmp_path, {"orders": 1}) as running:
        running.put_json(f"/v1/producer-groups/{GROUP}", {})
        yield running


@contextmanager
def page_of_another() -> Iterator[str]:
    """The address of an empty page on another port of this machine: another site to a browser."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>prizes</title>")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def fetch(tab: Tab, url: str, method: str = "GET", body: str | None = None, **options: Any) -> str:
    """What the page of this tab gets to see of an answer; `options` as for JavaScript's fetch."""
    init = json.dumps({"method": method, **({} if body is None else {"body": body}), **options})
    return str(
        tab.ask(
            f"fetch({json.dumps(url)}, {init}).then(async a => a.type === 'opaque' ? 'opaque'"
            " : a.status + ' ' + await a.text(), failure => 'failed')"
        )
    )


def submit_form(tab: Tab, url: str) -> None:
    """What pages could do before there was JavaScript; returns when the answer has come."""
    tab.ask(
        "new Promise(done => { document.body.innerHTML = '<iframe name=there></iframe><form method=POST target=there>';"
        f"const form = document.querySelector('form'); form.action = {json.dumps(url)};"
        "document.querySelector('iframe').onload = () => done(); form.submit(); })"
    )


def prepare(bridge: SocketBridge) -> str:
    """A transaction whose payload is nobody else's business."""
    message = {"topic": "orders", "key": "42", "value": "4711-card"}
    told = bridge.post_json("/v1/transactions", {"producer_group": GROUP, "messages": [message]})
    return str(told["transaction_id"])


def audited(bridge: SocketBridge) -> list[str]:
    """What was done to groups, newest first."""
    return [entry["action"] for entry in bridge.get_json("/v1/audit")["entries"]]


def test_page_of_another_site_changes_nothing(tab: Tab, bridge: SocketBridge) -> None:
    """Neither with what a browser sends without asking, nor with what it asks for first."""
    transaction_id = prepare(bridge)
    before = audited(bridge)
    rotate = f"{bridge.url}/v1/producer-groups/{GROUP}/rotate-secret"
    with page_of_another() as url:
        tab.visit(url)
        assert fetch(tab, rotate, "POST", mode="no-cors") == "opaque"
        assert fetch(tab, rotate, "POST", "{}", mode="no-cors", headers={"Content-Type": "text/plain"}) == "opaque"
        assert fetch(tab, rotate, "POST", "{}", headers=JSON) == "failed"
        for verb in ("commit", "rollback"):
            assert (
                fetch(tab, f"{bridge.url}/v1/transactions/{transaction_id}/{verb}", "POST", mode="no-cors") == "opaque"
            )
        assert fetch(tab, f"{bridge.url}/v1/producer-groups/{GROUP}", "DELETE") == "failed"
        assert fetch(tab, f"{bridge.url}/v1/transactions/{transaction_id}") == "failed"
        submit_form(tab, rotate)
    assert audited(bridge) == before
    assert bridge.get_json(f"/v1/transactions/{transaction_id}")["state"] == "PREPARED"


def test_page_under_a_rebound_name_reads_and_changes_nothing(tab: Tab, bridge: SocketBridge) -> None:
    """To the browser it is the bridge's own page: only the name gives it away."""
    transaction_id = prepare(bridge)
    before = audited(bridge)
    tab.visit(f"http://{REBOUND}:{bridge.url.rpartition(':')[2]}/")
    assert tab.ask("location.hostname") == REBOUND
    one = f"/v1/transactions/{transaction_id}"
    force = json.dumps({"resolution": "ROLLBACK", "reason": "mine"})
    answers = [
        fetch(tab, f"{one}?include=messages"),
        fetch(tab, "/metrics"),
        fetch(tab, f"{one}/force", "POST", force, headers=JSON),
        fetch(tab, f"{one}/commit", "POST", headers={"Outbox-Bridge-Request": "1"}),
        fetch(tab, f"/v1/producer-groups/{GROUP}/endpoints", "POST", '{"url":"https://mine.example/"}', headers=JSON),
        fetch(tab, f"/v1/producer-groups/{GROUP}/rotate-secret", "POST", "{}", headers=JSON),
        fetch(tab, f"/v1/producer-groups/{GROUP}", "DELETE", headers=JSON),
    ]
    assert [answer[:4] for answer in answers] == ["403 "] * len(answers)
    assert "4711-card" not in "".join(answers)
    assert audited(bridge) == before
    assert bridge.get_json(one)["state"] == "PREPARED"


@pytest.mark.parametrize("page", ["", "docs", "redoc", "console/"])
def test_page_of_another_site_borrows_no_click(tab: Tab, bridge: SocketBridge, page: str) -> None:
    """What a browser does not show within a page of another's, no reader can be led to click there."""
    with page_of_another() as url:
        tab.visit(url)
        tab.requested.clear()
        tab.ask(
            "new Promise(done => { const frame = document.createElement('iframe'); frame.onload = () => done();"
            f"frame.src = {json.dumps(bridge.url)} + '/{page}'; document.body.append(frame); }})"
        )
        asked = [request.removeprefix(bridge.url) for request in tab.requested if request.startswith(bridge.url)]
    assert asked == [f"/{page}"]  # and nothing of what the page would load, had it been shown


def test_own_page_may_call(tab: Tab, bridge: SocketBridge) -> None:
    """The documents that the bridge shows can try its calls."""
    transaction_id = prepare(bridge)
    tab.visit(f"{bridge.url}/openapi.json")
    assert fetch(tab, f"/v1/transactions/{transaction_id}/rollback", "POST", "{}", headers=JSON).startswith("200 ")
    assert bridge.get_json(f"/v1/transactions/{transaction_id}")["state"] == "ROLLED_BACK"


def test_program_without_a_browser_needs_no_origin(bridge: SocketBridge) -> None:
    """What the documents show: a content type, and nothing else."""
    answer = httpx2.post(f"{bridge.url}/v1/transactions/{prepare(bridge)}/commit", headers=JSON)
    assert answer.status_code == 200

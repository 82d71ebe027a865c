"""The first page as a stream of events."""

from pathlib import Path

import httpx2

from bridge.core.keyring import RANDOM_BYTES, make_key_text
from bridge.service.access import AccessConfig
from tests.support.socket_bridge import socket_bridge

ADMIN = make_key_text(bytes(RANDOM_BYTES))
PROOF = {"authorization": f"Bearer {ADMIN}"}


def test_events_say_what_the_first_page_shows(tmp_path: Path) -> None:
    """At once and again; a bridge that ends does not wait for its readers."""
    with socket_bridge(tmp_path, {"orders": 1}) as bridge:
        stream = httpx2.stream("GET", f"{bridge.url}/console/live", timeout=20)
        with stream as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            names = []
            for line in answer.iter_lines():
                names += [line.removeprefix("event: ")] if line.startswith("event: ") else []
                if len(names) == 4:
                    break
            assert names == ["totals", "page", "totals", "page"]
            bridge.stop()


def test_events_end_with_the_rights_of_their_reader(tmp_path: Path) -> None:
    """What came next would be shown to somebody whose key is over; the browser asks anew, and hears why."""
    with socket_bridge(tmp_path, {"orders": 1}, access=AccessConfig(is_open=False, admin_key=ADMIN)) as bridge:
        with httpx2.Client(base_url=bridge.url, headers=PROOF, timeout=20) as client:
            client.put("/v1/principals/ann", json={"grants": [{"verbs": ["read"]}]}).raise_for_status()
            made = client.post("/v1/principals/ann/keys", json={}).json()
            reader = {"authorization": f"Bearer {made['key']}"}
            with client.stream("GET", "/console/live", headers=reader) as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith("event: ")
                assert client.request("DELETE", f"/v1/keys/{made['key_id']}", json={}).is_success
                shown = list(lines)
            assert client.get("/console/live", headers=reader).status_code == 303
        assert sum(line == "event: page" for line in shown) == 1, "that of before"

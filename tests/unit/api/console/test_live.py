"""The first page as a stream of events."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from api.console import home
from api.web.request import ApiRequest
from bridge.core.keyring import RANDOM_BYTES, make_key_text
from bridge.service.access import AccessConfig
from tests.support.bridge_process import wait_until
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


def test_pages_that_show_the_same_share_their_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other: a reader of one group is never sent what an administrator is shown, nor another language."""
    monkeypatch.setattr("api.web.request.EVENT_AGE_MS", 3_600_000)
    made = list[str]()
    look = home.look

    async def look_and_tell(request: ApiRequest) -> dict[str, object]:
        made.append(request.caller.name)
        return await look(request)

    monkeypatch.setattr(home, "look", look_and_tell)
    with socket_bridge(tmp_path, {"orders": 1}, access=AccessConfig(is_open=False, admin_key=ADMIN)) as bridge:
        with httpx2.Client(base_url=bridge.url, headers=PROOF, timeout=20) as client:
            for group in ("shop", "bank"):
                body = {"producer_group": group, "messages": [{"topic": "orders", "value": 1}]}
                client.post("/v1/transactions", json=body).raise_for_status()
            client.put("/v1/principals/ann", json={"grants": [{"verbs": ["read"], "groups": "bank"}]})
            reader = {"authorization": f"Bearer {client.post('/v1/principals/ann/keys', json={}).json()['key']}"}

        def follow(headers: dict[str, str]) -> str:
            """What is sent until the fourth page is shown, after three rounds."""
            sent = list[str]()
            with httpx2.stream("GET", f"{bridge.url}/console/live", headers=headers, timeout=20) as answer:
                for line in answer.iter_lines():
                    sent.append(line)
                    if sent.count("event: page") == 4 and not line:
                        break
            return "\n".join(sent)

        wait_until(lambda: "bank" in httpx2.get(f"{bridge.url}/console/", headers=PROOF).text)
        made.clear()
        with ThreadPoolExecutor() as pool:
            ada, eve, chinese, ann = pool.map(follow, (PROOF, PROOF, PROOF | {"accept-language": "zh"}, reader))
    assert [all(group in page for page in (ada, eve, chinese)) for group in ("shop", "bank")] == [True, True]
    assert ("shop" in ann, "bank" in ann) == (False, True)
    assert [("Pending" in page, "待定" in page) for page in (ada, chinese)] == [(True, False), (False, True)]
    first, shared = 4, 3
    assert len(made) == first + shared

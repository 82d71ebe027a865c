"""The contract of the HTTP interface against the whole bridge; every answer is held against the document."""

import base64
import json
from typing import Any

import httpx2
import pytest

from tests.support.bad_requests import JSON, NDJSON
from tests.support.bridge_process import BridgeProcess, read_committed, wait_until
from tests.support.running_service import RunningService

GROUP = "contract"
EXACT = b'{"b":12345678901234567890123.10,"a":[1e400,-0.0],"text":"\\u00e9 \\/"}'


@pytest.fixture(scope="module")
def bridge(service: RunningService) -> BridgeProcess:
    """One of its API processes."""
    return service.api


@pytest.fixture(scope="module")
def topic(service: RunningService) -> str:
    """A topic of one partition."""
    return service.topics.line


def prepare(
    bridge: BridgeProcess, topic: str, message: dict[str, Any] | None = None, **members: object
) -> httpx2.Response:
    """One message; its check is far away."""
    messages = [{"topic": topic, "key": "k", **(message or {})}]
    body = {"producer_group": GROUP, "messages": messages, "check_immunity_seconds": 3_600, **members}
    answer = bridge.post("/v1/transactions", body)
    assert answer.status_code == 201, answer.text
    return answer


def read_one(kafka: str, topic: str, transaction_id: str) -> Any:
    """The record of a transaction."""
    (record,) = [record for record in read_committed(kafka, [topic]) if record.transaction_id == transaction_id]
    return record


def test_transaction_is_committed_with_a_receipt(bridge: BridgeProcess, topic: str, kafka: str) -> None:
    """201, 200, the same again; the receipt says where the record is."""
    location = prepare(bridge, topic).headers["location"]
    assert bridge.get(location).json()["state"] == "PREPARED"
    committed = bridge.post(f"{location}/commit", {"producer_group": GROUP})
    shown = committed.json()
    assert (committed.status_code, shown["state"], shown["resolved_by"]) == (200, "COMMITTED", "producer")
    record = read_one(kafka, topic, shown["transaction_id"])
    assert shown["receipts"] == [{"topic": topic, "partition": 0, "offset": record.offset}]
    repeat = bridge.post(f"{location}/commit")
    assert (repeat.status_code, repeat.json()["receipts"]) == (200, shown["receipts"])
    assert bridge.get(location).json()["receipts"] == shown["receipts"]


def test_values_arrive_exactly_as_sent(bridge: BridgeProcess, topic: str, kafka: str) -> None:
    """Big integers, decimals, escapes and the order of members; only white space between tokens is taken away."""
    spaced = EXACT.replace(b":", b" : ").replace(b",", b" ,\n")
    body = b'{"producer_group":"contract","messages":[{"topic":"%b","value":%b}]}' % (topic.encode(), spaced)
    answer = bridge.http.post("/v1/messages", content=body, headers=JSON)
    assert answer.status_code == 200
    assert read_one(kafka, topic, answer.json()["transaction_id"]).value == EXACT


def test_null_is_not_empty_and_headers_keep_their_order(bridge: BridgeProcess, topic: str, kafka: str) -> None:
    """Integrity: bytes in, bytes out."""
    headers = [["b", "AA=="], ["a", None], ["b", ""]]
    empty = prepare(bridge, topic, {"key": "", "value": "", "headers_base64": headers}).headers["location"]
    null = prepare(bridge, topic, {"key": None, "value": None}).headers["location"]
    ids = [bridge.post(f"{location}/commit").json()["transaction_id"] for location in (empty, null)]
    first, second = [read_one(kafka, topic, transaction_id) for transaction_id in ids]
    assert (first.key, first.value, first.headers[:-1]) == (b"", b"", (("b", b"\x00"), ("a", None), ("b", b"")))
    assert (second.key, second.value, second.headers) == (None, None, (("transaction-id", ids[1].encode()),))


def test_prepared_bodies_can_be_looked_at(bridge: BridgeProcess, topic: str) -> None:
    """Metadata always, bodies on request."""
    raw = base64.b64encode(b"\xff\x00").decode()
    location = prepare(bridge, topic, {"value_base64": raw, "partition": 0}, idempotency_key="look").headers["location"]
    assert bridge.get(location).json()["messages"] == [{"topic": topic, "key": "k", "value_bytes": 2, "partition": 0}]
    whole = bridge.get(location, params={"include": "messages"}).json()
    assert whole["messages"][0]["value_base64"] == raw
    assert whole["idempotency_key"] == "look"


def test_rolled_back_transaction_stays_so(bridge: BridgeProcess, topic: str) -> None:
    """And its timeline tells it."""
    location = prepare(bridge, topic).headers["location"]
    assert bridge.post(f"{location}/rollback").json()["state"] == "ROLLED_BACK"
    assert bridge.post(f"{location}/commit").status_code == 409
    events = bridge.get(f"{location}/timeline").json()["events"]
    assert [event["type"] for event in events][:2] == ["prepared", "end"]


def test_end_that_is_not_waited_for_comes_true(bridge: BridgeProcess, topic: str) -> None:
    """202 once it is durable."""
    location = prepare(bridge, topic).headers["location"]
    accepted = bridge.post(f"{location}/commit", headers={"Prefer": "respond-async"})
    assert (accepted.status_code, accepted.json()["resolution"]) == (202, "COMMIT")
    wait_until(lambda: bridge.get(location).json()["state"] == "COMMITTED", name="commit")


def test_batches_and_lines_are_decided_one_by_one(bridge: BridgeProcess, topic: str) -> None:
    """In order, whatever the others are."""
    good = {"producer_group": GROUP, "messages": [{"topic": topic}], "check_immunity_seconds": 3_600}
    bad = {**good, "messages": [{"topic": "no.such.topic"}]}
    results = bridge.post("/v1/transactions/batch", {"transactions": [good, bad, good]}).json()["results"]
    assert [result["status"] for result in results] == [201, 422, 201]
    ends = [
        {"transaction_id": results[place]["transaction_id"], "resolution": word} for place, word in [(0, 8), (2, 12)]
    ]
    ended = bridge.post("/v1/resolutions", {"resolutions": ends}).json()["results"]
    assert [(result["status"], result["state"]) for result in ended] == [(200, "COMMITTED"), (200, "ROLLED_BACK")]
    lines = "\n".join([json.dumps(item) for item in (good, bad)] * 500)
    answer = bridge.http.post("/v1/messages/batch", content=lines, headers=NDJSON)
    statuses = [json.loads(line)["status"] for line in answer.text.splitlines()]
    assert statuses == [200, 422] * 500


def test_group_is_kept_shown_and_removed(bridge: BridgeProcess) -> None:
    """Its secret is shown once; what was done is audited."""
    path = "/v1/producer-groups/contract-group"
    endpoints = [{"url": "http://127.0.0.1:1/check"}]
    created = bridge.http.put(path, json={"endpoints": endpoints, "check": {"max_checks": 3}})
    assert created.status_code == 201
    assert created.json()["secret"].startswith("whsec_")
    assert bridge.http.put(path, json={"endpoints": endpoints}).status_code == 200
    shown = bridge.get(path).json()
    assert (shown["endpoints"][0]["url"], shown["check"]["max_checks"]) == (endpoints[0]["url"], 15)
    assert bridge.post(f"{path}/rotate-secret").json()["secret"] != created.json()["secret"]
    assert "contract-group" in [group["name"] for group in bridge.get("/v1/producer-groups").json()["producer_groups"]]
    assert bridge.http.delete(path).status_code == 200
    assert bridge.get(path).status_code == 404
    actions = [e["action"] for e in bridge.get("/v1/audit").json()["entries"] if e["target"] == "contract-group"]
    assert len(actions) == 4


def test_searches_counts_and_pages_agree(bridge: BridgeProcess, topic: str) -> None:
    """Conservation: prepared = committed + rolled back + parked + pending."""
    prepare(bridge, topic)
    wait_until(lambda: bridge.get("/v1/stats").json()["groups"].get(GROUP, {}).get("pending"), name="projection")
    counts = bridge.get("/v1/stats").json()["groups"][GROUP]
    parts = ("committed", "rolled_back", "parked", "pending")
    assert counts["prepared"] == sum(counts[name] for name in parts)
    first = bridge.get("/v1/transactions", params={"producer_group": GROUP, "limit": 1})
    second = bridge.get(first.headers["link"].partition(">")[0][1:])
    ids = [page.json()["transactions"][0]["transaction_id"] for page in (first, second)]
    assert len(set(ids)) == 2
    assert bridge.get("/v1/parked").json() == {"transactions": [], "next": None}


def test_operator_forces_and_previews(bridge: BridgeProcess, topic: str) -> None:
    """With a reason; nothing is parked here, so a redrive has nothing to do."""
    location = prepare(bridge, topic).headers["location"]
    forced = bridge.post(f"{location}/force", {"resolution": "ROLLBACK", "reason": "cancelled"})
    assert (forced.status_code, forced.json()["resolved_by"]) == (200, "operator")
    wanted = {"action": "resume", "filter": {"producer_group": GROUP}}
    assert bridge.post("/v1/parked/redrive", {**wanted, "preview": True}).json()["count"] == 0
    job = bridge.post("/v1/parked/redrive", {**wanted, "reason": "test"}).headers["location"]
    wait_until(lambda: bridge.get(job).json()["state"] == "done", name="job")


def test_health_and_metrics_are_told(bridge: BridgeProcess) -> None:
    """Each check by name; metrics begin as they should."""
    assert bridge.get("/livez").json() == {"live": True}
    checks = bridge.get("/readyz?verbose").json()["checks"]
    assert {"kafka", "sql"} <= {check["name"] for check in checks}
    lines = bridge.get("/metrics").text.splitlines()
    assert all(line.startswith(("outbox_bridge_", "#")) for line in lines)

"""Every row of the error table against the real service: status, code, outcome, headers, shape; never a 500."""

import gzip
import json
import socket
import time
from typing import Any

import httpx2
import pytest

from tests.support.bad_requests import BAD_REQUESTS, JSON, UNKNOWN_ID, BadRequest, Facts
from tests.support.bridge_process import BridgeProcess, wait_until
from tests.support.problems import check_problem, named_places
from tests.support.raw_requests import RAW_REQUESTS
from tests.support.refused_by_service import REFUSED_BY_SERVICE
from tests.support.running_service import RunningService

HOUR_MS = 3_600_000
POST = b"POST /v1/transactions HTTP/1.1\r\nHost: localhost:%d\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def facts(service: RunningService) -> Facts:
    """A prepared transaction, whose first check is not due while the table lasts, and a committed one of one group."""
    group = service.new_group("errors")
    prepared, committed = service.prepare(group, check_immunity_seconds=HOUR_MS // 1_000), service.prepare(group)
    service.end(committed, "commit")
    return Facts(service.topics.orders, group, prepared, committed)


def refused(
    process: BridgeProcess, body: Any, status: int, code: str, path: str = "/v1/transactions", **options: Any
) -> dict[str, Any]:
    """The problem that answers this POST."""
    return dict(check_problem(process.post(path, body, **options), status, code))


@pytest.mark.parametrize("row", [*BAD_REQUESTS, *REFUSED_BY_SERVICE], ids=lambda row: row.name)
def test_bad_request_gets_its_problem(row: BadRequest, service: RunningService, facts: Facts) -> None:
    """Status, code, place and headers are those of the table, and the answer says that nothing was done."""
    answer = service.api.http.request(
        row.method, row.fill_path(facts), content=row.fill_body(facts), headers=dict(row.headers)
    )
    problem = check_problem(answer, row.status, row.code)
    assert problem["outcome"] == "not_applied"
    if row.pointer is not None:
        assert row.pointer in named_places(problem)
    assert row.has.items() <= {name.title(): value for name, value in answer.headers.items()}.items()


def test_nothing_that_was_refused_was_done(service: RunningService, facts: Facts) -> None:
    """After the whole table the group has the two transactions it had, in the states they had."""
    counts = service.counts(facts.group)
    assert (counts["prepared"], counts["committed"], counts["pending"]) == (2, 1, 1)
    assert service.get(facts.prepared)["state"] == "PREPARED"
    assert service.get(facts.committed)["state"] == "COMMITTED"


@pytest.mark.parametrize(("raw", "status", "code"), [row[1:] for row in RAW_REQUESTS], ids=[r[0] for r in RAW_REQUESTS])
def test_what_is_no_request_gets_a_problem_and_is_closed(
    raw: bytes, status: int, code: str, service: RunningService
) -> None:
    """Bytes on a socket that are not HTTP as it should be."""
    head, _, body = exchange(service.api, raw).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), head
    assert b"application/problem+json" in head
    problem = json.loads(body)
    assert (problem["type"].rpartition("/")[2], problem["outcome"]) == (code, "not_applied")


def exchange(process: BridgeProcess, raw: bytes) -> bytes:
    """What comes back until the connection is closed."""
    received = b""
    with socket.create_connection(("127.0.0.1", process.port), timeout=20) as connection:
        try:
            connection.sendall(raw)
            while piece := connection.recv(65_536):
                received += piece
        except ConnectionResetError:
            pass
    return received


def test_slow_bodies_are_not_waited_for(service: RunningService) -> None:
    """As many as may be in flight: others are told 503 meanwhile, health is still told, and then it is 408."""
    head = POST % service.strict.port + b"Content-Length: 9\r\n\r\n{"
    address = ("127.0.0.1", service.strict.port)
    with socket.create_connection(address, 20) as first, socket.create_connection(address, 20) as second:
        for number, connection in enumerate((first, second), start=1):
            connection.sendall(head)
            wait_until(lambda n=number: in_flight(service.strict) == n, name=f"{number} in flight")
        problem = check_problem(service.strict.get("/v1/stats"), 503, "unavailable")
        assert problem["outcome"] == "not_applied"
        assert service.strict.get("/livez").status_code == 200
        for connection in (first, second):
            assert connection.recv(65_536).startswith(b"HTTP/1.1 408 ")
    wait_until(lambda: in_flight(service.strict) == 0, name="room")
    assert service.strict.get("/v1/stats").status_code == 200


def in_flight(process: BridgeProcess) -> float:
    """Requests being served besides the one that asks."""
    lines = process.get("/metrics").text.splitlines()
    return (
        next(float(line.split()[1]) for line in lines if line.startswith("outbox_bridge_http_requests_in_flight ")) - 1
    )


def test_body_cut_off_changes_nothing(service: RunningService) -> None:
    """A connection that breaks inside a prepare leaves no transaction."""
    group = service.new_group("cut")
    body = json.dumps({"producer_group": group, "messages": [service.message()]}).encode()
    with socket.create_connection(("127.0.0.1", service.api.port), timeout=20) as connection:
        connection.sendall(POST % service.api.port + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-1])
    check_problem(service.api.get(f"/v1/producer-groups/{group}"), 404, "unknown-producer-group")


def test_compressed_bomb_is_refused_unread(service: RunningService) -> None:
    """Content-Encoding is never undone, so that 20 KB cannot become 20 MB."""
    answer = service.api.http.post(
        "/v1/transactions", content=gzip.compress(b" " * 20_000_000), headers={**JSON, "Content-Encoding": "gzip"}
    )
    check_problem(answer, 415, "unsupported-media-type")


def test_chunked_body_over_the_cap_is_refused(service: RunningService) -> None:
    """Without a length the cap still holds, and the process lives on."""

    def chunks() -> Any:
        for _ in range(12):
            yield b" " * 1_048_576

    try:
        answer = service.api.http.post("/v1/transactions", content=chunks(), headers=JSON)
        check_problem(answer, 413, "body-too-large")
    except httpx2.TransportError:
        pass  # the answer may be lost on a connection that is closed while we still send
    assert service.api.get("/livez").status_code == 200


def test_reserved_topics_of_this_bridge_are_refused(service: RunningService) -> None:
    """Clients may not write the journal, whatever prefix it has."""
    bridge = service.bridge
    for topic in (bridge.half_topic, bridge.op_topic, bridge.parked_topic):
        body = {"producer_group": "g", "messages": [{"topic": topic}]}
        for path in ("/v1/transactions", "/v1/messages"):
            problem = refused(service.api, body, 403, "reserved-topic", path)
            assert named_places(problem) == {"/messages/0/topic"}


def test_unknown_topic_says_how_to_make_it(service: RunningService) -> None:
    """Topics are never made by a message; `detail` or title names the command."""
    body = {"producer_group": service.new_group("typo"), "messages": [service.message(), {"topic": "order.created"}]}
    problem = refused(service.api, body, 422, "unknown-topic")
    assert "outbox-bridge topic create order.created" in problem["detail"]
    assert named_places(problem) == {"/messages/1/topic"}


@pytest.mark.parametrize("partition", [1, 2, 2**31 - 1])
def test_partition_that_does_not_exist_is_refused(service: RunningService, partition: int) -> None:
    """At prepare, before the caller commits anything."""
    body = {"producer_group": "g", "messages": [{"topic": service.topics.line, "partition": partition}]}
    problem = refused(service.api, body, 422, "unknown-partition")
    assert named_places(problem) == {"/messages/0/partition"}


@pytest.mark.parametrize("shift_ms", [-HOUR_MS - 60_000, HOUR_MS + 60_000])
def test_timestamp_outside_what_its_topic_takes_is_refused(service: RunningService, shift_ms: int) -> None:
    """Kafka would refuse the record at commit, when it is too late."""
    timestamp_ms = int(time.time() * 1000) + shift_ms
    message = {"topic": service.topics.strict_time, "timestamp_ms": timestamp_ms}
    problem = refused(service.api, {"producer_group": "g", "messages": [message]}, 422, "invalid-timestamp")
    assert named_places(problem) == {"/messages/0/timestamp_ms"}


def test_message_larger_than_its_topic_takes_is_refused(service: RunningService) -> None:
    """The topic's own limit counts, below the bridge's; what just fits is published."""
    group = service.new_group("sizes")
    for size in (1_990, 2_100, 1_000_000):
        body = {"producer_group": group, "messages": [{"topic": service.topics.small, "value": "x" * size}]}
        problem = refused(service.api, body, 413, "message-too-large")
        assert named_places(problem)
    transaction_id = service.prepare(group, {"topic": service.topics.small, "value": "x" * 1_800})
    assert service.end(transaction_id, "commit")["receipts"]


def test_transaction_larger_than_the_journal_takes_is_refused(service: RunningService) -> None:
    """Many messages, each within the limit, are one record of the journal; the largest that fits is published."""
    group = service.new_group("large")
    messages = [service.message(value="x" * 1_000_000) for _ in range(8)]
    refused(service.api, {"producer_group": group, "messages": messages}, 413, "message-too-large")
    transaction_id = service.prepare(group, *messages[:6])
    assert len(service.end(transaction_id, "commit")["receipts"]) == 6


def test_unknown_group_is_refused_where_groups_are_not_made(service: RunningService) -> None:
    """With `auto_create_groups = false` a prepare in an unknown name is 404 and makes no group."""
    group = service.new_group("unmade")
    body = {"producer_group": group, "messages": [service.message()]}
    refused(service.strict, body, 404, "unknown-producer-group")
    check_problem(service.api.get(f"/v1/producer-groups/{group}"), 404, "unknown-producer-group")
    check_problem(service.api.post(f"/v1/producer-groups/{group}/rotate-secret"), 404, "unknown-producer-group")


def test_end_by_another_group_is_refused(service: RunningService, facts: Facts) -> None:
    """Single and in a list; the transaction stays as it was."""
    path = f"/v1/transactions/{facts.prepared}/rollback"
    refused(service.api, {"producer_group": "another"}, 409, "producer-group-mismatch", path)
    entry = {"transaction_id": facts.prepared, "resolution": "COMMIT", "producer_group": "another"}
    (result,) = service.api.post("/v1/resolutions", {"resolutions": [entry]}).json()["results"]
    assert (result["status"], result["problem"]["type"].rpartition("/")[2]) == (409, "producer-group-mismatch")
    assert service.get(facts.prepared)["state"] == "PREPARED"


def test_unknown_ids_are_404_everywhere(service: RunningService) -> None:
    """Well-formed ids that nobody minted, also of queues that do not exist."""
    for transaction_id in (UNKNOWN_ID, "vv" + "7" * 25 + "0"):
        base = f"/v1/transactions/{transaction_id}"
        for path in (base, f"{base}/timeline"):
            check_problem(service.api.get(path), 404, "unknown-transaction")
        for act in ("commit", "rollback", "check"):
            refused(service.api, None, 404, "unknown-transaction", f"{base}/{act}")
        refused(service.api, {"resolution": "COMMIT", "reason": "r"}, 404, "unknown-transaction", f"{base}/force")
        for act in ("resume", "abandon"):
            refused(service.api, {"reason": "r"}, 404, "unknown-transaction", f"{base}/{act}")


def test_deadline_passed_is_unknown_and_a_repeat_tells_the_truth(service: RunningService) -> None:
    """504 with the id and `outcome: unknown`; the same call again gives what happened."""
    transaction_id = service.prepare(service.new_group("late"))
    path = f"/v1/transactions/{transaction_id}/commit"
    problem = refused(service.api, None, 504, "outcome-unknown", f"{path}?wait_seconds=0")
    assert (problem["outcome"], problem["transaction_id"]) == ("unknown", transaction_id)
    answer = service.api.post(path)
    assert (answer.status_code, answer.json()["state"]) == (200, "COMMITTED")
    assert len(service.read([transaction_id])) == 1


def test_process_without_the_api_role_serves_health_alone(service: RunningService) -> None:
    """The engine's port is no way around anything."""
    assert service.engine.get("/readyz").status_code == 200
    problem = check_problem(service.engine.get("/v1/transactions"), 404, "not-found")
    assert "ask a process with the role `api`" in problem["detail"]


def test_request_id_of_the_caller_comes_back(service: RunningService) -> None:
    """In the header and in `instance`; one that is no plain word is replaced."""
    answer = service.api.get("/v1/nothing", headers={"X-Request-Id": "my-request.7"})
    assert check_problem(answer, 404, "not-found")["instance"] == "my-request.7"
    other = service.api.get("/v1/nothing", headers={"X-Request-Id": "two words"})
    assert check_problem(other, 404, "not-found")["instance"] != "two words"

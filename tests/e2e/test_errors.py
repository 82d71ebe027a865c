"""Every row of the error table against the whole bridge: real processes, real Kafka, real SQL."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.bad_requests import BAD_REQUESTS, BadRequest, Facts
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed
from tests.support.documented import Documented
from tests.support.problems import check_problem, named_places
from tests.support.raw_requests import RAW_REQUESTS
from tests.support.refused_by_service import REFUSED_BY_SERVICE

TOPIC = "errors.orders"
SMALL_TOPIC = "errors.small"


@pytest.fixture(scope="module")
def bridge(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """One process for all rows: none may break it for the next. Every answer is held against the document."""
    folder: Path = tmp_path_factory.mktemp("errors")
    create_topics(kafka, {TOPIC: 2})
    create_topics(kafka, {SMALL_TOPIC: 1}, {"max.message.bytes": "10000"})
    with Bridge.create(kafka, folder).serve() as process:
        documented = Documented(process.get("/openapi.json").json())
        process.http.event_hooks = {"response": [documented.check_now]}
        yield process


def prepare(bridge: BridgeProcess, **members: object) -> httpx2.Response:
    """A prepare that is right but for what is given; its check is far away."""
    body = {"producer_group": "errors", "messages": [{"topic": TOPIC, "key": "k"}], "check_immunity_seconds": 3_600}
    return bridge.post("/v1/transactions", {**body, **members})


@pytest.fixture(scope="module")
def facts(bridge: BridgeProcess) -> Facts:
    """A prepared and a committed transaction."""
    prepared, committed = [prepare(bridge).json()["transaction_id"] for _ in range(2)]
    assert bridge.post(f"/v1/transactions/{committed}/commit").status_code == 200
    return Facts(TOPIC, "errors", prepared, committed)


@pytest.mark.parametrize("row", [*BAD_REQUESTS, *REFUSED_BY_SERVICE], ids=lambda row: row.name)
def test_bad_request_gets_its_problem(row: BadRequest, bridge: BridgeProcess, facts: Facts) -> None:
    """Status, code and place are those of the table, and it says that nothing was done."""
    response = bridge.http.request(
        row.method, row.fill_path(facts), content=row.fill_body(facts), headers=dict(row.headers)
    )
    problem = check_problem(response, row.status, row.code)
    assert problem["outcome"] == "not_applied"
    if row.pointer is not None:
        assert row.pointer in named_places(problem)


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"), [row[1:] for row in RAW_REQUESTS], ids=[row[0] for row in RAW_REQUESTS]
)
def test_what_is_no_request_gets_a_problem_and_is_closed(
    request_bytes: bytes, status: int, code: str, bridge: BridgeProcess
) -> None:
    """Even then the answer is a problem, and the connection ends."""
    with socket.create_connection(("127.0.0.1", bridge.port), 20) as connection:
        connection.sendall(request_bytes)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"].endswith(f"/{code}")


def test_key_used_for_other_content_is_refused(bridge: BridgeProcess) -> None:
    """Never a mixture of both; the first content is still the first transaction."""
    first = prepare(bridge, idempotency_key="reused")
    other = prepare(bridge, idempotency_key="reused", messages=[{"topic": TOPIC, "key": "other"}])
    check_problem(other, 422, "idempotency-key-reused")
    repeat = prepare(bridge, idempotency_key="reused")
    assert (repeat.status_code, repeat.json()["transaction_id"]) == (201, first.json()["transaction_id"])


def test_message_that_its_topic_does_not_take_is_refused_at_prepare(bridge: BridgeProcess) -> None:
    """Before the caller commits anything."""
    for value, status in [("x" * 9_000, 201), ("x" * 10_001, 413)]:
        answer = prepare(bridge, messages=[{"topic": SMALL_TOPIC, "value": value}])
        assert answer.status_code == status
    check_problem(answer, 413, "message-too-large")


def test_timestamp_that_its_topic_does_not_take_is_refused_at_prepare(bridge: BridgeProcess) -> None:
    """A topic takes one hour ahead at most, unless it is told otherwise."""
    far = prepare(bridge, messages=[{"topic": TOPIC, "timestamp_ms": 4_102_444_800_000}])
    check_problem(far, 422, "invalid-timestamp")


def test_refusals_left_nothing_behind(bridge: BridgeProcess, facts: Facts, kafka: str) -> None:
    """The process is ready, the transactions are what they were, and consumers have read one record."""
    assert bridge.get("/readyz").status_code == 200
    assert bridge.get(f"/v1/transactions/{facts.prepared}").json()["state"] == "PREPARED"
    assert [record.transaction_id for record in read_committed(kafka, [TOPIC])] == [facts.committed]
    assert "internal_error" not in bridge.log.read_text()

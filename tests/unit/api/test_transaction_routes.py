"""What the routes of transactions answer when all is well."""

import base64
import json
import re

import pytest
from msgspec.structs import replace

from api.web.road import Road
from bridge.core.record import Act, Resolution, Source
from bridge.core.transaction import TransactionState
from bridge.service.contract import Outcome, RefusalCode, Refused
from tests.support.api_fakes import BORN_MS, FakeTransactions, make_facts, make_services
from tests.support.bad_requests import JSON, UNKNOWN_ID, Facts
from tests.support.live_server import LiveServer, serve
from tests.support.problems import check_problem

ORDER = {"producer_group": "orders", "messages": [{"topic": "orders.created", "key": "42", "value": {"amount": 1}}]}


async def test_prepare_answers_what_is_needed_to_go_on(live: LiveServer, fake: FakeTransactions) -> None:
    """201, the id, and where the transaction is to be found."""
    answer = await live.client.post("/v1/transactions", json=ORDER)
    (transaction_id,) = fake.views
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/transactions/{transaction_id}"
    assert answer.json() == {
        "transaction_id": transaction_id,
        "producer_group": "orders",
        "state": "PREPARED",
        "born_time": "2026-01-31T12:00:00.123Z",
        "first_check_at": "2026-01-31T12:00:06.123Z",
        "queue_id": 1,
        "queue_offset": 0,
    }


@pytest.mark.parametrize("key", ["order-42", '"order-42"'])
async def test_repeat_names_the_same_transaction(key: str, live: LiveServer, fake: FakeTransactions) -> None:
    """201 while it is PREPARED, 200 with its end afterwards; the header counts like the member."""
    headers = {"Idempotency-Key": key}
    first = await live.client.post("/v1/transactions", json=ORDER, headers=headers)
    repeat = await live.client.post("/v1/transactions", json={**ORDER, "idempotency_key": "order-42"})
    assert (repeat.status_code, repeat.json()) == (201, first.json())
    await live.client.post(f"{first.headers['location']}/commit")
    ended = await live.client.post("/v1/transactions", json=ORDER, headers=headers)
    assert (ended.status_code, ended.json()["state"]) == (200, "COMMITTED")
    assert ended.headers["location"] == first.headers["location"]
    assert len(fake.views) == 1


@pytest.mark.parametrize("route", ["/v1/transactions", "/v1/messages", "/v1/transactions/batch", "/v1/messages/batch"])
async def test_first_try_is_passed_on_and_told_the_time(route: str, live: LiveServer, fake: FakeTransactions) -> None:
    """To those who say so alone."""
    body = {"transactions": [ORDER]} if route.endswith("batch") else ORDER
    plain = await live.client.post(route, json=body)
    first = await live.client.post(route, json=body, headers={"Outbox-First-Try": "17"})
    assert fake.first_tries_ms == [None, 17]
    assert "outbox-kafka-time" not in plain.headers
    assert first.headers["outbox-kafka-time"] == str(BORN_MS)


@pytest.mark.parametrize("route", ["/v1/transactions/batch", "/v1/messages/batch"])
async def test_stream_of_first_tries_is_told_the_time_too(route: str, live: LiveServer) -> None:
    """At its beginning, as any successful answer."""
    headers = {"Content-Type": "application/x-ndjson", "Outbox-First-Try": "17"}
    answer = await live.client.post(route, content=json.dumps(ORDER), headers=headers)
    assert (answer.status_code, answer.headers["outbox-kafka-time"]) == (200, str(BORN_MS))


@pytest.mark.parametrize("told", [["-1"], ["1.5"], ["soon"], [""], ["1" * 19], ["1", "1"]])
async def test_first_try_without_a_time_is_refused(told: list[str], live: LiveServer) -> None:
    """Nothing is guessed."""
    headers = [("Content-Type", "application/json"), *[("Outbox-First-Try", value) for value in told]]
    answer = await live.client.post("/v1/transactions", content=json.dumps(ORDER), headers=headers)
    check_problem(answer, 422, "invalid-request")


@pytest.mark.parametrize("seconds", ["0", "10", "1.3947934746463885", "2.2250738585e-313"])
async def test_any_number_within_bounds_is_a_wait(seconds: str, live: LiveServer, facts: Facts) -> None:
    """As many digits as a client's language prints."""
    answer = await live.client.post(f"/v1/transactions/{facts.prepared}/commit?wait_seconds={seconds}")
    assert answer.status_code == 200


async def test_commit_answers_receipts(live: LiveServer, facts: Facts) -> None:
    """200 with who resolved it, when, and where the messages are; a repeat gets the same."""
    path = f"/v1/transactions/{facts.prepared}/commit"
    first = await live.client.post(path, json={"producer_group": "orders"})
    assert first.status_code == 200
    assert first.json() | {"messages": None} == {
        "transaction_id": facts.prepared,
        "producer_group": "orders",
        "state": "COMMITTED",
        "blocked": False,
        "reason": None,
        "resolved_by": "producer",
        "resolved_at": "2026-01-31T12:00:00.173Z",
        "receipts": [{"topic": "orders.created", "partition": 0, "offset": 0}],
        "born_time": "2026-01-31T12:00:00.123Z",
        "first_check_at": "2026-01-31T12:00:06.123Z",
        "next_check_at": None,
        "check_times": 0,
        "queue_id": 1,
        "queue_offset": 0,
        "ordering_key": None,
        "idempotency_key": None,
        "messages": None,
    }
    repeat = await live.client.post(path, content=b"", headers=JSON)
    assert (repeat.status_code, repeat.json()) == (200, first.json())


async def test_rollback_publishes_nothing(live: LiveServer, facts: Facts) -> None:
    """200, no receipts."""
    answer = await live.client.post(f"/v1/transactions/{facts.prepared}/rollback")
    assert (answer.status_code, answer.json()["state"], answer.json()["receipts"]) == (200, "ROLLED_BACK", [])


async def test_end_need_not_be_waited_for(live: LiveServer, facts: Facts) -> None:
    """`Prefer: respond-async` is answered as soon as the end is durable."""
    headers = {"Prefer": 'foo; a="b", respond-async, wait=5'}
    answer = await live.client.post(f"/v1/transactions/{facts.prepared}/commit", headers=headers)
    assert answer.status_code == 202
    assert answer.json() == {"transaction_id": facts.prepared, "resolution": "COMMIT"}
    assert answer.headers["preference-applied"] == "respond-async"


async def test_blocked_commit_is_accepted(live: LiveServer, facts: Facts, fake: FakeTransactions) -> None:
    """202: it is decided, nobody can read it yet."""
    view = replace(fake.views[facts.committed], blocked=True, reason="topic is gone", receipts=())
    fake.views[facts.committed] = view
    answer = await live.client.post(f"/v1/transactions/{facts.committed}/commit")
    shown = answer.json()
    assert (answer.status_code, shown["state"], shown["blocked"], shown["receipts"]) == (202, "COMMITTED", True, [])


@pytest.mark.parametrize("path", ["commit", "rollback"])
async def test_outcome_unknown_names_the_transaction(
    path: str, live: LiveServer, facts: Facts, fake: FakeTransactions
) -> None:
    """504, and repeating the call gives the truth."""
    fake.refusal = Refused(RefusalCode.OUTCOME_UNKNOWN, "not in time", Outcome.UNKNOWN, facts.prepared)
    answer = await live.client.post(f"/v1/transactions/{facts.prepared}/{path}")
    problem = check_problem(answer, 504, "outcome-unknown")
    assert (problem["outcome"], problem["transaction_id"]) == ("unknown", facts.prepared)
    fake.refusal = None
    assert (await live.client.post(f"/v1/transactions/{facts.prepared}/{path}")).status_code == 200


async def test_get_shows_messages_on_request(live: LiveServer, fake: FakeTransactions) -> None:
    """Metadata always, bodies with `include`, never decoded lossily."""
    message = {
        "topic": "t",
        "key_base64": "/w==",
        "value_base64": base64.b64encode(b"\xff\x00").decode(),
        "partition": 2,
    }
    texts = {"topic": "t", "key": "é", "value": {"n": 0}, "headers": [["a", None], ["a", "b"]], "timestamp_ms": 5}
    body = json.dumps({"producer_group": "g", "messages": [message, texts, {"topic": "t"}]})
    sent = body.replace('"n": 0', '"n": 12345678901234567890.10').encode()
    location = (await live.client.post("/v1/transactions", content=sent, headers=JSON)).headers["location"]
    assert (await live.client.get(location)).json()["messages"] == [
        {"topic": "t", "key_base64": "/w==", "value_bytes": 2, "partition": 2},
        {"topic": "t", "key": "é", "value_bytes": 29, "timestamp_ms": 5},
        {"topic": "t", "key": None, "value_bytes": None},
    ]
    whole = await live.client.get(location, params={"include": "messages"})
    assert b'"value":{"n":12345678901234567890.10}' in whole.content
    assert whole.json()["messages"][0] == {**message, "headers": []}
    assert whole.json()["messages"][1]["headers"] == [["a", None], ["a", "b"]]
    assert whole.json()["messages"][2] == {"topic": "t", "key": None, "value": None, "headers": []}


async def test_get_explains_and_names_the_next_step(live: LiveServer, facts: Facts) -> None:
    """With messages or without; what has ended needs nothing."""
    for query in ("", "?include=messages"):
        pending = (await live.client.get(f"/v1/transactions/{facts.prepared}{query}")).json()
        assert pending["explanation"].startswith("Pending: its producer has not ended it yet;")
        assert pending["next"] == {"what": "check", "at": pending["next_check_at"]}
    ended = (await live.client.get(f"/v1/transactions/{facts.committed}")).json()
    assert ended["explanation"].startswith("Committed by its producer")
    assert ended["next"] == {"what": "nothing", "at": None}


async def test_bodies_that_no_log_has_are_left_out(live: LiveServer, facts: Facts, fake: FakeTransactions) -> None:
    """Metadata is still there."""
    fake.bodies.clear()
    answer = await live.client.get(f"/v1/transactions/{facts.prepared}?include=messages")
    assert answer.json()["messages"] == [{"topic": "orders.created", "key": "42", "value_bytes": None}]


async def test_timeline_tells_times_and_receipts(live: LiveServer, facts: Facts) -> None:
    """Times as everywhere, receipts as everywhere."""
    events = (await live.client.get(f"/v1/transactions/{facts.committed}/timeline")).json()["events"]
    assert events[0] == {"at": "2026-01-31T12:00:00.123Z", "type": "prepared", "by": "producer", "queue_offset": 1}
    assert events[1]["first"] == "2026-01-31T12:00:00.123Z"
    assert events[2]["receipts"] == [{"topic": "orders", "partition": 0, "offset": 7}]


async def test_operators_acts_carry_who_and_why(live: LiveServer, facts: Facts, fake: FakeTransactions) -> None:
    """Ask now, resume, force."""
    path = f"/v1/transactions/{facts.prepared}"
    fake.views[facts.prepared] = replace(fake.views[facts.prepared], state=TransactionState.PARKED)
    assert (await live.client.post(f"{path}/check")).json() == {"transaction_id": facts.prepared}
    assert (await live.client.post(f"{path}/resume", json={"reason": "back"})).status_code == 200
    forced = await live.client.post(f"{path}/force", json={"resolution": 12, "reason": "gone"})
    assert (forced.status_code, forced.json()["state"]) == (200, "ROLLED_BACK")
    assert [(act, who.reason) for _, act, who in fake.acts] == [
        (Act.CHECK, ""),
        (Act.RESUME, "back"),
        (Resolution.ROLLBACK, "gone"),
    ]
    assert {who.actor for _, _, who in fake.acts} == {"anonymous@127.0.0.1"}


async def test_abandon_needs_reason_and_block(live: LiveServer, facts: Facts, fake: FakeTransactions) -> None:
    """COMMITTED, neither blocked nor published; else refused. Other answers do not show the member."""
    path = f"/v1/transactions/{facts.committed}/abandon"
    assert "abandoned" not in (await live.client.get(f"/v1/transactions/{facts.committed}")).json()
    fake.views[facts.committed] = replace(
        fake.views[facts.committed], blocked=True, reason="UNKNOWN_TOPIC", receipts=()
    )
    for body in ({}, {"reason": ""}, {"reason": " "}, {"reason": "x", "more": 1}):
        refused = await live.client.post(path, json=body)
        assert (refused.status_code, refused.json()["type"].rsplit("/", 1)[1]) == (422, "invalid-request")
    answer = await live.client.post(path, json={"reason": "its topic is gone"})
    seen = {name: answer.json()[name] for name in ("state", "blocked", "abandoned", "reason", "receipts")}
    assert answer.status_code == 200
    assert seen == {
        "state": "COMMITTED", "blocked": False, "abandoned": True, "reason": "UNKNOWN_TOPIC", "receipts": []
    }  # fmt: skip
    again = await live.client.post(path, json={"reason": "twice"})
    assert (again.status_code, again.json()["outcome"]) == (409, "not_applied")
    assert [(act, who.reason) for _, act, who in fake.acts] == [
        (Act.ABANDON, "its topic is gone"),
        (Act.ABANDON, "twice"),
    ]


async def test_batch_decides_each_on_its_own(live: LiveServer) -> None:
    """Results in order, problems with their places in the whole document."""
    body = {"transactions": [ORDER, {**ORDER, "messages": []}, ORDER]}
    answer = await live.client.post("/v1/transactions/batch", json=body)
    first, second, third = answer.json()["results"]
    assert (answer.status_code, first["status"], second["status"], third["status"]) == (200, 201, 422, 201)
    assert second["problem"]["errors"][0]["pointer"] == "/transactions/1/messages"
    assert second["problem"]["instance"] == answer.headers["x-request-id"]


async def test_refusal_of_the_service_in_a_batch_has_its_place(live: LiveServer, fake: FakeTransactions) -> None:
    """As a violation found by the parser has."""
    fake.refusal = Refused(RefusalCode.UNKNOWN_TOPIC, "no such topic", errors=(("/messages/0/topic", "not there"),))
    answer = await live.client.post("/v1/messages/batch", json={"transactions": [ORDER]})
    (result,) = answer.json()["results"]
    assert result["problem"]["errors"] == [{"pointer": "/transactions/0/messages/0/topic", "detail": "not there"}]


async def test_publish_is_prepare_and_commit(live: LiveServer) -> None:
    """200 as a commit has; the batch too."""
    answer = await live.client.post("/v1/messages", json=ORDER)
    assert (answer.status_code, answer.json()["state"], len(answer.json()["receipts"])) == (200, "COMMITTED", 1)
    batch = await live.client.post("/v1/messages/batch", json={"transactions": [ORDER]})
    assert batch.json()["results"][0]["state"] == "COMMITTED"


async def test_resolutions_answer_each(live: LiveServer, facts: Facts, fake: FakeTransactions) -> None:
    """UNKNOWN changes nothing; a nonce makes it the answer to a check; async ends are 202."""
    items = [
        {"transaction_id": facts.prepared, "resolution": "UNKNOWN", "nonce": "2-abcdefghijklmnop"},
        {"transaction_id": UNKNOWN_ID, "resolution": 8},
        {"transaction_id": facts.prepared, "resolution": 8},
    ]
    answer = await live.client.post("/v1/resolutions", json={"resolutions": items})
    assert [(r["status"], r.get("state")) for r in answer.json()["results"]] == [
        (200, "PREPARED"),
        (404, None),
        (200, "COMMITTED"),
    ]
    assert (fake.ended[-3].source, fake.ended[-3].check_number) == (Source.CHECK, 2)
    accepted = await live.client.post(
        "/v1/resolutions", json={"resolutions": items[2:]}, headers={"Prefer": "respond-async"}
    )
    assert accepted.json()["results"] == [{"status": 202, "transaction_id": facts.prepared, "resolution": "COMMIT"}]


def test_times_of_the_fake_are_those_of_the_tests() -> None:
    """The expected texts above are written by hand."""
    assert BORN_MS == 1_769_860_800_123


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/transactions", ORDER),
        ("/v1/transactions/batch", {"transactions": [ORDER]}),
        ("/v1/messages", ORDER),
        ("/v1/messages/batch", {"transactions": [ORDER]}),
        ("/v1/resolutions", {"resolutions": [{"transaction_id": UNKNOWN_ID, "resolution": 8}]}),
        ("/v1/transactions/{}/commit", {}),
        ("/v1/transactions/{}/rollback", {}),
        (f"/v1/transactions/{UNKNOWN_ID}/commit", {}),
        ("/v1/transactions/-/commit", {}),
        ("/v1/transactions//commit", {}),
        ("/v1/transactions", {"nonsense": 1}),
    ],
)
async def test_calls_that_bypass_the_router_answer_as_it_does(
    path: str, body: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status, headers and members are the same, and the route is named the same to metrics."""
    heard = []
    for is_hot in (True, False):
        if not is_hot:
            monkeypatch.setattr(Road, "find_hot", lambda self, target, headers: None)
        fake = FakeTransactions()
        facts = await make_facts(fake)
        async with serve(make_services(fake)) as server:
            answer = await server.client.post(path.format(facts.prepared), json=body)
            counted = (await server.client.get("/metrics")).text
        routes = sorted(set(re.findall(r'http_request_seconds_count\{[^}]*route="([^"]*)"', counted)))
        members = re.sub(r'"(transaction_id|instance)":"[^"]*"', "", answer.text)
        names = sorted(set(answer.headers) - {"date"})
        heard.append((answer.status_code, names, members, routes))
    assert heard[0] == heard[1]


TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}


@pytest.mark.parametrize("route", ["/v1/transactions", "/v1/messages", "/v1/transactions/batch", "/v1/messages/batch"])
async def test_trace_of_a_request_is_kept_with_all_that_fit(
    route: str, live: LiveServer, fake: FakeTransactions
) -> None:
    """What is too large only with it goes without."""
    room = 1024 * 1024 - len("orders.created") - 60
    bodies = [ORDER, {**ORDER, "messages": [{"topic": "orders.created", "value": "v" * room}]}]
    for body in [{"transactions": bodies}] if route.endswith("batch") else bodies:
        answer = await live.client.post(route, json=body, headers=TRACE)
        assert answer.status_code in {200, 201}
        assert {result["status"] for result in answer.json().get("results", ())} <= {200, 201}
    kept = [list(messages[0].headers) for messages in fake.bodies.values()]
    assert kept == [[(name, text.encode()) for name, text in TRACE.items()], []]

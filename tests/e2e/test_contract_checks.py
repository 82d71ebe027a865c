"""Section 3 of the contract: back-checks by a real settler against real endpoints (K, F, P, L)."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import jsonschema_rs
import pytest
from standardwebhooks.webhooks import Webhook

from tests.support.bridge_process import CheckEndpoint, Record, check_endpoint, read_committed, wait_until
from tests.support.problems import check_problem
from tests.support.running_service import Json, RunningService

SOON = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "max_checks": 2}
CHECK_MEMBERS = ["transaction_id", "check_number", "nonce", "born_time", "idempotency_key", "messages"]
SEVERAL = [
    {"topic": "orders", "key": "k", "value": {"n": 12345678901234567890}, "headers": [["a", "1"]]},
    {"topic": "credits", "key_base64": "/w==", "value_base64": "AP8=", "headers": []},
]
WHOLE = [{"topic": "orders", "key": "k", "value": "v", "headers": [["h", "1"], ["h", None]]}]


@dataclass(frozen=True, slots=True)
class Plan:
    """A group: what its endpoints answer and with which status, its settings beside SOON, what is prepared in it."""

    endpoints: Sequence[tuple[str, int]]
    check: Json = field(default_factory=dict)
    prepares: Sequence[Json] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """A group as it was planned. `ids`: what was prepared in it and left alone."""

    group: str
    secret: str
    endpoints: list[CheckEndpoint]
    ids: list[str]

    @property
    def endpoint(self) -> CheckEndpoint:
        """The last one."""
        return self.endpoints[-1]


COMMIT, ROLLBACK, UNKNOWN = ("COMMIT", 200), ("ROLLBACK", 200), ("UNKNOWN", 200)
MANY_CHECKS = {"max_checks": 50}
PLANS = {
    "commit": Plan([COMMIT], prepares=[{}]),
    "rollback": Plan([ROLLBACK], prepares=[{}]),
    "call": Plan([ROLLBACK], prepares=[{"messages": SEVERAL, "idempotency_key": "the key"}]),
    "rotated": Plan([ROLLBACK]),
    "parked": Plan([UNKNOWN], prepares=[{"messages": WHOLE}]),
    "late": Plan([UNKNOWN], {"max_checks": 1}, [{}, {}]),
    "resumed": Plan([UNKNOWN], {"max_checks": 1}, [{}]),
    "nobody": Plan([], prepares=[{}]),
    "two": Plan([("COMMIT", 500), UNKNOWN], MANY_CHECKS, [{}]),
    "failing": Plan([("COMMIT", 500)], prepares=[{}]),
    "by-hand": Plan([UNKNOWN], MANY_CHECKS, [{}]),
    "sane": Plan([UNKNOWN], MANY_CHECKS, [{}, {}, {"check_immunity_seconds": 3_600}]),
    "own": Plan([UNKNOWN], MANY_CHECKS, [{"max_checks": 1}, {"max_lifetime_seconds": 2}]),
    "many": Plan([COMMIT], {"batch_size": 50}),
    "now": Plan([UNKNOWN], {"interval_seconds": 3_600, **MANY_CHECKS}, [{}, {"check_immunity_seconds": 60}]),
}


@pytest.fixture(scope="module")
def stage(service: RunningService) -> Iterator[dict[str, Asked]]:
    """All plans at once, so that what the tests wait for happens at the same time; nothing is left open behind."""
    with ExitStack() as stack:
        asked = {name: put(service, name, plan, stack) for name, plan in PLANS.items()}
        service.wait_groups_known()
        for name, plan in PLANS.items():
            asked[name].ids.extend(prepare(service, asked[name].group, **members) for members in plan.prepares)
        yield asked
    left = [i for each in asked.values() for i in each.ids if service.get(i)["state"] in {"PREPARED", "PARKED"}]
    for transaction_id in left:
        service.end(transaction_id, "rollback")


def put(service: RunningService, name: str, plan: Plan, stack: ExitStack) -> Asked:
    """The group of a plan with its endpoints."""
    endpoints = [stack.enter_context(check_endpoint(answer)) for answer, _ in plan.endpoints]
    for endpoint, (_, status) in zip(endpoints, plan.endpoints, strict=True):
        endpoint.status = status
    group = service.new_group(name)
    secret = service.put_group(group, [endpoint.url for endpoint in endpoints], **{**SOON, **plan.check})
    assert secret is not None
    return Asked(group, secret, endpoints, [])


def prepare(service: RunningService, group: str, messages: Sequence[Json] = (), **members: Any) -> str:
    """A transaction; topics go by their purpose."""
    return service.prepare(group, *in_topics(service, messages), **members)


def in_topics(service: RunningService, messages: Sequence[Json]) -> list[Json]:
    """The messages with the topics' real names."""
    return [{**message, "topic": getattr(service.topics, message["topic"])} for message in messages]


def checks_of(endpoint: CheckEndpoint, transaction_id: str) -> list[Json]:
    """What the endpoint was asked about the transaction, in order."""
    return [c for call in endpoint.calls for c in call["checks"] if c["transaction_id"] == transaction_id]


def numbers_of(endpoint: CheckEndpoint, transaction_id: str) -> list[int]:
    """The numbers of those checks."""
    return [check["check_number"] for check in checks_of(endpoint, transaction_id)]


def events_of(service: RunningService, transaction_id: str, kind: str) -> list[Json]:
    """Those of one type in a timeline."""
    return [event for event in service.events(transaction_id) if event["type"] == kind]


def properties_of(record: Record) -> dict[str, str]:
    """RocketMQ's property map of an internal record, its last header."""
    name, raw = record.headers[-1]
    assert name == "properties"
    return dict(pair.split("\x01") for pair in (raw or b"").decode().split("\x02")[:-1])


@pytest.mark.parametrize(("plan", "state"), [("commit", "COMMITTED"), ("rollback", "ROLLED_BACK")])
def test_forgotten_transaction_is_resolved_by_its_check(
    service: RunningService, stage: dict[str, Asked], plan: str, state: str
) -> None:
    """The producer never ends it, an endpoint of its group does; the timeline tells how, and nobody asks again."""
    asked = stage[plan]
    (transaction_id,) = asked.ids
    found = service.wait_state(transaction_id, state)
    assert (found["resolved_by"], found["next_check_at"]) == ("check", None)
    assert len(service.read([transaction_id], service.topics.orders)) == (1 if plan == "commit" else 0)
    contrary = "rollback" if plan == "commit" else "commit"
    check_problem(service.api.post(f"/v1/transactions/{transaction_id}/{contrary}"), 409, "already-resolved")
    (event,) = events_of(service, transaction_id, "check_answered")
    told = {"number": 1, "endpoint": asked.endpoint.url, "status": 200, "answer": plan.upper()}
    assert event.items() >= told.items()
    assert event["latency_ms"] >= 0
    health = service.api.get(f"/v1/producer-groups/{asked.group}").json()["endpoints"]
    assert [(endpoint["url"], endpoint["answered"]) for endpoint in health] == [(asked.endpoint.url, 1)]
    assert numbers_of(asked.endpoint, transaction_id) == [1]


def test_call_is_exactly_as_documented_and_signed(service: RunningService, stage: dict[str, Asked]) -> None:
    """Members, headers and signature; bodies are shown as answers show them, without loss."""
    asked = stage["call"]
    (transaction_id,) = asked.ids
    found = service.wait_state(transaction_id, "ROLLED_BACK")
    (received,) = [r for r in asked.endpoint.received if transaction_id.encode() in r.body]
    call = json.loads(received.body)
    assert list(call) == ["type", "producer_group", "checks"]
    assert (call["type"], call["producer_group"]) == ("transaction.check", asked.group)
    (check,) = call["checks"]
    assert list(check) == CHECK_MEMBERS
    assert check["messages"] == in_topics(service, SEVERAL)
    assert (check["check_number"], check["idempotency_key"]) == (1, "the key")
    assert check["born_time"] >= found["born_time"]  # when Kafka stored it, and when the bridge was asked to
    assert received.headers["content-type"].startswith("application/json")
    Webhook(asked.secret).verify(received.body, dict(received.headers))
    callback = service.document["webhooks"]["transaction.check"]["post"]["requestBody"]
    schema = callback["content"]["application/json"]["schema"]
    jsonschema_rs.validator_for({**schema, "components": service.document["components"]}).validate(call)


def test_rotated_secret_signs_beside_the_old_one(service: RunningService, stage: dict[str, Asked]) -> None:
    """For 24 h both verify, so that endpoints can change over."""
    asked = stage["rotated"]
    new = service.api.post(f"/v1/producer-groups/{asked.group}/rotate-secret").json()["secret"]
    assert new != asked.secret
    service.prepare_many([{"producer_group": asked.group, "messages": [service.message()]}] * 3)

    def signed_by_both() -> Any:
        return [r for r in asked.endpoint.received if len(r.headers["webhook-signature"].split()) == 2]

    received = wait_until(signed_by_both, name="a call with two signatures")[0]
    for secret in (asked.secret, new):
        Webhook(secret).verify(received.body, dict(received.headers))


def test_two_unknowns_park_with_the_body(service: RunningService, stage: dict[str, Asked]) -> None:
    """At most `max_checks` answers are asked for; then it is parked, whole, and still not visible (K, S, P)."""
    asked = stage["parked"]
    (transaction_id,) = asked.ids
    found = service.wait_state(transaction_id, "PARKED")
    assert (found["reason"], found["check_times"], found["resolved_by"]) == ("MAX_CHECKS", 2, None)
    assert numbers_of(asked.endpoint, transaction_id) == [1, 2]
    assert len({check["nonce"] for check in checks_of(asked.endpoint, transaction_id)}) == 2
    records = read_committed(service.bridge.kafka, [service.bridge.parked_topic])
    (record,) = [r for r in records if properties_of(r)["UNIQ_KEY"] == transaction_id]
    assert (record.key, record.value, record.headers[:-1]) == (b"k", b"v", (("h", b"1"), ("h", None)))
    properties = properties_of(record)
    assert (properties["KIND"], properties["TRANSACTION_CHECK_TIMES"], properties["WHY"]) == ("D", "2", "MAX_CHECKS")
    assert service.read([transaction_id]) == []
    assert service.get(transaction_id, params={"include": "messages"})["messages"] == in_topics(service, WHOLE)


def test_parked_transactions_are_listed_and_hold_their_group(service: RunningService, stage: dict[str, Asked]) -> None:
    """In `/v1/parked`, in the counts and in the timeline; their group cannot be deleted (S)."""
    asked = stage["parked"]
    (transaction_id,) = asked.ids
    service.wait_state(transaction_id, "PARKED")
    listed = service.api.get("/v1/parked", params={"producer_group": asked.group}).json()["transactions"]
    parked_at = service.events(transaction_id)[-1]["at"]
    parked = {"transaction_id": transaction_id, "state": "PARKED", "parked_at": parked_at}
    assert [{name: row[name] for name in parked} for row in listed] == [parked]
    counts = service.counts(asked.group)
    assert (counts["prepared"], counts["parked"], counts["pending"]) == (1, 1, 0)
    kinds = [event["type"] for event in service.events(transaction_id)]
    assert kinds == ["prepared", "check_answered", "check_answered", "parked"]
    check_problem(service.api.http.delete(f"/v1/producer-groups/{asked.group}"), 409, "producer-group-in-use")


def test_late_end_of_a_parked_transaction_counts(service: RunningService, stage: dict[str, Asked]) -> None:
    """The producer came back: a commit publishes it, a rollback drops it."""
    committed, dropped = stage["late"].ids
    for transaction_id in (committed, dropped):
        service.wait_state(transaction_id, "PARKED")
    assert service.end(committed, "commit")["receipts"]
    assert service.end(dropped, "rollback")["state"] == "ROLLED_BACK"
    assert [record.transaction_id for record in service.read([committed, dropped])] == [committed]
    counts = service.counts(stage["late"].group)
    assert (counts["parked"], counts["committed"], counts["rolled_back"]) == (0, 1, 1)


def test_resumed_transaction_has_a_new_life(service: RunningService, stage: dict[str, Asked]) -> None:
    """First check at once, numbers go on, the allowance begins anew; audited with its reason."""
    asked = stage["resumed"]
    (transaction_id,) = asked.ids
    path = f"/v1/transactions/{transaction_id}/resume"
    service.wait_state(transaction_id, "PARKED")
    answer = service.other.post(path, {"reason": "endpoint repaired"})
    assert (answer.status_code, answer.json()["state"]) == (200, "PREPARED")
    wait_until(lambda: numbers_of(asked.endpoint, transaction_id) == [1, 2], name="a second check")
    assert service.wait_state(transaction_id, "PARKED")["check_times"] == 2
    asked.endpoint.default = "COMMIT"
    assert service.other.post(path, {"reason": "repaired again"}).status_code == 200
    service.wait_state(transaction_id, "COMMITTED")
    assert numbers_of(asked.endpoint, transaction_id) == [1, 2, 3]
    assert len(service.read([transaction_id])) == 1
    assert [event["reason"] for event in events_of(service, transaction_id, "resumed")] == [
        "endpoint repaired",
        "repaired again",
    ]
    entries = service.api.get("/v1/audit", params={"limit": 500}).json()["entries"]
    kept = [e for e in entries if e["target"] == transaction_id and e["action"] == "transaction.resume"]
    assert [entry["reason"] for entry in kept] == ["repaired again", "endpoint repaired"]


def test_nobody_to_ask_uses_nothing_up(service: RunningService, stage: dict[str, Asked]) -> None:
    """Rounds without an endpoint are told, not counted; when one comes it is check number 1."""
    asked = stage["nobody"]
    (transaction_id,) = asked.ids
    path = f"/v1/producer-groups/{asked.group}"
    wait_until(lambda: service.api.get(path).json()["unasked"]["count"] >= 3, name="three rounds")
    found = service.get(transaction_id)
    assert (found["state"], found["check_times"]) == ("PREPARED", 0)
    (event,) = events_of(service, transaction_id, "check_unanswered")
    assert (event["failure"], event["count"] >= 3) == ("no-endpoint", True)
    assert event["first"] <= event["last"]
    assert "its producer group has no live endpoint" in found["explanation"]
    assert found["next"]["what"] == "check"
    wanted = f'outbox_bridge_group_pending{{producer_group="{asked.group}"}} 1.0'
    wait_until(lambda: wanted in service.engine.get("/metrics").text, name="the projector's process shows it")
    unanswered = f'group_checks_unanswered_total{{producer_group="{asked.group}",word="no-endpoint"}}'
    wait_until(lambda: unanswered in service.engine.get("/metrics").text, name="the settler's process shows why")
    assert "outbox_bridge_group_" not in service.api.get("/metrics").text
    with check_endpoint("COMMIT") as endpoint:
        service.put_group(asked.group, [endpoint.url], **SOON)
        service.wait_state(transaction_id, "COMMITTED")
        assert numbers_of(endpoint, transaction_id) == [1]


def test_broken_endpoint_is_followed_by_the_next_in_the_same_round(
    service: RunningService, stage: dict[str, Asked]
) -> None:
    """Its failure uses nothing up, and the second call has the same webhook-id, number and nonce."""
    asked = stage["two"]
    broken, good = asked.endpoints
    (transaction_id,) = asked.ids
    wait_until(lambda: broken.asked(transaction_id) and good.asked(transaction_id) >= 2, name="both asked")
    service.end(transaction_id, "rollback")
    numbers = numbers_of(good, transaction_id)
    assert numbers == list(range(1, len(numbers) + 1))
    first = broken.received[0]
    (second,) = [r for r in good.received if r.headers["webhook-id"] == first.headers["webhook-id"]]
    assert json.loads(second.body) == json.loads(first.body)
    for received in (first, second):
        Webhook(asked.secret).verify(received.body, dict(received.headers))
    assert events_of(service, transaction_id, "check_unanswered") == [], "every round was answered"


def test_endpoint_that_never_answers_uses_nothing_up(service: RunningService, stage: dict[str, Asked]) -> None:
    """Status 500 with a COMMIT in it is no answer, however often; the failure is told."""
    asked = stage["failing"]
    (transaction_id,) = asked.ids
    wait_until(lambda: asked.endpoint.asked(transaction_id) >= 3, name="three calls")
    assert set(numbers_of(asked.endpoint, transaction_id)) == {1}
    found = service.get(transaction_id)
    assert (found["state"], found["check_times"]) == ("PREPARED", 0)
    (event,) = wait_until(lambda: events_of(service, transaction_id, "check_unanswered"), name="the failure")
    assert event["endpoint"] == asked.endpoint.url
    health = service.api.get(f"/v1/producer-groups/{asked.group}").json()["endpoints"][0]
    assert (health["answered"], health["unanswered"] >= 1) == (0, True)
    asked.endpoint.status = 200
    service.wait_state(transaction_id, "COMMITTED")


def test_answer_may_come_through_resolutions(service: RunningService, stage: dict[str, Asked]) -> None:
    """With the nonce of its check it is that check's answer; a number that was counted is not counted again."""
    asked = stage["by-hand"]
    (transaction_id,) = asked.ids
    wait_until(lambda: service.get(transaction_id)["check_times"] >= 1, name="a counted check")
    nonce = checks_of(asked.endpoint, transaction_id)[0]["nonce"]
    entry = {"transaction_id": transaction_id, "nonce": nonce, "resolution": "UNKNOWN"}
    answers = service.api.post("/v1/resolutions", {"resolutions": [entry] * 30}).json()["results"]
    assert [(answer["status"], answer["state"]) for answer in answers] == [(200, "PREPARED")] * 30
    assert service.get(transaction_id)["check_times"] <= asked.endpoint.asked(transaction_id)
    entry["resolution"] = "COMMIT"
    (ended,) = service.api.post("/v1/resolutions", {"resolutions": [entry]}).json()["results"]
    assert (ended["status"], ended["state"], ended["resolved_by"]) == (200, "COMMITTED", "check")


def test_no_check_before_its_time_and_none_after_the_end(service: RunningService, stage: dict[str, Asked]) -> None:
    """Immunity holds while others of the group are asked; what has ended is not asked about (K)."""
    asked = stage["sane"]
    ended, pending, immune = asked.ids
    wait_until(lambda: asked.endpoint.asked(ended), name="a check")
    service.end(ended, "rollback")
    before, seen = asked.endpoint.asked(ended), asked.endpoint.asked(pending)
    wait_until(lambda: asked.endpoint.asked(pending) >= seen + 2, name="two more checks")
    assert asked.endpoint.asked(ended) - before <= 1, "at most the one that was on its way"
    assert asked.endpoint.asked(immune) == 0
    for transaction_id in (pending, immune):
        service.end(transaction_id, "rollback")


def test_message_may_have_its_own_bounds(service: RunningService, stage: dict[str, Asked]) -> None:
    """`max_checks` and `max_lifetime_seconds` of a prepare go before those of its group."""
    once, short = stage["own"].ids
    found = service.wait_state(once, "PARKED")
    assert (found["reason"], found["check_times"]) == ("MAX_CHECKS", 1)
    assert service.wait_state(short, "PARKED")["reason"] == "MAX_LIFE"


def test_many_are_asked_about_in_one_call(service: RunningService, stage: dict[str, Asked]) -> None:
    """Batches of `batch_size`, each transaction once; all are resolved."""
    asked = stage["many"]
    ids = service.prepare_many([{"producer_group": asked.group, "messages": [service.message()]}] * 200)
    wait_until(lambda: service.counts(asked.group)["committed"] == 200, name="200 commits")
    sizes = [len(call["checks"]) for call in asked.endpoint.calls]
    assert (max(sizes) <= 50, sum(sizes)) == (True, 200)
    assert sorted(str(r.transaction_id) for r in service.read(ids, service.topics.orders)) == sorted(ids)


def test_operator_asks_now(service: RunningService, stage: dict[str, Asked]) -> None:
    """202, and it is asked at once; before its first due time 409, after its end 409."""
    asked = stage["now"]
    transaction_id, early = asked.ids
    path = f"/v1/transactions/{transaction_id}/check"
    problem = check_problem(service.api.post(f"/v1/transactions/{early}/check"), 409, "too-early")
    assert (problem["state"], problem["retry_after"] > 0) == ("PREPARED", True)
    service.end(early, "rollback")
    wait_until(lambda: service.get(transaction_id)["check_times"] == 1, name="the first check")
    asked.endpoint.default = "COMMIT"
    answer = service.other.post(path)
    assert (answer.status_code, answer.json()) == (202, {"transaction_id": transaction_id})
    service.wait_state(transaction_id, "COMMITTED")
    assert numbers_of(asked.endpoint, transaction_id) == [1, 2]
    check_problem(service.api.post(path), 409, "already-resolved")

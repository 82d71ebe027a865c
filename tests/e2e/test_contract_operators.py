"""Section 4 of the contract, acting: force, resume, redrive of parked ones, blocked commits, and their audit."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.bridge_process import check_endpoint, create_topics, wait_until
from tests.support.problems import check_problem
from tests.support.running_service import Json, RunningService

SOON = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "max_checks": 1}


def audit_of(service: RunningService, target: str) -> list[Json]:
    """What was done to it, oldest first, read page by page."""
    entries: list[Json] = []
    path: str | None = "/v1/audit?limit=50"
    while path:
        answer = service.other.get(path)
        entries += answer.json()["entries"]
        path = answer.links["next"]["url"] if answer.json()["next"] else None
    assert [entry["at"] for entry in entries] == sorted((entry["at"] for entry in entries), reverse=True)
    return [entry for entry in reversed(entries) if entry["target"] == target]


# --- force ---


@pytest.mark.parametrize(("word", "state"), [("COMMIT", "COMMITTED"), (12, "ROLLED_BACK")])
def test_force_ends_in_the_operators_name(service: RunningService, word: Any, state: str) -> None:
    """With a reason, audited before and after; the first resolution still wins (F)."""
    transaction_id = service.prepare(service.new_group("force"))
    path = f"/v1/transactions/{transaction_id}/force"
    answer = service.api.post(path, {"resolution": word, "reason": "confirmed by phone"})
    assert (answer.status_code, answer.json()["state"], answer.json()["resolved_by"]) == (200, state, "operator")
    contrary = "ROLLBACK" if word == "COMMIT" else "COMMIT"
    problem = check_problem(service.other.post(path, {"resolution": contrary, "reason": "no"}), 409, "already-resolved")
    assert problem["state"] == state
    assert len(service.read([transaction_id], service.topics.orders)) == (1 if state == "COMMITTED" else 0)
    entries = audit_of(service, transaction_id)
    actions = ["transaction.force", "transaction.force.answered"]
    assert [(entry["action"], entry["reason"]) for entry in entries] == [
        *[(action, "confirmed by phone") for action in actions],
        *[(action, "no") for action in actions],
    ]
    assert entries[1]["before"]["state"] == "PREPARED"
    assert entries[1]["after"]["state"] == state
    assert entries[3]["after"]["refused"] == "already-resolved"
    forced = [event for event in service.events(transaction_id) if event["type"] == "forced"]
    assert [(event["reason"], event["by"]) for event in forced] == [
        ("confirmed by phone", "operator"),
        ("no", "operator"),
    ]


def test_force_after_the_producers_end_changes_nothing(service: RunningService) -> None:
    """Repeating what is recorded is 200 and names who really did it; contradicting it is 409."""
    transaction_id = service.prepare(service.new_group("force"))
    service.end(transaction_id, "rollback")
    path = f"/v1/transactions/{transaction_id}/force"
    same = service.api.post(path, {"resolution": "ROLLBACK", "reason": "r"})
    assert (same.status_code, same.json()["resolved_by"]) == (200, "producer")
    check_problem(service.api.post(path, {"resolution": "COMMIT", "reason": "r"}), 409, "already-resolved")
    check_problem(service.api.post(f"/v1/transactions/{transaction_id}/resume", {"reason": "r"}), 409, "not-parked")


# --- parked ones, many at once ---


@contextmanager
def parked_group(service: RunningService, count: int) -> Iterator[tuple[str, list[str]]]:
    """A group with so many parked transactions; the key of every second one is `even`."""
    group = service.new_group("redrive")
    with check_endpoint("UNKNOWN") as endpoint:
        service.put_known_group(group, [endpoint.url], **SOON)
        ids = service.prepare_many(
            [
                {"producer_group": group, "messages": [service.message(key=("even", "odd")[n % 2], value=str(n))]}
                for n in range(count)
            ]
        )
        wait_until(lambda: service.counts(group)["parked"] == count, name=f"{count} parked")
        yield group, ids


def redrive(service: RunningService, **body: Any) -> Any:
    """The answer to this redrive."""
    return service.api.post("/v1/parked/redrive", body)


def wait_done(service: RunningService, job_id: str) -> Json:
    """The job when it has ended."""
    path = f"/v1/parked/redrive/{job_id}"
    wait_until(lambda: service.other.get(path).json()["state"] != "running", name=f"end of job {job_id}")
    job: Json = service.other.get(path).json()
    return job


def test_redrive_of_parked_transactions(service: RunningService) -> None:
    """Preview, then commit those with one key, roll back the rest; progress is told and every step audited."""
    with parked_group(service, 40) as (group, ids):
        chosen = {"producer_group": group, "key": "even"}
        preview = redrive(service, action="commit", filter=chosen, preview=True)
        assert (preview.status_code, preview.json()["count"], preview.json()["more"]) == (200, 20, False)
        assert {t["transaction_id"] for t in preview.json()["sample"]} <= set(ids[::2])
        assert service.counts(group)["parked"] == 40, "a preview changes nothing"
        begun = redrive(service, action="commit", filter=chosen, reason="shop is back", rate_per_second=1_000)
        job = begun.json()
        assert (begun.status_code, job["action"], job["reason"]) == (202, "commit", "shop is back")
        assert begun.headers["location"] == f"/v1/parked/redrive/{job['job_id']}"
        done = wait_done(service, job["job_id"])
        assert (done["state"], done["counts"]) == ("done", {"done": 20})
        service.catch_up()
        rest = redrive(service, action="rollback", filter={"producer_group": group}, reason="gone").json()
        assert wait_done(service, rest["job_id"])["counts"] == {"done": 20}
        counts = service.counts(group)
        assert (counts["committed"], counts["rolled_back"], counts["parked"]) == (20, 20, 0)
        visible = [record.transaction_id for record in service.read(ids, service.topics.orders)]
        assert sorted(map(str, visible)) == sorted(ids[::2])
        assert [entry["action"] for entry in audit_of(service, job["job_id"])] == ["redrive.start", "redrive.end"]
        assert service.get(ids[0])["resolved_by"] == "operator"
        listed = [each["job_id"] for each in service.api.get("/v1/parked/redrive?limit=2").json()["jobs"]]
        assert listed == [rest["job_id"], job["job_id"]]


def test_redrive_can_be_stopped_and_taken_up_again(service: RunningService) -> None:
    """A slow job stops after its step; what it did stays done; a new one resumes the others, which are asked anew."""
    with parked_group(service, 12) as (group, ids):
        wanted = {"producer_group": group}
        job = redrive(service, action="rollback", filter=wanted, reason="slowly", rate_per_second=1).json()
        path = f"/v1/parked/redrive/{job['job_id']}"
        wait_until(lambda: service.api.get(path).json()["counts"].get("done", 0) >= 2, name="progress")
        stopped = service.other.post(f"{path}/stop", {"reason": "wrong ones"})
        assert (stopped.status_code, stopped.json()["state"]) == (200, "stopped")
        again = service.other.post(f"{path}/stop", {"reason": "wrong ones"})
        assert (again.status_code, again.json()["state"]) == (200, "stopped")
        kept = [entry["action"] for entry in audit_of(service, job["job_id"])]
        assert kept == ["redrive.start", "redrive.stop"]
        resumed = redrive(service, action="resume", filter=wanted, reason="ask again", rate_per_second=1_000).json()
        assert wait_done(service, resumed["job_id"])["state"] == "done"
        wait_until(lambda: service.counts(group)["parked"] + service.counts(group)["rolled_back"] == 12, name="all")
        left = [i for i in ids if service.get(i)["state"] == "PARKED"]
        assert 2 <= 12 - len(left) <= 11
        assert {service.get(i)["check_times"] for i in left} == {2}
        service.api.post("/v1/parked/redrive", {"action": "rollback", "filter": wanted, "reason": "clean"})
        wait_until(lambda: service.counts(group)["parked"] == 0, name="nothing parked")


@pytest.mark.parametrize(
    "body",
    [
        {"action": "delete", "filter": {}, "reason": "r"},
        {"action": "commit", "reason": "r"},
        {"action": "commit", "filter": {}},
        {"action": "commit", "filter": {}, "reason": " "},
        {"action": "commit", "filter": {"colour": "red"}, "reason": "r"},
        {"action": "commit", "filter": {"state": "PARKED"}, "reason": "r"},
        {"action": "commit", "filter": {"born_after": "soon"}, "reason": "r"},
        {"action": "commit", "filter": {}, "reason": "r", "rate_per_second": 0},
    ],
    ids=str,
)
def test_redrive_that_cannot_be_meant_is_refused(service: RunningService, body: Json) -> None:
    """A typing error must not act on everything."""
    before = service.api.get("/v1/parked/redrive").json()
    check_problem(redrive(service, **body), 422, "invalid-request")
    assert service.api.get("/v1/parked/redrive").json() == before


def test_unknown_job_is_not_found(service: RunningService) -> None:
    """Reading and stopping alike."""
    for path in ("/v1/parked/redrive/nothing", "/v1/parked/redrive/%00"):
        check_problem(service.api.get(path), 404, "not-found")
    check_problem(service.api.post("/v1/parked/redrive/nothing/stop", {"reason": "r"}), 404, "not-found")


# --- blocked commits ---


def test_commit_that_cannot_be_published_is_blocked_and_never_dropped(service: RunningService) -> None:
    """Its topic is gone: 202, COMMITTED, blocked, no receipts; others go on; when it is back it is published."""
    group = service.new_group("blocked")
    topic = f"{service.topics.orders}.{group}"
    create_topics(service.bridge.kafka, {topic: 1})
    both = service.prepare(group, {"topic": topic, "value": "1"}, service.message(value="2"))
    admin = AdminClient({"bootstrap.servers": service.bridge.kafka})
    admin.delete_topics([topic])[topic].result(30)
    answer = service.api.post(f"/v1/transactions/{both}/commit")
    blocked = answer.json()
    assert (answer.status_code, blocked["state"], blocked["blocked"], blocked["receipts"]) == (
        202,
        "COMMITTED",
        True,
        [],
    )
    assert blocked["reason"]
    other = service.prepare(group, service.message(key="unhurt"))
    assert service.end(other, "commit")["receipts"]
    assert service.read([both], service.topics.orders) == [], "together or not at all"
    check_problem(service.api.post(f"/v1/transactions/{both}/rollback"), 409, "already-resolved")
    counts = service.counts(group)
    assert (counts["committed"], counts["blocked"]) == (2, 1)
    listed = service.api.get("/v1/transactions", params={"producer_group": group, "blocked": "true"}).json()
    assert [transaction["transaction_id"] for transaction in listed["transactions"]] == [both]
    check_problem(service.api.http.delete(f"/v1/producer-groups/{group}"), 409, "producer-group-in-use")
    assert "blocked" in [event["type"] for event in service.events(both)]
    create_topics(service.bridge.kafka, {topic: 1})
    wait_until(lambda: not service.get(both)["blocked"], name="publication")
    assert len(service.end(both, "commit")["receipts"]) == 2
    assert [record.value for record in service.read([both], service.topics.orders, topic)] == [b"2", b"1"]


def give_up(service: RunningService, transaction_id: str, body: Json) -> Any:
    """The answer to this act."""
    return service.other.post(f"/v1/transactions/{transaction_id}/abandon", body)


def test_blocked_commit_is_given_up_for_good(service: RunningService) -> None:
    """Its topic is gone: the act says why, the next of its ordering key goes on, and a topic that comes back gets
    nothing."""
    group = service.new_group("abandoned")
    topic = f"{service.topics.orders}.{group}"
    create_topics(service.bridge.kafka, {topic: 1})
    lost = service.prepare(group, {"topic": topic, "value": "1"}, service.message(value="2"), ordering_key="o")
    behind = service.prepare(group, service.message(value="3"), ordering_key="o")
    later = service.prepare(group, {"topic": topic, "value": "4"})
    problem = check_problem(give_up(service, lost, {"reason": "too early"}), 409, "not-blocked")
    assert (problem["state"], problem["outcome"]) == ("PREPARED", "not_applied")
    admin = AdminClient({"bootstrap.servers": service.bridge.kafka})
    admin.delete_topics([topic])[topic].result(30)
    for transaction_id in (lost, behind):
        assert service.api.post(f"/v1/transactions/{transaction_id}/commit").status_code == 202
    assert service.get(behind)["reason"] == "ORDER"
    reason = service.get(lost)["reason"]

    answer = give_up(service, lost, {"reason": "its topic is gone for good"})
    given_up = {"state": "COMMITTED", "blocked": False, "abandoned": True, "reason": reason, "receipts": []}
    assert answer.status_code == 200
    for shown in (answer.json(), service.end(lost, "commit"), service.get(lost)):
        assert given_up.items() <= shown.items()
    problem = check_problem(give_up(service, lost, {"reason": "again"}), 409, "not-blocked")
    assert "abandoned already" in problem["detail"]
    check_problem(service.api.post(f"/v1/transactions/{lost}/rollback"), 409, "already-resolved")
    wait_until(lambda: not service.get(behind)["blocked"], name="publication of the next one")

    counts = service.counts(group)
    assert (counts["committed"], counts["blocked"], counts["abandoned"], counts["pending"]) == (2, 0, 1, 1)
    for flag, found in (("true", [lost]), ("false", [behind])):
        filters = {"producer_group": group, "state": "COMMITTED", "abandoned": flag}
        page = service.api.get("/v1/transactions", params=filters).json()
        assert [each["transaction_id"] for each in page["transactions"]] == found
    first, second = audit_of(service, lost)
    assert [entry["action"] for entry in (first, second)] == ["transaction.abandon", "transaction.abandon.answered"]
    assert (first["reason"], first["before"]["blocked"], second["after"]["abandoned"]) == (
        "its topic is gone for good", True, True,
    )  # fmt: skip
    (event,) = [event for event in service.events(lost) if event["type"] == "abandoned"]
    assert (event["by"], event["reason"], event["effective"]) == ("operator", "its topic is gone for good", True)

    create_topics(service.bridge.kafka, {topic: 1})
    service.api.post(f"/v1/transactions/{later}/commit")
    wait_until(lambda: service.get(later)["receipts"], name="publication in the topic that is back")
    seen = service.read([lost, behind, later], service.topics.orders, topic)
    assert [record.value for record in seen] == [b"3", b"4"]
    assert service.api.http.delete(f"/v1/producer-groups/{group}").status_code == 200

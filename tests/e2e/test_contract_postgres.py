"""The main ways through the contract on PostgreSQL, all roles in one process."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.bridge_process import Bridge, check_endpoint, wait_until
from tests.support.documented import Documented
from tests.support.problems import check_problem
from tests.support.running_service import Json, RunningService, Topics, internal_errors

if TYPE_CHECKING:
    from tests.support.postgres import PostgresServer

SOON = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "max_checks": 1}


@pytest.fixture(scope="module")
def service(
    kafka: str, postgres: "PostgresServer", tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """A bridge of its own on an empty database, which `migrate` fills."""
    bridge = Bridge.create(kafka, tmp_path_factory.mktemp("postgres"), database_url=postgres.create())
    topics = Topics.create(kafka)
    with bridge.serve() as process:
        document = process.get("/openapi.json").json()
        process.http.event_hooks["response"].append(Documented(document).check_now)
        yield RunningService(bridge, topics, process, process, process, process, document)
        assert internal_errors([process]) == []


def listed(service: RunningService, **filters: str) -> list[str]:
    """The ids of one page, once the projection has caught up."""
    service.catch_up()
    page = service.api.get("/v1/transactions", params=filters).json()
    return [transaction["transaction_id"] for transaction in page["transactions"]]


def test_commit_and_rollback(service: RunningService) -> None:
    """Visible with its receipts, or never; repeats and contradictions hear the recorded state."""
    group = service.new_group("smoke")
    committed, dropped = service.prepare(group), service.prepare(group)
    first = service.end(committed, "commit")
    assert service.end(committed, "commit") == first
    service.end(dropped, "rollback")
    check_problem(service.api.post(f"/v1/transactions/{dropped}/commit"), 409, "already-resolved")
    assert [record.transaction_id for record in service.read([committed, dropped])] == [committed]
    assert listed(service, producer_group=group) == [dropped, committed]
    assert listed(service, producer_group=group, state="COMMITTED", key="k") == [committed]
    assert [e["type"] for e in service.events(dropped)] == ["prepared", "end", "end"]


def test_same_key_at_once_is_one_transaction(service: RunningService) -> None:
    """Look-ups by id and by key agree, however fast the projection follows: never 422 for the same content."""
    group = service.new_group("keyed")
    ids = []
    with ThreadPoolExecutor(20) as pool:
        for round_number in range(10):
            body = {"producer_group": group, "messages": [service.message()], "idempotency_key": f"k{round_number}"}
            answers = list(pool.map(lambda _, body=body: service.api.post("/v1/messages", body), range(20)))
            assert [answer.text for answer in answers if answer.status_code != 200] == []
            (transaction_id,) = {answer.json()["transaction_id"] for answer in answers}
            ids.append(transaction_id)
    assert sorted(str(record.transaction_id) for record in service.read(ids)) == sorted(ids)


def test_texts_that_a_database_could_choke_on(service: RunningService) -> None:
    """What is let in is kept exactly; what cannot be kept is refused, and never stops the projection."""
    group = service.new_group("texts")
    texts = ["\U0001f600 \u2028\x7f", "' OR 1=1 --", '%s {} \\ "', "x" * 1_000]
    for text in texts:
        transaction_id = service.prepare(group, service.message(key="\x00", value="\x00"), ordering_key=text)
        answer = service.api.post(
            f"/v1/transactions/{transaction_id}/force", {"resolution": "ROLLBACK", "reason": text[:500]}
        )
        assert answer.status_code == 200
        assert service.get(transaction_id)["ordering_key"] == text
        (forced,) = [event for event in service.events(transaction_id) if event["type"] == "forced"]
        assert forced["reason"] == text[:500]
    assert len(listed(service, producer_group=group, key_base64="AA==")) == len(texts)
    body = {"producer_group": group, "messages": [service.message()], "ordering_key": "a\x00b"}
    check_problem(service.api.post("/v1/transactions", body), 422, "invalid-request")
    service.catch_up()
    assert service.api.get("/readyz").status_code == 200


def test_checks_commit_and_park(service: RunningService) -> None:
    """A check resolves one, another is parked, listed and redriven."""
    with check_endpoint("COMMIT") as willing, check_endpoint("UNKNOWN") as clueless:
        groups = [service.new_group(name) for name in ("willing", "clueless")]
        for group, endpoint in zip(groups, (willing, clueless), strict=True):
            service.put_group(group, [endpoint.url], **SOON)
        checked, parked = [service.prepare(group) for group in groups]
        assert service.wait_state(checked, "COMMITTED")["resolved_by"] == "check"
        assert service.wait_state(parked, "PARKED")["reason"] == "MAX_CHECKS"
    page = service.api.get("/v1/parked").json()["transactions"]
    assert [transaction["transaction_id"] for transaction in page] == [parked]
    body = {"action": "commit", "filter": {"producer_group": groups[1]}, "reason": "smoke"}
    job = service.api.post("/v1/parked/redrive", body).json()
    path = f"/v1/parked/redrive/{job['job_id']}"
    wait_until(lambda: service.api.get(path).json()["state"] == "done", name="the job")
    assert service.get(parked)["state"] == "COMMITTED"
    actions = [entry["action"] for entry in service.api.get("/v1/audit").json()["entries"]]
    assert {"redrive.start", "redrive.end", "producer-group.put"} <= set(actions)


def test_group_is_deleted_only_when_idle(service: RunningService) -> None:
    """409 while one is pending."""
    group = service.new_group("deleted")
    transaction_id = service.prepare(group)
    path = f"/v1/producer-groups/{group}"
    check_problem(service.api.http.delete(path), 409, "producer-group-in-use")
    service.end(transaction_id, "rollback")
    assert service.api.http.delete(path).status_code == 200
    check_problem(service.api.get(path), 404, "unknown-producer-group")


def counted(service: RunningService) -> Json:
    """Totals of all groups, when everything is counted."""
    service.catch_up()
    groups = service.api.get("/v1/producer-groups?limit=500").json()["producer_groups"]
    names = ("prepared", "committed", "rolled_back", "parked", "pending", "blocked")
    return {name: sum(group["counts"][name] for group in groups) for name in names}


def test_rebuild_while_traffic_runs(service: RunningService) -> None:
    """The same rows and counts as before, and those that came meanwhile (C); never a false 404."""
    group = service.new_group("traffic")
    old = service.prepare_many([{"producer_group": group, "messages": [service.message()]}] * 100)
    before, rows = counted(service), listed(service, producer_group=group)
    with ThreadPoolExecutor(1) as pool:
        rebuilding = pool.submit(service.bridge.run, "projection", "rebuild")
        new = []
        while not rebuilding.done():
            new.append(service.publish(group)["transaction_id"])
            assert service.api.get(f"/v1/transactions/{old[len(new) % 100]}").status_code in {200, 503}
        rebuilding.result()
    after = counted(service)
    assert after["prepared"] - before["prepared"] == after["committed"] - before["committed"] == len(new)
    assert {name: after[name] for name in ("rolled_back", "parked", "pending")} == {
        name: before[name] for name in ("rolled_back", "parked", "pending")
    }
    assert listed(service, producer_group=group, state="PREPARED") == rows
    ends = [{"transaction_id": i, "resolution": "ROLLBACK"} for i in old]
    results = service.api.post("/v1/resolutions", {"resolutions": ends}).json()["results"]
    assert {result["status"] for result in results} == {200}


def test_stats_agree_with_the_groups(service: RunningService) -> None:
    """Conserved in total and by group; a group that was deleted is still counted (C)."""
    service.catch_up()
    groups = service.api.get("/v1/producer-groups?limit=500").json()["producer_groups"]
    wanted = {group["name"]: group["counts"]["prepared"] for group in groups if group["counts"]["prepared"]}

    def is_current() -> bool:
        counts = service.api.get("/v1/stats").json()["groups"]
        return {name: counts[name]["prepared"] for name in wanted if name in counts} == wanted

    wait_until(is_current, name="the same counts")
    stats = service.api.get("/v1/stats").json()
    for counts in (stats, *stats["groups"].values()):
        assert counts["prepared"] == sum(counts[n] for n in ("committed", "rolled_back", "parked", "pending"))
    assert stats["prepared"] == sum(counts["prepared"] for counts in stats["groups"].values()) > sum(wanted.values())


def test_commit_of_a_parked_transaction_without_a_body_is_refused(service: RunningService) -> None:
    """When retention has taken it from journal and parked topic: 409, it stays parked, and can be rolled back."""
    with check_endpoint("UNKNOWN") as endpoint:
        group = service.new_group("expired")
        service.put_group(group, [endpoint.url], **SOON)
        transaction_id = service.prepare(group)
        service.wait_state(transaction_id, "PARKED")
    admin = AdminClient({"bootstrap.servers": service.bridge.kafka})
    topics = (service.bridge.half_topic, service.bridge.parked_topic)
    places = [TopicPartition(t, p, OFFSET_END) for t in topics for p in admin.list_topics(t).topics[t].partitions]
    for future in admin.delete_records(places).values():
        future.result(30)
    problem = check_problem(service.api.post(f"/v1/transactions/{transaction_id}/commit"), 409, "body-expired")
    assert (problem["state"], problem["outcome"]) == ("PARKED", "not_applied")
    assert service.get(transaction_id)["state"] == "PARKED"
    assert service.end(transaction_id, "rollback")["state"] == "ROLLED_BACK"
    assert service.read([transaction_id]) == []

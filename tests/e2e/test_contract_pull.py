"""Endpoints that are leased, and checks that are fetched, on the real service."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from tests.support.bridge_process import BridgeProcess, check_endpoint, wait_until
from tests.support.problems import check_problem, named_places
from tests.support.running_service import Json, RunningService

SOON = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "max_checks": 50}
PULL = {**SOON, "mode": "pull"}


def claim(process: BridgeProcess, group: str, **body: object) -> list[Json]:
    """What a claimer gets."""
    answer = process.post(f"/v1/producer-groups/{group}/checks/claim", body)
    assert answer.status_code == 200, answer.text
    checks: list[Json] = answer.json()["checks"]
    return checks


def answer(process: BridgeProcess, checks: Sequence[Json], resolution: str) -> list[int]:
    """The status of each answer."""
    items = [{**{n: c[n] for n in ("transaction_id", "nonce")}, "resolution": resolution} for c in checks]
    return [result["status"] for result in process.post("/v1/resolutions", {"resolutions": items}).json()["results"]]


@pytest.fixture
def group(service: RunningService) -> str:
    """A group that fetches its checks."""
    name = service.new_group("pull")
    service.put_group(name, [], **PULL)
    service.wait_groups_known()
    return name


def test_leased_endpoint_is_asked_until_it_leaves(service: RunningService) -> None:
    """Registered at one process, shown by the other, asked by the settler; gone, another is asked."""
    group = service.new_group("leased")
    service.put_group(group, [], **SOON)
    path = f"/v1/producer-groups/{group}/endpoints"
    with check_endpoint("UNKNOWN") as first, check_endpoint("ROLLBACK") as second:
        registered = service.api.post(path, {"url": first.url, "lease_seconds": 600}).json()
        until = datetime.fromisoformat(registered["lease_until"])
        assert 590 < (until - datetime.now(UTC)).total_seconds() <= 600
        (shown,) = service.other.get(f"/v1/producer-groups/{group}").json()["endpoints"]
        assert {name: shown[name] for name in registered} == registered
        transaction_id = service.prepare(group)
        wait_until(lambda: first.asked(transaction_id), name="a check of the leased endpoint")
        left = {"url": first.url, "removed": True}
        assert service.other.http.delete(path, params={"url": first.url}).json() == left
        service.api.post(path, {"url": second.url})
        service.wait_state(transaction_id, "ROLLED_BACK")
        assert second.asked(transaction_id) == 1
    entries = service.api.get("/v1/audit", params={"limit": 500}).json()["entries"]
    acts = [entry["action"].rpartition(".")[2] for entry in entries if entry["target"] == group]
    assert acts == ["register-endpoint", "remove-endpoint", "register-endpoint", "put"]


def test_lease_that_nobody_renews_ends(service: RunningService) -> None:
    """Its row goes too; a renewed one stays."""
    group = service.new_group("ending")
    service.put_group(group, [], **SOON)
    path = f"/v1/producer-groups/{group}/endpoints"
    dead, alive = "http://127.0.0.1:9/dead", "http://127.0.0.1:9/alive"
    service.api.post(path, {"url": dead, "lease_seconds": 1})

    def left() -> list[str]:
        service.api.post(path, {"url": alive, "lease_seconds": 10})
        return [endpoint["url"] for endpoint in service.other.get(f"/v1/producer-groups/{group}").json()["endpoints"]]

    wait_until(lambda: left() == [alive], name="the end of a lease")
    check_problem(service.api.post(path, {"url": "http://10.0.0.1/"}), 422, "callback-url-forbidden")


def test_claimers_share_what_is_due_and_every_answer_counts(service: RunningService, group: str) -> None:
    """Four at two processes at once: no check is held twice, everything is published once (K, L, D)."""
    prepares = [{"producer_group": group, "messages": [service.message(key=f"{n}")]} for n in range(120)]
    ids = service.prepare_many(prepares)

    fetched: list[str] = []

    def work(process: BridgeProcess) -> None:
        while len(fetched) < len(ids):
            checks = claim(process, group, limit=7, wait_seconds=1, lease_seconds=600)
            fetched.extend([check["transaction_id"] for check in checks])
            assert not checks or set(answer(process, checks, "COMMIT")) == {200}

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [service.api, service.other] * 2))
    assert sorted(fetched) == sorted(ids)
    assert sorted(str(record.transaction_id) for record in service.read(ids)) == sorted(ids)
    assert service.counts(group)["committed"] == 120
    assert service.api.get(f"/v1/producer-groups/{group}").json()["fetched"]["answered"] == 120


def test_waiting_claim_is_woken_by_what_comes_due(service: RunningService, group: str) -> None:
    """A long poll that began before the prepare; the callback's document holds for it."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claim, service.other, group, wait_seconds=30)
        transaction_id = service.prepare(group, idempotency_key="fetched")
        (check,) = waiting.result(40)
    assert (check["transaction_id"], check["check_number"]) == (transaction_id, 1)
    assert check["idempotency_key"] == "fetched"
    assert answer(service.api, [check], "ROLLBACK") == [200]
    assert service.get(transaction_id)["resolved_by"] == "check"


def test_unanswered_lease_comes_round_and_unknown_counts(service: RunningService, group: str) -> None:
    """After its lease the same number; after an UNKNOWN the next; the producer's own end ends it all."""
    transaction_id = service.prepare(group)
    (first,) = claim(service.api, group, wait_seconds=30, lease_seconds=1)
    (again,) = claim(service.other, group, wait_seconds=30, lease_seconds=1)
    assert (first["check_number"], again["check_number"]) == (1, 1)
    assert answer(service.other, [again], "UNKNOWN") == [200]
    (second,) = claim(service.api, group, wait_seconds=30)
    assert second["check_number"] == 2
    service.end(transaction_id, "commit")
    assert answer(service.api, [second], "ROLLBACK") == [409]
    assert claim(service.api, group, wait_seconds=2.5) == []


def test_claims_are_refused_by_name_mode_and_shape(service: RunningService, group: str) -> None:
    """404, 409, 422."""
    path = "/v1/producer-groups/{}/checks/claim"
    check_problem(service.api.post(path.format("nobody-made-it")), 404, "unknown-producer-group")
    pushed = service.new_group("pushed")
    service.put_group(pushed, [])
    check_problem(service.other.post(path.format(pushed)), 409, "not-pull-mode")
    problem = check_problem(service.api.post(path.format(group), {"limit": 1_001}), 422, "invalid-request")
    assert named_places(problem) == {"/limit"}

"""Producer groups on the real service: settings, endpoints, secrets, deletion, and groups that nobody created."""

import re
from typing import Any

import httpx2
import pytest

from tests.support.bridge_process import wait_until
from tests.support.problems import check_problem, named_places
from tests.support.running_service import Json, RunningService

DEFAULTS = {
    "transaction_timeout_seconds": 6, "interval_seconds": 30, "max_checks": 15, "max_lifetime_seconds": 86_400,
    "call_timeout_seconds": 5, "batch_size": 100, "concurrency": 8, "mode": "push",
    "when_exhausted": "park",
}  # fmt: skip
BOUNDS = {
    "transaction_timeout_seconds": (1, 86_400),
    "interval_seconds": (1, 3_600),
    "max_checks": (1, 1_000),
    "max_lifetime_seconds": (1, 604_800),
    "call_timeout_seconds": (0.1, 60),
    "batch_size": (1, 1_000),
    "concurrency": (1, 256),
}
SECRET = re.compile(r"whsec_[A-Za-z0-9+/]{32,}=*")


def put(service: RunningService, group: str, **body: Any) -> httpx2.Response:
    """A PUT of the group."""
    return service.api.http.put(f"/v1/producer-groups/{group}", json=body)


def get(service: RunningService, group: str) -> Json:
    """The group as it is."""
    answer = service.other.get(f"/v1/producer-groups/{group}")
    assert answer.status_code == 200, answer.text
    members: Json = answer.json()
    return members


def urls_of(group: Json) -> list[str]:
    """Its endpoints."""
    return [endpoint["url"] for endpoint in group["endpoints"]]


def test_secret_is_shown_once(service: RunningService) -> None:
    """201 with the secret on creation, 200 without on every later PUT, and no other answer holds it."""
    group = service.new_group("secret")
    created = put(service, group)
    secret = created.json()["secret"]
    assert created.status_code == 201
    assert SECRET.fullmatch(secret)
    assert created.headers["location"] == f"/v1/producer-groups/{group}"
    assert created.headers["cache-control"] == "no-store"
    replaced = put(service, group, check={"max_checks": 3})
    assert replaced.status_code == 200
    shown = [replaced.text, str(get(service, group)), service.api.get("/v1/producer-groups").text]
    shown += [service.api.get("/v1/audit").text, *[process.log.read_text() for process in service.processes]]
    assert [text for text in shown if secret in text or "whsec_" in text] == []


def test_put_replaces_settings_and_endpoints(service: RunningService) -> None:
    """What is left out has its default again; a reader at another process sees it."""
    group = service.new_group("replaced")
    urls = ["http://127.0.0.1:9001/a", "http://127.0.0.1:9001/b"]
    put(service, group, endpoints=[{"url": url} for url in urls], check={"max_checks": 3, "batch_size": 7})
    found = get(service, group)
    assert (sorted(urls_of(found)), found["check"]) == (urls, {**DEFAULTS, "max_checks": 3, "batch_size": 7})
    put(service, group, endpoints=[{"url": urls[1]}], check={"interval_seconds": 1.5})
    found = get(service, group)
    assert (urls_of(found), found["check"]) == ([urls[1]], {**DEFAULTS, "interval_seconds": 1.5})
    put(service, group)
    found = get(service, group)
    assert (urls_of(found), found["check"]) == ([], DEFAULTS)


def test_query_of_a_url_is_never_shown(service: RunningService) -> None:
    """It may hold a token: neither answers nor audit nor logs tell it; what is shown instead is refused as a URL."""
    group, url, token = service.new_group("tokens"), "http://127.0.0.1:9001/check", "t0ken-of-the-shop"
    path = f"/v1/producer-groups/{group}/endpoints"
    query = {"url": f"{url}/leased?token={token}"}
    answers = [put(service, group, endpoints=[{"url": f"{url}?token={token}"}]), service.api.post(path, query)]
    assert urls_of(get(service, group)) == [f"{url}/leased?<hidden>", f"{url}?<hidden>"]
    answers += [service.api.http.delete(path, params=query), service.other.get("/v1/producer-groups")]
    answers += [service.api.get("/v1/audit"), put(service, group)]
    assert [answer.text for answer in answers if answer.status_code not in {200, 201} or token in answer.text] == []
    assert [process for process in service.processes if token in process.log.read_text()] == []
    check_problem(put(service, group, endpoints=[{"url": f"{url}?<hidden>"}]), 422, "callback-url-forbidden")


@pytest.mark.parametrize("name", BOUNDS)
def test_settings_have_bounds(service: RunningService, name: str) -> None:
    """Both bounds are taken, what is beyond them is 422 with its place."""
    group = service.new_group("bounds")
    least, most = BOUNDS[name]
    for value in (least, most):
        assert put(service, group, check={name: value}).status_code in {200, 201}
        assert get(service, group)["check"][name] == value
    for value in (least - 0.01, most + 1, -1, "1", None, True):
        problem = check_problem(put(service, group, check={name: value}), 422, "invalid-request")
        assert named_places(problem) == {f"/check/{name}"}
    assert get(service, group)["check"][name] == most


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/check",
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:10.0.0.1]/check",
        "https://10.1.2.3/check",
        "https://user:secret@example.com/check",
        "ftp://127.0.0.1/check",
        "file:///etc/passwd",
        "http://0x7f.1:99999/",
        "not a url",
    ],
)
def test_callbacks_into_the_network_behind_are_refused(service: RunningService, url: str) -> None:
    """Only https to public addresses, and what `callbacks.allow_networks` names; nothing is saved."""
    group = service.new_group("inward")
    answer = put(service, group, endpoints=[{"url": "http://127.0.0.1:9001/fine"}, {"url": url}])
    problem = check_problem(answer, 422, "callback-url-forbidden")
    assert named_places(problem) == {"/endpoints/1/url"}
    check_problem(service.api.get(f"/v1/producer-groups/{group}"), 404, "unknown-producer-group")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9001/check",
        "http://localhost/check",
        "http://example.com/check",
        "https://example.com:9200/check",
        "https://127.0.0.1/check",
        "https://[::1]/check",
        "https://2130706433/check",
        "https://0177.0.0.1/check",
    ],
)
def test_without_allowed_networks_only_public_https_is_taken(service: RunningService, url: str) -> None:
    """Not even loopback, under no spelling; https to a public name is."""
    path = f"/v1/producer-groups/{service.new_group('public')}"
    answer = service.strict.http.put(path, json={"endpoints": [{"url": url}]})
    check_problem(answer, 422, "callback-url-forbidden")
    public = {"endpoints": [{"url": "https://shop.example.com/check"}, {"url": "https://shop.example.com:8443/x?y=1"}]}
    assert service.strict.http.put(path, json=public).status_code == 201


def test_group_that_nobody_created_comes_with_its_first_prepare(service: RunningService) -> None:
    """Default settings, no endpoint, no secret until `rotate-secret` makes one."""
    group = service.new_group("implied")
    transaction_id = service.prepare(group)
    found = get(service, group)
    assert (found["check"], found["endpoints"]) == (DEFAULTS, [])
    answer = service.api.post(f"/v1/producer-groups/{group}/rotate-secret")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert SECRET.fullmatch(answer.json()["secret"])
    again = service.api.post(f"/v1/producer-groups/{group}/rotate-secret").json()["secret"]
    assert again != answer.json()["secret"]
    service.end(transaction_id, "rollback")


def test_refused_prepare_makes_no_group(service: RunningService) -> None:
    """A typing error in the topic leaves no group behind."""
    group = service.new_group("refused")
    body = {"producer_group": group, "messages": [{"topic": "no.such.topic"}]}
    check_problem(service.api.post("/v1/transactions", body), 422, "unknown-topic")
    check_problem(service.api.get(f"/v1/producer-groups/{group}"), 404, "unknown-producer-group")


def test_group_is_deleted_when_nothing_is_left_to_do(service: RunningService) -> None:
    """409 while one is pending, as the write before was a moment ago; then 200, then 404."""
    group = service.new_group("deleted")
    put(service, group)
    path = f"/v1/producer-groups/{group}"
    for _ in range(5):
        transaction_id = service.prepare(group)
        check_problem(service.other.http.delete(path), 409, "producer-group-in-use")
        service.end(transaction_id, "rollback")
    answer = service.other.http.delete(path)
    assert (answer.status_code, answer.json()) == (200, {"name": group})
    for refused in (
        service.other.get(path),
        service.other.http.delete(path),
        service.other.post(f"{path}/rotate-secret"),
    ):
        check_problem(refused, 404, "unknown-producer-group")
    assert put(service, group).status_code == 201, "the name is free again"


def test_groups_are_listed_by_name_in_pages(service: RunningService) -> None:
    """Every group once, in order, by cursor and by Link."""
    names = sorted(service.new_group("listed") for _ in range(7))
    for name in names:
        put(service, name)
    path: str | None = "/v1/producer-groups?limit=3"
    seen: list[str] = []
    while path:
        answer = service.api.get(path)
        page = answer.json()
        seen += [group["name"] for group in page["producer_groups"]]
        assert len(page["producer_groups"]) <= 3
        assert (page["next"] is None) == ("link" not in answer.headers)
        path = answer.links["next"]["url"] if page["next"] else None
    assert seen == sorted(set(seen))
    assert set(names) <= set(seen)


def test_changes_of_groups_are_audited(service: RunningService) -> None:
    """Who, when, what, and what it was before and after; never a secret."""
    group = service.new_group("audited")
    put(service, group, check={"max_checks": 3})
    put(service, group, check={"max_checks": 4})
    service.api.post(f"/v1/producer-groups/{group}/rotate-secret")
    service.api.http.delete(f"/v1/producer-groups/{group}")
    entries = [
        entry
        for entry in service.api.get("/v1/audit", params={"limit": 100}).json()["entries"]
        if entry["target"] == group
    ]
    assert [entry["action"] for entry in reversed(entries)] == [
        "producer-group.put",
        "producer-group.put",
        "producer-group.rotate-secret",
        "producer-group.delete",
    ]
    second = entries[2]
    assert (second["before"]["max_checks"], second["after"]["max_checks"]) == (3, 4)
    assert {entry["actor"] for entry in entries} == {"anonymous@127.0.0.1"}


def test_pending_transactions_are_counted_by_group(service: RunningService) -> None:
    """Count, age and histogram of what waits for its end."""
    group = service.new_group("ages")
    ids = [service.prepare(group) for _ in range(3)]
    counts = service.counts(group)
    assert (counts["prepared"], counts["pending"]) == (3, 3)
    assert counts["oldest_pending_seconds"] >= 0
    assert sum(count for _, count in counts["age_histogram"]) == 3
    for transaction_id in ids:
        service.end(transaction_id, "rollback")
    wait_until(lambda: service.counts(group)["oldest_pending_seconds"] is None, name="nothing pending")

"""Section 4 of the contract, reading: current reads, lists and pages, timelines, counts, health and documents."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx2
import pytest

from tests.support.bridge_process import BridgeProcess, wait_until
from tests.support.problems import check_problem, named_places
from tests.support.running_service import Json, RunningService

STATES = {"PREPARED", "COMMITTED", "ROLLED_BACK", "PARKED"}


def listed(process: BridgeProcess, **filters: Any) -> list[str]:
    """The ids of one page."""
    answer = process.get("/v1/transactions", params=filters)
    assert answer.status_code == 200, answer.text
    return [transaction["transaction_id"] for transaction in answer.json()["transactions"]]


def walk(process: BridgeProcess, path: str) -> list[str]:
    """The ids of all pages, by their Link headers."""
    seen: list[str] = []
    following: str | None = path
    while following:
        answer = process.get(following)
        seen += [transaction["transaction_id"] for transaction in answer.json()["transactions"]]
        following = answer.links["next"]["url"] if answer.json()["next"] else None
    return seen


# --- current reads ---


def test_read_after_write_sees_the_write(service: RunningService) -> None:
    """At once, at either process, while others write too; a timeline as well."""
    group = service.new_group("current")

    def story(number: int) -> list[Any]:
        here, there = (service.api, service.other) if number % 2 else (service.other, service.api)
        transaction_id = service.prepare(group, at=here)
        seen = [service.get(transaction_id, at=there)["state"]]
        word = ("commit", "rollback")[number % 3 == 0]
        service.end(transaction_id, word, at=there)
        events = here.get(f"/v1/transactions/{transaction_id}/timeline").json()["events"]
        return [*seen, service.get(transaction_id, at=here)["state"], word, "end" in {e["type"] for e in events}]

    with ThreadPoolExecutor(8) as pool:
        stories = list(pool.map(story, range(48)))
    after = {"commit": "COMMITTED", "rollback": "ROLLED_BACK"}
    assert [seen for seen in stories if seen != ["PREPARED", after[seen[2]], seen[2], True]] == []


# --- lists ---


@pytest.fixture(scope="module")
def shelf(service: RunningService) -> dict[str, Any]:
    """A group with transactions in three states, two topics and some keys; times between them."""
    group = service.new_group("shelf")
    orders = [service.prepare(group, service.message(key=f"{group}-{n % 3}")) for n in range(9)]
    others = [service.prepare(group, {"topic": service.topics.credits, "key_base64": "/w=="}) for _ in range(3)]
    both = service.prepare(
        group, service.message(key=f"{group}-0"), {"topic": service.topics.credits, "key": f"{group}-0"}
    )
    for transaction_id in orders[:4]:
        service.end(transaction_id, "commit")
    for transaction_id in orders[4:6]:
        service.end(transaction_id, "rollback")
    service.catch_up()
    middle = service.get(orders[5])["born_time"]
    return {"group": group, "orders": orders, "others": others, "both": both, "middle": middle}


def test_list_is_newest_first_and_filtered(service: RunningService, shelf: dict[str, Any]) -> None:
    """By group, state, topic, key and birth, alone and together."""
    group, orders, others, both = shelf["group"], shelf["orders"], shelf["others"], shelf["both"]
    everything = [*orders, *others, both]

    def find(**filters: Any) -> list[str]:
        return listed(service.other, producer_group=group, **filters)

    assert find() == everything[::-1]
    assert find(state="COMMITTED") == orders[3::-1]
    assert find(state="ROLLED_BACK,COMMITTED") == orders[5::-1]
    assert find(state=["ROLLED_BACK", "COMMITTED"]) == orders[5::-1]
    assert find(state="PARKED") == []
    assert find(topic=service.topics.credits) == [both, *others[::-1]]
    assert find(key=f"{group}-0") == [both, orders[6], orders[3], orders[0]]
    assert find(key=f"{group}-0", state="COMMITTED") == [orders[3], orders[0]]
    assert find(key_base64="/w==", topic=service.topics.credits) == others[::-1]
    assert find(topic=service.topics.orders, key=f"{group}-1") == [orders[7], orders[4], orders[1]]
    born = {"born_after": shelf["middle"]}
    assert find(**born) == [i for i in everything[:5:-1] if service.get(i)["born_time"] > shelf["middle"]]
    assert find(born_before=shelf["middle"]) == [
        i for i in everything[4::-1] if service.get(i)["born_time"] < shelf["middle"]
    ]
    assert listed(service.api, producer_group="nobody-of-this-name") == []


@pytest.mark.parametrize(
    "query",
    [
        "state=DONE", "limit=0", "limit=501", "limit=ten", "cursor=abc", "born_after=yesterday",
        "born_after=2026-13-01T00:00:00Z", "colour=red", "key=a&key=b", "key=a&key_base64=YQ==", "key_base64=_",
        "producer_group=a%20b", "cursor=%00", "born_before=2026-01-01T00:00:00", "blocked=maybe", "abandoned=maybe",
    ],
)  # fmt: skip
def test_filter_that_cannot_be_meant_is_refused(service: RunningService, query: str) -> None:
    """A misspelt filter would otherwise match everything."""
    problem = check_problem(service.api.get(f"/v1/transactions?{query}"), 422, "invalid-request")
    assert {place.lstrip("?") for place in named_places(problem)} <= set(re.findall(r"(\w+)=", query))


def test_pages_are_stable_while_others_are_added(service: RunningService) -> None:
    """Every one that was there is met once, whatever comes in meanwhile; no page has a total."""
    group = service.new_group("pages")
    ids = service.prepare_many([{"producer_group": group, "messages": [service.message()]}] * 25)
    service.catch_up()
    path: str | None = f"/v1/transactions?producer_group={group}&limit=7"
    seen: list[str] = []
    while path:
        answer = service.other.get(path)
        page = answer.json()
        assert set(page) == {"transactions", "next"}
        seen += [transaction["transaction_id"] for transaction in page["transactions"]]
        service.prepare(group)
        service.catch_up()
        service.end(ids[len(seen) % 25], "rollback")
        path = answer.links["next"]["url"] if page["next"] else None
        assert path is None or f"producer_group={group}" in path
    assert len(seen) == len(set(seen))
    assert seen == [i for i in walk(service.api, f"/v1/transactions?producer_group={group}") if i in set(ids)]
    assert set(seen) == set(ids)


def test_pages_of_a_state_do_not_repeat(service: RunningService) -> None:
    """Transactions that leave the state between two pages are not met twice, and none that stays is missed."""
    group = service.new_group("leaving")
    ids = service.prepare_many([{"producer_group": group, "messages": [service.message()]}] * 20)
    service.catch_up()
    first = service.api.get("/v1/transactions", params={"producer_group": group, "state": "PREPARED", "limit": 5})
    met = [transaction["transaction_id"] for transaction in first.json()["transactions"]]
    for transaction_id in met[:3]:
        service.end(transaction_id, "rollback")
    service.catch_up()
    rest = walk(service.api, first.links["next"]["url"])
    assert sorted(met + rest) == sorted(ids)


# --- timelines ---


def test_timeline_tells_what_happened(service: RunningService) -> None:
    """Prepared, ended, contradicted, published; oldest first, with who did it."""
    transaction_id = service.prepare(service.new_group("timeline"), service.message(), service.message())
    receipts = service.end(transaction_id, "commit")["receipts"]
    service.api.post(f"/v1/transactions/{transaction_id}/rollback", {"remark": "Timeout: shop"})
    service.end(transaction_id, "commit")
    events = service.events(transaction_id)
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    assert (events[0]["type"], events[0]["by"]) == ("prepared", "producer")
    ends = [(e["resolution"], e["effective"], e["by"]) for e in events if e["type"] == "end"]
    assert ends == [("COMMIT", True, "producer"), ("ROLLBACK", False, "producer"), ("COMMIT", False, "producer")]
    assert [event.get("remark") for event in events if event["type"] == "end"] == [None, "Timeout: shop", None]
    assert service.api.get(f"/v1/transactions/{transaction_id}").json()["remark"] == "Timeout: shop"
    (published,) = [event for event in events if event["type"] == "published"]
    assert [tuple(receipt.values()) for receipt in published["receipts"]] == [tuple(r.values()) for r in receipts]


# --- counts ---


def is_conserved(counts: Json) -> bool:
    """C, with nothing below zero."""
    parts = [counts[name] for name in ("committed", "rolled_back", "parked", "pending")]
    return counts["prepared"] == sum(parts) and min(parts) >= 0 and 0 <= counts["blocked"] <= counts["committed"]


def is_settled(end: Json, result: Json) -> bool:
    """Published or rolled back; or, where a busy broker did not take a commit in time, decided and tried again."""
    if result["status"] == 200:
        return True
    is_late = result["status"] == 202 and result["blocked"] and result["reason"] in {"UNTRIED", "NO_ANSWER"}
    return is_late and end["resolution"] == "COMMIT"


def test_counts_are_conserved_at_every_observation(service: RunningService) -> None:
    """While four producers work; and in the end they are what was done, and all of it is published (C)."""
    groups = [service.new_group("load") for _ in range(4)]
    stopping = threading.Event()

    def work(group: str) -> tuple[int, int, int]:
        done = [0, 0, 0]
        while not stopping.is_set():
            ids = service.prepare_many([{"producer_group": group, "messages": [service.message()]}] * 30)
            ends = [{"transaction_id": i, "resolution": ("COMMIT", "ROLLBACK")[n % 2]} for n, i in enumerate(ids[:20])]
            results = service.other.post("/v1/resolutions", {"resolutions": ends}).json()["results"]
            assert [result for end, result in zip(ends, results, strict=True) if not is_settled(end, result)] == []
            done = [done[0] + 30, done[1] + 10, done[2] + 10]
        return done[0], done[1], done[2]

    seen: list[Json] = []
    with ThreadPoolExecutor(len(groups)) as pool:
        workers = [pool.submit(work, group) for group in groups]
        try:
            while len(seen) < 4:
                stats = service.strict.get("/v1/stats").json()
                assert all(is_conserved(counts) for counts in [stats, *stats["groups"].values()]), stats
                for name in ("prepared", "committed", "rolled_back", "parked", "pending", "blocked"):
                    assert stats[name] == sum(counts[name] for counts in stats["groups"].values())
                if not seen or stats["prepared"] > seen[-1]["prepared"]:
                    seen.append(stats)
        finally:
            stopping.set()
    for group, worker in zip(groups, workers, strict=True):
        prepared, committed, rolled_back = worker.result()
        wait_until(lambda group=group: service.counts(group)["blocked"] == 0, name=f"all of {group} published")
        counts = service.counts(group)
        assert (counts["prepared"], counts["committed"], counts["rolled_back"]) == (prepared, committed, rolled_back)
        assert counts["pending"] == prepared - committed - rolled_back
        pending = walk(service.api, f"/v1/transactions?producer_group={group}&state=PREPARED&limit=500")
        assert len(pending) == counts["pending"]
        assert sum(count for _, count in counts["age_histogram"]) == counts["pending"]


def test_lags_are_told(service: RunningService) -> None:
    """Numbers, and near nothing when all is done."""
    service.catch_up()
    stats = wait_until(
        lambda: next((s for s in [service.api.get("/v1/stats").json()] if s["projection_lag_seconds"] == 0), None),
        name="no lag",
    )
    assert stats["settle_lag_seconds"] == 0


# --- health and documents ---


def test_every_process_says_how_it_is(service: RunningService) -> None:
    """livez looks at nothing, readyz at everything that promises rest on; `verbose` lists it."""
    for process in service.processes:
        assert process.get("/livez").json() == {"live": True}
        assert process.get("/readyz").json() == {"ready": True}
        checks = wait_until(partial(settled_checks, process), 30, "processes that know of each other")
        of_engine, of_api = {"settler", "stable-offsets", "projector"}, {"journal", "answers", "settling", "audit"}
        names = of_engine if process is service.engine else of_api
        names |= {"kafka", "sql", "topology", "op-records", "log", "bodies", "secrets", "prepares", "processes"}
        names.add("kafka-version")
        assert {check["name"] for check in checks} == names
        assert [check for check in checks if not check["ok"] and check["name"] != "processes"] == []
    check_problem(service.api.get("/readyz?loud"), 422, "invalid-request")


def settled_checks(process: BridgeProcess) -> list[Any]:
    """None before it has read what the others are; then one of them is strict."""
    checks: list[Any] = process.get("/readyz?verbose").json()["checks"]
    (differ,) = [check["detail"] for check in checks if check["name"] == "processes"]
    return checks if differ == "" or "auto_create_groups" in differ else []


def test_metrics_have_one_prefix_and_bounded_labels(service: RunningService) -> None:
    """No transaction or topic is a label, and at most a hundred groups: nobody's data can fill a monitoring system."""
    service.prepare(service.new_group("metrics"))
    for process in service.processes:
        text = process.get("/metrics").text
        names = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
        assert {name for name in names if not name.startswith(("outbox_bridge_", "python_", "process_"))} == set()
        labels = set(re.findall(r'(\w+)="', text))
        ours = {"route", "method", "status_class", "code", "le", "queue", "word", "producer_group"}
        assert labels - ours <= {"generation", "implementation", "major", "minor", "patchlevel", "version"}
        assert service.topics.orders not in text
    routes = set(re.findall(r'route="([^"]*)"', service.api.get("/metrics").text))
    assert "/v1/transactions/{transaction_id}" in routes
    assert [route for route in routes if re.search(r"[0-9a-z]{28}", route)] == []
    assert 'outbox_bridge_queue_owned{queue="0"} 1.0' in service.engine.get("/metrics").text


def test_documents_are_served(service: RunningService) -> None:
    """The OpenAPI document with the callback under `webhooks`, and a page to read it."""
    with httpx2.Client(base_url=service.api.url) as http:
        document = http.get("/openapi.json").json()
        page = http.get("/docs")
    assert document["openapi"].startswith("3.1")
    assert set(document["webhooks"]) == {"transaction.check"}
    documented = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert documented >= {
        ("POST", "/v1/transactions"), ("GET", "/v1/transactions"), ("POST", "/v1/transactions/batch"),
        ("POST", "/v1/transactions/{transaction_id}/commit"), ("POST", "/v1/transactions/{transaction_id}/rollback"),
        ("POST", "/v1/resolutions"), ("POST", "/v1/messages"), ("POST", "/v1/messages/batch"),
        ("PUT", "/v1/producer-groups/{group}"), ("DELETE", "/v1/producer-groups/{group}"),
        ("POST", "/v1/producer-groups/{group}/rotate-secret"), ("GET", "/v1/producer-groups/{group}"),
        ("POST", "/v1/producer-groups/{group}/endpoints"), ("DELETE", "/v1/producer-groups/{group}/endpoints"),
        ("POST", "/v1/producer-groups/{group}/checks/claim"),
        ("GET", "/v1/producer-groups"), ("GET", "/v1/transactions/{transaction_id}"),
        ("GET", "/v1/transactions/{transaction_id}/timeline"), ("POST", "/v1/transactions/{transaction_id}/check"),
        ("POST", "/v1/transactions/{transaction_id}/force"), ("POST", "/v1/transactions/{transaction_id}/resume"),
        ("POST", "/v1/transactions/{transaction_id}/abandon"),
        ("GET", "/v1/parked"), ("POST", "/v1/parked/redrive"), ("GET", "/v1/stats"), ("GET", "/v1/audit"),
        ("GET", "/livez"), ("GET", "/readyz"), ("GET", "/metrics"),
    }  # fmt: skip
    assert (page.status_code, page.headers["content-type"].partition(";")[0]) == (200, "text/html")

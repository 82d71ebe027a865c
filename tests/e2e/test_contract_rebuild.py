"""The projection can be made anew from Kafka while the bridge works, and nobody is told anything wrong meanwhile."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.running_service import Json, RunningService


def pages_of(service: RunningService, group: str) -> list[Json]:
    """Every row of a group, as the list shows it."""
    rows: list[Json] = []
    following: str | None = f"/v1/transactions?producer_group={group}&limit=200"
    while following:
        answer = service.api.get(following)
        rows += answer.json()["transactions"]
        following = answer.links["next"]["url"] if answer.json()["next"] else None
    return rows


def make_history(service: RunningService, group: str) -> list[str]:
    """Transactions of all kinds: committed, rolled back, pending, contradicted, forced, keyed, of several messages."""
    body = {"producer_group": group, "messages": [service.message(key="k")] * 2, "check_immunity_seconds": 3_600}
    ids = service.prepare_many([body] * 120)
    ends = [{"transaction_id": i, "resolution": ("COMMIT", "ROLLBACK")[n % 2]} for n, i in enumerate(ids[:80])]
    service.api.post("/v1/resolutions", {"resolutions": ends})
    service.api.post(f"/v1/transactions/{ids[0]}/rollback")
    service.api.post(f"/v1/transactions/{ids[80]}/force", {"resolution": "COMMIT", "reason": "by hand"})
    keyed = service.prepare(group, idempotency_key="kept", ordering_key="in order")
    service.end(keyed, "commit")
    service.catch_up()
    return [*ids, keyed]


def without_ages(counts: Json) -> Json:
    """What does not change by itself."""
    return {name: value for name, value in counts.items() if name not in {"oldest_pending_seconds", "age_histogram"}}


def test_rebuild_while_traffic_runs_gives_the_same(service: RunningService) -> None:
    """Rows, counts and timelines are what they were; reads during it are right or 503, never a false 404 (C)."""
    history, traffic = service.new_group("history"), service.new_group("traffic")
    ids = make_history(service, history)
    chosen = [ids[0], ids[1], ids[80], ids[100], ids[-1]]
    rows, counts = pages_of(service, history), without_ages(service.counts(history))
    before = {i: (service.get(i), service.events(i)) for i in chosen}
    rebuilt = threading.Event()

    def work() -> tuple[int, int]:
        prepared = committed = 0
        while not rebuilt.is_set():
            made = service.prepare_many([{"producer_group": traffic, "messages": [service.message()]}] * 20)
            ends = [{"transaction_id": i, "resolution": "COMMIT"} for i in made[:15]]
            results = service.other.post("/v1/resolutions", {"resolutions": ends}).json()["results"]
            assert {result["status"] for result in results} == {200}
            prepared, committed = prepared + 20, committed + 15
        return prepared, committed

    def look() -> list[Any]:
        wrong: list[Any] = []
        while not rebuilt.is_set():
            for transaction_id in chosen:
                answer = service.strict.get(f"/v1/transactions/{transaction_id}")
                is_right = answer.status_code == 200 and answer.json() == before[transaction_id][0]
                if not is_right and answer.status_code != 503:
                    wrong.append(answer.json())
        return wrong

    with ThreadPoolExecutor(2) as pool:
        working, looking = pool.submit(work), pool.submit(look)
        try:
            service.bridge.run("projection", "rebuild")
        finally:
            rebuilt.set()
    assert looking.result() == []
    prepared, committed = working.result()
    service.catch_up()
    assert pages_of(service, history) == rows
    assert without_ages(service.counts(history)) == counts
    assert {i: (service.get(i), service.events(i)) for i in chosen} == before
    found = service.counts(traffic)
    assert (found["prepared"], found["committed"], found["pending"]) == (prepared, committed, prepared - committed)
    assert len(pages_of(service, traffic)) == prepared
    body = {"producer_group": history, "messages": [service.message(key="k", value="v")], "ordering_key": "in order"}
    again = service.api.post("/v1/transactions", {**body, "idempotency_key": "kept"})
    assert (again.status_code, again.json()["transaction_id"]) == (200, ids[-1]), "repeats are still known"

"""Lists, counts, audit and redrive."""

from msgspec.structs import replace

from bridge.core.transaction import TransactionState
from tests.support.api_fakes import FakeTransactions
from tests.support.bad_requests import Facts
from tests.support.live_server import LiveServer
from tests.support.problems import check_problem, named_places


async def test_pages_lead_to_each_other(live: LiveServer, facts: Facts) -> None:
    """By cursor and by Link, which keeps the filter; the last page has neither."""
    first = await live.client.get("/v1/transactions", params={"limit": 1, "producer_group": "orders"})
    assert first.json()["next"] == "1"
    assert first.headers["link"] == '</v1/transactions?limit=1&producer_group=orders&cursor=1>; rel="next"'
    second = await live.client.get(first.headers["link"].partition(">")[0][1:])
    assert second.json()["next"] is None
    assert "link" not in second.headers
    ids = [shown["transaction_id"] for page in (first, second) for shown in page.json()["transactions"]]
    assert ids == [facts.prepared, facts.committed]


async def test_states_can_be_listed(live: LiveServer, facts: Facts) -> None:
    """Repeated, or with commas between."""
    for query in ("state=COMMITTED&state=PARKED", "state=COMMITTED,PARKED"):
        found = (await live.client.get(f"/v1/transactions?{query}")).json()["transactions"]
        assert [shown["transaction_id"] for shown in found] == [facts.committed]


async def test_misspelt_filters_are_refused(live: LiveServer) -> None:
    """A filter that is overlooked would match everything."""
    for query, name in [
        ("stat=PARKED", "?stat"),
        ("state=DONE", "?state"),
        ("state=", "?state"),
        ("state=PARKED,", "?state"),
        ("limit=0", "?limit"),
        ("limit=501", "?limit"),
        ("limit=1e2", "?limit"),
        ("born_after=yesterday", "?born_after"),
        ("born_after=2026-13-01T00:00:00Z", "?born_after"),
        ("key=a&key_base64=YQ==", "?key_base64"),
        ("key_base64=YQ", "?key_base64"),
        ("topic=a%00b", "?topic"),
        ("producer_group=a%20b", "?producer_group"),
        ("cursor=%C3%A9", "?cursor"),
        ("blocked=maybe", "?blocked"),
        ("abandoned=maybe", "?abandoned"),
        ("abandoned=", "?abandoned"),
    ]:
        problem = check_problem(await live.client.get(f"/v1/transactions?{query}"), 422, "invalid-request")
        assert named_places(problem) == {name}, query


async def test_stats_are_counts_and_ages(live: LiveServer) -> None:
    """Of all and of each; ages in seconds."""
    counts = {
        "prepared": 3,
        "committed": 1,
        "blocked": 0,
        "abandoned": 0,
        "rolled_back": 1,
        "parked": 0,
        "pending": 1,
        "oldest_pending_seconds": 2.0,
    }
    assert (await live.client.get("/v1/stats")).json() == {
        **counts,
        "settle_lag_seconds": 0.25,
        "projection_lag_seconds": 1.5,
        "groups": {"orders": {**counts, "age_histogram": [[1, 1], [None, 0]]}},
    }


async def test_redrive_is_previewed_begun_watched_and_stopped(
    live: LiveServer, facts: Facts, fake: FakeTransactions
) -> None:
    """The whole life of a job."""
    fake.views[facts.prepared] = replace(fake.views[facts.prepared], state=TransactionState.PARKED)
    wanted = {"action": "resume", "filter": {"producer_group": "orders", "born_after": "2026-01-31T00:00:00Z"}}
    preview = await live.client.post("/v1/parked/redrive", json={**wanted, "preview": True})
    assert (preview.status_code, preview.json()["count"], preview.json()["more"]) == (200, 1, False)
    assert preview.json()["sample"][0]["transaction_id"] == facts.prepared
    job = await live.client.post("/v1/parked/redrive", json={**wanted, "reason": "back", "rate_per_second": 5})
    assert job.status_code == 202
    assert job.json() == {
        "job_id": "job-0",
        "state": "running",
        "action": "resume",
        "filter": {"producer_group": "orders", "born_after": "2026-01-31T00:00:00.000Z"},
        "actor": "anonymous@127.0.0.1",
        "reason": "back",
        "rate_per_second": 5,
        "counts": {},
        "created_at": "2026-01-31T12:00:00.123Z",
        "updated_at": "2026-01-31T12:00:00.123Z",
    }
    assert (await live.client.get(job.headers["location"])).json() == job.json()
    assert (await live.client.get("/v1/parked/redrive")).json() == {"jobs": [job.json()]}
    stopped = await live.client.post(f"{job.headers['location']}/stop", json={"reason": "too fast"})
    assert stopped.json()["state"] == "stopped"


async def test_redrive_needs_a_filter_and_a_reason(live: LiveServer) -> None:
    """An empty filter must be said, a reason is for the audit."""
    for body, place in [
        ({"action": "resume", "reason": "x"}, "/filter"),
        ({"action": "resume", "filter": {}}, "/reason"),
        ({"action": "drop", "filter": {}, "reason": "x"}, "/action"),
        ({"action": "resume", "filter": {"born_after": "now"}, "reason": "x"}, "/filter/born_after"),
        ({"action": "resume", "filter": {"state": "PARKED"}, "reason": "x"}, "/filter/state"),
    ]:
        problem = check_problem(await live.client.post("/v1/parked/redrive", json=body), 422, "invalid-request")
        assert named_places(problem) == {place}


async def test_unknown_job_is_not_found(live: LiveServer) -> None:
    """Whatever the name."""
    for name in ("job-9", "a%2Fb", "x" * 100):
        check_problem(await live.client.get(f"/v1/parked/redrive/{name}"), 404, "not-found")
    stop = await live.client.post("/v1/parked/redrive/job-9/stop", json={"reason": "x"})
    check_problem(stop, 404, "not-found")


async def test_audit_and_parked_are_listed(live: LiveServer, facts: Facts, fake: FakeTransactions) -> None:
    """Who, what, why; and what waits for an operator."""
    await live.client.post(f"/v1/transactions/{facts.prepared}/force", json={"resolution": "COMMIT", "reason": "paid"})
    (entry,) = (await live.client.get("/v1/audit")).json()["entries"]
    assert (entry["target"], entry["reason"], entry["actor"]) == (facts.prepared, "paid", "anonymous@127.0.0.1")
    fake.views[facts.prepared] = replace(fake.views[facts.prepared], state=TransactionState.PARKED)
    parked = (await live.client.get("/v1/parked")).json()["transactions"]
    assert [shown["transaction_id"] for shown in parked] == [facts.prepared]

"""Producer groups over HTTP."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.live_server import LiveServer
from tests.support.problems import check_problem, named_places
from tests.support.whole_bridge import WholeBridge

PATH = "/v1/producer-groups/orders"
URL = {"url": "https://orders.example.com/check"}
DEFAULTS = {
    "transaction_timeout_seconds": 6.0,
    "interval_seconds": 30.0,
    "max_checks": 15,
    "max_lifetime_seconds": 86400.0,
    "call_timeout_seconds": 5.0,
    "batch_size": 100,
    "concurrency": 8,
    "mode": "push",
    "when_exhausted": "park",
}


async def test_group_is_created_with_defaults_and_its_secret_once(live: LiveServer) -> None:
    """201 with the secret, 200 without it when it is replaced."""
    created = await live.client.put(PATH, json={"endpoints": [URL]})
    assert (created.status_code, created.headers["location"]) == (201, PATH)
    assert created.headers["cache-control"] == "no-store"
    shown = created.json()
    assert (shown["secret"], shown["check"]) == ("whsec_first", DEFAULTS)
    replaced = await live.client.put(PATH, json={"check": {"max_checks": 3, "call_timeout_seconds": 0.25}})
    assert replaced.status_code == 200
    assert "secret" not in replaced.json()
    assert replaced.json()["check"] == {**DEFAULTS, "max_checks": 3, "call_timeout_seconds": 0.25}
    assert replaced.json()["endpoints"] == []


async def test_group_can_be_switched_off_and_roll_back_what_nobody_decides(live: LiveServer) -> None:
    """Both are shown, and a later PUT that does not name them has the defaults."""
    body = {"accept_prepares": False, "check": {"when_exhausted": "rollback"}}
    for shown in (await live.client.put(PATH, json=body), await live.client.get(PATH)):
        assert shown.json()["accept_prepares"] is False
        assert shown.json()["check"]["when_exhausted"] == "rollback"
    replaced = (await live.client.put(PATH, json={})).json()
    assert (replaced["accept_prepares"], replaced["check"]["when_exhausted"]) == (True, "park")


async def test_group_is_shown_with_health_and_counts(live: LiveServer) -> None:
    """What became of its rounds, and what is pending."""
    await live.client.put(PATH, json={"endpoints": [URL]})
    shown = (await live.client.get(PATH)).json()
    assert shown["endpoints"] == [
        {
            **URL,
            "leased": False,
            "lease_until": None,
            "disabled_reason": None,
            "answered": 1,
            "last_answered_at": "2026-01-31T12:00:00.123Z",
            "last_latency_ms": 12,
            "unanswered": 3,
            "last_unanswered_at": "2026-01-31T12:00:00.123Z",
            "last_failure": "timeout",
        }
    ]
    assert shown["unasked"] == {"count": 2, "last_at": "2026-01-31T12:00:00.123Z"}
    assert (shown["counts"]["pending"], shown["counts"]["oldest_pending_seconds"]) == (1, 2.0)
    assert "secret" not in shown


async def test_groups_are_listed_page_by_page(live: LiveServer) -> None:
    """In the order of their names."""
    for name in ("b", "a", "c"):
        await live.client.put(f"/v1/producer-groups/{name}", json={})
    first = (await live.client.get("/v1/producer-groups?limit=2")).json()
    rest = (await live.client.get(f"/v1/producer-groups?limit=2&cursor={first['next']}")).json()
    assert [group["name"] for page in (first, rest) for group in page["producer_groups"]] == ["a", "b", "c"]
    assert rest["next"] is None


async def test_secret_is_rotated_and_group_removed(live: LiveServer) -> None:
    """Neither needs a body."""
    await live.client.put(PATH, json={})
    rotated = await live.client.post(f"{PATH}/rotate-secret")
    assert rotated.json() == {"name": "orders", "secret": "whsec_second"}
    assert (await live.client.delete(PATH)).json() == {"name": "orders"}
    check_problem(await live.client.get(PATH), 404, "unknown-producer-group")
    check_problem(await live.client.delete(PATH), 404, "unknown-producer-group")
    check_problem(await live.client.post(f"{PATH}/rotate-secret"), 404, "unknown-producer-group")


async def test_operator_pauses_checks_and_prepares(live: LiveServer) -> None:
    """Each with a reason; a put leaves paused checks paused."""
    await live.client.put(PATH, json={})
    for what, paused in (("checks", (True, True)), ("prepares", (True, False))):
        found = await live.client.post(f"{PATH}/pause", json={"what": what, "reason": "moved"})
        assert (found.json()["checks_paused"], found.json()["accept_prepares"]) == paused
    assert (await live.client.get(PATH)).json()["checks_paused"] is True
    resumed = await live.client.post(f"{PATH}/resume", json={"what": "checks", "reason": "back"})
    assert resumed.json() == {"name": "orders", "checks_paused": False, "accept_prepares": False}
    check_problem(
        await live.client.post(f"{PATH}/pause", json={"what": "checks", "reason": " "}), 422, "invalid-request"
    )
    check_problem(await live.client.post(f"{PATH}/pause", json={"what": "all", "reason": "x"}), 422, "invalid-request")
    nobody = await live.client.post("/v1/producer-groups/nobody/pause", json={"what": "checks", "reason": "x"})
    check_problem(nobody, 404, "unknown-producer-group")


async def test_operator_pauses_prepares_of_all_groups(live: LiveServer) -> None:
    """With a reason, which is kept; may be repeated."""
    for act, takes in (("pause", False), ("pause", False), ("resume", True)):
        assert (await live.client.post(f"/v1/{act}", json={"reason": "a move"})).json() == {"accept_prepares": takes}
    check_problem(await live.client.post("/v1/pause", json={"reason": " "}), 422, "invalid-request")


async def test_group_in_use_stays(live: LiveServer) -> None:
    """409: something of it is still to be done."""
    check_problem(await live.client.delete("/v1/producer-groups/busy"), 409, "producer-group-in-use")


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"check": {"mode": "poll"}}, "/check/mode"),
        ({"check": {"transaction_timeout_seconds": 0.999}}, "/check/transaction_timeout_seconds"),
        ({"check": {"transaction_timeout_seconds": 86_401}}, "/check/transaction_timeout_seconds"),
        ({"check": {"interval_seconds": 0}}, "/check/interval_seconds"),
        ({"check": {"interval_seconds": 3_601}}, "/check/interval_seconds"),
        ({"check": {"max_checks": 0}}, "/check/max_checks"),
        ({"check": {"max_checks": 1_001}}, "/check/max_checks"),
        ({"check": {"max_lifetime_seconds": 604_801}}, "/check/max_lifetime_seconds"),
        ({"check": {"call_timeout_seconds": 0.09}}, "/check/call_timeout_seconds"),
        ({"check": {"call_timeout_seconds": 61}}, "/check/call_timeout_seconds"),
        ({"check": {"batch_size": 1_001}}, "/check/batch_size"),
        ({"check": {"concurrency": 257}}, "/check/concurrency"),
        ({"check": {"interval": 3}}, "/check/interval"),
        ({"endpoints": [URL, URL]}, "/endpoints"),
        ({"endpoints": [{"uri": "x"}]}, "/endpoints/0/uri"),
        ({"endpoints": [{"url": ""}]}, "/endpoints/0/url"),
    ],
)
async def test_settings_outside_their_bounds_are_refused(body: Any, place: str, live: LiveServer) -> None:
    """422 with the place."""
    problem = check_problem(await live.client.put(PATH, json=body), 422, "invalid-request")
    assert named_places(problem) == {place}


async def test_url_that_may_not_be_called_is_refused(live: LiveServer) -> None:
    """No hint why beyond the rule."""
    answer = await live.client.put(PATH, json={"endpoints": [URL, {"url": "http://10.0.0.1/"}]})
    assert named_places(check_problem(answer, 422, "callback-url-forbidden")) == {"/endpoints/1/url"}


async def test_names_are_checked_in_the_path(live: LiveServer) -> None:
    """As in bodies."""
    for name in ("a%20b", "g" * 121, "a%0A"):
        problem = check_problem(await live.client.put(f"/v1/producer-groups/{name}", json={}), 422, "invalid-request")
        assert named_places(problem) == {"?group"}


async def test_endpoint_is_leased_and_left(live: LiveServer) -> None:
    """A minute unless another time is asked for; shown with its end; left once, and again for nothing."""
    await live.client.put(PATH, json={"endpoints": [URL]})
    leased = {"url": "https://orders-7.example.com/check?id=7"}
    hidden = {"url": "https://orders-7.example.com/check?<hidden>"}
    shown = {**hidden, "leased": True, "lease_until": "2026-01-31T12:01:00.123Z"}
    assert (await live.client.post(f"{PATH}/endpoints", json=leased)).json() == shown
    longer = await live.client.post(f"{PATH}/endpoints", json={**leased, "lease_seconds": 90.5})
    assert longer.json()["lease_until"] == "2026-01-31T12:01:30.623Z"
    assert (await live.client.post(f"{PATH}/endpoints", json=URL)).json() == {
        **URL,
        "leased": False,
        "lease_until": None,
    }
    assert [e["leased"] for e in (await live.client.get(PATH)).json()["endpoints"]] == [False, True]
    for removed in (True, False):
        answer = await live.client.delete(f"{PATH}/endpoints", params=leased)
        assert (answer.status_code, answer.json()) == (200, {**hidden, "removed": removed})
    assert (await live.client.delete(f"{PATH}/endpoints", params=URL)).json() == {**URL, "removed": False}


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "/url"),
        ({"url": ""}, "/url"),
        ({**URL, "lease_seconds": 0.9}, "/lease_seconds"),
        ({**URL, "lease_seconds": 86_401}, "/lease_seconds"),
        ({**URL, "lease": 60}, "/lease"),
    ],
)
async def test_malformed_lease_is_refused(body: Any, place: str, live: LiveServer) -> None:
    """422 with the place."""
    await live.client.put(PATH, json={})
    problem = check_problem(await live.client.post(f"{PATH}/endpoints", json=body), 422, "invalid-request")
    assert named_places(problem) == {place}


async def test_lease_needs_a_group_and_a_url_that_may_be_called(live: LiveServer) -> None:
    """404, 422; which endpoint is to be left must be said."""
    check_problem(await live.client.post(f"{PATH}/endpoints", json=URL), 404, "unknown-producer-group")
    check_problem(await live.client.delete(f"{PATH}/endpoints", params=URL), 404, "unknown-producer-group")
    await live.client.put(PATH, json={})
    inward = await live.client.post(f"{PATH}/endpoints", json={"url": "http://10.0.0.1/"})
    assert named_places(check_problem(inward, 422, "callback-url-forbidden")) == {"/url"}
    missing = await live.client.delete(f"{PATH}/endpoints")
    assert named_places(check_problem(missing, 422, "invalid-request")) == {"?url"}


def test_endpoint_that_left_is_none_of_the_group(tmp_path: Path) -> None:
    """`group set` puts the endpoints that it reads: those of long ago, of which results are kept, would be asked again,
    and `doctor` would find them broken for ever."""
    old, new = "https://old.example/check", "https://new.example/check"
    path, fast = "/v1/producer-groups/shop", {"transaction_timeout_seconds": 1, "interval_seconds": 1}
    with WholeBridge(tmp_path, {"orders": 1}) as bridge:
        bridge.call("PUT", path, {"endpoints": [{"url": old}], "check": fast})
        bridge.call("POST", "/v1/transactions", {"producer_group": "shop", "messages": [{"topic": "orders"}]})
        bridge.pass_ms(60_000)
        [shown] = bridge.call("GET", path).document["endpoints"]
        assert (shown["url"], shown["unanswered"] > 0) == (old, True)
        bridge.call("PUT", path, {"endpoints": [{"url": new}], "check": fast})
        bridge.pass_ms(60_000)
        for group in (bridge.call("GET", path).document, *bridge.call("GET", path[:-5]).document["producer_groups"]):
            assert [endpoint["url"] for endpoint in group["endpoints"]] == [new]

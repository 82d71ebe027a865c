"""A group that fetches its checks, through the whole bridge: HTTP, settler, checker, projector, SQL."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.whole_bridge import Reply, WholeBridge

GROUP = "/v1/producer-groups/shop"
NOW = {"wait_seconds": 0}
NONCE = re.compile(r"[1-9][0-9]*-[0-9A-Za-z_-]{44}")


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[WholeBridge]:
    """One whose group `shop` fetches its checks, 6 s and then every 10 s, three at most."""
    with WholeBridge(tmp_path, {"orders": 2}) as made:
        put(made, mode="pull")
        yield made


def put(bridge: WholeBridge, **check: object) -> None:
    settings = {"interval_seconds": 10, "max_checks": 3, **check}
    assert bridge.call("PUT", GROUP, {"check": settings}).status in {200, 201}


def prepare(bridge: WholeBridge, **members: object) -> str:
    message = {"topic": "orders", "key": "42", "value": {"n": 12345678901234567890}, "headers": [["h", "1"]]}
    body = {"producer_group": "shop", "messages": [message], **members}
    reply = bridge.call("POST", "/v1/transactions", body)
    assert reply.status == 201, reply.body
    return str(reply.document["transaction_id"])


def claim(bridge: WholeBridge, **body: object) -> list[Any]:
    reply = bridge.call("POST", f"{GROUP}/checks/claim", {**NOW, **body})
    assert reply.status == 200, reply.body
    checks: list[Any] = reply.document["checks"]
    return checks


def answer(bridge: WholeBridge, check: Any, resolution: str) -> Reply:
    item = {"transaction_id": check["transaction_id"], "nonce": check["nonce"], "resolution": resolution}
    return bridge.call("POST", "/v1/resolutions", {"resolutions": [item]})


def get(bridge: WholeBridge, transaction_id: str) -> Any:
    return bridge.call("GET", f"/v1/transactions/{transaction_id}").document


def test_check_is_fetched_as_a_call_would_send_it_and_answered(bridge: WholeBridge) -> None:
    """None before its time; then whole, with a nonce that carries its number; its answer publishes."""
    transaction_id = prepare(bridge, idempotency_key="order-42")
    assert claim(bridge) == []
    bridge.pass_ms(6_500)
    reply = bridge.call("POST", f"{GROUP}/checks/claim", NOW)
    document = reply.document
    assert (document["type"], document["producer_group"]) == ("transaction.check", "shop")
    assert reply.headers["cache-control"] == "no-store"
    (check,) = document["checks"]
    born = get(bridge, transaction_id)["born_time"]
    message = {"topic": "orders", "key": "42", "value": {"n": 12345678901234567890}, "headers": [["h", "1"]]}
    nonce = check.pop("nonce")
    assert nonce.startswith("1-")
    assert check == {
        "transaction_id": transaction_id,
        "check_number": 1,
        "born_time": born,
        "idempotency_key": "order-42",
        "messages": [message],
    }
    assert claim(bridge) == []
    answer(bridge, {**check, "nonce": nonce}, "COMMIT")
    found = get(bridge, transaction_id)
    assert (found["state"], found["resolved_by"]) == ("COMMITTED", "check")
    bridge.pass_ms(60_000)
    assert claim(bridge) == []


def test_waiting_claim_is_answered_when_something_is_due(bridge: WholeBridge) -> None:
    """A long poll ends with the check, or empty after its time."""
    transaction_id = prepare(bridge)
    began_ms = bridge.clock.monotonic_ms()
    (check,) = claim(bridge, wait_seconds=30)
    assert (check["transaction_id"], check["check_number"]) == (transaction_id, 1)
    assert NONCE.fullmatch(check["nonce"])
    assert 6_000 <= bridge.clock.monotonic_ms() - began_ms <= 7_000
    began_ms = bridge.clock.monotonic_ms()
    assert claim(bridge, wait_seconds=2.5) == []
    assert bridge.clock.monotonic_ms() - began_ms == 2_500


def test_unknown_uses_one_up_and_comes_again_until_it_is_parked(bridge: WholeBridge) -> None:
    """The next check comes after the interval with the next number; after the last it is parked (K, S)."""
    transaction_id = prepare(bridge)
    for number in (1, 2, 3):
        (check,) = claim(bridge, wait_seconds=30, lease_seconds=1)
        assert check["check_number"] == number
        reply = answer(bridge, check, "UNKNOWN")
        assert reply.document["results"][0]["state"] == "PREPARED"
        bridge.pass_ms(5_000)
        assert claim(bridge) == []
    bridge.pass_ms(6_000)
    found = get(bridge, transaction_id)
    assert (found["state"], found["reason"], found["check_times"]) == ("PARKED", "MAX_CHECKS", 3)
    assert claim(bridge) == []
    events = bridge.call("GET", f"/v1/transactions/{transaction_id}/timeline").document["events"]
    assert [event["type"] for event in events] == ["prepared", *["check_answered"] * 3, "parked"]


def test_answer_that_comes_twice_counts_once(bridge: WholeBridge) -> None:
    """A claimer repeats itself, or two have held the check one after the other."""
    transaction_id = prepare(bridge)
    (first,) = claim(bridge, wait_seconds=30, lease_seconds=1)
    (second,) = claim(bridge, wait_seconds=30)
    assert second["check_number"] == first["check_number"] == 1
    for check in (second, first, first):
        answer(bridge, check, "UNKNOWN")
    assert get(bridge, transaction_id)["check_times"] == 1


def test_what_ended_is_not_handed_out(bridge: WholeBridge) -> None:
    """The producer ended it a moment before somebody fetches."""
    ended, left = prepare(bridge), prepare(bridge)
    bridge.pass_ms(6_500)
    bridge.call("POST", f"/v1/transactions/{ended}/rollback")
    assert [check["transaction_id"] for check in claim(bridge)] == [left]


def test_late_answer_to_what_ended_hears_the_truth(bridge: WholeBridge) -> None:
    """First recorded resolution wins (F, 27)."""
    transaction_id = prepare(bridge)
    (check,) = claim(bridge, wait_seconds=30)
    bridge.call("POST", f"/v1/transactions/{transaction_id}/commit")
    (result,) = answer(bridge, check, "ROLLBACK").document["results"]
    assert (result["status"], result["problem"]["state"]) == (409, "COMMITTED")


def test_check_asked_for_by_hand_lies_ready_at_once(bridge: WholeBridge) -> None:
    """An operator's check of a group that fetches goes the same way."""
    put(bridge, mode="pull", interval_seconds=3_600)
    transaction_id = prepare(bridge)
    (check,) = claim(bridge, wait_seconds=30)
    answer(bridge, check, "UNKNOWN")
    bridge.pass_ms(60_000)
    assert claim(bridge) == []
    assert bridge.call("POST", f"/v1/transactions/{transaction_id}/check").status == 202
    (again,) = claim(bridge, wait_seconds=5)
    assert (again["transaction_id"], again["check_number"]) == (transaction_id, 2)


def test_resumed_transaction_is_fetched_again(bridge: WholeBridge) -> None:
    """Numbers go on; the first check of its new life comes at once."""
    put(bridge, mode="pull", max_checks=1)
    transaction_id = prepare(bridge)
    answer(bridge, claim(bridge, wait_seconds=30)[0], "UNKNOWN")
    bridge.pass_ms(15_000)
    assert get(bridge, transaction_id)["state"] == "PARKED"
    bridge.call("POST", f"/v1/transactions/{transaction_id}/resume", {"reason": "the shop is back"})
    (check,) = claim(bridge, wait_seconds=5)
    assert check["check_number"] == 2
    answer(bridge, check, "COMMIT")
    assert get(bridge, transaction_id)["state"] == "COMMITTED"


def test_one_answer_holds_what_fits(bridge: WholeBridge) -> None:
    """8 MiB of values; the rest is free for the next claim at once."""
    ids = [prepare(bridge, messages=[{"topic": "orders", "key": f"{n}", "value": "v" * 900_000}]) for n in range(10)]
    bridge.pass_ms(7_000)
    first, second = claim(bridge, lease_seconds=600), claim(bridge, lease_seconds=600)
    assert (len(first), len(second)) == (9, 1)
    assert sorted(check["transaction_id"] for check in first + second) == sorted(ids)


def test_rounds_are_told_in_timeline_and_health(bridge: WholeBridge) -> None:
    """Nobody came; somebody came and said nothing; somebody answered."""
    transaction_id = prepare(bridge)
    bridge.pass_ms(17_000)
    (check,) = claim(bridge)
    bridge.pass_ms(10_000)
    answer(bridge, check, "ROLLBACK")
    bridge.pass_ms(1_000)
    events = bridge.call("GET", f"/v1/transactions/{transaction_id}/timeline").document["events"]
    failures = {event["failure"]: event["count"] for event in events if event["type"] == "check_unanswered"}
    assert failures == {"not-claimed": 1, "not-answered": 1}
    shown = bridge.call("GET", GROUP).document
    assert (shown["check"]["mode"], shown["endpoints"]) == ("pull", [])
    assert shown["unasked"]["count"] == 2
    assert (shown["fetched"]["answered"], shown["fetched"]["last_answered_at"] is not None) == (1, True)


def test_only_groups_that_fetch_can_claim(bridge: WholeBridge) -> None:
    """409 for one whose endpoints are called, 404 for one that nobody created."""
    put(bridge, mode="push")
    refused = bridge.call("POST", f"{GROUP}/checks/claim", NOW)
    assert (refused.status, refused.document["type"].rpartition("/")[2]) == (409, "not-pull-mode")
    missing = bridge.call("POST", "/v1/producer-groups/nobody/checks/claim", NOW)
    assert (missing.status, missing.document["type"].rpartition("/")[2]) == (404, "unknown-producer-group")

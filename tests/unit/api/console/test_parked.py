"""Acts on all parked transactions that match, from the pages."""

import re

import pytest

from bridge.service import redrive
from tests.support.whole_bridge import Reply, WholeBridge


@pytest.fixture
def parked(bridge: WholeBridge) -> list[str]:
    """Three parked transactions of a shop, one of a bank."""
    ids = []
    for group in ("shop", "shop", "shop", "bank"):
        bridge.call("PUT", f"/v1/producer-groups/{group}", {"check": {"max_lifetime_seconds": 30}})
        body = {"producer_group": group, "messages": [{"topic": "orders", "value": "x"}]}
        ids.append(str(bridge.call("POST", "/v1/transactions", body).document["transaction_id"]))
    bridge.pass_ms(120_000)
    return ids


def states(bridge: WholeBridge, ids: list[str]) -> list[str]:
    return [bridge.call("GET", f"/v1/transactions/{one}").document["state"] for one in ids]


def begin(bridge: WholeBridge, **fields: str) -> Reply:
    given = {"producer_group": "shop", "action": "commit", "reason": "r", "phrase": "commit 3", "typed": "commit 3"}
    return bridge.submit("/console/redrive", {**given, **fields})


def test_count_comes_first_and_is_what_has_to_be_typed(bridge: WholeBridge, parked: list[str]) -> None:
    """Of what the filter matches."""
    assert "bank" in bridge.call("GET", "/console/parked").body.decode()
    page = bridge.call("GET", "/console/redrive?action=commit&producer_group=shop&topic=").body.decode()
    assert 'name="phrase" value="commit 3"' in page
    assert sorted(set(re.findall(r"transactions/(\w{28})", page))) == sorted(parked[:3])
    assert bridge.call("GET", "/console/redrive?action=explode").status == 422
    assert states(bridge, parked) == ["PARKED"] * 4


def test_job_acts_on_what_matches_and_shows_how_far_it_is(bridge: WholeBridge, parked: list[str]) -> None:
    """And on nothing else; it is in the list of jobs."""
    begun = begin(bridge)
    assert begun.status == 303
    place = begun.headers["location"].removeprefix("./")
    assert place.endswith("?of=3")
    bridge.pass_ms(30_000)
    assert states(bridge, parked) == ["COMMITTED"] * 3 + ["PARKED"]
    page = bridge.call("GET", f"/console/{place}").body.decode()
    assert "3 of 3 done" in page
    part = bridge.call("GET", f"/console/{place}", headers={"hx-request": "true"}).body.decode()
    assert part.startswith("<div")
    assert place.partition("?")[0] in bridge.call("GET", "/console/parked").body.decode()


@pytest.mark.parametrize(
    "wrong",
    [
        {"typed": "commit"},
        {"typed": "", "phrase": ""},
        {"typed": "commit x", "phrase": "commit x"},
        {"typed": "resume 3", "phrase": "resume 3"},
        {"typed": "commit 2", "phrase": "commit 2"},
        {"reason": " "},
        {"rate": "0"},
        {"rate": "x"},
        {"rate": "0000000019"},
        {"rate": "0" * 8_000 + "1"},
    ],
)
def test_nothing_is_done_by_mistake(bridge: WholeBridge, parked: list[str], wrong: dict[str, str]) -> None:
    """The page says what is missing."""
    refused = begin(bridge, **wrong)
    assert (refused.status, "Nothing was done" in refused.body.decode()) == (422, True)
    bridge.pass_ms(10_000)
    assert states(bridge, parked) == ["PARKED"] * 4


def test_nothing_is_done_to_more_than_were_counted(bridge: WholeBridge, parked: list[str]) -> None:
    """A page may be old, and others be parked since; it counts again. That fewer are left harms nobody."""
    body = {"producer_group": "shop", "messages": [{"topic": "orders", "value": "x"}]}
    late = str(bridge.call("POST", "/v1/transactions", body).document["transaction_id"])
    bridge.pass_ms(120_000)
    refused = begin(bridge)
    page = refused.body.decode()
    assert (refused.status, "more match now" in page, 'value="commit 4"' in page) == (422, True, True)
    bridge.pass_ms(10_000)
    assert states(bridge, [*parked, late]) == ["PARKED"] * 5
    assert bridge.call("POST", f"/v1/transactions/{parked[0]}/rollback").status == 200
    bridge.pass_ms(5_000)
    assert begin(bridge).status == 303
    bridge.pass_ms(30_000)
    assert states(bridge, [*parked, late]) == ["ROLLED_BACK", "COMMITTED", "COMMITTED", "PARKED", "COMMITTED"]


def test_nothing_is_done_to_more_than_can_be_counted(
    bridge: WholeBridge, parked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were exactly as many as are counted at most, and are more now."""
    monkeypatch.setattr(redrive, "_MAX_COUNTED", 3)
    monkeypatch.setattr(redrive, "MAX_PAGE", 3)
    body = {"producer_group": "shop", "messages": [{"topic": "orders", "value": "x"}]}
    bridge.call("POST", "/v1/transactions", body)
    bridge.pass_ms(120_000)
    refused = begin(bridge)
    assert (refused.status, 'value="commit 3+"' in refused.body.decode()) == (422, True)
    bridge.pass_ms(10_000)
    assert states(bridge, parked) == ["PARKED"] * 4


def test_job_is_stopped(bridge: WholeBridge, parked: list[str]) -> None:
    """With a reason."""
    place = begin(bridge, rate="1").headers["location"].removeprefix("./").partition("?")[0]
    assert bridge.submit(f"/console/{place}/stop", {"reason": ""}).status == 422
    assert bridge.submit(f"/console/{place}/stop", {"reason": "wrong shop"}).status == 303
    assert "stopped" in bridge.call("GET", f"/console/{place}").body.decode()
    assert bridge.call("GET", "/console/redrive/nothing").status == 404
    assert bridge.call("GET", "/console/redrive/%2e%2e").status == 404

"""Groups, audit and settings as pages."""

from dataclasses import replace
from pathlib import Path

from tests.support.whole_bridge import WholeBridge

URL = "https://shop.example/check?token=secret"


def page_of(bridge: WholeBridge, path: str) -> str:
    return bridge.call("GET", f"/console/{path}").body.decode()


def test_group_shows_who_answers_and_what_came_of_it(bridge: WholeBridge) -> None:
    """Its endpoint without the query, which may be a secret, and the last failure."""
    bridge.endpoints[URL] = lambda *_: None  # type: ignore[assignment, return-value]
    assert bridge.call("PUT", "/v1/producer-groups/shop", {"endpoints": [{"url": URL}]}).status == 201
    assert "shop" in page_of(bridge, "groups")
    page = page_of(bridge, "groups/shop")
    assert "https://shop.example/check" in page
    assert "secret-" not in page.replace("rotate-secret", "")
    assert "token=" not in page
    assert bridge.call("GET", "/console/groups/nobody").status == 404


def test_secret_is_shown_once(bridge: WholeBridge) -> None:
    """And never in the audit."""
    bridge.call("PUT", "/v1/producer-groups/shop", {})
    reply = bridge.submit("/console/groups/shop/rotate-secret", {})
    assert (reply.status, reply.headers["cache-control"], b"whsec_" in reply.body) == (200, "no-store", True)
    assert "whsec_" not in page_of(bridge, "groups/shop")
    audit = page_of(bridge, "audit")
    assert "producer-group.rotate-secret" in audit
    assert "whsec_" not in audit


def test_group_without_an_endpoint_says_what_to_do(bridge: WholeBridge) -> None:
    """Nobody would be asked."""
    bridge.call("PUT", "/v1/producer-groups/shop", {})
    assert "It has no endpoint" in page_of(bridge, "groups/shop")


def test_settings_are_shown_with_their_origin(bridge: WholeBridge) -> None:
    """Where they are known."""
    assert "They are not known here." in page_of(bridge, "settings")


def test_checks_of_a_group_are_paused_and_go_on(bridge: WholeBridge) -> None:
    """With a reason, which the audit keeps; the page and the transactions say it."""
    bridge.call("PUT", "/v1/producer-groups/shop", {"endpoints": [{"url": URL}]})
    half = {"producer_group": "shop", "messages": [{"topic": "orders"}]}
    pending = bridge.call("POST", "/v1/transactions", half).document["transaction_id"]
    unsaid = bridge.submit("/console/groups/shop/pause", {"what": "checks", "reason": " "})
    assert (unsaid.status, "say why" in unsaid.body.decode()) == (422, True)
    assert bridge.submit("/console/groups/shop/pause", {"what": "all", "reason": "moved"}).status == 422
    paused = bridge.submit("/console/groups/shop/pause", {"what": "checks", "reason": "moved"})
    assert (paused.status, paused.headers["location"]) == (303, "../../groups/shop")
    assert "Its checks are paused" in page_of(bridge, "groups/shop")
    assert "paused" in page_of(bridge, "groups")
    bridge.pass_ms(60_000)
    assert "paused the checks" in page_of(bridge, f"transactions/{pending}")
    assert "Nobody answers" not in page_of(bridge, "")
    assert bridge.submit("/console/groups/shop/resume", {"what": "checks", "reason": "back"}).status == 303
    bridge.pass_ms(60_000)
    assert "Its checks are paused" not in page_of(bridge, "groups/shop")
    assert "Nobody answers" in page_of(bridge, "")
    assert "producer-group.pause" in page_of(bridge, "audit")


def test_group_shows_how_its_calls_went(bridge: WholeBridge) -> None:
    """The share that was answered, and how long they took."""
    bridge.call("PUT", "/v1/producer-groups/shop", {"endpoints": [{"url": URL}]})
    assert "nothing was asked yet" in page_of(bridge, "groups/shop")
    assert "no call yet" in page_of(bridge, "groups/shop")
    bridge.call("POST", "/v1/transactions", {"producer_group": "shop", "messages": [{"topic": "orders"}]})
    bridge.pass_ms(10_000)
    page = page_of(bridge, "groups/shop")
    assert "0 of 1, 0.0 %" in page
    assert "up to 1 ms" in page


def test_page_says_so_where_no_process_has_told_of_calls(tmp_path: Path) -> None:
    """As of an api process of its own that has not heard of a settler."""
    with WholeBridge(tmp_path, {"orders": 1}, adapt=lambda usual: replace(usual, calls_of=lambda _: None)) as bridge:
        bridge.call("PUT", "/v1/producer-groups/shop", {"endpoints": [{"url": URL}]})
        bridge.call("PUT", "/v1/producer-groups/puller", {"check": {"mode": "pull"}})
        page = page_of(bridge, "groups/shop")
        assert "not told yet by any process" in page
        assert "Calls now" not in page
        assert "not told yet by any process" not in page_of(bridge, "groups/puller")


def test_endpoints_are_tested_with_one_signed_call(bridge: WholeBridge) -> None:
    """The page says what came of it, and leaves nothing behind."""
    bridge.call("PUT", "/v1/producer-groups/shop", {"endpoints": [{"url": URL}]})
    tested = bridge.submit("/console/groups/shop/test", {})
    page = tested.body.decode()
    assert (tested.status, "One signed call to each endpoint" in page, ">bad<" in page) == (200, True, True)
    assert "token=" not in page
    bridge.call("PUT", "/v1/producer-groups/none", {})
    assert "no endpoint that could be called" in bridge.submit("/console/groups/none/test", {}).body.decode()
    assert bridge.submit("/console/groups/nobody/test", {}).status == 404

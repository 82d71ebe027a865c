"""Pages as they are sent: what they say, and what they let a browser do."""

import re
from pathlib import Path

import pytest

from api.web.request import Services
from tests.support.whole_bridge import Reply, WholeBridge

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m\"'&"


def get(bridge: WholeBridge, path: str) -> Reply:
    return bridge.call("GET", f"/console/{path}")


def text_of(reply: Reply) -> str:
    return reply.body.decode()


def prepare(bridge: WholeBridge, group: str = "orders", **message: object) -> str:
    body = {"producer_group": group, "messages": [{"topic": "orders", "value": {"n": 1}, **message}]}
    reply = bridge.call("POST", "/v1/transactions", body)
    assert reply.status == 201, reply.document
    return str(reply.document["transaction_id"])


@pytest.mark.parametrize(
    "path",
    [
        "",
        "search",
        "parked",
        "groups",
        "topics",
        "reports",
        "audit",
        "settings",
        "search?state=PARKED",
        "search?q=nothing",
        "nowhere",
        "assets/x.js",
    ],
)
def test_pages_let_a_browser_load_nothing_from_elsewhere(bridge: WholeBridge, path: str) -> None:
    """No script, style or handler inside; nothing that could frame it, or change where its addresses lead."""
    reply = get(bridge, path)
    policy = reply.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(policy.split("; "))
    assert reply.headers["x-content-type-options"] == "nosniff"
    page = text_of(reply)
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script>|https?://", page), page
    assert reply.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("path", ["search?limit=500", "audit?limit=500"])
def test_others_are_served_while_a_long_page_is_made(path: str, tmp_path: Path) -> None:
    """Five hundred rows take tenths of a second, in which the process would answer no commit."""
    kept: list[Services] = []

    def keep(services: Services) -> Services:
        kept.append(services)
        return services

    with WholeBridge(tmp_path, {"orders": 1}, adapt=keep) as bridge:
        for number in range(40):
            prepare(bridge, key="k" * 150)
            bridge.call("PUT", f"/v1/producer-groups/g{number}", {})
        bridge.pass_ms(2_000)
        turns = kept[0].turns
        before = turns.taken
        page = text_of(get(bridge, path))
        assert page.count("<tr>") > 40
        assert turns.taken - before >= len(page) // 16_384 >= 1


def test_addresses_are_relative_so_that_a_proxy_may_put_a_path_before_them(bridge: WholeBridge) -> None:
    """No page knows where it is mounted."""
    transaction_id = prepare(bridge)
    for path in ("", "search", f"transactions/{transaction_id}"):
        addresses = re.findall(r'(?:href|src|action)="([^"]*)"', text_of(get(bridge, path)))
        assert addresses
        assert [one for one in addresses if one.startswith("/")] == []
    assert bridge.call("GET", "/console").headers["location"] == "console/"


def test_problems_are_pages_with_the_status_of_the_interface(bridge: WholeBridge) -> None:
    """And say what is wrong in the same words."""
    unknown = get(bridge, "transactions/00" + "7" * 25 + "0")
    assert (unknown.status, "Unknown transaction" in text_of(unknown)) == (404, True)
    assert get(bridge, "nowhere").status == 404
    assert get(bridge, "search?state=X").status == 422
    assert get(bridge, "search?cursor=zzz").status == 422


def test_one_box_finds_whatever_one_has_at_hand(bridge: WholeBridge) -> None:
    """The page that is meant; a choice where it is not certain."""
    transaction_id = prepare(bridge, group="shop", key="k-7")
    prepare(bridge, group="orders")
    bridge.pass_ms(3_000)
    keyed = {"producer_group": "shop", "idempotency_key": "i-7", "messages": [{"topic": "orders"}]}
    bridge.call("POST", "/v1/transactions", keyed)
    bridge.pass_ms(3_000)
    beginning = transaction_id[:20]
    asked = (transaction_id, beginning, "shop", "k-7", "orders", "K-7", "i-7")
    found = {text: get(bridge, f"search?q={text}") for text in asked}
    assert found["i-7"].headers["location"] == "./search?idempotency_key=i-7"
    assert found[beginning].headers["location"] == f"./search?id_prefix={beginning}"
    assert found[transaction_id].headers["location"] == f"./transactions/{transaction_id}"
    assert found["shop"].headers["location"] == "./search?producer_group=shop"
    assert found["k-7"].headers["location"] == "./search?key=k-7"
    assert "the producer group" in text_of(found["orders"])
    assert "the topic" in text_of(found["orders"])
    assert "Nothing is called" in text_of(found["K-7"])


def test_address_of_a_list_is_all_that_it_depends_on(bridge: WholeBridge) -> None:
    """The next page is a link that keeps the filter; empty fields of the form do not count."""
    ids = []
    for _ in range(5):
        ids.append(prepare(bridge, group="shop"))
        bridge.pass_ms(10)
    bridge.pass_ms(3_000)
    first = text_of(get(bridge, "search?producer_group=shop&topic=&limit=2"))
    (following,) = re.findall(r'rel="next" href="\./(search\?[^"]*)"', first.replace("&amp;", "&"))
    second = text_of(get(bridge, following))
    shown = [re.findall(r'class="id" href="\./transactions/(\w+)"', page) for page in (first, second)]
    assert shown == [ids[:2:-1], ids[2:0:-1]]
    bridge.call("POST", f"/v1/transactions/{ids[4]}/rollback")
    bridge.pass_ms(3_000)
    states = "search?state=PREPARED&state=ROLLED_BACK&limit=1"
    (following,) = re.findall(
        r'rel="next" href="\./(search\?[^"]*)"', text_of(get(bridge, states)).replace("&amp;", "&")
    )
    assert ids[3] in text_of(get(bridge, following))


def test_home_counts_by_state_and_group(bridge: WholeBridge) -> None:
    """As /v1/stats does."""
    first, _ = prepare(bridge, group="shop"), prepare(bridge, group="shop")
    bridge.call("POST", f"/v1/transactions/{first}/commit")
    bridge.pass_ms(3_000)
    page = re.sub(r"\s+", " ", text_of(get(bridge, "")))
    assert '<dt>Pending</dt><dd><a href="./search?state=PREPARED">1</a>' in page
    assert '<dt>Committed</dt><dd><a href="./search?state=COMMITTED">1</a>' in page
    assert '<a href="./search?producer_group=shop&amp;state=COMMITTED">1</a>' in page


def test_transaction_says_why_and_what_next(bridge: WholeBridge) -> None:
    """The sentence of the interface, the timeline, and the message digit by digit."""
    transaction_id = prepare(bridge, key="k", value={"n": 12345678901234567890123})
    said = bridge.call("GET", f"/v1/transactions/{transaction_id}").document["explanation"]
    page = text_of(get(bridge, f"transactions/{transaction_id}"))
    assert said in page
    assert "12345678901234567890123" in page
    assert "<strong>prepared</strong> by <bdi>producer</bdi>" in page


def test_hostile_texts_are_text_wherever_they_stand(bridge: WholeBridge) -> None:
    """In keys, values, names and values of headers, reasons and what was asked for."""
    header = HOSTILE[:25]
    transaction_id = prepare(bridge, key=HOSTILE, value={HOSTILE: HOSTILE}, headers=[[header, HOSTILE]])
    bridge.call(
        "POST", f"/v1/transactions/{transaction_id}/force", {"resolution": "ROLLBACK", "reason": "<script>alert(1)"}
    )
    bridge.pass_ms(3_000)
    for path in (
        f"transactions/{transaction_id}",
        "search",
        "search?q=%3Cscript%3Ealert(1)",
        "search?key=%3Cscript%3E",
    ):
        page = text_of(get(bridge, path))
        assert "<script>alert" not in page
        assert not re.search("[\u202e\x1b]", page)


def test_value_is_saved_as_it_is_and_never_shown(bridge: WholeBridge) -> None:
    """A browser that opened it would run it."""
    transaction_id = prepare(bridge, value="<script>alert(1)</script>")
    saved = get(bridge, f"transactions/{transaction_id}/messages/0")
    assert saved.body == b"<script>alert(1)</script>"
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"].startswith("attachment")
    for number in ("1", "-1", "x", "9" * 5_000):
        assert get(bridge, f"transactions/{transaction_id}/messages/{number}").status == 404


def test_messages_of_a_parked_transaction_are_not_read_unasked(bridge: WholeBridge) -> None:
    """Because a look at them is recorded."""
    bridge.call("PUT", "/v1/producer-groups/shop", {"check": {"max_lifetime_seconds": 30}})
    transaction_id = prepare(bridge, group="shop", value="secret-value")
    bridge.pass_ms(120_000)
    page = text_of(get(bridge, f"transactions/{transaction_id}"))
    assert "PARKED" in page
    assert "secret-value" not in page
    assert "secret-value" in text_of(get(bridge, f"transactions/{transaction_id}?messages=1"))
    acts = [entry["action"] for entry in bridge.call("GET", "/v1/audit").document["entries"]]
    assert acts.count("transaction.read-messages") == 1

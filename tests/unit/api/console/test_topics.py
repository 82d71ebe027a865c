"""Topics as pages: what was published last, and what cannot be."""

import pytest

from tests.support.whole_bridge import WholeBridge


def page_of(bridge: WholeBridge, path: str) -> str:
    return bridge.call("GET", f"/console/{path}").body.decode()


def prepare(bridge: WholeBridge, topic: str) -> str:
    body = {"producer_group": "shop", "messages": [{"topic": topic, "value": 1}]}
    return str(bridge.call("POST", "/v1/transactions", body).document["transaction_id"])


def test_topic_leads_to_its_last_publication(bridge: WholeBridge) -> None:
    """Not to what was rolled back, nor to what is pending."""
    first, second, third = (prepare(bridge, "orders") for _ in range(3))
    bridge.call("POST", f"/v1/transactions/{first}/commit")
    bridge.pass_ms(3_000)
    assert "nothing of late" not in page_of(bridge, "topics")
    bridge.call("POST", f"/v1/transactions/{third}/rollback")
    bridge.pass_ms(3_000)
    for path in ("topics", "topics/orders"):
        page = page_of(bridge, path)
        assert f"transactions/{first}" in page
        assert second not in page
        assert third not in page


def test_blocked_commits_are_counted_by_topic(bridge: WholeBridge) -> None:
    """With the way to them."""
    blocked = prepare(bridge, "orders")
    bridge.memory.cluster.log.delete_topic("orders")
    bridge.call("POST", f"/v1/transactions/{blocked}/commit")
    bridge.pass_ms(5_000)
    assert '<a href="./search?topic=orders&amp;blocked=true">1</a>' in page_of(bridge, "topics")
    assert "nothing of late" in page_of(bridge, "topics/orders")


@pytest.mark.parametrize("path", ["topics/..", "topics/a%20b", f"topics/{'x' * 250}", "topics/%3Cscript%3E"])
def test_what_is_no_name_of_a_topic_is_not_found(bridge: WholeBridge, path: str) -> None:
    """Kafka knows none of these."""
    assert bridge.call("GET", f"/console/{path}").status == 404


def test_without_messages_there_is_no_topic(bridge: WholeBridge) -> None:
    """And the page says so."""
    assert "No transaction has a message yet" in page_of(bridge, "topics")

"""Contents that rules mask: for administrators of the group alone, in pages, downloads and calls."""

import json
from collections.abc import Iterator

import pytest

from bridge.core.grants import MaskRule, Masks
from bridge.core.keyring import RANDOM_BYTES, make_key_text
from bridge.service.access import AccessConfig
from tests.support.whole_bridge import WholeBridge

ADMIN = make_key_text(bytes(RANDOM_BYTES))
VALUE = {"customer": {"iban": "DE02120300000000202051", "city": "Bonn"}, "n": 1}


@pytest.fixture
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeBridge]:
    """One with a rule, which knows who calls."""
    masks, access = (
        Masks([MaskRule("orders", ["user"], ["customer.iban"])]),
        AccessConfig(is_open=False, admin_key=ADMIN),
    )
    with WholeBridge(tmp_path_factory.mktemp("bridge"), {"orders": 1}, access=access, masks=masks) as running:
        yield running


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def make_reader(bridge: WholeBridge) -> dict[str, str]:
    grants = {"grants": [{"verbs": ["read", "operate"], "groups": "shop"}]}
    assert bridge.call("PUT", "/v1/principals/reader", grants, bearer(ADMIN)).status in {200, 201}
    return bearer(bridge.call("POST", "/v1/principals/reader/keys", None, bearer(ADMIN)).document["key"])


def test_masked_contents_are_for_administrators_of_the_group(bridge: WholeBridge) -> None:
    """Whoever may read sees the rest, however he looks."""
    bridge.call("PUT", "/v1/producer-groups/shop", {}, bearer(ADMIN))
    message = {"topic": "orders", "value": VALUE, "headers": [["user", "ada-lovelace"], ["trace", "t-1"]]}
    half = {"producer_group": "shop", "messages": [message]}
    one = bridge.call("POST", "/v1/transactions", half, bearer(ADMIN)).document["transaction_id"]
    reader = make_reader(bridge)
    ways = (
        f"/v1/transactions/{one}?include=messages",
        f"/console/transactions/{one}",
        f"/console/transactions/{one}/messages/0",
    )
    for path in ways:
        for headers, is_shown in ((reader, False), (bearer(ADMIN), True)):
            seen = bridge.call("GET", path, None, headers)
            assert seen.status == 200, (path, seen.body)
            assert (b"DE0212" in seen.body, b"Bonn" in seen.body) == (is_shown, True), path
            if "messages/0" not in path:
                assert (b"ada-lovelace" in seen.body, b"t-1" in seen.body) == (is_shown, True), path
    saved = bridge.call("GET", ways[-1], None, reader)
    assert json.loads(saved.body) == {"customer": {"iban": "***", "city": "Bonn"}, "n": 1}

"""Answers to checks that nobody was ever asked: refused, and nothing is used up."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.whole_bridge import Reply, WholeBridge


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[WholeBridge]:
    """One whose group fetches its checks, three at most."""
    with WholeBridge(tmp_path, {"orders": 1}) as made:
        check = {"mode": "pull", "interval_seconds": 10, "max_checks": 3}
        assert made.call("PUT", "/v1/producer-groups/shop", {"check": check}).status == 201
        yield made


def prepare(bridge: WholeBridge) -> str:
    body = {"producer_group": "shop", "messages": [{"topic": "orders", "value": "v"}]}
    return str(bridge.call("POST", "/v1/transactions", body).document["transaction_id"])


def claim(bridge: WholeBridge) -> dict[str, str]:
    checks: list[Any] = bridge.call("POST", "/v1/producer-groups/shop/checks/claim", {"wait_seconds": 0}).document[
        "checks"
    ]
    return {check["transaction_id"]: check["nonce"] for check in checks}


def answer(bridge: WholeBridge, transaction_id: str, nonce: str, resolution: str = "UNKNOWN") -> Any:
    item = {"transaction_id": transaction_id, "nonce": nonce, "resolution": resolution}
    reply: Reply = bridge.call("POST", "/v1/resolutions", {"resolutions": [item]})
    return reply.document["results"][0]


def test_invented_answers_use_no_check_up_and_never_park(bridge: WholeBridge) -> None:
    """Three UNKNOWNs to checks that were never asked parked a transaction before anybody was asked about it (K)."""
    transaction_id, other = prepare(bridge), prepare(bridge)
    invented = [f"{number}-{'a' * length}" for number in (1, 2, 3) for length in (16, 22, 44, 64)]
    bridge.pass_ms(6_500)
    given_out = claim(bridge)
    for nonce in (*invented, given_out[other], "2" + given_out[transaction_id][1:]):
        result = answer(bridge, transaction_id, nonce)
        assert (result["status"], result["problem"]["errors"][0]["pointer"]) == (422, "/resolutions/0/nonce")
        assert answer(bridge, transaction_id, nonce, "COMMIT")["status"] == 422
    found = bridge.call("GET", f"/v1/transactions/{transaction_id}").document
    assert (found["state"], found["check_times"]) == ("PREPARED", 0)
    assert answer(bridge, transaction_id, given_out[transaction_id], "COMMIT")["status"] == 200
    found = bridge.call("GET", f"/v1/transactions/{transaction_id}").document
    assert (found["state"], found["resolved_by"]) == ("COMMITTED", "check")

"""Acts by hand from the page of a transaction."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from api.console.site import make_site
from bridge.core.message import MessageQueue
from tests.support.whole_bridge import Reply, WholeBridge


def prepare(bridge: WholeBridge, group: str = "shop") -> str:
    body = {"producer_group": group, "messages": [{"topic": "orders", "value": "x"}]}
    return str(bridge.call("POST", "/v1/transactions", body).document["transaction_id"])


def act(bridge: WholeBridge, transaction_id: str, word: str, reason: str = "by phone") -> Reply:
    return bridge.submit(f"/console/transactions/{transaction_id}/{word}", {"reason": reason})


def state_of(bridge: WholeBridge, transaction_id: str) -> str:
    return str(bridge.call("GET", f"/v1/transactions/{transaction_id}").document["state"])


@pytest.mark.parametrize(("word", "state"), [("commit", "COMMITTED"), ("rollback", "ROLLED_BACK")])
def test_pending_transaction_is_ended_and_audited(bridge: WholeBridge, word: str, state: str) -> None:
    """As `force` does, with the reason."""
    transaction_id = prepare(bridge)
    reply = act(bridge, transaction_id, word)
    assert (reply.status, reply.headers["location"]) == (303, f"../../transactions/{transaction_id}?done={word}")
    assert state_of(bridge, transaction_id) == state
    (entry,) = [e for e in bridge.call("GET", "/v1/audit").document["entries"] if e["action"] == "transaction.force"]
    assert (entry["target"], entry["reason"]) == (transaction_id, "by phone")


def test_conflict_shows_what_it_has_become(bridge: WholeBridge) -> None:
    """Nothing is changed, and what was written is not lost."""
    transaction_id = prepare(bridge)
    act(bridge, transaction_id, "commit")
    reply = act(bridge, transaction_id, "rollback", "too late")
    page = reply.body.decode()
    assert reply.status == 409
    assert "It is COMMITTED now." in page
    assert state_of(bridge, transaction_id) == "COMMITTED"


def test_act_without_a_reason_is_not_done(bridge: WholeBridge) -> None:
    """It is asked for again."""
    transaction_id = prepare(bridge)
    for reason in ("", "  ", "\x00"):
        assert act(bridge, transaction_id, "commit", reason).status == 422
    assert state_of(bridge, transaction_id) == "PREPARED"


def test_reason_is_as_long_as_by_the_interface(bridge: WholeBridge) -> None:
    """A longer one would be in an audit that nobody else could have written."""
    transaction_id = prepare(bridge)
    refused = act(bridge, transaction_id, "commit", "x" * 501)
    assert (refused.status, "at most 500 characters" in refused.body.decode()) == (422, True)
    assert bridge.submit("/console/groups/shop/pause", {"what": "checks", "reason": "x" * 501}).status == 422
    assert state_of(bridge, transaction_id) == "PREPARED"
    assert act(bridge, transaction_id, "commit", "x" * 500).status == 303


def test_parked_transaction_is_resumed(bridge: WholeBridge) -> None:
    """And one that is not parked says so; `check` needs no reason."""
    check = {"transaction_timeout_seconds": 60, "max_lifetime_seconds": 30}
    bridge.call("PUT", "/v1/producer-groups/shop", {"check": check})
    transaction_id = prepare(bridge)
    assert act(bridge, transaction_id, "resume").status == 409
    assert act(bridge, transaction_id, "abandon").status == 409
    assert act(bridge, transaction_id, "check", "").status == 409  # too early
    bridge.pass_ms(120_000)
    assert state_of(bridge, transaction_id) == "PARKED"
    assert act(bridge, transaction_id, "resume").status == 303
    assert state_of(bridge, transaction_id) == "PREPARED"


def test_unknown_acts_and_transactions_are_problems(bridge: WholeBridge) -> None:
    """Not errors."""
    transaction_id = prepare(bridge)
    assert act(bridge, transaction_id, "explode").status == 404
    assert act(bridge, "00" + "7" * 25 + "0", "commit").status == 404
    assert act(bridge, "nonsense", "commit").status == 422
    assert bridge.submit(f"/console/transactions/{transaction_id}/commit", {}).status == 422


# what changes nothing of the bridge: who reads, in which language, and an examination
_OF_READERS = {"/console/sign-in", "/console/sign-out", "/console/language", "/console/settings"}


def test_read_only_pages_offer_no_act_and_take_none(tmp_path: Path) -> None:
    """Every form that there is, also those that come later; the HTTP interface acts as ever."""
    with WholeBridge(tmp_path, {"orders": 1}, adapt=lambda usual: replace(usual, is_read_only=True)) as bridge:
        bridge.call("PUT", "/v1/producer-groups/shop", {"check": {"max_lifetime_seconds": 30}})
        parked = prepare(bridge)
        bridge.pass_ms(120_000)
        pending = prepare(bridge)
        for path in (f"transactions/{pending}", f"transactions/{parked}", "parked", "groups/shop"):
            reply = bridge.call("GET", f"/console/{path}")
            forms = re.findall(r'<form method="post"[^>]* action="([^"]*)"', reply.body.decode())
            assert (reply.status, [one for one in forms if not one.endswith("language")]) == (200, []), path
            assert "Act by hand" not in reply.body.decode()
            assert "All that match" not in reply.body.decode()
        ids = {"transaction_id": pending, "group": "shop", "job_id": "j1"}
        acts = [one.path for one in make_site().routes if one.method == "POST" and one.path not in _OF_READERS]
        assert len(acts) >= 11
        for path in acts:
            reply = bridge.submit(path.format_map(ids), {"reason": "by phone", "what": "checks", "action": "resume"})
            assert (reply.status, b"read-only" in reply.body) == (403, True), path
        assert bridge.call("GET", "/console/redrive?action=resume").status == 403
        assert (state_of(bridge, pending), state_of(bridge, parked)) == ("PREPARED", "PARKED")
        assert [e["action"] for e in bridge.call("GET", "/v1/audit").document["entries"]] == ["producer-group.put"]
        body = {"resolution": "ROLLBACK", "reason": "by phone"}
        assert bridge.call("POST", f"/v1/transactions/{pending}/force", body).status == 200


def test_act_that_was_not_settled_in_time_is_not_told_as_something_else(bridge: WholeBridge) -> None:
    """Its page cannot be read then: that the act may have been done must be said all the same, and what to do."""
    transaction_id = prepare(bridge)
    bridge.pass_ms(3_000)  # it has been read and projected
    log, topics = bridge.memory.cluster.log, bridge.memory.topics
    queues = [MessageQueue(topics.op, n) for n in range(topics.queues)]
    for queue in queues:
        log.set_leader(queue, has_leader=False)
    reply = act(bridge, transaction_id, "commit")
    page = reply.body.decode()
    for queue in queues:
        log.set_leader(queue, has_leader=True)
    assert (reply.status, "Not settled in time" in page, "Repeat the same request" in page) == (504, True, True)
    bridge.pass_ms(60_000)
    assert state_of(bridge, transaction_id) == "COMMITTED"

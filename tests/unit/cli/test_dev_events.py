"""api.cli.dev: a line for what happens, once each."""

from typing import Any

import pytest

from api.cli.dev import DevEvents
from tests.support.canned_http import CannedServer

ID = "0206k8e9s5ta7vo3q1m4c8b2h6dg"
AT = "2026-01-31T12:00:00.000Z"
PENDING = {
    "transaction_id": ID, "producer_group": "orders", "state": "PREPARED", "blocked": False, "resolved_by": None
}  # fmt: skip
URL = "http://127.0.0.1:8000"
SILENCE = {"type": "check_unanswered", "failure": "status 401", "endpoint": URL}
ANSWER = {"type": "check_answered", "number": 1, "answer": "COMMIT", "endpoint": URL}


class Stage:
    """A bridge whose one transaction is as it is told, and the lines about it."""

    def __init__(self, bridge: CannedServer) -> None:
        self._bridge = bridge
        self.told: list[str] = []
        self.group: dict[str, Any] = {"endpoints": [{"url": URL}], "check": {"mode": "push"}}
        self.events = DevEvents(
            bridge.url, lambda event: self.told.append(event["text"].removeprefix(f"orders {ID}: "))
        )

    def look(self, row: dict[str, Any], *timeline: dict[str, Any]) -> list[str]:
        """What is said now."""
        self._bridge.answers.clear()
        self._bridge.answer("GET", "/v1/transactions", 200, {"transactions": [row], "next": None})
        self._bridge.answer("GET", "/v1/producer-groups/orders", 200, self.group)
        self._bridge.answer("GET", f"/v1/transactions/{ID}/timeline", 200, {"events": list(timeline)})
        before = len(self.told)
        self.events.look()
        return self.told[before:]


@pytest.fixture
def stage(bridge: CannedServer) -> Stage:
    return Stage(bridge)


def test_rescue_is_told_from_its_beginning(stage: Stage) -> None:
    """Who was asked in vain and why, who answered, and that consumers can read it: each once."""
    assert stage.look(PENDING) == []
    remedy = "the signature was refused: has the endpoint the secret of group orders?"
    assert stage.look(PENDING, SILENCE) == [f"check not answered, asked {URL}: status 401; {remedy}"]
    assert stage.look(PENDING, SILENCE) == []
    ended = PENDING | {"state": "COMMITTED", "resolved_by": "check"}
    assert stage.look(ended, SILENCE, ANSWER, {"type": "published"}) == [
        f"check answered COMMIT by {URL}",
        "rescued: its producer did not end it, and its messages are published",
    ]
    assert stage.look(ended, SILENCE, ANSWER, {"type": "published"}) == []


def test_what_waits_is_told_with_what_to_do(stage: Stage) -> None:
    """Nobody to ask, parked, blocked."""
    (line,) = stage.look(PENDING, {"type": "check_unanswered", "failure": "no-endpoint", "endpoint": None})
    assert line.endswith("nobody is asked: outbox-bridge group put orders --endpoint URL")
    parked = {"type": "parked", "at": AT, "why": "max-checks"}
    assert stage.look(PENDING | {"state": "PARKED"}, parked) == ["parked (max-checks): outbox-bridge parked list"]
    blocked = PENDING | {"state": "COMMITTED", "blocked": True, "resolved_by": "operator"}
    told = stage.look(blocked, parked, {"type": "blocked", "at": AT, "why": "topic-missing"})
    assert told == ["committed, and cannot be published now: topic-missing"]


def test_usual_transaction_is_not_told(stage: Stage, bridge: CannedServer) -> None:
    """Nor looked at any further."""
    assert stage.look(PENDING | {"state": "COMMITTED", "resolved_by": "producer"}, {"type": "published"}) == []
    assert not [asked.path for asked in bridge.asked if "timeline" in asked.path]


def test_group_that_nobody_can_be_asked_of_is_told_once(stage: Stage) -> None:
    """A prepare makes it in `dev`, also with a typing error in its name."""
    stage.group["endpoints"] = []
    (told,) = stage.look(PENDING)
    assert told.startswith("orders: a group without an endpoint")
    assert "outbox-bridge group put orders --endpoint URL" in told
    assert stage.look(PENDING) == []


def test_group_that_fetches_its_checks_needs_no_endpoint(stage: Stage) -> None:
    """Nothing is told."""
    stage.group = {"endpoints": [], "check": {"mode": "pull"}}
    assert stage.look(PENDING) == []


def test_group_that_is_gone_hides_nothing_of_others(stage: Stage, bridge: CannedServer) -> None:
    """Its transactions that have ended are still among the newest."""
    gone = PENDING | {"producer_group": "gone", "transaction_id": f"{ID[:-1]}0", "state": "ROLLED_BACK"}
    bridge.answer("GET", "/v1/transactions", 200, {"transactions": [PENDING, gone], "next": None})
    bridge.answer("GET", f"/v1/transactions/{gone['transaction_id']}/timeline", 200, {"events": []})
    bridge.refuse("GET", "/v1/producer-groups/gone", 404, "not-found", "there is no such group")
    bridge.answer("GET", "/v1/producer-groups/orders", 200, stage.group)
    bridge.answer("GET", f"/v1/transactions/{ID}/timeline", 200, {"events": [SILENCE]})
    stage.events.look()
    assert len(stage.told) == 1

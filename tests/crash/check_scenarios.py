"""Scenarios of crash points about checks: asked at endpoints, or fetched."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx2

from bridge.fault_points import FaultPoint as P
from tests.support.bridge_process import BridgeProcess, CheckEndpoint, check_endpoint, wait_until
from tests.support.crash_stage import GROUP, PATIENCE_S, Json, Operation, Stage


def put_group(process: BridgeProcess, *endpoints: CheckEndpoint, **settings: Any) -> None:
    """The group with these endpoints, asked as early and as often as can be."""
    body: Json = {
        "endpoints": [{"url": endpoint.url} for endpoint in endpoints],
        "check": {"transaction_timeout_seconds": 1, "interval_seconds": 1, **settings},
    }
    reply = process.http.put(f"/v1/producer-groups/{GROUP}", json=body)
    assert reply.status_code in {200, 201}, reply.text


def check(stage: Stage, point: P, *, status: int = 200) -> None:
    """Two endpoints, each knows a part; dead between asking and counting: no check is counted twice [12, 13, 14]."""
    stage.command("migrate")
    with check_endpoint("") as left, check_endpoint("") as right:
        left.status = right.status = status
        victim = stage.start_ready(point)
        put_group(victim, left, right)
        deeds = committed, rolled_back, unknown = [stage.draft(None) for _ in range(3)]
        left.answers = {key_of(committed): "COMMIT"}
        right.answers = {key_of(rolled_back): "ROLLBACK", key_of(unknown): "UNKNOWN"}
        stage.prepare(victim, deeds)
        stage.wait_dead(victim)
        asked = [i for e in (left, right) for call in e.calls for i in [c["transaction_id"] for c in call["checks"]]]
        assert bool(asked) is (point not in {P.CHECK_PICKED, P.CHECK_SIGNED})
        assert bool(stage.journal("E")) is (point is P.CHECK_APPENDED)
        left.status = right.status = 200
        successor = stage.serve()
        stage.learn_ids(successor)
        told = wait_until(lambda: at_least_checked(stage, successor, unknown, 2), PATIENCE_S, "two answers")
        del right.answers[key_of(unknown)]  # else it is parked when the rest takes long
        stage.wait_state(successor, committed, "COMMITTED")
        stage.wait_state(successor, rolled_back, "ROLLED_BACK")
        verify_checks(stage, successor, unknown, told["check_times"])
        assert stage.play_round(successor)
        stage.verify(successor)


def fetch(stage: Stage, point: P) -> None:
    """Checks that are fetched lie ready, or are leased to nobody: fetched again, none is counted twice [12, 13]."""
    stage.command("migrate")
    victim = stage.start_ready(point)
    put_group(victim, mode="pull")
    deeds = committed, rolled_back, unknown = [stage.draft(None) for _ in range(3)]
    stage.prepare(victim, deeds)
    die_asking(stage, victim, lambda process: bool(claim_checks(process)))
    assert stage.journal("E") == []
    laid = {transaction_id for (transaction_id,) in stage.sql("SELECT transaction_id FROM pull_checks")}
    successor = stage.serve()
    stage.learn_ids(successor)
    wishes = dict(zip([deed.transaction_id for deed in deeds], ("COMMIT", "ROLLBACK", "UNKNOWN"), strict=True))
    assert laid
    assert laid <= set(wishes)

    def told() -> Json | None:
        answers = [{**check, "resolution": wishes[check["transaction_id"]]} for check in claim_checks(successor)]
        if answers:
            assert successor.post("/v1/resolutions", {"resolutions": answers}).status_code == 200
        return at_least_checked(stage, successor, unknown, 2)

    counted = wait_until(told, PATIENCE_S, "two answers")
    stage.wait_state(successor, committed, "COMMITTED")
    stage.wait_state(successor, rolled_back, "ROLLED_BACK")
    verify_checks(stage, successor, unknown, counted["check_times"])
    assert stage.play_round(successor)
    stage.verify(successor)


def key_of(deed: Operation) -> str:
    """Of its first message: what an endpoint knows it by before it has an id."""
    return (deed.contents[0][1] or b"").decode()


def claim_checks(process: BridgeProcess) -> list[Json]:
    """Ids and nonces of checks that are due now, leased for as short as can be."""
    reply = process.post(f"/v1/producer-groups/{GROUP}/checks/claim", {"wait_seconds": 1, "lease_seconds": 1})
    assert reply.status_code in {200, 503}, reply.text
    return [{name: check[name] for name in ("transaction_id", "nonce")} for check in reply.json().get("checks", ())]


def at_least_checked(stage: Stage, process: BridgeProcess, deed: Operation, times: int) -> Json | None:
    """The transaction once so many answers have counted."""
    told = stage.get(process, deed.transaction_id)
    return told if told["check_times"] >= times else None


def verify_checks(stage: Stage, process: BridgeProcess, deed: Operation, times: int) -> None:
    """Answers that count are numbered 1, 2, 3 ..., none twice."""
    counted = stage.get(process, deed.transaction_id)["check_times"]  # first: each second may bring another answer
    events = process.get(f"/v1/transactions/{deed.transaction_id}/timeline").json()["events"]
    numbers = [event["number"] for event in events if event["type"] == "check_answered"]
    assert sorted(set(numbers))[:times] == list(range(1, times + 1)), numbers
    assert counted <= max(numbers)


def die_asking(stage: Stage, victim: BridgeProcess, ask: Callable[[BridgeProcess], bool]) -> None:
    """Until the process dies under the call."""
    with suppress(httpx2.TransportError):
        wait_until(lambda: ask(victim), PATIENCE_S, "the call")
    stage.wait_dead(victim)

"""Transactions that wait for their end together, on canned answers."""

from pathlib import Path

import msgspec
import pytest

from tests.chaos.orders import RunFile
from tests.chaos.shop import COMMIT
from tests.chaos.waiting import WaitingRoom
from tests.support.canned_http import CannedServer, canned_server

IDS = [f"00{number:025d}0" for number in range(3)]
FULL = {"type": "https://outbox-bridge.dev/problems/message-too-large", "status": 422, "outcome": "not_applied"}


@pytest.fixture
def run(tmp_path: Path) -> RunFile:
    orders = {"place": str(tmp_path), "seed": 1, "kafka": "", "urls": (), "topics": {}, "endpoint_ports": {}}
    return RunFile(**orders, rate=1.0, workers=1, singles=1.0, largest_batch=1)


def test_what_is_refused_for_now_is_prepared_all_the_same(run: RunFile) -> None:
    """A topic that took small messages a moment ago refuses the first try; no number of the batch is lost by it."""
    made = [{"status": 201, "transaction_id": each} for each in IDS]
    with canned_server() as bridge:
        _answer(bridge, "transactions/batch", [made[0], {"status": 422, "problem": FULL}, made[1]])
        _answer(bridge, "transactions/batch", [made[2]])
        room = WaitingRoom(_at(run, bridge), "blocked", ["small"], "large")
        assert room.fill(3, lambda: False) == 3
        room.close()
    assert [len(asked.document["transactions"]) for asked in bridge.asked] == [3, 1]  # type: ignore[index]


def test_a_blocked_commit_has_ended_and_an_unknown_one_is_repeated(run: RunFile) -> None:
    """Then it shows which of them somebody has abandoned."""
    with canned_server() as bridge:
        _answer(bridge, "transactions/batch", [{"status": 201, "transaction_id": each} for each in IDS])
        blocked = [{"status": 202, "transaction_id": each, "state": "COMMITTED", "blocked": True} for each in IDS]
        _answer(bridge, "resolutions", [*blocked[:2], {"status": 504, "problem": {"outcome": "unknown"}}])
        _answer(bridge, "resolutions", blocked[2:])
        for number, each in enumerate(IDS):
            shown = {"transaction_id": each, "state": "COMMITTED"}
            bridge.answer("GET", f"/v1/transactions/{each}", 200, {**shown, "blocked": True})
            bridge.answer("GET", f"/v1/transactions/{each}", 200, {**shown, "abandoned": number == 2})
        room = WaitingRoom(_at(run, bridge), "blocked", ["small"], "large")
        room.fill(3, lambda: False)
        room.end(COMMIT)
        assert [room.has_abandoned() for _ in range(2)] == [False, True]
        room.close()
    ends = [asked.document for asked in bridge.asked if asked.path == "/v1/resolutions"]
    assert [len(each["resolutions"]) for each in ends] == [3, 1]  # type: ignore[index]


def _at(run: RunFile, bridge: CannedServer) -> RunFile:
    return msgspec.structs.replace(run, urls=(bridge.url,))


def _answer(bridge: CannedServer, path: str, results: list[dict[str, object]]) -> None:
    bridge.answer("POST", f"/v1/{path}", 200, {"results": results})

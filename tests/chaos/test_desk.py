"""The operators' desk at work, on canned answers."""

from pathlib import Path

from tests.chaos.desk import Desk
from tests.chaos.orders import RunFile
from tests.support.canned_http import CannedServer, canned_server
from tests.support.history.events import Call, Event, Invoke, Ok
from tests.support.history.lines import LineReader

IDS = [f"00{number:025d}0" for number in range(30)]


def test_desk_abandons_some_blocked_commits_and_keeps_what_it_heard(tmp_path: Path) -> None:
    """The same ones in every turn; each act and its answer are in the history."""
    with canned_server() as bridge:
        _give_answers(bridge)
        orders = {"place": str(tmp_path), "seed": 1, "kafka": "", "urls": (bridge.url,), "topics": {}}
        rates = {"endpoint_ports": {}, "rate": 1.0, "workers": 1, "singles": 1.0, "largest_batch": 1}
        desk = Desk(RunFile(**orders, **rates), "desk-0")
        for _ in range(2):
            desk.turn()
        desk.close()
    events = list(LineReader[Event](Event, tmp_path / "desk-0.history.jsonl"))
    acts = {event.call_id: event.transaction_id for event in events
            if isinstance(event, Invoke) and event.call is Call.ABANDON}  # fmt: skip
    chosen = set(acts.values())
    assert 0 < len(chosen) < len(IDS)
    assert len(acts) == 2 * len(chosen)
    assert {event.call_id for event in events if isinstance(event, Ok) and event.abandoned} >= acts.keys()


def _give_answers(bridge: CannedServer) -> None:
    bridge.answer("GET", "/v1/stats", 200, {"groups": {}})
    bridge.answer("GET", "/v1/parked", 200, {"transactions": [], "next": None})
    shown = [{"transaction_id": each, "state": "COMMITTED", "abandoned": True} for each in IDS]
    bridge.answer("GET", "/v1/transactions", 200, {"transactions": shown, "next": None})
    for each in shown:
        bridge.answer("GET", f"/v1/transactions/{each['transaction_id']}", 200, each)
        bridge.answer("POST", f"/v1/transactions/{each['transaction_id']}/abandon", 200, each)

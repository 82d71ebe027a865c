"""A bridge at three in the morning: five producer groups, and something is wrong with three of them.

`shop` has an endpoint that takes no connection, `billing` has committed to a topic that is gone, `mail` has nobody who
could be asked, so its transactions are parked. `orders` and `stock` are as they should be.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.socket_bridge import SocketBridge, socket_bridge

DEAD = "http://127.0.0.1:9/check"
GONE = "billing.gone"
HOSTILE = "<script>window.pwned=1</script>\u202e<b onmouseover=alert(1)>\u2066x"
_QUICK = {"transaction_timeout_seconds": 1, "interval_seconds": 1}
_WAIT_S = 30.0
_CROWD, _BATCH = 10_000, 500  # in whose midst the few are to be found


class Scene:
    """The running bridge, and some of what is in it."""

    def __init__(self, bridge: SocketBridge) -> None:
        self.bridge = bridge
        self.url = f"{bridge.url}/console/"
        for group in ("orders", "stock"):
            bridge.put_json(f"/v1/producer-groups/{group}", {"check": {"transaction_timeout_seconds": 3_600}})
        for first in range(0, _CROWD, _BATCH):
            self._crowd(first)
        self.pending = [self.prepare("orders", key=f"order-{n}") for n in range(6)]
        self.hostile = self.prepare("stock", key=HOSTILE, value={HOSTILE: [HOSTILE, 12345678901234567890123]})
        self.committed = self.prepare("orders", key="x" * 5_000, value="y" * 200_000)
        self.end(self.committed, "commit")
        self.end(self.prepare("orders", key="order-back"), "rollback")

    def _crowd(self, first: int) -> None:
        """Pending transactions of the two groups that are as they should be."""
        halves = [
            {"producer_group": ("orders", "stock")[n % 2], "messages": [{"topic": "orders", "key": f"crowd-{n}"}]}
            for n in range(first, first + _BATCH)
        ]
        self.bridge.post_json("/v1/transactions/batch", {"transactions": halves})

    def prepare(self, group: str, topic: str = "orders", **message: object) -> str:
        """A pending transaction."""
        messages = [{"topic": topic, "value": {"n": 1}, "headers": [["source", HOSTILE[:20]]], **message}]
        document = self.bridge.post_json("/v1/transactions", {"producer_group": group, "messages": messages})
        return str(document["transaction_id"])

    def end(self, transaction_id: str, how: str) -> None:
        """Its producer decides."""
        self.bridge.post_json(f"/v1/transactions/{transaction_id}/{how}?wait_seconds=3", {})

    def break_things(self, parked: int) -> None:
        """What is wrong with the three groups; returns when the bridge has noticed."""
        put = self.bridge.put_json
        put("/v1/producer-groups/shop", {"endpoints": [{"url": DEAD}], "check": _QUICK})
        put("/v1/producer-groups/mail", {"check": {**_QUICK, "max_lifetime_seconds": 1}})
        self.dead = [self.prepare("shop", key=f"shop-{n}") for n in range(8)]
        self.parked = [self.prepare("mail", key=f"mail-{n}") for n in range(parked)]
        self.blocked = self.prepare("billing", topic=GONE)
        self.bridge.delete_topic(GONE)
        self.end(self.blocked, "commit")
        deadline = time.monotonic() + _WAIT_S
        while not self._is_noticed(parked):
            assert time.monotonic() < deadline, self.bridge.get_json("/v1/stats")
            time.sleep(0.1)

    def _is_noticed(self, parked: int) -> bool:
        groups = self.bridge.get_json("/v1/stats")["groups"]
        (endpoint,) = self.bridge.get_json("/v1/producer-groups/shop")["endpoints"]
        found = (groups.get("mail", {}).get("parked"), groups.get("billing", {}).get("blocked"))
        return found == (parked, 1) and endpoint["unanswered"] > 0


def _write_report(folder: Path, scene: Scene) -> None:
    """A run that has found something, as `report run` leaves it."""
    found = {
        "kind": "MISSING",
        "detail": HOSTILE,
        "group": "orders",
        "topic": "orders",
        "state": "NEW",
        "remark": HOSTILE,
    }
    findings = [{**found, "transaction_id": one, "first_seen": "2026-01-31T12:00:00.000Z"} for one in scene.pending]
    window = {"taken_at": "2026-01-31T12:00:00.000Z"}
    summary = {"exit_code": 1, "sentence": "6 findings: 6 MISSING.", "window": window, "findings": {"total": 6}}
    run = folder / "000001"
    run.mkdir(parents=True)
    (run / "findings.jsonl").write_text("".join(json.dumps(one) + "\n" for one in findings))
    (run / "summary.json").write_text(json.dumps(summary))
    (folder / "ledger.json").write_text(json.dumps({"runs": [{"run": 1}]}))


@contextmanager
def console_scene(folder: Path, parked: int = 40) -> Iterator[Scene]:
    """Until its block ends."""
    reports = folder / "reports"
    with socket_bridge(folder, {"orders": 1, GONE: 1}, reports) as bridge:
        scene = Scene(bridge)
        scene.break_things(parked)
        _write_report(reports, scene)
        yield scene

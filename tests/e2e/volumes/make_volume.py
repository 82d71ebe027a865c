"""`PYTHON tests/e2e/volumes/make_volume.py NAME`: the data of an `outbox-bridge dev` of the release that PYTHON has
installed, with a transaction in each state, as NAME.tar.xz and NAME.json beside this file. Its topics keep everything
for ever, so that it can be taken over at any time.

Run it with a release before it is replaced; `test_volumes.py` takes every volume over.
"""

import json
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

_OF_PROCESSES = {"bridge.log", "broker.log", "broker.lock", "dev.lock", "dev.url"}
_DAY_S = 86_400
_PATIENCE_S = 60


class Maker:
    """Transactions of the running bridge; `made`: what state each has come to, and the values of its messages."""

    def __init__(self, url: str) -> None:
        self._http = httpx2.Client(base_url=url, headers={"Outbox-Bridge-Request": "1"}, timeout=30)
        self.made: dict[str, dict[str, Any]] = {}

    def put_group(self, name: str, **check: Any) -> None:
        self._http.put(f"/v1/producer-groups/{name}", json={"endpoints": [], "check": check}).raise_for_status()

    def prepare(self, state: str, group: str, *values: str, topic: str = "orders.created", **members: Any) -> str:
        messages = [{"topic": topic, "key": value, "value": value} for value in values]
        body = {"producer_group": group, "messages": messages, **members}
        answer = self._http.post("/v1/transactions", json=body).raise_for_status()
        transaction_id = str(answer.json()["transaction_id"])
        self.made[transaction_id] = {"state": state, "values": values}
        return transaction_id

    def end(self, transaction_id: str, word: str, **headers: str) -> None:
        self._http.post(f"/v1/transactions/{transaction_id}/{word}", headers=headers).raise_for_status()

    def is_done(self) -> bool:
        views = {name: self._http.get(f"/v1/transactions/{name}").json() for name in self.made}
        are_right = all(views[name]["state"] == made["state"].partition(" ")[0] for name, made in self.made.items())
        return are_right and any(view.get("blocked") for view in views.values())


def main(name: str) -> None:
    """Makes both files."""
    place = Path(__file__).parent / name
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "volume")
        command = [sys.executable, "-m", "api", "dev", "--port", "0", "--kafka-port", "0", "--data", str(data)]
        command += ["--output", "json", "--topic", "orders.created", "--topic", "gone"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as dev:
            assert dev.stdout is not None
            ready = json.loads(dev.stdout.readline())
            maker = Maker(ready["url"])
            try:
                _fill(maker, AdminClient({"bootstrap.servers": ready["kafka"]}))
            finally:
                dev.send_signal(signal.SIGTERM)
        with tarfile.open(place.with_suffix(".tar.xz"), "w:xz") as tar:
            tar.add(data, "volume", filter=_leave_out)
    place.with_suffix(".json").write_text(json.dumps(maker.made, indent=1) + "\n")


def _leave_out(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What is of one process alone, and who made the volume."""
    member.uname = member.gname = ""
    member.uid = member.gid = 0
    return None if Path(member.name).name in _OF_PROCESSES else member


def _fill(maker: Maker, admin: AdminClient) -> None:
    forever = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    topics = [name for name in admin.list_topics(timeout=10).topics if not name.startswith("__")]
    kept = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=[forever]) for name in topics]
    for future in admin.incremental_alter_configs(kept).values():
        future.result(10)
    maker.put_group("orders", transaction_timeout_seconds=_DAY_S)
    maker.put_group("hasty", transaction_timeout_seconds=1, interval_seconds=1, max_lifetime_seconds=2)
    maker.put_group("short", transaction_timeout_seconds=60, max_lifetime_seconds=60)
    maker.put_group("pulled", mode="pull", transaction_timeout_seconds=1)
    for n in range(5):
        maker.prepare("PREPARED", "orders", f"pending-{n}", idempotency_key=f"pending-{n}")
    for n in range(5):
        made = maker.prepare("COMMITTED", "orders", f"first-{n}", f"second-{n}", ordering_key="one")
        maker.end(made, "commit")
    for n in range(3):
        maker.end(maker.prepare("ROLLED_BACK", "orders", f"rolled-back-{n}"), "rollback")
    for n in range(2):
        maker.prepare("PARKED", "hasty", f"parked-{n}")
    maker.prepare("PREPARED", "pulled", "pulled")
    maker.prepare("PREPARED", "short", "short")  # out of life when the volume is taken over
    blocked = maker.prepare("COMMITTED and blocked", "orders", "blocked", topic="gone")
    admin.delete_topics(["gone"])["gone"].result(10)
    time.sleep(2)
    maker.end(blocked, "commit", Prefer="respond-async")
    end = time.monotonic() + _PATIENCE_S
    while not maker.is_done():
        assert time.monotonic() < end, "the states did not come"
        time.sleep(0.5)


if __name__ == "__main__":
    main(sys.argv[1])

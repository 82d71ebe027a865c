"""Data of releases before this one, as their `dev` left them: what was open is still there and can be ended, once."""

import json
import tarfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.bridge_process import create_topics, read_committed, wait_until
from tests.support.cli_process import DevProcess, running_dev

_VOLUMES = sorted((Path(__file__).parent / "volumes").glob("*.tar.xz"))
_FORCE = {"resolution": "COMMIT", "reason": "found after the upgrade"}


@pytest.mark.parametrize("volume", _VOLUMES, ids=lambda volume: volume.name.removesuffix(".tar.xz"))
def test_nothing_open_is_lost_and_nothing_published_twice(volume: Path, tmp_path: Path) -> None:
    """However long ago: the tables are brought up to date, what waits waits or is parked, what was blocked goes out."""
    made: dict[str, dict[str, Any]] = json.loads(Path(str(volume).removesuffix(".tar.xz") + ".json").read_text())
    with tarfile.open(volume) as tar:
        tar.extractall(tmp_path, filter="data")
    with running_dev(tmp_path, "--data", str(tmp_path / "volume"), "--kafka-port", "0") as dev:
        with httpx2.Client(base_url=dev.url, headers={"Outbox-Bridge-Request": "1"}, timeout=30) as http:
            _end_what_is_open(http, made)
            create_topics(dev.kafka, {"gone": 1})
            _wait_published(http, made)
            assert http.get("/v1/stats").json()["pending"] == 0
            whats = {entry["action"] for entry in http.get("/v1/audit?limit=100").json()["entries"]}
            assert "transaction.force" in whats
        _judge(dev, made)


def _end_what_is_open(http: httpx2.Client, made: Mapping[str, Mapping[str, Any]]) -> None:
    for name, was in made.items():
        view = http.get(f"/v1/transactions/{name}")
        if was["state"] in {"PREPARED", "PARKED"}:
            assert view.json()["state"] in {was["state"], "PARKED"}  # its life may be over by now
            answer = http.post(f"/v1/transactions/{name}/force", json=_FORCE)
            assert (answer.status_code, answer.json()["state"]) == (200, "COMMITTED"), answer.text
        elif was["state"] == "COMMITTED and blocked":
            assert view.json()["blocked"]
        else:  # what ended long ago is not shown any more
            assert view.status_code == 404 or view.json()["state"] == was["state"]


def _wait_published(http: httpx2.Client, made: Mapping[str, Mapping[str, Any]]) -> None:
    blocked = next(name for name, was in made.items() if was["state"] == "COMMITTED and blocked")
    wait_until(lambda: not http.get(f"/v1/transactions/{blocked}").json()["blocked"], 60, "the blocked one to go out")


def _judge(dev: DevProcess, made: Mapping[str, Mapping[str, Any]]) -> None:
    wanted = Counter(value for was in made.values() if was["state"] != "ROLLED_BACK" for value in was["values"])
    read = read_committed(dev.kafka, ["orders.created", "gone"])
    assert Counter((record.value or b"").decode() for record in read) == wanted

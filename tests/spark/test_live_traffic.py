"""Runs and landings while producers prepare and end and the settler publishes: as right as at rest."""

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bridge.core.topics import with_prefix
from spark.landing import land_once
from spark.options import Access, Options
from spark.reconcile import RunOutcome, reconcile
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, wait_until

pytestmark = pytest.mark.timeout(600)  # seconds where nothing else runs
PRODUCERS = 2
PAUSE_S = 0.03


class Traffic:
    """Producers that go on until they are told to stop, and what the bridge has answered them."""

    def __init__(self, process: BridgeProcess, topics: list[str]) -> None:
        self.answered: Counter[str] = Counter()
        self._process = process
        self._topics = topics
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._produce, args=(number,)) for number in range(PRODUCERS)]

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            wait_until(lambda: self.answered["commit"] >= 20, 300, "traffic")
            yield
        finally:
            self._stopping.set()
            for thread in self._threads:
                thread.join(60)

    def _produce(self, producer: int) -> None:
        for number in itertools.count():
            if self._stopping.wait(PAUSE_S):
                return
            how = ("commit", "commit", "rollback", "commit", "undecided")[number % 5]
            messages = [{"topic": topic, "key": f"k{number % 7}", "value": number} for topic in self._topics]
            body = {"producer_group": "shop", "messages": messages[: 1 + number % 2], "ordering_key": f"o{producer}"}
            transaction_id = self._ask("/v1/transactions", 201, body)["transaction_id"]
            if how != "undecided":
                self._ask(f"/v1/transactions/{transaction_id}/{how}", 200, None)
            self.answered[how] += 1

    def _ask(self, path: str, status: int, body: Any) -> dict[str, Any]:
        reply = self._process.post(path, body)
        assert reply.status_code == status, reply.text
        members: dict[str, Any] = reply.json()
        return members


def found(outcome: RunOutcome) -> str:
    return (outcome.folder / "findings.jsonl").read_text()


def total(outcome: RunOutcome) -> dict[str, int]:
    summary = json.loads((outcome.folder / "summary.json").read_text())
    members: dict[str, int] = summary["books"]["total"]
    assert members["is_balanced"]
    assert all(row["is_right"] for row in summary["partitions"])
    return members


def test_runs_during_traffic_find_nothing(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """Whatever is on its way is no finding; what was answered is in the books as soon as all is at rest."""
    bridge = Bridge.create(kafka, tmp_path)
    topics = [f"{bridge.prefix}orders", f"{bridge.prefix}payments"]
    create_topics(kafka, {topics[0]: 3, topics[1]: 1})
    options = {"bootstrap.servers": kafka}
    access = Access(tmp_path / "landed", with_prefix(bridge.prefix), options, topics=topics)
    direct = Options(tmp_path / "direct", access.internal, options, topics=topics, since_last=True)
    by_files = Options(tmp_path / "by-files", access.internal, {}, landed=access.out, since_last=True)
    outcomes = []

    def look() -> None:
        land_once(spark, access, lambda _: None)
        outcomes.extend(reconcile(spark, one, lambda _: None) for one in (direct, by_files))

    with bridge.serve() as process:
        traffic = Traffic(process, topics)
        with traffic.running():
            look()
        look()
    assert [found(outcome) for outcome in outcomes] == [""] * 4
    answered = dict(traffic.answered)
    for chain in (outcomes[::2], outcomes[1::2]):
        books = [total(outcome) for outcome in chain]
        assert books[0]["prepared"] > 0
        counted = {name: sum(book[name] for book in books) for name in ("committed", "rolled_back")}
        expected = {"committed": answered["commit"], "rolled_back": answered["rollback"]}
        assert (counted, books[-1]["open"]) == (expected, answered["undecided"])

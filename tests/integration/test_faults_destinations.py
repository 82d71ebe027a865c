"""Destinations that fail between prepare and commit: the commit stands, the others go on, repair publishes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.cluster_acts import delete_topic, set_topic_config

GOOD, GONE, SMALL = "destinations.good", "destinations.gone", "destinations.small"
LARGE = "x" * 5_000


class Prepared(NamedTuple):
    """Ids by kind, in the order in which they will be committed."""

    good: list[str]
    gone: list[str]
    small: list[str]
    both: str


@pytest.fixture
def process(kafka: str, tmp_path: Path) -> Iterator[BridgeProcess]:
    """A whole bridge with one queue, so that all commits share a batch."""
    create_topics(kafka, {GOOD: 1, GONE: 1, SMALL: 1})
    with Bridge.create(kafka, tmp_path, queues=1).serve() as running:
        yield running


def prepare(process: BridgeProcess, value: str, *topics: str, order: str | None = None) -> str:
    body = {"producer_group": "shop", "messages": [{"topic": t, "key": "k", "value": value} for t in topics]}
    reply = process.post("/v1/transactions", body | ({"ordering_key": order} if order else {}))
    assert reply.status_code == 201, reply.text
    transaction_id: str = reply.json()["transaction_id"]
    return transaction_id


def commit_all(process: BridgeProcess, transaction_ids: list[str]) -> dict[str, dict[str, Any]]:
    """One call, so one batch."""
    ends = [{"transaction_id": i, "resolution": "COMMIT"} for i in transaction_ids]
    reply = process.post("/v1/resolutions", {"resolutions": ends})
    assert reply.status_code == 200, reply.text
    return dict(zip(transaction_ids, reply.json()["results"], strict=True))


def make_transactions(process: BridgeProcess) -> Prepared:
    return Prepared(
        [prepare(process, f"good {n}", GOOD, order=f"good {n}") for n in range(3)],
        [prepare(process, f"gone {n}", GONE, order="gone") for n in range(3)],
        [prepare(process, f"{n} {LARGE}", SMALL, order="small") for n in range(3)],
        prepare(process, "both", GOOD, GONE, order="both"),
    )


def blocked_ids(process: BridgeProcess) -> set[str]:
    listed = process.get("/v1/transactions?blocked=true").json()["transactions"]
    return {transaction["transaction_id"] for transaction in listed}


def values_in(kafka: str, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in read_committed(kafka, [topic])]


def test_bad_destinations_block_only_their_own(kafka: str, process: BridgeProcess) -> None:
    """A deleted topic and a shrunk limit, commits for both in one batch with good ones: those are published, the
    bad ones stand, blocked and listed, and are published in order after repair (L, P, D, O, B, C)."""
    made = make_transactions(process)
    bad = {*made.gone, *made.small, made.both}
    delete_topic(kafka, GONE)
    set_topic_config(kafka, SMALL, {"max.message.bytes": "1000"})

    mixed = [i for trio in zip(made.gone, made.good, made.small, strict=True) for i in trio] + [made.both]
    results = commit_all(process, mixed)
    assert {i for i, result in results.items() if result["status"] == 200} == set(made.good), results
    assert all(results[i]["status"] == 202 and results[i]["blocked"] for i in bad), results
    assert sorted(values_in(kafka, GOOD)) == ["good 0", "good 1", "good 2"]
    assert values_in(kafka, SMALL) == []
    wait_until(lambda: blocked_ids(process) == bad, name="the blocked ones are listed")
    wait_until(lambda: process.get("/v1/stats").json()["blocked"] == len(bad), name="they are counted, a second late")

    late = commit_all(process, [prepare(process, "good 3", GOOD, order="good 3")])
    assert all(result["status"] == 200 for result in late.values())

    set_topic_config(kafka, SMALL, {"max.message.bytes": "1000000"})
    create_topics(kafka, {GONE: 1})
    wait_until(lambda: blocked_ids(process) == set(), 60, "everything is published")
    assert values_in(kafka, GONE) in (["gone 0", "gone 1", "gone 2", "both"], ["both", "gone 0", "gone 1", "gone 2"])
    assert [value[0] for value in values_in(kafka, SMALL)] == ["0", "1", "2"]
    assert sorted(values_in(kafka, GOOD)) == ["both", "good 0", "good 1", "good 2", "good 3"]
    again = commit_all(process, mixed)
    assert all(result["status"] == 200 and result["receipts"] for result in again.values()), again

"""A real bridge on a real Kafka, used rightly and wrongly: whatever its users do, nothing is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bridge.core.topics import with_prefix
from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from bridge.topology import JOURNAL_RULES
from spark.options import Options
from spark.reconcile import reconcile
from tests.support.bridge_process import Bridge, BridgeProcess, check_endpoint, create_topics, wait_until
from tests.support.cli_process import run_command
from tests.support.cluster_acts import delete_topic

pytestmark = pytest.mark.traffic
GROUP = "shop"


def message(topic: str, key: str | None, **members: Any) -> dict[str, Any]:
    return {"topic": topic, "key": key, "value": {"of": key}, "headers": [["a", None], ["a", ""]], **members}


def prepare(process: BridgeProcess, *messages: dict[str, Any], **members: Any) -> str:
    reply = process.post("/v1/transactions", {"producer_group": GROUP, "messages": list(messages), **members})
    assert reply.status_code == 201, reply.text
    return str(reply.json()["transaction_id"])


def end(process: BridgeProcess, transaction_id: str, how: str, **members: Any) -> int:
    return process.post(f"/v1/transactions/{transaction_id}/{how}", members or None).status_code


def use(process: BridgeProcess, topics: list[str]) -> None:
    """Every way a transaction may go, with everything that looks like a fault and is none."""
    orders, payments = topics
    for number in range(20):
        one = prepare(process, message(orders, f"k{number % 5}"))
        assert end(process, one, "commit" if number % 4 else "rollback") == 200
    several = prepare(process, message(orders, "k1"), message(payments, None), message(payments, ""))
    assert [end(process, several, "commit") for _ in range(3)] == [200, 200, 200]
    assert end(process, several, "rollback") == 409
    asked = prepare(process, message(orders, "k", partition=2, timestamp_ms=1_700_000_000_000), ordering_key="o")
    assert end(process, asked, "commit", producer_group="thief") == 409
    assert end(process, asked, "commit") == 200
    keyed = [prepare(process, message(orders, None, value=None), idempotency_key="once") for _ in range(2)]
    assert keyed[0] == keyed[1]
    assert end(process, keyed[0], "rollback") == 200
    published = {"producer_group": GROUP, "messages": [message(payments, "p")], "idempotency_key": "p"}
    assert {process.post("/v1/messages", published).status_code for _ in range(2)} == {200}


def test_journal_that_was_given_up_accuses_nobody(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """What the lost one held is told by op messages and records alone: an operator knows, and it cannot be proved."""
    bridge = Bridge.create(kafka, tmp_path, queues=1)
    topic = f"{bridge.prefix}orders"
    create_topics(kafka, {topic: 1})

    def publish() -> bool:
        prepared = {"producer_group": GROUP, "messages": [message(topic, "k")]}
        return process.post("/v1/messages", prepared).status_code == 200

    with bridge.serve() as process:
        assert publish()
        pending = prepare(process, message(topic, "pending"))
        wait_until(lambda: process.get(f"/v1/transactions/{pending}").status_code == 200, name="search")
        delete_topic(kafka, bridge.half_topic)
        create_topics(kafka, {bridge.half_topic: 1}, JOURNAL_RULES.make_config(1))
        wait_until(lambda: not publish(), name="refusal")
        bridge.run("migrate", "--accept-identity", "--yes")
        wait_until(publish, 60, "goes on")
    options = Options(tmp_path / "runs", with_prefix(bridge.prefix), {"bootstrap.servers": kafka}, topics=[topic])
    outcome = reconcile(spark, options, lambda _: None)
    assert (outcome.exit_code, "warnings only: 1 UNPROVABLE" in outcome.sentence) == (0, True), outcome.sentence


def test_real_bridge_has_no_findings(kafka: str, tmp_path: Path) -> None:
    """Repeats, contradictions, other groups, unknown answers, parking, a late commit, pending ones: all as agreed.

    By the command line, as a user would: it finds Java, the jars, the groups' limits, and hands the exit code on.
    """
    bridge = Bridge.create(kafka, tmp_path)
    topics = [f"{bridge.prefix}orders", f"{bridge.prefix}payments"]
    create_topics(kafka, {topics[0]: 3, topics[1]: 1})
    check = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "max_checks": 2}
    with check_endpoint("UNKNOWN") as endpoint, bridge.serve() as process:
        settings = {"endpoints": [{"url": endpoint.url}], "check": check}
        assert process.http.put(f"/v1/producer-groups/{GROUP}", json=settings).status_code == 201
        use(process, topics)
        parked = [prepare(process, message(topics[0], f"parked{number}")) for number in range(2)]
        by_check = prepare(process, message(topics[1], "checked"))
        endpoint.answers[by_check] = "COMMIT"
        for one, state in ((parked[0], "PARKED"), (parked[1], "PARKED"), (by_check, "COMMITTED")):
            wait_until(lambda o=one, s=state: process.get(f"/v1/transactions/{o}").json()["state"] == s, 60, state)
        assert end(process, parked[0], "commit") == 200
        never = make_transaction_id(0, make_uuid7_bits(1, 1))
        assert end(process, never, "commit", remark="as I see it") == 404
        prepare(process, message(topics[0], "pending"), check_immunity_seconds=3_600)
        out = tmp_path / "runs"
        arguments = ("--out", str(out), "--topics", ",".join(topics), "--cores", "1", "--url", process.url)
        done = run_command("report", "run", *arguments, folder=tmp_path, settings=bridge.environment(), timeout_s=240)
    # an end of a transaction that never was is the one thing its user did wrong
    assert done.returncode == 1, done.stderr
    folder = out / "000001"
    assert done.stdout.splitlines()[-1] == str(folder / "report.html")
    findings = [json.loads(line) for line in (folder / "findings.jsonl").read_text().splitlines()]
    said = ("kind", "transaction_id", "remark")
    assert [tuple(one[name] for name in said) for one in findings] == [("ORPHAN", never, "as I see it")]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["fingerprint"]["is_equal"]
    assert {name: summary["books"]["total"][name] for name in ("committed", "rolled_back", "parked", "open")} == {
        "committed": 15 + 2 + 1 + 2,
        "rolled_back": 5 + 1,
        "parked": 1,
        "open": 1,
    }

"""Internal topics that are lost under a running bridge, on a real Kafka, and the way out of it."""

import json
from pathlib import Path

import httpx2
import pytest

from bridge.topology import JOURNAL_RULES, OP_RULES
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.cluster_acts import delete_topic

TOPICS = {False: "lost.orders", True: "lost.orders.restarted"}


def prepare(process: BridgeProcess, topic: str, value: str) -> httpx2.Response:
    body = {"producer_group": "shop", "messages": [{"topic": topic, "key": "k", "value": value}]}
    return process.post("/v1/transactions", body)


def publish(process: BridgeProcess, topic: str, value: str) -> str:
    made = prepare(process, topic, value)
    assert made.status_code == 201, made.text
    name = str(made.json()["transaction_id"])
    assert process.post(f"/v1/transactions/{name}/commit").json()["state"] == "COMMITTED"
    wait_until(lambda: process.get(f"/v1/transactions/{name}").json()["state"] == "COMMITTED", name="search")
    return name


def publish_once_it_goes_on(process: BridgeProcess, topic: str, value: str) -> None:
    """What an operator has given up each part of the process learns by itself, one a moment after another."""
    made: list[httpx2.Response] = []
    wait_until(lambda: made.append(prepare(process, topic, value)) or made[-1].status_code == 201, 60, "prepares again")
    commit = f"/v1/transactions/{made[-1].json()['transaction_id']}/commit"
    wait_until(lambda: process.post(commit).json().get("state") == "COMMITTED", 60, "commits again")


def is_refused_unapplied(answer: httpx2.Response) -> bool:
    """Nothing was written, and the answer says so and what to do."""
    return (
        answer.status_code == 503
        and answer.json()["outcome"] == "not_applied"
        and "--accept-identity" in answer.json()["detail"]
    )


@pytest.mark.parametrize("is_restarted", [False, True])
def test_recreated_op_topic_is_refused_given_up_and_never_published_again(
    kafka: str, tmp_path: Path, *, is_restarted: bool
) -> None:
    """Deleted and made again under a running bridge: 503 within seconds; given up, nothing comes twice (D, 53, 62)."""
    topic = TOPICS[is_restarted]
    create_topics(kafka, {topic: 1})
    bridge = Bridge.create(kafka, tmp_path, queues=1)
    with bridge.serve() as process:
        publish(process, topic, "first")
        pending = str(prepare(process, topic, "pending").json()["transaction_id"])
        wait_until(lambda: process.get(f"/v1/transactions/{pending}").status_code == 200, name="search")
        delete_topic(kafka, bridge.op_topic)
        create_topics(kafka, {bridge.op_topic: 1}, OP_RULES.make_config(1))
        wait_until(lambda: is_refused_unapplied(prepare(process, topic, "refused")), name="refusal of a prepare")
        assert is_refused_unapplied(process.post(f"/v1/transactions/{pending}/commit"))
        assert process.get("/readyz").status_code == 503
        if is_restarted:
            process.stop()
            assert "--accept-identity" in bridge.run_refused("migrate").replace("\n", " ")
        told = json.loads(bridge.run("migrate", "--accept-identity", "--yes", "-o", "json"))
        (loss,) = told
        assert pending in {t["transaction_id"] for t in loss["transactions"]}
        if not is_restarted:
            publish_once_it_goes_on(process, topic, "last")
    with bridge.serve() as process:
        if is_restarted:
            publish(process, topic, "last")
        assert process.post(f"/v1/transactions/{pending}/commit").status_code >= 400
    assert [record.value for record in read_committed(kafka, [topic])] == [b"first", b"last"]


def test_internal_topics_that_are_gone_are_given_up_and_made_anew(kafka: str, tmp_path: Path) -> None:
    """As where the bridge is moved to another cluster: what was pending is told, the rest goes on (S, D)."""
    topic = "lost.cluster"
    create_topics(kafka, {topic: 1})
    bridge = Bridge.create(kafka, tmp_path, queues=1)
    with bridge.serve() as process:
        publish(process, topic, "first")
        pending = str(prepare(process, topic, "pending").json()["transaction_id"])
        wait_until(lambda: process.get(f"/v1/transactions/{pending}").status_code == 200, name="search")
    names = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")
    for name in (*names, "RMQ_SYS_TRANS_AUDIT_TOPIC"):
        delete_topic(kafka, f"{bridge.prefix}{name}")
    assert "--accept-identity" in bridge.run_refused("migrate").replace("\n", " ")
    (loss,) = json.loads(bridge.run("migrate", "--accept-identity", "--yes", "-o", "json"))
    assert [t["transaction_id"] for t in loss["transactions"]] == [pending]
    with bridge.serve() as process:
        publish(process, topic, "last")
        assert process.post(f"/v1/transactions/{pending}/commit").status_code == 409
    assert [record.value for record in read_committed(kafka, [topic])] == [b"first", b"last"]


def test_audit_whose_heads_are_gone_is_told_once(kafka: str, tmp_path: Path) -> None:
    """Entries that somebody took off its end before would not be missed; a topic of heads that is left says nothing."""
    bridge = Bridge.create(kafka, tmp_path, queues=1)
    assert "no heads any more" not in bridge.run("migrate", "--accept-identity", "--yes")
    delete_topic(kafka, f"{bridge.prefix}RMQ_SYS_TRANS_AUDIT_TOPIC")
    told = " ".join(bridge.run("migrate", "--accept-identity", "--yes").split())
    assert f"topic {bridge.prefix}RMQ_SYS_TRANS_AUDIT_TOPIC has no heads any more" in told
    assert "compare `outbox-bridge audit list` with a backup" in told
    assert "no heads any more" not in bridge.run("migrate", "--accept-identity", "--yes")


def test_recreated_journal_acknowledges_nothing_that_is_lost(kafka: str, tmp_path: Path) -> None:
    """Under load, deleted and made again: every 201 since is decided or told; after the act all goes on (S, L, 53)."""
    topic = "lost.journal"
    create_topics(kafka, {topic: 1})
    bridge = Bridge.create(kafka, tmp_path, queues=1)
    with bridge.serve() as process:
        publish(process, topic, "first")
        pending = str(prepare(process, topic, "pending").json()["transaction_id"])
        wait_until(lambda: process.get(f"/v1/transactions/{pending}").status_code == 200, name="search")
        delete_topic(kafka, bridge.half_topic)
        create_topics(kafka, {bridge.half_topic: 1}, JOURNAL_RULES.make_config(1))
        heard: list[httpx2.Response] = []
        wait_until(
            lambda: heard.append(prepare(process, topic, "late")) or is_refused_unapplied(heard[-1]), name="refusal"
        )
        assert [answer.status_code for answer in heard if answer.status_code == 201] == []
        told = json.loads(bridge.run("migrate", "--accept-identity", "--yes", "-o", "json"))
        (loss,) = told
        assert {t["transaction_id"] for t in loss["transactions"]} == {pending}
        publish_once_it_goes_on(process, topic, "last")
        answer = process.post(f"/v1/transactions/{pending}/commit")
        assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (409, "given-up")
    assert [record.value for record in read_committed(kafka, [topic])] == [b"first", b"last"]

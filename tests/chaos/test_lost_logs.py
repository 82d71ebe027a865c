"""Internal topics that are lost or changed under load on a real Kafka, each transaction judged after the way out."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.topology import JOURNAL_RULES, OP_RULES
from tests.chaos.losing import Load, judge
from tests.support.bridge_process import Bridge, create_topics, read_committed, wait_until
from tests.support.cluster_acts import delete_topic, grow_topic

QUEUES = 2
ENOUGH = 60


def remake_op(bridge: Bridge) -> None:
    delete_topic(bridge.kafka, bridge.op_topic)
    create_topics(bridge.kafka, {bridge.op_topic: QUEUES}, OP_RULES.make_config(1))


def remake_journal(bridge: Bridge) -> None:
    delete_topic(bridge.kafka, bridge.half_topic)
    create_topics(bridge.kafka, {bridge.half_topic: QUEUES}, JOURNAL_RULES.make_config(1))


@pytest.mark.parametrize("lose", [remake_op, remake_journal])
def test_what_is_lost_is_what_was_told(kafka: str, tmp_path: Path, lose: Callable[[Bridge], None]) -> None:
    """Lost under load, refused, given up, gone on: nothing comes twice, and nothing is gone that was not told.

    What the journal alone knew, because nobody had read it yet, is gone with it and known to nobody.
    """
    topic = f"chaos.{lose.__name__}"
    create_topics(kafka, {topic: 2})
    bridge = Bridge.create(kafka, tmp_path, queues=QUEUES)
    with bridge.serve() as process:
        load = Load(process.url, topic, seed=8)
        with load.running():
            load.wait_acked(ENOUGH)
            lost_s = time.monotonic()
            lose(bridge)
            remade_s = time.monotonic()
            refused = load.refusals
            wait_until(lambda: load.refusals > refused + 20, name="refusals")
        losses = json.loads(bridge.run("migrate", "--accept-identity", "--yes", "-o", "json"))
        told = {each["transaction_id"] for loss in losses for each in loss["transactions"]}
        with load.running():
            load.wait_acked(ENOUGH)
        load.finish(told)
        unseen = load.find_unseen(lost_s, remade_s) if lose is remake_journal else set[str]()
        assert judge(load.deeds, told | unseen, read_committed(kafka, [topic])) == []
        assert told & {deed.transaction_id for deed in load.deeds if deed.refused}, "nothing was at stake"


def test_grown_journal_is_refused_and_loses_nothing(kafka: str, tmp_path: Path) -> None:
    """One queue more under load: refused soon, and never ready again; what is acknowledged is decided or open (53)."""
    topic = "chaos.grown_journal"
    create_topics(kafka, {topic: 2})
    bridge = Bridge.create(kafka, tmp_path, queues=QUEUES)
    with bridge.serve() as process:
        load = Load(process.url, topic, seed=8)
        with load.running():
            load.wait_acked(ENOUGH)
            grow_topic(kafka, bridge.half_topic, QUEUES + 1)
            wait_until(lambda: load.refusals > 20, name="refusals")
        left = [deed.transaction_id for deed in load.deeds if deed.acked_s is not None and deed.ended is None]
        states = {i: process.get(f"/v1/transactions/{i}").json()["state"] for i in left if i is not None}
        known = {i for i, state in states.items() if state != "COMMITTED"}
        assert "PREPARED" in states.values(), "nothing was left open"
        assert judge(load.deeds, known, read_committed(kafka, [topic])) == []
    refused = bridge.run_refused("serve")
    assert bridge.half_topic in refused, refused

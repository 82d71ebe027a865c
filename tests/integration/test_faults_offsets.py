"""The group's consume offsets are for Kafka's lag tools only."""

from pathlib import Path

from tests.support.bridge_process import Bridge, create_topics, read_committed
from tests.support.cluster_acts import delete_group, read_positions, reset_offsets
from tests.support.fault_load import Load

SEED = 64


def test_lost_and_reset_offsets_change_nothing(kafka: str, tmp_path: Path) -> None:
    """Offsets set back while the bridge runs, set ahead and deleted while it is stopped: S counts (D, L)."""
    topics = ["offsets.orders"]
    create_topics(kafka, {topics[0]: 2})
    bridge = Bridge.create(kafka, tmp_path, queues=1)
    with bridge.serve() as process, Load([process.url], topics, seed=SEED) as load:
        load.wait_ended(100)
        reset_offsets(kafka, bridge.group, bridge.half_topic, {0: 0})
        delete_group(kafka, bridge.group)  # Kafka protects a group with members, from both: nothing depends on it
        load.wait_ended(100)
    position = read_positions(bridge)[0]["s"]
    assert reset_offsets(kafka, bridge.group, bridge.half_topic, {0: position + 1_000_000})
    with bridge.serve():
        assert read_positions(bridge)[0]["s"] == position
    assert delete_group(kafka, bridge.group)
    with bridge.serve() as process, Load([process.url], topics, seed=SEED + 1) as later:
        later.wait_ended(100)
    load.ledger.deeds += later.ledger.deeds
    assert load.broken_promises(read_committed(kafka, topics)) == []

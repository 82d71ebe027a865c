"""The group's consume offsets are for Kafka's lag tools only."""

from pathlib import Path

from tests.support.bridge_process import Bridge, create_topics, read_committed
from tests.support.cluster_acts import delete_group, read_positions, reset_offsets
from tests.support.fault_load import Load

SEED = 64


def test_lost_and_reset_offsets_change_nothing(kafka: str, tmp_path: Path) -> None:
    """Offsets set back, set ahead and deleted, while the bridge runs and while it is stopped: S counts (D, L)."""
    topics = ["offsets.orders"]
    create_topics(kafka, {topics[0]: 2})
    bridge = Bridge.create(kafka, tmp_path, queues=1)
    with bridge.serve() as process, Load([process.url], topics, seed=SEED) as load:
        load.wait_ended(100)
        assert not reset_offsets(kafka, bridge.group, bridge.half_topic, {0: 0})  # Kafka itself protects a live group
        assert not delete_group(kafka, bridge.group)
        load.wait_ended(100)
    position = read_positions(bridge)[0]["s"]
    for offset in (0, position + 1_000_000):
        assert reset_offsets(kafka, bridge.group, bridge.half_topic, {0: offset})
        with bridge.serve() as process:
            assert read_positions(bridge)[0]["s"] == position
    assert delete_group(kafka, bridge.group)
    with bridge.serve() as process, Load([process.url], topics, seed=SEED + 1) as later:
        later.wait_ended(100)
    load.ledger.deeds += later.ledger.deeds
    assert load.broken_promises(read_committed(kafka, topics)) == []

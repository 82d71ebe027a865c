"""Settings of internal topics that an operator takes as they are, on a real Kafka."""

from pathlib import Path

from tests.support.bridge_process import Bridge
from tests.support.cluster_acts import set_topic_config


def test_fault_of_a_topic_is_refused_unless_its_name_is_overridden(kafka: str, tmp_path: Path) -> None:
    """As the remedy says: where an operator names it the bridge serves, and `migrate` and `doctor` bear it (54)."""
    bridge = Bridge.create(kafka, tmp_path, queues=1)
    set_topic_config(kafka, bridge.half_topic, {"retention.ms": "86400000"})
    assert "override `retention`" in " ".join(bridge.run_refused("serve", "--port", "0").split())
    bridge.settings["OUTBOX_BRIDGE_TOPICS__OVERRIDDEN"] = '["retention"]'
    bridge.run("migrate")
    bridge.run("doctor")
    with bridge.serve() as process:
        assert process.get("/readyz").status_code == 200

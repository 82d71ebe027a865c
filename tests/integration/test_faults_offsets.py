"""The group's consume offsets are for Kafka's lag tools only."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.cluster_acts import delete_group, read_positions, reset_offsets
from tests.support.fault_load import Load

SEED = 64
TOPIC, LATE = "offsets.orders", "offsets.late"


@contextmanager
def settling(bridge: Bridge) -> Iterator[BridgeProcess]:
    """A settler, until it has been stopped and its group is empty."""
    with bridge.serve("settler") as settler:
        yield settler


def prepare(front: BridgeProcess, value: str) -> str:
    body = {"producer_group": "shop", "messages": [{"topic": LATE, "value": value}]}
    transaction_id: str = front.post("/v1/transactions", body).json()["transaction_id"]
    return transaction_id


def commit_unsettled(front: BridgeProcess, transaction_id: str) -> None:
    """The end is in the journal, and nobody is there to decide it."""
    reply = front.post(f"/v1/transactions/{transaction_id}/commit", headers={"Prefer": "respond-async"})
    assert reply.status_code == 202, reply.text


def late_values(kafka: str) -> list[str]:
    return [(record.value or b"").decode() for record in read_committed(kafka, [LATE])]


def test_lost_and_reset_offsets_change_nothing(kafka: str, tmp_path: Path) -> None:
    """Offsets set back while the bridge runs, set beyond undecided ends and deleted while it is stopped: the position
    in the op topic counts (D, L)."""
    create_topics(kafka, {TOPIC: 2, LATE: 1})
    bridge = Bridge.create(kafka, tmp_path, queues=1)
    with bridge.start("api,projector") as front:
        with settling(bridge):
            front.wait_ready()
            with Load([front.url], [TOPIC], seed=SEED) as load:
                load.wait_ended(50)
                reset_offsets(kafka, bridge.group, bridge.half_topic, {0: 0})
                delete_group(kafka, bridge.group)  # Kafka protects a group with members from both
                load.wait_ended(50)
            first, second = prepare(front, "first"), prepare(front, "second")
        commit_unsettled(front, first)
        assert reset_offsets(kafka, bridge.group, bridge.half_topic, {0: read_positions(bridge)[0]["s"] + 1_000})
        with settling(bridge):
            wait_until(lambda: late_values(kafka) == ["first"], name="the end that was skipped")
        commit_unsettled(front, second)
        assert delete_group(kafka, bridge.group)
        with settling(bridge):
            wait_until(lambda: len(late_values(kafka)) >= 2, name="the next end")
    assert late_values(kafka) == ["first", "second"]
    assert load.broken_promises(read_committed(kafka, [TOPIC])) == []

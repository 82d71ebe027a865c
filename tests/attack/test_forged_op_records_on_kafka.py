"""The same on a real cluster: a second bridge beside the first one, and a client that writes to Kafka itself."""

import json
from pathlib import Path

from confluent_kafka import Producer

from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.cluster_acts import read_positions

TOPIC = "attacked.orders"


def prepare(process: BridgeProcess, value: str, topic: str = TOPIC) -> str:
    body = {"producer_group": "shop", "messages": [{"topic": topic, "key": "k", "value": value}]}
    answer = process.post("/v1/transactions", body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["transaction_id"])


def forge(bridge: Bridge, records: list[tuple[bytes, object]]) -> None:
    """As any client of the cluster can that no ACL stops."""
    producer = Producer({"bootstrap.servers": bridge.kafka, "acks": "all"})
    for key, members in records:
        producer.produce(bridge.op_topic, json.dumps(members).encode(), key, 0)
    assert producer.flush(30) == 0


def visible(bridge: Bridge) -> list[bytes | None]:
    return [record.value for record in read_committed(bridge.kafka, [TOPIC])]


def test_neighbour_may_not_write_what_a_bridge_believes(kafka: str, tmp_path: Path) -> None:
    """A client of another bridge of the cluster is refused the internal topics of this one: 403, nothing written."""
    (tmp_path / "other").mkdir()
    victim = Bridge.create(kafka, tmp_path, queues=1)
    neighbour = Bridge.create(kafka, tmp_path / "other", queues=1)
    with neighbour.serve() as process:
        for topic in (victim.op_topic, victim.half_topic, victim.parked_topic, victim.group):
            for path in ("/v1/transactions", "/v1/messages"):
                answer = process.post(path, {"producer_group": "shop", "messages": [{"topic": topic, "key": "~"}]})
                assert (answer.status_code, answer.json()["type"].rsplit("/", 1)[-1]) == (403, "reserved-topic")
    assert {record.key for record in read_committed(kafka, [victim.op_topic])} == {POSITION_KEY}  # by `migrate`


def test_forged_records_change_nothing_and_are_told_of(kafka: str, tmp_path: Path) -> None:
    """A forged end, position and answer before a restart: all acknowledged commits arrive once (L, D, F)."""
    create_topics(kafka, {TOPIC: 1})
    bridge = Bridge.create(kafka, tmp_path, queues=1)
    with bridge.serve() as process:
        first, second = prepare(process, "first"), prepare(process, "second")
        assert process.post(f"/v1/transactions/{first}/commit").status_code == 200
        position = read_positions(bridge)[0]
    end = {"v": 1, "state": "ROLLED_BACK", "group": "shop", "at": 1, "half": 1, "appended_ms": 1, "by": "producer"}
    answer = {"request": "r", "id": second, "answer": "UNKNOWN_TRANSACTION"}
    forge(
        bridge,
        [
            (second.encode(), {**end, "ended_ms": 1, "check_times": 0}),
            (ANSWERS_KEY, {"v": 1, "answers": [answer]}),
            (POSITION_KEY, {**position, "s": position["s"] + 100, "l": position["s"] + 100}),
            (POSITION_KEY, {"v": 9}),
        ],
    )
    with bridge.serve() as process:
        assert process.post(f"/v1/transactions/{second}/commit").json()["state"] == "COMMITTED"
        assert process.post(f"/v1/transactions/{first}/commit").json()["state"] == "COMMITTED"
        checks = {check["name"]: check for check in process.get("/readyz?verbose").json()["checks"]}
        assert "not the owner's" in checks["op-records"]["detail"]
        assert "op_record_not_ours" in process.log.read_text()
        wait_until(lambda: process.get(f"/v1/transactions/{second}").json()["state"] == "COMMITTED", name="search")
    assert visible(bridge) == [b"first", b"second"]


def test_seals_do_not_begin_while_a_settler_runs(kafka: str, tmp_path: Path) -> None:
    """What it would write afterwards with the key of a lost database could not be believed: `migrate` refuses."""
    bridge = Bridge.create(kafka, tmp_path, queues=1)
    with bridge.serve():
        lost = bridge.database_url
        bridge.database_url = f"sqlite:///{tmp_path / 'new.db'}"
        refused = bridge.run_refused("migrate")
        assert "settlers are running" in refused
        bridge.database_url = lost
    bridge.database_url = f"sqlite:///{tmp_path / 'new.db'}"
    assert "sealed" in bridge.run("migrate")

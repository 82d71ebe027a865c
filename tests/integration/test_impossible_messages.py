"""What a topic's settings make impossible is refused at prepare, to the byte; what passes is published."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, Producer

from bridge.core.message import Message
from bridge.core.properties import measure_published
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.cluster_acts import set_topic_config

LIMIT = 20_000
HEADERS = [["source", "shop"], ["source", None], ["long" * 30, "x" * 70]]


class Stage(NamedTuple):
    """A bridge that publishes with or without the id header, and topics that do not take everything."""

    process: BridgeProcess
    kafka: str
    has_id: bool
    sized: str
    table: str
    dated: str


@pytest.fixture(scope="module", params=[True, False], ids=["with the id header", "without it"])
def stage(kafka: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    has_id = bool(request.param)
    sized, table, dated = (f"impossible.{has_id}.{name}" for name in ("sized", "table", "dated"))
    create_topics(kafka, dict.fromkeys((sized, table, dated), 1))
    set_topic_config(kafka, sized, {"max.message.bytes": str(LIMIT)})
    set_topic_config(kafka, table, {"cleanup.policy": "compact"})
    limits = {"message.timestamp.before.max.ms": "3600000", "message.timestamp.after.max.ms": "60000"}
    set_topic_config(kafka, dated, limits)
    setting = {"OUTBOX_BRIDGE_TRANSACTION_ID_HEADER": str(has_id).lower()}
    with Bridge.create(kafka, tmp_path_factory.mktemp("bridge"), queues=1, **setting).serve() as running:
        yield Stage(running, kafka, has_id, sized, table, dated)


def publish(process: BridgeProcess, **message: Any) -> Any:
    return process.post("/v1/messages", {"producer_group": "shop", "messages": [message]})


def test_exact_maximum_is_published_and_one_byte_more_is_refused(stage: Stage) -> None:
    """At the limit of the broker, header and batch included: 413 at prepare, never a blocked commit."""
    headers = [(name, None if value is None else value.encode()) for name, value in HEADERS]
    for key, names, shape in ((None, [], []), ("k" * 100, HEADERS, headers)):
        body = Message(stage.sized, None if key is None else key.encode(), b"x" * 10_000, shape)
        value = "x" * (10_000 + LIMIT - measure_published(body, has_id_header=stage.has_id))
        told = publish(stage.process, topic=stage.sized, key=key, value=value, headers=names)
        assert told.status_code == 200, told.text
        (receipt,) = told.json()["receipts"]
        assert receipt["topic"] == stage.sized
        refused = publish(stage.process, topic=stage.sized, key=key, value=value + "x", headers=names)
        assert refused.status_code == 413, refused.text
        assert refused.json()["type"].endswith("/message-too-large")
        assert f"{LIMIT + 1} bytes as a record; topic {stage.sized} takes {LIMIT}" in refused.json()["detail"]
    assert len(read_committed(stage.kafka, [stage.sized])) == 2


def test_limit_is_that_of_the_broker(stage: Stage) -> None:
    """One byte less room, made after the prepare, and the largest message that passed is refused by Kafka itself."""
    body = Message(stage.sized, None, b"x" * 10_000)
    value = "x" * (10_000 + LIMIT - measure_published(body, has_id_header=stage.has_id))
    message = {"topic": stage.sized, "value": value}
    prepared = stage.process.post("/v1/transactions", {"producer_group": "shop", "messages": [message]})
    assert prepared.status_code == 201, prepared.text
    transaction_id = prepared.json()["transaction_id"]
    set_topic_config(stage.kafka, stage.sized, {"max.message.bytes": str(LIMIT - 1)})
    ended = stage.process.post(f"/v1/transactions/{transaction_id}/commit", {})
    assert (ended.status_code, ended.json()["blocked"]) == (202, True), ended.text
    producer = Producer({"bootstrap.servers": stage.kafka, "message.max.bytes": 1_000_000})
    reports: list[Any] = []
    id_header = [("transaction-id", transaction_id)] if stage.has_id else []
    for less in (0, 1):
        producer.produce(
            stage.sized, value[less:].encode(), headers=id_header, on_delivery=lambda error, _: reports.append(error)
        )
        producer.flush(30)
    assert [error is None or error.code() for error in reports] == [KafkaError.MSG_SIZE_TOO_LARGE, True]
    set_topic_config(stage.kafka, stage.sized, {"max.message.bytes": str(LIMIT)})
    path = f"/v1/transactions/{transaction_id}"
    wait_until(lambda: not stage.process.get(path).json()["blocked"], 60, "it is published")


def test_impossible_keys_and_timestamps_are_refused(stage: Stage) -> None:
    """422 with a pointer and the remedy; what the topic takes is published."""
    refused = publish(stage.process, topic=stage.table, value="v")
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/messages/0/key")
    assert refused.json()["type"].endswith("/invalid-request")
    assert refused.json()["outcome"] == "not_applied"
    assert publish(stage.process, topic=stage.table, key="k", value=None).status_code == 200
    for timestamp_ms in (1, 4_000_000_000_000):
        late = publish(stage.process, topic=stage.dated, key="k", timestamp_ms=timestamp_ms)
        assert late.status_code == 422
        assert late.json()["type"].endswith("/invalid-timestamp")
    assert [(r.key, r.value) for r in read_committed(stage.kafka, [stage.table, stage.dated])] == [(b"k", None)]

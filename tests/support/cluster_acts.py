"""What an administrator does to topics and groups of a running Kafka, and what its internal records say."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from confluent_kafka import OFFSET_END, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)

from bridge.broker.jars import fetch_jars
from bridge.broker.ports import find_java
from bridge.core.position import MIGRATE_OWNER
from tests.support.bridge_process import Bridge, read_committed, wait_until

_ANSWER_S = 30.0
AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Settings of a broker that obeys rules."""


def set_topic_config(kafka: str, topic: str, config: Mapping[str, str]) -> None:
    """Changes a topic's configuration; returns when its broker knows."""
    entries = [ConfigEntry(n, v, incremental_operation=AlterConfigOpType.SET) for n, v in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": kafka})  # must outlive its futures
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(_ANSWER_S)

    def is_known() -> bool:
        (described,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        known = described.result(_ANSWER_S)
        return all(known[name].value == value for name, value in config.items())

    wait_until(is_known, name=f"the new settings of {topic}")


def delete_topic(kafka: str, topic: str) -> None:
    """Deletes a topic; returns when nobody sees it any more."""
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([topic])[topic].result(_ANSWER_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, name=f"{topic} gone")


def forget_all(kafka: str, topic: str) -> None:
    """Every record that a topic of one partition has, as retention does."""
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_records([TopicPartition(topic, 0, OFFSET_END)]).values():
        future.result(_ANSWER_S)


def _write_rules(topic: str) -> list[AclBinding]:
    """Everything is allowed but to write: a topic that has any rule is closed to all that none allows."""
    return [
        AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, kind)
        for operation, kind in (
            (AclOperation.ALL, AclPermissionType.ALLOW), (AclOperation.WRITE, AclPermissionType.DENY),
        )
    ]  # fmt: skip


def deny_writes(kafka: str, topic: str) -> None:
    """Nobody may write to the topic of a cluster with an authorizer (`AUTHORIZED`)."""
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.create_acls(_write_rules(topic)).values():
        future.result(_ANSWER_S)


def allow_writes(kafka: str, topic: str) -> None:
    """As before."""
    admin = AdminClient({"bootstrap.servers": kafka})
    filters = [
        AclBindingFilter(rule.restype, rule.name, rule.resource_pattern_type, rule.principal, rule.host, rule.operation,
                         rule.permission_type)
        for rule in _write_rules(topic)
    ]  # fmt: skip
    for future in admin.delete_acls(filters).values():
        future.result(_ANSWER_S)


def grow_topic(kafka: str, topic: str, partitions: int) -> None:
    """Gives a topic so many partitions; returns when everybody may see them."""
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(_ANSWER_S)
    wait_until(lambda: count_partitions(kafka, topic) == partitions, name=f"{partitions} partitions of {topic}")


def count_partitions(kafka: str, topic: str) -> int:
    """How many a topic has."""
    found = AdminClient({"bootstrap.servers": kafka}).list_topics(topic, timeout=_ANSWER_S).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return len(found.partitions)


def reset_offsets(kafka: str, group: str, topic: str, offsets: Mapping[int, int]) -> bool:
    """Sets a group's committed offsets; False if Kafka refuses, as it does for a group with members."""
    places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    admin = AdminClient({"bootstrap.servers": kafka})
    (future,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values()
    try:
        answered: ConsumerGroupTopicPartitions = future.result(_ANSWER_S)
    except KafkaException:
        return False
    return all(place.error is None for place in answered.topic_partitions or ())


def set_default_quota(kafka: str, name: str, value: int) -> None:
    """Of all clients: the Python client cannot set one, so Kafka's own command does."""
    command = ("kafka.admin.ConfigCommand", "--bootstrap-server", kafka, "--alter", "--entity-type", "clients")
    options = ("--entity-default", "--add-config", f"{name}={value}")
    jars = f"{fetch_jars()}/*"
    subprocess.run(
        (str(find_java().path), "-cp", jars, *command, *options), check=True, capture_output=True, timeout=90
    )


def count_members(kafka: str, group: str) -> int:
    """Members of a group."""
    admin = AdminClient({"bootstrap.servers": kafka})
    (future,) = admin.describe_consumer_groups([group]).values()
    return len(future.result(_ANSWER_S).members)


def delete_group(kafka: str, group: str) -> bool:
    """Deletes a group with its offsets; False if Kafka refuses, as it does for a group with members."""
    admin = AdminClient({"bootstrap.servers": kafka})
    (future,) = admin.delete_consumer_groups([group]).values()
    try:
        future.result(_ANSWER_S)
    except KafkaException:
        return False
    return True


def read_positions(bridge: Bridge) -> dict[int, dict[str, Any]]:
    """The last position of each queue."""
    records = read_committed(bridge.kafka, [bridge.op_topic])
    return {r.partition: json.loads(r.value or b"") for r in records if r.key == b"~"}


def read_owners(bridge: Bridge) -> set[str]:
    """Every settler that ever wrote a position."""
    records = read_committed(bridge.kafka, [bridge.op_topic])
    return {json.loads(r.value or b"")["owner"] for r in records if r.key == b"~"} - {MIGRATE_OWNER}


def read_states(bridge: Bridge) -> dict[str, list[dict[str, Any]]]:
    """All op messages of each transaction, in their order."""
    states: dict[str, list[dict[str, Any]]] = {}
    for record in read_committed(bridge.kafka, [bridge.op_topic]):
        if record.key not in {b"~", b"?", None} and record.key is not None:
            states.setdefault(record.key.decode(), []).append(json.loads(record.value or b""))
    return states


def read_last_position(kafka: str, op_topic: str) -> dict[str, Any]:
    """The last position of an op topic with one queue."""
    positions = [r for r in read_committed(kafka, [op_topic]) if r.key == b"~"]
    last: dict[str, Any] = json.loads(positions[-1].value or b"")
    return last

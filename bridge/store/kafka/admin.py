"""What the cluster says of its topics."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from enum import Enum
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from confluent_kafka.admin import TopicDescription as Described  # type: ignore[attr-defined]

from bridge.core.errors import StoreTimeout, StoreUnavailable
from bridge.store.kafka.asker import Asker
from bridge.store.kafka.errors import error_of, make_store_error
from bridge.store.kafka.options import KafkaConfig
from bridge.store.message_store import ClusterDescription, TopicDescription

T = TypeVar("T")

_VISIBLE_S, _LOOK_S = 10.0, 0.02
_ASKED_FOR = "outbox-bridge"  # a topic that need not be there
_NOT_THERE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001


class Missing(Enum):
    """Why there is no description."""

    NOT_THERE = "not there"
    DENIED = "denied"


class KafkaTopicAdmin:
    """TopicAdmin."""

    def __init__(self, config: KafkaConfig) -> None:
        self._asker = Asker(config)
        self.errors = self._asker.errors

    async def ping(self) -> None:
        """A refusal is an answer too."""
        asked = ConfigResource(ResourceType.TOPIC, _ASKED_FOR)
        answers = await self._asker.ask_each(
            lambda client, timeout_s: {None: client.describe_configs([asked], request_timeout=timeout_s)[asked]}
        )
        answer = answers[None]
        if isinstance(answer, KafkaException) and error_of(answer).code() < 0:
            raise make_store_error(error_of(answer)) from answer

    async def describe_cluster(self) -> ClusterDescription:
        """The client's own DescribeCluster ends the process (SIGABRT) if a broker that is starting names no brokers."""
        found = await self._asker.run(lambda client, timeout_s: client.list_topics(timeout=timeout_s))
        return ClusterDescription(
            found.cluster_id or "", [f"{node.host}:{node.port}" for node in found.brokers.values()]
        )

    async def describe_topics(
        self, names: Collection[str], *, with_denied: bool = False
    ) -> dict[str, TopicDescription | None]:
        """One request for all the topics, one for all their settings, together."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        topics, configs = await asyncio.gather(self._ask_topics(wanted), self._ask_configs(wanted))
        denied = [name for name in wanted if Missing.DENIED in (topics[name], configs[name])]
        if denied and not with_denied:
            raise StoreUnavailable(f"no right to describe {', '.join(denied)}")
        return {name: _describe(name, topics[name], configs[name]) for name in wanted}

    async def identify_topics(self, names: Collection[str]) -> dict[str, str | None]:
        found = await self._ask_topics(sorted(set(names)))
        if denied := [name for name, topic in found.items() if topic is Missing.DENIED]:
            raise StoreUnavailable(f"no right to describe {', '.join(denied)}")
        return {name: None if isinstance(topic, Missing) else str(topic.topic_id) for name, topic in found.items()}

    async def list_topics(self) -> list[str]:
        found = await self._asker.run(lambda client, timeout_s: client.list_topics(timeout=timeout_s))
        return sorted(name for name in found.topics if not name.startswith("__"))

    async def create_topic(self, name: str, queues: int, replication_factor: int, config: Mapping[str, str]) -> bool:
        topic = NewTopic(name, queues, replication_factor, config=dict(config))
        answers = await self._asker.ask_each(
            lambda client, timeout_s: {name: client.create_topics([topic], request_timeout=timeout_s)[name]}
        )
        answer = answers[name]
        if not isinstance(answer, KafkaException):
            await self._await_visible(name)
            return True
        if error_of(answer).code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise make_store_error(error_of(answer)) from answer

    async def count_members(self, group: str) -> int:
        """Living members of a consumer group; 0 for one that is not known. Raises StoreError."""
        described = await self._asker.ask(
            lambda client, timeout_s: client.describe_consumer_groups([group], request_timeout=timeout_s)[group]
        )
        return len(described.members)

    async def _await_visible(self, name: str) -> None:
        """The controller has made it; brokers hear of it a moment later. Raises StoreTimeout."""
        end = time.monotonic() + _VISIBLE_S
        while (await self.describe_topics([name]))[name] is None:
            if time.monotonic() > end:
                raise StoreTimeout(f"topic {name} was made, but no broker knows it yet")
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """Lets the client go."""
        await self._asker.close()

    async def _ask_topics(self, names: list[str]) -> dict[str, Described | Missing]:
        def request(client: AdminClient, timeout_s: float) -> Mapping[str | None, "Future[Described]"]:
            asked = TopicCollection(names)
            described = client.describe_topics(asked, include_authorized_operations=True, request_timeout=timeout_s)
            return dict(described.items())

        return await self._find_each(request, names)

    async def _ask_configs(self, names: list[str]) -> dict[str, dict[str, ConfigEntry] | Missing]:
        resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}

        def request(client: AdminClient, timeout_s: float) -> Mapping[str | None, "Future[dict[str, ConfigEntry]]"]:
            futures = client.describe_configs(list(resources.values()), request_timeout=timeout_s)
            return {name: futures[resource] for name, resource in resources.items()}

        return await self._find_each(request, names)

    async def _find_each(
        self, request: Callable[[AdminClient, float], Mapping[str | None, "Future[T]"]], names: Collection[str]
    ) -> dict[str, T | Missing]:
        """What was found of each name."""
        answers = await self._asker.ask_each(request)
        found: dict[str, T | Missing] = {}
        for name in names:
            answer = answers[name]
            if not isinstance(answer, KafkaException):
                found[name] = answer
            elif error_of(answer).code() in _NOT_THERE:
                found[name] = Missing.NOT_THERE
            elif error_of(answer).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                found[name] = Missing.DENIED
            else:
                raise make_store_error(error_of(answer)) from answer
        return found


def _describe(
    name: str, topic: Described | Missing, entries: Mapping[str, ConfigEntry] | Missing
) -> TopicDescription | None:
    if topic is Missing.NOT_THERE or entries is Missing.NOT_THERE:
        return None
    if isinstance(topic, Missing) or isinstance(entries, Missing):
        return TopicDescription(name, "", 0, frozenset(), 0, 0, True, 0, 0, {}, is_writable=False)
    config = {name: entry.value for name, entry in entries.items() if entry.value is not None}
    partitions = topic.partitions
    return TopicDescription(
        name=topic.name,
        topic_id=str(topic.topic_id),
        queues=len(partitions),
        leaderless=frozenset([p.id for p in partitions if p.leader is None or p.leader.id < 0]),
        replication_factor=len(partitions[0].replicas),
        max_message_bytes=int(config["max.message.bytes"]),
        is_log_append_time=config["message.timestamp.type"] == "LogAppendTime",
        timestamp_before_max_ms=int(config["message.timestamp.before.max.ms"]),
        timestamp_after_max_ms=int(config["message.timestamp.after.max.ms"]),
        config=config,
        is_writable=AclOperation.WRITE in (topic.authorized_operations or (AclOperation.WRITE,)),
    )

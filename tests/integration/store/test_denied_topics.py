"""Topics that ACLs keep from us, on a broker that has an authorizer."""

import asyncio

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from bridge.clock import KafkaTime, SystemClock
from bridge.core.errors import StoreUnavailable
from bridge.core.message import Message
from bridge.core.topics import InternalTopics, TopicDescription
from bridge.service.contract import Outcome, RefusalCode
from bridge.service.journal import Deadline
from bridge.service.topics import TopicCache
from bridge.store.kafka.admin import KafkaTopicAdmin
from bridge.store.kafka.options import KafkaConfig
from tests.support.bridge_process import create_topics
from tests.support.broker import BrokerFactory

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def allow(kafka: str, topic: str, user: str, *operations: AclOperation) -> None:
    """Lets the user do this with the topic, and nobody anything else."""
    bindings = [
        AclBinding(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", operation,
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]  # fmt: skip
    admin = AdminClient({"bootstrap.servers": kafka})
    for made in admin.create_acls(bindings).values():
        made.result(10)


async def _describe(admin: KafkaTopicAdmin) -> dict[str, TopicDescription | None]:
    return await admin.describe_topics(["readable", "hidden"], with_denied=True)


async def test_prepare_for_a_topic_that_we_may_not_write_is_refused(broker_factory: BrokerFactory) -> None:
    """403 before anything is stored (59); other topics of the same question are not touched."""
    kafka = broker_factory(AUTHORIZER).bootstrap
    create_topics(kafka, dict.fromkeys(["open", "readable", "hidden"], 1))
    readable = (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    allow(kafka, "readable", "ANONYMOUS", *readable)
    allow(kafka, "hidden", "somebody", AclOperation.ALL)
    admin, clock = KafkaTopicAdmin(KafkaConfig({"bootstrap.servers": kafka})), SystemClock()
    destinations = TopicCache(admin, clock, InternalTopics(), KafkaTime(clock))
    try:
        for _ in range(600):  # the broker's authorizer hears of rules a little later
            if not any(t is not None and t.is_writable for t in (await _describe(admin)).values()):
                break
            await asyncio.sleep(0.05)
        await destinations.learn([("shop", t) for t in ("open", "readable", "hidden")], Deadline.after(clock, 10_000))
        answers = {topic: destinations.check([Message(topic)]) for topic in ("open", "readable", "hidden")}
        with pytest.raises(StoreUnavailable, match="no right to describe hidden"):
            await admin.describe_topics(["open", "hidden"])  # whoever needs what it is, as for its identity
    finally:
        await admin.close()
    refused = {topic: (answer.code, answer.outcome) for topic, answer in answers.items() if answer is not None}
    assert refused == dict.fromkeys(["readable", "hidden"], (RefusalCode.FORBIDDEN, Outcome.NOT_APPLIED))

"""bridge.service.audit: acts told as CloudEvents in a topic, in the order of the chain, none left out."""

import asyncio
import json
from typing import Any

import sqlalchemy as sa

from bridge.core.check_rules import GroupSettings
from bridge.core.message import MessageQueue
from bridge.node import Node
from bridge.service.audit import AuditTopic
from bridge.service.operate import Who
from bridge.sql.access import adopt_entries
from bridge.sql.tables import audit, audit_links, event_marks
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world

TOPIC = "orders"
WHO = Who("ann", "why")


def open_topic(world: ServiceWorld, api: Node) -> AuditTopic:
    return AuditTopic(TOPIC, world.topics.half, world.database, api.backing.store, api.backing.clock)


async def read_told(world: ServiceWorld) -> list[dict[str, Any]]:
    """All events, by the number of their act, the same one perhaps twice."""
    partitions = len(world.settlers.memory.cluster.log.topics[TOPIC].partitions)
    found = [await world.settlers.memory.store.get(MessageQueue(TOPIC, one), 0, 1_000) for one in range(partitions)]
    events = [json.loads(message.value or b"") for portion in found for message in portion.messages]
    return sorted(events, key=lambda event: event["data"]["number"])


@in_world(make_service_world)
async def test_acts_are_told_once_as_they_stand_in_the_audit(world: ServiceWorld) -> None:
    """With who, what, why, before and after; what was told is not told again."""
    async with world.serving() as api:
        topic = open_topic(world, api)
        assert await topic.run_once() == 0
        await api.groups.put("shop", GroupSettings(), [], WHO)
        await api.groups.rotate_secret("shop", WHO)
        assert (await topic.run_once(), topic.fault) == (2, "")
        await api.groups.delete("shop", WHO)
        assert await topic.run_once() in {0, 1}  # 0: the projection is too old for it to be deleted
        put, rotated, *_ = await read_told(world)
        assert [event["type"] for event in (put, rotated)] == [
            "audit.producer-group.put", "audit.producer-group.rotate-secret",
        ]  # fmt: skip
        assert (put["specversion"], put["subject"], put["datacontenttype"]) == ("1.0", "shop", "application/json")
        data = put["data"]
        assert (data["actor"], data["reason"], data["number"], data["before"]) == ("ann", "why", 1, None)
        assert data["after"]["accept_prepares"] is True
        assert "whsec_" not in json.dumps([put, rotated])


@in_world(make_service_world)
async def test_acts_behind_a_restored_backup_are_other_events(world: ServiceWorld) -> None:
    """The chain gives its numbers again; whoever drops what it has heard must not drop them."""
    async with world.serving() as api:
        topic = open_topic(world, api)
        await api.groups.put("shop", GroupSettings(), [], WHO)
        assert await topic.run_once() == 1
        for table in (audit_links, audit, event_marks):  # as the backup has them
            await world.database.run(lambda conn, table=table: conn.execute(sa.delete(table)))
        await api.groups.put("other", GroupSettings(), [], WHO)
        assert await topic.run_once() == 1
        told = await read_told(world)
        assert [(event["data"]["number"], event["subject"]) for event in told] == [(1, "shop"), (1, "other")]
        assert len({event["id"] for event in told}) == 2


@in_world(make_service_world)
async def test_process_that_has_lost_the_lease_complains_no_more(world: ServiceWorld) -> None:
    """What it could not tell another one tells."""
    async with world.serving() as api:
        topic = open_topic(world, api)
        await api.groups.put("shop", GroupSettings(), [], WHO)
        world.settlers.memory.cluster.log.topics[TOPIC].is_denied = True
        working = asyncio.create_task(topic.work())
        while not topic.fault:
            await world.sleep(100)
        working.cancel()
        await asyncio.wait([working])
        assert topic.fault == ""


@in_world(make_service_world)
async def test_acts_that_cannot_be_told_are_told_later(world: ServiceWorld) -> None:
    """A topic that takes nothing is named; nothing is left out, and what is told twice has one id."""
    async with world.serving() as api:
        topic = open_topic(world, api)
        for group in ("a", "b", "c"):
            await api.groups.put(group, GroupSettings(), [], WHO)
        log = world.settlers.memory.cluster.log.topics[TOPIC]
        log.is_denied = True
        assert await topic.run_once() == 0
        assert topic.fault
        log.is_denied = False
        assert (await topic.run_once(), topic.fault) == (3, "")
        assert [event["subject"] for event in await read_told(world)] == ["a", "b", "c"]
        await world.database.run(lambda conn: conn.execute(sa.delete(event_marks)))  # SQL of before
        assert await topic.run_once() == 3
        told = await read_told(world)
        assert (len(told), len({event["id"] for event in told})) == (6, 3)


@in_world(make_service_world)
async def test_act_that_the_topic_does_not_take_is_waited_for(world: ServiceWorld) -> None:
    """Order: those behind it come after it, and none of them again and again meanwhile."""
    async with world.serving() as api:
        topic = open_topic(world, api)
        for group, reason in (("a", "short"), ("b", "long" * 400), ("c", "short"), ("d", "short")):
            await api.groups.put(group, GroupSettings(), [], Who("ann", reason))
        log = world.settlers.memory.cluster.log.topics[TOPIC]
        log.alter({"max.message.bytes": "2000"})
        for _ in range(3):
            await topic.run_once()
            assert topic.fault
            assert [event["subject"] for event in await read_told(world)] == ["a"]
        log.alter({"max.message.bytes": "1000000"})
        await topic.run_once()
        assert [event["subject"] for event in await read_told(world)] == ["a", "b", "c", "d"]


@in_world(make_service_world)
async def test_queries_of_urls_in_old_entries_are_not_told(world: ServiceWorld) -> None:
    """As nobody is shown them who reads the audit: a token may stand there. What is no JSON is told as a text."""
    old = {"at_ms": 1, "actor": "ann", "what": "producer-group.put", "target": "shop", "reason": None}
    urls = '{"endpoints":["https://shop.example/check?token=t0ken"],"url":"https://shop.example/?token=t0ken"}'
    odd = ["not JSON", "[1]", '{"a":NaN}', "[" * 100_000]
    rows = [old | {"before": None, "after": urls}, *[old | {"before": text, "after": None} for text in odd]]
    async with world.serving() as api:
        await world.database.run(lambda conn: conn.execute(sa.insert(audit), rows))
        await world.database.run(lambda conn: adopt_entries(conn, 0, 2))
        assert await open_topic(world, api).run_once() == 5
        put, *told = await read_told(world)
        assert put["data"]["after"].keys() == {"endpoints", "url"}
        assert "t0ken" not in json.dumps(put)
        assert [event["data"]["before"] for event in told] == odd

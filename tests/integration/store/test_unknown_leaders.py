"""Offsets of queues whose leader the admin client does not know."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bridge.core.errors import StoreError, StoreTimeout
from bridge.core.message import MessageQueue
from bridge.store.kafka.groups import OffsetClient
from bridge.store.kafka.options import KafkaConfig
from tests.contract.world import DEADLINE_S, fresh_name
from tests.support.bridge_process import create_topics
from tests.support.kafka_cluster import running_cluster

NOBODY = "has no leader, or is not there"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of requests of all admin clients, in their order; each is carried out."""
    seen: list[str] = []
    ask, look = AdminClient.list_offsets, AdminClient.list_topics

    def list_offsets(client: AdminClient, *args: Any, **kwargs: Any) -> Any:
        seen.append("offsets")
        return ask(client, *args, **kwargs)

    def list_topics(client: AdminClient, *args: Any, **kwargs: Any) -> Any:
        seen.append("leaders")
        return look(client, *args, **kwargs)

    monkeypatch.setattr(AdminClient, "list_offsets", list_offsets)
    monkeypatch.setattr(AdminClient, "list_topics", list_topics)
    return seen


@asynccontextmanager
async def open_client(kafka: str) -> AsyncIterator[OffsetClient]:
    client = OffsetClient(KafkaConfig({"bootstrap.servers": kafka}))
    yield client
    await client.close()


async def until_led(client: OffsetClient, queue: MessageQueue) -> None:
    """A queue just made exists before it has a leader."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await client.get_offsets(queue)
            except StoreError:
                await asyncio.sleep(0.05)
            else:
                return


async def until_leaderless(client: OffsetClient, queue: MessageQueue) -> None:
    """Until then there is no answer at all."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with pytest.raises(StoreTimeout) as told:
                await client.get_offsets(queue)
            if NOBODY in str(told.value):
                return


async def test_leaders_are_known_before_offsets_are_asked_for(kafka: str, calls: list[str]) -> None:
    """One look for all who come; librdkafka's own may end the process when an answer about topics comes meanwhile."""
    queues = [MessageQueue(fresh_name("led"), 0) for _ in range(2)]
    create_topics(kafka, {queue.topic: 1 for queue in queues})
    async with open_client(kafka) as other, open_client(kafka) as client:
        for queue in queues:
            await until_led(other, queue)
        calls.clear()
        await asyncio.gather(*[client.get_offsets(queue) for queue in queues])
        assert calls == ["leaders", *["offsets"] * 6]
        await client.get_offsets(queues[0])
        assert calls.count("leaders") == 1


async def test_offsets_without_a_known_leader_are_not_asked_for(kafka: str, calls: list[str]) -> None:
    """Of a topic that is not there, or not ours to see: the question itself may end the process."""
    name = fresh_name("missing")
    async with open_client(kafka) as client:
        with pytest.raises(StoreTimeout, match=rf"{name}\[0\] {NOBODY}"):
            await client.get_offsets(MessageQueue(name, 0))
    assert set(calls) == {"leaders"}


async def test_queue_whose_only_broker_is_gone_takes_no_question_and_holds_up_no_other(
    tmp_path: Path, calls: list[str]
) -> None:
    """As where a disk is lost: asked for ever, with the others beside it, it ended the process after a while (T, B)."""
    gone, led = MessageQueue("gone", 0), MessageQueue("led", 0)
    with running_cluster(tmp_path, 3) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.direct})
        for queue, broker in ((gone, 3), (led, 1)):
            admin.create_topics([NewTopic(queue.topic, 1, replica_assignment=[[broker]])])[queue.topic].result(30)
        async with open_client(cluster.direct) as client:
            await until_led(client, gone)
            await until_led(client, led)
            cluster.nodes[2].broker.kill()
            await until_leaderless(client, gone)
            calls.clear()
            with pytest.raises(StoreTimeout, match=NOBODY):
                await client.get_offsets(gone)
            assert set(calls) == {"leaders"}
            calls.clear()
            await client.get_offsets(led)
            assert set(calls) == {"offsets"}

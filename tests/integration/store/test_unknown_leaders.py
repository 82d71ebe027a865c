"""Offsets of queues whose leader the admin client does not know."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from bridge.core.errors import StoreError
from bridge.core.message import MessageQueue
from bridge.store.kafka.groups import OffsetClient
from bridge.store.kafka.options import KafkaConfig
from tests.contract.world import DEADLINE_S, fresh_name
from tests.support.bridge_process import create_topics


class Calls(list[str]):
    """Names of requests in their order; `most`: how many questions for offsets were without an answer at once."""

    most = 0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Of all admin clients; each is carried out."""
    seen = Calls()
    ask, look = AdminClient.list_offsets, AdminClient.list_topics
    open_ones: set[Any] = set()

    def list_offsets(client: AdminClient, *args: Any, **kwargs: Any) -> Any:
        answers = ask(client, *args, **kwargs)
        open_ones.update(answers.values())
        for answer in answers.values():
            answer.add_done_callback(open_ones.discard)
        seen.append("offsets")
        seen.most = max(seen.most, len(open_ones))
        return answers

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


async def test_leaders_are_known_before_offsets_are_asked_for(kafka: str, calls: Calls) -> None:
    """One look for all who come; librdkafka's own may end the process when several questions need it at once."""
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


async def test_leaders_nobody_knows_are_asked_for_one_at_a_time(kafka: str, calls: Calls) -> None:
    """Of a topic that is not there, or not ours to see."""
    async with open_client(kafka) as client:
        with pytest.raises(StoreError):
            await client.get_offsets(MessageQueue(fresh_name("missing"), 0))
    assert (calls[0], calls.most) == ("leaders", 1)

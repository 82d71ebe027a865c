"""Which producer a call goes to."""

import pytest

from bridge.core.message import Message
from bridge.store.kafka import producer
from bridge.store.kafka.options import KafkaConfig
from bridge.store.kafka.store import BUSY, MANY, KafkaMessageStore


async def test_requests_gather_only_where_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call is sent at once; of many at once each request takes what comes within a moment, as of long lists."""
    monkeypatch.setattr(producer, "_FLUSH_S", 0)
    store = KafkaMessageStore(KafkaConfig({"bootstrap.servers": "127.0.0.1:1"}))

    def put(messages: int, calls: int) -> list[int]:
        for _ in range(calls):
            store.put_many([Message("orders", queue_id=0)] * messages)
        return [client.waiting for client in (store._append, store._gathered, store._bulk)]

    assert put(MANY, BUSY) == [0, 0, BUSY]
    assert put(1, BUSY) == [BUSY, 0, BUSY]
    assert put(MANY - 1, 2) == [BUSY, 2, BUSY]
    await store.close()

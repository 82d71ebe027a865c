"""Which producer a call goes to."""

import time
from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from bridge.core.errors import StoreTimeout
from bridge.core.message import Message, MessageQueue
from bridge.store.kafka import groups, producer
from bridge.store.kafka.options import KafkaConfig, Manner
from bridge.store.kafka.producer import BUSY, MANY, AppendClient
from bridge.store.kafka.store import KafkaMessageStore


async def test_requests_gather_only_where_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call is sent at once; of many at once each request takes what comes within a moment, as of long lists."""
    monkeypatch.setattr(producer, "_FLUSH_S", 0)
    store = KafkaMessageStore(KafkaConfig({"bootstrap.servers": "127.0.0.1:1"}))

    def put(messages: int, calls: int) -> list[int]:
        for _ in range(calls):
            store.put_many([Message("orders", queue_id=0)] * messages)
        return [client.waiting for client in store._append._opened]

    assert put(MANY, BUSY) == [0, 0, BUSY]
    assert put(1, BUSY) == [BUSY, 0, BUSY]
    assert put(MANY - 1, 2) == [BUSY, 2, BUSY]
    await store.close()


async def test_producer_that_cannot_be_made_is_made_by_a_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of threads or files for a moment: those that were made are kept, and each is there once."""
    monkeypatch.setattr(producer, "_FLUSH_S", 0)
    made, refused = list[AppendClient](), [Manner.GATHERED]

    def make(config: KafkaConfig, manner: Manner = Manner.PROMPT) -> AppendClient:
        if refused == [manner]:
            refused.clear()
            raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE))
        made.append(AppendClient(config, manner))
        return made[-1]

    monkeypatch.setattr(producer, "AppendClient", make)
    store = KafkaMessageStore(KafkaConfig({"bootstrap.servers": "127.0.0.1:1"}))
    with pytest.raises(KafkaException):
        store.open()
    store.put_many([Message("orders", queue_id=0)] * MANY)
    assert [client.waiting for client in store._append._opened] == [0, 0, 1]
    assert len(made) == 3
    await store.close()
    assert not any(client._thread.is_alive() for client in made)


async def test_question_for_a_group_is_never_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wakes up late has no time left, and the client takes less than none for all the time there is (T)."""
    asked = list[float]()

    class Away:
        """A consumer of a group whose coordinator is being loaded."""

        def __init__(self, _: object) -> None:
            pass

        def committed(self, _: Sequence[TopicPartition], timeout: float) -> None:
            asked.append(timeout)
            code = KafkaError.COORDINATOR_LOAD_IN_PROGRESS if len(asked) == 1 else KafkaError._TIMED_OUT
            raise KafkaException(KafkaError(code))

        def close(self) -> None:
            pass

    sleep = time.sleep
    monkeypatch.setattr(groups, "Consumer", Away)
    monkeypatch.setattr(groups.time, "sleep", lambda seconds: sleep(10 * seconds))
    store = KafkaMessageStore(KafkaConfig({"bootstrap.servers": "127.0.0.1:1"}, read_timeout_ms=300))
    with pytest.raises(StoreTimeout):
        await store.get_consume_offsets("group", [MessageQueue("orders", 0)])
    assert [timeout >= 0 for timeout in asked] == [True, True]
    await store.close()

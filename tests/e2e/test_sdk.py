"""The producer's side against bridge processes on a real Kafka."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outbox import (
    AsyncBridge,
    Bridge,
    HalfMessage,
    LocalTransactionState,
    Message,
    RequestRefused,
    TransactionListener,
    TransactionProducer,
    TransactionState,
)
from tests.support.running_service import RunningService
from tests.support.sdk_twins import AwaitedSession, Session

COMMIT, ROLLBACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE


class Shop(TransactionListener):
    """Commits what it is told to."""

    def execute_local_transaction(self, message: HalfMessage, arg: object) -> LocalTransactionState:
        return COMMIT if arg else ROLLBACK

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def test_threads_send_in_transactions(service: RunningService) -> None:
    """Half commit, half roll back: consumers see exactly the former, with their bytes."""
    group = service.new_group("sdk")

    def send(number: int) -> tuple[str, bytes]:
        value = b"\x00%d" % number
        message = Message(service.topics.orders, key=str(number), value=value, headers=[("h", b"\xff"), ("h", None)])
        result = producer.send_message_in_transaction(message, number % 2)
        assert result.state is (TransactionState.COMMITTED if number % 2 else TransactionState.ROLLED_BACK)
        return result.transaction_id, value

    with TransactionProducer(group, Shop(), service.api.url) as producer, ThreadPoolExecutor(16) as threads:
        sent = dict(threads.map(send, range(100)))
    read = service.read(sent, service.topics.orders)
    expected = sorted(value for number, value in enumerate(sent.values()) if number % 2)
    assert sorted(record.value or b"" for record in read) == expected
    assert {record.headers[:2] for record in read} == {(("h", b"\xff"), ("h", None))}
    assert service.counts(group)["pending"] == 0


async def test_tasks_send_in_blocks(service: RunningService) -> None:
    """Two messages to two topics each; both or neither."""
    group = service.new_group("sdk")

    async def send(face: AsyncBridge, number: int) -> str:
        async with face.transaction(AwaitedSession()) as transaction:
            transaction.send(service.topics.orders, key=str(number), value={"n": number})
            transaction.send(service.topics.credits, key=str(number), value=str(number))
        assert transaction.result is not None
        assert transaction.result.is_settled
        return transaction.result.transaction_id

    async with AsyncBridge(service.api.url, group, record=AwaitedSession()) as face:
        ids = await asyncio.gather(*[send(face, number) for number in range(100)])
    read = await asyncio.to_thread(service.read, ids)
    by_id: dict[Any, set[str]] = {}
    for record in read:
        by_id.setdefault(record.transaction_id, set()).add(record.topic)
    assert len(read) == 200
    assert all(topics == {service.topics.orders, service.topics.credits} for topics in by_id.values())


def test_message_that_no_topic_takes_is_refused_before_the_local_commit(service: RunningService) -> None:
    """Too large for its topic: nothing is committed, and the bridge's words arrive."""
    session = Session()
    with Bridge(service.api.url, service.new_group("sdk"), record=Session()) as face:
        with pytest.raises(RequestRefused) as refused, face.transaction(session) as transaction:
            transaction.send(service.topics.small, value="x" * 3_000)
        assert refused.value.code == "message-too-large"
    assert session.called == ["rollback"]


def test_two_instances_are_one_bridge(service: RunningService) -> None:
    """Prepared at one, ended at the other."""
    group = service.new_group("sdk")
    with Bridge(service.api.url, group) as here, Bridge(service.other.url, group) as there:
        prepared = here.prepare(Message(service.topics.line, value="v"), ordering_key="o")
        assert there.commit(prepared.transaction_id).state is TransactionState.COMMITTED
        assert here.commit(prepared.transaction_id).receipts == there.get(prepared.transaction_id).receipts

"""Reads the brokers' clocks: the append time of a record that means nothing.

A keyed half message that was seen before there was time is void for everybody, by a rule on the record alone
(`docs/records.md`); each queue of the journal may lie on another broker.
"""

import os
from collections.abc import Callable

from bridge.core.message import Message, MessageQueue
from bridge.core.record import HalfMessage
from bridge.core.record_codec import encode_half
from bridge.core.topics import InternalTopics
from bridge.core.transaction_id import make_transaction_id, make_uuid7_bits
from bridge.store.message_store import MessageStore
from bridge.store.results import PutStatus

GROUP = "outbox-bridge-doctor"


async def probe_clocks(store: MessageStore, topics: InternalTopics, now_ns: Callable[[], int]) -> dict[int, int | str]:
    """By queue: milliseconds its broker is ahead of `now_ns`, or why nothing could be appended."""
    return {queue_id: await _probe(store, topics, queue_id, now_ns) for queue_id in range(topics.queues)}


async def _probe(store: MessageStore, topics: InternalTopics, queue_id: int, now_ns: Callable[[], int]) -> int | str:
    before_ms = now_ns() // 1_000_000
    queue = MessageQueue(topics.half, queue_id)
    result = await store.put(queue, make_void(topics.half, queue_id, before_ms))
    if result.status is not PutStatus.PUT_OK:
        return result.detail or result.status.value
    return result.stored_ms - (before_ms + now_ns() // 1_000_000) // 2


def make_void(topic: str, queue_id: int, now_ms: int) -> Message:
    """A half message that no settler takes for one."""
    transaction_id = make_transaction_id(queue_id, make_uuid7_bits(now_ms, int.from_bytes(os.urandom(10))))
    half = HalfMessage(transaction_id, GROUP, 1, now_ms, GROUP, idempotency_key=transaction_id, seen_ms=0)
    return encode_half(half, [Message(GROUP)], topic, queue_id)

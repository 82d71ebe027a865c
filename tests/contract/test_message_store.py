"""MessageStore: plain puts, and what is refused."""

from bridge.core.message import Message, MessageQueue
from bridge.store.message_store import GetStatus, PutStatus, Refusal
from tests.contract.world import ContractWorld, fresh_name, make_queue, make_topic, put_values, read_until, to

_HOUR_MS = 3_600_000


async def test_put_answers_where_and_when(world: ContractWorld) -> None:
    """PUT_OK names the offset and the timestamp with which the message is found."""
    queue = await make_queue(world)
    first, second = await put_values(world, queue, b"first", b"second")
    got = await world.process.store.get(queue, 0, 10)
    assert [(m.queue_offset, m.stored_ms) for m in got.messages] == [
        (first.queue_offset, first.stored_ms),
        (second.queue_offset, second.stored_ms),
    ]
    assert (first.queue_offset, second.queue_offset) == (0, 1)


async def test_null_is_not_empty(world: ContractWorld) -> None:
    """Null and empty key and value arrive as they were put (I)."""
    queue = await make_queue(world)
    pairs = [(None, b"v"), (b"", b"v"), (b"k", None), (b"k", b""), (None, None), (b"", b"")]
    for key, value in pairs:
        await world.process.store.put(queue, to(queue, value, key))
    got = await world.process.store.get(queue, 0, 10)
    assert [(m.key, m.value) for m in got.messages] == pairs


async def test_headers_keep_order_repeats_and_bytes(world: ContractWorld) -> None:
    """The header list arrives in order, with repeats, null, empty and binary values (I)."""
    queue = await make_queue(world)
    headers = [("b", b"2"), ("a", None), ("b", b""), ("a", bytes(range(256))), ("b", b"2"), ("ü", b"\xff\x00")]
    await world.process.store.put(queue, Message(queue.topic, b"k", b"v", headers))
    got = await world.process.store.get(queue, 0, 1)
    assert [tuple(header) for header in got.messages[0].headers] == headers


async def test_put_ignores_the_messages_own_queue(world: ContractWorld) -> None:
    """The queue given to `put` is the one that counts."""
    topic = await make_topic(world, 2)
    result = await world.process.store.put(MessageQueue(topic, 1), Message("elsewhere", b"k", b"v", (), 0))
    assert result.status is PutStatus.PUT_OK
    got = await world.process.store.get(MessageQueue(topic, 1), 0, 1)
    assert [m.value for m in got.messages] == [b"v"]


async def test_put_many_answers_each_in_order(world: ContractWorld) -> None:
    """One result for each message, in order, over several topics and queues."""
    orders, credits_ = await make_topic(world, 2), await make_topic(world)
    queues = [MessageQueue(orders, 0), MessageQueue(credits_, 0), MessageQueue(orders, 0), MessageQueue(orders, 1)]
    messages = [to(queue, str(n).encode()) for n, queue in enumerate(queues)]
    results = await world.process.store.put_many(messages)
    assert [result.status for result in results] == [PutStatus.PUT_OK] * 4
    for queue, message, result in zip(queues, messages, results, strict=True):
        found = await world.process.store.get_each(queue, [result.queue_offset])
        assert found[result.queue_offset].value == message.value


async def test_put_many_keeps_the_order_of_a_queue(world: ContractWorld) -> None:
    """Messages of one call lie in their queue in the order of the call (O)."""
    queue = await make_queue(world)
    values = [str(n).encode() for n in range(500)]
    results = await world.process.store.put_many([to(queue, value) for value in values])
    assert [result.queue_offset for result in results] == list(range(500))
    assert [m.value for m in await read_until(world, queue, values[-1])] == values


async def test_put_many_of_nothing(world: ContractWorld) -> None:
    """No messages, no results."""
    assert await world.process.store.put_many([]) == []


async def test_refused_message_does_not_hurt_its_neighbours(world: ContractWorld) -> None:
    """A message too large is refused alone; those before and after it are written (A)."""
    queue = await make_queue(world, {"max.message.bytes": "2000"})
    messages = [to(queue, b"before"), to(queue, b"x" * 3_000), to(queue, b"after")]
    before, large, after = await world.process.store.put_many(messages)
    assert (large.status, large.refusal) == (PutStatus.REFUSED, Refusal.MESSAGE_TOO_LARGE)
    assert (before.status, after.status) == (PutStatus.PUT_OK, PutStatus.PUT_OK)
    assert [m.value for m in await read_until(world, queue, b"after")] == [b"before", b"after"]


async def test_too_large_message_is_refused(world: ContractWorld) -> None:
    """MESSAGE_TOO_LARGE is a refusal: nothing was written."""
    queue = await make_queue(world, {"max.message.bytes": "2000"})
    result = await world.process.store.put(queue, to(queue, b"x" * 2_001))
    assert (result.status, result.refusal) == (PutStatus.REFUSED, Refusal.MESSAGE_TOO_LARGE)
    assert (await world.process.store.get_offsets(queue)).maximum == 0


async def test_message_below_a_large_limit_is_taken(world: ContractWorld) -> None:
    """A topic that takes 8 MiB gets 8 MiB less a little: no smaller limit stands in the client."""
    queue = await make_queue(world, {"max.message.bytes": str(8 * 1024 * 1024)})
    value = b"x" * (8 * 1024 * 1024 - 10_000)
    result = await world.process.store.put(queue, to(queue, value))
    assert result.status is PutStatus.PUT_OK
    got = await world.process.store.get(queue, 0, 1)
    assert got.messages[0].value == value


async def test_unknown_topic_is_refused(world: ContractWorld) -> None:
    """No topic comes into being by a typing error; the answer is a definite no."""
    missing = fresh_name("missing")
    result = await world.process.store.put(MessageQueue(missing, 0), Message(missing, b"k", b"v"))
    assert (result.status, result.refusal) == (PutStatus.REFUSED, Refusal.UNKNOWN_TOPIC)
    assert (await world.process.admin.describe_topics([missing]))[missing] is None


async def test_unknown_queue_is_refused(world: ContractWorld) -> None:
    """A queue number beyond the topic's is refused like an unknown topic."""
    topic = await make_topic(world, 2)
    result = await world.process.store.put(MessageQueue(topic, 2), Message(topic, b"k", b"v"))
    assert (result.status, result.refusal) == (PutStatus.REFUSED, Refusal.UNKNOWN_TOPIC)


async def test_timestamp_asked_for_is_kept(world: ContractWorld) -> None:
    """A topic with CreateTime keeps the timestamp that was asked for (I)."""
    queue = await make_queue(world)
    asked = world.clock.now_ms() - 5 * _HOUR_MS
    result = await world.process.store.put(queue, Message(queue.topic, b"k", b"v", (), 0, asked))
    got = await world.process.store.get(queue, 0, 1)
    assert (result.stored_ms, got.messages[0].stored_ms) == (asked, asked)


async def test_log_append_time_overrules(world: ContractWorld) -> None:
    """A topic with LogAppendTime takes its own time, and the result says so."""
    queue = await make_queue(world, {"message.timestamp.type": "LogAppendTime"})
    asked = world.clock.now_ms() - 5 * _HOUR_MS
    result = await world.process.store.put(queue, Message(queue.topic, b"k", b"v", (), 0, asked))
    got = await world.process.store.get(queue, 0, 1)
    assert result.stored_ms == got.messages[0].stored_ms
    assert result.stored_ms > asked + _HOUR_MS


async def test_timestamp_outside_the_bounds_is_refused(world: ContractWorld) -> None:
    """A timestamp further ahead than the topic allows is refused, as one too far back."""
    queue = await make_queue(world, {"message.timestamp.before.max.ms": str(_HOUR_MS)})
    for asked in (world.clock.now_ms() + 3 * _HOUR_MS, world.clock.now_ms() - 3 * _HOUR_MS):
        result = await world.process.store.put(queue, Message(queue.topic, b"k", b"v", (), 0, asked))
        assert (result.status, result.refusal) == (PutStatus.REFUSED, Refusal.INVALID_TIMESTAMP)


async def test_compacted_topic_refuses_a_null_key(world: ContractWorld) -> None:
    """Compaction needs keys; the answer is a definite no."""
    queue = await make_queue(world, {"cleanup.policy": "compact"})
    result = await world.process.store.put(queue, to(queue, b"v", None))
    assert result.status is PutStatus.REFUSED


async def test_two_processes_share_a_queue(world: ContractWorld) -> None:
    """Plain puts of several processes interleave; each gets an offset of its own."""
    queue = await make_queue(world)
    other = await world.start_process("other")
    results = [await p.store.put(queue, to(queue, b"v")) for p in (world.process, other, world.process)]
    assert [result.queue_offset for result in results] == [0, 1, 2]
    assert (await other.store.get(queue, 0, 10)).status is GetStatus.FOUND

"""What the contract suite needs of an adapter, and the steps its tests are written in.

`tests/contract/kafka_adapter.py` offers one function for the Kafka adapter:

    async def open_process(bootstrap_servers: str, client: str) -> Process

All else on Kafka's side (topics deleted, a foreign transactional producer) is in `kafka_world.py`.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from bridge.clock import Clock
from bridge.core.errors import StoreError
from bridge.core.message import Message, MessageQueue, Receipt, StoredMessage
from bridge.store.message_store import (
    AtomicBatch,
    GroupChange,
    GroupMember,
    MessageStore,
    OwnerStore,
    PutResult,
    PutStatus,
    TopicAdmin,
)

DEADLINE_S = 30
SWEEP_MS = 100


class Process(Protocol):
    """One client process: its stores on the adapter."""

    @property
    def store(self) -> MessageStore: ...

    @property
    def owners(self) -> OwnerStore: ...

    @property
    def admin(self) -> TopicAdmin: ...

    async def close(self) -> None:
        """Lets all clients go."""
        ...


class OpenTransaction(Protocol):
    """A Kafka transaction of a producer that is not ours, with messages appended and no end."""

    async def end(self, *, is_commit: bool) -> None:
        """Ends it; readers see it soon."""
        ...


class ContractWorld(Protocol):
    """An adapter under test, and what is done to its log from outside."""

    @property
    def clock(self) -> Clock: ...

    @property
    def process(self) -> Process:
        """The process most tests work with."""
        ...

    async def start_process(self, client: str) -> Process:
        """One more process on the same log; closed with the world."""
        ...

    async def begin(self, transactional_id: str, messages: Sequence[Message]) -> OpenTransaction:
        """Messages appended in a Kafka transaction that stays open."""
        ...

    async def drop_below(self, queue: MessageQueue, offset: int) -> None:
        """The log forgets everything before the offset, as retention does."""
        ...

    async def alter_topic(self, name: str, config: Mapping[str, str]) -> None:
        """Changes settings of a topic."""
        ...

    async def delete_topic(self, name: str) -> None:
        """The topic is gone when this returns."""
        ...

    async def sweep(self) -> None:
        """Lets a little time pass, and the log's cleaner work."""
        ...


def fresh_name(word: str) -> str:
    """A name nobody has used."""
    return f"{word}-{uuid.uuid4().hex[:12]}"


async def make_topic(world: ContractWorld, queues: int = 1, config: Mapping[str, str] | None = None) -> str:
    """A fresh topic, every queue of which has its leader: an owner's batch does not wait for one."""
    name = fresh_name("topic")
    assert await world.process.admin.create_topic(name, queues, 1, config or {})
    for queue_id in range(queues):
        await wait_for_leader(world, MessageQueue(name, queue_id))
    return name


async def wait_for_leader(world: ContractWorld, queue: MessageQueue) -> None:
    """A queue just made exists before it has a leader."""
    while not await _is_led(world, queue):
        await world.clock.sleep_ms(20)


async def _is_led(world: ContractWorld, queue: MessageQueue) -> bool:
    try:
        await world.process.store.get_offsets(queue)
    except StoreError:
        return False
    return True


async def make_queue(world: ContractWorld, config: Mapping[str, str] | None = None) -> MessageQueue:
    """The only queue of a fresh topic."""
    return MessageQueue(await make_topic(world, 1, config), 0)


def to(queue: MessageQueue, value: bytes | None, key: bytes | None = b"k") -> Message:
    """A message for this queue."""
    return Message(queue.topic, key, value, (), queue.queue_id)


async def put_values(world: ContractWorld, queue: MessageQueue, *values: bytes) -> list[PutResult]:
    """Plain puts, one after the other, all accepted."""
    results = [await world.process.store.put(queue, to(queue, value)) for value in values]
    assert [result.status for result in results] == [PutStatus.PUT_OK] * len(values)
    return results


def batch_of(messages: Sequence[Message], *closing: Message) -> AtomicBatch:
    """A batch that ends with the `closing` records, whatever the receipts."""

    def finish(receipts: Sequence[Receipt]) -> Sequence[Message]:
        assert len(receipts) == len(messages)
        return closing

    return AtomicBatch(messages, finish)


async def read_until(world: ContractWorld, queue: MessageQueue, last_value: bytes | None) -> list[StoredMessage]:
    """All committed messages from the minimum on up to the one with this value, as a reader finds them."""
    offsets = await world.process.store.get_offsets(queue)
    reader = world.process.owners.open_reader(queue, offsets.minimum)
    found: list[StoredMessage] = []
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not found or found[-1].value != last_value:
                found.extend((await reader.get(1, 1_000)).messages)
    finally:
        await reader.close()
    return found


async def read_values(world: ContractWorld, queue: MessageQueue) -> list[bytes | None]:
    """The values of all committed messages, up to a sentinel that is put now; it is left out."""
    await put_values(world, queue, b"~end")
    return [message.value for message in await read_until(world, queue, b"~end")][:-1]


async def until(world: ContractWorld, check: Callable[[], Awaitable[bool]]) -> None:
    """Waits for something that the log does in its own time."""
    async with asyncio.timeout(DEADLINE_S):
        while not await check():
            await world.sweep()


async def until_stable(world: ContractWorld, queue: MessageQueue) -> None:
    """Waits until no Kafka transaction is open in the queue and all markers are written."""

    async def is_stable() -> bool:
        offsets = await world.process.store.get_offsets(queue)
        return offsets.stable == offsets.maximum

    await until(world, is_stable)


async def next_change(member: GroupMember) -> GroupChange:
    """The next rebalance, within the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        return await member.next_change()


async def gain(member: GroupMember, queue_ids: set[int]) -> None:
    """Waits until the member owns these queues; what is revoked meanwhile is released at once."""
    while not all(member.is_owned(queue_id) for queue_id in queue_ids):
        change = await next_change(member)
        member.release(change.revoked)


async def hand_over(first: GroupMember, second: GroupMember) -> tuple[frozenset[int], frozenset[int]]:
    """The first member releases what is revoked from it, the second gains something: both sets."""
    revoked = frozenset[int]()
    while not revoked:
        revoked = (await next_change(first)).revoked
    first.release(revoked)
    gained = frozenset[int]()
    while not gained:
        gained = (await next_change(second)).gained
    return revoked, gained

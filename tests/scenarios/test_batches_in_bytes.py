"""What one Kafka transaction holds is bounded in bytes, whatever was prepared and however it is asked for."""

from collections.abc import Collection

import pytest

from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY, decode_op, decode_position
from bridge.core.properties import count_stored_bytes
from bridge.core.transaction import TransactionState
from bridge.settler.ports import SettlerConfig
from bridge.store.memory.store import MemoryStore
from tests.support.settler_world import SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world

BODY = 3_000
LIMIT = 20_000  # of five bodies with what is around them
MOST = 5
NAMES = [f"t{n:02}" for n in range(30)]


@pytest.fixture(params=[0, 1_000_000], ids=["bodies-in-the-journal", "bodies-in-memory"])
def world(request: pytest.FixtureRequest) -> SettlerWorld:
    """Its owner keeps no body of what is pending, or all."""
    config = SettlerConfig(max_batch_bytes=LIMIT, max_body_bytes=request.param)
    return make_settler_world(config=config, real_topics={"orders": 1})


def groups_of(world: SettlerWorld) -> list[tuple[list[str], int]]:
    """The ids of the op messages of each Kafka transaction, and the position that it wrote."""
    partition = world.memory.cluster.log.topics[world.topics.op].partitions[0]
    groups: list[tuple[list[str], int]] = []
    ids: list[str] = []
    for message in partition.read(partition.minimum, len(partition.records))[0]:
        assert message.key is not None
        assert message.value is not None
        if message.key == POSITION_KEY:
            groups.append((ids, decode_position(message.value).s))
            ids = []
        elif message.key != ANSWERS_KEY:
            ids.append(decode_op(message.key.decode(), message.value).transaction.transaction_id)
    return groups


async def prepare_all(world: SettlerWorld, size: int = BODY) -> None:
    for name in NAMES:
        await world.prepare(name, Message("orders", name.encode(), b"v" * size))


def keys_of(world: SettlerWorld, topic: str) -> list[bytes | None]:
    return [message.key for message in world.memory.read_visible(topic)]


def test_commits_read_together_are_settled_in_several_kafka_transactions(world: SettlerWorld) -> None:
    """In order, and the position passes only what is written."""

    async def story() -> None:
        async with world.settling():
            await prepare_all(world)
            await world.settled()
        for name in NAMES:
            await world.commit(name)
        async with world.settling():
            await world.settled()

    world.run(story())
    published = [(ids, s) for ids, s in groups_of(world) if ids]
    assert [i for ids, _ in published for i in ids] == [world.id_of(name) for name in NAMES]
    assert all(len(ids) <= MOST for ids, _ in published)
    first_end = len(NAMES)
    assert [s for _, s in published[:-1]] == [
        first_end + sum(len(ids) for ids, _ in published[: n + 1]) for n in range(len(published) - 1)
    ]
    assert keys_of(world, "orders") == [name.encode() for name in NAMES]


def test_published_without_a_local_transaction_counts_too(world: SettlerWorld) -> None:
    """Half messages and commits in one: the bodies came with the records."""

    async def story() -> None:
        for name in NAMES:
            await world.prepare(name, Message("orders", name.encode(), b"v" * BODY), is_published=True)
        async with world.settling():
            await world.settled()

    world.run(story())
    assert max(len(ids) for ids, _ in groups_of(world)) <= MOST
    assert keys_of(world, "orders") == [name.encode() for name in NAMES]


def test_body_above_the_bound_goes_alone(world: SettlerWorld) -> None:
    """Nothing is too large to be published once it was accepted."""

    async def story() -> None:
        async with world.settling():
            await prepare_all(world, size=3 * LIMIT)
            for name in NAMES:
                await world.commit(name)
            await world.settled()

    world.run(story())
    assert max(len(ids) for ids, _ in groups_of(world)) == 1
    assert keys_of(world, "orders") == [name.encode() for name in NAMES]


def test_parks_are_bounded(world: SettlerWorld) -> None:
    """A parked message is a copy of the body: all are parked, some at a time."""

    async def story() -> None:
        async with world.settling():
            await prepare_all(world)
            await world.settled()
            world.observer.owners[0].park({world.id_of(name): "MAX_CHECKS" for name in NAMES})
            await world.memory.clock.sleep_ms(10_000)

    world.run(story())
    parked = [ids for ids, _ in groups_of(world) if ids]
    assert sorted(i for ids in parked for i in ids) == sorted(world.id_of(name) for name in NAMES)
    assert max(map(len, parked)) <= MOST
    assert all(world.op_of(name).transaction.state is TransactionState.PARKED for name in NAMES)


def test_retries_of_blocked_commits_are_bounded(world: SettlerWorld) -> None:
    """Once the topic is there again, its commits go out, some at a time."""

    async def story() -> None:
        async with world.settling():
            for name in NAMES:
                await world.prepare(name, Message("later", b"one key", b"v" * BODY))
                await world.commit(name)
            await world.settled()
            await world.memory.clock.sleep_ms(5_000)
            world.memory.cluster.log.create_topic("later", 1)
            await world.memory.clock.sleep_ms(300_000)

    world.run(story())
    published = [op for op in world.read_op().last.values() if not op.transaction.blocked]
    assert len(published) == len(NAMES)
    assert len(keys_of(world, "later")) == len(NAMES)
    retried = [ids for ids, s in groups_of(world) if ids and s == 2 * len(NAMES)]
    assert max(map(len, retried[-10:])) <= MOST


async def _weigh(store: MemoryStore, queue: MessageQueue, offsets: Collection[int], most: int) -> int:
    found: dict[int, StoredMessage] = await store.get_each(queue, offsets, most)
    return sum(map(count_stored_bytes, found.values()))


@in_world(make_settler_world)
async def test_look_up_stops_at_its_bound(world: SettlerWorld) -> None:
    """One message more than fits at most."""
    await prepare_all(world)
    queue = MessageQueue(world.topics.half, 0)
    weight = await _weigh(world.memory.store, queue, range(len(NAMES)), LIMIT)
    one = await _weigh(world.memory.store, queue, [0], LIMIT)
    assert LIMIT <= weight < LIMIT + one

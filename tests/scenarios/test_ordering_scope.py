"""What a blocked commit holds up: its own effective ordering key, and nobody else's (O, B)."""

from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from bridge.core.message import Message
from bridge.core.record import EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_end, encode_half
from bridge.core.transaction import TransactionView, queue_of
from bridge.node import Node
from bridge.service.contract import EndCall, PrepareCall, Prepared
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world


class Made(NamedTuple):
    """A prepare: whose, where to, in what order."""

    group: str
    topic: str
    key: bytes | None = b"42"
    ordering_key: str | None = None


async def prepare(api: Node, made: Made) -> str:
    call = PrepareCall(made.group, (Message(made.topic, made.key, b"v"),), made.ordering_key)
    [prepared] = await api.transactions.prepare([call])
    assert isinstance(prepared, Prepared)
    return prepared.transaction_id


async def commit(api: Node, transaction_id: str) -> str | None:
    """Why it is blocked, if it is."""
    [view] = await api.transactions.end([EndCall(transaction_id, Resolution.COMMIT)])
    assert isinstance(view, TransactionView)
    assert view.blocked is (view.reason is not None)
    return view.reason


def reasons(tmp_path: Path, *others: Made, head: Made) -> list[str | None]:
    """Why commits are blocked that follow one to a topic which takes nothing."""
    world = make_service_world(tmp_path, queues=4)
    told: list[str | None] = []

    async def story() -> None:
        async with world.serving() as api, world.settlers.settling():
            ids = [await prepare(api, made) for made in (head, *others)]
            assert len({queue_of(i) for i in ids}) == 1
            world.settlers.memory.cluster.log.topics[head.topic].is_denied = True
            assert await commit(api, ids[0]) not in {None, "ORDER"}
            told.extend([await commit(api, transaction_id) for transaction_id in ids[1:]])

    world.run(story())
    return told


def test_message_key_holds_up_its_own_group_and_topic_only(tmp_path: Path) -> None:
    """A dead topic of one team does not block the same key elsewhere (B); behind it in its own, all wait (O)."""
    others = [Made("bank", "orders"), Made("shop", "orders")]
    assert reasons(tmp_path, *others, head=Made("shop", "credits")) == [None, None]


def test_message_key_holds_up_later_ones_of_its_group_and_topic(tmp_path: Path) -> None:
    """They are behind it wherever the topic stands."""
    [reason] = reasons(tmp_path, Made("shop", "credits"), head=Made("shop", "credits"))
    assert reason is not None


def test_ordering_key_spans_the_topics_of_its_group(tmp_path: Path) -> None:
    """Whoever asked for an order over topics has it; another team with an equal word has nothing to do with it."""
    others = [Made("shop", "orders", b"1", "42"), Made("bank", "orders", b"2", "42"), Made("shop", "orders", b"42")]
    assert reasons(tmp_path, *others, head=Made("shop", "credits", b"3", "42")) == ["ORDER", None, None]


async def append_as_before(world: ServiceWorld, known: HalfMessage, name: str, topic: str) -> str:
    """The half message and commit of a version that recorded no ordering key."""
    transaction_id = known.transaction_id[:2] + name * 8 + known.transaction_id[10:]
    half = replace(known, transaction_id=transaction_id, real_topic=topic, ordering_hash=None, group=name)
    messages = [Message(topic, b"42", b"v")]
    end = EndRecord(transaction_id, Resolution.COMMIT, Source.PRODUCER, 5)
    queue_id = queue_of(transaction_id)
    await world.settlers.memory.store.put_many([encode_half(half, messages, world.topics.half, queue_id)])
    await world.settlers.memory.store.put_many([encode_end(end, world.topics.half, queue_id)])
    return transaction_id


@in_world(make_service_world)
async def test_what_was_prepared_by_an_older_version_keeps_its_order(world: ServiceWorld) -> None:
    """Half messages without OKEY wait for each other as they did, by the message key alone, also after a take-over."""
    async with world.serving() as api:
        async with world.settlers.settling("first"):
            new = await prepare(api, Made("shop", "orders"))
            [known] = [record for record in await world.journal() if isinstance(record, HalfMessage)]
            world.settlers.memory.cluster.log.topics["credits"].is_denied = True
            old = [await append_as_before(world, known, *each) for each in (("a", "credits"), ("b", "orders"))]
            await world.sleep(2_000)
        async with world.settlers.settling("second"):
            old.append(await append_as_before(world, known, "c", "orders"))
            await world.sleep(2_000)
            reasons = [world.settlers.read_op().last[i].transaction.reason for i in old]
            assert reasons[1:] == ["ORDER", "ORDER"]
            assert await commit(api, new) is None

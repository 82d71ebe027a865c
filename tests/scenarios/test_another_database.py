"""A settler with another database: its key is not that of what the others have written."""

import pytest

from bridge.core.errors import ConfigError
from bridge.core.keyring import SECRET_BYTES, BridgeKey, Keyring, OpSeals
from bridge.core.message import Message, MessageQueue
from bridge.core.op_message import POSITION_KEY
from bridge.store.op_topic import SealWatch
from tests.support.settler_world import SettlerWorld, make_settler_world

CREDIT = Message("credits", b"k", b"v")


def watch_of(secret: bytes, believed: dict[int, int] | None = None) -> SealWatch:
    return SealWatch(OpSeals(Keyring([BridgeKey("1", secret * SECRET_BYTES)]), believed))


async def publish(world: SettlerWorld, settler: str) -> None:
    async with world.settling(settler):
        await world.prepare(settler, CREDIT)
        await world.commit(settler)
        await world.settled()


def test_take_over_with_another_database_publishes_nothing_again() -> None:
    """Neither what the last owner published, nor anything since; the right one goes on afterwards (D)."""
    world = make_settler_world(seal_watch=watch_of(b"a"))
    believed = dict(world.seal_watch.seals.believed)

    async def story() -> None:
        await publish(world, "first")
        right, world.seal_watch = world.seal_watch, watch_of(b"b", believed)
        with pytest.raises(ConfigError, match="database_url"):
            async with world.settling("other"):
                await world.memory.clock.sleep_ms(1_000)
        world.seal_watch = right
        await publish(world, "second")

    world.run(story())
    assert world.memory.visible("credits") == [b"v"] * 2


def test_lost_note_does_not_make_another_database_the_right_one() -> None:
    """Offsets expire after a week without a member: nothing is published again all the same (D)."""
    world = make_settler_world(seal_watch=watch_of(b"a"))
    believed = dict(world.seal_watch.seals.believed)

    async def story() -> None:
        await publish(world, "first")
        world.memory.cluster.groups.delete_offsets(world.topics.group)
        world.seal_watch = watch_of(b"b", believed)
        with pytest.raises(ConfigError, match="database_url"):
            async with world.settling("other"):
                await world.memory.clock.sleep_ms(1_000)

    world.run(story())
    assert world.memory.visible("credits") == [b"v"]


def test_lost_note_leaves_what_is_not_ours_to_be_passed_over() -> None:
    """Offsets are reset, deleted and expire: a forged record alone ends nobody who has settled before (T)."""
    world = make_settler_world(seal_watch=watch_of(b"a"))
    believed, forged = dict(world.seal_watch.seals.believed), b'{"v":1,"s":9,"l":9,"o":0,"owner":"forger"}'

    async def story() -> None:
        await publish(world, "first")
        world.memory.cluster.groups.delete_offsets(world.topics.group)
        await world.memory.store.put(MessageQueue(world.topics.op, 0), Message(world.topics.op, POSITION_KEY, forged))
        world.seal_watch = watch_of(b"a", believed)
        await publish(world, "second")

    world.run(story())
    assert world.seal_watch.met == {0}
    assert world.memory.visible("credits") == [b"v"] * 2

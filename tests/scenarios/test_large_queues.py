"""Much of one kind in one queue: pending transactions beyond every threshold, one batch full of repeated ends."""

import gc
from collections.abc import Iterator

import pytest

from bridge.core.message import Message, MessageQueue
from bridge.core.op_message import POSITION_KEY, AnswerCode, Position, decode_position
from bridge.core.record import EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_end, encode_half
from bridge.core.transaction import TransactionState, make_transaction_id
from bridge.settler.ports import SettlerConfig
from tests.support.settler_world import GROUP, SettlerWorld, make_settler_world
from tests.support.virtual_time import in_world

PENDING = 400_000
REPEATED = 2_000
MESSAGES = 300  # so that two thousand answers with all receipts are more than one record may hold


def append_halves(world: SettlerWorld, count: int) -> None:
    """Straight into the journal, in one go."""
    topic, now_ms = world.topics.half, world.memory.clock.now_ms()
    messages = (Message("orders", None, b"v"),)
    journal = world.memory.cluster.log.topics[topic].partitions[0]
    halves = [HalfMessage(make_transaction_id(0, n + 1), GROUP, 1, now_ms, "orders") for n in range(count)]
    journal.append([encode_half(half, messages, topic, 0) for half in halves], None, now_ms)


def last_position(world: SettlerWorld) -> Position:
    """Without decoding everything that lies before it."""
    records = reversed(world.memory.cluster.log.topics[world.topics.op].partitions[0].records)
    return next(decode_position(r.stored.value or b"") for r in records if r.stored.key == POSITION_KEY)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Millions of objects that stay are not worth a look by the garbage collector."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_many_pending_transactions_are_carried_forward_once_and_rebuilt() -> None:
    """Put back catches up with four hundred thousand and then rests; a successor reads nothing but them (S).

    The threshold on op messages alone would chase its own tail here: more are live than it allows behind O.
    """
    world = make_settler_world(config=SettlerConfig(max_carried=2_000, max_body_bytes=0))

    async def story() -> None:
        clock = world.memory.clock
        append_halves(world, PENDING)
        async with world.settling("first"):
            await clock.sleep_ms(301_000)
            await world.prepare("last", Message("orders", None, b"v"))
            await clock.sleep_ms(60_000)
            status = world.settlers["first"].status[0]
            position = last_position(world)
            assert (position.s, position.l, status.live) == (PENDING + 1, PENDING, PENDING + 1)
            assert status.counts.carried == PENDING
        async with world.settling("second"):
            await clock.sleep_ms(5_000)
            status = world.settlers["second"].status[0]
            assert (status.live, status.counts.carried) == (PENDING + 1, 0)

    world.run(story())


@in_world(make_settler_world)
async def test_batch_of_repeated_ends_publishes_once_and_answers_each(world: SettlerWorld) -> None:
    """Two thousand ends of one transaction at once, every second one a contradiction: one wins, all hear it (D, F)."""
    queue = MessageQueue(world.topics.half, 0)
    async with world.settling("first") as first:
        await world.prepare("a", *[Message("credits", b"k", b"%d" % n) for n in range(MESSAGES)])
        await world.settled()
        first.freeze()
        ends = [
            EndRecord(
                world.id_of("a"), Resolution.ROLLBACK if n % 2 else Resolution.COMMIT, Source.PRODUCER, 0,
                request=f"r{n}",
            )
            for n in range(REPEATED)
        ]  # fmt: skip
        await world.memory.store.put_many([encode_end(end, queue.topic, 0) for end in ends])
        first.thaw()
        await world.memory.clock.sleep_ms(5_000)
        assert world.settlers["first"].status[0].take_overs == 1
    assert world.memory.visible("credits") == [b"%d" % n for n in range(MESSAGES)]
    log = world.read_op()
    [op] = log.every
    assert (op.transaction.state, op.transaction.requests) == (TransactionState.COMMITTED, ("r0",))
    assert [answer.request for answer in log.answers] == [f"r{n}" for n in range(1, REPEATED)]
    assert all(answer.code is AnswerCode.ALREADY and answer.op == op for answer in log.answers)

"""Whoever asks again is told: no answer is `outcome unknown` twice in a row while the log can be read (A)."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.core.message import Message, MessageQueue
from bridge.core.record import Resolution
from bridge.core.transaction import TransactionView
from bridge.node import Node
from bridge.service.contract import EndCall, Outcome, PrepareCall, Prepared, RefusalCode, Refused
from bridge.store.memory.link import PASSES, Fate, NoFaults, Step, StepKind
from tests.support.service_world import ServiceWorld, make_service_world

COMMIT, ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK
BAD = "credits"


class SilentTopic(NoFaults):
    """Appends to the bad topic are never answered, once it is said so."""

    is_silent = False

    async def before(self, step: Step) -> Fate:
        is_bad = step.kind is StepKind.APPEND and step.queue is not None and step.queue.topic == BAD
        return Fate(request_ms=None) if is_bad and self.is_silent else PASSES


def deny(world: ServiceWorld, _: SilentTopic) -> None:
    world.settlers.memory.cluster.log.topics[BAD].is_denied = True


def delete(world: ServiceWorld, _: SilentTopic) -> None:
    world.settlers.memory.cluster.log.delete_topic(BAD)


def take_leader(world: ServiceWorld, _: SilentTopic) -> None:
    world.settlers.memory.cluster.log.set_leader(MessageQueue(BAD, 0), has_leader=False)


def shrink(world: ServiceWorld, _: SilentTopic) -> None:
    world.settlers.memory.cluster.log.topics[BAD].alter({"max.message.bytes": "20"})


def silence(_: ServiceWorld, faults: SilentTopic) -> None:
    faults.is_silent = True


def is_unknown(answer: object) -> bool:
    return isinstance(answer, Refused) and answer.outcome is Outcome.UNKNOWN


async def prepare(api: Node, topic: str, ordering_key: str | None) -> str:
    call = PrepareCall("shop", (Message(topic, topic.encode(), b"v"),), ordering_key)
    [prepared] = await api.transactions.prepare([call])
    assert isinstance(prepared, Prepared)
    return prepared.transaction_id


@pytest.mark.parametrize("spoil", [deny, delete, take_leader, shrink, silence])
@pytest.mark.parametrize("is_seen_late", [False, True], ids=["seen at once", "found by the broker alone"])
def test_commits_behind_a_bad_destination_are_told_what_became_of_them(
    tmp_path: Path, spoil: Callable[[ServiceWorld, SilentTopic], None], *, is_seen_late: bool
) -> None:
    """Three of one key and two without, settled together, the first to a topic that cannot take it."""
    faults = SilentTopic()
    world = make_service_world(tmp_path, faults=faults)

    async def story() -> None:
        async with world.serving() as api, world.settlers.settling() as settler:
            keyed = [await prepare(api, topic, "o") for topic in (BAD, "orders", "orders")]
            free = [await prepare(api, topic, None) for topic in (BAD, "orders")]
            if is_seen_late:  # its description is fresh when the topic goes bad
                [view] = await api.transactions.end([EndCall(await prepare(api, BAD, "x"), COMMIT)])
                assert isinstance(view, TransactionView)
            spoil(world, faults)
            settler.freeze()
            first = [asyncio.create_task(api.transactions.end([EndCall(i, COMMIT)])) for i in keyed + free]
            await world.sleep(100)
            settler.thaw()
            heard = [(await task)[0] for task in first]
            again = [(await api.transactions.end([EndCall(i, COMMIT)]))[0] for i in keyed + free]
            assert not [pair for pair in zip(heard, again, strict=True) if all(map(is_unknown, pair))]
            assert [a.blocked for a in again if isinstance(a, TransactionView)] == [True, True, True, True, False]
            for transaction_id in keyed:
                [refused] = await api.transactions.end([EndCall(transaction_id, ROLLBACK)])
                assert isinstance(refused, Refused)
                assert refused.code is RefusalCode.ALREADY_RESOLVED

    world.run(story())

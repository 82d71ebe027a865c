"""Real topics that are deleted, made again, grown, cut, denied or without a leader between prepare and commit.

Each under load of others, with the queue's owner there all the time or replaced meanwhile: the commit stands, waits
for its own topics alone, and is published once when they take it (57 to 60).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bridge.core.message import Message, MessageQueue
from bridge.core.record import Resolution
from bridge.core.transaction import TransactionState, TransactionView
from bridge.node import Node
from bridge.service.contract import EndCall, PrepareCall, Prepared, RefusalCode, Refused
from tests.support.lost_log_world import GROUP, LostLogWorld, make_lost_log_world

QUEUES = 3
LARGE = b"x" * 2_000


@dataclass(frozen=True)
class Trouble:
    """`reason`: the reason of a commit that waits, None where nothing need wait; `refusal`: of a new prepare."""

    strike: Callable[[LostLogWorld], None]
    repair: Callable[[LostLogWorld], None]
    reason: str | None = None
    refusal: RefusalCode | None = None


def _set_leaders(world: LostLogWorld, *, has_leader: bool) -> None:
    for queue_id in range(QUEUES):
        world.memory.cluster.log.set_leader(MessageQueue("orders", queue_id), has_leader=has_leader)


def _create(world: LostLogWorld, queues: int) -> None:
    world.memory.cluster.log.create_topic("orders", queues)


def _cut(world: LostLogWorld) -> None:
    world.lose("orders")
    _create(world, 1)


def _deny(world: LostLogWorld, *, is_denied: bool) -> None:
    world.memory.cluster.log.topics["orders"].is_denied = is_denied


def _alter(world: LostLogWorld, size: int) -> None:
    world.memory.cluster.log.topics["orders"].alter({"max.message.bytes": str(size)})


def _nothing(_: LostLogWorld) -> None:
    return None


TROUBLES = {
    "deleted": Trouble(
        lambda world: world.lose("orders"), lambda world: _create(world, QUEUES), "UNKNOWN_TOPIC",
        RefusalCode.UNKNOWN_TOPIC,
    ),
    "recreated": Trouble(lambda world: world.recreate("orders"), _nothing),  # type: ignore[arg-type, return-value]
    "grown": Trouble(lambda world: world.memory.cluster.log.add_queues("orders", 7), _nothing),
    "fewer partitions": Trouble(
        _cut, lambda world: world.memory.cluster.log.add_queues("orders", QUEUES), "UNKNOWN_PARTITION",
        RefusalCode.UNKNOWN_PARTITION,
    ),
    "leaderless": Trouble(
        lambda world: _set_leaders(world, has_leader=False), lambda world: _set_leaders(world, has_leader=True),
        "LEADERLESS",
    ),
    "denied": Trouble(
        lambda world: _deny(world, is_denied=True), lambda world: _deny(world, is_denied=False),
        "TOPIC_AUTHORIZATION_FAILED", RefusalCode.FORBIDDEN,
    ),
    "smaller messages": Trouble(
        lambda world: _alter(world, 1_000), lambda world: _alter(world, 1_048_588), "MESSAGE_TOO_LARGE",
        RefusalCode.MESSAGE_TOO_LARGE,
    ),
}  # fmt: skip


@asynccontextmanager
async def load(world: LostLogWorld, nodes: list[Node]) -> AsyncIterator[list[bytes]]:
    """Others prepare and commit all the time, to another topic; what was acknowledged as committed."""
    committed: list[bytes] = []

    async def produce(number: int) -> None:
        for count in range(10_000):
            value = b"%d-%d" % (number, count)
            made = await world.prepare(nodes[-1], value, topic="credits", message_key=value)
            if isinstance(made, Prepared):
                ended = await world.end(nodes[-1], made)
                if isinstance(ended, TransactionView) and ended.state is TransactionState.COMMITTED:
                    committed.append(value)
            await world.memory.clock.sleep_ms(50)

    tasks = [asyncio.create_task(produce(number)) for number in range(3)]
    try:
        yield committed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def prepare_held(node: Node) -> list[Prepared]:
    """One to a partition, a large one, and one that spans both topics; each a chain of its own."""
    calls = [
        PrepareCall(GROUP, (Message("orders", b"a", b"held a " + LARGE, (), 2),)),
        PrepareCall(GROUP, (Message("credits", b"b", b"held b"), Message("orders", b"b", b"held b " + LARGE, (), 2))),
        PrepareCall(GROUP, (Message("orders", b"a", b"held c " + LARGE, (), 2),)),
    ]
    made = await node.transactions.prepare(calls, 5_000)
    assert all(isinstance(answer, Prepared) for answer in made), made
    return made  # type: ignore[return-value]


async def commit_all(node: Node, held: list[Prepared]) -> list[Any]:
    calls = [EndCall(made.transaction_id, Resolution.COMMIT, GROUP) for made in held]
    return list(await node.transactions.end(calls, wait_ms=10_000))


@pytest.mark.parametrize("owner", ["same owner", "replaced owner"])
@pytest.mark.parametrize("name", TROUBLES)
def test_commit_waits_for_its_own_topic_alone_and_is_published_once(tmp_path: Path, name: str, owner: str) -> None:
    """The commit stands and says why it waits; bystanders never notice; new prepares are refused where the topic can
    not take them; after repair every acknowledged commit is visible once, in order (L, P, D, O, B)."""
    trouble, world = TROUBLES[name], make_lost_log_world(tmp_path)

    async def story() -> None:
        async with AsyncExitStack() as first:
            nodes = [await first.enter_async_context(world.running())]
            held = await prepare_held(nodes[-1])
            async with load(world, nodes) as committed, AsyncExitStack() as second:
                await world.memory.clock.sleep_ms(1_000)
                trouble.strike(world)
                answers = await commit_all(nodes[-1], held)
                assert [answer.state for answer in answers] == [TransactionState.COMMITTED] * len(held), answers
                if trouble.reason is not None:
                    assert all(answer.blocked for answer in answers)
                    await check_refusal(world, nodes[-1], trouble.refusal)
                    await world.until_true(
                        lambda: say_why(nodes[-1], held, trouble.reason), f"shown as {trouble.reason}"
                    )
                if owner == "replaced owner":
                    nodes.append(await second.enter_async_context(world.running()))
                    await first.aclose()
                    answers = await commit_all(nodes[-1], held)
                    assert all(answer.blocked == (trouble.reason is not None) for answer in answers), answers
                before = len(committed)
                await world.until(lambda: len(committed) > before + 20, "progress of others")
                trouble.repair(world)
                await world.until_true(lambda: are_published(nodes[-1], held), "published", 180_000)
                acknowledged = list(committed)
        seen = world.memory.visible("orders") + world.memory.visible("credits")
        assert {value: seen.count(value) for value in acknowledged} == dict.fromkeys(acknowledged, 1)
        assert seen.count(b"held b") == 1
        orders = [value[:6] for value in world.memory.visible("orders") if value is not None]
        assert sorted(orders) == [b"held a", b"held b", b"held c"]
        assert orders.index(b"held a") < orders.index(b"held c"), "one key, one order"

    world.run(story())


async def say_why(node: Node, held: list[Prepared], reason: str | None) -> bool:
    views = [await node.transactions.get(made.transaction_id) for made in held]
    reasons = {view.reason for view in views if isinstance(view, TransactionView)}
    return reason in reasons and reasons <= {reason, "ORDER"}


async def are_published(node: Node, held: list[Prepared]) -> bool:
    answers = await commit_all(node, held)
    return all(isinstance(a, TransactionView) and not a.blocked and all(a.receipts) for a in answers)


async def check_refusal(world: LostLogWorld, node: Node, refusal: RefusalCode | None) -> None:
    """A prepare that could not be published is refused before anything is committed, as soon as that is known."""
    message = Message("orders", b"new", LARGE, (), 2)

    async def is_refused() -> bool:
        (answer,) = await node.transactions.prepare([PrepareCall("late", (message,))], 5_000)
        return isinstance(answer, Refused) and answer.code is refusal

    if refusal is not None:
        await world.until_true(is_refused, f"refused as {refusal}")

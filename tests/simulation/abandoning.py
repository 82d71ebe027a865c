"""An operator of the simulated world, who gives up what he sees blocked."""

from random import Random
from typing import TYPE_CHECKING

from bridge.core.message import MessageQueue
from bridge.core.record import Act, ActRecord
from bridge.core.record_codec import encode_act
from bridge.core.transaction import Transaction, queue_of
from tests.simulation.oracle import find_truth
from tests.simulation.schedule import Deed, Fault, Verb

if TYPE_CHECKING:
    from tests.simulation.world import World

_LOOKS_MS = (7, 50, 300)


async def give_up(world: "World", fault: Fault) -> None:
    """Looks now and then, and gives up each blocked one by chance: as another process's act, or by a call."""
    random = Random(fault.seed)
    until_ms = world.clock.monotonic_ms() + fault.for_ms
    while world.clock.monotonic_ms() < until_ms:
        await world.clock.sleep_ms(random.choice(_LOOKS_MS))
        world.archive.keep()
        for t in [op.transaction for op in world.archive.last_ops(world.topics).values() if op.transaction.blocked]:
            if random.random() >= fault.chance:
                continue
            if world.schedule.has_sql and random.random() < 0.5:
                await _ask(world, fault.instance, t)
            else:
                _append(world, t)


async def _ask(world: "World", instance: int, t: Transaction) -> None:
    first = find_truth(world.archive, world.topics)[t.transaction_id].messages[0].value or b""
    call = world.locals.calls[int(first.split(b"|", 1)[0])]
    await world.callers.do(call, Deed(0, Verb.ABANDON, instance), t.transaction_id)


def _append(world: "World", t: Transaction) -> None:
    queue, now_ms = MessageQueue(world.topics.half, queue_of(t.transaction_id)), world.cluster.agenda.now_ms()
    act = ActRecord(t.transaction_id, Act.ABANDON, "ops", "simulated", now_ms)
    world.cluster.log.find(queue).append([encode_act(act, *queue)], None, now_ms)

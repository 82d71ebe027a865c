"""The in-memory adapter under the contract suite: virtual time that runs freely, markers that come a little late."""

import asyncio
from collections.abc import Mapping, Sequence

from bridge.core.message import Message, MessageQueue
from bridge.store.memory.link import PASSES, Fate, Faults, Step
from bridge.store.memory.log import clean
from bridge.store.memory.process import MemoryProcess, MemoryProducer
from bridge.store.memory.store import MemoryCluster
from tests.contract.world import SWEEP_MS
from tests.support.virtual_time import VirtualClock

_MARKER_DELAY_MS = 3


class LateMarkers:
    """Faults that are none: a commit that has returned is not visible at once, as on Kafka."""

    async def before(self, step: Step) -> Fate:
        return PASSES

    async def after(self, step: Step) -> None:
        return None

    def marker_delay_ms(self, transactional_id: str, queue: MessageQueue) -> int:
        return _MARKER_DELAY_MS


class ContractProcess(MemoryProcess):
    """A process that can be closed; in memory there is nothing to let go."""

    async def close(self) -> None:
        for member in self.owners.members:
            await member.close()


class MemoryContractWorld:
    """A fresh cluster for each test."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.clock = VirtualClock()
        self.cluster = MemoryCluster(self.clock, faults or LateMarkers())
        self.process = ContractProcess(self.cluster, "main")
        self._time = asyncio.create_task(self.clock.run_freely())

    async def start_process(self, client: str) -> ContractProcess:
        return ContractProcess(self.cluster, client)

    async def begin(self, transactional_id: str, messages: Sequence[Message]) -> MemoryProducer:
        producer = MemoryProducer(self.cluster, self.cluster.connect("foreign"), transactional_id)
        await producer.init()
        await producer.put(messages)
        return producer

    async def drop_below(self, queue: MessageQueue, offset: int) -> None:
        self.cluster.log.find(queue).drop_below(offset)

    async def alter_topic(self, name: str, config: Mapping[str, str]) -> None:
        self.cluster.log.topics[name].alter(config)

    async def delete_topic(self, name: str) -> None:
        self.cluster.log.delete_topic(name)

    async def sweep(self) -> None:
        await self.clock.sleep_ms(SWEEP_MS)
        self.cluster.agenda.run_due()
        clean(self.cluster.log)

    async def close(self) -> None:
        self._time.cancel()
        await asyncio.wait([self._time])

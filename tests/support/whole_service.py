"""A service world with the real projector: what callers read comes from Kafka's side and from nowhere else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bridge.projector import Projector, ProjectorConfig, ProjectorPorts
from tests.support.service_world import ServiceWorld


@asynccontextmanager
async def projecting(
    world: ServiceWorld, name: str = "projector", config: ProjectorConfig | None = None
) -> AsyncIterator[Projector]:
    """A running projector process; leaves cleanly at the end."""
    settlers = world.settlers
    process, clock = settlers.memory.start_process(name), settlers.memory.clock
    ports = ProjectorPorts(
        process.owners, process.store, process.admin, world.database, clock, lambda _: settlers.times
    )
    projector = Projector(world.topics, name, ports, config or ProjectorConfig())
    task = asyncio.create_task(projector.run_forever())
    try:
        yield projector
    finally:
        projector.stop()
        await task

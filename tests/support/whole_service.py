"""A service world with the real projector: what callers read comes from Kafka's side and from nowhere else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bridge.node import NodeConfig
from bridge.projector import Projector, ProjectorConfig
from tests.support.service_world import ServiceWorld


@asynccontextmanager
async def projecting(
    world: ServiceWorld, name: str = "projector", config: ProjectorConfig | None = None
) -> AsyncIterator[Projector]:
    """A running projector process; leaves cleanly at the end."""
    process = world.settlers.memory.start_process(name)
    made = NodeConfig(name, world.topics, projector=config or ProjectorConfig())
    projector = world.settlers.make_node(process, name, made, world.database).make_projector()
    task = asyncio.create_task(projector.run_forever())
    try:
        yield projector
    finally:
        projector.stop()
        await task

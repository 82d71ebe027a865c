"""A settler world in which a checker asks one producer group: from a half message nobody ended to its end.

story = CheckedWorld()
story.serve(saying("COMMIT"))
async def body() -> None:
    async with story.checking():
        await story.world.prepare("a", Message("credits", b"k", b"v"))
        await story.sleep(40_000)
story.world.run(body())
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bridge.core.check_rules import CheckTimes, GroupSettings
from bridge.directory import Endpoint, ProducerGroup
from bridge.node import NodeConfig
from checker.call import EndpointCall
from tests.support.check_fakes import Handler, MemoryCaller, MemoryDirectory, Response
from tests.support.settler_world import GROUP, SettlerWorld, make_settler_world

URL = "https://shop.example/"
SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()


class CheckedWorld:
    """A settler world in which a checker runs beside."""

    def __init__(self, times: CheckTimes | None = None) -> None:
        self.world: SettlerWorld = make_settler_world()
        self.world.times = times or CheckTimes()
        clock = self.world.memory.clock
        group = ProducerGroup(GROUP, GroupSettings(self.world.times), (Endpoint(URL),), (SECRET,))
        self.directory = MemoryDirectory({GROUP: group})
        self.caller = MemoryCaller(clock)
        self.calls: list[tuple[int, dict[str, object]]] = []

    def serve(self, handler: Handler) -> None:
        async def noted(call: EndpointCall) -> Response:
            now_ms = self.world.memory.clock.now_ms()
            self.calls += [(now_ms, check) for check in json.loads(call.body)["checks"]]
            return await handler(call)

        self.caller.endpoints[URL] = noted

    @asynccontextmanager
    async def checking(self, name: str = "settler") -> AsyncIterator[None]:
        """A process with settler and checker; leaves cleanly."""
        process = self.world.memory.start_process(f"{name}-checker")
        node = self.world.make_node(process, name, NodeConfig(name, self.world.topics))
        node.directory = self.directory
        service = node.make_checks(self.caller)
        self.world.observer = service  # type: ignore[assignment]
        running = asyncio.ensure_future(service.run_forever())
        try:
            async with self.world.settling(name):
                yield
        finally:
            await service.close()
            await running

    async def sleep(self, duration_ms: int) -> None:
        await self.world.memory.clock.sleep_ms(duration_ms)

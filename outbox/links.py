"""A connection to one bridge for threads, and one for an event loop. Calls and closing are all they differ in."""

import asyncio
import threading
from contextlib import suppress

from outbox.caller import Caller
from outbox.calls import Call, PlainCall
from outbox.config import BridgeConfig, check_url
from outbox.errors import Misuse
from outbox.lifetime import Lifetime
from outbox.loop_thread import LoopThread
from outbox.replies import Reply


class ThreadLink:
    """For threads: their calls meet in an event loop of its own thread, started at first use."""

    def __init__(self, url: str, config: BridgeConfig) -> None:
        address = check_url(url)
        self.config = config
        self.lifetime = Lifetime()
        self.thread = LoopThread(lambda: Caller(address, config), Caller.close)

    async def ask(self, call: Call | PlainCall) -> Reply:
        """Blocks until the answer is there; never suspends. Raises OutboxError."""
        return self.thread.run(lambda caller: caller.call(call))

    def close(self) -> None:
        """Takes nothing new, waits for what is under way, cuts off what takes too long."""
        idle = threading.Event()
        self.lifetime.close(idle.set)
        idle.wait(self.config.close_timeout_s)
        self.thread.stop()


class LoopLink:
    """For one event loop, the one it is first used in."""

    def __init__(self, url: str, config: BridgeConfig) -> None:
        self._url = check_url(url)
        self.config = config
        self.lifetime = Lifetime()
        self._caller: Caller | None = None

    async def ask(self, call: Call | PlainCall) -> Reply:
        """Suspends until the answer is there. Raises OutboxError."""
        return await self.caller_here().call(call)

    def caller_here(self) -> Caller:
        """The calls of the running loop; those of one that has been closed are gone with it. Raises Misuse."""
        loop = asyncio.get_running_loop()
        if self._caller is None or (self._caller.loop is not loop and self._caller.loop.is_closed()):
            self._caller = Caller(self._url, self.config)
        if self._caller.loop is not loop:
            raise Misuse("in use in another event loop: make one for each")
        return self._caller

    async def close(self) -> None:
        """Takes nothing new, waits for what is under way, cuts off what takes too long."""
        loop, idle = asyncio.get_running_loop(), asyncio.Event()
        self.lifetime.close(lambda: _set_in(loop, idle))
        with suppress(TimeoutError):
            await asyncio.wait_for(idle.wait(), self.config.close_timeout_s)
        caller, self._caller = self._caller, None
        if caller is not None and caller.loop is loop:
            await caller.close()


def _set_in(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)

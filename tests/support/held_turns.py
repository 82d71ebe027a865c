"""Turns of the event loop whose first one is over only when somebody else has been served in it."""

import asyncio

from bridge.turns import Turns


class HeldTurn:
    """The first turn that is taken from now on, and whether there was one."""

    def __init__(self, turns: Turns) -> None:
        self.is_begun, self.is_over = asyncio.Event(), asyncio.Event()
        self._take = turns.take
        turns.take = self._hold  # type: ignore[method-assign]

    async def _hold(self) -> None:
        self.is_begun.set()
        await self.is_over.wait()
        await self._take()

    async def begin(self, work: "asyncio.Future[object]") -> None:
        """Returns when it is taken. Raises AssertionError if the work is done without."""
        begun = asyncio.ensure_future(self.is_begun.wait())
        await asyncio.wait({work, begun}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        assert self.is_begun.is_set(), "it was done in one piece"

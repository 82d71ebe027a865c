"""A database of which one answer comes late."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from bridge.sql.engine import Database

T = TypeVar("T")


class HeldDatabase(Database):
    """What is read first, behind so many other reads, is as of `has_read`, and comes once it `goes_on`."""

    def __init__(self, url: str, others: int = 0) -> None:
        super().__init__(url)
        self._others = others
        self.has_read, self.goes_on = asyncio.Event(), asyncio.Event()

    async def read(self, work: Callable[[Connection], T]) -> T:
        found = await super().read(work)
        self._others -= 1
        if self._others < 0 and not self.has_read.is_set():
            self.has_read.set()
            await self.goes_on.wait()
        return found

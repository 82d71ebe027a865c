"""A database of which the first answer comes late."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from bridge.sql.engine import Database

T = TypeVar("T")


class HeldDatabase(Database):
    """What is read first is as of `has_read`, and comes once it `goes_on`."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.has_read, self.goes_on = asyncio.Event(), asyncio.Event()

    async def read(self, work: Callable[[Connection], T]) -> T:
        found = await super().read(work)
        if not self.has_read.is_set():
            self.has_read.set()
            await self.goes_on.wait()
        return found

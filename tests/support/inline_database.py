"""SQL on virtual time: in the event loop, since threads know no virtual time."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from bridge.sql.engine import Database

T = TypeVar("T")


class InlineDatabase(Database):
    """Each piece of work whole, at one moment of the clock."""

    async def run(self, work: Callable[[Connection], T], timeout_ms: int | None = None) -> T:
        return await self.read(work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        await asyncio.sleep(0)
        with self.engine.begin() as connection:
            return work(connection)

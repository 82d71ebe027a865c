"""SQL in the event loop, for a bridge whose log is in memory: virtual time knows no threads."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from bridge.sql.engine import Database
from bridge.sql.tables import metadata

T = TypeVar("T")


class InlineDatabase(Database):
    """Each piece of work whole, at one moment of the clock."""

    async def run(self, work: Callable[[Connection], T], timeout_ms: int | None = None) -> T:
        return await self.read(work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        await asyncio.sleep(0)
        with self.engine.begin() as connection:
            return work(connection)

    def dispose(self) -> None:
        """Gives the file back."""
        self.engine.dispose()
        self._reader.dispose()


def open_new_database(folder: Path) -> InlineDatabase:
    """An empty database with the bridge's tables, in `folder`. What another one left there is gone.

    It is a copy of one empty database: making its tables anew each time would cost more than a test's story.
    """
    empty, path = folder / "empty.db", folder / "bridge.db"
    if not empty.exists():
        made = sa.create_engine(f"sqlite:///{empty}")
        metadata.create_all(made)
        made.dispose()
    for old in folder.glob("bridge.db*"):
        old.unlink()
    copyfile(empty, path)
    return InlineDatabase(f"sqlite:///{path}")

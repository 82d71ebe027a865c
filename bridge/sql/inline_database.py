"""SQL in the event loop, for a bridge whose log is in memory: virtual time knows no threads."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
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


class NewDatabase(InlineDatabase):
    """A file of its own, which ends with it."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}")
        self._path = path

    def dispose(self) -> None:
        """Nothing of it is left."""
        super().dispose()
        for file in self._path.parent.glob(f"{self._path.name}*"):
            file.unlink()


def open_new_database(folder: Path) -> NewDatabase:
    """An empty database with the bridge's tables, in `folder`, beside those of others.

    It is a copy of one empty database: making its tables anew each time would cost more than a test's story.
    """
    empty = folder / "empty.db"
    if not empty.exists():
        made = sa.create_engine(f"sqlite:///{empty}")
        metadata.create_all(made)
        made.dispose()
    with NamedTemporaryFile(dir=folder, prefix="bridge-", suffix=".db", delete=False) as copy:
        copy.write(empty.read_bytes())
    return NewDatabase(Path(copy.name))

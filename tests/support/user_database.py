"""A database as a user of `outbox` has one."""

from dataclasses import dataclass
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool


@dataclass(frozen=True)
class UserDatabase:
    """Its name, and the URLs of a synchronous and an asynchronous driver."""

    name: str
    url: str
    async_url: str

    def engine(self, **options: Any) -> sa.Engine:
        """Every connection is a new one: nothing that one session set is seen by another."""
        return sa.create_engine(self.url, poolclass=NullPool, **options)

    def async_engine(self) -> AsyncEngine:
        return create_async_engine(self.async_url, poolclass=NullPool)

    def isolation_levels(self) -> tuple[str, ...]:
        """Those that local transactions may run under."""
        if self.name == "sqlite":
            return ("SERIALIZABLE",)
        return ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


class Server(Protocol):
    """What the database is in."""

    def kill(self) -> None:
        """At once, without a word to anybody."""
        ...

    def start(self) -> None:
        """Brings it back with its data."""
        ...


@dataclass(frozen=True)
class MortalDatabase:
    """A database in a durable server of its own."""

    server: Server
    database: UserDatabase
